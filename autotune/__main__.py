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
    except KeyboardInterrupt:  # at the end of the command line
        with suppress(OSError):
            sys.stderr.write("error: interrupted; all measurements are kept\n")
        code = 130
    stop_listening(signal.SIG_IGN if code == 130 else signal.SIG_DFL)
    if code == 130:
        # os._exit, because Python's normal exit waits for threads. After an interrupt in code of exec() it
        # would also end the process by SIGINT (run_eval_code_obj in pythonrun.c).
        for stream in (sys.stdout, sys.stderr):
            with suppress(
                OSError, ValueError, AttributeError
            ):  # a stream is None if it was closed at the start
                stream.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
