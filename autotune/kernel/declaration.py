"""The declaration of a kernel: its parameters, problems, rules and functions."""

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
    Code,
    Function,
    Functions,
    Rule,
    Source,
    file_of,
    is_text,
)
from autotune.languages import registry
from autotune.values import SOURCE, Configuration, Problem, Value

#: Quantities of a measurement that a metric may take.
QUANTITIES = ("time_ms", "energy_mj", "power_w", "registers", "spill_bytes", "shared_bytes")
#: Names of objectives, which no metric may have.
OBJECTIVES = ("time", "energy", "edp")
#: Maximum number of characters of a call's ``pins`` in a record.
_MAX_PINS = 200


@dataclass(frozen=True)
class Baseline:
    """A call of another library to compare with; a rival, if it may also answer calls."""

    #: Name of the library or its routine in reports.
    name: str
    #: Takes the arrays and scalars by argument name: arrays of CuPy, or of NumPy on a CPU. Returns a function
    #: that does one call on the current stream, or None if the library does not support the problem. The
    #: function may have an attribute ``pins``: a text of what decides its results, as the library's version.
    prepare: Callable[..., Callable[[], object] | None]
    backend: str = "cuda"
    #: Whether it is verified like a configuration, and answers calls where it is faster.
    answers: bool = False
    #: Whether it gives the same bits in every run.
    deterministic: bool = False


def pins_of(call: object) -> str:
    """Return what decides the results of a prepared call of a `Baseline`; empty if unknown."""
    return str(getattr(call, "pins", ""))[:_MAX_PINS]


class Declaration(Functions):
    """The sources, problems and functions of one kernel, with checks.

    A kernel with one source declares parameters and rules directly, without a `Source`.
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
        file = file_of(frame)
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
        if language:
            check_known("Kernel", "language", (language,), registry.LANGUAGES)
        #: Language of the sources; None for the dialects of C that backends compile.
        self.language = registry.language(language) if language else None
        self.language_name = language or ""
        #: Sources by name; the name of an only source is empty.
        self.sources = dict(sources or {"": Source(source or "", **of_source | parameters)})
        #: File of each source; in a language, with the functions of the source.
        self.files = {
            name: self._file_of(declared, file) for name, declared in self.sources.items()
        }
        #: Texts of the sources that are declared as texts, by an invented file name.
        self.written: dict[str, str] = {}
        self.name = self._named(name)
        super().__init__(self.name, file)
        if not sources:
            self._first_source.label, self._first_source.file = self.name, file
        self._take_texts()
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
        #: Source texts that are frozen for a run; see `autotune.kernel.source`.
        self.texts: dict[tuple[Path, SearchPath], SourceText] = {}
        #: Fingerprint of the functions; see `autotune.kernel.source`.
        self.fingerprint = ""
        #: `content_fingerprint` of the space file and its modules, at the time of ``fingerprint``.
        self.space_files: dict[Path, str] = {}
        #: Serialised form of a script's kernel; see `autotune.kernel.snapshot`.
        self.state = b""

    def _take_problems(
        self,
        problems: Sequence[Problem] | Mapping[str, Sequence[Problem]],
        quick_problems: Sequence[Problem] | Mapping[str, Sequence[Problem]] | None,
        edge_problems: Sequence[Problem],
        static: Sequence[str],
        layout: Mapping[str, int] | None,
    ) -> None:
        #: Optional problem fields with their default values.
        self.layout: dict[str, int] = dict(layout or {})
        #: Problems by backend, without layout fields at their default; see `normal`.
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
        """Collect the seeds and variants of all sources."""
        #: Configurations that a search tries first. Missing parameters have their first value.
        self.seeds: tuple[dict[str, Value], ...] = ()
        #: Named configurations that `autotune explain` compares with the winner.
        self.variants: dict[str, dict[str, Value]] = {}
        for known, source in self.sources.items():
            macros = {**source.parameters, **dict.fromkeys(source.device_macros, ())}
            check_macros(macros, self.static)
            named = {SOURCE: known} if self.has_several_sources else {}
            self.seeds += tuple({**named, **seed} for seed in source.seeds)
            for variant, values in source.variants.items():
                wrong = f"variant {variant}: two sources declare it; rename one"
                refuse((variant in self.variants, wrong))
                self.variants[variant] = {**named, **values}

    # ------------------------------------------------------------------ sources

    @property
    def has_several_sources(self) -> bool:
        """True if configurations name their source."""
        return "" not in self.sources

    def source_of(self, c: Mapping[str, Any]) -> Source:
        """Return the source of a configuration; the first source if it does not name one."""
        return self.sources.get(c.get(SOURCE, ""), self._first_source)

    @property
    def _first_source(self) -> Source:
        return next(iter(self.sources.values()))

    def parameters_of(self, c: Mapping[str, Any]) -> dict[str, tuple[Value, ...]]:
        """Return the parameters of a configuration's source, with their declared values."""
        own = self.source_of(c).parameters
        return {SOURCE: tuple(self.sources), **own} if self.has_several_sources else own

    def is_declared(self, c: Mapping[str, Any]) -> bool:
        """Return whether a configuration has exactly the parameters of its source."""
        is_known = not self.has_several_sources or c.get(SOURCE) in self.sources
        return is_known and set(c) == set(self.parameters_of(c))

    def completed(self, partial: Mapping[str, Value]) -> Configuration:
        """Return a configuration: the given values, and the first value of every other parameter."""
        first = {name: values[0] for name, values in self.parameters_of(partial).items()}
        return Configuration({**first, **partial})

    def default(self, source: Value = "") -> Configuration:
        """Return the default configuration of a source (default: the first), used without a record."""
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
        """Return the parameters of all sources, each with the values of all sources."""
        if not self.has_several_sources:
            return self._first_source.parameters
        found: dict[str, tuple[Value, ...]] = {SOURCE: tuple(self.sources)}
        for name in self.sources:
            refuse((wrong := fault("source", name), wrong))
        for source in self.sources.values():
            for name, values in source.parameters.items():
                merged = (*found.get(name, ()), *values)
                wrong = f"parameter {name}: two sources have values of different kinds"
                refuse((len({type(value) for value in merged}) > 1, wrong))
                found[name] = tuple(dict.fromkeys(merged))
        return found

    # ------------------------------------------------------------------ decorators

    def constraint(self, function: Function) -> Function:
        """Attach a condition that valid configurations meet; its arguments are parameters or ``device``."""
        return self._only_source("constraint").constraint(function)

    def applies(self, *governed: str) -> Callable[[Function], Function]:
        """Attach a condition for parameters to apply; if it is false, they keep their first value."""
        return self._only_source("applies").applies(*governed)

    def _only_source(self, decorator: str) -> Source:
        if self.has_several_sources:
            raise self.error(f"@{self.name}.{decorator}: attach it to one of the sources instead")
        return self._first_source

    def arguments(self, function: Function) -> Function:
        """Attach ``(p, rng) -> dict``: the kernel's arguments by name, in the kernel's order."""
        return self._hook("arguments", function)

    def reference(self, function: Function) -> Function:
        """Attach a function that returns the expected outputs; it gets arguments by name, arrays as float64."""
        self.hooks["reference"] = function
        return function

    def tolerance(self, function: Function) -> Function:
        """Attach ``(p) -> float``: the largest absolute error allowed on random data."""
        return self._hook("tolerance", function)

    def matches(self, function: Function) -> Function:
        """Attach ``(found, expected) -> True or a message``: compares outputs that have several correct values."""
        return self._hook("matches", function)

    def work(self, function: Function) -> Function:
        """Attach ``(p) -> Work``: the minimum work of a problem."""
        return self._hook("work", function)

    def call(self, function: Function) -> Function:
        """Attach the signature of the kernel for `autotune.load`; each array is an `Operand`."""
        self.hooks["call"] = function
        return function

    def baseline(
        self,
        name: str,
        backend: str = "cuda",
        *,
        answers: bool = False,
        deterministic: bool = False,
    ) -> Callable[[Function], Function]:
        """Attach a call of another library; see `Baseline`."""
        check_known("baseline", "backend", (backend,), BACKENDS)

        def attach(function: Function) -> Function:
            others = [b for b in self.baselines if (b.name, b.backend) != (name, backend)]
            self.baselines = [*others, Baseline(name, function, backend, answers, deterministic)]
            return function

        return attach

    def rival(self, name: str, backend: str) -> Baseline | None:
        """Return the baseline of a name that may answer calls; None without one."""
        rivals = (b for b in self.baselines if b.answers and (b.name, b.backend) == (name, backend))
        return next(rivals, None)

    def metric(self, function: Function) -> Function:
        """Attach a function that computes a number from a measurement."""
        name, known = function.__name__, ("c", "p", DEVICE, *QUANTITIES)
        refuse((name in OBJECTIVES, f"metric {name!r} is an objective; choose another name"))
        check_known(f"metric {name!r}", "argument", inspect.signature(function).parameters, known)
        self.metrics[name] = function
        return function

    # ------------------------------------------------------------------ calling functions

    @cached_property
    def folder(self) -> Path | None:
        """The folder of the space file, for imports of its functions; None for a kernel of a script."""
        return self.file.parent if self.file and self.module.startswith(modules.SPACE) else None

    def has_hook(self, name: str, c: Mapping[str, Any]) -> bool:
        """Return whether a configuration has a hook with this name, of its source or of the kernel."""
        return name in self._serving(name, c).hooks

    def takes_device(self, name: str, c: Mapping[str, Any]) -> bool:
        """Return whether a configuration's hook with this name takes the device."""
        return name in self._serving(name, c).device_hooks

    def _serving(self, name: str, c: Mapping[str, Any]) -> Functions:
        source = self.source_of(c)
        return source if name in source.hooks else self

    def hook(self, name: str) -> Callable[..., Any]:
        """Return the kernel's hook with a name; `SpecError` if there is none."""
        return self._hook_of(self, name)

    def _hook_of(self, owner: Functions, name: str) -> Callable[..., Any]:
        if name not in owner.hooks:
            raise self.error(f"no {name} function; attach one with @{self.name}.{name}")
        return owner.hooks[name]

    def call_hook(self, name: str, *args: Any, device: Any = None, fills: bool = True) -> Any:
        """Call a hook with all layout fields of problems, and with the device if the hook takes it.

        If the hook takes a configuration, the configuration is the first argument.
        """
        owner = self._serving(name, args[0]) if "c" in HOOKS.get(name, ()) else self
        function = self._hook_of(owner, name)
        given = (self.filled(a) if fills and isinstance(a, Problem) else a for a in args)
        extra = {DEVICE: device} if name in owner.device_hooks else {}
        return self.guarded(name, function, *given, **extra)

    def guarded(self, label: str, function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        """Call a user's function; convert its exceptions to a `SpecError` with the line."""
        try:
            with modules.running(self.folder):
                return function(*args, **named)
        except (SpecError, UntraceableError, MemoryError, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit too
            own = getattr(getattr(function, "__code__", None), "co_filename", "")
            where = line_of(error, str(self.file)) or line_of(error, own)
            raise self.error(f"{label}: {type(error).__name__}: {error}{where}") from error

    # ------------------------------------------------------------------ forms of a problem

    def filled(self, p: Problem) -> Problem:
        """Return a problem with all layout fields, which hooks get."""
        return Problem({**p, **{name: p.get(name, plain) for name, plain in self.layout.items()}})

    def normal(self, p: Problem) -> Problem:
        """Return a problem without layout fields at their default, which keys and tables use."""
        return Problem({n: v for n, v in p.items() if n not in self.layout or v != self.layout[n]})

    def of_problem(self, p: Problem) -> Self:
        """Return the kernel for one problem: this kernel, unless its functions depend on the problem."""
        return self

    # ------------------------------------------------------------------ checks

    def _file_of(self, declared: Source, space: Path | None) -> str:
        """Return the code of a source as text; for a function, its file and name."""
        code = declared.code
        if not self.language:
            wrong = f"Kernel: source {code!r} is not a text; give language='triton'"
            refuse((not isinstance(code, str), wrong))
            return str(code)
        refuse((declared.device_macros, f"device_macros: {self.language_name} has no macros"))
        while hasattr(code, "fn"):  # a decorated function
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
        """Invent a file name for each source that is a text, for messages and includes."""
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
    """Return the last line of a file in an exception's traceback, as `` (file.py:12)``."""
    steps = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in steps if frame.f_code.co_filename == file]
    return f" ({Path(file).name}:{lines[-1]})" if lines else ""
