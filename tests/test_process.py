"""Child processes: asked, hung, killed, and ended by several threads and through a Ctrl-C."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from autotune.errors import AutotuneError
from autotune.measure.process import (
    ENDED,
    ActorDied,
    ActorTimeout,
    Child,
    ChildActor,
    retire,
)

pytestmark = pytest.mark.slow

LARGE = 10_000_000


class Children:
    """Processes that can be ended together."""

    def __init__(self):
        self.all = []

    def begin(self, begin=None):
        self.all.append(Child(begin))
        self.all[-1].start()
        return self.all[-1]

    def end(self):
        for child in self.all:
            child.kill()
        for child in self.all:
            child.end()


@pytest.fixture
def children():
    made = Children()
    yield made
    made.end()


@pytest.fixture
def child(children):
    """A process that has begun."""
    made = children.begin()
    assert made.ask(60, abs, -3) == 3
    return made


def alive(process):
    """True while a thread of the process runs: its pipe stays open, even if its leader is a zombie."""
    with suppress(OSError):
        tasks = Path(f"/proc/{process}/task").glob("*/stat")
        return any(task.read_text().rpartition(")")[2].split()[0] not in "ZX" for task in tasks)
    return False


def wait_until(holds, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert holds()


def hang(mark=None):
    if mark is not None:
        mark.touch()
    time.sleep(600)


def hang_in_foreign_code():
    """No Python handler is ever reached: the lock that Python holds in a call is held for ever."""
    import ctypes

    ctypes.PyDLL(None).sleep(600)


class Unreadable(Exception):
    """Can be sent, and not be read."""

    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


def fail_unreadably():
    raise Unreadable("no", "answer")


def fail_unsendably():
    raise ValueError(threading.Lock())


def many(count):
    return bytes(count)


# ---------------------------------------------------------------- asking


def test_a_task_as_large_as_it_likes_and_an_answer_too(child):
    assert child.ask(60, len, bytes(LARGE)) == LARGE
    assert len(child.ask(60, many, LARGE)) == LARGE


@pytest.mark.parametrize(
    ("task", "message"),
    [(fail_unreadably, "Unreadable: no answer"), (fail_unsendably, "ValueError: <unlocked")],
)
def test_an_exception_that_cannot_cross_is_told_in_words(child, task, message):
    with pytest.raises(RuntimeError, match=message):
        child.ask(60, task)
    assert child.ask(60, abs, -4) == 4


def test_an_exception_says_where_in_the_child_it_was_raised(child):
    with pytest.raises(FileNotFoundError) as caught:
        child.ask(60, os.stat, "/nonexistent")
    assert "Traceback" in caught.value.__notes__[0]


def test_a_task_that_cannot_be_sent_costs_no_process(child):
    with pytest.raises((TypeError, AttributeError)):
        child.ask(60, lambda: None)
    assert child.ask(60, abs, -4) == 4


def test_what_begins_badly_is_told_by_the_first_task(children):
    assert children.begin(fail_unreadably).ask(60, abs, -3) == 3


def test_an_interpreter_that_is_not_there_is_an_error_and_nobody_waits(children, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(AutotuneError, match=r"no process can be started: .*/nonexistent/python"):
        children.begin().ask(60, abs, -3)


@pytest.mark.parametrize("task", [hang, hang_in_foreign_code])
def test_a_task_that_hangs_is_ended_in_time(child, task):
    start = time.monotonic()
    with pytest.raises(ActorTimeout, match=r"no answer after 0\.5 s"):
        child.ask(0.5, task)
    assert time.monotonic() - start < 60
    assert not alive(child.pid)
    assert not child.is_ready


def test_one_that_dies_while_idle_is_not_ready(child):
    assert child.is_ready
    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: not child.is_ready)
    with pytest.raises(ActorDied, match="killed by signal 9"):
        child.ask(60, abs, -3)


@pytest.mark.parametrize("code", [0, 3])
def test_one_that_dies_in_a_task_says_how(child, code):
    with pytest.raises(ActorDied, match=f"exit code {code}") as caught:
        child.ask(60, os._exit, code)
    assert type(caught.value) is ActorDied


def test_it_outlives_the_thread_that_began_it(children):
    """Such as a device's thread of a search: the processes serve the next search too."""
    with ThreadPoolExecutor(1) as threads:
        child = threads.submit(children.begin).result()
        threads.submit(child.ask, 60, abs, -3).result()
    time.sleep(0.5)  # a signal takes no time
    assert child.ask(60, os.getpid) == child.pid


# ---------------------------------------------------------------- ending


def interrupt(number, frame):
    raise KeyboardInterrupt


@pytest.fixture
def interrupted():
    """Calls something that a Ctrl-C, so many seconds later, breaks off."""
    before = signal.signal(signal.SIGALRM, interrupt)

    def called(seconds, call, *args):
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, seconds)
            call(*args)
            time.sleep(60)  # where it was faster than the timer

    yield called
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("seconds", [0.00005, 0.0005, 0.002, 0.01])
def test_their_end_goes_on_after_an_interrupt_and_can_be_waited_for_again(
    children, child, interrupted, seconds
):
    interrupted(seconds, children.end)
    children.end()
    assert not alive(child.pid)


def test_whoever_waits_for_an_answer_is_told_of_the_end(children, child, tmp_path):
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(child.ask, 600, hang, tmp_path / "begun")
        wait_until((tmp_path / "begun").exists)
        children.end()
        with pytest.raises(AutotuneError, match=ENDED):
            asked.result(60)


def test_one_that_was_left_in_a_task_is_not_ready(child, interrupted):
    """Its answer would be taken for that of the next task."""
    interrupted(0.2, child.ask, 600, hang)
    assert alive(child.pid)
    assert not child.is_ready


@pytest.mark.parametrize("seconds", [0.0, 0.0001, 0.001, 0.01, 0.1])
def test_they_can_be_ended_while_they_start(children, seconds):
    made = [children.begin() for _ in range(2)]
    time.sleep(seconds)
    children.end()
    assert not any(child.pid and alive(child.pid) for child in made)


def test_they_die_with_their_parent_whatever_they_are_doing():
    """One that waits, one that begins and one that hangs where no Python runs."""
    code = (
        "import os, sys, threading, time\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from test_process import hang, hang_in_foreign_code\n"
        "from test_process import Children\n"
        "children = Children()\n"  # no guard: the main module is not imported again
        "idle, begins, hangs = children.begin(), children.begin(hang), children.begin()\n"
        "idle.ask(60, abs, -3), hangs.ask(60, abs, -3)\n"
        "threading.Thread(target=hangs.ask, args=[600, hang_in_foreign_code], daemon=True).start()\n"
        "time.sleep(0.3)\n"
        "print(idle.pid, begins.pid, hangs.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    here = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", code, here], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    processes = [int(pid) for pid in done.stdout.split()]
    assert len(processes) == 3
    wait_until(lambda: not any(map(alive, processes)))


def children_of_ours():
    """Process ids of our children."""
    listed = [file.read_text().split() for file in Path("/proc/self/task").glob("*/children")]
    return {int(child) for of_thread in listed for child in of_thread}


# ---------------------------------------------------------------- an actor


def turn_by_turn(job, last, turns):
    for number in range(last + 1):
        turns.begin_turn(number)
    if job == "hang":
        time.sleep(600)
    os._exit(3)


def remember(job):
    os.environ["JOB"] = job


def remembered(job):
    return job, os.environ["JOB"], os.getpid()


class Module:
    """Fails to be unloaded, as CuPy's modules do once the context is lost."""

    def __del__(self):
        raise OSError("illegal address")


def break_context(is_retired):
    module = Module()
    if is_retired:
        retire()
    del module
    return os.getpid()


@pytest.fixture
def actor():
    with ChildActor(prepare=remember) as made:
        yield made


def test_a_job_is_prepared_once_in_each_process(actor):
    first = actor.ask(remembered, job="one", timeout_s=60)
    assert first[:2] == ("one", "one")
    actor.ask(os.putenv, "JOB", "lost", timeout_s=60)
    assert actor.ask(remembered, job="one", timeout_s=60) == first
    os.kill(actor.pid, signal.SIGKILL)
    wait_until(lambda: not alive(first[2]))
    again = actor.ask(remembered, job="one", timeout_s=60)  # without a word of that
    assert again[:2] == first[:2] and again[2] != first[2]


def test_to_start_waits_for_no_task(actor):
    actor.start()
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(actor.ask, time.sleep, 1.0, timeout_s=60)
        before_s = time.monotonic()
        actor.start()
        assert time.monotonic() - before_s < 0.5 and not asked.done()


def test_the_turn_that_hangs_or_dies_is_named(actor):
    with pytest.raises(ActorTimeout) as hung:
        actor.ask(turn_by_turn, 2, job="hang", timeout_s=600, turn_limits_s=[60, 60, 0.2])
    with pytest.raises(ActorDied, match="exit code 3") as died:
        actor.ask(turn_by_turn, 1, job="die", timeout_s=600, turn_limits_s=[60, 60])
    assert (hung.value.turn, died.value.turn) == (2, 1)


@pytest.mark.parametrize("is_retired", [True, False])
def test_a_process_that_retires_answers_silently_and_does_no_more(actor, capfd, is_retired):
    before = actor.ask(break_context, is_retired, timeout_s=60)
    assert (actor.ask(os.getpid, timeout_s=60) != before) == is_retired
    assert ("OSError: illegal address" not in capfd.readouterr().err) == is_retired


def test_a_task_whose_actor_is_closed_says_so(actor):
    before = actor.ask(os.getpid, timeout_s=60)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(actor.ask, hang, timeout_s=600)
        time.sleep(0.2)
        actor.close()
        assert not alive(before)
        with pytest.raises(AutotuneError, match=ENDED):
            asked.result(60)
    with pytest.raises(AutotuneError, match=ENDED):
        actor.ask(os.getpid, timeout_s=60)
