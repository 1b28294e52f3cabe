"""Compiles a `triton.jit` function to a cubin for any architecture, without a GPU or driver.

The types of arguments are symbols, specialised as Triton does: an integer that is 1 is compiled in.
The compiler also gets to know which integers and addresses are multiples of 16.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tempfile
import threading
import warnings
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from autotune.devices import nvrtc
from autotune.devices.base import (
    GLOBAL_SCRATCH,
    Binary,
    CompiledFunction,
    CompileError,
    Convention,
    ResourceError,
)
from autotune.devices.device import Device, for_arch
from autotune.element_types import ELEMENT_TYPES
from autotune.errors import MissingDependencyError, SpecError
from autotune.languages import ptx, slices
from autotune.languages.base import ALIGNMENT, Files, PassedValue
from autotune.syntax import parsed
from autotune.values import Value

#: Triton's names of types; it has none for 4-bit types and powers of two, and gets their bytes.
TYPES = {name: element.triton for name, element in ELEMENT_TYPES.items() if element.triton}
#: Scalar types whose values Triton does not specialise for.
_NEVER_SPECIALISED = ("i1", "fp16", "fp32", "fp64")
#: Threads per warp.
_WARP = 32
#: Warps per block without a parameter ``num_warps``: Triton's default.
_DEFAULT_WARPS = 4
#: Texts with which the assembler or Triton reports that a resource limit is exceeded.
_OUT_OF_RESOURCES = ("uses too much shared data", "out of resource")
#: Option that keeps source lines in the binary; nvcc has the same.
_LINES = "-lineinfo"
#: Metadata of binaries that a plain launch cannot run.
_UNSUPPORTED = ("profile_scratch_size",)
#: Name of the symbol with the types of a function's arguments.
SIGNATURE = "({})"


#: Serialises compiles: each one changes the standard error and Triton's settings of the process.
_compile_lock = threading.Lock()


class TritonLanguage:
    """Triton as a `Language`."""

    backends: tuple[str, ...] = ("cuda",)
    interpreter = "interpreter"
    options = frozenset(
        {
            *("num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion"),
            *("launch_cooperative_grid", "launch_pdl"),
        }
    )

    def source(self, file: Path, functions: Sequence[str], files: Files) -> str:
        return slices.cut(file, functions, files)

    def symbols(
        self,
        source: str,
        function: str,
        launches: Sequence[Sequence[PassedValue]],
        values: Mapping[str, Value],
    ) -> dict[str, str]:
        parameters = slices.function_parameters(source, function)
        constants = [
            parameter
            for parameter in parameters
            if parameter.annotation == "constexpr" or values.get(parameter.name, 0) is None
        ]
        runtime = [parameter for parameter in parameters if parameter not in constants]
        names = [parameter.name for parameter in runtime]
        for passed in launches:
            _check_passed(function, names, [argument.name for argument in passed])
        missing = [
            parameter.name
            for parameter in constants
            if not (parameter.has_default or parameter.name in values)
        ]
        if missing:
            raise SpecError(
                f"the constexpr {', '.join(missing)} of {function} is neither a parameter nor a "
                f"field of static: give Kernel(..., {missing[0]}=(...))"
            )
        taken = {parameter.name for parameter in constants} | self.options
        made = {name: json.dumps(values[name]) for name in sorted(taken & values.keys())}
        types = [
            _specialised([passed[place] for passed in launches], parameter.named_in)
            for place, parameter in enumerate(runtime)
        ]
        return {**made, SIGNATURE.format(function): " ".join(types)}

    def block(self, values: Mapping[str, Value]) -> tuple[int, ...]:
        return (_WARP * int(values.get("num_warps", _DEFAULT_WARPS)),)

    def toolchain(self) -> str:
        try:
            return f"triton {version('triton')}"
        except PackageNotFoundError as error:
            raise MissingDependencyError("triton", "triton", "compiling Triton") from error

    def load_compiler(self) -> None:
        if "triton" not in sys.modules:
            os.environ.pop("TRITON_INTERPRET", None)
        self.compile(_WARM_UP, {"(nothing)": ""}, (), for_arch("sm_90"), ("nothing",))

    def compile(
        self,
        source: str,
        defines: Mapping[str, str],
        options: Sequence[str],
        device: Device,
        entries: Sequence[str] = (),
    ) -> Binary:
        self.toolchain()
        with _compile_lock, _quiet() as log:
            try:
                with _settings(options):
                    parts = [_compiled(source, name, defines, options, device) for name in entries]
                    code = _assembled([made for made, _ in parts], defines, options, device)
            except Exception as error:
                raise _compile_error(error, log()) from error
            # If a function was assembled twice, the last report is that of the binary.
            reported = {entry.name: entry for entry in nvrtc.compiled_functions(log())}
        functions = (
            _compiled_function(name, *part, reported)
            for name, part in zip(entries, parts, strict=True)
        )
        return Binary(code, tuple(functions), "", key="")


_WARM_UP = """#: module nothing
import triton
@triton.jit
def nothing():
    pass
"""


def _compiled_function(
    name: str, made: Any, passed: Sequence[int], reported: Mapping[str, CompiledFunction]
) -> CompiledFunction:
    """Return the resources and the launch convention of a kernel that Triton compiled."""
    metadata = made.metadata
    for feature in _UNSUPPORTED:
        if getattr(metadata, feature, 0):
            raise CompileError(f"{name} needs {feature}, which launches here do not support")
    given = len(set(re.findall(rf"\b{metadata.name}_param_(\d+)", made.asm["ptx"])))
    # Two pointers follow the arguments: to global scratch memory, and to that of a profiler.
    scratch_bytes = int(getattr(metadata, "global_scratch_size", 0))
    pointers = [GLOBAL_SCRATCH if scratch_bytes else None, None]
    convention = Convention(
        block=_WARP * int(metadata.num_warps),
        shared_bytes=int(metadata.shared),
        passed=(*passed, *pointers[: given - len(passed)]),
        blocks=int(metadata.num_ctas),
        scratch_bytes=scratch_bytes,
        cooperative=bool(getattr(metadata, "launch_cooperative_grid", False)),
        programmatic=bool(getattr(metadata, "launch_pdl", False)),
    )
    found = reported.get(metadata.name, CompiledFunction(name))
    return CompiledFunction(
        name,
        found.registers,
        found.spill_bytes,
        shared_bytes=0,
        symbol=metadata.name,
        convention=convention,
    )


def _check_passed(function: str, names: Sequence[str], passed: Sequence[str]) -> None:
    """Raise `SpecError` if a launch passes a wrong number of arguments, or the names in another order."""
    is_shuffled = sorted(names) == sorted(passed) and list(names) != list(passed)
    if len(names) != len(passed) or is_shuffled:
        raise SpecError(
            f"{function} takes ({', '.join(names)}), and its launch passes "
            f"({', '.join(name or 'a number' for name in passed)}): without constexpr arguments, both "
            "must agree in number and order"
        )


def _specialised(passed: Sequence[PassedValue], named_in: Sequence[str]) -> str:
    """Return the type of an argument, specialised for all its launches: ``i32=1``, ``*fp32%16``.

    ``named_in`` are the options of `triton.jit` that name the argument and so limit specialisation.
    """
    kinds = {("*" if value.value is None else "") + TYPES.get(value.dtype, "") for value in passed}
    (kind, *others) = sorted(kinds)
    if others or kind in ("", "*"):
        raise SpecError(
            f"argument {passed[0].name!r}: Triton has no type for {passed[0].dtype}, or launches pass "
            "different types"
        )
    numbers = [value.offset_bytes if value.value is None else value.value for value in passed]
    if kind in _NEVER_SPECIALISED or "do_not_specialize" in named_in:
        return kind
    if not kind.startswith("*") and all(number == 1 for number in numbers):
        return f"{kind}=1"
    is_aligned = all(number % ALIGNMENT == 0 for number in numbers)
    return kind + "%16" * (is_aligned and "do_not_specialize_on_alignment" not in named_in)


def jit_function(source: str, name: str) -> Any:
    """Run a source and return its `triton.jit` function without other decorators."""
    function = slices.run_slice(source, name)
    while hasattr(getattr(function, "fn", None), "fn"):
        function = function.fn
    if not hasattr(function, "arg_names"):
        raise CompileError(f"{name} is not a function with the decorator @triton.jit")
    return function


def constants_of(source: str, name: str, defines: Mapping[str, str]) -> dict[str, Any]:
    """Return a function's constants: constexpr arguments with a symbol, and arguments that are None."""
    known = {
        parameter: json.loads(defines[parameter.name])
        for parameter in slices.function_parameters(source, name)
        if parameter.name in defines
    }
    # A symbol of another function may have the name of a runtime argument of this function.
    return {
        parameter.name: value
        for parameter, value in known.items()
        if parameter.annotation == "constexpr" or value is None
    }


def _compiled(
    source: str, name: str, defines: Mapping[str, str], options: Sequence[str], device: Device
) -> tuple[Any, list[int]]:
    """Return Triton's compiled kernel, and the positions of the arguments that launches pass."""
    from triton import compile as triton_compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = iter(enumerate(defines[SIGNATURE.format(name)].split()))
    function, given = jit_function(source, name), constants_of(source, name, defines)
    if not hasattr(function, "params"):
        raise CompileError("Triton interprets instead of compiling; unset TRITON_INTERPRET")
    signature, constants, attributes, passed = {}, {}, {}, []
    for place, parameter in enumerate(function.params):
        if parameter.is_constexpr or parameter.name in given:
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = given.get(parameter.name, parameter.default)
            continue
        position, text = next(types)
        kind, mark, _ = re.split(r"(=1|%16|$)", text, maxsplit=1)
        if mark == "=1" and not parameter.do_not_specialize:
            signature[parameter.name], constants[parameter.name] = "constexpr", 1
            continue
        if parameter.annotation_type not in ("", kind):
            raise CompileError(
                f"{name}: {parameter.name} is annotated as {parameter.annotation_type}, but its launch "
                f"passes {kind}"
            )
        passed.append(position)
        signature[parameter.name] = kind
        aligns = not (parameter.do_not_specialize or parameter.do_not_specialize_on_alignment)
        if mark == "%16" and aligns:
            attributes[(place,)] = [["tt.divisibility", ALIGNMENT]]
    made = triton_compile(
        ASTSource(function, signature, constants, attributes),
        target=GPUTarget("cuda", device.compute_capability, _WARP),
        options=_chosen(defines, options),
    )
    return made, passed


def _assembled(
    kernels: Sequence[Any], defines: Mapping[str, str], options: Sequence[str], device: Device
) -> bytes:
    """Return one cubin with all compiled kernels."""
    if len(kernels) == 1:
        return bytes(kernels[0].asm["cubin"])
    from triton.backends.compiler import GPUTarget, Language
    from triton.compiler import make_backend

    backend = make_backend(GPUTarget("cuda", device.compute_capability, _WARP))
    stages: dict[str, Any] = {}
    backend.add_stages(stages, backend.parse_options(_chosen(defines, options)), Language.TRITON)
    return bytes(stages["cubin"](ptx.join([kernel.asm["ptx"] for kernel in kernels]), {}))


def _chosen(defines: Mapping[str, str], options: Sequence[str]) -> dict[str, Any]:
    """Return Triton's options of a configuration."""
    chosen: dict[str, Any] = {"enable_fp_fusion": True}
    for name in TritonLanguage.options & defines.keys():
        chosen[name] = json.loads(defines[name])
    for option in options:
        if option == _LINES:
            continue
        key, is_given, value = option.partition("=")
        if not is_given:
            raise CompileError(
                f"option {option!r}: expected an option of Triton, such as 'num_warps=8'"
            )
        chosen[key] = parsed(partial(literal_eval, value))
    return chosen


@contextmanager
def _settings(options: Sequence[str]) -> Iterator[None]:
    """Make Triton report resources, use an empty cache, and keep source lines only on request."""
    from triton import knobs

    with ExitStack() as stack:
        for group in (knobs.cache, knobs.nvidia, knobs.compilation):
            stack.enter_context(group.scope())
        knobs.cache.dir = stack.enter_context(tempfile.TemporaryDirectory())
        knobs.nvidia.dump_ptxas_log = True
        # Line information contains folders, so equal kernels would have different binaries.
        knobs.compilation.disable_line_info = _LINES not in options
        yield


def _compile_error(error: Exception, log: str) -> CompileError:
    """Return a compile error whose first line has the cause and its line in the function."""
    if isinstance(error, CompileError | SpecError):
        return CompileError(str(error))
    inner: BaseException = error
    while inner.__cause__ is not None and not getattr(inner, "error_message", ""):
        inner = inner.__cause__
    message = getattr(inner, "error_message", "") or str(inner) or type(inner).__name__
    text, line = getattr(error, "src", ""), getattr(getattr(error, "node", None), "lineno", 0)
    where, source_lines = "", text.split("\n")
    # For an error in a called function, Triton gives that function's text with the caller's line.
    if text and 0 < line <= len(source_lines):
        wrong = source_lines[line - 1].strip()
        where = f" (line {line} of the function: {wrong})"
    lines = [line.strip() for line in f"{message}\n{log}".splitlines() if line.strip()]
    failed = next((line for line in lines if "error:" in line), lines[0])
    is_out = any(phrase in message + log for phrase in _OUT_OF_RESOURCES)
    kind = ResourceError if is_out else CompileError
    return kind(f"error: {failed}{where}")


@contextmanager
def _quiet() -> Iterator[Any]:
    """Capture the output of Triton's Python and C++ code; yield a function that returns it."""
    printed = io.StringIO()
    with tempfile.TemporaryFile("w+") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.stderr.flush()
        stderr = os.dup(2)
        os.dup2(file.fileno(), 2)

        def log() -> str:
            file.seek(0)
            return printed.getvalue() + file.read()

        try:
            with redirect_stdout(printed):
                yield log
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
