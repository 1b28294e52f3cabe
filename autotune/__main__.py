"""The process of the command ``autotune``, also as ``python -m autotune`` from a bare checkout."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

from autotune.cli import interruption

#: What space files leave behind, threads and exit handlers, may take so long once the command has ended.
_LAST_WORDS_S = 1.0

_exit = os._exit


def main() -> None:
    """Run the command line and exit."""
    interruption.listen()
    os._exit = _refused_exit(os.getpid())  # type: ignore[assignment]
    try:
        from autotune.cli import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # before the command line was loaded, or in its last words
        with suppress(OSError):
            sys.stderr.write("error: interrupted; what was measured is kept\n")
        code = 130
    interruption.stop_listening()
    if code == 130:
        # Where the interrupt met code that a library gave to exec(), Python takes it for unhandled
        # (run_eval_code_obj of its pythonrun.c) and would end by SIGINT instead of this code.
        _leave(code)
    guard = threading.Timer(_LAST_WORDS_S, _leave, [code])
    guard.daemon = True
    with suppress(RuntimeError):  # no more threads
        guard.start()
    sys.exit(code)


def _leave(code: int) -> None:
    """End the process at once, without what Python does last."""
    threads = [thread for thread in threading.enumerate() if not thread.daemon]
    left = [thread.name for thread in threads if thread is not threading.main_thread()]
    if left and code != 130:
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"warning: a thread did not end by itself: {', '.join(left)}\n")
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # None where it was closed at the start
            stream.flush()
    _exit(code)


def _refused_exit(process: int) -> object:
    """What `os._exit` is to the code of space files: it would end the command without a word."""

    def refused(status: int) -> None:
        if os.getpid() != process:  # a process that was forked ends like that
            _exit(status)
        raise SystemExit(f"os._exit({status}) would end the command")

    return refused


if __name__ == "__main__":
    main()
