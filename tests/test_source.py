"""Sources as one text whose compiler messages still name the right file and line; fingerprints."""

import os
import re

import pytest
from sample_spaces import SPACE, changed

from autotune.devices.base import CompileError
from autotune.devices.choose import backend
from autotune.devices.device import for_arch
from autotune.errors import SpecError
from autotune.kernel.source import flattened, spec_fingerprint, text_fingerprint


def write(folder, **files):
    """Files of these stems (``_`` is the dot); the path of the first."""
    paths = []
    for stem, text in files.items():
        paths.append(folder / stem.replace("_", "."))
        paths[-1].write_text(text)
    return paths[0]


# ---------------------------------------------------------------- inlining


def test_a_source_without_includes_is_kept_as_it_is(tmp_path):
    assert flattened(write(tmp_path, k_cu="int a;\n")) == '#line 1 "k.cu"\nint a;\n'


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


def test_text_fingerprint_is_sha256_of_utf8():
    assert (
        text_fingerprint("a") == "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
    )
    assert text_fingerprint("é") != text_fingerprint("e")


SEARCH_ONLY = {
    "a new value": ("BLOCK=(32, 64)", "BLOCK=(32, 64, 128)"),
    "a new parameter": ("BLOCK=(32, 64)", "BLOCK=(32, 64), ITEMS=(1, 2)"),
    "other problems": ("problems=[Problem(n=1000)]", "problems=[Problem(n=7), Problem(n=8)]"),
    "more problem lists": (
        "    BLOCK=",
        "    quick_problems=[Problem(n=9)], edge_problems=[Problem(n=1)],\n    BLOCK=",
    ),
    "seeds and default": ("    BLOCK=", "    seeds=[{}], default={'BLOCK': 64},\n    BLOCK="),
    "backends": ("    BLOCK=", "    backends=('cuda',),\n    BLOCK="),
    "a constraint": ("BLOCK % 32 == 0", "BLOCK % 64 == 0"),
    "another constraint": (
        "@scale.launch",
        '@scale.constraint\ndef c(BLOCK):\n    """Why."""\n    return True\n\n\n@scale.launch',
    ),
    "an applies rule": (
        "@scale.launch",
        "@scale.applies('BLOCK')\ndef a(BLOCK):\n    return True\n\n\n@scale.launch",
    ),
    "a baseline": (
        "@scale.launch",
        "@scale.baseline('blas')\ndef b(x, **_):\n    return print\n\n\n@scale.launch",
    ),
    "what is exclusive": (
        "@scale.launch",
        "@scale.exclusive\ndef e(c):\n    return c.BLOCK > 32\n\n\n@scale.launch",
    ),
    "a comment": ("# threads per block", "# something else"),
    "the file's docstring": ('"""scale: out = factor * x."""', '"""Something else."""'),
    "a hook's docstring": ('"""One thread per element."""\n', '"""Words."""\n'),
    "no docstring": ('    """One thread per element."""\n', ""),
    "a helper's docstring": ("How many blocks cover the problem.", "Blocks."),
    "layout": ("\n\n\ndef blocks", "\n\n\n\n\n# ----\ndef blocks"),
}
MEANING = {
    "arguments": ("rng.standard_normal(p.n, dtype=np.float32)", "rng.uniform(0, 1, p.n)"),
    "reference": ("return factor * x", "return factor * x + 0"),
    "launch": ("block=(c.BLOCK,)", "block=(c.BLOCK, 1)"),
    "a helper": ("ceil_div(p.n, c.BLOCK)", "ceil_div(p.n, c.BLOCK) + 0"),
    "a module constant": ("FACTOR = 3", "FACTOR = 4"),
    "the source": ('"scale.cu"', '"other.cu"'),
    "static": ("    BLOCK=", "    static=('n',),\n    BLOCK="),
    "a new hook": (
        "@scale.launch",
        "@scale.tolerance\ndef tolerance(p):\n    return 1.0\n\n\n@scale.launch",
    ),
    "options": (
        "@scale.launch",
        "@scale.options\ndef options(c):\n    return ['-G']\n\n\n@scale.launch",
    ),
    "an import": ("import numpy as np", "import numpy as np\nimport math"),
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
    file.write_text("def double(x, *, y=None) -> int:\n    return [x * 2 for x in (y, 'a')][0]\n")
    expected = "0b5032ad6e5e5f30529a949b53430f46fe082f7f355e3f1eb48a9a85f03e3755"
    assert spec_fingerprint(file) == expected
