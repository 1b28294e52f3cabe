"""The definition of a kernel as fingerprints, and the changes that make its results stale.

Lookup imports this module, so it has no heavy imports.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

#: Reasons why results of a kernel are stale.
SOURCE_CHANGED = "its source changed"
FUNCTIONS_CHANGED = "its arguments, reference, launch or options changed"
NOT_DECLARED = "its configuration is no longer in the declared space"


class Definition(NamedTuple):
    """Fingerprints of everything that decides the results and the launches of a kernel."""

    #: The fingerprint of all sources.
    source: str
    #: The fingerprint of the functions of the space file; empty if it depends on the problem.
    arguments: str
    #: Fingerprint of each file by its `autotune.project.file_name`, for readers that do not run space files.
    files: Mapping[str, str] = {}


def changes(
    source: str, arguments: str, now_source: str, now_arguments: Collection[str]
) -> tuple[str, ...]:
    """Return the differences between fingerprints of results and of the current kernel.

    A kernel may have several fingerprints of functions. An empty fingerprint is unknown, and not compared.
    """
    known = [fingerprint for fingerprint in now_arguments if fingerprint]
    found = {
        SOURCE_CHANGED: source and now_source and source != now_source,
        FUNCTIONS_CHANGED: arguments and known and arguments not in known,
    }
    return tuple(text for text, is_changed in found.items() if is_changed)
