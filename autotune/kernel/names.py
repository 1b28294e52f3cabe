"""Which names a person may declare, and which values: of kernels, parameters, problem fields, arguments.

Names become files, C macros, attributes, and identifiers of C++ and Python. What one of these cannot
hold is refused where it is declared, and not after a search by the format that meets it.
"""

from __future__ import annotations

import keyword
import math
import re

from autotune.kernel.expression import MAX_INTEGER

#: Of C++20, alternative spellings included.
CPP_KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        """
        alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
        char32_t class compl concept const consteval constexpr constinit const_cast continue
        co_await co_return co_yield decltype default delete do double dynamic_cast else enum
        explicit export extern false float for friend goto if inline int long mutable namespace new
        noexcept not not_eq nullptr operator or or_eq private protected public register
        reinterpret_cast requires return short signed sizeof static static_assert static_cast struct
        switch template this thread_local throw true try typedef typeid typename union unsigned
        using virtual void volatile wchar_t while xor xor_eq
        """,
    )
)
#: What CUDA declares in every kernel.
_CUDA = frozenset(["threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize"])
_PYTHON = frozenset(keyword.kwlist)
#: No name ends with _ and none has two in a row, which C++ keeps for itself: an exporter that has to
#: tell a name apart from another puts _ behind it.
_NAME = re.compile(r"[A-Za-z](?:_?[A-Za-z0-9])*")
#: With what follows it in names of files, within what file systems allow.
_MOST_LETTERS = 100

#: What `lookup` is told beside the fields of a problem.
LOOKUP_ARGUMENTS = frozenset(("kernel", "arch", "device", "deterministic"))

#: Words that a kind of name cannot be, and what they are.
_TAKEN: dict[str, dict[str, frozenset[str]]] = {
    "kernel name": {},
    "parameter": {
        "a word of C++ or CUDA, and every parameter is a macro": CPP_KEYWORDS | _CUDA,
        "a word of Python, which rules could not name": _PYTHON,
        "what hooks and rules call the device": frozenset(("device",)),
    },
    "problem field": {
        "a word of Python, which hooks could not write": _PYTHON,
        "an argument of lookup": LOOKUP_ARGUMENTS,
    },
    "argument": {"a word of Python, which a reference could not name": _PYTHON},
}


def fault(kind: str, name: object) -> str:
    """What is wrong with a name of a kind of `_TAKEN`, and what would be right; empty: nothing."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _MOST_LETTERS:
        plain = re.sub(r"[^A-Za-z0-9]+", "_", str(name)).strip("_0123456789")[:_MOST_LETTERS]
        hint = f", for example {plain!r}" if _NAME.fullmatch(plain) else ""
        return (
            f"{kind} {name!r}: a letter, then letters, digits and single underscores between them, "
            f"{_MOST_LETTERS} at most{hint}"
        )
    for what, words in _TAKEN[kind].items():
        if name in words:
            return f"{kind} {name!r} is {what}; choose another, for example {name + '_0'!r}"
    return ""


def value_fault(value: object) -> str:
    """Why records cannot hold the value of a parameter or problem field; empty: they can."""
    if isinstance(value, float):
        return "" if math.isfinite(value) else "is no finite number"
    if isinstance(value, int):
        return "" if abs(value) <= MAX_INTEGER else "needs more than 64 bits"
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return "is not text that can be written"
    return ""
