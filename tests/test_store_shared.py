"""One store of many: merged from others, written while its server is away, and by roles that may little."""

import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from postgresql import Server, on_server
from test_store import RUN, SCOPE, numbered, refused, sql

from autotune.cli import run
from autotune.files import data_path
from autotune.measure.measurement import Status
from autotune.store import Store
from autotune.store.merging import merge

OPERATIONS = Path(__file__).parents[1] / "docs" / "operations.md"
OTHER = replace(SCOPE, kernel="reduce", device_uuid="GPU-2")

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


def told(store: Store) -> list[tuple[Any, ...]]:
    """What is known of every row but its numbers."""
    return sorted(
        (row.kernel, row.scope, row.created, row.seed, str(row.measurement)) for row in store.rows()
    )


# ---------------------------------------------------------------- merging


def test_what_is_missing_is_added_once(url: str, other: Store, tmp_path: Path) -> None:
    with Store.open(url) as store:
        mine = store.begin_run(RUN)
        store.add(mine, SCOPE, numbered(7))
        done = merge(other, store)
        assert (done.rows, done.added, done.runs) == (4, 4, 2)
        assert [run.ended for run in store.runs()][1:] == ["finished", "killed or elsewhere"]
        assert store.interrupted_attempts(OTHER) == {numbered(9).configuration: 1}
        assert store.remembered(SCOPE)[numbered(2).configuration] == numbered(2)
        before = told(store)
        again = merge(other, store)
        assert (again.added, again.runs, told(store)) == (0, 0, before)
        assert store.interrupted_attempts(OTHER) == {numbered(9).configuration: 1}
        with Store.open(tmp_path / "back.sqlite") as back:  # and in the other direction
            assert merge(store, back).added == 5
            assert told(back) == before
            assert merge(back, store).added == merge(back, other).added - 1 == 0


def test_what_came_since_is_added_by_the_next_merge(url: str, other: Store) -> None:
    """A row closes the attempt it came of, and a run has ended meanwhile."""
    with Store.open(url) as store:
        merge(other, store)
        other.add(2, OTHER, numbered(9))
        other.finish_run(2, "failed")
        assert merge(other, store).added == 1
        assert store.interrupted_attempts(OTHER) == {}
        assert [run.ended for run in store.runs()] == ["finished", "failed"]


def test_of_two_rows_the_later_one_is_remembered(url: str, other: Store) -> None:
    """Which was measured first decides, not which was merged first."""
    wrong = replace(numbered(1), status=Status.WRONG_RESULT, message="later")
    with Store.open(url) as store:
        store.add(store.begin_run(RUN), SCOPE, wrong)
        merge(other, store)
        assert store.remembered(SCOPE)[wrong.configuration] == wrong
        assert merge(other, store).added == 0
        assert merge(store, other).added == 1
        assert other.remembered(SCOPE)[wrong.configuration] == wrong


def merge_and_die(source: str, target: str, after: int) -> None:
    """Merge in small batches, and be killed within one."""
    from autotune.store import merging

    merging._BATCH = 3  # type: ignore[misc]
    with Store.open(source) as first, Store.open(target) as second:
        events = iter(range(after, -1, -1))

        def event(*_: object) -> None:
            if next(events) == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        sa.event.listen(second._engine, "after_cursor_execute", event)
        merge(first, second)


@pytest.mark.parametrize("after", [8, 21, 34])
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
        assert told(second) == told(first) and len(second.runs()) == 1


def test_memory_does_not_grow_with_what_is_merged(tmp_path: Path) -> None:
    """Pages are read one after another, and no row is kept."""
    with Store.open(tmp_path / "a") as first, Store.open(tmp_path / "b") as second:
        run_id, steps = first.begin_run(RUN), []
        first.add_many(run_id, SCOPE, map(numbered, range(2500)))
        assert merge(first, second, steps.append).added == 2500
        assert steps == [1000, 2000, 2500]


# ---------------------------------------------------------------- a server that is away


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


def spools() -> list[Path]:
    return sorted(Path(data_path("spool")).glob("*"))


def numbers(store: Store) -> list[int]:
    return sorted(row.measurement.configuration.NUMBER for row in store.rows())


def add_while_away_and_die(address: str, data: str, ready: Any) -> None:
    """Store a row, and when told to another and an open attempt; then be killed."""
    os.environ["XDG_DATA_HOME"] = data
    warnings.simplefilter("ignore")
    store = Store.open(address)
    run_id = store.begin_run(RUN)
    store.add(run_id, SCOPE, numbered(1))
    ready.send(True)
    ready.recv()
    store.add(run_id, SCOPE, numbered(2))
    store.open_attempts(run_id, SCOPE, [numbered(3).configuration])
    ready.send(True)
    ready.recv()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.postgres
@pytest.mark.xdist_group("postgres")
class TestAway:
    """A run goes on, and its rows get there once."""

    def test_rows_are_kept_and_sent_when_it_is_back(self, server: Server) -> None:
        address = server.database()
        with Store.open(address) as store:
            run_id = store.begin_run(RUN)
            store.open_attempts(run_id, SCOPE, [numbered(1).configuration])
            known = store.remembered(SCOPE)
            with away(server, address), pytest.warns(UserWarning, match="rows are kept in") as said:
                for number in (1, 2, 3):
                    store.add(run_id, SCOPE, numbered(number))
                assert server.password not in str(said[0].message)
                assert known.get(numbered(2).configuration) is None
                assert store.interrupted_attempts(SCOPE) == {} == dict(store.remembered(SCOPE))
                assert len(spools()) == 1
            with pytest.warns(UserWarning, match="is in it"):
                store.close()
        assert spools() == []
        with Store.open(address) as store:
            assert numbers(store) == [1, 2, 3]
            assert [(run.rows, run.ended) for run in store.runs()] == [(3, "running")]
            sql(address, "UPDATE runs SET process = 'gone'")
            assert store.interrupted_attempts(SCOPE) == {}  # closed by a row that was kept

    def test_two_that_were_cut_off_lose_and_double_nothing(self, server: Server) -> None:
        address = server.database()
        both = [Store.open(address) for _ in range(2)]
        ids = [store.begin_run(replace(RUN, seed=seed)) for seed, store in enumerate(both)]
        with away(server, address), pytest.warns(UserWarning, match="kept in"):
            for place, store in enumerate(both):
                store.add_many(ids[place], SCOPE, [numbered(place), numbered(5)])
                store.finish_run(ids[place], "done")
            assert len(spools()) == 2
        with Store.open(address) as third:
            assert third.rows() == [] and len(spools()) == 2  # who keeps them is alive
        with pytest.warns(UserWarning, match="is in it"):
            for store in both:
                store.close()
        with Store.open(address) as store:
            assert numbers(store) == [0, 1, 5, 5]
            assert [run.ended for run in store.runs()] == ["finished", "finished"]

    def test_what_a_killed_run_kept_is_sent_by_the_next_command(
        self, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        address = server.database()
        here, there = forked.Pipe()
        data = str(Path(data_path()).parent)
        process = forked.Process(target=add_while_away_and_die, args=(address, data, there))
        process.start()
        assert here.poll(30) and here.recv()
        monkeypatch.setenv("AUTOTUNE_STORE", address)
        with away(server, address):
            here.send(True)
            assert here.poll(30) and here.recv()
            here.send(True)
            process.join(30)
            assert run(["runs"]) == 1  # down at start
            error = capsys.readouterr().err
            assert error.count("\n") == 1 and "cannot be reached" in error
        assert len(spools()) == 1
        assert run(["results", "sgemm", "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert [row["config"]["NUMBER"] for row in rows] == [1, 2]
        assert spools() == []
        with Store.open(address) as store:
            assert store.interrupted_attempts(SCOPE) == {numbered(3).configuration: 1}

    def test_a_server_that_stays_away_is_told_and_nothing_is_lost(self, server: Server) -> None:
        address = server.database()
        store = Store.open(address)
        run_id = store.begin_run(RUN)
        with away(server, address), pytest.warns(UserWarning) as said:
            store.add(run_id, SCOPE, numbered(1))
            store.close()
        assert "does not take" in str(said[0].message) or "accepting" in str(said[0].message)
        assert "the next command" in str(said[-1].message)
        with Store.open(address) as store:
            assert numbers(store) == [1]

    def test_a_full_disk_of_the_server_loses_nothing(self, server: Server) -> None:
        place = server.folder / "small"
        place.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=12m,mode=777", "tmpfs", str(place)]
        if subprocess.run(mount, stderr=subprocess.PIPE).returncode:
            pytest.skip("no tmpfs may be mounted here")
        try:
            shutil.chown(place, "postgres", "postgres")
            server.sql(f"CREATE TABLESPACE small LOCATION '{place}'")
            address = server.database("TABLESPACE small")
            with Store.open(address) as store:
                run_id = store.begin_run(RUN)
                with pytest.warns(UserWarning, match="the server's disk is full"):
                    for number in range(60):
                        message = "x" * 100_000 + os.urandom(100_000).hex()
                        store.add(run_id, SCOPE, numbered(number, message))
                assert spools()
                sql(address, "SELECT 1")
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    store.close()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with Store.open(
                    address
                ) as store:  # still full: what fits is there, the rest is kept
                    there = set(numbers(store))
            (kept,) = spools()
            with Store.open(kept / "store.sqlite") as store:
                assert there | set(numbers(store)) == {*range(60)}
        finally:
            server.sql(f"DROP DATABASE {address.rpartition('/')[2]} WITH (FORCE)")
            server.sql("DROP TABLESPACE small")
            subprocess.run(["umount", place], check=True)


# ---------------------------------------------------------------- roles, TLS and passwords


def documented_sql() -> list[str]:
    """The statements of the documents that make the roles."""
    (block,) = re.findall(r"```sql\n(.*?)```", OPERATIONS.read_text(), re.DOTALL)
    return [part.strip() for part in re.sub(r"--.*", "", block).split(";") if part.strip()]


@pytest.mark.postgres
@pytest.mark.xdist_group("postgres")
class TestRoles:
    """What the documents say a role may do is what it may do."""

    def test_a_role_that_only_appends_and_one_that_only_reads(self, server: Server) -> None:
        address = server.database()
        Store.open(address).close()
        sql(address, *(text.replace("CHANGE-ME", "secret") for text in documented_sql()))
        owner = f"tester:{server.password}"
        runner, reader = (address.replace(owner, f"{name}:secret") for name in ("runner", "reader"))
        with Store.open(runner) as store:
            run_id = store.begin_run(RUN)
            store.open_attempts(run_id, SCOPE, [numbered(1).configuration])
            store.add(run_id, SCOPE, numbered(1))
            store.finish_run(run_id, "done")
        for statement in (
            "DELETE FROM measurements",
            "UPDATE measurements SET median_ms = 0",
            "UPDATE runs SET command = ''",
            "UPDATE scopes SET driver = ''",
            "DELETE FROM runs",
            "DELETE FROM scopes",
            "TRUNCATE measurements",
            "DROP TABLE measurements",
            "UPDATE autotune_schema SET version = 1",
            "CREATE TABLE mine (n INT)",
        ):
            for role in (runner, reader):
                with pytest.raises(
                    sa.exc.ProgrammingError, match=r"permission denied|must be owner"
                ):
                    sql(role, statement)
        with Store.open(reader) as store:
            assert numbers(store) == [1] and store.runs()[0].ended == "finished"
            refused(lambda: store.begin_run(RUN), "permission denied", "GRANT")

    def test_a_connection_is_encrypted_where_the_url_asks_for_it(
        self, server: Server, tmp_path: Path
    ) -> None:
        address = server.database()
        refused(lambda: Store.open(f"{address}?sslmode=require"), "SSL", "cannot be reached")
        trusted, stranger = (certificate(server.folder / name) for name in ("ours", "theirs"))
        key = trusted.with_suffix(".key")
        if os.geteuid() == 0:
            shutil.chown(key, "postgres", "postgres")
        for name, value in (("ssl_cert_file", trusted), ("ssl_key_file", key), ("ssl", "on")):
            server.sql(f"ALTER SYSTEM SET {name} = '{value}'")
        server.sql("SELECT pg_reload_conf()")
        try:
            wanted = f"{address}?sslmode=verify-full&sslrootcert="
            with Store.open(wanted + str(trusted)) as store, store.reading() as connection:
                query = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
                assert connection.exec_driver_sql(query).scalar() is True
                assert "ssl" not in str(store.address)
            refused(lambda: Store.open(wanted + str(stranger)), "certificate verify failed")
        finally:
            server.sql("ALTER SYSTEM RESET ALL")
            server.sql("SELECT pg_reload_conf()")

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
        assert run(["store", "merge", source, bare]) == 1
        assert "no password supplied" in capsys.readouterr().err
        monkeypatch.setenv("PGPASSFILE", str(passwords))
        assert run(["store", "merge", source, bare]) == 0
        monkeypatch.delenv("PGPASSFILE")
        monkeypatch.setenv("PGPASSWORD", server.password)
        assert run(["store", "merge", bare, source]) == 0
        assert run(["store", "merge", source, address]) == 2
        printed = capsys.readouterr()
        assert "sees the password of a command line" in printed.err
        assert "1 added to postgresql://tester@127.0.0.1" in printed.out
        monkeypatch.setenv("AUTOTUNE_STORE", address)
        assert run(["store", "info", "--json"]) == 0
        printed = capsys.readouterr()
        assert json.loads(printed.out)["rows"] == 1
        for text in (printed.out, printed.err):
            assert server.password not in text


def certificate(name: Path) -> Path:
    """A certificate of this machine's own, and its key."""
    made = name.with_suffix(".crt")
    command = "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -days 2"
    places = ["-keyout", name.with_suffix(".key"), "-out", made]
    about = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command.split(), *places, *about], check=True, stderr=subprocess.PIPE)
    return made


# ---------------------------------------------------------------- autotune store


def test_old_rows_are_removed_and_those_of_a_wrong_clock_kept(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AUTOTUNE_STORE", url)
    with Store.open(url) as store:
        old, new = store.begin_run(RUN), store.begin_run(RUN)
        store.add_many(old, SCOPE, [numbered(1), numbered(2)])
        store.add_many(new, SCOPE, [numbered(2), numbered(3)])
    sql(
        url,
        "UPDATE measurements SET created = '2020-01-01T00:00:00.000+00:00' WHERE run_id = 1",
        "UPDATE runs SET started = '2020-01-01T00:00:00.000+00:00', state = 'done' WHERE id = 1",
        "UPDATE measurements SET created = '2999-01-01T00:00:00.000+00:00' WHERE id = 4",
    )
    assert run(["store", "vacuum", "--older-than", "90d", "--dry-run"]) == 0
    assert "2 rows would be removed" in capsys.readouterr().out
    assert run(["store", "vacuum", "--older-than", "90d"]) == 0
    assert "2 rows removed" in capsys.readouterr().out
    with Store.open(url) as store:
        assert [r.measurement.configuration.NUMBER for r in store.rows()] == [2, 3]
        assert [each.id for each in store.runs()] == [2]
        store.add(2, SCOPE, numbered(1))
        assert set(store.remembered(SCOPE)) == {numbered(n).configuration for n in (1, 2, 3)}


def test_what_a_store_holds(
    other: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("AUTOTUNE_STORE", str(other.address))
    assert run(["store", "info", "--json"]) == 0
    held = json.loads(capsys.readouterr().out)
    assert (held["rows"], held["runs"], held["scopes"]) == (4, 2, 2)
    assert held["kernels"] == {"reduce": 1, "sgemm": 3}
    assert run(["store", "info"]) == run(["store", "migrate"]) == 0
    assert "4 rows of 2 runs" in capsys.readouterr().out
    missing = str(tmp_path / "none.sqlite")
    assert run(["store", "merge", missing, str(other.address)]) == 1
    assert run(["store", "merge", str(other.address), str(other.address)]) == 2
    errors = capsys.readouterr().err
    assert "no such file" in errors and "are one store" in errors
    assert not Path(missing).exists()
