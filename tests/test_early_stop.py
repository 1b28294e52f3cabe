"""The stopping rule replayed on recorded spaces: little time spent, and the best one still wins."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean

import early_stop  # type: ignore[import-not-found]
import pytest

from autotune.measure.timing import StoppingRule

RECORDINGS = sorted((Path(__file__).parent / "data").glob("*.json.gz"))
#: A replay has no clock.
RULE = StoppingRule(max_seconds=math.inf)
#: The largest share of the recorded kernel time that may be spent, by recording; else `SHARE`. Where
#: many configurations are nearly as fast as the best there is less to save.
SHARES = {
    "copy-NVIDIA_H100_80GB_HBM3": 0.5,
    "gemv-NVIDIA_H100_80GB_HBM3": 0.35,
    "reduce-NVIDIA_H100_80GB_HBM3": 0.4,
    "sgemm-NVIDIA_H100_80GB_HBM3": 0.25,
    "synthetic": 1.0,  # of four samples, fewer than are always taken
    "transpose-NVIDIA_H100_80GB_HBM3": 0.65,
}
SHARE = 0.35


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.split(".")[0])
def test_recorded_spaces_keep_their_best_at_a_fraction_of_the_time(path):
    recorded = early_stop.samples_of(path)
    orders = [early_stop.shuffled(len(recorded), None, seed) for seed in range(3)]
    found = [early_stop.replay(recorded, order, RULE) for order in orders]
    assert fmean(replayed.regret for replayed in found) <= 0.001
    share = SHARES.get(path.name.split(".")[0], SHARE)
    assert fmean(replayed.time_share for replayed in found) <= share
