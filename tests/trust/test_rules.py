"""Each rule of verification has a kernel that needs it: without the rule a wrong one passes, or a correct one fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy_kernels import FUNCTIONS, RIGHT, WRONG, space_of

from autotune.data import tolerance
from autotune.data.dataset import EXACT, RANDOM, Dataset
from autotune.data.prepare import prepare_dataset
from autotune.devices.host import host_difference
from autotune.kernel.catalog import load_file
from autotune.kernel.spec import Kernel
from autotune.values import Problem

#: Constants of `autotune.data.tolerance`, by the rule that a value switches off.
CONSTANTS = {
    "few inputs reach an element: 128 in place of 8192 roundings": {"_AMPLIFICATION_OF_FEW": 8192},
    "the error of the reference in float32 is allowed": {"_REFERENCE_ERRORS": 0},
    "small elements have at most their own size as least bound": {"_SMALL_SHARE": 1.0},
}


@cache
def kernel_of(name: str, folder: Path) -> Kernel:
    """Return the kernel of a function of `FUNCTIONS`, written below a folder."""
    (folder / name).mkdir(parents=True)
    return load_file(space_of(name, folder / name))


def passes(datasets: list[Dataset], implementation: Callable[..., Any]) -> bool:
    """Return whether verification accepts the results of an implementation on all data sets."""
    for dataset in datasets:
        given = {
            argument.name: argument.scalar
            if argument.kind == "scalar"
            else np.array(dataset.array(argument.name))
            for argument in dataset.arguments
            if argument.kind != "out"
        }
        (output,) = (each for each in dataset.arguments if each.kind == "out")
        with np.errstate(all="ignore"):
            result = np.asarray(implementation(**given)).astype(output.dtype)
        bounds = dataset.element_bounds("out")
        got, want = (tolerance.parts(each) for each in (result, dataset.expected("out")))
        bound = dataset.bounds["out"] if bounds is None else bounds
        if host_difference(got, want, bound).first_wrong is not None:
            return False
    return True


def verdicts(folder: Path) -> Iterator[tuple[str, bool]]:
    """Yield each kernel with whether it passes."""
    for name in FUNCTIONS:
        kernel = kernel_of(name, folder)
        datasets = [prepare_dataset(kernel, Problem(n=1000), which) for which in (EXACT, RANDOM)]
        for case, (function, implementation) in {**RIGHT, **WRONG}.items():
            if function == name:
                yield case, passes(datasets, implementation)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the kernels."""
    return tmp_path_factory.mktemp("kernels")


def test_correct_kernels_pass_and_wrong_ones_fail(folder: Path) -> None:
    assert [case for case, is_right in verdicts(folder) if is_right != (case in RIGHT)] == []


@pytest.mark.parametrize("rule", CONSTANTS)
def test_a_kernel_needs_each_rule(
    rule: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path))
    for name, value in CONSTANTS[rule].items():
        monkeypatch.setattr(tolerance, name, value)
    assert [case for case, is_right in verdicts(folder) if is_right != (case in RIGHT)] != []
