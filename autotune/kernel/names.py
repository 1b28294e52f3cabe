"""Checks the names and values in a kernel's declaration.

Names become file names, C macros, attributes, and identifiers of C++ and Python. The declaration refuses
a name that is invalid in one of these, before a search starts.
"""

from __future__ import annotations

import keyword
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from autotune.errors import SpecError, unknown
from autotune.kernel.expression import MAX_INTEGER
from autotune.values import Fields, Problem, Value

#: Keywords of C++20, including alternative spellings.
CPP_KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        """
        alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
        char32_t class compl concept const consteval constexpr constinit const_cast continue
        co_await co_return co_yield decltype default delete do double dynamic_cast else enum
        explicit export extern false float for friend goto if inline int long mutable namespace new
        noexcept not not_eq nullptr operator or or_eq private protected public register
        reinterpret_cast requires return short signed sizeof static static_assert static_cast struct
        switch template this thread_local throw true try typedef typeid typename union unsigned
        using virtual void volatile wchar_t while xor xor_eq
        """,
    )
)
#: Built-in variables of CUDA kernels.
_CUDA = frozenset(["threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize"])
#: Keywords of Python.
_PYTHON = frozenset(keyword.kwlist)
#: A valid name. It has no two underscores in a row, which C++ reserves. It does not end with an
#: underscore, which exporters append to distinguish names.
_NAME = re.compile(r"[A-Za-z](?:_?[A-Za-z0-9])*")
#: Maximum length of a name in characters; file names with a suffix stay within file system limits.
_MAX_LENGTH = 100

#: Arguments of `lookup` that are not problem fields.
LOOKUP_ARGUMENTS = frozenset(("kernel", "arch", "device", "deterministic", "project"))

#: Prefix of the layout fields with the alignment offsets of arrays.
OFFSET = "offset_"

#: Methods of problems and configurations, whose fields are attributes.
_METHODS = frozenset(name for name in dir(Fields) if not name.startswith("_"))

#: Reserved words for each kind of name. Parameters are macros, and Python functions take the names.
_TAKEN: dict[str, frozenset[str]] = {
    "kernel name": frozenset(),
    "parameter": CPP_KEYWORDS | _CUDA | _PYTHON | _METHODS | {"device"},
    "problem field": _PYTHON | _METHODS | LOOKUP_ARGUMENTS,
    "argument": _PYTHON,
    "variant": frozenset({"best"}),
    "source": CPP_KEYWORDS | _PYTHON,
}


def refuse(*checks: tuple[object, str]) -> None:
    """Raise `SpecError` with the message of the first check whose condition is true."""
    for is_wrong, message in checks:
        if is_wrong:
            raise SpecError(message)


def fault(kind: str, name: object) -> str:
    """Return why a name is invalid for a kind of `_TAKEN`; empty if it is valid."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _MAX_LENGTH:
        return (
            f"{kind} {name!r}: expected a letter, then letters, digits and single underscores between "
            f"them, at most {_MAX_LENGTH} characters"
        )
    if name in _TAKEN[kind]:
        return f"{kind} {name!r} is reserved; choose another name, for example {name + '_0'!r}"
    return ""


def field_name(argument: str) -> str:
    """Return the problem field for an argument, in lower case: ``number_of_atoms`` for ``numberOfAtoms``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", argument).lower()


def check_known(where: str, kind: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise `SpecError` for the first name that is not among the known names."""
    for name in names:
        if name not in known:
            raise SpecError(f"{where}: {unknown(kind, name, known)}")


def values_of(name: str, given: object) -> tuple[Value, ...]:
    """Return the values of a parameter as Python numbers, bools or strings."""
    listed: Any = given.tolist() if hasattr(given, "tolist") else given  # an array
    is_listed = isinstance(listed, tuple | list | range) and len(listed) > 0
    values = _of_one_kind(listed) if is_listed else ()
    where = f"parameter {name}:"
    no_word = [v for v in values if isinstance(v, str) and not re.fullmatch(r"[A-Za-z0-9_]+", v)]
    too_large = [value for value in values if isinstance(value, int) and is_too_large(value)]
    is_infinite = any(isinstance(v, float) and not math.isfinite(v) for v in values)
    refuse(
        (wrong := fault("parameter", name), wrong),
        (not is_listed, f"{where} expected a non-empty tuple of values, got {given!r}"),
        (not values, f"{where} values must be all numbers, all bool or all str: {given!r}"),
        (len(set(values)) < len(values), f"{where} a value occurs twice in {given!r}"),
        (is_infinite, f"{where} a value of {given!r} is not a finite number"),
        (
            too_large,
            f"{where} {too_large} needs more than 63 bits, which no record holds; give numbers such as "
            f"(0, 1) and write their values in the source, or as texts in @k.defines: "
            f"{{'{name}': '0x9E3779B97F4A7C15ull'}}",
        ),
        (no_word, f"{where} {no_word} cannot be part of a C identifier"),
    )
    return values


def is_too_large(value: int) -> bool:
    """Return whether an integer needs more than 63 bits, which records and C++ headers cannot hold."""
    return not -MAX_INTEGER <= value <= MAX_INTEGER


def _of_one_kind(given: Sequence[Any]) -> tuple[Value, ...]:
    """Return values of any library as Python values; empty if their kinds are mixed."""
    for kind in (bool, str):
        if all(isinstance(value, kind) for value in given):
            return tuple(map(kind, given))
    if any(isinstance(value, bool) or not isinstance(value, Real) for value in given):
        return ()
    if all(isinstance(value, Integral) for value in given):
        return tuple(int(value) for value in given)
    return tuple(float(value) + 0.0 for value in given)  # + 0.0 turns -0.0 into 0.0


def fields_of(
    tuned: Sequence[Problem],
    edges: Sequence[Problem],
    layout: Mapping[str, int],
    parameters: Collection[str],
) -> tuple[str, ...]:
    """Return the names of the problem fields, without layout fields; check names and values."""
    problems = (*edges, *tuned)
    fields = tuple(name for name in (problems[0] if problems else ()) if name not in layout)
    for name in (*fields, *layout):
        refuse(
            (name in parameters, f"{name} is a parameter and a problem field; rename one"),
            (
                name != name.lower(),
                f"problem field {name!r} must be in lower case: {field_name(name)!r}; the kernel's "
                "argument may keep its name",
            ),
            (wrong := fault("problem field", name), wrong),
        )
    for problem in problems:
        wrong = f"problem ({problem}) has other fields than ({', '.join(fields)})"
        refuse((set(problem) - set(layout) != set(fields), wrong))
    for name, value in (item for given in (layout, *problems) for item in given.items()):
        is_int = type(value) is int
        is_text = isinstance(value, str) and name in fields
        is_negative = is_int and value < 0 and name in layout and name.startswith(OFFSET)
        refuse(
            (not is_int and not is_text, f"problem field {name}={value!r} must be an int or a str"),
            (
                is_int and is_too_large(value),
                f"problem field {name}={value} needs more than 63 bits, which no record holds; give it as "
                f"an argument: np.uint64({value})",
            ),
            (is_negative, f"layout field {name}={value}: the offset must be at least 0 elements"),
        )
    for problem in tuned:
        given = ", ".join(name for name in problem if name in layout)
        wrong = f"problem ({problem}): tuned problems have the declared layout"
        refuse((given, f"{wrong}; give other values of {given} in edge_problems"))
    return fields


def check_macros(parameters: Mapping[str, Sequence[Value]], static: Iterable[str]) -> None:
    """Raise `SpecError` if two declarations define the same preprocessor symbol."""
    words = (
        f"{name}_{value}"
        for name, values in parameters.items()
        for value in values
        if isinstance(value, str)
    )
    for macro, count in Counter([*parameters, *words, *map(str.upper, static)]).items():
        refuse((count > 1, f"the macro {macro} has two meanings (parameter, value, static field)"))


def partial_of(
    where: str, given: Mapping[str, Value], parameters: Mapping[str, tuple[Value, ...]]
) -> dict[str, Value]:
    """Return values of some parameters, in the declared type: 1 becomes 1.0 if 1.0 is declared."""
    check_known(where, "parameter", given, parameters)
    for name, value in given.items():
        wrong = f"{where}: {name}={value!r} is not among its values {parameters[name]}"
        refuse((value not in parameters[name], wrong))
    return {name: parameters[name][parameters[name].index(value)] for name, value in given.items()}
