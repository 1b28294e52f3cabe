"""How a user or a system ends a command: Ctrl-C, a signal to terminate, a terminal that is gone.

All three become one `KeyboardInterrupt`, so that they take the same way out: results kept, processes
ended. Only the command line listens; a program that uses the API keeps its own handlers.
"""

from __future__ import annotations

import signal
import time
from types import FrameType

#: A signal within this time of another is the same wish, and must not break off the tidying up.
_SAME_WISH_S = 3.0

#: SIGTERM is how Slurm, systemd and `timeout` end a command; SIGHUP, how a closed terminal does.
_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]

_last = float("-inf")


def listen() -> None:
    """From now on each of these signals raises `KeyboardInterrupt` in the main thread.

    Those that the caller ignores stay ignored: ``nohup``, or a job in the background of a script.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def stop_listening() -> None:
    """Ignore them: the command has ended, and nothing may change its exit code any more."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _last
    now = time.monotonic()
    if now - _last > _SAME_WISH_S:
        _last = now
        raise KeyboardInterrupt
