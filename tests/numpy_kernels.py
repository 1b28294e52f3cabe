"""Kernels as NumPy functions, correct and wrong ones, with the arguments and the reference of each.

The wrong ones have errors that are small, or that few elements show.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from sample_spaces import write_space

from autotune.data import tolerance
from autotune.data.dataset import EXACT, RANDOM, Dataset
from autotune.data.prepare import prepare_dataset
from autotune.devices.host import host_difference
from autotune.kernel.catalog import load_file
from autotune.kernel.spec import Kernel
from autotune.values import Problem

#: Arguments besides the output, shape and type of the output, and the reference in float64.
FUNCTIONS = {
    "softmax": (
        '"x": rng.standard_normal((8, 8192))',
        '(8, 8192), "f4"',
        "np.exp(x) / np.exp(x).sum(1, keepdims=True)",
    ),
    "small": ('"x": rng.standard_normal(4096)', '4096, "f4"', "x * 1e-7"),
    "half": ('"x": rng.uniform(-2, 2, 4096)', '4096, "f2"', "np.exp(x) / 256"),
    "tanh": ('"x": rng.standard_normal(1 << 16)', '1 << 16, "f4"', "np.tanh(x)"),
    "log": ('"x": rng.uniform(0.5, 2, 4096)', '4096, "f4"', "np.log(x)"),
    "mean": ('"x": rng.random((16, 4000))', '16, "f4"', "x.mean(1)"),
    "bits": (
        '"x": (rng.standard_normal((16, 1000)).view(np.uint32) >> 16).astype(np.uint16)',
        '16, "f4"',
        "np.exp((x.astype(np.uint32) << 16).view(np.float32).astype(float)).mean(1)",
    ),
    "double": ('"x": rng.standard_normal(4096, "f8")', '4096, "f8"', "x * 1e-60"),
    "complex": (
        '"x": (rng.standard_normal(999) + 1j * rng.random(999)).astype("c8")',
        '999, "c8"',
        "x * x / 3",
    ),
    "scalar": (
        '"x": rng.standard_normal(512), "s": 0.3, "w": Constant(np.float32([0.1, 0.7]))',
        '512, "f4"',
        "s * x + w[1]",
    ),
    "cos": ('"x": rng.uniform(0, 0.1, 4096)', '4096, "f4"', "1 - np.cos(x)"),
    "map": (
        '"x": rng.uniform(0.1, 0.9, 999)',
        '999, "f4"',
        "functools.reduce(lambda x, _: 3.9 * x * (1 - x), range(12), x)",
    ),
    "scales": (
        '"x": rng.uniform(0, 1, 4096) - 25 * (np.arange(4096) % 4 == 3).astype("f4")',
        '4096, "f4"',
        "np.exp(x)",
    ),
    "levels": (
        '"x": rng.integers(-127, 128, 4096), "s": (10.0 ** -(np.arange(4096) % 8)).astype("f4")',
        '4096, "f4"',
        "np.tanh(x * s / 3)",
    ),
    "size": ('"x": rng.random(512), "s": 512.0', '512, "f4"', "x[:int(s)] / s / 3"),
    "moments": (
        '"x": rng.standard_normal((64, 1000)) + np.float32(10)',
        '64, "f4"',
        "(x * x).mean(1) - x.mean(1) ** 2",
    ),
    "rows": (
        '"x": rng.standard_normal((64, 256)) + (10.0 ** (np.arange(64) % 4)).astype("f4")[:, None]',
        '64, "f4"',
        "(x * x).mean(1) - x.mean(1) ** 2",
    ),
    "root": (
        '"x": rng.uniform(0.9, 1.1, 4096)',
        '4096, "f4"',
        "((((x - 5) * x + 10) * x - 10) * x + 5) * x - 1",
    ),
    "double cos": ('"x": rng.uniform(0, 0.1, 4096, "f8")', '4096, "f8"', "1 - np.cos(x)"),
    # Exact data decide these: the bound is narrow, since sums of halves are float32's, and a map has no sum.
    "product": (
        '"x": rng.standard_normal((48, 300)).astype("f2")',
        '(48, 48), "f2"',
        "x.astype(float) @ x.astype(float).T",
    ),
    "twice": ('"x": np.exp(rng.standard_normal(4096))', '4096, "f4"', "2 * x"),
    "twice a half": ('"x": rng.standard_normal(4096).astype("f2")', '4096, "f2"', "2.0 * x"),
    "double exp": ('"x": rng.standard_normal(999, "f8")', '999, "f8"', "np.exp(x.astype(float))"),
    "sum": ('"x": rng.standard_normal(1 << 20)', '1, "f4"', "x.sum()"),
    "centred": (
        '"x": (lambda x: x if rng.exact else x - x.mean())(rng.standard_normal(1 << 12))',
        '1, "f4"',
        "x.sum()",
    ),
    "origin": ('"x": rng.standard_normal(999)', '999, "f4"', "(x + 4096) - 4096"),
    "wave": ('"s": 0.3', '4096, "f4"', "np.sin(s * np.arange(4096))"),
    "wide": (
        '"x": 40 * rng.standard_normal((8, 1000))',
        '(8, 1000), "f4"',
        "np.exp(x - x.max(1, keepdims=True))",
    ),
    "small half": ('"x": rng.uniform(-2, 2, 999)', '999, "f2"', "np.exp(x) * 1e-6"),
    "circle": (
        '"x": np.clip(rng.standard_normal((16, 64)) / 1.5, -1, 1)',
        '16, "f4"',
        "np.sqrt(1 - x * x).sum(1)",
    ),
    "poles": ('"x": rng.standard_normal(999)', '999, "f4"', "np.log(x)"),
    "heat": (
        '"x": 300 + rng.standard_normal(999)',
        '999, "f4"',
        "(np.roll(x, 1) - 2 * x + np.roll(x, -1)) / 3",
    ),
    "norm": (
        '"x": rng.standard_normal((8, 4096))',
        '(8, 4096), "f4"',
        "x / np.sqrt((x * x).mean(1, keepdims=True))",
    ),
    "means": ('"x": rng.standard_normal((16, 8192))', '16, "f4"', "np.exp(x).mean(1)"),
    "unit": (
        '"x": rng.standard_normal((4, p.n))',
        '(4, p.n), "f4"',
        "x / np.sqrt((x * x).sum(1, keepdims=True))",
    ),
}
#: Numbers of random data sets, and sizes ``n``, of functions that have more than one.
SEEDS = {"centred": 60}
SIZES = {"unit": (1000, 1)}


def sums(a, chunks=1):
    """Sum rows in float32: each chunk one by one, then the chunks."""
    parts = np.add.accumulate(a.reshape(len(a), chunks, -1), axis=-1, dtype=np.float32)[..., -1]
    return np.add.accumulate(parts, axis=-1, dtype=np.float32)[..., -1]


def softmax(x, chunks=32, left_out=None):
    e = np.exp(x)
    kept = e.copy()
    if left_out is not None:
        kept[:, left_out] = 0
    return e / sums(kept, chunks)[:, None]


def iterated(step, x, times=12):
    return functools.reduce(lambda x, _: step(x), range(times), x)


def number(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def product(x, kind="f4"):
    """Multiply a matrix by itself, with the sums one by one in a type."""
    total = np.zeros((len(x), len(x)), kind)
    for column in x.T.astype(kind):
        total = (total + column[:, None] * column).astype(kind)
    return total


def wide(x):
    return np.exp(x - x.max(1, keepdims=True))


def flushed(values, least):
    return np.where(abs(values) < least, 0, values)


def unit(x, least=0.0):
    return F4(1) / np.sqrt((x * x).sum(1, keepdims=True) + F4(least))


F4 = np.float32
RIGHT = {
    "softmax: 32 chunks": ("softmax", softmax),
    "softmax: one by one": ("softmax", lambda x: softmax(x, 1)),
    "small: float32": ("small", lambda x: x * F4(1e-7)),
    "half: float32 inside": ("half", lambda x: np.exp(x) / F4(256)),
    "tanh: 1 - 2 / (exp(2x) + 1)": ("tanh", lambda x: F4(1) - F4(2) / (np.exp(2 * x) + F4(1))),
    "log: 2^-21.4 off, as __logf": ("log", lambda x: np.log(x) + F4(2**-21.4)),
    "mean: one by one": ("mean", lambda x: sums(x) / F4(4000)),
    "bits: one by one": ("bits", lambda x: sums(np.exp(number(x))) / F4(1000)),
    "double: float64": ("double", lambda x: x * 1e-60),
    "complex: float32": ("complex", lambda x: x * x / F4(3)),
    "scalar: float32": ("scalar", lambda x, s, w: s * x + w[1]),
    "cos: as written": ("cos", lambda x: F4(1) - np.cos(x)),
    "map: as written": ("map", lambda x: iterated(lambda x: F4(3.9) * x * (F4(1) - x), x)),
    "map: expanded": ("map", lambda x: iterated(lambda x: F4(3.9) * x - F4(3.9) * x * x, x)),
    "scales: float32": ("scales", lambda x: np.exp(x)),
    "levels: float32": ("levels", lambda x, s: np.tanh(x * s / F4(3))),
    "moments: one by one": (
        "moments",
        lambda x: sums(x * x) / F4(1000) - (sums(x) / F4(1000)) ** 2,
    ),
    "rows: 16 chunks": (
        "rows",
        lambda x: sums(x * x, 16) / F4(256) - (sums(x, 16) / F4(256)) ** 2,
    ),
    "root: by powers": ("root", lambda x: np.polyval(F4([1, -5, 10, -10, 5, -1]), x)),
    "root: factored": ("root", lambda x: (x - 1) ** 5),
    "double cos: by sines": ("double cos", lambda x: 2 * np.sin(x / 2) ** 2),
    "size: float32": ("size", lambda x, s: x / F4(512) / F4(3)),
    "product: float32 inside": ("product", product),
    "twice: float32": ("twice", lambda x: x + x),
    "twice a half: float32": ("twice a half", lambda x: F4(2) * x),
    "double exp: by a quotient": ("double exp", lambda x: 1 / np.exp(-x)),
    "sum: one by one": ("sum", lambda x: sums(x[None])),
    "centred: one by one": ("centred", lambda x: sums(x[None])),
    "origin: as written": ("origin", lambda x: (x + F4(4096)) - F4(4096)),
    "wave: float32": ("wave", lambda s: np.sin(F4(s) * np.arange(4096, dtype=F4))),
    "wide: subnormal numbers are 0": ("wide", lambda x: flushed(wide(x), 2.0**-126)),
    "small half: float32 inside": ("small half", lambda x: np.exp(x) * F4(1e-6)),
    "circle: by factors": ("circle", lambda x: np.sqrt((1 - x) * (1 + x)).sum(1)),
    "poles: as written": ("poles", lambda x: np.log(x)),
    "heat: as written": ("heat", lambda x: (np.roll(x, 1) - 2 * x + np.roll(x, -1)) / F4(3)),
    "norm: one by one": ("norm", lambda x: x / np.sqrt(sums(x * x) / F4(4096))[:, None]),
    "means: one by one": ("means", lambda x: sums(np.exp(x)) / F4(8192)),
    "unit: 2 ulp off, as rsqrtf": ("unit", lambda x: x * (unit(x) * F4(1 + 2.0**-22))),
}
WRONG = {
    "softmax: a column left out": ("softmax", lambda x: softmax(x, left_out=500)),
    "softmax: the least column left out": (
        "softmax",
        lambda x: softmax(x, left_out=x.mean(0).argmin()),
    ),
    "softmax: zero": ("softmax", lambda x: 0 * x),
    "small: zero": ("small", lambda x: 0 * x),
    "small: smallest elements left out": (
        "small",
        lambda x: np.where(abs(x) < 1e-2, 0, x * F4(1e-7)),
    ),
    "half: a constant": ("half", lambda x: np.full(x.shape, 0.01)),
    "half: some left out": ("half", lambda x: np.where(x < -1.9, 0, np.exp(x) / 256)),
    "tanh: float16": ("tanh", lambda x: np.tanh(x).astype("f2")),
    "log: float16": ("log", lambda x: np.log(x.astype("f2"))),
    "mean: an element left out": ("mean", lambda x: sums(x[:, 1:]) / F4(4000)),
    "bits: an element left out": ("bits", lambda x: sums(np.exp(number(x[:, 1:]))) / F4(1000)),
    "double: zero": ("double", lambda x: 0 * x),
    "double: float32": ("double", lambda x: x.astype("f4") * 1e-60),
    "complex: imaginary part off": ("complex", lambda x: x * x / F4(3) + 1e-4j),
    "scalar: 0.1 % off": ("scalar", lambda x, s, w: F4(0.3003) * x + w[1]),
    "cos: float16 of x": ("cos", lambda x: 1 - np.cos(x.astype("f2").astype("f8"))),
    "log: float16 of x": ("log", lambda x: np.log(x.astype("f2").astype("f4"))),
    "map: one step less": ("map", lambda x: iterated(lambda x: F4(3.9) * x * (1 - x), x, 11)),
    "scales: small left out": ("scales", lambda x: np.where(x < -15, 0, np.exp(x))),
    "levels: small left out": (
        "levels",
        lambda x, s: np.where(s < 1e-6, 0, np.tanh(x * s / 3)),
    ),
    "levels: float16 of levels": ("levels", lambda x, s: np.tanh(x * s.astype("f2") / 3)),
    "moments: an element left out": (
        "moments",
        lambda x: (x[:, 1:] ** 2).sum(1) / 1000 - x.mean(1) ** 2,
    ),
    "root: a term left out": ("root", lambda x: (x - 1) ** 5 + 1e-4 * x),
    "double cos: float32 of x": ("double cos", lambda x: 1 - np.cos(x.astype("f4"))),
    "size: one more": ("size", lambda x, s: x / F4(513) / F4(3)),
    "product: sums of halves": ("product", lambda x: product(x, "f2")),
    "product: steps of an eighth": ("product", lambda x: np.rint(product(x) * 8) / 8),
    "product: small is zero": ("product", lambda x: np.where(abs(product(x)) < 0.2, 0, product(x))),
    "twice: small is zero": ("twice", lambda x: np.where(x < 0.05, 0, 2 * x)),
    "twice: steps": ("twice", lambda x: np.rint(x * 2**13) / 2**12),
    "double: float32 of x": ("double", lambda x: x.astype("f4").astype("f8") * 1e-60),
    "double: the ninth digit of a factor": ("double", lambda x: x * (1e-60 * (1 + 1e-9))),
    "sum: halves": ("sum", lambda x: sums(x[None].astype("f2").astype("f4"))),
    "wave: float16 of the angle": (
        "wave",
        lambda s: np.sin((F4(s) * np.arange(4096)).astype("f2").astype("f4")),
    ),
    "wide: small is zero": ("wide", lambda x: flushed(wide(x), 2.0**-100)),
    "small half: subnormal numbers are 0": (
        "small half",
        lambda x: flushed(np.exp(x) * 1e-6, 2.0**-14),
    ),
    "circle: a least root": ("circle", lambda x: np.sqrt(np.maximum(1 - x * x, 1e-6)).sum(1)),
    "poles: magnitudes": ("poles", lambda x: np.log(abs(x))),
    "heat: float16 of x": (
        "heat",
        lambda x: RIGHT["heat: as written"][1](x.astype("f2").astype("f4")),
    ),
    "norm: an element left out of the sum": (
        "norm",
        lambda x: x / np.sqrt(sums(x[:, 1:] ** 2) / F4(4096))[:, None],
    ),
    "means: an element left out": ("means", lambda x: sums(np.exp(x[:, 1:])) / F4(8192)),
    "unit: a least norm": ("unit", lambda x: x * unit(x, 1e-2)),
    "twice a half: small is zero": ("twice a half", lambda x: np.where(abs(x) < 0.01, 0, 2 * x)),
}


@cache
def kernel_of(name: str, folder: Path) -> Kernel:
    """Return the kernel of a function of `FUNCTIONS`, whose space file is written below a folder."""
    inputs, output, reference = FUNCTIONS[name]
    names = ", ".join(re.findall(r'"(\w)":', inputs))
    edits = (
        ("    x = rng.standard_normal(p.n, dtype=np.float32)\n", ""),
        ('"x": x, "out": Out(p.n), "factor": np.float32(FACTOR), "n": p.n',
         f'{inputs}, "out": Out({output})'),
        ("[Problem(n=1000)]", f"[Problem(n=n) for n in {SIZES.get(name, (1000,))}]"),
        ("def reference(x, factor)", f"def reference({names})"),
        ("return factor * x", f"return {reference}"),
        ("from autotune import Kernel, Launch",
         "import functools\n\nfrom autotune import Constant, Kernel, Launch"),
    )  # fmt: skip
    (folder / name).mkdir(parents=True)
    return load_file(write_space(folder / name, *edits))


def datasets_of(kernel: Kernel, name: str) -> Iterator[Dataset]:
    """Yield the data sets of a function."""
    for n in SIZES.get(name, (1000,)):
        yield prepare_dataset(kernel, Problem(n=n), EXACT)
        for seed in range(SEEDS.get(name, 1)):
            yield prepare_dataset(kernel, Problem(n=n), RANDOM, seed)


def passes(dataset: Dataset, implementation: Callable[..., Any]) -> bool:
    """Return whether verification accepts the results of an implementation on a data set."""
    given = {
        argument.name: argument.scalar
        if argument.kind == "scalar"
        else np.array(dataset.array(argument.name))
        for argument in dataset.arguments
        if argument.kind != "out"
    }
    (output,) = (argument for argument in dataset.arguments if argument.kind == "out")
    with np.errstate(all="ignore"):
        result = np.asarray(implementation(**given)).astype(output.dtype).reshape(output.shape)
    got, want = (tolerance.parts(values) for values in (result, dataset.expected("out")))
    bounds = dataset.element_bounds("out")
    bound = dataset.bounds["out"] if bounds is None else bounds
    return host_difference(got, want, bound).first_wrong is None


def verdicts(folder: Path, kinds: Collection[str] = (EXACT, RANDOM)) -> Iterator[tuple[str, bool]]:
    """Yield each case of `RIGHT` and `WRONG` with whether all data sets of some kinds accept it."""
    for name in FUNCTIONS:
        found = datasets_of(kernel_of(name, folder), name)
        datasets = [dataset for dataset in found if dataset.name in kinds]
        for case, (function, implementation) in {**RIGHT, **WRONG}.items():
            if function == name:
                yield case, all(passes(dataset, implementation) for dataset in datasets)
