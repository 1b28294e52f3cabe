"""The cost of a lookup, and the quality of its answers for sizes that were not tuned.

The cost: importing it, the first answer, a repeated answer and an answer for a new size, from the shipped records of
sgemm for compute capability 9.0. Prints milliseconds and microseconds.

    python benchmarks/lookup.py

The quality, without a device: each tuned problem of the shipped records is left out, alone and with its neighbours. The
table is made again from the other problems and the configurations that these would have found, and answers the problem.
The share of the best speed that the answer reaches is compared with the expected share. Rows go into
``results/lookup.json``.

    python benchmarks/lookup.py --left-out

The quality on devices that were not tuned, without a device: of two devices with records, each is answered by the other
one's record, with the configurations that both measured. Rows go into ``results/lookup-elsewhere.json``.

    python benchmarks/lookup.py --elsewhere

The quality on a GPU with another number of multiprocessors, without one: it has N / 132 of the multiprocessors of the
measured GPU, with the same memory rate for each. So it takes for a problem with N / 132 of the blocks the time that was
measured for the whole problem. Prints the shares of the answers that count its waves, and of those for 132.

    python benchmarks/lookup.py --resized

The quality on a device: `autotune run` tunes some of `problem_sizes.UNLISTED` briefly, and the winner is raced with the
answer of the shipped records. Rows go into ``results/lookup-<device>.json``.

    python benchmarks/lookup.py --unlisted --kernel gemv
"""

import itertools
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from harness import (
    ROOT,
    bench_of,
    command_line,
    evaluator_of,
    finish,
    provenance,
    raced,
    write,
)
from problem_sizes import UNLISTED

from autotune import lookup
from autotune.answers.table import Plan, Portfolio, distance, place_of
from autotune.devices.choose import choose_device
from autotune.devices.device import Device
from autotune.kernel import parsing
from autotune.kernel.catalog import find_kernel
from autotune.kernel.spec import Kernel
from autotune.measure.race import Contender
from autotune.run.recording import refitted
from autotune.tuned.lookup import clear_cache
from autotune.tuned.merged import LookupTable, build_table, pick
from autotune.tuned.reading import RecordFile, read, read_all
from autotune.tuned.record import TunedProblem, TunedRecord
from autotune.values import Configuration, Problem

REPORTS = ROOT / "reports"
#: Distances within which the neighbours of a problem are left out with it; below 0 no neighbour is.
EMPTIED = (-1, 32)
#: Unlisted sizes of a kernel that are tuned, and their budget in seconds.
SIZES, BUDGET_S = 4, 20
TUNED_BRIEFLY = ("sgemm", "gemv", "reduce", "transpose")
ROUNDS = 50
#: Share of the answers that must reach what was expected.
AIM = 0.9
#: Numbers of multiprocessors: a quarter and a half of an H100, an RTX 3090, an A100, an H100 PCIe, a B200, an
#: RTX 5090, and two H100.
SM_COUNTS = (33, 66, 82, 108, 114, 148, 170, 264)

# ---------------------------------------------------------------------- cost


def import_ms(statement: str, runs: int) -> float:
    """Return the time of a statement in a new interpreter, the shortest of several runs."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], cwd=ROOT, check=True)
        times.append((time.perf_counter() - start) * 1e3)
    return min(times)


def us_per_call(call: Callable[[], Any], count: int) -> float:
    batches = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(count):
            call()
        batches.append((time.perf_counter() - start) / count * 1e6)
    return statistics.median(batches)


def first() -> None:
    """A lookup that reads files."""
    clear_cache()
    lookup("sgemm", arch=90, m=512, n=512, k=512)


def costs(runs: int) -> None:
    bare = import_ms("pass", runs)
    whole = import_ms("from autotune import lookup", runs)
    print(f"from autotune import lookup   {whole - bare:7.1f} ms over bare Python ({bare:.1f} ms)")
    os.environ["AUTOTUNE_TUNED"] = str(REPORTS)
    print(f"first answer, reading files   {us_per_call(first, 20) / 1e3:7.2f} ms")
    for name, arch in (("arch given  ", 90), ("own device  ", None)):
        again = partial(lookup, "sgemm", arch=arch, m=512, n=512, k=500)
        print(f"again, {name}           {us_per_call(again, 20000):7.2f} µs")
    sizes = itertools.count(100)
    new_us = us_per_call(lambda: lookup("sgemm", arch=90, m=next(sizes), n=512, k=100), 500)
    print(f"a new size                    {new_us:7.2f} µs")


# ---------------------------------------------------------------------- sizes that are left out


def left_out(record: TunedRecord, kernel: Kernel) -> Iterator[dict[str, Any]]:
    """A row for each problem of a record's matrix, and each neighbourhood that can be left out with it."""
    problems = record.portfolio.problems
    places = [place_of(tuple(problem.values())) for problem in problems]
    for asked, place in enumerate(places):
        apart = [distance(place, other) for other in places]
        before: list[int] = []
        for emptied in EMPTIED:
            known = [
                p for p, far in enumerate(apart) if p != asked and (far is None or far > emptied)
            ]
            alike = [far for p in known if (far := apart[p]) is not None]
            if known == before or not alike:
                continue
            before = known
            yield {
                "kernel": record.kernel,
                "device": record.device.name,
                "problem": dict(problems[asked]),
                "left_out_within": max(emptied, 0),
                "nearest": min(alike),
                **answer(record, kernel, asked, known),
            }


def answer(record: TunedRecord, kernel: Kernel, asked: int, known: Sequence[int]) -> dict[str, Any]:
    """Return what a record of the known problems expects for another, and what that gets."""
    matrix = record.portfolio
    columns = list(zip(*matrix.median_ms, strict=True))
    best = [min(range(len(c)), key=lambda i: c[i] or math.inf) for c in columns]
    newcomers = set(best) - {best[p] for p in known}
    kept = [i for i in range(len(matrix.configurations)) if i not in newcomers]
    entries = [entry for p in known if (entry := record.tuned(matrix.problems[p]))]
    table = table_of(record, kernel, entries, kept, known)
    hit = pick(table, table.key(matrix.problems[asked]), record.device.folder)
    assert hit is not None  # the configurations of a record are valid on its device
    return judged(hit.expected_fraction, share_of(record, hit.plan, asked))


def table_of(
    record: TunedRecord,
    kernel: Kernel,
    entries: Sequence[TunedProblem],
    kept: Sequence[int],
    known: Sequence[int],
) -> LookupTable:
    """Return the table of a record with some entries, and some configurations and problems of its matrix."""
    matrix = record.portfolio
    times = Portfolio(
        configurations=tuple(Configuration(dict(matrix.configurations[i])) for i in kept),
        problems=tuple(Problem(dict(matrix.problems[p])) for p in known),
        median_ms=tuple(tuple(matrix.median_ms[i][p] for p in known) for i in kept),
    )
    # A fit to the matrix itself has seen what is left out.
    tables = (
        table
        for table in matrix.tables
        if table.prediction and table.prediction.sizes > len(table.rows)
    )
    rest = msgspec.structs.replace(
        record,
        problems=tuple(entries),
        portfolio=msgspec.structs.replace(matrix, tables=tuple(tables)),
    )
    return build_table([RecordFile("part", record.device.folder, refitted(rest, kernel, times))])


def share_of(record: TunedRecord, plan: Plan, asked: int) -> float | None:
    """Return a plan's share of the best known speed on a record's device: None if not measured, 0 if not allowed."""
    matrix = record.portfolio
    if plan.configuration not in matrix.configurations:
        return None
    answer_ms = matrix.median_ms[matrix.configurations.index(plan.configuration)][asked]
    winner = record.tuned(matrix.problems[asked])
    known_ms = [times[asked] for times in matrix.median_ms]
    if winner and is_of_matrix(record, winner.race.timing):
        known_ms.append(winner.median_ms)
    if answer_ms:
        return min(ms for ms in known_ms if ms) / answer_ms
    kernel, problem = find_kernel(record.kernel), Problem(dict(matrix.problems[asked]))
    return None if kernel.allows(Configuration(dict(plan.configuration)), problem) else 0.0


def is_of_matrix(record: TunedRecord, timing: str) -> bool:
    """Return whether the matrix was measured as races of a timing were; records do not say it.

    What raced and is in the matrix takes as long in both, or cold calls 1.5 to 1.9 times as long as the mean of
    clean and hot ones.
    """
    matrix = record.portfolio
    ratios = []
    for entry in record.problems:
        if entry.race.timing != timing or entry.problem not in matrix.problems:
            continue
        column = matrix.problems.index(entry.problem)
        for contender in entry.race.contenders:
            if not contender.vendor and contender.configuration in matrix.configurations:
                ms = matrix.median_ms[matrix.configurations.index(contender.configuration)][column]
                ratios += [ms / contender.time_ms.value] if ms and contender.time_ms else []
    return not ratios or statistics.median(ratios) < 1.2


# ---------------------------------------------------------------------- devices that were not tuned


def by_another(record: TunedRecord, other: TunedRecord, kernel: Kernel) -> Iterator[dict[str, Any]]:
    """A row for each problem of a record, answered by another device's."""
    matrix = other.portfolio
    kept = [
        number
        for number, configuration in enumerate(matrix.configurations)
        if configuration in record.portfolio.configurations
    ]
    common = [matrix.configurations[i] for i in kept]
    entries = [entry for entry in other.problems if entry.configuration in common]
    table = table_of(other, kernel, entries, kept, range(len(matrix.problems)))
    for asked, problem in enumerate(record.portfolio.problems):
        hit = pick(table, table.key(problem), arch=record.device.arch)
        share = share_of(record, hit.plan, asked) if hit else None
        about = {"kernel": record.kernel, "device": record.device.name, "problem": dict(problem)}
        yield {**about, "tuned": other.device.name, "got": share and round(share, 4)}


def judge_elsewhere(kernels: Sequence[str], out: Path) -> None:
    """Answer each shipped record's problems by the records of other devices; print and write the shares."""
    records = read_all(REPORTS)
    rows: list[dict[str, Any]] = []
    for record, other in itertools.permutations(records, 2):
        if record.kernel == other.kernel and record.kernel in (kernels or [record.kernel]):
            rows += by_another(record, other, find_kernel(record.kernel))
    print("| kernel | device | tuned | got, geometric mean | worst |")
    print("|---|---|---|---|---|")
    for about in dict.fromkeys((row["kernel"], row["device"], row["tuned"]) for row in rows):
        mine = [row for row in rows if (row["kernel"], row["device"], row["tuned"]) == about]
        shares = [row["got"] for row in mine if row["got"]]
        means = (
            f"{statistics.geometric_mean(shares):.3f} | {min(shares):.3f}" if shares else "– | –"
        )
        print(f"| {' | '.join(about)} | {means} |")
    write(out / "lookup-elsewhere.json", {**provenance(), "rows": rows})


# ---------------------------------------------------------------------- other numbers of multiprocessors


def resized(record: TunedRecord, count: int) -> Iterator[tuple[float, float]]:
    """Yield the shares of answers with the waves of a resized device, and of the measured one.

    A problem counts if the blocks of its fastest configuration, within 3 %, and the sizes that divide it stay those of
    the measured problem.
    """
    measured, matrix = record.device.sm_count, record.portfolio
    table = build_table([RecordFile("resized", record.device.folder, record)])
    plans = {Configuration(plan.configuration): plan for plan in record.plans()}
    for asked, problem in enumerate(matrix.problems):
        known = [(times[asked], number) for number, times in enumerate(matrix.median_ms)]
        _, best = min(((ms, number) for ms, number in known if ms), default=(0.0, -1))
        plan = plans.get(Configuration(matrix.configurations[best])) if best >= 0 else None
        for name, size in problem.items() if plan and plan.grid else ():
            if not isinstance(size, int) or not size:
                continue
            step = min(size & -size, 16)
            smaller = {**problem, name: max(step, round(size * count / measured / step) * step)}
            blocks = [math.prod(plan.grid_for(sizes)) for sizes in (smaller, problem)]
            if abs(blocks[0] * measured / count / max(1, blocks[1]) - 1) > 0.03:
                continue
            hits = (
                pick(table, table.key(smaller), "", record.device.arch, multiprocessors=number)
                for number in (count, 0)
            )
            shares = [share_of(record, hit.plan, asked) if hit else None for hit in hits]
            if all(shares):
                yield shares[0], shares[1]


def judge_resized(kernels: Sequence[str]) -> None:
    """Print how good the answers on GPUs of other sizes are, by kernel."""
    rows: dict[str, list[tuple[float, float]]] = {}
    for record in read_all(REPORTS):
        if record.kernel in (kernels or [record.kernel]) and record.device.backend == "cuda":
            for count in SM_COUNTS:
                rows.setdefault(record.kernel, []).extend(resized(record, count))
    rows["all"] = [row for found in rows.values() for row in found]
    print("| kernel | answers | its waves, geometric mean | worst | waves of 132 | worst |")
    print("|---|---|---|---|---|---|")
    for kernel, found in rows.items():
        if found:
            cells = [
                f"{statistics.geometric_mean(shares):.3f} | {min(shares):.3f}"
                for shares in zip(*found, strict=True)
            ]
            print(f"| {kernel} | {len(found)} | {' | '.join(cells)} |")


# ---------------------------------------------------------------------- expectations


def judged(expected: float | None, got: float | None) -> dict[str, Any]:
    """Return whether an expectation held; null where there was none, or the share is not known."""
    got = None if got is None else round(got, 4)  # as expectations are
    held = None if expected is None or got is None else got >= expected
    return {"expected": expected, "got": got, "held": held}


def summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of how many expectations held, a line for each kernel and device."""
    lines = [
        "| kernel | device | expected, mean | got, mean | held | held with neighbours left out | nothing expected |",
        "|---|---|---|---|---|---|---|",
    ]
    for kernel, device in dict.fromkeys((row["kernel"], row["device"]) for row in rows):
        mine = [row for row in rows if (row["kernel"], row["device"]) == (kernel, device)]
        alone = [row for row in mine if not row.get("left_out_within") and row["held"] is not None]
        others = [row for row in mine if row.get("left_out_within") and row["held"] is not None]
        unknown = sum(row["held"] is None for row in mine)
        means = [
            f"{statistics.mean(row[name] for row in alone):.3f}" if alone else "–"
            for name in ("expected", "got")
        ]
        cells = (kernel, device, *means, _held(alone), _held(others), str(unknown))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def told_of(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Print the table, and how many expectations held of how many."""
    print("\n".join(summary(rows)))
    told = [row["held"] for row in rows if row["held"] is not None]
    print(f"{sum(told)} of {len(told)} expectations held")
    return sum(told), len(told)


def _held(rows: Sequence[Mapping[str, Any]]) -> str:
    return f"{sum(row['held'] for row in rows)} of {len(rows)}" if rows else "–"


def judge_left_out(kernels: Sequence[str], out: Path) -> None:
    """Leave out every problem of every shipped record, print the table, write the rows."""
    rows: list[dict[str, Any]] = []
    for record in read_all(REPORTS):
        if not kernels or record.kernel in kernels:
            rows += left_out(record, find_kernel(record.kernel))
    told_of(rows)
    write(out / "lookup.json", {**provenance(), "rows": rows})


# ---------------------------------------------------------------------- unlisted sizes on a device


def judge_unlisted(
    kernels: Sequence[Kernel], device: Device, only: Sequence[str], out: Path
) -> int:
    """Tune some unlisted sizes briefly and race the winners with lookup's answers; 1 if too few held."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        # Neither what this user tuned nor what this tunes answers.
        os.environ.update(AUTOTUNE_TUNED=str(REPORTS), XDG_DATA_HOME=folder)
        for kernel in kernels:
            sizes = UNLISTED.get(kernel.name, [])
            problems = [parsing.problem(kernel, text) for text in only] or [
                Problem(dict(size)) for size in sizes[:: max(1, len(sizes) // SIZES)][:SIZES]
            ]
            answers = [lookup(kernel.name, device=device, **problem) for problem in problems]
            tuned = brief_record(kernel, device, problems, Path(folder))
            for problem, found in zip(problems, answers, strict=True):
                entry = tuned.tuned(problem)
                if entry is None:
                    print(f"{kernel.name} ({problem}): nothing right was found", file=sys.stderr)
                    continue
                winner = Configuration(dict(entry.configuration))
                share = raced_share(kernel, device, problem, Configuration(dict(found)), winner)
                about = {"kernel": kernel.name, "device": device.name, "problem": dict(problem)}
                tried = {"quality": found.quality, "evaluations": entry.origin.evaluations}
                rows.append({**about, **tried, **judged(found.expected_fraction, share)})
                print(", ".join(f"{name}: {value}" for name, value in rows[-1].items()), flush=True)
            write(out / f"lookup-{device.folder}.json", {**provenance(device), "rows": rows})
    held, told = told_of(rows)
    return 0 if held >= AIM * told else 1


def brief_record(
    kernel: Kernel, device: Device, problems: Sequence[Problem], folder: Path
) -> TunedRecord:
    """What `autotune run` finds for some problems in a short time."""
    named = [
        part
        for problem in problems
        for part in ("--problem", ",".join(f"{name}={value}" for name, value in problem.items()))
    ]
    budget = ["--budget", f"{BUDGET_S}s", "--no-sanitize", "--out", str(folder / "out")]
    command = [sys.executable, "-m", "autotune", "run", kernel.name, *named, *budget]
    store = {"AUTOTUNE_STORE": f"sqlite:///{folder / 'store.sqlite'}"}
    done = subprocess.run(
        [*command, "--device", device.selector],
        env={**os.environ, **store},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)}: {done.stderr[-2000:]}")
    return read(folder / "out" / device.folder / f"{kernel.name}.json")


def raced_share(
    kernel: Kernel,
    device: Device,
    problem: Problem,
    answer: Configuration,
    winner: Configuration,
) -> float:
    """Share of the winner's speed that the answer has in a race of both; 1 where it is faster."""
    if answer == winner:
        return 1.0
    with bench_of(kernel, device, problem) as (bench, job):
        evaluator = evaluator_of(bench, job)
        contenders = []
        for chosen in (answer, winner):
            binary = evaluator.binary(chosen)
            if binary is None:
                raise SystemExit(f"{kernel.name} ({problem}): {chosen} does not compile")
            contenders.append(Contender(chosen, binary))
        answered, tuned = raced(bench.worker, job, contenders, ROUNDS)
    ratios = (best / own for own, best in zip(answered, tuned, strict=True))
    return min(1.0, statistics.median(ratios))


def main() -> int:
    parser = command_line(__doc__, "lookup.json and lookup-<device>.json")
    parser.add_argument("--runs", type=int, default=20, help="new interpreters per import")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--left-out", action="store_true", help="how good it is, without a device")
    what.add_argument("--elsewhere", action="store_true", help="on devices that were not tuned")
    what.add_argument(
        "--resized", action="store_true", help="with other numbers of multiprocessors"
    )
    what.add_argument("--unlisted", action="store_true", help="how good it is, on a device")
    parser.add_argument("--kernel", action="append", default=[], help="only this one (repeatable)")
    parser.add_argument(
        "--problem", action="append", default=[], help="of --unlisted: this instead (repeatable)"
    )
    options = parser.parse_args()
    if options.left_out:
        judge_left_out(options.kernel, options.out)
    elif options.elsewhere:
        judge_elsewhere(options.kernel, options.out)
    elif options.resized:
        judge_resized(options.kernel)
    elif options.unlisted:
        kernels = [find_kernel(name) for name in options.kernel or TUNED_BRIEFLY]
        device = choose_device(options.device)
        return judge_unlisted(kernels, device, options.problem, options.out)
    else:
        costs(options.runs)
    return 0


if __name__ == "__main__":
    finish(main)
