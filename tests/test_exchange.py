"""What others measured: their files are read, kept apart from what was verified, and given back whole."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_records import KERNEL, PARAMETERS, entry, plan, problem, record
from sample_spaces import write_space
from sample_values import VALUES_OF_ANY_KIND, places

from autotune.cli import run
from autotune.devices.binary import CompiledFunction
from autotune.errors import RecordError, UsageError
from autotune.export import export_measurements, export_recorded, export_records
from autotune.export.measurements import Results
from autotune.measure.measurement import CheckResult, Measurement, Status
from autotune.search import imported, replay
from autotune.search.recorded import Names, Recording, read
from autotune.store import Store, default_url
from autotune.values import Configuration, Problem

DATA = Path(__file__).parent / "data"


def ours() -> Results:
    """A measurement of every status, with what only autotune knows of it."""
    check = CheckResult("out", "random", math.inf, 1e-7, 1e-5, first_wrong=3)
    rows = [
        Measurement(
            Configuration(BM=bm, SWIZZLE=swizzle, VARIANT="auto"),
            status,
            message="" if status is Status.OK else f"because {bm} °",
            samples_ms=(0.3, 0.1, 0.2) if status.is_timed else (),
            checks=(check,),
            entries=(CompiledFunction("demo", registers=32),),
            compile_s=1.1 + bm,
            verify_s=0.7,
            measure_s=0.3,
            hot_samples_ms=(0.05,),
            launched_by="graph",
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
    """Write a file of text or a document; return its path."""

    def write(data: Any, name: str = "theirs.json") -> Path:
        path = tmp_path / name
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        return path

    return write


def only(recordings: list[Recording]) -> Recording:
    (recording,) = recordings
    return recording


def wisdom(**changes: Any) -> str:
    """A wisdom file as Kernel Launcher writes it: two devices, two problems on the first."""
    header = {
        "version": "1.0",
        "objective": "time",
        "tunable_parameters": ["BLOCK_X", "UNROLL"],
        "key": "solve::tdma@float",
        **changes,
    }
    about = {"device_name": "GPU A", "compute_capability": 80, "date": "2025-01-02T03:04:05"}
    lines = [
        {"config": [32, 8], "problem_size": [512, 512, 1], "time": 0.75, "environment": about},
        {"config": [64, 1], "problem_size": [64, 64, 1], "time": 0.04, "environment": about},
        {"config": [128, 2], "problem_size": [64, 64, 1], "time": 0.03, "environment": {}},
    ]
    return "\n".join(map(json.dumps, [header, *lines])) + "\n"


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
def test_a_measurement_comes_back_as_it_was(format: str, write: Any) -> None:
    """Every status, message, check, clock and sample, with time and problem."""
    made = ours()
    text = export_measurements(format, made)[f"{KERNEL}-{format}.json"]
    found = only(read(write(text)))
    assert (found.kind, found.kernel, found.device.name) == (format, KERNEL, "Test GPU A")
    assert found.problem == made.problem
    assert found.space.parameters == made.parameters
    assert [row.measurement for row in found.reported] == list(made.measurements)
    assert [row.timestamp for row in found.reported] == made.timestamps
    assert found.measurements == tuple(made.measurements)
    again = export_measurements(format, Results.of(found))
    assert again[f"{KERNEL}-{format}.json"] == text


def test_a_recorded_space_by_kernel_tuner_is_ours_again(tmp_path: Path, write: Any) -> None:
    """Our cache, simulated by Kernel Tuner and stored as T4: what it carries through is all there."""
    kernel_tuner = pytest.importorskip("kernel_tuner")
    file_utils = pytest.importorskip("kernel_tuner.file_utils")
    made = ours()
    rows = [
        replace(row, configuration=Configuration(BM=32 * n))
        for n, row in enumerate(made.measurements, 1)
    ]
    values = {"BM": tuple(32 * n for n in range(1, len(rows) + 1))}
    made = replace(made, parameters=values, measurements=rows)
    cache = write(export_measurements("cache", made)[f"{KERNEL}-cache.json"])
    with pytest.warns(UserWarning):  # that the made-up kernel has no arguments
        results, _ = kernel_tuner.tune_kernel(
            KERNEL, f"__global__ void {KERNEL}() {{}}", (64, 128), [],
            {name: list(listed) for name, listed in values.items()},
            lang="C", cache=str(cache), simulation_mode=True, quiet=True, strategy="brute_force",
        )  # fmt: skip
    assert len(results) == len(rows)
    file_utils.store_output_file(str(tmp_path / "t4"), results, values)
    found = only(read(tmp_path / "t4.json", Names(kernel=KERNEL)))
    assert [row.measurement for row in found.reported] == rows


def test_winners_come_back_from_a_wisdom_file(write: Any) -> None:
    """Which has their configuration, problem, time, device and date."""
    winners = [entry(problem(512, 64), plan(128)), entry(problem(8, 64), median_ms=0.5)]
    (name, text), *_ = export_records("wisdom", [record(winners)]).items()
    found = read(write(text, name))
    assert [(one.kernel, one.device.name, dict(one.problem)) for one in found] == [
        (KERNEL, "Test GPU A", dict(winner.problem)) for winner in winners
    ]
    for one, winner in zip(found, winners, strict=True):
        (best,) = one.measurements
        assert dict(best.configuration) == winner.configuration
        assert best.median_ms == winner.median_ms
        assert one.reported[0].timestamp == winner.tuned_on


# ---------------------------------------------------------------------- theirs -> ours -> theirs


def test_t4_of_kernel_tuner_is_read(tmp_path: Path) -> None:
    """Its own names of times; what it measured beside; the reason of a failure."""
    found = only(read(t4_of_kernel_tuner(tmp_path), Names(kernel="gemm", device="GPU")))
    good, bad = found.reported
    assert (found.kernel, found.device.name, found.problem) == ("gemm", "GPU", Problem())
    assert good.measurement.samples_ms == (0.4, 0.1, 0.1)
    assert good.metrics == {"time": (0.2, "ms"), "GFLOP/s": (3.5, "")}
    assert (good.strategy_ms, good.framework_ms, good.measurement.compile_s) == (0.5, 0.25, 0.1)
    assert good.timestamp == "2026-01-01 00:00:00+00:00"
    assert found.measurements[0].samples_ms == (0.1, 0.1)  # the first runs cold
    assert bad.measurement.status is Status.PRUNED
    assert "constraints" in bad.measurement.message


def test_from_t4_to_a_cache_and_back_nothing_is_lost(tmp_path: Path, write: Any) -> None:
    """Of what both can hold; and Kernel Tuner reads the cache."""
    util = pytest.importorskip("kernel_tuner.util")
    theirs = only(read(t4_of_kernel_tuner(tmp_path), Names(kernel="gemm", device="GPU")))
    cache = write(export_recorded("cache", theirs)["gemm-cache.json"], "cache.json")
    known = util.read_cache(str(cache), open_cache=False)["cache"]
    assert known["32,a"]["times"] == [0.4, 0.1, 0.1]
    assert (known["32,a"]["time"], known["32,a"]["GFLOP/s"]) == (0.2, 3.5)
    assert isinstance(known["64,b"]["__error__"], util.InvalidConfig)
    assert "autotune" not in known["32,a"]  # which did not measure it
    t4 = export_recorded("t4", only(read(cache)))["gemm-t4.json"]
    before, after = (json.loads(text)["results"] for text in (theirs.text, t4))
    for old, new in zip(before, after, strict=True):
        assert new["configuration"] == old["configuration"]
        assert new["timestamp"] == old["timestamp"]
        assert new["invalidity"] == old["invalidity"]
        compiled = old["times"].pop("compilation")  # the schema's name is another
        assert new["times"] == {"compilation_time": compiled, **old["times"]}
        numbers = [one for one in old["measurements"] if isinstance(one["value"], float)]
        key = lambda one: one["name"]  # noqa: E731
        assert sorted(new["measurements"], key=key) == sorted(numbers, key=key)


@pytest.mark.parametrize("kind", ["cache", "t4", "wisdom"])
def test_what_was_imported_is_given_back_byte_for_byte(
    kind: str, tmp_path: Path, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever else stands in the file."""
    path = {
        "cache": lambda: write(gzip.decompress((DATA / "synthetic.json.gz").read_bytes()).decode()),
        "t4": lambda: t4_of_kernel_tuner(tmp_path),
        "wisdom": lambda: write(wisdom()),
    }[kind]()
    assert run(["import", str(path), "--kernel", "theirs"]) == 0
    assert "not verified here" in capsys.readouterr().out
    assert run(["export", "theirs", kind, "--imported", "--out", str(tmp_path / "out")]) == 0
    (file,) = (tmp_path / "out").rglob("theirs*")
    assert file.read_text() == path.read_text()


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
    found = only(read(path))
    assert (found.kernel, found.device.name) == ("conv-A100_T4", "conv-A100_T4")
    assert found.space.parameters == {"BM": (32, 64, 128, 256)}
    assert [row.median_ms for row in found.measurements] == [1.0, 5.0, None, None]
    assert [row.status for row in found.measurements[2:]] == ["wrong_result", "timed_out"]
    assert found.measurements[0].compile_s == pytest.approx(0.0384)
    assert len(found.reported) == 5
    in_seconds = {"metadata": {"timeunit": "seconds"}, "results": rows[:1]}
    assert only(read(write(in_seconds))).best_ms == 2000


def test_a_wisdom_file_of_kernel_launcher_is_read(write: Any) -> None:
    found = read(write(wisdom(), "solve__tdma_float.wisdom"))
    assert [(one.device.name, dict(one.problem), one.best_ms) for one in found] == [
        ("GPU A", {"x": 512, "y": 512, "z": 1}, 0.75),
        ("GPU A", {"x": 64, "y": 64, "z": 1}, 0.04),
        ("solve__tdma_float", {"x": 64, "y": 64, "z": 1}, 0.03),
    ]
    assert {one.kernel for one in found} == {"solve::tdma@float"}
    assert dict(found[0].space.configuration(0)) == {"BLOCK_X": 32, "UNROLL": 8}
    assert found[0].reported[0].timestamp == "2025-01-02T03:04:05"
    with pytest.raises(RecordError, match=r"winners only \(3 devices and problems\)"):
        replay.load(write(wisdom()))


def test_t4_results_are_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = t4_of_kernel_tuner(tmp_path)
    assert run(["run", "t4", "--device", f"replay:{path}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["median_ms"] == 0.1


# ---------------------------------------------------------------------- damage

RESULT = {"configuration": {"BM": 32}, "times": {"runtimes": [1.0]}, "invalidity": "correct"}


def t4(**changes: Any) -> dict[str, Any]:
    return {"results": [RESULT, {**RESULT, "configuration": {"BM": 64}, **changes}]}


DAMAGE: dict[str, tuple[Any, str]] = {
    "nothing": ({"results": []}, "no configuration was recorded"),
    "no parameters": ({"results": [{**RESULT, "configuration": {}}]}, "no configuration was"),
    "no object": ({"results": [3]}, r"results\[0\]: an object was expected"),
    "no configuration": (t4(configuration=None), r"results\[1\]: configuration: an object"),
    "other names": (t4(configuration={"BN": 1}), r"results\[1\]: no usable value of BM"),
    "a list as value": (t4(configuration={"BM": [1]}), r"results\[1\]: no usable value of BM"),
    "a word": (t4(invalidity="maybe"), r"results\[1\]: invalidity: 'maybe' is none of correct"),
    "no time": (t4(times={}, objectives=["score"]), r"\[1\]: no time was measured .*score"),
    "negative": (t4(times={"runtimes": [-1]}), r"results\[1\]: times.runtimes: every time"),
    "duration": (t4(times={"runtimes": [1], "framework": "1"}), r"\[1\]: framework: a number"),
    "metrics": (t4(measurements=3), r"results\[1\]: measurements: a list of objects"),
    "unit": ({**t4(), "metadata": {"timeunit": "fortnights"}}, "'fortnights' is no unit of time"),
    "noted": (t4(autotune='{"status": 3}'), r"results\[1\]: autotune: "),
    "noted as no text": (t4(autotune=3), r"results\[1\]: autotune: "),
    "empty wisdom": (wisdom().split("\n")[0], "no configuration was recorded"),
    "version": (wisdom(version="2.0"), "line 1: version '2.0', where 1.0 was expected"),
    "objective": (wisdom(objective="score"), "line 1: its objective is 'score', not time"),
    "names": (wisdom(tunable_parameters=[1]), "line 1: tunable_parameters: a list of names"),
    "short line": (wisdom(tunable_parameters=["A"]), "line 2: config: a list of 1 values"),
    "cut off": (wisdom()[:-20], "line 4 of a wisdom file is not JSON, or cut off"),
    "time": (wisdom().replace("0.04", "0"), "line 3: time: every time must be positive"),
    "environment": (wisdom().replace("{}", "3"), "line 4: environment: an object"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_one_line_and_nothing_is_kept(
    kind: str, write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, message = DAMAGE[kind]
    path = write(content, "bad.json")
    with pytest.raises(RecordError, match=message) as caught:
        read(path)
    assert "bad.json: " in str(caught.value)
    assert run(["import", str(path)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"error: {caught.value}\n"
    assert imported.imported() == []


WHOLE = {
    "schema_version": "1.0.0",
    "metadata": {
        "timeunit": "milliseconds",
        **{"kernel": "k", "device": "d", "problem": {"m": 3}, "tune_params": {"BM": [32]}},
    },
    "results": [
        {
            **{"configuration": {"BM": 32}, "invalidity": "correct", "correctness": 1},
            **{"timestamp": "2026", "objectives": ["time"], "autotune": '{"status": "ok"}'},
            "times": {"compilation": 1.0, "framework": 1, "validation": 1, "runtimes": [1.0, 2.0]},
            "measurements": [{"name": "time", "value": 1.0, "unit": "ms"}],
        }
    ],
}
LINES = [json.loads(line) for line in wisdom().splitlines()]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(st.sampled_from([WHOLE, LINES]), st.data())
def test_any_value_anywhere_is_read_or_a_record_error(
    tmp_path: Path, document: Any, data: st.DataObject
) -> None:
    """And what is read can be written again."""
    changed = json.loads(json.dumps(document))
    *above, last = data.draw(st.sampled_from(list(places(changed))))
    holder = changed
    for key in above:
        holder = holder[key]
    holder[last] = data.draw(st.sampled_from([*VALUES_OF_ANY_KIND, "{}", '{"status": "x"}']))
    path = tmp_path / "any.json"
    lines = changed if document is LINES else [changed]
    path.write_text("\n".join(map(json.dumps, lines)))
    try:
        found = read(path)
    except RecordError as error:
        assert "any.json" in str(error)
        return
    for recording in found:
        assert export_recorded("cache", recording)
        assert export_recorded("t4", recording)


def test_what_is_no_file_of_theirs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not there, a folder, somebody else's JSON, and options for other files."""
    (tmp_path / "other.json").write_text('{"a": 1}')
    mine = tmp_path / "mine.json"
    mine.write_bytes((Path(__file__).parents[1] / "reports/NVIDIA_H200/copy.json").read_bytes())
    for code, words, message in (
        (1, ["nix.json"], "nix.json: cannot be read (No such file"),
        (1, ["."], "cannot be read (Is a directory)"),
        (1, ["other.json"], "not a tuned record"),
        (2, ["mine.json", "--kernel", "copy"], "--kernel, --device and --problem are for those"),
    ):
        assert run(["import", str(tmp_path / words[0]), *words[1:]]) == code
        printed = capsys.readouterr()
        assert message in printed.err
        assert printed.err.count("\n") == 1


# ---------------------------------------------------------------------- kept apart


def test_imported_is_never_what_was_measured_here(
    tmp_path: Path, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not in the store, not in lookup, and in no format of verified winners."""
    text = export_measurements("cache", ours())[f"{KERNEL}-cache.json"]
    assert run(["import", str(write(text))]) == 0
    capsys.readouterr()
    with Store.open(default_url()) as store:
        assert store.rows() == []
    assert run(["results", KERNEL, "--imported", "--best", "1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["imported_from"], row["median_ms"]) == ("theirs.json", 0.2)
    assert run(["lookup", KERNEL, "m=64", "n=128", "dtype=float32"]) == 2
    assert run(["results", KERNEL]) == 2
    for format in ("header", "json"):
        assert run(["export", KERNEL, format, "--imported"]) == 2
        assert "is for what was verified here" in capsys.readouterr().err
    assert run(["export", KERNEL, "t4"]) == 1 or capsys.readouterr().err
    assert run(["export", "nix", "t4", "--imported"]) == 2
    with pytest.raises(UsageError, match="unknown format 'nix'"):
        export_recorded("nix", only(imported.imported(KERNEL)))


def test_a_file_is_kept_once_under_its_latest_names(write: Any) -> None:
    path = write(wisdom())
    for names in (Names(), Names(kernel="solve"), Names("solve", "GPU B", Problem(n=8))):
        place, _ = imported.keep(path, names)
    assert [file.name for file in place.parent.iterdir()] == [place.name]
    assert {one.device.name for one in imported.imported("solve")} == {"GPU B"}
    assert {one.problem for one in imported.imported("solve")} == {Problem(n=8)}
    assert imported.imported("solve::tdma@float") == []
    place, _ = imported.keep(path, Names(kernel="../../" + 300 * "x"))
    assert place.is_relative_to(place.parent.resolve())
    assert len(imported.imported("../../" + 300 * "x")) == 3


def test_names_of_others_name_no_file_outside_out_and_move_no_cursor(
    write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"configuration": {"BM": 1}, "times": {"runtimes": [1.0]}, "invalidity": "correct"}]
    name = "../../../\x1b[2Jout"
    about = {"kernel": name, "device": "../" + name, "problem": {"x": "../../" + name}}
    assert run(["import", str(write({"metadata": about, "results": rows}))]) == 0
    assert "\x1b" not in "".join(capsys.readouterr())
    out = tmp_path / "deep" / "down" / "out"
    for format in ("t4", "cache", "wisdom"):
        assert run(["export", name, format, "--imported", "--out", str(out)]) == 0
    made = [file for file in tmp_path.rglob("*") if file.is_file() and file.name != "theirs.json"]
    assert len([file for file in made if file.is_relative_to(out)]) == 3
    assert all(file.is_relative_to(out) for file in made)


def test_what_all_failed_has_no_winner(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"configuration": {"BM": 1}, "times": {}, "invalidity": "compile"}]
    assert run(["import", str(write({"results": rows})), "--kernel", "theirs"]) == 0
    assert "1 configurations, all failed" in capsys.readouterr().out
    assert run(["export", "theirs", "wisdom", "--imported"]) == 2
    assert "nothing in it ran" in capsys.readouterr().err


def test_a_damaged_copy_is_left_out_with_a_warning(write: Any) -> None:
    for name, text in (("good", wisdom()), ("bad", wisdom(key="other"))):
        place, _ = imported.keep(write(text, name), Names(kernel="solve"))
    place.write_text("{}")
    with pytest.warns(UserWarning, match=r"left out: .*damaged.*; or delete it"):
        assert len(imported.imported("solve")) == 3


def test_a_kernel_that_is_known_here_is_compared(
    tmp_path: Path,
    write: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_space(tmp_path)
    monkeypatch.chdir(tmp_path)
    for parameters, message in (
        (["BLOCK"], ""),
        (["BLOCK", "UNROLL"], "warning: scale has other parameters here (UNROLL)"),
    ):
        rows = [{"configuration": dict.fromkeys(parameters, 64), "times": {"runtimes": [1]}}]
        rows[0]["invalidity"] = "correct"  # type: ignore[assignment]
        assert run(["import", str(write({"results": rows})), "--kernel", "scale"]) == 0
        said = capsys.readouterr().err
        assert said.startswith("kept as ")
        assert message in said
        assert "no kernel" not in said


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
    known = imported.first_to_try("scale")
    best = tuple(Configuration(BLOCK=block) for block in (7, 640, 992, 1024))
    assert tuple(configuration for _, configuration in known) == best
    assert imported.first_on(Problem(n=1), known) == best[:3]  # of another problem some
    assert imported.first_on(known[0][0], [*known, (Problem(n=1), best[3])]) == best
    ran = ["run", "scale", "--spaces", spaces, "--device", "opencl:cpu", "--out", str(tmp_path)]
    assert run([*ran, "--budget", "3evals"]) == 0
    assert "4 configurations were imported; the best are tried first" in capsys.readouterr().err
    with Store.open(default_url()) as store:
        rows_ = store.rows("scale")
    tried = dict.fromkeys(row.measurement.configuration["BLOCK"] for row in rows_)
    assert list(tried)[:3] == [640, 992, 32]
    assert all(row.measurement.checks for row in rows_ if row.measurement.status is Status.OK)
