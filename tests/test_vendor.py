"""benchmarks/vendor.py and demands.py: what is asked, how rows are judged, merged and raced with a limit."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import demands  # type: ignore[import-not-found]
import msgspec
import pytest
import readme_table  # type: ignore[import-not-found]
import vendor  # type: ignore[import-not-found]
import vendor_task  # type: ignore[import-not-found]

from autotune.devices.choose import choose_device
from autotune.devices.device import Device, for_arch
from autotune.errors import UsageError
from autotune.kernel.catalog import find_kernel
from autotune.measure.compiler import CompilerPool
from autotune.measure.tasks import Contender
from autotune.measure.worker import Worker
from autotune.tuned.files import read_all
from autotune.tuned.load import choose
from autotune.tuned.writing import write
from autotune.values import Problem


def row(kernel: str, problem: dict[str, Any], ratio: float = 1.3, **others: Any) -> dict[str, Any]:
    """A measured row that meets every demand."""
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
    found = [one for one in rows if one["kernel"] == kernel and one["problem"] == size]
    assert len(found) == 1
    return [{**one, **what} if one is found[0] else one for one in rows]


def failing(rows: list[dict[str, Any]]) -> list[str]:
    return [f"{one.kernel} {one.demand}" for one in demands.verdicts(rows) if one.holds is False]


@pytest.mark.parametrize("kernel", demands.SIZES)
def test_every_size_is_a_problem_of_its_kernel(kernel: str) -> None:
    fields = find_kernel(kernel).fields
    sizes = demands.SIZES[kernel] + demands.UNLISTED.get(kernel, [])
    for size in sizes:
        assert tuple(size) == tuple(fields)
    assert len({json.dumps(one) for one in sizes}) == len(sizes)


@pytest.mark.parametrize("name", demands.UNLISTED)
def test_no_unlisted_size_is_tuned(name: str) -> None:
    kernel = find_kernel(name)
    groups = [*kernel.problems.values(), *kernel.quick_problems.values()]
    tuned_sizes = [dict(problem) for group in groups for problem in group]
    for record in read_all(vendor.ROOT / "reports", name):
        tuned_sizes += [dict(entry.problem) for entry in record.entries]
    assert demands.SIZES[name][0] in tuned_sizes  # they are of one form
    assert [one for one in demands.UNLISTED[name] if one in tuned_sizes] == []


def test_rows_that_are_good_everywhere_meet_every_demand() -> None:
    found = demands.verdicts(all_rows())
    assert {one.kernel for one in found} == set(demands.SIZES)
    assert all(one.holds for one in found), [one for one in found if not one.holds]


@pytest.mark.parametrize(
    ("kernel", "size", "what", "demand"),
    [
        ("sgemm", {"m": 256, "n": 256, "k": 256}, {"ratio": 0.985}, "sgemm >= 1.00"),
        (
            "reduce",
            {"n": 1 << 16},
            {"ratio": 0.995, "ratio_ci": [0.991, 0.999]},
            "reduce >= 1.00 x vendor at every size",
        ),
        ("reduce", {"n": 1 << 30}, {"limit_fraction": 0.979}, "reduce >= 98% of the limit"),
        ("transpose", {"m": 8192, "n": 8192}, {"limit_fraction": 0.96}, "transpose >= 97%"),
        ("gemv", {"m": 16384, "n": 16384}, {"limit_fraction": 0.94}, "gemv >= 95%"),
        (
            "prefetch",
            {"n": 1 << 26, "intensity": 0, "warps_per_sm": 0},
            {"limit_fraction": 0.94},
            "prefetch >= 95 %",
        ),
        (
            "prefetch",
            {"n": 1 << 26, "intensity": 32, "warps_per_sm": 4},
            {"ratio": 1.39},
            "prefetch >= 1.4 x vendor",
        ),
        (
            "copy",
            {"n": 1 << 26, "mode": "copy", "offset_in": 2, "offset_out": 3},
            {"limit_fraction": 0.94},
            "copy >= 0.95 x aligned",
        ),
    ],
)
def test_one_bad_row_breaks_the_demand_it_belongs_to(
    kernel: str, size: Any, what: dict[str, Any], demand: str
) -> None:
    assert any(one.startswith(demand) for one in failing(changed(all_rows(), kernel, size, **what)))


def test_a_ratio_just_below_one_is_equal_where_its_interval_reaches_one() -> None:
    size = {"n": 1 << 16}
    rows = changed(all_rows(), "reduce", size, ratio=0.991, ratio_ci=[0.98, 1.0])
    assert not [one for one in failing(rows) if "1.00" in one]


def test_prefetch_may_miss_more_of_a_limit_that_is_not_alone() -> None:
    size = {"n": 1 << 26, "intensity": 64, "warps_per_sm": 0}
    near = {"limit_fraction": 0.9, "limits_apart": 1.3}
    assert not failing(changed(all_rows(), "prefetch", size, **near))
    for apart in (2.0, None):  # without arithmetic there is nothing else
        assert failing(changed(all_rows(), "prefetch", size, **{**near, "limits_apart": apart}))


def test_a_geometric_mean_counts_every_size() -> None:
    rows = [{**one, "ratio": 1.0, "ratio_ci": [0.99, 1.01]} for one in all_rows()]
    means = [one for one in demands.verdicts(rows) if "geometric" in one.demand]
    assert means and not any(one.holds for one in means)
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


def test_an_error_above_twice_the_vendors_breaks_the_demand() -> None:
    error = {"ours_max": 1e-7, "ours_rms": 4.1e-8, "vendor_max": 1e-7, "vendor_rms": 2e-8}
    size = {"m": 1000, "n": 1000, "k": 1000}
    assert failing(changed(all_rows(), "sgemm_tf32x3", size, accuracy={"normal": error}))
    shown = next(one for one in demands.verdicts(all_rows()) if "errors" in one.demand)
    assert shown.found.startswith("most 1.500 at ")


def test_a_missing_row_leaves_a_demand_open_unless_another_breaks_it() -> None:
    rows = [one for one in all_rows() if one["problem"] != {"n": 1 << 16}]
    everywhere = "reduce", ">= 1.00 x vendor at every size"
    found = {(one.kernel, one.demand): one for one in demands.verdicts(rows)}
    assert found[everywhere].holds is None and "2^16" in found[everywhere].found
    mean = next(one for key, one in found.items() if "geometric mean over" in key[1])
    assert mean.holds is None and "2.100" in mean.found
    broken = changed(rows, "reduce", {"n": 1 << 18}, ratio=0.5)
    found = {(one.kernel, one.demand): one for one in demands.verdicts(broken)}
    assert found[everywhere].holds is False
    assert all(one.holds is None for one in demands.verdicts([]))


def test_a_row_takes_the_place_of_the_older_one_of_its_problem() -> None:
    small, large = {"n": 1 << 16}, {"n": 1 << 30}
    document = vendor.merged({"device": "x"}, row("reduce", large, 1.1))
    document = vendor.merged(document, row("reduce", small, 1.2))
    document = vendor.merged(document, row("reduce", large, 1.4))
    assert [(one["problem"], one["ratio"]) for one in document["rows"]] == [
        (small, 1.2),
        (large, 1.4),
    ]
    failed = {"kernel": "reduce", "problem": large, "error": "wrong"}
    document = vendor.merged(document, failed)
    assert [one["problem"] for one in document["rows"]] == [small]
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
    write(tmp_path, msgspec.structs.replace(record, entries=more))
    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path))
    return replace(for_arch("sm_90"), name=record.device.name)


def test_what_is_asked_is_measured_and_then_all_else_that_is_tuned(
    recorded_on: Device, tmp_path: Path
) -> None:
    reduce, asked = find_kernel("reduce"), demands.SIZES["reduce"]
    found = vendor.targets_of([reduce], recorded_on, tmp_path, [], unlisted=False)
    assert [dict(one.problem) for one in found] == [*asked, {"n": 3000}, {"n": 5000}]
    assert {one.quality for one in found[-2:]} == {"exact"}
    nothing = tmp_path / "nothing"
    assert [dict(one) for one in vendor.problems_of(reduce, recorded_on, nothing)] == asked


def test_unlisted_sizes_are_answered_by_the_nearest(recorded_on: Device, tmp_path: Path) -> None:
    kernels = [find_kernel(name) for name in ("copy", "reduce")]
    found = vendor.targets_of(kernels, recorded_on, tmp_path, [], unlisted=True)
    assert [dict(one.problem) for one in found] == demands.UNLISTED["reduce"]
    assert {one.quality for one in found} == {"nearest_problem"}


@pytest.mark.parametrize(
    ("given", "message"),
    [([], "sizes to measure; name one"), (["m=3,n=4"], "these problem fields")],
)
def test_nothing_to_measure_is_an_error(tmp_path: Path, given: list[str], message: str) -> None:
    copy = [find_kernel("copy")]
    with pytest.raises(UsageError, match=message):
        vendor.targets_of(copy, for_arch("sm_90"), tmp_path, given, unlisted=True)


def document(device: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What `vendor.py` writes, as far as the table reads it."""
    return {
        "format": vendor.FORMAT,
        "device": device,
        "driver": "580.1",
        "date": "2026-11-21",
        "command": "python benchmarks/vendor.py",
        "versions": {"cublas": "13.1.0"},
        "rows": [{**one, "date": "2026-11-20T01:00:00"} for one in rows],
        "failures": [],
    }


def test_the_readme_has_devices_side_by_side_and_says_what_is_missed() -> None:
    size = {"m": 4096, "n": 4096}
    slow = changed(all_rows(), "transpose", size, ratio=0.9, ratio_ci=[0.89, 0.91], quality="x")
    text = readme_table.table(
        [document("NVIDIA H200", all_rows()[:3]), document("NVIDIA H100 80GB", slow)], []
    )
    head, _, *lines = text.splitlines()
    assert head.index("H100: time") < head.index("H200: time")
    assert sum(line.startswith("| sgemm |") for line in lines) == len(demands.SIZES["sgemm"])
    cells = next(line for line in lines if "| 4096 x 4096 |" in line).split(" | ")
    assert "0.900 (0.890–0.910)" in cells and cells[2].endswith("\\*")
    assert "2026-11-20" in text and "cublas 13.1.0" in text
    assert "(docs/sizes.md)" in text
    missed = [line for line in lines if line.startswith("- ")]
    assert any("transpose: >= 1.00" in line and "4096 x 4096 0.900" in line for line in missed)
    aims = sum(not one.beyond for one in demands.verdicts([]))
    assert f"Of {aims} aims" in text and f"H200 meets 0, {aims} are not measured in full" in text


def test_the_readme_shows_the_finals_where_nothing_else_was_measured(tmp_path: Path) -> None:
    assert readme_table.table([], []) == "Nothing is recorded yet.\n"
    records = read_all(readme_table.ROOT / "reports", "transpose")
    text = readme_table.table([], records)
    assert all(record.device.name not in text for record in records)
    entries = [entry for record in records for entry in record.entries]
    assert sum(line.startswith("| transpose |") for line in text.splitlines()) <= len(entries)
    assert any(f"{entry.vendor.ratio:.3f} (" in text for entry in entries if entry.vendor)


def section(text: str, title: str) -> list[str]:
    return next(part for part in text.split("\n## ") if part.startswith(title)).splitlines()


def test_the_readme_leaves_further_sizes_to_the_page() -> None:
    further = [row("gemv", {"m": 1000, "n": 1000}, 1.5), row("gemv", {"m": 4097, "n": 4095}, 0.6)]
    odd = row("gemv", {"m": 9, "n": 9}, 1.2)
    first = document("NVIDIA H100 80GB", [odd, *further, *all_rows()])
    second = document("NVIDIA H200", [further[0]])
    assert "1000 x 1000" not in readme_table.table([first, second], [])
    lines = section(readme_table.page([second, first], [], []), "Tuned")
    rows = [line for line in lines if line.startswith("| gemv")]
    # as in the space file, then what it does not list
    assert [one.split(" | ")[1] for one in rows] == ["4097 x 4095", "1000 x 1000", "9 x 9"]
    assert [one.count("(1.490–1.510)") for one in rows] == [0, 2, 0]
    mean = demands.geometric_mean([1.5, 0.6, 1.2])
    spread = f"- H100, gemv: geometric mean {mean:.3f} over 3, worst 0.600 at 4097 x 4095"
    assert spread in lines and "16384^3" not in "".join(lines)
    listed = len(find_kernel("gemv").problems["cuda"]) - len(demands.SIZES["gemv"])
    assert f"- H100, gemv: not measured: {listed - 2} sizes" in lines
    assert f"- H200, gemv: not measured: {listed - 1} sizes" in lines
    assert any("cublas 13.1.0" in line for line in lines)


def test_the_page_has_unlisted_sizes_and_says_what_is_missing_and_what_failed() -> None:
    first, *rest = demands.UNLISTED["reduce"]
    near = [row("reduce", one, 0.9, quality="nearest_problem") for one in rest]
    one = document("NVIDIA H100 80GB", near)
    one["failures"] = [{"kernel": "reduce", "problem": first, "error": "WrongError: 3 of 4"}]
    both = [document(name, []) for name in ("NVIDIA H100 80GB", "NVIDIA H200")]
    lines = section(readme_table.page(both, [one], []), "Not tuned")
    rows = [line for line in lines if line.startswith("| reduce")]
    assert [line.split(" | ")[1] for line in rows] == [demands.describe(one) for one in rest]
    assert all("\\*" in line and line.endswith("|  |  |  |  |") for line in rows)  # no H200 yet
    text = "\n".join(lines)
    assert "H200: time" in text and "- H100, reduce: geometric mean 0.900 over 5, worst 0.9" in text
    assert "- H100, reduce: failed at 100000: WrongError: 3 of 4" in text
    assert "- H100, reduce: not" not in text and "- H200, reduce: not measured: 6 sizes" in text
    assert "- H100, gemv: not measured: 12 sizes" in text
    two = document("NVIDIA H200", near[:3])
    missing = "- H200, reduce: not measured: 100000; 2^25; 300000001"
    assert missing in readme_table.page(both, [one, two], [])


def test_a_page_without_any_results_says_so() -> None:
    text = readme_table.page([], [], [])
    assert text.count("Nothing is recorded yet.") == 2 and "|" not in text


def test_the_check_names_what_is_out_of_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, docs, readme = tmp_path / "benchmarks" / "results", tmp_path / "docs", "README.md"
    results.mkdir(parents=True)
    docs.mkdir()
    (tmp_path / readme).write_text(f"before\n{readme_table.BEGIN}{readme_table.END}after\n")
    measured = document("NVIDIA H200", all_rows())
    (results / "vendor-NVIDIA_H200.json").write_bytes(vendor.encode(measured))
    monkeypatch.setattr(readme_table, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["readme_table.py", "--check"])
    with pytest.raises(SystemExit, match=r"^README\.md, docs/sizes\.md: results are out of date"):
        readme_table.main()
    assert not (docs / "sizes.md").exists()
    monkeypatch.setattr(sys, "argv", ["readme_table.py"])
    readme_table.main()
    written = (tmp_path / readme).read_text()
    assert written.startswith("before\n") and written.endswith("after\n") and "| sgemm" in written
    monkeypatch.setattr(sys, "argv", ["readme_table.py", "--check"])
    readme_table.main()
    near = row("reduce", demands.UNLISTED["reduce"][0], quality="nearest_problem")
    (results / "unlisted-NVIDIA_H200.json").write_bytes(
        vendor.encode(document("NVIDIA H200", [near]))
    )
    with pytest.raises(SystemExit, match=r"^docs/sizes\.md: results are out of date"):
        readme_table.main()


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
    file = tmp_path / "out" / "vendor.json"
    command = ["vendor.py", "--device", "opencl:cpu", "--out", str(file), "--kernel", "transpose"]
    command += ["--rounds", "5", "--tuned", str(tmp_path), "--problem", "m=33,n=65"]
    monkeypatch.setattr(sys, "argv", [*command, "--problem", f"m={1 << 30},n={1 << 30}"])
    assert vendor.main() == 1
    document = vendor.read_results(file)
    (good,), (bad,) = document["rows"], document["failures"]
    assert good["problem"] == {"m": 33, "n": 65} and good["ours_ms"] > 0 and good["rounds"] == 5
    assert good["ratio"] is None and good["odd_sizes_verified"] == 8
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
    monkeypatch.setattr(vendor, "RESULTS", tmp_path)
    command = ["vendor.py", "--device", "opencl:cpu", "--kernel", "transpose", "--unlisted"]
    monkeypatch.setattr(sys, "argv", [*command, "--rounds", "3", "--tuned", str(tmp_path)])
    assert vendor.main() == 0
    (file,) = tmp_path.glob("*.json")
    document = vendor.read_results(file)
    assert file.name.startswith("unlisted-") and "--unlisted" in document["command"]
    assert [one["problem"] for one in document["rows"]] == sizes and not document["failures"]
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
        target = vendor.Target(gemv, problem, choose(gemv, problem, device))
        binary = comparison._binary(gemv, target.choice.configuration, problem)
        ours = Contender(target.choice.configuration, binary)
        limit = comparison._limit(gemv, problem)
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
    assert [one.name for one in vendor.kernels_of(names, cpu)] == ["reduce"]
    shown = capsys.readouterr().err
    assert (
        "sgemm_tf32x3: left out: it runs on cuda" in shown and "no_such_kernel: left out" in shown
    )
