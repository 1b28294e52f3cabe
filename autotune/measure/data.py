"""Inputs and expected outputs of a problem, in files that every process can map.

There are two data sets. *exact* holds small integers other than 0, so that partial sums are integers
that the output's type represents. Results are compared bit for bit, and one lost or doubled element
shows. *random* holds normal deviates, and results are compared within the kernel's tolerance.
"""

from __future__ import annotations

import inspect
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from autotune.arrays import (
    converted,
    in_pieces,
    in_threads,
    narrowed,
    usable_cores,
    widened_bfloat16,
)
from autotune.errors import AutotuneError, SpecError, unknown
from autotune.files import cache_folder, write_atomically
from autotune.kernel.catalog import load_file
from autotune.kernel.includes import text_fingerprint
from autotune.kernel.modules import TRUST, fault_of
from autotune.kernel.names import OFFSET, fault
from autotune.kernel.snapshot import Origin, restored
from autotune.kernel.source import own_fingerprint, source_fingerprint
from autotune.kernel.spec import BFloat16, Constant, InOut, Kernel, Out
from autotune.measure import cache, tolerance
from autotune.values import Problem, size_of

EXACT, RANDOM = "exact", "random"
_MANIFEST = "manifest.msgpack"
_BFLOAT16 = "bfloat16"
#: End of the names of files that hold a configuration's results.
_RESULT = ".result.npy"
#: Bumped when the stored form, or the numbers of a key, change; part of every data set's key.
_VERSION = 13
#: Seed of the exact data that tell whether exact data decide an output, and the least size of their problem.
_DECIDING_SEED, _TELLING = 0, 65
#: Elements of all arrays of a problem whose maps are looked for: it takes eleven references more, and small sizes show
#: what large ones would.
_MOST_OF_MAP = 1 << 20
#: Elements of all arguments of the evaluations that run at once, each with some numbers of 64 bits for each.
_MOST_AT_ONCE = 1 << 27
#: As NumPy takes it; None is one number.
Size: TypeAlias = int | tuple[int, ...] | None
#: A function that draws so many numbers from a generator.
_Source: TypeAlias = Callable[[np.random.Generator, int], NDArray[Any]]


class Draw(np.random.Generator):
    """A random generator for a kernel's inputs, counter-based (Philox).

    `standard_normal`, `normal`, `uniform` and `random` draw on all cores. They give float32, and
    `integers` gives int32, where no ``dtype`` is given. Every piece of every array has a counter range of its own
    (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011), so the numbers are the same
    on any number of cores. All other methods are those of `numpy.random.Generator`, with its types.

    In the exact data set (``draw.exact`` is true) `standard_normal`, `uniform` and `random` give a few
    numbers other than 0 with as few bits as their parameters allow: ±1 and ±2 for normal deviates, ¼, ½
    and ¾ between 0 and 1.
    """

    def __init__(self, exact: bool, key: int) -> None:
        self.exact = exact
        self._key = key % 2**128
        self._arrays = 0
        # NumPy's own methods draw from a counter range that no piece of an array has.
        last = np.array([0, 0, 0, 2**64 - 1], np.uint64)
        super().__init__(np.random.Philox(key=self._key, counter=last))

    def standard_normal(self, size: Size = None, dtype: DTypeLike = np.float32) -> Any:  # type: ignore[override]
        """Draw normal deviates of mean 0 and standard deviation 1."""
        if self.exact:
            return self._filled(size, dtype, _few((-2, -1, 1, 2), dtype))
        wide = _drawn_as(dtype)
        return self._filled(size, dtype, lambda source, n: source.standard_normal(n, wide))

    def normal(  # type: ignore[override]
        self, loc: Any = 0.0, scale: Any = 1.0, size: Size = None, dtype: DTypeLike = np.float32
    ) -> Any:
        """Draw normal deviates of a mean and a standard deviation, in the exact data set too."""
        if np.ndim(loc) or np.ndim(scale):
            return super().normal(loc, scale, size).astype(dtype)
        return self._filled(size, dtype, lambda source, n: source.normal(loc, scale, n))

    def uniform(  # type: ignore[override]
        self, low: Any = 0.0, high: Any = 1.0, size: Size = None, dtype: DTypeLike = np.float32
    ) -> Any:
        """Draw uniform deviates in ``[low, high)``."""
        if np.ndim(low) or np.ndim(high):
            return super().uniform(low, high, size).astype(dtype)
        least, bound = float(low), float(high)
        if not 0 <= bound - least < math.inf:
            raise ValueError(f"uniform: no numbers from {least} to below {bound}")
        wide, few = _drawn_as(dtype), _few(_between(least, bound), dtype)
        # Rounding may reach the bound.
        last = np.nextafter(*np.array([bound, least], dtype))

        def any_number(source: np.random.Generator, n: int) -> NDArray[Any]:
            return (source.random(n, wide) * (bound - least) + least).astype(dtype)

        draw = few if self.exact else any_number
        return self._filled(size, dtype, lambda source, n: np.minimum(draw(source, n), last))

    def random(self, size: Size = None, dtype: DTypeLike = np.float32) -> Any:  # type: ignore[override]
        """Draw uniform deviates in ``[0, 1)``."""
        return self.uniform(0.0, 1.0, size, dtype)

    def integers(  # type: ignore[override]
        self,
        low: Any,
        high: Any = None,
        size: Size = None,
        dtype: DTypeLike = np.int32,
        endpoint: bool = False,
    ) -> Any:
        """Draw integers in ``[low, high)``, or in ``[0, low)``; with ``endpoint`` the bound is included."""
        return super().integers(low, high, size, dtype, endpoint)

    def _filled(self, size: Size, dtype: DTypeLike, draw: _Source) -> Any:
        """Draw each piece of a new array from a generator of its own; a number if there is no size."""
        result: NDArray[Any] = np.empty(() if size is None else size, dtype)
        flat, array = result.reshape(-1), self._arrays
        self._arrays += 1

        def fill(number: int, begin: int, end: int) -> None:
            counter = [0, 0, number, array]
            source = np.random.Generator(np.random.Philox(key=self._key, counter=counter))
            flat[begin:end] = draw(source, end - begin)

        in_pieces(fill, flat.size)
        return result[()] if size is None else result


def _drawn_as(dtype: DTypeLike) -> type[np.float32 | np.float64]:
    return np.float64 if np.dtype(dtype).itemsize > 4 else np.float32


def _few(values: Sequence[float], dtype: DTypeLike) -> _Source:
    """Return what draws from up to four values, two random bits each: a byte picks a row of four."""
    four = np.resize(np.array(values, dtype), 4)
    rows = four[np.arange(256)[:, None] >> np.arange(0, 8, 2) & 3]
    return lambda source, n: rows[source.integers(0, 256, -(-n // 4), np.uint8)].reshape(-1)[:n]


def _between(low: float, high: float) -> list[float]:
    """Return up to four multiples of a power of two in ``[low, high)``, none of them 0."""
    if low == high:
        return [low]
    step = 2.0 ** math.floor(math.log2((high - low) / 4))
    multiples = range(math.ceil(low / step), math.ceil(high / step))
    values = [i * step for i in multiples if i]
    return values[:: -(-len(values) // 4)]


@dataclass(frozen=True)
class Argument:
    """One kernel argument as stored: arrays in ``<name>.npy``, scalars in place."""

    name: str
    #: ``input``, ``out``, ``inout``, ``constant`` or ``scalar``.
    kind: str
    dtype: str
    shape: tuple[int, ...] = ()
    value: float | int | bool = 0
    #: Elements past a boundary of 16 bytes at which the array begins on a device.
    offset: int = 0
    #: ``bfloat16`` where the elements are its bits, for which NumPy has no type; else empty.
    bits_of: str = ""

    @property
    def number(self) -> np.dtype[Any]:
        """The type of its values: float32 for bits of bfloat16."""
        return np.dtype(np.float32 if self.bits_of else self.dtype)

    @property
    def info(self) -> Any:
        """The limits of its type, as `numpy.finfo` describes them."""
        return tolerance.BFLOAT16 if self.bits_of else np.finfo(self.dtype)

    @property
    def count(self) -> int:
        """Elements of the array; only an input may have none."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Size of the array."""
        return int(np.dtype(self.dtype).itemsize) * self.count

    @property
    def offset_bytes(self) -> int:
        """Bytes past a boundary at which the array begins on a device."""
        return self.offset * int(np.dtype(self.dtype).itemsize)

    @property
    def scalar(self) -> np.generic:
        """The value in its type."""
        scalar: np.generic = np.dtype(self.dtype).type(self.value)
        return scalar


@dataclass(frozen=True)
class Dataset:
    """Inputs and expected outputs of one problem, in files under ``folder``."""

    name: str
    folder: Path
    arguments: tuple[Argument, ...]
    #: Largest absolute error allowed, by output; 0 means bit for bit. No `InOut` without one may change.
    bounds: dict[str, float]
    seed: int = 0
    #: Outputs with a bound for each element, of which `bounds` has the largest.
    by_element: tuple[str, ...] = ()
    #: Time that making it took, which its reference decides; 0 where another machine makes it.
    seconds: float = field(default=0.0, compare=False)
    #: Configurations that agree on the expected outputs; 0 where a reference gives them.
    agreed: int = 0

    def array(self, name: str) -> NDArray[Any]:
        """Map an input, read-only."""
        argument = next(argument for argument in self.arguments if argument.name == name)
        # An array without elements cannot be mapped.
        return _mapped(self.folder / f"{name}.npy", "r" if argument.count else None)

    def values(self, name: str) -> NDArray[Any]:
        """Return the values of an input: itself, of bfloat16 as float32."""
        argument = next(argument for argument in self.arguments if argument.name == name)
        return widened_bfloat16(self.array(name)) if argument.bits_of else self.array(name)

    def expected(self, name: str) -> NDArray[Any]:
        """Map the expected values of an output, read-only.

        Integers and bools have the output's type. Other values are float64 or complex128, or of half
        that width where the output is and no value changes.
        """
        return _mapped(self.folder / f"{name}.expected.npy")

    def element_bounds(self, name: str) -> NDArray[Any] | None:
        """Map the bounds of an output's elements, two for a complex one; None where one serves all."""
        return _mapped(self.folder / f"{name}.bounds.npy") if name in self.by_element else None


class _Manifest(msgspec.Struct, array_like=True):
    """The fields of a `Dataset` as stored, in this order."""

    arguments: tuple[Argument, ...]
    bounds: dict[str, float]
    by_element: tuple[str, ...]
    seconds: float = 0.0
    agreed: int = 0


def save_arrays(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays to ``<name>.npy``, beside each other."""

    def save(name: str) -> None:
        np.save(folder / f"{name}.npy", arrays[name])

    in_threads(save, arrays, min(len(arrays), usable_cores()))


def _mapped(file: Path, mode: Literal["r", "c"] | None = "r") -> NDArray[Any]:
    array: NDArray[Any] = np.load(file, mmap_mode=mode, allow_pickle=False)
    return array


def prepare(kernel: Kernel, problem: Problem, which: str, seed: int = 0) -> Dataset:
    """Make the `EXACT` or `RANDOM` data set of a problem, or read the one that was made before.

    Without a reference it has no expected outputs and bounds until configurations agree on them.
    """
    key = _key(kernel, problem, which, seed)
    folder, failure = _folder(key), "they cannot be read back"
    _refuse_foreign(folder)
    cache.use(folder)
    found = _read(folder, which, seed)
    if found is not None:
        return found
    is_damaged = folder.is_dir()  # it was whole when it got its name
    deciding = _deciding(kernel, problem, which, seed)
    cache.make_room(cache.DATA)
    try:
        with cache.scratch() as scratch:
            _make(kernel, problem, which, int(key[:32], 16), Path(scratch), deciding)
            if is_damaged:
                shutil.rmtree(folder, ignore_errors=True)
            Path(scratch).rename(folder)
    except OSError as error:  # another process may have made the same one first
        failure = str(error)
    made = _read(folder, which, seed)
    if made is None:
        raise AutotuneError(
            f"{kernel.name} ({problem}): inputs cannot be written to the cache: {failure}; free disk "
            "space or point AUTOTUNE_CACHE_DIR elsewhere"
        )
    return made


def _deciding(kernel: Kernel, problem: Problem, which: str, seed: int) -> Dataset | None:
    """Return the exact data that tell whether exact data decide an output, besides those asked for.

    For random data they are those of the same problem, for exact data those of the smallest declared
    problem that is not tiny: a mean of 64 integers is exact by chance.
    """
    if "reference" not in kernel.hooks:
        return None
    if which == RANDOM:
        is_declared = kernel.tolerance_of(problem) is not None
        return None if is_declared else prepare(kernel, problem, EXACT, _DECIDING_SEED)
    telling = (known for known in kernel.all_problems() if size_of(known) >= _TELLING)
    smallest = kernel.normal(min(telling, key=size_of, default=problem))
    if (smallest, seed) == (kernel.normal(problem), _DECIDING_SEED):
        return None
    with suppress(SpecError):  # the kernel's functions refuse it
        return prepare(kernel, smallest, EXACT, _DECIDING_SEED)
    return None


def without_files(kernel: Kernel, problem: Problem, which: str, seed: int) -> Dataset:
    """Return a data set without its files, for another machine that makes them."""
    return Dataset(which, _folder(_key(kernel, problem, which, seed)), (), {}, seed)


def load_kernel(origin: Origin, fingerprint: str) -> Kernel:
    """Load the kernel of another process; AutotuneError if its functions were changed since."""
    if isinstance(origin, bytes):
        return restored(origin)
    kernel = load_file(origin)
    if fingerprint and own_fingerprint(kernel) != fingerprint:
        raise AutotuneError(
            f"{kernel.name} ({origin.name}): the space file, or a module that it imports, was changed "
            "while it was in use; what was measured is kept: run the command again"
        )
    return kernel


def _make(
    kernel: Kernel, problem: Problem, which: str, key: int, folder: Path, deciding: Dataset | None
) -> None:
    """Write a data set; ``deciding`` are exact data that decide how outputs are compared, if others do."""
    begun_s, kernel = (time.perf_counter(), time.process_time()), kernel.of_problem(problem)
    declared = kernel.call_hook("arguments", problem, Draw(which == EXACT, key))
    if not isinstance(declared, dict):
        raise kernel.error(f"arguments: returned {type(declared).__name__}, expected a dict")
    for name in declared:
        if wrong := fault("argument", name):
            raise kernel.error(f"arguments: {wrong}")
    offsets = _offsets(kernel, problem, declared)
    arguments, arrays, bounds = list[Argument](), dict[str, NDArray[Any]](), dict[str, float]()
    for name, value in declared.items():
        argument, array = kernel.guarded(f"arguments: {name}", argument_of, kernel, name, value)
        arguments.append(replace(argument, offset=offsets.get(name, 0)))
        if argument.kind != "scalar":
            dtype = np.dtype(argument.dtype if array is None else array.dtype)
            _check_array(kernel, argument, dtype)
        if array is not None:
            arrays[name] = array
    save_arrays(folder, arrays)
    expected = expected_outputs(kernel, arguments, arrays)
    arrays.clear()
    outputs = {argument.name: argument for argument in arguments}
    is_held = dict[str, bool]()
    for name in list(expected):
        wide = expected.pop(name)
        # Exact data may have no finite value: all are integers, some of them negative.
        if which != EXACT and not np.isfinite(wide.flat[0]) and not np.isfinite(wide).any():
            raise kernel.error(f"reference: no value of {name} is finite: nothing to compare")
        bounds[name] = 0.0
        stored, held = _stored(wide, outputs[name])
        del wide
        np.save(folder / f"{name}.expected.npy", stored)
        if stored.dtype.kind in "fc":
            is_held[name] = held
    made = Dataset(which, folder, tuple(arguments), bounds)
    by_element = _bound(kernel, problem, made, is_held, deciding, key)
    # Less than the time that passed where other programs had the cores.
    seconds = min(time.perf_counter() - begun_s[0], time.process_time() - begun_s[1])
    manifest = _Manifest(tuple(arguments), bounds, tuple(by_element), seconds)
    (folder / _MANIFEST).write_bytes(msgspec.msgpack.encode(manifest))


def _bound(
    kernel: Kernel,
    problem: Problem,
    made: Dataset,
    is_held: Mapping[str, bool],
    deciding: Dataset | None,
    key: int,
) -> list[str]:
    """Set the bounds of outputs; write and return those with a bound for each element.

    ``is_held`` says which outputs have a type that holds all expected values.
    """
    is_exact, declared, bounds = made.name == EXACT, kernel.tolerance_of(problem), made.bounds
    decided = [name for name, held in is_held.items() if held or not is_exact]
    if deciding:
        decided = [name for name in decided if not deciding.bounds.get(name)]
    evaluations = _Evaluations(kernel, made, tuple(is_held), key)
    errors = dict[str, float]()
    if decided and (not deciding if is_exact else declared is None):
        errors = evaluations.errors_in_single()
    if is_exact:  # the type may hold a difference of sums, and not the sums
        decided = [name for name in decided if not errors.get(name)]
    others = [name for name in is_held if name not in decided]
    if declared is not None:
        bounds.update(dict.fromkeys(others if is_exact else is_held, declared))
        return []
    inputs = max((o.count for o in made.arguments if o.kind not in ("out", "scalar")), default=1)
    wide = dict[str, NDArray[Any]]()
    if deciding and not is_exact:
        maps = evaluations.maps(decided)
        others += maps
        for output in (o for o in made.arguments if o.name in decided and o.name not in maps):
            name, info, values = output.name, output.info, evaluations.expected[output.name]
            theirs = tolerance.largest(tolerance.parts(deciding.expected(name)))
            terms, error = inputs / output.count, errors.get(name, 0.0)
            if info.bits == 16:
                wide[name] = tolerance.bounds_of_half(info, values, theirs, terms, error)
            else:
                ours = tolerance.largest(values)
                bounds[name] = tolerance.common_bound(info, ours, theirs, terms, error)
    for name, of_elements in chain(wide.items(), evaluations.element_bounds(others)):
        bounds[name] = float(of_elements.max(initial=0))
        np.save(made.folder / f"{name}.bounds.npy", of_elements)
    return [*others, *wide]


def with_results(
    kernel: Kernel, problem: Problem, datasets: Sequence[Dataset], folder: Path
) -> tuple[Dataset, ...]:
    """Return data sets that expect the results of a configuration, beside which they get their files.

    An `InOut` of which there are none stays as it is. One bound serves all elements of an output: 0
    where all exact results are integers.
    """
    first, made, declared = datasets[0], list[Dataset](), kernel.tolerance_of(problem)
    inputs = max((o.count for o in first.arguments if o.kind != "out"), default=1)
    outputs = [o for o in first.arguments if o.kind in ("out", "inout")]
    changed = {name for dataset in datasets for name in dataset.bounds}
    changed |= {o.name for o in outputs if any(folder.glob(f"*/{o.name}{_RESULT}"))}
    for dataset in datasets:
        if dataset.bounds:
            made.append(dataset)
            continue
        here, bounds = folder / dataset.name, dict[str, float]()
        for name in (o.name for o in dataset.arguments if o.kind not in ("out", "scalar")):
            (here / f"{name}.npy").symlink_to(dataset.folder / f"{name}.npy")
        for output in (o for o in outputs if o.name in changed or not changed):
            stored, dtype = _claimed(here, output), output.number
            is_known = made and output.name in made[0].bounds
            exact = made[0].expected(output.name) if is_known else None
            if dtype.kind not in "fc" or (not made and _is_whole(stored, output.info)):
                bounds[output.name] = 0.0
            elif declared is not None:
                bounds[output.name] = declared
            else:
                theirs = None if exact is None else tolerance.largest(tolerance.parts(exact))
                ours, terms = tolerance.largest(tolerance.parts(stored)), inputs / output.count
                bounds[output.name] = tolerance.common_bound(output.info, ours, theirs, terms)
        made.append(replace(dataset, folder=here, bounds=bounds))
    return tuple(made)


def _claimed(folder: Path, output: Argument) -> NDArray[Any]:
    """Make the file of a result, or of an input that stayed, that of the expected output; halves become float32."""
    result, expected = (folder / f"{output.name}{end}" for end in (_RESULT, ".expected.npy"))
    if not result.exists():
        result.symlink_to(f"{output.name}.npy")
    if output.bits_of or (output.number.kind == "f" and output.number.itemsize == 2):
        values = _mapped(result)
        values = widened_bfloat16(values) if output.bits_of else converted(values, np.float32)
        np.save(expected, values)
    else:
        result.rename(expected)
    return _mapped(expected)


def save_result(folder: Path, name: str, values: NDArray[Any]) -> None:
    """Write what a configuration made of an output, for `with_results`."""
    np.save(folder / f"{name}{_RESULT}", values)


def _is_whole(values: NDArray[Any], info: Any) -> bool:
    parts = tolerance.parts(values)

    def is_whole(_: int, begin: int, end: int) -> bool:
        return np.array_equal(parts[begin:end], np.rint(parts[begin:end]))

    return all(in_pieces(is_whole, parts.size)) and tolerance.largest(parts) * float(info.eps) < 1


def keep_expected(
    datasets: Sequence[Dataset], claimed: Sequence[Dataset], agreed: int
) -> tuple[Dataset, ...]:
    """Move the expected outputs of equal data sets here, on which ``agreed`` configurations agree.

    Both are folders of the cache. The manifest, which says that they are there, is written last.
    """
    kept = []
    for dataset, found in zip(datasets, claimed, strict=True):
        if not dataset.bounds:
            for name in found.bounds:
                file = f"{name}.expected.npy"
                (found.folder / file).replace(dataset.folder / file)
            dataset = replace(dataset, bounds=found.bounds, agreed=agreed)
            manifest = _Manifest(dataset.arguments, found.bounds, (), dataset.seconds, agreed)
            write_atomically(dataset.folder / _MANIFEST, msgspec.msgpack.encode(manifest))
        kept.append(dataset)
    return tuple(kept)


def _offsets(kernel: Kernel, problem: Problem, declared: Mapping[str, Any]) -> dict[str, int]:
    kinds = np.ndarray | Out | InOut | BFloat16
    arrays = [n for n, v in declared.items() if isinstance(v, kinds)]
    offsets = {}
    for placed in kernel.layout:
        name = placed.removeprefix(OFFSET)
        if name != placed:
            if name not in arrays:
                raise kernel.error(
                    f"layout field {placed}: {unknown('array argument', name, arrays)}"
                )
            offsets[name] = int(kernel.filled(problem)[placed])
    return offsets


def _check_array(kernel: Kernel, argument: Argument, dtype: np.dtype[Any]) -> None:
    """Refuse outputs that no backend compares, and arrays that a file does not keep (`ml_dtypes`)."""
    name, is_output = argument.name, argument.kind in ("out", "inout")
    if (argument.nbytes == 0 and argument.kind != "input") or argument.dtype == "|O":
        raise kernel.error(f"arguments: {name} {argument.shape} is empty or holds objects")
    if is_output and (dtype.kind not in "biufc" or dtype.itemsize > {"c": 16}.get(dtype.kind, 8)):
        raise kernel.error(
            f"arguments: the output {name} is {dtype}, which cannot be compared (known: bool, "
            "integers, float16, float32, float64, complex64, complex128)"
        )
    if dtype.kind == "V" and dtype.names is None:
        raise kernel.error(
            f"arguments: {name} is {dtype}, which is not stored; pass its bits, as "
            f"{name}.view(np.uint{8 * dtype.itemsize})"
        )


def _wide(dtype: np.dtype[Any], is_single: bool = False) -> np.dtype[Any]:
    real, pair = (np.float32, np.complex64) if is_single else (np.float64, np.complex128)
    return np.dtype({"f": real, "c": pair}.get(dtype.kind, dtype))


def stored_type(dtype: Any) -> tuple[np.dtype[Any], str]:
    """Return the type of stored elements, and what they are the bits of; see `Argument.bits_of`."""
    is_bits = isinstance(dtype, str) and dtype == _BFLOAT16
    return (np.dtype(np.uint16), _BFLOAT16) if is_bits else (np.dtype(dtype), "")


def argument_of(kernel: Kernel, name: str, value: Any) -> tuple[Argument, NDArray[Any] | None]:
    """Return the argument, and its array if it has one, for a value of the arguments hook."""
    if isinstance(value, Out):
        shape = tuple(int(n) for n in np.atleast_1d(value.shape))
        dtype, bits_of = stored_type(value.dtype)
        return Argument(name, "out", dtype.str, shape, bits_of=bits_of), None
    if isinstance(value, BFloat16) or isinstance(getattr(value, "array", None), BFloat16):
        bits = value.bits if isinstance(value, BFloat16) else value.array.bits
        kind = "inout" if isinstance(value, InOut) else "input"
        return Argument(name, kind, bits.dtype.str, bits.shape, bits_of=_BFLOAT16), bits
    for kind, wrapper in (("inout", InOut), ("constant", Constant)):
        if isinstance(value, wrapper):
            array = np.ascontiguousarray(value.array)
            return Argument(name, kind, array.dtype.str, array.shape), array
    if isinstance(value, np.ndarray) and value.shape != ():
        array = np.ascontiguousarray(value)
        return Argument(name, "input", array.dtype.str, array.shape), array
    return _scalar(kernel, name, value), None


def _scalar(kernel: Kernel, name: str, value: Any) -> Argument:
    if isinstance(value, bool | int) and not isinstance(value, np.generic):
        if not -(2**31) <= value < 2**31:
            raise kernel.error(f"arguments: {name}={value} needs 64 bits; pass np.int64({name})")
        return Argument(name, "scalar", "<i4", value=int(value))
    if isinstance(value, float) and not isinstance(value, np.generic):
        return Argument(name, "scalar", "<f4", value=value)
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "iufb":
        return Argument(name, "scalar", value.dtype.str, value=value.item())
    raise kernel.error(
        f"arguments: {name} is {type(value).__name__}; expected an array, Out, InOut, Constant or a "
        "number"
    )


def expected_outputs(
    kernel: Kernel,
    arguments: list[Argument],
    arrays: Mapping[str, NDArray[Any]],
    is_single: bool = False,
) -> dict[str, NDArray[Any]]:
    """Call the reference with float64 or float32 arrays, and return the expected values of every output.

    They are float64 or complex128, or integers and bools in the output's type. They may be views.
    """
    outputs = {
        argument.name: argument for argument in arguments if argument.kind in ("out", "inout")
    }
    if not outputs:
        raise kernel.error("arguments: no Out or InOut, so the kernel computes nothing")
    if "reference" not in kernel.hooks:
        return {}
    scalars = {a.name: a.scalar.item() for a in arguments if a.kind == "scalar"}
    bits = {a.name for a in arguments if a.bits_of}
    available: dict[str, Any] = {
        **{n: widened_bfloat16(v) if _is_bits(v, n in bits) else v for n, v in arrays.items()},
        **scalars,
    }
    reference = kernel.hook("reference")
    wanted = inspect.signature(reference).parameters
    given = {
        name: converted(value, _wide(value.dtype, is_single))
        if isinstance(value, np.ndarray)
        else value
        for name, value in available.items()
        if name in wanted
    }
    with np.errstate(all="ignore"):
        result = kernel.guarded("reference", reference, **given)
    if result is None:
        raise kernel.error("reference: returned nothing; return the expected output")
    by_name = result if isinstance(result, dict) else dict.fromkeys(list(outputs)[:1], result)
    expected = {}
    for name, output in outputs.items():
        if name not in by_name:
            raise kernel.error(
                f"reference: no value for the output {name!r}; return a dict by name"
            )
        values = np.asarray(by_name[name])
        if values.shape != output.shape and not (values.size == 1 == np.prod(output.shape)):
            raise kernel.error(
                f"reference: {name} has shape {values.shape}, arguments declare {output.shape}"
            )
        expected[name] = _typed(kernel, name, values.reshape(output.shape), output.number)
    return expected


def _is_bits(array: NDArray[Any], is_bfloat16: bool) -> bool:
    """Return whether an array holds bits; a changed one, of another evaluation, holds values."""
    return is_bfloat16 and array.dtype == np.uint16


def _typed(kernel: Kernel, name: str, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the expected values in the type that they are compared in; rounding alone may change them."""
    wide = _wide(dtype)
    if values.dtype.kind not in ("biufc" if wide.kind == "c" else "biuf"):
        raise kernel.error(
            f"reference: {name} is {values.dtype}, arguments declare {dtype}; return numbers, "
            f"for a real output {name}.real"
        )
    if wide.kind in "fc":
        return np.asarray(values, wide)
    whole = narrowed(values, wide)
    if whole is None:
        with np.errstate(all="ignore"):
            changed = values[values != values.astype(wide)]
        example = changed[0] if changed.size else values.max()
        raise kernel.error(
            f"reference: {name} holds {example}, which is no {dtype}; declare another type, or return "
            "what the kernel makes of it"
        )
    return whole


def _stored(expected: NDArray[Any], output: Argument) -> tuple[NDArray[Any], bool]:
    """Return the values to store, and whether the output's type holds all of them exactly."""
    dtype = output.number
    if dtype.kind not in "fc":
        return expected, True
    flat, info = expected, np.finfo(dtype)
    if dtype.kind == "c":
        flat = converted(expected, expected.dtype).reshape(-1).view(np.float64)
    # Every float64 is one. Only a value that is a float32, too, was computed without rounding.
    narrow = narrowed(flat, np.float32 if info.dtype == np.float64 else info.dtype)
    stored = narrow
    if stored is None or info.dtype != np.float32:
        stored = converted(flat, np.float64)
    if dtype.kind == "c":
        stored = stored.view(np.result_type(stored, np.complex64)).reshape(expected.shape)
    is_held = narrow is not None
    if is_held and output.bits_of:
        is_held = not np.any(converted(flat, np.float32).view(np.uint32) & 0xFFFF)
    return stored, is_held


@dataclass(frozen=True)
class _Evaluations:
    """The reference of a data set, evaluated on changed inputs."""

    kernel: Kernel
    made: Dataset
    names: tuple[str, ...]
    key: int

    @cached_property
    def expected(self) -> dict[str, NDArray[Any]]:
        """Rows of the expected values."""
        return {name: tolerance.parts(self.made.expected(name)) for name in self.names}

    def element_bounds(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the bounds of outputs that exact data do not decide; see `autotune.measure.tolerance`."""
        if not names:
            return
        sensitivity = self.response(tolerance.perturb, "fc", tolerance.EVALUATIONS)
        in_single = self.response(tolerance.scatter, "fc", tolerance.IN_SINGLE, is_single=True)
        of_integers, struck, is_exact = dict[str, Any](), dict[str, Any](), self.made.name == EXACT
        if not is_exact and sensitivity and not self.arrays("fciu", other=True):
            of_integers = self.response(tolerance.flip, "iu", tolerance.FEWEST)
            struck = self.struck
        sizes = [
            np.mean(np.square(self.made.array(name), dtype=float)) ** 0.5
            for name in self.arrays("iu")
        ]
        for name in names:
            info, expected = self._info(name), self.expected[name]
            responses = tolerance.Responses(
                sensitivity.get(name, np.zeros(expected.size)) / tolerance.STEP,
                in_single.get(name),
                of_integers[name] * max(sizes, default=0.0) if name in of_integers else None,
                struck.get(name),
            )
            yield name, tolerance.element_bounds(info, expected, responses, is_exact)

    def _info(self, name: str) -> Any:
        return next(o.info for o in self.made.arguments if o.name == name)

    def maps(self, names: Sequence[str]) -> list[str]:
        """Return outputs of whose elements each is of one input or two; see `autotune.measure.tolerance`."""
        if not names or self._elements > _MOST_OF_MAP or self.arrays("fciu", other=True):
            return []
        return [n for n in names if tolerance.is_map(self.expected[n], self.struck.get(n))]

    @cached_property
    def struck(self) -> dict[str, NDArray[Any]]:
        """Rows of the results for inputs of which some are changed clearly."""
        return self.results(tolerance.strike, "fciu", tolerance.EVALUATIONS)

    def errors_in_single(self) -> dict[str, float]:
        """Return the largest error of each output of the reference in float32; {} where it fails."""
        errors = dict[str, float]()
        for name, values in self.results(None, "", 0, is_single=True).items():
            error = np.zeros(values.size)
            info = self._info(name)
            least = tolerance.held_in_single(info)
            tolerance.add_change(error, self.expected[name], values, info.bits, least)
            errors[name] = tolerance.largest(error)
        return errors

    def arrays(self, kinds: str, other: bool = False) -> dict[str, np.dtype[Any]]:
        """Return the types of input arrays of these kinds, or of all others."""
        arrays = {o.name: o.number for o in self.made.arguments if o.kind not in ("out", "scalar")}
        return {name: dtype for name, dtype in arrays.items() if (dtype.kind in kinds) != other}

    def response(
        self, change: tolerance.Change, kinds: str, most: int, is_single: bool = False
    ) -> dict[str, NDArray[np.float64]]:
        """Return the root mean square change of each output's elements; {} where the reference fails."""
        squares = {name: np.zeros(values.size) for name, values in self.expected.items()}
        if not self.arrays(kinds) and "i" in kinds:
            return squares
        done, until = 0, time.monotonic() + tolerance.LONGEST_S
        at_once = max(1, min(usable_cores(), _MOST_AT_ONCE // max(1, self._elements)))
        evaluated = partial(self.results, change, kinds, is_single=is_single)
        for number in range(0, most, at_once):
            if number >= tolerance.FEWEST and time.monotonic() > until:
                break
            for found in in_threads(evaluated, range(number, min(most, number + at_once)), at_once):
                for name, values in found.items():
                    info = self._info(name)
                    least = tolerance.held_in_single(info) if is_single else 0.0
                    tolerance.add_change(
                        squares[name], self.expected[name], values, info.bits, least
                    )
                done += bool(found)
        for root in squares.values():
            root /= math.sqrt(done or 1)
        return squares if done else {}

    @property
    def _elements(self) -> int:
        return sum(each.count or 0 for each in self.made.arguments)

    def results(
        self, change: tolerance.Change | None, kinds: str, number: int, is_single: bool = False
    ) -> dict[str, NDArray[Any]]:
        """Return rows of the outputs for one change of the inputs; none where the reference fails."""
        arguments, inputs = self.made.arguments, dict[str, NDArray[Any]]()
        for place, name in enumerate(self.arrays(kinds) if change else ()):
            assert change
            inputs[name] = tolerance.changed(
                self.made.values(name), change, self.key + place, number
            )
        if change in (tolerance.perturb, tolerance.scatter):
            arguments = tuple(
                _perturbed_scalar(o, number >> i % 3) for i, o in enumerate(arguments)
            )
        with suppress(SpecError):  # such as for a number that is no size any more
            found = reevaluated(
                self.kernel, replace(self.made, arguments=arguments), inputs, is_single
            )
            return {
                name: tolerance.parts(converted(found[name], found[name].dtype))
                for name in self.names
            }
        return {}


def _perturbed_scalar(argument: Argument, number: int) -> Argument:
    """Return a scalar argument slightly off, unless it is an integer: sizes are, and signs."""
    is_real = argument.kind == "scalar" and np.dtype(argument.dtype).kind == "f"
    if not is_real or float(argument.scalar).is_integer():
        return argument
    sign = 1 if number % 2 else -1
    changed = float(argument.scalar) * (1 + sign * tolerance.STEP)
    return replace(argument, dtype="<f8", value=changed)


def reevaluated(
    kernel: Kernel,
    dataset: Dataset,
    changed: Mapping[str, NDArray[Any]],
    is_single: bool = False,
) -> dict[str, NDArray[Any]]:
    """Return the expected outputs for a data set of which some inputs are changed."""
    kept = {
        o.name: _mapped(dataset.folder / f"{o.name}.npy", "c" if o.count else None)
        for o in dataset.arguments
        if o.kind in ("input", "inout", "constant") and o.name not in changed
    }
    arrays = {**kept, **changed}
    return expected_outputs(kernel, list(dataset.arguments), arrays, is_single)


def _folder(key: str) -> Path:
    return cache_folder(cache.DATA) / key[:40]


def _refuse_foreign(folder: Path) -> None:
    """Refuse a reference that another user may have written."""
    if foreign := fault_of(folder if folder.exists() else folder.parent):
        raise AutotuneError(
            f"{foreign.place}: {foreign.what}, and references are kept there; name a folder of your "
            f"own by AUTOTUNE_CACHE_DIR, or trust this by {TRUST}"
        )


def _key(kernel: Kernel, problem: Problem, which: str, seed: int) -> str:
    spec = own_fingerprint(kernel.of_problem(problem))
    # What its configurations agree on depends on the source.
    source = "" if "reference" in kernel.hooks else source_fingerprint(kernel)
    versions = f"{np.__version__} {_VERSION} {source}"
    drawn_from = f"{spec} {kernel.normal(problem).canonical_json()} {which} {seed} {versions}"
    return text_fingerprint(drawn_from)


def _read(folder: Path, which: str, seed: int) -> Dataset | None:
    """Read a data set; None if a file is absent or truncated."""
    try:
        manifest = (folder / _MANIFEST).read_bytes()
        made = msgspec.msgpack.decode(manifest, type=_Manifest)
        arguments, bounds, by_element = made.arguments, made.bounds, made.by_element
        dataset = Dataset(
            which, folder, arguments, bounds, seed, by_element, made.seconds, made.agreed
        )
        for argument in arguments:
            if argument.kind in ("input", "inout", "constant"):
                dataset.array(argument.name)
        for name in bounds:
            dataset.expected(name)
            dataset.element_bounds(name)
    except (OSError, EOFError, ValueError):
        return None
    cache.touch(folder)
    return dataset
