"""Does NVIDIA's compute-sanitizer find a fault in a configuration: an access, a race, a barrier?

Runs launches on small problems under each of its tools, in processes of their own, and reads what
it says. Knows neither search nor storage.
"""

from __future__ import annotations

import math
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path

from autotune.devices.binary import Binary
from autotune.devices.device import Device
from autotune.devices.toolkit import SANITIZER_PACKAGE, find_program
from autotune.errors import AutotuneError, UsageError
from autotune.extras import pip
from autotune.kernel.spec import Kernel
from autotune.measure.tasks import Job
from autotune.values import Configuration, Problem

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
#: Longest time of one process: instrumented kernels are up to a thousand times slower.
TIMEOUT_S = 120.0
#: Bytes after every allocation that nobody owns, so that one element too far is no neighbour's.
_PADDING = 1024
#: What runs under a tool. Modules come from where this process has them: `-m` would begin with the current folder.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[3:]; from autotune.measure.sanitize_task import main; "
    "sys.exit(main(*sys.argv[1:3]))"
)
#: A place in a kernel, as ``scale+0x80``; ``at 0x80`` before 2022.
_PLACE = re.compile(r"\bat (\S.*\+)?0x[0-9a-f]+")
#: An address, which is another one in every run.
_ADDRESS = re.compile(r"( at| to)? 0x[0-9a-f]{6,}\b")
#: Where a kernel names no odd sizes: a problem is halved until it has at most so many points.
_POINTS = 1 << 21


@dataclass(frozen=True)
class Trial:
    """One configuration on one small problem: what is launched under a tool."""

    job: Job
    configuration: Configuration
    binary: Binary


@dataclass(frozen=True)
class SanitizerFault:
    """The first fault that a tool reports of a configuration."""

    tool: str
    #: In the tool's words, without addresses.
    text: str
    #: The problem that was being run; empty where the tool reports only at the end.
    problem: str = ""

    def __str__(self) -> str:
        on = f" on {self.problem}" if self.problem else ""
        return f"compute-sanitizer {self.tool}{on}: {self.text}"


@dataclass(frozen=True)
class SanitizerReport:
    """What all tools say of some configurations; whoever is not named is clean."""

    faults: Mapping[Configuration, SanitizerFault] = field(default_factory=dict)
    #: How many configurations a tool has no answer for, and why.
    unchecked: tuple[str, ...] = ()


def required(device: Device) -> str:
    """The program, where it can check this device.

    Raises
    ------
    UsageError
        If the device is no CUDA device.
    AutotuneError
        If it is not installed.
    """
    if not device.has_nvidia_tools:
        raise UsageError(
            f"--sanitize: compute-sanitizer checks CUDA kernels, not those of {device.selector}; "
            "run without it"
        )
    found = find_program("compute-sanitizer")
    if not found:
        raise AutotuneError(
            "--sanitize: compute-sanitizer is not installed (neither on PATH, nor in a CUDA toolkit, "
            f"nor as a Python package); run: {remedy()}"
        )
    return found


def remedy() -> str:
    """The command that installs it beside this package."""
    return pip("install", SANITIZER_PACKAGE)


def small_problems(
    kernel: Kernel, configuration: Configuration, problem: Problem, device: Device
) -> list[Problem]:
    """Problems that instrumented launches of a configuration get through in seconds.

    The kernel's odd sizes where the configuration allows some, else the problem itself, its largest
    sizes halved. All with the same static fields but for those of the layout.
    """
    odd = [
        edge for edge in kernel.edges_beside(problem, device) if kernel.allows(configuration, edge)
    ]
    return odd or [_halved(kernel, configuration, problem)]


def check(program: str, trials: Sequence[Trial], timeout_s: float = TIMEOUT_S) -> SanitizerReport:
    """Run trials under every tool.

    All configurations share a process per tool, the tools run side by side; only where one finds
    something is each configuration run by itself, to know whose fault it is. A process that takes
    longer than ``timeout_s`` has no answer.
    """
    with ThreadPoolExecutor(len(TOOLS)) as pool:
        together = pool.map(partial(_run, program, trials, timeout_s), TOOLS)
        suspected = [tool for tool, said in zip(TOOLS, together, strict=True) if said != _Said()]
        own: dict[Configuration, list[Trial]] = {}
        for trial in trials:
            own.setdefault(trial.configuration, []).append(trial)
        alone = {
            (configuration, tool): pool.submit(_run, program, mine, timeout_s, tool)
            for tool in suspected
            for configuration, mine in own.items()
        }
        answers = {key: future.result() for key, future in alone.items()}
    faults: dict[Configuration, SanitizerFault] = {}
    for (configuration, _), said in answers.items():
        if said.fault is not None:
            faults.setdefault(configuration, said.fault)
    failures = Counter(
        f"not checked by {tool}: {said.failure}"
        for (_, tool), said in answers.items()
        if said.failure
    )
    return SanitizerReport(
        faults, tuple(f"{count} configurations {why}" for why, count in failures.items())
    )


@dataclass(frozen=True)
class _Said:
    """What came of one process; nothing where all is well."""

    fault: SanitizerFault | None = None
    #: Why there is no answer; empty where there is.
    failure: str = ""


def _run(program: str, trials: Sequence[Trial], timeout_s: float, tool: str) -> _Said:
    """Launch trials in one process under one tool."""
    with tempfile.TemporaryDirectory(prefix="autotune-sanitize-") as folder:
        task, log = Path(folder, "trials"), Path(folder, "log")
        task.write_bytes(pickle.dumps(list(trials)))
        command = [
            *(program, "--tool", tool, "--log-file", str(log)),
            *("--print-limit", "1", "--show-backtrace", "no"),
            *(("--padding", str(_PADDING)) if tool == "memcheck" else ()),
            *(("--report-api-errors", "no") if tool == "memcheck" else ()),
            *(("--print-level", "error") if tool == "racecheck" else ()),
            *(sys.executable, "-c", _PROGRAM, str(task), str(timeout_s), *sys.path),
        ]
        code, output = _waited(command, timeout_s)
        words = log.read_text(errors="replace") if log.exists() else ""
    lines = output.splitlines()
    # After a lost context, what CuPy cannot free complains below the last word.
    words_of_end = [line for line in lines if line == "done" or line.startswith("failed on ")]
    last = (words_of_end or lines or [""])[-1]
    text = parsed(words)
    if text is not None:
        lost = re.match(r"failed on (?P<problem>.*?): ", last)
        return _Said(SanitizerFault(tool, text, lost["problem"] if lost else ""))
    if code is None:
        return _Said(failure=f"not done after {timeout_s:g} s")
    if last == "done":  # warnings alone, which are no faults, have an exit code too
        return _Said()
    return _Said(failure=last or f"exit code {code}, and no word")


def parsed(log: str) -> str | None:
    """The first fault in what a tool printed, on one line; None where it found nothing.

    A fault begins at the margin and names a place in a kernel, there or in the indented lines
    that follow. All else is about the program: how it ended, what the tool could not do. Of races,
    warnings are left out: in the tool's words, they may be meant.
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


def _waited(command: Sequence[str], timeout_s: float) -> tuple[int | None, str]:
    """Exit code and output of a command; None where it had to be killed, with its children."""
    package = str(Path(__file__).parents[2])
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return None, output
    except BaseException:  # Ctrl-C
        os.killpg(process.pid, signal.SIGKILL)
        raise


def _halved(kernel: Kernel, configuration: Configuration, problem: Problem) -> Problem:
    """A problem with its largest sizes halved until it is small, or no longer allowed."""
    while True:
        sizes = {
            name: value
            for name, value in problem.items()
            if isinstance(value, int) and name not in kernel.static and value > 1
        }
        if not sizes or math.prod(sizes.values()) <= _POINTS:
            return problem
        largest = max(sizes, key=lambda name: sizes[name])
        smaller = Problem({**problem, largest: sizes[largest] // 2})
        if not kernel.allows(configuration, smaller):
            return problem
        problem = smaller
