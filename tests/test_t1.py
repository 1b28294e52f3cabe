"""T1 descriptions: a declared space is described exactly, and a described one becomes a space file."""

from __future__ import annotations

import ast
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_spaces import SOURCE
from sample_spaces import write_space as write_sample
from sample_values import VALUES_OF_ANY_KIND, places

from autotune.cli import run
from autotune.cli.described import write_space
from autotune.devices.device import for_arch
from autotune.errors import RecordError, UsageError
from autotune.export import export_kernel
from autotune.kernel.catalog import find_kernel, load_file
from autotune.kernel.launches import launch_sequence
from autotune.kernel.space import Space, enumerate_space
from autotune.kernel.spec import Kernel
from autotune.values import Configuration, Problem

H100 = for_arch("sm_90")


def described(kernel: Kernel, problem: Problem) -> dict[str, Any]:
    (text,) = export_kernel("t1", kernel, problem, H100).values()
    found: dict[str, Any] = json.loads(text)
    return found


def configurations(space: Space) -> set[tuple[Any, ...]]:
    return {tuple(configuration.values()) for configuration in space}


def of_kernel_tuner(document: dict[str, Any]) -> set[tuple[Any, ...]]:
    """The configurations that Kernel Tuner finds in a description."""
    searchspace = pytest.importorskip("kernel_tuner.searchspace")
    told = document["ConfigurationSpace"]
    values = {one["Name"]: eval(one["Values"]) for one in told["TuningParameters"]}
    conditions = [condition["Expression"] for condition in told["Conditions"]]
    return set(searchspace.Searchspace(values, conditions, 1 << 40).list)


@pytest.mark.parametrize("name", ["copy", "ffma", "gemv", "prefetch"])
def test_a_declared_space_is_described_exactly(name: str) -> None:
    """By its schema, and as Kernel Tuner enumerates it: rules, what applies, and the device's limits."""
    jsonschema = pytest.importorskip("jsonschema")
    file_utils = pytest.importorskip("kernel_tuner.file_utils")
    kernel = find_kernel(name)
    problem = kernel.first_problem("cuda").replace(n=4096)
    document = described(kernel, problem)
    jsonschema.validate(document, file_utils.input_file_schema()[1])
    space = enumerate_space(kernel, H100)
    assert of_kernel_tuner(document) == configurations(space)
    specification = document["KernelSpecification"]
    for configuration in itertools.islice(space, 0, None, 97):
        main = launch_sequence(kernel, configuration, problem, H100).main
        for member, expected in (("GlobalSize", main.grid), ("LocalSize", main.block)):
            sizes = [
                eval(specification[member][axis], {"min": min, "max": max}, dict(configuration))
                for axis in "XYZ"
            ]
            assert tuple(sizes) == expected


RULES = '''
@scale.applies("DEPTH")
def deep(MODE):
    return MODE == "deep"


def cost(BLOCK, DEPTH):
    """Of both."""
    return BLOCK * DEPTH


@scale.constraint
def branches(BLOCK, DEPTH, MODE, device):
    """Assignments, branches, a helper, a constant, a device and a search."""
    threads, few = BLOCK * 2, cost(BLOCK, DEPTH)
    lanes = next(lanes for lanes in (32, 16) if BLOCK % lanes == 0)
    if MODE == "flat":
        few = min(few, 64)
    if device.backend != "cuda":
        return False
    return few // lanes <= 4 * FACTOR and threads <= device.max_threads_per_block


@scale.constraint
def listed(BLOCK, MODE):
    """A comprehension is no expression here, and becomes a list."""
    return sum(BLOCK % each == 0 for each in range(3, 9)) < 3 or MODE in {"flat"}
'''
VALUES = ("BLOCK=(32, 64)", 'BLOCK=(32, 48, 64, 96, 640), DEPTH=(1, 2, 8), MODE=("flat", "deep")')
PLACE = ("@scale.launch", f"{RULES}\n\n@scale.launch")


def test_functions_become_expressions(tmp_path: Path) -> None:
    kernel = load_file(write_sample(tmp_path, VALUES, PLACE))
    document = described(kernel, Problem(n=1000))
    told = {one["Name"]: one for one in document["ConfigurationSpace"]["Conditions"]}
    assert of_kernel_tuner(document) == configurations(enumerate_space(kernel, H100))
    assert "(BLOCK, MODE) not in [" in told["listed"]["Expression"]
    assert "cuda" not in told["branches"]["Expression"]
    assert "1024" in told["branches"]["Expression"]
    assert told["branches"]["Reason"].startswith("Assignments, branches")
    specification = document["KernelSpecification"]
    assert specification["GlobalSize"] == {"X": "-(-1000 // BLOCK)", "Y": "1", "Z": "1"}
    assert specification["Problem"] == {"n": 1000}
    assert [(one["Name"], one["Type"], one["MemoryType"], one["AccessType"]) for one in specification["Arguments"]] == [
        ("x", "float", "Vector", "ReadOnly"),
        ("out", "float", "Vector", "WriteOnly"),
        ("factor", "float", "Scalar", "ReadOnly"),
        ("n", "int32", "Scalar", "ReadOnly"),
    ]  # fmt: skip


def test_what_has_no_expression_says_so(tmp_path: Path) -> None:
    """A launch is named; a rule that is too large to list is refused."""
    looped = ("Launch(grid=(blocks(p, c),)", "Launch(grid=(sum(blocks(p, c) for _ in range(1)),)")
    kernel = load_file(write_sample(tmp_path, looped))
    specification = described(kernel, Problem(n=1000))["KernelSpecification"]
    assert specification["GlobalSize"]["X"] == "launch(c, p).grid[0]"
    assert specification["LocalSize"]["X"] == "BLOCK"
    many = ("BLOCK=(32, 64)", f"BLOCK={tuple(range(32, 2032, 32))}, A={tuple(range(2000))}")
    rule = ("def whole_warps(BLOCK):", "def whole_warps(BLOCK, A):")
    sums = ("return BLOCK % 32 == 0", "return sum((A, BLOCK)) % 2 == 0")
    kernel = load_file(write_sample(tmp_path, many, rule, sums))
    with pytest.raises(UsageError, match=r"rule 'whole_warps' over BLOCK, A is no expression"):
        described(kernel, Problem(n=1000))


def test_described_and_read_it_is_the_same_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Configurations, defaults, problem and launches; and described again by the same expressions."""
    kernel = load_file(write_sample(tmp_path, VALUES, PLACE))
    document = described(kernel, Problem(n=1000))
    (tmp_path / "scale-t1.json").write_text(json.dumps(document))
    again_in = tmp_path / "again"
    assert run(["import", str(tmp_path / "scale-t1.json"), "--into", str(again_in)]) == 0
    (again_in / "kernels").mkdir()
    (again_in / "kernels" / "scale.cu").write_text(SOURCE)
    again = load_file(again_in / "spaces" / "scale.py")
    space = enumerate_space(kernel, H100)
    assert configurations(enumerate_space(again, H100)) == configurations(space)
    assert again.default() == kernel.default()
    assert again.all_problems()[0] == Problem(n=1000)
    for configuration in space:
        mine, theirs = (
            launch_sequence(one, configuration, Problem(n=1000), H100).main
            for one in (kernel, again)
        )
        assert (mine.grid, mine.block) == (theirs.grid, theirs.block)
    twice = described(again, Problem(n=1000))
    told, told_twice = (one["ConfigurationSpace"] for one in (document, twice))
    assert told_twice["TuningParameters"] == told["TuningParameters"]
    assert of_kernel_tuner(twice) == configurations(space)


# ---------------------------------------------------------------------- of others


def theirs(**changes: Any) -> dict[str, Any]:
    """A description as Kernel Tuner's users write them: lower-case names, divisors of the problem."""
    document: dict[str, Any] = {
        "General": {"BenchmarkName": "scaled", "OutputFormat": "JSON"},
        "ConfigurationSpace": {
            "TuningParameters": [
                {"Name": "block_size_x", "Type": "int", "Values": "[32, 64, 128]", "Default": 64},
                {"Name": "tile", "Type": "int", "Values": "list(range(1, 5))", "Default": 9},
                {"Name": "mode", "Type": "string", "Values": "['one', 'two']"},
            ],
            "Conditions": [
                {"Expression": "block_size_x*tile<=256", "Parameters": ["block_size_x", "tile"]},
                {"Expression": "mode == 'one' or tile % 2 == 0", "Parameters": ["mode", "tile"]},
            ],
        },
        "KernelSpecification": {
            "Language": "OpenCL",
            "CompilerOptions": ["-std=c++11"],
            "KernelName": "scaled",
            "KernelFile": "source/scaled.cu",
            "LocalSize": {"X": "block_size_x", "Y": "block_size_y", "Z": "1"},
            "GlobalSize": {"X": "(262144 // block_size_x) // tile_size_x"},
            "GridDivX": ["block_size_x", "tile"],
            "ProblemSize": [1000, 1],
            "Arguments": [
                {"Name": "out", "Type": "float", "MemoryType": "Vector", "AccessType": "WriteOnly",
                 "FillType": "Constant", "Size": "ProblemSize[0]*ProblemSize[1]", "FillValue": 0.0},
                {"Name": "x", "Type": "float", "MemoryType": "Vector", "AccessType": "ReadOnly",
                 "FillType": "Random", "Size": "ProblemSize[0] + max(tile) - 4", "FillValue": 1.0},
                {"Name": "factor", "Type": "float", "MemoryType": "Scalar", "FillValue": 2.5},
                {"Name": "n", "Type": "int32", "MemoryType": "Scalar", "FillValue": 1000},
            ],
        },
    }  # fmt: skip
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = document
        for parent in parents:
            place = place[int(parent) if parent.isdigit() else parent]
        place[int(last) if last.isdigit() else last] = value  # type: ignore[index]
    return document


SCALED = """\
#include "dialect.h"
KERNEL(block_size_x, 1, 0) scaled(GLOBAL float* out, GLOBAL const float* x, float factor, int n) {
    for (int k = 0; k < tile; ++k) {
        const int i = (BID(0) * tile + k) * block_size_x + TID(0);
        if (i < n) out[i] = factor * x[i];
    }
}
"""


@pytest.fixture
def imported_space(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The space file of `theirs`, with its source."""
    (tmp_path / "t1.json").write_text(json.dumps(theirs()))
    assert run(["import", str(tmp_path / "t1.json"), "--into", str(tmp_path)]) == 0
    assert "autotune check scaled" in capsys.readouterr().err
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "scaled.cu").write_text(SCALED)
    return tmp_path / "spaces" / "scaled.py"


def test_a_description_of_others_becomes_a_space_file(imported_space: Path) -> None:
    kernel = load_file(imported_space)
    space = enumerate_space(kernel, H100)
    assert configurations(space) == of_kernel_tuner(theirs())
    assert space.names == ("block_size_x", "tile", "mode")
    assert kernel.default() == Configuration(block_size_x=64, tile=1, mode="one")
    assert kernel.backends == ("opencl",)
    chosen = Configuration(block_size_x=64, tile=3, mode="one")
    assert kernel.macros(chosen, Problem(x=1000, y=1)) == {
        "block_size_x": "64",
        "tile": "3",
        "mode": "one",
    }
    assert kernel.compiler_options(chosen, H100) == ()  # the standard is ours
    main = launch_sequence(kernel, chosen, Problem(x=1000, y=1), H100).main
    assert (main.grid, main.block, main.entry) == ((6, 1, 1), (64, 1, 1), "scaled")


@pytest.mark.opencl
def test_with_its_reference_it_can_be_tuned(
    opencl_device: Any, imported_space: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until then it says what is missing."""
    ran = ["run", "scaled", "--spaces", str(imported_space.parent), "--device", "opencl:cpu"]
    ran += ["--config", "block_size_x=64,tile=3,mode=one", "--json"]
    assert run(ran) == 2
    assert "NotImplementedError: T1 does not say what is right: compute out here" in (
        capsys.readouterr().err
    )
    text = imported_space.read_text()
    missing = text[text.index("    raise NotImplementedError") :]
    imported_space.write_text(text.replace(missing, "    return factor * x\n"))
    assert run(ran) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["status"] == "ok", row["message"]


PARAMETER = "ConfigurationSpace__TuningParameters__0__"
CONDITION = "ConfigurationSpace__Conditions__0__Expression"
ARGUMENT = "KernelSpecification__Arguments__0__"
REFUSED = {
    "code in a condition": ({CONDITION: "__import__('os').system('true')"}, "no arithmetic"),
    "an attribute": ({CONDITION: "tile.__class__"}, "no arithmetic"),
    "a lambda": ({CONDITION: "(lambda: 1)()"}, "no arithmetic"),
    "an unknown name": ({CONDITION: "tiles <= 3"}, "holds 'tiles', which is no arithmetic"),
    "no expression": ({CONDITION: "tile <="}, "is no expression"),
    "code in values": ({PARAMETER + "Values": "[exit()]"}, "neither a list of values nor"),
    "a huge range": ({PARAMETER + "Values": "range(10**12)"}, "no size that can be worked out"),
    "a long range": ({PARAMETER + "Values": "range(1000000)"}, "neither a list of values nor"),
    "no finite number": ({PARAMETER + "Values": "[1e999]"}, "inf is no number, boolean or plain"),
    "lines as values": ({PARAMETER + "Values": "['a\\n#include']"}, "is no number, boolean or"),
    "no values": ({PARAMETER + "Values": "[]"}, "neither a list of values nor"),
    "no name": ({PARAMETER + "Name": 'x"); import os; ('}, "parameter"),
    "two alike": ({PARAMETER + "Name": "tile"}, "two parameters have one name"),
    "code as a kernel": ({"KernelSpecification__KernelName": "a b"}, "name it with --kernel"),
    "code as an argument": ({ARGUMENT + "Name": 'x": 1}; import os'}, "argument"),
    "a type": ({ARGUMENT + "Type": "custom"}, "type 'custom' has no numpy type"),
    "memory": ({ARGUMENT + "MemoryType": "Local"}, "MemoryType 'Local' is not known"),
    "code as a size": ({ARGUMENT + "Size": "exit()"}, "no size that can be worked out"),
    "a size by zero": ({ARGUMENT + "Size": "1 // 0"}, "no size that can be worked out"),
    "a fill": ({ARGUMENT + "MemoryType": "Scalar", ARGUMENT + "FillValue": "exit()"}, "is no num"),
    "a launch": ({"KernelSpecification__LocalSize__X": "exit()"}, "a size in X"),
    "a problem": ({"KernelSpecification__ProblemSize": "n"}, "a list of integers"),
    "a field": ({"KernelSpecification__Problem": {"x=exit()": 3}}, "problem field"),
    "a value of a field": ({"KernelSpecification__Problem": {"x": [3]}}, "neither an integer"),
    "nothing": ({"KernelSpecification": None}, "KernelSpecification: an object expected"),
    "no parameters": ({"ConfigurationSpace__TuningParameters": []}, "a list expected that is not"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_nothing_but_arithmetic_gets_into_a_space_file(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says what is wrong, and no file is written."""
    changes, message = REFUSED[kind]
    path = tmp_path / "t1.json"
    path.write_text(json.dumps(theirs(**changes)))
    assert run(["import", str(path), "--into", str(tmp_path / "into")]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(f"error: {path}: no T1 description, or damaged: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "into").exists()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(list(places(theirs()))), st.sampled_from(VALUES_OF_ANY_KIND))
def test_any_value_anywhere_is_taken_or_refused(
    tmp_path: Path, place: tuple[Any, ...], value: Any
) -> None:
    document = theirs()
    holder: Any = document
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    path = tmp_path / "any.json"
    path.write_text(json.dumps(document))
    into = tmp_path / str(len(list(tmp_path.iterdir())))
    try:
        space = write_space(path, "any", into)
    except RecordError as error:
        assert "any.json" in str(error)
        assert not into.exists()
    else:
        ast.parse(space.read_text())


def test_a_space_file_that_is_there_stays(
    imported_space: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = imported_space.read_text()
    arguments = ["import", str(tmp_path / "t1.json"), "--into", str(tmp_path)]
    assert run(arguments) == 2
    assert "is there already" in capsys.readouterr().err
    assert run([*arguments, "--kernel", "other"]) == 0
    assert imported_space.read_text() == before
    assert 'entry="scaled"' in (tmp_path / "spaces" / "other.py").read_text()


def test_the_command_describes_for_a_device_that_it_is_tuned_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whose multiprocessors are counted."""
    out = ["--out", str(tmp_path)]
    assert run(["export", "ffma", "t1", "--problem", "n=4096,steps=8", *out]) == 0
    told = json.loads((tmp_path / "ffma-t1.json").read_text())["KernelSpecification"]
    assert told["Device"]["Name"] == "NVIDIA H100 80GB HBM3"
    assert "WAVES * 132" in told["GlobalSize"]["X"]
    assert told["Problem"] == {"n": 4096, "steps": 8}
    assert run(["export", "ffma", "json", "--problem", "n=4096,steps=8", *out]) == 2
    assert "--problem is for t1" in capsys.readouterr().err
    assert run(["export", "ffma", "t1", "--device", "GPU", *out]) == 2
    assert "ffma is not tuned on GPU (known: NVIDIA H100 80GB HBM3" in capsys.readouterr().err
