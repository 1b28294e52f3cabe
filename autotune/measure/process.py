"""The contract of actors, which run tasks in another process and can always be ended; child processes.

Children die with their parent, leave Ctrl-C to it, and print to stderr only.
"""

from __future__ import annotations

import ctypes
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

#: Longest time to make a context and upload the data of a job.
PREPARE_TIMEOUT_S = 600.0
#: The error of tasks whose actor was closed meanwhile.
ENDED = "the processes of the run were ended"
#: prctl option: signal to get when the parent dies. Source: prctl(2).
_PR_SET_PDEATHSIG = 1
#: Longest time until a process is ready for tasks: an interpreter, and imports from a slow disk.
_BEGIN_TIMEOUT_S = 600.0
#: Longest time from SIGKILL to the end: a driver takes some to give the memory of a device back.
_END_TIMEOUT_S = 60.0
#: Between two looks at whether it has ended.
_END_GLANCE_S = 0.001
#: Between two looks at whether a task is stuck.
_GLANCE_S = 0.1
#: What the interpreter of a child runs. Modules are found where the parent finds them; its main
#: module is not imported again, so that a script needs no guard against that.
_PROGRAM = f"import sys; sys.path[:] = sys.argv[3:]; from {__name__} import serve_tasks; serve_tasks(*sys.argv[1:3])"


class ActorFailed(Exception):
    """A process gave no answer to a task."""

    #: The turn in which it failed; -1 before the first, and in a task without turns.
    turn = -1


class ActorDied(ActorFailed):
    """The process ended before it answered."""


class ActorTimeout(ActorFailed):
    """A task, or one of its turns, took too long; its process was killed."""


class Actor(Protocol):
    """A process that runs functions of modules, one at a time. Any thread may use it."""

    #: Whether it is on another machine, where the tasks of several threads wait. Else threads had
    #: better wait for their turn here.
    queues: bool

    def start(self) -> None:
        """Begin the process, which else happens at the first task; return at once."""

    def ask(
        self,
        task: Callable[..., R],
        *args: Any,
        job: Any = None,
        timeout_s: float,
        turn_limits_s: Sequence[float] = (),
        key: str = "",
    ) -> R:
        """Return ``task(*args)``, or raise what it raises.

        With ``job`` the process prepares that first, within `PREPARE_TIMEOUT_S`, and calls
        ``task(job, *args)``. With ``turn_limits_s`` the task gets `Turns` as its last argument, and
        none of its turns may take longer than its limit. Tasks of an equal ``key`` may share one answer.

        Raises `ActorDied`, `ActorTimeout`, and `AutotuneError` if the actor was closed.
        """

    def close(self) -> None:
        """End the process, whatever it does, for good. Any thread may, twice, and after Ctrl-C."""


class Turns:
    """The turn that a task is at and its begin (`time.monotonic`), in memory that two processes share.

    A task that hangs or dies cannot say where.
    """

    def __init__(self, file: Path) -> None:
        self._cells = np.memmap(file, np.float64, "r+", shape=(2,))

    @classmethod
    def begin(cls, file: Path) -> Turns:
        """Write the file of a task that has not begun a turn."""
        np.array([-1, time.monotonic()]).tofile(file)
        return cls(file)

    @property
    def running(self) -> int:
        """The turn that runs; -1 before the first."""
        return int(self._cells[0])

    def begin_turn(self, turn: int) -> None:
        """Note that a turn begins."""
        self._cells[1] = time.monotonic()
        self._cells[0] = turn

    def is_stuck(self, limits_s: Sequence[float]) -> bool:
        """Return whether the turn that runs has taken longer than its limit."""
        turn, since_s = self._cells
        limit_s = limits_s[int(turn)] if turn >= 0 else PREPARE_TIMEOUT_S
        return bool(time.monotonic() - since_s > limit_s)


class Child:
    """One process, which `start` begins.

    It calls ``begin`` first, a function of a module. If that fails, the first task shows it.
    """

    def __init__(self, begin: Callable[[], object] | None = None) -> None:
        #: Held while the process is started or killed.
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_killed = False
        #: Whether the process has ended, or was not started. No event: a Ctrl-C while a thread waits
        #: for an event can leave its lock locked for ever.
        self.is_gone = False
        self._death = "killed before it was started"
        self._failure: Exception | None = None
        self._connection, self._its_end = Pipe()
        self._connection.send(begin)  # waits there until the process reads it
        self._is_begun = False
        #: Whether it owes an answer, also to a thread that Ctrl-C took away.
        self._is_asked = False

    @property
    def pid(self) -> int:
        """The process id; 0 before there is one."""
        return self._process.pid if self._process else 0

    @property
    def is_ready(self) -> bool:
        """True while the process can take a task."""
        if self._is_killed or self._is_asked or self.is_gone:
            return False
        return not (self._is_begun and self._connection.poll())  # unasked: the end of the pipe

    def start(self) -> None:
        """Start the process; return at once."""
        threading.Thread(target=self._keep, daemon=True).start()

    def ask(
        self,
        timeout_s: float,
        task: Callable[..., R],
        *args: Any,
        is_stuck: Callable[[], bool] | None = None,
        heard: Callable[[Any], object] | None = None,
    ) -> R:
        """Call a function of a module in the process, and return its answer; for one thread at a time.

        The time counts from when the process is ready, and again from each value that the task
        tells (`tell`) and ``heard`` is called with. Once ``is_stuck`` is true the process is killed
        before its time.

        Raises `ActorTimeout` if the task took too long, `ActorDied` if the process
        ended, and `AutotuneError` if it could not be started or another thread killed it.
        """
        message = pickle.dumps((task, args), pickle.HIGHEST_PROTOCOL)
        self._is_asked = True
        try:
            if not self._is_begun:
                self._received(_BEGIN_TIMEOUT_S, None)
                self._is_begun = True
            self._connection.send_bytes(message)
            answer = pickle.loads(self._received(timeout_s, is_stuck))
            while heard is not None and answer[0] is None:
                heard(answer[1])
                answer = pickle.loads(self._received(timeout_s, is_stuck))
        except (EOFError, OSError) as error:
            if self._is_killed:  # by another thread
                raise AutotuneError(ENDED) from error
            self.end()
            if self._failure is not None:
                raise AutotuneError(f"no process can be started: {self._failure}") from error
            raise ActorDied(self._death) from error
        self._is_asked = False
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
            if self._connection.poll(min(left_s, _GLANCE_S) if is_stuck else left_s):
                return self._connection.recv_bytes()
            if left_s == 0.0 or (is_stuck is not None and is_stuck()):
                self.end()
                raise ActorTimeout("no progress" if left_s else f"no answer after {timeout_s:g} s")

    def kill(self) -> None:
        """Kill the process, whatever it does; return at once. Any thread may, and twice."""
        with self._lock:
            self._is_killed = True
            if self._process is not None:
                self._process.kill()

    def end(self) -> None:
        """Kill the process and wait until it has ended. Any thread may, twice, and after Ctrl-C."""
        self.kill()
        deadline_s = time.monotonic() + _END_TIMEOUT_S
        while self._process is not None and not self.is_gone:
            if time.monotonic() > deadline_s:
                raise AutotuneError(
                    f"process {self.pid} was killed and has not ended after {_END_TIMEOUT_S:g} s: "
                    "a driver holds it; run: dmesg"
                )
            time.sleep(_END_GLANCE_S)

    def _keep(self) -> None:
        """Start the process and wait for its end, in a thread that lasts as long as it does.

        A child is killed when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG), and
        the threads of a search end earlier.
        """
        # A child inherits it, until `serve_tasks`.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with self._lock:
                if not self._is_killed:
                    self._process = self._started()
        except Exception as error:  # for `ask`
            self._failure = error
        finally:
            self._its_end.close()
            if self._process is not None:
                code = self._process.wait()
                self._death = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            self.is_gone = True

    def _started(self) -> subprocess.Popen[bytes]:
        handle = self._its_end.fileno()
        arguments = [str(handle), str(os.getpid()), *sys.path]
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=[handle],
        )


class ChildActor:
    """A child process that is replaced when it dies; see `Actor`.

    Each process calls ``begin`` first; ``prepare`` is called with a job. ``standbys`` more processes
    are kept that have begun: a crash then costs a preparation and not an interpreter, too.
    """

    queues = False

    def __init__(
        self,
        begin: Callable[[], object] | None = None,
        prepare: Callable[[Any], object] | None = None,
        standbys: int = 0,
    ) -> None:
        self._begin, self._prepare, self._most_standbys = begin, prepare, standbys
        #: Held during a task: the process does one at a time.
        self._turn = threading.Lock()
        #: Held while a process is begun, or all are ended.
        self._lock = threading.Lock()
        self._all: list[Child] = []
        self._child: Child | None = None
        self._standbys: list[Child] = []
        self._prepared: Any = None
        self._is_closed = False

    @property
    def pid(self) -> int:
        """Id of the process; 0 before there is one."""
        return self._child.pid if self._child else 0

    def start(self) -> None:
        if self._child is not None:  # it may be at a task
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
        heard: Callable[[Any], object] | None = None,
    ) -> R:
        """Run a task; see `Actor.ask`. ``heard`` is called with what the task tells on its way."""
        if job is not None:
            args = (job, *args)
        with self._turn:
            child = self._prepared_child(job)
            if not turn_limits_s:
                return child.ask(timeout_s, task, *args, heard=heard)
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
                    error.turn = turns.running
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
        """Return a living process that has prepared a job; prepare once more if it died meanwhile."""
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


#: Whether this process shall end after the task that it is at.
_is_retired = False
#: The parent's end of the pipe, and the lock of those who write to it.
_parent: Connection | None = None
_speaking = threading.Lock()


def tell(value: object) -> None:
    """Send a value to who asked for the task that runs; any thread may."""
    assert _parent is not None
    message = pickle.dumps((None, value, False), pickle.HIGHEST_PROTOCOL)
    with _speaking:
        _parent.send_bytes(message)


def retire() -> None:
    """End this process after its task: the next task shall not find what this one broke.

    Until then destructors print no errors: on a lost context CuPy's cannot unload a module. Cython
    passes such an error to both hooks.
    """
    global _is_retired
    _is_retired = True
    sys.unraisablehook = lambda _: None
    sys.excepthook = lambda *_: None


def _with_turns(task: Callable[..., Any], file: Path, *args: Any) -> Any:
    return task(*args, Turns(file))


def serve_tasks(handle: str, parent: str) -> None:
    """Run tasks until the parent is gone.

    ``handle`` is the file descriptor of this end of the pipe, ``parent`` a process id.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with suppress(OSError, AttributeError):  # not Linux: its pipe ends it a little later
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it is already gone
        os._exit(1)
    # Standard output belongs to the parent's results: what a child prints goes to stderr.
    os.dup2(2, 1)
    os.set_inheritable(int(handle), False)
    global _parent
    _parent = connection = Connection(int(handle))
    with suppress(Exception):
        if (begin := connection.recv()) is not None:
            begin()
    with suppress(EOFError, ConnectionError):  # the parent is gone
        connection.send_bytes(b"")
        while True:
            connection.send_bytes(_answer(connection.recv_bytes()))
    os._exit(0)  # whatever threads a space file has begun


def _answer(message: bytes) -> bytes:
    """Run a task; pickle whether it succeeded, its result or exception, and `_is_retired`."""
    try:
        task, args = pickle.loads(message)
        return pickle.dumps((True, task(*args), _is_retired), pickle.HIGHEST_PROTOCOL)
    except BaseException as error:
        error.add_note(f"In the child process:\n{traceback.format_exc()}")
        try:
            answer = pickle.dumps((False, error, _is_retired))
            pickle.loads(answer)
        except Exception:  # the parent could not read it
            words = RuntimeError(f"{type(error).__name__}: {error}")
            return pickle.dumps((False, words, _is_retired))
        return answer
