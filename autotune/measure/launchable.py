"""A configuration on the working buffers of a job: launched once to be verified, or bound to be timed."""

from __future__ import annotations

from functools import partial
from typing import Any

from autotune.devices.base import Binary, Executor, Poison
from autotune.errors import AutotuneError
from autotune.kernel.launches import launch_sequence, workspaces_of
from autotune.kernel.spec import Kernel
from autotune.measure import verify
from autotune.measure.measurement import CheckResult
from autotune.values import Configuration, Problem

#: Upper bound in milliseconds of the time that launching adds to each launch of `Executor.run`. The last
#: column of docs/timing.md has 2 to 4 µs.
_LAUNCHING_MS = 0.02


class Launchable:
    """A configuration that is ready to be launched on the working buffers of a job."""

    def __init__(
        self,
        state: tuple[Executor, verify.DeviceData, Kernel],
        problem: Problem,
        configuration: Configuration,
        binary: Binary,
    ) -> None:
        self.executor, self.data, kernel = state
        device = self.executor.device
        self.plan = launch_sequence(kernel, configuration, problem, device)
        self.data.declare_scratch(workspaces_of(kernel, configuration, problem, device, binary))
        #: Workspaces of this configuration; `data` may later have those of another configuration.
        self.scratch = self.data.scratch
        self.binary = binary
        self.deterministic = kernel.is_deterministic(configuration, problem)
        self._bound: dict[str, tuple[Any, verify.Steps]] = {}
        self._module: Any = None
        #: Lower bound in milliseconds of each launch of `verify`.
        self.verified_ms: list[float] = []

    def bind(self, dataset: str) -> tuple[Any, verify.Steps]:
        """Return the module and the launch steps for a data set."""
        if dataset not in self._bound:
            steps = self.data.bind(self.plan, dataset, self.binary)
            if constants := self.data.constants(
                dataset
            ):  # each data set with constants needs its own module
                module = self.executor.load(self.binary, constants)
            else:
                module = self._module = self._module or self.executor.load(self.binary, {})
            self._bound[dataset] = module, steps
        return self._bound[dataset]

    def run_afresh(self, dataset: str) -> None:
        """Run once on the data of a data set, as the first launch in a new process would."""
        self.data.poison_scratch()
        self.data.refresh(dataset, wholly=True, poison=Poison.NAN)
        self.executor.run(*self.bind(dataset))

    def _run(self, module: Any, steps: verify.Steps) -> None:
        taken_ms = self.executor.run(module, steps)
        self.verified_ms.append(taken_ms - _LAUNCHING_MS * len(steps))

    def verify(self) -> tuple[CheckResult, ...]:
        """Check every data set, the first twice. The working buffers then hold the last data set."""
        if not all(dataset.bounds for dataset in self.data.datasets.values()):
            raise AutotuneError(
                "the results that configurations agreed on were removed from the cache of data; run "
                "the same command again, with a larger AUTOTUNE_CACHE_SIZE if it happens again"
            )
        checks: tuple[CheckResult, ...] = ()
        for name in self.data.datasets:
            run = partial(self._run, *self.bind(name))
            is_first = not checks
            checks += verify.verify(self.data, name, run, 1 + is_first, fresh=is_first)
        return checks
