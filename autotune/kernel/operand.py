"""An array as a `call` function sees it: shape, strides, type and alignment, but no data.

What a call does may depend on how its arrays lie and not on what is in them, so that the answer can
be kept. Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

#: Bytes: the widest load of a thread on any architecture up to compute capability 9.0, and what
#: TMA asks of addresses. CUDA C++ Programming Guide, "Device Memory Accesses".
ALIGNMENT = 16


@dataclass(frozen=True, eq=False)
class NewArray:
    """Stands for an array that is made for the call; every one is another."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Operand:
    """How an array that was passed, or is to be made, lies in memory; or a view of one.

    Attributes
    ----------
    shape : tuple of int
        Elements along each axis.
    strides : tuple of int
        Elements from one to the next along each axis.
    dtype : str
        NumPy's name of the type, such as ``float32``.
    offset : int
        Elements that the first one lies past a boundary of `ALIGNMENT` bytes.
    source : object
        Which argument of the call it is a view of: its position or its name; or a `NewArray`.
    begin : int
        Elements between the first of ``source`` and the first of this.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str = "float32"
    offset: int = 0
    source: Any = field(default=None, compare=False)
    begin: int = 0

    @classmethod
    def new(cls, shape: Sequence[int], dtype: str = "float32") -> Operand:
        """An array to be made: contiguous and aligned.

        Parameters
        ----------
        shape : sequence of int
            Elements along each axis.
        dtype : str
            NumPy's name of the type.

        Returns
        -------
        Operand
            Whose ``source`` is a `NewArray`.
        """
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
        """Elements of memory from the first to the last, both included; 0 where there are none."""
        if not self.size:
            return 0
        return 1 + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))

    @property
    def is_contiguous(self) -> bool:
        """Whether it lies row by row without gaps; axes of one element may have any stride."""
        expected = contiguous_strides(self.shape)
        laid_out = zip(self.shape, self.strides, expected, strict=True)
        return not self.size or all(n == 1 or stride == wanted for n, stride, wanted in laid_out)

    @property
    def is_dense(self) -> bool:
        """Whether its elements lie side by side, in whatever order of the axes."""
        lies = sorted((stride, n) for n, stride in zip(self.shape, self.strides, strict=True))
        order = [(n, stride) for stride, n in lies if n != 1]
        expected = contiguous_strides([n for n, _ in reversed(order)])
        return not self.size or [stride for _, stride in order] == list(reversed(expected))

    @property
    def is_by_rows(self) -> bool:
        """Whether neighbours along the last axis are neighbours in memory, and nothing runs backwards.

        So row-major kernels take a matrix, or a batch of such. Axes of one element may have any stride.
        """
        is_last_dense = not self.shape or self.shape[-1] == 1 or self.strides[-1] == 1
        return is_last_dense and not self.runs_backwards

    @property
    def runs_backwards(self) -> bool:
        """Whether along some axis elements come before those that precede them."""
        return any(n > 1 and stride < 0 for n, stride in zip(self.shape, self.strides, strict=True))

    @property
    def rows_apart(self) -> int:
        """Elements between the rows of a matrix, or of each of a batch; as without gaps where there is one."""
        return self.strides[-2] if self.shape[-2] > 1 else self.shape[-1]

    @property
    def overlaps_itself(self) -> bool:
        """Whether two elements may share memory, going by the strides: axes that interleave are suspects."""
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
        """The same with the last two axes exchanged; itself where it has fewer."""
        if self.ndim < 2:
            return self
        *axes, last, first = range(self.ndim)
        order = (*axes, first, last)
        return replace(
            self,
            shape=tuple(self.shape[axis] for axis in order),
            strides=tuple(self.strides[axis] for axis in order),
        )

    def reshape(self, *shape: int) -> Operand:
        """The same elements in another shape.

        Parameters
        ----------
        *shape : int
            Elements along each axis, as many in all as now.

        Returns
        -------
        Operand
            A view.

        Raises
        ------
        ValueError
            If it is not contiguous, or of another size.
        """
        if not self.is_contiguous or prod(shape) != self.size:
            raise ValueError(f"{self} cannot be seen as {shape} without a copy")
        return replace(self, shape=tuple(shape), strides=contiguous_strides(shape))

    @property
    def memory(self) -> Operand:
        """All that lies between the first and the last element, as one axis."""
        return replace(self, shape=(self.span,), strides=(1,))

    def select(self, axis: int, index: int) -> Operand:
        """One slice along an axis, without that axis.

        Parameters
        ----------
        axis : int
            At least 0.
        index : int
            At least 0, below the number of elements along the axis.

        Returns
        -------
        Operand
            A view.

        Raises
        ------
        ValueError
            If there is no such axis or index.
        """
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
        """Nobody knows what is in it, and its length is no answer to ``if out``.

        Raises
        ------
        ValueError
            Always.
        """
        raise ValueError(f"{self} is neither true nor false: a number is needed, or is None")

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return self.shape[0]

    def __str__(self) -> str:
        layout = "" if self.is_contiguous else f" with strides {self.strides}"
        return f"{self.dtype}{list(self.shape)}{layout}"


@dataclass(frozen=True, init=False)
class Instead:
    """Of a `call` function: call another kernel in place of this one, by its own ``call``.

    Parameters
    ----------
    kernel : str
        Name of the other.
    *args, **named
        What it is called with: operands of this call or views of them, and scalars.
    """

    kernel: str
    args: tuple[Any, ...]
    named: dict[str, Any]

    def __init__(self, kernel: str, *args: Any, **named: Any) -> None:
        object.__setattr__(self, "kernel", kernel)
        object.__setattr__(self, "args", args)
        object.__setattr__(self, "named", named)


@dataclass(frozen=True)
class NothingToDo:
    """Of a `call` function: these are the results, and nothing is to be launched for them.

    Parameters
    ----------
    results : tuple of Operand
        Those that were passed, or `Operand.new`.
    """

    results: tuple[Operand, ...]


def check_arrays(dtype: str, **arrays: Any) -> None:
    """Of a `call` function: refuse what is no array of a type.

    Raises
    ------
    ValueError
        That names the argument and what is needed.
    """
    for name, array in arrays.items():
        if not isinstance(array, Operand):
            raise ValueError(f"{name} is {array!r:.40}: an array of {dtype} is needed")
        if array.dtype != dtype:
            raise ValueError(f"{name} is {array.dtype}: {dtype} is needed")


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements from one to the next along each axis, where rows follow each other without gaps."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def itemsize_of(dtype: str) -> int:
    """Bytes of an element of a type by NumPy's name for it.

    Raises
    ------
    ValueError
        If it is no type of arrays that kernels are called with.
    """
    sizes = {"bool": 1, "bfloat16": 2}
    digits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
    if dtype in sizes:
        return sizes[dtype]
    if digits.isdecimal() and int(digits) % 8 == 0:
        return int(digits) // 8
    raise ValueError(f"arrays of {dtype} are not supported")
