"""Fixtures of the tests on a GPU, and the turns by which several processes share one."""

import fcntl
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

#: Locked and never written: the GPU, and the queue for it.
GPU, QUEUE = Path(__file__), Path(__file__).with_name("__init__.py")


@pytest.fixture(scope="session")
def cupy() -> Any:
    """CuPy, on its device."""
    return pytest.importorskip("cupy")


@pytest.fixture(autouse=True)
def first_stream() -> Iterator[None]:
    """Leave the stream of an executor that a test opened in this process: it ends with the executor."""
    yield
    if "cupy" in sys.modules:
        sys.modules["cupy"].cuda.Stream.null.use()


@contextmanager
def turn(is_alone: bool) -> Iterator[None]:
    """Hold the GPU: alone, or with all others that are not.

    A process queues until it has the GPU, so that tests that began later do not overtake one that waits
    to be alone. The system unlocks the files of a process that dies.
    """
    with GPU.open() as gpu:
        with QUEUE.open() as queue:
            fcntl.flock(queue, fcntl.LOCK_EX)
            fcntl.flock(gpu, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
            fcntl.flock(queue, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(gpu, fcntl.LOCK_UN)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test in its turn, with the fixtures that it makes and ends: they use the GPU, too."""
    with turn(item.get_closest_marker("alone") is not None):
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let those that run alone come last, when the other processes have little left to do."""
    items.sort(key=lambda item: item.get_closest_marker("alone") is not None)
