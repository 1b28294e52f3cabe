"""Configurations on random sizes: what is drawn, measured, continued, refused."""

import json
from itertools import islice
from pathlib import Path

import pytest

from autotune.cli import run
from autotune.kernel.catalog import find_kernel
from autotune.run.matrix import candidates_of, random_sizes
from autotune.tuned.reading import read

H200 = Path(__file__).parents[1] / "reports" / "NVIDIA_H200"
ON_CPU = ["--device", "opencl:cpu"]


def sgemm_sizes(seed: int, count: int) -> list[tuple[int, ...]]:
    device = read(H200 / "sgemm.json").device.planned_for()
    found = islice(random_sizes(find_kernel("sgemm"), device, seed), count)
    return [(p.m, p.n, p.k) for p in found]


def test_sizes_are_of_all_kinds_and_the_same_by_seed() -> None:
    drawn = sgemm_sizes(1, 400)
    assert drawn == sgemm_sizes(1, 400)
    assert drawn != sgemm_sizes(2, 400)
    assert len(set(drawn)) == 400
    large = [sizes for sizes in drawn if min(sizes) >= 64]
    in_64 = sum(all(size % 64 == 0 for size in sizes) for sizes in large)
    odd = sum(any(size % 8 for size in sizes) for sizes in large)
    assert in_64 > len(large) / 5
    assert odd > len(large) / 5
    assert sum(16 <= k <= 70 for _, _, k in drawn) > 50
    assert any(min(sizes) < 16 for sizes in drawn)
    assert max(2 * m * n * k for m, n, k in drawn) < 1e12  # ten milliseconds and more


def test_candidates_are_of_portfolios_and_winners() -> None:
    record, kernel = read(H200 / "sgemm.json"), find_kernel("sgemm")
    found = candidates_of([record, record], kernel, record.device.planned_for())
    assert kernel.default() == found[0]
    assert len(set(found)) == len(found) >= len(record.portfolio.configurations)
    assert all(dict(entry.configuration) in map(dict, found) for entry in record.problems)


@pytest.mark.opencl
def test_sizes_are_measured_once_and_continued(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = project / "sizes.jsonl"
    command = ["sizes", "saxpy", *ON_CPU, "--out", str(file), "--budget"]
    assert run([*command, "60s", "--count", "3"]) == 0
    head, *rows = map(json.loads, file.read_text().splitlines())
    assert (head["kernel"], head["format"]) == ("saxpy", "autotune size matrix")
    configurations = [row["configuration"] for row in rows if "configuration" in row]
    sizes = [row for row in rows if "problem" in row]
    assert len(configurations) > 1
    assert len(sizes) == 3
    for row in sizes:
        assert set(row["ms"]) == {str(number) for number in range(len(configurations))}
        assert all(0 < ms < 100 for ms in row["ms"].values())
    assert run([*command, "60s", "--count", "5"]) == 0
    again = file.read_text().splitlines()
    assert [json.loads(line) for line in again[: len(rows) + 1]] == [head, *rows]
    assert len(again) == len(rows) + 1 + 2
    assert run([*command, "60s", "--count", "5"]) == 0
    assert file.read_text().splitlines() == again
    assert capsys.readouterr().out.endswith(f"{len(configurations)} configurations on 5 sizes\n")


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"format": "else"}\n', "format is 'else', not 'autotune size matrix'; name another file"),
        ("no JSON\n", ":1: no row of sizes"),
    ],
)
def test_another_file_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str], text: str, error: str
) -> None:
    file = project / "sizes.jsonl"
    file.write_text(text)
    assert run(["sizes", "saxpy", *ON_CPU, "--out", str(file)]) == 2
    assert error in capsys.readouterr().err
    assert file.read_text() == text
