"""Each rule by which `check` and runs tell of weak data has a kernel that needs it, as in test_rules.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rules_page import rows
from sample_spaces import write_space

from autotune.data import extremes, sight
from autotune.data.consensus import save_result
from autotune.data.sight import unseen_inputs
from autotune.kernel.catalog import load_file
from autotune.values import Problem

SOFTMAX = (
    "return factor * x",
    "e = np.exp(x.reshape(4, -1))\n    return (e / e.sum(1, keepdims=True)).reshape(-1)",
)
LARGE = ("Problem(n=1000)", "Problem(n=32768)")


def tolerance(bound: float) -> tuple[str, str]:
    hook = f"@scale.tolerance\ndef tolerance(p):\n    return {bound}\n\n\n@scale.launch"
    return "@scale.launch", hook


def nothing(*_: Any) -> tuple[()]:
    return ()


#: For each rule of `autotune.data.sight`: a function and its place-holder, the kernel's name, and its edits.
UNSEEN: dict[str, tuple[str, Callable[..., Any], str, tuple[tuple[str, str], ...]]] = {
    "an element is 0": (
        "_omitted", nothing, "eps of a norm left out",
        (("np.float32(FACTOR)", "rng.uniform(2, 4)"),
         ("return factor * x", "return x / np.sqrt((x * x).mean() + 1e-6 * factor)")),
    ),
    "elements are shifted": (
        "_shifted", nothing, "neighbour's bias",
        (('"x": x,', '"x": x, "bias": 1 + rng.random(p.n) / 4096,'), tolerance(1e-2),
         ("reference(x, factor)", "reference(x, bias)"), ("return factor * x", "return x / 3 + bias")),
    ),
    "other elements must show": (
        "_effects", lambda dataset, results: (EFFECTS(dataset, results)[0],) * 2,
        "element of a softmax left out", (SOFTMAX, LARGE, tolerance(1e-5)),
    ),
    "content is drawn": (
        "fixed_inputs", lambda *_: {}, "weight of ones left out",
        (('"factor": np.float32(FACTOR)', '"w": np.ones(p.n, np.float32)'),
         ("reference(x, factor)", "reference(x, w)"), ("return factor * x", "return w * x")),
    ),
}  # fmt: skip
EFFECTS = sight._effects


@pytest.mark.parametrize("rule", UNSEEN)
def test_a_kernel_needs_each_rule_of_weak_checks(
    rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, other, _, edits = UNSEEN[rule]
    kernel = load_file(write_space(tmp_path, *edits))
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "all"))
    assert unseen_inputs(kernel, kernel.all_problems())
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "without"))
    monkeypatch.setattr(sight, name, other)
    assert unseen_inputs(kernel, kernel.all_problems()) == ()


F4 = np.float32
#: For each change of `autotune.data.extremes`: a part of its text, the kernel's name, reference, and function.
EXTREMES: dict[str, tuple[str, str, str, Callable[[Any], Any]]] = {
    "all negative": (
        "all negative", "maximum begins at 0",
        "np.full_like(x, x.max())", lambda x: np.full_like(x, max(x.max(), 0)),
    ),
    "times 8192": (
        "times", "sum of exp shifted by its mean",
        "x * x + np.log(np.exp(x - x.max()).sum()) + x.max()",
        lambda x: x * x + np.log(np.exp(x - x.mean()).sum()) + x.mean(),
    ),
    "a large mean": (
        "plus", "variance in one pass",
        "np.full_like(x, x.var())", lambda x: np.full_like(x, (x * x).mean() - x.mean() ** 2),
    ),
    "all zero": (
        "all zero", "unit vector of zeros",
        "x / (np.sqrt((x * x).sum()) or 1.0)", lambda x: x / np.sqrt((x * x).sum()),
    ),
    "near the type's limit": (
        "down to", "square overflows",
        "np.hypot(x, 1)", lambda x: np.sqrt(x * x + F4(1)),
    ),
    "NaN": ("= nan", "relu by comparison", "np.maximum(x, 0)", lambda x: np.where(x > 0, x, F4(0))),
    "infinite": (
        "= inf", "largest number for infinity",
        "2 * x", lambda x: np.clip(2 * x, -np.finfo(F4).max, np.finfo(F4).max),
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", EXTREMES)
def test_a_kernel_needs_each_extreme_value(
    rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, _, reference, wrong = EXTREMES[rule]
    edit = ("return factor * x", f"return {reference}")
    kernel, changes = load_file(write_space(tmp_path, edit)), extremes._changes

    def differences(name: str) -> list[str]:
        folder = tmp_path / name
        folder.mkdir()
        found = []
        for data in extremes.extreme_data(kernel, Problem(n=1000), 0, folder):
            with np.errstate(all="ignore"):
                results = wrong(np.array(data.dataset.array("x")))
            (folder / "results" / data.dataset.name).mkdir(parents=True)
            save_result(folder / "results" / data.dataset.name, "out", results)
            found.append(data.difference(kernel, folder / "results"))
        return list(filter(None, found))

    assert differences("all")
    monkeypatch.setattr(
        extremes, "_changes", lambda *args: (each for each in changes(*args) if text not in each[0])
    )
    assert differences("without") == []


def test_the_page_has_each_rule_of_what_is_told() -> None:
    assert rows("Weak checks") == {rule: case[2] for rule, case in UNSEEN.items()}
    assert rows("Extreme values") == {rule: case[1] for rule, case in EXTREMES.items()}
