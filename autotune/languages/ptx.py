"""Joins the PTX of functions that Triton compiled separately, so that one cubin holds all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Directives at the start of every text; they are equal in all texts of a kernel.
_HEAD = re.compile(r"^\.(?:version|target|address_size)\b.*\n", re.MULTILINE)
#: Declarations whose names are private to a text: constants, and functions that are not inlined.
_OWN = re.compile(
    r"^\.(?:(?:global|const)\s[^\[;=]*?([\w$]+)\s*[\[;=]|func\s+(?:\([^)]*\)\s*)?([\w$]+))",
    re.MULTILINE,
)
#: A name. The prefix % marks a register, which is never private to a text.
_NAME = re.compile(r"%?[\w$]+")
#: Directives with source lines; the number is that of the file.
_LINE = re.compile(r"^(\s*\.(?:loc|file)\s+)(\d+)", re.MULTILINE)
#: The call site of an inlined line; it refers to the debug section, which is removed.
_INLINED = re.compile(r", function_name \S+, inlined_at \d+ \d+ \d+")
#: A debug section.
_SECTION = re.compile(r"^\s*\.section\s[^{]*\{[^}]*\}", re.MULTILINE)
#: Distance between the file numbers of two texts: more files than one function has lines from.
_FILES_PER_TEXT = 1000


def join(texts: Sequence[str]) -> str:
    """Return one text with the functions of all texts; their source lines stay."""
    return "\n".join(_part(text, number) for number, text in enumerate(texts))


def _part(text: str, number: int) -> str:
    """Return a text for joining: in every text but the first, rename names and renumber files."""
    text = _INLINED.sub("", _SECTION.sub("", text))
    if number == 0:
        return text
    text = _LINE.sub(lambda match: f"{match[1]}{int(match[2]) + number * _FILES_PER_TEXT}", text)
    names = {match[1] or match[2] for match in _OWN.finditer(text)}
    # The suffix is one that Triton does not write: x renamed to x_1 could collide with another x_1.
    text = _NAME.sub(
        lambda match: f"{match[0]}$part{number}" if match[0] in names else match[0], text
    )
    return _HEAD.sub("", text)
