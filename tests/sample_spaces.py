"""A small kernel that tests write into their own folder, with edits.

``scale`` computes ``out = FACTOR * x`` and takes a second to tune. No test is about the kernel itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

Edits: TypeAlias = tuple[tuple[str, str], ...]

SOURCE = """\
#include "dialect.h"
#ifndef BLOCK
#define BLOCK 32
#endif

KERNEL(BLOCK, 1, 0) scale(GLOBAL const float* x, GLOBAL float* out, float factor, int n) {
    const int i = BID(0) * BLOCK + TID(0);
    if (i < n) out[i] = factor * x[i];
}
"""

SPACE = '''\
"""scale: out = factor * x."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Work, ceil_div

FACTOR = 3

scale = Kernel(
    "scale.cu",
    problems=[Problem(n=1000)],
    BLOCK=(32, 64),  # threads per block
)


def blocks(p, c):
    """Return the number of blocks that cover the problem."""
    return ceil_div(p.n, c.BLOCK)


@scale.constraint
def whole_warps(BLOCK):
    """A block is a whole number of warps."""
    return BLOCK % 32 == 0


@scale.launch
def launch(c, p):
    """One thread per element."""
    return Launch(grid=(blocks(p, c),), block=(c.BLOCK,))


@scale.arguments
def arguments(p, rng):
    x = rng.standard_normal(p.n, dtype=np.float32)
    return {"x": x, "out": Out(p.n), "factor": np.float32(FACTOR), "n": p.n}


@scale.reference
def reference(x, factor):
    return factor * x
'''


def changed(text: str, *edits: tuple[str, str]) -> str:
    """Return the text with each ``(old, new)`` replaced; the text must contain every ``old``."""
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


def counting(value: str, is_inout: bool = False) -> tuple[Edits, Edits]:
    """Return edits of space and source that count launches in a scratch buffer.

    ``value`` is the expression that the kernel stores. It may use ``value``, the correct result, and
    ``count[i]``, the number of the launch, from 1.
    """
    scratch = 'def scratch(c, p):\n    return {"count": Out(p.n + c.BLOCK, "int32")}\n\n\n'
    space = (("@scale.launch", f"@scale.scratch\n{scratch}@scale.launch"),)
    store = f"""\
if (i < n) {{
        count[i] = count[i] < 0 || count[i] > 1 << 20 ? 1 : count[i] + 1;  // either poison
        const float value = factor * x[i];
        out[i] = {value};
    }}"""
    source = (
        ("int n)", "int n, GLOBAL int* count)"),
        ("if (i < n) out[i] = factor * x[i];", store),
    )
    if not is_inout:
        return space, source
    return (
        (
            *space,
            ("Launch, Out", "InOut, Launch, Out"),
            ('"x": x, "out": Out(p.n)', '"x": InOut(x)'),
        ),
        (*source, ("const float* x, GLOBAL float* out", "float* x"), ("out[i] =", "x[i] =")),
    )


def write_space(folder: Path, *edits: tuple[str, str], name: str = "scale") -> Path:
    """Write the kernel and its edited space file below a folder; return the path of the space file."""
    for kind in ("kernels", "spaces"):
        (folder / kind).mkdir(exist_ok=True)
    (folder / "kernels" / "scale.cu").write_text(SOURCE)
    file = folder / "spaces" / f"{name}.py"
    file.write_text(changed(SPACE, *edits))
    return file


def ratios(origin: Any, problem: Any) -> Any:
    """Return expected output / input of the exact data of a kernel that another process declared."""
    from autotune.data.dataset import EXACT
    from autotune.data.prepare import prepare_dataset
    from autotune.kernel.snapshot import load_kernel

    made = prepare_dataset(load_kernel(origin, ""), problem, EXACT)
    return made.expected("out") / made.array("x")
