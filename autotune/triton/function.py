"""A decorated function: its arguments and configurations, and the description of its calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from triton.runtime.autotuner import Config

from autotune.errors import UsageError
from autotune.kernel.operand import Operand
from autotune.languages.triton import TritonLanguage
from autotune.project import Project, project_of
from autotune.triton.calls import (
    TYPES,
    ConfiguredLaunch,
    PassedArray,
    RecordedCall,
    field_of,
    passed,
)
from autotune.triton.decorated_kernel import DecoratedKernel
from autotune.triton.options import Options, as_recorded
from autotune.values import Configuration, Problem


@dataclass(frozen=True)
class NewCall:
    """A call without a prepared launch."""

    #: Arguments by name.
    bound: Mapping[str, Any]
    grid: Any
    #: The configurations that pruning left; the first is the default.
    kept: Mapping[Configuration, Config]
    recorded: RecordedCall
    operands: Mapping[str, Operand]

    @property
    def problem(self) -> Problem:
        """Return the call as a problem."""
        return Problem(self.recorded.problem)


class TritonFunction:
    """A decorated function.

    Attributes
    ----------
    base : function
        The Python function.
    name : str
        Name of its records.
    keys : list of str
        Arguments whose values are problem fields.
    configurations : dict
        `triton.Config` by configuration of a record.
    tuned : set of str
        Arguments that a configuration gives.
    constants : set of str
        Constexpr arguments that the caller gives.
    heuristics : dict
        Functions that compute further constexpr arguments, by name.
    """

    def __init__(
        self,
        outer: Any,
        base: Callable[..., Any],
        keys: Sequence[str],
        configs: Sequence[Config],
        options: Options,
    ) -> None:
        self.base, self.keys, self.options = base, keys, options
        self.name = options.name or "_".join(filter(None, base.__name__.split("_")))
        self.parameters = inspect.signature(base).parameters
        self.defaults = {
            n: p.default for n, p in self.parameters.items() if p.default is not p.empty
        }
        self.heuristics = dict[str, Callable[[Mapping[str, Any]], Any]]()
        while hasattr(outer.fn, "fn"):
            self.heuristics |= outer.values
            outer = outer.fn
        self.configurations = as_recorded(self.name, configs)
        self.tuned = {name for config in configs for name in config.all_kwargs()}
        constexpr = {n for n, p in self.parameters.items() if "constexpr" in str(p.annotation)}
        self.constants = constexpr - self.tuned - set(self.heuristics)

    @property
    def file(self) -> str:
        """Return the name of the function's file."""
        return Path(self.base.__code__.co_filename).name

    @property
    def tuning_command(self) -> str:
        """Return the command that tunes the recorded calls."""
        return f"autotune run {self.base.__code__.co_filename}:{self.base.__name__}"

    @cached_property
    def project(self) -> Project:
        """Return the project of the function's file."""
        return project_of(Path(self.base.__code__.co_filename).parent)

    def kernel(self, calls: Sequence[RecordedCall]) -> DecoratedKernel:
        """Return the kernel with calls as its problems."""
        configurations = list(map(dict, self.configurations))
        options = self.options
        return DecoratedKernel(
            self.base, self.name, configurations, calls, options.reference, options.tolerance
        )

    def described(self, bound: Mapping[str, Any]) -> tuple[RecordedCall, dict[str, Operand]]:
        """Return a call without its launches, and its arrays by name.

        Raise `UsageError` if only Triton can launch it.
        """
        options = {name: value for name, value in bound.items() if name not in self.parameters}
        if other := options.keys() - TritonLanguage.options:
            raise UsageError(f"{min(other)} is neither an argument nor an option that is known")
        arguments, operands, constants = dict[str, Any](), dict[str, Operand](), dict[str, Any]()
        types = list[str]()
        for name in self.parameters:
            value = bound.get(name, self.defaults.get(name))
            if name in self.constants or (name in bound and value is None):
                constants[name] = value
                types += [] if name in self.constants else ["none"]
            elif name in bound:
                arguments[name], type_name, operand = passed(name, value, [*bound].index(name))
                operands |= {} if operand is None else {name: operand}
                types.append(type_name)
            elif name not in self.tuned and name not in self.heuristics:
                raise UsageError(f"{name} is missing, which the device function takes")
        keys = {name: bound.get(name) for name in self.keys if name not in operands}
        fields = keys | {name: constants[name] for name in constants if name in self.constants}
        problem = {name.lower(): field_of(name, value) for name, value in fields.items()}
        types += [f"{name}={field_of(name, options[name])}" for name in sorted(options)]
        problem[TYPES] = "-".join(types)
        return RecordedCall(problem, arguments, constants | options, file=self.file), operands

    def launch(self, call: NewCall, c: Configuration, config: Config) -> ConfiguredLaunch:
        """Return the launch of a call with a configuration, without the fills of hooks."""
        meta = {**self.defaults, **call.bound, **config.all_kwargs()}
        constants = dict[str, Any]()
        for name, heuristic in self.heuristics.items():
            constants[name] = meta[name] = heuristic(meta)
        grid = call.grid(meta) if callable(call.grid) else call.grid
        return ConfiguredLaunch(dict(c), tuple(map(int, grid)), constants)

    def fits(self, call: RecordedCall) -> bool:
        """Return whether a recorded call fits the function's current arguments and configurations."""
        taken = [n for n in self.parameters if n not in self.tuned | self.heuristics.keys()]
        arrays = [n for n, value in call.arguments.items() if isinstance(value, PassedArray)]
        fields = {n.lower() for n in (*self.keys, *self.constants) if n not in arrays}
        return (
            call.file == self.file
            and self.constants <= call.constants.keys()
            and [n for n in taken if n not in call.constants] == list(call.arguments)
            and set(taken)
            == (call.arguments.keys() | call.constants.keys()) - TritonLanguage.options
            and fields | {TYPES} == call.problem.keys()
            and not self.configurations.keys().isdisjoint(listed_in(call))
        )


def listed_in(call: RecordedCall) -> set[Configuration]:
    """Return the configurations of a recorded call, launched and pruned."""
    launched = (launch.configuration for launch in call.launches)
    return {*map(Configuration, (*launched, *call.pruned))}


def is_interpreted(function: Any) -> bool:
    """Return whether Triton interprets a `triton.jit` function."""
    while hasattr(function.fn, "fn"):
        function = function.fn
    return not hasattr(function, "params")
