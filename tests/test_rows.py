"""The bundled kernels of rows: verified by Triton's interpreter, compiled, called."""

import inspect
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from thinned import thinned

from autotune.calling.binding import bind
from autotune.compiling.binaries import compiled_for
from autotune.compiling.job import compile_job
from autotune.devices.device import for_arch
from autotune.devices.sass import code_of
from autotune.errors import UsageError
from autotune.kernel.catalog import find_kernel
from autotune.kernel.operand import NothingToDo, Operand
from autotune.kernel.space import enumerate_space, is_member
from autotune.measure.disassembly import disassembled
from autotune.values import Problem

pytest.importorskip("triton")
KERNELS = ("softmax", "rms_norm", "layer_norm", "cross_entropy")
#: Verifies odd sizes with a whole row, several rows or a loop, and long ones with rows in parts, some of them
#: empty; prints how each ended. With ``sample`` it is one size of each kernel.
PROGRAM = """
import json, sys
from autotune.kernel.catalog import find_kernel
from autotune.languages.registry import find_backend
from autotune.compiling.binaries import compiled_for
from autotune.data.dataset import RANDOM
from autotune.data.prepare import prepare_dataset
from autotune.measure.worker_state import Job
from autotune.measure.tasks import verify_configuration

(device,) = find_backend("interpreter").devices()
which, *names = sys.argv[1:]
ended = []
for place, kernel in enumerate(map(find_kernel, names)):
    several = [
        kernel.completed(values)
        for values in (
            dict(PLAN="whole", PER=16, WARPS=4),
            dict(PLAN="whole", PER=4, WARPS=1),
            dict(PLAN="loop", PER=8, WARPS=4),
        )
    ]
    split = [
        kernel.completed(dict(PLAN="split", PER=8, WARPS=4, SPLIT=number))
        for number in (32, 8, 4)
    ]
    short = [each for each in kernel.edge_problems if each["columns"] <= 1000]
    long = [each for each in kernel.edge_problems if each["columns"] > 1000]
    chosen = [
        (several[number % 3], problem)
        for number, problem in enumerate(short[: len(short) // 2])  # the rest takes as long again
    ]
    for problem in long:
        chosen.append((next(c for c in split if kernel.allows(c, problem)), problem))
    if which == "sample":
        chosen = [chosen[-1 if place == 0 else place]]
    for c, problem in chosen:
        job = Job(kernel.file, problem, device, (prepare_dataset(kernel, problem, RANDOM),))
        done = verify_configuration(job, c, compiled_for(kernel, c, problem, device))
        ended.append([kernel.name, c["PLAN"], problem.dtype, done.status, done.message])
print(json.dumps(ended))
"""


def verified(which):
    """Return kernel, plan, type, status and message of each size."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, which, *KERNELS],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    ended = json.loads(done.stdout)
    assert [each for each in ended if each[3] != "ok"] == []
    return ended


def test_a_sample_of_odd_sizes_is_right():
    ended = verified("sample")
    assert [name for name, *_ in ended] == list(KERNELS)
    assert {plan for _, plan, *_ in ended} == {"whole", "loop", "split"}


@pytest.mark.full
def test_odd_sizes_are_right():
    ended = verified("all")
    kinds = {(name, plan) for name, plan, *_ in ended}
    assert kinds == {(name, plan) for name in KERNELS for plan in ("whole", "loop", "split")}
    plans = {plan == "split" for _, plan, *_ in ended}
    types = {(name, plan == "split", dtype) for name, plan, dtype, *_ in ended}
    assert len(types) == len(plans) * 3 * len(KERNELS)


@pytest.mark.parametrize("arch", thinned(("sm_80", "sm_90", "sm_120"), ["sm_90"]))
@pytest.mark.parametrize("name", KERNELS)
def test_they_are_compiled(name, arch):
    kernel = find_kernel(name)
    dtype = {"sm_80": "float32", "sm_90": "bfloat16", "sm_120": "float16"}[arch]
    for problem in {each.replace(rows=4096, columns=4096) for each in kernel.edge_problems}:
        if problem.dtype == dtype:
            binary = compiled_for(kernel, kernel.default(), problem, for_arch(arch))
            assert binary.code.startswith(b"\x7fELF") and binary.entries[0].spill_bytes == 0


@pytest.mark.parametrize("arch", thinned(("sm_80", "sm_90", "sm_120"), ["sm_90"]))
@pytest.mark.parametrize("name", KERNELS)
def test_functions_of_shared_rows_are_compiled(name, arch):
    kernel = find_kernel(name)
    dtype = {"sm_80": "bfloat16", "sm_90": "float16", "sm_120": "float32"}[arch]
    chosen = kernel.completed(kernel.seeds[-1])
    assert chosen["PLAN"] == "split"
    for problem in {each.replace(rows=4, columns=16384) for each in kernel.edge_problems}:
        if problem.dtype == dtype:
            entries = compiled_for(kernel, chosen, problem, for_arch(arch)).entries
            assert [entry.name.rpartition("_")[2] for entry in entries] == ["partials", "parts"]
            assert [entry.spill_bytes for entry in entries] == [0, 0]


@pytest.mark.parametrize(
    ("rows", "columns", "is_shared"),
    [(4, 16384, True), (64, 65536, True), (65, 65536, False), (4, 16383, False)],
)
def test_only_few_long_rows_are_shared(rows, columns, is_shared):
    kernel = find_kernel("softmax")
    chosen = kernel.completed(kernel.seeds[-1])
    problem = Problem(rows=rows, columns=columns, dtype="float16")
    assert (chosen["SPLIT"], kernel.allows(chosen, problem)) == (32, is_shared)
    assert kernel.allows(kernel.default(), problem)


@pytest.mark.parametrize(
    ("columns", "nbytes"),
    thinned([(5008, 16), (5000, 16), (5004, 8), (5001, 2)], [(5000, 16), (5001, 2)]),
)
@pytest.mark.parametrize("plan", ["whole", "split"])
def test_rows_are_read_in_as_many_bytes_as_their_length_allows(plan, columns, nbytes):
    """Triton asks whether 16 divides the columns, and no more."""
    kernel = find_kernel("softmax")
    chosen = kernel.completed({"PLAN": plan, "PER": 8, "WARPS": 4, "SPLIT": 2 ** (plan == "split")})
    problem = Problem(rows=9, columns=columns, dtype="bfloat16")
    binary = compiled_for(kernel, chosen, problem, for_arch("sm_90"))
    for entry in binary.entries:
        accesses = code_of(disassembled(binary.code), entry.symbol).mix.accesses
        assert nbytes in accesses["global loads"]
        if not entry.name.endswith("partials"):
            assert set(accesses["global stores"]) == {nbytes}


@pytest.mark.parametrize("name", KERNELS)
def test_every_seed_can_be_tried(name):
    kernel, device = find_kernel(name), for_arch("sm_90")
    seeds = [kernel.default(), *map(kernel.completed, kernel.seeds)]
    assert [seed for seed in seeds if not is_member(kernel, seed, device)] == []
    assert 50 < len(enumerate_space(kernel, device)) < 240


def call(name, *args, **named):
    kernel = find_kernel(name)
    return bind(kernel, args, named, find_kernel)


def operand(*shape, dtype="float16"):
    return Operand.new(shape, dtype)


def test_calls_say_what_is_launched():
    x, weight = operand(3, 5, 64), operand(64)
    found = call("softmax", x)
    assert found.problem == Problem(rows=15, columns=64, dtype="float16")
    assert found.results[0].dtype == "float16"
    both = call("rms_norm", x, weight, residual=operand(3, 5, 64), eps=1e-3)
    assert both.problem.residual == "added" and both.scalars["eps"] == 1e-3
    assert both.outputs == ["y", "residual"]
    rows = call("layer_norm", x, weight, weight)
    assert rows.problem == Problem(rows=15, columns=64, dtype="float16")
    logits, target = operand(7, 1000, dtype="bfloat16"), operand(7, dtype="int32")
    loss = call("cross_entropy", logits, target, with_gradient=True)
    assert [(each.dtype, each.shape) for each in loss.results] == [
        ("float32", (7,)),
        ("bfloat16", (7, 1000)),
    ]
    assert isinstance(call("softmax", operand(0, 64)), NothingToDo)


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("softmax", [operand(3, 4, dtype="float64")], "one of float32, float16, bfloat16"),
        ("softmax", [operand(3, 4).T], "rows must be contiguous"),
        (
            "layer_norm",
            [operand(3, 4), operand(4), operand(3)],
            r"bias is float16\[3\]: it must be float16\[4\]",
        ),
        ("cross_entropy", [operand(3, 4), operand(3, dtype="int64")], r"must be int32\[3\]"),
    ],
)
def test_what_does_not_fit_is_refused(name, args, message):
    with pytest.raises(UsageError, match=message):
        call(name, *args)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dtype", thinned(("float32", "float16"), ["float16"]))
def test_rows_longer_than_registers_are_read_in_steps(name, dtype):
    """Of any length there are, whole rows or not."""
    kernel, device = find_kernel(name), for_arch("sm_90")
    problem = Problem(**{**kernel.edge_problems[0], "rows": 9, "columns": 131073, "dtype": dtype})
    assert kernel.allows(kernel.default(), problem)
    assert kernel.values_of(kernel.default(), problem)["PLAN"] == "loop"
    binary = compiled_for(kernel, kernel.default(), problem, device)
    assert binary.entries[0].spill_bytes == 0


@pytest.mark.parametrize("name", KERNELS)
def test_a_reference_in_blocks_of_rows_is_the_whole_one(name):
    reference, rng = find_kernel(name).hooks["reference"], np.random.default_rng(0)
    x, vector = rng.standard_normal((4001, 40)), rng.standard_normal(40)
    arguments = {"x": x, "weight": vector, "bias": vector, "eps": 1e-6, "residual": x[::-1]}
    arguments["target"] = rng.integers(0, 40, len(x))
    wanted = set(inspect.signature(reference).parameters)
    given = {each: value for each, value in arguments.items() if each in wanted}
    found, whole = reference(**given), reference.__wrapped__(**given)
    assert found.keys() == whole.keys()
    for output, values in whole.items():
        np.testing.assert_array_equal(found[output], values)


@pytest.mark.parametrize("name", KERNELS)
def test_another_number_of_rows_needs_no_other_binary(name):
    kernel, device = find_kernel(name), for_arch("sm_90")
    problem = kernel.first_problem("cuda").replace(columns=4096)
    for values in ({"PLAN": "whole"}, {"PLAN": "loop", "WARPS": 16}, {"PLAN": "split", "SPLIT": 4}):
        configuration = kernel.completed(values)
        sizes = [problem.replace(rows=rows) for rows in (1, 7, 16, 4096)]
        assert len({compile_job(kernel, configuration, size, device).key for size in sizes}) == 1
