"""Child processes that do what they are asked, one task at a time, and can always be ended.

They die with their parent, leave Ctrl-C to it, and print to stderr only.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeVar

from autotune.errors import AutotuneError

R = TypeVar("R")

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
#: What whoever waits is told when the processes are ended.
ENDED = "the processes of the run were ended"
#: What the interpreter of a child runs. Modules are found where the parent finds them; its main
#: module is not imported again, so that a script needs no guard against that.
_PROGRAM = (
    f"import sys; sys.path[:] = sys.argv[3:]; from {__name__} import serve; serve(*sys.argv[1:3])"
)


class ChildDied(Exception):
    """The process ended before it answered."""


class ChildGone(ChildDied):
    """The process ended before it took the task up, which another can do."""


class ChildTimeout(Exception):
    """A task took too long; its process was killed."""


class Child:
    """One process, not begun yet; see `Children.begin`.

    First it calls ``begin``, a function of a module. Where that fails, the first task will tell.
    """

    def __init__(self, begin: Callable[[], object] | None = None) -> None:
        #: Held while the process is started or killed.
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_killed = False
        #: Whether the process has ended, or was not started. No event: a Ctrl-C in one that is waited
        #: for can leave its lock locked, and whoever waits again would do so for ever.
        self.is_gone = False
        self._death = "killed before it was started"
        self._failure: Exception | None = None
        self._connection, self._its_end = Pipe()
        self._connection.send(begin)  # waits there until the process reads it
        self._is_begun = False
        #: Whether it owes an answer: whoever broke off (Ctrl-C) left it so.
        self._is_asked = False

    @property
    def pid(self) -> int:
        """Its process id; 0 before it has one."""
        return self._process.pid if self._process else 0

    @property
    def is_ready(self) -> bool:
        """Whether it lives, and will do what it is asked next."""
        if self._is_killed or self._is_asked or self.is_gone:
            return False
        return not (self._is_begun and self._connection.poll())  # unasked: the end of the pipe

    def start(self) -> None:
        """Start the process; returns at once."""
        try:
            threading.Thread(target=self._keep, daemon=True).start()
        except RuntimeError as error:  # no more threads
            self._failure = error
            self._its_end.close()
            self.is_gone = True

    def ask(
        self,
        timeout_s: float,
        task: Callable[..., R],
        *args: Any,
        is_stuck: Callable[[], bool] | None = None,
    ) -> R:
        """Have a function of a module called, and wait for the answer; for one thread at a time.

        The time counts from when the process is ready. ``is_stuck`` is asked now and then; once it
        is true the process is killed, before its time.

        Raises
        ------
        ChildTimeout
            If it took too long; the process has ended.
        ChildDied, ChildGone
            If the process ended.
        AutotuneError
            If it could not be started, or another thread has killed it.
        """
        message = pickle.dumps((task, args), pickle.HIGHEST_PROTOCOL)
        self._is_asked = True
        try:
            if not self._is_begun:
                self._received(_BEGIN_TIMEOUT_S, None)
                self._is_begun = True
            self._connection.send_bytes(message)
            answer = self._received(timeout_s, is_stuck)
        except (EOFError, OSError) as error:
            if self._is_killed:  # by another thread
                raise AutotuneError(ENDED) from error
            self.end()
            if self._failure is not None:
                raise AutotuneError(f"no process can be started: {self._failure}") from error
            # A socket whose other end is closed reports a reset while that has not read everything.
            is_gone = self._is_begun and isinstance(error, ConnectionError)
            raise (ChildGone if is_gone else ChildDied)(self._death) from error
        self._is_asked = False
        is_done, result = pickle.loads(answer)
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
                raise ChildTimeout("no progress" if left_s else f"no answer after {timeout_s:g} s")

    def kill(self) -> None:
        """Kill the process, whatever it is doing; returns at once. Any thread may, and twice."""
        with self._lock:
            self._is_killed = True
            if self._process is not None:
                self._process.kill()

    def end(self) -> None:
        """Kill the process and wait until it has ended. Any thread may, twice, and after a Ctrl-C.

        Raises
        ------
        AutotuneError
            If it does not end.
        """
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
        those who ask are threads of a search, which ends earlier.
        """
        # A child inherits it, until `serve`.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with self._lock:
                if not self._is_killed:
                    self._process = self._started()
        except Exception as error:  # for whoever asks
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


#: Processes that were begun before anybody asked for them, by what they begin with.
_early: dict[bytes, list[Child]] = {}


@contextmanager
def begun_early(*begins: Callable[[], object]) -> Iterator[None]:
    """Begin processes for whoever will ask for some that begin so: they come up while the caller does.

    Those that nobody asked for end with the context.
    """
    for begin in begins:
        child = Child(begin)
        _early.setdefault(pickle.dumps(begin), []).append(child)
        child.start()
    try:
        yield
    finally:
        left = [child for children in _early.values() for child in children]
        _early.clear()
        for child in left:
            child.end()


def _taken_early(begin: Callable[[], object] | None) -> Child | None:
    with suppress(LookupError):
        return _early[pickle.dumps(begin)].pop()
    return None


class Children:
    """The processes of one owner, who can end all of them at any time, for good."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[Child] = []
        self.is_ended = False

    def begin(self, begin: Callable[[], object] | None = None) -> Child:
        """Begin another process; returns at once. See `Child`.

        Raises
        ------
        AutotuneError
            If they were ended.
        """
        with self._lock:
            if self.is_ended:
                raise AutotuneError(ENDED)
            early = _taken_early(begin)
            child = early or Child(begin)
            self._all = [child, *(known for known in self._all if not known.is_gone)]
            if early is None:
                child.start()
        return child

    def end(self) -> None:
        """End all of them, whatever they are doing. Any thread may, twice, and after a Ctrl-C."""
        with self._lock:
            self.is_ended = True
        for child in self._all:
            child.kill()
        for child in self._all:
            child.end()


# ------------------------------------------------------------------ in the child


def serve(handle: str, parent: str) -> None:
    """Do what is asked until the parent is gone.

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
    connection = Connection(int(handle))
    with suppress(Exception):
        if (begin := connection.recv()) is not None:
            begin()
    with suppress(EOFError, ConnectionError):  # the parent is gone
        connection.send_bytes(b"")
        while True:
            connection.send_bytes(_answer(connection.recv_bytes()))
    os._exit(0)  # whatever threads a space file has begun


def _answer(message: bytes) -> bytes:
    """Do a task; whether that succeeded, and its result or exception."""
    try:
        task, args = pickle.loads(message)
        return pickle.dumps((True, task(*args)), pickle.HIGHEST_PROTOCOL)
    except BaseException as error:
        error.add_note(f"In the child process:\n{traceback.format_exc()}")
        try:
            answer = pickle.dumps((False, error))
            pickle.loads(answer)
        except Exception:  # the parent could not read it
            return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))
        return answer
