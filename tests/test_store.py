"""The results store: one contract over SQLite and PostgreSQL, killed writers, and bad input.

PostgreSQL is a real server, of these tests alone.
"""

import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from postgresql import Server, on_server

from autotune.devices.base import CompiledFunction
from autotune.devices.device import Clocks
from autotune.errors import MissingDependencyError, StoreError
from autotune.measure.measurement import CheckResult, Measurement, Status
from autotune.store import Appender, RunInfo, RunState, Scope, Store, default_url
from autotune.store.access import MAX_WAITING
from autotune.store.flat import best_rows, last_rows
from autotune.store.rows import encode
from autotune.values import Configuration, Problem

SEED = int(os.environ.get("TEST_STORE_SEED", "20261121"))
NOBODY = 65534

SCOPE = Scope(
    kernel="sgemm",
    problem=Problem(m=4096, n=4096, k=512, dtype="float32"),
    device_uuid="GPU-1",
    device_name="Test GPU",
    driver="580.1",
    toolchain="nvrtc 13.4",
    source="5" * 64,
    arguments="a" * 64,
    timing="cold",
    arch="sm_90",
)
RUN = RunInfo("sgemm", "Test GPU", "random", 7, "0.1.0", "autotune run sgemm")

#: What the first stores held of a measurement.
_FIRST_FIELDS = [field.name for field in fields(Measurement)][:12]


def numbered(number: int, message: str = "") -> Measurement:
    """A measurement of the configuration with this number."""
    configuration = Configuration(NUMBER=number, UNROLL=True, VARIANT="portable")
    return Measurement(configuration, Status.OK, message, samples_ms=(number + 0.1, 0.3))


def exact(measurement: Measurement) -> object:
    """All of a measurement, where NaN equals itself and 1 does not equal True."""
    values = [(name, type(value), value) for name, value in measurement.configuration.items()]
    return repr(measurement), values


# ---------------------------------------------------------------- servers and stores


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=on_server)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Address of an empty store."""
    if request.param == "sqlite":
        return str(tmp_path / "folder" / "store.sqlite")
    return str(request.getfixturevalue("server").database())


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """An empty store."""
    with Store.open(url) as opened:
        yield opened


def sql(url: str, *statements: str) -> None:
    """Run SQL on a store, behind its back."""
    scheme = (
        url.replace("postgresql:", "postgresql+psycopg:") if "://" in url else f"sqlite:///{url}"
    )
    engine = sa.create_engine(scheme, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


# ---------------------------------------------------------------- contract

text = st.text(st.characters(), max_size=40)  # NUL and lone surrogates among them
number = st.floats()  # NaN, infinities, -0.0 and subnormals among them
count = st.none() | st.integers(0, 2**40)
measured = st.builds(
    Measurement,
    st.dictionaries(
        st.sampled_from("ZYXABC"), st.booleans() | st.integers(-(2**70), 2**70) | text
    ).map(Configuration),
    st.sampled_from(Status),
    text,
    st.lists(number, max_size=5).map(tuple),
    st.lists(st.builds(CheckResult, text, text, number, number, number, count), max_size=3).map(
        tuple
    ),
    st.lists(st.builds(CompiledFunction, text, count, count, count), max_size=3).map(tuple),
    st.integers(0, 2**40),
    text,
    number,
    number,
    number,
    st.builds(Clocks, count, count, st.lists(text, max_size=3).map(tuple)),
    st.just(""),
    st.sampled_from(["", "graph", "stream"]),
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(measured)
def test_a_measurement_survives_the_database(store: Store, measurement: Measurement) -> None:
    run = store.begin_run(RUN)
    store.add(run, SCOPE, measurement)
    assert [exact(row.measurement) for row in store.rows() if row.run_id == run] == [
        exact(measurement)
    ]
    assert exact(store.remembered(SCOPE)[measurement.configuration]) == exact(measurement)


def test_the_newest_row_is_remembered_and_every_row_listed(store: Store) -> None:
    run = store.begin_run(RUN)
    store.add_many(run, SCOPE, [numbered(1), numbered(2)])
    store.add(run, SCOPE, numbered(1, "again"))
    assert {m.configuration.NUMBER: m.message for m in store.remembered(SCOPE).values()} == {
        1: "again",
        2: "",
    }
    assert [row.measurement.message for row in store.rows()] == ["", "", "again"]


@pytest.mark.parametrize(
    "change",
    [
        {"problem": Problem(m=1)},
        *({name: "other"} for name in ("device_uuid", "driver", "toolchain", "source")),
        *({name: "other"} for name in ("kernel", "arguments", "timing")),
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_scope_remembers_nothing(tmp_path: Path, change: dict[str, Any]) -> None:
    with Store.open(tmp_path / "s") as store:
        store.add(store.begin_run(RUN), SCOPE, numbered(1))
        assert store.remembered(replace(SCOPE, **change)) == {}


def test_the_order_of_problem_fields_is_no_part_of_the_scope(store: Store) -> None:
    other = replace(SCOPE, problem=Problem(dict(reversed([*SCOPE.problem.items()]))))
    store.add(store.begin_run(RUN), SCOPE, numbered(1))
    assert list(store.remembered(other)) == [numbered(1).configuration]


def test_rows_tell_where_a_measurement_comes_from(store: Store) -> None:
    run = store.begin_run(replace(RUN, seed=2**127))
    store.add(run, SCOPE, numbered(1))
    (row,) = store.rows()
    for name in ("kernel", "device_uuid", "device_name", "arch", "driver", "toolchain", "source"):
        assert getattr(row, name) == getattr(SCOPE, name)
    assert (row.run_id, row.seed, row.strategy, row.timing) == (run, 2**127, "random", "cold")
    assert str(row.problem) == str(SCOPE.problem)  # in the order of the declaration
    assert row.created.endswith("+00:00")


def test_rows_are_filtered(store: Store) -> None:
    first, second = store.begin_run(RUN), store.begin_run(RUN)
    other = replace(SCOPE, kernel="saxpy", problem=Problem(n=5), device_name="B", device_uuid="2")
    store.add(first, SCOPE, numbered(1))
    store.add(second, other, numbered(2))

    def listed(**wanted: Any) -> list[int]:
        return [row.measurement.configuration.NUMBER for row in store.rows(**wanted)]

    assert listed() == [1, 2]
    assert listed(kernel="saxpy") == listed(device="B") == listed(device="2") == [2]
    assert listed(kernel="saxpy", device="C") == listed(kernel="' OR 1=1 --") == []


def test_a_command_line_of_any_bytes_is_kept(store: Store) -> None:
    store.begin_run(replace(RUN, command="autotune run \udcff\0 é"))
    assert store.runs()[0].command == "autotune run \\udcff\\0 é"


def test_nothing_of_a_failed_batch_is_added(store: Store) -> None:
    run = store.begin_run(RUN)
    with pytest.raises(TypeError):
        store.add_many(run, SCOPE, [numbered(1), replace(numbered(2), compile_s=object())])  # type: ignore[arg-type]
    assert store.rows() == []


def test_what_is_appended_beside_is_there_in_its_order(store: Store) -> None:
    run = store.begin_run(RUN)
    with Appender(store, run, SCOPE) as appender:
        for number in range(50):
            appender.add(numbered(number))
    assert [row.measurement for row in store.rows()] == [numbered(n) for n in range(50)]


def test_a_lock_that_is_let_go_costs_no_row(tmp_path: Path) -> None:
    """The store was locked for too long, which ends the search, and is free when its rows are kept."""
    file = tmp_path / "s.sqlite"
    with Store.open(file, wait_s=0.1) as store, closing(_plain(file)) as other:
        run, given = store.begin_run(RUN), 0
        with pytest.raises(StoreError, match="held its lock"), Appender(store, run, SCOPE) as rows:
            other.execute("BEGIN EXCLUSIVE")
            try:
                for given in range(10_000):
                    rows.add(numbered(given))
            finally:
                other.execute("ROLLBACK")
        kept = [row.measurement for row in store.rows()]
    assert kept == [numbered(number) for number in range(given)]
    assert given <= 2 * MAX_WAITING


def _plain(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(file, isolation_level=None)


# ---------------------------------------------------------------- attempts

forked = multiprocessing.get_context("forkserver")
forked.set_forkserver_preload(
    ["autotune.store", "sqlalchemy.dialects.sqlite", "sqlalchemy.dialects.postgresql", "hypothesis"]
)


def child(target: Callable[..., None], *arguments: object) -> Any:
    """Run a function of this file in a process of its own."""
    process = forked.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def said(process: Any, pipe: Any) -> Any:
    """The one thing that a child tells."""
    process.join(60)
    assert pipe.poll(0), f"the child ended with {process.exitcode} and no word"
    return pipe.recv()


def open_and_die(url: str, numbers: list[int]) -> None:
    """Open attempts and be killed."""
    store = Store.open(url)
    store.open_attempts(store.begin_run(RUN), SCOPE, [numbered(n).configuration for n in numbers])
    os.kill(os.getpid(), signal.SIGKILL)


def open_and_wait(url: str, ready: Any) -> None:
    """Open one attempt and stay alive."""
    store = Store.open(url)
    store.open_attempts(store.begin_run(RUN), SCOPE, [numbered(1).configuration])
    ready.send(True)
    ready.recv()


def test_attempts_of_dead_runs_are_counted(url: str) -> None:
    for numbers in ([1, 2], [1, 3]):
        child(open_and_die, url, numbers).join(30)
    with Store.open(url) as store:
        counts = store.interrupted_attempts(SCOPE)
        assert {configuration.NUMBER: n for configuration, n in counts.items()} == {
            1: 2,
            2: 1,
            3: 1,
        }
        assert store.interrupted_attempts(replace(SCOPE, driver="other")) == {}
        store.add(store.begin_run(RUN), SCOPE, numbered(1))  # its row settles the matter
        assert {configuration.NUMBER for configuration in store.interrupted_attempts(SCOPE)} == {
            2,
            3,
        }


def test_attempts_of_live_runs_are_not_counted(url: str) -> None:
    here, there = forked.Pipe()
    other = child(open_and_wait, url, there)
    assert here.poll(30) and here.recv()
    with Store.open(url) as store:
        mine = [numbered(n).configuration for n in (2, 3)]
        store.open_attempts(store.begin_run(RUN), SCOPE, mine)
        assert store.interrupted_attempts(SCOPE) == {}
        other.kill()
        other.join(30)
        assert store.interrupted_attempts(SCOPE) == {numbered(1).configuration: 1}


@pytest.mark.parametrize("state", ["done", "interrupted", "failed"])
def test_a_run_that_ended_in_order_interrupted_nothing(url: str, state: Any) -> None:
    """Ctrl-C twice in the same batch must not look like a configuration that kills."""
    with Store.open(url) as store:
        run = store.begin_run(RUN)
        store.open_attempts(run, SCOPE, [numbered(1).configuration])
        store.finish_run(run, state)
        sql(url, "UPDATE runs SET process = 'gone'")
        assert store.interrupted_attempts(SCOPE) == {}


def test_attempts_of_another_boot_or_machine_are_counted(url: str) -> None:
    with Store.open(url) as store:
        store.open_attempts(store.begin_run(RUN), SCOPE, [numbered(1).configuration])
        sql(url, f"UPDATE runs SET process = 'other-boot 1 {os.getpid()}'")
        assert store.interrupted_attempts(SCOPE) == {numbered(1).configuration: 1}


def test_the_run_of_another_process_is_not_ended(url: str) -> None:
    """SQLite gives the id of a run that was rolled back to the next one."""
    with Store.open(url) as store:
        run = store.begin_run(RUN)
        store.open_attempts(run, SCOPE, [numbered(1).configuration])
        sql(url, "UPDATE runs SET process = 'other'")
        store.finish_run(run, "interrupted")
        assert [past.ended for past in store.runs()] == ["unknown"]  # its process cannot be seen
        assert store.interrupted_attempts(SCOPE) == {numbered(1).configuration: 1}


# ---------------------------------------------------------------- what ran


def add_and_die(url: str, numbers: list[int]) -> None:
    """Store rows, open an attempt and be killed."""
    store = Store.open(url)
    run = store.begin_run(RUN)
    store.add_many(run, SCOPE, map(numbered, numbers))
    store.open_attempts(run, SCOPE, [numbered(99).configuration])
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_ran_is_listed_with_how_it_ended(url: str) -> None:
    child(add_and_die, url, [1, 2]).join(30)
    with Store.open(url) as store:
        for state in ("done", "budget", "interrupted", "failed"):
            store.finish_run(store.begin_run(RUN), cast(RunState, state))
        store.begin_run(RUN)
        store.add(store.begin_run(replace(RUN, kernel="other", seed=2**100)), SCOPE, numbered(3))
        sql(url, "UPDATE runs SET process = 'other-boot 1 77' WHERE kernel = 'other'")
        found = store.runs()
        assert [(run.ended, run.rows) for run in found] == [
            ("killed", 2),
            ("finished", 0),
            ("budget", 0),
            ("interrupted", 0),
            ("failed", 0),
            ("running", 0),
            ("unknown", 1),
        ]
        assert [run.id for run in found] == sorted(run.id for run in found)
        assert (found[0].command, found[0].device_name) == (RUN.command, RUN.device_name)
        assert found[0].finished is None and (found[1].seconds or 0) >= 0
        assert found[-2].seconds is None and found[-1].seed == 2**100
        assert store.runs("other") == found[-1:] and store.runs(most=2) == found[-2:]
        assert store.runs(device=RUN.device_name) == found and store.runs(device="none") == []


# ---------------------------------------------------------------- killed writers


def write_until_killed(url: str, total: int, kill_at: int, told: Any) -> None:
    """Measure what is not remembered, as the engine does; die at one event of the database.

    Events are those SQLAlchemy tells of: begin, before and after a statement, commit, and the
    moment between the commit and the word of it.
    """
    store = Store.open(url)
    events = iter(range(kill_at, -1, -1))

    def event(*_: object, **__: object) -> None:
        if next(events) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    names = ("begin", "before_cursor_execute", "after_cursor_execute", "commit")
    for name in names if kill_at >= 0 else ():
        sa.event.listen(sa.Engine, name, event)
    run = store.begin_run(RUN)
    done = {configuration.NUMBER for configuration in store.remembered(SCOPE)}
    for n in range(total):
        if n not in done:
            measurement = numbered(n, "x" * 300)
            store.open_attempts(run, SCOPE, [measurement.configuration])
            store.add(run, SCOPE, measurement)
            if kill_at >= 0:
                event()
            told.send(n)
    store.finish_run(run, "done")


def received(pipe: Any) -> list[int]:
    """All that arrives until the other end is gone."""
    numbers = []
    while True:
        try:
            numbers.append(pipe.recv())
        except EOFError:
            return numbers


def test_no_row_is_lost_or_doubled_by_a_kill(url: str) -> None:
    print(f"TEST_STORE_SEED={SEED}")
    rng = random.Random(SEED)
    Store.open(url).close()
    total, told = 80, Counter[int]()
    for turn in range(8):
        # Every other writer is killed from outside, anywhere, C code included.
        at = rng.randrange(120) if turn % 2 else -1
        here, there = forked.Pipe(duplex=False)
        writer = child(write_until_killed, url, total, at, there)
        there.close()
        if at < 0:
            told.update(here.recv() for _ in range(rng.randrange(1, 4)) if here.poll(30))
            time.sleep(rng.random() / 500)
            writer.kill()
        told.update(received(here))
        writer.join(30)
        if len(told) >= total - 4:
            break
        assert writer.exitcode == -signal.SIGKILL, f"turn {turn}"
        check_after_kill(url, told, turn)
    last, there = forked.Pipe(duplex=False)
    writer = child(write_until_killed, url, total, -1, there)
    there.close()
    received(last)
    writer.join(30)
    assert writer.exitcode == 0
    with Store.open(url) as store:
        assert sorted(r.measurement.configuration.NUMBER for r in store.rows()) == [*range(total)]
        assert store.interrupted_attempts(SCOPE) == {}


def check_after_kill(url: str, told: Counter[int], turn: int) -> None:
    """Each row once, each row that was told of there, and no more than one open attempt."""
    with Store.open(url) as store:
        rows = Counter(row.measurement.configuration.NUMBER for row in store.rows())
        still_open = {configuration.NUMBER for configuration in store.interrupted_attempts(SCOPE)}
    assert set(rows.values()) <= {1}, f"turn {turn}: doubled"
    assert set(told) <= set(rows), f"turn {turn}: lost"
    assert not still_open & set(rows), f"turn {turn}: a row and an open attempt"
    assert len(still_open) <= 1


def write_many(url: str, start: int, total: int, barrier: Any) -> None:
    """Open the store at the same moment as others, and add rows one by one."""
    barrier.wait(30)
    with Store.open(url) as store:
        run = store.begin_run(RUN)
        for n in range(start, start + total):
            store.open_attempts(run, SCOPE, [numbered(n).configuration])
            store.add(run, SCOPE, numbered(n))
        store.finish_run(run, "done")


def test_writers_at_once_make_the_store_and_lose_nothing(url: str) -> None:
    writers, each = 4, 60
    barrier = forked.Barrier(writers)
    started = [child(write_many, url, n * each, each, barrier) for n in range(writers)]
    for process in started:
        process.join(60)
    assert [process.exitcode for process in started] == [0] * writers
    with Store.open(url) as store:
        found = sorted(row.measurement.configuration.NUMBER for row in store.rows())
        assert found == [*range(writers * each)]
        assert {row.run_id for row in store.rows()} == {*range(1, writers + 1)}


# ---------------------------------------------------------------- bad input, both


def refused(action: Callable[[], object], *words: str) -> str:
    """The one line of a StoreError that holds these words and no traceback of a driver."""
    with pytest.raises(StoreError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message and "sqlalche.me" not in message
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    for word in words:
        assert word in message
    return message


@pytest.mark.parametrize("version", [3, 99])
def test_another_schema_is_left_alone(url: str, version: int) -> None:
    with Store.open(url) as store:
        store.add(store.begin_run(RUN), SCOPE, numbered(1))
    sql(url, f"UPDATE autotune_schema SET version = {version}")
    refused(lambda: Store.open(url), f"version {version}", "was not changed", "AUTOTUNE_STORE")
    sql(url, "UPDATE autotune_schema SET version = 4")
    with Store.open(url) as store:
        assert [row.measurement for row in store.rows()] == [numbered(1)]


def test_the_fastest_and_the_newest_are_asked_of_the_database(store: Store) -> None:
    """What a million rows must not be read for."""
    run, other = store.begin_run(RUN), replace(SCOPE, kernel="reduce", device_uuid="GPU-2")
    store.add_many(run, SCOPE, map(numbered, (3, 1, 2)))
    store.add_many(run, SCOPE, [replace(numbered(0), status=Status.WRONG_RESULT)])
    store.add_many(run, other, map(numbered, range(600)))
    store.add_many(run, other, [replace(numbered(0), samples_ms=(900.0,))])
    assert [row.kernel for row in store.newest_of_scopes()] == ["sgemm", "reduce"]
    assert [row.kernel for row in store.newest_of_scopes(device="GPU-1")] == ["sgemm"]
    (last,) = store.newest_of_scopes("sgemm")
    found = store.fastest(last.scope, 2)
    assert [row.measurement.configuration.NUMBER for row in found] == [1, 2]
    assert store.count(last.scope) == 4
    memory = store.remembered(other)
    by_time = [configuration.NUMBER for configuration in memory.by_time(Status.OK)]
    assert by_time == [*range(1, 600), 0]
    assert len(memory) == 600
    assert memory.get(numbered(600).configuration) is None
    newest = [row.measurement.configuration.NUMBER for row in store.rows("reduce", most=3)]
    assert newest == [598, 599, 0]
    assert len(store.rows("reduce", most=700)) == 601


def test_a_row_that_was_disqualified_later_is_not_among_the_best(store: Store) -> None:
    run = store.begin_run(RUN)
    store.add_many(run, SCOPE, map(numbered, (1, 2)))
    store.add(run, SCOPE, replace(numbered(1), status=Status.WRONG_RESULT, message="in the finals"))
    assert [row.measurement for row in best_rows(store, 3, None, None)] == [numbered(2)]
    last = [row.measurement for row in last_rows(store.rows())]
    assert [(each.configuration.NUMBER, each.status) for each in last] == [
        (1, Status.WRONG_RESULT),
        (2, Status.OK),
    ]


def test_rows_from_before_a_field_was_added_are_read(store: Store, url: str) -> None:
    """Stores outlive versions: what a measurement lacks has its default."""
    store.add(store.begin_run(RUN), SCOPE, numbered(1))
    written = json.loads(encode(numbered(1)))
    first = {name: written[name] for name in _FIRST_FIELDS}
    sql(url, f"UPDATE measurements SET measurement = '{json.dumps(first)}'")
    assert [row.measurement for row in store.rows()] == [numbered(1)]


def test_a_database_of_another_program_is_left_alone(url: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir(exist_ok=True)
    sql(url, "CREATE TABLE notes (words TEXT)", "INSERT INTO notes VALUES ('mine')")
    before = Path(url).read_bytes() if "://" not in url else b""
    refused(lambda: Store.open(url), "another program", "notes")
    assert "://" in url or Path(url).read_bytes() == before
    sql(url, "DROP TABLE notes")
    Store.open(url).close()


def test_a_table_that_went_missing_is_told(url: str) -> None:
    Store.open(url).close()
    sql(url, "DROP TABLE attempts")
    with Store.open(url) as store:
        refused(lambda: store.interrupted_attempts(SCOPE), "attempts", "name another store")


@pytest.mark.parametrize("damage", ["", "null", '{"status": "ok"}', "[" * 100_000])
def test_a_damaged_row_is_named(store: Store, url: str, damage: str) -> None:
    store.add(store.begin_run(RUN), SCOPE, numbered(1))
    sql(url, f"UPDATE measurements SET measurement = '{damage}'")
    refused(lambda: dict(store.remembered(SCOPE)), "measurement 1 is damaged", "delete")
    refused(store.rows, "measurement 1 is damaged")


@pytest.mark.parametrize(
    "address",
    [
        "mysql://u:hidden@h/d",
        "postgresql://u:hid@hidden@h/d",
        "postgresql://u:hi@dd/hidden@h/d",
        "postgresql://u:hidden@h:port/d",
        "postgresql://u:hidden@127.0.0.1:1/d",
        "postgresql://u@127.0.0.1:1/d?password=hidden",
        "postgresql://u:hidden@127.0.0.1:1/d?hidden=1",
        "sqlite://",
        "://",
    ],
)
def test_a_bad_address_is_explained_without_its_password(address: str) -> None:
    message = refused(lambda: Store.open(address))
    assert "expected" in message or "cannot be reached" in message
    assert "hid" not in message


def test_without_psycopg_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingDependencyError, match=r"pip install .*\[postgres\]'"):
        Store.open("postgresql://u:hidden@h/d")


def test_where_results_go_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = Path(os.environ["HOME"])
    assert default_url() == str(home / ".local/share/autotune/store.sqlite")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_url() == str(tmp_path / "autotune" / "store.sqlite")
    monkeypatch.setenv("AUTOTUNE_STORE", "postgresql://h/d")
    assert default_url() == "postgresql://h/d"


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}", "~/{.name}"])
def test_forms_of_a_file_address(form: str, tmp_path: Path) -> None:
    Store.open(form.format(tmp_path / "s")).close()
    assert (tmp_path / "s").exists() or (Path.home() / "s").exists()


# ---------------------------------------------------------------- bad input, SQLite


@pytest.mark.parametrize("junk", [b"hello", b"SQLite format 3\0" + b"\xff" * 4080])
def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "s"
    path.write_bytes(junk)
    refused(lambda: Store.open(path), str(path), "AUTOTUNE_STORE")
    assert path.read_bytes() == junk
    assert [file.name for file in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize("cut", [False, True])
def test_a_damaged_store_is_told(tmp_path: Path, cut: bool) -> None:
    path = tmp_path / "s"
    with Store.open(path) as store:
        store.add_many(store.begin_run(RUN), SCOPE, map(numbered, range(300)))
    whole = path.read_bytes()
    half = len(whole) // 2
    path.write_bytes(whole[:half] if cut else whole[:8192] + b"\x17" * half + whole[8192 + half :])

    def use() -> None:
        with Store.open(path) as store:
            store.rows()

    refused(use, str(path), "damaged", "recover")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    refused(lambda: Store.open(tmp_path), str(tmp_path), "is a folder", "name another file")
    (tmp_path / "file").touch()
    refused(lambda: Store.open(tmp_path / "file" / "s"), "folder", "AUTOTUNE_STORE")


def test_a_lock_is_waited_for_and_then_told(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Store.open(path, wait_s=0.2) as store:
        run = store.begin_run(RUN)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        refused(lambda: store.add(run, SCOPE, numbered(1)), str(path), "0.2 s", "fuser")
        assert store.rows() == []  # readers need not wait
        other.execute("COMMIT")
        store.add(run, SCOPE, numbered(1))
        other.close()
        assert len(store.rows()) == 1


def open_as_nobody(path: str, told: Any) -> None:
    """Open a store without root's rights, which no permission stops; write to it."""
    if os.geteuid() == 0:
        Store.open(f"{path}.import").close()  # imports all it needs while files may be read
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    try:
        with Store.open(path) as store:
            store.begin_run(RUN)
        told.send("")
    except StoreError as error:
        told.send(str(error))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach; pytest's are private."""
    folder = Path(tempfile.mkdtemp(prefix="autotune-store-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("case", ["file", "read only", "folder", "new folder"])
def test_missing_permissions_are_told(open_folder: Path, case: str) -> None:
    folder = open_folder / "private"
    folder.mkdir()
    path = folder / "deeper" / "s" if case == "new folder" else folder / "s"
    if case != "new folder":
        with Store.open(path) as store:
            store.begin_run(RUN)
    before = path.read_bytes() if path.exists() else b""
    if path.exists():
        path.chmod({"file": 0o000, "read only": 0o444, "folder": 0o666}[case])
    folder.chmod({"file": 0o777, "read only": 0o777, "folder": 0o000, "new folder": 0o555}[case])
    here, there = forked.Pipe()
    message = said(child(open_as_nobody, str(path), there), here)
    folder.chmod(0o755)
    assert str(path) in message and "AUTOTUNE_STORE" in message
    assert "permission" in message.lower() or "may not be" in message
    assert not path.exists() or path.chmod(0o644) or path.read_bytes() == before


def fill(path: str, limit: int, told: Any) -> None:
    """Add rows until there is no room; tell how many, and what the store said then."""
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    store = Store.open(path)
    run, added = store.begin_run(RUN), 0
    for _ in range(2):
        try:
            while added < 2000:
                store.add(run, SCOPE, numbered(added, "x" * 2000))
                added += 1
        except StoreError as error:
            message = str(error)
    told.send((added, message, len(store.rows())))


@pytest.mark.parametrize("cause", ["tmpfs", "limit"])
def test_a_full_disk_loses_nothing(open_folder: Path, cause: str) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(open_folder)]
    is_mounted = cause == "tmpfs" and not subprocess.run(mount, stderr=subprocess.PIPE).returncode
    path = open_folder / "s"
    try:
        here, there = forked.Pipe()
        limit = 0 if is_mounted else 300_000
        added, message, listed = said(child(fill, str(path), limit, there), here)
        assert 5 < added < 2000 and listed == added
        assert str(path) in message and "are kept" in message
        assert not is_mounted or "disk is full" in message
        with Store.open(path) as store:  # as another process finds it
            assert len(store.rows()) == added
    finally:
        if is_mounted:
            subprocess.run(["umount", open_folder], check=True)


def test_a_row_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    """Ten milliseconds instead of one: SQLite waits at every commit unless both are so."""
    with Store.open(tmp_path / "s") as store:
        store.add(store.begin_run(RUN), SCOPE, numbered(1))
        with store.reading() as connection:
            for setting, value in (("journal_mode", "wal"), ("synchronous", 1)):
                assert connection.exec_driver_sql(f"PRAGMA {setting}").scalar() == value


# ---------------------------------------------------------------- bad input, PostgreSQL


@pytest.mark.postgres
@pytest.mark.xdist_group("postgres")
class TestServer:
    """What only a server can do wrong."""

    def test_a_wrong_password_is_told_but_not_printed(self, server: Server) -> None:
        wrong = server.database().replace(server.password, "hidden")
        message = refused(lambda: Store.open(wrong), "password authentication failed", "check")
        assert "hidden" not in message

    def test_missing_rights_are_told(self, server: Server) -> None:
        server.sql("CREATE ROLE guest LOGIN PASSWORD 'guest'")
        address = server.database().replace(f"tester:{server.password}", "guest:guest")
        refused(lambda: Store.open(address), "permission denied", "GRANT")

    def test_a_lock_is_waited_for_and_then_told(self, server: Server) -> None:
        address = server.database()
        with Store.open(address, wait_s=0.2) as store:
            run = store.begin_run(RUN)
            engine = sa.create_engine(address.replace("postgresql:", "postgresql+psycopg:"))
            with engine.begin() as other:
                other.exec_driver_sql("LOCK TABLE measurements")
                refused(lambda: store.add(run, SCOPE, numbered(1)), "0.2 s", "pg_stat_activity")
            engine.dispose()
            store.add(run, SCOPE, numbered(1))
            assert len(store.rows()) == 1

    def test_a_lost_connection_is_made_anew(self, server: Server) -> None:
        address = server.database()
        with Store.open(address) as store:
            run = store.begin_run(RUN)
            server.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                f"WHERE datname = '{address.rpartition('/')[2]}'"
            )
            store.add(run, SCOPE, numbered(1))
            assert len(store.rows()) == 1
