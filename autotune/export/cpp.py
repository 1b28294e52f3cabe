"""Names, comments and expressions in C++, for the exported header and launcher."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from autotune.answers.table import Cost, Term
from autotune.kernel.expression import MAX_INTEGER
from autotune.kernel.names import CPP_KEYWORDS

_FOLDER = Path(__file__).parent
#: Values of int, without the smallest: its negative is not an int.
INT = range(-(2**31) + 1, 2**31)
#: Values of long long, without the smallest.
LONG = range(-MAX_INTEGER, MAX_INTEGER + 1)


def filled(template: str, context: Mapping[str, Any]) -> str:
    """Fill a template of this folder."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("autotune", "export"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # C++: `identifier`, `comment` and `literal` do the escaping
    )
    return environment.get_template(template).render(context)


@cache
def taken() -> frozenset[str]:
    """Return the names that a header may not declare: of C++, its standard headers, and the template.

    ``macros.txt`` lists the macros that ``g++ -dM -E`` and ``gcc`` print for all standard headers, except
    names with a leading underscore. Two kinds of the template's names are allowed: local names, which end with
    ``_`` unlike declared names, and the members of ``extent``, whose scope has no other names.
    """
    macros = (_FOLDER / "macros.txt").read_text(encoding="utf-8").split()
    template = (_FOLDER / "header.hpp.j2").read_text(encoding="utf-8")
    fixed = re.sub(r"\{%.*?%\}|\{\{.*?\}\}|//[^\n]*", " ", template, flags=re.DOTALL)
    own = re.findall(r"\b[A-Za-z]\w*\b(?<!_)", fixed)
    return CPP_KEYWORDS.union(macros, own) - {"x", "y", "z"}


def identifier(name: str, others: Container[str] = ()) -> str:
    """Return a C++ identifier for a name, different from the ``others``; the name itself if possible."""
    plain = re.sub(r"[^A-Za-z0-9]+|_+", "_", name).strip("_") or "value"
    plain = f"v{plain}" if plain[0].isdigit() else plain
    return f"{plain}_" if plain in taken() or plain in others else plain


def comment(text: str) -> str:
    """Return text that cannot end a line comment: printable ASCII, without backslash or trigraph."""
    printable = "".join(letter if " " <= letter <= "~" else "?" for letter in text)
    return printable.replace("\\", "/").replace("??", "?.")


def expression(form: Any) -> str:
    """Return a stored expression in C++, over `number`s of the header."""
    names = {"//": "floor_div", "min": "minimum", "max": "maximum", "and": "both"}
    match form:
        case int():
            return literal(form)
        case str():
            return identifier(form)
        case ["-", 0, ["//", ["-", 0, above], below]]:
            return f"ceil_div({expression(above)}, {expression(below)})"
    operator, left, right = form[0], expression(form[1]), expression(form[2])
    name = names.get(operator)
    return f"{name}({left}, {right})" if name else f"({left} {operator} {right})"


def literal(value: int) -> str:
    """Return an integer in C++ as a `number`; an invalid `number` if it does not fit into long long."""
    if value in INT:
        return f"number{{{value}}}"
    return f"number{{{value}LL}}" if value in LONG else "number{0, false}"


def time(cost: Cost, multiple: int) -> str:
    """Return the C++ expression of a configuration's predicted time, an `estimate`, in several lines."""
    parts = [f"estimate{{{_sum(cost.fixed)}}}"]
    parts += [f"in_waves(blocks_, {slots}, {_sum(terms)})" for slots, terms in cost.waves]
    factors = [
        f"unless_multiple({identifier(name)}, {multiple}, {factor!r})"
        for name, factor in cost.misaligned.items()
    ]
    total = "\n    + ".join(parts)
    return "\n    * ".join([f"({total})", *factors]) if factors else total


def _sum(terms: Sequence[Term]) -> str:
    products = (
        " * ".join([repr(product), *(identifier(name) for name in names)])
        for product, names in terms
    )
    return " + ".join(products) or "0.0"


def listed(parts: Iterable[str]) -> str:
    """Return parts as a list in C++, between commas."""
    return ", ".join(parts)
