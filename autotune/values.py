"""Configurations and problems: immutable mappings of names to plain values.

They know nothing of what the names mean; `space` says which configurations are valid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

Value: TypeAlias = "int | bool | float | str"
#: Key of a configuration that names its source, where a kernel has several.
SOURCE = "SOURCE"
Self = TypeVar("Self", bound="Fields")


class Fields(Mapping[str, Any]):
    """An immutable, hashable mapping whose entries can be read as attributes.

    Two are equal when they hold the same names and values, in whatever order.

    Parameters
    ----------
    values : mapping, optional
        Values by name.
    **named
        More of them.
    """

    __slots__ = ("_hash", "_values")
    _noun = "field"

    def __init__(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        object.__setattr__(self, "_values", {**(values or {}), **named})
        object.__setattr__(self, "_hash", None)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            known = ", ".join(self._values)
            raise AttributeError(f"unknown {self._noun} {name!r} (known: {known})") from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        if self._hash is None:
            object.__setattr__(self, "_hash", hash(frozenset(self._values.items())))
        return int(self._hash)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Fields):
            return bool(self._values == other._values)
        return NotImplemented if not isinstance(other, Mapping) else dict(self) == dict(other)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (dict(self._values),))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"

    def __str__(self) -> str:
        return ", ".join(f"{name}={_plain(value)}" for name, value in self._values.items())

    def replace(self: Self, **changes: Any) -> Self:
        """Copy with some values changed.

        Parameters
        ----------
        **changes
            Values by name; new names come last.

        Returns
        -------
        Configuration or Problem
            Of the same class.
        """
        return type(self)({**self._values, **changes})

    def canonical_json(self) -> str:
        """Return the same text for equal values, for fingerprints and the store."""
        import json  # not in the time of a lookup

        return json.dumps(self._values, sort_keys=True, separators=(",", ":"))


class Configuration(Fields):
    """One value for each parameter of a source, for example ``BM=128, BN=64``.

    Of a kernel with several sources it has the name of its source, too, under `SOURCE`.

    Parameters
    ----------
    values : mapping, optional
        Values by name of the parameter.
    **named : int, bool or str
        More of them.
    """

    __slots__ = ()
    _noun = "parameter"


class Problem(Fields):
    """A problem of a kernel: sizes, and categorical fields such as ``dtype``.

    Parameters
    ----------
    values : mapping, optional
        Fields by name.
    **named : int or str
        Further fields, in lower case: ``Problem(m=1024, n=64)``.
    """

    __slots__ = ()
    _noun = "problem field"


def size_of(problem: Mapping[str, Any]) -> int:
    """Return the product of a problem's integers other than 0: how large it is among its kernel's."""
    return math.prod(value for value in problem.values() if isinstance(value, int) and value)


def category_of(problem: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the categorical values of a problem."""
    return tuple(value for value in problem.values() if isinstance(value, str))


def by_category(problems: Iterable[Mapping[str, Any]]) -> dict[tuple[str, ...], list[int]]:
    """Return the places of problems, by their categorical values."""
    found: dict[tuple[str, ...], list[int]] = {}
    for place, problem in enumerate(problems):
        found.setdefault(category_of(problem), []).append(place)
    return found


def _plain(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
