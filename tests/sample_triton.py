"""A Triton kernel that launches two functions with a buffer between them; tests write it into a folder."""

from __future__ import annotations

from pathlib import Path

SOURCE = """\
import triton
import triton.language as tl


@triton.jit
def part_sums(x, sums, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + place, mask=place < n, other=0.0)
    tl.store(sums + tl.program_id(0), tl.sum(tl.rsqrt(values * values + 1.0) * values))


@triton.jit
def scaled(x, sums, y, n, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    part = tl.arange(0, PARTS)
    total = tl.sum(tl.load(sums + part, mask=part < tl.cdiv(n, BLOCK), other=0.0))
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + place, mask=place < n, other=0.0)
    tl.store(y + place, values * tl.rsqrt(total * total + 1.0), mask=place < n)
"""

SPACE = """\
import numpy as np

from autotune import Kernel, Launch, Out, Problem, ceil_div

scaled = Kernel(
    "scaled.py:scaled,part_sums",
    language="triton",
    problems=[Problem(n=1000)],
    edge_problems=[Problem(n=1), Problem(n=999)],
    BLOCK=(64, 128),
    PARTS=(128,),
    num_warps=(2,),
)


@scaled.requires
def requires(c, p):
    return p.n <= 128 * c.BLOCK  # a program adds up that many parts


@scaled.scratch
def scratch(c, p):
    return {"sums": Out(ceil_div(p.n, c.BLOCK))}


@scaled.launch
def launch(c, p):
    parts = ceil_div(p.n, c.BLOCK)
    return (
        Launch((parts,), entry="part_sums", args=("x", "sums", "n")),
        Launch((parts,), args=("x", "sums", "y", "n")),
    )


@scaled.arguments
def arguments(p, rng):
    return {"x": rng.standard_normal(p.n, np.float32), "y": Out(p.n), "n": p.n}


@scaled.reference
def reference(x):
    total = (x / np.sqrt(x * x + 1)).sum()
    return {"y": x / np.sqrt(total * total + 1)}


@scaled.call
def call(x):
    from autotune import Operand

    return Problem(n=len(x)), {"x": x, "y": Operand.new(x.shape)}
"""


def write_two_functions(folder: Path, *edits: tuple[str, str]) -> Path:
    """Write the kernel ``scaled``, edited, below a folder; return its space file."""
    for name, text in (("kernels", SOURCE), ("spaces", SPACE)):
        for old, new in edits:
            text = text.replace(old, new)
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "scaled.py").write_text(text)
    return folder / "spaces" / "scaled.py"
