"""Writes the two files of a new kernel, from ``kernel.cu.j2`` and ``space.py.j2``."""

from __future__ import annotations

import ast
import keyword
from pathlib import Path

import jinja2

from autotune.errors import UsageError
from autotune.kernel.names import CPP_KEYWORDS, fault


def write_kernel(name: str, into: Path) -> list[Path]:
    """Write ``kernels/NAME.cu`` and ``spaces/NAME.py`` under a folder; return both."""
    wrong = fault("kernel name", name)
    if not wrong and name != name.lower():
        wrong = f"kernel name {name!r}: lower-case letters, digits and _ expected"
    if not wrong and (name in CPP_KEYWORDS or keyword.iskeyword(name) or name in _words()):
        wrong = f"kernel name {name!r} means something else in its files; choose another"
    if wrong:
        raise UsageError(wrong)
    files = {
        into / "kernels" / f"{name}.cu": "kernel.cu.j2",
        into / "spaces" / f"{name}.py": "space.py.j2",
    }
    for file in files:
        if file.exists():
            raise UsageError(f"{file} is there already; remove it or choose another name")
    for file, template in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_filled(template, name), encoding="utf-8")
    return list(files)


def _filled(template: str, name: str) -> str:
    text = Path(__file__).with_name(template).read_text(encoding="utf-8")
    made: str = jinja2.Template(text, keep_trailing_newline=True).render(name=name)
    return made


def _words() -> set[str]:
    """Return the names that the space file uses itself, such as ``launch`` and ``np``."""
    nodes = list(ast.walk(ast.parse(_filled("space.py.j2", "_"))))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    return used | {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
