"""`autotune`: takes the arguments of `triton.autotune`; records and verifies results.

A call uses the recorded configuration. Without a record, a worker process tunes it on copies of its arrays.
The launch code is that of `autotune.load`. Triton launches calls with other arguments than arrays and numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from msgspec.structs import replace as changed
from triton.runtime.autotuner import Autotuner, Config

from autotune.calling.choice import Choice, LaunchPlan
from autotune.calling.first_call import MAX_CALLS, CallCache, put
from autotune.calling.gpu import GpuCall, device_index
from autotune.calling.libraries import Library, kind_of
from autotune.calling.loaded import LoadedPlan
from autotune.devices.choose import backend
from autotune.devices.device import Device
from autotune.devices.graph import everything_allowed
from autotune.errors import UsageError
from autotune.languages.interpreter import Pointer
from autotune.triton.calls import (
    ConfiguredLaunch,
    RecordedCall,
    Watched,
    resolved_call,
    with_ranges,
)
from autotune.triton.decorated_kernel import DecoratedKernel
from autotune.triton.function import NewCall, TritonFunction
from autotune.triton.options import Options, argument_names, listed_configurations
from autotune.triton.reader import Reader, reading
from autotune.triton.recorder import is_recording, kernel_of_recorded, record
from autotune.triton.tuning import chosen
from autotune.values import Configuration


def autotune(
    configs: Sequence[Config] | None = None,
    key: Sequence[str] = (),
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Callable[..., Any] | None = None,
    *,
    reference: Callable[..., Mapping[str, Any]] | None = None,
    tolerance: float | None = None,
    tune: str = "first_call",
    budget: str = "60s",
    name: str | None = None,
    **parameters: Any,
) -> Callable[[Any], Decorated]:
    """Tune a `triton.jit` function; verify the results and record them for later processes.

    Parameters
    ----------
    configs, key, prune_configs_by, reset_to_zero, restore_value, pre_hook
        The arguments of `triton.autotune`. Hooks may fill arrays (``zero_``, ``fill_``). Its other
        arguments, which control measuring, are ignored.
    reference : callable, optional
        Takes arguments by name, arrays as float64; returns a dict of the arrays that the kernel writes.
        Without a reference the configurations must agree.
    tolerance : float, optional
        Largest absolute error. Default: the default of all kernels.
    tune : {"first_call", "background", "off"}
        ``first_call``: a call waits until it is tuned. ``off``: the nearest recorded problem answers, else
        the first configuration. ``background``: the same until a search in the background has tuned the
        call. ``AUTOTUNE_TUNE`` overrides it for all functions.
    budget : str
        Budget of each problem: ``60s``, ``200evals``.
    name : str, optional
        Name of the records. Default: the function's name without leading, trailing and doubled
        underscores.
    **parameters : sequence
        Values of each parameter, in place of ``configs``; every combination is a configuration.

    Returns
    -------
    callable
        The decorator of a `triton.jit` function.

    Raises
    ------
    UsageError
        If an argument is invalid, or there are more than 20,000 configurations.
    """
    options = Options(reference, tolerance, tune, budget, name)
    listed = listed_configurations(configs, key, parameters)
    options.check()
    hooks = {"pre_hook": pre_hook, "prune_configs_by": prune_configs_by}

    def decorated(fn: Any) -> Decorated:
        names = argument_names(fn, key, listed)
        restored = reset_to_zero, restore_value
        return Decorated(options, fn, names, listed, list(key), *restored, **hooks)

    return decorated


@dataclass(eq=False)
class _Answer:
    """The answer for all calls with one key."""

    config: Config
    #: Prepares the call for a grid and arguments by name; None if Triton launches it.
    make: Callable[[tuple[int, ...], Mapping[str, Any]], Callable[..., Any]] | None = None
    #: Arguments of the grid function that the caller does not pass.
    meta: dict[str, Any] = field(default_factory=dict)
    #: Prepared calls by grid.
    by_grid: dict[tuple[int, ...], Callable[..., Any]] = field(default_factory=dict)
    #: False while a search in the background tunes the call, and while a graph captures it.
    is_settled: bool = True


class Decorated(Autotuner):  # type: ignore[misc]
    """A tuned `triton.jit` function; call it as ``function[grid](...)``. `autotune` returns it.

    Attributes
    ----------
    best_config : triton.Config
        The configuration of the last call.
    """

    def __init__(self, options: Options, *args: Any, **hooks: Any) -> None:
        super().__init__(*args, **hooks)
        self._function = TritonFunction(self.fn, self.base_fn, self.keys, self.configs, options)
        self.name = self._function.name
        #: Readers by the types and names of a call's values.
        self._readers: dict[object, Reader] = {}
        self._numbers = count()
        self._answers = CallCache()

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return partial(self._call, grid)

    def run(self, *args: Any, grid: Any, warmup: bool = False, **named: Any) -> Any:
        """Launch on a grid like ``function[grid](...)``; tune the call first if it is new."""
        if warmup:
            return self.warmup(*args, grid=grid, **named)
        return self._call(grid, *args, **named)

    def _call(self, grid: Any, /, *args: Any, **named: Any) -> None:
        values = (*args, *named.values()) if named else args
        kinds: tuple[Any, ...] = tuple(map(type, values))
        form = (kinds, *named) if named else kinds
        reader = self._readers.get(form) or self._reader(form, len(args), values, named)
        key, pointers = reader.read(values)
        answer = self._answers.settled.get(key)
        if answer is None:
            with self._answers.making:
                answer = self._answers.get(key)
                if answer is None:
                    answer = self._answer(reader, args, named, grid)
                    self._answers.keep(key, answer, answer.is_settled)
        self.best_config = config = answer.config
        if config.pre_hook is not None:
            config.pre_hook({**self._bound(args, named), **config.all_kwargs()})
        if answer.make is None:
            plain, others = map(_for_triton, args), {n: _for_triton(v) for n, v in named.items()}
            self.fn.run(*plain, grid=grid, warmup=False, **others, **config.all_kwargs())
            return
        if callable(grid):
            meta = answer.meta.copy()
            meta.update(zip(reader.names, values, strict=True))
            grid = grid(meta)
        size = grid if type(grid) is tuple else tuple(grid)
        call = answer.by_grid.get(size)
        if call is None:
            call = answer.make(size, self._bound(args, named))
            put(answer.by_grid, size, call, MAX_CALLS)
        call(values, pointers)

    @property
    def kernel(self) -> DecoratedKernel:
        """Return the kernel of all recorded calls, as ``autotune run FILE:FUNCTION`` tunes it."""
        return kernel_of_recorded(self._function)

    # ------------------------------------------------------------------ new calls

    def _reader(
        self, form: object, unnamed: int, values: Sequence[Any], named: Mapping[str, Any]
    ) -> Reader:
        names = [*self.arg_names[:unnamed], *named]
        if len(names) < len(values):
            raise TypeError(f"{self.name} takes {len(self.arg_names)} arguments, not {unnamed}")
        if conflicts := [name for name in names if name in self._function.tuned]:
            raise ValueError(
                f"Conflicting meta-parameters: {', '.join(conflicts)}. Make sure that you don't "
                "re-define auto-tuned symbols."
            )
        exact = {
            *self.keys,
            *self._function.constants,
            *(names if self._function.heuristics else ()),
        }
        is_exact = [name in exact for name in names]
        read = reading(next(self._numbers), values, is_exact)
        self._readers[form] = made = Reader(names, is_exact, read)
        return made

    def _bound(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        return {**dict(zip(self.arg_names, args, strict=False)), **named}

    def _kept(
        self, args: Sequence[Any], named: Mapping[str, Any], grid: Any
    ) -> dict[Configuration, Config]:
        """Return the configurations that Triton's pruning leaves, in its order."""
        if len(self.configs) == 1:
            return self._function.configurations
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        kept = self.prune_configs({"grid": grid, "warmup": False, **named})
        self.nargs = {}
        recorded = {config: c for c, config in self._function.configurations.items()}
        if any(config not in recorded for config in kept):
            raise UsageError(
                f"{self.name}: prune_configs_by returns a configuration that is not in the list"
            )
        return {recorded[config]: config for config in kept}

    def _answer(
        self, reader: Reader, args: Sequence[Any], named: Mapping[str, Any], grid: Any
    ) -> _Answer:
        function, bound = self._function, self._bound(args, named)
        kept = self._kept(args, named, grid)
        first = next(iter(kept.values()))
        try:
            call = NewCall(bound, grid, kept, *function.described(bound))
        except UsageError as error:
            if not function.is_interpreted:
                warnings.warn(f"{self.name}: Triton launches it, untuned: {error}", stacklevel=4)
            return _Answer(first)
        if is_recording():
            record(function, with_ranges(self._with_launches(call), bound, call.operands))
        if function.is_interpreted:
            return _Answer(first)
        values = list(bound.values())
        index = device_index(values, libraries_of(values))
        if index is None:
            raise UsageError(
                f"{self.name}: its arrays are in host memory; pass arrays on a GPU, or set "
                "TRITON_INTERPRET=1 before the import of Triton"
            )
        device = backend("cuda").devices()[index]
        kernel = function.kernel([call.recorded])
        choice, is_settled = chosen(function, kernel, call, device, self._with_launches)
        config = function.configurations[choice.configuration]
        launch = function.launch(call, choice.configuration, config)
        make = _maker(kernel, reader, call, choice, launch, device)
        meta = {**function.defaults, **launch.constants, **config.all_kwargs()}
        return _Answer(config, make, meta, is_settled=is_settled)

    def _with_launches(self, call: NewCall) -> RecordedCall:
        """Return a call with the launch of each configuration, including the fills of hooks."""
        found = []
        for c, config in call.kept.items():
            fills = [(name, 0.0) for name in self.reset_to_zero]
            bound = {**call.bound, **config.all_kwargs()}
            watched = {n: Watched(n, bound[n], fills) for n in call.operands}
            for hook in (self.pre_hook if self.user_defined_pre_hook else None, config.pre_hook):
                if hook is not None:
                    hook({**bound, **watched})
            found.append(changed(self._function.launch(call, c, config), fills=tuple(fills)))
        pruned = [dict(c) for c in self._function.configurations if c not in call.kept]
        return changed(call.recorded, launches=tuple(found), pruned=tuple(pruned))


def _maker(
    kernel: DecoratedKernel,
    reader: Reader,
    call: NewCall,
    choice: Choice,
    launch: ConfiguredLaunch,
    device: Device,
) -> Callable[[tuple[int, ...], Mapping[str, Any]], Callable[..., Any]]:
    """Return a function that prepares the call for a grid; it keeps no array of the caller."""
    recorded, operands, is_exact = call.recorded, call.operands, reader.is_exact

    def make(size: tuple[int, ...], bound: Mapping[str, Any]) -> Callable[..., Any]:
        if 0 in size:
            return lambda values, pointers: None
        kernel.add(changed(recorded, launches=(changed(launch, grid=size),)))
        passed_on = {
            name: place
            for place, (name, value) in enumerate(bound.items())
            if type(value) in (int, float) and not is_exact[place]
        }
        resolved = resolved_call(kernel, choice.problem, bound, operands, passed_on)
        with everything_allowed():  # a graph may capture the call
            loaded = LoadedPlan(LaunchPlan.of(resolved, device, choice), device.index)
        values = list(bound.values())
        return GpuCall(resolved, loaded, values, libraries_of(values)).shortest

    return make


def libraries_of(values: Sequence[Any]) -> list[Library | None]:
    """Return the library of each array among values; None for others."""
    kinds = map(kind_of, values)
    return [kind if isinstance(kind, Library) else None for kind in kinds]


def _for_triton(value: Any) -> Any:
    """Return an argument for Triton; its interpreter takes a pointer for a NumPy array."""
    return Pointer(value.ctypes.data, value.dtype.name) if isinstance(value, np.ndarray) else value
