"""``python -m autotune``: the command line from a bare checkout."""

from autotune.cli import main

if __name__ == "__main__":
    main()
