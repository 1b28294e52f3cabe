"""benchmarks/results_page.py and results_picture.py: what README and docs/results.md show of measured rows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import demands  # type: ignore[import-not-found]
import results_page  # type: ignore[import-not-found]
from results_picture import picture  # type: ignore[import-not-found]

from autotune.kernel.catalog import find_kernel

ROOT = Path(__file__).parents[1]


def row(kernel: str, problem: dict[str, Any], ratio: float, **others: Any) -> dict[str, Any]:
    return {
        "kernel": kernel,
        "problem": problem,
        "ours_ms": 1.0,
        "ratio": ratio,
        "ratio_ci": [ratio - 0.01, ratio + 0.01],
        "ratio_clean": ratio,
        "ratio_clean_ci": [ratio - 0.01, ratio + 0.01],
        "ratio_hot": ratio,
        "ratio_hot_ci": [ratio - 0.01, ratio + 0.01],
        "limit": "copy",
        "limit_fraction": 0.995,
        "quality": "exact",
        "date": "2026-11-20T01:00:00",
        **others,
    }


def earlier(kernel: str, problem: dict[str, Any], ratio: float, **others: Any) -> dict[str, Any]:
    """A row as it was before the other states were measured."""
    made = row(kernel, problem, ratio, **others)
    return {name: value for name, value in made.items() if not re.search("clean|hot", name)}


def document(device: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What `vendor.py` writes, as far as the pages read it."""
    return {
        "device": device,
        "driver": "580.1",
        "date": "2026-11-21",
        "command": "python benchmarks/vendor.py",
        "versions": {"cublas": "13.1.0"},
        "rows": rows,
        "failures": [],
    }


H100, H200 = "NVIDIA H100 80GB", "NVIDIA H200"
GEMV = demands.SIZES["gemv"]


def section(text: str, title: str, device: str = "H100") -> list[str]:
    """The lines of a device in a section."""
    parts = (part for part in re.split(r"^## ", text, flags=re.M) if part.startswith(title))
    devices = next(parts).split("### ")
    return next((part for part in devices if part.startswith(device)), "").splitlines()


def cells_of(lines: list[str], kernel: str) -> list[list[str]]:
    """The cells of the rows of sizes; the table of kernels has six columns."""
    rows = [line.strip("|").split("|") for line in lines if line.startswith(f"|{kernel}|")]
    return [cells for cells in rows if cells[1:2] and not cells[-1].count(", least")]


def kernel_line(lines: list[str], name: str) -> list[str]:
    """The cells of a kernel's means."""
    rows = (line.strip("|").split("|") for line in lines if line.startswith(f"|{name}|"))
    return next(cells for cells in rows if any(", least" in cell for cell in cells))


def compact(size: dict[str, Any]) -> str:
    return str(demands.describe(size)).replace(" x ", "×")


def test_what_is_committed_is_what_the_results_say() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "results_page.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_readme_shows_examples_of_both_devices_with_date_and_command() -> None:
    example = results_page.EXAMPLES["gemv"][0]
    rows = [row("gemv", example, 0.9), row("gemv", GEMV[0], 1.5)]
    lines = results_page.summary([document(H100, rows), document(H200, rows[:1])]).splitlines()
    (cells,) = cells_of(lines, "gemv")
    assert cells[1] == compact(example) and cells.count("**0.900** (0.890–0.910)") == 2
    assert any(line.startswith("|kernel|size|H100: time|") for line in lines)
    text = " ".join(lines)
    assert "2026-11-20: `python benchmarks/vendor.py`" in text and "cublas 13.1.0" in text


def test_tuned_sizes_are_in_the_order_in_which_they_are_asked_for() -> None:
    further, odd = {"m": 4097, "n": 4095}, {"m": 9, "n": 9}
    rows = [row("gemv", odd, 1.2), row("gemv", further, 0.6), row("gemv", GEMV[1], 1.5)]
    first = document(H100, [*rows, row("gemv", GEMV[0], 1.5)])
    second = document(H200, [row("gemv", further, 1.5)])
    lines = section(results_page.page([first, second], []), "Tuned")
    sizes = [compact(size) for size in (GEMV[0], GEMV[1], further, odd)]
    assert [cells[1] for cells in cells_of(lines, "gemv")] == sizes
    mean = demands.geometric_mean([1.5, 1.5, 0.6, 1.2])
    worst = f"{mean:.3f}, least 0.600 at 4097×4095"
    assert kernel_line(lines, "gemv")[:4] == ["gemv", "4", "1", worst]
    listed = len(find_kernel("gemv").problems["cuda"])
    others = section(results_page.page([first, second], []), "Tuned", "H200")
    assert f"- gemv: not measured: {listed - 1} sizes" in others
    assert [cells[1] for cells in cells_of(others, "gemv")] == [compact(further)]


def test_a_row_shows_its_rival_states_limit_error_and_bits() -> None:
    usual = row("gemv", GEMV[0], 1.5, rival="cublas")
    new = row(
        *("gemv", GEMV[1], 1.2),
        **{"rival": "cublasLt turned 4", "ratio_clean": 1.1, "ratio_hot": 0.9, "error_ratio": 0.7},
        **{"limit": "read", "limit_fraction": 1.04, "limit_by_l2": True, "deterministic": False},
    )
    lines = section(results_page.page([document(H100, [usual, new])], []), "Tuned")
    first, second = cells_of(lines, "gemv")
    assert first[4:] == ["cublasSgemv", "1.500 (1.490–1.510)", "1.500", "1.500", "99.5% copy"]
    assert second[4:] == [
        *("cublasLt turned", "1.200 (1.190–1.210)", "1.100", "0.900"),
        *("104.0% read (L2)", "0.7", "vary"),
    ]
    mean = demands.geometric_mean([1.5, 0.9])
    assert kernel_line(lines, "gemv")[-1] == f"{mean:.3f}, least 0.900 at 4096×4096"


def test_ratios_that_are_surely_slower_are_bold_and_counted() -> None:
    noise = row("gemv", GEMV[0], 0.995)
    hot = row("gemv", GEMV[1], 1.2, ratio_hot=0.9, ratio_hot_ci=[0.89, 0.91])
    worst = row("gemv", GEMV[2], 0.8)
    lines = section(results_page.page([document(H100, [noise, hot, worst])], []), "Tuned")
    assert kernel_line(lines, "gemv")[1:3] == ["3", "2"]
    bold = [[cell.startswith("**") for cell in cells[5:8]] for cells in cells_of(lines, "gemv")]
    assert bold == [[False] * 3, [False, False, True], [True] * 3]


def test_rows_of_the_earlier_form_are_marked_and_summed_up_apart() -> None:
    rows = [row("gemv", GEMV[0], 1.5, rival="cublasLt 2"), earlier("gemv", GEMV[1], 3.0)]
    lines = section(results_page.page([document(H100, rows)], []), "Tuned")
    assert kernel_line(lines, "gemv")[3].startswith("1.500, least 1.500")
    assert kernel_line(lines, "gemv‡")[3:] == ["3.000, least 3.000 at 4096×4096"]
    assert [cells[5] for cells in cells_of(lines, "gemv")] == [
        *("1.500 (1.490–1.510)", "3.000 (2.990–3.010)‡"),
    ]
    assert any("‡ An earlier form: against the vendor's usual call" in line for line in lines)
    alone = results_page.page([document(H200, rows[1:])], [])
    assert (
        cells_of(alone.splitlines(), "gemv")[0][-1] == "99.5% copy" and "|clean|hot|of" not in alone
    )
    assert "‡" not in results_page.page([document(H100, rows[:1])], [])


def test_what_takes_long_shows_what_it_takes_under_load() -> None:
    size = {"m": 8192, "n": 8192, "k": 8192}
    load = {"ours_sustained_ms": 10.0, "ratio_sustained": 1.9}
    lines = results_page.page([document(H100, [row("sgemm", size, 2.0, ours_ms=8.0, **load)])], [])
    ((_, _, time, rate, _, ratio, *_),) = cells_of(lines.splitlines(), "sgemm")
    assert (time, rate, ratio) == ("10 ms†", "110 TFLOP/s", "1.900†, 2.000 (1.990–2.010)")


def test_sizes_of_no_earlier_table_are_summed_up_apart() -> None:
    old, new = row("gemv", GEMV[0], 2.0, listed=True), row("gemv", GEMV[1], 0.5, listed=False)
    lines = section(results_page.page([document(H100, [old, new])], []), "Tuned")
    assert kernel_line(lines, "gemv")[1:4:2] == ["1", f"2.000, least 2.000 at {compact(GEMV[0])}"]
    assert kernel_line(lines, "gemv, new sizes")[3].startswith("0.500")


def test_sizes_that_are_not_tuned_are_marked_and_failures_told() -> None:
    failed, *rest = demands.UNLISTED["reduce"]
    near = [row("reduce", size, 0.9, quality="nearest_problem") for size in rest]
    unlisted = document(H100, near)
    unlisted["failures"] = [{"kernel": "reduce", "problem": failed, "error": "WrongError: 3 of 4"}]
    text = results_page.page([document(H100, []), document(H200, [])], [unlisted])
    lines = section(text, "Sizes that are not tuned")
    rows = cells_of(lines, "reduce")
    assert [cells[1] for cells in rows] == [compact(size) for size in rest]
    assert all(cells[2].endswith("\\*") for cells in rows)
    assert "- reduce: failed at 100000: WrongError: 3 of 4" in lines
    new, every = len(demands.FURTHER["reduce"]), len(demands.untuned("reduce"))
    assert f"- reduce: not measured: {new} sizes" in lines
    other = section(text, "Sizes that are not tuned", "H200")
    assert f"- reduce: not measured: {every} sizes" in other


def test_without_results_it_says_so() -> None:
    assert results_page.summary([]) == "Nothing is recorded yet.\n"
    assert results_page.page([], []).count("Nothing is recorded yet.") == 2


def test_the_picture_puts_losses_left_of_one() -> None:
    rows = [row("gemv", GEMV[0], 0.8), row("gemv", GEMV[1], 2.0), row("copy", {"n": 1}, 1.0)]
    text = picture({"H100": rows, "H200": [row("gemv", GEMV[0], 1.25)]}).render("dark")
    ElementTree.fromstring(text)
    found = re.findall(r'class="dots \w+" d="(.*?)"', text)
    (*_,), (*_,), *kernels = (
        re.findall(r"M([\d.]+) ", path) for path in found
    )  # two of the legend
    (low, high), (middle,), *others, (one,) = kernels
    assert float(low) < float(one) < float(middle) < float(high)
    assert others[:4] == [[low, high], [middle]] * 2 and others[4:] == [[one], [one]]
    assert f"least of 2: 0.800 cold at {demands.describe(GEMV[0])}" in text


def test_the_picture_names_the_state_of_the_worst_and_leaves_earlier_rows_out() -> None:
    rows = [row("gemv", GEMV[0], 1.2, ratio_hot=0.7), earlier("gemv", GEMV[1], 0.1)]
    text = picture({"H100": rows, "H200": rows[1:]}).render("dark")
    assert f"least of 1: 0.700 hot at {demands.describe(GEMV[0])}" in text
    assert "H100" in text and "H200" not in text


def test_the_picture_has_a_dot_for_every_ratio_in_every_state() -> None:
    files = sorted((ROOT / "benchmarks" / "results").glob("vendor-*.json"))
    documents = [json.loads(file.read_text())["rows"] for file in files]
    shown = [[row for row in rows if demands.is_current(row)] for rows in documents]
    text = (ROOT / "docs" / "results-light.svg").read_text()
    dots = "".join(re.findall(r'class="dots \w+" d="(.*?)"', text)).count("h0")
    ratios = sum(row["ratio"] is not None for rows in shown for row in rows)
    assert dots == 3 * ratios + sum(map(bool, shown)) > 200
