"""Writes space files: an example to edit, and those of existing kernels from a template.

`script` fills the template from a Kernel Tuner script, `skeleton` from a kernel's signature.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from autotune.errors import UsageError
from autotune.kernel.modules import refuse_foreign
from autotune.kernel.names import CPP_KEYWORDS, fault

#: Limit for a script or source in bytes.
_MAX_BYTES = 16 << 20


def refuse_unreadable(file: Path) -> None:
    """Raise `UsageError` if a file is missing, too large, or another user's."""
    if not file.is_file():
        raise UsageError(f"{file}: no such file")
    if file.stat().st_size > _MAX_BYTES:
        raise UsageError(f"{file}: larger than {_MAX_BYTES >> 20} MiB; give a kernel or a script")
    refuse_foreign(file)


def write_example(name: str, into: Path) -> list[Path]:
    """Write ``kernels/NAME.cu`` and ``spaces/NAME.py``, a kernel that works; return both.

    Raises
    ------
    UsageError
        If a file exists, or the name is none for a kernel.
    """
    wrong = fault("kernel name", name)
    if not wrong and name != name.lower():
        wrong = f"kernel name {name!r}: use lower-case letters, digits and _"
    if not wrong and (name in CPP_KEYWORDS or keyword.iskeyword(name)):
        wrong = f"kernel name {name!r} is a keyword of C++ or Python; choose another"
    if wrong:
        raise UsageError(wrong)
    files = {
        into / "kernels" / f"{name}.cu": "kernel.cu.j2",
        into / "spaces" / f"{name}.py": "space.py.j2",
    }
    for file in files:
        if file.exists():
            raise UsageError(f"{file} already exists; remove it or choose another name")
    write_new({file: _rendered(template, {"name": name}) for file, template in files.items()})
    return list(files)


def _rendered(template: str, fields: Mapping[str, Any]) -> str:
    text = Path(__file__).with_name(template).read_text(encoding="utf-8")
    made: str = jinja2.Template(text, keep_trailing_newline=True, trim_blocks=True).render(fields)
    return made


def space_text(fields: Mapping[str, Any]) -> str:
    """Return the text of a space file from the fields of ``ported.py.j2``."""
    made = _rendered("ported.py.j2", fields)
    words = ("Constant", "InOut", "Kernel", "Launch", "Out", "Problem", "ceil_div")
    code = re.sub(r"^#.*", "", made, flags=re.MULTILINE)
    used = ", ".join(word for word in words if re.search(rf"\b{word}\(", code))
    numpy = "import numpy as np\n\n" if re.search(r"\bnp\.", made) else ""
    return made.replace("IMPORTS", f"{numpy}from autotune import {used}", 1)


def write_new(texts: Mapping[Path, str]) -> None:
    """Write all files, or none: `UsageError` if one exists with another text."""
    for place, text in texts.items():
        if place.exists() and place.read_text(encoding="utf-8") != text:
            raise UsageError(f"{place} exists; remove it, or write --into another folder")
    for place, text in texts.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
