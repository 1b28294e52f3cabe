"""Small tuned records for tests, of a kernel without real records."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from autotune.answers.table import (
    OWN_FEATURES,
    AnswerTable,
    Cost,
    Expected,
    Plan,
    PlannedLaunch,
    Portfolio,
    Prediction,
    SizeRange,
    TableRow,
    Tree,
)
from autotune.devices.device import MAX_GRID, Clocks
from autotune.measure.measurement import Measurement
from autotune.measure.race import Contender, ContenderSamples, Race
from autotune.measure.timing import Timing
from autotune.tuned.reading import path_of
from autotune.tuned.record import (
    Checks,
    ContenderResult,
    Estimate,
    LaunchStep,
    Provenance,
    RaceResult,
    TunedProblem,
    TunedRecord,
    TuningOrigin,
)
from autotune.tuned.recorded_device import RecordedDevice
from autotune.tuned.writing import encode
from autotune.values import category_of

KERNEL = "demo_gemm"
PARAMETERS: dict[str, tuple[Any, ...]] = {
    "BM": tuple(range(32, 1025, 32)),
    "SWIZZLE": (False, True),
    "VARIANT": ("simt", "3xtf32", "auto"),
}
LAYOUT = {"offset_a": 0, "ldc": 70000}
FIELDS: dict[str, Any] = {"m": "integer", "n": "integer", "dtype": "categorical"}


def ceil_div(a: Any, b: Any) -> list[Any]:
    """Return the stored form of a / b rounded up."""
    return ["-", 0, ["//", ["-", 0, a], b]]


def plan(bm: int = 64, variant: str = "simt", swizzle: bool = False, **changes: Any) -> Plan:
    """Return a plan whose grid covers m with tiles of bm."""
    return Plan(
        **{
            "configuration": {"BM": bm, "SWIZZLE": swizzle, "VARIANT": variant},
            "block": (bm, 2 if bm <= 512 else 1, 1),
            "shared_bytes": 128 * bm,
            "exclusive": bm == 32,
            "grid": (ceil_div("m", bm), ["max", 1, ["//", "n", 64]], 1),
            **changes,
        }
    )


#: Parts of a tuned problem that hold its evidence, by name.
_PARTS: dict[str, type[msgspec.Struct]] = {
    "plan": Plan,
    "race": RaceResult,
    "winner": ContenderResult,
    "origin": TuningOrigin,
}


def tuned_problem(problem: Mapping[str, Any], plan: Plan, **evidence: Any) -> TunedProblem:
    """Return a tuned problem from values by name, in whichever part; ``median_ms`` is the winner's."""
    parts: dict[str, dict[str, Any]] = {name: {} for name in (*_PARTS, "")}
    median_ms = evidence.pop("median_ms", 0.25)
    interval_ms = evidence.pop("interval_ms", (None, None))
    others, vendor = evidence.pop("runners_up", ()), evidence.pop("vendor", None)
    second = evidence.pop("second", None)
    for name, value in evidence.items():
        holders = (part for part, kind in _PARTS.items() if name in kind.__struct_fields__)
        parts[next(holders, "")][name] = value
    chosen = msgspec.structs.replace(plan, **parts["plan"])
    winner = ContenderResult(
        configuration=chosen.configuration,
        time_ms=Estimate(median_ms, *interval_ms),
        ratio=Estimate(1.0, 1.0, 1.0),
        deterministic=chosen.deterministic,
        **parts["winner"],
    )
    return TunedProblem(
        problem=problem,
        plans=(chosen,) if second is None else (chosen, second),
        race=RaceResult(
            **{
                "timing": "cold:flush",
                "rounds": 30,
                **parts["race"],
                "contenders": (winner, *others, *([vendor] if vendor else [])),
            }
        ),
        origin=TuningOrigin(
            **{
                "tuned_on": "2026-11-21",
                "source": "f00d",
                "arguments": "beef",
                "driver": "580.1",
                "toolchain": "NVRTC 13.0",
                "device_uuid": "GPU-Test GPU A",
                "effort": "quick",
                "strategy": "random",
                "seed": 1,
                "evaluations": 40,
                **parts["origin"],
            }
        ),
        **parts[""],
    )


def vendor_call(name: str, median_ms: float, ratio: float, *interval: float) -> ContenderResult:
    """Return the result of a vendor's call in a race."""
    return ContenderResult(
        vendor=name, time_ms=Estimate(median_ms), ratio=Estimate(ratio, *interval)
    )


def entry(problem: dict[str, Any], chosen: Plan | None = None, **changes: Any) -> TunedProblem:
    """Return a tuned problem with invented evidence."""
    chosen = chosen or plan()
    steps = tuple(
        LaunchStep(
            entry=launch.entry or KERNEL,
            concrete_grid=launch.grid_for(problem) if launch.grid else (7, 3, 1),  # type: ignore[arg-type]
            block=launch.block,
            shared_bytes=launch.shared_bytes,
            args=("a", "m"),
        )
        for launch in chosen.launches
    )
    made_up = {
        "steps": steps,
        "interval_ms": (0.24, 0.26),
        "gflop_per_s": 51200.0,
        "vendor": vendor_call("cublas", 0.26, 1.04, 1.03, 1.05),
        "checks": Checks(max_error=1e-5, rms_error=1e-6, bound=1e-4),
    }
    return tuned_problem(problem, chosen, **{**made_up, **changes})


def record(
    problems: Sequence[TunedProblem] = (),
    device: str = "Test GPU A",
    arch: str = "sm_90",
    **changes: Any,
) -> TunedRecord:
    """Return a record of tuned problems; without a portfolio, they answer for other problems.

    ``default`` is the plan of the default for all their categories.
    """
    fields, tables = changes.get("fields", FIELDS), changes.get("portfolio", Portfolio()).tables
    known = [*problems, *(row for table in tables for row in table.rows)]
    kernel = changes.get("kernel", KERNEL)
    problems = [_renamed(tuned, kernel) for tuned in problems]
    return TunedRecord(
        **{
            "kernel": KERNEL,
            "device": RecordedDevice(backend="cuda", name=device, arch=arch, uuid=f"GPU-{device}"),
            "fields": FIELDS,
            "parameters": PARAMETERS,
            "defaults": defaults_of(
                changes.pop("default", plan(32)), fields, [each.problem for each in known]
            ),
            "problems": tuple(problems),
            "provenance": Provenance(
                version="0.1.0", toolchain="NVRTC 13.0", driver="580.1", created="2026-11-21"
            ),
            **changes,
        }
    )


def _renamed(tuned: TunedProblem, kernel: str) -> TunedProblem:
    """Return a tuned problem whose launches of `KERNEL` are launches of another kernel."""
    steps = (
        msgspec.structs.replace(step, entry=kernel)
        if isinstance(step, LaunchStep) and step.entry == KERNEL
        else step
        for step in tuned.steps
    )
    return msgspec.structs.replace(tuned, steps=tuple(steps))


def defaults_of(
    default: Plan, fields: Mapping[str, str], problems: Iterable[Mapping[str, Any]] = ()
) -> tuple[TableRow, ...]:
    """Return rows of one default for the categories of problems; without problems, of float32."""
    example = {name: 64 if kind == "integer" else "float32" for name, kind in fields.items()}
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for problem in [*problems] or [example]:
        known = {name: problem[name] for name in fields}
        key = category_of(known)
        found[key] = min(found.get(key, known), known, key=lambda each: str(each.values()))
    return tuple(TableRow(problem=known, plans=(default,)) for _, known in sorted(found.items()))


def table_of(
    *plans: Plan,
    at: Mapping[str, Any] | None = None,
    costs: Sequence[Cost] = (),
    multiple: int = 4,
    expected: Expected | None = None,
) -> AnswerTable:
    """Return a table of one row with some plans (default: for the 64 × 64 problem).

    An expectation without costs gets a cost of the first plan: only predicted answers have an expected speed.
    """
    row = TableRow(problem=problem(64, 64) if at is None else at, plans=plans)
    if expected and not costs:
        costs = [Cost(plan=plans[0], fixed=((1.0, ()),), waves=())]
    prediction = Prediction(multiple=multiple, costs=tuple(costs), expected=expected)
    return AnswerTable(rows=(row,), prediction=prediction if costs or expected else None)


def expecting(low: float, most: int, low_of_large: float | None = None) -> Expected:
    """Return an expectation for fields up to ``most``, with its own low end for n above 8192 if given."""
    if low_of_large is None:
        return Expected(ranges=((1, most), (1, most)), splits=(), shares=((low, 1.0),))
    shares = ((low, 1.0), (low_of_large, 1.0))
    return Expected(ranges=((1, most), (1, most)), splits=((1, 8192),), shares=shares)


def answering(*tables: AnswerTable) -> Portfolio:
    """Return a portfolio of tables without times."""
    return Portfolio(tables=tables)


def problem(m: int, n: int, dtype: str = "float32") -> dict[str, Any]:
    """Return a problem of the kernel."""
    return {"m": m, "n": n, "dtype": dtype}


def write(directory: Path, record: TunedRecord) -> Path:
    """Write a record's file; replace an existing file."""
    path = path_of(directory, record)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(record))
    return path


def random_record(seed: int, device: str, arch: str) -> TunedRecord:
    """Return a record of random problems, plans and tables, for two of the three categories."""
    rng = random.Random(seed)
    layout, dtypes = LAYOUT, ["float32", "half2", "int-8"]
    del dtypes[seed % 3]
    plans = [_random_plan(rng, layout) for _ in range(8)]
    at = [
        problem(2 ** rng.randrange(18) + rng.randrange(3), rng.randrange(1, 70000), dtype)
        for dtype in dtypes
        for _ in range(8)
    ]
    unique = list({tuple(problem.values()): problem for problem in at}.values())
    plain = msgspec.structs.replace(plans[0], grid=None, before=(), after=())

    def valid(problem: dict[str, Any], chosen: Sequence[Plan] = plans) -> list[Plan]:
        return [plan for plan in chosen if _is_launchable(plan, problem)]

    entries = [
        entry(
            problem,
            rng.choice(valid(problem) or [plain]),
            runners_up=tuple(map(_slower, rng.sample(plans, 3))),
        )
        for problem in unique
    ]
    repeating = [plan for plan in plans if plan.deterministic][::3]
    entries = [
        tuned
        if tuned.plan.deterministic
        else with_deterministic(tuned, *valid(dict(tuned.problem), repeating)[: number % 2])
        for number, tuned in enumerate(entries)
    ]
    tables = [
        AnswerTable(
            rows=tuple(
                TableRow(problem=problem, plans=tuple(rng.sample(valid(problem) + 3 * [plain], 3)))
                for problem in rng.sample(unique, 15)
                if problem["dtype"] == dtype
            ),
            prediction=_random_prediction(rng, plans) if dtype != "int-8" else None,
        )
        for dtype in dtypes
    ]
    configurations = {str(plan.configuration): plan.configuration for plan in plans}.values()
    portfolio = Portfolio(
        configurations=tuple(configurations),
        problems=tuple(unique),
        median_ms=tuple(
            tuple(rng.choice((None, rng.random(), rng.random())) for _ in unique)
            for _ in configurations
        ),
        verified=_random_ranges(rng, dtypes),
        tables=tuple(tables),
    )
    entries = [
        msgspec.structs.replace(tuned, verified=_random_ranges(rng, dtypes)) for tuned in entries
    ]
    return record(
        entries,
        device,
        arch,
        default=plan(32, deterministic=True),
        portfolio=portfolio,
        layout=layout,
    )


def _random_ranges(rng: random.Random, dtypes: Sequence[str]) -> tuple[SizeRange, ...]:
    """Return up to three ranges of verified sizes."""
    return tuple(
        {
            "m": (rng.randrange(3), rng.randrange(3, 10**6)),
            "n": (rng.randrange(3), 2 ** rng.randrange(1, 62)),
            "dtype": rng.choice(dtypes),
        }
        for _ in range(rng.randrange(4))
    )


def with_deterministic(found: TunedProblem, *chosen: Plan) -> TunedProblem:
    """Return a tuned problem with a second plan that takes 25 % longer than the winner's."""
    results = tuple(
        ContenderResult(
            configuration=plan.configuration,
            time_ms=Estimate(0.3125, 0.31, 0.32),
            ratio=Estimate(1.25, 1.2, 1.3),
            deterministic=True,
        )
        for plan in chosen[:1]
    )
    winner, *others = found.race.contenders
    race = msgspec.structs.replace(found.race, contenders=(winner, *results, *others))
    plans = (found.plan, *chosen[:1])
    return msgspec.structs.replace(found, race=race, plans=plans)


def _is_launchable(plan: Plan, problem: dict[str, Any]) -> bool:
    try:
        grids = [launch.grid_for(problem) for launch in plan.launches if launch.grid]
    except ValueError:
        return False
    return all(
        1 <= blocks <= most for grid in grids for blocks, most in zip(grid, MAX_GRID, strict=True)
    )


def _slower(chosen: Plan) -> ContenderResult:
    """Return a finalist that took four times as long as the winner."""
    return ContenderResult(
        configuration=chosen.configuration,
        time_ms=Estimate(1.0, 0.9, 1.1),
        ratio=Estimate(4.0),
        deterministic=chosen.deterministic,
    )


def _random_prediction(rng: random.Random, plans: Sequence[Plan]) -> Prediction:
    """Return a valid prediction with random contents."""
    products = ((), ("m",), ("n",), ("m", "n"), ("m", "m", "n"))

    def terms() -> tuple[Any, ...]:
        chosen = rng.sample(products, rng.randrange(4))
        return tuple((rng.random() * 10 ** rng.randrange(-9, 2), names) for names in chosen)

    costs = [
        Cost(
            plan=plan,
            fixed=terms(),
            waves=tuple((rng.choice((1, 7, 132, 2**31 - 1)), terms()) for _ in range(3)),
            misaligned={name: rng.uniform(1, 3) for name in "nm" if rng.random() < 0.5},
        )
        for plan in plans
        if plan.grid is not None
    ]
    prediction = Prediction(multiple=rng.choice((1, 4, 24)), costs=tuple(costs))
    if rng.random() < 0.3:
        return prediction
    integers = len(FIELDS) - 1

    def splits(features: int) -> tuple[tuple[int, int], ...]:
        count = rng.randrange(4)
        return tuple((rng.randrange(features), 2 ** rng.randrange(20)) for _ in range(count))

    def tree() -> Tree:
        chosen = splits(2 * integers + OWN_FEATURES)
        return Tree(chosen, tuple(round(rng.uniform(0.5, 2), 3) for _ in range(1 << len(chosen))))

    corrections = tuple(
        tuple(tree() for _ in range(rng.randrange(4) if cost.waves else 0)) for cost in costs
    )
    kinds = splits(2 * integers)
    shares = [tuple(sorted((rng.random(), rng.random()))) for _ in range(1 << len(kinds))]
    expected = Expected(ranges=((1, 2**40),) * integers, splits=kinds, shares=tuple(shares))  # type: ignore[arg-type]
    return msgspec.structs.replace(
        prediction, corrections=corrections, sizes=100, expected=rng.choice((None, expected))
    )


def builtins_of(chosen: Plan) -> dict[str, Any]:
    """Return a plan as a record's JSON."""
    return json.loads(msgspec.json.encode(chosen))  # type: ignore[no-any-return]


def changed(**changes: Any) -> bytes:
    """Return a record's bytes with some top-level members replaced."""
    document = json.loads(encode(record([entry(problem(64, 64))])))
    return json.dumps({**document, **changes}).encode()


def change(tuned: dict[str, Any], **changes: Any) -> None:
    """Change a tuned problem of a document in place."""
    race = tuned["race"]
    winner = race["contenders"][0]
    for name, value in changes.items():
        if name == "configuration":
            winner[name] = tuned["plans"][0][name] = value
        elif name == "code":
            winner[name] = value
        elif name == "median_ms":
            winner["time_ms"][0] = value
        elif name == "interval_ms":
            winner["time_ms"][1:] = value
        elif name == "runners_up":
            race["contenders"] = [winner, *value]
        elif name in ("timing", "noise"):
            race[name] = value
        elif name in tuned["plans"][0]:
            tuned["plans"][0][name] = value
        elif name in (*tuned, "gb_per_s"):
            tuned[name] = value
        else:
            tuned["origin"][name] = value


def deep(depth: int) -> Any:
    """Return an expression of this depth, with an invalid innermost operand."""
    form: Any = ["?"]
    for _ in range(depth):
        form = ["+", form, 1]
    return form


def with_entry(**changes: Any) -> bytes:
    """Return a record's bytes with parts of its tuned problem replaced."""
    document = json.loads(changed())
    change(document["problems"][0], **changes)
    return json.dumps(document).encode()


def with_plan(**changes: Any) -> bytes:
    """Return a record's bytes with members of its winner's plan replaced or added."""
    document = json.loads(changed())
    document["problems"][0]["plans"][0] |= changes
    return json.dumps(document).encode()


def with_prediction(**changes: Any) -> bytes:
    """Return a record's bytes with fields of its prediction replaced."""
    document = json.loads(with_cost())
    document["portfolio"]["tables"][0]["prediction"] |= changes
    return json.dumps(document).encode()


def with_cost(**changes: Any) -> bytes:
    """Return the bytes of a record with one cost, with members of the cost replaced."""
    chosen = plan()
    cost = Cost(plan=chosen, fixed=((0.5, ("m",)),), waves=((132, ((0.25, ()),)),))
    portfolio = Portfolio(
        configurations=(chosen.configuration,),
        problems=(problem(64, 64),),
        median_ms=((1.0,),),
        tables=(table_of(plan(), costs=(cost,)),),
    )
    document = json.loads(encode(record(portfolio=portfolio)))
    document["portfolio"]["tables"][0]["prediction"]["costs"][0] |= changes
    return json.dumps(document).encode()


#: Invalid record files: their bytes, and a pattern of the error message.
WRONG = {
    "empty": (b"", "damaged"),
    "cut off": (changed()[:-40], "damaged"),
    "a list": (b"[]", "not a tuned record"),
    "newer": (changed(schema_version=3), "upgrade"),
    "older": (changed(schema_version=1), "of schema 1, older than"),
    "no version": (changed(schema_version="1"), "schema"),
    "wrong type": (with_entry(median_ms="fast"), r"float.*\$\.problems\[0\]\.race"),
    "other fields": (with_entry(problem={"m": 1}), "does not have the fields"),
    "extra parameter": (
        with_entry(configuration={"BM": 1}),
        "does not have the declared parameters",
    ),
    "code as value": (
        with_entry(configuration={**plan().configuration, "VARIANT": "simt\n#include <x>"}),
        "regex",
    ),
    "long text": (with_entry(driver="5" * 1001), "length <= 1000"),
    "code as grid": (with_entry(grid=["__import__('os')", 1, 1]), "expression"),
    "unknown operator": (with_entry(grid=[["**", "m", 2], 1, 1]), "expression"),
    "nested deeply": (changed()[:-2] + b', "x": ' + b"[" * 100_000, "damaged"),
    "deeper grid": (with_entry(grid=[deep(300), 1, 1]), "more than 64 nested operations"),
    "bad name": (changed(kernel="a b"), "not an identifier"),
    "no time": (
        changed(provenance={"version": "", "toolchain": "", "driver": "", "created": "yesterday"}),
        "provenance.created is 'yesterday', expected a time of ISO 8601",
    ),
    "cost of no field": (with_cost(fixed=[[0.5, ["q"]]]), r"a cost has \['q'\]"),
    "cost of a category": (with_cost(misaligned={"dtype": 2.0}), r"a cost has \['dtype'\]"),
    "cost without grid": (
        with_cost(plan={**builtins_of(plan()), "grid": None}),
        "a cost has no grid",
    ),
    "corrections of other costs": (with_prediction(corrections=[[], []]), "do not match the costs"),
    "outcomes of no split": (with_prediction(corrections=[[[[], [1.0, 1.0]]]]), "do not match its"),
    "split of no feature": (
        with_prediction(corrections=[[[[[8, 1]], [1.0, 1.0]]]]),
        "unknown feature",
    ),
    "factor of nothing": (with_prediction(corrections=[[[[], [0.0]]]]), ">= 0.01"),
    "ranges of no field": (
        with_prediction(expected={"ranges": [], "splits": [], "shares": [[0.9, 1.0]]}),
        "the ranges of an expectation",
    ),
    "waves of no blocks": (with_cost(waves=[[0, []]]), r">= 1.*\.waves"),
    "absurd time": (with_entry(median_ms=10**400), "out of range"),
    "NaN": (with_entry(gb_per_s=math.nan), "malformed"),
    "absurd size": (with_entry(problem=problem(10**400, 1)), "<= 9223372036854775807"),
    "no threads": (with_entry(block=[0, 1, 1]), ">= 1"),
    "absurd arch": (
        changed(device={"backend": "cuda", "name": "x", "arch": "sm_" + "9" * 5000}),
        "matching regex",
    ),
    "backend that is a path": (
        changed(device={"backend": "../..", "name": "x", "arch": "sm_90"}),
        r"Invalid enum value '../..' - at .\$.device.backend",
    ),
    "value of another kind": (
        with_entry(configuration={**plan().configuration, "BM": "64"}),
        r"BM is '64', expected one of .32, 64, ",
    ),
    "values of several types": (
        changed(parameters={**PARAMETERS, "BM": [64, "128"]}),
        "parameters.BM has values of several types",
    ),
    "one problem twice": (
        changed(problems=json.loads(changed())["problems"] * 2),
        "a problem occurs twice",
    ),
    "quoted at length": (with_entry(grid=["?" * 10_000, 1, 1]), r"expression has '\?{118}"),
    "too long": (changed() + b" " * (32 << 20), "more than 32 MiB"),
    "layout of 65 bits": (changed(layout={"ldc": 2**64}), "<= 9223372036854775807"),
    "layout of a field": (changed(layout={"m": 1}), "have one name"),
    "requires no field": (with_plan(requires=["<=", "ldc", 1]), "expression has 'ldc'"),
    "matrix shape": (
        changed(portfolio={"configurations": [], "problems": [], "median_ms": [[1.0]]}),
        "portfolio",
    ),
}


@contextmanager
def without_privileges() -> Iterator[None]:
    """Run without root, so that file permissions take effect."""
    nobody, user = 65534, os.geteuid()
    if user == 0:
        os.seteuid(nobody)
    try:
        yield
    finally:
        os.seteuid(user)


def _random_plan(rng: random.Random, layout: Mapping[str, int]) -> Plan:
    of_layout = (
        ["==", ["%", "offset_a", 4], 0],
        ["and", ["<=", "n", "ldc"], ["==", ["%", "offset_a", 2], 0]],
        ["==", "offset_a", 1],
        ["and", ["<=", 1, ["+", "ldc", "m"]], ["==", "offset_a", 0]],
    )
    requires = (
        *(of_layout if layout else ()),
        None,
        ["==", ["%", "n", 2], 0],
        ["and", ["<=", 64, "m"], ["<=", "m", ["*", 64, "n"]]],
    )
    grids = (
        None,
        (ceil_div("m", 128), 1, 1),
        (["min", "m", 65535], ["-", ["%", ["-", 5, "n"], 7], -1], ["//", ["+", "n", "m"], 9]),
        (["*", "m", "n"], 1, 1),
        (["//", 1000, ["-", "m", 64]], 1, 1),
    )
    archs = (None, ("sm_80", "sm_90", "sm_120"), ("sm_90",), ("opencl_cpu", "sm_75"))
    bm = rng.choice(PARAMETERS["BM"])
    prepare = PlannedLaunch(entry="prepare", block=(32, 2, 1), grid=(ceil_div("m", 32), 1, 1))
    finish = PlannedLaunch(entry="finish", block=(8, 1, 1), shared_bytes=bm, grid=rng.choice(grids))
    return plan(
        bm,
        rng.choice(PARAMETERS["VARIANT"]),
        rng.random() < 0.5,
        deterministic=bm != 64,
        requires=rng.choice(requires),
        grid=rng.choice(grids),
        archs=rng.choice(archs),
        shared_bytes=rng.choice((0, 49152, 49153)),
        before=(prepare,) if rng.random() < 0.4 else (),
        after=(finish,) if rng.random() < 0.4 else (),
    )


# ---------------------------------------------------------------------- Races


Entered: TypeAlias = tuple[Contender, ContenderSamples]


def entered(
    row: Measurement, times_ms: Sequence[float], deterministic: bool = False, **others: Any
) -> Entered:
    """Return a contender for a configuration, with its times and other samples."""
    contender = Contender(row.configuration, row=row, deterministic=deterministic)
    return contender, ContenderSamples(tuple(map(float, times_ms)), **others)


def race(
    finalists: Sequence[Entered],
    vendors: Mapping[str, Sequence[float]] | None = None,
    throttled: tuple[str, ...] = (),
    **others: Any,
) -> Race:
    """Return a race of configurations and vendor calls with these times."""
    calls = [
        (Contender(vendor=name), ContenderSamples(tuple(map(float, times_ms)), **others))
        for name, times_ms in (vendors or {}).items()
    ]
    everyone = [*finalists, *calls]
    return Race(
        tuple(contender for contender, _ in everyone),
        tuple(samples for _, samples in everyone),
        Timing.COLD_GRAPH,
        Clocks(throttle_reasons=throttled),
    )


# ---------------------------------------------------------------------- Places and values


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a document."""
    if path:
        yield path
    if isinstance(document, dict | list):
        keys = list(document) if isinstance(document, dict) else range(len(document))
        for key in keys:
            yield from places(document[key], (*path, key))


VALUES_OF_ANY_KIND = [
    *(None, True, 3, -1, 10**30, 0.5, float("inf"), [], [3], ["x"], {}, {"x": 1}),
    *(
        "",
        "x",
        "[1]",
        "1 // 0",
        f"range({10**30})",
        "ProblemSize[7]",
        "(" * 3000,
        "max(tile)",
        "'a'",
    ),
]
