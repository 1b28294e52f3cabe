"""Kernels of scripts and notebooks: known by their functions, and sent to other processes by value."""

from __future__ import annotations

import enum
import functools
import os
import subprocess
import sys
import textwrap
from types import ModuleType
from typing import Any

import pytest
from sample_spaces import SOURCE, SPACE, changed, write_space

from autotune import tune
from autotune.data.dataset import EXACT
from autotune.data.prepare import prepare_dataset
from autotune.devices.device import for_arch
from autotune.errors import AutotuneError, SpecError
from autotune.kernel.catalog import is_of_file, load_file
from autotune.kernel.snapshot import origin_of, restore_kernel, serialise_kernel, snapshot
from autotune.kernel.source import own_fingerprint, source_fingerprint, source_of
from autotune.kernel.spec import Kernel
from autotune.values import Problem

CUDA = """
#include "dialect.h"
KERNEL(BLOCK, 1, 0) twice(GLOBAL const float* x, GLOBAL float* out, int n) {
    const int i = BID(0) * BLOCK + TID(0);
    if (i < n) out[i] = 2 * x[i];
}
"""

#: A notebook, cell by cell.
CELLS = (
    """
    import functools
    import numpy as np
    from autotune import Kernel, Launch, Out, Problem, ceil_div
    FACTOR, SHIFT = 2, np.zeros(1)
    """,
    f"""
    kernel = Kernel({CUDA!r}, name="twice", problems=[Problem(n=1000)], BLOCK=(32, 64, 128))
    """,
    """
    @functools.cache
    def factor():
        return np.float32(FACTOR)

    @kernel.arguments
    def _(p, rng):
        return {"x": rng.standard_normal(p.n, dtype=np.float32), "out": Out(p.n), "n": p.n}

    @kernel.reference
    def _(x):
        return factor() * x + SHIFT[0]
    """,
    """
    @kernel.launch
    def _(c, p):
        return Launch(grid=(ceil_div(p.n, c.BLOCK),), block=(c.BLOCK,))

    @kernel.constraint
    def _(BLOCK):
        "Small enough."
        return BLOCK <= 2 * LARGEST

    LARGEST = 64
    """,
)
PROBLEM = Problem(n=1000)


def run_cell(namespace, text, number=0):
    """Run a cell as IPython does: as main, without a file."""
    exec(compile(textwrap.dedent(text), f"<cell {number}>", "exec"), namespace)


def notebook(*cells):
    """The names of a notebook after these cells, and those of `CELLS` before."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate((*CELLS, *cells), 1):
        run_cell(namespace, cell, number)
    return namespace


def expected(kernel):
    """What the reference multiplies by, as data sets have it."""
    made = prepare_dataset(kernel, PROBLEM, EXACT)
    return float((made.expected("out") / made.array("x"))[0])


# ---------------------------------------------------------------- scripts; test_api tunes a notebook


def script(*lines):
    """A script of `CELLS` and further lines, which says each time that it runs."""
    return "\n".join(["print('runs')", *map(textwrap.dedent, CELLS), *lines])


def run_script(folder, lines, way):
    """What a script prints that is run as a module or from standard input; it complains of nothing."""
    (folder / "package").mkdir()
    file = folder / "package" / "job.py"
    file.write_text(script(lines))
    done = subprocess.run(
        [sys.executable, *(["-m", "package.job"] if way == "module" else ["-"])],
        input=file.read_text() if way == "stdin" else None,
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split("\n")[:-1]


IN_A_CHILD = """
from autotune.kernel.snapshot import origin_of
from autotune.measure.process import ChildActor
from sample_spaces import ratios
actor, problem = ChildActor(), Problem(n=3)
print(actor.ask(ratios, origin_of(kernel), problem, timeout_s=60))
actor.close()
"""


@pytest.mark.parametrize("way", ["module", "stdin"])
def test_a_script_is_run_once_however_it_is(tmp_path, way):
    assert run_script(tmp_path, IN_A_CHILD, way) == ["runs", "[2. 2. 2.]"]


# ---------------------------------------------------------------- what it is known by


def test_equal_functions_are_known_alike_wherever_their_lines_are():
    again = notebook("'another cell'", *(f"# moved\n\n{textwrap.dedent(cell)}" for cell in CELLS))
    assert own_fingerprint(again["kernel"]) == own_fingerprint(notebook()["kernel"])


@pytest.mark.parametrize(
    "cell",
    [
        "LARGEST = 32",  # of a constraint
        "UNUSED = 1",
        "kernel.seeds = ({'BLOCK': 64},)",
        "def helper():\n    return 1",
    ],
)
def test_what_decides_no_result_changes_nothing(cell):
    assert own_fingerprint(notebook(cell)["kernel"]) == own_fingerprint(notebook()["kernel"])


@pytest.mark.parametrize(
    "cell",
    [
        "FACTOR = 3",
        "SHIFT[0] = 1",
        "@functools.cache\ndef factor():\n    return np.float32(FACTOR + 0)",
        "kernel.static = ('n',)",
    ],
)
def test_what_functions_do_and_use_is_in_the_fingerprint(cell):
    assert own_fingerprint(notebook(cell)["kernel"]) != own_fingerprint(notebook()["kernel"])


VALUES = (
    "{'b': 1, 'a': {'x', 'yy', 'zzz'}}",
    "lambda x, y=[1, 2]: x",
    "type('C', (), {'f': lambda self: 1, 'g': property(lambda self: 2)})",
    "__import__('re').compile('a+')",
    "__import__('enum').Enum('E', 'RED GREEN')",
    "frozenset({('a', 1), ('b', 2)})",
)


def test_values_are_known_alike_in_every_process(tmp_path):
    """The order of a set's texts, and where objects lie, differ from process to process."""
    lines = [f"values = [{', '.join(VALUES)}]", "@kernel.tolerance\ndef _(p):\n    return values"]
    lines += [
        "from autotune.kernel.source import own_fingerprint",
        "print(own_fingerprint(kernel))",
    ]
    (tmp_path / "job.py").write_text(script(*lines))
    found = set()
    for seed in "1", "2":
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = [sys.executable, str(tmp_path / "job.py")]
        found.add(subprocess.check_output(command, env=environment, text=True))
    assert len(found) == 1


def test_a_module_that_functions_use_is_followed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_helper.py").write_text("def f():\n    return 1.0\n")
    use = "import own_helper\n@kernel.tolerance\ndef _(p):\n    return own_helper.f()"
    kernel = notebook(use)["kernel"]
    before, state = own_fingerprint(kernel), snapshot(kernel).state
    (tmp_path / "own_helper.py").write_text("def f():\n    return 2.0\n")
    assert own_fingerprint(kernel) != before
    with pytest.raises(AutotuneError, match=r"twice: a module that .* changed during the run"):
        restore_kernel(state)
    monkeypatch.delitem(sys.modules, "own_helper")


# ---------------------------------------------------------------- what is sent


def test_a_snapshot_stays_as_it_was():
    names = notebook()
    kernel = names["kernel"]
    taken = snapshot(kernel)
    run_cell(names, "FACTOR = 3\nSHIFT[0] = 7\n@kernel.launch\ndef _(c, p):\n    return 1 / 0")
    run_cell(names, CELLS[2])
    assert (expected(taken), expected(restore_kernel(taken.state))) == (2, 2)
    assert own_fingerprint(taken) == own_fingerprint(restore_kernel(taken.state))
    assert own_fingerprint(kernel) != own_fingerprint(taken)
    assert taken.steps(taken.default(), PROBLEM, for_arch("sm_90"))


class Colour(enum.Enum):
    """For a function of a test."""

    RED = 1


def test_a_kernel_declared_in_a_function_is_sent_with_what_encloses_it():
    names = notebook()
    two, colour = 2, Colour.RED
    kernel = Kernel(CUDA, name="twice", problems=[PROBLEM], BLOCK=(32, 64))
    kernel.hooks.update(names["kernel"].hooks)

    @functools.cache
    def factor():
        return two

    @kernel.reference
    def reference(x):
        return factor() * x * colour.value

    assert not is_of_file(kernel)
    assert expected(restore_kernel(snapshot(kernel).state)) == 2


def test_a_kernel_of_a_space_file_or_of_a_module_with_no_other_is_its_file(tmp_path, monkeypatch):
    file = write_space(tmp_path)
    assert origin_of(load_file(file)) == file
    module = ModuleType("some_module")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "some_module", module)
    exec(SPACE, vars(module))
    assert origin_of(module.scale) == file
    exec(
        SPACE.replace("scale", "other").replace("    BLOCK=", "    name='other', BLOCK="),
        vars(module),
    )
    assert origin_of(module.scale) == file
    assert not is_of_file(module.other)


def test_a_space_file_that_is_run_as_main_is_known_by_its_file_and_not_run_again(
    tmp_path, monkeypatch
):
    """So that what it tunes and what `autotune run` tunes are known alike."""
    file = write_space(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(file)}
    exec(compile(SPACE, file, "exec"), names)
    assert own_fingerprint(names["scale"]) != own_fingerprint(load_file(file))
    monkeypatch.chdir(tmp_path)
    assert own_fingerprint(names["scale"]) == own_fingerprint(load_file(file))
    assert isinstance(origin_of(names["scale"]), bytes)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (
            "LOCK = __import__('threading').Lock()",
            r"its functions use an object .*'_thread.lock'.*inside",
        ),
        (
            "LOCK = np.zeros(1 << 22)",
            r"use 32 MiB of the script's data; other processes get at most 16 .*functions",
        ),
    ],
)
def test_what_cannot_be_sent_is_refused_with_what_to_do(cell, message):
    use = "@kernel.tolerance\ndef _(p):\n    return bool(LOCK)"
    with pytest.raises(SpecError, match=f"^twice: .*{message}"):
        snapshot(notebook(cell, use)["kernel"])


def test_a_kernel_that_lacks_a_function_is_refused_before_anything_runs():
    with pytest.raises(SpecError, match="no arguments function"):
        tune(notebook("del kernel.hooks['arguments']")["kernel"])


def test_a_space_file_that_tunes_as_it_runs_is_told_to_stop(tmp_path):
    file = write_space(tmp_path)
    file.write_text(
        f"{file.read_text()}\nautotune.tune(scale)\n".replace("import np", "import np", 1)
    )
    file.write_text(f"import autotune\n{file.read_text()}")
    with pytest.raises(SpecError, match=r"scale.py: .*a space file calls tune\(\)"):
        load_file(file)


# ---------------------------------------------------------------- sources as texts


def test_a_source_as_a_text_is_compiled_with_its_includes(tmp_path):
    kernel = notebook()["kernel"]
    text = source_of(kernel, kernel.default(), PROBLEM, for_arch("sm_90"))
    assert text.count("KERNEL(BLOCK, 1, 0) twice(") == 1
    assert "DIALECT_H" in text
    assert "BLOCK 32" in text


def test_another_text_is_another_source():
    kernels = [Kernel(CUDA + end, name="twice", problems=[PROBLEM]) for end in ("", "// more")]
    assert source_fingerprint(kernels[0]) != source_fingerprint(kernels[1])


def test_a_text_needs_a_name():
    with pytest.raises(SpecError, match="text needs name="):
        Kernel(CUDA, problems=[PROBLEM])


def test_a_travelling_kernel_leaves_installed_packages_where_they_are(tmp_path, monkeypatch):
    site, spaces = tmp_path / "site", tmp_path / "spaces"
    (site / "installed_here-1.0.dist-info").mkdir(parents=True)
    (site / "installed_here.py").write_text("import threading\nSTATE = threading.local()\n")
    spaces.mkdir()
    edits = (
        ("from autotune import", "import _beside\nimport installed_here\nfrom autotune import"),
        ("return factor * x", "return _beside.times(factor, x) if installed_here.STATE else x"),
    )
    (spaces / "scale.py").write_text(changed(SPACE, *edits))
    (spaces / "scale.cu").write_text(SOURCE)
    (spaces / "_beside.py").write_text("def times(a, b):\n    return a * b\n")
    monkeypatch.syspath_prepend(site)
    state = serialise_kernel(load_file(spaces / "scale.py"))
    (tmp_path / "state").write_bytes(state)
    code = (
        "import sys; from pathlib import Path; from autotune.kernel.snapshot import restore_kernel; "
        "print(restore_kernel(Path(sys.argv[1]).read_bytes()).hooks['reference'](4, 5))"
    )
    path = os.pathsep.join([str(site), *(entry for entry in sys.path if entry)])
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "state")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert ran.stdout.split() == ["20"], ran.stderr
