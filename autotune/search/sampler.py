"""The search's model as an Optuna sampler, for studies of anything whose valid configurations can be listed.

sampler = SurrogateSampler(configurations, seed=1)  # dictionaries of parameter values
study = optuna.create_study(sampler=sampler)
while sampler.is_open:
    trial = study.ask(sampler.distributions)
    study.tell(trial, time_ms(trial.params))
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from autotune.errors import UsageError, unknown
from autotune.kernel.space import Space, index_type
from autotune.search.proposals import Proposer
from autotune.values import Value


class SurrogateSampler(BaseSampler):
    """An Optuna sampler that proposes the valid configurations and no others, each once.

    Values of the study are times to be minimised or rates to be maximised, and positive. A trial that
    was stopped early is told as pruned, with the time it had reached as its last intermediate value.
    Running trials count as awaited, those of other processes of the study too.

    Parameters
    ----------
    configurations : iterable of mapping of str to value
        The valid ones, all with the same parameters.
    seed : int, optional
        The same seed and the same results give the same proposals.

    Raises
    ------
    UsageError
        If there are none, or their parameters differ.
    """

    def __init__(
        self, configurations: Iterable[Mapping[str, Value]], seed: int | None = None
    ) -> None:
        self._space = _space_of(list(configurations))
        self._proposer = Proposer(self._space, np.random.default_rng(seed))
        #: The argument of `optuna.Study.ask`.
        self.distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(values) for name, values in self._space.parameters.items()
        }
        #: Number of the configuration by number of the trial, of trials of this sampler.
        self._chosen: dict[int, int] = {}
        #: Numbers of trials whose results are learnt.
        self._learnt: set[int] = set()

    @property
    def is_open(self) -> bool:
        """True if a configuration is left that was not proposed."""
        return self._proposer.is_open

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Choose the configuration: Optuna does not ask for parameters that are given."""
        self._learn(study, trial.number)
        number = self._number(trial.system_attrs.get("fixed_params", {}))
        if number is not None:
            self._proposer.claim(number)
        else:  # the first of all where none is left
            number = self._proposer.ask() or 0
        self._chosen[trial.number] = number

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return all parameters."""
        return self.distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the chosen configuration."""
        return dict(self._space.configuration(self._chosen[trial.number]))

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Refuse a parameter that the configurations do not have."""
        raise UsageError(unknown("parameter", param_name, self.distributions))

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """End `optuna.Study.optimize` when all is proposed."""
        if not self.is_open:
            with suppress(RuntimeError):  # nothing to end where trials are asked for one by one
                study.stop()

    def _number(self, params: Mapping[str, Any]) -> int | None:
        """Return the number of a configuration; None where it is incomplete or not valid."""
        if not self.distributions.keys() <= params.keys():
            return None
        return self._space.index({name: params[name] for name in self.distributions})

    def _learn(self, study: Study, asking: int) -> None:
        """Learn the results of finished trials, and that the others are running."""
        is_rate = study.direction is StudyDirection.MAXIMIZE
        for trial in study.get_trials(deepcopy=False):
            if trial.number == asking or trial.number in self._learnt:
                continue
            number = self._chosen.get(trial.number, self._number(trial.params))
            if trial.state.is_finished():
                self._learnt.add(trial.number)
                if number is not None:
                    is_bound = trial.state is TrialState.PRUNED
                    self._proposer.tell(number, _time(trial, is_rate), is_bound)
            elif number is not None:
                self._proposer.claim(number)


def _space_of(configurations: Sequence[Mapping[str, Value]]) -> Space:
    if not configurations:
        raise UsageError("no configuration to sample from: give a list of at least one")
    names = list(configurations[0])
    values: dict[str, dict[Value, int]] = {name: {} for name in names}
    for configuration in configurations:
        if set(configuration) != set(names):
            raise UsageError(
                f"{dict(configuration)}: all configurations need the parameters "
                f"{', '.join(names)} and no others"
            )
        for name in names:
            values[name].setdefault(configuration[name], len(values[name]))
    rows = np.array(
        [[values[name][configuration[name]] for name in names] for configuration in configurations],
        index_type(map(len, values.values())),
    )
    return Space({name: tuple(found) for name, found in values.items()}, np.unique(rows, axis=0))


def _time(trial: FrozenTrial, is_rate: bool) -> float | None:
    """Return what a finished trial took; None where it failed or has no value."""
    value = trial.value
    if value is None or not math.isfinite(value) or trial.state is TrialState.FAIL:
        return None
    if value <= 0:
        raise UsageError(f"trial {trial.number}: {value} is no time: positive values only")
    return 1 / value if is_rate else value
