"""Write one CUDA source per recorded configuration, and a C++ launcher for all of them.

The header of the same records chooses the configuration. Equal records, sources and declaration give
equal bytes. The text of the launcher is in ``launch.hpp.j2``.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from autotune import __version__
from autotune.answers.table import Plan
from autotune.compiling.binaries import compiled_for
from autotune.compiling.job import compile_job
from autotune.compiling.symbols import COMPUTED
from autotune.data.arguments import Argument
from autotune.devices.device import CLOCK_TOLERANCE, MEMORY_TOLERANCE, Device
from autotune.devices.nvrtc import expressions
from autotune.element_types import ENCODED_TYPES
from autotune.errors import UsageError
from autotune.export.cpp import comment, filled, identifier
from autotune.export.header import header_of, made_of, origin, time_text
from autotune.export.sequence import CppSequence
from autotune.export.signature import Signature, c_type, member
from autotune.export.writer import Writer
from autotune.kernel.catalog import find_kernel
from autotune.kernel.source import source_fingerprint, source_of
from autotune.kernel.spec import Kernel
from autotune.languages.base import ALIGNMENT, UNKNOWN
from autotune.tuned.merged import arch_number
from autotune.tuned.record import TunedRecord
from autotune.values import Configuration, Problem


def render(
    records: Sequence[TunedRecord], stale_reasons: Sequence[str] = ()
) -> dict[str, str | bytes]:
    """Return sources, launcher and header for the records of one kernel on CUDA devices.

    A kernel in another language than CUDA C++ has cubins instead of sources.

    Raises `UsageError` if a program without Python cannot launch the kernel, because it has compiled-in fields,
    module constants, or launches that cannot be traced.
    """
    known = [record for record in records if record.device.backend == "cuda"]
    if not known:
        raise UsageError(
            f"{records[0].kernel}: no record of a CUDA device; tune it on one, or give another folder of "
            "records with --from"
        )
    kernel = find_kernel(known[0].kernel)
    writer = Writer(known)
    known = writer.records  # sorted, so that the order of the argument does not matter
    signature = Signature.of(kernel)
    exported = [
        _Exported.of(kernel, plan, known, signature, scalars)
        for scalars in _variants(kernel, signature)
        for plan in writer.plans.values()
    ]
    # Plans of one configuration, on devices of different sizes, share a source.
    numbers: dict[_Code, int] = {}
    for launch in exported:
        numbers.setdefault(launch.code, len(numbers))
    names = {code: f"{kernel.name}_{number:02}" for code, number in numbers.items()}
    context = {
        **_context(kernel, writer, signature, exported, names),
        "about": made_of(writer, stale_reasons),
    }
    about = partial(_provenance, known, source_fingerprint(kernel))
    files: dict[str, str | bytes] = {
        f"{name}.cubin" if code.binary else f"{name}.cu": code.binary
        or _source(kernel, about, code, name)
        for code, name in names.items()
    }
    return {
        f"{kernel.name}_launch.hpp": filled("launch.hpp.j2", context),
        f"{kernel.name}.hpp": header_of(writer, stale_reasons),
        **files,
    }


def _variants(kernel: Kernel, signature: Signature) -> list[dict[str, int]]:
    """Return the integer scalars that a language may compile in, for each binary of a configuration.

    The first binary is for problems whose fields are all multiples of 16, the second for all others. In
    both, numbers computed by a launch count as unknown: they may be multiples of 16 in the declared problems only.
    """
    if kernel.language is None:
        return [{}]
    whole = [name for name, argument in signature.arguments.items() if _is_whole(argument)]
    unknown = dict.fromkeys([*whole, COMPUTED], UNKNOWN)
    return (
        [unknown | dict.fromkeys(signature.fields, ALIGNMENT), unknown]
        if signature.fields
        else [unknown]
    )


def _is_whole(argument: Argument) -> bool:
    return argument.kind == "scalar" and np.dtype(argument.dtype).kind in "iu"


@dataclass(frozen=True)
class _Code:
    """A source with its compiler options; plans that differ only in their grids share it."""

    configuration: Configuration
    text: str
    #: Compiler options without the architecture.
    options: tuple[str, ...]
    #: Architecture of the record; ``sm_90a`` if the code runs only on that architecture.
    arch: str
    #: Cubin of another language; empty for CUDA C++.
    binary: bytes = b""

    @property
    def suffix(self) -> str:
        """The architecture's letter, such as ``a`` of ``sm_90a``, if the code runs only there; else empty."""
        return self.arch.removeprefix("sm_").lstrip("0123456789")


@dataclass(frozen=True)
class _Exported:
    """A plan: its code and its launch sequence in C++."""

    code: _Code
    steps: tuple[str, ...]
    #: Names of the arguments that the caller passes to launches.
    passed: frozenset[str]
    #: Largest number of arguments of one launch.
    values: int
    exclusive: bool

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        plan: Plan,
        records: Sequence[TunedRecord],
        signature: Signature,
        scalars: Mapping[str, int],
    ) -> _Exported:
        """Trace a plan for the first device that uses it."""
        if not kernel.is_declared(plan.configuration):
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
            CppSequence.of(kernel, configuration, device, signature, problem, binary)
            for problem in examples
        }
        if len(sequences) > 1:
            raise UsageError(
                f"{kernel.name}: its launch differs between problems by more than sizes (such as dtype), and "
                "a launcher cannot tell these apart; declare one kernel for each such value"
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
    """Raise UsageError if values or types of a problem are compiled in, so that one cubin cannot serve all.

    A launcher takes only the categorical values of the ``examples``, and aligned arrays.
    """
    served = {name: {example.get(name) for example in examples} for name in kernel.fields}
    asked = [
        problem
        for problem in kernel.all_problems()
        if not kernel.layout_of(problem)
        and kernel.allows(configuration, problem)
        and all(problem[name] in served[name] for name in problem if isinstance(problem[name], str))
    ]
    jobs = [compile_job(kernel, configuration, problem, device, scalars) for problem in asked]
    found = [dict(job.defines) for job in jobs]
    for name in dict.fromkeys(name for symbols in found for name in symbols):
        # The types of a function are absent for problems that do not launch it.
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
    # Nothing of a problem is compiled in: see `Signature.of`.
    text = source_of(kernel, configuration, kernel.first_problem("cuda"), device)
    return _Code(configuration, text, tuple(flags), archs[-1] if archs else device.arch)


def _context(
    kernel: Kernel,
    writer: Writer,
    signature: Signature,
    exported: Sequence[_Exported],
    names: Mapping[_Code, str],
) -> dict[str, Any]:
    passed = frozenset().union(*(launch.passed for launch in exported))
    name = identifier(kernel.name)
    fields = [
        {"name": cpp, "integer": writer.table.fields[field]} for field, cpp in writer.fields.items()
    ]
    types = [
        "long long" if integer else writer.enums[field].name
        for field, integer in writer.table.fields.items()
    ]
    sequences: dict[tuple[str, ...], list[int]] = {}
    for number, launch in enumerate(exported):
        sequences.setdefault(launch.steps, []).append(number)
    return {
        "kernel": name,
        "version": comment(__version__),
        "guard": f"AUTOTUNE_{name}_LAUNCH_HPP",
        "header": f"{kernel.name}.hpp",
        "first": next(iter(names.values())),
        "fields": fields,
        "asked": ", ".join(f"asked_.{field['name']}" for field in fields),
        "types": ", ".join(types),
        "has_structs": any(argument.members for argument in signature.arguments.values()),
        "arguments": [
            _argument(kernel, argument)
            for argument in signature.arguments.values()
            if argument.name in passed
        ],
        "sources": [_source_row(launch, names) for launch in exported],
        "plans": [writer.plan_row(plan) for plan in writer.plans.values()],
        "launches": writer.launches,
        "attributed": writer.has_attributes,
        "parameters": writer.parameter_paths(),
        "tuned_devices": [_tuned_device(writer, key) for key in writer.devices.enumerators],
        "memory_tolerance": MEMORY_TOLERANCE,
        "clock_tolerance": CLOCK_TOLERANCE,
        "sequences": [
            {"cases": " ".join(f"case {number}:" for number in numbers), "steps": steps}
            for steps, numbers in sequences.items()
        ],
        # Condition under which a problem needs the second of `_variants`.
        "general": " || ".join(
            f"asked_.{writer.fields[field]} % {ALIGNMENT} != 0"
            for field in sorted(signature.fields)
            if len(exported) > len(writer.plans)
        ),
        "has_maps": any("mapped_(" in step for steps in sequences for step in steps),
        "most_values": max(launch.values for launch in exported),
    }


def _tuned_device(writer: Writer, key: str) -> str:
    """Return the name and the chip of a device of the table in C++."""
    recorded = writer.table.devices[key].device
    assert recorded is not None  # it is of a device, not of an architecture
    chip = recorded.chip
    numbers = arch_number(chip.arch), chip.multiprocessors, chip.memory_bytes, round(chip.max_mhz)
    return f"{json.dumps(recorded.name)}, {{{', '.join(map(str, numbers))}}}"


def _argument(kernel: Kernel, argument: Argument) -> dict[str, Any]:
    is_array = argument.kind != "scalar"
    use = {"input": "read", "out": "written", "inout": "read and written", "scalar": "a value"}
    return {
        "name": member(argument.name),
        "type": "CUdeviceptr" if is_array else _scalar_type(kernel, argument),
        "about": f"{_type(argument)}, {use[argument.kind]}",
        "is_array": is_array,
    }


def _scalar_type(kernel: Kernel, argument: Argument) -> str:
    """Return the C++ type of a scalar; the bytes of a structured one."""
    dtype = np.dtype(argument.dtype)
    if argument.members:
        return f"std::array<unsigned char, {dtype.itemsize}>"
    return c_type(kernel, argument.name, dtype)


def _type(argument: Argument) -> str:
    """Return the type of an argument's elements, with its name in CUDA C++ if NumPy lacks it."""
    if not argument.bits_of:
        return argument.type_name
    element = ENCODED_TYPES[argument.bits_of]
    header = f" of {element.header}" if element.header else ""
    return f"{element.name} ({element.cuda}{header})"


def _source_row(launch: _Exported, names: Mapping[_Code, str]) -> str:
    options = json.dumps("\n".join(launch.code.options))
    exclusive = "true" if launch.exclusive else "false"
    return f'"{names[launch.code]}", {options}, "{launch.code.suffix}", {exclusive}'


def _source(
    kernel: Kernel, about: Callable[[Configuration], Iterable[str]], code: _Code, name: str
) -> str:
    """Return a self-contained source: provenance by ``about``, compile command, defines, text."""
    number = code.arch.removeprefix("sm_")
    target = f"-gencode arch=compute_{number},code=sm_{number}"
    lines = [
        f"A configuration of the kernel {kernel.name} as one source, with nothing to include.",
        "",
        f"Generated by autotune {__version__}. Do not edit: run `autotune export {kernel.name} cuda`.",
        "",
        f"nvcc {shlex.join(code.options)} -cubin {target} -o {name}.cubin {name}.cu",
        "",
        f"  {code.configuration}",
        "",
        *about(code.configuration),
    ]
    head = "".join(f"// {comment(line)}".rstrip() + "\n" for line in lines)
    return f"{head}\n{code.text.rstrip()}\n"


def _provenance(
    records: Iterable[TunedRecord], sources: str, configuration: Configuration
) -> Iterator[str]:
    """Yield the problems that a configuration won, and ``sources``, the kernel's `source_fingerprint`."""
    for record in records:
        won = [e for e in record.problems if Configuration(e.configuration) == configuration]
        if won:
            yield f"Fastest on {origin(record)}, for"
            yield from (f"  {time_text(entry)}" for entry in won)
    yield f"Sources: sha256 {sources}"
