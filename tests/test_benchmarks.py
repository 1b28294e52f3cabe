"""Every benchmark explains itself and imports what exists, and what it measured is judged and shown."""

from __future__ import annotations

import ast
import inspect
import json
import runpy
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeGuard

import accuracy  # type: ignore[import-not-found]
import any_size  # type: ignore[import-not-found]
import harness  # type: ignore[import-not-found]
import lookup as lookup_script  # type: ignore[import-not-found]
import msgspec
import numpy as np
import overhead  # type: ignore[import-not-found]
import problem_sizes  # type: ignore[import-not-found]
import pytest
import results_page  # type: ignore[import-not-found]
import rows  # type: ignore[import-not-found]
import time_to_winner  # type: ignore[import-not-found]
import triton_decorator  # type: ignore[import-not-found]
import vendor  # type: ignore[import-not-found]
from harness import ROOT
from recorded import load  # type: ignore[import-not-found]

from autotune.devices.choose import choose_device
from autotune.kernel.catalog import find_kernel, load_file
from autotune.tuned.reading import read_all
from autotune.values import Problem

FOLDER = ROOT / "benchmarks"
FILES = sorted(FOLDER.glob("*.py")) + sorted((FOLDER / "study").glob("*.py"))
SCRIPTS = [str(file.relative_to(FOLDER)) for file in FILES if "finish(main)" in file.read_text()]


def test_every_script_is_on_the_list() -> None:
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert len(SCRIPTS) > 5
    assert [name for name in SCRIPTS if f"`python benchmarks/{name}`" not in listed] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_a_script_imports_of_ours_is_there(file: Path) -> None:
    """Inside functions too, which nothing but a device may ever run."""
    imports = [node for node in ast.walk(ast.parse(file.read_text())) if _is_of_ours(node)]
    missing = [
        f"{node.module}.{alias.name}"
        for node in imports
        for alias in node.names
        if not hasattr(import_module(node.module), alias.name)
        and find_spec(f"{node.module}.{alias.name}") is None
    ]
    assert missing == []


def _is_of_ours(node: ast.AST) -> TypeGuard[ast.ImportFrom]:
    """An import of the package or of another benchmark; torch is no part of the tests."""
    if not isinstance(node, ast.ImportFrom) or node.module == "autotune.torch_ops":
        return False
    first = (node.module or "").partition(".")[0]
    return first == "autotune" or (FOLDER / f"{first}.py").is_file()


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_says_what_is_measured_and_where_it_goes(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / name), run_name="__main__")
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert f"python benchmarks/{name}" in shown
    assert "--out" in shown or name == "size_data.py"  # which measures nothing


def test_pages_and_pictures_are_those_of_the_committed_results() -> None:
    command = [sys.executable, str(FOLDER / "results_page.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("factor", "is_alike"), [(1.0, True), (1.6, False)])
def test_a_winner_is_compared_with_times_of_its_own_state_of_the_caches(
    factor: float, is_alike: bool
) -> None:
    """As if the matrix were of cold calls; a winner's mixed time is then no share of theirs."""
    (record,) = (r for r in read_all(ROOT / "reports", "sgemm") if "H100" in r.device.name)
    slower = [[ms and factor * ms for ms in times] for times in record.portfolio.median_ms]
    matrix = msgspec.structs.replace(record.portfolio, median_ms=tuple(map(tuple, slower)))
    scaled = msgspec.structs.replace(record, portfolio=matrix)
    assert lookup_script.is_of_matrix(scaled, "mixed:graph") == is_alike
    assert lookup_script.is_of_matrix(scaled, "hot:graph")  # nothing raced so


def test_a_row_raced_before_its_limit_was_recorded_gets_a_share() -> None:
    size = {"m": 4096, "n": 4096, "k": 4096, "dtype": "bfloat16", "out_dtype": "bfloat16"}
    row = {"kernel": "hgemm", "problem": size, "ours_ms": 0.2, "limit_fraction": None}
    (hmma,) = read_all(ROOT / "reports", "hmma")
    found = results_page.with_limit(row, hmma.device.name)
    rate = hmma.problems[0].gflop_per_s
    assert rate and found["limit"] == "tensor" and found["limit_without_launch"]
    assert found["limit_fraction"] == pytest.approx(2 * 4096**3 / rate / 1e6 / 0.2)
    # no limit is recorded for the model; what limits this arithmetic is not known; known already
    unknown = row | {"kernel": "sgemm_tf32x3", "problem": {"m": 4096, "n": 4096, "k": 4096}}
    for other, device in (
        (row, "NVIDIA Test"),
        (unknown, hmma.device.name),
        (row | {"limit_fraction": 0.5}, hmma.device.name),
    ):
        assert results_page.with_limit(other, device) is other


@pytest.mark.slow
def test_expectations_are_compared_with_what_left_out_problems_get(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of both cards: each problem alone, and with its neighbours."""
    given = ["--left-out", "--kernel", "transpose", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["lookup.py", *given])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / "lookup.py"), run_name="__main__")
    assert ended.value.code == 0
    rows = json.loads((tmp_path / "lookup.json").read_text())["rows"]
    assert len({row["device"] for row in rows}) == 2
    assert {row["left_out_within"] for row in rows} == {0, 32}
    assert all(row["nearest"] > row["left_out_within"] for row in rows if row["left_out_within"])
    judged = [row for row in rows if row["held"] is not None]
    assert judged and all(row["held"] == (row["got"] >= row["expected"]) for row in judged)


@pytest.mark.parametrize("strategy", ["random", "kt:genetic_algorithm"])
def test_a_configuration_leaves_a_row_an_event_and_no_memory(strategy: str) -> None:
    """Through engine, strategy, store and events; that rows and events agree is asked there."""
    data = Path(__file__).parent / "data" / "synthetic.json.gz"
    found = overhead.replayed(load(data), strategy, 1000, every=100)
    assert found["configurations"] == 1000
    grown_kb = 1024 * (found["rss_mb"][-1] - found["rss_mb"][4]) / 500
    assert grown_kb < 10, f"{grown_kb:.0f} KB more for every configuration"


# ---------------------------------------------------------------------- sizes that nobody tuned


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
def test_first_calls_are_made_in_processes_of_their_own() -> None:
    """On a CPU, whose records are not shipped: the default runs."""
    kernel, size = find_kernel("transpose"), Problem(m=33, n=65)
    calls = any_size.first_calls(kernel, choose_device("opencl:cpu"), size)
    assert [call["kernel"] for call in calls] == ["transpose", "transpose"]
    assert all(call["seconds"] > 0 and call["quality"] == "default" for call in calls)
    assert any_size.kept_by(kernel, calls) == kernel.default()
    assert any_size.kept_by(find_kernel("reduce"), calls) is None


def test_figures_of_sizes_are_shares_of_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Older rows have no first calls."""
    times = {
        "kernel": "sgemm",
        "answer_ms": 2.0,
        "vendor_ms": 4.0,
        "tuned_ms": None,
        "expected": None,
    }
    rows = [{**times, "best_ms": 1.0}, {**times, "best_ms": 2.0}]
    rows[1] |= {"first_call_ms": 2.5, "first_call_s": [1.5, 0.25]}
    any_size.summary(rows)
    shown = capsys.readouterr().out
    assert "best_ms / answer_ms: 0.7071, tenth 0.550, worst 0.500" in shown
    assert "best_ms / first_call_ms: 0.8000, tenth 0.800, worst 0.800" in shown
    assert "first calls: 1.50 s, at most 1.50; in a second process 0.25 s, at most 0.25" in shown
    assert "tuned_ms" not in shown


# ---------------------------------------------------------------------- vendors' calls


@pytest.mark.parametrize("kernel", problem_sizes.SIZES)
def test_sizes_are_problems_of_their_kernel_and_those_unlisted_are_tuned_nowhere(
    kernel: str,
) -> None:
    declared = find_kernel(kernel)
    sizes = problem_sizes.TUNED[kernel] + problem_sizes.untuned(kernel)
    assert all(tuple(size) == tuple(declared.fields) for size in sizes)
    assert len({json.dumps(size) for size in sizes}) == len(sizes)
    if kernel in problem_sizes.UNLISTED:
        records = read_all(ROOT / "reports", kernel)
        tuned = [dict(entry.problem) for record in records for entry in record.problems]
        assert problem_sizes.SIZES[kernel][0] in tuned  # they are of one form
        assert [size for size in problem_sizes.untuned(kernel) if size in tuned] == []


def row(kernel: str, problem: dict[str, Any], ratio: float = 2.6) -> dict[str, Any]:
    """A measured row."""
    made: dict[str, Any] = {"kernel": kernel, "problem": problem, "ours_ms": 1.0}
    for state in ("ratio", "ratio_clean", "ratio_hot"):
        made |= {state: ratio, f"{state}_ci": [ratio - 0.01, ratio + 0.01]}
    error = {"ours_max": 1.5e-7, "ours_rms": 2e-8, "vendor_max": 1e-7, "vendor_rms": 2e-8}
    made |= {"accuracy": {"normal": error, "cancelling": error}, "error_ratio": 1.0}
    if kernel.startswith("sgemm"):
        made["ours_ms"] = 2 * problem["m"] * problem["n"] * problem["k"] / 58e9
    return made | {"limit_fraction": 0.995, "limits_apart": 3.0}


def test_rows_are_read_back_as_written_and_a_newer_one_replaces_its_problem(
    tmp_path: Path,
) -> None:
    size, file = {"n": 1 << 30}, tmp_path / "vendor.json"
    document = vendor.merged({"format": vendor.FORMAT}, row("reduce", size, 1.1))
    document = vendor.merged(document, row("reduce", size, 1.4))
    assert [kept["ratio"] for kept in document["rows"]] == [1.4]
    file.write_bytes(harness.encode(document))
    assert harness.read(file) == document


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
def test_rows_are_measured_and_a_bad_one_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU: no vendor, but everything else; the second problem is too large for any memory."""
    out = tmp_path / "out"
    command = ["vendor.py", "--device", "opencl:cpu", "--out", str(out), "--kernel", "transpose"]
    command += ["--rounds", "5", "--tuned", str(tmp_path), "--problem", "m=33,n=65"]
    monkeypatch.setattr(sys, "argv", [*command, "--problem", f"m={1 << 30},n={1 << 30}"])
    assert vendor.main() == 1
    (file,) = out.glob("vendor-*.json")
    document = harness.read(file)
    (good,), (bad,) = document["rows"], document["failures"]
    assert good["problem"] == {"m": 33, "n": 65} and good["ours_ms"] > 0 and good["rounds"] == 5
    assert good["ratio"] is None and good["deterministic"]
    assert bad["problem"]["m"] == 1 << 30 and bad["error"]


def rounded(x: np.ndarray, bits: int) -> np.ndarray:
    """Float32 with that many bits of mantissa left, rounded to nearest."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.round(mantissa * 2.0**bits), exponent - bits)


@pytest.mark.parametrize("name", accuracy.DATA)
def test_the_measured_error_tells_float32_from_tf32(name: str) -> None:
    a, b = accuracy.DATA[name](33, 35, 257, np.random.default_rng(3))
    exact = accuracy.Exact(a, b)
    single, tf32 = exact.accuracy(a @ b), exact.accuracy(rounded(a, 11) @ rounded(b, 11))
    assert 1e-9 < single.rms_error < single.max_error < 1e-6
    assert tf32.rms_error > 50 * single.rms_error
    assert np.isnan(exact.accuracy(np.full((33, 35), np.nan)).max_error)


def test_a_tutorial_is_ported_by_its_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two lines in place of one; both decorators take all of its configurations."""
    pytest.importorskip("triton")
    names = [name for name in triton_decorator.KERNELS if name not in triton_decorator.LIBRARY]
    for side in ("theirs", "ours", "fifth"):
        (tmp_path / side).mkdir()
        triton_decorator.write_sources(side, names, tmp_path / side)
        (tmp_path / side / "measured_tutorials.py").rename(tmp_path / f"{side}.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    theirs, *both = map(import_module, ("theirs", "ours", "fifth"))
    for name in names:
        assert triton_decorator.lines_changed(name) == 2
        before, *after = (getattr(module, name) for module in (theirs, *both))
        for ours in after:
            assert type(before) is not type(ours)
            assert list(map(str, ours.configs)) == list(map(str, before.configs))
            assert ours.keys == before.keys


def test_the_decorator_is_compared_with_tritons() -> None:
    theirs = {"measured": 48, "first_s": 24.0, "launch_us": 20, "jit_launch_us": 11}
    ours = {"measured": 48, "first_s": 4.0, "launch_us": 5}
    row = {"kernel": "matmul", "lines_changed": 2, "theirs": theirs, "ours": ours}
    best = {"theirs": 0.2, "ours": 0.16, "fifth": 0.2}
    assert triton_decorator.shown({**row, "second_process_s": 0.25, "best_ms": best}) == (
        "matmul: 2 lines changed, 12.0 configurations/s, launch 5.0 us, second process 0.25 s, "
        "Triton 2.0/s, its launch 20.0, jit 11.0 us, best of theirs 1.000, best of ours 1.250, "
        "best of fifth 1.000"
    )


def test_rows_are_drawn_by_their_seed() -> None:
    drawn = rows.drawn()
    assert drawn == rows.drawn() and len({rows.name_of(row) for row in drawn}) == 40
    assert {row["kernel"] for row in drawn} == {*rows.KERNELS}
    assert all(1 <= row["rows"] <= 65536 and 128 <= row["columns"] <= 131072 for row in drawn)
    assert rows.nbytes_of({**drawn[0], "rows": 4, "columns": 100, "dtype": "float16"}) == 1600


def test_rows_are_compared_with_the_fastest_other_way() -> None:
    times = {"ours": 0.5, "eager": 1.0, "compiled": 0.8, "liger": 0.75, "copy": 0.45}
    row = {
        **{"kernel": "rms_norm", "residual": True, "rows": 4096, "columns": 8192},
        **{"dtype": "bfloat16", "nbytes": 1 << 28, "failed": {}},
        **{"cold_ms": times, "hot_ms": {**times, "ours": 0.75}, "error": {"ours": 1, "eager": 2}},
    }
    assert rows.ratio(row, "cold") == 1.5 and rows.copy_share(row) == pytest.approx(0.9)
    assert rows.shown(row).startswith("rms_norm residual 4096 x 8192 bfloat16")
    assert [*rows.summary([row])] == [
        "cold: geometric mean 1.500, worst 1.500",
        "hot: geometric mean 1.000, worst 1.000",
        "of the copy's rate from 64 MB on: 0.900 to 0.900",
    ]


@pytest.mark.parametrize("name", time_to_winner.CASES)
def test_a_counted_copy_of_a_kernel_takes_the_same(name: str, tmp_path: Path) -> None:
    case = time_to_winner.CASES[name]
    spaces = time_to_winner.copy_with_count(case, tmp_path)
    copied = load_file(spaces / f"{case.kernel}.py")
    kernel = find_kernel(case.kernel, ROOT / case.spaces)
    for hook in ("arguments", "reference"):
        taken, known = (inspect.signature(each.hook(hook)) for each in (copied, kernel))
        assert taken == known


def test_evaluations_of_a_reference_are_counted(tmp_path: Path) -> None:
    spaces = time_to_winner.copy_with_count(time_to_winner.CASES["scan"], tmp_path)
    kernel, rng = load_file(spaces / "scan.py"), np.random.default_rng(0)
    for n in (8, 8, 3):
        kernel.hook("reference")(x=kernel.call_hook("arguments", Problem(n=n), rng)["x"])
    found = time_to_winner.count_in(spaces / "calls.jsonl", {"n": 8})
    assert (found["evaluations"], found["evaluations_full"]) == (3, 2)
    assert found["evaluations_by"] == {"numpy": 3}
