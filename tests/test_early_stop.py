"""The stopping rule replayed on recorded spaces: little time spent, and the best one still wins."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean

import early_stop  # type: ignore[import-not-found]
import numpy as np
import pytest

from autotune.measure.timing import StoppingRule

RECORDED = Path(__file__).resolve().parents[2] / "shared" / "recorded"
SPACES = {
    "convolution_milo-A100": 0.15,
    "convolution_milo-A4000": 0.15,
    "convolution_milo-MI250X": 0.15,
    "gemm-RTX_3090": 0.15,
    "convolution-RTX_3090": 0.35,  # 10 samples instead of 32
}
#: A replay has no clock.
RULE = StoppingRule(max_seconds=math.inf)


@pytest.mark.shared
@pytest.mark.parametrize(("name", "share"), SPACES.items())
@pytest.mark.parametrize("size", [None, 300])
def test_recorded_spaces_keep_their_best_at_a_fraction_of_the_time(name, share, size):
    path = RECORDED / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"no recorded spaces beside this checkout ({RECORDED})")
    recorded = early_stop.samples_of(path)
    orders = [early_stop.shuffled(len(recorded), size, seed) for seed in range(3)]
    found = [early_stop.replay(recorded, order, RULE) for order in orders]
    assert fmean(one.regret for one in found) <= 0.001
    assert fmean(one.time_share for one in found) <= share


def made(noise, hiccups=0.0, count=300, samples=32):
    """A space of our own: times spread over a factor of eight, the best ones close together."""
    rng = np.random.default_rng([int(1000 * noise), int(1000 * hiccups)])
    times = 1 + 7 * rng.random(count) ** 2
    drawn = times[:, None] * rng.lognormal(0, noise, (count, samples))
    drawn *= np.where(rng.random(drawn.shape) < hiccups, 2.5, 1.0)
    drawn[:, 0] *= 1.5  # the first launch loads the binary
    return drawn.tolist()


@pytest.mark.parametrize(("noise", "hiccups"), [(0.002, 0.0), (0.01, 0.02), (0.05, 0.1)])
def test_the_noisier_the_device_the_more_is_spent_and_the_best_is_kept(noise, hiccups):
    recorded = made(noise, hiccups)
    rule = RULE if noise < 0.05 else StoppingRule(max_seconds=math.inf, max_samples=31)
    found = [
        early_stop.replay(recorded, early_stop.shuffled(300, None, seed), rule) for seed in range(5)
    ]
    assert fmean(one.regret for one in found) <= 0.001
    assert fmean(one.time_share for one in found) < 0.5
    quiet = early_stop.replay(made(0.002), early_stop.shuffled(300, None, 0), RULE)
    assert quiet.time_share <= found[0].time_share


def test_without_the_rule_everything_slow_is_timed_in_full():
    """What the rule is held against: at least the fewest samples of each."""
    recorded = made(0.002)
    full = early_stop.replay(recorded, range(300), StoppingRule(max_seconds=math.inf, false_stop=0))
    ruled = early_stop.replay(recorded, range(300), RULE)
    assert full.stopped_share == 0
    assert full.time_share > 8 / 32 > 2 * ruled.time_share
