"""Arrays that begin past a boundary, on a GPU; all else of layouts: tests/test_layout.py."""

from pathlib import Path
from typing import Any

import pytest

from autotune.compiling.job import compile_job
from autotune.devices.choose import choose_device
from autotune.devices.nvrtc import find_program
from autotune.kernel.catalog import load_file
from autotune.measure import sanitize
from autotune.measure.measurement import Measurement, Status
from autotune.run.bench import Bench
from autotune.run.request import Request
from autotune.values import Configuration, Problem

pytestmark = pytest.mark.gpu

SPACE = '''
"""y += 2 x, out = x; four elements at a time, or one."""
import numpy as np
from autotune import InOut, Kernel, Launch, Out, Problem, ceil_div

moved = Kernel(
    "moved.cu",
    problems=[Problem(n=1 << 16)],
    layout={"offset_x": 0, "offset_y": 0, "offset_out": 0},
    backends=("cuda",),
    VEC=(1, 4),
    FAULT=("none", "before", "beyond"),
)

@moved.arguments
def arguments(p, rng):
    y = InOut(rng.standard_normal(p.n))
    return {"x": rng.standard_normal(p.n), "y": y, "out": Out(p.n), "n": np.int64(p.n)}

@moved.reference
def reference(x, y):
    return {"y": 2 * x + y, "out": x}

@moved.launch
def launch(c, p):
    return Launch((ceil_div(p.n, 128 * c.VEC),), (128,))
'''
SOURCE = """
#if VEC == 4
typedef float4 vec;
__device__ vec sum(vec a, vec b) {
    return make_float4(2 * a.x + b.x, 2 * a.y + b.y, 2 * a.z + b.z, 2 * a.w + b.w);
}
#else
typedef float vec;
__device__ vec sum(vec a, vec b) { return 2 * a + b; }
#endif
extern "C" __global__ void moved(const float* x, float* y, float* out, long long n) {
  const long long i = (long long)blockIdx.x * 128 + threadIdx.x;
  if (i * VEC < n) {
    const vec v = ((const vec*)x)[i];
    ((vec*)y)[i] = sum(v, ((vec*)y)[i]);
    ((vec*)out)[i] = v;
  }
#if FAULT == FAULT_before
  if (i == 0) out[-1] = 0;
#elif FAULT == FAULT_beyond
  if (i == 0) out[n] = 0;
#endif
}
"""
#: Of four at a time, since those are whole.
N = 1 << 16


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    for folder, name, text in (("spaces", "moved.py", SPACE), ("kernels", "moved.cu", SOURCE)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
    kernel = load_file(tmp_path / "spaces" / "moved.py")
    made = Bench(Request(kernel, choose_device("cuda:0"), kernel.problems["cuda"]))
    yield made
    made.close()


def checked(bench: Bench, vec: int, fault: str = "none", **offsets: int) -> Measurement:
    problem = Problem(n=N, **offsets)
    configuration = Configuration(VEC=vec, FAULT=fault)
    job = compile_job(bench.kernel, configuration, problem, bench.device)
    binary = bench.compilers.result(job).binary
    assert binary is not None
    return bench.worker.check(bench.job(problem), configuration, binary)


@pytest.mark.parametrize("name", ["x", "y", "out"])
def test_four_at_a_time_are_right_at_multiples_of_four_only(bench: Bench, name: str) -> None:
    """An address that is no multiple of the access ends the context, and with it the process."""
    assert checked(bench, 4, **{f"offset_{name}": 4}).status is Status.OK
    assert checked(bench, 4, **{f"offset_{name}": 1}).status is Status.CRASHED


@pytest.mark.parametrize("offset", [1, 3])
@pytest.mark.parametrize("fault", ["before", "beyond"])
def test_guard_bands_begin_where_the_array_ends(bench: Bench, fault: str, offset: int) -> None:
    found = checked(bench, 1, fault, offset_out=offset)
    assert found.status is Status.WRONG_RESULT
    assert found.message == "wrote outside the bounds of out"


@pytest.mark.skipif(not find_program("compute-sanitizer"), reason="no compute-sanitizer")
def test_the_sanitizer_sees_arrays_where_they_are_placed(bench: Bench) -> None:
    """One element too far is seen; so is an access that is not aligned."""
    problem = Problem(n=N, offset_x=1, offset_y=2, offset_out=3)
    trials = []
    for vec, fault in ((1, "none"), (1, "beyond"), (4, "none")):
        configuration = Configuration(VEC=vec, FAULT=fault)
        job = compile_job(bench.kernel, configuration, problem, bench.device)
        binary = bench.compilers.result(job).binary
        assert binary is not None
        trials.append(sanitize.Trial(bench.job(problem), configuration, binary))
    faults, remarks = sanitize.find_faults(sanitize.required_program(bench.device), trials)
    # What the other tools cannot check ends its process at once.
    assert all("misaligned" in text for text in remarks)
    told = {(c["VEC"], c["FAULT"]): fault for c, fault in faults.items()}
    assert set(told) == {(1, "beyond"), (4, "none")}
    assert "Invalid __global__ write" in told[1, "beyond"]
    assert "misaligned" in told[4, "none"]
