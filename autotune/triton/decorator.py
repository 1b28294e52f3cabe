"""`autotune`: takes the arguments of `triton.autotune`; records and verifies results.

A call uses the recorded configuration. Without a record, a worker process tunes it on copies of its arrays.
The launch code is that of `autotune.load`. A `Decorated` is a tuner of Triton, too: Triton tunes and launches
every call that fails here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count
from typing import Any

import numpy as np
from msgspec.structs import replace as changed
from triton.runtime.autotuner import Autotuner, Config
from triton.runtime.jit import MockTensor

from autotune.calling.choice import Choice, LaunchPlan
from autotune.calling.first_call import MAX_CALLS, SETTLED_S, TUNING_S, CallCache, put
from autotune.calling.gpu import GpuCall, device_index
from autotune.calling.libraries import Library, kind_of
from autotune.calling.loaded import LoadedPlan
from autotune.calling.production import ProductionRules, keep_cupy_in_memory
from autotune.devices.choose import backend
from autotune.devices.device import Device
from autotune.devices.graph import everything_allowed
from autotune.errors import NoAnswerError, UsageError
from autotune.languages.interpreter import Pointer
from autotune.triton.calls import (
    ConfiguredLaunch,
    RecordedCall,
    Watched,
    resolved_call,
    with_ranges,
)
from autotune.triton.decorated_kernel import DecoratedKernel
from autotune.triton.function import NewCall, TritonFunction, is_interpreted
from autotune.triton.options import Options, check_is_jit, check_names, listed_configurations
from autotune.triton.reader import Reader, reading
from autotune.triton.recorder import is_recording, kernel_of_recorded, record
from autotune.triton.tuning import chosen
from autotune.values import Configuration

_log = logging.getLogger("autotune")


def autotune(
    configs: Sequence[Config] | None = None,
    key: Sequence[str] = (),
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Callable[..., Any] | None = None,
    post_hook: Callable[..., Any] | None = None,
    warmup: int | None = None,
    rep: int | None = None,
    use_cuda_graph: bool = False,
    do_bench: Callable[..., Any] | None = None,
    cache_results: bool = False,
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
        The arguments of `triton.autotune`. Hooks may fill arrays (``zero_``, ``fill_``).
    post_hook, warmup, rep, use_cuda_graph, do_bench, cache_results
        For calls that Triton tunes.
    reference : callable, optional
        Takes arguments by name, arrays as float64; returns a dict of the arrays that the kernel writes.
        Without a reference the configurations must agree.
    tolerance : float, optional
        Largest absolute error. Default: the default of all kernels.
    tune : {"first_call", "background", "off"}
        ``first_call``: a call waits until it is tuned. ``off``: the nearest recorded problem answers, else
        the first configuration. ``background``: the same until a search in the background has tuned the
        call. ``AUTOTUNE_TUNE`` overrides it for all functions. ``AUTOTUNE_FROZEN`` allows recorded answers
        only, as in `load`, and ``AUTOTUNE_PIN`` pins a configuration.
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
        If an argument that `triton.autotune` does not have is invalid, or there are more than 20,000
        configurations.
    """
    options = Options(reference, tolerance, tune, budget, name)
    listed = listed_configurations(configs, key, parameters)
    options.check()
    measuring = warmup, rep, use_cuda_graph, do_bench, cache_results

    def decorated(fn: Any) -> Decorated:
        check_is_jit(fn)
        if parameters:
            check_names(fn, key, parameters)
        arrays, hooks = (reset_to_zero, restore_value), (pre_hook, post_hook)
        return Decorated(
            options,
            fn,
            fn.arg_names,
            listed,
            list(key),
            *arrays,
            *hooks,
            prune_configs_by,
            *measuring,
        )

    return decorated


class LaunchedKernel:
    """Triton's compiled kernel, which calls return; Triton compiles it when an attribute is first used."""

    def __init__(self, fn: Any, call: NewCall, config: Config) -> None:
        arguments = {
            name: MockTensor(value.dtype) if name in call.operands else value
            for name, value in call.bound.items()
        }
        self._compile = partial(fn.warmup, grid=(1,), **arguments, **config.all_kwargs())

    @cached_property
    def _kernel(self) -> Any:
        return self._compile()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)


@dataclass(eq=False)
class _Answer:
    """The answer for all calls with one key."""

    config: Config
    #: Prepares the call for a grid and arguments by name.
    make: Callable[[tuple[int, ...], Mapping[str, Any]], Callable[..., Any]]
    #: Arguments of the grid function that the caller does not pass.
    meta: dict[str, Any]
    #: What calls return.
    launched: LaunchedKernel
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

    fn: Any
    _do_bench: Any

    def __init__(self, options: Options, *args: Any) -> None:
        super().__init__(*args)
        self._readers: dict[object, Reader] = {}  # by the types and names of a call's values
        self._numbers = count()
        self._answers = CallCache()
        #: Keys of calls, and types and names of their values, that are left to Triton.
        self._left: dict[object, None] = {}
        self._reasons = set[str]()
        self._described: TritonFunction | UsageError
        try:
            self._described = TritonFunction(
                self.fn, self.base_fn, self.keys, self.configs, options
            )
        except UsageError as error:
            self._described = error
        self._is_interpreted = is_interpreted(self.fn)
        if self._is_interpreted:
            self.fn = _Interpreted(self.fn)
            # The first configuration runs, as nothing is faster.
            self._do_bench = self._do_bench or (lambda call, quantiles: [1.0] * len(quantiles))

    @property
    def _function(self) -> TritonFunction:
        if isinstance(self._described, UsageError):
            raise UsageError(self._described)
        return self._described

    @property
    def name(self) -> str:
        """Return the name of the function's records."""
        return self._function.name

    @property
    def kernel(self) -> DecoratedKernel:
        """Return the kernel of all recorded calls, as ``autotune run FILE:FUNCTION`` tunes it."""
        return kernel_of_recorded(self._function)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return partial(self._call, grid)

    def run(self, *args: Any, grid: Any, warmup: bool = False, **named: Any) -> Any:
        """Launch on a grid like ``function[grid](...)``; tune the call first if it is new."""
        if warmup:
            return self.warmup(*args, grid=grid, **named)
        return self._call(grid, *args, **named)

    def _call(self, grid: Any, /, *args: Any, **named: Any) -> Any:
        values = (*args, *named.values()) if named else args
        kinds: tuple[Any, ...] = tuple(map(type, values))
        key: object = (kinds, *named) if named else kinds
        try:
            reader = self._readers.get(key) or self._reader(key, len(args), values, named)
            if reader is not None:
                read, pointers = reader.read(values)
                answer = self._answers.settled.get(read)
                key = read
                answer = answer or self._new(key, reader, args, named, grid)
                if answer is not None:
                    self.best_config = config = answer.config
                    if config.pre_hook is not None:
                        config.pre_hook({**self._bound(args, named), **config.all_kwargs()})
                    size = grid
                    if callable(grid):
                        meta = answer.meta.copy()
                        meta.update(zip(reader.names, values, strict=True))
                        size = grid(meta)
                    if type(size) is not tuple:
                        size = tuple(size)
                    call = answer.by_grid.get(size)
                    if call is None:
                        call = answer.make(size, self._bound(args, named))
                        put(answer.by_grid, size, call, MAX_CALLS)
                    call(values, pointers)
                    return answer.launched
        except Exception as error:
            self._leave(key, error)
        return super().run(*args, grid=grid, warmup=False, **named)

    # ------------------------------------------------------------------ new calls

    def _leave(self, key: object, error: Exception) -> None:
        """Leave the calls of a key, or of types and names of values, to Triton; log each reason once.

        Triton would tune, so raise the error if the function's calls are frozen or pinned.
        """
        if not self._is_interpreted and self._has_rules():
            if isinstance(error, NoAnswerError) or not isinstance(error, UsageError):
                raise error
            name = self.base_fn.__name__
            raise UsageError(
                f"{name}: frozen and pinned calls are not left to triton.autotune: {error}"
            ) from error
        put(self._left, key, None, MAX_CALLS)
        self._readers.pop(key, None)
        self._answers.settled.pop(key, None)
        reason = " ".join(f"{error}".split()) or type(error).__name__
        if reason not in self._reasons and len(self._reasons) < MAX_CALLS:
            self._reasons.add(reason)
            name = self.base_fn.__name__
            _log.warning("autotune: %s: left to triton.autotune: %.400s", name, reason)

    def _has_rules(self) -> bool:
        rules, described = ProductionRules.of(), self._described
        is_pinned = isinstance(described, TritonFunction) and described.name in rules.pins
        return is_pinned or bool(rules.frozen)

    def _new(
        self, key: object, reader: Reader, args: Sequence[Any], named: Mapping[str, Any], grid: Any
    ) -> _Answer | None:
        """Return the answer for a key that is not settled; None if its calls are left to Triton."""
        if key in self._left:
            return None
        with self._answers.making:
            answer: _Answer | None = self._answers.get(key)
            if answer is None:
                answer = self._answer(reader, args, named, grid)
                if answer is None:
                    put(self._left, key, None, MAX_CALLS)
                else:
                    self._answers.keep(key, answer, SETTLED_S if answer.is_settled else TUNING_S)
        return answer

    def _reader(
        self, form: object, unnamed: int, values: Sequence[Any], named: Mapping[str, Any]
    ) -> Reader | None:
        """Return the reader of calls; ``form`` are the types and names of their values. None: left to Triton."""
        if form in self._left:
            return None
        names = [*self.arg_names[:unnamed], *named]
        tuned = [name for name in names if name in self._function.tuned]
        if tuned or len(names) < len(values):
            raise UsageError(f"a call gives {', '.join(tuned) or 'too many arguments'}")
        inexact = self._function.parameters.keys() - self._function.constants - {*self.keys}
        if self._function.heuristics:
            inexact = set()
        is_exact = [name not in inexact for name in names]
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
    ) -> _Answer | None:
        """Return the answer for a new call; None if Triton interprets it."""
        if self._is_interpreted and not is_recording():
            return None
        function, bound = self._function, self._bound(args, named)
        kept = self._kept(args, named, grid)
        call = NewCall(bound, grid, kept, *function.described(bound))
        if is_recording():
            record(function, with_ranges(self._with_launches(call), bound, call.operands))
        if self._is_interpreted:
            return None
        values = list(bound.values())
        index = device_index(values, libraries_of(values))
        if index is None:
            raise UsageError("a call has no array on a GPU")
        device = backend("cuda").devices()[index]
        kernel = function.kernel([call.recorded])
        choice, is_settled = chosen(function, kernel, call, device, self._with_launches)
        config = function.configurations[choice.configuration]
        launch = function.launch(call, choice.configuration, config)
        make = _maker(kernel, reader, call, choice, launch, device)
        meta = {**function.defaults, **launch.constants, **config.all_kwargs()}
        launched = LaunchedKernel(self.fn, call, config)
        return _Answer(config, make, meta, launched, is_settled=is_settled)

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
            is_frozen = bool(ProductionRules.of().frozen)
            plan = LaunchPlan.of(resolved, device, choice, writes=not is_frozen)
            if is_frozen:
                keep_cupy_in_memory()
            loaded = LoadedPlan(plan, device.index)
        values = list(bound.values())
        return GpuCall(resolved, loaded, values, libraries_of(values)).shortest

    return make


def libraries_of(values: Sequence[Any]) -> list[Library | None]:
    """Return the library of each array among values; None for others."""
    kinds = map(kind_of, values)
    return [kind if isinstance(kind, Library) else None for kind in kinds]


class _Interpreted:
    """An interpreted function that takes NumPy arrays, for which Triton's interpreter takes pointers."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def run(self, *args: Any, **named: Any) -> Any:
        return self.fn.run(*map(_pointer, args), **{n: _pointer(v) for n, v in named.items()})


def _pointer(value: Any) -> Any:
    return Pointer(value.ctypes.data, value.dtype.name) if isinstance(value, np.ndarray) else value
