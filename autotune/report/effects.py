"""The effect of each parameter on the time. Numbers only.

Knows measurements and the space; lays nothing out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.kernel.space import Space
from autotune.measure.measurement import Measurement
from autotune.report.content import ProblemContent, relevant
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
    """The effect of one parameter."""

    parameter: str
    values: tuple[ValueEffect, ...]
    #: Share of the variance of log time that it explains alone, 0 to 1; None where too little was
    #: timed to tell. See `explained`.
    share: float | None

    @property
    def timed(self) -> int:
        """Configurations that were timed and to which the parameter applies."""
        return sum(len(value.relative) for value in self.values)


def effects(problem: ProblemContent, space: Space | None = None) -> tuple[Effect, ...]:
    """Return the effect of each parameter, most important first; parameters of one value are left out.

    So are trials to which a parameter does not apply: there it only shows what made it not apply.
    """
    best = problem.best_ms
    if best is None:
        return ()
    names = space.parameters if space else dict.fromkeys(problem.trials[0].configuration, ())
    # Asked once of each trial: they may be many.
    ratios = [trial.median_ms and trial.median_ms / best for trial in problem.trials]
    applied = [relevant(trial.configuration, space) for trial in problem.trials]
    trials = list(zip(problem.trials, applied, ratios, strict=True))
    found = []
    for name, declared in names.items():
        groups: dict[Value, list[tuple[Measurement, float | None]]] = {}
        for trial, matters, ratio in trials:
            if name in matters:
                groups.setdefault(matters[name], []).append((trial, ratio))
        found.append(_effect(name, declared, groups))
    several = [effect for effect in found if len(effect.values) > 1]
    return tuple(sorted(several, key=lambda effect: -(effect.share or 0)))


def _effect(
    name: str,
    declared: Sequence[Value],
    groups: Mapping[Value, Sequence[tuple[Measurement, float | None]]],
) -> Effect:
    ordered = [value for value in declared if value in groups] or sorted(groups, key=_rank)
    values = []
    for value in ordered:
        times = tuple(ratio for _, ratio in groups[value] if ratio is not None)
        failed = sum(not trial.status.is_timed for trial, _ in groups[value])
        values.append(ValueEffect(value, times, failed))
    return Effect(name, tuple(values), explained([value.relative for value in values]))


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


def _rank(value: Value) -> tuple[int, float, str]:
    """Numbers by size, then words."""
    return (1, 0.0, value) if isinstance(value, str) else (0, float(value), "")
