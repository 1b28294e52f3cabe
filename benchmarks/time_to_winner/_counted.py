"""Notes the problems that are drawn and the calls of a reference in calls.jsonl, next to this file.

`benchmarks/time_to_winner.py` copies this module next to the space files that it measures.
"""

import json
import time
from functools import wraps
from pathlib import Path

CALLS = Path(__file__).with_name("calls.jsonl")


def noted(arguments):
    """Return the function of the arguments; each call adds a line with the problem and its largest array."""

    @wraps(arguments)
    def call(p, rng):
        declared = arguments(p, rng)
        sizes = [value.size for value in declared.values() if hasattr(value, "size")]
        note(problem=dict(p), elements=int(max(sizes, default=0)))
        return declared

    return call


def counted(reference):
    """Return the reference; each call adds a line when it begins, and another when it ends."""

    @wraps(reference)
    def call(**arguments):
        arrays = [value for value in arguments.values() if hasattr(value, "dtype")]
        largest = max(arrays, key=lambda array: array.size)
        begun = time.time()
        library = type(largest).__module__.partition(".")[0]
        note(begun=begun, elements=int(largest.size), library=library)
        try:
            return reference(**arguments)
        finally:
            note(of=begun, seconds=time.time() - begun)

    return call


def note(**line):
    with CALLS.open("a") as file:
        file.write(json.dumps(line) + "\n")
