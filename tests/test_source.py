"""Fingerprints: what of a kernel makes measurements obsolete."""

import os
import sys
from inspect import signature

import pytest
from sample_spaces import SPACE, changed, write_space

from autotune import Kernel, Source
from autotune.compiling.job import compile_job
from autotune.data.dataset import EXACT
from autotune.data.prepare import prepare_dataset
from autotune.devices.device import for_arch
from autotune.errors import AutotuneError
from autotune.kernel.catalog import load_file
from autotune.kernel.snapshot import load_kernel
from autotune.kernel.source import (
    Description,
    arguments_fingerprint,
    frozen_sources,
    own_fingerprint,
    source_fingerprint,
)
from autotune.kernel.space_text import (
    DECIDING,
    LISTS,
    modules_fingerprint,
    space_text,
    spec_fingerprint,
)

# ---------------------------------------------------------------- fingerprints


def fingerprint(folder, text):
    """Of the kernel of a space file with this text, run as a space file is."""
    (folder / "scale.cu").write_text("")
    (folder / "other.cu").write_text("")
    file = folder / "scale.py"
    file.write_text(text)
    return own_fingerprint(load_file(file))


SEARCH_ONLY = {
    "a new value": ("BLOCK=(32, 64)", "BLOCK=(32, 64, 128)"),
    "a new parameter": ("BLOCK=(32, 64)", "BLOCK=(32, 64), ITEMS=(1, 2)"),
    "other problems": ("problems=[Problem(n=1000)]", "problems=[Problem(n=7), Problem(n=8)]"),
    "seeds and default": ("    BLOCK=", "    seeds=[{}], default={'BLOCK': 64},\n    BLOCK="),
    "variants": ("    BLOCK=", "    variants={'naive': {'BLOCK': 32}},\n    BLOCK="),
    "backends": ("    BLOCK=", "    backends=('cuda',),\n    BLOCK="),
    "a comment": ("# threads per block", "# something else"),
    "the file's docstring": ('"""scale: out = factor * x."""', '"""Something else."""'),
    "a hook's docstring": ('"""One thread per element."""\n', '"""Words."""\n'),
}
MEANING = {
    "a constraint": ("BLOCK % 32 == 0", "BLOCK % 64 == 0"),
    "a baseline": (
        "@scale.launch",
        "@scale.baseline('blas')\ndef b(x, **_):\n    return print\n\n\n@scale.launch",
    ),
    "arguments": ("rng.standard_normal(p.n, dtype=np.float32)", "rng.uniform(0, 1, p.n)"),
    "reference": ("return factor * x", "return factor * x + 0"),
    "launch": ("block=(c.BLOCK,)", "block=(c.BLOCK, 1)"),
    "a helper": ("ceil_div(p.n, c.BLOCK)", "ceil_div(p.n, c.BLOCK) + 0"),
    "a module constant": ("FACTOR = 3", "FACTOR = 4"),
    "the source": ('"scale.cu"', '"other.cu"'),
    "options of another place": (
        "    BLOCK=(32, 64)",
        "    **{'ITEMS': (1, 2)},\n    BLOCK=(32, 64)",
    ),
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


#: Code that looks like the search and decides results: what stands before the kernel, and the change.
LOOKALIKES = {
    "a call of another Kernel": (
        "class Filter:\n    def Kernel(self, **n):\n        return n\n\n\nF = Filter().Kernel(width=3)",
        ("width=3", "width=5"),
    ),
    "a decorator of another object": (
        "class Table:\n    call = metric = requires = staticmethod(lambda f: f)\n\n\n"
        "@Table.call\ndef gain(x):\n    return 3 * x",
        ("return 3 * x", "return 5 * x"),
    ),
    "a name bound in a list": ("", ("BLOCK=(32, 64)", "BLOCK=((WIDTH := 32), 64)")),
}


@pytest.mark.parametrize(("before", "edit"), LOOKALIKES.values(), ids=LOOKALIKES)
def test_what_looks_like_the_search_is_in_the_fingerprint(tmp_path, before, edit):
    space = changed(SPACE, ("FACTOR = 3", f"FACTOR = 3\n{before}\n"))
    assert fingerprint(tmp_path, changed(space, edit)) != fingerprint(tmp_path, space)


def test_a_constraint_that_a_reference_calls_is_in_the_fingerprint(tmp_path):
    space = changed(SPACE, ("return factor * x", "return factor * x * whole_warps(32)"))
    edit = ("BLOCK % 32 == 0", "3 * (BLOCK % 32 == 0)")
    assert fingerprint(tmp_path, changed(space, edit)) != fingerprint(tmp_path, space)


#: Other ways to name the class, and whether its lists stay out of the fingerprint.
NAMES = {
    "another name": (("Kernel,", "Kernel as K,"), ("Kernel(", "K("), True),
    "the package": (
        ("import numpy", "import autotune as at\nimport numpy"),
        ("Kernel(", "at.Kernel("),
        True,
    ),
    "a module": (
        ("import numpy", "import autotune.kernel.spec\nimport numpy"),
        ("Kernel(", "autotune.kernel.spec.Kernel("),
        True,
    ),
    "a variable": (("FACTOR = 3", "FACTOR = 3\nmake = Kernel"), ("= Kernel(", "= make("), False),
    "a function's argument": (
        ("FACTOR = 3", "FACTOR = 3\n\n\ndef other(Kernel):\n    return Kernel(width=3)"),
        ("FACTOR", "FACTOR"),
        False,
    ),
}


@pytest.mark.parametrize(("before", "named", "is_known"), NAMES.values(), ids=NAMES)
def test_only_calls_of_the_imported_class_have_lists(tmp_path, before, named, is_known):
    """The file is not run, so a call of another name is not taken for a declaration."""
    text = changed(SPACE, before).replace(*named)
    other = changed(text, ("BLOCK=(32, 64)", "BLOCK=(32, 64, 128)"))
    same = fingerprint(tmp_path, text) == fingerprint(tmp_path, other)
    assert same is is_known


def test_the_values_of_parameters_are_read_from_the_text(tmp_path):
    known = space_text(write_space(tmp_path)).parameters
    assert known == {"BLOCK": (32, 64)}
    computed = space_text(write_space(tmp_path, ("(32, 64)", "[2**i for i in (5, 6)]"))).parameters
    assert computed == {"BLOCK": None}


def test_every_argument_of_a_declaration_decides_or_lists():
    """A new argument must be put into one of the two sets."""
    names = {*signature(Kernel).parameters, *signature(Source).parameters} - {"parameters"}
    assert names == DECIDING | LISTS
    assert not DECIDING & LISTS


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
        "0b40f18b685e8b48199243afc1872ee32e030d830de01377b70eee38b1602938"
    )
    file.write_text(f"import numpy as np\nfrom autotune import Kernel\n{body}")
    assert spec_fingerprint(file) == (
        "51b40cf67db66ad8d7f3b13625b82da7123a03bda053e6bcf84068ab514f96d7"
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
    file = tmp_path / "space" / "scale.py"
    file.write_text(changed(SPACE, ("FACTOR = 3", f"{statement}\n\nFACTOR = 3")))
    for folder in (tmp_path / "space", tmp_path / "library"):
        write_modules(folder, files)
        before = spec_fingerprint(file)
        words = {name: f'"""Words."""\n# More.\n{text}' for name, text in files.items()}
        write_modules(folder, words)
        assert spec_fingerprint(file) == before
        write_modules(folder, {name: text.replace("= 1", "= 2") for name, text in files.items()})
        assert spec_fingerprint(file) != before
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
        problem = kernel.problems["opencl"][0]
        made, known_by = (
            prepare_dataset(kernel, problem, EXACT),
            arguments_fingerprint(kernel, problem),
        )
        factors[known_by] = (made.expected("out") / made.array("x"))[0]
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
        made = prepare_dataset(kernel, problem, EXACT)
        text = compile_job(kernel, kernel.default(), problem, device).source
        factor = (made.expected("out") / made.array("x"))[0]
        factors[own_fingerprint(kernel), source_fingerprint(kernel)] = factor, "factor * x" in text
    assert factors.pop((known_by, source)) == (6, True)
    assert list(factors.values()) == [(3, False)]
    assert own_fingerprint(load_kernel(file, own_fingerprint(load_file(file)))) != known_by
    with pytest.raises(AutotuneError, match="changed during the run"):
        load_kernel(file, known_by)
