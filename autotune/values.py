"""Configurations and problems: immutable mappings of names to plain values.

`autotune.kernel.space` has the rules of valid configurations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

Value: TypeAlias = "int | bool | float | str"
#: Key of a configuration for the name of its source, if a kernel has several sources.
SOURCE = "SOURCE"
Self = TypeVar("Self", bound="Fields")


class Fields(Mapping[str, Any]):
    """An immutable, hashable mapping; its entries are also attributes.

    Two mappings are equal if they have the same names and values in any order.

    Parameters
    ----------
    values : mapping, optional
        Values by name.
    **named
        Further values.
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
        """Return a copy with changed values.

        Parameters
        ----------
        **changes
            Values by name; new names come last.

        Returns
        -------
        Configuration or Problem
            A copy of the same class.
        """
        return type(self)({**self._values, **changes})

    def canonical_json(self) -> str:
        """Return a JSON text that is equal for equal values, for fingerprints and the store."""
        import json  # lookup does not need it

        return json.dumps(self._values, sort_keys=True, separators=(",", ":"))


class Configuration(Fields):
    """One value for each parameter of a source, for example ``BM=128, BN=64``.

    If the kernel has several sources, the entry `SOURCE` is the name of the source.

    Parameters
    ----------
    values : mapping, optional
        Values by name of the parameter.
    **named : int, bool or str
        Further values.
    """

    __slots__ = ()
    _noun = "parameter"

    def __str__(self) -> str:
        return super().__str__() or "no parameters"


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
    """Return the product of a problem's integers other than 0, a measure of its size."""
    return math.prod(value for value in problem.values() if isinstance(value, int) and value)


def category_of(problem: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the categorical values of a problem."""
    return tuple(value for value in problem.values() if isinstance(value, str))


def by_category(problems: Iterable[Mapping[str, Any]]) -> dict[tuple[str, ...], list[int]]:
    """Return the positions of problems, by their categorical values."""
    found: dict[tuple[str, ...], list[int]] = {}
    for place, problem in enumerate(problems):
        found.setdefault(category_of(problem), []).append(place)
    return found


def _plain(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
