"""What each parameter did to the time, and how the search came to its best. Numbers only.

Knows measurements and the space; lays nothing out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.kernel.space import Space
from autotune.measure.measurement import Measurement, Status
from autotune.report.content import ProblemContent, applies
from autotune.values import Value


@dataclass(frozen=True)
class ValueEffect:
    """The configurations that hold one value of one parameter."""

    value: Value
    #: Times over the best of the search, in the order they were tried.
    relative: tuple[float, ...]
    #: Configurations with this value that failed.
    failed: int

    @property
    def best(self) -> float | None:
        """The least of them: what it costs to insist on this value. None where none was timed."""
        return min(self.relative, default=None)


@dataclass(frozen=True)
class Effect:
    """What one parameter did."""

    parameter: str
    values: tuple[ValueEffect, ...]
    #: Share of the variance of log time that it explains alone, 0 to 1; None where too little was
    #: timed to tell. See `explained`.
    share: float | None

    @property
    def timed(self) -> int:
        """Configurations that were timed and to which the parameter applies."""
        return sum(len(one.relative) for one in self.values)


@dataclass(frozen=True)
class Step:
    """One trial of the search."""

    #: From 1.
    number: int
    #: Compile, verify and measure time of all trials up to here.
    seconds: float
    trial: Measurement
    best_ms: float | None


def effects(problem: ProblemContent, space: Space | None = None) -> tuple[Effect, ...]:
    """What each parameter did, most important first; parameters of one value are left out.

    Parameters
    ----------
    problem : ProblemContent
        Its trials are what is known.
    space : Space, optional
        Says where parameters do not apply; such trials are left out, for there a parameter only
        shows what made it not apply.
    """
    best = problem.best_ms
    if best is None:
        return ()
    names = space.parameters if space else dict.fromkeys(problem.trials[0].configuration, ())
    found = [_effect(name, names[name], problem.trials, best, space) for name in names]
    return tuple(
        sorted((one for one in found if len(one.values) > 1), key=lambda one: -(one.share or 0))
    )


def _effect(
    name: str,
    declared: Sequence[Value],
    trials: Sequence[Measurement],
    best_ms: float,
    space: Space | None,
) -> Effect:
    fitting = [one for one in trials if applies(name, one.configuration, space)]
    met = {one.configuration[name] for one in fitting if name in one.configuration}
    ordered = [value for value in declared if value in met] or sorted(met, key=_rank)
    values = []
    for value in ordered:
        those = [one for one in fitting if one.configuration.get(name) == value]
        times = [one.median_ms / best_ms for one in those if one.median_ms is not None]
        failed = sum(not one.status.is_timed for one in those)
        values.append(ValueEffect(value, tuple(times), failed))
    return Effect(name, tuple(values), explained([one.relative for one in values]))


def explained(groups: Sequence[Sequence[float]]) -> float | None:
    """Share of the variance of log time that lies between groups: Kelley's epsilon squared.

    ``ε² = (SS_between − (k − 1)·MS_within) / SS_total`` over the log times of k groups (T. L.
    Kelley, "An unbiased correlation ratio measure", PNAS 21(9), 1935), no less than 0. It is the
    first-order term of a functional ANOVA (Hutter, Hoos & Leyton-Brown, ICML 2014) taken from the
    sample itself, less what as many random groups would explain. Shares of several parameters need
    not sum to 1: what is missing are interactions and noise, and a search does not sample evenly.

    Returns
    -------
    float or None
        None where fewer than two groups were timed, or none has two members.
    """
    logs = [np.log(np.asarray(group, float)) for group in groups if len(group)]
    total, k = sum(len(group) for group in logs), len(logs)
    if k < 2 or total <= k:
        return None
    everything: NDArray[np.float64] = np.concatenate(logs)
    ss_total = float(((everything - everything.mean()) ** 2).sum())
    if ss_total <= 0:
        return 0.0
    ss_within = float(sum(((group - group.mean()) ** 2).sum() for group in logs))
    unbiased = ss_total - ss_within - (k - 1) * ss_within / (total - k)
    return min(1.0, max(0.0, unbiased / ss_total))


def search_steps(trials: Sequence[Measurement]) -> tuple[Step, ...]:
    """The search trial by trial, with the best so far: only complete, right ones count."""
    steps = []
    best: float | None = None
    seconds = 0.0
    for number, one in enumerate(trials, 1):
        seconds += one.compile_s + one.verify_s + one.measure_s
        if one.status is Status.OK and one.median_ms is not None:
            best = one.median_ms if best is None else min(best, one.median_ms)
        steps.append(Step(number, seconds, one, best))
    return tuple(steps)


def _rank(value: Value) -> tuple[int, float, str]:
    """Numbers by size, then words."""
    return (1, 0.0, value) if isinstance(value, str) else (0, float(value), "")
