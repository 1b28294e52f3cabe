"""Measures every tuned entry against the vendor's library again, and says which aims are met.

Each row: the configuration that `autotune.lookup` answers with is verified on both data sets and on odd
sizes, then raced with the vendor's calls and with the limit (the `copy` kernel on the same bytes), interleaved
in random order as in the finals of `autotune run`. Rows are merged into ``results/vendor-<device>.json`` one by
one, so that the table can be measured in pieces; what no space file tunes, into ``results/unlisted-<device>.json``.

    python benchmarks/vendor.py                                        what the README shows, then what else is tuned
    python benchmarks/vendor.py --kernel sgemm --problem m=4096,n=4096,k=4096
    python benchmarks/vendor.py --unlisted                             `demands.UNLISTED`, as lookup answers
    python benchmarks/vendor.py --device opencl:cpu --kernel transpose --rounds 3      a look, without a vendor
    python benchmarks/vendor.py --show                                 the table and the aims, nothing measured
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import demands
import numpy as np
import vendor_task
from harness import ROOT, command_line, finish, provenance

from autotune.arrays import usable_cores
from autotune.calling.choice import Choice, choose
from autotune.cli import parsing
from autotune.devices.binary import Binary
from autotune.devices.choose import backend, choose_device
from autotune.devices.device import Device
from autotune.errors import AutotuneError, UsageError
from autotune.files import write_atomically
from autotune.kernel.catalog import find_kernel
from autotune.kernel.membership import is_member
from autotune.kernel.spec import Kernel, Work
from autotune.measure.compiler import CompilerPool, compile_job
from autotune.measure.data import EXACT, RANDOM, prepare
from autotune.measure.limits import Limits
from autotune.measure.measurement import CheckResult, Measurement, Status
from autotune.measure.racing import race
from autotune.measure.tasks import Contender, Job
from autotune.measure.timing import median_interval
from autotune.measure.worker import Worker
from autotune.run.limits import known_limits
from autotune.run.selection import ratio
from autotune.values import Configuration, Problem

FORMAT = "autotune vendor comparison"
#: Kernels whose vendor call has a further, better form.
MATRIX_PRODUCTS = ("sgemm", "sgemm_tf32x3")
#: Rounds in which the configurations of prefetch's MODE=none are compared, the best of them being raced.
_PLAIN_ROUNDS = 7
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
        """How its row begins."""
        return {"kernel": self.kernel.name, "problem": dict(self.problem)}


class WrongError(AutotuneError):
    """A tuned configuration does not compile, or is wrong."""


@dataclass
class Comparison:
    """The processes of one run of this program, on one device."""

    device: Device
    worker: Worker
    compilers: CompilerPool
    limits: Limits | None
    rounds: int
    seconds: float
    seed: int
    #: Configurations, with their kernel, that were right on the odd sizes.
    _right: set[tuple[str, Configuration]] = field(default_factory=set)

    def job(self, kernel: Kernel, problem: Problem) -> Job:
        """Inputs and references of a problem, made where they are not there."""
        assert kernel.file is not None
        datasets = tuple(prepare(kernel, problem, name, self.seed) for name in (EXACT, RANDOM))
        return Job(kernel.file, problem, self.device, datasets)

    def submit(self, subject: Subject) -> None:
        """Have a subject's configuration compiled."""
        self.compilers.submit(
            compile_job(subject.kernel, subject.configuration, subject.problem, self.device)
        )

    def row(self, subject: Subject, job: Job) -> dict[str, Any]:
        """Verify and race one subject.

        Raises
        ------
        AutotuneError
            If it does not compile or is wrong, or the device process fails.
        """
        kernel, configuration = subject.kernel, subject.configuration
        binary = self.binary(kernel, configuration, subject.problem)
        edges = self._verify_odd_sizes(subject)
        checks = self._verified(job, subject, binary).checks
        check = next(check for check in checks if check.dataset == RANDOM)
        entrants = self._entrants(subject, job, binary)
        raced: vendor_task.RowSamples = self.worker.run(
            _ROW_TIMEOUT_S, vendor_task.race, job, entrants, self.rounds, self.seed, self.seconds
        )
        row = self._judged(subject, entrants, raced, check)
        if kernel.name == "sgemm_tf32x3":
            asked = (configuration, binary, "cublas", self.seed)
            row["accuracy"] = self.worker.run(_ROW_TIMEOUT_S, vendor_task.accuracy, job, *asked)
        return {**row, "odd_sizes_verified": edges}

    def binary(self, kernel: Kernel, configuration: Configuration, problem: Problem) -> Binary:
        """Compile a configuration.

        Raises
        ------
        WrongError
            If it does not compile.
        """
        compiled = self.compilers.result(compile_job(kernel, configuration, problem, self.device))
        if compiled.binary is None:
            raise WrongError(f"{kernel.name}: {configuration} does not compile: {compiled.message}")
        return compiled.binary

    def _verified(self, job: Job, subject: Subject, binary: Binary) -> Measurement:
        found = self.worker.check(job, subject.configuration, binary)
        if found.status is not Status.OK:
            raise WrongError(f"{subject.kernel.name} ({job.problem}): {found.message}")
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
                self._verified(self.job(kernel, edge), subject, binary)
            self._right.add((kernel.name, configuration))
        return len(edges)

    def _entrants(self, subject: Subject, job: Job, binary: Binary) -> vendor_task.Entrants:
        """Ours, every vendor call, and the limit where one can be raced."""
        kernel = subject.kernel
        contenders = [Contender(subject.configuration, binary)]
        contenders += [
            Contender(Configuration(), None, baseline.name)
            for baseline in kernel.baselines
            if baseline.backend == self.device.backend
        ]
        if kernel.name == "prefetch":
            contenders.append(self._plain(kernel, job))
        on_gpu = self.device.backend == "cuda"
        return vendor_task.Entrants(
            contenders=tuple(contenders),
            limit=self.limit(kernel, subject.problem) if on_gpu else None,
            with_cublaslt=on_gpu and kernel.name in MATRIX_PRODUCTS,
        )

    def _plain(self, kernel: Kernel, job: Job) -> Contender:
        """The fastest of prefetch's configurations that prefetch nothing: what it is measured against."""
        plain = [
            kernel.completed({"MODE": "none", "VEC": vec, "BLOCK": block})
            for vec in kernel.parameters["VEC"]
            for block in kernel.parameters["BLOCK"]
        ]
        members = [choice for choice in plain if is_member(kernel, choice, self.device)]
        for choice in members:
            self.compilers.submit(compile_job(kernel, choice, job.problem, self.device))
        contenders = [
            Contender(choice, self.binary(kernel, choice, job.problem)) for choice in members
        ]
        raced = race(self.worker, job, contenders, _PLAIN_ROUNDS, self.seed, self.seconds)
        times = [median(samples) if samples else np.inf for samples in raced.samples_ms]
        return contenders[int(np.argmin(times))]

    def limit(self, kernel: Kernel, problem: Problem) -> vendor_task.CopyLimit | None:
        """The tuned `copy` on the bytes that this problem moves; None where it is no limit."""
        moved = limit_problem(kernel.name, problem)
        if moved is None:
            return None
        copy = find_kernel("copy")
        assert copy.file is not None
        best = choose(copy, moved, self.device).configuration
        return vendor_task.CopyLimit(copy.file, moved, best, self.binary(copy, best, moved))

    def _judged(
        self,
        subject: Subject,
        entrants: vendor_task.Entrants,
        raced: vendor_task.RowSamples,
        check: CheckResult,
    ) -> dict[str, Any]:
        """What the samples say."""
        ours, tuned = raced.contenders[0], subject.choice.tuned
        row: dict[str, Any] = {
            **subject.row,
            "ours_ms": median(ours),
            "ours_ci": list(median_interval(ours)),
            **self._against_vendor(entrants, raced, ours),
            **self._share(subject, raced, ours),
            "max_error": check.max_error,
            "rms_error": check.rms_error,
            "bound": check.bound,
            "winner_source": str(subject.configuration.get("VARIANT", "portable")),
            # ``default`` where nothing recorded may be used
            "quality": tuned.quality if tuned else "default",
            "stale": list(tuned.stale_reasons) if tuned else [],
            "configuration": dict(subject.configuration),
            "rounds": len(ours),
            "launched_by": raced.launched_by,
            "sm_mhz": raced.sm_mhz,
            "throttle_reasons": list(raced.throttle_reasons),
        }
        if entrants.with_cublaslt:
            row |= self._over(raced.cublaslt, ours, "cublaslt_ms", "cublaslt_ratio")
            row |= {"cublaslt_heuristics": raced.heuristics, "cublaslt_note": raced.note}
        return row

    def _over(
        self, theirs: Sequence[float], ours: Sequence[float], time: str, share: str, ci: str = ""
    ) -> dict[str, Any]:
        """Another's median and its ratio to ours with an interval, under these names; None for no samples."""
        names = (time, share, ci or f"{share}_ci")
        if not theirs:
            return dict.fromkeys(names)
        found = ratio(theirs, ours, self.seed)
        return dict(zip(names, (median(theirs), found.value, [found.low, found.high]), strict=True))

    def _against_vendor(
        self, entrants: vendor_task.Entrants, raced: vendor_task.RowSamples, ours: Sequence[float]
    ) -> dict[str, Any]:
        """The fastest vendor call, and its time over ours; None where there is none."""
        entered = zip(entrants.contenders[1:], raced.contenders[1:], strict=True)
        times = {contender.baseline or "none": samples for contender, samples in entered if samples}
        name = min(times, key=lambda name: median(times[name]), default=None)
        checked = raced.vendor_checks.get(name) if name else None
        return {
            "vendor": name,
            **self._over(times[name] if name else (), ours, "vendor_ms", "ratio"),
            "vendor_max_error": checked.max_error if checked else None,
        }

    def _share(
        self, subject: Subject, raced: vendor_task.RowSamples, ours: Sequence[float]
    ) -> dict[str, Any]:
        """The limit that binds, measured beside ours where it is the memory's, and our share of it."""
        times: dict[str, Sequence[float]] = {}
        if raced.limit:
            moved = limit_problem(subject.kernel.name, subject.problem)
            assert moved is not None
            times[str(moved["mode"])] = raced.limit
        work = subject.kernel.work_of(subject.problem) or Work()
        rates = (self.limits or Limits()).rates
        if rates["ffma"] and work.pipe == "fp32" and work.flops:
            times["ffma"] = (work.flops / rates["ffma"] / 1e6,) * len(ours)
        if rates["copy"] and not raced.limit and work.bytes_written >= work.bytes_read / 100:
            moved_bytes = work.bytes_read + work.bytes_written
            times["copy"] = (moved_bytes / rates["copy"] / 1e6,) * len(ours)
        # Arithmetic alone is no limit of what reads or writes: `copy` in those modes, the yardstick.
        if not times.keys() - {"ffma"} or work.pipe != "fp32":
            return dict.fromkeys(("limit", "limit_ms", "limit_fraction", "limit_ci"))
        name = max(times, key=lambda name: median(times[name]))
        others = [median(samples) for other, samples in times.items() if other != name]
        return {
            "limit": name,
            **self._over(times[name], ours, "limit_ms", "limit_fraction", "limit_ci"),
            "limits_apart": median(times[name]) / max(others) if others else None,
        }


def limit_problem(kernel: str, problem: Mapping[str, int | str]) -> Problem | None:
    """What `copy` is asked to move for a problem's memory limit; None where it is no limit.

    A matrix product is held against the arithmetic; an aligned copy is the limit itself.
    """
    plain = {"offset_in": 0, "offset_out": 0}
    if kernel in ("reduce", "gemv"):
        count = int(problem["n"]) * int(problem.get("m", 1))
        return Problem(n=count, mode="read", **plain)
    if kernel in ("transpose", "prefetch"):
        count = int(problem["n"]) * int(problem.get("m", 1))
        return Problem(n=count, mode="copy", **plain)
    if kernel == "copy" and (problem["offset_in"] or problem["offset_out"]):
        return Problem(n=problem["n"], mode=problem["mode"], **plain)
    return None


# ---------------------------------------------------------------------- what to measure


def kernels_of(names: Iterable[str], device: Device) -> Iterator[Kernel]:
    """The kernels of some names that run on a device; says which do not, and goes on."""
    for name in names:
        try:
            kernel = find_kernel(name)
        except AutotuneError as error:
            print(f"{name}: left out: {error}", file=sys.stderr)
            continue
        if device.backend in kernel.backends:
            yield kernel
        else:
            print(f"{name}: left out: it runs on {', '.join(kernel.backends)}", file=sys.stderr)


def problems_of(kernel: Kernel, device: Device, folder: Path) -> list[Problem]:
    """The sizes that are shown on a GPU, the quick ones elsewhere, and every size of the tuned record."""
    sizes: list[Mapping[str, int | str]] = [*kernel.quick_problems.get(device.backend, ())]
    if device.backend == "cuda":
        sizes = [*demands.SIZES.get(kernel.name, [])]
    file = folder / device.folder / f"{kernel.name}.json"
    if file.is_file():
        sizes += [entry["problem"] for entry in json.loads(file.read_text())["entries"]]
    problems = (Problem({name: size[name] for name in kernel.fields}) for size in sizes)
    return list(dict.fromkeys(problems))


def subjects_of(
    kernels: Iterable[Kernel], device: Device, folder: Path, only: Sequence[str], unlisted: bool
) -> list[Subject]:
    """Every row to measure: the given problems only, the unlisted ones, or all that are shown or tuned.

    Raises
    ------
    UsageError
        If a problem is given that no kernel has the fields of, or no kernel has unlisted sizes.
    """
    subjects = []
    for kernel in kernels:
        fitting = [text for text in only if set(parsing.pairs(text)) == set(kernel.fields)]
        chosen = [parsing.problem(kernel, text) for text in fitting]
        if not only and unlisted:
            chosen = [Problem(size) for size in demands.UNLISTED.get(kernel.name, [])]
        elif not only:
            chosen = problems_of(kernel, device, folder)
        for problem in chosen:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)  # the row says "default"
                    subjects.append(Subject(kernel, problem, choose(kernel, problem, device)))
            except AutotuneError as error:
                print(f"{kernel.name} ({problem}): left out: {error}", file=sys.stderr)
    if not subjects:
        lacking = "these problem fields" if only else "sizes to measure; name one with --problem"
        raise UsageError(f"nothing to measure: no kernel has {lacking}")
    return subjects


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
    """Rows stand as `demands` has their sizes; all others come after them."""
    kernels = list(demands.SIZES)
    sizes = demands.SIZES.get(row["kernel"], []) + demands.UNLISTED.get(row["kernel"], [])
    return (
        kernels.index(row["kernel"]) if row["kernel"] in kernels else len(kernels),
        sizes.index(row["problem"]) if row["problem"] in sizes else len(sizes),
        key_of(row),
    )


def read_results(file: Path) -> dict[str, Any]:
    """A results document; empty where the file is not there.

    Raises
    ------
    UsageError
        If it is something else.
    """
    if not file.is_file():
        return {}
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(
            f"{file}: not JSON ({error}); remove it or choose another --out"
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UsageError(f"{file}: not written by this program; choose another --out")
    return document


def encode(document: Mapping[str, Any]) -> bytes:
    """The document as JSON with one row per line, so that changes can be read."""
    parts = []
    for name, value in document.items():
        text = json.dumps(value)
        if name in ("rows", "failures") and value:
            text = "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in value) + "\n ]"
        parts.append(f" {json.dumps(name)}: {text}")
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()


# ---------------------------------------------------------------------- printing


def table(document: Mapping[str, Any]) -> str:
    """The rows as aligned text."""
    lines = [
        f"{'kernel':13s}{'problem':36s}{'ours ms':>11s}{'vendor ms':>11s}{'ratio':>7s}  "
        f"{'95 %':15s}{'of limit':>9s}{'':7s}{'cublasLt':>9s}{'error':>9s}  source"
    ]
    lines += [_line(row) for row in document.get("rows", [])]
    lines += [
        f"{row['kernel']:13s}{demands.describe(row['problem']):36s}failed: {row['error']}"
        for row in document.get("failures", [])
    ]
    return "\n".join(lines)


def _line(row: Mapping[str, Any]) -> str:
    low, high = row["ratio_ci"] or (None, None)
    interval = f"{low:.3f}…{high:.3f}" if low is not None else ""
    share = row.get("limit_fraction")
    quality = "" if row["quality"] == "exact" else f"  [{row['quality']}]"
    return (
        f"{row['kernel']:13s}{demands.describe(row['problem']):36s}{row['ours_ms']:11.5f}"
        f"{_number(row['vendor_ms'], 11, 5)}{_number(row['ratio'], 7, 3)}  {interval:15s}"
        f"{f'{share:.1%}' if share else '':>9s} {row.get('limit') or '':6s}"
        f"{_number(row.get('cublaslt_ratio'), 9, 3)}{row['max_error']:9.2g}  "
        f"{row['winner_source']}{quality}"
    )


def _number(value: float | None, width: int, digits: int) -> str:
    return f"{value:{width}.{digits}f}" if value is not None else " " * (width - 1) + "-"


def spread_lines(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Of each kernel the geometric mean of the ratios, and the worst."""
    return [f"{kernel:13s}{text}" for kernel, text in demands.spreads(rows).items()]


# ---------------------------------------------------------------------- the program


def measure(
    comparison: Comparison, subjects: list[Subject], head: Mapping[str, Any], file: Path
) -> int:
    """Measure rows one after the other, each into the file at once; how many failed.

    The inputs of the next row are made while a row is raced, on the cores that the worker leaves.
    """
    for subject in subjects:
        comparison.submit(subject)
    failed = 0
    with ThreadPoolExecutor(1) as ahead:
        jobs = [ahead.submit(comparison.job, s.kernel, s.problem) for s in subjects[:1]]
        for position, subject in enumerate(subjects):
            began = time.perf_counter()
            wait([jobs[position]])
            jobs += [
                ahead.submit(comparison.job, s.kernel, s.problem)
                for s in subjects[position + 1 : position + 2]
            ]
            row = subject.row
            try:
                row = comparison.row(subject, jobs[position].result())
            except Exception as error:  # one bad row does not stop the rest
                if os.environ.get("AUTOTUNE_DEBUG"):
                    traceback.print_exc()
                failed += 1
                row["error"] = " ".join(f"{type(error).__name__}: {error}".split())
            row |= {
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "driver": comparison.device.driver,
                "device_uuid": comparison.device.uuid,
                "seconds": round(time.perf_counter() - began, 2),
            }
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, encode({**head, **merged(read_results(file), row), **head}))
            shown = f"{key_of(row)}: {row['error']}" if "error" in row else _line(row)
            print(f"{shown}  ({row['seconds']:.1f} s)", file=sys.stderr, flush=True)
    return failed


def heading(device: Device, worker: Worker) -> dict[str, Any]:
    """What the whole file says of device, time and versions; rows say when they were measured."""
    libraries = worker.run(120.0, vendor_task.versions) if device.backend == "cuda" else {}
    about = provenance(device)
    return {
        "format": FORMAT,
        "device": device.name,
        "arch": device.arch,
        "driver": device.driver,
        "date": about["date"][:10],
        "command": about["command"],
        "versions": {
            "autotune": about["version"],
            "python": sys.version.split()[0],
            "numpy": np.__version__,
            "compiler": backend(device.backend).toolchain(),
            **libraries,
        },
        "method": "L2 cold, interleaved in random order each round, random data, medians; ratio is "
        "vendor over ours with a 95 % bootstrap interval over rounds",
    }


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = command_line(__doc__, "vendor-<device>.json and unlisted-<device>.json")
    known = ", ".join(demands.SIZES)
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
    parser.add_argument("--show", action="store_true", help="print the results file only")
    return parser.parse_args()


def main() -> int:
    """Measure and print; exit code 1 where a row failed, 2 for a usage error, 4 without a device."""
    options = parsed()
    os.environ["AUTOTUNE_TUNED"] = str(options.tuned.resolve())
    device = choose_device(options.device)
    what = "unlisted" if options.unlisted else "vendor"
    file = options.out / f"{what}-{device.folder}.json"
    failed = 0 if options.show else _measured(options, device, file)
    document = read_results(file)
    print(table(document) + "\n")
    rows = document.get("rows", [])
    if device.backend != "cuda":
        print(f"{device.name}: there is no vendor library to compare with here; times only.")
    elif options.unlisted:
        print("\n".join(spread_lines(rows)))
    else:
        print("\n".join(aim.judged(rows) for aim in demands.AIMS))
    return 1 if failed else 0


def _measured(options: argparse.Namespace, device: Device, file: Path) -> int:
    """Measure what the command line asks for; how many rows failed."""
    kernels = kernels_of(options.kernel or demands.SIZES, device)
    subjects = subjects_of(kernels, device, options.tuned, options.problem, options.unlisted)
    if options.missing:
        known = {key_of(row) for row in read_results(file).get("rows", [])}
        subjects = [subject for subject in subjects if key_of(subject.row) not in known]
    with ExitStack() as stack:
        compilers = stack.enter_context(CompilerPool(max(1, usable_cores() - 1)))
        worker = stack.enter_context(Worker())
        limits = known_limits(device) if device.has_limits else None
        comparison = Comparison(
            device, worker, compilers, limits, options.rounds, options.seconds, options.seed
        )
        return measure(comparison, subjects, heading(device, worker), file)


if __name__ == "__main__":
    finish(main)
