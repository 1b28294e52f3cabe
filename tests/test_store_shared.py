"""One store of many: merged from others, and shared by runs through a server that may be away."""

import json
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from postgresql import Server, on_server
from test_store import RUN, SCOPE, numbered, refused, sql

from autotune.cli import run
from autotune.errors import Interrupted, StoreError
from autotune.files import data_path
from autotune.store import ROTATED, SizeTimes, Store, open_for_runs
from autotune.store.sharing import SharedStore, merge
from autotune.values import Configuration, Problem

OTHER = replace(SCOPE, kernel="reduce", device_uuid="GPU-2")

FIRST, SECOND = Configuration(BM=64, SPLIT=True), Configuration(BM=128, SPLIT=False)
SIZES = [
    SizeTimes(Problem(m=100, n=7, k=3), {FIRST: 0.5, SECOND: 0.25}),
    SizeTimes(Problem(m=64, n=64, k=64), {SECOND: 1.5}),
]

forked = multiprocessing.get_context("forkserver")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=on_server)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Address of an empty store."""
    if request.param == "sqlite":
        return str(tmp_path / "store.sqlite")
    return str(request.getfixturevalue("server").database())


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Store]:
    """A store with two runs, four rows and an open attempt of a run that is gone."""
    with Store.open(tmp_path / "other.sqlite") as store:
        first = store.begin_run(RUN)
        store.add_many(first, SCOPE, map(numbered, (1, 2, 3)))
        store.finish_run(first, "done")
        second = store.begin_run(replace(RUN, kernel="reduce"))
        store.add(second, OTHER, numbered(1, "\udcff and \0"))
        store.open_attempts(second, OTHER, [numbered(9).configuration])
        sql(str(tmp_path / "other.sqlite"), "UPDATE runs SET process = 'gone' WHERE id = 2")
        yield store


def contents(store: Store) -> list[tuple[Any, ...]]:
    """Every row without its numbers."""
    return sorted(
        (row.kernel, row.scope, row.created, row.seed, str(row.measurement)) for row in store.rows()
    )


# ---------------------------------------------------------------- merging


def test_what_is_missing_is_added_once(url: str, other: Store, tmp_path: Path) -> None:
    with Store.open(url) as store:
        mine = store.begin_run(RUN)
        store.add(mine, SCOPE, numbered(7))
        done = merge(other, store)
        assert (done.rows, done.added) == (4, 4)
        assert [run.ended for run in store.runs()][1:] == ["finished", "unknown"]
        assert store.interrupted_attempts(OTHER) == {}  # they stay where they are
        assert store.remembered(SCOPE)[numbered(2).configuration] == numbered(2)
        before = contents(store)
        again = merge(other, store)
        assert (again.added, len(store.runs()), contents(store)) == (0, 3, before)
        with Store.open(tmp_path / "back.sqlite") as back:  # and in the other direction
            assert merge(store, back).added == 5
            assert contents(back) == before
            assert merge(back, store).added == merge(back, other).added - 1 == 0


def test_what_came_since_is_added_by_the_next_merge(url: str, other: Store, tmp_path: Path) -> None:
    with Store.open(url) as store:
        merge(other, store)
        other.add(2, OTHER, numbered(9))
        sql(str(tmp_path / "other.sqlite"), "UPDATE runs SET state = 'failed' WHERE id = 2")
        assert merge(other, store).added == 1
        assert [run.ended for run in store.runs()] == ["finished", "failed"]


def add_sizes(store: Store, source: str = SCOPE.source) -> None:
    rotated = replace(SCOPE, timing=ROTATED, source=source)
    rows = [(replace(rotated, problem=each.problem), each) for each in SIZES]
    store.add_sizes(store.begin_run(RUN), rows)


def sizes_in(store: Store) -> list[SizeTimes]:
    return store.sizes(SCOPE.kernel, SCOPE.source, SCOPE.device_name, [SCOPE.arguments])


def test_times_on_sizes_are_kept_by_source_and_merged_once(url: str, tmp_path: Path) -> None:
    with Store.open(url) as store, Store.open(tmp_path / "other.sqlite") as other:
        add_sizes(other)
        add_sizes(other, "6" * 64)
        assert sizes_in(other) == SIZES
        assert other.rows() == [] and [run.rows for run in other.runs()] == [2, 2]
        done = merge(other, store)
        assert (done.rows, done.added, merge(other, store).added) == (4, 4, 0)
        assert sizes_in(store) == SIZES
        assert store.sizes("sgemm", "7" * 64, SCOPE.device_name, [SCOPE.arguments]) == []
        assert store.sizes("sgemm", SCOPE.source, SCOPE.device_name, ["b" * 64]) == []
        sql(url, "UPDATE sizes SET times = '[1]'")
        refused(lambda: sizes_in(store), "row 1 of sizes is damaged")


def merge_and_die(source: str, target: str, after: int) -> None:
    """Merge in small batches, and be killed within one."""
    from autotune.store import sharing

    sharing.BATCH = 3
    with Store.open(source) as first, Store.open(target) as second:
        events = iter(range(after, -1, -1))

        def event(*_: object) -> None:
            if next(events) == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        sa.event.listen(sa.Engine, "after_cursor_execute", event)
        merge(first, second)


@pytest.mark.parametrize("after", [8, 20])
def test_a_merge_that_was_killed_is_done_again(url: str, tmp_path: Path, after: int) -> None:
    source = tmp_path / "source.sqlite"
    with Store.open(source) as first, Store.open(url):
        run_id = first.begin_run(RUN)
        first.add_many(run_id, SCOPE, map(numbered, range(20)))
    process = forked.Process(target=merge_and_die, args=(str(source), url, after))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    with Store.open(source) as first, Store.open(url) as second:
        there = len(second.rows())
        assert there < 20
        assert merge(first, second).added == 20 - there
        assert contents(second) == contents(first) and len(second.runs()) == 1


# ---------------------------------------------------------------- runs that share a server


@contextmanager
def away(server: Server, address: str) -> Iterator[None]:
    """Let nobody into a database, as if its server was down."""
    name = address.rpartition("/")[2]
    server.sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    server.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    try:
        yield
    finally:
        server.sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


def local_file() -> Path:
    (file,) = Path(data_path("shared")).glob("*.sqlite")
    return file


def numbers(store: Store) -> list[int]:
    return sorted(row.measurement.configuration.NUMBER for row in store.rows())


def add_and_die(address: str, data: str, ready: Any) -> None:
    """Store two rows of a run, and be killed when told to."""
    os.environ["XDG_DATA_HOME"] = data
    warnings.simplefilter("ignore")
    with open_for_runs(address) as store:
        run_id = store.begin_run(RUN)
        store.add_many(run_id, SCOPE, [numbered(1), numbered(2)])
        store.open_attempts(run_id, SCOPE, [numbered(3).configuration])
        ready.send(True)
        ready.recv()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge into the server every few milliseconds."""
    monkeypatch.setattr("autotune.store.sharing.PUSH_S", 0.02)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.postgres
@pytest.mark.xdist_group("postgres")
class TestShared:
    """Runs write to a local file, and its rows get to the server once."""

    def test_rows_get_to_the_server_and_back(
        self, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        address = server.database()
        with open_for_runs(address) as store:
            run_id = store.begin_run(RUN)
            store.add_many(run_id, SCOPE, map(numbered, (1, 2)))
            store.finish_run(run_id, "done")
            assert store.address.path == local_file()
        with Store.open(address) as store:
            assert numbers(store) == [1, 2]
            assert [(run.rows, run.ended) for run in store.runs()] == [(2, "finished")]
            store.add(store.begin_run(replace(RUN, kernel="reduce")), OTHER, numbered(5))
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another machine"))
        with open_for_runs(address) as store:
            assert dict(store.remembered(SCOPE)) == {
                numbered(n).configuration: numbered(n) for n in (1, 2)
            }
            assert numbers(store) == [1, 2]  # of this scope alone
        with Store.open(address) as store:
            assert numbers(store) == [1, 2, 5] and len(store.runs()) == 2

    def test_times_on_sizes_get_to_the_server_and_back(
        self, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        address = server.database()
        with open_for_runs(address) as store:
            add_sizes(store)
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another machine"))
        for _ in range(2):
            with open_for_runs(address) as store:
                assert sizes_in(store) == SIZES

    def test_rows_get_to_the_server_while_the_run_lasts(self, server: Server, often: None) -> None:
        address = server.database()
        with open_for_runs(address) as store, Store.open(address) as shared:
            store.add(store.begin_run(RUN), SCOPE, numbered(1))
            wait_for(lambda: numbers(shared) == [1])

    def test_a_missing_database_and_a_read_only_server_end_with_one_message(
        self, server: Server
    ) -> None:
        address = server.database()
        name = address.rpartition("/")[2]
        refused(lambda: ExitStack().enter_context(open_for_runs(f"{address}_no")), "does not exist")
        server.sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        refused(lambda: ExitStack().enter_context(open_for_runs(address)), "read-only")

    def test_rows_that_a_read_only_server_refuses_are_kept(self, server: Server) -> None:
        address = server.database()
        Store.open(address).close()
        name = address.rpartition("/")[2]
        server.sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        kept = pytest.warns(UserWarning, match="takes no writes")
        with kept, open_for_runs(address) as store:
            store.add(store.begin_run(RUN), SCOPE, numbered(1))
        with Store.open(local_file()) as store:
            assert numbers(store) == [1]
        refused(lambda: ExitStack().enter_context(open_for_runs(address)), "takes no writes")

    def test_a_server_that_goes_away_in_a_run_loses_nothing(
        self, server: Server, often: None
    ) -> None:
        address = server.database()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with open_for_runs(address) as store:
                run_id = store.begin_run(RUN)
                store.add(run_id, SCOPE, numbered(1))
                with away(server, address):
                    store.add(run_id, SCOPE, numbered(2))
                    wait_for(lambda: bool(said))
                    assert set(store.remembered(SCOPE)) == {
                        numbered(n).configuration for n in (1, 2)
                    }
                store.add(run_id, SCOPE, numbered(3))
                store.finish_run(run_id, "done")
        assert len(said) == 1 and "rows are kept in" in str(said[0].message)
        assert server.password not in str(said[0].message)
        with Store.open(address) as store:
            assert numbers(store) == [1, 2, 3]
            assert [run.ended for run in store.runs()] == ["finished"]

    def test_a_server_that_stays_away_gets_the_rows_from_the_next_run(self, server: Server) -> None:
        address = server.database()
        with pytest.warns(UserWarning, match="autotune doctor merge"), ExitStack() as absence:
            with open_for_runs(address) as store:
                store.add(store.begin_run(RUN), SCOPE, numbered(1))
                absence.enter_context(away(server, address))
            with pytest.raises(StoreError, match="cannot be reached"), open_for_runs(address):
                pass
        with open_for_runs(address):
            pass
        with Store.open(address) as store:
            assert numbers(store) == [1]

    def test_an_interrupted_run_waits_a_second_for_its_server(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        address = server.database()
        stop = Interrupted("Ctrl-C")
        kept = pytest.warns(UserWarning, match="autotune doctor merge")
        with kept, pytest.raises(Interrupted), open_for_runs(address) as store:
            store.add(store.begin_run(RUN), SCOPE, numbered(1))
            monkeypatch.setattr(SharedStore, "push", lambda self: time.sleep(20))
            begun = time.monotonic()
            raise stop
        assert time.monotonic() - begun < 15  # not the 20 of a push
        with Store.open(local_file()) as store:
            assert numbers(store) == [1]

    def test_two_runs_at_once_lose_and_double_nothing(self, server: Server, often: None) -> None:
        """Of one machine, and so by one local file."""
        address = server.database()

        def measure(start: int) -> None:
            with open_for_runs(address) as store:
                run_id = store.begin_run(replace(RUN, seed=start))
                for number in range(start, start + 40):
                    store.add(run_id, SCOPE, numbered(number))
                    time.sleep(0.002)
                store.finish_run(run_id, "done")

        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(measure, (0, 40))) == [None, None]
        with Store.open(address) as store:
            assert numbers(store) == [*range(80)]
            assert [run.ended for run in store.runs()] == ["finished", "finished"]

    def test_the_rows_of_a_killed_run_are_sent_by_the_next(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        address = server.database()
        here, there = forked.Pipe()
        data = str(Path(data_path()).parent)
        process = forked.Process(target=add_and_die, args=(address, data, there))
        process.start()
        assert here.poll(30) and here.recv()
        with away(server, address):
            here.send(True)
            process.join(30)
            assert process.exitcode == -signal.SIGKILL
        with Store.open(address) as store:
            assert numbers(store) == []
        with open_for_runs(address) as store:
            assert set(store.remembered(SCOPE)) == {numbered(n).configuration for n in (1, 2)}
            assert store.interrupted_attempts(SCOPE) == {numbered(3).configuration: 1}
        with Store.open(address) as store:
            assert numbers(store) == [1, 2]
            assert [run.ended for run in store.runs()] == ["killed"]


# ---------------------------------------------------------------- TLS and passwords


@pytest.mark.postgres
@pytest.mark.xdist_group("postgres")
class TestAccess:
    """TLS and passwords are those of libpq."""

    def test_what_the_url_asks_of_tls_is_asked_of_the_server(self, server: Server) -> None:
        address = f"{server.database()}?sslmode=require"
        refused(lambda: Store.open(address), "SSL", "cannot be reached")

    def test_passwords_come_from_a_file_or_the_environment_and_go_nowhere(
        self,
        server: Server,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        address = server.database()
        bare = address.replace(f":{server.password}@", "@")
        passwords = tmp_path / "pgpass"
        passwords.write_text(f"127.0.0.1:*:*:tester:{server.password}\n")
        passwords.chmod(0o600)
        source = str(tmp_path / "a.sqlite")
        with Store.open(source) as store:
            store.add(store.begin_run(RUN), SCOPE, numbered(1))
        assert run(["doctor", "merge", source, bare]) == 1
        assert "no password supplied" in capsys.readouterr().err
        monkeypatch.setenv("PGPASSFILE", str(passwords))
        assert run(["doctor", "merge", source, bare]) == 0
        monkeypatch.delenv("PGPASSFILE")
        monkeypatch.setenv("PGPASSWORD", server.password)
        assert run(["doctor", "merge", bare, source]) == 0
        assert run(["doctor", "merge", source, address]) == 2
        printed = capsys.readouterr()
        assert "can see a password on the command line" in printed.err
        assert "1 added to postgresql://tester@127.0.0.1" in printed.out
        monkeypatch.setenv("AUTOTUNE_STORE", address)
        assert run(["doctor", "store", "--json"]) == 0
        printed = capsys.readouterr()
        assert json.loads(printed.out)["rows"] == 1
        for text in (printed.out, printed.err):
            assert server.password not in text


# ---------------------------------------------------------------- autotune store


def test_what_a_store_holds(
    other: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("AUTOTUNE_STORE", str(other.address))
    assert run(["doctor", "store", "--json"]) == 0
    held = json.loads(capsys.readouterr().out)
    assert held["rows"] == 4 and held["kernels"] == {"reduce": 1, "sgemm": 3}
    assert run(["doctor", "store"]) == 0
    assert "4 rows" in capsys.readouterr().out
    missing = str(tmp_path / "none.sqlite")
    assert run(["doctor", "merge", missing, str(other.address)]) == 1
    assert run(["doctor", "merge", str(other.address), str(other.address)]) == 2
    errors = capsys.readouterr().err
    assert "no such file" in errors and "are the same store" in errors
    assert not Path(missing).exists()
