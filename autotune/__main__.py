"""The process of the command ``autotune``, also as ``python -m autotune`` from a bare checkout."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

from autotune.cli import listen, run, stop_listening


def main() -> None:
    """Run the command line and exit."""
    listen()
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # while the command line ended
        with suppress(OSError):
            sys.stderr.write("error: interrupted; what was measured is kept\n")
        code = 130
    stop_listening(signal.SIG_IGN if code == 130 else signal.SIG_DFL)
    if code == 130:
        # Without Python's own ending: it waits for threads, and where the interrupt met code that a
        # library gave to exec(), it would end by SIGINT (run_eval_code_obj of its pythonrun.c).
        for stream in (sys.stdout, sys.stderr):
            with suppress(
                OSError, ValueError, AttributeError
            ):  # None where it was closed at the start
                stream.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
