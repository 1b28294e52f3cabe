"""Source text of a kernel with its own includes inlined, and fingerprints of what decides results.

Knows files, not compilers. Inlining makes a source one text: the same for every backend, with
nothing else to ship to a compiler process or to fingerprint.
"""

from __future__ import annotations

import ast
import hashlib
import re
from pathlib import Path

from autotune.catalog import bundled_folder
from autotune.errors import SpecError

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"[^\n]*$', re.MULTILINE)
#: Options of `Kernel` that say what to try or where, not what is computed.
_SEARCH_OPTIONS = frozenset(
    {"problems", "quick_problems", "edge_problems", "seeds", "default", "backends"}
)
#: Hooks that decide which configurations are tried or how results are judged against others.
_SEARCH_HOOKS = frozenset({"constraint", "applies", "baseline", "requires", "call"})


def flattened(file: Path) -> str:
    """Read a source and replace each ``#include "file"`` of ours by that file's text.

    Files are looked for beside the including one, then among the bundled kernels, where
    ``dialect.h`` is. A file is inlined once, at its first include. Includes that are not found are left to the
    compiler. ``#line`` keeps compiler messages true to the original files.

    Raises
    ------
    SpecError
        If a file cannot be read.
    """
    return _inlined(file, set())


def _inlined(file: Path, seen: set[Path]) -> str:
    seen.add(file.resolve())
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"source {file.name} cannot be read: {error}") from error

    def replace(match: re.Match[str]) -> str:
        places = (file.parent / match[1], bundled_folder("kernels") / match[1])
        included = next((place for place in places if place.is_file()), None)
        if included is None:
            return match[0]
        line = text.count("\n", 0, match.start()) + 2
        body = "" if included.resolve() in seen else _inlined(included, seen)
        return f'#line 1 "{included.name}"\n{body}\n#line {line} "{file.name}"'

    return f'#line 1 "{file.name}"\n' + _INCLUDE.sub(replace, text)


def text_fingerprint(text: str) -> str:
    """sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def spec_fingerprint(file: Path) -> str:
    """sha256 of the part of a space file that decides what a measurement means.

    Parameter lists, constraints, seeds, problems, comments and docstrings are left out, so that a
    new value in a list makes nothing already measured obsolete; what arguments, reference, launch
    and everything they call do is in.
    """
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kept = [node for node in tree.body if not _only_searches(node)]
    for node in kept:
        for inner in ast.walk(node):
            _strip(inner)
    return text_fingerprint("\n".join(ast.dump(node) for node in kept))


def _only_searches(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if not isinstance(node, ast.FunctionDef):
        return False
    for decorator in node.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(target, ast.Attribute) and target.attr in _SEARCH_HOOKS:
            return True
    return False


def _strip(node: ast.AST) -> None:
    """Remove docstrings, and what a `Kernel(...)` call says of the search."""
    if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
        node.body = node.body[1:] or [ast.Pass()]
    if isinstance(node, ast.Call) and _called_name(node.func) == "Kernel":
        node.keywords = [
            one
            for one in node.keywords
            if one.arg is None or not (one.arg.isupper() or one.arg in _SEARCH_OPTIONS)
        ]


def _called_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
