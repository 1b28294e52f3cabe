"""Imported measurements of other tools: where they are kept, and which a search tries first.

Their measurements were not verified here. They are never rows of the store, records, or an answer of
lookup. A search measures and verifies what it takes from them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from autotune.errors import RecordError
from autotune.files import data_folder, data_path, write_atomically
from autotune.interop.formats import Labels, Recording, Results, read, t4_text
from autotune.values import Configuration, Problem

#: How many of the best are tried first: of each recording on another problem than its own, and in all.
_BEST_OF_EACH, _MOST = 3, 12
#: Of a kernel's name, in the name of a file.
_MOST_LETTERS = 80


def keep(file: Path, labels: Labels) -> tuple[Path, Recording]:
    """Keep what a file measured as T4 results under its labels; return where, and what it holds."""
    found = read(file, labels)
    kept = Results(
        kernel=found.kernel,
        device_name=found.device.name,
        problem=found.problem,
        parameters=found.space.parameters,
        measurements=found.measurements,
    )
    folder, digest = data_folder("imported"), found.device.uuid
    place = folder / f"{_prefix(found.kernel)}{digest}.json"
    write_atomically(place, t4_text(kept).encode())
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
            found.append(read(file))
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


def _prefix(kernel: str) -> str:
    return f"{quote(kernel, '')[:_MOST_LETTERS]}-"
