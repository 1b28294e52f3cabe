"""Verifies configurations at sizes that were not tuned, since `lookup` answers with them at such sizes.

`autotune.kernel.sizes` derives the sizes. A configuration that is wrong at a size is disqualified. The message
proposes a condition for `requires`, the hook that decides which sizes a configuration takes. The number of
sizes is fixed, so that the verdict does not depend on the load of the machine.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from autotune.answers.table import covers
from autotune.data.dataset import EXACT, RANDOM
from autotune.errors import AutotuneError, FleetError, SpecError
from autotune.kernel.launches import exceeded_limit, launch_sequence
from autotune.kernel.sizes import (
    MAX_NEAR,
    NEAR_COST,
    compact,
    cost_of,
    extreme_sizes,
    known_like,
    proposed,
    ranges_of,
    size_fields,
    sizes_near,
    varied_fields,
)
from autotune.measure.measurement import Measurement, Status
from autotune.measure.race import Contender
from autotune.measure.rounding import has_values, may_be_rounding, overflows
from autotune.measure.worker_state import Job
from autotune.run.bench import Bench
from autotune.run.result import ProblemResult
from autotune.values import Configuration, Problem, category_of


@dataclass
class OtherSizes:
    """The sizes that are derived from one tuned problem, with their data and the faults found at them."""

    bench: Bench
    #: The tuned problem.
    problem: Problem
    #: Sizes at which the configurations are verified already, the tuned one last.
    known: Sequence[Problem]
    #: Function that verifies a configuration on a job.
    check: Callable[[Contender, Job], Measurement]
    #: Kernels for which the run has warned of refused sizes.
    warned: set[str]
    #: Sizes to verify in place of those near the problem; None: near the problem.
    others: Sequence[Problem] | None = None
    _fields: list[str] = field(default_factory=list)
    _units: set[int] = field(default_factory=set)
    #: Jobs of sizes at which results can show faults.
    _jobs: dict[Problem, Job] = field(default_factory=dict)
    #: Number of wrong configurations at each size, in the order of the sizes.
    _faults: Counter[Problem] = field(default_factory=Counter)
    #: Sizes at which a configuration was correct.
    _sound: set[Problem] = field(default_factory=set)

    def verified(self, finalists: Sequence[Contender]) -> tuple[list[Contender], list[Measurement]]:
        """Return finalists that are correct at all sizes, with these sizes, and rows of the other finalists.

        A wrong finalist is also tried at the other sizes, to propose a better condition.
        """
        places = range(len(finalists))
        right = [[p for p in self.known[::-1] if self._takes(f, p)] for f in finalists]
        wrong: list[list[Problem]] = [[] for _ in finalists]
        rows: dict[int, Measurement] = {}
        for job in self._ordered(finalists) if finalists else ():
            outcomes = dict[int, Measurement]()
            for place in places:
                if place in rows and rows[place].status is not Status.WRONG_RESULT:
                    continue  # another crash would cost another process
                if found := self._outcome(finalists[place], job):
                    outcomes[place] = found
            for place in self._correct(job.problem, outcomes):
                right[place].append(job.problem)
            for place, found in self._wrong(job.problem, outcomes).items():
                wrong[place].append(job.problem)
                rows.setdefault(place, found)
        fields = varied_fields(self.bench.kernel, self.problem)
        for place, row in rows.items():
            message = f"{row.message} (correct at {len(right[place])} sizes, wrong at {len(wrong[place])})"
            if right[place] and fields:
                rule = proposed(right[place], wrong[place], fields, self._units)
                message += (
                    f"; exclude sizes that it does not support by @{self._name}.requires, for example: "
                    f"return {rule}"
                )
            rows[place] = replace(row, message=message)
        correct = [
            replace(finalists[place], verified=tuple(right[place]))
            for place in places
            if place not in rows
        ]
        return correct, list(rows.values())

    @property
    def _name(self) -> str:
        return self.bench.kernel.name

    # ------------------------------------------------------------------ one size

    def _correct(self, size: Problem, outcomes: Mapping[int, Measurement]) -> list[int]:
        found = [place for place, found in outcomes.items() if found.status is Status.OK]
        self._sound |= {size} if found else set()
        return found

    def _wrong(self, size: Problem, outcomes: Mapping[int, Measurement]) -> dict[int, Measurement]:
        """Return wrong results. A small field may be a mode: its other values count if one result is correct."""
        wrong = {place: found for place, found in outcomes.items() if found.status is not Status.OK}
        if self._has_other_mode(size) and size not in self._sound:
            for found in wrong.values():
                self._warn(
                    f"not verified at {size}, where all finalists are wrong ({found.message}); if such a "
                    f"problem is allowed, the kernel is wrong; else exclude it by @{self._name}.requires"
                )
            return {}
        self._faults[size] += len(wrong)
        return wrong

    def _has_other_mode(self, size: Problem) -> bool:
        known = (self.problem, *self.bench.kernel.all_problems())
        modes = set(varied_fields(self.bench.kernel, size)) - set(self._fields)
        return any(size[name] not in {other[name] for other in known} for name in modes)

    def _outcome(self, finalist: Contender, job: Job) -> Measurement | None:
        """Verify a finalist at a size; return None if the result does not decide correctness."""
        if not self._takes(finalist, job.problem):
            return None
        try:
            plan = launch_sequence(
                self.bench.kernel, finalist.configuration, job.problem, job.device
            )
            if exceeded_limit(plan, None, job.device):
                return None
            found = self.check(finalist, job)
        except FleetError:
            raise
        except (AutotuneError, MemoryError) as error:
            self._refuse(job.problem, error)
            return None
        decisive = {Status.OK, Status.WRONG_RESULT, Status.CRASHED}
        if self._is_longer(job.problem) or not has_values(job):
            return found if found.status in decisive and not may_be_rounding(found, job) else None
        return found if found.status in decisive | {Status.TIMED_OUT} else None

    def _is_longer(self, size: Problem) -> bool:
        """Return whether sums along a field may be longer than in the tuned problem."""
        fields = varied_fields(self.bench.kernel, size)
        return any(size[name] >= 2 * self.problem[name] > 2 for name in fields)

    def _takes(self, finalist: Contender, size: Problem) -> bool:
        try:
            return self.bench.kernel.allows(finalist.configuration, size)
        except SpecError as error:
            self._refuse(size, error)
            return False

    def _refuse(self, size: Problem, error: BaseException) -> None:
        """Warn of a size that the kernel's functions or the device refuse, unless it has another mode."""
        if not self._has_other_mode(size):
            self._warn(
                f"not verified at {size} and other sizes that its functions or the device refuse ({error}); "
                f"to keep lookup from answering at such sizes, exclude them by @{self._name}.requires"
            )

    def _warn(self, message: str) -> None:
        if self._name not in self.warned:
            warnings.warn(f"{self._name}: {message}", stacklevel=2)
        self.warned.add(self._name)

    # ------------------------------------------------------------------ choice of sizes

    def _ordered(self, finalists: Sequence[Contender]) -> Iterator[Job]:
        """Yield jobs: first of sizes with known faults."""
        new = [size for size in self._sizes_of(finalists) if size not in self._faults]
        self._faults.update(dict.fromkeys(new, 0))
        # Finals have drawn the data of edge problems with another seed.
        edges = dict.fromkeys(self.bench.kernel.edge_problems, self.bench.request.seed + 1)
        with suppress(SpecError, MemoryError):  # the loop below reports the error
            self.bench.make_data({size: self._names(size) for size in new if size not in edges})
        for size, _ in self._faults.most_common():
            try:
                job = self._jobs.get(size)
                job = job or self.bench.job(size, edges.get(size), self._names(size))
            except (SpecError, MemoryError) as error:
                self._refuse(size, error)
                continue
            self._jobs[size] = job
            if not overflows(job):
                yield job

    def _names(self, size: Problem) -> tuple[str, ...]:
        # With random data, long sums have rounding errors that hide faults.
        return (EXACT,) if self._is_longer(size) else (EXACT, RANDOM)

    def _sizes_of(self, finalists: Sequence[Contender]) -> list[Problem]:
        """Return new sizes near the tuned one, and the extreme sizes of each finalist."""
        kernel, problem, device = self.bench.kernel, self.problem, self.bench.device
        if kernel.layout_of(problem):  # the layout depends on the sizes
            return []
        self._fields = size_fields(kernel, problem)
        found = dict[Problem, None]()
        if not self._faults:
            near = self._near(finalists) if self._fields else []
            found |= dict.fromkeys(near if self.others is None else self.others)
        like = known_like(kernel, problem, device, self.bench.request.problems)
        for finalist in finalists:
            found |= dict.fromkeys(
                extreme_sizes(kernel, like, device, partial(self._takes, finalist))
            )
        return [size for size in found if size not in self.known]

    def _near(self, finalists: Sequence[Contender]) -> list[Problem]:
        kernel, problem, base = self.bench.kernel, self.problem, self.problem
        for finalist in finalists:
            configuration = finalist.configuration
            main = launch_sequence(kernel, configuration, problem, self.bench.device).main
            numbers = {value for value in configuration.values() if type(value) is int}
            numbers |= {-(-problem[name] // math.prod(main.grid)) for name in self._fields}
            self._units |= {unit for unit in (*numbers, math.prod(main.block)) if unit > 1}
        for count in (4, 2):  # with both counts, 3 units minus 1 is one of the sizes
            if cost_of(kernel, base) > NEAR_COST:
                base = compact(problem, self._fields, self._units, count)
        sizes = sizes_near(
            base, self._fields, self._units, lambda size: self._is_for(finalists, size)
        )
        return [size for size in sizes if size not in self.known][:MAX_NEAR]

    def _is_for(self, finalists: Sequence[Contender], size: Problem) -> bool:
        return any(self._takes(finalist, size) for finalist in finalists)


def verified_answers(
    bench: Bench, results: Iterable[ProblemResult], answers: Sequence[Configuration]
) -> tuple[list[Configuration], list[Problem]]:
    """Return the answers that are correct at extreme sizes, and the sizes in whose ranges all were verified.

    Finals verified their finalists. Answers that were in no final of a category are verified here.
    """
    kernel, warned = bench.kernel, set[str]()
    sizes = {answer: list[Problem]() for answer in answers}
    alike = dict[frozenset[Problem], list[ProblemResult]]()
    for result in results:
        key = frozenset(known_like(kernel, result.problem, bench.device, bench.request.problems))
        alike.setdefault(key, []).append(result)
    for group in alike.values():
        finalists = [f for result in group if result.race for f in result.race.finalists]
        raced = {finalist.configuration for finalist in finalists}
        problem = group[0].problem
        category, edges = category_of(problem), kernel.edges_like(problem, bench.device)
        edges = tuple(edge for edge in edges if category_of(edge) == category)
        at_sizes = OtherSizes(bench, problem, (), partial(verified_on, bench), warned, edges)
        right, wrong = at_sizes.verified([Contender(a) for a in sizes if a not in raced])
        for row in wrong:
            sizes.pop(row.configuration)
            warnings.warn(
                f"{kernel.name}: {row.configuration} answers for no other problem: {row.message}",
                stacklevel=2,
            )
        for finalist in (*finalists, *right):
            if finalist.configuration in sizes:
                sizes[finalist.configuration] += finalist.verified
    problems = [group[0].problem for group in alike.values()]
    ranges = {answer: ranges_of(kernel, known, problems) for answer, known in sizes.items()}
    shared = [
        size
        for size in dict.fromkeys(chain.from_iterable(sizes.values()))
        if all(covers(known, size) for a, known in ranges.items() if kernel.allows(a, size))
    ]
    return list(sizes), shared


def verified_on(bench: Bench, contender: Contender, job: Job) -> Measurement:
    """Verify a contender on a job; a message names the problem."""
    found = bench.verify(job, contender.configuration)
    return replace(found, message=f"on {job.problem}: {found.message}")
