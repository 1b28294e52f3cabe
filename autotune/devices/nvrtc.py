"""Compiles CUDA C++ to a cubin with NVRTC, for any architecture, without a device or driver."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import which
from typing import Any

from autotune.devices.base import CompiledFunction, CompileError, ResourceError
from autotune.errors import MissingDependencyError, install

_REPORT = re.compile(
    r"Compiling entry function '(?P<name>[^']+)'.*?"
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)
_SHARED = re.compile(r"(\d+) bytes smem")
#: Error of the assembler if static shared memory exceeds the limit.
_EXCEEDS_SHARED = "uses too much shared data"
#: Prefixes of lines of the log that report resources, not warnings.
_REPORT_PREFIXES = ("ptxas info", "ptxas         .")

#: Name of each source. NVRTC would search the folder of the name, and the working folder is a matter of chance.
_NAME = b"/nonexistent/kernel.cu"

#: Folder with standard headers of C++ as NVRTC can compile them, mostly by libcu++.
STANDARD_HEADERS = Path(__file__).parent / "nvrtc_headers"
#: Error of a compile without a header.
_NO_HEADER = re.compile(r"^.*cannot open source file \"(?P<header>[^\"]+)\".*$", re.MULTILINE)
#: Error of a compile with an unknown option.
_NO_OPTION = re.compile(r"^.*unrecognized option.*$", re.MULTILINE)
#: Headers that the CUDA packages of this project have, by the beginning of their names.
_OF_CUDA = re.compile(
    r"(?:cub|cuda|cooperative_groups|nv|thrust|crt)/|(?:cuda|cooperative_groups|mma|vector_types)\w*\.h"
)
#: Headers of the operating system and of libraries that the host calls, by the beginning of their names.
_OF_HOST = re.compile(
    r"(?:sys|arpa|netinet)/|(?:time|unistd|signal|errno|fcntl|pthread|getopt|omp|mpi|nccl|nvml)\.h"
    r"|(?:cublas|cudnn|cufft|cusolver|cusparse|helper_)\w*\.h"
)
_IS_HOST_CODE = "put host code under #ifndef __CUDACC_RTC__"
#: Error of host code, which NVRTC refuses.
_HOST_CODE = re.compile(r"^.*considered a host (?:variable|function).*$", re.MULTILINE)
#: Error of a name that nvcc finds in a header of its own, and those headers.
_UNDEFINED = re.compile(r"^.*error: identifier \"(?P<name>\w+)\" is undefined$", re.MULTILINE)
_HEADERS_OF_NAMES = {
    r"INFINITY|NAN|HUGE_VALF?|M_\w+": "<cmath>",
    r"(?:FLT|DBL)_\w+": "<cfloat>",
    r"(?:CHAR|SHRT|INT|LONG|UCHAR|USHRT|UINT|ULONG)_(?:MIN|MAX)": "<climits>",
    r"u?int(?:8|16|32|64|ptr)_t|U?INT(?:8|16|32|64)_(?:MIN|MAX)": "<cstdint>",
    r"assert": "<cassert>",
    r"cudaGridDependencySynchronize|cudaTriggerProgrammaticLaunchCompletion": "<cuda_device_runtime_api.h>",
    r"(?:__)?half2?": "<cuda_fp16.h>",
    r"(?:__)?nv_bfloat16\w*": "<cuda_bf16.h>",
    r"CUtensorMap": "<cuda.h>",
}
#: Place of errors in the names of the functions to instantiate, which are no part of the source.
_OF_NAMES = "__nv_name_map("
#: Packages of other headers, by the beginning of their names.
_PACKAGES = {
    r"curand": "pip install nvidia-curand",
    r"(?:cutlass|cute)/": "pip install nvidia-cutlass, and give its folder: -I.../cutlass_library/source/include",
}

#: NVIDIA's Python package with compute-sanitizer.
SANITIZER_PACKAGE = "nvidia-cuda-sanitizer-api"


def nvrtc() -> Any:
    """Return the Python binding of NVRTC."""
    try:
        from cuda.bindings import nvrtc as binding
    except ImportError as error:
        raise MissingDependencyError("cuda.bindings", "nvrtc", "compiling CUDA") from error
    return binding


@cache
def nvrtc_version() -> str:
    """Return NVRTC's version, for example ``nvrtc 13.0``."""
    status, major, minor = nvrtc().nvrtcVersion()
    _check(status)
    return f"nvrtc {major}.{minor}"


@cache
def include_options() -> tuple[str, ...]:
    """Return the ``-I`` options of the headers of CUDA, CCCL and cuRAND."""
    from cuda.pathfinder import find_nvidia_header_directory

    folders = []
    for component in ("cudart", "cccl", "curand"):
        try:
            folder = find_nvidia_header_directory(component)
        except Exception:  # pathfinder raises several types for "not installed"
            folder = None
        if folder and Path(folder).is_dir():
            folders.append(f"-I{folder}")
    return tuple(dict.fromkeys(folders))


@dataclass(frozen=True)
class Compilation:
    """The result of compiling a source."""

    code: bytes
    log: str
    #: Name in the code by name expression.
    symbols: dict[str, str]


def compile_cubin(source: str, options: Sequence[str], names: Sequence[str] = ()) -> Compilation:
    """Compile a source to a cubin, with the assembler's resource report in the log.

    ``options`` name the architecture. ``names`` are name expressions of functions without C linkage, for
    example ``scale<128>``. NVRTC instantiates them, and the result has their names in the code.
    """
    return _compiled(source, [*options, "--ptxas-options=-v", *_without_cache()], names, "CUBIN")


@cache
def _without_cache() -> tuple[str, ...]:
    """Return the option that disables NVRTC's cache (CUDA 12.9 and later): cached code has no report."""
    _, major, minor = nvrtc().nvrtcVersion()
    return ("--no-cache",) if (major, minor) >= (12, 9) else ()


def compile_ptx(source: str, options: Sequence[str], names: Sequence[str] = ()) -> str:
    """Compile a source to PTX; ``options`` name a virtual architecture (``compute_90``)."""
    return _compiled(source, options, names, "PTX").code.rstrip(b"\0").decode()


def _compiled(source: str, options: Sequence[str], names: Sequence[str], form: str) -> Compilation:
    """Run NVRTC; ``form`` is ``CUBIN`` or ``PTX``. CompileError has the log."""
    binding = nvrtc()
    text = f'#line 1 "kernel.cu"\n{source}'.encode()
    status, program = binding.nvrtcCreateProgram(text, _NAME, 0, [], [])
    _check(status)
    try:
        for name in names:
            _check(binding.nvrtcAddNameExpression(program, name.encode())[0])
        folders = (f"-I{STANDARD_HEADERS}", *include_options())
        arguments = [option.encode() for option in (*options, *folders)]
        (status,) = binding.nvrtcCompileProgram(program, len(arguments), arguments)
        _, size = binding.nvrtcGetProgramLogSize(program)
        buffer = bytearray(size)
        binding.nvrtcGetProgramLog(program, buffer)
        log = bytes(buffer).replace(b"\0", b"").decode(errors="replace")
        if status != binding.nvrtcResult.NVRTC_SUCCESS:
            kind = ResourceError if _EXCEEDS_SHARED in log else CompileError
            raise kind(_with_remedy(log).strip() or str(status))
        _, size = getattr(binding, f"nvrtcGet{form}Size")(program)
        code = bytearray(size)
        getattr(binding, f"nvrtcGet{form}")(program, code)
        lowered = {name: binding.nvrtcGetLoweredName(program, name.encode())[1] for name in names}
        return Compilation(bytes(code), log, {name: low.decode() for name, low in lowered.items()})
    finally:
        binding.nvrtcDestroyProgram(program)


def _with_remedy(log: str) -> str:
    """Return a log whose error about an option, a header or a name says what to do."""
    if match := _NO_OPTION.search(log):
        return f"{match[0]}; NVRTC lacks some options of nvcc: leave it out of the options hook"
    if match := _NO_HEADER.search(log):
        return _after(match, _remedy_of_header(match["header"]))
    if match := _HOST_CODE.search(log):
        return _after(match, f"{_IS_HOST_CODE}, or give -default-device in the options hook")
    if match := _UNDEFINED.search(log):
        return _after(match, _remedy_of_name(match["name"], _OF_NAMES in match[0]))
    return log


def _after(match: re.Match[str], remedy: str) -> str:
    """Return the log of a match with a remedy after the error."""
    log = match.string
    return f"{log[: match.end()]}; {remedy}{log[match.end() :]}" if remedy else log


def _remedy_of_header(header: str) -> str:
    of_package = [text for start, text in _PACKAGES.items() if re.match(start, header)]
    if _OF_CUDA.match(header):
        return install("nvrtc")
    if of_package:
        return of_package[0]
    if _OF_HOST.match(header) or "." not in header:
        return "NVRTC has no host code; put the include under #ifndef __CUDACC_RTC__"
    return 'name its folder: @k.options with [f"-I{Path(__file__).parent}"]'


def _remedy_of_name(name: str, is_entry: bool) -> str:
    if is_entry:
        return f"the source has no kernel {name}: name one by Launch(entry=...)"
    headers = (header for names, header in _HEADERS_OF_NAMES.items() if re.fullmatch(names, name))
    return "".join(f"nvcc includes its header, NVRTC does not: #include {h}" for h in headers)


def expressions(source: str, entries: Sequence[str]) -> list[str]:
    """Return the entries that NVRTC needs as name expressions: templates, and functions without C linkage."""
    has_c_linkage = 'extern "C"' in source
    return [entry for entry in entries if not (has_c_linkage and entry.isidentifier())]


def compiled_functions(log: str) -> tuple[CompiledFunction, ...]:
    """Read the resources of each kernel function from the compile log."""
    found = []
    for match in _REPORT.finditer(log):
        shared = _SHARED.search(match["rest"])
        found.append(
            CompiledFunction(
                name=match["name"],
                registers=int(match["registers"]),
                spill_bytes=int(match["stores"]) + int(match["loads"]),
                shared_bytes=int(shared[1]) if shared else 0,
            )
        )
    return tuple(found)


def log_warnings(log: str) -> str:
    """Return the compile log without the resource report."""
    lines = [
        line for line in log.splitlines() if line.strip() and not line.startswith(_REPORT_PREFIXES)
    ]
    return "\n".join(lines)


def _check(status: Any) -> None:
    if int(status) != 0:
        raise CompileError(f"NVRTC failed: {status}")


def find_program(name: str) -> str:
    """Return the path of a program of CUDA such as ``nvcc``; empty if it is not found."""
    toolkits = (os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda")
    places = os.pathsep.join(str(Path(toolkit, "bin")) for toolkit in toolkits if toolkit)
    return which(name) or which(name, path=places) or _packaged(name)


def _packaged(name: str) -> str:
    with suppress(Exception):  # no pathfinder, or an unknown name
        from cuda.pathfinder import find_nvidia_binary_utility

        return find_nvidia_binary_utility(name) or ""
    return ""
