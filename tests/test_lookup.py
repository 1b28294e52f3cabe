"""Lookup: how good the hit is, which record answers, and that nothing at hand can break it."""

import ctypes
import json
import pickle
import random
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from math import isqrt
from operator import ge, getitem
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sample_records import (
    KERNEL,
    PARAMETERS,
    VALUES_OF_ANY_KIND,
    WRONG,
    answering,
    entry,
    expecting,
    places,
    plan,
    problem,
    random_record,
    record,
    table_of,
    with_cost,
    with_deterministic,
    without_privileges,
    write,
)

import autotune
from autotune.answers.table import (
    AnswerTable,
    Cost,
    PlannedLaunch,
    Portfolio,
    Prediction,
    TableRow,
    sixteenths,
)
from autotune.devices.device import MAX_GRID, arch_of_model, for_arch
from autotune.errors import NoAnswerError, UsageError
from autotune.export.header import render
from autotune.files import bundled_path
from autotune.project import bundled_project
from autotune.tuned import lookup as _lookup
from autotune.tuned import reading as _files
from autotune.tuned.answer import TunedConfig, TunedLaunch, tuned_config
from autotune.tuned.lookup import clear_cache, first_gpu, lookup, promising
from autotune.tuned.merged import QUALITIES, build_table, pick
from autotune.tuned.reading import RecordFile, current_project, device_folders, user_folder
from autotune.tuned.record import ContenderResult, Estimate, TunedProblem, TunedRecord
from autotune.tuned.recorded_device import RecordedDevice
from autotune.tuned.writing import encode, merge


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is visible, and nothing is remembered from the test before."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    clear_cache()


def put(folder: Path, *records: TunedRecord) -> None:
    """Write records and forget what was read before."""
    for made in records:
        write(folder, made)
    clear_cache()


@pytest.fixture
def given_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that AUTOTUNE_TUNED names."""
    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path / "given"))
    return tmp_path / "given"


def tile(config: TunedConfig) -> Any:
    """What tells the plans of these tests apart."""
    return config["BM"]


# ---------------------------------------------------------------------- how good the hit is


@pytest.fixture
def tuned_folder(given_folder: Path) -> Path:
    """Two devices of sm_90, one of sm_80, each with a tile of its own."""
    put(
        given_folder,
        record([entry(problem(512, 512), plan(128))]),
        record([entry(problem(64, 64), plan(64))], "Test GPU B"),
        record([entry(problem(64, 64), plan(32, archs=("sm_80", "sm_86")))], "Old GPU", "sm_80"),
    )
    return given_folder


@pytest.mark.parametrize(
    ("where", "size", "quality", "expected_tile"),
    [
        ({"device": "Test GPU A"}, 512, "exact", 128),
        ({"device": "Test_GPU_A"}, 512, "exact", 128),
        ({"device": "GPU-Test GPU A"}, 512, "exact", 128),
        ({"device": "Test GPU A"}, 64, "nearest_problem", 128),
        ({"device": "Test GPU C", "arch": 90}, 64, "same_arch", 64),
        ({"arch": "sm_90"}, 64, "exact", 64),
        ({"arch": 90}, 512, "exact", 128),
        ({"arch": "9.0"}, 500, "nearest_problem", 128),
        ({"arch": "sm_90a"}, 70, "nearest_problem", 64),
        ({"arch": 900}, 64, "exact", 64),
        ({"arch": "sm_86"}, 64, "nearest_arch", 32),
        ({"arch": "sm_100"}, 64, "nearest_arch", 64),
        ({"device": "Test GPU C"}, 64, "default", 32),
        ({"arch": "gfx942"}, 64, "default", 32),
        ({}, 64, "default", 32),
    ],
)
def test_quality(
    where: dict[str, Any], size: int, quality: str, expected_tile: int, tuned_folder: Path
) -> None:
    config = lookup(KERNEL, **where, **problem(size, size))
    assert (config.quality, tile(config)) == (quality, expected_tile)


@pytest.mark.parametrize("arch", ["hopper", "sm_9", "sm_9000", 9000, 10**6, "", -90])
def test_what_is_no_architecture_is_refused(arch: Any, tuned_folder: Path) -> None:
    expected = (
        r"not an architecture; write for example sm_90, 90, 9.0 or 900 \(tuned: sm_80, sm_90\)"
    )
    with pytest.raises(UsageError, match=expected):
        lookup(KERNEL, arch=arch, **problem(64, 64))


def test_sizes_are_not_negative_and_may_be_zero(tuned_folder: Path) -> None:
    with pytest.raises(UsageError, match="problem field m=-1 must be at least 0"):
        lookup(KERNEL, arch=90, **problem(-1, 64))
    empty = lookup(KERNEL, arch=90, **problem(0, 64))
    assert (tile(empty), empty.grid) == (64, (0, 1, 1))


def test_what_an_answer_was_tuned_for(tuned_folder: Path) -> None:
    for size in (64, 65):
        origin = lookup(KERNEL, arch=90, **problem(size, size)).origin
        assert (origin.source, origin.arguments) == ("f00d", "beef")
    assert lookup(KERNEL, arch="gfx942", **problem(64, 64)).origin is None


def test_what_a_config_says(tuned_folder: Path) -> None:
    config = lookup(KERNEL, device="Test GPU A", **problem(512, 640))
    assert dict(config) == {"BM": 128, "SWIZZLE": False, "VARIANT": "simt"}
    assert (config.block, config.shared_bytes, config.grid) == ((128, 2, 1), 16384, (4, 10, 1))
    assert config.source == f"AUTOTUNE_TUNED:Test_GPU_A/{KERNEL}"
    assert (config.expected_fraction, config.stale_reasons) == (None, ())
    assert config.exclusive is False
    assert len(config) == 3
    assert "BM=128" in repr(config)


def test_an_answer_is_verified_at_tuned_problems_and_in_ranges_of_verified_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record without ranges knows no size but its own."""
    inside = {"m": (1, 100), "n": (2, 64), "dtype": "float32"}
    longer = {"m": (1, 8), "n": (2, 10**6), "dtype": "float32"}
    made = record([msgspec.structs.replace(entry(problem(64, 64)), verified=(inside, longer))])
    write(tmp_path, made)
    write(tmp_path, record([entry(problem(64, 64))], "Other GPU", "sm_80"))
    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path))
    sizes = {(64, 64): True, (100, 2): True, (8, 10**6): True}
    sizes |= {(101, 2): False, (100, 1): False, (9, 65): False}
    for (m, n), verified in sizes.items():
        assert lookup(KERNEL, device="Test GPU A", **problem(m, n)).verified == verified
        assert lookup(KERNEL, arch=80, **problem(m, n)).verified == (m == n == 64)
    assert not lookup(KERNEL, arch="gfx942", **problem(64, 64)).verified


def test_a_config_is_immutable_and_can_be_pickled(tuned_folder: Path) -> None:
    config = lookup(KERNEL, arch=90, **problem(512, 512))
    with pytest.raises(AttributeError):
        config.block = (1, 1, 1)  # type: ignore[misc]
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    assert (again.grid, again.quality, again.source) == (config.grid, config.quality, config.source)


@pytest.fixture
def partly_deterministic(given_folder: Path) -> None:
    """Of two winners one is not, with another beside it; rows that are, that have a view that is, and neither."""
    sure, other = plan(64, deterministic=True), plan(128)
    rows = tuple(
        TableRow(problem=problem(size, size), plans=plans)
        for size, plans in ((512, (other, sure)), (64, (sure,)), (8, (other,)))
    )
    costs = tuple(
        Cost(plan=chosen, fixed=fixed, waves=())
        for chosen, fixed in ((other, ((1.0, ()),)), (sure, ((0.005, ("m",)),)))
    )
    prediction = Prediction(multiple=4, costs=costs, expected=expecting(0.9, 600))
    table = AnswerTable(rows=rows, prediction=prediction)
    winners = [
        with_deterministic(entry(problem(512, 512), other), sure),
        entry(problem(64, 64), sure),
        entry(problem(8, 8), other),
    ]
    put(given_folder, record(winners, portfolio=answering(table)))


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (512, ("exact", 128, 1.0, "exact", 64, 0.8)),  # what stands beside the winner
        (64, ("exact", 64, 1.0, "exact", 64, 1.0)),
        (8, ("exact", 128, 1.0, "nearest_problem", 64, None)),  # of (64, 64), from afar
        (513, ("nearest_problem", 128, 0.9, "nearest_problem", 64, None)),  # a row's view
        (65, ("nearest_problem", 64, 0.9, "nearest_problem", 64, 0.9)),
    ],
)
@pytest.mark.usefixtures("partly_deterministic")
def test_only_what_is_deterministic_answers_where_that_is_asked(
    size: int, expected: tuple[Any, ...]
) -> None:
    answers = [
        lookup(KERNEL, arch=90, deterministic=wanted, **problem(size, size))
        for wanted in (False, True)
    ]
    found = [(each.quality, tile(each), each.expected_fraction) for each in answers]
    assert (*found[0], *found[1]) == expected
    assert answers[1].deterministic
    # The time of a winner was measured, and that of a near answer predicted.
    predicted_ms = {128: 1.0, 64: 0.005 * size}
    times_ms = [
        predicted_ms[bm] if quality == "nearest_problem" else 0.25 if share == 1 else None
        for quality, bm, share in found
    ]
    assert [each.expected_ms for each in answers] == times_ms


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("m", [96, 3072])
def test_promising_configurations_begin_with_the_answer(m: int, deterministic: bool) -> None:
    """Each next is the answer without those before it, so none comes twice."""
    sizes = {"m": m, "n": 4000, "k": 333}
    found = promising("sgemm", "NVIDIA H200", 5, deterministic=deterministic, **sizes)
    answer = lookup("sgemm", device="NVIDIA H200", deterministic=deterministic, **sizes)
    assert dict(found[0]) == dict(answer) and len(found) == 5
    assert len({frozenset(configuration.items()) for configuration in found}) == 5


def test_an_unknown_device_has_no_promising_configurations(tuned_folder: Path) -> None:
    sizes = dict.fromkeys(("m", "n", "k"), 64)
    assert promising("sgemm", "opencl_nobody", 5, project=bundled_project(), **sizes) == []


def test_where_nothing_is_deterministic_that_is_an_error(tuned_folder: Path) -> None:
    with pytest.raises(
        NoAnswerError, match=r"m=64, n=64.* is declared deterministic; declare which"
    ):
        lookup(KERNEL, arch=90, deterministic=True, **problem(64, 64))


def test_the_fallback_table_answers_before_the_winners(given_folder: Path) -> None:
    table = table_of(plan(32), at=problem(512, 512), expected=expecting(0.9, 600))
    won = entry(problem(512, 512), plan(128))
    put(given_folder, record([won], portfolio=answering(table)))
    near = lookup(KERNEL, arch=90, **problem(512, 513))
    assert (tile(near), near.expected_fraction) == (32, 0.9)
    assert tile(lookup(KERNEL, arch=90, **problem(512, 512))) == 128


def test_expected_fractions_hold_on_the_device_only(given_folder: Path) -> None:
    table = table_of(plan(32), at=problem(512, 512), expected=expecting(0.9, 600))
    put(given_folder, record(portfolio=answering(table)))
    assert lookup(KERNEL, arch=100, **problem(512, 513)).expected_fraction is None
    assert lookup(KERNEL, device="X", arch=90, **problem(512, 513)).expected_fraction is None


def test_a_pick_expects_a_speed_on_its_device_and_in_the_tuned_layout_only() -> None:
    table = table_of(plan(32), at=problem(512, 512), expected=expecting(0.9, 600))
    made = record([entry(problem(64, 64))], layout={"lda": 0}, portfolio=answering(table))
    folder = made.device.folder
    merged = build_table([RecordFile("given", folder, made)])
    for m, own in ((64, 1.0), (513, 0.9)):
        key = (m, m, "float32")
        assert pick(merged, key, folder).expected_fraction == own
        for hit in (
            pick(merged, key, folder, layout={"lda": 7}),
            pick(merged, key, "X", "sm_90"),
            pick(merged, key, arch="sm_100"),
        ):
            assert hit.row and (hit.expected_fraction, hit.median_fraction) == (None, None)
            assert hit.expected_ms is None


def test_what_is_deterministic_and_faster_promises_no_more_than_all(given_folder: Path) -> None:
    second = plan(64, deterministic=True)
    raced = ContenderResult(
        configuration=second.configuration,
        time_ms=Estimate(0.24, 0.23, 0.25),
        ratio=Estimate(0.96, 0.95, 0.97),
        deterministic=True,
    )
    won = entry(problem(512, 512), plan(128), second=second, runners_up=(raced,))
    put(given_folder, record([won]))
    found = lookup(KERNEL, arch=90, deterministic=True, **problem(512, 512))
    assert (tile(found), found.expected_fraction) == (64, 1.0)


# ---------------------------------------------------------------------- tuned alone, beside a table

#: A table of one row that knows what to expect far and wide.
BROAD = Portfolio(
    configurations=(plan(64).configuration,),
    problems=(problem(512, 512),),
    median_ms=((1.0,),),
    tables=(table_of(plan(64), at=problem(512, 512), expected=expecting(0.9, 131072, 0.7)),),
)


def alone(given_folder: Path, made: TunedProblem, in_one_record: bool) -> Callable[[int, int], Any]:
    """Asks what answers where a problem was tuned alone: by the user, or in the record of the table."""
    if in_one_record:
        put(given_folder, record([made], portfolio=BROAD))
    else:
        put(Path(user_folder(current_project())), record(portfolio=BROAD))
        put(given_folder, record([made]))
    return lambda m, n: lookup(KERNEL, device="Test GPU A", **problem(m, n))


@pytest.mark.parametrize("in_one_record", [True, False])
def test_what_was_tuned_alone_answers_for_itself_only(
    given_folder: Path, in_one_record: bool
) -> None:
    ask = alone(given_folder, entry(problem(1024, 1024), plan(128)), in_one_record)
    itself, near, far = ask(1024, 1024), ask(1024, 1025), ask(1024, 8193)
    assert (itself.quality, tile(itself), itself.expected_fraction) == ("exact", 128, 1)
    assert (tile(near), near.expected_fraction) == (64, 0.9)
    assert (tile(far), far.expected_fraction) == (64, 0.7)
    shares = [ask(512, n).expected_fraction for n in (8192, 8600, 131072, 131073)]
    assert shares == [0.9, 0.7, 0.7, None]


def test_a_category_without_a_table_is_answered_by_its_winners(given_folder: Path) -> None:
    made = entry(problem(64, 64, "half2"), plan(128))
    put(given_folder, record([made], portfolio=BROAD))
    assert tile(lookup(KERNEL, arch=90, **problem(1, 10**6, "half2"))) == 128


# ---------------------------------------------------------------------- what an answer says of its record


def test_a_common_gpu_that_nobody_tuned_is_answered_by_its_architecture(
    tuned_folder: Path,
) -> None:
    config = lookup(KERNEL, device="NVIDIA H100 PCIe", **problem(64, 64))
    assert (config.quality, tile(config), config.expected_fraction) == ("same_arch", 64, None)


def test_entries_of_another_kernel_do_not_answer(given_folder: Path) -> None:
    """Their launches may be wrong; entries of the newest run's kernel answer in their place."""
    old, new = entry(problem(64, 64), plan(64)), entry(problem(512, 512), plan(128), source="beef")
    known = record([old, new])
    for name in ("source", "arguments"):
        now = msgspec.structs.replace(known.provenance, **{name: getattr(new.origin, name)})
        put(given_folder, msgspec.structs.replace(known, provenance=now))
        config = lookup(KERNEL, arch=90, **problem(64, 64))
        expected = ("nearest_problem", 128) if name == "source" else ("exact", 64)
        assert (config.quality, tile(config)) == expected
        clear_cache()
    gone = {**PARAMETERS, "BM": (32, 128)}
    put(given_folder, msgspec.structs.replace(known, parameters=gone))
    config = lookup(KERNEL, arch=90, **problem(64, 64))
    assert (config.quality, tile(config)) == ("nearest_problem", 128)


def test_noise_is_told(given_folder: Path) -> None:
    put(given_folder, record([entry(problem(64, 64), noise=("a busy device", "few rounds"))]))
    answers = [lookup(KERNEL, arch=90, **problem(size, size)) for size in (64, 65)]
    assert [config.noise for config in answers] == ["a busy device; few rounds"] * 2
    put(given_folder, record([entry(problem(64, 64))]))
    assert not lookup(KERNEL, arch=90, **problem(64, 64)).noise


def test_of_two_equally_near_the_first_answers(given_folder: Path) -> None:
    """1024 lies between 512 and 2048 on the logarithmic scale; tables are ordered."""
    rows = tuple(
        TableRow(problem=problem(m, 64), plans=(plan(bm),)) for m, bm in ((2048, 128), (512, 32))
    )
    put(given_folder, record(portfolio=answering(AnswerTable(rows=rows))))
    assert tile(lookup(KERNEL, arch=90, **problem(1024, 64))) == 128


def test_of_two_architectures_equally_near_the_older_answers(given_folder: Path) -> None:
    archs = ("sm_90", "sm_100", "sm_110")
    for arch, bm in (("sm_110", 128), ("sm_90", 32)):
        put(given_folder, record([entry(problem(64, 64), plan(bm, archs=archs))], arch, arch))
    assert tile(lookup(KERNEL, arch="sm_100", **problem(64, 64))) == 32


def test_the_uuid_of_a_device_hides_the_name_of_no_other(given_folder: Path) -> None:
    first = record([entry(problem(64, 64), plan(128))])
    device = msgspec.structs.replace(first.device, uuid="Test GPU B")
    second = record([entry(problem(64, 64), plan(32))], "Test GPU B")
    put(given_folder, msgspec.structs.replace(first, device=device), second)
    assert tile(lookup(KERNEL, device="Test GPU B", **problem(64, 64))) == 32


def test_categories_match_exactly_or_miss(tuned_folder: Path) -> None:
    with pytest.raises(NoAnswerError, match="none is of these categories"):
        lookup(KERNEL, arch=90, **problem(512, 512, "float16"))


# ---------------------------------------------------------------------- plans with conditions


def test_a_plan_whose_requirement_is_broken_does_not_answer(given_folder: Path) -> None:
    picky = plan(128, requires=["==", ["%", "n", 4], 0])
    put(given_folder, record([entry(problem(512, 512), picky), entry(problem(8, 8), plan(64))]))
    assert tile(lookup(KERNEL, arch=90, **problem(512, 516))) == 128
    assert tile(lookup(KERNEL, arch=90, **problem(512, 511))) == 64
    put(given_folder, record([entry(problem(512, 512), picky)]))
    assert lookup(KERNEL, arch=90, **problem(512, 511)).quality == "default"


def test_a_default_that_is_not_valid_does_not_answer(given_folder: Path) -> None:
    put(given_folder, record(default=plan(32, requires=["//", 1, ["-", "m", 5]])))
    assert lookup(KERNEL, arch=90, **problem(6, 1)).quality == "default"
    for m in (5, 8):
        with pytest.raises(LookupError, match=r"m=\d.* on sm_90: they need .*\(m - 5\)") as refused:
            lookup(KERNEL, arch=90, **problem(m, 1))
        assert isinstance(refused.value, NoAnswerError) and refused.value.exit_code == 3


def test_a_configuration_whose_grid_is_too_large_does_not_answer(given_folder: Path) -> None:
    tall = plan(128, grid=(1, "n", 1))
    put(given_folder, record([entry(problem(64, 64), tall), entry(problem(8, 8), plan(64))]))
    assert tile(lookup(KERNEL, arch=90, **problem(64, 65535))) == 128
    assert tile(lookup(KERNEL, arch=90, **problem(64, 65536))) == 64


def test_all_launches_are_in_the_answer(given_folder: Path) -> None:
    pad = PlannedLaunch(entry="pad", block=(32, 1, 1), grid=("n", 1, 1))
    finish = PlannedLaunch(entry="finish", block=(8, 1, 1), shared_bytes=64)
    known = entry(problem(64, 64), plan(128, before=(pad,), after=(finish,)), steps=())
    put(given_folder, record([known]))
    found = lookup(KERNEL, arch=90, **problem(64, 640))
    assert found.launches == (
        TunedLaunch("pad", (640, 1, 1), (32, 1, 1), 0),
        TunedLaunch(KERNEL, (1, 10, 1), (128, 2, 1), 16384),
        TunedLaunch("finish", None, (8, 1, 1), 64),
    )
    assert (found.main, found.grid) == (found.launches[1], (1, 10, 1))
    assert (found.block, found.shared_bytes) == ((128, 2, 1), 16384)


@pytest.mark.parametrize(
    ("archs", "shared_bytes", "answers"),
    [
        (("sm_80", "sm_90"), 99, True),
        (("sm_90",), 99, False),
        (None, 49152, True),
        (None, 49153, False),
    ],
)
def test_other_architectures_answer_only_with_what_is_valid_here(
    archs: Any, shared_bytes: int, answers: bool, given_folder: Path
) -> None:
    chosen = plan(128, archs=archs, shared_bytes=shared_bytes)
    put(given_folder, record([entry(problem(64, 64), chosen)]))
    assert (lookup(KERNEL, arch=80, **problem(64, 64)).quality == "nearest_arch") == answers


def test_an_untraced_grid_is_known_for_its_problem_only(given_folder: Path) -> None:
    put(given_folder, record([entry(problem(64, 64), plan(64, grid=None))]))
    assert lookup(KERNEL, arch=90, **problem(64, 64)).grid == (7, 3, 1)
    assert lookup(KERNEL, arch=90, **problem(64, 65)).grid is None


def test_what_cannot_be_launched_does_not_answer(given_folder: Path) -> None:
    put(
        given_folder,
        record([entry(problem(64, 64), plan(64, grid=(["//", "m", ["-", "n", 2]], 1, 1)))]),
    )
    assert lookup(KERNEL, arch=90, **problem(9, 5)).grid == (3, 1, 1)
    assert lookup(KERNEL, arch=90, **problem(9, 2)).quality == "default"
    with pytest.raises(NoAnswerError, match="larger than CUDA allows"):
        lookup(KERNEL, arch=90, **problem(2**40, 3))


# ---------------------------------------------------------------------- several devices of an arch


def test_an_architecture_takes_the_least_worst_case_loss(given_folder: Path) -> None:
    at = problem(64, 64)
    both = (plan(128).configuration, plan(64).configuration)

    def measured(*times: float) -> Portfolio:
        return Portfolio(
            configurations=both, problems=(at,), median_ms=tuple((time_ms,) for time_ms in times)
        )

    put(
        given_folder,
        record([entry(at, plan(128))], portfolio=measured(1.0, 1.1)),
        record([entry(at, plan(64))], "Test GPU B", portfolio=measured(2.0, 1.0)),
    )
    assert tile(lookup(KERNEL, arch=90, **at)) == 64
    assert tile(lookup(KERNEL, device="Test GPU A", **at)) == 128


# ---------------------------------------------------------------------- layers and the environment


def test_layers_are_asked_in_order_problem_by_problem(
    tmp_path: Path, given_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    ours = bundled_project()._replace(reports=str(tmp_path / "shipped"))
    monkeypatch.setattr(_files, "bundled_project", lambda: ours)
    sizes = (64, 512, 4096)
    put(tmp_path / "shipped", record([entry(problem(n, n), plan(32)) for n in sizes]))
    put(
        tmp_path / "data/autotune/tuned/kernel-autotune",
        record([entry(problem(n, n), plan(64)) for n in sizes[:2]]),
    )
    put(given_folder, record([entry(problem(64, 64), plan(128))]))
    answers = [lookup(KERNEL, arch=90, project=ours, **problem(n, n)) for n in sizes]
    assert [tile(answer) for answer in answers] == [128, 64, 32]
    assert [answer.source.split(":")[0] for answer in answers] == [
        "AUTOTUNE_TUNED",
        "user",
        "shipped",
    ]


def test_the_users_data_are_in_the_home_folder_by_default() -> None:
    put(
        Path.home() / ".local/share/autotune/tuned/kernel-autotune",
        record([entry(problem(64, 64), plan(128))]),
    )
    assert lookup(KERNEL, arch=90, **problem(64, 64)).source.startswith("user:")


def test_the_current_folder_is_never_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can write a file where a program starts must not choose what it launches."""
    put(tmp_path, record([entry(problem(64, 64))]))
    put(tmp_path / "reports", record([entry(problem(64, 64))]))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        lookup(KERNEL, arch=90, **problem(64, 64))


def test_shipped_records_are_the_checkouts() -> None:
    root = Path(autotune.__file__).parent.parent
    assert bundled_path("reports") == str(root / "reports")
    installed = "/elsewhere/site-packages/autotune"
    assert bundled_path("reports", installed) == f"{installed}/_bundled/reports"


def test_a_new_record_is_noticed(given_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(given_folder, record([entry(problem(64, 64), plan(64))]))
    monkeypatch.setattr(_lookup, "RECHECK_S", 0)
    first = lookup(KERNEL, arch=90, **problem(64, 64))
    assert lookup(KERNEL, arch=90, **problem(64, 64)) is first
    write(given_folder, record([entry(problem(64, 64), plan(128))]))
    assert tile(lookup(KERNEL, arch=90, **problem(64, 64))) == 128


def test_another_folder_is_noticed_at_once(
    given_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(given_folder, record([entry(problem(64, 64), plan(64))]))
    put(tmp_path / "second", record([entry(problem(64, 64), plan(128))]))
    assert tile(lookup(KERNEL, arch=90, **problem(64, 64))) == 64
    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path / "second"))
    assert tile(lookup(KERNEL, arch=90, **problem(64, 64))) == 128


def test_answers_do_not_pile_up(given_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(given_folder, record([entry(problem(64, 64))]))
    monkeypatch.setattr(_lookup, "MAX_ANSWERS", 10)
    first = lookup(KERNEL, arch=90, **problem(1, 1))
    assert lookup(KERNEL, arch=90, **problem(1, 1)) is first
    for n in range(2, 50):
        lookup(KERNEL, arch=90, **problem(n, n))
    assert lookup(KERNEL, arch=90, **problem(1, 1)) is not first


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("2026-11-21T09:59:59+00:00", "2026-11-21T10:00:00+00:00"),
        ("2026-11-21T08:00:00+02:00", "2026-11-21T07:00:00Z"),
    ],
)
@pytest.mark.parametrize("newest_first", [True, False])
def test_the_newest_of_a_day_says_what_the_shape_is(
    given_folder: Path, earlier: str, later: str, newest_first: bool
) -> None:
    old = json.loads(encode(record([entry(problem(512, 512))], "GPU", "sm_75")))
    new = json.loads(json.dumps(old))
    old["parameters"].pop("SWIZZLE")
    tuned = old["problems"][0]
    for holder in (
        old["defaults"][0]["plans"][0],
        tuned["plans"][0],
        tuned["race"]["contenders"][0],
    ):
        holder["configuration"].pop("SWIZZLE")
    old["provenance"]["created"], new["provenance"]["created"] = earlier, later
    for folder, document in zip(
        ("A", "B"), (new, old) if newest_first else (old, new), strict=True
    ):
        document["device"]["name"] = folder
        path = given_folder / folder / f"{KERNEL}.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(document))
    with pytest.warns(RuntimeWarning, match=f"{'B' if newest_first else 'A'}/.*left out"):
        assert "SWIZZLE" in lookup(KERNEL, arch=75, **problem(512, 512))


# ---------------------------------------------------------------------- which device is this


def test_a_record_of_another_architecture_is_not_of_the_device_with_its_name(
    tuned_folder: Path,
) -> None:
    gpu = replace(for_arch("sm_86"), name="Test GPU A")
    assert lookup(KERNEL, device="Test GPU A", **problem(512, 512)).quality == "exact"
    assert lookup(KERNEL, device=gpu, **problem(512, 512)).quality == "nearest_arch"


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("NVIDIA A100-SXM4-80GB", "sm_80"),
        ("NVIDIA A10G", "sm_86"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "sm_90"),
        ("NVIDIA GeForce RTX 2080 Ti", "sm_75"),
        ("NVIDIA GeForce RTX 4090 D", "sm_89"),
        ("NVIDIA RTX A1000", None),
        ("AMD EPYC 7B13", None),
    ],
)
def test_common_models_have_an_architecture(name: str, arch: str | None) -> None:
    assert arch_of_model(name) == arch


def test_the_environment_names_the_architecture(
    tuned_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_ARCH", "sm_90")
    assert lookup(KERNEL, **problem(512, 512)).quality == "exact"
    assert lookup(KERNEL, arch="gfx942", **problem(512, 512)).quality == "default"


def test_an_architecture_in_the_environment_is_checked_too(
    tuned_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_ARCH", "hopper")
    with pytest.raises(UsageError, match="'hopper' is not an architecture"):
        lookup(KERNEL, **problem(64, 64))


def test_without_a_gpu_the_users_cpu_records_answer(given_folder: Path) -> None:
    device = RecordedDevice(backend="opencl", name="Some CPU", arch="opencl_cpu")
    made = record([entry(problem(64, 64), plan(128))])
    put(given_folder, msgspec.structs.replace(made, device=device))
    config = lookup(KERNEL, **problem(64, 64))
    assert (config.quality, tile(config)) == ("exact", 128)
    assert config.source.startswith("AUTOTUNE_TUNED:opencl_Some_CPU/")


class _FakeNvml:
    """The management library: two GPUs, and a MIG slice of the second."""

    names = (b"Old GPU", b"GPU 1", b"GPU 1 MIG 1g.10gb")

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return 0

    def nvmlShutdown(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, out: Any) -> int:  # noqa: N802
        out._obj.value = index + 1
        return 0 if index < 2 else 2

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, out: Any) -> int:  # noqa: N802
        out._obj.value = 3 if uuid.startswith(b"MIG-") else 2
        return 0 if uuid else 2

    def nvmlDeviceGetName(self, handle: Any, out: Any, size: int) -> int:  # noqa: N802
        out.value = self.names[handle.value - 1]
        return 0

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Any, out: Any) -> int:  # noqa: N802
        out._obj.value = 2
        return 0 if handle.value == 3 else 2

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:  # noqa: N802
        major._obj.value, minor._obj.value = 7 + handle.value, 0
        return 0 if handle.value < 3 else 3


class _NewNvml(_FakeNvml):
    """A library that also knows uuids, cores, memory and clocks."""

    def nvmlDeviceGetUUID(self, handle: Any, out: Any, size: int) -> int:  # noqa: N802
        out.value = b"GPU-%d" % handle.value
        return 0

    def nvmlDeviceGetNumGpuCores(self, handle: Any, cores: Any) -> int:  # noqa: N802
        cores._obj.value = 132 * 64 * handle.value
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:  # noqa: N802
        memory[:] = (150754820096, 1, 2)
        return 0

    def nvmlDeviceGetMaxClockInfo(self, handle: Any, kind: int, mhz: Any) -> int:  # noqa: N802
        mhz._obj.value = 1980 if kind == 1 else 0
        return 0


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("0", ("Old GPU", "sm_80")),
        ("GPU-1,0", ("GPU 1", "sm_90")),
        ("MIG-1", ("GPU 1 MIG 1g.10gb", "sm_90")),
        ("7", None),
        ("", None),
    ],
)
@pytest.mark.parametrize("library", [_FakeNvml, _NewNvml])
@pytest.mark.usefixtures("tuned_folder")
def test_nvml_knows_the_first_visible_gpu(
    visible: str, expected: Any, library: type[_FakeNvml], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", {"libnvidia-ml.so.1": library()}.__getitem__)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = first_gpu(visible)
    assert (found and (found.name, found.arch)) == expected
    if visible == "0":
        assert lookup(KERNEL, **problem(64, 64)).quality == "exact"
    if found and library is _FakeNvml:
        assert found.chip == (found.arch, 1, 0, 0.0)
    elif found:
        is_slice = visible == "MIG-1"
        assert found.chip == (found.arch, *((1, 0, 0.0) if is_slice else (132, 150754820096, 1980)))


# ---------------------------------------------------------------------- which chip is this


H200 = replace(
    for_arch("sm_90"),
    name="NVIDIA H200",
    uuid="GPU-1",
    sm_count=132,
    memory_bytes=150109880320,
    peak_gflop_per_s=66908.16,
)


def answer_on(device: Any) -> TunedConfig:
    return lookup("sgemm", device=device, m=512, n=512, k=512, project=bundled_project())


@pytest.mark.usefixtures("given_folder")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"name": "H200 of a manufacturer"},
        {"name": "H200 of a manufacturer", "memory_bytes": 150754820096},
        {"name": "H200 of a manufacturer", "peak_gflop_per_s": 1.04 * 66908.16},
        {"peak_gflop_per_s": 1.5 * 66908.16},  # NVML's clock of some GPUs
        {"sm_count": 1, "memory_bytes": 0, "peak_gflop_per_s": 0.0},  # unknown
    ],
)
def test_labels_of_one_chip_share_records(changes: dict[str, Any]) -> None:
    found, own = answer_on(replace(H200, **changes)), answer_on("NVIDIA H200")
    assert (found.quality, found.source) == ("exact", "shipped:NVIDIA_H200/sgemm")
    assert (dict(found), found.expected_ms) == (dict(own), own.expected_ms)
    assert found.other_device == own.other_device == ""


@pytest.mark.usefixtures("given_folder")
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sm_count": 100}, "no record of this NVIDIA H200 (100 multiprocessors, not 132)"),
        ({"memory_bytes": 100 * 10**9}, "this NVIDIA H200 (100 GB of memory, not 150)"),
        ({"name": "NVIDIA H200 NVL", "peak_gflop_per_s": 60318.7}, "no record of NVIDIA H200 NVL"),
        ({"name": "Some GPU", "memory_bytes": 0}, "no record of Some GPU"),
        ({"name": "NVIDIA H200 MIG 3g.71gb", "sm_count": 60}, "NVIDIA H200 MIG 3g.71gb"),
    ],
)
def test_another_chip_does_not_share_records(changes: dict[str, Any], why: str) -> None:
    found = answer_on(replace(H200, uuid="", **changes))
    assert (found.quality, found.expected_fraction, found.expected_ms) == ("same_arch", None, None)
    assert why in found.other_device
    assert "measured on NVIDIA H" in found.other_device
    assert "run: autotune run sgemm" in found.other_device


@pytest.mark.usefixtures("given_folder")
def test_a_slice_known_by_its_name_only_does_not_share_records() -> None:
    assert answer_on("NVIDIA H200 MIG 3g.71gb").quality == "same_arch"


@pytest.mark.usefixtures("given_folder")
@pytest.mark.parametrize("arch", ["sm_100", "sm_75"])
def test_an_answer_for_an_architecture_without_records_says_so(arch: str) -> None:
    found = lookup("sgemm", arch=arch, m=512, n=512, k=512)
    assert found.quality == "nearest_arch"
    assert found.other_device.startswith(f"no record of {arch}: this answer was measured on NVIDIA")
    assert found.other_device.endswith("(sm_90); to tune it there, run: autotune run sgemm")
    assert lookup("sgemm", arch=90, m=512, n=512, k=512).other_device == ""


def test_records_of_two_labels_of_one_chip_are_of_one_device(given_folder: Path) -> None:
    """Each problem is exact under both names, and on a third label; a header has one device for them."""
    labels = replace(H200, uuid=""), replace(H200, name="Label of the chip", uuid="")
    made = [
        msgspec.structs.replace(
            record([entry(problem(size, size), plan(tile))]), device=RecordedDevice.of(device)
        )
        for device, size, tile in zip(labels, (512, 64), (128, 64), strict=True)
    ]
    put(given_folder, *made)
    third = replace(H200, name="Another label", uuid="GPU-3")
    for device in (*labels, third, *(label.name for label in labels)):
        for size, own in ((512, 128), (64, 64)):
            found = lookup(KERNEL, device=device, **problem(size, size))
            assert (found.quality, tile(found), found.other_device) == ("exact", own, "")
    assert lookup(KERNEL, device=third.name, **problem(64, 64)).quality == "default"
    assert set(re.findall(r"lookup\(device::(\w+), 64, 64, ", render(made))) == {
        "Label_of_the_chip"
    }


def test_records_of_two_chips_of_one_name_stay_apart(given_folder: Path, tmp_path: Path) -> None:
    """Of the given folder and the user's; each answers on its own chip, and none is merged into the other."""
    cut = replace(H200, sm_count=100, uuid="")
    mine, theirs = (
        msgspec.structs.replace(
            record([entry(problem(512, 512), plan(tile))]), device=RecordedDevice.of(device)
        )
        for device, tile in ((cut, 128), (H200, 64))
    )
    write(Path(user_folder(current_project())), mine)
    put(given_folder, theirs)
    for device, own in ((cut, 128), (H200, 64)):
        found = lookup(KERNEL, device=device, **problem(512, 512))
        assert (found.quality, tile(found)) == ("exact", own)
    with pytest.raises(UsageError, match=r"it is of another NVIDIA H200; this one has 100 multi"):
        merge(theirs, mine)


# ---------------------------------------------------------------------- total for every size


@given(m=st.integers(-(10**30), 10**30), n=st.integers(-10, 2**40), arch=st.integers(0, 130))
def test_what_answers_any_size_is_valid(m: int, n: int, arch: int) -> None:
    loaded = [
        RecordFile("test", name, random_record(1, name, arch_name))
        for name, arch_name in (("A", "sm_90"), ("B", "sm_80"))
    ]
    table = build_table(loaded)
    asked = (m, n, "float32")
    hit = pick(table, asked, None, f"sm_{arch}")
    if hit is None:
        return
    config = tuned_config(table, hit, asked)
    assert config.quality in QUALITIES
    assert hit.plan.allows(table.named(asked)) and hit.plan.fits(f"sm_{arch}")
    for launch in config.launches:
        assert launch.grid is None or all(map(ge, MAX_GRID, launch.grid))
        assert launch.grid is None or min(launch.grid) >= 0


@given(st.integers(1, 2**64 - 1))
@example(isqrt(2**127) + 1)  # the least above the root of a half
def test_sixteenths_are_exact(n: int) -> None:
    k = sixteenths(n)
    assert 2**k <= n**16 < 2 ** (k + 1)


# ---------------------------------------------------------------------- mistakes of the caller


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"m": 1, "n": 1, "dtipe": "x"}, "unknown problem field 'dtipe'; did you mean 'dtype'"),
        ({"m": 1, "n": 1}, "'dtype' is missing"),
        ({"m": 1.5, "n": 1, "dtype": "x"}, "m=1.5 must be an integer"),
        ({"m": 1, "n": 1, "dtype": 32}, "dtype=32 must be a str"),
    ],
)
def test_wrong_fields_are_usage_errors(
    asked: dict[str, Any], message: str, tuned_folder: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        lookup(KERNEL, arch=90, **asked)


def test_an_unknown_kernel_names_the_known_ones(tuned_folder: Path) -> None:
    with pytest.raises(UsageError, match=rf"'demo_gem'; did you mean '{KERNEL}'.*autotune run"):
        lookup("demo_gem", m=1)


@pytest.mark.parametrize("name", ["../secret", "x\0y", 5])
def test_a_kernel_is_a_name_and_no_path(name: Any) -> None:
    with pytest.raises(UsageError, match="identifier"):
        lookup(name, m=1)


# ---------------------------------------------------------------------- files that are wrong


@pytest.mark.parametrize("case", ["cut off", "newer", "extra parameter"])
def test_a_wrong_file_is_a_miss_with_a_warning(case: str, tuned_folder: Path) -> None:
    (tuned_folder / "Test_GPU_A" / f"{KERNEL}.json").write_bytes(WRONG[case][0])
    with pytest.warns(RuntimeWarning, match="left out"):
        config = lookup(KERNEL, device="Test GPU A", arch=90, **problem(512, 512))
    assert (config.quality, tile(config)) == ("same_arch", 64)


def test_a_file_cut_anywhere_is_a_miss(tuned_folder: Path) -> None:
    path = tuned_folder / "Test_GPU_A" / f"{KERNEL}.json"
    whole = path.read_bytes()
    for length in range(0, len(whole) - 1, 97):
        path.write_bytes(whole[:length])
        clear_cache()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert lookup(KERNEL, arch=90, **problem(512, 512)).quality == "nearest_problem"
        assert len(caught) == 1


def test_a_record_changed_anywhere_answers_or_is_a_miss(tuned_folder: Path) -> None:
    path = tuned_folder / "Test_GPU_A" / f"{KERNEL}.json"
    whole = with_cost(), json.dumps(json.loads(path.read_bytes())).encode()
    left_out = 0
    spots = [(which, *at) for which in (0, 1) for at in places(json.loads(whole[which]))]
    for number, place in enumerate(spots):
        for value in (VALUES_OF_ANY_KIND[number % 21], VALUES_OF_ANY_KIND[(number + 3) % 21]):
            document = json.loads(whole[place[0]])
            *outer, last = place[1:]
            holder = reduce(getitem, outer, document)
            holder[last] = value
            path.write_text(json.dumps(document))
            clear_cache()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for size in (512, 2**20):
                    config = lookup(KERNEL, device="Test GPU A", arch=90, **problem(size, size))
            if caught:
                assert len(caught) == 1, (place, [str(warning.message) for warning in caught])
                assert config.source.startswith("AUTOTUNE_TUNED:Test_GPU_B/"), place
            left_out += bool(caught)
    assert left_out > 100


def test_bytes_changed_anywhere_answer_or_are_a_miss(given_folder: Path) -> None:
    """Records that ship, with a few bytes altered, lost or doubled."""
    rng = random.Random(12)
    asked = {"ffma": {"n": 12345, "steps": 77}, "transpose": {"m": 4000, "n": 999}}
    left_out = 0
    for number in range(120):
        kernel = ("ffma", "transpose")[number % 2]
        file = f"{kernel}.json"
        data = bytearray(Path(bundled_path("reports"), "NVIDIA_H100_80GB_HBM3", file).read_bytes())
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data))
            end = at + rng.choice((0, 1, 2, 40))
            data[at:end] = rng.choice((b"", b"9" * 400, rng.randbytes(1), data[at : at + 40]))
        path = given_folder / "NVIDIA_H100_80GB_HBM3" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        clear_cache()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for arch in (90, 80):
                config = lookup(kernel, arch=arch, **asked[kernel])
                assert config.quality in QUALITIES
        if caught:
            assert len(caught) == 1 and str(path) in str(caught[0].message)
            assert config.source.startswith("shipped:")
        left_out += bool(caught)
    assert 20 < left_out < 120


def test_a_link_that_leads_nowhere_hides_no_device(tuned_folder: Path) -> None:
    (tuned_folder / "A_loop").symlink_to(tuned_folder / "A_loop")
    assert lookup(KERNEL, arch=90, **problem(512, 512)).quality == "exact"


def test_files_without_permission_are_a_miss(tuned_folder: Path) -> None:
    (tuned_folder / "Test_GPU_A" / f"{KERNEL}.json").chmod(0)
    for folder in (tuned_folder, *tuned_folder.parents):
        if folder.owner() == tuned_folder.owner() and len(folder.parts) > 2:
            folder.chmod(0o755)
    with without_privileges(), pytest.warns(RuntimeWarning, match="Permission denied"):
        config = lookup(KERNEL, device="Test GPU A", arch=90, **problem(512, 512))
    assert config.quality == "same_arch"


def test_a_folder_that_cannot_be_listed_is_a_miss(tuned_folder: Path) -> None:
    tuned_folder.chmod(0)
    with (
        without_privileges(),
        pytest.warns(RuntimeWarning, match="Permission denied"),
        pytest.raises(UsageError, match="unknown kernel"),
    ):
        lookup(KERNEL, arch=90, **problem(512, 512))


# ---------------------------------------------------------------------- what it costs

HEAVY = ("numpy", "click", "rich", "jinja2", "cupy", "torch", "pathlib", "tempfile", "json.encoder")


def test_lookup_imports_nothing_heavy(tuned_folder: Path) -> None:
    asked = f"lookup({KERNEL!r}, arch=90, m=512, n=512, dtype='float32').quality"
    program = f"""if True:
        import sys
        bare = set(sys.modules)
        from autotune import lookup
        assert {asked} == "exact"
        lookup({KERNEL!r}, m=512, n=512, dtype='float32')
        new = set(sys.modules) - bare
        found = [name for name in {HEAVY!r} if name in new]
        assert not found, found
        assert len(new) < 110, sorted(new)  # 100 now; benchmarks/lookup.py times it
    """
    root = Path(autotune.__file__).parent.parent
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True, timeout=60)


def test_every_public_name_is_there() -> None:
    for name in autotune.__all__:
        assert name in dir(autotune)
        assert getattr(autotune, name) is not None
    with pytest.raises(AttributeError, match="lookupp"):
        _ = autotune.lookupp


def test_the_version_is_the_projects() -> None:
    pyproject = Path(autotune.__file__).parent.parent / "pyproject.toml"
    assert f'version = "{autotune.__version__}"' in pyproject.read_text(encoding="utf-8")


def test_what_a_cpu_run_left_in_the_checkout_does_not_ship(tmp_path: Path) -> None:
    for name in ("opencl_cpu", "NVIDIA_X"):
        (tmp_path / name).mkdir()
    assert device_folders("shipped", str(tmp_path)) == ["NVIDIA_X"]
    assert device_folders("user", str(tmp_path)) == ["NVIDIA_X", "opencl_cpu"]
