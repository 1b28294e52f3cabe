"""One command's job from beginning to end: the device's limits where they are missing, then the run."""

from __future__ import annotations

from contextlib import closing

from autotune.measure.objective import require
from autotune.run.bench import LOCAL, Site
from autotune.run.limits import limits_for
from autotune.run.request import Request
from autotune.run.result import RunResult
from autotune.run.run import Run
from autotune.search.session import Listener, ignore
from autotune.store import Store


def execute(
    request: Request, store: Store, listener: Listener = ignore, site: Site = LOCAL
) -> RunResult:
    """Do what is requested; raises what `Run.run` does, and `SpecError` if a hook is wrong.

    Raises
    ------
    DeviceError
        If a device cannot be measured for the objective.
    """
    for device in request.devices:
        if request.objective.needs_energy:
            require(request.objective, device, site.why_no_energy(device))
    for problem in (*request.problems, *request.kernel.edge_problems):
        request.kernel.check_problem(problem)
    limits = limits_for(request, store, listener, site)
    with closing(Run(request, store, listener, site)) as run:
        return run.run(limits)
