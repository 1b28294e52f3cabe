"""Falsified records, imported and laid by hand: none changes an answer silently.

Each is a record of a run with one place changed. It is refused with one line, or its answers are the same, or they
say that they are stale or of lower quality, or the commands that compute launches name the place.
"""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_importing import COST, FALSIFIED, FIRST, TABLE, edited, kernel, small, spaces

from autotune.checking.importing import checked
from autotune.checking.launch_faults import record_faults
from autotune.cli import run
from autotune.errors import NoAnswerError, RecordError, UsageError
from autotune.kernel.spec import Kernel
from autotune.run.recording import recomputed
from autotune.tuned.lookup import clear_cache, lookup
from autotune.tuned.merged import QUALITIES
from autotune.tuned.reading import decode, read
from autotune.tuned.record import TunedRecord
from autotune.tuned.recorded_device import RecordedDevice
from autotune.tuned.writing import encode

__all__ = ["kernel", "small", "spaces"]  # fixtures

ROW = (*TABLE, "rows", 0, "plans", 0)
CONTENDER = (*FIRST, "race", "contenders", 0)
TREE: dict[str, Any] = {"corrections": [[[[[9, 1]], [1.0, 1.0]]]] * 2}

#: Further places and values.
MORE: dict[str, tuple[tuple[Any, ...], Any]] = {
    "value outside the parameters": ((*ROW, "configuration", "BLOCK"), 31337),
    "winner's value outside the parameters": ((*FIRST, "plans", 0, "configuration", "BLOCK"), 96),
    "default outside the parameters": (("defaults", 0, "plans", 0, "configuration", "VEC"), 4),
    "missing parameter": ((*ROW, "configuration"), {"BLOCK": 32}),
    "parameter of another kernel": ((*ROW, "configuration"), {"TILE": 32}),
    "text for an integer": ((*ROW, "configuration", "BLOCK"), "32"),
    "float for an integer": ((*ROW, "configuration", "BLOCK"), 32.0),
    "bool for an integer": ((*ROW, "configuration", "VEC"), True),
    "null for a configuration": ((*ROW, "configuration"), None),
    "zero blocks": ((*ROW, "grid"), [0, 1, 1]),
    "negative blocks": ((*ROW, "grid"), [-7, 1, 1]),
    "huge grid": ((*ROW, "grid"), [10**10, 1, 1]),
    "grid beyond the limit in y": ((*ROW, "grid"), [1, 65536, 1]),
    "small grid": ((*ROW, "grid"), [1, 1, 1]),
    "grid of two": ((*ROW, "grid"), [1, 1]),
    "grid of a cost": ((*COST, "plan", "grid"), [1, 1, 1]),
    "no grid": ((*FIRST, "plans", 0, "grid"), None),
    "division by zero": ((*ROW, "grid", 0), ["//", "n", 0]),
    "grid as code": ((*ROW, "grid", 0), "__import__('os')"),
    "zero threads": ((*ROW, "block"), [0, 1, 1]),
    "negative threads": ((*ROW, "block"), [-32, 1, 1]),
    "other threads": ((*ROW, "block"), [64, 1, 1]),
    "threads above the limit": ((*ROW, "block"), [2048, 1, 1]),
    "threads of the winner": ((*FIRST, "plans", 0, "block"), [64, 1, 1]),
    "shared bytes above the limit": ((*ROW, "shared_bytes"), 1 << 20),
    "negative shared bytes": ((*ROW, "shared_bytes"), -1),
    "fewer shared bytes": ((*COST, "plan", "shared_bytes"), 0),
    "cluster": ((*ROW, "cluster"), [2, 1, 1]),
    "large cluster": ((*ROW, "cluster"), [16, 1, 1]),
    "cooperative": ((*ROW, "cooperative"), True),
    "programmatic": ((*COST, "plan", "programmatic"), True),
    "condition as text": ((*ROW, "requires"), "n % 4 == 0"),
    "condition that is never met": ((*ROW, "requires"), 0),
    "condition without fields": ((*ROW, "requires"), ["==", ["%", "q", 4], 0]),
    "no condition": ((*COST, "plan", "requires"), None),
    "architecture that is none": ((*COST, "plan", "archs", 0), "sm_90x"),
    "more architectures": ((*COST, "plan", "archs"), ["sm_90", "sm_99"]),
    "exclusive": ((*ROW, "exclusive"), True),
    "deterministic": ((*ROW, "deterministic"), True),
    "time of zero": ((*CONTENDER, "time_ms", 0), 0.0),
    "negative time": ((*CONTENDER, "time_ms", 0), -1.0),
    "infinite time": ((*CONTENDER, "time_ms", 0), 1e999),
    "time as text": ((*CONTENDER, "time_ms", 0), "fast"),
    "reversed interval": ((*CONTENDER, "time_ms"), [1.0, 2.0, 0.5]),
    "time of the matrix": (("portfolio", "median_ms", 0, 0), -1.0),
    "matrix without a column": (("portfolio", "median_ms", 0), [1.0]),
    "date that is none": ((*FIRST, "origin", "tuned_on"), "yesterday"),
    "month 13": (("provenance", "created"), "2026-13-01T00:00:00+00:00"),
    "date of 2099": ((*FIRST, "origin", "tuned_on"), "2099-01-01T00:00:00+00:00"),
    "name of another model": (("device", "name"), "NVIDIA A100-SXM4-80GB"),
    "name of another device": (("device", "name"), "Test GPU 2"),
    "name with a line": (("device", "name"), "Test\nGPU"),
    "name with a path": (("device", "name"), "../../Test GPU"),
    "name with a control character": (("device", "name"), "Test\x1b[2JGPU"),
    "unknown backend": (("device", "backend"), "metal"),
    "architecture of an OpenCL device": (("device", "arch"), "opencl_cpu"),
    "compute capability that is none": (("device", "arch"), "sm_999"),
    "more threads for the device": (("device", "max_threads_per_block"), 4096),
    "more shared memory for the device": (("device", "shared_bytes_per_block"), 1 << 30),
    "name of another kernel": (("kernel",), "transpose"),
    "kernel with a path": (("kernel",), "../scale"),
    "newer schema": (("schema_version",), 99),
    "schema of a float": (("schema_version",), 2.5),
    "no format": (("format",), "cache"),
    "empty source": ((*FIRST, "origin", "source"), ""),
    "empty arguments": ((*FIRST, "origin", "arguments"), ""),
    "integer of 70 bits": ((*FIRST, "origin", "seed"), 2**70),
    "size of 70 bits": ((*FIRST, "problem", "n"), 2**70),
    "problem twice": ((*FIRST, "problem", "n"), 50_000),
    "row twice": ((*TABLE, "rows", 0, "problem", "n"), 50_000),
    "field of text": ((*FIRST, "problem", "n"), "1000"),
    "tree of no feature": ((*TABLE, "prediction", "corrections"), TREE["corrections"]),
    "trees of other costs": ((*TABLE, "prediction", "corrections"), [[]]),
    "cost of no field": ((*COST, "fixed"), [[0.5, ["q"]]]),
    "infinite cost": ((*COST, "fixed"), [[1e999, []]]),
    "multiple of zero": ((*TABLE, "prediction", "multiple"), 0),
    "effort that is none": ((*FIRST, "origin", "effort"), "heroic"),
    "no contenders": ((*FIRST, "race", "contenders"), []),
    "vendor's winner": ((*CONTENDER, "vendor"), "cublas"),
    "no plans": ((*FIRST, "plans"), []),
    "no values": (("parameters", "BLOCK"), []),
    "plan of another row": (
        ROW,
        lambda made: made["portfolio"]["tables"][0]["rows"][3]["plans"][0],
    ),
    "another winner": (FIRST, lambda made: _with_second(made)),
    "rows of other times": (
        ("portfolio", "median_ms"),
        lambda m: m["portfolio"]["median_ms"][::-1],
    ),
}


def _with_second(made: dict[str, Any]) -> dict[str, Any]:
    """The first entry, won by its runner-up."""
    entry, table = made["problems"][0], made["portfolio"]["tables"][0]
    first, second = entry["race"]["contenders"]
    (plan,) = (
        cost["plan"]
        for cost in table["prediction"]["costs"]
        if cost["plan"]["configuration"] == second["configuration"]
    )
    race = {**entry["race"], "contenders": [second, first]}
    return {**entry, "race": race, "plans": [plan], "steps": []}


def _inserted(before: bytes, text: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(before, text + before, 1)


#: Changes of bytes that no document has.
BYTES: dict[str, Callable[[bytes], bytes]] = {
    "cut off": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "NaN": lambda data: data.replace(b'"limit_fraction": 0.5', b'"limit_fraction": NaN'),
    "not UTF-8": lambda data: data.replace(b'"Test GPU"', b'"Test \xff"', 1),
    "key twice": _inserted(b'"kernel"', b'"kernel": "x", "kernel": "y", '),
    "problems twice": _inserted(b'"portfolio"', b'"problems": [], '),
    "deep nesting": _inserted(b'"portfolio"', b'"x": ' + b"[" * 200_000 + b"]" * 200_000 + b", "),
    "long list": _inserted(b'"portfolio"', b'"x": [' + b"0," * (17 << 20) + b"0], "),
    "another file": lambda data: b'{"cache": {}}',
}
EDITS: dict[str, tuple[tuple[Any, ...], Any]] = {
    **{name: (path, value) for name, (path, value, _) in FALSIFIED.items()},
    **MORE,
}
#: By hand another valid configuration may take the place of the fastest one: only times show that.
NOT_DEFENDED = {"another winner"}


def _falsified(name: str, made: TunedRecord) -> bytes:
    if name in BYTES:
        return BYTES[name](encode(made))
    path, value = EDITS[name]
    return edited(made, path, value(json.loads(encode(made))) if callable(value) else value)


ARCHS = ("sm_90", "sm_80", "opencl_cpu")


def test_there_are_more_than_sixty() -> None:
    assert len(EDITS) + len(BYTES) > 100


def _answers() -> list[Any]:
    """Qualities and answers of lookup; a stale answer is empty, since it says so."""
    found = list[Any]()
    for n in (1, 1000, 1001, 6000, 20_000, 50_000, 90_000, 10**7):
        for where in ({"device": "Test GPU"}, *({"arch": a} for a in ARCHS)):
            try:
                each = lookup("scale", n=n, **where)
            except NoAnswerError:
                found.append((len(QUALITIES), ()))
                continue
            answer = dict(each), each.launches, each.exclusive, each.deterministic
            found.append((QUALITIES.index(each.quality), () if each.stale_reasons else answer))
    return found


@pytest.fixture(params=["cuda", pytest.param("opencl", marks=pytest.mark.full)])
def made(request: pytest.FixtureRequest, small: TunedRecord, kernel: Kernel) -> TunedRecord:
    """A record of a GPU, and one of a CPU through OpenCL."""
    if request.param == "cuda":
        return small
    cpu = RecordedDevice(
        backend="opencl", name="Test GPU", arch="opencl_cpu", max_threads_per_block=4096
    )
    return recomputed(msgspec.structs.replace(small, device=cpu), kernel)


@pytest.fixture
def laid(small: TunedRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of a record that was laid by hand."""
    file = tmp_path / "reports" / small.device.folder / "scale.json"
    file.parent.mkdir(parents=True)
    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path / "reports"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return file


@pytest.mark.parametrize("name", [*EDITS, *BYTES])
def test_laid_by_hand_it_changes_no_answer_silently(
    name: str, made: TunedRecord, kernel: Kernel, laid: Path
) -> None:
    if "architecture" in name and made.device.backend == "opencl":
        assert not any(plan.archs for plan in made.plans())  # nothing to falsify
        return
    laid = laid.parents[1] / made.device.folder / laid.name
    laid.parent.mkdir(exist_ok=True)
    laid.write_bytes(encode(made))
    clear_cache()
    right = _answers()
    laid.write_bytes(_falsified(name, made))
    clear_cache()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = _answers()
        except UsageError as error:
            assert "no tuned record" in str(error)
            (warning,) = {str(each.message) for each in caught}
            assert str(laid) in warning and "\n" not in warning
            return
    assert not caught
    changed = [
        (now, then)
        for (quality, now), (better, then) in zip(found, right, strict=True)
        if now not in ((), then) and quality <= better
    ]
    is_told = any(record_faults(read(laid), kernel))
    assert bool(changed and not is_told) == (name in NOT_DEFENDED), changed[:2]


@pytest.mark.parametrize("name", [*MORE, *BYTES])
def test_imported_it_is_refused_with_one_line_or_changes_no_answer(
    name: str, small: TunedRecord, kernel: Kernel
) -> None:
    try:
        found = checked(decode(_falsified(name, small), "theirs.json"), kernel)
    except RecordError as error:
        assert "\n" not in str(error) and len(str(error)) < 600
    else:
        assert (found.portfolio, found.default) == (small.portfolio, small.default)
        plans = [tuned.plans for tuned in small.problems]
        assert all(tuned.plans in plans for tuned in found.problems)


def test_the_line_names_the_file(
    small: TunedRecord, spaces: Path, laid: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("small grid", "zero blocks", "date of 2099"):
        laid.write_bytes(_falsified(name, small))
        assert run(["import", str(laid), "--spaces", str(spaces)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {laid}: ")
