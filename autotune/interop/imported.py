"""Files of other tools that a person imported: where they are kept, and what a search tries of them first.

Their measurements were not verified here. They are never rows of the store, records, or an answer of
lookup. A search measures and verifies what it takes from them.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from autotune.errors import RecordError
from autotune.files import data_folder, data_path, write_atomically
from autotune.interop.formats import Labels, Recording, content_of, parse
from autotune.values import Configuration, Problem

#: How many of the best are tried first: of each recording on another problem than its own, and in all.
_BEST_OF_EACH, _MOST = 3, 12
#: Of a kernel's name, in the name of a file.
_MOST_LETTERS = 80


def keep(file: Path, labels: Labels) -> tuple[Path, Recording]:
    """Keep a file, in place of a copy of the same content; return where it is, and what it holds."""
    content = content_of(file)
    found = parse(content, file, labels)
    kept = {
        "format": "autotune import",
        "schema_version": 1,
        "file": file.name,
        "kernel": labels.kernel,
        "device": labels.device,
        "problem": dict(labels.problem),
        "content": content.decode(),
    }
    folder, digest = data_folder("imported"), hashlib.sha256(content).hexdigest()[:16]
    place = folder / f"{_prefix(found.kernel)}{digest}.json"
    write_atomically(place, json.dumps(kept).encode())
    for other in folder.glob(f"*-{digest}.json"):
        if other != place:  # it was called otherwise before
            other.unlink()
    return place, found


def imported(kernel: str) -> list[Recording]:
    """Read what was imported of a kernel, the newest file first; damaged ones with a warning."""
    files = sorted(
        (
            file
            for file in Path(data_path("imported")).glob("*.json")
            if not file.is_symlink() and file.name.startswith(_prefix(kernel))
        ),
        key=lambda file: (-file.stat().st_mtime_ns, file.name),
    )
    found: list[Recording] = []
    for file in files:
        try:
            found.append(_read(file))
        except RecordError as error:
            warnings.warn(f"left out: {error}; or delete it", stacklevel=2)
    return [recording for recording in found if recording.kernel == kernel]


def first_to_try(kernel: str) -> tuple[tuple[Problem, Configuration], ...]:
    """Return the best of what was imported of a kernel, each with its problem.

    Some may be in no space of the kernel.
    """
    return tuple(
        (recording.problem, found.configuration)
        for recording in imported(kernel)
        for found in recording.best(_MOST)
    )


def first_on(
    problem: Problem, imported: Iterable[tuple[Problem, Configuration]]
) -> tuple[Configuration, ...]:
    """Return what to try first on a problem: its best imported ones, else some of each other problem."""
    found: dict[Problem, list[Configuration]] = {}
    for theirs, configuration in imported:
        found.setdefault(theirs, []).append(configuration)
    best = found.get(problem) or [c for each in found.values() for c in each[:_BEST_OF_EACH]]
    return tuple(dict.fromkeys(best))[:_MOST]


def _read(file: Path) -> Recording:
    try:
        kept = json.loads(content_of(file))
        labels = Labels(kept["kernel"], kept["device"], Problem(kept["problem"]))
        content, original = kept["content"].encode(), Path(kept["file"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RecordError(f"{file}: no imported file, or damaged ({error!r})") from None
    return parse(content, original, labels)


def _prefix(kernel: str) -> str:
    return f"{quote(kernel, '')[:_MOST_LETTERS]}-"
