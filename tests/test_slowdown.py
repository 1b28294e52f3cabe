"""The gate's rule for times, replayed on recorded sessions of unchanged kernels (benchmarks/gate.py)."""

from __future__ import annotations

import json
from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from autotune.retune.slowdown import Slowdown, over_others
from autotune.tuned.record import ContenderResult, Estimate, RaceResult

SESSIONS = sorted((Path(__file__).parents[1] / "benchmarks" / "results").glob("gate-*.json"))
THRESHOLD = 0.05


def raced(
    times_ms: dict[int, list[float]], sm_mhz: int | None = None, loss: float = 1.0
) -> RaceResult:
    """A race of configurations; the first one takes ``loss`` times its time."""
    first = next(iter(times_ms))
    contenders = tuple(
        ContenderResult(
            configuration={"BLOCK": place},
            time_ms=Estimate(*(ms * (loss if place == first else 1.0) for ms in times)),
        )
        for place, times in times_ms.items()
    )
    return RaceResult(timing="cold:flush", rounds=30, sm_mhz=sm_mhz, contenders=contenders)


def replayed(file: Path, loss: float) -> Counter[str]:
    """Count the verdicts of all pairs of sessions: the first is recorded, the second is the gate's."""
    sessions: dict[str, list[Any]] = {}
    for row in json.loads(file.read_text())["rows"]:
        sessions.setdefault(row["kernel"], []).append(row["races"])
    said: Counter[str] = Counter()
    for kernel in sessions.values():
        for then, now in permutations(kernel, 2):
            ranked = sorted(range(len(then[0])), key=lambda place: then[0][place][0])
            recorded = raced({place: then[0][place] for place in ranked})
            change = "undecided"
            for races in now:
                again = raced({place: races[place] for place in ranked}, loss=loss)
                change = Slowdown.between(again, recorded).change(THRESHOLD)
                if change != "undecided":
                    break
            said[change] += 1
    return said


@pytest.mark.parametrize("file", SESSIONS, ids=lambda file: file.stem)
def test_the_rule_on_recorded_sessions(file: Path) -> None:
    same, slower = replayed(file, 1.0), replayed(file, 1 + THRESHOLD)
    assert same["slower"] <= 0.01 * same.total()
    assert slower["slower"] >= 0.95 * (slower.total() - slower["undecided"]) > 0


OTHERS = {place: [2.0, 1.99, 2.01] for place in range(1, 5)}


@pytest.mark.parametrize(
    ("winner", "others", "sm_mhz", "expected"),
    [
        ([1.00, 0.998, 1.002], OTHERS, None, "held"),
        ([1.05, 1.048, 1.052], OTHERS, None, "slower"),
        ([0.90, 0.898, 0.902], OTHERS, None, "faster"),
        # the recorded noise of 302 to 388 µs, measured at 381 to 540
        ([1.28, 1.10, 1.57], {place: [2.5, 2.1, 3.0] for place in OTHERS}, None, "undecided"),
        # a slower device
        ([1.20, 1.198, 1.202], {place: [2.4, 2.39, 2.41] for place in OTHERS}, None, "held"),
        ([1.20, 1.198, 1.202], {place: [2.4, 2.39, 2.41] for place in OTHERS}, 900, "held"),
        # the recorded clock: the device is not slower
        ([1.20, 1.198, 1.202], {place: [2.4, 2.39, 2.41] for place in OTHERS}, 1980, "slower"),
        # half of its cores are taken
        ([2.20, 2.198, 2.202], {place: [4.0, 3.99, 4.01] for place in OTHERS}, None, "undecided"),
        # no others
        ([1.00, 0.998, 1.002], {}, None, "held"),
        ([1.20, 1.198, 1.202], {}, None, "undecided"),
        ([1.20, 1.198, 1.202], {}, 1980, "slower"),
    ],
)  # fmt: skip
def test_what_a_change_is(
    winner: list[float], others: dict[int, list[float]], sm_mhz: int | None, expected: str
) -> None:
    then = raced({0: [1.0, 0.998, 1.002], **{place: OTHERS[place] for place in others}}, 1980)
    found = Slowdown.between(raced({0: winner, **others}, sm_mhz), then)
    assert found.change(THRESHOLD) == expected
    assert f"{winner[0]:.3f} times its recorded time" in found.text


def test_the_spread_of_the_others_is_noise() -> None:
    alike = over_others(Estimate(1.0), [Estimate(1.0), Estimate(1.01), Estimate(0.99)])
    spread = over_others(Estimate(1.0), [Estimate(1.0), Estimate(1.1), Estimate(0.9)])
    assert alike and spread and spread.interval[1] > 1.4 > alike.interval[1] > 1.03
    assert over_others(Estimate(1.0), [Estimate(1.0)] * 2) is None
