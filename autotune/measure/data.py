"""Inputs and expected outputs of a problem, as files that every process can map.

Two data sets. *exact* holds small non-zero integers, so that partial sums are integers that the
output type represents and the result can be compared bit for bit: one lost or doubled element
shows, which a bound that grows with the problem would let pass. *random* holds normal deviates and
is compared within the kernel's tolerance. Knows nothing of devices.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.arrays import (
    available_memory_bytes,
    converted,
    in_pieces,
    largest_finite,
    narrowed,
    usable_cores,
)
from autotune.devices.base import NO_TEXTURES
from autotune.errors import AutotuneError, unknown
from autotune.files import cache_folder
from autotune.kernel.catalog import load_file
from autotune.kernel.names import fault
from autotune.kernel.snapshot import Origin, origin_of, restored
from autotune.kernel.source import own_fingerprint, text_fingerprint
from autotune.kernel.spec import OFFSET, Constant, InOut, Kernel, Out
from autotune.kernel.trust import TRUST, fault_of
from autotune.measure import cache, draw
from autotune.measure.draw import Draw
from autotune.measure.process import ChildDied, Children
from autotune.values import Problem

EXACT, RANDOM = "exact", "random"
#: Where the kernel gives no tolerance: this many rounding errors of the largest expected value.
_DEFAULT_ROUNDINGS = 64
_MANIFEST = "manifest.json"
#: Of what is stored; what another version made is not looked at.
_VERSION = 4
#: Bytes that a core sums up at a time, in 5 ms.
_SUMMED_BYTES = 1 << 24
#: A data set that takes longer than a process takes to start has the other made beside it.
_SLOW_S = 0.5
#: Memory that making a data set takes by element: in its type, as float64, and what a reference needs.
_PEAK_BYTES = 32
#: Longest time for a reference: so long as a person waits.
_PATIENCE_S = 7 * 86400.0


@dataclass(frozen=True)
class Argument:
    """One kernel argument as stored: arrays in ``<name>.npy``, scalars in place."""

    name: str
    #: ``input``, ``out``, ``inout``, ``constant`` or ``scalar``.
    kind: str
    dtype: str
    shape: tuple[int, ...] = ()
    value: float | int = 0
    #: Elements past a boundary of 16 bytes at which the array begins on a device.
    offset: int = 0

    @property
    def nbytes(self) -> int:
        """Size of the array."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))

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
    #: Largest absolute error allowed, by output; 0 means bit for bit.
    bounds: dict[str, float]
    #: What it was drawn from, and whether some inputs were given instead: it can be made again if not.
    seed: int = 0
    has_own_inputs: bool = False
    #: Of an exact one: what was asked of the generator, and what it gave instead.
    drawn: Mapping[str, str] = field(default_factory=dict)

    def array(self, name: str) -> NDArray[Any]:
        """An input, mapped read-only."""
        argument = next(argument for argument in self.arguments if argument.name == name)
        return _mapped(self.folder / f"{name}.npy", not argument.nbytes)

    def expected(self, name: str) -> NDArray[Any]:
        """Expected values of an output, mapped read-only.

        Integers and bools in the output's type; else float64 or complex128, and half of that where
        the output is of that type and every value is one: half the bytes, the same values.
        """
        return _mapped(self.folder / f"{name}.expected.npy")


def _mapped(file: Path, is_empty: bool = False) -> NDArray[Any]:
    """An array in a file; what has no elements cannot be mapped."""
    array: NDArray[Any] = np.load(file, mmap_mode=None if is_empty else "r", allow_pickle=False)
    return array


def prepare(
    kernel: Kernel,
    problem: Problem,
    which: str,
    seed: int = 0,
    inputs: Mapping[str, NDArray[Any]] | None = None,
    in_use: cache.InUse | None = None,
    drawn: Callable[[int], None] = lambda elements: None,
) -> Dataset:
    """Make a data set, `EXACT` or `RANDOM`, or find it made before.

    ``inputs`` are arrays to use in place of drawn ones, by argument name. Nobody removes it as long
    as ``in_use`` is open. ``drawn`` is told how many elements there are, before the reference is called.

    Raises
    ------
    SpecError
        If a hook fails or returns what does not fit.
    """
    key = _key(kernel, problem, which, seed, inputs)
    folder = _folder(key)
    _refuse_foreign(folder)
    if in_use is not None:
        in_use.add(folder)
    found = _read(folder, which, seed, bool(inputs), is_new=False)
    if found is not None:
        return found
    damaged = folder.is_dir()  # it was whole when it got its name
    cache.make_room(cache.DATA)
    try:
        with cache.scratch() as scratch:
            _make(kernel, problem, which, int(key[:32], 16), inputs or {}, scratch, drawn)
            if damaged:
                shutil.rmtree(folder, ignore_errors=True)
            scratch.rename(folder)
    except OSError as error:
        if not folder.is_dir():  # else another process made the same one first
            raise AutotuneError(
                f"{kernel.name} ({problem}): inputs cannot be written to the cache: {error}; "
                f"free disk space or point AUTOTUNE_CACHE_DIR elsewhere"
            ) from error
    made = _read(folder, which, seed, bool(inputs))
    if made is None:
        raise AutotuneError(
            f"{kernel.name} ({problem}): inputs in the cache cannot be read back; "
            f"free disk space or remove {folder}"
        )
    return made


def described(kernel: Kernel, problem: Problem, which: str, seed: int) -> Dataset:
    """A data set that is not made: what it is drawn from, for another machine, where it is `present`."""
    return Dataset(which, _folder(_key(kernel, problem, which, seed, None)), (), {}, seed)


@contextmanager
def rehearsed(kernel: Kernel, problem: Problem, which: str) -> Iterator[Dataset]:
    """A data set that is made now, whatever was made before, and is gone afterwards.

    Raises
    ------
    SpecError
        If a hook fails or returns what does not fit.
    """
    with cache.scratch() as folder:
        key = _key(kernel, problem, which, 0, None)
        _make(kernel, problem, which, int(key[:32], 16), {}, folder, lambda _: None)
        made = _read(folder, which, 0, has_own_inputs=False)
        assert made is not None
        yield made


def prepare_both(
    kernel: Kernel,
    problem: Problem,
    seed: int,
    in_use: cache.InUse,
    meanwhile: Callable[[], object] = lambda: None,
) -> tuple[Dataset, Dataset]:
    """Make the exact and the random data set of a kernel with a file: at once, where they take long.

    ``meanwhile`` is called then too, in a thread.

    Raises
    ------
    SpecError
        If a hook fails or returns what does not fit, or its process ends.
    """
    in_use.add(_folder(_key(kernel, problem, RANDOM, seed, None)))
    with _Aside(kernel, problem, seed, meanwhile) as aside:
        made = prepare(kernel, problem, EXACT, seed, in_use=in_use, drawn=aside.consider)
        return made, aside.made() or prepare(kernel, problem, RANDOM, seed)


class _Aside:
    """The random data set, made in a process of its own while the exact one takes long here.

    A process, since a reference may hold the interpreter's lock; only then, since a process takes
    longer to start than most data sets take to make.
    """

    def __init__(
        self, kernel: Kernel, problem: Problem, seed: int, meanwhile: Callable[[], object]
    ) -> None:
        self._kernel, self._meanwhile = kernel, meanwhile
        known_by = own_fingerprint(kernel)
        self._task = (_prepare_elsewhere, origin_of(kernel), known_by, problem, RANDOM, seed)
        self._children = Children()
        self._has_room = True
        #: None where it was not made.
        self._made: Future[Dataset | None] = Future()
        self._timer = threading.Timer(_SLOW_S, self._begin)
        self._timer.daemon = True

    def consider(self, elements: int) -> None:
        """Begin in a moment; arrays of so many elements are needed twice."""
        needed = 2 * _PEAK_BYTES * elements
        self._has_room = usable_cores() > 1 and needed < available_memory_bytes()
        self._timer.start()

    def made(self) -> Dataset | None:
        """Wait for it where it was begun."""
        if self._made.cancel():
            return None
        try:
            try:
                return self._made.result()
            except (ChildDied, MemoryError):  # both at once were too much, perhaps
                return self._children.begin(_end_first).ask(_PATIENCE_S, *self._task)
        except ChildDied as error:
            raise self._kernel.error(
                f"reference: its process ended ({error}): it ended it, or memory ran out; see dmesg"
            ) from error

    def _begin(self) -> None:
        if not self._made.set_running_or_notify_cancel():
            return
        try:
            child = self._children.begin(_end_first) if self._has_room else None
            self._meanwhile()
            self._made.set_result(child.ask(_PATIENCE_S, *self._task) if child else None)
        except BaseException as error:  # for whoever waits
            self._made.set_exception(error)

    def __enter__(self) -> _Aside:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._children.end()


def _end_first() -> None:
    """Of all processes be the one that the system ends where memory runs out. Source: proc(5)."""
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text("1000")


def _prepare_elsewhere(
    origin: Origin, known_by: str, problem: Problem, which: str, seed: int
) -> Dataset:
    return prepare(loaded_as(origin, known_by), problem, which, seed)


def loaded_as(origin: Origin, known_by: str) -> Kernel:
    """The kernel that has the functions of another process; see `own_fingerprint`.

    Raises
    ------
    AutotuneError
        If its space file, or a module, has others by now.
    """
    if isinstance(origin, bytes):
        return restored(origin)
    kernel = load_file(origin)
    if known_by and own_fingerprint(kernel) != known_by:
        raise AutotuneError(
            f"{kernel.name} ({origin.name}): the space file, or a module that it imports, was changed "
            "while it was in use; what was measured is kept: run the command again"
        )
    return kernel


def present(kernel: Kernel, problem: Problem, dataset: Dataset) -> Dataset:
    """A data set whose files are there: made again where they were removed to make room.

    Raises
    ------
    AutotuneError
        If they are gone and were not drawn.
    """
    if _read(dataset.folder, dataset.name, dataset.seed, dataset.has_own_inputs) is not None:
        return dataset
    if dataset.has_own_inputs:
        raise AutotuneError(
            f"{kernel.name} ({problem}): the inputs in {dataset.folder} were removed meanwhile; "
            "free disk space and run the command again"
        )
    return prepare(kernel, problem, dataset.name, dataset.seed)


def _make(
    kernel: Kernel,
    problem: Problem,
    which: str,
    key: int,
    inputs: Mapping[str, NDArray[Any]],
    folder: Path,
    drawn: Callable[[int], None],
) -> None:
    """Draw the arguments, compute the reference, and write both."""
    draw_from = Draw(which == EXACT, key)
    declared = kernel.call_hook("arguments", problem, draw_from)
    if not isinstance(declared, dict):
        raise kernel.error(f"arguments: returned {type(declared).__name__}, expected a dict")
    for name in declared:
        if wrong := fault("argument", name):
            raise kernel.error(f"arguments: {wrong}")
    for name, own in inputs.items():
        declared[name] = _replaced(kernel, name, declared, own)
    offsets = _offsets(kernel, problem, declared)
    arguments: list[Argument] = []
    arrays: dict[str, NDArray[Any]] = {}
    bounds = {}
    writing: list[Future[None]] = []
    with ThreadPoolExecutor(2) as pool:  # arrays are written while others are computed

        def write(name: str, array: NDArray[Any]) -> Future[None]:
            writing.append(pool.submit(np.save, folder / f"{name}.npy", array))
            return writing[-1]

        for name, value in declared.items():
            argument, array = kernel.guarded(f"arguments: {name}", argument_of, kernel, name, value)
            argument = replace(argument, offset=offsets.pop(name, 0))
            is_empty = argument.nbytes == 0 and argument.kind != "input"
            if argument.kind != "scalar" and (is_empty or argument.dtype == "|O"):
                raise kernel.error(f"arguments: {name} {argument.shape} is empty or holds objects")
            if argument.kind != "scalar":
                dtype = np.dtype(value.dtype if array is None else array.dtype)
                _check_type(kernel, name, dtype, is_output=argument.kind in ("out", "inout"))
            arguments.append(argument)
            if array is not None:
                arrays[name] = array
                written = write(name, array)
                # The reference may change what it is not given a copy of.
                if array.dtype == _wide(array.dtype):
                    written.result()
        drawn(sum(int(np.prod(argument.shape)) for argument in arguments))
        expected = expected_outputs(kernel, arguments, arrays)
        dtypes = {argument.name: np.dtype(argument.dtype) for argument in arguments}
        for name in list(expected):
            wide = expected.pop(name)
            # Of exact data it may be so: all of them are integers, some of them negative.
            if which != EXACT and not np.isfinite(wide.flat[0]) and not np.isfinite(wide).any():
                raise kernel.error(f"reference: no value of {name} is finite: nothing to compare")
            bounds[name], stored = _bounded(kernel, problem, which, wide, dtypes[name])
            write(f"{name}.expected", stored)
    for written in writing:
        written.result()
    manifest = {
        "arguments": [asdict(argument) for argument in arguments],
        "bounds": bounds,
        "drawn": draw_from.drawn if which == EXACT else {},
    }
    checked = {**manifest, "checksum": _checksum(folder, manifest)}
    (folder / _MANIFEST).write_text(json.dumps(checked))


def _offsets(kernel: Kernel, problem: Problem, declared: Mapping[str, Any]) -> dict[str, int]:
    """Where each array begins whose layout field says so."""
    arrays = [n for n, v in declared.items() if isinstance(v, np.ndarray | Out | InOut)]
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


def _check_type(kernel: Kernel, name: str, dtype: np.dtype[Any], is_output: bool) -> None:
    """Refuse outputs of a type that no backend compares, and inputs of types that are not NumPy's.

    Those of `ml_dtypes`, say, which a file does not keep.
    """
    if is_output and (dtype.kind not in "biufc" or dtype.itemsize > {"c": 16}.get(dtype.kind, 8)):
        raise kernel.error(
            f"arguments: the output {name} is {dtype}, which cannot be compared (known: bool, "
            "integers, float16, float32, float64, complex64, complex128); of another 16-bit type let "
            "the kernel write float32, or declare uint16 where every bit is known"
        )
    if dtype.kind == "V" and dtype.names is None:
        raise kernel.error(
            f"arguments: {name} is {dtype}, which is not stored; pass its bits, as "
            f"{name}.view(np.uint{8 * dtype.itemsize})"
        )


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which a reference computes what is given or expected in a type."""
    wide = {"f": np.float64, "c": np.complex128}.get(dtype.kind, dtype)
    return np.dtype(wide)


def _replaced(
    kernel: Kernel, name: str, declared: dict[str, Any], array: NDArray[Any]
) -> NDArray[Any] | InOut:
    """A user's own input in place of the drawn one; it must have its type and shape."""
    drawn = declared.get(name)
    plain = drawn.array if isinstance(drawn, InOut) else drawn
    if not isinstance(plain, np.ndarray):
        arrays = [n for n, v in declared.items() if isinstance(v, np.ndarray | InOut)]
        raise kernel.error(
            f"inputs: {name!r} is not an array argument (known: {', '.join(arrays)})"
        )
    if plain.shape != array.shape or plain.dtype != array.dtype:
        raise kernel.error(
            f"inputs: {name} is {array.dtype}{array.shape}, "
            f"this problem needs {plain.dtype}{plain.shape}"
        )
    return InOut(array) if isinstance(drawn, InOut) else array


def argument_of(kernel: Kernel, name: str, value: Any) -> tuple[Argument, NDArray[Any] | None]:
    """Normalise what an arguments hook returned for one name."""
    if isinstance(value, Out):
        shape = tuple(int(n) for n in np.atleast_1d(value.shape))
        return Argument(name, "out", np.dtype(value.dtype).str, shape), None
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
    told = type(value).__name__
    hint = f"; {NO_TEXTURES}" if "texture" in told.lower() else ""
    raise kernel.error(
        f"arguments: {name} is {told}; expected an array, Out, InOut, Constant or a number{hint}"
    )


def expected_outputs(
    kernel: Kernel, arguments: list[Argument], arrays: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Call the reference with float64 arrays; return the expected values of every output.

    float64 or complex128, integers and bools in the output's type. They may be views of other
    arrays, in any order of strides.

    Raises
    ------
    SpecError
        If the reference fails, or an output is missing, or has the wrong shape or values that its
        type does not hold.
    """
    import inspect

    outputs = {
        argument.name: argument for argument in arguments if argument.kind in ("out", "inout")
    }
    if not outputs:
        raise kernel.error("arguments: no Out or InOut, so the kernel computes nothing")
    available: dict[str, Any] = {}
    for argument in arguments:
        if argument.kind == "scalar":
            available[argument.name] = argument.scalar.item()
        elif argument.name in arrays:
            available[argument.name] = arrays[argument.name]
    reference = kernel.hook("reference")
    wanted = inspect.signature(reference).parameters
    for name, parameter in wanted.items():
        if name not in available and parameter.default is parameter.empty:
            known = ", ".join(available)
            raise kernel.error(f"reference: no input argument {name!r} (known: {known})")
    given = {name: _widened(available[name]) for name in wanted if name in available}
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
        shaped = values if values.shape == output.shape else values.reshape(output.shape)
        expected[name] = _typed(kernel, name, shaped, np.dtype(output.dtype))
    return expected


def _widened(value: Any) -> Any:
    return converted(value, _wide(value.dtype)) if isinstance(value, np.ndarray) else value


def _typed(kernel: Kernel, name: str, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """What a reference returned for an output, in the type that it is compared in.

    Raises
    ------
    SpecError
        If that would change a value, but for rounding.
    """
    wide = _wide(dtype)
    if values.dtype.kind == "O":  # Python's own integers, say
        values = kernel.guarded("reference", np.asarray, values.tolist())
    if values.dtype.kind not in "biufc":
        raise kernel.error(f"reference: {name} is {values.dtype}; return numbers")
    if values.dtype.kind == "c" and wide.kind != "c":
        raise kernel.error(
            f"reference: {name} is {values.dtype}, arguments declare {dtype}, which has no imaginary "
            f"part; return {name}.real, or declare complex64"
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


def _bounded(
    kernel: Kernel, problem: Problem, which: str, expected: NDArray[Any], dtype: np.dtype[Any]
) -> tuple[float, NDArray[Any]]:
    """Largest absolute error allowed, 0 where the result must be exact; expected values to store.

    Of complex numbers each part is compared by itself.
    """
    if dtype.kind not in "fc":
        return 0.0, expected
    is_complex, info = dtype.kind == "c", np.finfo(dtype)
    parts = (
        converted(expected, expected.dtype).reshape(-1).view(np.float64) if is_complex else expected
    )
    # Whatever the reference computed is a float64: exact is then what float32 holds as well.
    narrow = narrowed(parts, np.float32 if info.dtype == np.float64 else info.dtype)
    halves = info.dtype == np.float32
    stored = narrow if halves and narrow is not None else converted(parts, np.float64)
    if is_complex:
        stored = stored.view(np.result_type(stored, np.complex64)).reshape(expected.shape)
    if which == EXACT and narrow is not None:
        return 0.0, stored
    declared = kernel.tolerance_of(problem)
    if declared is not None:
        return declared, stored
    largest = largest_finite(converted(parts, np.float64))
    return _DEFAULT_ROUNDINGS * float(info.eps) * max(1.0, largest), stored


def _folder(key: str) -> Path:
    return cache_folder(cache.DATA) / key[:40]


def _refuse_foreign(folder: Path) -> None:
    """Compare nothing with a reference that others may have written."""
    foreign = fault_of(folder if folder.exists() else folder.parent)
    if foreign is not None:
        mend = f"run: {foreign.mend}; or " if foreign.mend else ""
        raise AutotuneError(
            f"{foreign.place}: {foreign.what}, and references are kept there; {mend}name a folder of "
            f"your own by AUTOTUNE_CACHE_DIR, or trust this by {TRUST}"
        )


def _key(
    kernel: Kernel,
    problem: Problem,
    which: str,
    seed: int,
    inputs: Mapping[str, NDArray[Any]] | None,
) -> str:
    spec = own_fingerprint(kernel)
    versions = f"{np.__version__} {draw.VERSION} {_VERSION}"
    drawn_from = f"{spec} {kernel.normal(problem).canonical_json()} {which} {seed} {versions}"
    return text_fingerprint(drawn_from + (inputs_fingerprint(inputs) if inputs else ""))


def inputs_fingerprint(inputs: Mapping[str, NDArray[Any]]) -> str:
    """sha256 of arrays given in place of drawn ones: names, types, shapes and values."""
    digest = hashlib.sha256()
    for name, array in sorted(inputs.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _read(
    folder: Path, which: str, seed: int, has_own_inputs: bool, is_new: bool = True
) -> Dataset | None:
    """A data set made before; None where it is absent or damaged, to the bit where not by this process."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
        checksum = manifest.pop("checksum")
        if not is_new and checksum != _checksum(folder, manifest):
            return None
        arguments = tuple(
            Argument(**{**stored, "shape": tuple(stored["shape"])})
            for stored in manifest["arguments"]
        )
        bounds, drawn = dict(manifest["bounds"]), dict(manifest["drawn"])
        dataset = Dataset(which, folder, arguments, bounds, seed, has_own_inputs, drawn)
        _check_arrays(dataset)
        cache.touch(folder)
        return dataset
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _checksum(folder: Path, manifest: Mapping[str, Any]) -> int:
    """Of a manifest and of all arrays: a kernel is held against them to the bit."""
    sums = [_sums(file) for file in sorted(folder.glob("*.npy"))]
    return zlib.crc32(json.dumps([manifest, sums]).encode())


def _sums(file: Path) -> list[int]:
    content = np.memmap(file, np.uint8, "r")
    return in_pieces(
        lambda _, begin, end: zlib.crc32(content[begin:end].data), len(content), _SUMMED_BYTES
    )


def _check_arrays(dataset: Dataset) -> None:
    """Map every file; ValueError where one is truncated or not what the manifest says."""
    for argument in dataset.arguments:
        if argument.kind in ("input", "inout", "constant"):
            array = dataset.array(argument.name)
            if (array.dtype.str, array.shape) != (argument.dtype, argument.shape):
                raise ValueError(argument.name)
        if argument.kind in ("out", "inout"):
            expected = dataset.expected(argument.name)
            declared = np.dtype(argument.dtype)
            halved = declared in (np.float32, np.complex64) and expected.dtype == declared
            if (
                not (halved or expected.dtype == _wide(declared))
                or expected.shape != argument.shape
            ):
                raise ValueError(argument.name)
