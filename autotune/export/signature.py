"""The arguments of a kernel in C++, and how their sizes follow from the fields of a problem."""

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

#: C++ types of the scalars that a kernel is passed.
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
#: Problems whose arguments are declared, the smallest first: arrays of large ones may have gigabytes.
_MAX_PROBLEMS = 8


@dataclass(frozen=True)
class Signature:
    """The arguments of a kernel, and how their sizes follow from the problem."""

    kernel: Kernel
    #: In the kernel's order.
    arguments: Mapping[str, Argument]
    #: Integer scalars that always equal the problem field of the same name.
    fields: frozenset[str]
    #: Elements of each array as an expression; arrays whose size does not follow from the fields are missing.
    elements: Mapping[str, Json]

    @classmethod
    def of(cls, kernel: Kernel) -> Signature:
        """Compare the arguments of small problems; UsageError for a kernel that a launcher cannot call."""
        for name in set(kernel.static) & set(kernel.fields):
            raise UsageError(
                f"{kernel.name}: the field {name} is compiled in (static=), so no source is for every "
                "problem; pass it to the kernel as an argument, or tune a kernel of its own for a value"
            )
        tuned = {problem for problem in kernel.all_problems() if not kernel.layout_of(problem)}
        problems = sorted(tuned, key=size_of)[:_MAX_PROBLEMS]
        asked = [(problem, declared_arguments(kernel, problem)) for problem in problems]
        arguments = asked[0][1]
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
            and all(known[name].value == problem.get(name) for problem, known in asked)
        )
        shapes = {
            name: [(problem, math.prod(known[name].shape)) for problem, known in asked]
            for name, argument in arguments.items()
            if argument.kind != "scalar"
        }
        elements = {name: _form(sizes) for name, sizes in shapes.items()}
        known = {name: form for name, form in elements.items() if form is not None}
        return cls(kernel, arguments, fields, known)


def _form(sizes: Sequence[tuple[Problem, int]]) -> Json | None:
    """Return the number or the product of fields that equals every size; None if there is none."""
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
