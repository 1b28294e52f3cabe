"""Names that a macro of a compile job replaces in its source, by mistake.

Parameters, static fields and defines are macros: a parameter ``x`` makes ``float x`` to ``float 64``, and
the compiler's message then names neither the parameter nor the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path

from autotune.compiling.job import CompileJob
from autotune.files import bundled_path

#: Headers whose words a macro must not replace.
_DIALECT = ("dialect.h", "dialect_math.h")
#: Words that a header defines: macros, functions and types. A kernel may define the macro of group 1 first.
_WORD = re.compile(
    r"#ifndef (\w+)\n(?:[ ]*)#define \1\b|^#define (\w+)"
    r"|^(?:static inline|DEVICE|DIALECT_OVERLOAD) \w+ (\w+)\(|^typedef [\w ]+ (\w+);",
    re.MULTILINE,
)
#: Comments, literals and directives, which declare no name.
_NO_CODE = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|^[ \t]*#(?:\\\n|[^\n])*",
    re.MULTILINE | re.DOTALL,
)
#: A declared name: after the name of a type, a pointer to a basic type or ``auto&``, before the rest of a declaration.
_DECLARED = re.compile(
    r"\b(?P<type>[A-Za-z_]\w*)(?:\s+|\s*(?P<pointer>[*&]+)\s*(?:(?:const|volatile|RESTRICT|restrict|__restrict__)\s+)*)"
    r"(?P<name>[A-Za-z_]\w*)\s*(?=[=;,)\[({:])"
)
#: Basic types, after which ``*`` and ``&`` are no operators.
_BASIC = frozenset(
    re.findall(r"\w+", "auto bool char double float half int long short unsigned void size_t")
)
#: Words before a name that declare nothing.
_NO_TYPE = frozenset(
    re.findall(
        r"\w+",
        """
        return else case goto sizeof new delete throw do and or not xor typename class struct union enum
        const volatile constexpr static inline extern register mutable template using namespace operator signed
        restrict RESTRICT GLOBAL SHARED SHARED_PTR DEVICE __restrict__ __shared__ __device__ __constant__
        __global __local __constant __private __kernel __global__ co_return co_yield co_await
        """,
    )
)
#: Beginning of a declaration in a line of a header, as far as the name; often a parameter of a template.
_BEFORE_NAME = re.compile(
    r"\b(?:auto|bool|class|double|float|int|typename|unsigned|\w+_t)(?:\s*\.\.\.)?\s+"
)
#: What to do about a macro that replaces a name of somebody else's header.
_NO_MACRO = "rename the parameter or field, or return the macros without it by @k.defines"
#: The value of a macro that stands for a type or a function, which a source may use in a declaration.
_TYPE_NAME = re.compile(r"[A-Za-z_][\w:<>, *&]*")


def replaced_word(job: CompileJob) -> str:
    """Return a message if a macro of a job is a word of `dialect.h` that its source includes; else empty."""
    for header in _DIALECT:
        if f'#line 1 "{header}"' in job.source:
            for name, _ in job.defines:
                if name in _words(header):
                    return (
                        f"the parameter or macro {name} is a word of {header}; rename it, for example "
                        f"{name}_0"
                    )
    return ""


def replaced_name(job: CompileJob, log: str = "") -> str:
    """Return a message if a macro of a job replaces a name that its source declares; else empty.

    A compiler rejects most of such sources, so call this after an error: the search of the source is rough.
    The log of the compiler quotes lines of headers that the source does not contain.
    """
    places = _declared(job.source)
    for name, value in job.defines:
        is_word = value.startswith(f"{name}_")  # the value of a parameter that is a text
        if is_word or not _TYPE_NAME.fullmatch(value):
            place = places.get(name) or _quoted(name, log)
            if place:
                return f"the parameter or macro {name} replaces the name {name} in {place}; " + (
                    "rename one of the two" if name in places else _NO_MACRO
                )
    return ""


def _quoted(name: str, log: str) -> str:
    """Return the line of a compile log that declares a name after an error; empty if there is none."""
    declared = re.compile(rf"{_BEFORE_NAME.pattern}{re.escape(name)}\b")
    for line, after in pairwise(log.splitlines()):
        if ": error: " in line and declared.search(after):
            return f"'{after.strip()}'"
    return ""


@cache
def _words(header: str) -> frozenset[str]:
    text = Path(bundled_path("kernels"), header).read_text(encoding="utf-8")
    return frozenset(word for found in _WORD.findall(text) for word in found[1:] if word)


@lru_cache(8)
def _declared(source: str) -> Mapping[str, str]:
    """Return the names that a source declares, each with the first declaration in quotation marks."""
    code = _NO_CODE.sub(" ", source)
    found: dict[str, str] = {}
    for match in _DECLARED.finditer(code):
        kind, is_pointer = match["type"], match["pointer"]
        if kind not in _NO_TYPE and (not is_pointer or kind in _BASIC):
            found.setdefault(match["name"], f"'{' '.join(match[0].split())}'")
    return found
