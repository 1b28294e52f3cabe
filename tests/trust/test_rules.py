"""Each rule of verification has a kernel that needs it: without the rule a wrong one passes, or a correct one fails.

docs/decisions/15-rules-of-verification.md has the table, which these tests compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy_kernels import RIGHT, verdicts
from rules_page import rows

from autotune.data import bounds, evaluations, prepare, tolerance
from autotune.data.dataset import EXACT, RANDOM

#: Switches a rule off.
Off: TypeAlias = Callable[[pytest.MonkeyPatch], None]


def constant(name: str, value: float) -> Off:
    """Give a constant of the tolerance another value."""
    return lambda patch: patch.setattr(tolerance, name, value)


def function(name: str, other: Callable[..., Any], module: Any = tolerance) -> Off:
    """Put another function in the place of one, which it gets as its first argument."""
    kept = getattr(module, name)
    return lambda patch: patch.setattr(module, name, lambda *args: other(kept, *args))


def halves_as_others(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tolerance, "_ROUNDINGS_OF_SUMS", 64 * 2**13)


BOUNDS: dict[str, Off] = {
    "8192 roundings of each input": constant("_AMPLIFICATION", 128),
    "few inputs: 128 roundings": constant("_AMPLIFICATION_OF_FEW", 8192),
    "narrow bounds on exact data": lambda patch: patch.setattr(evaluations, "EXACT", ""),
    "64 roundings of the largest value": constant("_ROUNDINGS", 0),
    "long sums: more roundings": constant("_ROOT_OF_TERMS", 1e30),
    "exact data give the scale": function(
        "common_bound", lambda kept, info, scale, _, *rest: kept(info, scale, 0.0, *rest)
    ),
    "exact outputs: float32 error": function(
        "common_bound", lambda kept, info, *scales: kept(info, *scales[:3])
    ),
    "16 bits: sums are in float32": halves_as_others,
    "16 bits: an element's own rounding": function(
        "bounds_of_short", lambda _, info, expected, bound: np.full(expected.size, bound, "f4")
    ),
    "4 roundings of a result": constant("_RESULT_ROUNDINGS", 0),
    "least positive number": function("_least_value", lambda kept, info: 0.0),
    "16 bits: the least subnormal number": function(
        "_least_value", lambda kept, info: float(info.smallest_normal)
    ),
    "float32 error of each element": function("_least_bounds", lambda kept, floor, _: floor),
    "floor: median float32 error": function("_floor", lambda *_: 0.0),
    "floor: size of small elements": constant("_SMALL_SHARE", 1.0),
    "float64: error below 2^-100": constant("_MIN_IN_SINGLE", 0.0),
    "integers are changed in their last bit": function("flip", lambda kept, row, _: None),
    "scalars are changed": function(
        "_perturbed_scalar", lambda kept, argument, _: argument, evaluations
    ),
    "changes are finite": function(
        "add_change",
        lambda kept, roots, expected, found, *rest: (
            kept(roots, expected, found, *rest)
            if rest[1:]
            else np.hypot(roots, found - expected, out=roots)
        ),
    ),
    "exact: float32 agrees": function("_without_errors", lambda kept, exact, errors: exact, bounds),
    "float64: exact if float32 holds it": function(
        "stored_values",
        lambda kept, expected, output: (
            kept(expected, output)[0],
            output.value_type == np.float64 or kept(expected, output)[1],
        ),
        prepare,
    ),
    "exact: at a declared size": function(
        "_exactness_probe",
        lambda kept, kernel, problem, drawn: (
            None if drawn.name == EXACT else kept(kernel, problem, drawn)
        ),
        prepare,
    ),
    "exact: above 64 elements": lambda patch: patch.setattr(prepare, "_MIN_PROBE_SIZE", 1),
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the kernels."""
    return tmp_path_factory.mktemp("kernels")


def needing(found: Iterator[tuple[str, bool]]) -> set[str]:
    """Return the wrong kernels that pass and the correct ones that fail."""
    return {case for case, is_accepted in found if is_accepted != (case in RIGHT)}


@pytest.mark.parametrize("rule", BOUNDS)
def test_a_kernel_needs_each_rule_of_bounds(
    rule: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path))
    BOUNDS[rule](monkeypatch)
    found = needing(verdicts(folder))
    assert rows("Bounds")[rule] in found, sorted(found)


@pytest.mark.parametrize("kind", [EXACT, RANDOM])
def test_a_kernel_needs_each_data_set(kind: str, folder: Path) -> None:
    (other,) = {EXACT, RANDOM} - {kind}
    found = needing(verdicts(folder, [other]))
    assert rows("Bounds")[f"{kind} data"] in found, sorted(found)


def test_the_page_has_each_rule_of_bounds() -> None:
    assert list(rows("Bounds")) == ["exact data", "random data", *BOUNDS]
