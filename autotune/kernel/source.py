"""Source text of a kernel with its own includes inlined, and fingerprints of what decides results.

Knows files, not compilers. Inlining makes a source one text: the same for every backend, with
nothing else to ship to a compiler process or to fingerprint.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from autotune.errors import SpecError
from autotune.kernel.catalog import bundled_folder
from autotune.kernel.spec import Kernel
from autotune.kernel.trust import refuse_foreign

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
        If a file cannot be read, or is not mine; see `trust`.
    """
    return _inlined(file, set())


def _inlined(file: Path, seen: set[Path]) -> str:
    seen.add(file.resolve())
    try:
        refuse_foreign(file)
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


def source_fingerprint(kernel: Kernel) -> str:
    """sha256 of all sources of a kernel with their includes."""
    texts = [flattened(kernel.find_source(file)) for file in kernel.sources.values()]
    return text_fingerprint("\n".join(texts))


def arguments_fingerprint(kernel: Kernel, inputs: Iterable[str] = ()) -> str:
    """sha256 of what a kernel of a space file is given and asked for: see `spec_fingerprint`.

    ``inputs`` are the names of arguments that the user gave in place of drawn ones.
    """
    assert kernel.file is not None
    return text_fingerprint(spec_fingerprint(kernel.file) + ",".join(sorted(inputs)))


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
    return text_fingerprint("\n".join(map(_dumped, kept)))


def _dumped(node: object) -> str:
    """A syntax tree as text that is the same in every version of Python.

    `ast.dump` leaves out empty fields since 3.13, and new versions add fields that are empty.
    """
    if isinstance(node, list):
        return f"[{','.join(map(_dumped, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [
        f"{name}={_dumped(value)}"
        for name, value in ast.iter_fields(node)
        if value is not None and value != []
    ]
    return f"{type(node).__name__}({','.join(fields)})"


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
            keyword
            for keyword in node.keywords
            if keyword.arg is None or not (keyword.arg.isupper() or keyword.arg in _SEARCH_OPTIONS)
        ]


def _called_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
