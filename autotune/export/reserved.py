"""Words that no name in an exported header may be: of C++, of its standard headers, of the template."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from autotune.kernel.names import CPP_KEYWORDS

_FOLDER = Path(__file__).parent


@cache
def taken() -> frozenset[str]:
    """Keywords, macros of the standard headers, and what the text of the header itself declares.

    ``macros.txt`` is what ``g++ -dM -E`` and ``gcc`` list for all standard headers, but for names
    that begin with an underscore. Of the header's own text its locals are left out, which end with
    ``_`` as no declared name does, and the members of its ``extent``, which stand in no scope with
    another name.
    """
    macros = (_FOLDER / "macros.txt").read_text(encoding="utf-8").split()
    template = (_FOLDER / "header.hpp.j2").read_text(encoding="utf-8")
    fixed = re.sub(r"\{%.*?%\}|\{\{.*?\}\}|//[^\n]*", " ", template, flags=re.DOTALL)
    own = re.findall(r"\b[A-Za-z]\w*\b(?<!_)", fixed)
    return CPP_KEYWORDS.union(macros, own) - {"x", "y", "z"}
