"""benchmarks/vendor.py and demands.py: which sizes are measured, how rows are judged, merged and raced with a limit."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import demands  # type: ignore[import-not-found]
import msgspec
import pytest
import vendor  # type: ignore[import-not-found]
import vendor_task  # type: ignore[import-not-found]

from autotune.calling.choice import choose
from autotune.devices.choose import choose_device
from autotune.devices.device import Device, for_arch
from autotune.errors import UsageError
from autotune.kernel.catalog import find_kernel
from autotune.measure.compiler import CompilerPool
from autotune.measure.tasks import Contender
from autotune.measure.worker import Worker
from autotune.tuned.reading import read_all
from autotune.tuned.writing import write as write_record
from autotune.values import Problem


def row(kernel: str, problem: dict[str, Any], ratio: float = 1.3, **others: Any) -> dict[str, Any]:
    """A measured row that meets every aim."""
    return {
        "kernel": kernel,
        "problem": problem,
        "ours_ms": 1.0,
        "vendor_ms": 1.0,
        "ratio": ratio,
        "ratio_ci": [ratio - 0.01, ratio + 0.01],
        "limit": "copy",
        "limit_fraction": 0.995,
        "limits_apart": 3.0,
        "max_error": 1e-6,
        "quality": "exact",
        "winner_source": "portable",
        **others,
    }


def all_rows() -> list[dict[str, Any]]:
    error = {"ours_max": 1.5e-7, "ours_rms": 2e-8, "vendor_max": 1e-7, "vendor_rms": 2e-8}
    rows = []
    for kernel, sizes in demands.SIZES.items():
        for size in sizes:
            made = row(kernel, size, 2.1, accuracy={"normal": error, "cancelling": error})
            if kernel.startswith("sgemm"):
                made["ours_ms"] = 2 * size["m"] * size["n"] * size["k"] / 58e9
            rows.append(made)
    return rows


def changed(rows: list[dict[str, Any]], kernel: str, size: Any, **what: Any) -> list[Any]:
    (number,) = (
        i for i, row in enumerate(rows) if (row["kernel"], row["problem"]) == (kernel, size)
    )
    return [*rows[:number], {**rows[number], **what}, *rows[number + 1 :]]


def judged(rows: list[dict[str, Any]], word: str) -> list[str]:
    """The lines of all aims that begin with a word, without it."""
    lines = [aim.judged(rows) for aim in demands.AIMS]
    return [" ".join(line.split()[1:]) for line in lines if line.startswith(word)]


@pytest.mark.parametrize("kernel", demands.SIZES)
def test_every_size_is_a_problem_of_its_kernel(kernel: str) -> None:
    fields = find_kernel(kernel).fields
    sizes = demands.SIZES[kernel] + demands.UNLISTED.get(kernel, [])
    for size in sizes:
        assert tuple(size) == tuple(fields)
    assert len({json.dumps(size) for size in sizes}) == len(sizes)


@pytest.mark.parametrize("name", demands.UNLISTED)
def test_no_unlisted_size_is_tuned(name: str) -> None:
    kernel = find_kernel(name)
    groups = [*kernel.problems.values(), *kernel.quick_problems.values()]
    tuned_sizes = [dict(problem) for group in groups for problem in group]
    for record in read_all(vendor.ROOT / "reports", name):
        tuned_sizes += [dict(entry.problem) for entry in record.entries]
    assert demands.SIZES[name][0] in tuned_sizes  # they are of one form
    assert [size for size in demands.UNLISTED[name] if size in tuned_sizes] == []


def test_rows_that_are_good_everywhere_meet_every_aim() -> None:
    assert {aim.kernel for aim in demands.AIMS} == set(demands.SIZES)
    assert len(judged(all_rows(), "holds")) == len(demands.AIMS)


@pytest.mark.parametrize(
    ("kernel", "size", "what", "aim"),
    [
        ("sgemm", {"m": 256, "n": 256, "k": 256}, {"ratio": 0.985}, "ratio >= 1 at 13 sizes"),
        (
            "reduce",
            {"n": 1 << 16},
            {"ratio": 0.995, "ratio_ci": [0.991, 0.999]},
            "ratio >= 1 at 9 sizes: 0.995 at 2^16",
        ),
        ("reduce", {"n": 1 << 30}, {"limit_fraction": 0.979}, "limit_fraction >= 0.98"),
        ("transpose", {"m": 8192, "n": 8192}, {"limit_fraction": 0.96}, "limit_fraction >= 0.97"),
        ("gemv", {"m": 16384, "n": 16384}, {"limit_fraction": 0.94}, "limit_fraction >= 0.95"),
        (
            "prefetch",
            {"n": 1 << 26, "intensity": 0, "warps_per_sm": 0},
            {"limit_fraction": 0.94},
            "limit_fraction >= 0.95",
        ),
        (
            "prefetch",
            {"n": 1 << 26, "intensity": 32, "warps_per_sm": 4},
            {"ratio": 1.39},
            "ratio >= 1.4",
        ),
        (
            "copy",
            {"n": 1 << 26, "mode": "copy", "offset_in": 2, "offset_out": 3},
            {"limit_fraction": 0.94},
            "limit_fraction >= 0.95",
        ),
    ],
)
def test_a_bad_row_fails_the_aim_it_belongs_to(
    kernel: str, size: Any, what: dict[str, Any], aim: str
) -> None:
    failing = judged(changed(all_rows(), kernel, size, **what), "FAILS")
    assert any(line.startswith(f"{kernel} {aim}") for line in failing)


def test_a_ratio_just_below_one_is_equal_where_its_interval_reaches_one() -> None:
    size = {"n": 1 << 16}
    assert not judged(
        changed(all_rows(), "reduce", size, ratio=0.991, ratio_ci=[0.98, 1.0]), "FAILS"
    )


def test_prefetch_may_miss_more_of_a_limit_that_is_not_alone() -> None:
    size = {"n": 1 << 26, "intensity": 64, "warps_per_sm": 0}
    near = {"limit_fraction": 0.9, "limits_apart": 1.3}
    assert not judged(changed(all_rows(), "prefetch", size, **near), "FAILS")
    for apart in (2.0, None):  # without arithmetic there is nothing else
        rows = changed(all_rows(), "prefetch", size, **{**near, "limits_apart": apart})
        assert judged(rows, "FAILS")


def test_a_geometric_mean_counts_every_size() -> None:
    rows = [{**row, "ratio": 1.0, "ratio_ci": [0.99, 1.01]} for row in all_rows()]
    failing = [line for line in judged(rows, "FAILS") if "geometric mean of ratio" in line]
    assert len(failing) == sum(aim.is_mean for aim in demands.AIMS) > 0
    assert demands.geometric_mean([2.0, 0.5, 8.0]) == pytest.approx(2.0)


def test_a_spread_is_of_the_rows_that_have_a_vendor() -> None:
    rows = [row("reduce", {"n": n}, ratio) for n, ratio in ((5, 4.0), (6, 0.25), (7, 8.0))]
    rows += [row("gemv", {"m": 3, "n": 4}, ratio=0.5), {**row("copy", {"n": 8}), "ratio": None}]
    assert demands.spreads([*rows, row("of_a_plugin", {"n": 1})]) == {
        "reduce": "geometric mean 2.000 over 3, worst 0.250 at 6",
        "gemv": "geometric mean 0.500 over 1, worst 0.500 at 3 x 4",
    }
    assert vendor.spread_lines(rows[3:]) == [
        "gemv         geometric mean 0.500 over 1, worst 0.500 at 3 x 4"
    ]


def test_an_error_above_twice_the_vendors_fails_its_aim() -> None:
    error = {"ours_max": 1e-7, "ours_rms": 4.1e-8, "vendor_max": 1e-7, "vendor_rms": 2e-8}
    size = {"m": 1000, "n": 1000, "k": 1000}
    (line,) = judged(changed(all_rows(), "sgemm_tf32x3", size, accuracy={"normal": error}), "FAILS")
    assert line == "sgemm_tf32x3 vendor_error >= 0.5 at 5 sizes: 0.488 at 1000^3"


def test_a_missing_row_leaves_an_aim_open_unless_another_fails_it() -> None:
    rows = [row for row in all_rows() if row["problem"] != {"n": 1 << 16}]
    everywhere, mean = judged(rows, "open")
    assert everywhere == "reduce ratio >= 1 at 9 sizes: 2.100 at 2^18 (1 not measured)"
    assert mean.endswith("at 4 sizes: 2.100 (1 not measured)")
    (failing,) = judged(changed(rows, "reduce", {"n": 1 << 18}, ratio=0.5), "FAILS")
    assert failing == "reduce ratio >= 1 at 9 sizes: 0.500 at 2^18 (1 not measured)"
    assert len(judged([], "open")) == len(demands.AIMS)


def test_a_row_takes_the_place_of_the_older_one_of_its_problem() -> None:
    small, large = {"n": 1 << 16}, {"n": 1 << 30}
    document = vendor.merged({"device": "x"}, row("reduce", large, 1.1))
    document = vendor.merged(document, row("reduce", small, 1.2))
    document = vendor.merged(document, row("reduce", large, 1.4))
    assert [(kept["problem"], kept["ratio"]) for kept in document["rows"]] == [
        (small, 1.2),
        (large, 1.4),
    ]
    failed = {"kernel": "reduce", "problem": large, "error": "wrong"}
    document = vendor.merged(document, failed)
    assert [kept["problem"] for kept in document["rows"]] == [small]
    assert document["failures"] == [failed] and document["device"] == "x"
    assert not vendor.merged(document, row("reduce", large))["failures"]


def test_results_are_read_back_as_written(tmp_path: Path) -> None:
    file = tmp_path / "vendor.json"
    assert vendor.read_results(file) == {}
    document = {"format": vendor.FORMAT, "rows": all_rows()[:3], "failures": []}
    file.write_bytes(vendor.encode(document))
    assert vendor.read_results(file) == document
    for text in ("{", "[]", '{"format": "other"}'):
        file.write_text(text)
        with pytest.raises(UsageError, match=r"vendor\.json"):
            vendor.read_results(file)


def test_the_limit_moves_the_bytes_of_the_problem() -> None:
    assert vendor.limit_problem("gemv", {"m": 64, "n": 1000}) == Problem(
        n=64000, mode="read", offset_in=0, offset_out=0
    )
    misaligned = {"n": 5, "mode": "copy", "offset_in": 1, "offset_out": 0}
    assert vendor.limit_problem("copy", misaligned) == {**misaligned, "offset_in": 0}
    assert vendor.limit_problem("copy", {**misaligned, "offset_in": 0}) is None
    assert vendor.limit_problem("sgemm", {"m": 1, "n": 2, "k": 3}) is None


@pytest.fixture
def recorded_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    """Whose record of reduce in `tmp_path` is the bundled one, but of two other problems."""
    record = read_all(vendor.ROOT / "reports", "reduce")[0]
    first, *entries, last = record.entries
    more = (
        msgspec.structs.replace(first, problem={"n": 5000}),
        *entries,
        msgspec.structs.replace(last, problem={"n": 3000}),
    )
    write_record(tmp_path, msgspec.structs.replace(record, entries=more))
    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path))
    return replace(for_arch("sm_90"), name=record.device.name)


def test_what_is_asked_is_measured_and_then_all_else_that_is_tuned(
    recorded_on: Device, tmp_path: Path
) -> None:
    reduce, asked = find_kernel("reduce"), demands.SIZES["reduce"]
    found = vendor.subjects_of([reduce], recorded_on, tmp_path, [], unlisted=False)
    assert [dict(subject.problem) for subject in found] == [*asked, {"n": 3000}, {"n": 5000}]
    assert {subject.choice.tuned.quality for subject in found[-2:]} == {"exact"}
    nothing = tmp_path / "nothing"
    assert [dict(problem) for problem in vendor.problems_of(reduce, recorded_on, nothing)] == asked


def test_unlisted_sizes_are_answered_by_the_nearest(recorded_on: Device, tmp_path: Path) -> None:
    kernels = [find_kernel(name) for name in ("copy", "reduce")]
    found = vendor.subjects_of(kernels, recorded_on, tmp_path, [], unlisted=True)
    assert [dict(subject.problem) for subject in found] == demands.UNLISTED["reduce"]
    assert {subject.choice.tuned.quality for subject in found} == {"nearest_problem"}


@pytest.mark.parametrize(
    ("given", "message"),
    [([], "sizes to measure; name one"), (["m=3,n=4"], "these problem fields")],
)
def test_nothing_to_measure_is_an_error(tmp_path: Path, given: list[str], message: str) -> None:
    copy = [find_kernel("copy")]
    with pytest.raises(UsageError, match=message):
        vendor.subjects_of(copy, for_arch("sm_90"), tmp_path, given, unlisted=True)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        ({"n": 1 << 16}, "2^16"),
        ({"n": 10**7 + 3}, "10000003"),
        ({"m": 8, "n": 8, "k": 8}, "8^3"),
        ({"m": 64, "n": 8}, "64 x 8"),
        ({"n": 1 << 26, "intensity": 8, "warps_per_sm": 0}, "2^26, intensity 8, full"),
        ({"n": 1 << 26, "mode": "copy", "offset_in": 0, "offset_out": 0}, "2^26"),
        ({"n": 7, "mode": "read", "offset_in": 1, "offset_out": 0}, "7, read, off by 1, 0"),
    ],
)
def test_sizes_are_short(size: Any, text: str) -> None:
    assert demands.describe(size) == text


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
def test_rows_are_measured_and_a_bad_one_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a CPU: no vendor, but everything else; the second problem is too large for any memory."""
    out = tmp_path / "out"
    command = ["vendor.py", "--device", "opencl:cpu", "--out", str(out), "--kernel", "transpose"]
    command += ["--rounds", "5", "--tuned", str(tmp_path), "--problem", "m=33,n=65"]
    monkeypatch.setattr(sys, "argv", [*command, "--problem", f"m={1 << 30},n={1 << 30}"])
    assert vendor.main() == 1
    (file,) = out.glob("vendor-*.json")
    document = vendor.read_results(file)
    (good,), (bad,) = document["rows"], document["failures"]
    assert good["problem"] == {"m": 33, "n": 65} and good["ours_ms"] > 0 and good["rounds"] == 5
    assert good["ratio"] is None and good["odd_sizes_verified"] == 11
    assert bad["problem"]["m"] == 1 << 30 and bad["error"]
    shown = capsys.readouterr().out
    assert "33 x 65" in shown and "no vendor library" in shown


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
def test_unlisted_sizes_are_measured_into_a_file_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a CPU, on sizes that suit it; then shown, and nothing measured again."""
    sizes = [{"m": 65, "n": 33}, {"m": 31, "n": 77}]
    monkeypatch.setitem(demands.UNLISTED, "transpose", sizes)
    command = ["vendor.py", "--device", "opencl:cpu", "--kernel", "transpose", "--unlisted"]
    command += ["--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*command, "--rounds", "3", "--tuned", str(tmp_path)])
    assert vendor.main() == 0
    (file,) = tmp_path.glob("*.json")
    document = vendor.read_results(file)
    assert file.name.startswith("unlisted-") and "--unlisted" in document["command"]
    assert [row["problem"] for row in document["rows"]] == sizes and not document["failures"]
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", [*command, "--show"])
    assert vendor.main() == 0
    shown = capsys.readouterr().out
    assert "65 x 33" in shown and "31 x 77" in shown and vendor.read_results(file) == document


@pytest.mark.opencl
def test_the_limit_reads_the_bytes_of_the_kernel_that_is_measured(opencl_device: str) -> None:
    """gemv beside `copy` in its mode read, on A: a limit that needs more bytes than A has is refused."""
    device = choose_device(opencl_device)
    gemv, problem = find_kernel("gemv"), Problem(m=100, n=1000)
    copy = find_kernel("copy")
    assert gemv.file is not None and copy.file is not None
    with CompilerPool(1) as compilers, Worker() as worker:
        comparison = vendor.Comparison(device, worker, compilers, None, 3, 1.0, 0)
        job = comparison.job(gemv, problem)
        configuration = choose(gemv, problem, device).configuration
        ours = Contender(configuration, comparison.binary(gemv, configuration, problem))
        limit = comparison.limit(gemv, problem)
        assert limit.problem["n"] == 100_000 and limit.problem["mode"] == "read"
        entrants = vendor_task.Entrants((ours,), limit)
        raced = worker.run(60, vendor_task.race, job, entrants, 3, 0, 10.0)
        assert len(raced.limit) == len(raced.contenders[0]) == 3 and min(raced.limit) > 0
        large = Problem({**limit.problem, "n": 100_001})
        too_large = vendor_task.Entrants((ours,), replace(limit, problem=large))
        with pytest.raises(ValueError, match="a has fewer"):
            worker.run(60, vendor_task.race, job, too_large, 3, 0, 10.0)


def test_kernels_that_do_not_run_here_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["sgemm_tf32x3", "no_such_kernel", "reduce"]
    cpu = replace(for_arch("sm_90"), backend="opencl")
    assert [kernel.name for kernel in vendor.kernels_of(names, cpu)] == ["reduce"]
    shown = capsys.readouterr().err
    assert (
        "sgemm_tf32x3: left out: it runs on cuda" in shown and "no_such_kernel: left out" in shown
    )
