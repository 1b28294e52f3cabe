"""The finals of a run: the best verified again, raced with the vendor, then on every problem.

Measures and records rows; who won is `selection`'s to say.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from autotune import selection
from autotune.bench import Bench
from autotune.engine import Listener, Phase
from autotune.errors import AutotuneError
from autotune.evaluator import DeviceEvaluator
from autotune.measurement import Binary, Measurement, Status
from autotune.store import Store
from autotune.tasks import Contender
from autotune.values import Configuration, Problem

#: Longest time of a problem's race where the budget is in evaluations, and the least otherwise.
_RACE_SECONDS, _LEAST_RACE_SECONDS = 60.0, 2.0
#: Samples of each configuration of the portfolio on each problem, and the time they may take.
_PORTFOLIO_ROUNDS = 9
_PORTFOLIO_SECONDS = 10.0


class Finals:
    """The finals of one run.

    Parameters
    ----------
    bench : Bench
        Where they are held.
    store : Store
        Where rows of disqualified configurations go.
    run_id : int
        The run that these belong to.
    listener : callable
        Told what happens.
    """

    def __init__(self, bench: Bench, store: Store, run_id: int, listener: Listener) -> None:
        self.bench, self.store = bench, store
        self.run_id, self.listener = run_id, listener

    def hold(
        self, evaluator: DeviceEvaluator, measured: Sequence[Measurement], seconds: float | None
    ) -> tuple[selection.Result | None, tuple[Measurement, ...]]:
        """Verify the best again on other data and odd sizes, then race them and the vendor.

        Parameters
        ----------
        evaluator : DeviceEvaluator
            Of the problem.
        measured : sequence of Measurement
            What to choose finalists from.
        seconds : float, optional
            How long the race may take.

        Returns
        -------
        Result or None
            None where nothing is right.
        tuple of Measurement
            Those that turned out to be wrong; their rows are in the store.

        Raises
        ------
        AutotuneError
            If the device process fails.
        """
        request = self.bench.request
        chosen = selection.candidates(measured, request.effort.finalists)
        if not chosen:
            return None, ()
        self.listener(Phase(evaluator.job.problem, "finals"))
        binaries = {one.configuration: evaluator.binary(one.configuration) for one in chosen}
        disqualified = self._wrong_elsewhere(evaluator, chosen, binaries)
        chosen = [one for one in chosen if one.configuration not in disqualified]
        if chosen:
            result = self._raced(evaluator, chosen, binaries, seconds)
            return result, tuple(disqualified.values())
        return None, tuple(disqualified.values())

    def _wrong_elsewhere(
        self,
        evaluator: DeviceEvaluator,
        chosen: Sequence[Measurement],
        binaries: Mapping[Configuration, Binary | None],
    ) -> dict[Configuration, Measurement]:
        """Finalists that are wrong on another seed or an odd size; their rows say so."""
        wrong = {
            one.configuration: Measurement(
                one.configuration, Status.COMPILE_FAILED, "compiled before, but not for the finals"
            )
            for one in chosen
            if binaries[one.configuration] is None
        }
        for job in self.bench.other_jobs(evaluator.job):
            for configuration, binary in binaries.items():
                if binary is None or configuration in wrong:
                    continue
                if not self.bench.kernel.allows(configuration, job.problem):
                    continue  # lookup, header and load keep it from such a problem
                again = self.bench.worker.check(job, configuration, binary)
                if again.status is not Status.OK:
                    message = f"on {job.problem} with other inputs: {again.message}"
                    wrong[configuration] = replace(again, message=message)
        scope = self.bench.scope(evaluator.job.problem)
        self.store.add_many(self.run_id, scope, list(wrong.values()))
        return wrong

    def _raced(
        self,
        evaluator: DeviceEvaluator,
        chosen: Sequence[Measurement],
        binaries: Mapping[Configuration, Binary | None],
        seconds: float | None,
    ) -> selection.Result:
        """Race finalists and the vendor's calls, interleaved."""
        request, kernel = self.bench.request, self.bench.kernel
        vendors = [one.name for one in kernel.baselines if one.backend == request.device.backend]
        contenders = [
            *(Contender(one.configuration, binaries[one.configuration]) for one in chosen),
            *(Contender(Configuration(), None, name) for name in vendors),
        ]
        limit = _RACE_SECONDS if seconds is None else max(_LEAST_RACE_SECONDS, seconds)
        raced = self.bench.worker.race(
            evaluator.job, contenders, request.effort.rounds, request.seed, limit
        )
        ours = len(chosen)
        finalists = [
            selection.Finalist(measurement, times, hot_ms)
            for measurement, times, hot_ms in zip(
                chosen, raced.samples_ms[:ours], raced.hot_ms[:ours], strict=True
            )
        ]
        by_vendor = dict(zip(vendors, raced.samples_ms[ours:], strict=True))
        hot = dict(zip(vendors, raced.hot_ms[ours:], strict=True))
        result = selection.decide(finalists, by_vendor, request.seed)
        return replace(result, vendor_hot_ms=hot, launched_by=raced.launched_by)

    def portfolio(
        self, results: Mapping[Problem, selection.Result], candidates: Sequence[Configuration]
    ) -> selection.Portfolio | None:
        """Measure configurations on every problem that has a winner.

        Parameters
        ----------
        results : mapping from Problem to Result
            At least two.
        candidates : sequence of Configuration
            What to measure, all valid here.

        Returns
        -------
        Portfolio or None
            None where the device process failed: the winners stand without it.
        """
        try:
            columns = [self._measured_on(problem, candidates) for problem in results]
        except AutotuneError as error:
            warnings.warn(
                f"{self.bench.kernel.name}: the best were not compared on every problem, so "
                f"lookup of other problems uses the nearest winner: {error}",
                stacklevel=2,
            )
            return None
        return selection.Portfolio(
            configurations=tuple(candidates),
            problems=tuple(results),
            median_ms=tuple(zip(*columns, strict=True)),
        )

    def _measured_on(
        self, problem: Problem, configurations: Sequence[Configuration]
    ) -> list[float | None]:
        """Median time of each configuration on one problem; None where it is not right there."""
        self.listener(Phase(problem, "portfolio"))
        bench, job = self.bench, self.bench.job(problem)
        evaluator = DeviceEvaluator(bench.kernel, job, bench.compilers, bench.worker)
        allowed = [one for one in configurations if bench.kernel.allows(one, problem)]
        evaluator.hint(allowed)
        contenders = []
        for one in allowed:
            binary = evaluator.binary(one)
            if binary is not None and bench.worker.check(job, one, binary).status is Status.OK:
                contenders.append(Contender(one, binary))
        raced = bench.worker.race(
            job, contenders, _PORTFOLIO_ROUNDS, bench.request.seed, _PORTFOLIO_SECONDS
        )
        times = {
            one.configuration: median(taken)
            for one, taken in zip(contenders, raced.samples_ms, strict=True)
            if taken
        }
        return [times.get(one) for one in configurations]
