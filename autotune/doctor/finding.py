"""The result of one check, and helpers of the checks."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _metadata_version
from typing import Literal, TypeVar

T = TypeVar("T")
#: ``absent``: not installed, and not needed here.
State = Literal["ok", "absent", "warn", "bad"]


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    topic: str
    state: State
    text: str
    #: The command that fixes it, or installs something optional; may be empty.
    remedy: str = ""


def tried(call: Callable[[], T], otherwise: T) -> T:
    """Return a call's result; another value where the call fails."""
    with suppress(Exception):
        return call()
    return otherwise


def version(name: str) -> str:
    """Return the version of a distribution; empty where it is not installed."""
    try:
        return _metadata_version(name)
    except PackageNotFoundError:
        return ""


def number(text: str) -> int:
    """Return the first number in a text; 0 where it has none."""
    match = re.search(r"\d+", text)
    return int(match[0]) if match else 0


def first_line(error: object) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__
