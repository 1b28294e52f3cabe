"""Progress of a run in the output of a notebook's cell, and the choice between that, a terminal and nothing.

What `rich` does in notebooks by itself needs ipywidgets, and shows nothing where they are missing.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console
from rich.jupyter import JupyterMixin
from rich.text import Text

from autotune.cli.progress import RunProgress
from autotune.search.session import Event, Listener, Measured, ignore

#: Between two pictures of measurements: a notebook takes in a few a second.
_EVERY_S = 0.3

# Libraries of search strategies import a progress bar that would have widgets in a notebook, and use none.
warnings.filterwarnings("ignore", message="IProgress not found")


class NotebookProgress(RunProgress):
    """What a terminal would show, by a function that replaces what it showed before; gone at the end."""

    def __init__(self, kernel: str, problems: int, show: Callable[[JupyterMixin], object]) -> None:
        super().__init__(kernel, problems)
        self._show = show
        self._shown_s = 0.0

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if not isinstance(event, Measured) or time.monotonic() - self._shown_s > _EVERY_S:
            self._show(self)
            self._shown_s = time.monotonic()

    def __enter__(self) -> NotebookProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._show(Text())


def progress_of(kernel: str, problems: int, quiet: bool) -> AbstractContextManager[Listener]:
    """What shows progress where this process shows anything: in a cell, on a terminal, or not."""
    if quiet:
        return nullcontext(ignore)
    if Console().is_jupyter:
        return NotebookProgress(kernel, problems, _cell())
    return RunProgress(kernel, problems)


def _cell() -> Callable[[JupyterMixin], object]:
    """A place in the output of the cell that runs, and what replaces its content."""
    from IPython.display import display

    place = display(Text(), display_id=True)
    update: Callable[[JupyterMixin], object] = place.update
    return update
