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
import rivals  # type: ignore[import-not-found]
import vendor  # type: ignore[import-not-found]
import vendor_task  # type: ignore[import-not-found]

from autotune.calling.choice import Choice
from autotune.devices.device import Device, for_arch
from autotune.errors import AutotuneError, UsageError
from autotune.kernel.catalog import find_kernel
from autotune.kernel.spec import Work
from autotune.measure.limits import Limits
from autotune.measure.measurement import CheckResult
from autotune.tuned.reading import read_all
from autotune.tuned.writing import write as write_record
from autotune.values import Configuration, Problem


def row(kernel: str, problem: dict[str, Any], ratio: float = 1.3, **others: Any) -> dict[str, Any]:
    """A measured row that meets every aim."""
    return {
        "kernel": kernel,
        "problem": problem,
        "ours_ms": 1.0,
        "vendor_ms": 1.0,
        "ratio": ratio,
        "ratio_ci": [ratio - 0.01, ratio + 0.01],
        "ratio_clean": ratio,
        "ratio_clean_ci": [ratio - 0.01, ratio + 0.01],
        "ratio_hot": ratio,
        "ratio_hot_ci": [ratio - 0.01, ratio + 0.01],
        "rival": "cublasLt 3",
        "limit": "copy",
        "limit_fraction": 0.995,
        "limits_apart": 3.0,
        "error_ratio": 1.0,
        "deterministic": True,
        "quality": "exact",
        "winner_source": "portable",
        **others,
    }


def all_rows() -> list[dict[str, Any]]:
    error = {"ours_max": 1.5e-7, "ours_rms": 2e-8, "vendor_max": 1e-7, "vendor_rms": 2e-8}
    rows = []
    for kernel, sizes in demands.TUNED.items():
        for size in sizes:
            made = row(kernel, size, 2.6, accuracy={"normal": error, "cancelling": error})
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
    sizes = demands.TUNED[kernel] + demands.untuned(kernel)
    assert sizes[: len(demands.SIZES[kernel])] == demands.SIZES[kernel]
    for size in sizes:
        assert tuple(size) == tuple(fields)
    assert len({json.dumps(size) for size in sizes}) == len(sizes)


@pytest.mark.parametrize("name", demands.UNLISTED)
def test_no_unlisted_size_is_tuned(name: str) -> None:
    kernel = find_kernel(name)
    groups = [*kernel.problems.values(), *kernel.quick_problems.values()]
    tuned_sizes = [dict(problem) for group in groups for problem in group]
    for record in read_all(vendor.ROOT / "reports", name):
        tuned_sizes += [dict(entry.problem) for entry in record.problems]
    assert demands.SIZES[name][0] in tuned_sizes  # they are of one form
    assert [size for size in demands.untuned(name) if size in tuned_sizes] == []


def test_a_size_that_no_earlier_table_had_says_so() -> None:
    (tuned, *_), (asked, *_), (new, *_) = (group["gemv"] for group in demands.GROUPS)
    assert demands.is_listed("gemv", tuned) and demands.is_listed("gemv", Problem(asked))
    assert not demands.is_listed("gemv", Problem(new))


def test_rows_that_are_good_everywhere_meet_every_aim() -> None:
    assert {aim.kernel for aim in demands.AIMS} == set(demands.SIZES)
    assert len(judged(all_rows(), "holds")) == len(demands.AIMS)


@pytest.mark.parametrize(
    ("kernel", "size", "what", "aim"),
    [
        ("sgemm", {"m": 256, "n": 256, "k": 256}, {"ratio": 0.985}, "ratio >= 1 at 53 sizes"),
        ("sgemm", {"m": 4096, "n": 4096, "k": 4096}, {"ours_ms": 2.6}, "tflop_per_s >= 54.5"),
        ("reduce", {"n": 1 << 22}, {"ratio_hot": 0.72}, "ratio_hot >= 1 at 9 sizes: 0.720 at 2^22"),
        ("gemv", {"m": 1000, "n": 1000}, {"ratio_clean": 0.9}, "ratio_clean >= 1 at 20 sizes"),
        ("reduce", {"n": 1 << 30}, {"error_ratio": 2.1}, "error_ratio <= 2 at 9 sizes: 2.100"),
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
            {"ratio": 0.98},
            "ratio >= 1 ",
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
    assert demands.UNTUNED_AIMS[0].judged(rows).startswith("open")
    assert demands.geometric_mean([2.0, 0.5, 8.0]) == pytest.approx(2.0)


def test_a_spread_is_of_the_rows_that_have_a_vendor() -> None:
    rows = [row("reduce", {"n": n}, ratio) for n, ratio in ((5, 4.0), (6, 0.25), (7, 8.0))]
    rows += [row("gemv", {"m": 3, "n": 4}, ratio=0.5), {**row("copy", {"n": 8}), "ratio": None}]
    assert demands.spreads([*rows, row("of_a_plugin", {"n": 1})]) == {
        "reduce": "geometric mean 2.000 over 3, worst 0.250 at 6",
        "gemv": "geometric mean 0.500 over 1, worst 0.500 at 3 x 4",
    }
    del rows[3]["ratio_clean"]  # as older rows are
    assert vendor.spread_lines(rows[3:4]) == [
        "gemv         ratio       geometric mean 0.500 over 1, worst 0.500 at 3 x 4",
        "gemv         ratio_hot   geometric mean 0.500 over 1, worst 0.500 at 3 x 4",
    ]


def test_an_error_above_twice_the_vendors_fails_its_aim() -> None:
    error = {"ours_max": 1e-7, "ours_rms": 4.1e-8, "vendor_max": 1e-7, "vendor_rms": 2e-8}
    size = {"m": 1000, "n": 1000, "k": 1000}
    (line,) = judged(changed(all_rows(), "sgemm_tf32x3", size, accuracy={"normal": error}), "FAILS")
    assert line == "sgemm_tf32x3 vendor_error >= 0.5 at 5 sizes: 0.488 at 1000^3"


def test_a_missing_row_leaves_an_aim_open_unless_another_fails_it() -> None:
    rows = [row for row in all_rows() if row["problem"] != {"n": 1 << 16}]
    everywhere, *others = judged(rows, "open")
    assert everywhere == "reduce ratio >= 1 at 9 sizes: 2.600 at 2^18 (1 not measured)"
    assert len(others) == 3  # clean, hot, error
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


H100 = replace(for_arch("sm_90"), peak_gflop_per_s=66_900.0, l2_bytes=50 << 20)
LIMITS = Limits(read_gb_per_s=3200.0, copy_gb_per_s=3000.0)


def raced(**others: Any) -> Any:
    """A race whose launch takes 1 µs, at half of the highest clock."""
    clocks = {"sm_mhz": 990, "most_mhz": 1980}
    given = {"ours": {}, "rivals": {}, "launch": (0.001,) * 3, **clocks, **others}
    return vendor_task.RowSamples(**given)


def share(work: Work, ours_ms: float, **others: Any) -> dict[str, Any]:
    found: dict[str, Any] = vendor.share_of_limit(work, ours_ms, raced(**others), H100, LIMITS)
    return found


@pytest.mark.parametrize(
    ("work", "name", "limit_ms"),
    [
        (Work(flops=1e3, bytes_read=3.2e6, bytes_written=4), "read", 0.002),
        (Work(bytes_read=3e6, bytes_written=3e6), "copy", 0.003),
        (Work(bytes_read=4.7e6, bytes_written=1.5e6), "read", 0.003),  # 3.0 copied, 3.2 read
        (Work(bytes_read=1e6, bytes_written=5e6), "copy", 0.003),
        (Work(flops=66.9e6, bytes_read=3e3, bytes_written=3e3), "ffma", 0.003),
    ],
)
def test_the_limit_is_a_launch_and_the_bytes_or_the_multiply_adds(
    work: Work, name: str, limit_ms: float
) -> None:
    found = share(work, 0.004)
    assert found["limit"] == name and found["limit_ms"] == pytest.approx(limit_ms)
    assert found["limit_fraction"] == pytest.approx(limit_ms / 0.004) and not found["limit_by_l2"]
    apart = found["limits_apart"]
    assert apart is None if not work.flops else apart > 1


def test_the_clock_of_the_race_sets_the_rate_of_the_multiply_adds() -> None:
    work = Work(flops=66.9e6, bytes_read=3e3, bytes_written=3e3)
    assert share(work, 0.004, sm_mhz=1980)["limit_ms"] == pytest.approx(0.002)
    assert share(work, 0.004, sm_mhz=None)["limit_ms"] == pytest.approx(0.002)


def test_only_what_stays_in_l2_is_above_the_limit() -> None:
    small = share(Work(bytes_read=3e6, bytes_written=3e6), 0.002)
    assert small["limit_fraction"] == pytest.approx(1.5) and small["limit_by_l2"]
    largest = share(Work(bytes_read=4 * 2**30, bytes_written=4), 1.3)  # at 3,300 GB/s
    assert largest["limit_fraction"] == pytest.approx(1.0) and not largest["limit_by_l2"]


def test_there_is_no_limit_of_another_pipe_nor_of_writes_alone() -> None:
    for work in (Work(flops=9, bytes_read=9, pipe="tf32"), Work(bytes_written=9), Work()):
        assert share(work, 1.0)["limit_fraction"] is None


def race_of(**rivals: tuple[float, float, float]) -> Any:
    """A race of six rounds in which ours takes 2 ms in every state, and rivals what is given."""
    every = vendor_task.State
    return raced(
        ours=dict.fromkeys(every, (2.0,) * 6),
        rivals={
            name: {state: (ms,) * 6 for state, ms in zip(every, times, strict=True)}
            for name, times in rivals.items()
        },
        errors={name: 1e-6 * (1 + len(name)) for name in rivals},
    )


def judged_row(samples: Any) -> dict[str, Any]:
    kernel, problem = find_kernel("gemv"), Problem(m=1000, n=1000)
    subject = vendor.Subject(
        kernel, problem, Choice(kernel.name, problem, kernel.completed({}), None)
    )
    check = CheckResult("y", "random", 4e-6, 1e-6, 1e-3, None)
    found: dict[str, Any] = vendor.judged(subject, samples, check, H100, LIMITS, 0)
    return found


def test_each_state_has_its_fastest_rival() -> None:
    found = judged_row(race_of(cublas=(4.0, 5.0, 1.0), Lt=(3.0, 6.0, 2.5), far=(9.0, 9.0, 9.0)))
    assert (found["rival"], found["rival_clean"], found["rival_hot"]) == ("Lt", "cublas", "cublas")
    assert (found["ratio"], found["ratio_clean"], found["ratio_hot"]) == (1.5, 2.5, 0.5)
    assert found["ratio_hot_ci"] == [0.5, 0.5] and found["rival_hot_ms"] == 1.0
    assert (found["vendor"], found["vendor_ms"]) == ("cublas", 4.0)
    assert found["rivals"]["far"] == [9.0, 9.0, 9.0] and found["listed"]
    assert found["error_ratio"] == pytest.approx(4 / 3)
    json.dumps(found, allow_nan=False)


def test_without_a_rival_there_are_times_only() -> None:
    found = judged_row(race_of())
    assert found["ours_clean_ms"] == 2.0 and found["rival"] is None and found["vendor"] is None
    assert found["ratio"] is found["ratio_clean"] is found["ratio_hot"] is None
    assert found["error_ratio"] is None and "ratio_sustained" not in found


def test_a_load_of_a_second_is_told_where_there_was_one() -> None:
    load = {"ours": vendor_task.Load(8.0, 1700), "rival": vendor_task.Load(10.0, 1650)}
    found = judged_row(replace(race_of(Lt=(3.0, 3.0, 3.0)), load=load))
    assert (found["ratio_sustained"], found["sustained_mhz"]) == (1.25, 1700)


@pytest.mark.parametrize(
    ("ours", "theirs", "accuracy", "expected"),
    [
        (3.0, 2.0, {}, 1.5),
        (0.0, 0.0, {}, 1.0),
        (0.0, 2.0, {}, 0.0),
        (3.0, 0.0, {}, None),
        (3.0, None, {}, None),
        (9.0, 1.0, {"a": (1.0, 2.0), "b": (3.0, 2.0)}, 1.5),
        (9.0, 1.0, {"a": (1.0, 0.0), "b": (3.0, 2.0)}, None),
    ],
)
def test_the_error_is_held_against_the_vendors(
    ours: float, theirs: float | None, accuracy: Any, expected: float | None
) -> None:
    pairs = {name: {"ours_max": o, "vendor_max": v} for name, (o, v) in accuracy.items()}
    assert vendor.error_ratio(ours, theirs, pairs) == expected


def test_plain_loops_look_nowhere_ahead_and_have_names_of_their_own() -> None:
    kernel, few = find_kernel("prefetch"), demands.SIZES["prefetch"][0]
    loops = vendor.plain_loops(kernel, Problem(few), H100)
    assert {loop["MODE"] for loop in loops} == {"none", "unroll"}
    assert {loop["ROUNDS"] for loop in loops} == {0}  # of few warps there may be no more blocks
    assert all(kernel.allows(loop, Problem(few)) for loop in loops)
    full = vendor.plain_loops(kernel, Problem({**few, "warps_per_sm": 0}), H100)
    assert len(full) > len(loops) > 20
    assert len({vendor.loop_name(loop) for loop in full}) == len(full)


def test_what_is_shown_comes_first_and_small_before_large() -> None:
    asked = {"n": 1 << 30}, {"n": 1 << 16}, {"n": 3000}
    copy = dict(demands.SIZES["copy"][0])
    subjects = [
        vendor.Subject(
            find_kernel(kernel), Problem(size), Choice(kernel, Problem(size), Configuration(), None)
        )
        for kernel, size in (("copy", copy), *(("reduce", size) for size in asked))
    ]
    found = [dict(subject.problem) for subject in sorted(subjects, key=vendor.turn)]
    assert found == [{"n": 1 << 16}, {"n": 1 << 30}, {"n": 3000}, copy]


def test_without_a_compiler_cub_is_not_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "find_program", lambda name: "")
    with pytest.raises(AutotuneError, match="no nvcc"):
        rivals.build_cub("sm_90")


@pytest.fixture
def recorded_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    """Whose record of reduce in `tmp_path` is the bundled one, but of two other problems."""
    record = read_all(vendor.ROOT / "reports", "reduce")[0]
    first, *entries, last = record.problems
    more = (
        msgspec.structs.replace(first, problem={"n": 5000}),
        *entries,
        msgspec.structs.replace(last, problem={"n": 3000}),
    )
    write_record(tmp_path, msgspec.structs.replace(record, problems=more))
    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path))
    return replace(for_arch("sm_90"), name=record.device.name)


def test_what_is_asked_is_measured_and_then_all_else_that_is_tuned(
    recorded_on: Device, tmp_path: Path
) -> None:
    reduce, asked = find_kernel("reduce"), demands.SIZES["reduce"]
    found = vendor.subjects_of([reduce], recorded_on, tmp_path, [], unlisted=False)
    measured = [dict(subject.problem) for subject in found]
    assert measured == [*sorted(asked, key=lambda size: size["n"]), {"n": 3000}, {"n": 5000}]
    assert {subject.choice.tuned.quality for subject in found[-2:]} == {"exact"}
    nothing = tmp_path / "nothing"
    assert [dict(problem) for problem in vendor.problems_of(reduce, recorded_on, nothing)] == asked


def test_unlisted_sizes_are_answered_by_the_nearest(recorded_on: Device, tmp_path: Path) -> None:
    kernels = [find_kernel(name) for name in ("copy", "reduce")]
    found = vendor.subjects_of(kernels, recorded_on, tmp_path, [], unlisted=True)
    measured = [dict(subject.problem) for subject in found]
    (asked, more) = (group["reduce"] for group in demands.GROUPS[1:])
    by_size = {"key": lambda size: size["n"]}
    assert measured == [*sorted(asked, **by_size), *sorted(more, **by_size)]
    assert {subject.choice.tuned.quality for subject in found} == {"nearest_problem"}


@pytest.mark.parametrize(
    ("n", "unlisted", "says"),
    [(100_000, False, "not tuned; give --unlisted"), (3000, True, "tuned; leave out --unlisted")],
)
def test_tuned_sizes_and_others_are_kept_apart(
    recorded_on: Device, tmp_path: Path, n: int, unlisted: bool, says: str
) -> None:
    """Each kind has a file of its own."""
    asked = [find_kernel("reduce")], recorded_on, tmp_path, [f"n={n}"]
    (subject,) = vendor.subjects_of(*asked, unlisted=not unlisted)
    assert dict(subject.problem) == {"n": n}
    with pytest.raises(UsageError, match=rf"reduce \(n={n}\): it is {says}"):
        vendor.subjects_of(*asked, unlisted=unlisted)


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
    assert good["ours_clean_ms"] > 0 and good["ours_hot_ms"] > 0 and good["deterministic"]
    assert bad["problem"]["m"] == 1 << 30 and bad["error"]
    shown = capsys.readouterr().out
    assert "33 x 65" in shown and "no vendor library" in shown


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
def test_unlisted_sizes_are_measured_into_a_file_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a CPU, with room for one data set in the cache; then shown, and nothing measured again."""
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("AUTOTUNE_CACHE_SIZE", "1K")
    sizes = [{"m": 65, "n": 33}, {"m": 31, "n": 77}]
    monkeypatch.setitem(demands.UNLISTED, "transpose", sizes)
    monkeypatch.setitem(demands.FURTHER, "transpose", [])
    command = ["vendor.py", "--device", "opencl:cpu", "--kernel", "transpose", "--unlisted"]
    command += ["--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*command, "--rounds", "3", "--tuned", str(tmp_path)])
    assert vendor.main() == 0
    (file,) = tmp_path.glob("*.json")
    document = vendor.read_results(file)
    assert file.name.startswith("unlisted-") and "--unlisted --rounds 3" in document["command"]
    assert [row["problem"] for row in document["rows"]] == sizes and not document["failures"]
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", [*command, "--show"])
    assert vendor.main() == 0
    shown = capsys.readouterr().out
    assert "65 x 33" in shown and "31 x 77" in shown and vendor.read_results(file) == document


def test_kernels_that_do_not_run_here_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["sgemm_tf32x3", "no_such_kernel", "reduce"]
    cpu = replace(for_arch("sm_90"), backend="opencl")
    assert [kernel.name for kernel in vendor.kernels_of(names, cpu)] == ["reduce"]
    shown = capsys.readouterr().err
    assert (
        "sgemm_tf32x3: left out: it runs on cuda" in shown and "no_such_kernel: left out" in shown
    )
