"""The tuned record: equal bytes, merging per problem, and files that are wrong."""

import math
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sample_records import (
    KERNEL,
    WRONG,
    answering,
    changed,
    entry,
    plan,
    problem,
    random_record,
    record,
    table_of,
    without_privileges,
    write,
)
from sample_spaces import write_space

from autotune.answers.table import Portfolio
from autotune.devices.device import for_arch
from autotune.errors import RecordError, UsageError
from autotune.kernel.catalog import load_file
from autotune.tuned.reading import path_of, read, read_all, user_folder
from autotune.tuned.record import ContenderResult, Estimate
from autotune.tuned.recorded_device import RecordedDevice
from autotune.tuned.writing import accepted, by_rule, encode, merge, mergeable, update


def test_a_written_record_reads_back_equal(tmp_path: Path) -> None:
    written = random_record(1, "Test GPU A", "sm_90")
    path = write(tmp_path, written)
    assert path == tmp_path / "Test_GPU_A" / f"{KERNEL}.json"
    again = read(path)
    assert encode(again) == path.read_bytes()
    assert {str(found.problem) for found in again.problems} == {
        str(found.problem) for found in written.problems
    }
    assert read_all(tmp_path) == read_all(tmp_path, KERNEL) == [again]


def test_no_file_is_left_beside_the_record(tmp_path: Path) -> None:
    path = path_of(tmp_path, update(tmp_path, record([entry(problem(64, 64))])).record)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o444 == 0o444


def test_order_of_construction_does_not_show() -> None:
    sizes, chosen = [problem(n, n) for n in (512, 64, 128)], plan()
    turned = dict(reversed(chosen.configuration.items()))
    shuffled = [
        entry(dict(reversed(size.items())), msgspec.structs.replace(chosen, configuration=turned))
        for size in reversed(sizes)
    ]
    assert encode(record([entry(size, chosen) for size in sizes])) == encode(record(shuffled))


def test_no_path_of_this_machine_is_written() -> None:
    assert str(Path.cwd()) not in encode(random_record(2, "A", "sm_80")).decode()


# ---------------------------------------------------------------------- merging


@pytest.mark.parametrize(
    ("old_effort", "new_effort", "new_source", "action"),
    [
        ("quick", "quick", "f00d", "replaced"),
        ("quick", "full", "f00d", "replaced"),
        ("full", "quick", "f00d", "kept"),
        ("full", "quick", "beef", "replaced"),
    ],
)
def test_an_entry_is_replaced_by_effort_or_when_stale(
    old_effort: str, new_effort: str, new_source: str, action: str
) -> None:
    at = problem(64, 64)
    old = record([entry(at, effort=old_effort, median_ms=1.0), entry(problem(8, 8))])
    new = record([entry(at, effort=new_effort, source=new_source, median_ms=2.0)])
    result = merge(old, new)
    assert [outcome.action for outcome in result.outcomes] == [action]
    assert result.record.tuned(at).median_ms == (1.0 if action == "kept" else 2.0)
    assert result.record.tuned(problem(8, 8)) is not None


#: The old winner, in the race that the new one won.
RACED = ContenderResult(configuration=plan(64).configuration, time_ms=Estimate(2.1))


@pytest.mark.parametrize(
    ("new_ms", "changes", "action"),
    [
        (2.0, {}, "kept"),
        (1.01, {}, "replaced"),  # the intervals overlap
        (0.5, {}, "replaced"),
        (2.0, {"source": "beef"}, "replaced"),
        (2.0, {"timing": "hot:flush"}, "replaced"),
        (2.0, {"runners_up": (RACED,)}, "replaced"),
    ],
)
def test_a_slower_entry_replaces_a_faster_one_only_after_a_race_with_it(
    new_ms: float, changes: dict[str, Any], action: str
) -> None:
    at = problem(64, 64)
    old = entry(at, plan(64), median_ms=1.0, interval_ms=(0.99, 1.02))
    interval_ms = (new_ms - 0.01, new_ms + 0.01)
    new = entry(at, plan(32), median_ms=new_ms, interval_ms=interval_ms, **changes)
    (outcome,) = merge(record([old]), record([new])).outcomes
    assert outcome.action == action
    if action == "kept":
        assert outcome.reason == "faster before (1 ms, now 2 ms)"
    assert by_rule(old, new, is_settled=True)[0] == accepted(old, new)[0] == "replaced"


def test_entries_of_an_older_source_are_marked_stale() -> None:
    old = record([entry(problem(8, 8)), entry(problem(64, 64))])
    new = record([entry(problem(64, 64), source="beef")])
    new = msgspec.structs.replace(
        new, provenance=msgspec.structs.replace(new.provenance, source="beef")
    )
    once = merge(old, new).record
    twice = merge(once, new).record
    for merged in (once, twice):
        assert merged.stale_reasons(merged.tuned(problem(64, 64))) == ()
        assert merged.stale_reasons(merged.tuned(problem(8, 8))) == ("its source changed",)


def test_changed_arguments_count_as_a_changed_source() -> None:
    at = problem(64, 64)
    old = record([entry(at, effort="full", arguments="f00d")])
    for arguments, action in (("beef", "replaced"), ("f00d", "kept")):
        new = record([entry(at, arguments=arguments)])
        assert [outcome.action for outcome in merge(old, new).outcomes] == [action]


def test_entries_without_a_new_parameter_go() -> None:
    old, new = record([entry(problem(8, 8))]), record([entry(problem(64, 64))])
    more = {**new.default.configuration, "NEW": 1}
    new = record(
        [entry(problem(64, 64), plan(configuration=more))],
        parameters={**new.parameters, "NEW": (1, 2)},
        default=plan(configuration=more),
    )
    merged = merge(old, new)
    assert merged.record == new
    assert [outcome.action for outcome in merged.outcomes] == ["replaced"]
    encode(merged.record)


def test_a_narrow_run_keeps_the_wide_portfolio() -> None:
    """One more problem does not cost the answers that were made of many."""
    at = [problem(n, n) for n in (64, 128, 256)]
    wide = Portfolio(
        configurations=(plan(128).configuration,),
        problems=tuple(at),
        median_ms=((1.0, 2.0, 3.0),),
        tables=(table_of(plan(128)),),
    )
    old = record([entry(place) for place in at], portfolio=wide)
    new = record([entry(problem(9, 9))], portfolio=answering(table_of(plan(32))))
    merged = merge(old, new).record
    assert merged.portfolio == wide
    assert len(merged.problems) == 4


def test_a_run_without_time_for_a_portfolio_keeps_the_one_there_is() -> None:
    at = (problem(64, 64), problem(128, 128))

    def of(count: int) -> Portfolio:
        made = tuple(plan(32 * (1 + n)).configuration for n in range(count))
        return Portfolio(configurations=made, problems=at, median_ms=((1.0, 2.0),) * count)

    entries = [entry(place) for place in at]
    old = record(entries, portfolio=of(9))
    assert merge(old, record(entries, portfolio=of(5))).record.portfolio == of(9)
    assert merge(old, record(entries, portfolio=of(6))).record.portfolio == of(6)


def test_a_wide_portfolio_replaces_a_narrow_one_of_some_problems_more() -> None:
    at = [problem(n, n) for n in (64, 128, 256)]

    def of(count: int, places: int) -> Portfolio:
        made = tuple(plan(32 * (1 + n)).configuration for n in range(count))
        times = ((1.0,) * places,) * count
        return Portfolio(configurations=made, problems=tuple(at[:places]), median_ms=times)

    entries = [entry(place) for place in at]
    old = record(entries, portfolio=of(4, 3))
    for fewer, kept in ((of(12, 2), of(12, 2)), (of(3, 2), of(4, 3)), (of(12, 1), of(4, 3))):
        assert merge(old, record(entries, portfolio=fewer)).record.portfolio == kept


def test_a_run_whose_winners_are_left_out_leaves_the_portfolio() -> None:
    at = problem(64, 64)
    thorough, hasty = (answering(table_of(plan(bm))) for bm in (128, 32))
    old = record([entry(at, effort="full")], portfolio=thorough)
    assert merge(old, record([entry(at)], portfolio=hasty)).record.portfolio == thorough
    again = record([entry(at, effort="full")], portfolio=hasty)
    assert merge(old, again).record.portfolio == hasty


def test_a_run_of_which_some_winners_stay_brings_its_portfolio() -> None:
    at, other = problem(64, 64), problem(9, 9)
    thorough, hasty = (answering(table_of(plan(bm))) for bm in (128, 32))
    old = record([entry(at, effort="full")], portfolio=thorough)
    merged = merge(old, record([entry(at), entry(other)], portfolio=hasty))
    assert [outcome.action for outcome in merged.outcomes] == ["kept", "added"]
    assert merged.record.portfolio == hasty


def test_entries_of_another_layout_go() -> None:
    old = record([entry(problem(64, 64))], layout={"ldc": 0})
    merged = merge(old, record([entry(problem(9, 9))], layout={"ldc": 1}))
    assert len(merged.record.problems) == 1


@pytest.mark.parametrize("change", ["kernel", "device"])
def test_other_kernels_and_devices_do_not_merge(change: str) -> None:
    old = record([entry(problem(8, 8))])
    other = record(kernel="other") if change == "kernel" else record(device="Test GPU B")
    with pytest.raises(UsageError, match="cannot merge"):
        merge(old, other)


def test_records_of_two_objectives_do_not_merge() -> None:
    old, new = record([entry(problem(8, 8))]), record([entry(problem(9, 9))], objective="energy")
    with pytest.raises(UsageError, match="is tuned for time, not for energy"):
        merge(old, new)


@pytest.fixture
def folders(tmp_path: Path) -> Any:
    """Write records of one small kernel into folders; say which of them a run is merged into."""
    kernel, device = load_file(write_space(tmp_path)), for_arch("sm_90")
    mine = Path(user_folder(kernel.project))
    names = {"out": tmp_path / "out", "mine": mine, "other": tmp_path / "other"}

    def ask(objective: str, **tuned_for: str) -> list[str]:
        for name, theirs in tuned_for.items():
            words = theirs.split()
            made = record(
                kernel="scale",
                fields={"n": "integer"},
                parameters={"BLOCK": (32, 64), **dict.fromkeys(words[1:], (1,))},
                default=plan(configuration={"BLOCK": 32, **dict.fromkeys(words[1:], 1)}, grid=None),
                objective=words[0],
            )
            made = msgspec.structs.replace(made, device=RecordedDevice.of(device))
            provenance = msgspec.structs.replace(made.provenance, source=name)
            write(names[name], msgspec.structs.replace(made, provenance=provenance))
        found = mergeable(names["out"], device, kernel, objective, [names["other"]])
        return [each.provenance.source for each in found]

    return ask


def test_a_run_is_merged_into_all_records_of_its_objective(folders: Any) -> None:
    assert folders("time", out="time", mine="time", other="time") == ["out", "mine", "other"]
    assert folders("energy", out="energy", mine="time", other="energy") == ["out", "other"]


@pytest.mark.parametrize("where", ["out", "other"])
def test_a_run_for_another_objective_is_refused_before_it_begins(folders: Any, where: str) -> None:
    with pytest.raises(UsageError, match=r"scale\.json is tuned for energy, not for time"):
        folders("time", **{where: "energy"})


def test_another_kernel_of_that_name_is_told_once(folders: Any) -> None:
    with pytest.warns(RuntimeWarning, match="does not fit the kernel scale") as told:
        folders("time", out="time TILE", other="time TILE")
    assert len(told) == 1


def test_what_update_returns_is_what_is_read_back(tmp_path: Path) -> None:
    result = update(tmp_path, record([entry(problem(9, 9)), entry(problem(8, 8))]))
    assert result.record == read(path_of(tmp_path, result.record))


def _update_many(directory: Path, first: int) -> None:
    for n in range(first, first + 10):
        update(directory, record([entry(problem(n, n))]))


def test_two_processes_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_update_many, args=(tmp_path, first)) for first in (100, 200)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len(read_all(tmp_path)[0].problems) == 20


# ---------------------------------------------------------------------- files that are wrong


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_a_record_error(case: str, tmp_path: Path) -> None:
    data, message = WRONG[case]
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(RecordError, match=message):
        read(path)


@pytest.mark.parametrize(
    "known",
    [{"m": [1, 2], "n": [1, 2]}, {"m": [1, 2], "n": [1, 2], "dtype": [1, 2]}, {"x": [1, 2]}],
)
def test_a_range_of_verified_sizes_has_all_fields(known: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(changed(portfolio={"verified": [known]}))
    with pytest.raises(RecordError, match=r"portfolio.verified\[0\] is .*a range of each field"):
        read(path)


def test_a_missing_file_is_a_record_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"nothing\.json.*No such file"):
        read(tmp_path / "nothing.json")


@pytest.mark.parametrize("data", [changed()[:100], b"{}", changed(schema_version=99)])
def test_a_wrong_file_keeps_no_other_from_being_read(data: bytes, tmp_path: Path) -> None:
    good = record([entry(problem(8, 8))], "Test GPU B")
    write(tmp_path, good)
    write(tmp_path, record()).write_bytes(data)
    with pytest.warns(RuntimeWarning, match=f"tuned record left out: .*Test_GPU_A/{KERNEL}.json: "):
        assert read_all(tmp_path) == [good]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_json_cannot_hold_is_not_written(value: float, tmp_path: Path) -> None:
    good = record([entry(problem(8, 8))])
    path = write(tmp_path, good)
    with pytest.raises(RecordError, match=KERNEL):
        update(tmp_path, record([entry(problem(8, 8), median_ms=value)]))
    assert read(path) == good


def test_missing_permission_is_a_record_error(tmp_path: Path) -> None:
    path = write(tmp_path, record())
    path.chmod(0)
    path.parent.chmod(0o500)
    with without_privileges():
        with pytest.raises(RecordError, match=rf"{path.name}.*Permission denied"):
            read(path)
        with pytest.raises(RecordError, match="Permission denied"):
            update(tmp_path, record())


def test_a_damaged_file_is_set_aside(tmp_path: Path) -> None:
    path = write(tmp_path, record([entry(problem(8, 8))]))
    path.write_bytes(path.read_bytes()[:100])
    update(tmp_path, record([entry(problem(9, 9))]))
    assert len(read(path).problems) == 1
    assert path.with_name(path.name + ".damaged").stat().st_size == 100


@pytest.mark.parametrize("data", [b'{"cache": {}}', changed(schema_version=99)])
def test_foreign_and_newer_files_are_never_replaced(data: bytes, tmp_path: Path) -> None:
    path = path_of(tmp_path, record())
    path.parent.mkdir()
    path.write_bytes(data)
    with pytest.raises(RecordError):
        update(tmp_path, record([entry(problem(9, 9))]))
    assert path.read_bytes() == data


def test_a_failed_write_leaves_the_old_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, record([entry(problem(8, 8))]))
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RecordError, match="No space left"):
        update(tmp_path, record([entry(problem(9, 9))]))
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


#: What may stand in the place of a record's file.
NO_FILES: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "folder": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path),
    "broken link": lambda path: path.symlink_to("nowhere"),
    "a terabyte": _sparse,
}


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_is_neither_waited_for_nor_in_the_way(kind: str, tmp_path: Path) -> None:
    good = record([entry(problem(8, 8))], "Test GPU B")
    write(tmp_path, good)
    path = path_of(tmp_path, record())
    path.parent.mkdir()
    NO_FILES[kind](path)
    with pytest.warns(RuntimeWarning, match=f"{path}: .*autotune run {KERNEL}") as caught:
        assert read_all(tmp_path) == [good]
    assert len(caught) == 1
    new = record([entry(problem(9, 9))])
    if kind != "loop":  # whose folder would be followed for ever
        update(tmp_path, new)
        assert read(path).problems == new.problems
