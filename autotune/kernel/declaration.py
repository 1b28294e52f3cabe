"""Holds what a person declares of a kernel: parameters, problems, rules and functions."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import Any, Self

from autotune.devices.device import BACKENDS
from autotune.errors import SpecError
from autotune.kernel import modules
from autotune.kernel.expression import UntraceableError
from autotune.kernel.includes import SearchPath, SourceText
from autotune.kernel.names import check_known, check_macros, fault, fields_of, refuse
from autotune.kernel.rules import (
    DEVICE,
    HOOKS,
    Call,
    Code,
    Function,
    Functions,
    Rule,
    Source,
    declared_at,
    is_text,
)
from autotune.languages import registry
from autotune.values import SOURCE, Configuration, Problem, Value

#: Quantities of a measurement that a metric may take.
QUANTITIES = ("time_ms", "energy_mj", "power_w", "registers", "spill_bytes", "shared_bytes")
#: Names of objectives, which no metric may have.
OBJECTIVES = ("time", "energy", "edp")


@dataclass(frozen=True)
class Baseline:
    """A vendor library call to compare with."""

    #: Of the library or its routine, as reports show it.
    name: str
    #: Takes the device arrays and scalars by argument name and returns a function that does one call on
    #: the current stream; or None where the library has nothing for the problem.
    prepare: Callable[..., Callable[[], None] | None]
    backend: str = "cuda"


class Declaration(Functions):
    """The sources, problems and functions of one kernel, checked as they are given.

    Of a kernel with one source the parameters and rules are declared on the kernel itself.
    """

    def __init__(
        self,
        source: Code | None = None,
        *,
        sources: Mapping[str, Source] | None = None,
        language: str | None = None,
        name: str | None = None,
        problems: Sequence[Problem] | Mapping[str, Sequence[Problem]] = (),
        quick_problems: Sequence[Problem] | Mapping[str, Sequence[Problem]] | None = None,
        edge_problems: Sequence[Problem] = (),
        seeds: Sequence[Mapping[str, Value]] = (),
        default: Mapping[str, Value] | None = None,
        variants: Mapping[str, Mapping[str, Value]] | None = None,
        static: Sequence[str] = (),
        layout: Mapping[str, int] | None = None,
        backends: Sequence[str] | None = None,
        deterministic: bool = False,
        device_macros: Mapping[str, str] | None = None,
        **parameters: Iterable[Value],
    ) -> None:
        frame = sys._getframe(1)
        file, place = declared_at(frame)
        self.module = str(frame.f_globals.get("__name__"))
        of_source: dict[str, Any] = {
            "seeds": seeds,
            "default": default,
            "variants": variants,
            "device_macros": device_macros,
        }
        misplaced = [*(name for name, given in of_source.items() if given), *parameters]
        refuse(
            ((source is None) == (not sources), "Kernel: give either one source or sources={...}"),
            (sources and misplaced, f"Kernel: {', '.join(misplaced)}: give them to its sources"),
        )
        #: Language of the sources; None for the dialects of C that backends compile.
        if language:
            check_known("Kernel", "language", (language,), registry.LANGUAGES)
        self.language = registry.language(language) if language else None
        self.language_name = language or ""
        #: What each source declares; the name of an only source is empty.
        self.sources = dict(sources or {"": Source(source or "", **of_source | parameters)})
        #: Files of sources, with their functions in a language, and the texts of those without file.
        self.files = {known: self._file_of(each, file) for known, each in self.sources.items()}
        self.written: dict[str, str] = {}
        self.name = self._named(name)
        super().__init__(self.name, file)
        if not sources:
            self._first_source.label, self._first_source.file = self.name, file
        self._take_texts()
        #: Ends of the calls whose arguments list what a search tries.
        self.places: tuple[Call, ...] = tuple(
            filter(None, (place, *(each.place for each in (sources or {}).values())))
        )
        self.parameters = self._all_parameters()
        possible = self.language.backends if self.language else BACKENDS
        self.backends = tuple(possible if backends is None else backends)
        check_known("backends", "backend", self.backends, possible)
        self._take_problems(problems, quick_problems, edge_problems, static, layout)
        self._take_known()
        self.baselines: list[Baseline] = []
        self.metrics: dict[str, Callable[..., object]] = {}
        if deterministic:
            self.deterministic(_always)
        #: Sources as they stay for a run, and what the functions are known by; see `autotune.kernel.source`.
        self.texts: dict[tuple[Path, SearchPath], SourceText] = {}
        self.fingerprint = ""
        #: Of a kernel in no space file, as it was at one moment; see `autotune.kernel.snapshot`.
        self.state = b""

    def _take_problems(
        self,
        problems: Sequence[Problem] | Mapping[str, Sequence[Problem]],
        quick_problems: Sequence[Problem] | Mapping[str, Sequence[Problem]] | None,
        edge_problems: Sequence[Problem],
        static: Sequence[str],
        layout: Mapping[str, int] | None,
    ) -> None:
        #: Further problem fields, and their values where a problem leaves them out.
        self.layout: dict[str, int] = dict(layout or {})
        #: Problems by backend, and the layout as hooks see it; see `normal`.
        self.problems = self._per_backend(problems)
        quick = problems if quick_problems is None else quick_problems
        self.quick_problems = self._per_backend(quick)
        self.edge_problems = tuple(map(self.normal, edge_problems))
        tuned = [*self.problems.values(), *self.quick_problems.values()]
        self.fields: tuple[str, ...] = fields_of(
            [problem for group in tuned for problem in group],
            self.edge_problems,
            self.layout,
            self.parameters,
        )
        self.static = tuple(static)
        check_known("static", "problem field", self.static, (*self.fields, *self.layout))

    def _take_known(self) -> None:
        """Take the seeds and variants of all sources."""
        #: Configurations that a search tries first, without parameters at their first value.
        self.seeds: tuple[dict[str, Value], ...] = ()
        #: Named configurations that `autotune explain` compares with the winner.
        self.variants: dict[str, dict[str, Value]] = {}
        for known, source in self.sources.items():
            macros = {**source.parameters, **dict.fromkeys(source.device_macros, ())}
            check_macros(macros, self.static)
            named = {SOURCE: known} if self.has_several_sources else {}
            self.seeds += tuple({**named, **seed} for seed in source.seeds)
            for variant, values in source.variants.items():
                refuse((variant in self.variants, f"variant {variant}: two sources have one"))
                self.variants[variant] = {**named, **values}

    # ------------------------------------------------------------------ sources

    @property
    def has_several_sources(self) -> bool:
        """True if configurations name their source."""
        return "" not in self.sources

    def source_of(self, c: Mapping[str, Any]) -> Source:
        """Return the source of a configuration; the first where it names none."""
        return self.sources.get(c.get(SOURCE, ""), self._first_source)

    @property
    def _first_source(self) -> Source:
        return next(iter(self.sources.values()))

    def parameters_of(self, c: Mapping[str, Any]) -> dict[str, tuple[Value, ...]]:
        """Return the parameters that a configuration has, with their values; see `parameters`."""
        own = self.source_of(c).parameters
        return {SOURCE: tuple(self.sources), **own} if self.has_several_sources else own

    def is_declared(self, c: Mapping[str, Any]) -> bool:
        """Return whether a configuration has the parameters of its source, and no others."""
        is_known = not self.has_several_sources or c.get(SOURCE) in self.sources
        return is_known and set(c) == set(self.parameters_of(c))

    def completed(self, partial: Mapping[str, Value]) -> Configuration:
        """Return a configuration with missing parameters at their first value."""
        first = {name: values[0] for name, values in self.parameters_of(partial).items()}
        return Configuration({**first, **partial})

    def default(self, source: Value = "") -> Configuration:
        """Return the default of a source, by default of the first: the answer when nothing is known."""
        named = {SOURCE: source} if source else {}
        return self.completed({**named, **self.source_of(named).default_values})

    @property
    def constraint_rules(self) -> list[Rule]:
        """The constraints of all sources, in order."""
        return [rule for source in self.sources.values() for rule in source.constraint_rules]

    @property
    def applies_rules(self) -> list[Rule]:
        """The applicability rules of all sources, in order."""
        return [rule for source in self.sources.values() for rule in source.applies_rules]

    def _all_parameters(self) -> dict[str, tuple[Value, ...]]:
        """Return the parameters of all sources, each with the values that some source declares."""
        if not self.has_several_sources:
            return self._first_source.parameters
        found: dict[str, tuple[Value, ...]] = {SOURCE: tuple(self.sources)}
        for name in self.sources:
            refuse((wrong := fault("source", name), wrong))
        for source in self.sources.values():
            for name, values in source.parameters.items():
                met = found.setdefault(name, values)
                kinds = {type(value) for value in (*met, *values)}
                wrong = f"parameter {name}: two sources have values of different kinds"
                refuse((len(kinds) > 1, wrong))
                found[name] = tuple(dict.fromkeys((*met, *values)))
        return found

    # ------------------------------------------------------------------ decorators

    def constraint(self, function: Function) -> Function:
        """Attach a condition over the parameters it names (and ``device``) that must hold."""
        return self._only_source("constraint").constraint(function)

    def applies(self, *governed: str) -> Callable[[Function], Function]:
        """Attach a condition under which the governed parameters matter, and otherwise keep their first value."""
        return self._only_source("applies").applies(*governed)

    def _only_source(self, decorator: str) -> Source:
        if self.has_several_sources:
            raise self.error(f"@{self.name}.{decorator}: declare it on one of its sources")
        return self._first_source

    def arguments(self, function: Function) -> Function:
        """Attach ``(p, rng) -> dict``: the kernel's arguments by name, in the kernel's order."""
        return self._hook("arguments", function)

    def reference(self, function: Function) -> Function:
        """Attach the expected outputs: called with arguments by name, arrays as float64."""
        self.hooks["reference"] = function
        return function

    def tolerance(self, function: Function) -> Function:
        """Attach ``(p) -> float``: the largest absolute error allowed on random data."""
        return self._hook("tolerance", function)

    def work(self, function: Function) -> Function:
        """Attach ``(p) -> Work``."""
        return self._hook("work", function)

    def call(self, function: Function) -> Function:
        """Attach the signature of the tuned kernel for `autotune.load`, with an `Operand` for each array."""
        self.hooks["call"] = function
        return function

    def baseline(self, name: str, backend: str = "cuda") -> Callable[[Function], Function]:
        """Attach a vendor library call; see `Baseline`."""

        def attach(function: Function) -> Function:
            others = [b for b in self.baselines if (b.name, b.backend) != (name, backend)]
            self.baselines = [*others, Baseline(name, function, backend)]
            return function

        return attach

    def metric(self, function: Function) -> Function:
        """Attach a number that follows from a measurement: ``@k.metric``."""
        name, known = function.__name__, ("c", "p", DEVICE, *QUANTITIES)
        refuse((name in OBJECTIVES, f"metric {name!r} exists already; name it otherwise"))
        check_known(f"metric {name!r}", "argument", inspect.signature(function).parameters, known)
        self.metrics[name] = function
        return function

    # ------------------------------------------------------------------ calling functions

    @cached_property
    def folder(self) -> Path | None:
        """The folder of the space file, whose modules the functions import; None for a script's."""
        return self.file.parent if self.file and self.module.startswith(modules.SPACE) else None

    def has_hook(self, name: str, c: Mapping[str, Any]) -> bool:
        """Return whether a function of this name serves a configuration."""
        return name in self._serving(name, c).hooks

    def takes_device(self, name: str, c: Mapping[str, Any]) -> bool:
        """Return whether the function of this name that serves a configuration takes the device."""
        return name in self._serving(name, c).device_hooks

    def _serving(self, name: str, c: Mapping[str, Any]) -> Functions:
        source = self.source_of(c)
        return source if name in source.hooks else self

    def hook(self, name: str) -> Callable[..., Any]:
        """Return the function attached to the kernel under a name."""
        return self._hook_of(self, name)

    def _hook_of(self, owner: Functions, name: str) -> Callable[..., Any]:
        if name not in owner.hooks:
            raise self.error(f"no {name} function; attach one with @{self.name}.{name}")
        return owner.hooks[name]

    def call_hook(self, name: str, *args: Any, device: Any = None, fills: bool = True) -> Any:
        """Call a hook, with all layout fields of problems, and with the device if it asks for one.

        If it takes a configuration, that is the first argument.
        """
        owner = self._serving(name, args[0]) if "c" in HOOKS.get(name, ()) else self
        function = self._hook_of(owner, name)
        given = (self.filled(a) if fills and isinstance(a, Problem) else a for a in args)
        extra = {DEVICE: device} if name in owner.device_hooks else {}
        return self.guarded(name, function, *given, **extra)

    def guarded(self, what: str, function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        """Call a user's function; turn whatever it raises into a `SpecError` with its line."""
        try:
            with modules.running(self.folder):
                return function(*args, **named)
        except (SpecError, UntraceableError, MemoryError, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit, and what no code should raise
            own = getattr(getattr(function, "__code__", None), "co_filename", "")
            where = line_of(error, str(self.file)) or line_of(error, own)
            raise self.error(f"{what}: {type(error).__name__}: {error}{where}") from error

    # ------------------------------------------------------------------ forms of a problem

    def filled(self, p: Problem) -> Problem:
        """Return a problem with all layout fields, as hooks see it."""
        return Problem({**p, **{name: p.get(name, plain) for name, plain in self.layout.items()}})

    def normal(self, p: Problem) -> Problem:
        """Return the form of a problem that keys and tables have: without layout fields at their default."""
        return Problem({n: v for n, v in p.items() if n not in self.layout or v != self.layout[n]})

    def of_problem(self, p: Problem) -> Self:
        """Return the kernel as it is for one problem: itself, unless its functions depend on the problem."""
        return self

    # ------------------------------------------------------------------ checks

    def _file_of(self, declared: Source, space: Path | None) -> str:
        """Return the code of a source as it is written; a function as its file and name."""
        code = declared.code
        if not self.language:
            wrong = f"Kernel: source {code!r} is not a text; give language='triton'"
            refuse((not isinstance(code, str), wrong))
            return str(code)
        refuse((declared.device_macros, f"device_macros: {self.language_name} has no macros"))
        while hasattr(code, "fn"):  # of decorators
            code = code.fn
        if isinstance(code, FunctionType):
            file = Path(code.__code__.co_filename)
            is_in_folder = space is not None and file.parent == space.parent
            code = f"{file.name if is_in_folder else file}:{code.__name__}"
        name = str(code)
        wrong = f"Kernel: source {name!r}: expected 'FILE:FUNCTION', or a function of a file"
        refuse((not name.rpartition(":")[0] or name.startswith("<"), wrong))
        return name

    def _named(self, name: str | None) -> str:
        refuse((name is None and self.has_several_sources, "Kernel: sources need name='...'"))
        first = next(iter(self.files.values()))
        if self.language:
            first = first.rpartition(":")[2].partition(",")[0]
        if name is None and is_text(first):
            raise SpecError("Kernel: a source that is given as a text needs name='...'")
        chosen = name or Path(first).stem
        refuse((wrong := fault("kernel name", chosen), wrong))
        return chosen

    def _take_texts(self) -> None:
        """Give each source that is a text the name of a file, for messages and includes."""
        for source, code in self.files.items():
            if is_text(code) and not self.language:
                file = "_".join(filter(None, (self.name, source))) + ".cu"
                self.files[source], self.written[file] = file, code

    def _per_backend(
        self, problems: Sequence[Problem] | Mapping[str, Sequence[Problem]]
    ) -> dict[str, tuple[Problem, ...]]:
        if not isinstance(problems, Mapping):
            return dict.fromkeys(self.backends, tuple(map(self.normal, problems)))
        check_known("problems", "backend", problems, BACKENDS)
        return {name: tuple(map(self.normal, problems.get(name, ()))) for name in self.backends}


def _always(c: object, p: object) -> bool:
    return True


def line_of(error: BaseException, file: str) -> str:
    """Return the last line of a file that an exception came through, as `` (file.py:12)``."""
    steps = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in steps if frame.f_code.co_filename == file]
    return f" ({Path(file).name}:{lines[-1]})" if lines else ""
