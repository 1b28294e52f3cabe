"""The arguments of a kernel in C++, and their sizes as expressions over the fields of a problem."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from autotune.data.arguments import Argument, declared_arguments
from autotune.errors import UsageError
from autotune.export.cpp import identifier
from autotune.kernel.expression import Json, value_of
from autotune.kernel.spec import Kernel
from autotune.values import Problem, size_of

#: C++ types of a kernel's scalar arguments, by dtype.
_TYPES = {
    **{
        f"{sign}int{bits}": f"std::{sign}int{bits}_t"
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
    "float32": "float",
    "float64": "double",
    "bool": "bool",
}
#: Maximum number of problems to compare, smallest first: the arrays of large problems take gigabytes.
_MAX_PROBLEMS = 8


@dataclass(frozen=True)
class Signature:
    """The arguments of a kernel, and their sizes as expressions over problem fields."""

    kernel: Kernel
    #: Arguments by name, in the kernel's order.
    arguments: Mapping[str, Argument]
    #: Integer scalars that always equal the problem field of the same name.
    fields: frozenset[str]
    #: Number of stored elements of each array as an expression; without arrays whose size has no expression.
    elements: Mapping[str, Json]
    #: Expressions of each array's sizes along its axes; None for a size without an expression.
    axes: Mapping[str, tuple[Json | None, ...]]

    @classmethod
    def of(cls, kernel: Kernel) -> Signature:
        """Derive the signature from the arguments of small problems.

        Raises `UsageError` if a launcher cannot call the kernel.
        """
        for name in set(kernel.static) & set(kernel.fields):
            raise UsageError(
                f"{kernel.name}: the field {name} is compiled in (static=), so no source is for every "
                "problem; pass it to the kernel as an argument, or tune a kernel of its own for a value"
            )
        tuned = {problem for problem in kernel.all_problems() if not kernel.layout_of(problem)}
        problems = sorted(tuned, key=size_of)[:_MAX_PROBLEMS]
        examples = [(problem, declared_arguments(kernel, problem)) for problem in problems]
        arguments = examples[0][1]
        for name, argument in arguments.items():
            if argument.kind == "constant":
                raise UsageError(
                    f"{kernel.name}: {name} is a module constant, which a launcher does not set; "
                    "make it an array that the kernel is passed"
                )
        fields = frozenset(
            name
            for name, argument in arguments.items()
            if argument.kind == "scalar"
            and np.dtype(argument.dtype).kind in "iu"
            and all(known[name].value == problem.get(name) for problem, known in examples)
        )
        shapes = {
            name: [(problem, math.prod(known[name].stored_shape)) for problem, known in examples]
            for name, argument in arguments.items()
            if argument.kind != "scalar"
        }
        elements = {name: _form(sizes) for name, sizes in shapes.items()}
        known = {name: form for name, form in elements.items() if form is not None}
        axes = {
            name: _axes([(p, found[name].stored_shape) for p, found in examples]) for name in shapes
        }
        return cls(kernel, arguments, fields, known, axes)


def _axes(shapes: Sequence[tuple[Problem, tuple[int, ...]]]) -> tuple[Json | None, ...]:
    """Return the expression of each axis of an array; the number of axes is the same for all problems."""
    return tuple(
        _form([(problem, shape[axis]) for problem, shape in shapes])
        for axis in range(len(shapes[0][1]))
    )


def _form(sizes: Sequence[tuple[Problem, int]]) -> Json | None:
    """Return the number or product of fields that equals all sizes; None if there is none."""
    names = [name for name, value in sizes[0][0].items() if isinstance(value, int)]
    forms: list[Json] = [sizes[0][1]]
    for count in range(1, len(names) + 1):
        for chosen in combinations(names, count):
            form: Json = chosen[0]
            for name in chosen[1:]:
                form = ["*", form, name]
            forms.append(form)
    agrees = (
        form for form in forms if all(value_of(form, problem) == size for problem, size in sizes)
    )
    return next(agrees, None)


def c_type(kernel: Kernel, name: str, dtype: np.dtype[Any]) -> str:
    """Return the C++ type of a scalar."""
    if dtype.name not in _TYPES:
        raise UsageError(
            f"{kernel.name}: the scalar {name} is of type {dtype}, which C++ lacks; "
            f"pass one of {', '.join(_TYPES)}"
        )
    return _TYPES[dtype.name]


def member(name: str) -> str:
    """Return an argument's name as a member of the launcher's ``arguments``."""
    return identifier(name, ("arguments",))
