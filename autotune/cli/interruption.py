"""The signals that end a command: Ctrl-C, a signal to terminate, a closed terminal.

All three raise `KeyboardInterrupt`, so that results are kept and processes ended. Only the command
line listens; a program that uses the API keeps its own handlers.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType

#: A signal within this time of another is ignored: it must not break off the tidying up.
_SAME_WISH_S = 3.0
#: Seconds until an interruption that Python dropped is sent again.
_AGAIN_S = 0.05

#: SIGTERM is how Slurm, systemd and `timeout` end a command; SIGHUP, how a closed terminal does.
_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]

#: Time of the last signal.
_last_s = float("-inf")


def listen() -> None:
    """Raise `KeyboardInterrupt` in the main thread at each of these signals from now on.

    Those that the caller ignores stay ignored: ``nohup``, or a job in the background of a script.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    sys.unraisablehook = _send_again


def stop_listening(handler: signal.Handlers) -> None:
    """Leave these signals to one of Python's handlers: the command has ended."""
    for number in _SIGNALS:
        signal.signal(number, handler)
    sys.unraisablehook = sys.__unraisablehook__


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _last_s
    now_s = time.monotonic()
    if now_s - _last_s > _SAME_WISH_S:
        _last_s = now_s
        raise KeyboardInterrupt


def _send_again(ignored: sys.UnraisableHookArgs) -> None:
    """Send an interruption again that Python dropped, as it does in ``__del__`` and callbacks."""
    global _last_s
    if not issubclass(ignored.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(ignored)
        return
    _last_s = float("-inf")
    again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), signal.SIGINT))
    again.daemon = True
    again.start()
