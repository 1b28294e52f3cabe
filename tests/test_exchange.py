"""Caches and T4 results of other tools are read, written, and kept apart from what was verified."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded import load  # type: ignore[import-not-found]
from sample_records import KERNEL, PARAMETERS, VALUES_OF_ANY_KIND, places, problem
from sample_spaces import write_space

from autotune.cli import run
from autotune.errors import RecordError
from autotune.export import export_measurements
from autotune.interop import exchange, formats
from autotune.interop.formats import Labels, Results, read_results
from autotune.measure.measurement import Measurement, Status
from autotune.store import Store, default_url
from autotune.values import Configuration, Problem

RECORDINGS = sorted((Path(__file__).parent / "data").glob("*.json.gz"))


def ours() -> Results:
    """A measurement of every status."""
    rows = [
        Measurement(
            Configuration(BM=bm, SWIZZLE=swizzle, VARIANT="auto"),
            status,
            samples_ms=(0.3, 0.1, 0.2) if status.is_timed else (),
            compile_s=1.5 + bm,
            verify_s=0.5,
            measure_s=0.25,
        )
        for status, (bm, swizzle) in zip(
            Status, [(bm, s) for bm in range(8) for s in (False, True)], strict=False
        )
    ]
    return Results(
        kernel=KERNEL,
        device_name="Test GPU A",
        problem=Problem(problem(64, 128)),
        parameters={**PARAMETERS, "BM": tuple(range(8))},
        measurements=rows,
        timestamps=[f"2026-11-21T00:00:{second:02}+00:00" for second in range(len(rows))],
    )


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Write a file of bytes, text or a document; return its path."""

    def write(data: Any, name: str = "theirs.json") -> Path:
        path = tmp_path / name
        text = data if isinstance(data, str | bytes) else json.dumps(data)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def cache(**changes: Any) -> dict[str, Any]:
    """A small cache; keyword arguments replace what is at the top."""
    return {
        **{"device_name": "NVIDIA A100", "kernel_name": "add", "problem_size": [1024, 8]},
        "tune_params_keys": ["BLOCK", "KIND"],
        "tune_params": {"BLOCK": [64, 32], "KIND": ["a", "b"]},
        "objective": "time",
        "cache": {
            "32,b": entry(32, "b", time=2.0, times=[3.0, 1.0, 2.0, 4.0], compile_time=1500.0),
            "64,a": entry(64, "a", time=5.0),
            "32,a": entry(32, "a", time="CompilationFailedConfig"),
            "64,b": entry(64, "b", __error__="InvalidConfig"),
        },
        **changes,
    }


def entry(block: int, kind: str, **rest: Any) -> dict[str, Any]:
    return {"BLOCK": block, "KIND": kind, **rest}


def t4_of_kernel_tuner(tmp_path: Path) -> Path:
    """T4 results written by Kernel Tuner, of a space with failures and a metric."""
    util = pytest.importorskip("kernel_tuner.util")
    file_utils = pytest.importorskip("kernel_tuner.file_utils")
    about = dict.fromkeys(("benchmark_time", "verification_time"), 2.5)
    about |= {
        "framework_time": 0.25,
        "strategy_time": 0.5,
        "timestamp": "2026-01-01 00:00:00+00:00",
    }
    timed = {"time": 0.2, "times": [0.4, 0.1, 0.1], "GFLOP/s": 3.5, "compile_time": 100.0}
    failed = {"time": util.InvalidConfig(), "__error__": util.InvalidConfig(), "compile_time": 0}
    results = [{"BM": 32, "MODE": "a"} | timed | about, {"BM": 64, "MODE": "b"} | failed | about]
    path = tmp_path / "t4.json"
    file_utils.store_output_file(str(path), results, {"BM": [32, 64], "MODE": ["a", "b"]})
    return path


# ---------------------------------------------------------------------- ours -> format -> ours


@pytest.mark.parametrize("format", ["t4", "cache"])
def test_a_measurement_comes_back(format: str, write: Any) -> None:
    """Configuration, times and the kind of failure; not what autotune alone knows."""
    made = ours()
    text = export_measurements(format, made)[f"{KERNEL}-{format}.json"]
    found = read_results(write(text))
    assert (found.kernel, found.device_name) == (KERNEL, "Test GPU A")
    assert found.problem == made.problem
    assert found.parameters == made.parameters
    for before, after in zip(made.measurements, found.measurements, strict=True):
        assert after.configuration == before.configuration
        assert after.samples_ms == before.samples_ms
        assert after.status.is_timed == before.status.is_timed
        assert after.compile_s == pytest.approx(before.compile_s)
    again = export_measurements(format, replace(made, measurements=found.measurements))
    assert again[f"{KERNEL}-{format}.json"] == text


# ---------------------------------------------------------------------- theirs -> ours -> theirs


def test_t4_of_kernel_tuner_is_read(tmp_path: Path) -> None:
    """Its own names of times; further numbers as metrics; the reason of a failure."""
    found = read_results(t4_of_kernel_tuner(tmp_path), Labels(kernel="gemm", device="GPU"))
    good, bad = found.measurements
    assert (found.kernel, found.device_name, found.problem) == ("gemm", "GPU", Problem())
    assert good.samples_ms == (0.1, 0.1)  # the first runs cold
    assert good.metrics == {"GFLOP/s": 3.5}
    assert good.compile_s == 0.1
    assert bad.status is Status.PRUNED
    assert "constraints" in bad.message


def test_published_t4_files_are_read_as_they_are(write: Any) -> None:
    """Without samples, with a misspelt unit, and a configuration twice, of which the last counts."""

    def result(bm: int, time: float, **changes: Any) -> dict[str, Any]:
        return {
            "configuration": {"BM": bm},
            "times": {"compilation": 38.4, "framework": 1.9, "search_algorithm": 0},
            "invalidity": "correct",
            "correctness": 1,
            "measurements": [{"name": "time", "value": time, "unit": ""}],
            "objectives": ["time"],
            **changes,
        }

    rows = [result(32, 2.0), result(64, 5.0), result(32, 1.0)]
    rows.append(result(128, 9.0, correctness=0))
    rows.append(result(256, 9.0, invalidity="timeout"))
    path = write({"metadata": {"timeunit": "miliseconds"}, "results": rows}, "conv-A100_T4.json")
    found = read_results(path)
    assert (found.kernel, found.device_name) == ("conv-A100_T4", "conv-A100_T4")
    assert found.parameters == {"BM": (32, 64, 128, 256)}
    assert [row.median_ms for row in found.measurements] == [1.0, 5.0, None, None]
    assert [row.status for row in found.measurements[2:]] == ["wrong_result", "timed_out"]
    assert found.measurements[0].compile_s == pytest.approx(0.0384)
    in_seconds = {"metadata": {"timeunit": "seconds"}, "results": rows[:1]}
    assert read_results(write(in_seconds)).best(1)[0].median_ms == 2000


# ---------------------------------------------------------------------- caches


def test_reads_configurations_times_and_failures(write: Any) -> None:
    recording = read_results(write(cache()))
    assert recording.kernel == "add"
    assert recording.problem == Problem(x=1024, y=8)
    assert recording.device_name == "NVIDIA A100"
    assert recording.parameters == {"BLOCK": (64, 32), "KIND": ("a", "b")}
    best, only, uncompiled, invalid = recording.measurements
    assert best.configuration == Configuration(BLOCK=32, KIND="b")
    assert best.samples_ms == (1.0, 2.0, 4.0)  # the first runs cold
    assert best.compile_s == 1.5
    assert only.samples_ms == (5.0,)
    assert (invalid.status, uncompiled.status) == (Status.PRUNED, Status.COMPILE_FAILED)
    assert "constraints" in invalid.message
    assert uncompiled.median_ms is None
    assert [found.median_ms for found in recording.best(5)] == [2.0, 5.0]


def test_other_ways_to_fail(write: Any) -> None:
    for time in ("RuntimeFailedConfig", 1e20):
        found = read_results(write(cache(cache={"64,a": entry(64, "a", time=time)})))
        assert found.measurements[0].status is Status.LAUNCH_FAILED
        assert found.best(1) == []


def test_a_cache_is_read_gzipped_unclosed_and_without_names(write: Any) -> None:
    text = json.dumps(cache())
    assert text.endswith("}}")
    for content in (gzip.compress(text.encode()), *(text[:-2] + end for end in ("", ",\n", "\n"))):
        assert len(read_results(write(content, "plain.json")).measurements) == 4
    found = read_results(write(cache(device_name="", kernel_name=None), "gemm-MI250X.json.gz"))
    assert found.device_name == found.kernel == "gemm-MI250X"
    old = {name: value for name, value in cache().items() if name != "tune_params"}
    assert read_results(write(old)).parameters == {"BLOCK": (32, 64), "KIND": ("a", "b")}


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.split(".")[0])
def test_a_recording_says_what_its_file_does(path: Path) -> None:
    recording = load(path)
    entries = json.loads(gzip.decompress(path.read_bytes()))["cache"].values()
    assert len(recording.space) == len(recording.measurements) == len(entries)
    best_ms = []
    for entry in entries:
        index = recording.space.index({name: entry[name] for name in recording.space.names})
        assert index is not None
        measurement = recording.measurements[index]
        if isinstance(entry.get("__error__", entry["time"]), str):
            assert not measurement.status.is_timed
        else:
            assert list(measurement.samples_ms) == entry["times"][1:]
            best_ms.append(median(entry["times"][1:]))
    assert recording.best_ms == min(best_ms)


# ---------------------------------------------------------------------- damage

RESULT = {"configuration": {"BM": 32}, "times": {"runtimes": [1.0]}, "invalidity": "correct"}


def t4(**changes: Any) -> dict[str, Any]:
    return {"results": [RESULT, {**RESULT, "configuration": {"BM": 64}, **changes}]}


DAMAGE: dict[str, tuple[Any, str]] = {
    "not JSON": ("# a comment", "not JSON, or truncated"),
    "damaged gzip": (gzip.compress(b"{}" * 1000)[:-20], "gzip data is damaged"),
    "truncated": (json.dumps(cache())[:-40], "truncated"),
    "nothing": ({"results": []}, "no configuration was recorded"),
    "an empty cache": (cache(cache={}), "no configuration was recorded"),
    "missing value": (
        cache(cache={"": {"BLOCK": 64, "time": 1.0}}),
        "a configuration has other parameters than BLOCK, KIND",
    ),
    "negative time": (cache(cache={"64,a": entry(64, "a", time=-1.0)}), r"\['64,a'\]: .*> 0.0"),
    "no time in a cache": (cache(cache={"64,a": entry(64, "a")}), "no time was measured"),
    "no configuration": (t4(configuration=None), r"at `\$\.results\[1\]\.configuration`"),
    "a word": (t4(invalidity="maybe"), r"'maybe' - at `\$\.results\[1\]\.invalidity`"),
    "no time": (t4(times={}, objectives=["score"]), r"\[1\]: no time was measured .*score"),
    "unit": ({**t4(), "metadata": {"timeunit": "fortnights"}}, r"\$\.metadata\.timeunit"),
    "a foreign field": ({**t4(), "owner": "me"}, "unknown field `owner`"),
    "a foreign field in a cache": (cache(owner="me"), "unknown field `owner`"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_one_line_and_nothing_is_kept(
    kind: str, write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, message = DAMAGE[kind]
    path = write(content, "bad.json")
    with pytest.raises(RecordError, match=message) as caught:
        read_results(path)
    assert "bad.json: " in str(caught.value)
    assert run(["import", str(path)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"error: {caught.value}\n"
    assert exchange.imported_results("bad") == []


WHOLE = {
    "schema_version": "1.0.0",
    "metadata": {
        "timeunit": "milliseconds",
        **{"kernel": "k", "device": "d", "problem": {"m": 3}, "tune_params": {"BM": [32]}},
    },
    "results": [
        {
            **{"configuration": {"BM": 32}, "invalidity": "correct", "correctness": 1},
            **{"timestamp": "2026", "objectives": ["time"]},
            "times": {"compilation": 1.0, "framework": 1, "validation": 1, "runtimes": [1.0, 2.0]},
            "measurements": [{"name": "time", "value": 1.0, "unit": "ms"}],
        }
    ],
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(st.data())
def test_any_value_anywhere_is_read_or_a_record_error(tmp_path: Path, data: st.DataObject) -> None:
    changed = json.loads(json.dumps(data.draw(st.sampled_from([WHOLE, cache()]))))
    *above, last = data.draw(st.sampled_from(list(places(changed))))
    holder = changed
    for key in above:
        holder = holder[key]
    holder[last] = data.draw(st.sampled_from([*VALUES_OF_ANY_KIND, 10**400, [10**400]]))
    path = tmp_path / "any.json"
    path.write_text(json.dumps(changed))
    try:
        assert read_results(path).measurements
    except RecordError as error:
        assert "any.json" in str(error) and "\n" not in str(error)


def test_what_is_no_file_of_theirs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.json").write_text('{"a": 1}')
    mine = tmp_path / "mine.json"
    mine.write_bytes((Path(__file__).parents[1] / "reports/NVIDIA_H200/copy.json").read_bytes())
    for code, words, message in (
        (1, ["nix.json"], "nix.json: cannot be read (No such file"),
        (1, ["."], "cannot be read (Is a directory)"),
        (1, ["other.json"], "not a Kernel Tuner cache"),
        (
            2,
            ["mine.json", "--kernel", "copy"],
            "--kernel, --device, --problem and --map, which are for files of other",
        ),
    ):
        assert run(["import", str(tmp_path / words[0]), *words[1:]]) == code
        printed = capsys.readouterr()
        assert message in printed.err
        assert printed.err.count("\n") == 1


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_has_a_limit_before_it_is_unpacked(
    packed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(formats, "MAX_BYTES", 1 << 20)
    content = b" " * (64 << 20)
    (tmp_path / "large.json").write_bytes(gzip.compress(content, 1) if packed else content)
    tracemalloc.start()
    assert run(["import", str(tmp_path / "large.json")]) == 1
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()
    assert "large.json: more than 1 MiB unpacked" in capsys.readouterr().err


# ---------------------------------------------------------------------- kept apart


def test_imported_is_never_what_was_measured_here(
    tmp_path: Path, write: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_space(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run(["import", str(write(rows_of("BLOCK"))), "--kernel", "scale"]) == 0
    assert "not verified here" in capsys.readouterr().out
    with Store.open(default_url()) as store:
        assert store.rows() == []
    assert run(["lookup", "scale", "n=8"]) == 2


def t4_file(**metadata: Any) -> dict[str, Any]:
    return {"metadata": metadata, "results": [RESULT]}


def test_a_file_is_kept_once_under_its_latest_names(write: Any) -> None:
    path = write(t4_file(kernel="solve::tdma@float"))
    for labels in (Labels(), Labels(kernel="solve"), Labels("solve", "GPU B", Problem(n=8))):
        place, _ = exchange.import_results(path, labels)
    assert [file.name for file in place.parent.iterdir()] == [place.name]
    (found,) = exchange.imported_results("solve")
    assert (found.device_name, found.problem) == ("GPU B", Problem(n=8))
    assert exchange.imported_results("solve::tdma@float") == []
    place, _ = exchange.import_results(path, Labels(kernel="../../" + 300 * "x"))
    assert place.parent.name == "imported"
    assert len(place.name) < 256


def test_a_damaged_copy_is_left_out_with_a_warning(write: Any) -> None:
    for name in ("good", "bad"):
        place, _ = exchange.import_results(
            write(t4_file(kernel="solve", device=name), name), Labels()
        )
    place.write_text("{}")
    with pytest.warns(
        UserWarning, match=r"left out: .*not a Kernel Tuner cache.*; or delete the file"
    ):
        assert len(exchange.imported_results("solve")) == 1


def rows_of(*parameters: str) -> dict[str, Any]:
    return {"results": [{**RESULT, "configuration": dict.fromkeys(parameters, 64)}]}


@pytest.mark.parametrize(
    ("parameters", "more", "message"),
    [
        (("BLOCK",), ["--kernel", "scal"], "unknown kernel 'scal'; did you mean 'scale'?"),
        (
            ("BLOCK",),
            ["--problem", "x=8"],
            "the fields x, and the kernel has n; rename them, for example",
        ),
        (("BLOCK",), ["--problem", "x=8"], "--map x=n, or name the problem: --problem n=N"),
        (("BLOCK",), ["--map", "x=n"], "--map x: the file has no problem fields"),
        (
            ("BLOCK", "UNROLL"),
            [],
            "the file has the parameters BLOCK, UNROLL, and the kernel has BLOCK",
        ),
    ],
)
def test_a_file_that_matches_nothing_is_refused(
    tmp_path: Path,
    write: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    parameters: tuple[str, ...],
    more: list[str],
    message: str,
) -> None:
    write_space(tmp_path)
    monkeypatch.chdir(tmp_path)
    given = ["import", str(write(rows_of(*parameters))), "--kernel", "scale", *more]
    assert run(given) == 2
    assert message in capsys.readouterr().err
    assert exchange.imported_results("scale") == []


def test_fields_of_a_file_are_renamed(
    tmp_path: Path, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_space(tmp_path)
    monkeypatch.chdir(tmp_path)
    given = ["import", str(write(rows_of("BLOCK"))), "--kernel", "scale"]
    assert run([*given, "--problem", "x=8", "--map", "x=n"]) == 0
    assert [found.problem for found in exchange.imported_results("scale")] == [Problem(n=8)]


@pytest.mark.opencl
def test_a_search_tries_and_verifies_the_best_of_others_first(
    opencl_device: Any, tmp_path: Path, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the default and all else; what is in no declared space is passed over."""
    values = tuple(range(32, 32 * 33, 32))
    write_space(tmp_path, ("BLOCK=(32, 64)", f"BLOCK={values}"))
    rows = [
        {"configuration": {"BLOCK": block}, "times": {"runtimes": [block]}, "invalidity": "correct"}
        for block in (7, 640, 992, 1024)
    ]
    spaces = str(tmp_path / "spaces")
    theirs = str(write({"results": rows}))
    assert run(["import", theirs, "--kernel", "scale", "--spaces", spaces]) == 0
    known = exchange.fastest_imported("scale")
    best = tuple(Configuration(BLOCK=block) for block in (7, 640, 992, 1024))
    assert tuple(configuration for _, configuration in known) == best
    assert (
        exchange.configurations_to_try(Problem(n=1), known) == best[:3]
    )  # of another problem some
    assert exchange.configurations_to_try(known[0][0], [*known, (Problem(n=1), best[3])]) == best
    ran = ["run", "scale", "--spaces", spaces, "--device", "opencl:cpu", "--out", str(tmp_path)]
    assert run([*ran, "--budget", "3evals"]) == 0
    assert (
        "4 imported configurations; the run measures the best of them first"
        in capsys.readouterr().err
    )
    with Store.open(default_url()) as store:
        rows_ = store.rows("scale")
    tried = dict.fromkeys(row.measurement.configuration["BLOCK"] for row in rows_)
    assert list(tried)[:3] == [640, 992, 32]
    assert all(row.measurement.checks for row in rows_ if row.measurement.status is Status.OK)
