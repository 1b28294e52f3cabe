"""Each rule of verification has a kernel that needs it: without the rule a wrong one passes, or a correct one fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from numpy_kernels import RIGHT, verdicts

from autotune.data import tolerance

#: Constants of `autotune.data.tolerance`, by the rule that a value switches off.
CONSTANTS = {
    "few inputs reach an element: 128 in place of 8192 roundings": {"_AMPLIFICATION_OF_FEW": 8192},
    "the error of the reference in float32 is allowed": {"_REFERENCE_ERRORS": 0},
    "small elements have at most their own size as least bound": {"_SMALL_SHARE": 1.0},
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the kernels."""
    return tmp_path_factory.mktemp("kernels")


@pytest.mark.parametrize("rule", CONSTANTS)
def test_a_kernel_needs_each_rule(
    rule: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path))
    for name, value in CONSTANTS[rule].items():
        monkeypatch.setattr(tolerance, name, value)
    assert [case for case, is_right in verdicts(folder) if is_right != (case in RIGHT)] != []
