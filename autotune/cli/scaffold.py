"""Writes the two files of a new kernel: something that works, for a person to edit.

Their texts are in ``kernel.cu.j2`` and ``space.py.j2``.
"""

from __future__ import annotations

import re
from pathlib import Path

import jinja2

from autotune.errors import UsageError


def write_kernel(name: str, into: Path) -> list[Path]:
    """Write ``kernels/NAME.cu`` and ``spaces/NAME.py`` under a folder; return both.

    Raises
    ------
    UsageError
        If the name cannot be a C identifier, or a file is there already.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UsageError(f"kernel name {name!r}: lower-case letters, digits and _ expected")
    files = {
        into / "kernels" / f"{name}.cu": "kernel.cu.j2",
        into / "spaces" / f"{name}.py": "space.py.j2",
    }
    for file in files:
        if file.exists():
            raise UsageError(f"{file} is there already; remove it or choose another name")
    for file, template in files.items():
        text = Path(__file__).with_name(template).read_text(encoding="utf-8")
        file.parent.mkdir(parents=True, exist_ok=True)
        made = jinja2.Template(text, keep_trailing_newline=True).render(name=name)
        file.write_text(made, encoding="utf-8")
    return list(files)
