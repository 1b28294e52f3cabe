"""Holds what a person declares of a kernel: parameters, problems, rules and functions."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, Self, TypeAlias, TypeVar

from autotune.devices.device import BACKENDS
from autotune.errors import SpecError
from autotune.kernel import modules
from autotune.kernel.expression import UntraceableError
from autotune.kernel.includes import SearchPath, SourceText
from autotune.kernel.names import (
    check_known,
    check_macros,
    fault,
    fields_of,
    partial_of,
    refuse,
    values_of,
)
from autotune.languages import registry
from autotune.values import Problem, Value

Function = TypeVar("Function", bound=Callable[..., Any])
#: A file, a text, or in another language ``FILE:FUNCTION`` or that function itself.
Source: TypeAlias = "str | Callable[..., Any]"

#: Optional last argument of hooks that depend on the device.
DEVICE = "device"
#: Arguments of each hook, in order, before an optional `DEVICE`.
HOOKS = {
    "arguments": ("p", "rng"),
    "tolerance": ("p",),
    "work": ("p",),
    "launch": ("c", "p"),
    "scratch": ("c", "p"),
    "requires": ("c", "p"),
    "defines": ("c", "p"),
    "deterministic": ("c", "p"),
    "options": ("c",),
    "exclusive": ("c",),
}
#: Quantities of a measurement that a metric may take.
QUANTITIES = ("time_ms", "energy_mj", "power_w", "registers", "spill_bytes", "shared_bytes")
#: Names of objectives, which no metric may have.
OBJECTIVES = ("time", "energy", "edp")


@dataclass(frozen=True)
class Rule:
    """A constraint or applicability rule: a function over some of the parameters."""

    name: str
    doc: str
    function: Callable[..., object]
    #: Parameters it names, in the function's order; `uses_device` if it takes ``device`` too.
    parameters: tuple[str, ...]
    uses_device: bool = False
    #: For applicability: the parameters that keep their first value where the rule is false.
    governs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Baseline:
    """A vendor library call to compare with."""

    #: Of the library or its routine, as reports show it.
    name: str
    #: Takes the device arrays and scalars by argument name and returns a function that does one call on
    #: the current stream; or None where the library has nothing for the problem.
    prepare: Callable[..., Callable[[], None] | None]
    backend: str = "cuda"


def _always(c: object, p: object) -> bool:
    return True


class Declaration:
    """The options, parameters, rules and functions of one kernel, checked as they are given."""

    def __init__(
        self,
        source: Source | None = None,
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
        **parameters: Iterable[Value],
    ) -> None:
        frame = sys._getframe(1)
        caller = frame.f_globals
        #: The space file, and the name of the module that declared this kernel; no file in a notebook.
        self.file = Path(caller["__file__"]).resolve() if caller.get("__file__") else None
        self.module = str(caller.get("__name__"))
        #: Line and column in the file at which the call ended that made this kernel.
        is_of_file = self.file == Path(frame.f_code.co_filename).resolve()
        self.call_end = _call_end(frame) if is_of_file else None
        if (source is None) == (sources is None):
            raise SpecError("Kernel: give either one source file or sources={variant: file}")
        #: Language of the sources; None for the dialects of C that backends compile.
        if language:
            check_known("Kernel", "language", (language,), registry.LANGUAGES)
        self.language = registry.language(language) if language else None
        self.language_name = language or ""
        #: Files of sources by variant, with their functions in a language, and the texts of those that
        #: are no files.
        self.sources = {
            variant: self._source_name(each)
            for variant, each in (sources or {"": source or ""}).items()
        }
        self.written: dict[str, str] = {}
        self.name = self._named(name)
        self._take_texts()
        self.parameters: dict[str, tuple[Value, ...]] = {
            key: values_of(key, values) for key, values in parameters.items()
        }
        is_variant = not sources or set(self.parameters.get("VARIANT", ())) == set(sources)
        wrong = f"sources {sorted(sources or ())} need a parameter VARIANT of those values"
        refuse((not is_variant, wrong))
        possible = self.language.backends if self.language else BACKENDS
        self.backends = tuple(possible if backends is None else backends)
        check_known("backends", "backend", self.backends, possible)
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
        check_macros(self.parameters, self.static)
        self.seeds = tuple(partial_of("seeds", seed, self.parameters) for seed in seeds)
        self.default_values = partial_of("default", default or {}, self.parameters)
        #: Named configurations that `autotune explain` sets beside the winner.
        self.variants: dict[str, dict[str, Value]] = {}
        for variant, values in (variants or {}).items():
            refuse((wrong := fault("variant", variant), wrong))
            self.variants[variant] = partial_of(f"variant {variant}", values, self.parameters)
        self.constraint_rules: list[Rule] = []
        self.applies_rules: list[Rule] = []
        self.baselines: list[Baseline] = []
        self.metrics: dict[str, Callable[..., object]] = {}
        self.hooks: dict[str, Callable[..., Any]] = {}
        #: Names of hooks that take the device.
        self.device_hooks: set[str] = set()
        if deterministic:
            self.deterministic(_always)
        #: Sources as they stay for a run, and what the functions are known by; see `autotune.kernel.source`.
        self.texts: dict[tuple[Path, SearchPath], SourceText] = {}
        self.fingerprint = ""
        #: Of a kernel in no space file, as it was at one moment; see `autotune.kernel.snapshot`.
        self.state = b""

    # ------------------------------------------------------------------ decorators

    def constraint(self, function: Function) -> Function:
        """Attach a condition over the parameters it names (and ``device``) that must hold."""
        self._attach(self.constraint_rules, self._rule("constraint", function))
        return function

    def applies(self, *governed: str) -> Callable[[Function], Function]:
        """Attach a condition under which the governed parameters matter, and otherwise keep their first value."""
        check_known("applies", "parameter", governed, self.parameters)

        def attach(function: Function) -> Function:
            rule = self._rule("applies", function, governs=governed)
            for name in set(rule.parameters) & set(governed):
                raise self.error(f"applies {rule.name!r}: whether {name} applies depends on itself")
            self._attach(self.applies_rules, rule)
            return function

        return attach

    def arguments(self, function: Function) -> Function:
        """Attach ``(p, rng) -> dict``: the kernel's arguments by name, in the kernel's order."""
        return self._hook("arguments", function)

    def scratch(self, function: Function) -> Function:
        """Attach ``(c, p) -> dict of Out``: workspaces, passed after the arguments."""
        return self._hook("scratch", function)

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

    def launch(self, function: Function) -> Function:
        """Attach ``(c, p) -> Launch | tuple of Launch and Fill``: the timed unit, idempotent."""
        return self._hook("launch", function)

    def options(self, function: Function) -> Function:
        """Attach ``(c, device) -> sequence of str``: compiler options in addition to the defines."""
        return self._hook("options", function)

    def requires(self, function: Function) -> Function:
        """Attach ``(c, p) -> condition``: what a problem must satisfy for a configuration."""
        return self._hook("requires", function)

    def defines(self, function: Function) -> Function:
        """Attach ``(c, p) -> dict``: the macros of a configuration, in place of those of its parameters."""
        return self._hook("defines", function)

    def exclusive(self, function: Function) -> Function:
        """Attach ``(c) -> bool``: whether two launches of one loaded module must not overlap."""
        return self._hook("exclusive", function)

    def deterministic(self, function: Function) -> Function:
        """Attach ``(c, p) -> bool``: whether every run on the same data and device gives the same bits."""
        return self._hook("deterministic", function)

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

    def hook(self, name: str) -> Callable[..., Any]:
        """Return the function attached under a name."""
        if name not in self.hooks:
            raise self.error(f"no {name} function; attach one with @{self.name}.{name}")
        return self.hooks[name]

    def call_hook(self, name: str, *args: Any, device: Any = None, fills: bool = True) -> Any:
        """Call a hook, with all layout fields of problems, and with the device if it asks for one."""
        function = self.hook(name)
        given = (self.filled(a) if fills and isinstance(a, Problem) else a for a in args)
        extra = {DEVICE: device} if name in self.device_hooks else {}
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

    def error(self, message: str) -> SpecError:
        """Return a `SpecError` that names this kernel and its space file."""
        where = f" ({self.file.name})" if self.file else ""
        return SpecError(f"{self.name}{where}: {message}")

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

    def _hook(self, name: str, function: Function) -> Function:
        given, needed = tuple(inspect.signature(function).parameters), HOOKS[name]
        if given not in (needed, (*needed, DEVICE)):
            hint = "; what a launch depends on is a parameter or a problem field, never data"
            raise self.error(
                f"{name} takes ({', '.join(needed)}) and optionally {DEVICE}, "
                f"not ({', '.join(given)}){hint if name == 'launch' else ''}"
            )
        self.hooks[name] = function
        (self.device_hooks.add if DEVICE in given else self.device_hooks.discard)(name)
        return function

    def _rule(
        self, kind: str, function: Callable[..., object], governs: tuple[str, ...] = ()
    ) -> Rule:
        names = tuple(inspect.signature(function).parameters)
        parameters = tuple(name for name in names if name != DEVICE)
        uses_device = len(parameters) < len(names)
        asked = (
            names if kind == "applies" else parameters
        )  # whether one applies depends on no device
        check_known(f"{kind} {function.__name__!r}", "parameter", asked, self.parameters)
        return Rule(function.__name__, _about(function), function, parameters, uses_device, governs)

    def _attach(self, rules: list[Rule], rule: Rule) -> None:
        if self.file is None and rule.name != "_":
            rules[:] = [known for known in rules if known.name != rule.name]
        rules.append(rule)

    def _source_name(self, source: Source) -> str:
        """Return a source as it is written; a function as its file and name."""
        if not self.language:
            refuse(
                (
                    not isinstance(source, str),
                    f"Kernel: source {source!r} is no text; give language='triton'",
                )
            )
            return str(source)
        while hasattr(source, "fn"):  # of decorators
            source = source.fn
        if isinstance(source, FunctionType):
            file = Path(source.__code__.co_filename)
            is_beside = self.file is not None and file.parent == self.file.parent
            source = f"{file.name if is_beside else file}:{source.__name__}"
        name = str(source)
        wrong = f"Kernel: source {name!r}: expected 'FILE:FUNCTION', or a function of a file"
        refuse((not name.rpartition(":")[0] or name.startswith("<"), wrong))
        return name

    def _named(self, name: str | None) -> str:
        first = next(iter(self.sources.values()), "")
        if self.language:
            first = first.rpartition(":")[2].partition(",")[0]
        if name is None and _is_text(first):
            raise SpecError("Kernel: a source that is given as a text needs name='...'")
        chosen = name or Path(first).stem
        refuse((wrong := fault("kernel name", chosen), wrong))
        return chosen

    def _take_texts(self) -> None:
        """Give each source that is a text the name of a file, for messages and includes."""
        for variant, source in self.sources.items():
            if _is_text(source) and not self.language:
                file = "_".join(filter(None, (self.name, variant))) + ".cu"
                self.sources[variant], self.written[file] = file, source

    def _per_backend(
        self, problems: Sequence[Problem] | Mapping[str, Sequence[Problem]]
    ) -> dict[str, tuple[Problem, ...]]:
        if not isinstance(problems, Mapping):
            return dict.fromkeys(self.backends, tuple(map(self.normal, problems)))
        check_known("problems", "backend", problems, BACKENDS)
        return {name: tuple(map(self.normal, problems.get(name, ()))) for name in self.backends}


def _call_end(frame: FrameType) -> tuple[int, int] | None:
    """Return the line and column at which the call ends that a frame is in; None where Python keeps none."""
    _, line, _, column = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    return None if line is None or column is None else (line, column)


def _about(function: Callable[..., object]) -> str:
    return inspect.cleandoc(function.__doc__ or "").split("\n\n")[0].replace("\n", " ")


def _is_text(source: str) -> bool:
    return "\n" in source or "{" in source


def line_of(error: BaseException, file: str) -> str:
    """Return the last line of a file that an exception came through, as `` (file.py:12)``."""
    steps = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in steps if frame.f_code.co_filename == file]
    return f" ({Path(file).name}:{lines[-1]})" if lines else ""
