"""Derives sizes from a tuned problem, at which a correct configuration may be wrong.

The choice depends on the kernel, the problem and the configurations, and on no time, so that a busy machine
verifies the same sizes. `autotune.run.other_sizes` verifies configurations at them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, product

from autotune.devices.device import Device
from autotune.errors import SpecError
from autotune.kernel.expression import Json, value_of
from autotune.kernel.spec import Kernel, Launch
from autotune.values import Problem, category_of, size_of

#: Maximum number of sizes near a problem.
MAX_NEAR = 8
#: Minimum of the largest value of a size; a field with smaller values is a mode or a count.
_MIN_SIZE = 8
#: Factors of the largest known value of a field; the first that costs little enough counts.
_FACTORS = (16, 8, 4, 2)
#: Limits of a field: integers that float32 holds, 65,536 blocks of 16 rows, and 16 bits, also of a grid in y.
_LIMITS = (1 << 24, 1 << 20, 1 << 16)
#: Values of the other fields of a size with one unusual field, with the same remainders; the last keeps them.
_OTHERS = (64, 1, 256, 1 << 40)
#: A size moves by one less than these powers of two until it is allowed.
_STEPS = tuple((1 << doublings) - 1 for doublings in range(9))
#: Sizes are near the problem itself up to this cost; else near a smaller problem. See `cost_of`.
NEAR_COST = 1 << 23
#: A size with such a cost is always verified, and none with a higher cost than the maximum.
_CHEAP, _MAX_COST = 1 << 25, 1 << 28
#: The same without `work`: 4096 and 2^20 as products of the fields. A reference may take the cube of a field.
_CHEAP_UNKNOWN, _MAX_UNKNOWN = 1 << 15, 1 << 23
#: Maximum number of blocks of a size without `work`.
_MAX_BLOCKS = 1 << 17
#: A kernel may compute whole tiles, so each field counts as at least this many in its arithmetic.
_TILE = 32


def size_fields(kernel: Kernel, problem: Problem) -> list[str]:
    """Return the fields that are sizes: integers that are neither compile-time constants nor always small."""
    known = (problem, *kernel.all_problems())
    return [
        name
        for name in varied_fields(kernel, problem)
        if max(other[name] for other in known) >= _MIN_SIZE
    ]


def varied_fields(kernel: Kernel, problem: Problem) -> list[str]:
    """Return the integer fields that are no compile-time constants, also if they are always small."""
    return [
        name
        for name in kernel.fields
        if isinstance(problem[name], int) and name not in kernel.static
    ]


# ---------------------------------------------------------------------- near a problem


def sizes_near(
    problem: Problem,
    fields: Sequence[str],
    units: Iterable[int],
    is_allowed: Callable[[Problem], bool] = lambda size: True,
) -> list[Problem]:
    """Return sizes near a problem at which a kernel may be wrong, the likeliest first.

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
    candidates = [
        *(moved(-1, lambda name: problem[name] - 1, [name]) for name in largest),
        moved(1, lambda name: problem[name] + 1),
        moved(-1, lambda name: _prime_below(problem[name])),
        moved(1, lambda name: 1),
        moved(-1, lambda name: unit[name] - 1),
        moved(1, lambda name: unit[name] + 1),
        *(moved(1, lambda name: problem[name] + 1, [name]) for name in largest),
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


# ---------------------------------------------------------------------- far from every problem


def known_like(
    kernel: Kernel, problem: Problem, device: Device, asked: Iterable[Problem] = ()
) -> list[Problem]:
    """Return the problem, and the declared and the ``asked`` problems that differ from it in sizes only."""
    fixed = [name for name in kernel.fields if name not in varied_fields(kernel, problem)]
    declared = kernel.problems.get(device.backend) or kernel.all_problems()
    return [
        known
        for known in dict.fromkeys((*asked, *declared, problem))
        if not kernel.layout_of(known) and all(known[name] == problem[name] for name in fixed)
    ]


def extreme_sizes(
    kernel: Kernel,
    known: Collection[Problem],
    device: Device,
    is_allowed: Callable[[Problem], bool] = lambda size: True,
) -> list[Problem]:
    """Return sizes with one unusual field: 1, far above all ``known`` problems, above a limit of types or grids.

    A size costs at most as much as the largest known problem, unless it is cheap. Problems that differ in
    sizes only have the same extreme sizes.
    """
    largest = max(known, key=lambda problem: (cost_of(kernel, problem), size_of(problem)))
    most_cost, found = affordable_cost(kernel, known, device), dict[Problem, None]()

    def add(name: str, values: Iterable[int], counts: Iterable[int]) -> None:
        for value, count, step in product(values, counts, _STEPS):
            size = shrunk(largest, fields, count).replace(**{name: value + step})
            if cost_of(kernel, size) <= most_cost and is_allowed(size):
                found[size] = None
                return

    fields = varied_fields(kernel, largest)
    for name in fields:
        most = max(problem[name] for problem in known)
        far = [factor * most + 1 for factor in _FACTORS]
        add(name, [1], _OTHERS)
        add(name, far, _OTHERS)
        if name in size_fields(kernel, largest):
            add(name, [limit + 1 for limit in _LIMITS if limit >= far[0]], _OTHERS[1::-1])
    return [size for size in found if size not in known]


def twin_of(
    kernel: Kernel, problem: Problem, device: Device, is_allowed: Callable[[Problem], bool]
) -> Problem | None:
    """Return a small problem with the unusual fields of a problem; None if it would cost too much.

    A field is unusual if its value is above or below all declared values. If only the combination of fields
    is unusual, the problem is its own twin.
    """
    known = (*kernel.edge_problems, *(kernel.problems.get(device.backend) or kernel.all_problems()))
    fields, values = (
        varied_fields(kernel, problem),
        {n: {p[n] for p in known} for n in kernel.fields},
    )
    ranges = {name: (min(values[name]), max(values[name])) for name in fields}
    usual = [name for name in fields if ranges[name][0] <= problem[name] <= ranges[name][1]]
    is_unusual = any(problem[n] not in values[n] for n in kernel.fields if n not in usual)
    for count in _OTHERS if is_unusual else _OTHERS[-1:]:
        twin = shrunk(problem, usual, count)
        if cost_of(kernel, twin) <= _MAX_COST and is_allowed(twin):
            return twin
    return None


def shrunk(problem: Problem, names: Iterable[str], count: int) -> Problem:
    """Return a problem with small values of some fields that leave the same remainders."""
    values = {name: min(n, count + n % count) for name in names if (n := problem[name]) > 0}
    return problem.replace(**values)


def affordable_cost(kernel: Kernel, known: Iterable[Problem], device: Device) -> float:
    """Return the maximum cost of an extreme size; see `cost_of`."""
    largest = max(cost_of(kernel, problem) for problem in known)
    has_work = "work" in kernel.hooks
    least, most = (_CHEAP, _MAX_COST) if has_work else (_CHEAP_UNKNOWN, _MAX_UNKNOWN)
    return min(most, device.memory_bytes / 8 or math.inf, max(least, largest))


def cost_of(kernel: Kernel, problem: Problem) -> float:
    """Return the cost of a problem: the bytes that it moves, and a byte for 8 flops; infinite if it has none.

    Without a `work` function it is 8 times the product of the fields, and infinite for a huge launch: a field
    may be an exponent.
    """
    with suppress(SpecError, OverflowError):
        work = kernel.work_of(problem)
        if work is None:
            return 8.0 * size_of(problem) if _blocks(kernel, problem) <= _MAX_BLOCKS else math.inf
        tiles = {name: max(_TILE, problem[name]) for name in varied_fields(kernel, problem)}
        tiled = kernel.work_of(problem.replace(**tiles))
        assert tiled is not None
        return work.bytes_read + work.bytes_written + tiled.flops / 8
    return math.inf


def _blocks(kernel: Kernel, problem: Problem) -> int:
    """Return the number of blocks that the default launches; 0 if that is unknown."""
    with suppress(SpecError, KeyError):
        steps = kernel.steps(kernel.default(), problem, None)
        grids = [step.grid for step in steps if isinstance(step, Launch)]
        return sum(math.prod(grid) if isinstance(grid, Sequence) else int(grid) for grid in grids)
    return 0


# ---------------------------------------------------------------------- what was verified


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


def ranges_of(
    kernel: Kernel, sizes: Iterable[Problem], problems: Iterable[Problem]
) -> tuple[Mapping[str, tuple[int, int] | str], ...]:
    """Return the ranges of sizes in which a configuration was verified, given the sizes at which it was.

    Each range ends at a verified size, and begins at the least verified value of each field. Only sizes
    with the same text and compile-time fields count for a range. Sizes in other layouts, or with text fields of
    none of the problems, do not count.
    """
    alike, categories = dict[tuple[object, ...], list[Problem]](), set(map(category_of, problems))
    for size in dict.fromkeys(sizes):
        if category_of(size) in categories and not kernel.layout_of(size):
            varied = varied_fields(kernel, size)
            key = tuple(size[name] for name in kernel.fields if name not in varied)
            alike.setdefault(key, []).append(size)
    ranges = list[Mapping[str, tuple[int, int] | str]]()
    for group in alike.values():
        fields = varied_fields(kernel, group[0])
        least = {name: min(size[name] for size in group) for name in fields}

        def is_below(one: Problem, other: Problem, names: Sequence[str] = fields) -> bool:
            return one is not other and all(one[name] <= other[name] for name in names)

        for size in group:
            if not any(is_below(size, other) for other in group):
                ranges.append({name: _range(size[name], least.get(name)) for name in kernel.fields})
    return tuple(ranges)


def _range(value: int | str, least: int | None) -> tuple[int, int] | str:
    return value if isinstance(value, str) else (value if least is None else least, value)
