"""Bounds that are carried from a small problem accept and refuse the same kernels, but one.

The functions have one size, so that a share is carried to the data from which it was taken.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy_kernels import FUNCTIONS, RIGHT, WRONG, datasets_of, kernel_of, passes

from autotune.data import carried, tolerance
from autotune.data.dataset import Dataset
from autotune.data.evaluations import Evaluations
from autotune.kernel.spec import Kernel

#: A wrong kernel that shows only where an element's sensitivity is small by chance.
MISSED = "softmax: the least column left out"


def with_carried(kernel: Kernel, dataset: Dataset, folder: Path) -> Dataset:
    """Return the data set with carried bounds of its elements, or as it is if its bounds cannot be carried."""
    evaluations = Evaluations(kernel, dataset, ("out",), key=1)
    shares = list(carried._shares(evaluations, "out")) if dataset.by_element else []
    if not shares:
        return dataset
    folder.mkdir(parents=True)
    for file in dataset.folder.iterdir():
        (folder / file.name).symlink_to(file)
    info, expected = evaluations.info("out"), evaluations.expected["out"]
    in_single = evaluations.errors_in_single.get("out", np.zeros(expected.size))
    (folder / "out.bounds.npy").unlink()
    bounds = tolerance.carried_bounds(info, expected, shares[0], in_single)
    np.save(folder / "out.bounds.npy", bounds)
    return replace(dataset, folder=folder)


def test_carried_bounds_give_the_same_verdicts_but_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    compared, different = set[str](), set[str]()
    for name in FUNCTIONS:
        kernel = kernel_of(name, tmp_path / "kernels")
        known = list(datasets_of(kernel, name))
        made = [
            with_carried(kernel, dataset, tmp_path / name / str(number))
            for number, dataset in enumerate(known)
        ]
        for case, (function, implementation) in {**RIGHT, **WRONG}.items():
            if function == name and made != known:
                compared.add(case)
                before = all(passes(dataset, implementation) for dataset in known)
                if all(passes(dataset, implementation) for dataset in made) != before:
                    different.add(case)
    assert different == {MISSED}
    assert len(compared & set(RIGHT)) > 15
    assert len(compared & set(WRONG)) > 15
