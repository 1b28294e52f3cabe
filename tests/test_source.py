"""Sources as one text whose compiler messages still name the right file and line; fingerprints."""

import os
import re
import sys

import pytest
from sample_spaces import SPACE, changed, write_space

from autotune.devices.base import CompileError
from autotune.devices.choose import backend
from autotune.devices.device import for_arch
from autotune.errors import AutotuneError, SpecError
from autotune.kernel.catalog import load_file
from autotune.kernel.source import (
    Description,
    arguments_fingerprint,
    flattened,
    frozen_sources,
    modules_fingerprint,
    own_fingerprint,
    source_fingerprint,
    spec_fingerprint,
)
from autotune.measure.compiler import compile_job
from autotune.measure.data import EXACT, load_kernel, prepare


def write(folder, **files):
    """Files of these stems (``_`` is the dot); the path of the first."""
    paths = []
    for stem, text in files.items():
        paths.append(folder / stem.replace("_", "."))
        paths[-1].write_text(text)
    return paths[0]


# ---------------------------------------------------------------- inlining


def test_an_include_is_replaced_by_its_file_and_lines_go_on_after_it(tmp_path):
    file = write(tmp_path, k_cu='int a;\n#include "h.h"\nint b;\n', h_h="int h;\n")
    assert flattened(file).splitlines() == [
        '#line 1 "k.cu"',
        "int a;",
        '#line 1 "h.h"',
        '#line 1 "h.h"',
        "int h;",
        "",
        '#line 3 "k.cu"',
        "int b;",
    ]


@pytest.mark.parametrize(
    "line", ['#include "h.h"', '  #  include "h.h" // why', '#include\t"h.h"', '#include"h.h"']
)
def test_an_include_is_recognised_however_it_is_written(tmp_path, line):
    text = flattened(write(tmp_path, k_cu=f"{line}\n", h_h="int h;\n"))
    assert "int h;" in text
    assert "include" not in text


def test_a_file_is_inlined_once_and_a_circle_ends(tmp_path):
    file = write(
        tmp_path,
        k_cu='#include "a.h"\n#include "b.h"\n#include "a.h"\n',
        a_h='int a;\n#include "b.h"\n',
        b_h='int b;\n#include "a.h"\n#include "k.cu"\n',
    )
    text = flattened(file)
    assert text.count("int a;") == text.count("int b;") == 1


def test_an_included_file_finds_its_own_neighbours_first(tmp_path):
    (tmp_path / "parts").mkdir()
    write(tmp_path / "parts", inner_h='#include "deep.h"\n', deep_h="int near;\n")
    file = write(tmp_path, k_cu='#include "parts/inner.h"\n', deep_h="int far;\n")
    assert "int near;" in flattened(file)
    assert "int far;" not in flattened(file)


def test_the_dialect_comes_from_the_bundled_kernels_unless_there_is_one_beside(tmp_path):
    file = write(tmp_path, k_cu='#include "dialect.h"\n')
    assert "#define KERNEL(" in flattened(file)
    write(tmp_path, dialect_h="int mine;\n")
    assert "#define KERNEL(" not in flattened(file)


def test_what_is_not_ours_is_left_to_the_compiler(tmp_path):
    source = '#include <cuda_fp16.h>\n#include "nowhere.h"\n'
    assert flattened(write(tmp_path, k_cu=source)) == f'#line 1 "k.cu"\n{source}'


def test_a_file_that_is_no_text_is_named(tmp_path):
    file = write(tmp_path, k_cu='#include "h.h"\n')
    (tmp_path / "h.h").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(SpecError, match=r"source h\.h cannot be read"):
        flattened(file)
    with pytest.raises(SpecError, match=r"source gone\.cu cannot be read"):
        flattened(tmp_path / "gone.cu")


@pytest.mark.parametrize("name", ["cuda", pytest.param("opencl", marks=pytest.mark.opencl)])
@pytest.mark.parametrize(
    ("mistake", "where"), [("k_cu", ("k.cu", 5)), ("h_h", ("h.h", 2))], ids=["source", "include"]
)
def test_compiler_messages_name_the_file_and_line_as_written(
    request, tmp_path, name, mistake, where
):
    """Whatever was inlined above it, the line that a person must mend is the one that is named."""
    if name == "opencl":
        request.getfixturevalue("opencl_device")
        device = backend("opencl").devices()[-1]
    else:
        pytest.importorskip("cuda.bindings.nvrtc")
        device = for_arch("sm_90")
    files = {
        "k_cu": '#include "dialect.h"\n#include "h.h"\n\n\n@\nKERNEL(1, 1, 0) k(int n) {}\n',
        "h_h": "#define H 1\n@\n#define HH 2\n",
    }
    files = {
        stem: text.replace("@", "oops;" if stem == mistake else "") for stem, text in files.items()
    }
    with pytest.raises(CompileError) as caught:
        backend(name).compile(flattened(write(tmp_path, **files)), {}, (), device)
    file, line = where
    assert re.search(rf"{re.escape(file)}[:(]{line}\b.*error", str(caught.value))


# ---------------------------------------------------------------- fingerprints


def fingerprint(folder, text):
    file = folder / "scale.py"
    file.write_text(text)
    return spec_fingerprint(file)


def test_a_text_is_read_again_when_any_file_of_it_changed(tmp_path):
    """In one process, and also where a nearer file appears: what is compiled is what is fingerprinted."""
    (tmp_path / "kernels").mkdir()
    file = write(
        tmp_path / "kernels", k_cu='#include "h.h"\n#include "dialect.h"\n', h_h="int a;\n"
    )
    assert "int a;" in flattened(file) and "#define KERNEL(" in flattened(file)
    write(tmp_path / "kernels", h_h="int changed;\n")
    assert "int changed;" in flattened(file) and "#define KERNEL(" in flattened(file)
    write(tmp_path / "kernels", dialect_h="int nearer;\n")
    assert "int nearer;" in flattened(file) and "#define KERNEL(" not in flattened(file)
    (tmp_path / "kernels" / "h.h").chmod(0o666)
    (tmp_path / "kernels" / "h.h").write_text("int anybodys;\n")
    with pytest.raises(SpecError, match="anybody may write it"):
        flattened(file)


SEARCH_ONLY = {
    "a new value": ("BLOCK=(32, 64)", "BLOCK=(32, 64, 128)"),
    "a new parameter": ("BLOCK=(32, 64)", "BLOCK=(32, 64), ITEMS=(1, 2)"),
    "other problems": ("problems=[Problem(n=1000)]", "problems=[Problem(n=7), Problem(n=8)]"),
    "seeds and default": ("    BLOCK=", "    seeds=[{}], default={'BLOCK': 64},\n    BLOCK="),
    "backends": ("    BLOCK=", "    backends=('cuda',),\n    BLOCK="),
    "a constraint": ("BLOCK % 32 == 0", "BLOCK % 64 == 0"),
    "a baseline": (
        "@scale.launch",
        "@scale.baseline('blas')\ndef b(x, **_):\n    return print\n\n\n@scale.launch",
    ),
    "a comment": ("# threads per block", "# something else"),
    "the file's docstring": ('"""scale: out = factor * x."""', '"""Something else."""'),
    "a hook's docstring": ('"""One thread per element."""\n', '"""Words."""\n'),
}
MEANING = {
    "arguments": ("rng.standard_normal(p.n, dtype=np.float32)", "rng.uniform(0, 1, p.n)"),
    "reference": ("return factor * x", "return factor * x + 0"),
    "launch": ("block=(c.BLOCK,)", "block=(c.BLOCK, 1)"),
    "a helper": ("ceil_div(p.n, c.BLOCK)", "ceil_div(p.n, c.BLOCK) + 0"),
    "a module constant": ("FACTOR = 3", "FACTOR = 4"),
    "the source": ('"scale.cu"', '"other.cu"'),
    "options of another place": ("    BLOCK=(32, 64)", "    **OPTIONS,\n    BLOCK=(32, 64)"),
    "options": (
        "@scale.launch",
        "@scale.options\ndef options(c):\n    return ['-G']\n\n\n@scale.launch",
    ),
}


@pytest.mark.parametrize("edit", SEARCH_ONLY.values(), ids=SEARCH_ONLY)
def test_what_only_says_what_to_try_leaves_the_fingerprint(tmp_path, edit):
    """So a new value in a list, or a comment, makes nothing measured obsolete."""
    assert fingerprint(tmp_path, changed(SPACE, edit)) == fingerprint(tmp_path, SPACE)


@pytest.mark.parametrize("edit", MEANING.values(), ids=MEANING)
def test_what_decides_results_changes_the_fingerprint(tmp_path, edit):
    assert fingerprint(tmp_path, changed(SPACE, edit)) != fingerprint(tmp_path, SPACE)


def test_the_fingerprint_does_not_depend_on_where_the_file_is(tmp_path, monkeypatch):
    (tmp_path / "deeper").mkdir()
    before = fingerprint(tmp_path, SPACE)
    monkeypatch.chdir(tmp_path)
    assert fingerprint(tmp_path / "deeper", SPACE) == before
    assert os.fspath(tmp_path) not in before


def test_the_fingerprint_is_the_same_in_every_version_of_python(tmp_path):
    """Records are made with one and read with another: `ast.dump` would not do."""
    file = tmp_path / "tiny.py"
    body = "def double(x, *, y=None) -> int:\n    return [x * 2 for x in (y, 'a')][0]\n"
    file.write_text(body)
    assert spec_fingerprint(file) == (
        "0b5032ad6e5e5f30529a949b53430f46fe082f7f355e3f1eb48a9a85f03e3755"
    )
    file.write_text(f"import numpy as np\nfrom autotune import Kernel\n{body}")
    assert spec_fingerprint(file) == (
        "c287dbbd5de4c41b114b38f0809f42dfec5fc7f7a92f2597cf0021931233bcea"
    )


def of_the_home(text):
    """The description of a function ``f`` that a notebook would define."""
    module = {"__name__": "__main__"}
    exec(text, module)
    return Description("__main__", [module["f"]]).text


@pytest.mark.parametrize(
    "text",
    [
        "def f(x, *, factor=1): return factor * x",
        "FACTOR = 1\ndef f(x): return FACTOR * x",
        "FACTOR = 1\ndef f(x): return [*map(lambda v: FACTOR * v, x)]",
    ],
    ids=["keyword", "global", "inner function"],
)
def test_a_function_is_described_with_all_that_it_uses(text):
    assert of_the_home(text) == of_the_home(text)
    for name in ("factor=", "FACTOR = "):
        if name in text:
            assert of_the_home(text.replace(f"{name}1", f"{name}2")) != of_the_home(text)


# ---------------------------------------------------------------- what a space file imports

#: How a space file comes to a module: its edit, and modules by name.
WAYS = {
    "a module": ("import _h", {"_h": "FACTOR = 1"}),
    "a module of a module": ("import _g", {"_g": "from _h import FACTOR", "_h": "FACTOR = 1"}),
    "modules in a circle": ("import _g", {"_g": "import _h", "_h": "import _g\nFACTOR = 1"}),
    "a module in a package": ("from _p import _h", {"_p/__init__": "", "_p/_h": "FACTOR = 1"}),
    "a module above": (
        "import _p.a.b",
        {
            "_p/__init__": "",
            "_p/_h": "FACTOR = 1",
            "_p/a/__init__": "",
            "_p/a/b": "from .. import _h",
        },
    ),
    "a module imported late": ("def late():\n    import _h", {"_h": "FACTOR = 1"}),
    "another space file": ("from other import FACTOR", {"other": SPACE.replace("= 3", "= 1")}),
}


def write_modules(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text(text)


@pytest.mark.parametrize(("statement", "files"), WAYS.values(), ids=WAYS)
def test_modules_that_a_space_file_imports_are_in_its_fingerprint(
    tmp_path, monkeypatch, statement, files
):
    """However it comes to them, from its folder or by `sys.path`; not their comments and docstrings."""
    monkeypatch.setattr(sys, "path", [str(tmp_path / "library"), *sys.path])
    (tmp_path / "space").mkdir()
    (tmp_path / "library").mkdir()
    space = changed(SPACE, ("FACTOR = 3", f"{statement}\n\nFACTOR = 3"))
    for folder in (tmp_path / "space", tmp_path / "library"):
        write_modules(folder, files)
        before = fingerprint(tmp_path / "space", space)
        words = {name: f'"""Words."""\n# More.\n{text}' for name, text in files.items()}
        write_modules(folder, words)
        assert fingerprint(tmp_path / "space", space) == before
        write_modules(folder, {name: text.replace("= 1", "= 2") for name, text in files.items()})
        assert fingerprint(tmp_path / "space", space) != before
        for name in files:
            (folder / f"{name}.py").unlink()


def test_modules_are_known_in_any_order(tmp_path, monkeypatch):
    """Those that functions use are a set."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    write_modules(tmp_path, {"_ours": "A = 1", "_others": "B = 1"})
    both = modules_fingerprint(["_ours", "_others"])
    assert both == modules_fingerprint(["_others", "_ours"])
    assert both != modules_fingerprint(["_ours"]) != modules_fingerprint([])


def test_a_kernel_may_be_called_like_a_module_of_python(tmp_path):
    """`import copy` beside copy.py is Python's; so is that of an installed package."""
    write_modules(tmp_path / "spaces", {"copy": "1 / 0", "click": "1 / 0"})
    file = write_space(
        tmp_path, ("FACTOR = 3", "import click\nimport copy\n\nFACTOR = copy.copy(3)")
    )
    assert load_file(file).name == "scale"


def test_a_corrected_reference_is_the_one_that_is_used(tmp_path):
    """In one process: also where two folders have modules of one name, and the space files are alike."""
    factors = {}
    for name, factor in (("a", 1), ("b", 2), ("a", 5)):
        (tmp_path / name).mkdir(exist_ok=True)
        file = write_space(
            tmp_path / name,
            ("FACTOR = 3", "import _h\n\nFACTOR = 3"),
            ("factor * x", "_h.ref(factor * x)"),
        )
        write_modules(file.parent, {"_h": f"def ref(x):\n    return {factor} * x\n"})
        kernel = load_file(file)
        made = prepare(kernel, kernel.problems["opencl"][0], EXACT)
        factors[arguments_fingerprint(kernel)] = (made.expected("out") / made.array("x"))[0]
    assert list(factors.values()) == [3, 6, 15]


def test_an_edit_during_a_run_is_the_next_ones(tmp_path):
    """What the old functions make is known by them, and no process goes on with the new ones."""
    file = write_space(tmp_path, ("factor * x", "_h.ref(factor * x)"))
    file.write_text(f"import _h\n{file.read_text()}")
    write_modules(file.parent, {"_h": "def ref(x):\n    return 2 * x\n"})
    old = load_file(file)
    old.texts = frozen_sources(old)
    known_by, source = own_fingerprint(old), source_fingerprint(old)
    write_modules(file.parent, {"_h": "def ref(x):\n    return x\n"})
    kernel_file = tmp_path / "kernels" / "scale.cu"
    kernel_file.write_text(kernel_file.read_text().replace("factor * x", "x"))
    problem, device = old.problems["opencl"][0], for_arch("sm_90")
    factors = {}
    for kernel in (old, load_file(file)):
        made = prepare(kernel, problem, EXACT)
        text = compile_job(kernel, kernel.default(), problem, device).source
        factor = (made.expected("out") / made.array("x"))[0]
        factors[own_fingerprint(kernel), source_fingerprint(kernel)] = factor, "factor * x" in text
    assert factors.pop((known_by, source)) == (6, True)
    assert list(factors.values()) == [(3, False)]
    assert own_fingerprint(load_kernel(file, own_fingerprint(load_file(file)))) != known_by
    with pytest.raises(AutotuneError, match="was changed while it was in use"):
        load_kernel(file, known_by)
