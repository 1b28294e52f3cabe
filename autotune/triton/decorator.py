"""`autotune`: takes what `triton.autotune` takes; remembers, verifies, and launches through the driver.

A call is answered from the record, else it is tuned in a worker process on copies of its arrays. It is
launched as `autotune.load` launches, or by Triton where an argument is neither a plain array nor a number.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace as changed
from triton.runtime.autotuner import Autotuner, Config

from autotune import cache
from autotune.calling.call_cache import MAX_CALLS, CallCache, put
from autotune.calling.choice import Choice, LaunchPlan
from autotune.calling.first_call import OFF, VARIABLE, in_turn, tuning
from autotune.calling.gpu import GpuCall, device_index
from autotune.calling.libraries import DeviceLibrary, Library, Torch, cupy, kind_of
from autotune.calling.loaded import LoadedPlan, is_capturing, on_device
from autotune.devices.choose import backend
from autotune.devices.device import Device
from autotune.devices.graph import everything_allowed
from autotune.errors import AutotuneError, UsageError, unknown
from autotune.kernel.names import refuse
from autotune.kernel.operand import Operand
from autotune.kernel.snapshot import as_it_is
from autotune.kernel.source import source_fingerprint
from autotune.languages.base import ALIGNMENT
from autotune.languages.interpreter import Pointer
from autotune.measure.measurement import Status
from autotune.project import project_of
from autotune.run.bench import BegunSite
from autotune.run.request import EFFORTS, Request
from autotune.run.run import execute
from autotune.search.session import Budget
from autotune.store import default_url, open_for_runs
from autotune.triton.calls import (
    TYPES,
    ConfiguredLaunch,
    NotRecordedError,
    PassedArray,
    RecordedCall,
    Watched,
    calls_file,
    copy_of,
    field_of,
    memory_of,
    passed,
    read_calls,
    resolved_call,
    with_data,
    with_ranges,
    write_calls,
)
from autotune.triton.declared import RECORD_AGAIN, DecoratedKernel
from autotune.tuned.answer import TunedConfig
from autotune.tuned.lookup import clear_cache, lookup
from autotune.tuned.reading import user_folder
from autotune.tuned.table import EXACT
from autotune.tuned.writing import update
from autotune.values import Configuration, Problem

#: Set to 1, it keeps calls for ``autotune run FILE:FUNCTION``.
RECORD = "AUTOTUNE_RECORD_SIZES"
#: Options of `triton.Config`, and what they are where nothing else is said.
_OPTIONS = {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None}
_MOST_CONFIGURATIONS = 20_000
_LISTED = "a parameter takes a tuple of values"
#: Longest time to verify and time one configuration while a caller waits: what takes longer hangs.
_LONGEST_S = 5.0
#: Arguments of `triton.autotune` that say how it measures, or put right what its measuring wrote.
_IGNORED = {"warmup", "rep", "use_cuda_graph", "do_bench", "cache_results", "post_hook"}


@dataclass(frozen=True)
class _Options:
    reference: Callable[..., Mapping[str, Any]] | None
    tolerance: float | None
    tune: str
    budget: str
    name: str | None


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
    """Tune a `triton.jit` function, with results that are verified and outlive the process.

    Parameters
    ----------
    configs, key, prune_configs_by, reset_to_zero, restore_value, pre_hook
        As `triton.autotune` takes them. Hooks may fill arrays (``zero_``, ``fill_``). Its arguments that
        say how to measure are ignored.
    reference : callable, optional
        Takes arguments by name, arrays as float64; returns a dict of the arrays that the kernel writes.
        Without it configurations have to agree.
    tolerance : float, optional
        Largest absolute error. Default: as of every kernel.
    tune : {"first_call", "background", "off"}
        With ``off`` the nearest recorded problem answers, else the first configuration; with ``background``
        until the call is tuned. ``AUTOTUNE_TUNE`` says so for all functions.
    budget : str
        Of each problem: ``60s``, ``200evals``.
    name : str, optional
        Of the record. Default: the function's name without leading, trailing and doubled underscores.
    **parameters : sequence
        In place of ``configs``: values of each; every combination is a configuration.

    Returns
    -------
    callable
        Decorator of a `triton.jit` function.

    Raises
    ------
    UsageError
        If arguments do not fit, or there are more than 20,000 configurations.
    """
    given = {each: values for each, values in parameters.items() if each not in _IGNORED}
    is_list = configs is None or _is_list(configs, Config)
    refuse(
        (
            (configs is None) == (not given),
            "autotune: give configs=[...], or parameters such as BLOCK=(64, 128)",
        ),
        (not is_list, "autotune: configs must be a list of triton.Config"),
        (not _is_list(key, str), f"autotune: key={key!r}: give a list of names, as key=['n']"),
        *(
            (
                not _is_list(each) or not len(each),
                f"autotune: {n}={each!r}: {_LISTED}: {n}=(64, 128)",
            )
            for n, each in given.items()
        ),
    )
    tuning(tune)
    tuning(os.environ.get(VARIABLE) or tune, name=VARIABLE)
    Budget.parse(str(budget))
    listed = list(_every(given)) if configs is None else list(configs)
    options = _Options(reference, tolerance, tune, budget, name)
    hooks = {"pre_hook": pre_hook, "prune_configs_by": prune_configs_by}

    def decorated(fn: Any) -> Decorated:
        inner, names = fn, getattr(fn, "arg_names", None)
        while hasattr(inner, "fn"):
            inner = inner.fn
        where = f"autotune: {getattr(inner, '__name__', inner)}"
        if names is None:
            raise UsageError(
                f"{where} is no Triton function; write @triton.jit below @autotune(...)"
            )
        known, used = [*names, *_OPTIONS], {name for each in listed for name in each.kwargs}
        refuse(
            *((each not in names, f"{where}: {unknown('key', each, names)}") for each in key),
            *(
                (each not in _compile_options(), f"{where}: {unknown('parameter', each, known)}")
                for each in sorted(used.difference(names))
            ),
        )
        return Decorated(
            options, fn, names, listed, list(key), reset_to_zero, restore_value, **hooks
        )

    return decorated


def _is_list(given: Any, kind: type = object) -> bool:
    """Return whether an argument is a list, a tuple or the like, of values of one kind."""
    is_several = hasattr(given, "__len__") and hasattr(given, "__getitem__")
    return is_several and not isinstance(given, str) and all(isinstance(v, kind) for v in given)


def _compile_options() -> set[str]:
    from triton.backends.nvidia.compiler import CUDAOptions

    return {*CUDAOptions.__dataclass_fields__}


def _every(given: Mapping[str, Sequence[Any]]) -> Iterator[Config]:
    total = np.prod([len(values) for values in given.values()], dtype=float)
    if total > _MOST_CONFIGURATIONS:
        raise UsageError(f"autotune: {total:.0f} configurations, at most {_MOST_CONFIGURATIONS}")
    for values in product(*given.values()):
        chosen = dict(zip(given, values, strict=True))
        options = {each: chosen.pop(each) for each in _OPTIONS if each in chosen}
        yield Config(chosen, **options)


@dataclass(eq=False)
class _Answer:
    """The answer for calls that are alike."""

    config: Config
    #: Makes the call for a grid and arguments by name; None where Triton launches.
    make: Callable[[tuple[int, ...], Mapping[str, Any]], Callable[..., Any]] | None = None
    #: Arguments of the grid that no caller passes.
    meta: dict[str, Any] = field(default_factory=dict)
    by_grid: dict[tuple[int, ...], Callable[..., Any]] = field(default_factory=dict)
    #: Whether it stays: not while it is tuned in the background, or part of a graph.
    is_settled: bool = True


@dataclass(frozen=True)
class _Reader:
    """A way to read values of some types and names."""

    names: list[str]
    #: Of which values the number itself decides what is tuned or compiled.
    is_exact: list[bool]
    #: Returns what is the same of calls that are treated alike, and addresses and numbers to launch with.
    read: Callable[[Sequence[Any]], tuple[object, list[Any]]]


@dataclass(frozen=True)
class _NewCall:
    """A call that was not made before."""

    #: Arguments by name.
    bound: Mapping[str, Any]
    grid: Any
    #: The configurations that are left, the first of which is the default.
    kept: Mapping[Configuration, Config]
    recorded: RecordedCall
    operands: Mapping[str, Operand]

    @property
    def problem(self) -> Problem:
        return Problem(self.recorded.problem)


class Decorated(Autotuner):  # type: ignore[misc]
    """A tuned `triton.jit` function, called as ``function[grid](...)``; made by `autotune`.

    Attributes
    ----------
    best_config : triton.Config
        Of the last call.
    """

    def __init__(self, options: _Options, *args: Any, **hooks: Any) -> None:
        super().__init__(*args, **hooks)
        self._options = options
        self.name = options.name or "_".join(filter(None, self.base_fn.__name__.split("_")))
        self._parameters = inspect.signature(self.base_fn).parameters
        self._defaults = {
            n: p.default for n, p in self._parameters.items() if p.default is not p.empty
        }
        self._jit, self._heuristics = self.fn, dict[str, Callable[[Mapping[str, Any]], Any]]()
        while hasattr(self._jit.fn, "fn"):
            self._heuristics |= self._jit.values
            self._jit = self._jit.fn
        self._tuned = {each for config in self.configs for each in config.all_kwargs()}
        constexpr = {n for n, p in self._parameters.items() if "constexpr" in str(p.annotation)}
        #: Constexpr arguments of the caller.
        self._constants = constexpr - self._tuned - set(self._heuristics)
        self._configurations = self._as_recorded()
        file = Path(self.base_fn.__code__.co_filename)
        self._file, self._project = file.name, project_of(file.parent)
        #: By the types and names of a call's values.
        self._readers: dict[object, _Reader] = {}
        self._numbers = count()
        self._answers = CallCache()

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return partial(self._call, grid)

    def run(self, *args: Any, grid: Any, warmup: bool = False, **named: Any) -> Any:
        """Launch on a grid, after a search where the call is new: what ``function[grid](...)`` does."""
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
        name, count = self.name, len(self._configurations)
        own = [each for each in self._recorded() if each.file in ("", self._file)]
        calls = list(filter(self._fits, own))
        file = calls_file(self._project, name)
        stale = (
            f"{name}: {len(own) - len(calls)} of {len(own)} recorded calls do not fit the function's "
            f"arguments, key and parameters any more; {RECORD_AGAIN}, which replaces them in {file}"
        )
        if not calls:
            none = (
                f"{name}: no call is recorded, which says what its arguments are; run a program that "
                f"calls it with {RECORD}=1"
            )
            raise NotRecordedError(stale if own else none, name, self._project)
        if len(calls) < len(own):
            warnings.warn(f"{stale}; they are left out", stacklevel=1)
        known = [_listed(call) for call in calls]
        if new := sum(any(c not in each for each in known) for c in self._configurations):
            text = f"{new} of {count} configurations are left out where calls were recorded without them"
            warnings.warn(f"{name}: {text}; {RECORD_AGAIN}", stacklevel=1)
        return self._kernel(calls)

    def _recorded(self) -> list[RecordedCall]:
        return read_calls(self._project, self.name)

    def _fits(self, call: RecordedCall) -> bool:
        """Return whether a recorded call passes what the function takes now."""
        taken = [n for n in self._parameters if n not in self._tuned | self._heuristics.keys()]
        arrays = [n for n, value in call.arguments.items() if isinstance(value, PassedArray)]
        fields = {n.lower() for n in (*self.keys, *self._constants) if n not in arrays}
        return (
            call.file == self._file
            and self._constants <= call.constants.keys()
            and [n for n in taken if n not in call.constants] == list(call.arguments)
            and set(taken) == call.arguments.keys() | call.constants.keys()
            and fields | {TYPES} == call.problem.keys()
            and not self._configurations.keys().isdisjoint(_listed(call))
        )

    def _record(self, call: RecordedCall) -> None:
        """Add a call to those recorded, in place of those of this file that do not fit any more."""
        own, known = ("", self._file), self._recorded()
        kept = [each for each in known if each.file not in own or self._fits(each)]
        write_calls(self._project, self.name, [*kept, call])

    def _kernel(self, calls: Sequence[RecordedCall]) -> DecoratedKernel:
        configurations = list(map(dict, self._configurations))
        options = self._options
        return DecoratedKernel(
            self.base_fn, self.name, configurations, calls, options.reference, options.tolerance
        )

    # ------------------------------------------------------------------ what a call is

    def _as_recorded(self) -> dict[Configuration, Config]:
        """Return the configurations as records hold them; options that all leave at their default are left out."""
        every = [{**each.kwargs, **_OPTIONS, **each.all_kwargs()} for each in self.configs]
        names = [
            name
            for name in dict.fromkeys(name for each in every for name in each)
            if name not in ("num_ctas", "maxnreg")
            or any(each[name] != _OPTIONS[name] for each in every)
        ]
        for each in every:
            if lacking := [name for name in names if each.get(name) is None]:
                text = (
                    f"autotune: {self.name}: a configuration lacks {lacking[0]}, which others have"
                )
                raise UsageError(f"{text}; give it in all")
        made = [Configuration({name: each[name] for name in names}) for each in every]
        return dict(zip(made, self.configs, strict=True))

    def _reader(
        self, form: object, unnamed: int, values: Sequence[Any], named: Mapping[str, Any]
    ) -> _Reader:
        names = [*self.arg_names[:unnamed], *named]
        if len(names) < len(values):
            raise TypeError(f"{self.name} takes {len(self.arg_names)} arguments, not {unnamed}")
        if conflicts := [name for name in names if name in self._tuned]:
            raise ValueError(
                f"Conflicting meta-parameters: {', '.join(conflicts)}. Make sure that you don't "
                "re-define auto-tuned symbols."
            )
        exact = {*self.keys, *self._constants, *(names if self._heuristics else ())}
        is_exact = [name in exact for name in names]
        read = _reading(next(self._numbers), values, is_exact)
        self._readers[form] = made = _Reader(names, is_exact, read)
        return made

    def _bound(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        return {**dict(zip(self.arg_names, args, strict=False)), **named}

    def _kept(
        self, args: Sequence[Any], named: Mapping[str, Any], grid: Any
    ) -> dict[Configuration, Config]:
        """Return what Triton's own pruning leaves, in its order."""
        if len(self.configs) == 1:
            return self._configurations
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        kept = self.prune_configs({"grid": grid, "warmup": False, **named})
        self.nargs = {}
        recorded = {config: c for c, config in self._configurations.items()}
        if any(config not in recorded for config in kept):
            raise UsageError(f"{self.name}: prune_configs_by returns a configuration of its own")
        return {recorded[config]: config for config in kept}

    def _described(self, bound: Mapping[str, Any]) -> tuple[RecordedCall, dict[str, Operand]]:
        """Return a call without its launches, and its arrays; `UsageError` where Triton has to launch it."""
        if other := [name for name in bound if name not in self._parameters]:
            raise UsageError(f"{other[0]} is an option of Triton")
        arguments, operands, constants = dict[str, Any](), dict[str, Operand](), dict[str, Any]()
        types = list[str]()
        for name in self._parameters:
            value = bound.get(name, self._defaults.get(name))
            if name in self._constants or (name in bound and value is None):
                constants[name] = value
                types += [] if name in self._constants else ["none"]
            elif name in bound:
                arguments[name], type_name, operand = passed(name, value, [*bound].index(name))
                operands |= {} if operand is None else {name: operand}
                types.append(type_name)
            elif name not in self._tuned and name not in self._heuristics:
                raise UsageError(f"{name} is left out, which is passed to the device")
        keys = {name: bound.get(name) for name in self.keys if name not in operands}
        fields = {
            **keys,
            **{name: constants[name] for name in constants if name in self._constants},
        }
        problem = {name.lower(): field_of(name, value) for name, value in fields.items()}
        problem[TYPES] = "-".join(types)
        return RecordedCall(problem, arguments, constants, file=self._file), operands

    # ------------------------------------------------------------------ calls not made before

    def _answer(
        self, reader: _Reader, args: Sequence[Any], named: Mapping[str, Any], grid: Any
    ) -> _Answer:
        bound, kept = self._bound(args, named), self._kept(args, named, grid)
        first, is_interpreted = next(iter(kept.values())), not hasattr(self._jit, "params")
        try:
            call = _NewCall(bound, grid, kept, *self._described(bound))
        except UsageError as error:
            if not is_interpreted:
                warnings.warn(f"{self.name}: launched by Triton, untuned: {error}", stacklevel=4)
            return _Answer(first)
        kernel = self._kernel([call.recorded])
        if os.environ.get(RECORD):
            self._record(with_ranges(self._with_launches(call), bound, call.operands))
        if is_interpreted:
            return _Answer(first)
        values = list(bound.values())
        index = device_index(values, _libraries(values))
        if index is None:
            raise UsageError(
                f"{self.name}: its arrays are in the host's memory; Triton takes a GPU's, or interprets "
                "where TRITON_INTERPRET=1 is set before it is imported"
            )
        device = backend("cuda").devices()[index]
        choice, is_settled = self._choice(kernel, call, device)
        config = self._configurations[choice.configuration]
        launch = self._launch(call, choice.configuration, config)
        # They hold no array, which the caller wants back.
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
            with everything_allowed():  # the caller may capture a graph
                loaded = LoadedPlan(LaunchPlan.of(resolved, device, choice=choice), index)
            values = list(bound.values())
            return GpuCall(resolved, loaded, values, _libraries(values)).shortest

        meta = {**self._defaults, **launch.constants, **config.all_kwargs()}
        return _Answer(config, make, meta, is_settled=is_settled)

    def _launch(self, call: _NewCall, c: Configuration, config: Config) -> ConfiguredLaunch:
        """Return how a configuration launches a call, without what hooks do before."""
        meta = {**self._defaults, **call.bound, **config.all_kwargs()}
        constants = dict[str, Any]()
        for name, heuristic in self._heuristics.items():
            constants[name] = meta[name] = heuristic(meta)
        grid = call.grid(meta) if callable(call.grid) else call.grid
        return ConfiguredLaunch(dict(c), tuple(map(int, grid)), constants)

    def _with_launches(self, call: _NewCall) -> RecordedCall:
        """Return a call with the launch of each configuration, and what hooks fill before."""
        found = []
        for c, config in call.kept.items():
            fills = [(name, 0.0) for name in self.reset_to_zero]
            bound = {**call.bound, **config.all_kwargs()}
            watched = {n: Watched(n, bound[n], fills) for n in call.operands}
            for hook in (self.pre_hook if self.user_defined_pre_hook else None, config.pre_hook):
                if hook is not None:
                    hook({**bound, **watched})
            found.append(changed(self._launch(call, c, config), fills=tuple(fills)))
        pruned = [dict(c) for c in self._configurations if c not in call.kept]
        return changed(call.recorded, launches=tuple(found), pruned=tuple(pruned))

    def _choice(
        self, kernel: DecoratedKernel, call: _NewCall, device: Device
    ) -> tuple[Choice, bool]:
        """Return what the record answers, after a search where that is due, and whether it stays so."""
        found, is_settled = _found(kernel, call.problem, device), True
        mode = os.environ.get(VARIABLE) or self._options.tune
        if mode != OFF and len(call.kept) > 1 and not _is_known(kernel, found):
            stream = _stream_of(call)
            is_settled = not is_capturing(stream)
            if is_settled and tuning(mode, name=VARIABLE).in_background:
                key = id(self), call.problem, device.selector
                begin = partial(self._begin, call, device, stream)
                is_settled = in_turn(key, f"{kernel.name} ({call.problem})", begin, True)
            elif is_settled:
                self._tune(call, device)
            found = _found(kernel, call.problem, device)
        if found is not None and Configuration(dict(found)) in call.kept:
            choice = Choice(kernel.name, call.problem, Configuration(dict(found)), found)
        else:
            choice = Choice(kernel.name, call.problem, next(iter(call.kept)), None)
        return choice, is_settled

    def _tune(self, call: _NewCall, device: Device) -> None:
        """Search while the caller waits; warn of what is wrong."""
        try:
            wrong = self._search(self._with_launches(call), call.bound, call.operands, device)
        except AutotuneError as error:
            wrong = [f"not tuned: {error}"]
        for text in wrong:
            warnings.warn(f"{self.name}: {text}", stacklevel=6)

    def _begin(self, call: _NewCall, device: Device, stream: int) -> Callable[[], str]:
        """Copy a call's arrays on the device, in order with its stream; return what searches on the copies."""
        recorded, copies, operands = (
            self._with_launches(call),
            dict(call.bound),
            dict(call.operands),
        )
        for name, operand in call.operands.items():
            copies[name] = copy_of(call.bound[name], operand)
            operands[name] = Operand.new(memory_of(operand).shape, operand.dtype)
        with on_device(device.index):
            copied = cupy().cuda.Event(disable_timing=True)
            cupy().cuda.runtime.eventRecord(copied.ptr, stream)

        def work() -> str:
            copied.synchronize()
            return "; ".join(self._search(recorded, copies, operands, device))

        return work

    def _search(
        self,
        call: RecordedCall,
        bound: Mapping[str, Any],
        operands: Mapping[str, Operand],
        device: Device,
    ) -> list[str]:
        """Search on copies of a call's arrays, in other processes, and keep the result; return what is wrong."""
        request = Request(
            kernel=self._kernel([call]),
            device=device,
            problems=(Problem(call.problem),),
            effort=EFFORTS["quick"],
            budget=Budget.parse(self._options.budget),
            timeout_s=_LONGEST_S,
            command="autotune.triton",
            has_callers_data=True,
        )
        # Processes come up while arrays are copied.
        with cache.scratch() as scratch, closing(BegunSite(request)) as site:
            kernel = self._kernel([with_data(call, bound, operands, Path(scratch))])
            with open_for_runs(default_url()) as store:
                result = execute(replace(request, kernel=as_it_is(kernel)), store, site=site)
        if result.record is not None:
            update(Path(user_folder(kernel.project)), result.record)
            clear_cache()
        return [
            f"{row.configuration} is never chosen ({row.status}): {row.message}"
            for found in result.problems
            for row in found.measured
            if row.status in (Status.WRONG_RESULT, Status.CRASHED, Status.TIMED_OUT)
        ]


def _reading(number: int, values: Sequence[Any], is_exact: Sequence[bool]) -> Any:
    """Return the function of a `_Reader`, as one expression: it is called millions of times."""
    seen, passed_on, aligned, known = [f"{number}"], list[str](), list[str](), dict[str, Any]()
    begin = [f"({''.join(f'v{place}, ' for place in range(len(values)))}) = values"]
    for place, (value, decides) in enumerate(zip(values, is_exact, strict=True)):
        name, kind = f"v{place}", type(value)
        try:
            adapter = kind_of(value)
        except UsageError:  # Triton launches
            passed_on.append("None")
            continue
        if type(adapter) is Torch:  # as Triton specialises it: whatever its shape
            begin.append(f"p{place} = {name}.data_ptr()")
            seen += [f"{name}.dtype", f"{name}.{'get_device()' if adapter.several else 'is_cuda'}"]
            aligned.append(f"p{place}")
            passed_on.append(f"p{place}")
        elif isinstance(adapter, Library):
            known[f"seen{place}"] = adapter.seen
            begin += [f"p{place} = []", f"k{place} = seen{place}({name}, p{place})"]
            seen.append(f"k{place}")
            passed_on.append(f"*p{place}")
        else:
            if kind is int and not decides:
                seen += [f"2 if {name} == 1 else {name} % 16 == 0"]
                seen += [f"-2147483648 <= {name} < 2147483648"]
            elif kind is not float or decides:
                seen.append(name)
            passed_on.append(name)
    seen += [f"({' | '.join(aligned)}) % {ALIGNMENT} == 0"] if aligned else []
    result = f"({', '.join(seen)},), [{', '.join(passed_on)}]"
    lines = "".join(f"    {line}\n" for line in [*begin, f"return {result}"])
    exec(f"def read(values):\n{lines}", known)
    return known["read"]


def _listed(call: RecordedCall) -> set[Configuration]:
    """Return the configurations that a call was recorded with."""
    return {*map(Configuration, (*(each.configuration for each in call.launches), *call.pruned))}


def _libraries(values: Sequence[Any]) -> list[Library | None]:
    kinds = map(kind_of, values)
    return [kind if isinstance(kind, Library) else None for kind in kinds]


def _for_triton(value: Any) -> Any:
    """Return an argument as Triton takes it: its interpreter takes no arrays of NumPy."""
    return Pointer(value.ctypes.data, value.dtype.name) if isinstance(value, np.ndarray) else value


def _found(kernel: DecoratedKernel, problem: Problem, device: Device) -> TunedConfig | None:
    """Return what the records answer; None where there is none."""
    try:
        return lookup(kernel.name, device=device, project=kernel.project, **problem)
    except UsageError:
        return None


def _is_known(kernel: DecoratedKernel, found: TunedConfig | None) -> bool:
    """Return whether an answer was tuned for the problem itself, with the source as it is."""
    if found is None or found.quality != EXACT or found.origin is None:
        return False
    return found.origin.source == source_fingerprint(kernel)


def _stream_of(call: _NewCall) -> int:
    """Return the caller's stream."""
    array = next(call.bound[name] for name in call.operands)
    library = kind_of(array)
    assert isinstance(library, DeviceLibrary)
    return library.stream_asker()(library.device_index(array) or 0)
