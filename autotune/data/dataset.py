"""The data sets of a problem, in files that every process can map.

The *exact* data set holds small nonzero integers. Partial sums are then integers that the output's type
represents. Results are compared bit for bit, and one lost or doubled element shows. The *random* data set
holds normal deviates; results are compared within the kernel's tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from autotune import cache
from autotune.arrays import in_threads, usable_cores
from autotune.data.arguments import Argument
from autotune.errors import AutotuneError
from autotune.files import cache_folder, write_atomically
from autotune.kernel.includes import text_fingerprint
from autotune.kernel.modules import TRUST, fault_of
from autotune.kernel.source import own_fingerprint, source_fingerprint
from autotune.kernel.spec import Kernel
from autotune.syntax import parsed
from autotune.values import Problem

EXACT, RANDOM = "exact", "random"
MANIFEST = "manifest.msgpack"
#: Version of the stored form and of the drawn numbers, part of every key; raise it if either changes.
_VERSION = 16


@dataclass(frozen=True)
class Dataset:
    """Inputs and expected outputs of one problem, in files under ``folder``.

    A data set without bounds has no expected outputs yet.
    """

    name: str
    folder: Path
    arguments: tuple[Argument, ...]
    #: Largest absolute error allowed, by output; 0 means bit for bit. An `InOut` without a bound must not change.
    bounds: dict[str, float]
    seed: int = 0
    #: Outputs with a bound for each element; `bounds` then has the largest bound.
    by_element: tuple[str, ...] = ()
    #: Number of configurations that agree on the expected outputs; 0 if a reference gives them.
    agreed: int = 0
    #: Library and device that computed the expected outputs: ``numpy``, or one that was compared with NumPy.
    reference: str = ""
    #: First difference from NumPy's results, if another library would have computed them.
    difference: str = ""

    def inputs(self, kinds: str = "") -> list[Argument]:
        """Return the input arrays, or only those whose values have one of these kinds of NumPy's types."""
        arrays = (argument for argument in self.arguments if argument.kind not in ("out", "scalar"))
        return [argument for argument in arrays if not kinds or argument.value_type.kind in kinds]

    def array(self, name: str) -> NDArray[Any]:
        """Map an input, read-only."""
        argument = next(argument for argument in self.arguments if argument.name == name)
        # An array without elements cannot be mapped.
        return mapped(self.folder / f"{name}.npy", "r" if argument.count else None)

    def values(self, name: str) -> NDArray[Any]:
        """Return the values of an input or scalar, in the `value_type` of the argument."""
        argument = next(argument for argument in self.arguments if argument.name == name)
        return argument.values(None if argument.kind == "scalar" else self.array(name))

    def expected(self, name: str) -> NDArray[Any]:
        """Map the expected values of an output, read-only.

        Integers and bools have the output's type. Other values are float64 or complex128; float32 or
        complex64 if the output has that type and holds every value exactly.
        """
        return mapped(self.folder / f"{name}.expected.npy")

    def masked(self, name: str) -> NDArray[np.bool_] | None:
        """Map the mask of an output's elements that may hold anything; None if there are none."""
        file = self.folder / f"{name}.masked.npy"
        return mapped(file) if file.exists() else None

    def element_bounds(self, name: str) -> NDArray[Any] | None:
        """Map the bound of each element (two for a complex one); None if all have the same bound."""
        return mapped(self.folder / f"{name}.bounds.npy") if name in self.by_element else None


#: Fields of a `Dataset` as stored: arguments, bounds, by_element, agreed, reference, difference.
_Manifest: TypeAlias = tuple[tuple[Argument, ...], dict[str, float], tuple[str, ...], int, str, str]


def save_arrays(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays to ``<name>.npy`` in one folder, several at a time."""

    def save(name: str) -> None:
        np.save(folder / f"{name}.npy", arrays[name])

    in_threads(save, arrays, min(len(arrays), usable_cores()))


def mapped(file: Path, mode: Literal["r", "c"] | None = "r") -> NDArray[Any]:
    """Map the array of a file; ``c`` lets this process change a private copy, None reads it into memory."""
    array: NDArray[Any] = parsed(lambda: np.load(file, mmap_mode=mode, allow_pickle=False))
    return array


def link_inputs(dataset: Dataset, folder: Path, without: str = "") -> None:
    """Link the input arrays of a data set into a folder, except one."""
    for argument in dataset.inputs():
        if argument.name != without:
            file = f"{argument.name}.npy"
            (folder / file).symlink_to(dataset.folder / file)


def encoded_manifest(dataset: Dataset) -> bytes:
    """Return the contents of `MANIFEST`; this file is written last."""
    bounds = (dataset.bounds, dataset.by_element, dataset.agreed)
    return msgspec.msgpack.encode(
        (dataset.arguments, *bounds, dataset.reference, dataset.difference)
    )


def completed(drawn: Dataset, made: Dataset, agreed: int = 0) -> Dataset:
    """Move expected outputs and bounds from ``made`` to a drawn data set in the cache; return the data set.

    ``agreed`` is the number of configurations that agree on them. A process that uses the inputs is not disturbed.
    """
    for name in made.bounds:
        for file in (f"{name}.{end}.npy" for end in ("expected", "bounds", "masked")):
            if (made.folder / file).exists():
                cache.count_bytes(cache.DATA, (made.folder / file).stat().st_size)
                (made.folder / file).replace(drawn.folder / file)
    found = replace(
        drawn,
        bounds=made.bounds,
        by_element=made.by_element,
        agreed=agreed,
        reference=made.reference,
        difference=made.difference,
    )
    write_atomically(drawn.folder / MANIFEST, encoded_manifest(found))
    return found


def without_files(kernel: Kernel, problem: Problem, which: str, seed: int) -> Dataset:
    """Return a data set whose files another machine makes."""
    return Dataset(which, dataset_folder(dataset_key(kernel, problem, which, seed)), (), {}, seed)


def dataset_folder(key: str) -> Path:
    """Return the folder of a data set in the cache."""
    return cache_folder(cache.DATA) / key[:40]


def refuse_foreign_data(folder: Path) -> None:
    """Raise AutotuneError if another user may have written the expected outputs in a folder."""
    if foreign := fault_of(folder if folder.exists() else folder.parent):
        raise AutotuneError(
            f"{foreign.place}: {foreign.reason}, and references are kept there; set AUTOTUNE_CACHE_DIR to "
            f"a folder of your own, or trust this folder with {TRUST}"
        )


def dataset_key(kernel: Kernel, problem: Problem, which: str, seed: int) -> str:
    """Return the sha256 of everything that decides the contents of a data set."""
    spec = own_fingerprint(kernel.of_problem(problem))
    # Without a reference the expected outputs depend on the source.
    source = "" if "reference" in kernel.hooks else source_fingerprint(kernel)
    versions = f"{np.__version__} {_VERSION} {source}"
    drawn_from = f"{spec} {kernel.normal(problem).canonical_json()} {which} {seed} {versions}"
    return text_fingerprint(drawn_from)


def read_dataset(folder: Path, which: str, seed: int) -> Dataset | None:
    """Read a data set and use it from now on; return None if a file is absent or truncated."""
    cache.use(folder)
    try:
        manifest = (folder / MANIFEST).read_bytes()
        arguments, bounds, *others = msgspec.msgpack.decode(manifest, type=_Manifest)
        dataset = Dataset(which, folder, arguments, bounds, seed, *others)
        for argument in dataset.inputs():
            dataset.array(argument.name)
        for name in bounds:
            dataset.expected(name)
            dataset.element_bounds(name)
    except (OSError, EOFError, ValueError):
        cache.release(folder)
        return None
    return dataset
