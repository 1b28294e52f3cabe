"""Includes: one text that compiles as the files do, and all that a compiler reads is in keys and fingerprints."""

import re
from pathlib import Path
from shutil import which
from subprocess import run

import pytest
from sample_spaces import SOURCE, changed, write_space

from autotune.compiling.binaries import compile_now
from autotune.compiling.job import compile_job
from autotune.devices.base import CompileError
from autotune.devices.choose import backend
from autotune.devices.device import for_arch
from autotune.errors import AutotuneError, SpecError
from autotune.kernel.catalog import load_file
from autotune.kernel.includes import flattened, search_path
from autotune.kernel.source import search_paths, source_fingerprint


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
    assert flattened(file).text.splitlines() == [
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
    text = flattened(write(tmp_path, k_cu=f"{line}\n", h_h="int h;\n")).text
    assert "int h;" in text
    assert "include" not in text


#: Sources whose text a preprocessor must make the same of, inlined or not.
TREES = {
    "one guarded file by two ways": {
        "k_cu": '#include "a.h"\n#include "b.h"\n#include "a.h"\n',
        "a_h": '#pragma once\nint a;\n#include "b.h"\n',
        "b_h": "// words\n#ifndef B_H\n#define B_H\nint b;\n#endif // B_H\n",
    },
    "guarded files in a circle": {
        "k_cu": '#include "a.h"\n',
        "a_h": '#pragma once\n#include "b.h"\nint a;\n',
        "b_h": '#if !defined(B_H)\n#define B_H\n#include "a.h"\n#include "b.h"\nint b;\n#endif\n',
    },
    "first where a condition is false": {
        "k_cu": '#if 0\n#include "a.h"\n#include "b.h"\n#endif\n#include "a.h"\n#include "b.h"\n#include "a.h"\n',
        "a_h": "#pragma once\nint a;\n",
        "b_h": "#ifndef B_H\n#define B_H\nint b;\n#endif\n",
    },
    "in a file that is included under a condition": {
        "k_cu": '#ifdef NO\n#include "a.h"\n#else\n#include "b.h"\n#endif\n#include "b.h"\n',
        "a_h": '#pragma once\n#include "b.h"\n',
        "b_h": "#pragma once\nint b;\n",
    },
    "a list that is included twice on purpose": {
        "k_cu": '#define X(n) int n;\n#include "list.h"\n#undef X\n#define X(n) float f_##n;\n#include "list.h"\n',
        "list_h": "X(a)\nX(b)\n",
    },
    "a guard around a part": {
        "k_cu": '#include "a.h"\n#include "a.h"\n',
        "a_h": "#ifndef A_H\n#define A_H\nint once;\n#endif\nint twice(int);\n",
    },
    "a guard with another branch": {
        "k_cu": '#include "a.h"\n#include "a.h"\n',
        "a_h": "#ifndef A_H\n#define A_H\nint first;\n#else\nint again;\n#endif\n",
    },
    "includes in comments and strings": {
        "k_cu": '/*\n#include "a.h"\n#if 1\n*/\n// \\\n#if 1\nchar c = \'"\';\n#include "b.h"\n#include "b.h"\n',
        "a_h": "int wrong; */\n",
        "b_h": "#pragma once\n/* #if */ int b;\n",
    },
    "neighbours that the source asks for": {
        "k_cu": '#if __has_include("a.h") && !__has_include("no.h")\n#include "a.h"\n#endif\n'
        '#if 0\nint no;\n#elif \\\n  __has_include ( "b.h" )\nint yes = __LINE__;\n#endif\n',
        "a_h": '#if __has_include("b.h")\nint a = __LINE__;\n#endif\n',
        "b_h": "int b;\n",
    },
    "includes written otherwise": {
        "k_cu": '/* */ # /* */ include /* */ "a.h" // why\n#include \\\n"b.h"\nint k = __LINE__;\n',
        "a_h": "int a = __LINE__;\n",
        "b_h": "int b;\n",
    },
}


@pytest.mark.skipif(which("cpp") is None, reason="no preprocessor")
@pytest.mark.parametrize("files", TREES.values(), ids=TREES)
def test_an_inlined_text_is_what_the_preprocessor_reads(tmp_path, files):
    file = write(tmp_path, **files)

    def preprocessed(text):
        command = ["cpp", "-P", "-w", f"-I{tmp_path}", "-xc++", "-"]
        return run(command, input=text, capture_output=True, text=True, check=True).stdout

    inlined = flattened(file).text
    assert preprocessed(inlined).split() == preprocessed(file.read_text()).split()


def test_a_file_without_guard_that_includes_itself_is_refused(tmp_path):
    file = write(tmp_path, k_cu='#include "a.h"\n', a_h='#include "a.h"\n')
    with pytest.raises(SpecError, match=r"a\.h includes itself; give it an include guard"):
        flattened(file)


def test_an_included_file_finds_its_own_neighbours_first(tmp_path):
    (tmp_path / "parts").mkdir()
    write(tmp_path / "parts", inner_h='#include "deep.h"\n', deep_h="int near;\n")
    file = write(tmp_path, k_cu='#include "parts/inner.h"\n', deep_h="int far;\n")
    assert "int near;" in flattened(file).text
    assert "int far;" not in flattened(file).text


def test_the_dialect_comes_from_the_bundled_kernels_unless_there_is_one_beside(tmp_path):
    file = write(tmp_path, k_cu='#include "dialect.h"\n')
    assert "#define KERNEL(" in flattened(file).text
    write(tmp_path, dialect_h="int mine;\n")
    assert "#define KERNEL(" not in flattened(file).text


def test_what_is_not_ours_is_left_to_the_compiler(tmp_path):
    source = '#include <cuda_fp16.h>\n#include "nowhere.h"\n'
    assert flattened(write(tmp_path, k_cu=source)).text == f'#line 1 "k.cu"\n{source}'


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
        backend(name).compile(flattened(write(tmp_path, **files)).text, {}, (), device)
    file, line = where
    assert re.search(rf"{re.escape(file)}[:(]{line}\b.*error", str(caught.value))


def test_a_text_is_read_again_when_any_file_of_it_changed(tmp_path):
    """In one process, and also where a nearer file appears: what is compiled is what is fingerprinted."""
    (tmp_path / "kernels").mkdir()
    file = write(
        tmp_path / "kernels", k_cu='#include "h.h"\n#include "dialect.h"\n', h_h="int a;\n"
    )
    assert "int a;" in flattened(file).text and "#define KERNEL(" in flattened(file).text
    write(tmp_path / "kernels", h_h="int changed;\n")
    assert "int changed;" in flattened(file).text and "#define KERNEL(" in flattened(file).text
    write(tmp_path / "kernels", dialect_h="int nearer;\n")
    assert "int nearer;" in flattened(file).text and "#define KERNEL(" not in flattened(file).text
    (tmp_path / "kernels" / "h.h").chmod(0o666)
    (tmp_path / "kernels" / "h.h").write_text("int anybodys;\n")
    with pytest.raises(SpecError, match="all users may write it"):
        flattened(file)


# ---------------------------------------------------------------- headers that options name

#: A source with such an include, and where its header lies.
WAYS = {
    "quotes": ('#include "factor.h"', "include/factor.h"),
    "brackets": ("#include <factor.h>", "include/factor.h"),
    "a header of a header": ('#include "outer.h"', "include/factor.h"),
    "a macro": ("#define H <factor.h>\n#include H", "include/factor.h"),
    "a macro that quotes": (
        "#define S(x) #x\n#define Q(x) S(x)\n#define H factor.h\n#include Q(H)",
        "include/factor.h",
    ),
    "the working folder, which OpenCL searches": ('#include "factor.h"', "factor.h"),
    "a question": (
        "#if __has_include(<factor.h>)\n#include <factor.h>\n#endif",
        "include/factor.h",
    ),
    "a false branch": ("#if 0\n#include <factor.h>\n#endif\n#define WIDTH 3", "include/factor.h"),
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A kernel whose options name the folder ``include``, also the working folder."""
    hook = '@scale.options\ndef options(c):\n    return ["-Iinclude"]\n\n\n'
    write_space(tmp_path, ("@scale.launch", f"{hook}@scale.launch"))
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "outer.h").write_text('#include "factor.h"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def with_include(folder, line):
    source = changed(
        SOURCE, ("#ifndef BLOCK", f"{line}\n#ifndef BLOCK"), ("factor * x", "WIDTH * x")
    )
    (folder / "kernels" / "scale.cu").write_text(source)


@pytest.mark.parametrize(("line", "place"), WAYS.values(), ids=WAYS)
def test_a_header_that_the_compiler_finds_is_in_key_and_fingerprint(project, line, place):
    with_include(project, line)
    keys = set()
    for width in (3, 5):
        (project / place).write_text(f"#define WIDTH {width}\n")
        kernel = load_file(project / "spaces" / "scale.py")
        job = compile_job(kernel, kernel.default(), kernel.problems["cuda"][0], for_arch("sm_90"))
        keys |= {job.key, source_fingerprint(kernel)}
        assert "include" in job.source
    assert len(keys) == 4


@pytest.mark.opencl
def test_after_a_change_of_a_header_the_kernel_is_compiled_again(project, opencl_device):
    with_include(project, "#include <factor.h>")
    device, codes = backend("opencl").devices()[-1], []
    for width in (3, 5, 3):
        (project / "include" / "factor.h").write_text(f"#define WIDTH {width}\n")
        kernel = load_file(project / "spaces" / "scale.py")
        job = compile_job(kernel, kernel.default(), kernel.problems["opencl"][0], device)
        done = compile_now(job)
        codes.append((done.binary.code, done.is_cached))
    (three, _), (five, is_cached), again = codes
    assert three != five and not is_cached and again == (three, True)
    (project / "include" / "factor.h").write_text("#define WIDTH 7\n")
    job = compile_job(kernel, kernel.default(), kernel.problems["opencl"][0], device)
    (project / "include" / "factor.h").write_text("#define WIDTH 8\n")
    with pytest.raises(AutotuneError, match=r"factor\.h changed while it was in use"):
        compile_now(job)


def test_a_named_folder_comes_before_the_bundled_kernels(project):
    with_include(project, '#include "vectors.h"')
    (project / "include" / "vectors.h").write_text("#define WIDTH 3\n")
    path = search_path(["-Iinclude"])
    assert "#define VEC" not in flattened(project / "kernels" / "scale.cu", path).text


@pytest.mark.parametrize(
    "options",
    [
        ["-Iinclude"],
        ["-I", "include"],
        ["-I include"],
        ["--include-path=include"],
        ["-isystem", "include"],
    ],
    ids=" ".join,
)
def test_folders_are_read_from_options_however_they_are_written(options):
    assert "include" in search_path(options).folders


@pytest.mark.parametrize(
    "options",
    [
        ["-include", "factor.h"],
        ["--pre-include=factor.h"],
        ["-DNAME=<factor.h>"],
        ["-D", 'NAME="factor.h"'],
        ["-DNAME=factor.h"],
    ],
    ids=" ".join,
)
def test_a_header_that_an_option_names_is_read(project, options):
    with_include(project, "#ifdef NAME\n#include NAME\n#endif")
    (project / "include" / "factor.h").write_text("#define WIDTH 3\n")
    path = search_path(["-Iinclude", *options])
    (header,) = flattened(project / "kernels" / "scale.cu", path).headers
    assert Path(header.path) == Path("include/factor.h")


# ---------------------------------------------------------------- files that only have the name of a header

#: A source, and the files among a.h, b.h, c.h, l and r of one folder of ``-I`` that a compiler may read for it.
NAMED = {
    "inline assembly": (
        'int k(int *p) { asm("" :: "l"(p), "r"(1)); return 0; }\n#define L(p) asm("" :: "l"(p))\n',
        "",
    ),
    "a macro of no include": ('#define A "a.h"\n#define L "l"\n#define H <b.h>\n#include H\n', "b"),
    "macros by other files": ("#include <b.h>\n#include C\n", "bc"),
    "a macro with a parameter": (
        '#define S(x) #x\n#define Q(x) S(x)\n#define L(p) "l"(p)\n#include Q(a.h)\n',
        "a",
    ),
    "comments": (
        '// #include "a.h" \\\n#include "b.h"\n/*\n#include "a.h"\n*/\n#include /* "l" */ <c.h> // <r>\n',
        "c",
    ),
    "literals": (
        'const char *a = R"x(\n#include "a.h"\n/* )x";\n#include "b.h"\n'
        'const char *c = "/*";\n#include <c.h>\nconst char *d = "*/ \\" ";\n',
        "bc",
    ),
    "continued lines": ('#inc\\\nlude \\\n"a.\\\nh"\n#define C \\\n  <c.h>\n# include C\n', "ac"),
    "a branch that is off": ('#if 0\n#include "a.h"\n#elif __has_include(<l>)\n#endif\n', "al"),
    "questions": (
        "#define R <r>\n#define HAS __has_include(<a.h>)\n#if __has_include(R) && HAS\n#endif\n",
        "ar",
    ),
    "the next file of a name": ("#include_next <a.h>\n", "a"),
    "a comparison": ('#if 1 <l > 2\n#elif defined L\n#endif\n#pragma l\n#line 1 "r"\n', ""),
}


@pytest.mark.parametrize(("source", "found"), NAMED.values(), ids=NAMED)
def test_only_files_that_includes_name_are_read(tmp_path, monkeypatch, source, found):
    """The preprocessor's own list has no other file."""
    folder, empty = tmp_path / "include", tmp_path / "empty"
    folder.mkdir()
    empty.mkdir()
    for name in ("a.h", "c.h", "l", "r"):
        (folder / name).write_text("\n")
    (folder / "b.h").write_text("#define C <c.h>\n")
    monkeypatch.chdir(empty)
    options = [f"-I{folder}", "-DX=l", "-DY=1", "-std=c++17"]
    headers = flattened(write(tmp_path, k_cu=source), search_path(options)).headers
    names = {Path(header.path).name for header in headers}
    assert names == {f"{letter}.h" if letter in "abc" else letter for letter in found}
    if which("cpp"):
        command = ["cpp", "-M", "-w", *options, "-xc++", "-"]
        listed = run(command, input=source, capture_output=True, text=True, check=True).stdout
        assert names >= {Path(file).name for file in re.findall(rf"{folder}/\S+", listed)}


def test_nothing_in_the_working_folder_is_taken_for_a_header(project, monkeypatch):
    """No file is even opened: one that another user may write would be refused."""
    with_include(project, '#define ADD asm("" :: "l"(0), "r"(1))\n#include <cuda_fp16.h>\n')
    kernel = load_file(project / "spaces" / "scale.py")
    kernel.backends = ("cuda",)
    before = source_fingerprint(kernel)
    for name in ("l", "r", "f", "n", "1", "cuda_fp16.h", "dialect.h"):
        (project / name).write_text("anybody's")
        (project / name).chmod(0o666)
    assert source_fingerprint(kernel) == before
    kernel.backends = ("cuda", "opencl")
    with pytest.raises(SpecError, match=r"cuda_fp16\.h: all users may write it"):
        source_fingerprint(kernel)


def test_nvrtc_does_not_search_the_working_folder(project):
    pytest.importorskip("cuda.bindings.nvrtc")
    (project / "factor.h").write_text('#error "found by chance"\n')
    (project / "include" / "factor.h").write_text("#define WIDTH 3\n")
    source, device = (
        '#if __has_include("factor.h")\n#include "factor.h"\n#endif\n',
        for_arch("sm_90"),
    )
    backend("cuda").compile(source, {}, ["-Iinclude"], device)
    backend("cuda").compile(source, {}, (), device)
    with pytest.raises(CompileError, match=r'kernel\.cu\(2\).*cannot open source file "factor\.h"'):
        backend("cuda").compile('\n#include "factor.h"\n', {}, (), device)


@pytest.mark.parametrize("place", ["kernels", "."])
def test_an_inlined_file_is_no_header_wherever_the_compiler_works(project, monkeypatch, place):
    """Else the fingerprint would depend on the working folder."""
    with_include(project, '#include "near.h"')
    (project / "kernels" / "near.h").write_text("#define WIDTH 3\n")
    monkeypatch.chdir(project / place)
    assert flattened(project / "kernels" / "scale.cu").headers == ()


def test_every_folder_that_options_may_name_is_searched(tmp_path):
    """Whatever parameter they depend on, and the device."""
    hook = (
        "def options(c, device):\n"
        "    if c.BLOCK == 64:\n"
        "        return [f'-I{device.backend}']\n"
        "    return [f'-Ideep{c.DEEP}']\n"
    )
    file = write_space(
        tmp_path,
        ("@scale.launch", f"@scale.options\n{hook}\n\n@scale.launch"),
        ("BLOCK=(32, 64)", "BLOCK=(32, 64), DEEP=(1, 2), OTHER=tuple(range(900))"),
    )
    kernel = load_file(file)
    for backends in (("cuda",), ("opencl",), ("cuda", "opencl")):
        kernel.backends = backends
        folders = {folder for path in search_paths(kernel) for folder in path.folders}
        assert folders == {*backends, "deep1", "deep2"}
