"""Calls of Python's parser from several threads: of its syntax trees, literals, and headers of ``.npy`` files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LOCK = threading.Lock()
_ATTEMPTS = 5  # a thread of somebody else may parse, too


def parsed(parse: Callable[[], T]) -> T:
    """Return what a call of `ast.parse`, `ast.literal_eval` or `numpy.load` returns; one thread calls at a time.

    CPython 3.11 counts the depth of all threads' trees in one number, and raises SystemError if two threads
    make a tree at once (https://github.com/python/cpython/issues/106905).
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            with _LOCK:
                return parse()
        except SystemError:
            continue
    with _LOCK:
        return parse()
