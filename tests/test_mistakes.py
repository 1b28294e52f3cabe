"""Forty declarations with one mistake each: `check` ends each with one line that names place and remedy.

They are kernels of CUDA, and this machine needs no GPU for them: no mistake is left for a launch.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sample_spaces import SOURCE, Edits, changed, write_space

from autotune.checking.kernel_check import check_kernel
from autotune.errors import AutotuneError
from autotune.kernel.catalog import load_file

#: Edits of the space file, edits of the source, and what the error says: the place, then the remedy.
Mistake = tuple[Edits, Edits, str]

CUDA = ("problems=", 'backends=("cuda",), problems=')
ARGUMENTS = 'return {"x": x, "out": Out(p.n), "factor": np.float32(FACTOR), "n": p.n}'


def space(old: str, new: str, message: str) -> Mistake:
    return ((old, new),), (), message


def arguments(new: str, message: str) -> Mistake:
    return space(ARGUMENTS, f"return {new}", message)


def attached(text: str, message: str) -> Mistake:
    return space("@scale.launch", f"{text}\n\n\n@scale.launch", message)


def source(old: str, new: str, message: str) -> Mistake:
    return (), ((old, new),), message


ALL = '"x": x, "out": Out(p.n), "factor": np.float32(FACTOR), "n": p.n'
OPTIONS = "@scale.options\ndef options(c):\n    return "
MISTAKES: dict[str, Mistake] = {
    # ------------------------------------------------------------ types
    "a double for a float": arguments(
        f"{{{ALL}, }} | {{'factor': np.float64(3)}}",
        r"parameter 3 of scale .* np\.float32\(factor\)",
    ),
    "an int64 for an int": arguments(f"{{{ALL}}} | {{'n': np.int64(p.n)}}", r"np\.int32\(n\)"),
    "a size beyond 32 bits": arguments(
        f"{{{ALL}}} | {{'n': 2**40}}", r"n=\d+ needs 64 bits; pass np"
    ),
    "a list": arguments(f"{{{ALL}}} | {{'x': [1, 2]}}", r"arguments: x is list; expected an array"),
    "a text": arguments(f"{{{ALL}}} | {{'x': 'abc'}}", r"arguments: x is str; expected an array"),
    "None": arguments(f"{{{ALL}}} | {{'x': None}}", r"arguments: x is NoneType; expected an array"),
    "an array of objects": arguments(
        f"{{{ALL}}} | {{'x': np.array([1, 'a'], object)}}", r"arguments: x .*holds objects"
    ),
    "an unknown type of an output": arguments(
        f"{{{ALL}}} | {{'out': Out(p.n, 'float33')}}",
        r"arguments: out: unknown type 'float33'; did you mean 'float32'",
    ),
    "a text as an output": arguments(
        f"{{{ALL}}} | {{'out': Out(p.n, 'S8')}}",
        r"the output out is \|S8, which cannot be compared",
    ),
    "a complex reference of a real output": space(
        "return factor * x", "return factor * x * 1j", r"reference: out is complex128.*out\.real"
    ),
    "a reference that the type cannot hold": (
        (("Out(p.n)", "Out(p.n, 'int8')"), ("return factor * x", "return 1000 + 0 * x")),
        (),
        r"reference: out holds 1000.*, which int8 cannot hold; declare another type",
    ),
    # ------------------------------------------------------------ counts
    "an argument too many": arguments(
        f"{{{ALL}, 'm': 1}}", r"takes 4 arguments and gets 5: .*correct"
    ),
    "an argument too few": arguments(
        '{"x": x, "out": Out(p.n), "n": p.n}', r"reference: unknown argument 'factor' \(known: x, n"
    ),
    "no output": arguments(
        '{"x": x, "y": x, "factor": np.float32(1), "n": p.n}',
        r"no Out or InOut, .*; declare an output",
    ),
    "another order": arguments(
        '{"x": x, "factor": np.float32(FACTOR), "out": Out(p.n), "n": p.n}',
        r"parameter 2 of scale .* correct the order of the arguments \(x, factor",
    ),
    "an empty output": arguments(
        f"{{{ALL}}} | {{'out': Out(0)}}",
        r"arguments: out \(0,\) is empty .*; give at least one element",
    ),
    "a reference of another shape": space(
        "return factor * x",
        "return x[1:]",
        r"reference: out has shape .*; return that shape",
    ),
    "a reference without an output": space(
        "return factor * x",
        "return {'y': x}",
        r"no value for the output 'out'; return a dict by name",
    ),
    "a block that is too large": space(
        "block=(c.BLOCK,)", "block=(4096,)", r"a block of 4096 threads.*make the block smaller"
    ),
    "a grid of four sizes": space(
        "grid=(blocks(p, c),)",
        "grid=(1, 1, 1, 1)",
        r"launch: grid=.* one to three",
    ),
    "an argument of a launch that is not there": space(
        "block=(c.BLOCK,))",
        "block=(c.BLOCK,), args=('x', 'y'))",
        r"launch: no argument 'y' \(known: ",
    ),
    # ------------------------------------------------------------ names
    "a field named as a method": space(
        "problems=[Problem(n=1000)]",
        "problems=[Problem(n=1000, keys=1)]",
        r"'keys' is reserved; choose another name, for example 'keys_0'",
    ),
    "a parameter named as a keyword": space("BLOCK=(32, 64)", "BLOCK=(32,), int=(1,)", r"'int_0'"),
    "a parameter named as an argument": space(
        "BLOCK=(32, 64)",
        "BLOCK=(32,), factor=(1, 2)",
        r"factor replaces the name factor in 'float factor'; rename one of the two",
    ),
    "a parameter named as a word of the dialect": space(
        "BLOCK=(32, 64)", "BLOCK=(32,), SYNC=(0, 1)", r"SYNC is a word of dialect\.h; rename it"
    ),
    "a parameter that does not exist": space(
        "return BLOCK % 32 == 0",
        "return BLOCK % 32 == 0\n\n\n@scale.constraint\ndef other(BLOK):\n    return True",
        r"constraint 'other': unknown parameter 'BLOK'; did you mean 'BLOCK'",
    ),
    "an attribute that does not exist": space(
        "block=(c.BLOCK,)",
        "block=(c.BLOC,)",
        r"launch: .*unknown parameter 'BLOC'.*BLOCK.*scale\.py:\d+",
    ),
    "another function in the source": source(
        "scale(GLOBAL", "scaled(GLOBAL", r"no kernel function 'scale' \(it has scaled\); rename"
    ),
    "a source that does not exist": space(
        '"scale.cu"', '"scalar.cu"', r"source 'scalar\.cu' is in neither"
    ),
    "a reference of an unknown argument": space(
        "def reference(x, factor)",
        "def reference(x, faktor)",
        r"unknown argument 'faktor'; did you mean 'factor'",
    ),
    # ------------------------------------------------------------ options
    "two options in one text": attached(
        f"{OPTIONS}['-DA=1 -DB=2']", r"options: .* several options; give each as an element"
    ),
    "an option of OpenCL": attached(
        f"{OPTIONS}['-cl-mad-enable']",
        r"-cl-mad-enable is an option of OpenCL.*def options\(c, device\)",
    ),
    "an unknown option": attached(
        f"{OPTIONS}['-O3']", r"unrecognized option -O3 found; NVRTC lacks .* leave it out"
    ),
    "options as a text": attached(
        f"{OPTIONS}'-DA=1'", r"options: returned '-DA=1', expected a list"
    ),
    "a header that is not there": source(
        '#include "dialect.h"',
        '#include "dialect.h"\n#include <mine.h>',
        r"cannot open source file \"mine\.h\"; name its folder: @k\.options",
    ),
    # ------------------------------------------------------------ constants
    "a constant that is not there": arguments(
        f"{{{ALL}, 'taps': Constant(np.ones(3, np.float32))}}",
        r"unknown __constant__ variable 'taps' .*a variable that the source does not declare",
    ),
    "a constant that is too large": (
        ((ARGUMENTS, f"return {{{ALL}, 'taps': Constant(np.ones(3, np.float64))}}"),),
        (
            ("KERNEL(BLOCK", "__constant__ float taps[3];\nKERNEL(BLOCK"),
            ("factor * x[i]", "factor * x[i] + taps[i % 3]"),
        ),
        r"taps has 12 bytes, its argument 24; give the array the shape and type",
    ),
    "a constant as a list": arguments(
        f"{{{ALL}, 'taps': Constant([object()])}}", r"arguments: taps .*holds objects"
    ),
    "a value beyond 63 bits": space(
        "BLOCK=(32, 64)", "BLOCK=(32, 2**63)", r"BLOCK: .*more than 63 bits.*; give"
    ),
    "a value twice": space(
        "BLOCK=(32, 64)", "BLOCK=(32, 32)", r"parameter BLOCK: a value occurs twice"
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_with_place_and_remedy(mistake: str, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    edits, edits_of_source, message = MISTAKES[mistake]
    imports = ("import Kernel", "import Constant, Kernel")
    file = write_space(tmp_path, CUDA, imports, *edits)
    (tmp_path / "kernels" / "scale.cu").write_text(changed(SOURCE, *edits_of_source))
    try:
        failures = check_kernel(load_file(file), ["sm_90"], samples=1, seed=0).failures
    except AutotuneError as error:
        failures = [str(error)]
    (failure,) = failures
    assert "\n" not in failure and "Traceback" not in failure

    assert re.search(message, failure), failure
