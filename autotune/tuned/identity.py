"""Compares a record's kernel with a declared kernel of the same name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.kernel.spec import Kernel


def other_kernel(
    kernel: Kernel, where: str, fields: Iterable[str], parameters: Iterable[str]
) -> str:
    """Return a warning if a record of a kernel's name is of another kernel, else an empty text.

    Only names count: problems of a kernel whose source changed are stale.
    """
    declared = {"problem fields": kernel.fields, "parameters": kernel.parameters}
    apart = [
        f"{what} {', '.join(there)} there, {', '.join(here)} here"
        for (what, here), there in zip(declared.items(), (fields, parameters), strict=True)
        if set(there) != set(here)
    ]
    if not apart:
        return ""
    return (
        f"{where} is of another kernel {kernel.name} than {kernel.file or 'the one declared here'}, "
        f"or of what it was: {'; '.join(apart)}. Rename one of the two, or tune this one, which "
        f"takes its place: autotune run {kernel.name}"
    )
