"""Our own sampler for Optuna, and the strategy ``surrogate`` that is asked through it.

Knows Optuna's samplers and studies; what is proposed, `proposals` decides.

The sampler stands on its own, for any study whose configurations can be listed and whose objective
is a time to be minimised (or a rate to be maximised)::

    sampler = SurrogateSampler.among(configurations, seed=1)  # dictionaries of parameter values
    study = optuna.create_study(sampler=sampler)
    while (trial := study.ask(sampler.distributions)) and sampler.is_open:
        study.tell(trial, time_ms(trial.params))

A trial that fails is told as failed, one that was stopped early as pruned, with what it had reached
as its last intermediate value: a bound. Running trials are what is awaited, those of other processes
of the same study too. In ``study.optimize`` the sampler stops the study when all is measured.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna import Study, create_study
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from autotune.errors import UsageError
from autotune.kernel.space import Space, index_type
from autotune.measure.measurement import Measurement, Status
from autotune.search.base import BudgetSpent, Elsewhere, Outlook, Session
from autotune.search.optuna import quiet
from autotune.search.proposals import EndRule, Known, Outcome, Proposer
from autotune.values import Value

if TYPE_CHECKING:
    from numpy.random import Generator

#: Of own proposals, results until what was measured before the strategy began enters the model.
HELD = 40
#: Of what was measured before the strategy began, so many of the best are told to it.
KNOWN = 256


class SurrogateSampler(BaseSampler):
    """Expected improvement under a Gaussian process, over the valid configurations and no others.

    Parameters
    ----------
    space : Space
        The valid configurations; see `among` where there is only a list of them.
    seed : int, optional
        Same seed and same results, same proposals.
    place : tuple of float, optional
        Where this is, in coordinates that ``elsewhere`` has too.
    elsewhere : sequence of Elsewhere, optional
        What was measured of the same space at other places, such as other sizes. What that is worth is
        learnt.
    held : int
        Results of own proposals until trials that came from elsewhere enter the model; good ones of
        another device, say, make it look around there for too long.
    compiled : collection of int
        Numbers of configurations that take no compiler, and so less time.
    """

    def __init__(
        self,
        space: Space,
        seed: int | None = None,
        place: tuple[float, ...] = (),
        elsewhere: Sequence[Elsewhere] = (),
        held: int = 0,
        compiled: Collection[int] = (),
    ) -> None:
        self.space = space
        known = [_known(other) for other in elsewhere]
        #: What decides; may be asked and told without a study.
        self.proposer = Proposer(space, np.random.default_rng(seed), place, known, held, compiled)
        varying = [len(occurring) > 1 for occurring in space.occurring]
        self._fixed = {
            name: values[space.rows[0, position]]
            for position, (name, values) in enumerate(space.parameters.items())
            if not varying[position]
        }
        #: What to hand to `optuna.Study.ask`: parameters that vary, all at once.
        self.distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(values)
            for varies, (name, values) in zip(varying, space.parameters.items(), strict=True)
            if varies
        }
        #: Numbers of the configurations of trials that are not finished.
        self._running: dict[int, int | None] = {}
        self._seen = 0

    @classmethod
    def among(
        cls, configurations: Sequence[Mapping[str, Value]], seed: int | None = None
    ) -> SurrogateSampler:
        """A sampler of listed configurations, all with the same parameters.

        Parameters
        ----------
        configurations : sequence of mapping of str to value
            All that are valid; each once.
        seed : int, optional
            Same seed and same results, same proposals.

        Returns
        -------
        SurrogateSampler
            Of the space of these.

        Raises
        ------
        UsageError
            If there are none, or their parameters differ.
        """
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
            [
                [values[name][configuration[name]] for name in names]
                for configuration in configurations
            ],
            index_type(map(len, values.values())),
        )
        return cls(
            Space({name: tuple(ranks) for name, ranks in values.items()}, np.unique(rows, axis=0)),
            seed,
        )

    @property
    def is_open(self) -> bool:
        """Whether a configuration is left that was not proposed."""
        return self.proposer.is_open

    def number(self, trial: Trial | FrozenTrial) -> int | None:
        """Number in the space of a trial's configuration.

        Parameters
        ----------
        trial : Trial or FrozenTrial
            Of a study that this sampler serves.

        Returns
        -------
        int or None
            None where the configuration is not valid.
        """
        if trial.number in self._running:
            return self._running[trial.number]
        if not set(self.distributions) <= set(trial.params):
            return None
        return self.space.index({**self._fixed, **{n: trial.params[n] for n in self.distributions}})

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Choose the configuration: Optuna asks for parameters later, and for no fixed one."""
        self._learn(study, trial)
        given = {**self._fixed, **trial.system_attrs.get("fixed_params", {})}
        number = self.space.index(given) if len(given) == len(self.space.parameters) else None
        if number is None:
            number = self.proposer.ask()
        else:
            self.proposer.claim(number)
        self._running[trial.number] = number

    def of(self, trial: Trial) -> int:
        """Number in the space of what was asked for by this sampler."""
        number = self.number(trial)
        assert number is not None
        return number

    def may_end(self, study: Study, rule: EndRule) -> bool:
        """Whether little is left to gain, by what the study knows."""
        self._learn(study)
        return rule.ends(self.proposer)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All parameters that vary."""
        return self.distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The chosen configuration; the first of all where none is left."""
        configuration = self.space.configuration(self._running[trial.number] or 0)
        return {name: configuration[name] for name in self.distributions}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Only what is no parameter of the space comes here."""
        raise UsageError(
            f"{param_name} with the values of {param_distribution} is no parameter of the sampler: "
            f"it has {', '.join(f'{n} {d}' for n, d in self.distributions.items())}"
        )

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """End `optuna.Study.optimize` when nothing is left; elsewhere that is the caller's."""
        if not self.is_open:
            with suppress(RuntimeError):
                study.stop()

    def _learn(self, study: Study, asking: FrozenTrial | None = None) -> None:
        """Take in what became of running trials, and trials that came from elsewhere."""
        trials = study.get_trials(deepcopy=False)
        rate = study.direction is StudyDirection.MAXIMIZE
        numbers = [*self._running, *range(self._seen, len(trials))]
        self._seen = len(trials)
        for trial in (trials[number] for number in dict.fromkeys(numbers)):
            if asking is not None and trial.number == asking.number:
                continue
            known = trial.number in self._running
            number = self.number(trial)
            if trial.state.is_finished():
                self._running.pop(trial.number, None)
                if number is not None:
                    is_bound = trial.state is TrialState.PRUNED
                    self.proposer.tell(number, _time(trial, rate), is_bound)
            elif not known and number is not None:
                self._running[trial.number] = number
                self.proposer.claim(number)
            elif not known:
                self._seen = min(self._seen, trial.number)  # its parameters are not there yet


def _time(trial: FrozenTrial, rate: bool) -> float | None:
    """What a finished trial took; None where it failed or says nothing."""
    value = trial.value
    if value is None or not math.isfinite(value) or trial.state is TrialState.FAIL:
        return None
    if value <= 0:
        raise UsageError(f"trial {trial.number}: {value} is no time: positive values only")
    return 1 / value if rate else value


def search(
    space: Space,
    session: Session,
    rng: Generator,
    *,
    ahead: int = 1,
    rule: EndRule | None = None,
) -> None:
    """Ask the sampler until the session ends the search or nothing is left to measure.

    Parameters
    ----------
    space, session, rng
        As for every `Search`.
    ahead : int
        Proposals that may wait for their result: as many as compilers and devices have at a time
        where time is scarce, 1 where evaluations are.
    rule : EndRule, optional
        Ends the search where little is left to gain. Default: none does.
    """
    left = session.evaluations_left
    held = 0 if session.elsewhere else HELD if left is None else min(HELD, left // 5)
    sampler = SurrogateSampler(
        space,
        int(rng.integers(2**31)),
        session.place,
        session.elsewhere,
        held,
        session.compiled,
    )
    proposer = sampler.proposer
    _recall(proposer, session)
    try:
        if ahead > 1:
            _stream(proposer, session, ahead, rule)
        else:
            _one_by_one(sampler, session, rule)
    except BudgetSpent:
        session.outlook = Outlook(proposer.gain_left())
        raise
    session.outlook = Outlook(proposer.gain_left(), is_enough=sampler.is_open)


def _one_by_one(sampler: SurrogateSampler, session: Session, rule: EndRule | None) -> None:
    """Ask for each when the result of the one before it is known: fewest evaluations."""
    with quiet():
        study = create_study(sampler=sampler)
        while sampler.is_open and not (rule and sampler.may_end(study, rule)):
            trial = study.ask(sampler.distributions)
            (measurement,) = session.measure([sampler.of(trial)])
            _tell(study, trial, measurement)


def _stream(proposer: Proposer, session: Session, ahead: int, rule: EndRule | None) -> None:
    """Ask for the next whenever there is room, so that compilers and devices do not wait.

    Compilers get what is new; meanwhile devices get what was compiled before. A study would take
    another 1 to 2 ms for each (docs/search.md).
    """

    def proposals() -> Iterator[int]:
        while not (rule and rule.ends(proposer)):
            number = proposer.ask(compiled=False)
            if number is None:
                return
            yield number

    def at_hand() -> int | None:
        return proposer.ask(compiled=True) if proposer.has_compiled else None

    def tell(number: int, measurement: Measurement) -> None:
        is_bound = measurement.status is Status.STOPPED_EARLY
        proposer.tell(number, measurement.cost, is_bound)

    session.stream(proposals(), tell, ahead, at_hand)


def _recall(proposer: Proposer, session: Session) -> None:
    """Tell what was measured before the strategy began: known good ones and seeds."""
    numbers = session.best(KNOWN)
    measured = session.measure(numbers) if numbers else []
    for number, measurement in zip(numbers, measured, strict=True):
        is_bound = measurement.status is Status.STOPPED_EARLY
        proposer.tell(number, measurement.cost, is_bound)


def _known(other: Elsewhere) -> Known:
    """What the model is told of another place."""
    outcomes = {}
    for number, measurement in other.measured.items():
        time_ms = measurement.cost
        log_ms = math.nan if time_ms is None else math.log(max(time_ms, 1e-300))
        outcomes[number] = Outcome(log_ms, measurement.status is Status.STOPPED_EARLY)
    return Known(other.place, outcomes)


def _tell(study: Study, trial: Trial, measurement: Measurement) -> None:
    time_ms = measurement.cost
    if time_ms is None:
        study.tell(trial, state=TrialState.FAIL)
    elif measurement.status is Status.STOPPED_EARLY:
        trial.report(time_ms, 0)
        study.tell(trial, state=TrialState.PRUNED)
    else:
        study.tell(trial, time_ms)
