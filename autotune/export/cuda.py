"""Write one CUDA source per recorded configuration, and a C++ launcher for all of them.

The header of the same records picks the configuration. Equal records, sources and declaration give
equal bytes. The text of the launcher is in ``launch.hpp.j2``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations
from operator import mul
from typing import Any

import numpy as np

from autotune import __version__
from autotune.compiling.binaries import compiled_for
from autotune.compiling.job import compile_job
from autotune.compiling.symbols import COMPUTED
from autotune.data.arguments import Argument, declared_arguments
from autotune.devices.base import Binary
from autotune.devices.device import Device
from autotune.devices.nvrtc import expressions
from autotune.errors import SpecError, UsageError
from autotune.export.cpp import comment, expression, filled, identifier
from autotune.export.header import Writer, header_of, measured, origin
from autotune.kernel.catalog import find_kernel
from autotune.kernel.expression import Json, Symbol, UntraceableError, stored, value_of
from autotune.kernel.launches import LaunchSequence, completed, traced, traced_numbers
from autotune.kernel.source import source_fingerprint, source_of
from autotune.kernel.spec import Fill, Kernel, Launch
from autotune.languages.base import ALIGNMENT, UNKNOWN
from autotune.tuned.record import Plan, TunedRecord
from autotune.values import Configuration, Problem, size_of

#: How C++ calls what a kernel is passed by value.
_TYPES = {
    **{
        f"{sign}int{bits}": f"std::{sign}int{bits}_t"
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
    "float32": "float",
    "float64": "double",
    "bool": "bool",
}
#: Smallest problems to ask what a kernel is given: arrays of the others may have gigabytes.
_ASKED = 8


def render(records: Sequence[TunedRecord]) -> dict[str, str | bytes]:
    """Write sources, launcher and header of one kernel's records of CUDA devices.

    A kernel in another language than CUDA C++ has cubins in place of sources. Refuses what a program
    without Python cannot have: compiled-in fields, module constants, launches that cannot be traced.
    """
    known = [record for record in records if record.device.backend == "cuda"]
    if not known:
        raise UsageError(
            f"{records[0].kernel}: no record of a CUDA device; tune it on one, or name others by --from"
        )
    kernel = find_kernel(known[0].kernel)
    writer = Writer(known)
    known = writer.records  # in one order, however they came
    given = _Given.of(kernel)
    exported = [
        _Exported.of(kernel, plan, known, given, scalars)
        for scalars in _variants(kernel, given)
        for plan in writer.plans.values()
    ]
    # Plans of one configuration, on devices of different sizes, share a source.
    numbers: dict[_Code, int] = {}
    for each in exported:
        numbers.setdefault(each.code, len(numbers))
    names = {code: f"{kernel.name}_{number:02}" for code, number in numbers.items()}
    context = _context(kernel, writer, given, exported, names)
    files: dict[str, str | bytes] = {
        f"{name}.cubin" if code.binary else f"{name}.cu": code.binary
        or _source(kernel, known, code, name)
        for code, name in names.items()
    }
    return {
        f"{kernel.name}_launch.hpp": filled("launch.hpp.j2", context),
        f"{kernel.name}.hpp": header_of(writer),
        **files,
    }


@dataclass(frozen=True)
class _Given:
    """The arguments of a kernel, and how their sizes follow from the problem."""

    kernel: Kernel
    #: In the kernel's order.
    arguments: Mapping[str, Argument]
    #: Integer scalars that are the problem field of their name.
    fields: frozenset[str]
    #: Elements of each array as an expression; what does not follow from the fields is missing.
    elements: Mapping[str, Json]

    @classmethod
    def of(cls, kernel: Kernel) -> _Given:
        """Ask small problems for their arguments; refuse what a launcher cannot set."""
        for name in set(kernel.static) & set(kernel.fields):
            raise UsageError(
                f"{kernel.name}: the field {name} is compiled in (static=), so no source is for every "
                "problem; pass it to the kernel as an argument, or tune a kernel of its own for a value"
            )
        tuned = {problem for problem in kernel.all_problems() if not kernel.layout_of(problem)}
        problems = sorted(tuned, key=size_of)[:_ASKED]
        asked = [(problem, declared_arguments(kernel, problem)) for problem in problems]
        arguments = asked[0][1]
        for name, argument in arguments.items():
            if argument.kind == "constant":
                raise UsageError(
                    f"{kernel.name}: {name} is a module constant, which a launcher does not set; "
                    "make it an array that the kernel is passed"
                )
        fields = frozenset(
            name
            for name, argument in arguments.items()
            if argument.kind == "scalar"
            and np.dtype(argument.dtype).kind in "iu"
            and all(known[name].value == problem.get(name) for problem, known in asked)
        )
        shapes = {
            name: [(problem, math.prod(known[name].shape)) for problem, known in asked]
            for name, argument in arguments.items()
            if argument.kind != "scalar"
        }
        elements = {name: _form(sizes) for name, sizes in shapes.items()}
        known = {name: form for name, form in elements.items() if form is not None}
        return cls(kernel, arguments, fields, known)


def _form(sizes: Sequence[tuple[Problem, int]]) -> Json | None:
    """Return the number or product of fields that is the size in every problem; None if there is none."""
    names = [name for name, value in sizes[0][0].items() if isinstance(value, int)]
    forms: list[Json] = [sizes[0][1]]
    for count in range(1, len(names) + 1):
        for chosen in combinations(names, count):
            form: Json = chosen[0]
            for name in chosen[1:]:
                form = ["*", form, name]
            forms.append(form)
    agrees = (
        form for form in forms if all(value_of(form, problem) == size for problem, size in sizes)
    )
    return next(agrees, None)


def _variants(kernel: Kernel, given: _Given) -> list[dict[str, int]]:
    """Return integer scalars for each binary of a configuration; a language may compile them in.

    The first is for problems all of whose fields are multiples of 16, the second for all others. Of numbers
    that a launch computes neither knows anything: they may be multiples of 16 in the declared problems only.
    """
    if kernel.language is None:
        return [{}]
    whole = [name for name, each in given.arguments.items() if _is_whole(each)]
    unknown = dict.fromkeys([*whole, COMPUTED], UNKNOWN)
    return (
        [unknown | dict.fromkeys(given.fields, ALIGNMENT), unknown] if given.fields else [unknown]
    )


def _is_whole(argument: Argument) -> bool:
    return argument.kind == "scalar" and np.dtype(argument.dtype).kind in "iu"


@dataclass(frozen=True)
class _Code:
    """A source with its options; plans that differ only in their grids share it."""

    configuration: Configuration
    text: str
    #: Of the compiler, the architecture left out.
    options: tuple[str, ...]
    #: Architecture that it was tuned for, ``sm_90a`` where it must be just that.
    arch: str
    #: The cubin of a language; empty for CUDA C++, which is written as text.
    binary: bytes = b""

    @property
    def suffix(self) -> str:
        """The letter of an architecture whose code runs on no other."""
        return self.arch.removeprefix("sm_").lstrip("0123456789")


@dataclass(frozen=True)
class _Exported:
    """A plan: its code and its launch sequence in C++."""

    code: _Code
    steps: tuple[str, ...]
    #: Names of arguments that a launch passes on from its caller.
    passed: frozenset[str]
    #: Most values that one launch passes.
    values: int
    exclusive: bool

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        plan: Plan,
        records: Sequence[TunedRecord],
        given: _Given,
        scalars: Mapping[str, int],
    ) -> _Exported:
        """Trace a plan for the first device that has it."""
        if plan.configuration.keys() != kernel.parameters.keys():
            raise UsageError(
                f"{kernel.name}: its record has other parameters than it declares now; "
                f"tune it again: autotune run {kernel.name}"
            )
        chosen = plan.configuration
        origins = (
            record
            for record in records
            if any(other.configuration == chosen for other in record.plans())
        )
        device = next(origins, records[0]).device.planned_for()
        configuration = Configuration(plan.configuration)
        examples = _examples(kernel, records)
        binary = None
        if kernel.language:
            _refuse_specialised(kernel, configuration, device, scalars, examples)
            binary = compiled_for(kernel, configuration, examples[0], device, scalars)
        sequences = {
            _Sequence.of(kernel, configuration, device, given, problem, binary)
            for problem in examples
        }
        if len(sequences) > 1:
            raise UsageError(
                f"{kernel.name}: its launch depends on more than sizes, which a launcher cannot tell "
                "apart; declare a kernel for each"
            )
        (sequence,) = sequences
        if binary:
            code = _Code(configuration, binary.key, (), device.arch, binary.code)
        else:
            code = _code(kernel, configuration, device)
        for entry in () if binary else expressions(code.text, sequence.entries):
            raise UsageError(
                f"{kernel.name}: {entry} has no C linkage, so no launcher finds it; "
                f'write extern "C" __global__ before it in {kernel.source_file(configuration).name}'
            )
        exclusive = plan.exclusive or kernel.is_exclusive(configuration)
        return cls(code, sequence.steps, sequence.passed, sequence.values, exclusive)


def _refuse_specialised(
    kernel: Kernel,
    configuration: Configuration,
    device: Device,
    scalars: Mapping[str, int],
    examples: Sequence[Problem],
) -> None:
    """Raise `UsageError` where a problem's values, or types, are compiled in, so that no cubin is for all.

    A launcher takes the categorical values of the ``examples`` only, and aligned arrays.
    """
    served = {name: {each.get(name) for each in examples} for name in kernel.fields}
    asked = [
        each
        for each in kernel.all_problems()
        if not kernel.layout_of(each)
        and kernel.allows(configuration, each)
        and all(each[name] in served[name] for name in each if isinstance(each[name], str))
    ]
    jobs = [compile_job(kernel, configuration, each, device, scalars) for each in asked]
    found = [dict(job.defines) for job in jobs]
    for name in dict.fromkeys(name for symbols in found for name in symbols):
        # A function that a problem does not launch has no types there.
        values = {symbols.get(name) for symbols in found if name in symbols or name[0] != "("}
        if len(values) < 2:
            continue
        what = f"types of the arguments {name}" if name.startswith("(") else f"value of {name}"
        raise UsageError(
            f"{kernel.name}: the {what} depends on the problem and is compiled in, so that no cubin "
            "is for every problem; make it a parameter, or declare a kernel for each"
        )


def _examples(kernel: Kernel, records: Sequence[TunedRecord]) -> list[Problem]:
    problems = [Problem(entry.problem) for record in records for entry in record.problems]
    by_category = {
        tuple(value for value in problem.values() if isinstance(value, str)): problem
        for problem in problems or [kernel.first_problem("cuda")]
    }
    return list(by_category.values())


def _code(kernel: Kernel, configuration: Configuration, device: Device) -> _Code:
    options = kernel.compiler_options(configuration, device)
    archs = [option for option in options if option.startswith("sm_")]
    flags = [option for option in options if not option.startswith("sm_")]
    if not any("std=" in flag for flag in flags):
        flags.insert(0, "-std=c++17")
    # Nothing of a problem is compiled in: see `_Given.of`.
    text = source_of(kernel, configuration, kernel.first_problem("cuda"), device)
    return _Code(configuration, text, tuple(flags), archs[-1] if archs else device.arch)


# ---------------------------------------------------------------------- launch sequences


@dataclass(frozen=True)
class _Sequence:
    """The launch sequence of a configuration in C++, over the fields of the problem."""

    steps: tuple[str, ...]
    entries: tuple[str, ...]
    passed: frozenset[str]
    values: int

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        configuration: Configuration,
        device: Device,
        given: _Given,
        problem: Problem,
        binary: Binary | None = None,
    ) -> _Sequence:
        """Trace the sequence for a problem's categories, as the binary of a language wants it."""
        steps = traced(kernel, configuration, device, problem)
        if steps is None:
            raise UsageError(
                f"{kernel.name}: the launch of {configuration} cannot be written as a formula of the "
                "problem; write it with ceil_div, minimum and maximum in place of branches"
            )
        scratch = _scratch(kernel, configuration, device, problem)
        names = [*given.arguments, *scratch]
        if binary:
            entry = kernel.entry_of(configuration)
            named = (
                replace(step, entry=step.entry or entry) if isinstance(step, Launch) else step
                for step in steps
            )
            steps = completed(LaunchSequence(tuple(named)), binary, names).steps
        known = _Names(given, scratch)
        texts, entries, most = [], [], 1
        for step in steps:
            if isinstance(step, Fill):
                texts.append(known.fill(step))
                continue
            entry = step.entry or kernel.name
            entries.append(binary.symbol(entry) if binary else entry)
            passed = names if step.args is None else step.args
            most = max(most, len(passed))
            texts.append(known.launch(step, entries[-1], [known.slot(value) for value in passed]))
        return cls(tuple(texts), tuple(entries), frozenset(known.passed), most)


@dataclass(frozen=True)
class _Workspace:
    elements: Json
    dtype: np.dtype[Any]


def _scratch(
    kernel: Kernel, configuration: Configuration, device: Device, problem: Problem
) -> dict[str, _Workspace]:
    symbols = Problem(
        {name: Symbol(name) if isinstance(value, int) else value for name, value in problem.items()}
    )
    found = {}
    try:
        declared = kernel.workspaces(configuration, symbols, device)
        concrete = kernel.workspaces(configuration, problem, device)
        for name, out in declared.items():
            sizes = out.shape if isinstance(out.shape, tuple | list) else (out.shape,)
            elements = stored(reduce(mul, sizes))
            shape = np.atleast_1d(concrete[name].shape)
            if elements is None or value_of(elements, problem) != math.prod(map(int, shape)):
                raise UntraceableError(name)
            found[name] = _Workspace(elements, np.dtype(out.dtype))
    except (UntraceableError, SpecError, TypeError, ValueError, KeyError) as error:
        raise UsageError(
            f"{kernel.name}: the size of its scratch cannot be written as a formula of the problem "
            f"({error}); write it with ceil_div, minimum and maximum in place of branches"
        ) from error
    return found


class _Names:
    """The C++ text of the names in a launch sequence; notes the names that the caller passes."""

    def __init__(self, given: _Given, scratch: Mapping[str, _Workspace]) -> None:
        self._given, self._scratch = given, scratch
        self._kernel = given.kernel
        self.passed: set[str] = set()

    def launch(self, step: Launch, entry: str, slots: Sequence[str]) -> str:
        grid = _three(traced_numbers(step.grid) or (), "number{1}", expression)
        block = _three(step.block, "1", lambda size: str(int(size)))
        values = f"{int(step.shared_bytes)}, {{{', '.join(slots)}}}"
        return f'launch_(asked_, code_, "{entry}", extent_of({grid}), {{{block}}}, {values})'

    def fill(self, step: Fill) -> str:
        kernel = self._kernel.name
        if step.name in self._scratch:
            buffer = self._scratch[step.name]
            dtype, elements = buffer.dtype, buffer.elements
        elif step.name in self._given.elements:
            dtype = np.dtype(self._given.arguments[step.name].dtype)
            elements = self._given.elements[step.name]
        else:
            raise UsageError(
                f"{kernel}: launch fills {step.name}, whose size is no product of problem fields; "
                "fill it in the kernel"
            )
        raw, count = dtype.type(step.value).tobytes(), expression(elements)
        if len(raw) == 8 and raw[:4] == raw[4:]:
            raw, count = raw[:4], f"({count} * number{{2}})"
        if len(raw) not in (1, 2, 4):
            raise UsageError(
                f"{kernel}: launch fills {step.name} with {step.value!r} as {dtype}, which the driver "
                "cannot; fill it in the kernel"
            )
        bits = int.from_bytes(raw, "little")
        return f"fill_({self.slot(step.name)}, {count}, {bits}u, {len(raw)})"

    def slot(self, value: Any) -> str:
        """Return the C++ text of one kernel argument."""
        if isinstance(value, np.generic):
            kind = c_type(self._kernel, str(value), value.dtype)
            return f"bits_of_(static_cast<{kind}>({value.item()!r}))"
        if not isinstance(value, str):
            form = stored(value)
            if form is None:
                raise self._kernel.error(f"launch: argument {value!r} is no name and no integer")
            return f"whole_<std::int32_t>({expression(form)})"
        if value in self._scratch:
            buffer = self._scratch[value]
            size = expression(["*", buffer.elements, buffer.dtype.itemsize])
            return f"workspace_(where_, {list(self._scratch).index(value)}, {size})"
        if value not in self._given.arguments:
            raise self._kernel.error(f"launch: no argument {value!r}")
        argument = self._given.arguments[value]
        if value in self._given.fields:
            kind = c_type(self._kernel, value, np.dtype(argument.dtype))
            return f"whole_<{kind}>({identifier(value)})"
        self.passed.add(value)
        return f"given_(offsetof(arguments, {member(value)}))"


def c_type(kernel: Kernel, name: str, dtype: np.dtype[Any]) -> str:
    """Return the C++ type of a scalar."""
    if dtype.name not in _TYPES:
        raise UsageError(
            f"{kernel.name}: the scalar {name} is of type {dtype}, for which C++ has none; "
            f"pass one of {', '.join(_TYPES)}"
        )
    return _TYPES[dtype.name]


def member(name: str) -> str:
    """Return an argument's name as a member of the launcher's ``arguments``."""
    return identifier(name, ("arguments",))


def _three(sizes: Any, one: str, written: Callable[[Any], str]) -> str:
    several = sizes if isinstance(sizes, tuple | list) else (sizes,)
    return ", ".join([*map(written, several), one, one][:3])


# ---------------------------------------------------------------------- files


def _context(
    kernel: Kernel,
    writer: Writer,
    given: _Given,
    exported: Sequence[_Exported],
    names: Mapping[_Code, str],
) -> dict[str, Any]:
    passed = frozenset().union(*(each.passed for each in exported))
    name = identifier(kernel.name)
    fields = [
        {"name": cpp, "integer": writer.table.fields[field]} for field, cpp in writer.fields.items()
    ]
    types = [
        "long long" if integer else writer.enums[field].name
        for field, integer in writer.table.fields.items()
    ]
    folders = {record.device.folder: record.device.name for record in writer.records}
    sequences: dict[tuple[str, ...], list[int]] = {}
    for number, each in enumerate(exported):
        sequences.setdefault(each.steps, []).append(number)
    return {
        "kernel": name,
        "version": comment(__version__),
        "guard": f"AUTOTUNE_{name}_LAUNCH_HPP",
        "header": f"{kernel.name}.hpp",
        "first": next(iter(names.values())),
        "fields": fields,
        "asked": ", ".join(f"asked_.{field['name']}" for field in fields),
        "types": ", ".join(types),
        "arguments": [
            _argument(kernel, argument)
            for argument in given.arguments.values()
            if argument.name in passed
        ],
        "sources": [_source_row(each, names) for each in exported],
        "plans": [writer.plan_row(plan) for plan in writer.plans.values()],
        "parameters": list(writer.parameters.values()),
        "device_names": [json.dumps(folders[folder]) for folder in writer.devices.enumerators],
        "sequences": [
            {"cases": " ".join(f"case {number}:" for number in numbers), "steps": steps}
            for steps, numbers in sequences.items()
        ],
        # Where a problem needs the second of `_variants`.
        "general": " || ".join(
            f"asked_.{writer.fields[field]} % {ALIGNMENT} != 0"
            for field in sorted(given.fields)
            if len(exported) > len(writer.plans)
        ),
        "most_values": max(each.values for each in exported),
    }


def _argument(kernel: Kernel, argument: Argument) -> dict[str, Any]:
    dtype = np.dtype(argument.dtype)
    is_array = argument.kind != "scalar"
    use = {"input": "read", "out": "written", "inout": "read and written", "scalar": "a value"}
    return {
        "name": member(argument.name),
        "type": "CUdeviceptr" if is_array else c_type(kernel, argument.name, dtype),
        "about": f"{dtype.name}, {use[argument.kind]}",
        "is_array": is_array,
    }


def _source_row(each: _Exported, names: Mapping[_Code, str]) -> str:
    options = json.dumps(" ".join(each.code.options))
    exclusive = "true" if each.exclusive else "false"
    return f'"{names[each.code]}", {options}, "{each.code.suffix}", {exclusive}'


def _source(kernel: Kernel, records: Sequence[TunedRecord], code: _Code, name: str) -> str:
    """Return a source that stands alone: provenance, compile command, defines, text."""
    number = code.arch.removeprefix("sm_")
    target = f"-gencode arch=compute_{number},code=sm_{number}"
    lines = [
        f"A configuration of the kernel {kernel.name} as one source, with nothing to include.",
        "",
        f"Generated by autotune {__version__}. Do not edit: run `autotune export {kernel.name} cuda`.",
        "",
        f"nvcc {' '.join(code.options)} -cubin {target} -o {name}.cubin {name}.cu",
        "",
        f"  {code.configuration}",
        "",
        *_provenance(kernel, records, code.configuration),
    ]
    head = "".join(f"// {comment(line)}".rstrip() + "\n" for line in lines)
    return f"{head}\n{code.text.rstrip()}\n"


def _provenance(
    kernel: Kernel, records: Iterable[TunedRecord], configuration: Configuration
) -> Iterator[str]:
    for record in records:
        won = [e for e in record.problems if Configuration(e.configuration) == configuration]
        if won:
            yield f"Fastest on {origin(record)}, for"
            yield from (f"  {measured(entry)}" for entry in won)
    yield f"Sources: sha256 {source_fingerprint(kernel)}"
