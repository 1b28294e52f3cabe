"""Decides which calls tune their size, one size of a process at a time.

If tuning fails, a call gets the answer that it would get without tuning.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from autotune.calling.choice import ChosenCall
from autotune.calling.loaded import is_capturing
from autotune.errors import UsageError, unknown
from autotune.tuned.merged import FIRST_CALL

OFF, BACKGROUND = "off", "background"
MODES = (FIRST_CALL, BACKGROUND, OFF)
#: Environment variable with the default mode of tuning on first call.
VARIABLE = "AUTOTUNE_TUNE"
#: Settled problems that a process remembers.
_MOST_SETTLED = 4096
#: Wait at the end of a process for a thread that tunes.
_LAST_WAIT_S = 5.0

_log = logging.getLogger("autotune")


# ---------------------------------------------------------------------- whether to tune


@dataclass(frozen=True)
class Tuning:
    """The mode of tuning on first call, of `MODES`, and the longest time to measure a size."""

    mode: str
    seconds: float

    @property
    def in_background(self) -> bool:
        """Return whether calls go on while their size is tuned."""
        return self.mode == BACKGROUND


def tuning(mode: str, budget: str | float = 1.0, name: str = "tune") -> Tuning:
    """Return how to tune; ``name`` is the argument or variable that gives the mode."""
    if mode not in MODES:
        raise UsageError(unknown(name, str(mode), MODES))
    text = budget.strip().removesuffix("s") if isinstance(budget, str) else budget
    try:
        seconds = float(text)
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f'budget {budget!r:.40}: a time in seconds is needed, for example "1s"')
    return Tuning(mode, seconds)


#: Open blocks of `tuned_on_first_call`, of all threads.
_blocks: list[Tuning] = []


@contextmanager
def tuned_on_first_call(budget: str | float = "1s", *, background: bool = False) -> Iterator[None]:
    """Tune the first call of each size that the process makes in this block, in any thread.

    It holds for all kernels that were loaded without ``tune``, those of `autotune.linalg` and
    `autotune.torch_ops` among them.

    Parameters
    ----------
    budget : str or float
        Longest time to measure a size, in seconds: ``"1s"``, 0.3.
    background : bool
        Answer at once, and switch when the fastest configuration is known.

    Raises
    ------
    UsageError
        If ``budget`` is no time.
    """
    block = tuning(BACKGROUND if background else FIRST_CALL, budget)
    _blocks.append(block)
    try:
        yield
    finally:
        _blocks.remove(block)


def wanted(own: Tuning | None, deterministic: bool) -> Tuning | None:
    """Return how a call tunes, by its kernel, the innermost block or the variable; None if it does not.

    A switch in the background changes bits, so a ``deterministic`` call does not tune there.
    """
    found = own or (_blocks[-1] if _blocks else None)
    if found is None and (mode := os.environ.get(VARIABLE)):
        found = tuning(mode, name=VARIABLE)
    if found is None or found.mode == OFF or (found.in_background and deterministic):
        return None
    return found


# ---------------------------------------------------------------------- one at a time

#: Held while a size is tuned.
_turn = threading.Lock()
#: Held to claim a problem. Then the problems that are being tuned, and those that were.
_claims = threading.Lock()
_running: set[object] = set()
_settled: set[object] = set()
#: Set when the process ends.
_ending = threading.Event()


def _is_captured(call: ChosenCall) -> bool:
    """Return whether a call becomes part of a CUDA graph."""
    return call.index is not None and is_capturing(call.stream)


def is_busy() -> bool:
    """Return whether a size is being tuned."""
    return _turn.locked()


def tune(call: ChosenCall, how: Tuning) -> bool:
    """Tune the size of a call; return whether its answer is settled, so that the call may be kept.

    The answer is not settled while another thread tunes the size, and within a capture.
    """
    from autotune.calling.trial import SizeTrial

    has_constants = any(o.kind == "constant" for o in call.resolved.arguments.values())
    if call.choice.is_known or call.choice.tuned is None or has_constants or call.key in _settled:
        return True
    if _is_captured(call):
        return False
    name = f"{call.resolved.kernel.name} ({call.resolved.problem})"
    made = partial(SizeTrial, call, how.seconds, _ending.is_set)
    return in_turn(call.key, name, lambda: made().run, how.in_background)


def in_turn(
    key: object, name: str, begin: Callable[[], Callable[[], str]], in_background: bool
) -> bool:
    """Tune a call once in a process; return whether its answer is settled.

    ``begin`` runs in the caller's thread, where the arrays are. It returns a function that runs in a thread
    of its own, and returns a message for a person, or "".
    """
    with _claims:
        if key in _settled:
            return True
        if key in _running:
            return False
        _running.add(key)
    # A call that would wait for its own size also waits while another size is tuned.
    if not _turn.acquire(blocking=not in_background):
        _running.discard(key)
        return False
    try:
        given = key, name, begin()
        thread = threading.Thread(target=_run, args=given, name="autotune-first-call", daemon=True)
        thread.start()
    except BaseException as error:
        _end(key, name, f"its arrays cannot be copied: {error}")
        if isinstance(error, Exception):
            return True
        raise
    if in_background:
        return False
    thread.join()
    return True


def _run(key: object, name: str, work: Callable[[], str]) -> None:
    message = "it was interrupted"
    try:
        message = work()
    except Exception as error:  # the call works without tuning
        message = f"{type(error).__name__}: {error}"
    finally:
        _end(key, name, message)


def _end(key: object, name: str, problem: str) -> None:
    """Let the next size be tuned; log a problem in one line."""
    if problem:
        line = " ".join(problem.split())
        _log.warning("autotune: first call of %s: %.400s", name, line)
    if len(_settled) >= _MOST_SETTLED:
        _settled.clear()
    _settled.add(key)
    _running.discard(key)
    _turn.release()


def forget() -> None:
    """Forget which sizes this process tuned."""
    _settled.clear()


@atexit.register
def _finish() -> None:
    """End a thread that tunes in the background before its device goes away."""
    _ending.set()
    _turn.acquire(timeout=_LAST_WAIT_S)
