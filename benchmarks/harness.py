"""What the benchmarks share: their command line, configurations to measure, a timed search, their results' files."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from autotune import __version__
from autotune.devices.device import Device
from autotune.errors import AutotuneError
from autotune.files import write_atomically
from autotune.kernel.space import Space
from autotune.kernel.spec import Kernel
from autotune.measure.device_worker import DeviceWorker
from autotune.measure.evaluator import DeviceEvaluator, Evaluator
from autotune.measure.measurement import Measurement
from autotune.measure.race import Contender, RaceRules, race
from autotune.measure.worker_state import Job
from autotune.run.bench import Bench, stopping_rule
from autotune.run.request import Request
from autotune.search.session import Budget, Listener, SearchSession, ignore, search
from autotune.search.strategies import Strategy
from autotune.store import RunInfo, Scope, Store
from autotune.values import Configuration, Problem

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
#: Folder of search spaces that others measured in full; it is next to the checkout.
RECORDED = ROOT.parent / "shared" / "recorded"
#: Longest race.
MAX_RACE_S = 60.0

# ---------------------------------------------------------------------- command line


def command_line(
    doc: str | None, file: str, device: str | None = "the first usable"
) -> argparse.ArgumentParser:
    """A parser with the options that all scripts have."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if device:
        default = device if ":" in device else None
        parser.add_argument(
            "--device", default=default, help=f"cuda:0, opencl:cpu …; default: {device}"
        )
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help=f"folder of {file}; default: benchmarks/results"
    )
    return parser


def finish(main: Callable[[], int | None]) -> None:
    """End the program as `main` says; an error of this package is one line and its exit code."""
    try:
        sys.exit(main())
    except AutotuneError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


# ---------------------------------------------------------------------- results


def provenance(device: Device | None = None) -> dict[str, Any]:
    """When, by which command and version, and on which device a result was measured."""
    script = os.path.relpath(os.path.realpath(sys.argv[0]), ROOT)
    about = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", script, *sys.argv[1:]]),
        "version": __version__,
    }
    return {**about, "device": device.name, "driver": device.driver} if device else about


def read(file: Path) -> dict[str, Any]:
    """Return a result; empty where the file is not there."""
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def rows_in(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a result; none where the file is not there."""
    return list(read(file).get("rows", ()))


def encode(result: Mapping[str, Any]) -> bytes:
    """Return a result as JSON with each row on a line, so that changes can be read."""
    return (
        "{\n" + ",\n".join(f" {json.dumps(n)}: {_lines(v)}" for n, v in result.items()) + "\n}\n"
    ).encode()


def _lines(value: Any) -> str:
    """Return a value as JSON; of lists and dicts of rows each row is a line."""
    if isinstance(value, Mapping) and value and all(isinstance(v, Mapping) for v in value.values()):
        rows = (f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in value.items())
        return "{\n" + ",\n".join(rows) + "\n }"
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in value) + "\n ]"
    return json.dumps(value)


def write(file: Path, result: Mapping[str, Any]) -> None:
    """Write a result, and say where."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, encode(result))
    print(f"written to {file}", file=sys.stderr)


def merge(file: Path, row: Mapping[str, Any], **head: Any) -> None:
    """Write a kernel's row into a file of rows, in place of its old one."""
    rows = list({each["kernel"]: each for each in (*rows_in(file), row)}.values())
    write(file, {**head, "rows": rows})


# ---------------------------------------------------------------------- measuring


def problem_on(device: Device, kernel: Kernel, problem: Problem) -> Problem:
    """The problem on a GPU; a quick one on a device without much speed, to try a script there."""
    return problem if device.backend == "cuda" else kernel.quick_problems[device.backend][0]


def sampled(
    kernel: Kernel,
    space: Space,
    problem: Problem,
    count: int,
    *,
    seed: int = 0,
    known: Iterable[Configuration] = (),
    most_known: int | None = None,
) -> list[Configuration]:
    """Configurations that a problem allows: known good ones first, then some of the space at random."""
    drawn = np.random.default_rng(seed).permutation(len(space))[: 4 * count].tolist()
    good = [kernel.default(), *map(kernel.completed, kernel.seeds), *known]
    everyone = dict.fromkeys([*good[:most_known], *map(space.configuration, drawn)])
    valid = [
        configuration
        for configuration in everyone
        if configuration in space and kernel.allows(configuration, problem)
    ]
    return valid[:count]


@contextmanager
def bench_of(
    kernel: Kernel, device: Device, problem: Problem, **options: Any
) -> Iterator[tuple[Bench, Job]]:
    """The processes of a run, their device ready for the problem."""
    with closing(Bench(Request(kernel, device, (problem,), **options))) as bench:
        job = bench.job(problem)
        bench.worker.prepare(job)
        yield bench, job


def evaluator_of(bench: Bench, job: Job) -> DeviceEvaluator:
    """What measures on the bench's first device, as in a run."""
    rule = stopping_rule(bench.device)
    return DeviceEvaluator(bench.kernel, job, bench.compilers, bench.worker, rule)


@dataclass(frozen=True)
class TimedSearch:
    """What a search measured, and how long it took from the first configuration to the last row."""

    measurements: list[Measurement]
    seconds: float
    cpu_seconds: float
    #: In the store.
    rows: int


def search_timed(
    space: Space,
    evaluator: Evaluator,
    scope: Scope,
    strategy: Strategy,
    budget: Budget | None = None,
    *,
    listener: Listener = ignore,
) -> TimedSearch:
    """Search through engine, store and events as a run does, in a store of its own."""
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder, "s.sqlite")) as store:
        run = RunInfo(scope.kernel, scope.device_name, "given", 0, __version__, "benchmark")
        run_id = store.begin_run(run)
        begun, cpu = time.perf_counter(), time.process_time()
        session = SearchSession(
            space, evaluator, store, run_id, scope, budget or Budget(), listener
        )
        measurements = list(search(session, strategy, 0).values())
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
        return TimedSearch(measurements, seconds, cpu, len(store.rows()))


def raced(
    worker: DeviceWorker, job: Job, contenders: Sequence[Contender], rounds: int
) -> Sequence[Sequence[float]]:
    """Milliseconds of each contender by round, of a race that none of them fails in."""
    result = race(worker, job, contenders, RaceRules(rounds, 0, MAX_RACE_S))
    if result.failures:
        raise SystemExit(f"{job.problem}: {result.failures}")
    return [samples.times_ms for samples in result.samples]


class Waits:
    """The time that callers wait for a method of an object, from now on."""

    def __init__(self, owner: object, method: str) -> None:
        self.seconds, self.calls = 0.0, 0
        call = getattr(owner, method)

        def timed(*given: Any) -> Any:
            begun = time.perf_counter()
            try:
                return call(*given)
            finally:
                self.seconds += time.perf_counter() - begun
                self.calls += 1

        setattr(owner, method, timed)
