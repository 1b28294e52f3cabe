"""Verifies finalists at sizes near the tuned one, since `lookup` answers with them at such sizes.

The sizes are derived from the tuned problem. A finalist that is wrong at a size is disqualified. The
message proposes a condition for `requires`, the hook that decides which sizes a configuration takes.
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
from autotune.kernel.launches import exceeded_limit, launch_sequence
from autotune.kernel.spec import Kernel
from autotune.measure.measurement import Measurement, Status
from autotune.measure.race import Contender
from autotune.measure.worker_state import Job
from autotune.run.bench import Bench
from autotune.values import Problem, size_of

#: Maximum number of sizes for a problem, including the large one.
MAX_SIZES = 10
#: Number of sizes that are verified without a time limit, so that a busy machine skips none of them.
_ALWAYS = 4
#: Time for the sizes, as a share of the time of the problem's search.
_SHARE = 0.15
#: Minimum time in seconds for the sizes.
_MIN_S = 3.0
#: Share of that time for the large size.
_LARGE_SHARE = 0.5
#: Maximum time in seconds for the data of the large size, since a slow reference may need much memory.
_LARGE_S = 5.0
#: Maximum share of the device's memory for the arrays of the large size.
_MEMORY_SHARE = 0.125
#: Minimum of the largest value of a size; a field with smaller values is a mode or a count.
_MIN_SIZE = 8
#: Maximum number of elements of a size with one large field, whose other fields are 1.
_MAX_ELEMENTS = 1 << 20
#: At sizes with longer sums, which round more, only errors above this multiple of the bound count.
_GROSS_ERROR = 100.0
#: Number of launches in the verification of a configuration.
_LAUNCHES = 4


def size_fields(kernel: Kernel, problem: Problem) -> list[str]:
    """Return the fields that are sizes: integers that are neither compile-time constants nor always small."""
    known = (problem, *kernel.all_problems())
    return [
        name
        for name in kernel.fields
        if isinstance(problem[name], int)
        and name not in kernel.static
        and max(other[name] for other in known) >= _MIN_SIZE
    ]


def sizes_near(
    problem: Problem,
    fields: Sequence[str],
    units: Iterable[int],
    is_allowed: Callable[[Problem], bool] = lambda size: True,
) -> list[Problem]:
    """Return sizes at which a kernel that is correct on a problem may be wrong, the likeliest first.

    ``units`` are possible divisors of blocks and tiles. A size that ``is_allowed`` refuses moves by
    1, 3, 7, 15 … up to the largest unit.
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
    longest = min(size_of(problem), _MAX_ELEMENTS)

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
    """Return a small problem: up to ``count`` of the largest units per field, with the same remainders."""
    unit = {name: _unit(problem[name], units) for name in fields}
    most = {name: count * unit[name] + problem[name] % unit[name] for name in fields}
    return problem.replace(**{name: min(problem[name], most[name]) for name in fields})


def _unit(value: int, units: Iterable[int]) -> int:
    """Return the largest unit that is at most half of a value; 1 if there is none."""
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
    """Return a condition for `requires` that all correct sizes meet and no wrong size meets."""
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
        if len(met[best]) == len(left):  # only equality separates correct and wrong sizes
            chosen = [f"p.{name} == {right[0][name]}" for name in fields]
            break
        chosen.append(best)
        left = met[best]
    return chosen[0] if len(chosen) == 1 else " & ".join(f"({text})" for text in chosen)


@dataclass
class OtherSizes:
    """The sizes near one tuned problem, with their data and the faults found at them."""

    bench: Bench
    #: The job of the tuned problem.
    job: Job
    #: Sizes at which the finalists are verified already, the tuned one last.
    known: Sequence[Problem]
    #: Function that verifies a finalist on a job.
    check: Callable[[Contender, Job], Measurement]
    #: Time in seconds of the problem's search.
    search_s: float
    #: Kernels for which the run has warned of refused sizes.
    warned: set[str]
    _until_s: float = 0.0
    #: The size from which the others are derived.
    _base: Problem = field(default_factory=Problem)
    #: Maximum time in seconds for making its data.
    _data_s: float = math.inf
    _fields: list[str] = field(default_factory=list)
    _units: set[int] = field(default_factory=set)
    #: Sizes whose data are not made yet.
    _planned: list[Problem] = field(default_factory=list)
    #: Jobs of sizes whose data are made.
    _made: dict[Problem, Job] = field(default_factory=dict)
    #: Number of wrong finalists at each size.
    _faults: Counter[Problem] = field(default_factory=Counter)
    #: Job of the large size.
    _large: Job | None = None

    def verified(self, finalists: Sequence[Contender]) -> tuple[list[Contender], list[Measurement]]:
        """Return finalists that are correct at all sizes, and rows of the other finalists.

        While there is time, a wrong finalist is also tried at the other sizes, to propose a better
        condition.
        """
        places = range(len(finalists))
        right = [[p for p in self.known[::-1] if self._takes(f, p)] for f in finalists]
        wrong: list[list[Problem]] = [[] for _ in finalists]
        rows: dict[int, Measurement] = {}
        for job in self._jobs(finalists):
            for place in places:
                if place in rows and rows[place].status is not Status.WRONG_RESULT:
                    continue  # another crash would cost another process
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
                f"{row.message} (correct at {len(right[place])} sizes, wrong at {len(wrong[place])}); "
                f"exclude sizes that it does not support by @{name}.requires, for example: return {rule}"
            )
            rows[place] = replace(row, message=message)
        return [finalists[place] for place in places if place not in rows], list(rows.values())

    # ------------------------------------------------------------------ one size

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
            self._warn(job.problem, error)
            return None
        decisive = {Status.OK, Status.WRONG_RESULT, Status.CRASHED}
        if job is self._large or self._is_longer(job.problem):
            return found if found.status in decisive and not _may_be_rounding(found, job) else None
        return found if found.status in decisive | {Status.TIMED_OUT} else None

    def _is_longer(self, size: Problem) -> bool:
        """Return whether sums along a field may be longer than in the tuned problem."""
        return any(size[name] >= 2 * self.job.problem[name] > 2 for name in self._fields)

    def _takes(self, finalist: Contender, size: Problem) -> bool:
        try:
            return self.bench.kernel.allows(finalist.configuration, size)
        except SpecError as error:
            self._warn(size, error)
            return False

    def _warn(self, size: Problem, error: BaseException) -> None:
        """Warn once of sizes that the kernel's functions or the device refuse."""
        name = self.bench.kernel.name
        if name not in self.warned:
            warnings.warn(
                f"{name}: not verified at {size} and other sizes that its functions or the device refuse "
                f"({error}); to keep lookup from answering at such sizes, exclude them by @{name}.requires",
                stacklevel=2,
            )
        self.warned.add(name)

    # ------------------------------------------------------------------ choice of sizes

    def _jobs(self, finalists: Sequence[Contender]) -> Iterator[Job]:
        """Yield jobs: first of sizes with known faults, then of others while there is time for their data."""
        for size, _ in self._faults.most_common():
            yield self._made[size]
        if is_first := not self._until_s:
            self._until_s = time.monotonic() + self._limit_s
            self._plan(finalists)
            with suppress(SpecError, MemoryError):  # the loop below reports the error
                self.bench.make_data(dict.fromkeys(self._planned[:_ALWAYS], (EXACT, RANDOM)))
        while self._planned and (
            len(self._made) < _ALWAYS or self._left_s > _LARGE_SHARE * self._limit_s
        ):
            size = self._planned.pop(0)
            try:
                # With random data, long sums have rounding errors that hide faults.
                names = (EXACT,) if self._is_longer(size) else (EXACT, RANDOM)
                job, data_s = self._job(size, names)
            except (SpecError, MemoryError) as error:
                self._warn(size, error)
                continue
            if 2 * size_of(size) > size_of(self._base):
                self._data_s = min(self._data_s, data_s)
            if can_show_faults(job):
                yield self._add(job)
        if is_first and self._fields and (large := self._grown(finalists)):
            self._large = large
            yield self._add(large)

    def _plan(self, finalists: Sequence[Contender]) -> None:
        """Choose sizes near the tuned one, or near a smaller one if data or launches would take too long."""
        kernel, problem = self.bench.kernel, self.job.problem
        if kernel.layout_of(problem):  # the layout depends on the sizes
            return
        self._base, self._fields = problem, size_fields(kernel, problem)
        for finalist in finalists if self._fields else ():
            configuration = finalist.configuration
            main = launch_sequence(kernel, configuration, problem, self.job.device).main
            numbers = {value for value in configuration.values() if type(value) is int}
            numbers |= {-(-problem[name] // math.prod(main.grid)) for name in self._fields}
            self._units |= {unit for unit in (*numbers, math.prod(main.block)) if unit > 1}
        self._data_s = sum(dataset.seconds for dataset in self.job.datasets) or math.inf
        cost_s = self._data_s + self._launches_s(finalists, problem)
        most_s = (1 - _LARGE_SHARE) * self._limit_s / (MAX_SIZES - 1)
        for count in (4, 2):  # with both counts, 3 units minus 1 is one of the sizes
            if cost_s * size_of(self._base) / size_of(problem) > most_s:
                self._base = compact(problem, self._fields, self._units, count)
        is_allowed = partial(self._is_for, finalists)
        sizes = sizes_near(self._base, self._fields, self._units, is_allowed)
        unknown = [size for size in sizes if size not in self.known]
        self._planned = unknown[: MAX_SIZES - 1]

    def _grown(self, finalists: Sequence[Contender]) -> Job | None:
        """Return the job of the largest size that fits the time and the memory, with random data only.

        All fields are doubled while the predicted cost is below the limits. The predicted growth is twice
        that of the number of elements, or that between the last two sizes, up to the third power of a
        field.
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
        """Return the job of a size, and the time in seconds for making its data."""
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
        """Return the predicted time in seconds of the finalists' launches, proportional to the size."""
        times_ms = [(f.row and f.row.median_ms) or 0.0 for f in finalists]
        growth = size_of(size) / size_of(self.job.problem)
        return _LAUNCHES * sum(times_ms) / 1e3 * growth

    @property
    def _limit_s(self) -> float:
        return max(_MIN_S, _SHARE * self.search_s)

    @property
    def _left_s(self) -> float:
        return self._until_s - time.monotonic()


def can_show_faults(job: Job) -> bool:
    """Return whether expected outputs at a size can show faults: not all zero, and no overflow.

    For example, the variance of one number is 0, and a sum of a million exceeds half precision.
    """
    arguments = job.datasets[0].arguments
    halves = {argument.name for argument in arguments if argument.value_type == np.float16}
    has_values = False
    for dataset in job.datasets:
        for name in dataset.bounds:
            expected = dataset.expected(name)
            if name in halves and largest(parts(expected)) > float(np.finfo(np.float16).max):
                return False
            has_values |= bool(expected.any())
    return has_values


def _may_be_rounding(found: Measurement, job: Job) -> bool:
    """Return whether rounding explains a wrong result: of longer sums, or to the other of two integers."""
    rounds = any(argument.value_type.kind == "f" for argument in job.datasets[0].arguments)
    wrong = [check for check in found.checks if not check.is_correct]
    return bool(wrong) and all(
        check.max_error <= (_GROSS_ERROR * check.bound or float(rounds)) for check in wrong
    )
