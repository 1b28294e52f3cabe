"""Keeps out of a run's finals what NVIDIA's compute-sanitizer finds fault with.

Knows who may enter, not who wins; how the tool is run is `measure.sanitize`'s to know.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from autotune.devices.toolkit import find_program
from autotune.measure import sanitize
from autotune.measure.compiler import compile_job
from autotune.measure.measurement import Measurement, Status
from autotune.run import selection
from autotune.run.bench import Bench
from autotune.run.request import Request
from autotune.search.session import Listener, Phase
from autotune.values import Configuration, Problem, Value

#: So often the next best take the place of finalists in which compute-sanitizer found a fault.
_ROUNDS = 3


def sanitizer_for(request: Request) -> str:
    """Path of compute-sanitizer where a request wants it; empty where it does not.

    Wanted by the effort alone, it may be missing: that is a warning.

    Raises
    ------
    UsageError, AutotuneError
        If the request asks for it, and it is not there or not for this device.
    """
    if request.sanitize:
        return sanitize.required(request.device)
    by_effort = request.sanitize is None and request.effort.sanitizes and request.only is None
    if not by_effort or not request.device.has_nvidia_tools:
        return ""
    found = find_program("compute-sanitizer")
    if not found:
        warnings.warn(
            f"{request.kernel.name}: finalists are not run under compute-sanitizer, which --effort "
            f"{request.effort.name} does where it is installed; run: {sanitize.remedy()}, or give "
            "--no-sanitize",
            stacklevel=2,
        )
    return found


@dataclass
class SafetyCheck:
    """The safety check of one run, which remembers what it found."""

    bench: Bench
    #: Path of compute-sanitizer.
    program: str
    listener: Listener
    #: By configuration and static fields; None where nothing was found.
    _faults: dict[tuple[Configuration, tuple[Value, ...]], sanitize.SanitizerFault | None] = field(
        default_factory=dict
    )

    def admitted(
        self, problem: Problem, entrants: Sequence[Measurement]
    ) -> tuple[list[Measurement], list[Measurement]]:
        """Finalists in which compute-sanitizer finds no fault, and rows of those where it does.

        The next best take the place of what is out, and are checked as well, a few times over. What
        was found for another problem of the run holds here: the small problems are the same.
        """
        static = self.bench.kernel.static_of(problem)
        promises = partial(self.bench.kernel.is_deterministic, p=problem)
        safe: list[Measurement] = []
        out: dict[Configuration, sanitize.SanitizerFault] = {}
        for _ in range(_ROUNDS):
            left = [entrant for entrant in entrants if entrant.configuration not in out]
            finalists = selection.candidates(left, self.bench.request.effort.finalists, promises)
            self._check(problem, static, [finalist.configuration for finalist in finalists])
            safe = []
            for finalist in finalists:
                fault = self._faults[finalist.configuration, static]
                if fault is None:
                    safe.append(finalist)
                else:
                    out[finalist.configuration] = fault
            if len(safe) == len(finalists):
                break
        uuid = self.bench.device.uuid
        return safe, [
            Measurement(configuration, Status.UNSAFE, str(fault), device_uuid=uuid)
            for configuration, fault in out.items()
        ]

    def _check(
        self, problem: Problem, static: tuple[Value, ...], configurations: Sequence[Configuration]
    ) -> None:
        """Have a finding of each configuration; warns of what could not be checked."""
        unknown = [
            configuration
            for configuration in configurations
            if (configuration, static) not in self._faults
        ]
        if not unknown:
            return
        self.listener(Phase(problem, "sanitizer"))
        bench = self.bench
        trials = []
        for configuration in unknown:
            for small in sanitize.small_problems(
                bench.kernel, configuration, problem, bench.device
            ):
                job = compile_job(bench.kernel, configuration, small, bench.device)
                # So that a finding names the line; the code is the same.
                with_lines = replace(job, options=(*job.options, "-lineinfo"))
                binary = bench.compilers.result(with_lines).binary
                if binary is not None:
                    made = bench.job(small, bench.request.seed + 1)
                    trials.append(sanitize.Trial(made, configuration, binary))
        report = sanitize.check(self.program, trials)
        for text in report.unchecked:
            warnings.warn(f"{bench.kernel.name}: compute-sanitizer: {text}", stacklevel=2)
        for configuration in unknown:
            self._faults[configuration, static] = report.faults.get(configuration)
