"""Baselines that may answer calls: raced, verified, recorded and called, on the OpenCL CPU device with NumPy.

Times differ by a factor of 10 or more wherever a test needs to know which is faster. Matrices are so small that NumPy
uses one thread: several wait for each other on a busy machine.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from autotune import load, lookup, tune
from autotune.calling import first_call
from autotune.calling.choice import Choice
from autotune.cli import run
from autotune.files import data_path
from autotune.kernel.catalog import bundled_folder
from autotune.tuned.lookup import clear_cache
from autotune.tuned.reading import read_all
from autotune.tuned.record import ContenderResult, Estimate, TunedRecord
from autotune.tuned.rival import rival_of

pytestmark = pytest.mark.opencl

SPACE = '''
"""c = a b for square matrices, with a baseline."""
import numpy as np
from autotune import Kernel, Launch, Operand, Out, Problem, ceil_div

product = Kernel("product.cu", problems=[Problem(n=64)], edge_problems=[Problem(n=7)],
                 BLOCK=(32, 64), deterministic=True)

@product.arguments
def arguments(p, rng):
    a, b = rng.standard_normal((2, p.n, p.n), dtype=np.float32)
    return {"a": a, "b": b, "c": Out((p.n, p.n)), "n": p.n}

@product.reference
def reference(a, b):
    return a @ b

@product.launch
def launch(c, p):
    return Launch(grid=(ceil_div(p.n * p.n, c.BLOCK),), block=(c.BLOCK,))

@product.call
def call(a, b, c=None):
    return Problem(n=a.shape[0]), {"a": a, "b": b, "c": c, "n": a.shape[0]}

@product.baseline("numpy", "opencl", OPTIONS)
def multiplied(a, b, c, n):
    BODY
'''
SOURCE = """
#include "dialect.h"
KERNEL(BLOCK, 1, 0)
product(GLOBAL const float* a, GLOBAL const float* b, GLOBAL float* c, int n) {
  int i = BID(0) * BLOCK + TID(0);
  if (i < n * n) {
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += a[i / n * n + k] * b[k * n + i % n];
    c[i] = sum;
  }
}
"""
#: Work that makes the kernel slow.
WASTE = ("float sum = 0;", "float sum = 0; for (int r = 0; r < 200; ++r) { sum = r * 0.0f;")
#: Bodies of baselines: one call of NumPy, and one for each row of each product.
FAST = """
    def call():
        np.matmul(a, b, out=c)
    call.pins = "NumPy 1"
    return call"""
SLOW = """
    def call():
        for i in range(n):
            for j in range(n):
                c[i, j] = a[i] @ b[:, j]
    return call"""

#: Writes the kernel and tunes it; arguments: body and options of the baseline, and whether the kernel is slow.
Tuned = Callable[..., None]


@pytest.fixture
def tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opencl_device: str, kept_processes: None
) -> Iterator[Tuned]:
    for kind in ("spaces", "kernels"):
        (tmp_path / kind).mkdir()
    dialect = (bundled_folder("kernels") / "dialect.h").read_text()
    (tmp_path / "kernels/dialect.h").write_text(dialect)
    monkeypatch.setenv("AUTOTUNE_PATH", str(tmp_path / "spaces"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)

    def made(body: str, options: str = "answers=True", is_slow: bool = True, **named: Any) -> None:
        source = SOURCE
        if is_slow:
            source = source.replace(*WASTE).replace("c[i] = sum;", "} c[i] = sum;")
            source = source.replace("; ++k) sum", "; ++k) sum").replace("}\n}", "}\n}")
        (tmp_path / "kernels/product.cu").write_text(source)
        declare(tmp_path, body, options)
        tune("product", budget="2evals", device=opencl_device, quiet=True, **named)
        clear_cache()

    yield made
    first_call.forget()


def declare(folder: Path, body: str, options: str = "answers=True") -> None:
    text = SPACE.replace("BODY", body.strip()).replace("OPTIONS", options)
    (folder / "spaces/product.py").write_text(text.replace(", )", ")"))
    clear_cache()


def recorded() -> TunedRecord:
    (record,) = read_all(Path("reports"))
    return record


def vendor() -> ContenderResult | None:
    (entry,) = recorded().problems
    return entry.race.vendor


# ---------------------------------------------------------------------- lookup


def test_a_faster_call_is_the_rival_of_the_configuration(
    tuned: Tuned, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned(FAST, "answers=True, deterministic=True")
    found = lookup("product", arch="opencl_cpu", n=64)
    assert found.rival and found["BLOCK"] in (32, 64)
    assert (found.rival.name, found.rival.pins) == ("numpy", "NumPy 1")
    assert found.rival.ratio < 0.2
    assert found.rival.expected_ms < found.expected_ms  # type: ignore[operator]
    raced = vendor()
    assert raced and raced.answers and raced.identical_runs >= 3
    assert lookup("product", arch="opencl_cpu", deterministic=True, n=64).rival
    assert lookup("product", arch="opencl_cpu", n=65).rival is None  # it was not timed there
    assert run(["lookup", "product", "n=64", "--arch", "opencl_cpu"]) == 0
    assert "rival: numpy (NumPy 1) at 0." in capsys.readouterr().out
    assert run(["lookup", "product", "n=64", "--arch", "opencl_cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rival"]["name"] == "numpy"
    (report,) = Path("reports").rglob("product.md")
    assert "; numpy answers" in report.read_text()


def test_a_slower_call_and_one_that_does_not_answer_are_only_raced(tuned: Tuned) -> None:
    tuned(SLOW, is_slow=False)
    raced = vendor()
    assert raced and raced.answers and raced.ratio and raced.ratio.value > 2
    assert lookup("product", arch="opencl_cpu", n=64).rival is None
    tuned(FAST, "", strategy="random")
    raced = vendor()
    assert raced and not raced.answers and raced.ratio and raced.ratio.value < 0.5
    assert lookup("product", arch="opencl_cpu", n=64).rival is None


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (FAST.replace("a, b", "a, b + 0.01"), r"on n=7 with other inputs: c\[0, 0\] is"),
        (FAST.replace("out=c)", "out=c); b[0, 0] = 3"), "changed its input b"),
        (
            FAST.replace("call()", "call(done=[])")
            .replace("np.matmul", "done or np.matmul")
            .replace("out=c)", "out=c), done.append(1)"),
            "c.* .not written.",
        ),
        ("return a.no_attribute", "LaunchError|AttributeError: 'numpy.ndarray' object"),
        (FAST.replace("out=c", "out=c[:n // 2 * 2, :n // 2 * 2]"), "on n=7 with other inputs"),
    ],
    ids=["wrong", "input", "stale", "error", "odd size"],
)
def test_a_wrong_call_is_left_out_and_named(tuned: Tuned, body: str, why: str) -> None:
    with pytest.warns(UserWarning, match=f"product: numpy is left out: .*{why}"):
        tuned(body)
    assert vendor() is None
    assert lookup("product", arch="opencl_cpu", n=64).rival is None


def test_a_call_that_fails_while_it_is_timed_leaves_the_race(tuned: Tuned) -> None:
    late = "; n < 64 or count.append(1); len(count) < 40 or a.no_attribute"
    with pytest.warns(UserWarning, match="no ratio to numpy, which failed: AttributeError: 'num"):
        tuned(FAST.replace("call()", "call(count=[])").replace("out=c)", f"out=c){late}"))
    assert vendor() is None


def test_other_bits_of_a_call_that_is_declared_deterministic_leave_it_out(tuned: Tuned) -> None:
    body = FAST.replace("call()", "call(count=[0])").replace(
        "out=c)",
        "out=c); count[0] += 1; np.multiply(c, 1 + 2e-7 * (count[0] % 2), out=c, where=c != c.round())",
    )
    with pytest.warns(UserWarning, match="no ratio to numpy, which failed: declared deterministic"):
        tuned(body, "answers=True, deterministic=True")
    assert vendor() is None


def test_a_call_without_an_answer_at_some_sizes_is_raced_at_the_others(tuned: Tuned) -> None:
    guard = "if n == {}:\n        return None"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tuned(guard.format(7) + FAST)
    assert lookup("product", arch="opencl_cpu", n=64).rival
    tuned(guard.format(64) + FAST)
    assert vendor() is None


def test_a_record_without_the_new_fields_has_no_rival(tuned: Tuned) -> None:
    tuned(FAST)
    for file in (*Path("reports").glob("*/product.json"), *Path(data_path()).rglob("product.json")):
        record = json.loads(file.read_text())
        for found in record["problems"][0]["race"]["contenders"]:
            new = found.pop("answers", False), found.pop("pins", "")
            assert new == ((True, "NumPy 1") if "vendor" in found else (False, ""))
        file.write_text(json.dumps(record))
    clear_cache()
    assert vendor() and lookup("product", arch="opencl_cpu", n=64).rival is None


def test_a_difference_within_the_uncertainty_makes_no_rival(tuned: Tuned) -> None:
    tuned(FAST)
    (entry,) = recorded().problems
    (won, raced), race = entry.race.contenders[:1] + entry.race.contenders[-1:], entry.race
    for ratio, rounds, is_rival in (
        (Estimate(0.9, 0.88, 0.98), 30, True),
        (Estimate(0.9, 0.88, 0.995), 30, False),
        (Estimate(0.9, 0.88, 0.98), 5, False),
    ):
        changed = msgspec.structs.replace(raced, ratio=ratio)
        found = msgspec.structs.replace(race, rounds=rounds, contenders=(won, changed))
        assert (rival_of(found) is not None) == is_rival
        assert rival_of(found, deterministic=True) is None


# ---------------------------------------------------------------------- calls

#: A baseline that leaves a mark, so that a test sees who computed the result.
MARKED = FAST.replace("out=c)", "out=c); calls.append(1)").replace(
    "def call", "import builtins\n    calls = builtins.calls_of_rival\n    def call"
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The calls of the rival in this process; the worker has a list of its own."""
    made: list[int] = []
    monkeypatch.setattr("builtins.calls_of_rival", made, raising=False)
    return made


@pytest.fixture
def answering(tuned: Tuned, tmp_path: Path, calls: list[int]) -> Callable[..., tuple[Choice, int]]:
    """Tune with NumPy as the rival; return a function that calls, and returns the choice and the rival's calls."""
    tuned(FAST, "answers=True, deterministic=True")

    def called(n: int = 64, **rules: Any) -> tuple[Choice, int]:
        a, b = np.random.default_rng(1).standard_normal((2, n, n), dtype=np.float32)
        product, before = load("product", **rules), len(calls)
        np.testing.assert_allclose(product(a, b), a @ b, atol=1e-4)
        out = np.empty((n, n), np.float32)
        assert product(a, b, out) is out
        np.testing.assert_allclose(out, a @ b, atol=1e-4)
        return product.choice(a, b), len(calls) - before

    declare(tmp_path, MARKED, "answers=True, deterministic=True")
    return called


def test_the_rival_answers_calls_of_its_size(
    answering: Callable[..., tuple[Choice, int]], calls: list[int]
) -> None:
    choice, count = answering()
    assert count == 2 and choice.rival
    assert choice.why.startswith("numpy (NumPy 1) at 0.")
    assert "of the configuration's cost answers, exact of " in choice.why
    for rules in (
        {"rivals": False},
        {"config": {"BLOCK": 32}},
        {"rivals": False, "frozen": True},
    ):
        choice, count = answering(**rules)
        assert count == 0 and choice.rival is None
    for rules in ({"frozen": True}, {"deterministic": True}):
        assert answering(**rules)[1] == 2
    assert answering(n=65)[1] == 0  # it was not timed there
    a = np.ones((128, 128), np.float32)[::2, ::2]  # the kernel gets copies
    product = load("product")
    assert product.choice(a, a).rival is None
    np.testing.assert_array_equal(product(a, a), np.full((64, 64), 64))
    assert len(calls) == 6


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (MARKED, ""),
        (MARKED.replace("NumPy 1", "NumPy 2"), "answers=True"),
        ("return None", "answers=True"),
    ],
    ids=["only raced", "another version", "none"],
)
@pytest.mark.filterwarnings("ignore:product.*is now 'NumPy 2', and 'NumPy 1' was verified")
def test_a_kernel_that_lost_its_rival_launches_the_configuration(
    answering: Callable[..., tuple[Choice, int]], tmp_path: Path, body: str, options: str
) -> None:
    declare(tmp_path, body, options)
    assert answering()[1] == 0


def test_a_rival_that_is_not_declared_deterministic_answers_no_deterministic_call(
    answering: Callable[..., tuple[Choice, int]], tmp_path: Path
) -> None:
    declare(tmp_path, MARKED)
    assert answering(deterministic=True)[1] == 0
    assert answering()[1] == 2


def test_operators_of_torch_tell_kernels_without_rivals_apart(tuned: Tuned, tmp_path: Path) -> None:
    declare(tmp_path, FAST)
    (tmp_path / "kernels/product.cu").write_text(SOURCE)
    assert load("product").key != load("product", rivals=False).key
