"""Joins the PTX of functions that Triton compiled one by one, so that one cubin has all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Directives that a text begins with, the same in all texts.
_HEAD = re.compile(r"^\.(?:version|target|address_size)\b.*\n", re.MULTILINE)
#: Names at the top of a text that no other text means: constants, and functions that are not inlined.
_OWN = re.compile(
    r"^\.(?:(?:global|const)\s[^\[;=]*?([\w$]+)\s*[\[;=]|func\s+(?:\([^)]*\)\s*)?([\w$]+))",
    re.MULTILINE,
)
#: With the mark of a register, which no such name has.
_NAME = re.compile(r"%?[\w$]+")
#: Where a line of the source stands, and where it was inlined: that needs a section of names.
_LINE = re.compile(r"^(\s*\.(?:loc|file)\s+)(\d+)", re.MULTILINE)
_INLINED = re.compile(r", function_name \S+, inlined_at \d+ \d+ \d+")
_SECTION = re.compile(r"^\s*\.section\s[^{]*\{[^}]*\}", re.MULTILINE)
#: More files than one function has lines from.
_MANY = 1000


def joined(texts: Sequence[str]) -> str:
    """Return one text with the functions of all texts, with their lines where they have some."""
    return "\n".join(_part(text, number) for number, text in enumerate(texts))


def _part(text: str, number: int) -> str:
    """Return a text as one of several: all but the first get names and numbers of their own."""
    text = _INLINED.sub("", _SECTION.sub("", text))
    if number == 0:
        return text
    text = _LINE.sub(lambda match: f"{match[1]}{int(match[2]) + number * _MANY}", text)
    names = {match[1] or match[2] for match in _OWN.finditer(text)}
    # A name with an end that no other has, in one pass: x -> x_1 would meet another text's x_1, or this one's.
    text = _NAME.sub(
        lambda match: f"{match[0]}$part{number}" if match[0] in names else match[0], text
    )
    return _HEAD.sub("", text)
