"""`tune`: the job of `autotune run` in a program or a notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.devices.choose import choose_devices
from autotune.errors import UsageError, unknown
from autotune.kernel.catalog import find_kernel
from autotune.kernel.spec import Kernel
from autotune.report.publish import Published, publish
from autotune.run.command import execute
from autotune.run.request import EFFORTS, Request
from autotune.run.result import RunResult
from autotune.search.imported import first_to_try
from autotune.search.names import find
from autotune.search.session import Budget, Event, ignore
from autotune.store import Store, default_url
from autotune.store.flat import row_of
from autotune.values import Problem, Value

if TYPE_CHECKING:
    import pandas

    from autotune.tuned.record import TunedRecord


@dataclass(frozen=True)
class Tuned:
    """What `tune` returns.

    Attributes
    ----------
    run : RunResult
        What was measured, problem by problem.
    published : Published
        The record, and the files that were written.
    """

    run: RunResult
    published: Published

    @property
    def record(self) -> TunedRecord:
        """The tuned record: winners per problem, with evidence."""
        return self.published.record

    @property
    def report(self) -> Path:
        """The report: the HTML page, or the Markdown where plotly is not installed."""
        return self.published.html_file or self.published.markdown_file

    @cached_property
    def frame(self) -> pandas.DataFrame:
        """Every measurement as a row; parameters and problem fields are columns."""
        import pandas

        request = self.run.request
        rows = []
        for result in self.run.problems:
            for measurement in result.measured:
                flat = row_of(request.kernel.name, result.problem, measurement, request.device.name)
                rows.append({**flat.pop("problem"), **flat.pop("config"), **flat})
        return pandas.DataFrame(rows)


def tune(
    kernel: str | Kernel,
    *,
    problems: Sequence[Problem | Mapping[str, int | str]] = (),
    budget: str | None = None,
    effort: str = "quick",
    strategy: str = "auto",
    device: str | None = None,
    seed: int = 0,
    fixed: Mapping[str, Sequence[Value]] | None = None,
    fresh: bool = False,
    sanitize: bool | None = None,
    out: str | Path = "reports",
    listener: Callable[[Event], None] = ignore,
) -> Tuned:
    """Find the fastest verified configuration of a kernel for each problem.

    Parameters
    ----------
    kernel : str or Kernel
        A name, the path of a space file, or the kernel that a space file declared.
    problems : sequence of Problem or mapping
        Default: the kernel's own for the effort.
    budget : str, optional
        ``90s``, ``10m`` or ``200evals``, for all problems together.
    effort : {"quick", "full"}
        How thorough.
    strategy : str
        See ``autotune list strategies``.
    device : str, optional
        ``cuda:0``, ``opencl:cpu``; ``cuda:all`` for all GPUs at once; default: the first usable.
    seed : int
        Of search and inputs.
    fixed : mapping, optional
        Values that some parameters are restricted to.
    fresh : bool
        Measure again what is remembered.
    sanitize : bool, optional
        Run the finalists under NVIDIA's compute-sanitizer too; what it finds fault with cannot win.
        Default: with ``effort="full"`` on a GPU, where it is installed.
    out : str or Path
        Record, header and report go to ``out/<device>/``.
    listener : callable
        Called with every engine event.

    Returns
    -------
    Tuned

    Raises
    ------
    AutotuneError
        Whatever ends a run; see `autotune.errors`.
    """
    declared = find_kernel(kernel) if isinstance(kernel, str) else kernel
    if declared.file is None:
        raise UsageError(f"{declared.name}: declare the kernel in a space file, workers import it")
    if effort not in EFFORTS:
        raise UsageError(unknown("effort", effort, EFFORTS))
    find(strategy)  # an unknown one ends here, not after inputs and limits were made
    first, *others = choose_devices(device, declared.backends)
    request = Request(
        kernel=declared,
        device=first,
        others=tuple(others),
        problems=tuple(_declared_order(declared, problem) for problem in problems),
        effort=EFFORTS[effort],
        strategy=strategy,
        budget=Budget.parse(budget) if budget else None,
        seed=seed,
        fresh=fresh,
        sanitize=sanitize,
        first=first_to_try(declared.name),
        fixed=dict(fixed or {}),
        command="autotune.tune",
    ).with_default_problems()
    with Store.open(default_url()) as store:
        result = execute(request, store, listener)
    return Tuned(result, publish(result, Path(out)))


def _declared_order(kernel: Kernel, problem: Mapping[str, int | str]) -> Problem:
    """A problem with its fields in the kernel's order, which records and headers keep."""
    if set(problem) - set(kernel.layout) != set(kernel.fields):
        raise UsageError(
            f"problem ({Problem(dict(problem))}): fields {', '.join(kernel.fields)} expected"
        )
    known = (*kernel.fields, *kernel.layout)
    return Problem({name: problem[name] for name in known if name in problem})
