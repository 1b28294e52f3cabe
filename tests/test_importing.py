"""`autotune import`: of what others wrote, only what a run could have written is merged."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sample_records import PARAMETERS, change, entry, plan, problem, record, with_entry

from autotune.cli import run
from autotune.devices.device import Device
from autotune.errors import RecordError
from autotune.kernel.catalog import find_kernel
from autotune.kernel.source import changed_since
from autotune.kernel.spec import Kernel
from autotune.tuned.comparison import check_values
from autotune.tuned.reading import decode, read, read_all
from autotune.tuned.record import RecordedDevice, TunedRecord
from autotune.tuned.writing import encode
from autotune.values import Problem

REPORTS = Path(__file__).parents[1] / "reports"
COPY = REPORTS / "NVIDIA_H200" / "copy.json"
#: All but what this machine's CPU left in opencl_*.
SHIPPED = sorted(REPORTS.glob("[!o]*/*.json"))


FOREIGN = {"configuration": {"BM": 99999, "SWIZZLE": False, "VARIANT": "simt"}}
WRONG = {
    "undeclared value": (with_entry(**FOREIGN), r"\(m=64, .*BM=99999 is not among its values"),
    "day to come": (with_entry(tuned_on="9999-01-01"), "9999-01-01 has not come yet"),
    "large block": (with_entry(block=[1024, 2, 1]), "a block of 2048 threads"),
}


@pytest.mark.parametrize(("data", "message"), WRONG.values(), ids=WRONG)
def test_values_that_no_run_writes_are_refused_and_nothing_is_written(
    data: bytes,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a kernel that is not known here: what the record says of itself has to agree."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with pytest.raises(RecordError, match=rf"demo_gemm on .*: not imported: .*{message}"):
        check_values(decode(data), None)
    (tmp_path / "r.json").write_bytes(data)
    assert run(["import", str(tmp_path / "r.json")]) == 1
    assert "not imported" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def gemm(**changes: Any) -> Kernel:
    """The kernel of the sample records."""
    sizes = [Problem(problem(64, 64))]
    return Kernel("demo_gemm.cu", **{"problems": sizes, **PARAMETERS, **changes})


def two_entries(**changes: Any) -> TunedRecord:
    return record([entry(problem(64, 64)), entry(problem(8, 8), plan(128), **changes)])


def of_today(known: TunedRecord) -> TunedRecord:
    """A record of the first entry's source."""
    provenance = msgspec.structs.replace(known.provenance, source=known.problems[0].origin.source)
    return msgspec.structs.replace(known, provenance=provenance)


def test_configurations_are_of_the_kernels_space_where_it_is_known() -> None:
    kernel = gemm()
    check_values(two_entries(), kernel)

    @kernel.constraint
    def small(BM: int) -> bool:
        """Of half the size."""
        return BM <= 64

    with pytest.raises(RecordError, match=r"\(m=8, .*'BM': 128.* is not in the space"):
        check_values(two_entries(), kernel)
    check_values(of_today(two_entries(source="older")), kernel)


def test_what_a_cpu_could_do_is_not_recorded_and_not_asked_about() -> None:
    """Its blocks, say, may be larger than any GPU's."""
    kernel = gemm()

    @kernel.constraint
    def fits(BM: int, device: Device) -> bool:
        """Into a block."""
        return device.max_threads_per_block >= 64 * BM

    large = plan(128, block=(4096, 1, 1))
    cpu = RecordedDevice(backend="opencl", name="CPU", arch="opencl_cpu")
    made = msgspec.structs.replace(record([entry(problem(8, 8), large)]), device=cpu)
    check_values(made, kernel)
    foreign = plan(configuration={"BM": 256, "SWIZZLE": True, "VARIANT": "simt"})
    made = msgspec.structs.replace(made, problems=(entry(problem(8, 8), foreign),))
    with pytest.raises(RecordError, match="BM=256 is not among its values"):
        check_values(made, kernel)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"MORE": (1,)}, r"another kernel .* parameters BM, .* there, .*MORE here"),
        (
            {"problems": [Problem(m=1)]},
            r"another kernel .* problem fields m, n, dtype there, m here",
        ),
    ],
)
def test_a_record_of_another_kernel_of_that_name_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecordError, match=message):
        check_values(record(), gemm(**changes))


@pytest.mark.parametrize("stale", [False, True])
def test_a_time_that_no_device_reaches_is_refused(stale: bool) -> None:
    """Of a kernel whose work is known; what the record calls stale may have been other work."""
    kernel = find_kernel("copy")
    document = json.loads(COPY.read_text())
    change(document["problems"][0], median_ms=1e-5, **({"source": "older"} if stale else {}))
    forged = decode(json.dumps(document).encode())
    if stale:
        check_values(forged, kernel)
    else:
        with pytest.raises(RecordError, match=r"1e-05 ms is below the device's bound of .*"):
            check_values(forged, kernel)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_what_ships_is_what_a_run_of_these_sources_could_have_written(file: Path) -> None:
    """Who contributes a GPU's records changes nothing else: docs/contribute-a-gpu.md."""
    made, kernel = read(file), find_kernel(file.stem)
    check_values(made, kernel)
    assert (file.parent.name, file.stem) == (made.device.folder, made.kernel)
    assert made.device.backend == "cuda"
    for known in made.problems:
        assert made.stale_reasons(known) == (), dict(known.problem)
        origin = known.origin
        assert not changed_since(kernel, origin.source, origin.arguments), dict(known.problem)
        assert known.checks is not None
        assert known.checks.max_error <= known.checks.bound
    assert (file.parent / f"{made.kernel}.md").is_file()


def test_what_a_run_wrote_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shipped record, against the bundled space; with one value changed it is not."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    mine = tmp_path / "autotune" / "tuned"
    assert run(["import", str(COPY)]) == 0
    (known,) = read_all(mine)
    document = json.loads(COPY.read_text())
    first = document["problems"][0]
    change(first, configuration={**first["plans"][0]["configuration"], "BLOCK": 96})
    (tmp_path / "copy.json").write_text(json.dumps(document))
    assert run(["import", str(tmp_path / "copy.json")]) == 1
    assert read_all(mine) == [known]


# ---------------------------------------------------------------------- whose, and which of two


def put(folder: Path, *entries: Any, name: str = "theirs.json") -> str:
    """A record of the sample kernel as a file."""
    (folder / name).write_bytes(encode(record(list(entries))))
    return str(folder / name)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of records, empty."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "autotune" / "tuned"


def winner(folder: Path) -> Any:
    (known,) = read_all(folder)
    return known.problems[0].configuration["BM"]


@pytest.mark.parametrize(
    ("ours", "theirs", "stays", "why"),
    [
        ({}, {}, 64, "tuned again"),  # of one day the one that is brought
        ({"tuned_on": "2026-03-02"}, {"tuned_on": "2026-03-01"}, 32, "tuned later here"),
        ({"effort": "full"}, {"effort": "quick", "tuned_on": "2026-11-20"}, 32, "more effort"),
        (
            {"source": "a" * 64, "tuned_on": "2026-03-02"},
            {"source": "b" * 64, "tuned_on": "2026-03-01"},
            32,
            "tuned later here",
        ),
    ],
)
def test_of_two_entries_effort_and_then_the_date_decide(
    ours: dict[str, Any],
    theirs: dict[str, Any],
    stays: int,
    why: str,
    mine: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    at = {"tuned_on": "2026-03-01", "effort": "quick"}
    first = put(tmp_path, entry(problem(64, 64), plan(32), **{**at, **ours}), name="first.json")
    assert run(["import", first]) == 0
    capsys.readouterr()
    second = put(tmp_path, entry(problem(64, 64), plan(64), **{**at, **theirs}))
    assert run(["import", second]) == 0
    assert why in capsys.readouterr().out
    assert winner(mine) == stays
    assert run(["import", second]) == 0
    assert why in capsys.readouterr().out and winner(mine) == stays
