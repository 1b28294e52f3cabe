"""Measures every tuned entry against the vendor's library again.

Each row: the configuration that `autotune.lookup` answers with is verified on both data sets and on odd
sizes, then raced with the fastest of the vendor's correct calls, interleaved in random order as in the
finals of `autotune run`, in three states of the L2 cache; what takes long, under a load of a second too. Rows are
merged into ``results/vendor-<device>.json`` one by one, so that the table can be measured in pieces; what no space
file tunes, into ``results/unlisted-<device>.json``.

    python benchmarks/vendor.py                                        what the README shows, then what else is tuned
    python benchmarks/vendor.py --kernel sgemm --problem m=4096,n=4096,k=4096
    python benchmarks/vendor.py --unlisted                             what nobody tunes, as lookup answers
    python benchmarks/vendor.py --missing --until 240                  only missing rows; begin none after 240 s
    python benchmarks/vendor.py --device opencl:cpu --kernel transpose --rounds 3      a look, without a vendor
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import problem_sizes
import rivals
import vendor_task
from harness import ROOT, command_line, finish, provenance, read, write
from vendor_task import State

from autotune.arrays import usable_cores
from autotune.cache import tidy
from autotune.calling.choice import Choice, choose
from autotune.compiling.job import compile_job
from autotune.data.dataset import EXACT, RANDOM
from autotune.data.prepare import prepare_dataset
from autotune.devices.base import Binary
from autotune.devices.choose import backend, choose_device
from autotune.devices.device import Device
from autotune.errors import AutotuneError, UsageError
from autotune.kernel import parsing
from autotune.kernel.catalog import find_kernel
from autotune.kernel.space import is_member
from autotune.kernel.spec import Kernel, Work
from autotune.measure.compilers import CompilerPool
from autotune.measure.device_worker import DeviceWorker, device_actor
from autotune.measure.measurement import CheckResult, Measurement, Status
from autotune.measure.race import Contender
from autotune.measure.roofline import Limits, memory_limit
from autotune.measure.timing import median_interval
from autotune.measure.worker_state import Job
from autotune.run.device_limits import known_limits
from autotune.run.verdict import ratio
from autotune.values import Configuration, Problem

FORMAT = "autotune vendor comparison"
#: Rounds in which prefetch's plain loops are compared, and their longest race; the best of them are rivals.
_PLAIN_ROUNDS, _PLAIN_SECONDS = 5, 0.5
#: From this number of bytes on, twenty times an L2 cache or more, a problem shows the rate of the memory.
_RATE_BYTES = 1 << 30
#: Longest time of one row in the worker: upload, verification, race.
_ROW_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Subject:
    """One row to be measured: whose, on what, with which configuration."""

    kernel: Kernel
    problem: Problem
    choice: Choice

    @property
    def configuration(self) -> Configuration:
        return self.choice.configuration

    @property
    def row(self) -> dict[str, Any]:
        return {"kernel": self.kernel.name, "problem": dict(self.problem)}


class WrongError(AutotuneError):
    """A tuned configuration does not compile, or is wrong."""


@dataclass
class Comparison:
    """The processes of one run of this program, on one device."""

    device: Device
    worker: DeviceWorker
    compilers: CompilerPool
    limits: Limits
    rounds: int
    seconds: float
    seed: int
    #: Configurations, with their kernel, that passed verification on the odd sizes.
    _right: set[tuple[str, Configuration]] = field(default_factory=set)
    #: Compiling `rivals.build_cub` by its symbols, and what was wrong with that.
    cub: Mapping[tuple[str, ...], Future[Path]] = field(default_factory=dict)
    cub_note: str = ""

    def job(self, kernel: Kernel, problem: Problem) -> Job:
        """Inputs and references of a problem, made where they are not there, and kept."""
        assert kernel.file is not None
        datasets = tuple(
            prepare_dataset(kernel, problem, name, self.seed) for name in (EXACT, RANDOM)
        )
        return Job(kernel.file, problem, self.device, datasets)

    def submit(self, subject: Subject) -> None:
        self.compilers.submit(
            compile_job(subject.kernel, subject.configuration, subject.problem, self.device)
        )

    def row(self, subject: Subject, job: Job) -> dict[str, Any]:
        kernel, configuration = subject.kernel, subject.configuration
        binary = self.binary(kernel, configuration, subject.problem)
        edges = self._verify_odd_sizes(subject)
        checks = self._verified(kernel, job, configuration, binary).checks
        check = next(check for check in checks if check.dataset == RANDOM)
        entrants = self._entrants(subject, job, binary)
        raced: vendor_task.RowSamples = self.worker.actor.ask(
            vendor_task.race,
            job,
            entrants,
            self.rounds,
            self.seed,
            self.seconds,
            timeout_s=_ROW_TIMEOUT_S,
        )
        if kernel.name == "sgemm_tf32x3":
            asked = (configuration, binary, "cublas", self.seed)
            accuracy = self.worker.actor.ask(
                vendor_task.accuracy, job, *asked, timeout_s=_ROW_TIMEOUT_S
            )
            raced = replace(raced, accuracy=accuracy)
        row = judged(subject, raced, check, self.device, self.limits, self.seed)
        note = row["note"] or (
            self.cub_note if rivals.cub_symbols(kernel.name, subject.problem) else ""
        )
        return {**row, "note": note, "odd_sizes_verified": edges}

    def binary(self, kernel: Kernel, configuration: Configuration, problem: Problem) -> Binary:
        compiled = self.compilers.result(compile_job(kernel, configuration, problem, self.device))
        if compiled.binary is None:
            raise WrongError(f"{kernel.name}: {configuration} does not compile: {compiled.message}")
        return compiled.binary

    def _verified(
        self, kernel: Kernel, job: Job, configuration: Configuration, binary: Binary
    ) -> Measurement:
        found = self.worker.check(job, configuration, binary)
        if found.status is not Status.OK:
            raise WrongError(f"{kernel.name} ({job.problem}): {configuration}: {found.message}")
        return found

    def _verify_odd_sizes(self, subject: Subject) -> int:
        """Check a configuration on every odd size that it allows; how many there are."""
        kernel, configuration = subject.kernel, subject.configuration
        edges = [
            edge for edge in kernel.edges_on(self.device) if kernel.allows(configuration, edge)
        ]
        if (kernel.name, configuration) not in self._right:
            for edge in edges:  # values that are compiled in make binaries of their own
                self.compilers.submit(compile_job(kernel, configuration, edge, self.device))
            for edge in edges:
                binary = self.binary(kernel, configuration, edge)
                job = self.job(kernel, edge)
                self._verified(kernel, job, configuration, binary)
            self._right.add((kernel.name, configuration))
        return len(edges)

    def _entrants(self, subject: Subject, job: Job, binary: Binary) -> vendor_task.Entrants:
        """Ours, every vendor call that the space file names, and what stands for a vendor."""
        kernel = subject.kernel
        named = {
            baseline.name: Contender(vendor=baseline.name)
            for baseline in kernel.baselines
            if baseline.backend == self.device.backend
        }
        on_gpu = self.device.backend == "cuda"
        if kernel.name == "prefetch" and on_gpu:
            named |= self._plain(subject, job)
        return vendor_task.Entrants(
            ours=Contender(subject.configuration, binary),
            rivals=named,
            kernel=kernel.name if on_gpu else "",
            cub=self._cub_library(subject) if on_gpu else None,
        )

    def _cub_library(self, subject: Subject) -> Path | None:
        """What is compiled since the program began; None where it cannot be, or is not needed."""
        symbols = rivals.cub_symbols(subject.kernel.name, subject.problem)
        if symbols is None:
            return None
        try:
            return self.cub[symbols].result()
        except AutotuneError as error:
            self.cub_note = str(error)
            return None

    def _plain(self, subject: Subject, job: Job) -> dict[str, Contender]:
        """Of the loops that look nowhere ahead, written out by the compiler or not, the fastest cold and hot."""
        kernel = subject.kernel
        choices = plain_loops(kernel, subject.problem, self.device)
        for choice in choices:
            self.compilers.submit(compile_job(kernel, choice, job.problem, self.device))
        contenders = [
            Contender(choice, self.binary(kernel, choice, job.problem)) for choice in choices
        ]
        asked = (_PLAIN_ROUNDS, self.seed, _PLAIN_SECONDS)
        places = self.worker.actor.ask(
            vendor_task.fastest, job, contenders, *asked, timeout_s=_ROW_TIMEOUT_S
        )
        best = [contenders[place] for place in places]
        for one in best:
            assert one.binary is not None
            self._verified(kernel, job, one.configuration, one.binary)
        return {loop_name(one.configuration): one for one in best}


def plain_loops(kernel: Kernel, problem: Problem, device: Device) -> list[Configuration]:
    """prefetch's configurations without a word about looking ahead that suit a problem."""
    none = [{"MODE": "none", "ROUNDS": rounds} for rounds in (0, 1, 2)]
    unrolled = [
        {"MODE": "unroll", "PDIST": ahead, "ROUNDS": rounds}
        for ahead in (2, 4, 8)
        for rounds in (0, ahead)
    ]
    choices = [
        kernel.completed({**mode, "VEC": vec, "BLOCK": block})
        for mode in (*none, *unrolled)
        for vec in (1, 4)
        for block in (128, 256, 512, 1024)
    ]
    return [
        choice
        for choice in dict.fromkeys(choices)
        if is_member(kernel, choice, device) and kernel.allows(choice, problem)
    ]


def loop_name(configuration: Configuration) -> str:
    """A plain loop in a few words: ``plain loop, 2 unrolled, 4 floats, 256 threads``."""
    mode = f"{configuration['PDIST']} unrolled, " if configuration["MODE"] == "unroll" else ""
    count = configuration["ROUNDS"]
    rounds = f", {count} round{'s' if count > 1 else ''}" if count else ""
    floats, threads = configuration["VEC"], configuration["BLOCK"]
    return f"plain loop, {mode}{floats} floats, {threads} threads{rounds}"


# ---------------------------------------------------------------------- what the samples say


def judged(
    subject: Subject,
    raced: vendor_task.RowSamples,
    check: CheckResult,
    device: Device,
    limits: Limits,
    seed: int,
) -> dict[str, Any]:
    cold, tuned = raced.ours[State.COLD], subject.choice.tuned
    rival = fastest_rival(raced.rivals, State.COLD)
    named = (baseline.name for baseline in subject.kernel.baselines)
    vendor = next((name for name in named if name in raced.rivals), None)
    row: dict[str, Any] = {
        **subject.row,
        "listed": problem_sizes.is_listed(subject.kernel.name, subject.problem),
        "ours_ms": median(cold),
        "ours_ci": list(median_interval(cold)),
        "rival": rival,
        **_over(raced.rivals[rival][State.COLD] if rival else (), cold, seed, "rival_ms", "ratio"),
    }
    for state in (State.CLEAN, State.HOT):
        ours, name = raced.ours[state], fastest_rival(raced.rivals, state)
        theirs = raced.rivals[name][state] if name else ()
        row |= {f"ours_{state}_ms": median(ours), f"rival_{state}": name}
        row |= _over(theirs, ours, seed, f"rival_{state}_ms", f"ratio_{state}")
    row |= _under_load(raced)
    work = subject.kernel.work_of(subject.problem) or Work()
    return {
        **row,
        "vendor": vendor,
        "vendor_ms": median(raced.rivals[vendor][State.COLD]) if vendor else None,
        "rivals": {
            name: [median(samples[state]) for state in State]
            for name, samples in raced.rivals.items()
        },
        "rivals_tried": raced.tried,
        "rivals_right": len(raced.errors),
        "note": raced.note,
        **share_of_limit(work, median(cold), raced, device, limits),
        "max_error": check.max_error,
        "rms_error": check.rms_error,
        "bound": check.bound,
        "vendor_max_error": raced.errors.get(rival or ""),
        "error_ratio": error_ratio(check.max_error, raced.errors.get(rival or ""), raced.accuracy),
        **({"accuracy": raced.accuracy} if raced.accuracy else {}),
        "deterministic": raced.is_deterministic,
        "rival_deterministic": raced.rival_is_deterministic,
        "winner_source": str(subject.configuration.get("SOURCE", "portable")),
        # ``default`` where nothing recorded may be used
        "quality": tuned.quality if tuned else "default",
        "stale": list(tuned.stale_reasons) if tuned else [],
        "configuration": dict(subject.configuration),
        "rounds": len(cold),
        "launched_by": raced.launched_by,
        "sm_mhz": raced.sm_mhz,
        "throttle_reasons": list(raced.throttle_reasons),
    }


def fastest_rival(
    rivals: Mapping[str, Mapping[State, Sequence[float]]], state: State
) -> str | None:
    """The name of the rival with the least median in a state; None where there is none."""
    return min(rivals, key=lambda name: median(rivals[name][state]), default=None)


def _over(
    theirs: Sequence[float], ours: Sequence[float], seed: int, time: str, share: str
) -> dict[str, Any]:
    """Another's median and its ratio to ours with an interval, under these names; None for no samples."""
    if not theirs:
        return dict.fromkeys((time, share, f"{share}_ci"))
    found = ratio(theirs, ours, seed)
    return {time: median(theirs), share: found.value, f"{share}_ci": [found.low, found.high]}


def _under_load(raced: vendor_task.RowSamples) -> dict[str, Any]:
    """Times back to back over a second; nothing where a call is too short for that."""
    if not raced.load:
        return {}
    ours, rival = raced.load["ours"], raced.load.get("rival")
    return {
        "ours_sustained_ms": ours.call_ms,
        "rival_sustained_ms": rival.call_ms if rival else None,
        "ratio_sustained": rival.call_ms / ours.call_ms if rival else None,
        "sustained_mhz": ours.sm_mhz,
    }


def share_of_limit(
    work: Work, ours_ms: float, raced: vendor_task.RowSamples, device: Device, limits: Limits
) -> dict[str, Any]:
    """What the device takes at least, and our share of it: a launch, and the bytes or the multiply-adds.

    Bytes at the rates of the recorded `copy` of 2^30 floats, multiply-adds at one a lane and clock, those of
    tensor cores at the rate of the recorded `hmma`. Large sizes show the rate themselves, where they reach a
    higher one. Above 1 is what is written and stays in the L2 cache: ``limit_by_l2``.
    """
    launch_ms = median(raced.launch) if raced.launch else 0.0
    bytes_limit = memory_limit(work, limits)
    memory = bytes_limit.name if bytes_limit else ""
    times = {memory: bytes_limit.least_ms} if bytes_limit else {}
    if memory and work.bytes_read + work.bytes_written >= _RATE_BYTES:
        times[memory] = min(times[memory], ours_ms - launch_ms)
    clock = raced.sm_mhz / raced.most_mhz if raced.sm_mhz and raced.most_mhz else 1.0
    if device.peak_gflop_per_s and work.pipe == "fp32" and work.flops:
        times["ffma"] = work.flops / (clock * device.peak_gflop_per_s) / 1e6
    if work.pipe == "tensor" and "tensor" in limits:
        times["tensor"] = work.flops / limits["tensor"] / 1e6
    # Arithmetic of another pipe has a limit that is not known.
    if not memory or (work.pipe != "fp32" and work.pipe not in times):
        return dict.fromkeys(("limit", "limit_ms", "limit_fraction", "limit_by_l2", "limits_apart"))
    name = max(times, key=times.__getitem__)
    others = [time_ms for other, time_ms in times.items() if other != name]
    fraction = (launch_ms + times[name]) / ours_ms
    return {
        "limit": name,
        "limit_ms": launch_ms + times[name],
        "limit_fraction": fraction,
        "limit_by_l2": fraction > 1 and 0 < work.bytes_written <= device.l2_bytes,
        "limits_apart": times[name] / max(others) if others else None,
        "launch_ms": launch_ms,
    }


def error_ratio(
    ours: float, vendors: float | None, accuracy: Mapping[str, Mapping[str, float]]
) -> float | None:
    """Our largest error over the vendor's, on the worst data set where there are several.

    1 where neither has any; None where only the vendor has none, or there is no vendor.
    """
    pairs = [(errors["ours_max"], errors["vendor_max"]) for errors in accuracy.values()]
    if not pairs:
        pairs = [(ours, vendors)] if vendors is not None else []
    found = [
        1.0 if mine == theirs else mine / theirs for mine, theirs in pairs if theirs or not mine
    ]
    return max(found) if len(found) == len(pairs) and found else None


# ---------------------------------------------------------------------- what to measure


def kernels_of(names: Iterable[str], device: Device) -> Iterator[Kernel]:
    """The kernels of some names that run on a device; says which do not, and goes on."""
    for kernel in map(find_kernel, names):
        if device.backend in kernel.backends:
            yield kernel
        else:
            text = f"{kernel.name}: left out: it runs on {', '.join(kernel.backends)}"
            print(text, file=sys.stderr)


def problems_of(kernel: Kernel, device: Device, folder: Path) -> list[Problem]:
    """The sizes that are shown on a GPU, the quick ones elsewhere, and every size of the tuned record."""
    sizes: list[Mapping[str, int | str]] = [*kernel.quick_problems.get(device.backend, ())]
    if device.backend == "cuda":
        sizes = [*problem_sizes.SIZES.get(kernel.name, problem_sizes.STUDY.get(kernel.name, []))]
    file = folder / device.folder / f"{kernel.name}.json"
    if file.is_file():
        sizes += [entry["problem"] for entry in json.loads(file.read_text())["problems"]]
    problems = (Problem({name: size[name] for name in kernel.fields}) for size in sizes)
    return list(dict.fromkeys(problems))


def subjects_of(
    kernels: Iterable[Kernel], device: Device, folder: Path, only: Sequence[str], unlisted: bool
) -> list[Subject]:
    """Every row to measure: the given problems only, the unlisted ones, or all that are shown or tuned."""
    subjects = []
    for kernel in kernels:
        fitting = [text for text in only if set(parsing.pairs(text)) == set(kernel.fields)]
        chosen = [parsing.problem(kernel, text) for text in fitting]
        tuned = problems_of(kernel, device, folder)
        untuned = [Problem(size) for size in problem_sizes.untuned(kernel.name)]
        for problem in chosen:
            if problem in (tuned if unlisted else untuned):
                why = "is tuned; leave out" if unlisted else "is not tuned; give"
                raise UsageError(f"{kernel.name} ({problem}): it {why} --unlisted")
        if not only:
            chosen = untuned if unlisted else tuned
        for problem in chosen:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)  # the row says "default"
                    subjects.append(Subject(kernel, problem, choose(kernel, problem, device)))
            except AutotuneError as error:
                print(f"{kernel.name} ({problem}): left out: {error}", file=sys.stderr)
    subjects.sort(key=turn)
    if not subjects:
        lacking = "these problem fields" if only else "sizes to measure; name one with --problem"
        raise UsageError(f"nothing to measure: no kernel has {lacking}")
    return subjects


def turn(subject: Subject) -> tuple[int, float]:
    """When a row is measured: what tables show first before other sizes and `copy`, small before large."""
    name = subject.kernel.name
    shown = problem_sizes.SIZES.get(name, []) + problem_sizes.UNLISTED.get(name, [])
    work = subject.kernel.work_of(subject.problem) or Work()
    late = 2 if name == "copy" else int(dict(subject.problem) not in shown)
    return late, work.bytes_read + work.bytes_written + work.flops / 20


# ---------------------------------------------------------------------- results


def key_of(row: Mapping[str, Any]) -> str:
    """Kernel and problem of a row, as one text."""
    return f"{row['kernel']} {json.dumps(row['problem'], sort_keys=True)}"


def merged(document: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """A results document with one row put in, or with its failure in place of an older row."""
    parts = {
        name: [old for old in document.get(name, []) if key_of(old) != key_of(row)]
        for name in ("rows", "failures")
    }
    parts["failures" if "error" in row else "rows"].append(dict(row))
    return {**document, **{name: sorted(rows, key=_place) for name, rows in parts.items()}}


def _place(row: Mapping[str, Any]) -> tuple[int, int, str]:
    """Rows stand as `problem_sizes` has their sizes; all others come after them."""
    kernels = problem_sizes.KERNELS
    sizes = [size for group in problem_sizes.GROUPS for size in group.get(row["kernel"], [])]
    return (
        kernels.index(row["kernel"]) if row["kernel"] in kernels else len(kernels),
        sizes.index(row["problem"]) if row["problem"] in sizes else len(sizes),
        key_of(row),
    )


# ---------------------------------------------------------------------- printing


def table(document: Mapping[str, Any]) -> str:
    lines = [
        f"{'kernel':13s}{'problem':33s}{'ours ms':>10s}{'ratio':>7s}  {'95 %':13s}{'clean':>7s}{'hot':>7s}"
        f"{'of limit':>9s}{'':7s}{'error':>6s} {'bits':5s}{'rival':24s}source"
    ]
    lines += [_line(row) for row in document.get("rows", [])]
    lines += [
        f"{row['kernel']:13s}{problem_sizes.describe(row['problem']):33s}failed: {row['error']}"
        for row in document.get("failures", [])
    ]
    return "\n".join(lines)


def _line(row: Mapping[str, Any]) -> str:
    low, high = row["ratio_ci"] or (None, None)
    interval = f"{low:.3f}…{high:.3f}" if low is not None else ""
    share = row.get("limit_fraction")
    quality = "" if row["quality"] == "exact" else f"  [{row['quality']}]"
    bits = {True: "same", False: "vary", None: ""}[row.get("deterministic")]
    load = row.get("ratio_sustained")
    return (
        f"{row['kernel']:13s}{problem_sizes.describe(row['problem']):33s}{row['ours_ms']:10.5f}"
        f"{_number(row['ratio'], 7, 3)}  {interval:13s}"
        f"{_number(row.get('ratio_clean'), 7, 3)}{_number(row.get('ratio_hot'), 7, 3)}"
        f"{f'{share:.1%}' if share else '':>9s} {row.get('limit') or '':6s}"
        f"{_number(row.get('error_ratio'), 6, 2)} {bits:5s}{row.get('rival') or '-':24s}"
        f"{row['winner_source']}{quality}{f'  under load {load:.3f}' if load else ''}"
    )


def _number(value: float | None, width: int, digits: int) -> str:
    return f"{value:{width}.{digits}f}" if value is not None else " " * (width - 1) + "-"


# ---------------------------------------------------------------------- the program


def measure(
    comparison: Comparison,
    subjects: list[Subject],
    head: Mapping[str, Any],
    file: Path,
    end_s: float,
) -> int:
    """Measure rows one after the other, each into the file at once; how many failed.

    None is begun after ``end_s`` of `time.monotonic`.
    """
    for subject in subjects:
        comparison.submit(subject)
    failed = 0
    for position, subject in enumerate(subjects):
        if time.monotonic() > end_s:
            print(f"time is up: {len(subjects) - position} rows left", file=sys.stderr)
            break
        began, row = time.perf_counter(), subject.row
        try:
            job = comparison.job(subject.kernel, subject.problem)
            row = comparison.row(subject, job)
        except Exception as error:  # one bad row does not stop the rest
            failed += 1
            row["error"] = " ".join(f"{type(error).__name__}: {error}".split())
        tidy()
        row |= {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "driver": comparison.device.driver,
            "device_uuid": comparison.device.uuid,
            "libraries": {
                name: version
                for name, version in head["versions"].items()
                if name == "cublas" or (name == "cub" and not comparison.cub_note)
            },
            "seconds": round(time.perf_counter() - began, 2),
        }
        write(file, {**head, **merged(read(file), row), **head})
        shown = f"{key_of(row)}: {row['error']}" if "error" in row else _line(row)
        print(f"{shown}  ({row['seconds']:.1f} s)", file=sys.stderr, flush=True)
    return failed


def heading(device: Device, worker: DeviceWorker) -> dict[str, Any]:
    """What the whole file says of device, time and versions; rows say when they were measured."""
    libraries = {}
    if device.backend == "cuda":
        libraries = worker.actor.ask(vendor_task.versions, timeout_s=120.0)
        libraries |= {"cub": newest[1]} if (newest := rivals.newest_cub()) else {}
    about = provenance(device)
    # Which rows, how many at once and where to, rows and files say themselves.
    options = r" --(?:out|until|kernel|problem|device) (?:'[^']*'|\S+)| --missing"
    return {
        "format": FORMAT,
        "device": device.name,
        "arch": device.arch,
        "driver": device.driver,
        "date": about["date"][:10],
        "command": re.sub(options, "", about["command"]),
        "versions": {
            "autotune": about["version"],
            "python": sys.version.split()[0],
            "numpy": np.__version__,
            "compiler": backend(device.backend).toolchain(),
            **libraries,
        },
        "method": "L2 flushed by a write (cold), then read over (clean), or calls back to back (hot); "
        "interleaved in random order each round, random data, medians; ratio is the fastest right call of "
        "the vendor's over ours with a 95 % bootstrap interval over rounds",
    }


def parsed() -> argparse.Namespace:
    parser = command_line(__doc__, "vendor-<device>.json and unlisted-<device>.json")
    known = ", ".join(problem_sizes.KERNELS)
    parser.add_argument("--kernel", action="append", default=[], help=f"one of {known}; repeatable")
    parser.add_argument("--problem", action="append", default=[], help="n=65536; repeatable")
    parser.add_argument(
        "--tuned", type=Path, default=ROOT / "reports", help="folder of tuned records"
    )
    parser.add_argument(
        "--unlisted", action="store_true", help="instead the sizes that no space file tunes"
    )
    parser.add_argument("--rounds", type=int, default=100, help="rounds of each race")
    parser.add_argument("--seconds", type=float, default=2.0, help="longest race of a row")
    parser.add_argument("--seed", type=int, default=0, help="of inputs and orders")
    parser.add_argument(
        "--missing", action="store_true", help="only what the results file does not have yet"
    )
    parser.add_argument(
        "--until", type=float, default=np.inf, help="begin no row after this number of seconds"
    )
    return parser.parse_args()


def main() -> int:
    """Measure and print; exit code 1 where a row failed, 2 for a usage error, 4 without a device."""
    options = parsed()
    os.environ["AUTOTUNE_TUNED"] = str(options.tuned.resolve())
    device = choose_device(options.device)
    what = "unlisted" if options.unlisted else "vendor"
    file = options.out / f"{what}-{device.folder}.json"
    failed = _measured(options, device, file)
    document = read(file)
    print(table(document) + "\n")
    rows = list(filter(problem_sizes.is_current, document.get("rows", [])))
    if device.backend != "cuda":
        print(f"{device.name}: there is no vendor library to compare with here; times only.")
    else:
        for column in problem_sizes.STATES.values():
            for name, text in problem_sizes.spreads(rows, column).items():
                print(f"{name:13s}{column:12s}{text}")
    return 1 if failed else 0


def _measured(options: argparse.Namespace, device: Device, file: Path) -> int:
    """Measure what the command line asks for; how many rows failed."""
    kernels = kernels_of(options.kernel or problem_sizes.SIZES, device)
    subjects = subjects_of(kernels, device, options.tuned, options.problem, options.unlisted)
    if options.missing:
        rows = filter(problem_sizes.is_current, read(file).get("rows", []))
        known = {key_of(row) for row in rows}
        subjects = [subject for subject in subjects if key_of(subject.row) not in known]
    end_s = time.monotonic() + options.until
    with ExitStack() as stack:
        asked = (rivals.cub_symbols(one.kernel.name, one.problem) for one in subjects)
        symbols = dict.fromkeys(each for each in asked if each and device.backend == "cuda")
        beside = stack.enter_context(ThreadPoolExecutor(max(1, usable_cores() // 4)))
        cub = {each: beside.submit(rivals.build_cub, device.arch, each) for each in symbols}
        compilers = stack.enter_context(CompilerPool(max(1, usable_cores() - 1)))
        worker = stack.enter_context(DeviceWorker(device_actor()))
        limits = known_limits(device) if device.is_cuda else {}
        comparison = Comparison(
            *(device, worker, compilers, limits, options.rounds, options.seconds, options.seed),
            cub=cub,
        )
        return measure(comparison, subjects, heading(device, worker), file, end_s)


if __name__ == "__main__":
    finish(main)
