"""`Kernel`, and the types that its functions return.

A space file (`spaces/NAME.py`) creates one `Kernel` and attaches functions to it with decorators.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from inspect import signature
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeAlias

from autotune.devices.compiler_options import separate_options
from autotune.devices.device import Device
from autotune.element_types import ENCODED_TYPES
from autotune.errors import SpecError, needing
from autotune.kernel.declaration import Declaration
from autotune.kernel.names import OFFSET, fault, is_too_large
from autotune.kernel.rules import DEVICE
from autotune.project import Project, current_folder, project_of
from autotune.values import SOURCE, Configuration, Problem, Value


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    Parameters
    ----------
    grid : tuple of int
        Blocks in x, y, z; missing sizes are 1. May depend on the problem.
    block : tuple of int
        Threads in x, y, z; missing sizes are 1. Must not depend on the problem. Leave it out for Triton.
    shared_bytes : int
        Dynamic shared memory per block. Must not depend on the problem.
    entry : str, optional
        Function to launch. Default: the function with the kernel's name, or the function of its source.
    args : tuple, optional
        Names of arguments and scratch buffers, 32-bit integers, tensor maps or textures, in the function's
        order.
        Default: all arguments, then all scratch buffers.
    cluster : tuple of int, optional
        Blocks of a cluster in x, y, z, at most 8 in total; each size divides the grid's. Needs sm_90. This and
        the next two must not depend on the problem, and are for CUDA C++ and cubins (``cuLaunchKernelEx``).
    cooperative : bool
        Whether all blocks run at the same time, so that ``cooperative_groups::this_grid().sync()`` works. A grid
        of more blocks than the GPU holds at once is pruned.
    programmatic : bool
        Whether the launch may begin before the launch before it ends (programmatic dependent launch). The
        function must execute ``griddepcontrol.wait`` before it touches what earlier launches touch. Needs sm_90.
    """

    grid: tuple[Any, ...]
    block: tuple[int, ...] = ()
    shared_bytes: int = 0
    entry: str | None = None
    args: tuple[Any, ...] | None = None
    cluster: tuple[int, ...] = ()
    cooperative: bool = False
    programmatic: bool = False


@dataclass(frozen=True)
class Fill:
    """A step of a launch sequence that sets all elements of an output or scratch buffer.

    Parameters
    ----------
    name : str
        The argument or scratch buffer.
    value : float
        The value of every element, converted to the buffer's type.
    """

    name: str
    value: float = 0


Step: TypeAlias = Launch | Fill


@dataclass(frozen=True)
class Out:
    """An output. Before every check it is filled with NaN or a large number, in turn.

    Parameters
    ----------
    shape : int or tuple of int
        Elements along each axis; may depend on the problem.
    dtype : str or numpy.dtype
        Type of the elements: a type of NumPy or ml_dtypes, or its name, for example ``float8_e4m3fn``.
    """

    shape: tuple[int, ...]
    dtype: Any = "float32"


@dataclass(frozen=True, eq=False)
class InOut:
    """An argument that the kernel reads and writes. Before every check its content is restored.

    Parameters
    ----------
    array : numpy.ndarray
        Content before a launch, in the type that the kernel reads.
    """

    array: Any


def BFloat16(array: Any) -> Any:  # noqa: N802 - the name in space files
    """Return an array of ml_dtypes' bfloat16, as `rng` draws it with ``dtype="bfloat16"``.

    Parameters
    ----------
    array : array
        Bit patterns as uint16; other numbers are rounded to the nearest bfloat16.

    Returns
    -------
    numpy.ndarray
        The array in bfloat16; a reference gets its values as float64.
    """
    with needing("BFloat16"):  # imported here, so that listing kernels does not import NumPy
        import numpy as np

        from autotune.encoding import dtype_of, encoded

    array, dtype = np.asarray(array), dtype_of("bfloat16")
    if array.size > 1 and not any(array.strides):  # a broadcast number
        return np.broadcast_to(BFloat16(array.flat[0]), array.shape)
    bits = array if array.dtype == np.uint16 else encoded(array, "bfloat16")
    return bits.view(dtype)


@dataclass(frozen=True, eq=False)
class Constant:
    """A ``__constant__`` variable of the module with the argument's name, set before the first launch.

    Parameters
    ----------
    array : numpy.ndarray
        Content, with the shape and type of the variable.
    symbol : str, optional
        C++ name of the variable, such as ``filters::weights<3>``, if several have the argument's name.
    """

    array: Any
    symbol: str = ""


@dataclass(frozen=True)
class Work:
    """The minimum work of a problem, equal for all configurations. Amounts are finite and at least 0.

    Parameters
    ----------
    flops : float
        Floating-point operations; a multiply-add is two.
    bytes_read : float
        Bytes that must come from device memory.
    bytes_written : float
        Bytes that must go to device memory.
    pipe : str
        The unit that does the arithmetic, whose peak is the limit: ``fp32``, or ``tensor`` for products of
        float16 or bfloat16 on tensor cores. Other names have no known peak.
    """

    flops: float = 0
    bytes_read: float = 0
    bytes_written: float = 0
    pipe: str = "fp32"


class Kernel(Declaration):
    """A parameterized kernel and its search space; docs/spaces.md has its arguments and decorators."""

    @property
    def project(self) -> Project:
        """The project that contains the records of this kernel."""
        return project_of(self.file.parent if self.file else current_folder())

    def language_on(self, backend: str) -> str:
        """Return the language to compile for a backend; the backend's name means its dialect of C."""
        has_own = self.language is not None and backend in self.language.backends
        return self.language_name if has_own else backend

    def entry_of(self, c: Configuration) -> str:
        """Return the function that a launch without ``entry`` launches."""
        if not self.language:
            return self.name
        return self._file(c).rpartition(":")[2].partition(",")[0]

    def values_of(self, c: Configuration, p: Problem) -> dict[str, Value]:
        """Return the values that a language gets: parameters, and static fields in lower and upper case.

        A defines hook adds further values. It gets all problem fields, because a language specialises
        binaries for problems anyway.
        """
        fields = self._compiled_in(p)
        given = {**{name.upper(): value for name, value in fields.items()}, **fields, **c}
        if not self.has_hook("defines", c):
            return given
        added = self.call_hook("defines", c, p)
        self._expect(isinstance(added, Mapping), "defines", added, "a dict of values")
        return {**given, **added}

    def layout_of(self, p: Problem) -> Problem:
        """Return the layout fields of a problem that differ from the tuned layout."""
        return Problem({n: v for n, v in self.normal(p).items() if n in self.layout})

    def static_of(self, p: Problem) -> tuple[Value, ...]:
        """Return the values of the static fields; problems with equal values share a binary."""
        filled = self.filled(p)
        return tuple(filled[name] for name in self.static)

    def shares_binary(self, p: Problem, q: Problem) -> bool:
        """Return whether two problems certainly share the binary of a configuration.

        A language may specialise binaries for problems, which only its compile jobs show.
        """
        return p == q or (self.language is None and self.static_of(p) == self.static_of(q))

    def steps(self, c: Configuration, p: Any, device: Any) -> tuple[Step, ...]:
        """Return the declared steps of a configuration and problem, which may be symbolic."""
        result = self.call_hook("launch", c, p, device=device)
        steps = result if isinstance(result, tuple) else (result,)
        is_launched = any(isinstance(step, Launch) for step in steps)
        self._expect(is_launched, "launch", result, "Launch(...) or a tuple of them")
        for step in steps:
            if not isinstance(step, Launch | Fill):
                raise self.error(f"launch: step {step!r} is neither a Launch nor a Fill")
        return steps

    def workspaces(self, c: Configuration, p: Problem, device: Any) -> Mapping[str, Out]:
        """Return the declared scratch buffers of a configuration and problem."""
        if not self.has_hook("scratch", c):
            return {}
        workspaces: Mapping[str, Out] = self.call_hook("scratch", c, p, device=device)
        for name in workspaces:
            if wrong := fault("argument", name):
                raise self.error(wrong)
            element = ENCODED_TYPES.get(str(workspaces[name].dtype))
            if element and element.per_stored > 1:
                raise self.error(
                    f"scratch: {name} is {element.name}; declare its bytes, Out(bytes, 'uint8')"
                )
        return workspaces

    def compiler_options(self, c: Configuration, device: Any) -> tuple[str, ...]:
        """Return the declared compiler options of a configuration."""
        if not self.has_hook("options", c):
            return ()
        options = self.call_hook("options", c, device=device)
        self._expect(isinstance(options, list | tuple), "options", options, "a list of strings")
        try:
            return separate_options(tuple(map(str, options)))
        except SpecError as error:
            raise self.error(f"options: {error}") from error

    def work_of(self, p: Problem) -> Work | None:
        """Return the minimum work of a problem; None if the kernel does not declare it."""
        work = self.call_hook("work", p) if "work" in self.hooks else None
        self._expect(isinstance(work, Work | None), "work", work, "Work(...)")
        return work

    def metric_of(
        self, name: str, c: Configuration, p: Problem, device: Any, known: Mapping[str, float]
    ) -> float | None:
        """Return a metric of a measurement with these quantities; None if the metric needs another one."""
        given = {"c": c, "p": self.filled(p), DEVICE: device, **known}
        takes = signature(self.metrics[name]).parameters
        if not takes.keys() <= given.keys():
            return None
        taken = {argument: given[argument] for argument in takes}
        number = self.guarded(f"metric {name}", self.metrics[name], **taken)
        value = _finite(number)
        self._expect(value is not None, f"metric {name}", number, "a finite number", f" for {c}")
        return value

    def tolerance_of(self, p: Problem) -> float | None:
        """Return the largest absolute error allowed on random data; None if it is not declared."""
        if "tolerance" not in self.hooks:
            return None
        bound = self.call_hook("tolerance", p)
        number = _finite(bound)
        is_bound = number is not None and number >= 0
        self._expect(is_bound, "tolerance", bound, "a finite number of at least 0", f" for ({p})")
        return number

    def _compiled_in(self, p: Problem) -> Problem:
        """Return only the static fields of a problem; its binary depends on no other field."""
        return Problem(dict(zip(self.static, self.static_of(p), strict=True)))

    def check_problem(self, p: Problem) -> None:
        """Check the results of the hooks for a problem before it is measured."""
        self.tolerance_of(p)
        self.work_of(p)

    def allows(self, c: Configuration, p: Problem) -> bool:
        """Return whether a configuration supports a problem; True without a requires hook."""
        return not self.has_hook("requires", c) or self._truth("requires", c, p)

    def is_exclusive(self, c: Configuration) -> bool:
        """Return whether a declaration forbids overlapping launches of one loaded module."""
        return self.has_hook("exclusive", c) and self._truth("exclusive", c)

    def is_deterministic(self, c: Configuration, p: Problem) -> bool:
        """Return whether a declaration promises the same bits in every run on the same data."""
        return self.has_hook("deterministic", c) and self._truth(
            "deterministic", c, self._compiled_in(p)
        )

    def _truth(self, name: str, *args: Any) -> bool:
        answer = self.call_hook(name, *args)
        is_answer = answer is not None and not isinstance(answer, str)
        self._expect(is_answer, name, answer, "True or False")
        return self.guarded(name, bool, answer) is True

    def _expect(
        self, is_valid: bool, hook: str, returned: object, expected: str, where: str = ""
    ) -> None:
        if not is_valid:
            raise self.error(f"{hook}: returned {returned!r}{where}, expected {expected}")

    def all_problems(self) -> tuple[Problem, ...]:
        """Return the edge problems and all problems of all backends, possibly with duplicates."""
        groups = [self.edge_problems, *self.problems.values(), *self.quick_problems.values()]
        return tuple(problem for group in groups for problem in group)

    def edges_on(self, device: Device) -> tuple[Problem, ...]:
        """Return the edge problems whose array alignments the device supports."""
        return tuple(
            edge for edge in self.edge_problems if not self.unsupported_offsets(edge, device)
        )

    def edges_like(self, p: Problem, device: Device) -> tuple[Problem, ...]:
        """Return the edge problems with the static fields of a problem, in any layout."""
        tuned = [name for name in self.static if name in self.fields]
        return tuple(
            edge for edge in self.edges_on(device) if all(edge[name] == p[name] for name in tuned)
        )

    def unsupported_offsets(self, p: Problem, device: Device) -> str:
        """Return why the device does not support a problem's array alignment; empty if it does."""
        fields = [name for name in self.layout_of(p) if name.startswith(OFFSET)]
        if device.is_cuda or not fields:
            return ""
        return f"{', '.join(fields)}: {device.selector} only supports aligned arrays"

    def first_problem(self, backend: str) -> Problem:
        """Return an example problem: the first quick problem of a backend, else the first problem."""
        mine = self.quick_problems.get(backend) or self.problems.get(backend)
        return (mine or next(group for group in self.problems.values() if group))[0]

    def source_file(self, c: Configuration) -> Path:
        """Return the source file of a configuration."""
        return self.find_source(self._file(c))

    def _file(self, c: Configuration) -> str:
        first = next(iter(self.files.values()))
        return self.files.get(str(c.get(SOURCE, "")), first)

    def find_source(self, file: str) -> Path:
        """Return the path of a source, in ``../kernels`` or in the folder of the space file.

        The sources of ``spaces/study`` are in ``kernels/study``. For a language, the path ends with
        ``:FUNCTION``, or ``:FUNCTION,FUNCTION`` for several functions.
        """
        base = self.file.parent if self.file else Path.cwd()
        if self.language:
            file, _, functions = file.rpartition(":")
            found = self._existing(file, base)
            return found.with_name(f"{found.name}:{functions}")
        if file in self.written:
            return base / file
        return self._existing(file, base)

    def _is_source(self, place: Path) -> bool:
        return place.is_file() or (self.language is not None and place.is_dir())

    def _existing(self, file: str, base: Path) -> Path:
        spaces = base if base.parent.name != "spaces" else base.parent
        kernels = spaces.parent / "kernels" / base.relative_to(spaces)
        places = [kernels / file, base / file]
        found = next((place for place in places if self._is_source(place)), None)
        if found is None:
            raise self.error(
                f"source {file!r} is in neither {places[0].parent} nor {places[1].parent}"
            )
        return found

    def macros(self, c: Configuration, p: Problem, device: Device) -> dict[str, str]:
        """Return the preprocessor symbols of a configuration, its static fields and the device.

        For a parameter ``P`` with text values, ``P`` is ``P_<value>``, and every ``P_<value>`` is a number
        from 1. An undeclared word is 0 in ``#if``, so it differs from all values. A defines hook replaces
        the symbols of parameters and fields.
        """
        source = self.source_of(c)
        facts = {
            name: _literal(getattr(device, fact)) for name, fact in source.device_macros.items()
        }
        if self.has_hook("defines", c):
            problem = self._compiled_in(p)
            returned = self.call_hook("defines", c, problem, device=device, fills=False)
            self._expect(isinstance(returned, Mapping), "defines", returned, "a dict of macros")
            for name, value in returned.items():
                is_integer = isinstance(value, Integral)
                hint = f"write it as text, with its suffix in C: {name!r}: '{value}ull'"
                if is_integer and is_too_large(int(value)):
                    raise self.error(f"defines: {name}={value} needs more than 63 bits; {hint}")
            return {name: _literal(value) for name, value in returned.items()} | facts
        defines: dict[str, str] = {}
        for name, values in source.parameters.items():
            value = c[name]
            if isinstance(value, str):
                for number, word in enumerate(values, 1):
                    defines[f"{name}_{word}"] = str(number)
                defines[name] = f"{name}_{value}"
            else:
                defines[name] = _literal(value)
        for field, value in zip(self.static, self.static_of(p), strict=True):
            defines[field.upper()] = str(value)
        return defines | facts

    def validate(self) -> None:
        """Check the declaration after the whole space file has run."""
        self.hook("arguments")
        for source in self.sources.values():
            if "launch" not in source.hooks:
                self.hook("launch")
        for file in self.files.values():
            self.find_source(file)
        if not any(self.problems.values()):
            raise self.error("no problems: give problems=[Problem(...), ...]")
        # Without this check, errors of these hooks would appear only after the search.
        for configuration in map(self.default, self.sources):
            self.is_exclusive(configuration)
            self.is_deterministic(configuration, self.all_problems()[0])


def _literal(value: Any) -> str:
    return str(int(value)) if isinstance(value, Integral) else str(value)


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    with suppress(OverflowError):
        return float(value) if math.isfinite(value) else None
    return None
