"""An array in a `call` function: shape, strides, type and alignment, without data.

The answer of a `call` function depends only on the layout of its arrays, so answers can be cached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from autotune.element_types import ELEMENT_TYPES
from autotune.values import Problem

#: Alignment of arrays in bytes: the widest load of a thread up to compute capability 9.0, and the
#: alignment that TMA requires. Source: CUDA C++ Programming Guide, "Device Memory Accesses".
ALIGNMENT = 16


@dataclass(frozen=True, eq=False)
class NewArray:
    """An array to allocate for the call; two of them are never equal."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Operand:
    """An array of a call, an array to allocate, or a view of one of them.

    Parameters
    ----------
    shape : tuple of int
        Elements along each axis.
    strides : tuple of int
        Distance between neighbours along each axis, in elements.
    dtype : str
        NumPy's name of the type.
    offset : int
        Elements between a boundary of 16 bytes and the first element.
    source : object
        The array of this view: the position or name of an argument of the call, or a new array.
    begin : int
        Elements between the first element of ``source`` and the first element of this view.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str = "float32"
    offset: int = 0
    source: Any = field(default=None, compare=False)
    begin: int = 0

    @classmethod
    def new(cls, shape: Sequence[int], dtype: str = "float32") -> Operand:
        """Return an array to allocate, contiguous and aligned."""
        made = NewArray(tuple(shape), dtype)
        return cls(made.shape, contiguous_strides(shape), dtype, source=made)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def span(self) -> int:
        """Number of elements of memory from the first to the last element, both included."""
        if not self.size:
            return 0
        return 1 + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))

    @property
    def is_contiguous(self) -> bool:
        """True for row-major order without gaps; an axis of one element may have any stride."""
        expected = contiguous_strides(self.shape)
        laid_out = zip(self.shape, self.strides, expected, strict=True)
        return not self.size or all(n == 1 or stride == wanted for n, stride, wanted in laid_out)

    @property
    def is_dense(self) -> bool:
        """True for memory without gaps, in any order of the axes."""
        lies = sorted((stride, n) for n, stride in zip(self.shape, self.strides, strict=True))
        order = [(n, stride) for stride, n in lies if n != 1]
        expected = contiguous_strides([n for n, _ in reversed(order)])
        return not self.size or [stride for _, stride in order] == list(reversed(expected))

    @property
    def is_by_rows(self) -> bool:
        """True if row-major kernels can read the array: the last axis is dense, and no stride is negative."""
        is_last_dense = not self.shape or self.shape[-1] == 1 or self.strides[-1] == 1
        return is_last_dense and not self.runs_backwards

    @property
    def runs_backwards(self) -> bool:
        """True if an axis has a negative stride."""
        return any(n > 1 and stride < 0 for n, stride in zip(self.shape, self.strides, strict=True))

    @property
    def rows_apart(self) -> int:
        """Distance between the rows of a matrix, or of the matrices of a batch, in elements."""
        return self.strides[-2] if self.shape[-2] > 1 else self.shape[-1]

    @property
    def overlaps_itself(self) -> bool:
        """True if two elements may share memory, judged by the strides."""
        if not self.size:
            return False
        reach = 0
        lies = zip(self.strides, self.shape, strict=True)
        for step, count in sorted((abs(stride), n) for stride, n in lies if n > 1):
            if step <= reach:
                return True
            reach += (count - 1) * step
        return False

    @property
    def T(self) -> Operand:  # noqa: N802 - as every array library calls it
        """A view with the last two axes exchanged."""
        *shape, rows, columns = self.shape
        *strides, by_row, by_column = self.strides
        return replace(self, shape=(*shape, columns, rows), strides=(*strides, by_column, by_row))

    def reshape(self, *shape: int) -> Operand:
        """Return a view with another shape; `ValueError` if the array is not contiguous."""
        if not self.is_contiguous or prod(shape) != self.size:
            raise ValueError(f"{self} has no view of shape {shape}; make a contiguous copy")
        return replace(self, shape=tuple(shape), strides=contiguous_strides(shape))

    @property
    def memory(self) -> Operand:
        """The memory between the first and the last element, as one axis."""
        return replace(self, shape=(self.span,), strides=(1,))

    def select(self, axis: int, index: int) -> Operand:
        """Return a view of one slice along an axis, without that axis."""
        if not 0 <= axis < self.ndim or not 0 <= index < self.shape[axis]:
            raise ValueError(f"{self} has no index {index} along axis {axis}")
        moved = index * self.strides[axis]
        return replace(
            self,
            shape=self.shape[:axis] + self.shape[axis + 1 :],
            strides=self.strides[:axis] + self.strides[axis + 1 :],
            offset=(self.offset + moved) % max(1, ALIGNMENT // itemsize_of(self.dtype)),
            begin=self.begin + moved,
        )

    def __bool__(self) -> bool:
        """Raise `ValueError`, because ``if out`` could mean the length or the content."""
        raise ValueError(f"{self} has no truth value: expected a number, or compare with `is None`")

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return self.shape[0]

    def __str__(self) -> str:
        layout = "" if self.is_contiguous else f" with strides {self.strides}"
        return f"{self.dtype}{list(self.shape)}{layout}"


@dataclass(frozen=True, init=False)
class Instead:
    """An answer of a `call` function that calls another kernel.

    Parameters
    ----------
    kernel : str
        Name of the other kernel.
    *args, **named
        Arguments of the other kernel: operands of this call, views of them, and scalars.
    """

    kernel: str
    args: tuple[Any, ...]
    named: dict[str, Any]
    #: Problem and arguments of this kernel; None if the other kernel always serves the call.
    own: tuple[Problem, Mapping[str, Any]] | None
    #: Whether the other kernel serves the call if the time of this one is unknown; see `than`.
    by_default: bool

    def __init__(self, kernel: str, *args: Any, **named: Any) -> None:
        found = {"kernel": kernel, "args": args, "named": named, "own": None, "by_default": True}
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def than(
        self, problem: Problem, given: Mapping[str, Any], *, by_default: bool = False
    ) -> Instead:
        """Return this answer with this kernel as the alternative; records choose the faster kernel.

        Parameters
        ----------
        problem : Problem
            The problem of this kernel.
        given : Mapping
            The arguments of this kernel by name.
        by_default : bool
            The kernel to use unless records have an expected time for both. False: this kernel. True: the
            other kernel, except if records only have a time for this kernel and it needs no copies.

        Returns
        -------
        Instead
            The answer.
        """
        answer = Instead(self.kernel, *self.args, **self.named)
        object.__setattr__(answer, "own", (problem, given))
        object.__setattr__(answer, "by_default", by_default)
        return answer


@dataclass(frozen=True)
class NothingToDo:
    """An answer of a `call` function whose results need no launch.

    Parameters
    ----------
    results : tuple of Operand
        Operands of the call, or arrays of `Operand.new`.
    """

    results: tuple[Operand, ...]


def check_arrays(dtype: str, **arrays: Any) -> None:
    """Raise `ValueError` if an argument is not an array of a type."""
    for name, array in arrays.items():
        if not isinstance(array, Operand):
            raise ValueError(f"{name} is {array!r:.40}: an array of {dtype} is needed")
        if array.dtype != dtype:
            raise ValueError(f"{name} is {array.dtype}: {dtype} is needed")


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of an array in row-major order without gaps."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def itemsize_of(dtype: str) -> int:
    """Return the bytes of an element, by NumPy's name of its type."""
    element = ELEMENT_TYPES.get(dtype)
    if element is None or element.bits < 8:
        raise ValueError(f"arrays of {dtype} are not supported")
    return element.bits // 8
