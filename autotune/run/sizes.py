"""Verifies finalists at sizes near a tuned one, since `lookup` answers with them there too.

The sizes are derived from the problem. A finalist that is wrong at one is disqualified, and the message
proposes a condition for `requires`, which alone decides the sizes that a configuration takes.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

import numpy as np

from autotune.data.dataset import EXACT, RANDOM
from autotune.data.tolerance import largest, parts
from autotune.errors import AutotuneError, FleetError, SpecError
from autotune.kernel.expression import Json, value_of
from autotune.kernel.launches import launch_sequence, over_limit
from autotune.kernel.spec import Kernel
from autotune.measure.measurement import Measurement, Status
from autotune.measure.race import Contender
from autotune.measure.worker_state import Job
from autotune.run.bench import Bench
from autotune.values import Problem, size_of

#: Maximum number of sizes of a problem, including the large one; and the number that is verified without a
#: time limit, so that a busy machine skips none of them.
MOST_SIZES, _ALWAYS = 10, 4
#: Time for the sizes: this share of the problem's search, at least these seconds.
_SHARE, _LEAST_S = 0.15, 3.0
#: Share of that time for the large size; and the maximum time for its data: the memory of a reference may
#: grow with its time.
_LARGE_SHARE, _LARGE_S = 0.5, 5.0
#: Maximum share of the device's memory for the arrays of the large size.
_MEMORY_SHARE = 0.125
#: A field that never reaches this is a mode or a small count, not a size.
_LEAST_SIZE = 8
#: Elements of the sizes where one field is large and all others are 1.
_LONGEST = 1 << 20
#: At a size with a field at least twice as large, only errors above this multiple of the bound count: longer
#: sums round more.
_GROSS = 100.0
#: Number of launches when a configuration is verified.
_LAUNCHES = 4


def size_fields(kernel: Kernel, problem: Problem) -> list[str]:
    """Return the fields that are sizes: integers that are not compiled in, and not always small."""
    known = (problem, *kernel.all_problems())
    return [
        name
        for name in kernel.fields
        if isinstance(problem[name], int)
        and name not in kernel.static
        and max(other[name] for other in known) >= _LEAST_SIZE
    ]


def sizes_beside(
    problem: Problem,
    fields: Sequence[str],
    units: Iterable[int],
    is_allowed: Callable[[Problem], bool] = lambda size: True,
) -> list[Problem]:
    """Return sizes where a kernel that is correct on a problem may be wrong, the most telling first.

    ``units`` are numbers that blocks and tiles may be multiples of. A size that ``is_allowed`` forbids
    is moved on by 1, 3, 7, 15 … up to the largest unit.
    """
    if not fields:
        return []
    unit = {name: _unit(problem[name], units) for name in fields}

    def moved(
        step: int, first: Callable[[str], int], names: Sequence[str] = fields
    ) -> Iterator[Problem]:
        for doublings in range(max(unit.values()).bit_length()):
            size = problem.replace(**{n: first(n) + step * ((1 << doublings) - 1) for n in names})
            if min(size[name] for name in names) >= 1 and is_allowed(size):
                yield size
                return

    largest = sorted(fields, key=lambda name: -problem[name])[:3]
    longest = min(size_of(problem), _LONGEST)

    def alone(name: str) -> Callable[[str], int]:
        return lambda other: longest if other == name else 1

    candidates = [
        *(moved(-1, lambda name: problem[name] - 1, [name]) for name in largest),
        moved(1, lambda name: problem[name] + 1),
        moved(-1, lambda name: _prime_below(problem[name])),
        moved(1, lambda name: 1),
        moved(-1, lambda name: unit[name] - 1),
        moved(1, lambda name: unit[name] + 1),
        *(moved(1, alone(name)) for name in largest if len(fields) > 1),
        *(moved(1, lambda name: problem[name] + 1, [name]) for name in largest),
        *(moved(1, lambda name: 1, [name]) for name in largest),
        moved(1, lambda name: unit[name]),
        moved(-1, lambda name: 3 * unit[name] - 1),
    ]
    found = dict.fromkeys(chain.from_iterable(candidates))
    found.pop(problem, None)
    return list(found)


def compact(
    problem: Problem, fields: Sequence[str], units: Iterable[int], count: int = 4
) -> Problem:
    """Return a small problem of a few of the largest units, with the same remainders."""
    unit = {name: _unit(problem[name], units) for name in fields}
    most = {name: count * unit[name] + problem[name] % unit[name] for name in fields}
    return problem.replace(**{name: min(problem[name], most[name]) for name in fields})


def _unit(value: int, units: Iterable[int]) -> int:
    """Return the largest unit that fits a value twice."""
    return max((unit for unit in units if 2 * unit <= value), default=1)


def _prime_below(number: int) -> int:
    """Return the largest prime below a number, or 1."""
    for candidate in range(number - 1, 1, -1):
        if all(candidate % divisor for divisor in range(2, math.isqrt(candidate) + 1)):
            return candidate
    return 1


def proposed(
    right: Sequence[Problem], wrong: Sequence[Problem], fields: Sequence[str], units: Iterable[int]
) -> str:
    """Return a condition, as for `requires`, that all correct sizes meet and no wrong one."""
    rules: dict[str, Json] = {}
    for name in fields:
        values = [size[name] for size in right]
        divisor = max((u for u in units if not any(value % u for value in values)), default=1)
        rules[f"p.{name} % {divisor} == 0"] = ["==", ["%", name, divisor], 0]
        rules[f"p.{name} <= {max(values)}"] = ["<=", name, max(values)]
        rules[f"p.{name} >= {min(values)}"] = ["<=", min(values), name]
    left, chosen = list(wrong), list[str]()
    while left:
        met = {text: [p for p in left if value_of(form, p)] for text, form in rules.items()}
        best = min(met, key=lambda text: len(met[text]))
        if len(met[best]) == len(left):  # only equality distinguishes them
            chosen = [f"p.{name} == {right[0][name]}" for name in fields]
            break
        chosen.append(best)
        left = met[best]
    return chosen[0] if len(chosen) == 1 else " & ".join(f"({text})" for text in chosen)


@dataclass
class OtherSizes:
    """The sizes near one tuned problem: their data, and the finalists that were wrong there."""

    bench: Bench
    #: The job of the tuned problem.
    job: Job
    #: Sizes at which finalists were verified before, the tuned one last.
    known: Sequence[Problem]
    #: Function that verifies a finalist on a job.
    check: Callable[[Contender, Job], Measurement]
    #: Time of the problem's search.
    search_s: float
    #: Kernels for which the run has warned of refused sizes.
    warned: set[str]
    _until_s: float = 0.0
    #: The size that others are derived from, and the maximum time of its data.
    _base: Problem = field(default_factory=Problem)
    _data_s: float = math.inf
    _fields: list[str] = field(default_factory=list)
    _units: set[int] = field(default_factory=set)
    #: Sizes without data, and jobs of sizes with data.
    _planned: list[Problem] = field(default_factory=list)
    _made: dict[Problem, Job] = field(default_factory=dict)
    _faults: Counter[Problem] = field(default_factory=Counter)
    _large: Job | None = None

    def verified(self, finalists: Sequence[Contender]) -> tuple[list[Contender], list[Measurement]]:
        """Return finalists that are correct at all sizes tried, and rows of the others.

        While there is time, a wrong finalist is tried at the other sizes too, for a better proposal.
        """
        places = range(len(finalists))
        right = [[p for p in self.known[::-1] if self._takes(each, p)] for each in finalists]
        wrong: list[list[Problem]] = [[] for _ in finalists]
        rows: dict[int, Measurement] = {}
        for job in self._jobs(finalists):
            for place in places:
                if place in rows and rows[place].status is not Status.WRONG_RESULT:
                    continue  # a crash costs a process
                if self._left_s < 0 and place in rows:
                    continue
                found = self._outcome(finalists[place], job)
                if found is not None and found.status is Status.OK:
                    right[place].append(job.problem)
                elif found is not None:
                    wrong[place].append(job.problem)
                    self._faults[job.problem] += 1
                    rows.setdefault(place, found)
        name = self.bench.kernel.name
        for place, row in rows.items():
            rule = proposed(right[place], wrong[place], self._fields, self._units)
            message = (
                f"{row.message} (right at {len(right[place])} sizes, wrong at {len(wrong[place])}); if it "
                f"is not made for such sizes, @{name}.requires says so, for example: return {rule}"
            )
            rows[place] = replace(row, message=message)
        return [finalists[place] for place in places if place not in rows], list(rows.values())

    # ------------------------------------------------------------------ one size

    def _outcome(self, finalist: Contender, job: Job) -> Measurement | None:
        """Verify a finalist at a size; None if the result says nothing about correctness."""
        if not self._takes(finalist, job.problem):
            return None
        try:
            plan = launch_sequence(
                self.bench.kernel, finalist.configuration, job.problem, job.device
            )
            if over_limit(plan, None, job.device):
                return None
            found = self.check(finalist, job)
        except FleetError:
            raise
        except (AutotuneError, MemoryError) as error:
            self._tell(job.problem, error)
            return None
        telling = {Status.OK, Status.WRONG_RESULT, Status.CRASHED}
        if job is self._large or self._is_longer(job.problem):
            return found if found.status in telling and not _may_be_rounding(found, job) else None
        return found if found.status in telling | {Status.TIMED_OUT} else None

    def _is_longer(self, size: Problem) -> bool:
        """Return whether sums along a field may be longer than those of the problem."""
        return any(size[name] >= 2 * self.job.problem[name] > 2 for name in self._fields)

    def _takes(self, finalist: Contender, size: Problem) -> bool:
        try:
            return self.bench.kernel.allows(finalist.configuration, size)
        except SpecError as error:
            self._tell(size, error)
            return False

    def _tell(self, size: Problem, error: BaseException) -> None:
        """Warn once of sizes that the kernel's functions or the device refuse."""
        name = self.bench.kernel.name
        if name not in self.warned:
            warnings.warn(
                f"{name}: not verified at {size}, nor at other sizes that its functions or the device "
                f"refuse ({error}); lookup answers them, unless @{name}.requires forbids them",
                stacklevel=2,
            )
        self.warned.add(name)

    # ------------------------------------------------------------------ which sizes

    def _jobs(self, finalists: Sequence[Contender]) -> Iterator[Job]:
        """Yield jobs of sizes: first sizes that found faults, then others while there is time for their data."""
        for size, _ in self._faults.most_common():
            yield self._made[size]
        if is_first := not self._until_s:
            self._until_s = time.monotonic() + self._limit_s
            self._plan(finalists)
            with suppress(SpecError, MemoryError):  # reported below
                self.bench.make_data(dict.fromkeys(self._planned[:_ALWAYS], (EXACT, RANDOM)))
        while self._planned and (
            len(self._made) < _ALWAYS or self._left_s > _LARGE_SHARE * self._limit_s
        ):
            size = self._planned.pop(0)
            try:
                # Random data say little about the errors of a long sum.
                names = (EXACT,) if self._is_longer(size) else (EXACT, RANDOM)
                job, data_s = self._job(size, names)
            except (SpecError, MemoryError) as error:
                self._tell(size, error)
                continue
            if 2 * size_of(size) > size_of(self._base):
                self._data_s = min(self._data_s, data_s)
            if is_telling(job):
                yield self._add(job)
        if is_first and self._fields and (large := self._grown(finalists)):
            self._large = large
            yield self._add(large)

    def _plan(self, finalists: Sequence[Contender]) -> None:
        """Choose the sizes: near the tuned one, or near a smaller one if its data or launches take long."""
        kernel, problem = self.bench.kernel, self.job.problem
        if kernel.layout_of(problem):  # the layout depends on the sizes
            return
        self._base, self._fields = problem, size_fields(kernel, problem)
        for each in finalists if self._fields else ():
            main = launch_sequence(kernel, each.configuration, problem, self.job.device).main
            numbers = {value for value in each.configuration.values() if type(value) is int}
            numbers |= {-(-problem[name] // math.prod(main.grid)) for name in self._fields}
            self._units |= {unit for unit in (*numbers, math.prod(main.block)) if unit > 1}
        self._data_s = sum(dataset.seconds for dataset in self.job.datasets) or math.inf
        cost_s = self._data_s + self._launches_s(finalists, problem)
        most_s = (1 - _LARGE_SHARE) * self._limit_s / (MOST_SIZES - 1)
        for count in (4, 2):  # 3 units, less one, are among the sizes of either
            if cost_s * size_of(self._base) / size_of(problem) > most_s:
                self._base = compact(problem, self._fields, self._units, count)
        is_allowed = partial(self._is_for, finalists)
        sizes = sizes_beside(self._base, self._fields, self._units, is_allowed)
        unknown = [size for size in sizes if size not in self.known]
        self._planned = unknown[: MOST_SIZES - 1]

    def _grown(self, finalists: Sequence[Contender]) -> Job | None:
        """Return the job of the largest size for which there is time and memory, with random data alone.

        All fields are doubled while the cost stays below the limits. The cost is assumed to grow twice as
        much as the fields, or as it did between the last two sizes, at most with the third power.
        """
        limit_s, tasks = _LARGE_SHARE * self._limit_s, 1 + len(finalists)
        most_bytes = _MEMORY_SHARE * self.job.device.memory_bytes
        least = float(1 << len(self._fields))
        most = max(8.0, least)
        growth = min(most, 2 * least)
        size, job, nbytes, data_s, before_s = self._base, None, 0, self._data_s, 0.0
        with suppress(SpecError, MemoryError):
            while (
                growth * (tasks * data_s + self._launches_s(finalists, size)) <= limit_s
                and growth * data_s <= _LARGE_S
                and most * nbytes <= most_bytes
            ):
                size = size.replace(**{name: 2 * size[name] for name in self._fields})
                if not self._is_for(finalists, size):
                    break
                job, data_s = self._job(size, [RANDOM])
                if before_s:
                    growth = min(most, max(least, 2 * data_s / before_s))
                before_s = data_s
                nbytes = sum(argument.nbytes for argument in job.datasets[0].arguments)
        return job if job and size_of(job.problem) > size_of(self.job.problem) else None

    def _job(self, size: Problem, names: Sequence[str] = (EXACT, RANDOM)) -> tuple[Job, float]:
        """Return the job of a size, and the time that its data took."""
        begun_s = time.monotonic()
        job = self.bench.job(size, names=names)
        made_s = sum(dataset.seconds for dataset in job.datasets)
        return job, made_s or time.monotonic() - begun_s

    def _add(self, job: Job) -> Job:
        self._made[job.problem], self._faults[job.problem] = job, 0
        return job

    def _is_for(self, finalists: Sequence[Contender], size: Problem) -> bool:
        return any(self._takes(finalist, size) for finalist in finalists)

    def _launches_s(self, finalists: Sequence[Contender], size: Problem) -> float:
        """Return the time of verifying finalists at a size, if it is proportional to the size."""
        times_ms = [(each.row and each.row.median_ms) or 0.0 for each in finalists]
        growth = size_of(size) / size_of(self.job.problem)
        return _LAUNCHES * sum(times_ms) / 1e3 * growth

    @property
    def _limit_s(self) -> float:
        return max(_LEAST_S, _SHARE * self.search_s)

    @property
    def _left_s(self) -> float:
        return self._until_s - time.monotonic()


def is_telling(job: Job) -> bool:
    """Return whether a size can show faults: an output is expected to hold more than zeros.

    A variance of one number is 0, and a half cannot hold the sum of a million.
    """
    halves = {each.name for each in job.datasets[0].arguments if each.number == np.float16}
    has_values = False
    for dataset in job.datasets:
        for name in dataset.bounds:
            expected = dataset.expected(name)
            if name in halves and largest(parts(expected)) > float(np.finfo(np.float16).max):
                return False
            has_values |= bool(expected.any())
    return has_values


def _may_be_rounding(found: Measurement, job: Job) -> bool:
    """Return whether longer sums, or a value near the middle of two integers, explain a wrong result."""
    rounds = any(each.number.kind == "f" for each in job.datasets[0].arguments)
    wrong = [check for check in found.checks if not check.is_correct]
    return bool(wrong) and all(
        check.max_error <= (_GROSS * check.bound or float(rounds)) for check in wrong
    )
