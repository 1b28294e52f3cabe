"""Does what a request asks for, from measuring to files; commands and notebooks call it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.run.bench import LOCAL, Site
from autotune.run.recording import RunResult
from autotune.run.request import Request
from autotune.run.run import execute
from autotune.search.session import Listener, ignore
from autotune.store import default_url, open_for_runs
from autotune.tuned.writing import require_mergeable

if TYPE_CHECKING:
    from autotune.report.publish import Published


def tune(
    request: Request,
    out: Path,
    listener: Listener = ignore,
    site: Site = LOCAL,
    others: Iterable[Path] = (),
) -> tuple[RunResult, Published | None]:
    """Run a request and publish what it found; see `execute` and `publish`.

    A run that ended early is published too; `RunResult.require_complete` then raises what ended it.
    """
    require_mergeable(out, request.device, request.kernel, request.objective.name)
    with open_for_runs(default_url()) as store:
        result = execute(request, store, listener, site)
    from autotune.report.publish import publish  # takes long, and nobody waits for it before

    return result, publish(result, out, others)
