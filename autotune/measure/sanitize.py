"""Runs configurations on small problems under each tool of NVIDIA's compute-sanitizer, and reads its log.

Under a tool, every buffer is a separate allocation of exactly its size. Guard bands and the rounded blocks
of CuPy's pool would hide an access beyond the end. Outputs and workspaces are not poisoned, because initcheck
would count that as a write.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from autotune.data.arguments import Argument
from autotune.data.dataset import EXACT, Dataset
from autotune.devices.base import Binary, ContextLostError, LaunchError
from autotune.devices.cuda_executor import CudaExecutor
from autotune.devices.cuda_memory import CudaBuffer
from autotune.devices.device import Device
from autotune.devices.nvrtc import SANITIZER_PACKAGE, find_program
from autotune.errors import AutotuneError, UsageError
from autotune.kernel.launches import launch_sequence, workspaces_of
from autotune.kernel.snapshot import load_kernel
from autotune.kernel.spec import Kernel
from autotune.measure.verify import DeviceData
from autotune.measure.worker_state import Job
from autotune.values import Configuration, Problem, size_of

#: The command that installs compute-sanitizer.
REMEDY = f"pip install {SANITIZER_PACKAGE}"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
#: Longest time of one process; instrumented kernels are up to a thousand times slower.
TIMEOUT_S = 120.0
#: Unused bytes after every allocation, so that an access beyond the end does not reach the next one.
_PADDING = 1024
#: Program to run under a tool. It gets this process's module path, because `-m` begins with the current folder.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[3:]; from autotune.measure.sanitize import main; "
    "sys.exit(main(*sys.argv[1:3]))"
)
#: A place in a kernel, such as ``scale+0x80``; versions before 2022 write ``at 0x80``.
_PLACE = re.compile(r"\bat (\S.*\+)?0x[0-9a-f]+")
#: An address; it differs in every run.
_ADDRESS = re.compile(r"( at| to)? 0x[0-9a-f]{6,}\b")


@dataclass(frozen=True)
class Trial:
    """A configuration on a small problem, launched under a tool."""

    job: Job
    configuration: Configuration
    binary: Binary


def required_program(device: Device) -> str:
    """Return the path of compute-sanitizer; raise an error if it is missing or not for this device."""
    if not device.is_cuda:
        raise UsageError(
            f"compute-sanitizer checks CUDA kernels, not those of {device.selector}; run without it"
        )
    found = find_program("compute-sanitizer")
    if not found:
        raise AutotuneError(
            "compute-sanitizer is not installed (neither on PATH, nor in a CUDA toolkit, "
            f"nor as a Python package); run: {REMEDY}"
        )
    return found


def small_problems(
    kernel: Kernel, configuration: Configuration, problem: Problem, device: Device
) -> list[Problem]:
    """Return problems that instrumented launches finish in seconds, with the same static fields.

    These are the odd sizes that the configuration allows, or else the kernel's smallest problem.
    """
    odd = [
        edge for edge in kernel.edges_like(problem, device) if kernel.allows(configuration, edge)
    ]
    alike = [
        known
        for known in kernel.all_problems()
        if kernel.static_of(known) == kernel.static_of(problem)
        and kernel.allows(configuration, known)
    ]
    return odd or [min([problem, *alike], key=size_of)]


def find_faults(
    program: str, trials: Sequence[Trial], timeout_s: float = TIMEOUT_S
) -> tuple[dict[Configuration, str], list[str]]:
    """Run trials under every tool; return the faults by configuration, and remarks.

    Each tool has one process for all configurations. If the tool reports anything, each configuration runs
    alone under it, so that each fault has its configuration. Remarks name the checks that failed to run.
    """
    own: dict[Configuration, list[Trial]] = {}
    for trial in trials:
        own.setdefault(trial.configuration, []).append(trial)
    with ThreadPoolExecutor(len(TOOLS)) as pool:
        together = pool.map(partial(_run_tool, program, trials, timeout_s), TOOLS)
        suspected = [tool for tool, found in zip(TOOLS, together, strict=True) if any(found)]
        alone = {
            (configuration, tool): pool.submit(_run_tool, program, mine, timeout_s, tool)
            for tool in suspected
            for configuration, mine in own.items()
        }
    faults: dict[Configuration, str] = {}
    failures = Counter[str]()
    for (configuration, tool), future in alone.items():
        fault, failure = future.result()
        if fault:
            faults.setdefault(configuration, fault)
        if failure:
            failures[f"not checked by {tool}: {failure}"] += 1
    return faults, [f"{count} configurations {why}" for why, count in failures.items()]


def _run_tool(
    program: str, trials: Sequence[Trial], timeout_s: float, tool: str
) -> tuple[str, str]:
    """Launch trials in one process under one tool; return the first fault, and why the tool failed."""
    options = [
        *("--tool", tool, "--print-limit", "1", "--show-backtrace", "no"),
        *(("--padding", str(_PADDING)) if tool == "memcheck" else ()),
        *(("--report-api-errors", "no") if tool == "memcheck" else ()),
        *(("--print-level", "error") if tool == "racecheck" else ()),
    ]
    words, last, failure = launched_under([program, *options], trials, timeout_s)
    text = first_fault(words)
    if text is not None:
        lost = re.match(r"failed on (?P<problem>.*?): ", last)
        on = f" on {lost['problem']}" if lost else ""
        return f"compute-sanitizer {tool}{on}: {text}", ""
    return "", failure


def launched_under(
    tool: Sequence[str], trials: Sequence[Trial], timeout_s: float
) -> tuple[str, str, str]:
    """Launch trials once in a process under one of NVIDIA's tools.

    Return the tool's log, the last line of the process, and why the process failed (empty if it did not).
    """
    with tempfile.TemporaryDirectory(prefix="autotune-tool-") as folder:
        task, log = Path(folder, "trials"), Path(folder, "log")
        task.write_bytes(pickle.dumps(list(trials)))
        child = (sys.executable, "-c", _PROGRAM, str(task), str(timeout_s), *sys.path)
        has_ended, output = _waited([*tool, "--log-file", str(log), *child], timeout_s)
        words = log.read_text(errors="replace") if log.exists() else ""
    lines = output.splitlines()
    # After a lost context CuPy prints more lines, about memory that it cannot free.
    results = [line for line in lines if line == "done" or line.startswith("failed on ")]
    last = (results or lines or [""])[-1]
    if not has_ended:
        return words, last, f"not done after {timeout_s:g} s"
    if last == "done":  # the exit code does not matter: a tool sets it for warnings, too
        return words, last, ""
    return words, last, last or "it ended without a message"


def first_fault(log: str) -> str | None:
    """Return the first fault in a tool's log on one line; None if there is no fault.

    A fault begins at the margin and names a place in a kernel, there or in the indented lines after it.
    Other lines are about the program and the tool. Warnings of races are left out, because the tool
    reports that they may be intended.
    """
    lines = [line.removeprefix("=========") for line in log.splitlines()]
    for index, line in enumerate(lines):
        if line.startswith("  "):
            continue
        details = list(takewhile(_is_detail, lines[index + 1 :]))
        kept = (words.strip() for words in (line, *details) if "Address 0x" not in words)
        text = " ".join(kept)
        if _PLACE.search(text) and not text.startswith("Warning"):
            return _ADDRESS.sub("", text).strip().replace(" Access ", ": access ")
    return None


def _is_detail(line: str) -> bool:
    return line.startswith("  ") and bool(line.strip()) and "host backtrace" not in line


def _waited(command: Sequence[str], timeout_s: float) -> tuple[bool, str]:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        return True, process.communicate(timeout=timeout_s)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return False, process.communicate()[0]


# ------------------------------------------------------------------ under the tool


class _BareBuffer(CudaBuffer):
    """An allocation of exactly the requested bytes, after those of the offset."""

    def __init__(self, cupy: Any, nbytes: int, offset_bytes: int) -> None:
        self.nbytes = nbytes
        self.whole = cupy.empty(offset_bytes + nbytes, cupy.uint8)
        self.inner = self.whole[offset_bytes:]
        self.guards = (self.whole[:0], self.whole[:0])


class _BareExecutor(CudaExecutor):
    """An executor that allocates without guard bands."""

    def allocate(self, nbytes: int, offset_bytes: int = 0) -> CudaBuffer:
        return _BareBuffer(self.cupy, nbytes, offset_bytes)


class _BareData(DeviceData):
    """Device data without pristine copies and expected values: nothing is compared."""

    def _upload(self, dataset: Dataset, argument: Argument) -> None:
        if not argument.nbytes:
            return
        if argument.kind in ("input", "out", "inout"):
            self.buffers[argument.name] = self.executor.allocate(
                argument.nbytes, argument.offset_bytes
            )
        if argument.kind in ("input", "inout"):
            array = dataset.array(argument.name)
            self.executor.write(self.buffers[argument.name], array)


def launch(executor: CudaExecutor, trial: Trial) -> None:
    """Run a trial's launch sequence once on exact data, which may reach more of the kernel than random data."""
    job, configuration = trial.job, trial.configuration
    kernel = load_kernel(job.origin, job.fingerprint)
    dataset = next(dataset for dataset in job.datasets if dataset.name == EXACT)
    data = _BareData(executor, {EXACT: dataset})
    workspaces = workspaces_of(kernel, configuration, job.problem, job.device, trial.binary)
    data.declare_scratch(workspaces)
    plan = launch_sequence(kernel, configuration, job.problem, job.device)
    steps = data.bind(plan, EXACT, trial.binary)
    executor.run(executor.load(trial.binary, data.constants(EXACT)), steps)


def main(file: str, seconds: str) -> int:
    """Launch the trials in a file; the last line of output is ``done`` or the failure."""
    signal.alarm(int(float(seconds)) + 10)  # ends this process if the parent was killed
    trials: list[Trial] = pickle.loads(Path(file).read_bytes())
    device, last = trials[0].job.device, "done"
    import cupy

    cupy.cuda.set_allocator(None)
    executor = _BareExecutor(cupy, device)
    for trial in trials:
        try:
            launch(executor, trial)
        except (LaunchError, ContextLostError, MemoryError) as error:
            last = f"failed on {trial.job.problem}: {' '.join(str(error).split())}"
            break
    sys.stdout.write(f"{last}\n")
    sys.stdout.flush()
    return int(last != "done")
