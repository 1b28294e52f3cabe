"""How a user or a system ends a command: Ctrl-C, a signal to terminate, a terminal that is gone.

All three become one `KeyboardInterrupt`, so that they take the same way out: results kept, processes
ended. Only the command line listens; a program that uses the API keeps its own handlers.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType

#: A signal within this time of another is the same wish, and must not break off the tidying up.
_SAME_WISH_S = 3.0
#: Until an interruption that was dropped comes again: what dropped it has ended by then.
_AGAIN_S = 0.05

#: SIGTERM is how Slurm, systemd and `timeout` end a command; SIGHUP, how a closed terminal does.
_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]

#: When a signal came last, and which.
_last, _came = float("-inf"), signal.SIGINT


def listen() -> None:
    """From now on each of these signals raises `KeyboardInterrupt` in the main thread.

    Those that the caller ignores stay ignored: ``nohup``, or a job in the background of a script.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    sys.unraisablehook = _silent_of_interruptions


def stop_listening() -> None:
    """Ignore them: the command has ended, and nothing may change its exit code any more."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    sys.unraisablehook = sys.__unraisablehook__


class _Interruption(KeyboardInterrupt):
    """One that comes again where it is swallowed.

    Python and libraries drop exceptions in places: in ``__del__``, in callbacks of weak references and
    of C code. Whoever takes the way out holds this until the command has ended; it dies earlier only
    where somebody dropped it.
    """

    def __del__(self) -> None:
        global _last
        _last = float("-inf")
        if sys.unraisablehook is _silent_of_interruptions:  # still listening
            again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), _came))
            again.daemon = True
            again.start()


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _last, _came
    now = time.monotonic()
    if now - _last > _SAME_WISH_S:
        _last, _came = now, signal.Signals(number)
        raise _Interruption


def _silent_of_interruptions(ignored: sys.UnraisableHookArgs) -> None:
    """Print nothing of an interruption that is dropped: it comes again."""
    if not issubclass(ignored.exc_type, _Interruption):
        sys.__unraisablehook__(ignored)
