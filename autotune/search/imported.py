"""Files of others that a person imported: kept as they are, found by kernel, and what to try of them first.

Nothing in them was verified here. They are never rows of the store, records, or an answer of
lookup; a search measures and verifies what it takes from them like anything else.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autotune.errors import RecordError
from autotune.files import data_folder, data_path, write_atomically
from autotune.search.recorded import Names, Recording, content_of, parse
from autotune.values import Configuration, Problem

_FORMAT = "autotune import"
#: So many of the best of each recording are tried first on another problem than its own, and so many at most.
_BEST_OF_EACH, _MOST = 3, 12
#: Of a kernel's name, in the name of a file.
_MOST_LETTERS = 80


def keep(file: Path, names: Names) -> tuple[Path, list[Recording]]:
    """Keep a file of others; a copy of the same content is replaced.

    Returns
    -------
    tuple of Path and list of Recording
        Where it is kept, and what it holds.

    Raises
    ------
    RecordError
        If it is damaged or something else; nothing is kept then.
    """
    content = content_of(file)
    found = parse(content, file, names)
    kept = {
        "format": _FORMAT,
        "schema_version": 1,
        "file": file.name,
        "imported_on": datetime.now(UTC).isoformat(timespec="seconds"),
        "kernel": names.kernel,
        "device": names.device,
        "problem": dict(names.problem),
        "content": found[0].text,
    }
    folder, digest = data_folder("imported"), hashlib.sha256(content).hexdigest()[:16]
    place = folder / f"{_prefix(found[0].kernel)}{digest}.json"
    write_atomically(place, json.dumps(kept).encode())
    for other in folder.glob(f"*-{digest}.json"):
        if other != place:  # it was called otherwise before
            other.unlink()
    return place, found


def imported(kernel: str | None = None) -> list[Recording]:
    """What was imported of a kernel, or of all, the newest file first; damaged ones with a warning."""
    files = sorted(
        (file for file in Path(data_path("imported")).glob("*.json") if not file.is_symlink()),
        key=lambda file: (-file.stat().st_mtime_ns, file.name),
    )
    found: list[Recording] = []
    for file in files:
        if kernel is None or file.name.startswith(_prefix(kernel)):
            try:
                found += _read(file)
            except RecordError as error:
                warnings.warn(f"left out: {error}; or delete it", stacklevel=2)
    return [recording for recording in found if kernel in (None, recording.kernel)]


def first_to_try(kernel: str) -> tuple[tuple[Problem, Configuration], ...]:
    """The best of what was imported of a kernel, each with its problem; some may be in no space of it."""
    return tuple(
        (recording.problem, found.configuration)
        for recording in imported(kernel)
        for found in recording.best(_MOST)
    )


def first_on(
    problem: Problem, imported: Iterable[tuple[Problem, Configuration]]
) -> tuple[Configuration, ...]:
    """What to try first on a problem: the best that others found for it, else some of the best of each other."""
    found: dict[Problem, list[Configuration]] = {}
    for theirs, configuration in imported:
        found.setdefault(theirs, []).append(configuration)
    best = found.get(problem) or [c for each in found.values() for c in each[:_BEST_OF_EACH]]
    return tuple(dict.fromkeys(best))[:_MOST]


def _read(file: Path) -> list[Recording]:
    try:
        kept: dict[str, Any] = json.loads(content_of(file))
        names = Names(kept["kernel"], kept["device"], Problem(kept["problem"]))
        content, original = kept["content"].encode(), Path(kept["file"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RecordError(f"{file}: no imported file, or damaged ({error!r})") from None
    return parse(content, original, names)


def _prefix(kernel: str) -> str:
    return f"{quote(kernel, '')[:_MOST_LETTERS]}-"
