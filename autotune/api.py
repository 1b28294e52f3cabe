"""`tune`: the command ``autotune run`` as a function for scripts and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from autotune import front
from autotune.devices.choose import choose_devices
from autotune.errors import UsageError
from autotune.kernel import modules
from autotune.kernel.catalog import find_kernel
from autotune.kernel.snapshot import kernel_for_run
from autotune.kernel.spec import Kernel
from autotune.report import summary
from autotune.report.progress import progress_of
from autotune.report.publish import Published
from autotune.run.bench import LOCAL, Site
from autotune.run.request import RunOptions
from autotune.run.result import RunResult
from autotune.search.session import Event, ignore
from autotune.values import Value

if TYPE_CHECKING:
    import pandas
    from distributed import Client

    from autotune.devices.device import Device
    from autotune.tuned.record import TunedRecord


#: Integer columns of `Tuned.frame` that may have missing values.
_COUNTS = ("registers", "spill_bytes", "shared_bytes", "sm_mhz")
#: Floating-point columns of `Tuned.frame` that may have missing values.
_QUANTITIES = (
    *("median_ms", "max_error", "compile_s", "verify_s", "measure_s"),
    *("energy_mj", "power_w", "power_limit_w"),
)


@dataclass(frozen=True, repr=False)
class Tuned:
    """The result of `tune`; a notebook shows it as the table of winners.

    Attributes
    ----------
    run : RunResult
        The measurements, by problem.
    published : Published or None
        The record and the written files; None if only one configuration was measured (`config`).
    """

    run: RunResult
    published: Published | None

    @property
    def record(self) -> TunedRecord | None:
        """Return the tuned record: winners per problem, with evidence; None without `published`."""
        return self.published.record if self.published else None

    @property
    def report(self) -> Path | None:
        """Return the report, HTML, or Markdown if plotly is not installed; None without `published`."""
        if self.published is None:
            return None
        return self.published.html_file or self.published.markdown_file

    @cached_property
    def frame(self) -> pandas.DataFrame:
        """Return every measurement as a row; parameters, problem fields and ``metrics.NAME`` are columns.

        Unknown numbers are NA. The column ``samples_ms`` has lists.
        """
        import pandas

        frame = pandas.DataFrame(
            {
                **row.pop("problem"),
                **row.pop("config"),
                **{f"metrics.{name}": value for name, value in row.pop("metrics").items()},
                **row,
            }
            for row in self.run.rows()
        )
        kinds = dict.fromkeys(_COUNTS, "Int64") | dict.fromkeys(_QUANTITIES, "float64")
        return frame.astype({name: kind for name, kind in kinds.items() if name in frame})

    def __repr__(self) -> str:
        return summary.text(self.run, self.record)

    def _repr_html_(self) -> str:
        return summary.html(self.run, self.record)


def tune(
    kernel: str | Kernel,
    *,
    problems: Mapping[str, int | str] | Sequence[Mapping[str, int | str]] = (),
    budget: str | None = None,
    effort: str = "quick",
    strategy: str = "auto",
    strategy_options: Mapping[str, Value] | None = None,
    objective: str = "time",
    device: str | None = None,
    fleet: Client | None = None,
    seed: int = 0,
    fixed: Mapping[str, Value | Sequence[Value]] | None = None,
    config: Mapping[str, Value] | None = None,
    timing: Literal["cold", "hot", "mixed"] | None = None,
    fresh: bool = False,
    accept: bool = False,
    sanitize: bool | None = None,
    out: str | Path | None = None,
    spaces: str | Path | None = None,
    quiet: bool = False,
    listener: Callable[[Event], None] = ignore,
) -> Tuned:
    """Find the fastest verified configuration of a kernel for each problem.

    The processes that compile and measure get a kernel of a script or notebook by value; they never run
    the script.

    Parameters
    ----------
    kernel : str or Kernel
        A name, the path of a space file, or a kernel of a space file, a script or a notebook.
    problems : sequence of Problem or mapping, or a single one
        Default: the kernel's problems for the effort.
    budget : str, optional
        ``90s``, ``10m`` or ``200evals``, for all problems together.
    effort : {"quick", "full"}
        The effort of ``autotune run --effort``.
    strategy : str
        See ``autotune list strategies``.
    strategy_options : mapping, optional
        Options of a strategy of Kernel Tuner or Optuna, by their names there: ``{"popsize": 10}``.
    objective : {"time", "energy", "edp"}
        The quantity to minimise.
    device : str, optional
        ``cuda:0``, ``opencl:cpu``; ``cuda:all`` for all GPUs at once. Default: the first usable device.
        With a fleet: a backend, an architecture or a part of a model's name. Default: the model with
        most cards.
    fleet : distributed.Client, optional
        Measure on a Dask cluster, on all cards of a model. Start its workers with the preload
        ``autotune.fleet.worker``. The client stays open.
    seed : int
        Seed of search and inputs.
    fixed : mapping, optional
        Search only these values of a parameter, or this value. Such a run is an experiment: `lookup`
        does not use its result. Its files go to ``out/experiments/<device>/``.
    config : mapping, optional
        Verify and time this configuration instead of a search. Missing parameters have the kernel's
        default. The result is recorded only with `accept`.
    timing : {"cold", "hot", "mixed"}, optional
        ``cold``: flush the L2 cache before each sample; ``hot``: do not flush it; ``mixed``: the
        geometric mean of both times. Default: ``mixed`` if the data of a call fit into the GPU's L2
        cache, else ``cold``.
    fresh : bool
        Measure again instead of reading results from the store.
    accept : bool
        Let `lookup` use the result of an experiment (`fixed`, `config`), or a result that is slower
        than the recorded one or of less effort.
    sanitize : bool, optional
        Also run the finalists under NVIDIA's compute-sanitizer; a configuration with a fault cannot
        win. Default: true with ``effort="full"`` on a GPU, if the sanitizer is installed.
    out : str or Path, optional
        Record, header and report go to ``out/<device>/``. Default: ``reports``; for another objective
        than time ``reports-<objective>``, because records of a folder have one objective.
    spaces : str or Path, optional
        Another folder of space files.
    quiet : bool
        Show no progress. Default: show it on a terminal (standard error) and in a notebook.
    listener : callable
        Called with every event of the run.

    Returns
    -------
    Tuned
        The run, its record and its files.

    Raises
    ------
    UsageError
        If an argument is invalid; the message has the valid values.
    AutotuneError
        If the run fails; see `autotune.errors`.
    """
    _refuse_in_space_file()
    options = RunOptions(
        problems=[problems] if isinstance(problems, str | Mapping) else problems,
        effort=effort,
        budget=budget,
        strategy=strategy,
        strategy_options=strategy_options or {},
        objective=objective,
        fixed=fixed or {},
        config=config,
        timing=timing,
        seed=seed,
        fresh=fresh,
        sanitize=sanitize,
        accept=accept,
        command="autotune.tune",
    )
    declared = _declared(kernel, Path(spaces) if spaces is not None else None)
    with ExitStack() as stack:
        devices, site = _measuring(stack, declared, device, fleet)
        request = options.request(declared, devices).with_default_problems()
        folder = Path(out) if out else request.objective.folder(Path("reports"))
        progress = stack.enter_context(progress_of(declared.name, len(request.problems), quiet))

        def both(event: Event) -> None:
            progress(event)
            listener(event)

        result, published = front.tune(request, folder, both, site)
    result.require_complete()
    return Tuned(result, published)


def _refuse_in_space_file() -> None:
    if modules.is_running():
        raise UsageError(
            "a space file calls tune(), and every measuring process runs that file; move the call to "
            "another script or notebook, or under: if __name__ == '__main__':"
        )


def _declared(kernel: str | Kernel, spaces: Path | None) -> Kernel:
    return find_kernel(kernel, spaces) if isinstance(kernel, str) else kernel_for_run(kernel)


def _measuring(
    stack: ExitStack, kernel: Kernel, named: str | None, fleet: Client | None
) -> tuple[Sequence[Device], Site]:
    """Return the devices to measure on, and their site: this machine, or a fleet that the stack closes."""
    if fleet is None:
        return choose_devices(named, kernel.backends), LOCAL
    from autotune.fleet.client import Fleet
    from autotune.fleet.site import FleetSite

    members = Fleet(fleet)
    first = members.device_for(kernel, [named] if named else [])
    return [first, *members.others(first)], FleetSite(stack.enter_context(members))
