"""Faults that no comparison shows, found by compute-sanitizer on a GPU; parsing: tests/test_sanitize.py."""

import re
from pathlib import Path
from typing import Any

import pytest

from autotune.compiling.job import compile_job
from autotune.devices.choose import choose_device
from autotune.devices.nvrtc import find_program
from autotune.kernel.catalog import load_file
from autotune.measure import sanitize
from autotune.measure.measurement import Status
from autotune.run.bench import Bench
from autotune.run.request import EFFORTS, Request, Search
from autotune.run.run import Run
from autotune.search.session import Budget
from autotune.store import Store
from autotune.values import Configuration, Problem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not find_program("compute-sanitizer"), reason="no compute-sanitizer"),
]

SPACE = '''
"""y = 2 x, with faults that leave the result as it is."""
import numpy as np
from autotune import Kernel, Launch, Out, Problem, ceil_div

scale = Kernel(
    "scale.cu",
    problems=[Problem(n=1 << 20)],
    edge_problems=[Problem(n=1024), Problem(n=1000)],
    backends=("cuda",),
    BLOCK=(128,),
    FAULT=("none", "beyond", "race", "uninitialised", "divergent"),
)

@scale.arguments
def arguments(p, rng):
    return {"x": rng.standard_normal(p.n), "y": Out((p.n,)), "n": np.int64(p.n)}

@scale.scratch
def scratch(c, p):
    return {"workspace": Out((p.n,))}

@scale.reference
def reference(x):
    return {"y": 2 * x}

@scale.launch
def launch(c, p):
    return Launch((ceil_div(p.n, c.BLOCK),), (c.BLOCK,), args=("x", "y", "n", "workspace"))
'''
SOURCE = """
extern "C" __global__ void scale(const float* x, float* y, long long n, const float* workspace) {
  long long i = (long long)blockIdx.x * BLOCK + threadIdx.x;
  float seen = 0;
#if FAULT == FAULT_beyond
  if (i < n) seen = x[i + 1];
#elif FAULT == FAULT_race
  __shared__ float tile[BLOCK];
  tile[threadIdx.x] = i < n ? x[i] : 0;
  seen = tile[threadIdx.x ^ 32];  // of another warp
#elif FAULT == FAULT_uninitialised
  if (i < n) seen = workspace[i];
#elif FAULT == FAULT_divergent
  if (threadIdx.x % 32 < 7) __syncthreads();
#endif
  if (i < n) y[i] = 2 * x[i] + (seen == 12345.678f ? 1 : 0);
}
"""
#: By fault: the tool that finds it, words of its message, and the line of the source.
EXPECTED = {
    "beyond": ("memcheck", "Invalid __global__ read of size 4 bytes", "scale.cu:6"),
    "race": ("racecheck", "Race reported", "scale.cu:1"),
    "uninitialised": ("initcheck", "Uninitialized __global__ memory read", "scale.cu:12"),
    "divergent": ("synccheck", "Divergent thread(s)", "scale.cu:14"),
}


@pytest.fixture
def kernel(tmp_path: Path) -> Any:
    for folder, name, text in (("spaces", "scale.py", SPACE), ("kernels", "scale.cu", SOURCE)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
    return load_file(tmp_path / "spaces" / "scale.py")


def test_every_fault_is_found_by_its_tool_and_the_innocent_is_clean(kernel: Any) -> None:
    device = choose_device("cuda:0")
    problem = kernel.problems["cuda"][0]
    bench = Bench(Request(kernel, device, (problem,)))
    try:
        trials = []
        for fault in ("none", *EXPECTED):
            configuration = Configuration(BLOCK=128, FAULT=fault)
            job = compile_job(kernel, configuration, problem, device)
            binary = bench.compilers.result(job).binary
            assert binary is not None
            for small in sanitize.small_problems(kernel, configuration, problem, device):
                trials.append(sanitize.Trial(bench.job(small), configuration, binary))
        faults, remarks = sanitize.find_faults(sanitize.required_program(device), trials)
    finally:
        bench.close()
    found = {str(configuration["FAULT"]): told for configuration, told in faults.items()}
    for fault, told in found.items():
        print(fault, "|", told)
    assert remarks == []
    assert set(found) == set(EXPECTED)
    for fault, (tool, words, _) in EXPECTED.items():
        assert found[fault].startswith(f"compute-sanitizer {tool}")
        assert words in found[fault]
        assert "scale" in found[fault]
        assert not re.search("0x[0-9a-f]{6}", found[fault])
    assert f" on {Problem(n=1024)}: " in found["beyond"]


def test_what_is_found_cannot_win(kernel: Any, tmp_path: Path) -> None:
    """A search of the whole space: every fault is right and timed, and disqualified by name.

    Full effort does so without being asked.
    """
    request = Request(
        kernel,
        choose_device("cuda:0"),
        kernel.problems["cuda"],
        EFFORTS["full"],
        goal=Search("exhaustive"),
        budget=Budget(),
    )
    with Store.open(tmp_path / "s.sqlite") as store:
        tuning = Run(request, store)
        try:
            (result,) = tuning.run().problems
        finally:
            tuning.close()
        rows = store.rows()
    timed = [found for found in result.measured if found.status is Status.OK]
    assert result.winner is not None
    assert result.winner["FAULT"] == "none"
    unsafe = {str(row.configuration["FAULT"]): row for row in result.disqualified}
    assert set(unsafe) >= {str(row.configuration["FAULT"]) for row in timed} - {"none"}
    assert len(unsafe) >= 2  # of those that were stopped early some fill free places in the finals
    for fault, row in unsafe.items():
        tool, words, line = EXPECTED[fault]
        assert row.status is Status.UNSAFE
        assert tool in row.message and words in row.message and line in row.message
    last = {row.measurement.configuration: row.measurement.status for row in rows}
    assert all(last[row.configuration] is Status.UNSAFE for row in unsafe.values())
    assert result.sanitized == 1


def test_a_process_that_hangs_is_given_up(kernel: Any, tmp_path: Path) -> None:
    source = tmp_path / "kernels" / "scale.cu"
    hang = "while (x[0] != 12345.678f) { __nanosleep(100); }\n  float seen = 0;"
    source.write_text(
        SOURCE.replace("float seen = 0;", hang).replace("const float*", "const volatile float*")
    )
    device, problem = choose_device("cuda:0"), Problem(n=1024)
    configuration = Configuration(BLOCK=128, FAULT="none")
    bench = Bench(Request(kernel, device, (problem,)))
    try:
        binary = bench.compilers.result(compile_job(kernel, configuration, problem, device)).binary
        assert binary is not None
        trial = sanitize.Trial(bench.job(problem), configuration, binary)
        faults, remarks = sanitize.find_faults(
            sanitize.required_program(device), [trial], timeout_s=8
        )
    finally:
        bench.close()
    assert faults == {}
    assert any("not done after 8 s" in text for text in remarks)
