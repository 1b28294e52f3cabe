"""Writes the two files of a new kernel: something that works, for a person to edit."""

from __future__ import annotations

import re
from pathlib import Path

from autotune.errors import UsageError

_SOURCE = """\
// {name}: out = 2 * x. Replace this with your kernel: any thread block, any size n.
// Parameters of spaces/{name}.py arrive as #defines; these are for compiling the file by hand.
#include "dialect.h"
#ifndef BLOCK
#define BLOCK 256
#endif
#ifndef ITEMS
#define ITEMS 4
#endif

KERNEL(BLOCK, 1, 0) {name}(GLOBAL const float* x, GLOBAL float* out, int n) {{
    const int first = BID(0) * BLOCK * ITEMS + TID(0);
    for (int item = 0; item < ITEMS; ++item) {{
        const int i = first + item * BLOCK;
        if (i < n) out[i] = 2.0f * x[i];
    }}
}}
"""

_SPACE = '''\
"""{name}: out = 2 * x over float32 vectors."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Work, ceil_div

{name} = Kernel(
    "{name}.cu",
    problems=[Problem(n=1 << 20), Problem(n=1000003)],  # what to tune for
    edge_problems=[Problem(n=1), Problem(n=257)],  # odd sizes that winners must get right too
    BLOCK=(64, 128, 256, 512, 1024),  # threads per block
    ITEMS=(1, 2, 4, 8),  # elements per thread
)


@{name}.constraint
def not_too_coarse(BLOCK, ITEMS):
    """A block covers at most 4096 elements, so that small problems fill the device."""
    return BLOCK * ITEMS <= 4096


@{name}.launch
def launch(c, p):
    return Launch(grid=(ceil_div(p.n, c.BLOCK * c.ITEMS),), block=(c.BLOCK,))


@{name}.arguments
def arguments(p, rng):
    """In the kernel's order."""
    return {{"x": rng.standard_normal(p.n, dtype=np.float32), "out": Out(p.n), "n": p.n}}


@{name}.reference
def reference(x):
    """What is right, in float64."""
    return 2 * x


@{name}.work
def work(p):
    return Work(flops=p.n, bytes_read=4 * p.n, bytes_written=4 * p.n)
'''


def write_kernel(name: str, into: Path) -> list[Path]:
    """Write ``kernels/NAME.cu`` and ``spaces/NAME.py`` under a folder.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    UsageError
        If the name cannot be a C identifier, or a file is there already.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UsageError(f"kernel name {name!r}: lower-case letters, digits and _ expected")
    files = {
        into / "kernels" / f"{name}.cu": _SOURCE.format(name=name),
        into / "spaces" / f"{name}.py": _SPACE.format(name=name),
    }
    for file in files:
        if file.exists():
            raise UsageError(f"{file} is there already; remove it or choose another name")
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return list(files)
