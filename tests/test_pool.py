"""The end of a pool of processes: by two threads at once, and through a Ctrl-C."""

import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor

import pytest

from autotune.measure.pool import ChildPool
from autotune.measure.process import begin_child


@pytest.fixture
def pool():
    """Two processes that have begun, and nobody else's."""
    made = ChildPool(2, begin_child, "testing")
    assert made.schedule(abs, [-3]).result(60) == 3
    yield made
    made.end()


def managers():
    """Pebble's threads that replace processes and still run, whatever `is_alive` says of them."""
    return [one for one in threading.enumerate() if "pool_manager_loop" in one.name]


def interrupt(number, frame):
    raise KeyboardInterrupt


def test_its_processes_outlive_the_thread_that_started_them():
    """Such as a device's thread of a search: the processes serve the next search too."""
    made = ChildPool(1, begin_child, "testing")
    try:
        with ThreadPoolExecutor(1) as thread:
            (first,) = thread.map(lambda _: made.schedule(os.getpid).result(60), [0])
        time.sleep(0.5)  # a signal takes no time
        assert made.active
        assert made.schedule(os.getpid).result(60) == first
    finally:
        made.end()


@pytest.fixture
def others():
    """The threads and processes of other tests' pools, which have nothing to do with this one."""
    return set(managers()), set(multiprocessing.active_children())


def test_two_threads_may_end_it(others, pool):
    errors = []

    def end():
        try:
            pool.end()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=end) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert set(multiprocessing.active_children()) == others[1]
    assert set(managers()) == others[0]


def test_its_end_goes_on_after_an_interrupt_and_can_be_waited_for_again(others, pool):
    """Pebble's thread must have ended before its processes are: it would replace them."""
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.005)
            pool.end()
            time.sleep(60)  # where the end was faster than the timer
    finally:
        signal.signal(signal.SIGALRM, before)
    pool.end()
    assert set(managers()) == others[0]
    assert set(multiprocessing.active_children()) == others[1]


def test_an_interrupt_while_pebble_looks_at_its_threads_does_not_end_it_early(others, pool):
    """As if `is_alive` had been interrupted: Python then takes the thread for an ended one."""
    (manager,) = set(managers()) - others[0]
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            manager.join()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert manager in managers()
    pool.end()
    assert set(managers()) == others[0]
    assert set(multiprocessing.active_children()) == others[1]


def test_a_task_given_while_pebble_gives_the_pool_up_is_not_waited_for_for_ever(monkeypatch):
    """The pool looks active to whoever gives it, and nobody reads the queue any more."""
    made = ChildPool(1, begin_child, "testing")
    try:
        os.kill(made.schedule(os.getpid).result(60), signal.SIGKILL)
        while made.active:
            time.sleep(0.01)
        _, *others = made._pool._loops  # the first waits for a task
        for loop in others:
            loop.join(60)
        monkeypatch.setattr(made._pool, "_check_pool_status", lambda: None)  # a moment ago
        with pytest.raises(BrokenExecutor, match="given up"):
            made.schedule(abs, [-3]).result(60)
    finally:
        made.end()
