"""Checks a kernel without tuning it: data, spaces, and a sample of configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count, cycle, islice
from typing import Any

import numpy as np

from autotune.checking.interpreting import InterpretedSample, SampleResult, verified
from autotune.compiling.binaries import CompileFailure, compile_now
from autotune.compiling.job import compile_job
from autotune.data.arguments import declared_arguments, with_scratch
from autotune.data.dataset import EXACT, RANDOM
from autotune.data.prepare import prepare_dataset
from autotune.data.sight import unseen_inputs
from autotune.data.wrapping import wrapping_outputs
from autotune.devices.base import Binary, LaunchError
from autotune.devices.cubin import constant
from autotune.devices.device import Device, for_arch
from autotune.errors import MissingDependencyError, NothingValidError, SpecError, install
from autotune.kernel.launches import (
    LaunchSequence,
    bind_arguments,
    exceeded_limit,
    launch_sequence,
    requirement,
    trace_launches,
    traced_grid,
    workspaces_of,
)
from autotune.kernel.space import Space, broken_constraints, enumerate_space
from autotune.kernel.spec import Kernel
from autotune.languages.registry import find_backend
from autotune.measure.worker_state import Job
from autotune.run.bench import Bench
from autotune.run.extreme_checks import differences, message
from autotune.run.idle import unnamed
from autotune.run.request import Request
from autotune.values import Configuration, Problem, by_category, category_of, size_of

#: Maximum number of configurations that are examined to find one that a problem allows.
_MAX_EXAMINED = 20_000
#: Product of a problem's fields up to which an interpreter takes seconds.
_INTERPRETED_SIZE = 1 << 13


@dataclass
class CheckReport:
    """The findings about a kernel. A kernel without ``failures`` can be tuned."""

    kernel: str
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    #: The sample: the fields of a `SampleResult`, with ``target`` and ``config``.
    samples: list[dict[str, Any]] = field(default_factory=list)
    #: Reason why nothing was verified on this machine; empty if something was.
    not_verified: str = ""
    #: Inputs whose missing elements verification would not notice.
    unseen: list[str] = field(default_factory=list)


def check_kernel(kernel: Kernel, archs: Sequence[str], samples: int, seed: int) -> CheckReport:
    """Check a kernel for CUDA architectures, and on an OpenCL device or interpreter if there is one.

    Run the hooks `arguments` and `reference` on the smallest problem, then compile ``samples``
    configurations for each target. The check fails if a device is there and no configuration was verified.
    """
    report = CheckReport(kernel.name)
    for problem in kernel.all_problems():
        kernel.check_problem(problem)
    report.notes += [*_data_notes(kernel), *unnamed(kernel), *wrapping_outputs(kernel)]
    for missed in unseen_inputs(kernel, kernel.all_problems()):
        report.unseen.append(missed.argument)
        report.notes.append(str(missed))
    for arch in archs if "cuda" in kernel.backends else ():
        _DeviceCheck(report, kernel, for_arch(arch), samples, seed).compile()
    name = kernel.language.interpreter if kernel.language else "opencl"
    if name not in (*kernel.backends, "interpreter"):
        report.not_verified = (
            f"a kernel for {' and '.join(kernel.backends)} is compiled by this command, not launched; "
            f"autotune run {kernel.name} verifies each configuration before it times it"
        )
    elif found := find_backend(name).devices():
        _DeviceCheck(report, kernel, found[-1], samples, seed).verify()
    elif name == "opencl":
        report.not_verified = f"no OpenCL device ({install('cpu')})"
    else:
        report.not_verified = find_backend(name).why_unavailable()
    results = {row["result"] for row in report.samples}
    if results == {"pruned"}:
        report.failures.append(
            f"no configuration of the sample fits: {report.samples[0]['problem']}"
        )
    if report.not_verified:
        report.notes.append(f"not verified: {report.not_verified}")
    elif not report.failures and all(row["result"] != "verified" for row in report.samples):
        report.failures.append(
            "nothing was verified: the first problem and the odd sizes allow no configuration of the "
            "sample; raise --samples, or give edge_problems that the requires hook allows"
        )
    return report


def _data_notes(kernel: Kernel) -> Iterator[str]:
    """Run arguments and reference; yield notes on the comparison of each output."""
    problem = min(kernel.all_problems(), key=size_of)
    for which in (EXACT, RANDOM):
        dataset = prepare_dataset(kernel, problem, which)
        compared = [
            f"{name} is compared {_how(bound, name in dataset.by_element)}"
            for name, bound in dataset.bounds.items()
        ]
        if "matches" in kernel.hooks:
            compared = ["outputs are compared by @matches"]
        if "reference" not in kernel.hooks:  # also if an earlier command found that they agree
            compared = ["no reference: configurations must agree", *compared]
        yield f"{which} data, {problem}: {'; '.join(compared)}"


def _how(bound: float, is_by_element: bool) -> str:
    if not bound:
        return "to the bit"
    return f"within {bound:.3g}" + (" or less, by element" if is_by_element else "")


class _DeviceCheck:
    """The check of a kernel on one device or architecture, which adds to a report."""

    def __init__(
        self, report: CheckReport, kernel: Kernel, device: Device, samples: int, seed: int
    ) -> None:
        self._report, self._kernel, self._device = report, kernel, device
        self._samples, self._seed = samples, seed

    def compile(self) -> None:
        """Compile a sample; note an invalid default."""
        space = self._space()
        if space is None:
            return
        self._check_default(space)
        try:
            problem = self._kernel.first_problem(self._device.backend)
            sample = self._sample(space, [problem])
            self._check_sample(sample, partial(self._compiled, count()))
        except MissingDependencyError as error:
            self._note(f"not compiled: {error}")

    def verify(self) -> None:
        """Compile and verify a sample on odd sizes and the first problem; an interpreter, on small problems."""
        kernel, device, space = self._kernel, self._device, self._space()
        if space is None:
            return
        edges = kernel.edges_on(device)
        if device.backend == "interpreter":
            ordered = sorted(edges or [self._interpretable()], key=size_of)
            self._interpret(space, list(dict.fromkeys([*_by_kind(ordered), *ordered])))
            return
        problems = tuple(dict.fromkeys([*edges, kernel.first_problem(device.backend)]))
        with closing(Bench(Request.without_search(kernel, device, problems))) as bench:
            turns = _turns(kernel, [bench.job(problem) for problem in problems])
            sample = self._sample(space)
            self._check_sample(sample, lambda c: verified(bench, c, next(turns)))
            differing = differences(bench, dict.fromkeys(sample[:1], problems[-1]))
        self._report.notes += [message(kernel.name, texts) for texts in differing.values()]

    def _interpretable(self) -> Problem:
        """Return the smallest problem with its fields halved until an interpreter is fast enough."""
        smallest = min(self._kernel.all_problems(), key=size_of)
        sizes = dict(smallest)
        halved = [
            name
            for name, value in sizes.items()
            if isinstance(value, int)
            and name not in self._kernel.static
            and name in self._kernel.fields
        ]
        while halved and size_of(sizes) > _INTERPRETED_SIZE:
            largest = max(halved, key=lambda name: sizes[name])
            if sizes[largest] < 2:
                break
            sizes[largest] = (sizes[largest] + 1) // 2
        if sizes != dict(smallest):
            self._note(
                f"an interpreter is slow, so the sample is verified on ({Problem(sizes)}), smaller than any "
                "declared problem; give edge_problems to choose"
            )
        return Problem(sizes)

    def _interpret(self, space: Space, problems: Sequence[Problem]) -> None:
        """Verify a sample on each problem within the time limits; note the other problems."""
        kernel, sample = self._kernel, self._sample(space, problems)
        others = set(() if kernel.edge_problems else kernel.all_problems()).difference(problems)
        with closing(Bench(Request.without_search(kernel, self._device, problems))) as bench:
            interpreted = InterpretedSample(bench, sample)
            interpreted.left_out |= dict.fromkeys(others, "larger problems are not interpreted")
            for problem in problems:
                if why := self._too_few(space, problem) or interpreted.why_left_out(problem):
                    interpreted.left_out[problem] = why
                elif failure := interpreted.begin(problem):
                    self._report.failures.append(failure)
            self._check_sample(sample, interpreted.check)
        count, total = len(interpreted.verified), len(problems) + len(others)
        self._note(f"verified on {count} of {total} problems")
        for text in interpreted.not_verified():
            self._note(text)

    def _allowed(self, space: Space, problem: Problem, most: int) -> list[Configuration]:
        """Return the first configurations that a problem allows, up to `_MAX_EXAMINED`."""
        examined = islice(space, _MAX_EXAMINED)
        return list(islice((c for c in examined if self._kernel.allows(c, problem)), most))

    def _too_few(self, space: Space, problem: Problem) -> str:
        """Return a reason if a problem allows too few configurations; else empty."""
        needed = 1 if "reference" in self._kernel.hooks else 2
        if len(self._allowed(space, problem, needed)) == needed:
            return ""
        remedy = "; give a reference" if needed > 1 else ""
        return f"too few configurations are allowed{remedy}"

    def _note(self, text: str) -> None:
        self._report.notes.append(f"{self._device.arch}: {text}")

    def _space(self) -> Space | None:
        kernel, device = self._kernel, self._device
        try:
            space = enumerate_space(kernel, device)
        except NothingValidError as error:
            self._report.failures.append(str(error))
            return None
        self._note(f"{len(space):,} valid of {space.cartesian:,} combinations")
        if traced_grid(trace_launches(kernel, space.configuration(0), device), kernel.name) is None:
            self._note(
                "the launch function needs numbers: record and header contain its grid for tuned "
                "problems only (for all problems, use ceil_div, minimum and maximum of autotune)"
            )
        for problem in _by_kind(kernel.all_problems()):
            requirement(kernel, space.configuration(0), problem)
        return space

    def _check_default(self, space: Space) -> None:
        default, device = self._kernel.default(), self._device
        broken = [rule.name for rule in broken_constraints(self._kernel, default, device)]
        if broken:
            self._report.notes.append(
                f"the default ({default}), with which lookup answers before tuning, is not valid on "
                f"{device.arch or device.name}: it breaks {', '.join(broken)}; give a valid one, for "
                f"example Kernel(..., default={dict(space.configuration(0))})"
            )

    def _sample(self, space: Space, problems: Sequence[Problem] = ()) -> list[Configuration]:
        """Return the default and random configurations, with one that each given problem allows."""
        default = space.index(self._kernel.default())
        drawn = space.sample(np.random.default_rng(self._seed), self._samples)
        numbers = dict.fromkeys([*([] if default is None else [default]), *drawn])
        chosen = list(map(space.configuration, list(numbers)[: self._samples]))
        for problem in problems:
            if not any(self._kernel.allows(c, problem) for c in chosen):
                chosen += self._allowed(space, problem, 1)
        return chosen

    def _check_sample(
        self, sample: Sequence[Configuration], check: Callable[[Configuration], SampleResult]
    ) -> None:
        report, target, failed = self._report, self._device.arch, []
        for configuration in sample:
            found = check(configuration)
            report.samples.append({"target": target, "config": dict(configuration), **vars(found)})
            if found.result == "failed":
                failed.append(found.problem)
        if failed:
            report.failures.append(f"{target}: {len(failed)} of the sample failed ({failed[0]})")

    def _compiled(self, turns: Iterator[int], configuration: Configuration) -> SampleResult:
        """Compile a configuration for a problem that allows it, with a category in turn."""
        kernel, device = self._kernel, self._device
        first, turn = kernel.first_problem(device.backend), next(turns)
        allowed = [p for p in kernel.all_problems() if kernel.allows(configuration, p)]
        if not allowed:
            return SampleResult.without_success("skipped", "no problem allows it")
        kinds = _by_kind([first, *allowed] if first in allowed else allowed)
        problem = kinds[turn % len(kinds)]
        launches = launch_sequence(kernel, configuration, problem, device)
        if excess := exceeded_limit(launches, None, device):
            return SampleResult.without_success("pruned", excess)
        done = compile_now(compile_job(kernel, configuration, problem, device))
        if done.binary is None:
            return SampleResult.without_success(
                "pruned" if done.failure is CompileFailure.RESOURCES else "failed", done.message
            )
        names = [launch.entry for launch in launches.launches]
        missing = [name for name in names if not done.binary.entry(name or "")]
        if missing:
            known = [function.name for function in done.binary.entries]
            return SampleResult.without_success(
                "failed",
                f"the source has no kernel function {missing[0]!r} (it has {', '.join(known) or 'none'}); "
                "rename the function, or give Launch(entry=...)",
            )
        try:
            self._bind(launches, configuration, problem, done.binary)
        except (LaunchError, SpecError) as error:
            return SampleResult.without_success("failed", str(error))
        entries = done.binary.launched([name or "" for name in names])
        registers = max((function.registers or 0 for function in entries), default=None)
        spilled = sum(function.spill_bytes or 0 for function in entries)
        return SampleResult("compiled", registers, spilled)

    def _bind(
        self,
        plan: LaunchSequence,
        configuration: Configuration,
        problem: Problem,
        binary: Binary,
    ) -> None:
        """Bind launches and constants to declared arguments without memory.

        Raises `SpecError` if launches do not match, `LaunchError` if the binary has no such constant.
        """
        kernel = self._kernel
        # The hook may compute all elements: use the smallest problem of the category.
        alike = [p for p in kernel.all_problems() if category_of(p) == category_of(problem)]
        declared = declared_arguments(kernel, min(alike, key=size_of))
        for value in declared.values():
            if value.kind == "constant":
                constant(binary.code, value.variable, value.nbytes)
        scratch = workspaces_of(kernel, configuration, problem, self._device, binary)
        arrays = with_scratch(declared.values(), scratch)
        scalars = {name: value.scalar for name, value in arrays.items() if value.kind == "scalar"}
        buffers = dict.fromkeys(arrays.keys() - scalars.keys())
        bind_arguments(plan, list(arrays), buffers, scalars, arrays, binary)


def _turns(kernel: Kernel, jobs: Sequence[Job]) -> Iterator[Sequence[Job]]:
    """Yield, without end, the jobs on which each configuration of a sample is verified.

    The first configuration is verified on all jobs. A later one is verified on the tuned layout and on
    one other layout in turn, since each compile-time layout needs another compile.
    """
    tuned = [job for job in jobs if not kernel.layout_of(job.problem)]
    others = [[*tuned, job] for job in jobs if kernel.layout_of(job.problem)]
    return chain([jobs], cycle(others or [tuned]))


def _by_kind(problems: Sequence[Problem]) -> list[Problem]:
    """Return the first problem of each combination of categories."""
    return [problems[places[0]] for places in by_category(problems).values()]
