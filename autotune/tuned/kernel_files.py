"""Compares the record of a kernel with the kernel's files, without running them.

Lookup imports this module, so heavy imports are inside the functions that use them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from stat import S_ISREG

from autotune.answers.table import Value
from autotune.files import content_fingerprint
from autotune.kernel.definition import FUNCTIONS_CHANGED, NOT_DECLARED, SOURCE_CHANGED
from autotune.project import STUDY, Project, file_named, space_places
from autotune.tuned.record import TunedRecord

#: A larger file is not read, and counts as changed.
_MAX_BYTES = 16 << 20


def find_space(kernel: str, owner: Project | None) -> str:
    """Return the nearest space file of a kernel, or that of a project; empty if it is not at hand."""
    if owner is None:
        places = space_places()
    elif owner.reports:
        home = os.path.dirname(owner.reports)
        places = [os.path.join(home, "spaces"), home, os.path.join(home, STUDY)]
    else:
        places = []
    files = (os.path.join(place, f"{kernel}.py") for place in places)
    return next(filter(os.path.isfile, files), "")


class KernelFiles:
    """The files of a kernel, compared with a record; a file is read again only if its state changed."""

    def __init__(self, space: str, record: TunedRecord) -> None:
        """Compare the files of a space file's kernel with the latest record of the kernel."""
        self._space, self._record = os.path.abspath(space), record
        names = record.provenance.files
        #: Recorded fingerprints by path.
        self._recorded = {file_named(self._space, name): names[name] for name in names}
        self._states: dict[str, tuple[int, ...]] = {}
        self._changes: tuple[str, ...] = ()
        #: Values of parameters that an edited space file declares; None if they are computed.
        self._declared: Mapping[str, tuple[object, ...] | None] = {}
        self.refresh()

    def refresh(self) -> bool:
        """Compare the files again if one of them was replaced or edited; return whether that was so."""
        states = {path: _state(path) for path in self._states or self._recorded}
        if states == self._states:
            return False
        self._states = states
        changed = [path for path, known in self._recorded.items() if _fingerprint(path) != known]
        sources = [path for path in changed if not path.endswith(".py")]
        self._changes, self._declared = (SOURCE_CHANGED,) if sources else (), {}
        if len(changed) > len(sources):
            self._compare_functions()
        return True

    def stale_reasons(self, configuration: Mapping[str, Value]) -> tuple[str, ...]:
        """Return the reasons why an answer with this configuration is stale; empty while it is current."""
        listed = self._declared
        is_declared = listed.keys() <= self._record.parameters.keys() and all(
            value in values
            for name, value in configuration.items()
            if (values := listed.get(name)) is not None
        )
        return self._changes if is_declared else (*self._changes, NOT_DECLARED)

    def _compare_functions(self) -> None:
        """Compare the space file and its modules without comments and lists, which takes longer."""
        from pathlib import Path

        from autotune.kernel.space_text import space_text

        known = self._record.provenance.arguments
        try:
            text = space_text(Path(self._space))
        except OSError:  # the file was removed just now
            self._changes += (FUNCTIONS_CHANGED,)
            return
        if known and sha256(text.fingerprint.encode()).hexdigest() != known:
            self._changes += (FUNCTIONS_CHANGED,)
        self._declared = text.parameters
        # The edited files may import further modules.
        self._states |= {str(path): _state(str(path)) for path in text.files}


def _state(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino, S_ISREG(found.st_mode)


def _fingerprint(path: str) -> str:
    """Return the fingerprint of a file; empty if it cannot be read, or is not a source."""
    state = _state(path)
    if not state or not state[-1] or state[1] > _MAX_BYTES:
        return ""
    try:
        with open(path, "rb") as file:
            return content_fingerprint(file.read())
    except OSError:
        return ""
