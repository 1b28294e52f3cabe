"""Kernel Tuner's cache files are read as they are found: unclosed, gzipped, with failures, damaged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from recorded import load

from autotune.errors import RecordError
from autotune.interop.formats import read
from autotune.measure.measurement import Status
from autotune.values import Configuration, Problem

RECORDINGS = sorted((Path(__file__).parent / "data").glob("*.json.gz"))


def cache(**changes):
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


def entry(block, kind, **rest):
    return {"BLOCK": block, "KIND": kind, **rest}


@pytest.fixture
def write(tmp_path):
    """Write a cache file; return its path."""

    def write(data, name="some-A100.json"):
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
        return path

    return write


def test_reads_configurations_times_and_failures(write):
    recording = read(write(cache()))
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


@pytest.mark.parametrize(
    ("time", "status"),
    [("RuntimeFailedConfig", Status.LAUNCH_FAILED), (1e20, Status.LAUNCH_FAILED)],
)
def test_other_ways_to_fail(write, time, status):
    data = cache(cache={"64,a": entry(64, "a", time=time)})
    recording = read(write(data))
    assert recording.measurements[0].status is status
    assert recording.best(1) == []


def test_gzip_is_told_by_content_not_by_name(write):
    path = write(gzip.compress(json.dumps(cache()).encode()), "plain.json")
    assert len(read(path).measurements) == 4


def test_an_unclosed_cache_is_whole(write):
    text = json.dumps(cache())
    assert text.endswith("}}")
    for end in ("", ",", ",\n", "\n"):
        assert len(read(write((text[:-2] + end).encode())).measurements) == 4


def test_names_that_the_file_lacks_come_from_its_name(write):
    recording = read(write(cache(device_name="", kernel_name=None), "gemm-MI250X.json.gz"))
    assert recording.device_name == recording.kernel == "gemm-MI250X"


def test_values_not_declared_by_old_versions_come_from_the_configurations(write):
    data = cache()
    del data["tune_params"]
    assert read(write(data)).parameters == {"BLOCK": (32, 64), "KIND": ("a", "b")}


DAMAGE = {
    "not JSON": (b"# a comment", "not JSON, or cut off"),
    "empty": (b"", "not JSON, or cut off"),
    "damaged gzip": (gzip.compress(b"{}" * 1000)[:-20], "gzip data is damaged"),
    "cut off": (json.dumps(cache()).encode()[:-40], "cut off"),
    "an empty T4 file": ({"schema_version": "1.0.0", "results": []}, "no configuration was rec"),
    "a T1 file": ({"ConfigurationSpace": {}}, "not a Kernel Tuner cache"),
    "a foreign field": (cache(owner="me"), "unknown field `owner`"),
    "no configuration": (cache(cache={}), "no configuration was recorded"),
    "missing value": (
        cache(cache={"64,a": {"BLOCK": 64, "time": 1.0}}),
        "not every configuration has BLOCK, KIND",
    ),
    "negative time": (cache(cache={"64,a": entry(64, "a", time=-1.0)}), "> 0.0"),
    "no time": (cache(cache={"64,a": entry(64, "a")}), "no time was measured"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_with_its_place(write, kind):
    content, message = DAMAGE[kind]
    with pytest.raises(RecordError, match=message) as caught:
        read(write(content, "bad.json"))
    assert "bad.json" in str(caught.value)
    assert ";" in str(caught.value)  # what to do


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(RecordError, match=r"nowhere\.json.*No such file"):
        read(tmp_path / "nowhere.json")
    with pytest.raises(RecordError, match=r"Is a directory"):
        read(tmp_path)


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
def test_any_value_anywhere_is_read_or_a_record_error(tmp_path, place, value):
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
        assert read(path).measurements
    except RecordError as error:
        assert "any.json" in str(error)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.split(".")[0])
def test_a_recording_says_what_its_file_does(path):
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
