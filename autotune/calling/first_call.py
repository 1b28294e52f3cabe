"""Decides which calls tune their size, and keeps prepared calls. A process tunes one size at a time.

If tuning fails, a call gets the same answer as without tuning.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from autotune.calling.choice import ChosenCall
from autotune.calling.loaded import is_capturing
from autotune.errors import UsageError, unknown
from autotune.tuned.merged import FIRST_CALL

OFF, BACKGROUND = "off", "background"
MODES = (FIRST_CALL, BACKGROUND, OFF)
#: Environment variable with the default mode of tuning on first call.
VARIABLE = "AUTOTUNE_TUNE"
#: Maximum number of problems that a process remembers to have tuned.
_MAX_TRIED = 4096
#: The answer of a call may change as soon as no thread tunes.
TUNING_S = 0.0
#: Seconds until a process that found no answer looks for another process's answer.
OPEN_S = 1.0
#: The answer of a call does not change in this process.
SETTLED_S = math.inf
#: Longest wait for a tuning thread at the end of the process, in seconds.
_MAX_WAIT_S = 5.0

_log = logging.getLogger("autotune")


# ---------------------------------------------------------------------- whether to tune


@dataclass(frozen=True)
class Tuning:
    """The settings of tuning on first call."""

    #: One of `MODES`.
    mode: str
    #: Longest time to measure a size.
    seconds: float

    @property
    def in_background(self) -> bool:
        """Return whether calls run while another thread tunes their size."""
        return self.mode == BACKGROUND


def tuning(mode: str, budget: str | float = 1.0, name: str = "tune") -> Tuning:
    """Return the settings; ``name`` is the argument or variable that sets the mode, for messages."""
    if mode not in MODES:
        raise UsageError(unknown(name, str(mode), MODES))
    text = budget.strip().removesuffix("s") if isinstance(budget, str) else budget
    try:
        seconds = float(text)
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f'budget {budget!r:.40} is not a time in seconds; write for example "1s"')
    return Tuning(mode, seconds)


#: Open blocks of `tuned_on_first_call` in all threads, the innermost last.
_blocks: list[Tuning] = []


@contextmanager
def tuned_on_first_call(budget: str | float = "1s", *, background: bool = False) -> Iterator[None]:
    """Tune the first call of each size that the process makes in this block, in any thread.

    The block applies to all kernels that were loaded without ``tune``, including the kernels of
    `autotune.linalg` and `autotune.torch_ops`.

    Parameters
    ----------
    budget : str or float
        Longest time to measure a size, in seconds: ``"1s"``, 0.3.
    background : bool
        Run calls at once, and switch to the fastest configuration when it is known.

    Raises
    ------
    UsageError
        If ``budget`` is not a time.
    """
    block = tuning(BACKGROUND if background else FIRST_CALL, budget)
    _blocks.append(block)
    try:
        yield
    finally:
        _blocks.remove(block)


def settings_of(own: Tuning | None, deterministic: bool) -> Tuning | None:
    """Return the settings of a call: its kernel's, else the innermost block's, else the variable's; None: off.

    A ``deterministic`` call does not tune in the background, because a switch changes bits.
    """
    found = own or (_blocks[-1] if _blocks else None)
    if found is None and (mode := os.environ.get(VARIABLE)):
        found = tuning(mode, name=VARIABLE)
    if found is None or found.mode == OFF or (found.in_background and deterministic):
        return None
    return found


# ---------------------------------------------------------------------- one at a time

#: Held by the thread that tunes a size.
_turn = threading.Lock()
#: Held while a thread claims a problem.
_claims = threading.Lock()
#: Problems that a thread tunes now.
_running: set[object] = set()
#: Problems that this process tunes no more.
_tried: set[object] = set()
#: Set when the process ends.
_ending = threading.Event()


def _is_captured(call: ChosenCall) -> bool:
    """Return whether a CUDA graph captures the call."""
    return call.index is not None and is_capturing(call.stream)


def is_busy() -> bool:
    """Return whether a size is being tuned."""
    return _turn.locked()


def tune(call: ChosenCall, settings: Tuning) -> float:
    """Tune the size of a call; return for how many seconds the caller may keep a call without an answer.

    It is `TUNING_S` while another thread tunes the size, and while a graph captures the call.
    """
    from autotune.calling.trial import SizeTrial, is_answered

    has_constants = any(o.kind == "constant" for o in call.resolved.arguments.values())
    # Configurations are compared with each other.
    is_comparable = not has_constants and "matches" not in call.resolved.kernel.hooks
    if call.choice.is_known or call.choice.tuned is None or not is_comparable:
        return SETTLED_S
    if call.key in _tried:
        return OPEN_S
    if _is_captured(call):
        return TUNING_S

    def begin() -> Callable[[], str] | None:
        if is_answered(call):
            return None
        return SizeTrial(call, settings.seconds, _ending.is_set).run

    name = f"{call.resolved.kernel.name} ({call.resolved.problem})"
    return OPEN_S if in_turn(call.key, name, begin, settings.in_background) else TUNING_S


def in_turn(
    key: object, name: str, begin: Callable[[], Callable[[], str] | None], in_background: bool
) -> bool:
    """Tune a call once in a process; return whether that is done.

    ``begin`` copies the arrays in the caller's thread. It returns the function that tunes in a new thread, or
    None if another process has tuned the call. That function returns a message for the log, or "".
    """
    with _claims:
        if key in _tried:
            return True
        if key in _running:
            return False
        _running.add(key)
    # Unless in the background, wait until the size that another thread tunes is done.
    if not _turn.acquire(blocking=not in_background):
        _running.discard(key)
        return False
    try:
        work = begin()
        if work is None:
            _end(key, name, "")
            return True
        given = key, name, work
        thread = threading.Thread(target=_run, args=given, name="autotune-first-call", daemon=True)
        thread.start()
    except BaseException as error:
        _end(key, name, f"cannot copy its arrays: {error}")
        if isinstance(error, Exception):
            return True
        raise
    if in_background:
        return False
    thread.join()
    return True


def _run(key: object, name: str, work: Callable[[], str]) -> None:
    message = "interrupted"
    try:
        message = work()
    except Exception as error:  # the call also runs without tuning
        message = f"{type(error).__name__}: {error}"
    finally:
        _end(key, name, message)


def _end(key: object, name: str, problem: str) -> None:
    """Note that a size was tuned, and release the turn; log a problem in one line."""
    if problem:
        line = " ".join(problem.split())
        _log.warning("autotune: first call of %s: %.400s", name, line)
    if len(_tried) >= _MAX_TRIED:
        _tried.clear()
    _tried.add(key)
    _running.discard(key)
    _turn.release()


def forget() -> None:
    """Clear the set of sizes that this process tuned."""
    _tried.clear()


@atexit.register
def _finish() -> None:
    """End the tuning thread before the process closes its device."""
    _ending.set()
    _turn.acquire(timeout=_MAX_WAIT_S)


# ---------------------------------------------------------------------- prepared calls

#: Maximum number of prepared calls in a cache, one for each size and layout of the arrays.
MAX_CALLS = 1024


class CallCache:
    """The prepared calls of a function.

    Attributes
    ----------
    settled : dict
        Prepared calls that are final; looked up without a lock.
    making : RLock
        Held while one thread prepares a call.
    """

    def __init__(self) -> None:
        self.settled: dict[object, Any] = {}
        #: Calls without a final answer, and the time until which they are kept.
        self._unsettled: dict[object, tuple[Any, float]] = {}
        self.making = threading.RLock()

    def get(self, key: object) -> Any:
        """Return a call; None: prepare it. While a thread tunes, unsettled calls are kept longer."""
        call = self.settled.get(key)
        if call is None and (kept := self._unsettled.get(key)):
            unsettled, until = kept
            if time.monotonic() < until or is_busy():
                return unsettled
        return call

    def keep(self, key: object, call: Any, seconds: float = SETTLED_S) -> None:
        """Keep a prepared call for a time."""
        with self.making:
            if seconds == SETTLED_S:
                self._unsettled.pop(key, None)
                put(self.settled, key, call, MAX_CALLS)
            else:
                put(self._unsettled, key, (call, time.monotonic() + seconds), MAX_CALLS)


def put(calls: dict[Any, Any], key: object, call: Any, limit: int) -> None:
    """Put a call into a dictionary; drop the oldest call beyond ``limit``."""
    if key not in calls and len(calls) >= limit:
        calls.pop(next(iter(calls)), None)
    calls[key] = call
