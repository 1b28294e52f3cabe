"""The process of the command ``autotune``, also as ``python -m autotune`` from a bare checkout."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from autotune.cli import interruption


def main() -> None:
    """Run the command line and exit."""
    interruption.listen()
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
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
