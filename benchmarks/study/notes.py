"""Measures what the study notes claim, row by row, and writes docs/study/notes.md from it.

Variants of a row (`study.experiments`) are compiled in parallel, verified, raced with each other and counted by Nsight
Compute in one process for each row. Rows are merged into ``results/study-notes-<device>.json`` one by one, so that the
table can be measured in pieces. A row that fails says why, and the others go on.

    python benchmarks/study/notes.py                     all rows, then the page
    python benchmarks/study/notes.py --rows E08,E10      two of them
    python benchmarks/study/notes.py --missing --until 120
    python benchmarks/study/notes.py --page              the page alone, from what is on record; needs no GPU
    python benchmarks/study/notes.py --page --keep reports     and counters beside the records, for `autotune explain`
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # benchmarks/, where the harness is
from harness import ROOT, command_line, finish, provenance, read, write

from autotune.arrays import usable_cores
from autotune.compiling.job import compile_job
from autotune.data.dataset import EXACT, RANDOM, Dataset
from autotune.data.prepare import prepare_dataset
from autotune.devices.choose import choose_device
from autotune.devices.device import Device
from autotune.errors import UsageError, unknown
from autotune.explain.variants import (
    BEST,
    Facts,
    KernelVariant,
    Setting,
    choose,
    facts_of,
    setting_of,
)
from autotune.kernel.catalog import find_kernel
from autotune.kernel.source import arguments_fingerprint, source_fingerprint
from autotune.measure.compilers import CompilerPool
from autotune.measure.counters import FIGURES
from autotune.measure.device_worker import DeviceWorker, device_actor
from autotune.measure.measurement import Status
from autotune.measure.profile import MISSING, counters_of, profiler
from autotune.measure.race import Contender, RaceRules, race
from autotune.measure.sanitize import Trial
from autotune.measure.worker_state import Job
from autotune.tuned.counted import CountedVariant, add_counts, file_of
from autotune.tuned.reading import read_all
from autotune.tuned.record import TunedRecord
from autotune.values import Problem
from study import claims, page, probes
from study.experiments import METRIC, ROWS, Experiment, experiments

FORMAT = "autotune study notes"
PAGE = ROOT / "docs" / "study" / "notes.md"
#: Rounds of a race among the variants of an experiment, and its longest time.
_ROUNDS, _SECONDS = 21, 0.5
_THREADS = 8
#: Variants that one process counts; each process pays for a context.
_AT_ONCE = 50


@dataclass
class Prepared:
    """An experiment whose data are being made and whose variants are being compiled."""

    experiment: Experiment
    setting: Setting
    variants: list[KernelVariant]
    datasets: list[Future[Dataset]] = field(default_factory=list)

    def job(self) -> Job:
        kernel, setting = self.setting.kernel, self.setting
        assert kernel.file is not None
        found = tuple(each.result() for each in self.datasets)
        return Job(kernel.file, setting.problem, setting.device, found)


@dataclass
class Notes:
    """The processes of one run of this program, on one device."""

    device: Device
    worker: DeviceWorker
    compilers: CompilerPool
    threads: ThreadPoolExecutor
    #: Path of ncu; empty where it is not installed.
    ncu: str

    def prepare(self, experiment: Experiment) -> Prepared:
        """Begin to compile the variants of an experiment and to make its data."""
        kernel = find_kernel(experiment.kernel)
        problem = kernel.normal(experiment.problem)
        selector = f"{self.device.backend}:{self.device.index}"
        setting = setting_of(kernel, None, selector, problem)
        variants = variants_of(setting, experiment)
        for each in variants:
            self.compilers.submit(compile_job(kernel, each.configuration, problem, self.device))
        data = [
            self.threads.submit(prepare_dataset, kernel, problem, name) for name in (EXACT, RANDOM)
        ]
        return Prepared(experiment, setting, variants, data)

    def all_of(self, experiments: Sequence[Experiment]) -> list[Prepared]:
        """Begin with the experiments of a row."""
        return [self.prepare(one) for one in experiments]

    def row(self, prepared: Sequence[Prepared]) -> Row:
        """Verify and race the experiments of a row."""
        found, uncounted = {}, list[Uncounted]()
        for one in prepared:
            began = time.perf_counter()
            variants, counted = self.raced(one)
            uncounted += counted
            found[one.experiment.name] = {
                "kernel": one.experiment.kernel,
                "problem": dict(one.setting.problem),
                "source": source_fingerprint(one.setting.kernel),
                "arguments": arguments_fingerprint(one.setting.kernel, one.setting.problem),
                "variants": variants,
                "seconds": round(time.perf_counter() - began, 1),
            }
        return Row({"experiments": found}, uncounted)

    def raced(self, one: Prepared) -> tuple[dict[str, Any], list[Uncounted]]:
        """Verify and race the variants of an experiment; return their figures, and what is to be counted."""
        experiment, setting, job = one.experiment, one.setting, one.job()
        failures, contenders = dict[str, str](), dict[str, Contender]()
        for each in one.variants:
            asked = compile_job(setting.kernel, each.configuration, setting.problem, self.device)
            compiled = self.compilers.result(asked)
            if compiled.binary is None:
                failures[each.name] = compiled.message
                continue
            check = self.worker.check(job, each.configuration, compiled.binary)
            if check.status is not Status.OK:
                failures[each.name] = f"{check.status}: {check.message}"
                continue
            contenders[each.name] = Contender(each.configuration, compiled.binary)
        facts = self.threads.submit(facts_of, setting, one.variants)
        rules = RaceRules(_ROUNDS, 0, _SECONDS, finals=experiment.is_hot)
        result = race(self.worker, job, list(contenders.values()), rules) if contenders else None
        variants = {each.name: static_of(each) for each in facts.result()}
        uncounted = list[Uncounted]()
        samples = result.samples if result else ()
        for (name, contender), taken in zip(contenders.items(), samples, strict=True):
            variants[name] |= timed(taken.times_ms, taken.hot_ms, setting)
            if taken.failure:
                failures[name] = taken.failure.message
            elif experiment.counts and contender.binary is not None:
                trial = Trial(job, contender.configuration, contender.binary)
                uncounted.append(Uncounted(variants[name], trial, experiment.counts))
        for name, failure in failures.items():
            variants[name]["failure"] = failure
        return variants, uncounted

    def count(self, uncounted: Sequence[Uncounted]) -> str:
        """Put counters into variants, all of them counted by one process; return why there are none."""
        if not uncounted:
            return ""
        if not self.ncu:
            return f"no counters: {MISSING}"
        asked = dict.fromkeys(name for each in uncounted for name in each.counts)
        metrics = [METRIC[name] for name in asked]
        counted = counters_of(self.ncu, [each.trial for each in uncounted], metrics)
        for each, counters in zip(uncounted, counted, strict=True):
            values = counters.values
            each.variant["counters"] = {
                name: values[METRIC[name]] for name in each.counts if METRIC[name] in values
            }
        return next((f"no counters: {each.failure}" for each in counted if each.failure), "")


@dataclass(frozen=True)
class Uncounted:
    """A variant whose counters are not read yet."""

    #: Its figures, to which they are added.
    variant: dict[str, Any]
    trial: Trial
    #: Short names.
    counts: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """Measurements of a row, but for counters."""

    figures: dict[str, Any]
    uncounted: Sequence[Uncounted] = ()


def variants_of(setting: Setting, experiment: Experiment) -> list[KernelVariant]:
    """Return the variants of an experiment that the problem and the device allow."""
    kernel, found = setting.kernel, []
    for name, given in experiment.variants.items():
        if isinstance(given, str):
            chosen = choose(setting, [given])[0]
            chosen = KernelVariant(
                name, chosen.configuration, chosen.origin if given == BEST else ""
            )
        else:
            chosen = KernelVariant(name, kernel.completed(given))
        if kernel.allows(chosen.configuration, setting.problem):
            found.append(chosen)
    return found


def static_of(facts: Facts) -> dict[str, Any]:
    """Return what needs no device: resources, occupancy, and the code."""
    found: dict[str, Any] = {
        "configuration": dict(facts.variant.configuration),
        "threads": prod(facts.block),
        "blocks": prod(facts.grid),
        "registers": facts.registers,
        "spill_bytes": facts.spill_bytes,
        "shared_bytes": (facts.static_bytes or 0) + facts.dynamic_bytes,
    }
    if facts.failure:
        found["failure"] = facts.failure
    if facts.occupancy:
        found["occupancy"] = facts.occupancy.share
        found["limited_by"] = list(facts.occupancy.limited_by)
    if facts.code:
        mix, loop = facts.code.mix, facts.code.hottest
        found["code"] = {
            "instructions": mix.instructions,
            "accesses": {kind: dict(widths) for kind, widths in mix.accesses.items()},
            **{
                name: getattr(mix, name) for name in ("branches", "predicated", "calls", "barriers")
            },
        }
        if loop:
            found["loop"] = {
                "instructions": loop.body.instructions,
                "ffma": loop.body.ffma,
                "tensor": loop.body.tensor,
                "step": loop.step,
            }
    return found


def timed(times_ms: Sequence[float], hot_ms: float | None, setting: Setting) -> dict[str, Any]:
    """Return medians of a race, and the rate of the cold one."""
    if not times_ms:
        return {}
    cold, work = median(times_ms), setting.work
    found: dict[str, Any] = {"cold_ms": cold, "hot_ms": hot_ms, "rounds": len(times_ms)}
    if work is not None:
        moved = work.bytes_read + work.bytes_written
        found |= {"gb_per_s": moved / cold / 1e6, "gflop_per_s": work.flops / cold / 1e6}
    return found


# ---------------------------------------------------------------------- results


def rounded(value: Any) -> Any:
    """Numbers with six digits: more are noise."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {name: rounded(each) for name, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


# ---------------------------------------------------------------------- the program


def parsed() -> argparse.Namespace:
    parser = command_line(__doc__, "study-notes-<device>.json")
    parser.add_argument("--rows", default="", help="E08,E10; default: all")
    parser.add_argument("--missing", action="store_true", help="only rows that are not on record")
    parser.add_argument(
        "--until", type=float, default=1e9, help="begin no row after so many seconds"
    )
    parser.add_argument("--page", action="store_true", help="write the page alone")
    parser.add_argument(
        "--keep",
        type=Path,
        help="also put counters of declared variants beside this folder's records",
    )
    return parser.parse_args()


def main() -> int:
    """Measure and write; exit code 1 where a row failed."""
    options = parsed()
    failed = 0 if options.page else measure(options)
    files = sorted(options.out.glob("study-notes-NVIDIA_*.json"))
    if not files:
        raise UsageError(f"{options.out} has no study-notes-<device>.json of an NVIDIA GPU")
    documents = list(map(read, files))
    shown = claims.Results(page.shown_of(documents))
    PAGE.write_text(page.page(shown), encoding="utf-8")
    for document in documents if options.keep else ():
        keep(document, options.keep)
    return failed


def measure(options: argparse.Namespace) -> int:
    """Measure what the command line asks for, each row into the file at once; whether one failed."""
    known = sorted({*ROWS, *probes.PROBES})
    rows = [name for name in options.rows.split(",") if name] or known
    for name in rows:
        if name not in known:
            raise UsageError(unknown("row", name, known))
    device = choose_device(options.device)
    file = options.out / f"study-notes-{device.folder}.json"
    if options.missing:
        done = read(file).get("rows", {})
        rows = [name for name in rows if "error" in done.get(name, {"error": ""})]
    began, failed = time.monotonic(), 0
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(_THREADS))
        compilers = stack.enter_context(CompilerPool(max(1, usable_cores() - 1)))
        worker = stack.enter_context(DeviceWorker(device_actor(device)))
        notes = Notes(device, worker, compilers, threads, profiler())
        prepared = {
            name: attempt(notes.all_of, experiments(name, device.sm_count)) for name in rows
        }
        pending = dict[str, Row]()

        def flush() -> None:
            if not pending:
                return
            note = notes.count([each for row in pending.values() for each in row.uncounted])
            rows = read(file).get("rows", {})
            head = {"format": FORMAT, "device": device.name, "arch": device.arch}
            for name, row in pending.items():
                figures = row.figures | ({"note": note} if note and row.uncounted else {})
                rows[name] = rounded({**figures, **provenance(device)})
            write(file, {**head, "rows": dict(sorted(rows.items()))})
            print(f"written: {', '.join(pending)} {note}", file=sys.stderr, flush=True)
            pending.clear()

        for name in rows:
            if time.monotonic() - began > options.until:
                print(f"time is up: {name} and later ones are left", file=sys.stderr)
                break
            start = time.perf_counter()
            pending[name] = row = measured(notes, name, prepared[name])
            failed |= "error" in row.figures
            seconds = row.figures["seconds"] = round(time.perf_counter() - start, 1)
            print(f"{name}  {seconds:.1f} s  {row.figures.get('error', '')}", file=sys.stderr)
            if sum(len(each.uncounted) for each in pending.values()) >= _AT_ONCE:
                flush()
        flush()
    return int(failed)


def keep(document: Mapping[str, Any], folder: Path) -> None:
    """Put what was counted of declared variants and winners beside the records, for `autotune explain`."""
    device = document["device"]
    records = {each.kernel: each for each in read_all(folder) if each.device.name == device}
    for row in document["rows"].values():
        for measured in row.get("experiments", {}).values():
            record = records.get(measured["kernel"])
            if record is None or "source" not in measured:
                continue
            if measured["source"] != source_fingerprint(find_kernel(record.kernel)):
                continue  # older than what may be beside the record
            counted = [
                counted_variant(measured, variant, row["date"])
                for variant in measured["variants"].values()
                if variant.get("counters") and is_telling(record, measured["problem"], variant)
            ]
            if counted:
                file = file_of(folder, record.device.folder, record.kernel)
                add_counts(file, record.kernel, record.device, counted)


def is_telling(record: TunedRecord, problem: Mapping[str, Any], variant: Mapping[str, Any]) -> bool:
    """Whether a variant is one that the space file declares, or the winner."""
    kernel, entry = find_kernel(record.kernel), record.tuned(Problem(dict(problem)))
    declared = [dict(kernel.completed(each)) for each in kernel.variants.values()]
    winner = [dict(entry.configuration)] if entry else []
    return variant["configuration"] in [*declared, *winner]


def counted_variant(
    measured: Mapping[str, Any], variant: Mapping[str, Any], date: str
) -> CountedVariant:
    """Return a variant as `autotune explain` keeps it."""
    counters = variant["counters"].items()
    return CountedVariant(
        problem=measured["problem"],
        configuration=variant["configuration"],
        time_ms=variant["cold_ms"],
        counters={METRIC[name]: value for name, value in counters if name in FIGURES},
        source=measured["source"],
        arguments=measured["arguments"],
        created=date,
    )


def attempt(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function; return its error where it raises one."""
    try:
        return function(*args)
    except Exception as error:
        return error


def measured(notes: Notes, name: str, prepared: Any) -> Row:
    """Measure one row; its error in place of figures where one was raised."""

    def all_of_it() -> Row:
        if isinstance(prepared, Exception):
            raise prepared
        row, probe = notes.row(prepared), probes.PROBES.get(name)
        return Row({**row.figures, "probe": probe(notes.device)}, row.uncounted) if probe else row

    found = attempt(all_of_it)
    if isinstance(found, Row):
        return found
    return Row({"error": " ".join(f"{type(found).__name__}: {found}".split())})


if __name__ == "__main__":
    finish(main)
