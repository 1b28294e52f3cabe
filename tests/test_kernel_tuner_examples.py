"""Kernel Tuner's six examples in our form: right on a CPU, and compiled for a GPU.

The last step of `.ci/run` tunes them, which takes half a minute.
"""

from pathlib import Path
from typing import Any

import pytest

from autotune.devices.base import CompileError
from autotune.devices.choose import backend, choose_device
from autotune.devices.device import for_arch
from autotune.kernel.catalog import load_file
from autotune.kernel.space import enumerate_space
from autotune.measure import tasks
from autotune.measure.compiler import compile_job, compile_now
from autotune.measure.data import EXACT, RANDOM, prepare
from autotune.measure.measurement import Status
from autotune.values import Problem

FOLDER = Path(__file__).parents[1] / "examples" / "kernel_tuner"
#: A small problem, what Kernel Tuner's parameters and restrictions leave, and what one configuration has.
EXAMPLES: dict[str, tuple[Problem, int, dict[str, int]]] = {
    "vector_add": (Problem(n=5001), 15, {"block_size_x": 192}),
    "convolution": (
        Problem(width=70, height=33, filter=5),
        432,
        {"block_size_y": 4, "tile_size_x": 2, "tile_size_y": 4},
    ),
    "pnpoly": (
        Problem(n=1001, vertices=600),
        5456,
        {"tile_size": 4, "between_method": 3, "use_precomputed_slopes": 1, "use_method": 1},
    ),
    "matmul": (
        Problem(width=128),
        44,
        {"block_size_y": 2, "tile_size_x": 2, "tile_size_y": 8},
    ),
    "stencil": (Problem(width=130, height=67), 48, {"block_size_x": 64, "block_size_y": 4}),
    "reduction": (Problem(n=100_003), 216, {"vector": 4, "num_blocks": 64}),
}


def test_there_are_no_others() -> None:
    assert sorted(EXAMPLES) == sorted(file.stem for file in FOLDER.glob("spaces/*.py"))


@pytest.mark.opencl
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_right(name: str, opencl_device: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(tasks, "_state", tasks._State())
    problem, _, chosen = EXAMPLES[name]
    kernel, device = load_file(FOLDER / "spaces" / f"{name}.py"), choose_device(opencl_device)
    assert kernel.file is not None
    data = tuple(prepare(kernel, problem, which) for which in (EXACT, RANDOM))
    asked = tasks.Job(kernel.file, problem, device, data)
    tasks.prepare(asked)
    configuration = kernel.completed(chosen)
    compiled = compile_now(compile_job(kernel, configuration, problem, device))
    assert compiled.binary is not None, compiled.message
    found = tasks.check(asked, configuration, compiled.binary)
    assert found.status is Status.OK, found.message


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_has_the_space_of_theirs_and_compiles_for_a_gpu(name: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    problem, valid, chosen = EXAMPLES[name]
    kernel, device = load_file(FOLDER / "spaces" / f"{name}.py"), for_arch("sm_90")
    assert len(enumerate_space(kernel, device)) == valid
    job = compile_job(kernel, kernel.completed(chosen), problem, device)
    try:
        backend("cuda").compile(job.source, dict(job.defines), job.options, device, job.entries)
    except CompileError as error:
        pytest.fail(str(error))
