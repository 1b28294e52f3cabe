"""Kernel Tuner's cache files are read as they are found: unclosed, gzipped, with failures, damaged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from autotune.errors import RecordError, UsageError
from autotune.measure.measurement import Status
from autotune.search.names import BudgetSpent
from autotune.search.replay import ReplayEvaluator, ReplaySession, load
from autotune.values import Configuration, Problem

DATA = Path(__file__).parent / "data" / "synthetic.json.gz"
RECORDED = Path(__file__).resolve().parents[2] / "shared" / "recorded"


def cache(**changes: Any) -> dict[str, Any]:
    """A small cache; keyword arguments replace what is at the top."""
    return {
        "device_name": "NVIDIA A100",
        "kernel_name": "add",
        "problem_size": [1024, 8],
        "tune_params_keys": ["BLOCK", "KIND"],
        "tune_params": {"BLOCK": [64, 32], "KIND": ["a", "b"]},
        "objective": "time",
        "cache": {
            # Not in the order of the space.
            "32,b": entry(32, "b", time=2.0, times=[3.0, 1.0, 2.0, 4.0], compile_time=1500.0),
            "64,a": entry(64, "a", time=5.0),
            "32,a": entry(32, "a", time="CompilationFailedConfig"),
            "64,b": entry(64, "b", __error__="InvalidConfig"),
        },
        **changes,
    }


def entry(block: int, kind: str, **rest: Any) -> dict[str, Any]:
    return {"BLOCK": block, "KIND": kind, **rest}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Write a cache file; return its path."""

    def write(data: Any, name: str = "some-A100.json") -> Path:
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
        return path

    return write


def test_reads_configurations_times_and_failures(write: Any) -> None:
    recording = load(write(cache()))
    assert recording.kernel == "add"
    assert recording.problem == Problem(x=1024, y=8)
    assert (recording.device.backend, recording.device.name) == ("replay", "NVIDIA A100")
    assert recording.device.folder == "replay_NVIDIA_A100"
    assert [dict(one) for one in recording.space] == [
        {"BLOCK": 64, "KIND": "a"},
        {"BLOCK": 64, "KIND": "b"},
        {"BLOCK": 32, "KIND": "a"},
        {"BLOCK": 32, "KIND": "b"},
    ]
    only, invalid, uncompiled, best = recording.measurements
    assert [one.configuration for one in recording.measurements] == list(recording.space)
    assert best.samples_ms == (1.0, 2.0, 4.0)  # the first runs cold
    assert best.compile_s == 1.5
    assert only.samples_ms == (5.0,)
    assert (invalid.status, uncompiled.status) == (Status.PRUNED, Status.COMPILE_FAILED)
    assert "InvalidConfig" in invalid.message
    assert uncompiled.median_ms is None
    assert recording.best_ms == 2.0


@pytest.mark.parametrize(
    ("time", "status"),
    [
        ("RuntimeFailedConfig", Status.LAUNCH_FAILED),
        ("SomethingNewConfig", Status.LAUNCH_FAILED),
        (1e20, Status.LAUNCH_FAILED),
    ],
)
def test_other_ways_to_fail(write: Any, time: Any, status: Status) -> None:
    data = cache(cache={"64,a": entry(64, "a", time=time)})
    recording = load(write(data))
    assert recording.measurements[0].status is status
    assert recording.best_ms is None


def test_gzip_is_told_by_content_not_by_name(write: Any) -> None:
    path = write(gzip.compress(json.dumps(cache()).encode()), "plain.json")
    assert len(load(path).space) == 4


def test_an_unclosed_cache_is_whole(write: Any) -> None:
    text = json.dumps(cache())
    assert text.endswith("}}")
    for end in ("", ",", ",\n", "\n"):
        assert len(load(write((text[:-2] + end).encode())).space) == 4


def test_names_that_the_file_lacks_come_from_its_name(write: Any) -> None:
    recording = load(write(cache(device_name="", kernel_name=None), "gemm-MI250X.json.gz"))
    assert recording.device.name == recording.kernel == "gemm-MI250X"


def test_values_not_declared_by_old_versions_come_from_the_configurations(write: Any) -> None:
    data = cache()
    del data["tune_params"]
    assert load(write(data)).space.parameters == {"BLOCK": (32, 64), "KIND": ("a", "b")}


def test_uuid_stands_for_the_content(write: Any) -> None:
    same = [load(write(cache(), name)).device.uuid for name in ("a.json", "b.json")]
    assert same[0] == same[1] != load(write(cache(objective="energy"))).device.uuid


DAMAGE = {
    "not JSON": (b"# a comment", "not JSON, or cut off"),
    "empty": (b"", "not JSON, or cut off"),
    "binary": (b"\x00\xff\xfe", "not a text file"),
    "damaged gzip": (gzip.compress(b"{}" * 1000)[:-20], "gzip data is damaged"),
    "cut off": (json.dumps(cache()).encode()[:-40], "cut off"),
    "a list": ([1, 2], "not a Kernel Tuner cache"),
    "a T4 file": ({"schema_version": "1.0.0", "results": []}, "not a Kernel Tuner cache"),
    "no configuration": (cache(cache={}), "no configuration was recorded"),
    "no names": (cache(tune_params_keys=[], tune_params={}), "tune_params_keys"),
    "names of numbers": (cache(tune_params_keys=[1]), "tune_params_keys"),
    "values of a list": (
        cache(tune_params={"BLOCK": [[1]], "KIND": ["a"]}),
        r"tune_params\['BLOCK",
    ),
    "entry of text": (cache(cache={"64,a": "fast"}), r"cache\['64,a'\]: an object"),
    "missing value": (cache(cache={"64,a": {"BLOCK": 64, "time": 1.0}}), "no usable value of KIND"),
    "foreign value": (cache(cache={"7,a": entry(7, "a", time=1.0)}), "BLOCK=7 is not among"),
    "negative time": (cache(cache={"64,a": entry(64, "a", time=-1.0)}), "must be positive"),
    "nan": (cache(cache={"64,a": entry(64, "a", times=[float("nan")])}), "must be positive"),
    "no time": (cache(cache={"64,a": entry(64, "a")}), "list of numbers"),
    "times of text": (cache(cache={"64,a": entry(64, "a", times=["1"])}), "list of numbers"),
    "duration of text": (
        cache(cache={"64,a": entry(64, "a", time=1, compile_time="1")}),
        "compile_t",
    ),
    "twice": (
        cache(cache={k: entry(64, "a", time=1.0) for k in ("64,a", "64,a ")}),
        "occurs twice",
    ),
    "too deep": (b"[" * 100_000, "not JSON, or cut off"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_with_its_place(write: Any, kind: str) -> None:
    content, message = DAMAGE[kind]
    with pytest.raises(RecordError, match=message) as caught:
        load(write(content, "bad.json"))
    assert "bad.json" in str(caught.value)
    assert ";" in str(caught.value)  # what to do


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"nowhere\.json.*No such file"):
        load(tmp_path / "nowhere.json")
    with pytest.raises(RecordError, match=r"Is a directory"):
        load(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
PLACES = st.sampled_from(
    [
        *[(name,) for name in cache()],
        ("tune_params", "BLOCK"),
        ("cache", "32,b"),
        *[("cache", "32,b", name) for name in cache()["cache"]["32,b"]],
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PLACES, JSON)
@example(("tune_params", "BLOCK"), [32, 32.5, "x"])
@example(("cache", "32,b", "BLOCK"), 10**400)
@example(("cache", "32,b", "times"), [10**400])
@example(("cache", "32,b", "compile_time"), 10**400)
@example(("problem_size",), 10**5000)
def test_any_value_anywhere_is_read_or_a_record_error(
    tmp_path: Path, place: tuple[str, ...], value: Any
) -> None:
    data: Any = cache()
    target = data
    for name in place[:-1]:
        target = target[name]
    target[place[-1]] = value
    path = tmp_path / "any.json"
    try:
        path.write_text(json.dumps(data))
    except ValueError:  # an integer too long to write
        return
    try:
        assert load(path).space
    except RecordError as error:
        assert "any.json" in str(error)


def test_evaluator_answers_in_order_and_knows_only_what_was_recorded() -> None:
    recording = load(DATA)
    evaluator = ReplayEvaluator(recording)
    asked = [recording.space.configuration(index) for index in (5, 3, 5)]
    evaluator.hint(asked)
    answers = list(evaluator.measure(asked))
    assert [one.configuration for one in answers] == asked
    assert answers == [recording.measurements[index] for index in (5, 3, 5)]
    with pytest.raises(UsageError, match=r"synthetic\.json\.gz has no configuration BM=1"):
        list(evaluator.measure([Configuration(BM=1)]))


def test_session_measures_what_the_budget_allows_then_ends() -> None:
    recording = load(DATA)
    session = ReplaySession(recording, 3)
    assert session.measure([7, 8]) == [recording.measurements[7], recording.measurements[8]]
    assert session.measure([8]) == [recording.measurements[8]]
    assert session.evaluations_left == 1
    with pytest.raises(BudgetSpent):
        session.measure([8, 9, 10])
    assert session.path == [7, 8, 9]
    assert session.measure([9, 7]) == [recording.measurements[9], recording.measurements[7]]


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "count", "timed", "best_ms"),
    [
        ("convolution_milo-A100", 4362, 4201, 0.5499),
        ("convolution_milo-A4000", 4362, 4201, 0.9953),
        ("convolution_milo-MI250X", 4362, 4362, 0.6558),
        ("convolution-RTX_3090", 6768, 5220, 0.5222),
        ("gemm-RTX_3090", 17956, 17956, 5.6576),
    ],
)
def test_published_recordings(name: str, count: int, timed: int, best_ms: float) -> None:
    path = RECORDED / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"no recorded spaces beside this checkout ({RECORDED})")
    recording = load(path)
    assert len(recording.space) == len(recording.measurements) == count
    assert sum(one.median_ms is not None for one in recording.measurements) == timed
    assert recording.best_ms == pytest.approx(best_ms, abs=1e-4)
    assert recording.device.name
