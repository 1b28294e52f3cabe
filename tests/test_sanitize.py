"""What is run under compute-sanitizer, what its words mean, and what is said where it is missing.

The words are those of compute-sanitizer 2025.3.1 on an H100, for small faulty kernels; that kernels of
this package are judged by them is tests/gpu/test_sanitize.py.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from sample_spaces import write_space

from autotune.cli import run
from autotune.devices.device import for_arch
from autotune.devices.nvrtc import find_program
from autotune.errors import AutotuneError, UsageError
from autotune.kernel.catalog import find_kernel, load_file
from autotune.measure import sanitize
from autotune.run import bench
from autotune.run.bench import LOCAL
from autotune.run.request import EFFORTS, Request, VerifyOne
from autotune.run.run import Run
from autotune.store import Store
from autotune.values import Problem

EXAMPLES = Path(__file__).parents[1] / "examples"

BEYOND = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at read_one_beyond+0xc0
=========     by thread (255,0,0) in block (3,0,0)
=========     Access to 0x7f98d0801000 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f98d0800000 of size 4,096 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: main in python3
=========
========= ERROR SUMMARY: 256 errors
"""
RACE = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at race+0x100 in kernel.cu:5
=========     and Read access at race+0x150 in kernel.cu:5 [4096 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
UNINITIALISED = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at uninitialised+0xd0
=========     by thread (96,0,0) in block (2,0,0)
=========     Address 0x7fc278802980
=========
========= ERROR SUMMARY: 1 error
"""
CLEAN = """\
========= COMPUTE-SANITIZER
========= ERROR SUMMARY: 0 errors
"""
#: By what was printed: what is told of it.
WORDS = {
    BEYOND: "Invalid __global__ read of size 4 bytes at read_one_beyond+0xc0 by thread (255,0,0) in "
    "block (3,0,0): access is out of bounds and is 1 bytes after the nearest allocation of size "
    "4,096 bytes",
    RACE: "Error: Race reported between Write access at race+0x100 in kernel.cu:5 and Read access at "
    "race+0x150 in kernel.cu:5 [4096 hazards]",
    UNINITIALISED: "Uninitialized __global__ memory read of size 4 bytes at uninitialised+0xd0 by "
    "thread (96,0,0) in block (2,0,0)",
}


DEVICE = for_arch("sm_90")


class TestSmallProblems:
    def test_the_odd_sizes_of_the_kernel_that_the_configuration_allows(self):
        kernel = find_kernel("sgemm")
        problem = Problem(m=4096, n=4096, k=4096)
        for configuration in (kernel.default(), *map(kernel.completed, kernel.seeds)):
            small = sanitize.small_problems(kernel, configuration, problem, DEVICE)
            allowed = [
                edge for edge in kernel.edges_on(DEVICE) if kernel.allows(configuration, edge)
            ]
            assert small == allowed
            assert all(edge["m"] * edge["n"] < 1 << 20 for edge in small)

    def test_without_odd_sizes_the_smallest_problem_of_the_kernel(self, tmp_path):
        kernel = load_file(write_space(tmp_path))
        kernel.edge_problems = ()
        for asked, small in ((1 << 28, 1000), (7, 7)):
            found = sanitize.small_problems(kernel, kernel.default(), Problem(n=asked), DEVICE)
            assert found == [Problem(n=small)]


class TestWithout:
    def test_another_device_than_cuda(self):
        with pytest.raises(UsageError, match="checks CUDA kernels, not those of opencl:0"):
            sanitize.required_program(replace(for_arch("sm_90"), backend="opencl"))

    def test_not_installed_ends_before_the_search(self, monkeypatch, tmp_path):
        monkeypatch.setattr(sanitize, "find_program", lambda name: "")  # it may be, here
        device, store = for_arch("sm_90"), Store.open(tmp_path / "s.sqlite")
        kernel = find_kernel("reduce")
        request = Request(kernel, device, kernel.problems["cuda"][:1], sanitize=True)
        with pytest.raises(AutotuneError, match="pip install nvidia-cuda-sanitizer-api"):
            Run(request, store)
        assert store.rows() == []

    def test_what_the_effort_asks_for_may_be_missing(self, monkeypatch):
        """Full effort wants it on a GPU: with a warning where it is missing, unless one says no."""
        device, kernel = for_arch("sm_90"), find_kernel("reduce")
        full = Request(kernel, device, kernel.problems["cuda"][:1], EFFORTS["full"])
        monkeypatch.setattr(bench, "find_program", lambda name: f"/bin/{name}")
        assert LOCAL.sanitizer(full) == "/bin/compute-sanitizer"
        monkeypatch.setattr(bench, "find_program", lambda name: "")
        with pytest.warns(UserWarning, match=r"do not run under compute-sanitizer.*run without it"):
            assert LOCAL.sanitizer(full) == ""
        for other in (
            replace(full, sanitize=False),
            replace(full, effort=EFFORTS["quick"]),
            replace(full, goal=VerifyOne(kernel.default())),  # one configuration has no finals
            replace(full, device=replace(device, backend="opencl")),
        ):
            assert LOCAL.sanitizer(other) == ""

    @pytest.mark.opencl
    def test_the_command_says_so_with_its_exit_code(self, opencl_device, capsys):
        saxpy = str(EXAMPLES / "saxpy" / "spaces")
        command = ["run", "saxpy", "--spaces", saxpy, "--device", opencl_device, "--sanitize"]
        assert run(command) == 2
        assert "compute-sanitizer checks CUDA kernels" in capsys.readouterr().err


class TestPrograms:
    def test_on_the_path_then_in_a_toolkit(self, monkeypatch, tmp_path):
        for folder in ("path", "toolkit/bin"):
            (tmp_path / folder).mkdir(parents=True)
            (tmp_path / folder / "compute-sanitizer").touch(mode=0o755)
        monkeypatch.setenv("CUDA_PATH", str(tmp_path / "toolkit"))
        monkeypatch.setenv("PATH", str(tmp_path / "path"))
        assert find_program("compute-sanitizer") == f"{tmp_path}/path/compute-sanitizer"
        monkeypatch.setenv("PATH", str(tmp_path))
        assert find_program("compute-sanitizer") == f"{tmp_path}/toolkit/bin/compute-sanitizer"
        assert find_program("no-such-program") == ""


class TestWords:
    @pytest.mark.parametrize("log", WORDS, ids=lambda log: log.split()[2])
    def test_the_first_fault_without_addresses(self, log):
        assert sanitize.first_fault(log) == WORDS[log]

    @pytest.mark.parametrize(
        "log",
        [
            CLEAN,
            "",
            RACE.replace("Error: Race", "Warning: Race"),
            "========= COMPUTE-SANITIZER\n========= Target application returned an error\n"
            "========= ERROR SUMMARY: 0 errors\n",
            "========= COMPUTE-SANITIZER\n========= Program hit cudaErrorMemoryAllocation (error 2) "
            'due to "out of memory" on CUDA API call to cudaMalloc.\n=========     Saved host '
            "backtrace up to driver entry point at error\n",
        ],
        ids=["clean", "nothing", "warning", "target", "api"],
    )
    def test_what_is_no_fault(self, log):
        assert sanitize.first_fault(log) is None


def test_nothing_of_the_current_folder_is_run(tmp_path, monkeypatch):
    """Whose modules Python's option -m would take before its own; a program stands for the tool here."""
    tool = tmp_path / "tool"
    skip = 'until [ "$1" = -c ] || [ "$1" = -m ]; do python="$1"; shift; done'
    tool.write_text(f'#!/bin/sh\n{skip}; exec "$python" "$@"\n')
    tool.chmod(0o755)
    (tmp_path / "here").mkdir()
    for name in ("pickle", "numpy", "autotune", "msgspec"):
        (tmp_path / "here" / f"{name}.py").write_text("open(__file__ + '.ran', 'w')\n")
    monkeypatch.chdir(tmp_path / "here")
    _, failure = sanitize._run_tool(str(tool), [], 60.0, "memcheck")
    assert "IndexError" in failure  # it began, and had no trials
    assert not list(tmp_path.rglob("*.ran"))
