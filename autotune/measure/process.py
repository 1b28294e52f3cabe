"""Runs tasks in other processes: the contract of such an actor, and child processes of this machine.

A child process dies with its parent, ignores Ctrl-C, and prints to stderr only.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from autotune.errors import AutotuneError

R = TypeVar("R")

#: Longest time to make a device context and upload the data of a job.
PREPARE_TIMEOUT_S = 600.0
#: Error message of a task whose actor is closed.
ENDED = "the processes of the run were ended"
#: prctl option: the signal that a process gets when its parent dies. Source: prctl(2).
_PR_SET_PDEATHSIG = 1
#: Longest time until a process is ready for tasks: it starts an interpreter and imports from a slow disk.
_BEGIN_TIMEOUT_S = 600.0
#: Longest time from SIGKILL to the end of a process: a driver first releases the memory of the device.
_END_TIMEOUT_S = 60.0
#: Time between two checks whether a killed process has ended.
_END_POLL_S = 0.001
#: Time between two checks whether a task is stuck.
_STUCK_POLL_S = 0.1
#: Program of a child process. It uses the parent's module path. It does not import the parent's main module,
#: so that a script needs no ``if __name__ == "__main__"``. Without garbage collections imports take a fifth less.
_PROGRAM = (
    "import gc, sys; gc.disable(); sys.path[:] = sys.argv[3:]; "
    f"from {__name__} import serve_tasks; serve_tasks(*sys.argv[1:3])"
)


class ActorFailed(Exception):
    """A process did not answer a task."""

    #: The turn in which the task failed; -1 before the first turn, and in a task without turns.
    turn = -1


class ActorDied(ActorFailed):
    """The process ended before it answered."""


class ActorTimeout(ActorFailed):
    """A task, or one of its turns, took too long; the process was killed."""


class Actor(Protocol):
    """A process that runs module-level functions, one at a time. Any thread may use it."""

    #: True if the process is on another machine and queues the tasks of several threads there. Otherwise
    #: threads should wait here until the process is free.
    queues: bool

    def start(self) -> None:
        """Start the process before the first task does; return at once."""

    def ask(
        self,
        task: Callable[..., R],
        *args: Any,
        job: Any = None,
        timeout_s: float,
        turn_limits_s: Sequence[float] = (),
        key: str = "",
    ) -> R:
        """Run ``task(*args)`` in the process; return its result, or raise its exception.

        With ``job`` the process first prepares the job, within `PREPARE_TIMEOUT_S`, and then calls
        ``task(job, *args)``. With ``turn_limits_s`` the task gets `Turns` as its last argument, and each
        turn has a time limit. Tasks of an equal ``key`` may share one answer.

        Raises `ActorDied`, `ActorTimeout`, and `AutotuneError` if the actor was closed.
        """

    def close(self) -> None:
        """Kill the process for good, even during a task. Any thread may call this, twice, and after Ctrl-C."""


class Turns:
    """The current turn of a task and its begin (`time.monotonic`), in memory that two processes share.

    They show where a task hangs or dies, because the task itself can no longer report it.
    """

    def __init__(self, file: Path) -> None:
        self._cells = np.memmap(file, np.float64, "r+", shape=(2,))

    @classmethod
    def begin(cls, file: Path) -> Turns:
        """Write the file of a task before its first turn."""
        np.array([-1, time.monotonic()]).tofile(file)
        return cls(file)

    @property
    def current(self) -> int:
        """Number of the current turn; -1 before the first."""
        return int(self._cells[0])

    def begin_turn(self, turn: int) -> None:
        """Record the begin of a turn."""
        self._cells[1] = time.monotonic()
        self._cells[0] = turn

    def is_stuck(self, limits_s: Sequence[float]) -> bool:
        """Return whether the current turn has taken longer than its limit."""
        turn, begin_s = self._cells
        limit_s = limits_s[int(turn)] if turn >= 0 else PREPARE_TIMEOUT_S
        return bool(time.monotonic() - begin_s > limit_s)


class Child:
    """One child process.

    `start` begins it. The process first calls ``begin``, a module-level function, and ignores its errors.
    """

    def __init__(self, begin: Callable[[], object] | None = None) -> None:
        #: Held while the process is started or killed.
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_killed = False
        #: True if the process has ended, or could not be started. This is no `threading.Event`, because a
        #: Ctrl-C while a thread waits for an event can leave its lock locked for ever.
        self.is_gone = False
        self._death = "killed before it was started"
        self._failure: Exception | None = None
        self._connection, self._child_end = Pipe()
        self._connection.send(begin)  # stays in the pipe until the process reads it
        #: True if the process has reported that it is ready.
        self._has_begun = False
        #: True until the process has answered, even if a Ctrl-C ended the wait for the answer.
        self._is_busy = False

    @property
    def pid(self) -> int:
        """The process id; 0 before the start."""
        return self._process.pid if self._process else 0

    @property
    def is_ready(self) -> bool:
        """True if the process can take a task."""
        if self._is_killed or self._is_busy or self.is_gone:
            return False
        return not (
            self._has_begun and self._connection.poll()
        )  # data without a task: the end of the pipe

    def start(self) -> None:
        """Start the process; return at once."""
        threading.Thread(target=self._keep, daemon=True).start()

    def ask(
        self,
        timeout_s: float,
        task: Callable[..., R],
        *args: Any,
        is_stuck: Callable[[], bool] | None = None,
        on_message: Callable[[Any], object] | None = None,
    ) -> R:
        """Call a module-level function in the process, and return its result; for one thread at a time.

        ``on_message`` gets each message that the task sends by `send_message`. The time limit applies from
        when the process is ready, and again from each message. The process is killed earlier if
        ``is_stuck`` returns true.

        Raises `ActorTimeout` if the task took too long, `ActorDied` if the process ended, and
        `AutotuneError` if it could not be started or another thread killed it.
        """
        message = pickle.dumps((task, args), pickle.HIGHEST_PROTOCOL)
        self._is_busy = True
        try:
            if not self._has_begun:
                self._received(_BEGIN_TIMEOUT_S, None)
                self._has_begun = True
            self._connection.send_bytes(message)
            answer = pickle.loads(self._received(timeout_s, is_stuck))
            while on_message is not None and answer[0] is None:
                on_message(answer[1])
                answer = pickle.loads(self._received(timeout_s, is_stuck))
        except (EOFError, OSError) as error:
            if self._is_killed:  # by another thread
                raise AutotuneError(ENDED) from error
            self.end()
            if self._failure is not None:
                raise AutotuneError(f"no process can be started: {self._failure}") from error
            raise ActorDied(self._death) from error
        self._is_busy = False
        is_done, result, is_retired = answer
        if is_retired:
            self.kill()
        if is_done:
            return result  # type: ignore[no-any-return]
        raise result

    def _received(self, timeout_s: float, is_stuck: Callable[[], bool] | None) -> bytes:
        deadline_s = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            if self._connection.poll(min(left_s, _STUCK_POLL_S) if is_stuck else left_s):
                return self._connection.recv_bytes()
            if left_s == 0.0 or (is_stuck is not None and is_stuck()):
                self.end()
                raise ActorTimeout("no progress" if left_s else f"no answer after {timeout_s:g} s")

    def kill(self) -> None:
        """Kill the process, even during a task; return at once. Any thread may call this, and twice."""
        with self._lock:
            self._is_killed = True
            if self._process is not None:
                self._process.kill()

    def end(self) -> None:
        """Kill the process and wait until it has ended. Any thread may call this, twice, and after Ctrl-C."""
        self.kill()
        deadline_s = time.monotonic() + _END_TIMEOUT_S
        while self._process is not None and not self.is_gone:
            if time.monotonic() > deadline_s:
                raise AutotuneError(
                    f"process {self.pid} was killed and has not ended after {_END_TIMEOUT_S:g} s: "
                    "a driver holds it; run: dmesg"
                )
            time.sleep(_END_POLL_S)

    def _keep(self) -> None:
        """Start the process and wait for its end, in a thread of its own.

        The end of the thread that started a child kills the child (prctl(2), PR_SET_PDEATHSIG), and the
        threads of a search end earlier than the child.
        """
        # The child inherits the blocked signal; `serve_tasks` unblocks it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with self._lock:
                if not self._is_killed:
                    self._process = self._start_process()
        except Exception as error:  # for `ask`
            self._failure = error
        finally:
            self._child_end.close()
            if self._process is not None:
                code = self._process.wait()
                self._death = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            self.is_gone = True

    def _start_process(self) -> subprocess.Popen[bytes]:
        handle = self._child_end.fileno()
        arguments = [str(handle), str(os.getpid()), *sys.path]
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=[handle],
        )


class ChildActor:
    """A child process that is replaced when it dies; see `Actor`.

    Each process first calls ``begin``. ``prepare`` gets the job of a task. ``standbys`` more processes
    have already begun: after a crash only the preparation is repeated, not the start of an interpreter.
    """

    queues = False

    def __init__(
        self,
        begin: Callable[[], object] | None = None,
        prepare: Callable[[Any], object] | None = None,
        standbys: int = 0,
    ) -> None:
        self._begin, self._prepare, self._most_standbys = begin, prepare, standbys
        #: Held during a task: the process runs one task at a time.
        self._turn = threading.Lock()
        #: Held while a process begins, or all processes end.
        self._lock = threading.Lock()
        self._all: list[Child] = []
        self._child: Child | None = None
        self._standbys: list[Child] = []
        self._prepared: Any = None
        self._is_closed = False

    @property
    def pid(self) -> int:
        """The process id; 0 before the start."""
        return self._child.pid if self._child else 0

    def start(self) -> None:
        if self._child is not None:  # a task may hold the lock
            return
        with self._turn:
            self._child = self._child or self._begun()

    def ask(
        self,
        task: Callable[..., R],
        *args: Any,
        job: Any = None,
        timeout_s: float,
        turn_limits_s: Sequence[float] = (),
        key: str = "",
        on_message: Callable[[Any], object] | None = None,
    ) -> R:
        """Run a task; see `Actor.ask`. ``on_message`` gets each message that the task sends."""
        if job is not None:
            args = (job, *args)
        with self._turn:
            child = self._prepared_child(job)
            if not turn_limits_s:
                return child.ask(timeout_s, task, *args, on_message=on_message)
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "turns"
                turns = Turns.begin(file)
                is_stuck = partial(turns.is_stuck, turn_limits_s)
                try:
                    answer: R = child.ask(
                        timeout_s, _with_turns, task, file, *args, is_stuck=is_stuck
                    )
                    return answer
                except ActorFailed as error:
                    error.turn = turns.current
                    raise

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        for child in self._all:
            child.kill()
        for child in self._all:
            child.end()

    def __enter__(self) -> ChildActor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepared_child(self, job: Any) -> Child:
        """Return a living process that has prepared a job; if the process dies, try a second one."""
        for is_last in (False, True):
            child = self._living_child()
            if job is None or job == self._prepared:
                return child
            assert self._prepare is not None
            self._prepared = None
            try:
                child.ask(PREPARE_TIMEOUT_S, self._prepare, job)
                self._prepared = job
                self._keep_standbys()
                return child
            except ActorFailed as error:
                if is_last or isinstance(error, ActorTimeout):
                    name = self._prepare.__name__
                    raise AutotuneError(f"the device process failed at {name}: {error}") from error
        raise AssertionError

    def _living_child(self) -> Child:
        if self._child is None or not self._child.is_ready:
            self._prepared = None
            if self._child is not None:
                self._child.end()
                self._keep_standbys()
            self._child = self._standbys.pop(0) if self._standbys else self._begun()
        return self._child

    def _keep_standbys(self) -> None:
        self._standbys = [child for child in self._standbys if child.is_ready]
        while len(self._standbys) < self._most_standbys:
            self._standbys.append(self._begun())

    def _begun(self) -> Child:
        with self._lock:
            if self._is_closed:
                raise AutotuneError(ENDED)
            child = Child(self._begin)
            self._all = [child, *(known for known in self._all if not known.is_gone)]
            child.start()
        return child


# ------------------------------------------------------------------ in the child


#: True if this process ends after the current task.
_is_retired = False
#: The pipe to the parent.
_parent: Connection | None = None
#: Held while a thread sends a message to the parent.
_sending = threading.Lock()


def send_message(value: object) -> None:
    """Send a value to the caller of the current task; any thread may call this."""
    assert _parent is not None
    message = pickle.dumps((None, value, False), pickle.HIGHEST_PROTOCOL)
    with _sending:
        _parent.send_bytes(message)


def retire() -> None:
    """End this process after its task, because a lost context would break the next task.

    Until then errors of destructors are not printed: CuPy cannot unload a module from a lost context.
    Cython passes such an error to both hooks.
    """
    global _is_retired
    _is_retired = True
    sys.unraisablehook = lambda _: None
    sys.excepthook = lambda *_: None


def _with_turns(task: Callable[..., Any], file: Path, *args: Any) -> Any:
    return task(*args, Turns(file))


def serve_tasks(handle: str, parent: str) -> None:
    """Run tasks until the parent has ended.

    ``handle`` is the file descriptor of the child's end of the pipe, ``parent`` the parent's process id.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with suppress(
        OSError, AttributeError
    ):  # not Linux: the child ends a little later, with its pipe
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # the parent has already ended
        os._exit(1)
    # Standard output is for the parent's results; a child prints to stderr.
    os.dup2(2, 1)
    os.set_inheritable(int(handle), False)
    global _parent
    _parent = connection = Connection(int(handle))
    with suppress(Exception):
        if (begin := connection.recv()) is not None:
            begin()
    gc.freeze()  # what was imported stays
    gc.enable()
    with suppress(EOFError, ConnectionError):  # the parent has ended
        connection.send_bytes(b"")
        while True:
            connection.send_bytes(_answer(connection.recv_bytes()))
    os._exit(0)  # also ends threads that a space file has started


def _answer(message: bytes) -> bytes:
    """Run a task; return a pickle of whether it succeeded, its result or exception, and `_is_retired`."""
    try:
        task, args = pickle.loads(message)
        return pickle.dumps((True, task(*args), _is_retired), pickle.HIGHEST_PROTOCOL)
    except BaseException as error:
        error.add_note(f"In the child process:\n{traceback.format_exc()}")
        try:
            answer = pickle.dumps((False, error, _is_retired))
            pickle.loads(answer)
        except Exception:  # the parent could not read the error
            substitute = RuntimeError(f"{type(error).__name__}: {error}")
            return pickle.dumps((False, substitute, _is_retired))
        return answer
