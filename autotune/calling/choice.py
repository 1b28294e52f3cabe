"""Choose the configuration of a call, compile it and plan its launches."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, cast

import numpy as np

from autotune.calling.binding import ResolvedCall
from autotune.calling.libraries import DeviceLibrary, Library
from autotune.compiling.binaries import compiled_for
from autotune.compiling.job import compile_job
from autotune.data.arguments import Argument, declared_argument
from autotune.devices.base import Binary, BoundFill, BoundLaunch
from autotune.devices.device import Device
from autotune.errors import NoAnswerError, NothingValidError, UsageError
from autotune.kernel.attributes import exceeded_attribute
from autotune.kernel.expression import text_of
from autotune.kernel.launches import (
    LaunchSequence,
    bind_arguments,
    complete_launches,
    launch_sequence,
    requirement,
    workspaces_of,
)
from autotune.kernel.source import changed_since
from autotune.kernel.space import applicable, broken_constraints, is_member
from autotune.kernel.spec import Kernel
from autotune.tuned.answer import TunedConfig
from autotune.tuned.lookup import answer_with, lookup, table_of
from autotune.tuned.merged import DEFAULT, EXACT, FIRST_CALL
from autotune.tuned.reading import warn
from autotune.tuned.record import TunedProblem
from autotune.tuned.rival import TunedCall
from autotune.values import Configuration, Problem


@dataclass(frozen=True)
class Choice:
    """A configuration to launch, and the answer of lookup.

    Attributes
    ----------
    kernel : str
        The called kernel, or the kernel that it passes the call on to.
    problem : Problem
        The problem of the call.
    configuration : Configuration
        The configuration to launch.
    tuned : TunedConfig or None
        The answer of lookup; None if no record has an answer that can run.
    twin : Problem or None
        The small problem on which ``load(..., verify=True)`` verified the configuration.
    pinned_by : str
        The variable or argument that pins the configuration; empty if none does.
    rival : TunedCall or None
        The call of another library that answers in place of the configuration.
    """

    kernel: str
    problem: Problem
    configuration: Configuration
    tuned: TunedConfig | None
    twin: Problem | None = None
    pinned_by: str = ""
    rival: TunedCall | None = None

    @property
    def is_verified(self) -> bool:
        """Return whether the configuration was verified at this size, or on a twin of the problem."""
        return self.twin is not None or (self.tuned is not None and self.tuned.verified)

    @property
    def is_known(self) -> bool:
        """Return whether this problem itself was tuned, or a configuration is pinned."""
        is_tuned = self.tuned is not None and self.tuned.quality in (EXACT, FIRST_CALL)
        return is_tuned or bool(self.pinned_by)

    @property
    def why(self) -> str:
        """One line: the source of the configuration, and its expected speed."""
        if self.pinned_by:
            return f"pinned by {self.pinned_by}"
        if self.twin is not None and self.tuned is None:
            return f"verified on {self.twin}, where the answer of lookup is wrong"
        if self.tuned is None:
            return f"no recorded configuration can run; tune the kernel: autotune run {self.kernel}"
        other = f"; {self.tuned.other_device}" if self.tuned.other_device else ""
        if self.tuned.quality == DEFAULT:
            return (
                f"the kernel's default: no similar problem was tuned ({self.tuned.source}){other}"
            )
        speed = f", {self.tuned.expected}" if self.tuned.expected else ""
        if self.tuned.quality == FIRST_CALL and self.tuned.origin:
            speed = f", the fastest of {self.tuned.origin.evaluations} on a first call's arrays"
        stale = "".join(f"; {reason}" for reason in self.tuned.stale_reasons)
        sizes = f"; verified on {self.twin}" if self.twin else "; not verified at such a size"
        sizes = "" if self.tuned.verified else sizes
        call = f"{self.rival} answers, " if self.rival else ""
        return f"{call}{self.tuned.quality} of {self.tuned.source}{speed}{sizes}{stale}{other}"

    def __str__(self) -> str:
        return f"{self.kernel}({self.problem}): {self.configuration} - {self.why}"


def with_changes(choice: Choice, kernel: Kernel) -> Choice:
    """Add to a choice the changes of the kernel's files since it was tuned."""
    table = table_of(kernel.name, kernel.project)
    if choice.tuned is None or table is None:
        return choice
    made = choice.tuned.origin or table.newest.provenance
    changed = changed_since(kernel, made.source, made.arguments)
    reasons = tuple(dict.fromkeys((*choice.tuned.stale_reasons, *changed)))
    return replace(choice, tuned=replace(choice.tuned, stale_reasons=reasons))


def with_rival(choice: Choice, kernel: Kernel, device: Device, deterministic: bool) -> Choice:
    """Add to a choice the rival of its answer, if the kernel still lets it answer."""
    found = choice.tuned.rival if choice.tuned else None
    rival = kernel.rival(found.name, device.backend) if found else None
    if rival is None or (deterministic and not rival.deterministic):
        return choice
    return replace(choice, rival=found)


def choose(kernel: Kernel, problem: Problem, device: Device, deterministic: bool = False) -> Choice:
    """Return the recorded configuration if the declared space has it, else the default, else a seed.

    With ``deterministic`` only configurations that the kernel declares deterministic may answer. Warn if the
    records lack the device or the kernel.
    """
    choice, reason = recorded_choice(kernel, problem, device, deterministic)
    if choice is not None:
        return choice
    if reason:
        warn(f"{reason}; until then {kernel.name} runs its default configuration")
    candidates = [kernel.default(), *(kernel.completed(seed) for seed in kernel.seeds)]
    valid = [candidate for candidate in candidates if _runs(kernel, candidate, problem, device)]
    for configuration in valid:
        if _serves(kernel, configuration, problem, deterministic):
            return Choice(kernel.name, problem, configuration, None)
    if deterministic and any(kernel.allows(configuration, problem) for configuration in valid):
        raise UsageError(
            f"{kernel.name}: no configuration for ({problem}) on {device.name} is declared "
            f"deterministic; declare which configurations are (@{kernel.name}.deterministic), then "
            f"tune: autotune run {kernel.name}"
        )
    if valid:
        raise UsageError(f"{kernel.name}: no configuration accepts the problem {problem}")
    raise NothingValidError(
        f"{kernel.name}: neither the default nor a seed is valid on {device.name}; "
        f"tune the kernel there: autotune run {kernel.name}"
    )


def recorded_choice(
    kernel: Kernel, problem: Problem, device: Device, deterministic: bool
) -> tuple[Choice | None, str]:
    """Return the answer of the records if it can run.

    Without one, return the reason; it is empty if only the sizes or the layout of the call have no answer. The
    answer of a first call holds until its source or launch changes.
    """
    found, reason = _recorded(kernel, problem, device, deterministic)
    if found is not None and found.quality == FIRST_CALL:
        is_valid = partial(is_valid_first_call, kernel, problem, device, deterministic)
        given = device, deterministic, kernel.project, problem
        with suppress(NoAnswerError):
            found = answer_with(is_valid, kernel.name, *given)
    if found is None:
        return None, reason
    configuration = Configuration(dict(found))
    if not _runs(kernel, configuration, problem, device):
        return None, (
            f"{kernel.name}: no recorded configuration is valid on {device.name}; tune the kernel there: "
            f"autotune run {kernel.name}"
        )
    if not _serves(kernel, configuration, problem, deterministic):
        return None, ""
    return Choice(kernel.name, problem, configuration, found), ""


def pinned_choice(
    kernel: Kernel,
    problem: Problem,
    device: Device,
    deterministic: bool,
    configuration: Configuration,
    source: str,
) -> Choice:
    """Return the choice of a configuration that ``source`` names; raise `UsageError` if it cannot run.

    Parameters that do not apply get their first values, as in the space.
    """
    values, applies = kernel.parameters_of(configuration), applicable(kernel, configuration)
    first = {name: values[name][0] for name, is_used in applies.items() if not is_used}
    configuration = configuration.replace(**first)
    fault = _fault_of(kernel, configuration, problem, device, deterministic)
    if fault:
        raise UsageError(
            f"{source}: {kernel.name}({problem}) on {device.name}: {configuration} {fault}; pin another "
            f"configuration, or remove the pin (autotune show {kernel.name} lists the space)"
        )
    return Choice(kernel.name, problem, configuration, None, pinned_by=source)


def _fault_of(
    kernel: Kernel,
    configuration: Configuration,
    problem: Problem,
    device: Device,
    deterministic: bool,
) -> str:
    """Return why a configuration with declared values cannot run; empty if it can."""
    if broken := list(broken_constraints(kernel, configuration, device)):
        return "breaks " + "; ".join(f"{rule.name} ({rule.doc})" for rule in broken)
    if not kernel.allows(configuration, problem):
        needed = requirement(kernel, configuration, problem)
        condition = text_of(needed) if isinstance(needed, list) else "another kind of problem"
        return f"does not accept the problem: it needs {condition}"
    if deterministic and not kernel.is_deterministic(configuration, problem):
        return "is not declared deterministic"
    if not _runs(kernel, configuration, problem, device):
        return f"has more than {device.max_threads_per_block} threads in a block"
    return ""


def tuning_command(kernel: Kernel, problem: Problem) -> str:
    """Return the command that tunes a problem."""
    fields = ",".join(f"{name}={value}" for name, value in problem.items())
    return f"autotune run {kernel.name} --problem {fields}"


def _serves(
    kernel: Kernel, configuration: Configuration, problem: Problem, deterministic: bool
) -> bool:
    return kernel.allows(configuration, problem) and (
        not deterministic or kernel.is_deterministic(configuration, problem)
    )


def _runs(kernel: Kernel, configuration: Configuration, problem: Problem, device: Device) -> bool:
    """Return whether the device's space has a configuration; OpenCL devices also limit the block."""
    if not is_member(kernel, configuration, device):
        return False
    if device.is_cuda or not kernel.allows(configuration, problem):
        return True
    launches = launch_sequence(kernel, configuration, problem, device).launches
    return all(prod(launch.block) <= device.max_threads_per_block for launch in launches)


def is_valid_first_call(
    kernel: Kernel, problem: Problem, device: Device, deterministic: bool, entry: TunedProblem
) -> bool:
    """Return whether the answer of a first call can run, and has the same binary and launches as then."""
    configuration = Configuration(dict(entry.configuration))
    return (
        _runs(kernel, configuration, problem, device)
        and _serves(kernel, configuration, problem, deterministic)
        and identity(kernel, configuration, problem, device) == entry.origin.identity
    )


def identity(kernel: Kernel, configuration: Configuration, problem: Problem, device: Device) -> str:
    """Return the sha256 of a configuration's compile job and launches for a problem."""
    job = compile_job(kernel, configuration, problem, device)
    sequence = launch_sequence(kernel, configuration, problem, device)
    return hashlib.sha256(f"{job.key} {sequence}".encode()).hexdigest()


def _recorded(
    kernel: Kernel, problem: Problem, device: Device, deterministic: bool
) -> tuple[TunedConfig | None, str]:
    """Return the answer of lookup for a call, or the reason why it has none; see `recorded_choice`."""
    try:
        return _answer(kernel, problem, device, deterministic), ""
    except (UsageError, NoAnswerError) as error:
        table = table_of(kernel.name, kernel.project)
        plans = () if table is None or deterministic else table.plans()
        is_able = any(plan.fits(device.arch) or not device.is_cuda for plan in plans)
        return None, str(error) if isinstance(error, UsageError) or not is_able else ""


def expected_ms_of(
    kernel: Kernel, problem: Problem, device: Device, deterministic: bool
) -> float | None:
    """Return the time of a call that records expect, in ms; None if they have none."""
    with suppress(UsageError, NoAnswerError):
        return _answer(kernel, problem, device, deterministic).expected_ms
    return None


def _answer(kernel: Kernel, problem: Problem, device: Device, deterministic: bool) -> TunedConfig:
    return lookup(
        kernel.name,
        device=device,
        deterministic=deterministic,
        project=kernel.project,
        **problem,
    )


@dataclass(frozen=True)
class ChosenCall:
    """A call with its values by position, and the choice to launch."""

    resolved: ResolvedCall
    values: Sequence[Any]
    libraries: Sequence[Library | None]
    #: The CUDA device of the arrays; None if they are in host memory.
    index: int | None
    device: Device
    choice: Choice
    deterministic: bool

    @property
    def key(self) -> object:
        """Return the key of all calls that one trial tunes."""
        kernel, scalars = self.resolved.kernel, tuple(self.resolved.compiled_scalars.items())
        where = self.device.selector, kernel.project.id, kernel.name, kernel.file
        return (*where, self.resolved.problem, self.deterministic, scalars)

    @property
    def stream(self) -> int:
        """Return the caller's stream."""
        assert self.index is not None
        for library, value in zip(self.libraries, self.values, strict=True):
            if isinstance(library, DeviceLibrary) and library.device_index(value) is not None:
                return library.stream_getter()(self.index)
        return 0


@dataclass(frozen=True, eq=False)
class LaunchPlan:
    """The part of a call that all calls of a problem on a device share."""

    device: Device
    choice: Choice
    binary: Binary
    sequence: LaunchSequence
    arguments: Mapping[str, Argument]
    scratch: Mapping[str, Argument]
    #: Whether launches of one loaded module must not overlap.
    exclusive: bool

    @classmethod
    def of(
        cls,
        resolved: ResolvedCall,
        device: Device,
        choice: Choice,
        binary: Binary | None = None,
        writes: bool = True,
    ) -> LaunchPlan:
        """Plan a choice; compile it unless its ``binary`` is given.

        Without ``writes`` the cache of binaries is only read.
        """
        kernel, problem, configuration = resolved.kernel, resolved.problem, choice.configuration
        # Each launch sets the module's symbols, perhaps to other values.
        has_symbols = any(argument.kind == "constant" for argument in resolved.arguments.values())
        if binary is None:
            given = resolved.compiled_scalars
            binary = compiled_for(kernel, configuration, problem, device, given, writes)
        scratch = workspaces_of(kernel, configuration, problem, device, binary)
        names = [*(n for n, a in resolved.arguments.items() if a.kind != "constant"), *scratch]
        sequence = complete_launches(
            launch_sequence(kernel, configuration, problem, device), binary, names
        )
        for launch in sequence.launches:
            if excess := exceeded_attribute(launch, binary.entry(str(launch.entry)), device):
                raise UsageError(f"{kernel.name}({problem}): {configuration}: {excess}")
        return cls(
            device,
            choice,
            binary,
            sequence,
            resolved.arguments,
            {name: declared_argument(kernel, name, out) for name, out in scratch.items()},
            exclusive=has_symbols or kernel.is_exclusive(configuration),
        )

    @property
    def names(self) -> list[str]:
        """Parameters of a launch without ``args``: arguments but constants, then scratch."""
        used = [name for name, argument in self.arguments.items() if argument.kind != "constant"]
        return [*used, *self.scratch]

    def steps(
        self, buffers: Mapping[str, Any], given: Mapping[str, Any]
    ) -> Sequence[BoundLaunch | BoundFill]:
        """Return the steps on buffers of an executor, with symbols as entries and the scalars of a call."""
        arrays = {**self.arguments, **self.scratch}
        scalars = {
            name: self.scalar(name, given)
            for name, argument in self.arguments.items()
            if argument.kind == "scalar"
        }
        return [
            replace(step, entry=self.binary.symbol(step.entry))
            if isinstance(step, BoundLaunch)
            else step
            for step in bind_arguments(self.sequence, self.names, buffers, scalars, arrays)
        ]

    def scalar(self, name: str, given: Mapping[str, Any]) -> np.generic:
        """Return a scalar in the kernel's type: the given value, else the declared one."""
        declared = self.arguments[name].scalar
        if name not in given:
            return declared
        if isinstance(declared, np.void):
            structured = np.asarray(given[name])
            if structured.dtype != declared.dtype or structured.ndim:
                raise UsageError(
                    f"{self.choice.kernel}: {name} is {given[name]!r:.40}; it must be a structured scalar of "
                    f"{declared.dtype}"
                )
            return cast(np.generic, structured[()])
        kind = type(declared)
        try:
            with np.errstate(over="ignore"):
                value = kind(given[name])
            fits = not isinstance(value, np.integer) or value == given[name]
        except (TypeError, ValueError, OverflowError):
            fits = False
        if not fits:
            raise UsageError(
                f"{self.choice.kernel}: {name}={given[name]!r:.40} does not fit {declared.dtype}"
            )
        return value
