"""The stopping rule replayed on recorded spaces: little time spent, and the best one still wins."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

import numpy as np
import pytest

from autotune.measure.measurement import Measurement, Status
from autotune.measure.race import Contender, ContenderSamples, Race
from autotune.measure.timing import StoppingRule, Timing, sample
from autotune.run.request import EFFORTS
from autotune.run.verdict import candidates, judge
from autotune.values import Configuration

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


def samples_of(path):
    """Return all samples in milliseconds of every configuration that ran, the first included."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        entries = json.load(file)["cache"].values()
    times = [entry["times"] for entry in entries if isinstance(entry["time"], float | int)]
    return [samples for samples in times if len(samples) > 1]


def replay(recorded, order):
    """Time configurations in this order, then hold the finals of a full run, with all samples.

    Returns the share of the recorded kernel time that this took, and the winner's regret: its median
    over all its samples against the best of all.
    """
    best, measured, truths = (), [], []
    spent_ms = all_ms = 0.0
    for number in order:
        times = recorded[number]
        tape = iter(times)
        most = min(RULE.max_samples, len(times) - 1)
        own = replace(RULE, min_samples=min(RULE.min_samples, most), max_samples=most)
        done = sample(lambda count, tape=tape: [next(tape) for _ in range(count)], own, best)
        spent_ms += sum(times) - sum(tape)
        all_ms += sum(times)
        truths.append(median(times[1:]))
        status = Status.STOPPED_EARLY if done.stopped_early else Status.OK
        configuration = Configuration(NUMBER=int(number))
        measured.append(Measurement(configuration, status, samples_ms=done.samples_ms))
        if status is Status.OK and (not best or median(done.samples_ms) < median(best)):
            best = done.samples_ms
    contenders, samples = [], []
    for measurement in candidates(measured, EFFORTS["full"].finalists):
        times = recorded[measurement.configuration["NUMBER"]]
        spent_ms += sum(times[1 + len(measurement.samples_ms) :])
        contenders.append(Contender(measurement.configuration, row=measurement))
        samples.append(ContenderSamples(tuple(times[1:])))
    decided = judge(Race(tuple(contenders), tuple(samples), Timing.COLD_STREAM))
    regret = decided.winner.time_ms.value / min(truths) - 1
    return spent_ms / all_ms, regret


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.split(".")[0])
def test_recorded_spaces_keep_their_best_at_a_fraction_of_the_time(path):
    recorded = samples_of(path)
    orders = [np.random.default_rng(seed).permutation(len(recorded)) for seed in range(3)]
    shares, regrets = zip(*(replay(recorded, order) for order in orders), strict=True)
    assert fmean(regrets) <= 0.001
    assert fmean(shares) <= SHARES.get(path.name.split(".")[0], SHARE)
