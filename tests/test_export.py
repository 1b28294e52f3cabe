"""Exports: what other tools read is read back by those tools; equal input gives equal bytes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_records import KERNEL, PARAMETERS, entry, plan, problem, record
from sample_spaces import write_space

from autotune.cli import run
from autotune.errors import UsageError
from autotune.export import export_measurements, export_records
from autotune.interop.formats import Results
from autotune.measure.measurement import Measurement, Status
from autotune.store import RunInfo, Scope, Store, default_url
from autotune.tuned.record import TunedRecord
from autotune.values import Configuration, Problem


def measured(bm: int, status: Status = Status.OK, **changes: Any) -> Measurement:
    """A measurement of one tile."""
    samples = (0.3, 0.1, 0.2) if status.is_timed else ()
    values = {"BM": bm, "SWIZZLE": True, "VARIANT": "auto"}
    return Measurement(Configuration(values), status, samples_ms=samples, compile_s=1.5, **changes)


@pytest.fixture
def results() -> Results:
    """One configuration that ran and two that did not."""
    return Results(
        kernel=KERNEL,
        device_name="Test GPU A",
        problem=Problem(problem(64, 128)),
        parameters=PARAMETERS,
        measurements=(
            measured(32),
            measured(64, Status.WRONG_RESULT, message="c[5] is NaN"),
            measured(128, Status.COMPILE_FAILED),
        ),
        timestamps=("2026-11-21T00:00:00+00:00",) * 3,
    )


@pytest.fixture
def records() -> list[TunedRecord]:
    """Two devices, two problems on the first."""
    return [
        record([entry(problem(512, 64), plan(128)), entry(problem(64, 8, "float16"))]),
        record([entry(problem(64, 64))], "Test GPU B", "sm_80"),
    ]


# ---------------------------------------------------------------------- by name


def test_every_format_gives_equal_bytes(records: list[TunedRecord], results: Results) -> None:
    assert export_records("header", records) == export_records("header", records[::-1])
    for name in ("t4", "cache"):  # cuda is of a kernel that is declared: test_export_cuda
        assert export_measurements(name, results) == export_measurements(name, results)


def test_nothing_tuned_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="nothing is tuned"):
        export_records("header", [])


# ---------------------------------------------------------------------- measurements


def test_t4_keeps_to_its_schema(results: Results) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    file_utils = pytest.importorskip("kernel_tuner.file_utils")
    document = json.loads(export_measurements("t4", results)[f"{KERNEL}-t4.json"])
    _, schema = file_utils.output_file_schema("results")
    jsonschema.validate(document, schema)
    rows = document["results"]
    assert [row["invalidity"] for row in rows] == ["correct", "correctness", "compile"]
    assert [row["correctness"] for row in rows] == [1, 0, 0]
    assert rows[0]["measurements"] == [{"name": "time", "value": 0.2, "unit": "ms"}]
    assert rows[0]["times"]["compilation_time"] == 1500
    assert rows[0]["configuration"] == dict(results.measurements[0].configuration)


@pytest.mark.parametrize("status", list(Status))
def test_every_status_has_a_word_in_t4(status: Status, results: Results) -> None:
    from dataclasses import replace

    only = replace(results, measurements=(measured(32, status),), timestamps=("",))
    row = json.loads(export_measurements("t4", only)[f"{KERNEL}-t4.json"])["results"][0]
    assert (row["invalidity"] == "correct") == status.is_timed
    assert "timestamp" not in row


def test_kernel_tuner_reads_the_cache(results: Results, tmp_path: Path) -> None:
    util = pytest.importorskip("kernel_tuner.util")
    path = tmp_path / "cache.json"
    path.write_text(export_measurements("cache", results)[f"{KERNEL}-cache.json"])
    data = util.read_cache(str(path), open_cache=False)
    assert list(data["cache"]) == ["32,True,auto", "64,True,auto", "128,True,auto"]
    assert data["cache"]["32,True,auto"]["time"] == 0.2
    assert isinstance(data["cache"]["128,True,auto"]["__error__"], util.CompilationFailedConfig)
    assert data["tune_params_keys"] == list(PARAMETERS)
    assert data["problem_size"] == [64, 128]


def test_a_value_of_a_field_names_no_file_outside_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_space(tmp_path, ("Problem(n=1000)", 'Problem(mode="", other="")'))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    modes = [("../../../../escaped", ""), ("1-other2", "3"), ("1", "2-other3"), ("/", "\ud800")]
    timed = measured(1)
    with Store.open(default_url()) as store:
        run_id = store.begin_run(RunInfo("scale", "GPU", "random", 0, "0.1.0", ""))
        for mode, other in modes:
            for timing in ("cold:graph", "hot", "mixed:graph"):
                scope = Scope(
                    "scale", Problem(mode=mode, other=other), "u", "GPU", "1", "n", "s", "a", timing
                )
                store.add(run_id, scope, replace(timed, configuration=Configuration(BLOCK=32)))
    for format in ("t4", "cache"):
        out = tmp_path / "deep" / "out" / format
        assert run(["export", "scale", format, "--out", str(out)]) == 0
        made = list(tmp_path.rglob(f"scale-{format}.json"))
        assert len(made) == 3 * len(modes)
        assert {file.parents[2] for file in made} == {out}
