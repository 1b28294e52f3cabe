"""The last step of a run and `autotune sizes`: which sizes and configurations are timed, continued, left out."""

import json
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sample_spaces import write_space
from tuned_project import record_file

from autotune.cli import run
from autotune.data.dataset import RANDOM
from autotune.data.prepare import prepare_dataset
from autotune.devices.choose import choose_device
from autotune.devices.device import for_arch
from autotune.kernel.catalog import find_kernel, load_file
from autotune.kernel.source import arguments_fingerprint, source_fingerprint
from autotune.kernel.space import enumerate_space
from autotune.measure import rotation
from autotune.measure.rotation import RotatedArrays, first_time, raced
from autotune.measure.worker_state import Job
from autotune.run.answering import AnswerTimer, Binaries, stored_sizes
from autotune.run.bench import Bench
from autotune.run.continuing import candidates_of
from autotune.run.drawing import random_sizes
from autotune.run.request import Request
from autotune.run.size_times import Chooser, TimeMatrix
from autotune.search.session import ignore
from autotune.store import RunInfo, SizeTimes, Store, default_url
from autotune.tuned.reading import read
from autotune.values import Configuration, Problem

H200 = Path(__file__).parents[1] / "reports" / "NVIDIA_H200"
ON_CPU = ("--device", "opencl:cpu")
#: Ends with the random sizes, not with the time.
LONG = ("--budget", "60s")
LONGER = ("--strategy", "random", "--budget", "6evals", *ON_CPU)


def sgemm_sizes(seed: int, count: int) -> list[tuple[int, ...]]:
    device = read(H200 / "sgemm.json").device.planned_for()
    found = islice(random_sizes(find_kernel("sgemm"), device, seed), count)
    return [(p.m, p.n, p.k) for p in found]


# ---------------------------------------------------------------- drawing


def test_sizes_are_of_all_kinds_and_the_same_by_seed() -> None:
    drawn = sgemm_sizes(1, 400)
    assert drawn == sgemm_sizes(1, 400)
    assert drawn != sgemm_sizes(2, 400)
    assert len(set(drawn)) == 400
    large = [sizes for sizes in drawn if min(sizes) >= 64]
    in_64 = sum(all(size % 64 == 0 for size in sizes) for sizes in large)
    odd = sum(any(size % 8 for size in sizes) for sizes in large)
    assert in_64 > len(large) / 5
    assert odd > len(large) / 5
    assert sum(16 <= k <= 70 for _, _, k in drawn) > 50
    assert any(min(sizes) < 16 for sizes in drawn)
    assert max(2 * m * n * k for m, n, k in drawn) < 1e12  # ten milliseconds and more


def test_every_category_is_drawn_about_as_often() -> None:
    """Of ten declared products eight are of halves."""
    kernel, device = find_kernel("hgemm"), read(H200 / "sgemm.json").device.planned_for()
    drawn = islice(random_sizes(kernel, device, 1), 300)
    counts = Counter((size["dtype"], size["out_dtype"]) for size in drawn)
    assert len(counts) == 3 and min(counts.values()) > 80


# ---------------------------------------------------------------- configurations


def test_candidates_are_portfolios_winners_and_ties() -> None:
    record, kernel = read(H200 / "sgemm.json"), find_kernel("sgemm")
    found = candidates_of([record, record], kernel, record.device.planned_for())
    assert kernel.default() == found[0]
    assert len(set(found)) == len(found) >= len(record.portfolio.configurations)
    assert all(dict(entry.configuration) in map(dict, found) for entry in record.problems)
    races = [entry.race for entry in record.problems if entry.race]
    finalists = [
        finalist for race in races for finalist in race.contenders if finalist.configuration
    ]
    slower = [f.configuration for f in finalists if not f.tied]
    assert all(f.configuration in map(dict, found) for f in finalists if f.tied)
    assert any(configuration not in map(dict, found) for configuration in slower)


def test_a_later_configuration_is_chosen_until_a_fit_has_it() -> None:
    """In addition to the configurations that a fit prefers; here it is the slowest by far."""
    kernel, record = find_kernel("sgemm"), read(H200 / "sgemm.json")
    device = record.device.planned_for()
    every = [c for c in candidates_of([record], kernel, device) if c["SOURCE"] == "cuda"][:30]
    sizes = [Problem(m=m, n=n, k=k) for m, n, k in sgemm_sizes(5, 600) if min(m, n, k) >= 64]
    late, first, second, third = every[-1], sizes[:200], sizes[200:248], sizes[248:272]
    matrix = TimeMatrix(every)

    def measure(problems: list[Problem], count: int) -> None:
        for size in problems:
            work = 1e-9 * size["m"] * size["n"] * size["k"]
            matrix.add(SizeTimes(size, {c: (1 + n) * work for n, c in enumerate(every[:count])}))

    measure(first, len(every) - 1)
    chooser = Chooser(matrix, kernel, device, 1)
    for problem in third:
        chosen = chooser.chosen(problem)
        assert late in chosen and len(chosen) == len(set(chosen)) <= 1 + 16 + 4
    measure(second, len(every))
    assert sum(late in chooser.chosen(problem) for problem in third) < len(third)


def test_a_matrix_has_the_newest_times_and_leaves_out_empty_sizes() -> None:
    one, two, late = (Configuration(BM=n) for n in (1, 2, 3))
    matrix = TimeMatrix(
        [one],
        [
            SizeTimes(Problem(m=1), {one: 1.0, two: 2.0}),
            SizeTimes(Problem(m=2), {}),
            SizeTimes(Problem(m=3), {one: 3.0}),
            SizeTimes(Problem(m=1), {two: 4.0, late: 5.0}),
        ],
    )
    portfolio = matrix.portfolio()
    assert Problem(m=2) in matrix and len(matrix) == 3
    assert portfolio.configurations == ({"BM": 1}, {"BM": 2}, {"BM": 3})
    assert portfolio.problems == ({"m": 1}, {"m": 3})
    assert portfolio.median_ms == ((1.0, 3.0), (4.0, None), (5.0, None))


@pytest.mark.slow
def test_sizes_share_the_binaries_of_their_category() -> None:
    """A language compiles one for each kind of size."""
    device = read(H200 / "sgemm.json").device.planned_for()
    for name, alike, other in (
        (
            "reduce_op",
            [Problem(n=n, op="sum", dtype="int32") for n in (1000, 2001)],
            Problem(n=1000, op="sum", dtype="float16"),
        ),
        (
            "softmax",
            [Problem(rows=rows, columns=512, dtype="float32") for rows in (64, 640)],
            Problem(rows=64, columns=1024, dtype="float32"),
        ),
    ):
        kernel = find_kernel(name)
        chosen = kernel.default()
        with closing(Bench(Request.without_search(kernel, device, (other,)))) as bench:
            binaries = Binaries(bench)
            first, second, third = (binaries.of([(p, chosen)])[p, chosen] for p in (*alike, other))
            assert first is second
            assert first.binary != third.binary


# ---------------------------------------------------------------- times


def test_rounds_end_with_their_time() -> None:
    class Runner:
        def __init__(self) -> None:
            self.samples = 0

        def sample_ms(self) -> float:
            self.samples += 1
            return float(self.samples)

    runners = {"a": Runner(), "b": Runner()}
    begun = list[str]()
    assert raced(runners, 0.1, until_s=0.0, begin=begun.append) == {"a": 1.0, "b": 1.0}
    assert sorted(begun) == ["a", "b"]
    assert raced(runners, 0.1) == {"a": 4.0, "b": 4.0}  # of five more
    assert raced(runners, 1.0) == {"a": 8.0, "b": 8.0}  # of three more


@pytest.mark.opencl
def test_a_pair_that_kills_the_process_is_left_out(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.run.answering._SIZES_PER_TASK", 1)
    source = project / "kernels" / "saxpy.cu"
    text = source.read_text()
    crash = "#if BLOCK == 64\n  *(volatile float*)0 = 1.0f;\n#endif\n"
    at = text.index("if (i < n)")
    source.write_text(text[:at] + crash + text[at:])
    kernel, device = find_kernel("saxpy", project / "spaces"), choose_device("opencl:cpu")
    bad, good = Configuration(BLOCK=64, ITEMS=8), Configuration(BLOCK=128, ITEMS=8)
    matrix = TimeMatrix([bad, good])
    request = Request.without_search(kernel, device, (Problem(n=5003),))
    info = RunInfo("saxpy", device.name, "sizes", 1, "", "")
    with closing(Bench(request)) as bench, Store.open(default_url()) as store:
        timer = AnswerTimer(bench, store, store.begin_run(info), ignore)
        with pytest.warns(UserWarning, match="BLOCK=64, ITEMS=8 is not timed"):
            timer.time_random_sizes(matrix, 1, 0.1)
        assert matrix.portfolio().median_ms[0] == (None,) * len(matrix)
        assert all(matrix.portfolio().median_ms[1])
        assert len(stored_sizes(bench, store)) == len(matrix) >= 1
        assert stored_sizes(bench, store, {good})[0].times_ms == {}


# ---------------------------------------------------------------- `autotune sizes`


def saxpy() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(record_file("saxpy").read_text())
    return found


def sizes_in_store(project: Path) -> list[SizeTimes]:
    kernel, device = find_kernel("saxpy", project / "spaces"), choose_device("opencl:cpu")
    arguments = [arguments_fingerprint(kernel, problem) for problem in kernel.all_problems()]
    with Store.open(default_url()) as store:
        return store.sizes("saxpy", source_fingerprint(kernel), device.name, arguments)


@pytest.fixture
def draw_few(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let commands draw two random sizes; the function changes their number."""

    def draw(count: int) -> None:
        monkeypatch.setattr(
            "autotune.run.answering.random_sizes", lambda *args: islice(random_sizes(*args), count)
        )

    draw(2)
    return draw


@pytest.mark.opencl
def test_sizes_are_timed_once_and_continued(
    project: Path, capsys: pytest.CaptureFixture[str], draw_few: Callable[[int], None]
) -> None:
    for n in (70001, 400):
        assert run(["run", "saxpy", "--problem", f"n={n}", *LONGER]) == 0
    before = saxpy()
    assert before["portfolio"]["problems"] == []
    assert run(["sizes", "saxpy", *ON_CPU, *LONG]) == 0
    after = saxpy()
    assert after["problems"] == before["problems"]
    matrix = after["portfolio"]
    assert matrix["problems"] == [entry["problem"] for entry in after["problems"]]
    for entry in after["problems"]:
        assert entry["plans"][0]["configuration"] in matrix["configurations"]
    assert all(time_ms > 0 for row in matrix["median_ms"] for time_ms in row)
    timed = sizes_in_store(project)
    tuned = [Problem(entry["problem"]) for entry in after["problems"]]
    assert {row.problem for row in timed[:3]} == set(tuned)
    random = timed[3:]
    assert random and all(0 < ms < 100 for row in random for ms in row.times_ms.values())
    capsys.readouterr()
    draw_few(4)
    assert run(["sizes", "saxpy", *ON_CPU, *LONG]) == 0
    assert saxpy()["portfolio"]["median_ms"] == matrix["median_ms"]
    again = sizes_in_store(project)
    assert again[: len(timed)] == timed
    assert len({row.problem for row in again}) == len(again) > len(timed)
    said = capsys.readouterr().out
    assert f"on 3 tuned problems and {len(again) - 3} random sizes\n" in said
    assert run(["sizes", "saxpy", *ON_CPU, *LONG, "--fresh"]) == 0
    assert len(sizes_in_store(project)) >= len(again) + 3
    assert run(["results", "--runs", "--last", "1"]) == 0
    assert "autotune sizes saxpy --budget 60s" in capsys.readouterr().out


@pytest.mark.opencl
@pytest.mark.usefixtures("draw_few")
def test_seeds_are_timed_if_they_are_correct(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """twin is wrong where BLOCK is 1024."""
    space = project / "spaces" / "twin.py"
    seeds = [{"BLOCK": block, "ITEMS": 8} for block in (32, 1024)]
    space.write_text(
        space.read_text().replace("    BLOCK=(", f"    seeds={seeds},\n    BLOCK=(", 1)
    )
    assert run(["sizes", "twin", *ON_CPU, *LONG]) == 0
    with Store.open(default_url()) as store, store.reading() as connection:
        timed = connection.exec_driver_sql("SELECT times FROM sizes").scalars().all()
    assert any('"BLOCK":32,"ITEMS":8' in text for text in timed)
    assert not any('"BLOCK":1024' in text for text in timed)
    assert "BLOCK=1024, ITEMS=8 is left out: wrong_result" in capsys.readouterr().err


@pytest.mark.opencl
def test_only_sizes_that_a_configuration_allows_are_timed(
    project: Path, draw_few: Callable[[int], None]
) -> None:
    space = project / "spaces" / "saxpy.py"
    rule = "\n\n@saxpy.requires\ndef requires(c, p):\n    return p.n % 2 == 1\n"
    space.write_text(space.read_text() + rule)
    assert run(["retune", "saxpy", *LONGER]) == 0
    draw_few(40)
    assert run(["sizes", "saxpy", *ON_CPU, *LONG]) == 0
    timed = [row.problem["n"] for row in sizes_in_store(project)]
    assert len(timed) > 2 and all(n % 2 for n in timed)


@pytest.mark.opencl
@pytest.mark.usefixtures("draw_few")
def test_a_matrix_that_is_far_wider_stays(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The little time that there was would cost other sizes their answers."""
    assert run(["run", "saxpy", "--problem", "n=400", *LONGER]) == 0
    kernel, device = find_kernel("saxpy", project / "spaces"), choose_device("opencl:cpu")
    document = saxpy()
    wide = [dict(configuration) for configuration in enumerate_space(kernel, device)]
    document["portfolio"] = {
        "configurations": wide,
        "problems": [entry["problem"] for entry in document["problems"]],
        "median_ms": [[1.0, 2.0]] * len(wide),
    }
    record_file("saxpy").write_text(json.dumps(document))
    assert run(["sizes", "saxpy", *ON_CPU, *LONG, "--fresh"]) == 0
    assert f"record keeps its {len(wide)} on 2; give a larger budget" in capsys.readouterr().err
    assert saxpy()["portfolio"]["configurations"] == wide


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("saxpy", "--budget", "5evals"), "--budget must be a time"),
        (("transpose",), "nothing is tuned for"),
    ],
)
def test_a_request_without_record_or_time_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    assert run(["sizes", *arguments, *ON_CPU]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.opencl
@pytest.mark.usefixtures("draw_few")
def test_a_kernel_that_changed_is_tuned_first(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = project / "kernels" / "saxpy.cu"
    source.write_text(source.read_text() + "\n#define CHANGED\n")
    assert run(["sizes", "saxpy", *ON_CPU]) == 2
    assert "the kernel changed after it was tuned" in capsys.readouterr().err

    assert run(["run", "saxpy", "--problem", "n=400", *LONGER]) == 0
    before = saxpy()["problems"]
    assert len({entry["origin"]["source"] for entry in before}) == 2
    capsys.readouterr()
    assert run(["sizes", "saxpy", *ON_CPU, *LONG]) == 0
    said = capsys.readouterr().err
    assert "of 2 tuned problems take no part" in said and "retune saxpy --stale" in said
    after = saxpy()
    assert after["problems"] == before
    assert after["portfolio"]["problems"] == [{"n": 400}]


@pytest.mark.parametrize(
    ("taken_ms", "counted_ms"), [((0.1,), 0.1), ((0.4, 0.1), 0.1), ((0.4, 0.5), 0.4)]
)
def test_a_first_call_that_takes_long_is_repeated(
    taken_ms: tuple[float, ...], counted_ms: float
) -> None:
    calls = iter(taken_ms)
    assert first_time(lambda: next(calls), 0.3) == counted_ms
    assert not list(calls)


def test_a_size_is_timed_on_the_jobs_data_else_on_random_numbers_and_given_integers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = 'return {"x": x, "order": np.arange(p.n, dtype=np.int32), '
    kernel = load_file(write_space(tmp_path, ('return {"x": x, ', order)))
    problem, device = Problem(n=1000), for_arch("sm_90")
    dataset = prepare_dataset(kernel, problem, RANDOM)
    executor = SimpleNamespace(
        device=device, allocate=lambda nbytes: [nbytes], write=lambda b, array: b.append(array)
    )
    current = executor, SimpleNamespace(datasets={RANDOM: dataset}), kernel
    monkeypatch.setattr(rotation.worker_state, "current", lambda: current)
    job = Job(kernel.file, problem, device, (dataset,))
    for n in (1000, 500):
        for buffers in RotatedArrays(job, Problem(n=n)).sets:
            (x_bytes, x), (order_bytes, order) = buffers["x"], buffers["order"]
            assert (x_bytes, order_bytes, buffers["out"]) == (4 * n, 4 * n, [4 * n])
            np.testing.assert_array_equal(order, np.arange(n))
            assert np.array_equal(x, dataset.array("x")) == (n == 1000)
            assert 0.8 < x.std() < 1.2
