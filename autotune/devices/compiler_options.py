"""Compiler options of a declaration, in the form that NVRTC and OpenCL take.

An element of a declaration's list is one option, or the value of the option before it. NVRTC takes the
elements as they are. OpenCL takes one text, in which platforms quote blanks differently: a macro is
therefore defined in the source, and only the path of a folder is quoted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from autotune.errors import SpecError

#: An option in the middle of an element.
_FURTHER = re.compile(
    r"\s(?=(?:-[DIU][\w/.~\"]|--[a-z]|-cl-|-std=|-O\d|-W\w|-use_fast_math|-maxrregcount|-lineinfo))"
)
#: A folder of headers.
_FOLDER = re.compile(r"(-I|--include-path|-isystem)([= ]*)(.*)", re.DOTALL)
#: A macro, in the same element or the next.
_MACRO = re.compile(r"(?:-D|--define-macro)[= ]*(.*)", re.DOTALL)
#: Options of NVRTC and nvcc that OpenCL does not have. ``--`` begins no option of OpenCL.
_CUDA_ONLY = re.compile(
    r"--[a-z]|sm_\d|-(?:std|arch|use_fast_math|maxrregcount|lineinfo|ftz|prec-sqrt|prec-div|fmad|Xptxas|G|dopt|rdc|dc"
    r"|dlto|ewp|restrict|extra-device-vectorization|default-device|minimal|opt-info|diag-\w+|gencode"
    r"|Xcompiler)(?:[= ]|$)"
)
_OPENCL_ONLY = re.compile(r"-cl-")
#: How a declaration gives an option to one backend.
_REMEDY = (
    "return it for {backend} alone: def options(c, device): return [{option!r}] if {test} else []"
)


def separate_options(options: Sequence[str]) -> tuple[str, ...]:
    """Return options without quotation marks around folders; `SpecError` if an element holds several."""
    for option in options:
        parts = _FURTHER.split(option)
        if len(parts) > 1:
            raise SpecError(
                f"{option!r} holds several options; give each as an element of the list: {parts}"
            )
    folders = [_FOLDER.fullmatch(option) for option in options]
    return tuple(
        f"{folder[1]}{folder[2]}{_unquoted(folder[3])}" if folder else option
        for option, folder in zip(options, folders, strict=True)
    )


def foreign_option(options: Sequence[str], is_cuda: bool) -> str:
    """Return a message if the backend does not have an option but the other one does; else empty."""
    foreign = _OPENCL_ONLY if is_cuda else _CUDA_ONLY
    here, there = ("CUDA", "OpenCL") if is_cuda else ("OpenCL", "CUDA")
    test = "not device.is_cuda" if is_cuda else "device.is_cuda"
    for option in options:
        if foreign.match(option):
            remedy = _REMEDY.format(backend=there, option=option, test=test)
            return f"{option} is an option of {there}, which {here} does not have; {remedy}"
    return ""


def opencl_options(options: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the options for an OpenCL build, with quoted folders, and the macros to define in the source."""
    flags, macros, rest = list[str](), dict[str, str](), list(options)
    while rest:
        option = rest.pop(0)
        if match := _MACRO.fullmatch(option):
            name, sign, value = (match[1] or (rest.pop(0) if rest else "")).partition("=")
            macros[name.strip()] = value if sign else "1"
        elif match := _FOLDER.fullmatch(option):
            folder = match[3] or (_unquoted(rest.pop(0)) if rest else "")
            flags.append(f"-I{_quoted(folder)}")
        else:
            flags.append(option)
    return flags, macros


def _unquoted(text: str) -> str:
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if is_quoted else text


def _quoted(folder: str) -> str:
    if not re.search(r"[\s'\"]", folder):
        return folder
    return '"' + folder.replace('"', '\\"') + '"'
