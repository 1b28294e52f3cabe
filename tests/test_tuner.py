"""A run of several sizes on two cards: each has a process of its own. The cards are one CPU device twice."""

import _thread
import os
import signal
import threading
import time
import warnings
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from sample_spaces import SOURCE, SPACE, changed

from autotune import cache
from autotune.devices.choose import choose_device
from autotune.devices.device import for_arch
from autotune.errors import AutotuneError, Interrupted
from autotune.kernel.catalog import find_kernel
from autotune.run import tuner
from autotune.run.bench import LOCAL, Site
from autotune.run.division import Division, done_at_once
from autotune.run.request import EFFORTS, Request, Search
from autotune.run.run import Run
from autotune.run.tuner import TunerProcess
from autotune.search.session import Budget, Measured, Phase, ignore
from autotune.store import Store
from autotune.values import Problem

pytestmark = pytest.mark.opencl

BLOCKS, WINNER = (32, 64, 128, 160, 256), 160
#: Only one block is right, so that the winner does not depend on a CPU's times.
STORE = "    if (i < n) out[i] = factor * x[i];"
ONE_RIGHT = f"    if (i < n) out[i] = BLOCK == {WINNER} ? factor * x[i] : 7.0f;"
SIZES = tuple(Problem(n=n) for n in (1001, 2002, 3003, 4004))


@pytest.fixture
def request_of(tmp_path, opencl_device, monkeypatch):
    """Return the request for some cards; two have a process each, whatever the machine."""
    monkeypatch.setattr("autotune.run.run.usable_cores", lambda: 2)
    (tmp_path / "scale.py").write_text(changed(SPACE, ("BLOCK=(32, 64),", f"BLOCK={BLOCKS},")))
    (tmp_path / "scale.cu").write_text(changed(SOURCE, (STORE, ONE_RIGHT)))
    kernel, device = find_kernel("scale", tmp_path), choose_device(opencl_device)

    def made(*cards, **options):
        first, *others = [replace(device, uuid=card) for card in cards]
        effort = replace(EFFORTS["quick"], finalists=2, rounds=3)
        given = {"goal": Search("exhaustive"), "budget": Budget(), "effort": effort, **options}
        return Request(kernel, first, SIZES, others=tuple(others), **given)

    return made


def ran(request, file, listener=ignore, site=LOCAL):
    with Store.open(file) as store, closing(Run(request, store, listener, site)) as run:
        return run.run()


def rows(file):
    with Store.open(file) as store:
        return store.rows()


def children():
    """Pids of the processes that this one began and that live."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z" and int(fields[1]) == os.getpid():
            found.append(int(stat.parent.name))
    return found


def wait_for_their_end(pids):
    end_s = time.monotonic() + 20
    while left := {*pids} & {*children()}:
        assert time.monotonic() < end_s, left
        time.sleep(0.05)


@pytest.fixture
def in_step(monkeypatch):
    """Let each card wait after its first search: else one may do all before the other is up."""
    search, both, begun = TunerProcess.search, threading.Barrier(2, timeout=120), set()

    def searched(tuner, *given):
        found = search(tuner, *given)
        if tuner.device.uuid not in begun:
            begun.add(tuner.device.uuid)
            both.wait()
        return found

    monkeypatch.setattr(TunerProcess, "search", searched)


@pytest.mark.full  # contracts/devices.py has two devices of one run as well
@pytest.mark.usefixtures("in_step")
def test_two_cards_search_their_own_sizes_and_find_what_one_finds(request_of, tmp_path):
    alone = ran(request_of("one"), tmp_path / "one.sqlite")
    events = []
    both = ran(request_of("one", "two"), tmp_path / "two.sqlite", events.append)
    assert [found.problem for found in both.problems] == [*SIZES]
    for single, found in zip(alone.problems, both.problems, strict=True):
        assert {(m.configuration, m.status) for m in found.measured} == {
            (m.configuration, m.status) for m in single.measured
        }
        assert found.winner == single.winner
        assert found.race is not None
        # One card measured a size. Its finals are held by that one, or by another that has none left.
        assert len({m.device_uuid for m in found.measured}) == 1
        assert found.race.device_uuid in {"one", "two"}
    assert {m.device_uuid for found in both.problems for m in found.measured} == {"one", "two"}
    kept = rows(tmp_path / "two.sqlite")
    assert Counter((row.problem, row.measurement.configuration) for row in kept) == Counter(
        (found.problem, m.configuration) for found in both.problems for m in found.measured
    )
    assert {row.run_id for row in kept} == {both.run_id}
    assert sum(isinstance(event, Measured) for event in events) == len(kept)
    assert both.portfolio is not None
    assert both.record is not None
    assert [entry.configuration["BLOCK"] for entry in both.record.problems] == [WINNER] * 4


def test_evaluations_are_shared(request_of, tmp_path):
    (tmp_path / "scale.cu").write_text(SOURCE)  # those that are evaluated are right
    result = ran(request_of("one", "two", budget=Budget(evaluations=8)), tmp_path / "s.sqlite")
    assert [len(found.measured) for found in result.problems] == [2, 2, 2, 2]


def test_a_lost_card_costs_what_it_was_at(request_of, tmp_path):
    """The other searches that again, and holds the finals."""
    killed, before = [], {*children()}

    def kill(event):
        if isinstance(event, Measured) and not killed:
            # The first: processes are begun in their order.
            killed.append(min({*children()} - before))
            os.kill(killed[0], signal.SIGKILL)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = ran(request_of("one", "two"), tmp_path / "s.sqlite", kill)
    (left_out,) = [
        str(each.message) for each in told if "the run continues on" in str(each.message)
    ]
    assert "killed by signal 9" in left_out
    assert [found.winner["BLOCK"] for found in result.problems] == [WINNER] * 4
    counted = Counter(
        (row.problem, row.measurement.configuration) for row in rows(tmp_path / "s.sqlite")
    )
    assert len(counted) == len(SIZES) * len(BLOCKS)


def test_without_a_card_the_run_ends_with_one_message(request_of, tmp_path):
    def kill(event):
        if isinstance(event, Measured):
            for pid in children():
                os.kill(pid, signal.SIGKILL)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(AutotuneError, match="killed by signal 9"):
            ran(request_of("one", "two"), tmp_path / "s.sqlite", kill)


class InterruptedSite(Site):
    """This machine; a Ctrl-C comes while the run waits for its third result."""

    def __init__(self):
        self.decided, self.is_interrupted = 0, threading.Event()

    def shared_with(self, peers):
        return LOCAL.shared_with(peers)

    def count(self, division, *others):
        """Stand for `done_at_once`, and count the results that the run has taken."""
        with closing(done_at_once(division, *others)) as results:
            for found in results:
                yield found
                self.decided += 1

    def require_running(self):
        if self.decided == 2 and not self.is_interrupted.is_set():
            self.is_interrupted.set()
            _thread.interrupt_main()


def test_ctrl_c_ends_all_processes_and_keeps_what_is_decided(request_of, tmp_path, monkeypatch):
    site, held, before = InterruptedSite(), [], children()
    monkeypatch.setattr("autotune.run.run.done_at_once", site.count)

    def hold_the_third(event):
        if isinstance(event, Phase) and event.name == "finals":
            held.append(event.problem)
            if len(held) > 2:
                assert site.is_interrupted.wait(120)

    result = ran(request_of("one", "two"), tmp_path / "s.sqlite", hold_the_third, site)
    assert isinstance(result.ended, Interrupted)
    assert len(result.problems) == 2
    wait_for_their_end({*children()} - {*before})


def test_a_source_that_changed_before_the_processes_read_it_is_one_message(request_of, tmp_path):
    with (
        Store.open(tmp_path / "s.sqlite") as store,
        closing(Run(request_of("one", "two"), store)) as run,
    ):
        file = tmp_path / "scale.cu"
        file.write_text(changed(file.read_text(), ("factor * x[i]", "x[i] * factor")))
        with pytest.raises(AutotuneError, match="a source changed while it was in use"):
            run.run()


def test_inputs_of_all_processes_are_given_up_with_the_run(request_of, tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("AUTOTUNE_CACHE_SIZE", "0")
    ran(request_of("one", "two"), tmp_path / "s.sqlite")
    assert not cache.entries(cache.DATA)


def test_measurements_are_sent_together_and_other_events_at_once(monkeypatch):
    sent, now_s = [], [100.0]
    monkeypatch.setattr(tuner, "send_message", sent.append)
    monkeypatch.setattr(tuner, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    teller = tuner._Teller()
    first, second, third, fourth = (Measured(SIZES[0], i, False, None) for i in range(4))
    finals = Phase(SIZES[0], "finals")
    for event, sent_by_now in (
        (first, [[first]]),
        (second, [[first]]),
        (finals, [[first], [second, finals]]),
        (third, [[first], [second, finals]]),
    ):
        teller(event)
        assert sent == sent_by_now
    now_s[0] += 1.0
    teller(fourth)
    assert sent[2:] == [[third, fourth]]


def test_searches_finals_and_portfolio_share_the_whole_budget():
    total_s, now_s = 100_000.0, [0.0]
    request = Request(
        find_kernel("copy"),
        for_arch("sm_90"),
        SIZES,
        goal=Search("random"),
        budget=Budget(total_s),
    )
    given = SimpleNamespace(clock_s=lambda: now_s[0])
    division = Division(request, False, 0.0, [given])
    _, budget = division._next_search(given)
    now_s[0] = total_s
    finals_s = request.objective.finals_share * total_s
    parts_s = len(SIZES) * budget.seconds, finals_s, division.portfolio_s()
    assert min(parts_s) > 0
    assert sum(parts_s) == pytest.approx(total_s)
