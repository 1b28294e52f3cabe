"""What a person declares: a kernel, its parameters and the functions that give it meaning.

Knows nothing of how a kernel is run. A space file (`spaces/NAME.py`) makes one `Kernel` and
attaches plain functions to it with decorators; every name they use is checked at once.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from autotune.devices.device import BACKENDS, Device
from autotune.errors import SpecError, unknown
from autotune.kernel.hooks import DEVICE, Hooks
from autotune.kernel.names import fault, value_fault
from autotune.values import Configuration, Problem, Value

#: What the layout field of an array begins with that says where the array does.
OFFSET = "offset_"

#: What else to say of a hook that takes something else.
_HINTS = {"launch": "; what a launch depends on is a parameter or a problem field, never data"}

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    Parameters
    ----------
    grid : tuple of int
        Blocks in x, y, z; missing ones are 1. May depend on the problem.
    block : tuple of int
        Threads in x, y, z; missing ones are 1. Must not depend on the problem.
    shared_bytes : int
        Dynamic shared memory per block. Must not depend on the problem.
    entry : str, optional
        Function to launch; default: the kernel's name.
    args : tuple, optional
        Names of arguments and scratch buffers, or integers (passed as 32-bit), in the function's
        order; default: all arguments, then all scratch buffers.
    """

    grid: tuple[Any, ...]
    block: tuple[int, ...]
    shared_bytes: int = 0
    entry: str | None = None
    args: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class Fill:
    """Set every element of an output or scratch buffer to one value, as a step of the sequence.

    Parameters
    ----------
    name : str
        The argument or scratch buffer.
    value : float
        Converted to the buffer's type.
    """

    name: str
    value: float = 0


Step: TypeAlias = Launch | Fill


@dataclass(frozen=True)
class Out:
    """An output: poisoned before every check, in turn with NaN and with a large number.

    Parameters
    ----------
    shape : tuple of int, or int
        Elements along each axis; may depend on the problem.
    dtype : str or numpy.dtype
        Of its elements.
    """

    shape: tuple[int, ...]
    dtype: Any = "float32"


@dataclass(frozen=True, eq=False)
class InOut:
    """An argument read and written: restored from this array before every check.

    Parameters
    ----------
    array : numpy.ndarray
        What it holds before a launch, of any shape, in the type that the kernel reads.
    """

    array: Any


@dataclass(frozen=True, eq=False)
class Constant:
    """A module symbol (``__constant__``) of this name, set before the first launch.

    Parameters
    ----------
    array : numpy.ndarray
        Of the shape and type of the symbol.
    """

    array: Any


@dataclass(frozen=True)
class Work:
    """What one problem costs at least, whatever the configuration.

    Parameters
    ----------
    flops : float
        Floating-point operations; a multiply-add is two.
    bytes_read, bytes_written : float
        Bytes that must come from device memory and go there.
    pipe : str
        The unit that does the arithmetic (``fp32``), so that peaks are compared alike.

    Raises
    ------
    ValueError
        If an amount is negative or not finite.
    """

    flops: float = 0
    bytes_read: float = 0
    bytes_written: float = 0
    pipe: str = "fp32"

    def __post_init__(self) -> None:
        for name in ("flops", "bytes_read", "bytes_written"):
            amount = getattr(self, name)
            if not (math.isfinite(amount) and amount >= 0):
                raise ValueError(f"{name}={amount}; a finite number of at least 0 expected")


@dataclass(frozen=True)
class Rule:
    """A constraint or applicability rule: a function over some of the parameters."""

    name: str
    doc: str
    function: Callable[..., object]
    #: Parameters it names, in the function's order; `uses_device` where ``device`` comes too.
    parameters: tuple[str, ...]
    uses_device: bool = False
    #: For applicability: the parameters that keep their first value where the rule is false.
    governs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Baseline:
    """A vendor library call to compare with.

    Parameters
    ----------
    name : str
        Of the library or its routine, as reports show it.
    prepare : callable
        Gets the device arrays and scalars by argument name, allocates what the library needs, and
        returns the function that does one call on the current stream; None where the library has
        nothing for the problem.
    backend : str
        What the arrays are of.
    """

    name: str
    prepare: Callable[..., Callable[[], None] | None]
    backend: str = "cuda"


#: What a metric may ask for, beside ``c``, ``p`` and ``device``; see `autotune.measure.objective`.
QUANTITIES = ("time_ms", "energy_mj", "power_w", "registers", "spill_bytes", "shared_bytes")
#: Those that are only known where energy is measured.
ENERGY_QUANTITIES = frozenset({"energy_mj", "power_w"})
#: Names of objectives that every kernel has.
OBJECTIVES = ("time", "energy", "edp")


@dataclass(frozen=True)
class Metric:
    """A number that follows from a measurement: rows and reports show it, and it may be the objective."""

    name: str
    doc: str
    function: Callable[..., object]
    #: Names that it takes, in the function's order.
    takes: tuple[str, ...]
    #: ``lower`` or ``higher``; empty where it is only shown.
    better: str = ""

    @property
    def needs_energy(self) -> bool:
        return not ENERGY_QUANTITIES.isdisjoint(self.takes)


class Kernel(Hooks):
    """A parameterized kernel and its search space.

    Parameters
    ----------
    source : str, optional
        File of the kernel source, looked for in the ``kernels`` folder beside the space file's
        folder, then beside the space file; or the source itself, which has a line break or a brace.
    sources : mapping of str to str, optional
        Several sources with the same arguments instead, picked by the parameter ``VARIANT``.
    name : str, optional
        Default: the stem of the (first) source file; needed where that is a text.
    problems : sequence of Problem, or mapping from backend to one
        What ``--effort full`` tunes.
    quick_problems : sequence of Problem, or mapping from backend to one
        What ``--effort quick`` tunes. Default: the same.
    edge_problems : sequence of Problem
        Odd sizes that every finalist must also get right.
    seeds : sequence of mapping
        Known good configurations, tried first where they are valid; missing parameters take the
        first value.
    default : mapping
        Configuration for lookup when nothing is known; missing parameters take the first value.
    static : sequence of str
        Problem and layout fields that are compiled in (upper-cased, or as `defines` says); the others
        are run-time arguments.
    layout : mapping of str to int
        Further problem fields, which say how arrays lie (``offset_x``, ``lda``), and what they are
        where a problem leaves them out: how the arrays lie that are tuned. Hooks always see them.
        ``offset_NAME`` of an array argument says how many elements past a boundary of 16 bytes it
        begins.
    backends : sequence of str
        Backends that the kernel can run on.
    **parameters : tuple, list, range or array of int, float, bool or str
        Names and the values each may take. UPPER_CASE by convention, since they are macros; any other
        case is right where a kernel is written so already.

    Raises
    ------
    SpecError
        If anything is misnamed or malformed. The message says what is allowed.
    """

    def __init__(
        self,
        source: str | None = None,
        *,
        sources: Mapping[str, str] | None = None,
        name: str | None = None,
        problems: Sequence[Problem] | Mapping[str, Sequence[Problem]] = (),
        quick_problems: Sequence[Problem] | Mapping[str, Sequence[Problem]] | None = None,
        edge_problems: Sequence[Problem] = (),
        seeds: Sequence[Mapping[str, Value]] = (),
        default: Mapping[str, Value] | None = None,
        static: Sequence[str] = (),
        layout: Mapping[str, int] | None = None,
        backends: Sequence[str] = BACKENDS,
        **parameters: Iterable[Value],
    ) -> None:
        caller = sys._getframe(1).f_globals
        self.file = Path(caller["__file__"]).resolve() if caller.get("__file__") else None
        #: The module that declared this kernel, by its name.
        self.module = str(caller.get("__name__"))
        if (source is None) == (sources is None):
            raise SpecError("Kernel: give either one source file or sources={variant: file}")
        #: Files of sources by variant, and the texts of those that are no files.
        self.sources: dict[str, str] = dict(sources) if sources else {"": str(source)}
        self.written: dict[str, str] = {}
        self.name = self._checked_kernel_name(name)
        self._take_texts()
        self.parameters: dict[str, tuple[Value, ...]] = {
            key: self._checked_values(key, values) for key, values in parameters.items()
        }
        if sources is not None and set(self.parameters.get("VARIANT", ())) != set(sources):
            raise self.error(f"sources {sorted(sources)} need a parameter VARIANT of those values")
        self.backends = self._checked_backends("backends", backends)
        if not isinstance(layout, Mapping | None):
            raise self.error(f"layout: expected a dict of names and ints, got {layout!r}")
        self.layout: dict[str, int] = dict(layout or {})
        self.problems = self._per_backend(problems)
        self.quick_problems = (
            self.problems if quick_problems is None else self._per_backend(quick_problems)
        )
        self.edge_problems = tuple(map(self.normal, edge_problems))
        self.fields: tuple[str, ...] = self._checked_fields()
        self.static = tuple(static)
        for field in self.static:
            if field not in (known := (*self.fields, *self.layout)):
                raise self.error(f"static: {unknown('problem field', field, known)}")
        self._check_macros()
        self.seeds = tuple(self._checked_partial("seeds", seed) for seed in seeds)
        self.default_values = self._checked_partial("default", default or {})
        self.constraint_rules: list[Rule] = []
        self.applies_rules: list[Rule] = []
        self.baselines: list[Baseline] = []
        self.metrics: dict[str, Metric] = {}
        self.hooks = {}
        #: See `autotune.kernel.source`: sources as they are to stay, and what the functions are known by.
        self.texts: dict[Path, str] = {}
        self.fingerprint = ""
        #: Of a kernel in no space file, as it was at one moment: see `autotune.kernel.snapshot`.
        self.state = b""

    # ------------------------------------------------------------------ decorators

    def constraint(self, function: Function) -> Function:
        """Attach a condition over the parameters it names (and ``device``) that must hold."""
        if not (function.__doc__ or "").strip():
            raise self.error(
                f"constraint {function.__name__!r} needs a docstring: reports quote it"
            )
        self._attach(self.constraint_rules, self._rule("constraint", function))
        return function

    def applies(self, *governed: str) -> Callable[[Function], Function]:
        """Attach a condition under which the governed parameters matter.

        Where it is false they keep their first value, so that no two configurations differ only
        in what has no effect.
        """
        for name in governed:
            self._check_parameter("applies", name)

        def attach(function: Function) -> Function:
            rule = self._rule("applies", function, governs=governed)
            for name in set(rule.parameters) & set(governed):
                raise self.error(f"applies {rule.name!r}: whether {name} applies depends on itself")
            self._attach(self.applies_rules, rule)
            return function

        return attach

    def arguments(self, function: Function) -> Function:
        """Attach ``(p, rng) -> dict``: the kernel's arguments by name, in the kernel's order.

        ``rng`` is a `numpy.random.Generator` that draws float32 and int32 where no ``dtype`` is
        given, and few small numbers where ``rng.exact``; see `autotune.measure.draw.Draw`.

        Values: arrays (inputs), `Out`, `InOut`, `Constant`, numpy scalars, or Python numbers
        (passed as int32 and float32).
        """
        return self._hook("arguments", function, ("p", "rng"))

    def scratch(self, function: Function) -> Function:
        """Attach ``(c, p) -> dict of Out``: workspaces, passed after the arguments."""
        return self._hook("scratch", function, ("c", "p"))

    def reference(self, function: Function) -> Function:
        """Attach the expected outputs: called with arguments by name, arrays as float64.

        Takes the names it needs; one with a default need not be an argument, or not of every
        layout. Returns one array when there is one output, else a dict by name.
        """
        self.hooks["reference"] = function
        return function

    def tolerance(self, function: Function) -> Function:
        """Attach ``(p) -> float``: the largest absolute error allowed on random data."""
        return self._hook("tolerance", function, ("p",))

    def work(self, function: Function) -> Function:
        """Attach ``(p) -> Work``."""
        return self._hook("work", function, ("p",))

    def launch(self, function: Function) -> Function:
        """Attach ``(c, p) -> Launch | tuple of Launch and Fill``: the timed unit, idempotent."""
        return self._hook("launch", function, ("c", "p"))

    def options(self, function: Function) -> Function:
        """Attach ``(c, device) -> sequence of str``: compiler options beside the defines."""
        return self._hook("options", function, ("c",))

    def requires(self, function: Function) -> Function:
        """Attach ``(c, p) -> condition``: what a problem must satisfy for a configuration.

        Traced with symbolic fields, those of the layout too (``==``, ``<=``, ``&``, arithmetic);
        record, header, lookup and load obey it.
        """
        return self._hook("requires", function, ("c", "p"))

    def defines(self, function: Function) -> Function:
        """Attach ``(c, p) -> dict``: the macros of a configuration, in place of those of its parameters.

        For a source with names of its own, ``{**c, "image_width": p.width}``, or one that wants none,
        ``{}``: a template. ``p`` holds the static fields alone, since problems that share them share a
        binary. A text is put there as it is, a bool as 0 or 1.
        """
        return self._hook("defines", function, ("c", "p"))

    def exclusive(self, function: Function) -> Function:
        """Attach ``(c) -> bool``: whether two launches of one loaded module must not overlap.

        So it is where a kernel keeps something in its module (a ``__device__`` counter, say). Others
        are run twice at once before they can win; record, header and lookup say it, load obeys it.
        """
        return self._hook("exclusive", function, ("c",))

    def deterministic(self, function: Function) -> Function:
        """Attach ``(c, p) -> bool``: whether every run on the same data and device gives the same bits.

        ``p`` holds the static fields alone. Whoever says so is run a hundred times in the finals and has
        to keep it. Of configurations that are equally fast but for 2 % such a one wins; record, header
        and lookup say it. Where nothing is attached, nothing is promised.
        """
        return self._hook("deterministic", function, ("c", "p"))

    def call(self, function: Function) -> Function:
        """Attach the signature of the tuned kernel for `autotune.load`.

        In place of arrays the function gets an `Operand` each: shape, strides, type and alignment,
        no data; scalars come as they were passed. It returns ``(Problem, arguments by name)``;
        outputs that it leaves out, or are None, are made. Or it returns `Instead`, for another
        kernel's call, or `NothingToDo`. What it says is kept for calls whose arrays lie alike; it
        may depend on a float being 0 or 1, and otherwise passes it on as it is or calculates with
        it, but compares it with nothing. A `ValueError` is for whoever called.
        """
        self.hooks["call"] = function
        return function

    def baseline(self, name: str, backend: str = "cuda") -> Callable[[Function], Function]:
        """Attach a vendor library call; see `Baseline`."""

        known = [base for base in self.baselines if (base.name, base.backend) == (name, backend)]
        if known and self.file:
            raise self.error(
                f"baseline {name!r} for {backend} is attached twice; name it otherwise"
            )

        def attach(function: Function) -> Function:
            self.baselines = [base for base in self.baselines if base not in known]
            self.baselines.append(Baseline(name, function, backend))
            return function

        return attach

    def metric(self, function: Any = None, *, better: str = "") -> Any:
        """Attach a number that follows from a measurement: ``@k.metric``, ``@k.metric(better="higher")``.

        The function takes what it names of ``c``, ``p``, ``device``, ``time_ms``, ``energy_mj`` and
        ``power_w`` (of a call, by the device's counter), ``registers``, ``spill_bytes`` and
        ``shared_bytes``, and returns a finite number. Where one of them is not known, as energy is
        not unless it is asked for, there is no number. With ``better``, ``lower`` or ``higher``, it
        may be an objective by its name.
        """
        if better not in ("", "lower", "higher"):
            raise self.error(f"metric: better={better!r}; expected 'lower' or 'higher'")

        def attach(function: Function) -> Function:
            name, takes = function.__name__, tuple(inspect.signature(function).parameters)
            again = name in self.metrics and self.file is not None  # a cell may be run again
            if name in OBJECTIVES or again:
                raise self.error(f"metric {name!r} exists already; name it otherwise")
            for taken in takes:
                if taken not in (known := ("c", "p", DEVICE, *QUANTITIES)):
                    raise self.error(f"metric {name!r}: {unknown('argument', taken, known)}")
            doc = inspect.cleandoc(function.__doc__ or "").split("\n\n")[0].replace("\n", " ")
            self.metrics[name] = Metric(name, doc, function, takes, better)
            return function

        return attach if function is None else attach(function)

    # ------------------------------------------------------------------ reading the declaration

    def call_hook(self, name: str, *args: Any, device: Any = None) -> Any:
        """Call a hook, problems `filled`; see `Hooks.call_hook`."""
        given = (self.filled(arg) if isinstance(arg, Problem) else arg for arg in args)
        return super().call_hook(name, *given, device=device)

    def filled(self, p: Problem) -> Problem:
        """A problem with all layout fields, as hooks see it."""
        return Problem({**p, **{name: p.get(name, plain) for name, plain in self.layout.items()}})

    def normal(self, p: Problem) -> Problem:
        """The one form of a problem that keys and tables know: without layout fields at their default."""
        return Problem({n: v for n, v in p.items() if n not in self.layout or v != self.layout[n]})

    def layout_of(self, p: Problem) -> Problem:
        """How the arrays of a problem lie where not as those that are tuned; mostly empty."""
        return Problem({n: v for n, v in self.normal(p).items() if n in self.layout})

    def static_of(self, p: Problem) -> tuple[Value, ...]:
        """What of a problem is compiled in: problems that share it share a binary."""
        filled = self.filled(p)
        return tuple(filled[name] for name in self.static)

    def steps(self, c: Configuration, p: Any, device: Any) -> tuple[Step, ...]:
        """The launch sequence of one configuration and problem (or symbolic problem).

        Raises
        ------
        SpecError
            If the hook raises or returns anything but steps.
        """
        result = self.call_hook("launch", c, p, device=device)
        steps = result if isinstance(result, tuple) else (result,)
        if not any(isinstance(step, Launch) for step in steps):
            raise self.error(
                f"launch: returned {result!r}, expected Launch(...) or a tuple of them"
            )
        for step in steps:
            if not isinstance(step, Launch | Fill):
                raise self.error(f"launch: step {step!r} is neither Launch nor Fill")
        return steps

    def workspaces(self, c: Configuration, p: Problem, device: Any) -> Mapping[str, Out]:
        """Scratch buffers of one configuration and problem; empty where the kernel declares none."""
        if "scratch" not in self.hooks:
            return {}
        workspaces: Mapping[str, Out] = self.call_hook("scratch", c, p, device=device)
        for name in workspaces:
            self._check_name("argument", name)
        return workspaces

    def compiler_options(self, c: Configuration, device: Any) -> tuple[str, ...]:
        """Options of one configuration; empty where the kernel declares none."""
        if "options" not in self.hooks:
            return ()
        options = self.call_hook("options", c, device=device)
        if not isinstance(options, list | tuple):
            raise self.error(f"options: returned {options!r}, expected a list of strings")
        return tuple(map(str, options))

    def work_of(self, p: Problem) -> Work | None:
        """What a problem costs at least; None where the kernel does not say.

        Raises
        ------
        SpecError
            If the hook raises or returns something else.
        """
        work = self.call_hook("work", p) if "work" in self.hooks else None
        if not isinstance(work, Work | None):
            raise self.error(f"work: returned {work!r}, expected Work(...)")
        return work

    def metric_of(
        self, metric: Metric, c: Configuration, p: Problem, device: Any, known: Mapping[str, float]
    ) -> float | None:
        """A metric of a measurement of which these quantities are known; None where one is missing.

        Raises
        ------
        SpecError
            If its function raises or returns anything but a finite number.
        """
        given = {"c": c, "p": self.filled(p), DEVICE: device, **known}
        if not set(metric.takes) <= given.keys():
            return None
        taken = {name: given[name] for name in metric.takes}
        number = self.guarded(f"metric {metric.name}", metric.function, **taken)
        if type(number) is bool or not isinstance(number, Real) or not math.isfinite(number):
            raise self.error(
                f"metric {metric.name}: returned {number!r} for {c}, expected a finite number"
            )
        return float(number)

    def tolerance_of(self, p: Problem) -> float | None:
        """The largest absolute error allowed on random data; None where the kernel does not say.

        Raises
        ------
        SpecError
            If the hook raises or returns anything but a finite number of at least 0.
        """
        if "tolerance" not in self.hooks:
            return None
        bound = self.call_hook("tolerance", p)
        number = math.nan
        if type(bound) is not bool and isinstance(bound, Real):
            with suppress(OverflowError):
                number = float(bound)
        if not 0 <= number < math.inf:
            raise self.error(
                f"tolerance: returned {bound!r} for ({p}), expected a finite number of at least 0"
            )
        return number

    def _compiled_in(self, p: Problem) -> Problem:
        """The static fields of a problem alone, which is what its binary knows of it."""
        return Problem(dict(zip(self.static, self.static_of(p), strict=True)))

    def check_problem(self, p: Problem) -> None:
        """Check a problem, and what the hooks that return numbers say of it, before it is measured.

        Raises
        ------
        SpecError
            If no record could hold it, or a hook raises or returns what does not fit.
        """
        for name, value in p.items():
            if wrong := value_fault(value):
                raise self.error(f"problem field {name}={value!r} {wrong}")
        self.tolerance_of(p)
        self.work_of(p)

    def allows(self, c: Configuration, p: Problem) -> bool:
        """Whether a problem meets what a configuration requires; True where nothing is declared.

        Raises
        ------
        SpecError
            If the requires hook raises.
        """
        return "requires" not in self.hooks or self._truth("requires", c, p)

    def is_exclusive(self, c: Configuration) -> bool:
        """Whether launches of one loaded module must not overlap; False where nothing is declared.

        Raises
        ------
        SpecError
            If the exclusive hook raises.
        """
        return "exclusive" in self.hooks and self._truth("exclusive", c)

    def is_deterministic(self, c: Configuration, p: Problem) -> bool:
        """Whether the same data give the same bits in every run; False where nothing is declared.

        Raises
        ------
        SpecError
            If the deterministic hook raises.
        """
        return "deterministic" in self.hooks and self._truth(
            "deterministic", c, self._compiled_in(p)
        )

    def _truth(self, name: str, *args: Any) -> bool:
        """What a hook says of its arguments; nothing and a text are neither yes nor no."""
        answer = self.call_hook(name, *args)
        if answer is None or isinstance(answer, str):
            raise self.error(f"{name}: returned {answer!r}, expected True or False")
        return self.guarded(name, bool, answer) is True

    def all_problems(self) -> tuple[Problem, ...]:
        """Every odd size and every problem of any backend and effort; some of them twice."""
        groups = [self.edge_problems, *self.problems.values(), *self.quick_problems.values()]
        return tuple(problem for group in groups for problem in group)

    def edges_on(self, device: Device) -> tuple[Problem, ...]:
        """Odd sizes whose arrays a device can be given."""
        return tuple(edge for edge in self.edge_problems if not self.misplaced(edge, device))

    def edges_beside(self, p: Problem, device: Device) -> tuple[Problem, ...]:
        """Odd sizes that what wins a problem must get right: with the same static fields.

        Those of the layout may differ: a winner is used on arrays that lie otherwise too.
        """
        tuned = [name for name in self.static if name in self.fields]
        return tuple(
            edge for edge in self.edges_on(device) if all(edge[name] == p[name] for name in tuned)
        )

    def misplaced(self, p: Problem, device: Device) -> str:
        """Why a device cannot be given the arrays of a problem; empty where it can."""
        fields = [name for name in self.layout_of(p) if name.startswith(OFFSET)]
        if device.places_arrays or not fields:
            return ""
        return f"{', '.join(fields)}: arrays begin aligned on {device.selector}"

    def first_problem(self, backend: str) -> Problem:
        """A problem to show or compile for: the first quick one of a backend, else any."""
        mine = self.quick_problems.get(backend) or self.problems.get(backend)
        return (mine or next(group for group in self.problems.values() if group))[0]

    def source_file(self, c: Configuration) -> Path:
        """The source file of a configuration.

        Raises
        ------
        SpecError
            If it is not where sources are looked for.
        """
        first = next(iter(self.sources.values()))
        return self.find_source(self.sources.get(str(c.get("VARIANT")), first))

    def find_source(self, file: str) -> Path:
        """Where a source file is, or a text would be: in ``../kernels`` of the space file, or beside it."""
        base = self.file.parent if self.file else Path.cwd()
        if file in self.written:
            return base / file
        places = [base.parent / "kernels" / file, base / file]
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            raise self.error(
                f"source {file!r} is in neither {places[0].parent} nor {places[1].parent}"
            )
        return found

    def macros(self, c: Configuration, p: Problem) -> dict[str, str]:
        """Preprocessor symbols of a configuration, and of the problem's static fields.

        A str value ``v`` of ``P`` is ``P_v``, and every value's ``P_<value>`` is its index: a bare
        word in ``#if`` would silently be 0. Unless the defines hook says what there is.

        Raises
        ------
        SpecError
            If the defines hook raises, or returns what cannot be a macro.
        """
        if "defines" in self.hooks:
            return self._own_macros(c, p)
        defines: dict[str, str] = {}
        for name, values in self.parameters.items():
            value = c[name]
            if isinstance(value, str):
                defines.update({f"{name}_{word}": str(i) for i, word in enumerate(values)})
                defines[name] = f"{name}_{value}"
            else:
                defines[name] = _literal(value)
        for field, value in zip(self.static, self.static_of(p), strict=True):
            defines[field.upper()] = str(value)
        return defines

    def _own_macros(self, c: Configuration, p: Problem) -> dict[str, str]:
        """What the defines hook says."""
        # Not by `call_hook` of this class, which would fill in what is not compiled in.
        returned = super().call_hook("defines", c, self._compiled_in(p))
        if not isinstance(returned, Mapping):
            raise self.error(f"defines: returned {returned!r}, expected a dict of macros")
        for name, value in returned.items():
            if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
                raise self.error(f"defines: {name!r} is no name of a macro")
            if not isinstance(value, str | Real) or "\n" in str(value):
                raise self.error(
                    f"defines: {name} is {value!r}, expected a number or a line of text"
                )
        return {name: _literal(value) for name, value in returned.items()}

    def completed(self, partial: Mapping[str, Value]) -> Configuration:
        """A configuration with missing parameters at their first value."""
        first = {name: values[0] for name, values in self.parameters.items()}
        return Configuration({**first, **partial})

    def default(self) -> Configuration:
        """The configuration for lookup when nothing is known."""
        return self.completed(self.default_values)

    def validate(self) -> None:
        """Check what can only be checked once the whole space file has run.

        Raises
        ------
        SpecError
            If a needed function or source is missing.
        """
        for name in ("arguments", "reference", "launch"):
            self.hook(name)
        for file in self.sources.values():
            self.find_source(file)
        if not any(self.problems.values()):
            raise self.error("no problems: give problems=[Problem(...), ...]")
        # Else asked after the search only.
        self.is_exclusive(self.default())
        self.is_deterministic(self.default(), self.all_problems()[0])

    # ------------------------------------------------------------------ checks

    def _hook(self, name: str, function: Function, needed: tuple[str, ...]) -> Function:
        given = tuple(inspect.signature(function).parameters)
        if given not in (needed, (*needed, DEVICE)):
            raise self.error(
                f"{name} takes ({', '.join(needed)}) and optionally {DEVICE}, "
                f"not ({', '.join(given)}){_HINTS.get(name, '')}"
            )
        self.hooks[name] = function
        return function

    def _rule(
        self, kind: str, function: Callable[..., object], governs: tuple[str, ...] = ()
    ) -> Rule:
        names = tuple(inspect.signature(function).parameters)
        for name in names:
            if name != DEVICE or kind == "applies":
                self._check_parameter(f"{kind} {function.__name__!r}", name)
        return Rule(
            name=function.__name__,
            doc=inspect.cleandoc(function.__doc__ or "").split("\n\n")[0].replace("\n", " "),
            function=function,
            parameters=tuple(name for name in names if name != DEVICE),
            uses_device=DEVICE in names,
            governs=governs,
        )

    def _attach(self, rules: list[Rule], rule: Rule) -> None:
        """Add a rule; in a notebook in place of that of its name, since cells are run again."""
        if self.file is None and rule.name != "_":
            rules[:] = [known for known in rules if known.name != rule.name]
        rules.append(rule)

    def _check_name(self, kind: str, name: object) -> None:
        if wrong := fault(kind, name):
            raise self.error(wrong)

    def _checked_kernel_name(self, name: str | None) -> str:
        first = next(iter(self.sources.values()), "")
        if name is None and _is_text(first):
            raise SpecError("Kernel: a source that is given as a text needs name='...'")
        chosen = name or Path(first).stem
        self._check_name("kernel name", chosen)
        return chosen

    def _take_texts(self) -> None:
        """Give each source that is a text the name of a file, for messages and includes."""
        for variant, source in self.sources.items():
            if _is_text(source):
                file = "_".join(filter(None, (self.name, variant))) + ".cu"
                self.sources[variant], self.written[file] = file, source

    def _check_macros(self) -> None:
        """Refuse two meanings of one macro of `defines`."""
        meanings: dict[str, str] = {}
        for macro, meaning in self._macros():
            if macro in meanings:
                raise self.error(
                    f"the macro {macro} would be {meanings[macro]} and {meaning}; rename one"
                )
            meanings[macro] = meaning

    def _macros(self) -> Iterator[tuple[str, str]]:
        """Every macro and what it is; a defines hook, which is not attached yet, may say otherwise."""
        for name, values in self.parameters.items():
            yield name, f"the parameter {name}"
            for value in values:
                if isinstance(value, str):
                    yield f"{name}_{value}", f"the value {value!r} of {name}"
        for field in self.static:
            yield field.upper(), f"the static field {field}"

    def _check_parameter(self, where: str, name: str) -> None:
        if name not in self.parameters:
            raise self.error(f"{where}: {unknown('parameter', name, self.parameters)}")

    def _checked_values(self, name: str, given: Iterable[Value]) -> tuple[Value, ...]:
        self._refuse_option(name, given)
        self._check_name("parameter", name)
        listed = given.tolist() if hasattr(given, "tolist") else given  # an array
        if not isinstance(listed, tuple | list | range) or not listed:
            raise self.error(
                f"parameter {name}: expected a non-empty tuple of values, got {given!r}"
            )
        values = _of_one_kind(listed)
        if not values:
            raise self.error(
                f"parameter {name}: values must be all numbers, all bool or all str: {given!r}"
            )
        if len(set(values)) != len(values):
            raise self.error(f"parameter {name}: a value occurs twice in {given!r}")
        for value in values:
            if wrong := value_fault(value):
                raise self.error(f"parameter {name}: {value!r} {wrong}")
            if isinstance(value, str) and not re.fullmatch(r"[A-Za-z0-9_]+", value):
                raise self.error(f"parameter {name}: {value!r} cannot be part of a C identifier")
        return values

    def _refuse_option(self, name: str, given: object) -> None:
        """Refuse what is a misspelt option, or holds what only an option can."""
        known = [key for key in inspect.signature(Kernel).parameters if key != "parameters"]
        plain = not isinstance(given, Mapping) and not any(
            isinstance(value, Mapping)
            for value in (given if isinstance(given, list | tuple) else ())
        )
        if name == name.upper() or (plain and not get_close_matches(name, known, 1, 0.8)):
            return
        raise self.error(
            f"{unknown('option', name, known)}; a parameter has a tuple of numbers or texts, and a "
            "name that is less like an option's"
        )

    def _checked_backends(self, where: str, backends: Iterable[str]) -> tuple[str, ...]:
        for name in backends:
            if name not in BACKENDS:
                raise self.error(f"{where}: {unknown('backend', name, BACKENDS)}")
        return tuple(backends)

    def _per_backend(
        self, problems: Sequence[Problem] | Mapping[str, Sequence[Problem]]
    ) -> dict[str, tuple[Problem, ...]]:
        if not isinstance(problems, Mapping):
            return dict.fromkeys(self.backends, tuple(map(self.normal, problems)))
        self._checked_backends("problems", problems)
        return {name: tuple(map(self.normal, problems.get(name, ()))) for name in self.backends}

    def _checked_fields(self) -> tuple[str, ...]:
        """Names of the fields that are tuned."""
        everything = self.all_problems()
        first = everything[0] if everything else Problem()
        fields = tuple(name for name in first if name not in self.layout)
        for problem in everything:
            if set(problem) - set(self.layout) != set(fields):
                raise self.error(f"problem ({problem}) has other fields than ({', '.join(fields)})")
            for name in set(problem) & set(self.parameters):
                raise self.error(f"{name} is a parameter and a problem field; rename one")
            for name, value in problem.items():
                self._check_field(name)
                if not isinstance(value, int | str) or isinstance(value, bool):
                    raise self.error(f"problem field {name}={value!r} must be an int or a str")
            for name in set(problem) & set(self.layout):
                self._check_layout(name, problem[name])
        for name, value in self.layout.items():
            if name in self.parameters:
                raise self.error(f"{name} is a parameter and a layout field; rename one")
            self._check_field(name)
            self._check_layout(name, value)
        for group in (*self.problems.values(), *self.quick_problems.values()):
            for problem in group:
                if layout := self.layout_of(problem):
                    raise self.error(
                        f"problem ({problem}): what is tuned has the layout that is declared; give "
                        f"edge_problems other values of {', '.join(layout)}"
                    )
        return fields

    def _check_field(self, name: str) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise self.error(f"problem field {name!r} must be lower_case")
        self._check_name("problem field", name)

    def _check_layout(self, name: str, value: object) -> None:
        """Records and headers hold integers of 64 bits; an array begins at or after a boundary."""
        if type(value) is not int or value_fault(value):
            raise self.error(f"layout field {name}={value!r} must be an int of 64 bits")
        if value < 0 and name.startswith(OFFSET):
            raise self.error(f"layout field {name}={value}: at least 0 elements past a boundary")

    def _checked_partial(self, where: str, partial: Mapping[str, Value]) -> dict[str, Value]:
        """Values as they are declared: 1 stands for 1.0 where that is among them."""
        declared = {}
        for name, value in partial.items():
            self._check_parameter(where, name)
            if value not in self.parameters[name]:
                raise self.error(
                    f"{where}: {name}={value!r} is not among its values {self.parameters[name]}"
                )
            declared[name] = self.parameters[name][self.parameters[name].index(value)]
        return declared

    def __repr__(self) -> str:
        return f"Kernel({self.name!r}, {len(self.parameters)} parameters)"


def _of_one_kind(given: Sequence[Any]) -> tuple[Value, ...]:
    """Values as Python's own, whatever library they came from; empty where kinds are mixed."""
    if all(isinstance(value, bool) for value in given):
        return tuple(bool(value) for value in given)
    if all(isinstance(value, str) for value in given):
        return tuple(str(value) for value in given)
    if any(isinstance(value, bool) or not isinstance(value, Real) for value in given):
        return ()
    if all(isinstance(value, Integral) for value in given):
        return tuple(int(value) for value in given)
    return tuple(float(value) + 0.0 for value in given)  # which leaves no negative zero


def _literal(value: Any) -> str:
    """A number or text in C."""
    return str(int(value)) if isinstance(value, Integral) else str(value)


def _is_text(source: str) -> bool:
    """Whether this is a source and no file of one, which has neither lines nor braces."""
    return "\n" in source or "{" in source
