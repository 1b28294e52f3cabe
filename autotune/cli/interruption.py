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
#: Until an interruption that was ignored comes again: what ignored it has ended by then.
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
    sys.unraisablehook = _again_where_ignored


def stop_listening() -> None:
    """Ignore them: the command has ended, and nothing may change its exit code any more."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    sys.unraisablehook = sys.__unraisablehook__


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _last, _came
    now = time.monotonic()
    if now - _last > _SAME_WISH_S:
        _last, _came = now, signal.Signals(number)
        raise KeyboardInterrupt


def _again_where_ignored(ignored: sys.UnraisableHookArgs) -> None:
    """Interrupt again where Python has no way out: in ``__del__`` and in callbacks of weak references."""
    global _last
    if not issubclass(ignored.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(ignored)
        return
    _last = float("-inf")
    threading.Timer(_AGAIN_S, os.kill, (os.getpid(), _came)).start()
