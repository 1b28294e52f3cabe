"""`autotune import`: of what others wrote, only what a run could have written is merged."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sample_records import defaults_of, entry, plan, problem, record
from sample_spaces import write_space
from thinned import thinned

from autotune.answers.table import Portfolio
from autotune.checking.importing import checked
from autotune.cli import run
from autotune.errors import RecordError
from autotune.kernel.catalog import find_kernel, load_file
from autotune.kernel.source import (
    arguments_fingerprint,
    changed_since,
    definition_of,
    source_fingerprint,
)
from autotune.kernel.spec import Kernel
from autotune.project import project_of
from autotune.run.recording import recomputed
from autotune.tuned.answer import tuned_config
from autotune.tuned.comparison import by_effort_and_date
from autotune.tuned.dates import timestamp
from autotune.tuned.merged import build_table, pick
from autotune.tuned.reading import RecordFile, decode, read, read_all, user_folder
from autotune.tuned.record import (
    Checks,
    ContenderResult,
    Estimate,
    Provenance,
    RaceResult,
    TunedProblem,
    TunedRecord,
    TuningOrigin,
)
from autotune.tuned.recorded_device import RecordedDevice
from autotune.tuned.writing import encode, update
from autotune.values import Problem

REPORTS = Path(__file__).parents[1] / "reports"
COPY = REPORTS / "NVIDIA_H200" / "copy.json"
#: All but what this machine's CPU left in opencl_*.
SHIPPED = sorted(file for file in REPORTS.glob("[!o]*/*.json") if "." not in file.stem)
#: The smallest of each device in CUDA C++: a check of one in Triton compiles a hundred binaries.
SMALLEST = {
    min(
        (f for f in SHIPPED if f.parent == folder and not find_kernel(f.stem).language),
        key=lambda file: file.stat().st_size,
    )
    for folder in REPORTS.glob("[!o]*/")
}


def _named(file: Path) -> str:
    return f"{file.parent.name}/{file.stem}"


@pytest.mark.filterwarnings("ignore:not imported. the fit to random sizes")
@pytest.mark.parametrize("file", thinned(SHIPPED, SMALLEST), ids=_named)
def test_what_ships_is_what_a_run_could_have_written(file: Path) -> None:
    """Who contributes a GPU's records changes nothing else: docs/contribute-a-gpu.md."""
    made = read(file)
    first_calls = (msgspec.Raw(msgspec.json.encode(made.problems[0], enc_hook=dict)),)
    found = checked(msgspec.structs.replace(made, first_calls=first_calls), find_kernel(file.stem))
    assert found.problems == made.problems and found.first_calls == ()


def test_a_problem_in_triton_is_what_a_run_could_have_written() -> None:
    made, kernel = (
        read(REPORTS / "NVIDIA_H200" / "cross_entropy.json"),
        find_kernel("cross_entropy"),
    )
    made = msgspec.structs.replace(made, problems=made.problems[:1], portfolio=Portfolio())
    assert checked(made, kernel).problems == made.problems


@pytest.mark.parametrize("file", SHIPPED, ids=_named)
def test_what_ships_is_of_these_sources(file: Path) -> None:
    made, kernel = read(file), find_kernel(file.stem)
    assert encode(made) == file.read_bytes()
    assert (file.parent.name, file.stem) == (made.device.folder, made.kernel)
    assert made.device.backend == "cuda"
    now, recorded = definition_of(kernel), made.provenance
    assert (recorded.source, recorded.arguments, dict(recorded.files)) == now
    for known in made.problems:
        assert made.stale_reasons(known) == (), dict(known.problem)
        origin = known.origin
        assert not changed_since(kernel, origin.source, origin.arguments), dict(known.problem)
        assert known.checks is not None
    assert (file.parent / f"{made.kernel}.md").is_file()


# ---------------------------------------------------------------------- a small record of a small kernel

EDITS = (
    ("BLOCK=(32, 64),  # threads per block", "BLOCK=(32, 64, 128),\n    VEC=(1, 2),"),
    ("def whole_warps(BLOCK)", "def whole_warps(BLOCK, VEC)"),
    ("return BLOCK % 32 == 0", "return BLOCK * VEC <= 128"),
    ("block=(c.BLOCK,))", "block=(c.BLOCK,), shared_bytes=4 * c.BLOCK)"),
    (
        "@scale.launch",
        "@scale.requires\ndef even(c, p):\n    return p.n % c.VEC == 0\n\n\n"
        "@scale.work\ndef work(p):\n    return Work(bytes_read=4 * p.n, bytes_written=4 * p.n)\n\n\n"
        "@scale.tolerance\ndef tolerance(p):\n    return 1e-5\n\n\n"
        "@scale.metric\ndef per_element(time_ms, p):\n    return time_ms / p.n\n\n\n"
        "@scale.launch",
    ),
)
SIZES = (1000, 50_000, 90_000, 1_000_000)
CONFIGURATIONS = ({"BLOCK": 32, "VEC": 1}, {"BLOCK": 64, "VEC": 2})


@pytest.fixture(scope="module")
def spaces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the kernel's space file."""
    return write_space(tmp_path_factory.mktemp("scale"), *EDITS).parent


@pytest.fixture(scope="module")
def kernel(spaces: Path) -> Kernel:
    """A kernel whose configurations differ most in what they cost per block."""
    return load_file(spaces / "scale.py")


@pytest.fixture(scope="module")
def small(kernel: Kernel) -> TunedRecord:
    """A record with every member that records have, as a run would have written it."""
    times = [[0.002 + n * 4e-8, 0.004 + n * 1e-8] for n in SIZES]
    made = TunedRecord(
        kernel="scale",
        device=RecordedDevice(
            backend="cuda",
            name="Test GPU",
            arch="sm_90",
            uuid="GPU-1",
            driver="580.1",
            sm_count=132,
            shared_bytes_per_block=232448,
            peak_gb_per_s=4000.0,
        ),
        fields={"n": "integer"},
        parameters=dict(kernel.parameters),
        defaults=defaults_of(plan(), {"n": "integer"}),
        problems=tuple(map(_tuned(kernel), SIZES, times)),
        portfolio=Portfolio(
            configurations=CONFIGURATIONS,
            problems=tuple({"n": n} for n in SIZES),
            median_ms=tuple(zip(*times, strict=True)),
        ),
        provenance=Provenance(
            version="0.1.0", toolchain="NVRTC 13.0", driver="580.1", created=timestamp()
        ),
    )
    return recomputed(made, kernel)


def _tuned(kernel: Kernel) -> Callable[[int, list[float]], TunedProblem]:
    def tuned(n: int, times_ms: list[float]) -> TunedProblem:
        ranked = sorted(range(2), key=times_ms.__getitem__)
        contenders = [
            ContenderResult(
                configuration=CONFIGURATIONS[place],
                tied=place == ranked[0],
                time_ms=Estimate(times_ms[place], 0.9 * times_ms[place], 1.1 * times_ms[place]),
                ratio=Estimate(times_ms[place] / times_ms[ranked[0]]),
                registers=32,
            )
            for place in ranked
        ]
        return TunedProblem(
            problem={"n": n},
            plans=(plan(),),
            race=RaceResult(timing="cold:graph", rounds=30, contenders=tuple(contenders)),
            limit_fraction=0.5,
            limit_name="copy",
            checks=Checks(max_error=1e-6, rms_error=1e-7, bound=1e-5),
            metrics={"per_element": 0.5},
            origin=TuningOrigin(
                tuned_on="2026-11-21",
                source=source_fingerprint(kernel),
                arguments=arguments_fingerprint(kernel, Problem(n=n)),
                driver="580.1",
                toolchain="NVRTC 13.0",
                device_uuid="GPU-1",
                effort="quick",
                strategy="random",
                seed=1,
                evaluations=40,
            ),
        )

    return tuned


def edited(made: TunedRecord, path: tuple[Any, ...], value: Any) -> bytes:
    """The bytes of a record with one place changed."""
    document = json.loads(encode(made))
    place = document
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return json.dumps(document).encode()


TABLE = ("portfolio", "tables", 0)
COST = (*TABLE, "prediction", "costs", 0)
FIRST = ("problems", 0)
FALSIFIED: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "undeclared value": (
        (*COST, "plan", "configuration", "BLOCK"),
        31337,
        r"portfolio.tables\[0\].prediction.costs\[0\].plan.configuration.BLOCK is 31337, "
        r"expected one of \(32, 64, 128\)",
    ),
    "threads": (
        (*COST, "plan", "block"),
        [1024, 1024, 64],
        r"costs\[0\].plan.block is .1024, 1024, 64., expected at most 1024 threads",
    ),
    "row's threads": (
        (*TABLE, "rows", 1, "plans", 0, "block", 1),
        2,
        r"block\[1\] is 2, expected 1",
    ),
    "grid": (
        (*FIRST, "plans", 0, "grid", 1),
        2,
        r"problems\[0\].plans\[0\].grid is .32, 2, 1., expected for its problem .32, 1, 1.",
    ),
    "concrete grid": (
        (*FIRST, "steps", 0, "concrete_grid", 0),
        31,
        r"plans\[0\].grid is .32, 1, 1., expected for its problem .31, 1, 1., as in its steps",
    ),
    "shared bytes": (
        ("defaults", 0, "plans", 0, "shared_bytes"),
        64,
        r"defaults\[0\].plans\[0\].shared_bytes is 64, expected 128",
    ),
    "condition": ((*FIRST, "plans", 0, "requires"), 0, r"plans\[0\].requires"),
    "architecture": (
        (*FIRST, "plans", 0, "archs", 0),
        "sm_9000",
        "'sm_9000', expected an architecture",
    ),
    "device's architecture": (("device", "arch"), "sm_9000", "device.arch is 'sm_9000'"),
    "device's suffix": (("device", "arch"), "sm_90a", "device.arch is 'sm_90a'"),
    "device without name": (("device", "name"), "", r"matching regex .* at `\$.device.name`"),
    "wide warps": (("device", "warp_size"), 64, "device.warp_size is 64, expected 32"),
    "constraint": (
        ("portfolio", "configurations", 1),
        {"BLOCK": 128, "VEC": 2},
        "a configuration of the space .it breaks whole_warps",
    ),
    "cost": ((*COST, "fixed", 0, 0), -1e300, ">= 0.0 - at .*fixed"),
    "other cost": (
        (*COST, "fixed", 0, 0),
        1e-3,
        r"costs\[0\].fixed\[0\]\[0\] is 0.001, expected 0.0",
    ),
    "bound": ((*FIRST, "checks", "bound"), 5.0, r"checks.bound is 5.0, expected at most 1e-05"),
    "error": ((*FIRST, "checks", "max_error"), 1e-4, "checks.max_error is 0.0001"),
    "mean error": ((*FIRST, "checks", "rms_error"), 9e-6, "checks.max_error is 1e-06"),
    "share": ((*FIRST, "limit_fraction"), 5.0, "limit_name is .'copy', 5.0"),
    "rate": ((*FIRST, "gb_per_s"), 1e9, r"problems\[0\].gb_per_s is 1000000000.0, expected"),
    "time": ((*FIRST, "race", "contenders", 0, "time_ms"), [1e-9], "1e-09 ms is below the device"),
    "matrix": (("portfolio", "median_ms", 0, 3), 1e-9, r"median_ms\[0\]\[3\]: 1e-09 ms is below"),
    "interval": (
        (*FIRST, "race", "contenders", 0, "time_ms"),
        [0.002, 0.003, 0.004],
        "time_ms is 0.002, expected between",
    ),
    "above its interval": (
        (*FIRST, "race", "contenders", 0, "time_ms"),
        [0.002, 0.001, 0.0015],
        "time_ms is 0.002, expected between",
    ),
    "forbidden problem": (
        ("portfolio", "problems", 0),
        {"n": 1001},
        r"median_ms\[1\]\[0\] is 0.00401, expected no time: .* does not allow the problem .n=1001.",
    ),
    "one problem twice": (("portfolio", "problems", 1), {"n": 1000}, "a problem occurs twice"),
    "timing": ((*FIRST, "race", "timing"), "by hand", "race.timing is 'by hand', expected one of"),
    "metric": ((*FIRST, "metrics"), {"made_up": 1.0}, "metrics is 'made_up', expected"),
    "day": (
        (*FIRST, "origin", "tuned_on"),
        "9999-01-01",
        "tuned_on is '9999-01-01', expected a past",
    ),
    "three days ahead": (
        (*FIRST, "origin", "tuned_on"),
        (datetime.now(UTC) + timedelta(days=3)).isoformat(),
        "tuned_on is .* expected a past",
    ),
    "confirmed": (
        (*FIRST, "confirmed"),
        {
            "on": "9999-01-01",
            "driver": "",
            "toolchain": "",
            "ratio": 1.0,
            "ratio_interval": [1.0, 1.0],
        },
        "confirmed.on is '9999-01-01', expected a past",
    ),
    "objective": (("objective",), "energy", "objective is 'energy', expected 'time'"),
    "source": (
        (*FIRST, "origin", "source"),
        "0" * 64,
        "before the kernel was changed .* autotune run",
    ),
    "provenance": (("provenance", "source"), "", "provenance.source is '', expected"),
    "fields": (("fields",), {"n": "categorical"}, "not a tuned record, or damaged"),
    "parameters": (("parameters", "MORE"), [1], "not a tuned record, or damaged"),
    "long text": (("device", "name"), "x" * 9999, "length <= 1000"),
    "portfolio's size": (
        ("portfolio",),
        {
            "configurations": [{"BLOCK": 32, "VEC": 1}] * 49,
            "problems": [{"n": 7}],
            "median_ms": [[1.0]] * 49,
        },
        "at most 48",
    ),
}


@pytest.mark.parametrize(("path", "value", "message"), FALSIFIED.values(), ids=FALSIFIED)
def test_the_first_place_that_no_run_writes_is_named(
    path: tuple[Any, ...], value: Any, message: str, small: TunedRecord, kernel: Kernel
) -> None:
    with pytest.raises(RecordError, match=message) as refused:
        checked(decode(edited(small, path, value)), kernel)
    assert "\n" not in str(refused.value)


def leaves(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The values of a document that hold no others, with their places."""
    if isinstance(document, dict | list) and document:
        keys = list(document) if isinstance(document, dict) else range(len(document))
        for key in keys:
            yield from leaves(document[key], (*path, key))
    else:
        yield path, document


def mutated(value: Any) -> list[Any]:
    """Other values of a leaf."""
    match value:
        case bool():
            return [not value]
        case int():
            return [2 * value + 64]
        case float():
            return [value * 3, -1e300]
        case str():
            return [value + "x", ""]
        case _:
            return [0, "x", 1.5]


def answers(made: TunedRecord) -> list[Any]:
    """The answers of a record for some sizes, without the measurements that they quote."""
    table = build_table([RecordFile("imported", "folder", made)])
    hits = [
        (n, pick(table, (n,), device, arch))
        for n in (1, 1000, 1001, 6000, 20_000, 90_000, 10**7)
        for device, arch in (("folder", None), (None, "sm_90"), (None, "sm_75"))
    ]
    found = [tuned_config(table, hit, (n,)) for n, hit in hits if hit]
    return [
        (
            *(dict(each), each.launches, each.quality, each.objective),
            *(each.exclusive, each.deterministic, each.stale_reasons),
        )
        for each in found
    ]


@pytest.mark.slow
def test_a_changed_leaf_is_refused_or_changes_no_answer(small: TunedRecord, kernel: Kernel) -> None:
    """Of equal members, such as the problems, those of the first; of the times all."""
    right, accepted = answers(small), set()
    assert small.portfolio.tables[0].prediction is not None
    for path, value in leaves(json.loads(encode(small))):
        if "median_ms" not in path and any(type(part) is int and part > 1 for part in path):
            continue
        if path[:2] == ("problems", 1) or ("archs" in path and path[-1]):
            continue
        for other in mutated(value):
            try:
                found = checked(decode(edited(small, path, other)), kernel)
            except RecordError as error:
                assert "\n" not in str(error)
            else:
                accepted.add(path[-1])
                assert answers(found) == right, (path, other)
    assert {"seed", "driver", "rounds"} <= accepted
    assert not accepted & {"kernel", "arch", "BLOCK", "block", "grid", "requires", "source"}


def test_a_fit_to_times_that_the_record_does_not_hold_is_left_out(
    small: TunedRecord, kernel: Kernel
) -> None:
    document = json.loads(encode(small))
    prediction = document["portfolio"]["tables"][0]["prediction"]
    for terms in (
        prediction["costs"][1]["fixed"],
        *(w[1] for w in prediction["costs"][1]["waves"]),
    ):
        terms[:] = [[0.0, names] for _, names in terms]
    with pytest.raises(RecordError, match=r"costs\[1\]"):
        checked(decode(json.dumps(document).encode()), kernel)
    prediction["sizes"] = 2000
    forged = decode(json.dumps(document).encode())
    assert answers(forged) != answers(small)
    with pytest.warns(UserWarning, match="not imported: the fit to random sizes"):
        assert checked(forged, kernel) == small


# ---------------------------------------------------------------------- the command


@pytest.fixture
def mine(tmp_path: Path, spaces: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of records of the kernels, empty."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return Path(user_folder(project_of(spaces)))


def test_what_a_run_wrote_is_imported_and_a_refusal_loses_nothing(
    small: TunedRecord,
    spaces: Path,
    mine: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "theirs.json"
    command = ["import", str(file), "--spaces", str(spaces)]
    file.write_bytes(encode(small))
    assert run(command) == 0
    assert capsys.readouterr().out.startswith("n=1000: added, not tuned before\n")
    (known,) = read_all(mine)
    assert known == small
    file.write_bytes(edited(small, (*FIRST, "plans", 0, "block", 0), 1024))
    assert run(command) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "problems[0].plans[0].block is (1024, 1, 1), expected (32, 1, 1)" in line
    assert read_all(mine) == [known]


def test_a_record_of_an_unknown_kernel_is_refused(
    small: TunedRecord, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "theirs.json").write_bytes(encode(small))
    assert run(["import", str(tmp_path / "theirs.json")]) == 2
    assert "the kernel to check the record against is not known" in capsys.readouterr().err
    assert not mine.exists()


def test_a_record_of_another_kernel_of_that_name_is_refused(small: TunedRecord) -> None:
    with pytest.raises(
        RecordError,
        match=r"does not fit the kernel .* problem fields n in the record, m, n in the kernel",
    ):
        checked(small, find_kernel("transpose"))


def test_what_a_cpu_can_do_is_recorded_and_asked(tmp_path: Path, small: TunedRecord) -> None:
    """Its blocks may be larger than any GPU's."""
    asking = (
        *EDITS[:1],
        ("def whole_warps(BLOCK)", "def fits(BLOCK, device)"),
        ("return BLOCK % 32 == 0", "return device.max_threads_per_block >= 64 * BLOCK"),
        *EDITS[3:],
    )
    kernel = load_file(write_space(tmp_path, *asking))
    cpu = RecordedDevice(
        backend="opencl", name="CPU", arch="opencl_cpu", max_threads_per_block=4096
    )
    origins = {
        "source": source_fingerprint(kernel),
        "arguments": arguments_fingerprint(kernel, Problem(dict(small.problems[0].problem))),
    }
    entries = [
        msgspec.structs.replace(each, origin=msgspec.structs.replace(each.origin, **origins))
        for each in small.problems
    ]
    made = recomputed(msgspec.structs.replace(small, device=cpu, problems=tuple(entries)), kernel)
    assert checked(made, kernel) == made
    less = msgspec.structs.replace(cpu, max_threads_per_block=1024)
    with pytest.raises(RecordError, match="it breaks fits"):
        checked(msgspec.structs.replace(made, device=less), kernel)


# ---------------------------------------------------------------------- which of two


@pytest.mark.parametrize(
    ("ours", "theirs", "stays", "why"),
    [
        ({}, {}, 64, "tuned again"),  # of one day the one that is brought
        ({"tuned_on": "2026-03-02"}, {"tuned_on": "2026-03-01"}, 32, "tuned later here"),
        ({"effort": "full"}, {"effort": "quick", "tuned_on": "2026-11-20"}, 32, "more effort"),
        ({}, {"median_ms": 2.0, "interval_ms": (1.9, 2.1)}, 32, "faster before"),
        (
            {"source": "a" * 64, "tuned_on": "2026-03-02"},
            {"source": "b" * 64, "tuned_on": "2026-03-01"},
            32,
            "tuned later here",
        ),
    ],
)
def test_of_two_entries_effort_then_speed_and_then_the_date_decide(
    ours: dict[str, Any], theirs: dict[str, Any], stays: int, why: str, tmp_path: Path
) -> None:
    at = {"tuned_on": "2026-03-01", "effort": "quick"}
    first = entry(problem(64, 64), plan(32), **{**at, **ours})
    second = entry(problem(64, 64), plan(64), **{**at, **theirs})
    update(tmp_path, record([first]), by_effort_and_date)
    for _ in range(2):
        merged = update(tmp_path, record([second]), by_effort_and_date)
        assert why in merged.outcomes[0].reason
        assert merged.record.problems[0].configuration["BM"] == stays
