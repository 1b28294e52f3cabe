"""Related problems and other devices in a search."""

import time
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sample_records import write
from sample_spaces import write_space

from autotune.devices.choose import choose_device
from autotune.devices.device import for_arch
from autotune.kernel.catalog import find_kernel, load_file
from autotune.kernel.space import Space, enumerate_space
from autotune.measure.measurement import Measurement, Status
from autotune.run import searching
from autotune.run.recording import record_of
from autotune.run.request import Request, Search, VerifyOne
from autotune.run.run import Run
from autotune.run.searching import (
    ProblemSearch,
    SearchedProblem,
    coordinates,
    recorded,
    winners_near,
)
from autotune.search.base import RelatedProblem
from autotune.search.proposals import Proposer
from autotune.search.session import Budget, ignore
from autotune.store import Store
from autotune.values import Configuration, Problem

pytestmark = pytest.mark.usefixtures("kept_processes")

ROOT = Path(__file__).parents[1]
REPORTS, H100 = ROOT / "reports", "NVIDIA_H100_80GB_HBM3"
GRID = Space(
    {"A": tuple(range(24)), "B": tuple(range(24))},
    np.indices((24, 24)).reshape(2, -1).T.astype(np.int16),
)


def time_ms(number, best):
    """Best where A and B are so."""
    a, b = divmod(number, 24)
    return 1 + (a - best[0]) ** 2 / 20 + (b - best[1]) ** 2 / 20


def timed(number, ms, status=Status.OK):
    return Measurement(GRID.configuration(number), status, samples_ms=(ms,))


def related(place, best, scale=1.0):
    """60 random configurations at another size, in other units."""
    numbers = np.random.default_rng(0).choice(len(GRID), 60, replace=False)
    measured = {int(n): timed(int(n), scale * time_ms(int(n), best)) for n in numbers}
    return RelatedProblem((place,), measured)


def evaluations_to_best(proposer, best):
    for count in range(1, len(GRID) + 1):
        number = proposer.ask()
        assert number is not None
        proposer.tell(number, time_ms(number, best))
        if time_ms(number, best) == 1:
            return count
    raise AssertionError("never asked for")


def median_to_best(problems):
    counts = [
        evaluations_to_best(Proposer(GRID, np.random.default_rng(seed), (0.0,), problems), (15, 5))
        for seed in range(5)
    ]
    return float(np.median(counts))


# --- the model


def test_what_is_alike_at_another_size_is_found_sooner_and_what_is_not_costs_little():
    """Times there are a hundred times as long: only their order is worth anything."""
    alone = median_to_best([])
    alike = median_to_best([related(0.5, (15, 5), scale=100.0)])
    unlike = median_to_best([related(1.0, (2, 20), scale=0.01)])
    assert alike < alone
    assert unlike <= alone + 10


def test_what_is_compiled_is_asked_for_before_what_promises_little_more():
    problems = [related(0.1, (15, 5))] * 4
    measured = problems[0].measurements

    def proposer():
        return Proposer(GRID, np.random.default_rng(0), (0.0,), problems, compiled=measured)

    first = proposer().ask()
    assert first == min(measured, key=lambda n: measured[n].median_ms or 0.0)
    assert proposer().ask(compiled=True) == first
    assert proposer().ask(compiled=False) not in measured


# --- coordinates


def test_coordinates_are_octaves_twos_and_words_that_differ():
    here = Problem(m=4096, n=3, kind="sum")
    there = Problem(m=4097, n=3, kind="max")
    own, others = coordinates([here, there])
    assert own == (3.0, 1.0, 0.0)
    assert others == pytest.approx((3.0, 0.0, 1.0), abs=1e-3)
    assert coordinates([here]) == [()]
    assert coordinates([Problem(m=0), Problem(m=16)]) == [(0.0, 0.0), (1.0, 1.0)]


# --- winners of other problems


def searched(best, **sizes):
    return SearchedProblem(
        Problem(**sizes), None, {}, (timed(99, 2.0), timed(best, 1.0)), 0.0, "", frozenset()
    )


def test_the_winners_of_the_eight_nearest_problems_come_first():
    sizes = [searched(k, n=1 << k, kind="sum") for k in (*range(10, 20), *range(9))]
    other = searched(30, n=1 << 12, kind="max")
    found = winners_near(
        Problem(n=3 << 12, kind="sum"), [other, *sizes, searched(12, n=1 << 13, kind="sum")]
    )
    assert [GRID.index(each) for each in found] == [14, 13, 12, 15, 16, 11, 17]  # 12 twice


# --- a run


@pytest.mark.opencl
def test_a_run_begins_with_what_is_recorded(tmp_path, monkeypatch):
    """So that however short it is it finds nothing worse than what was known on this device."""
    kernel = find_kernel("saxpy", ROOT / "examples" / "saxpy" / "spaces")
    device, problem = choose_device("opencl:cpu"), Problem(n=4096)
    winner = Configuration({**kernel.default(), "BLOCK": 512})
    assert winner != kernel.default()

    def measured(name, **options):
        request = Request(kernel, device, (problem,), **{"goal": Search(fresh=True), **options})
        with Store.open(tmp_path / name) as store, closing(Run(request, store)) as tuning:
            return tuning.run()

    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path / "tuned"))
    write(tmp_path / "tuned", record_of(measured("a.sqlite", goal=VerifyOne(winner))))
    assert recorded(kernel, device, problem) == [winner]
    assert recorded(find_kernel("copy"), device, problem) == []
    (found,) = measured("b.sqlite", budget=Budget(evaluations=1)).problems
    assert [row.configuration for row in found.measured] == [winner]


def test_compilers_of_a_gpu_begin_with_all_of_a_small_space(tmp_path):
    class Begun(Exception):
        """The search would draw its data next."""

    def job_to_search(*_):
        raise Begun

    kernel, suggested = load_file(write_space(tmp_path)), []
    (problem,) = kernel.problems["cuda"]
    for budget, count in ((Budget(60), 2), (Budget(None, 1), 1), (Budget(None, 2), 2)):
        bench = SimpleNamespace(
            kernel=kernel,
            device=for_arch("sm_90"),
            request=Request(kernel, for_arch("sm_90"), (problem,)),
            clock_s=time.monotonic,
            start=lambda: suggested.clear(),
            compilers=SimpleNamespace(suggest=suggested.extend),
            compile_job=lambda configuration, problem: configuration["BLOCK"],
            job_to_search=job_to_search,
        )
        with pytest.raises(Begun):
            ProblemSearch(bench, None, 1, ignore).search(
                problem, enumerate_space(kernel, bench.device), budget, []
            )
        assert suggested == [32, 64][:count]


def test_the_seconds_of_a_search_and_of_its_continuation_add_up(monkeypatch):
    clock_s = iter((100.0, 102.5, 200.0, 204.0))
    problem = Problem(n=1000)
    bench = SimpleNamespace(
        device=SimpleNamespace(is_cuda=False),
        request=SimpleNamespace(seed=0, effort=SimpleNamespace(finalists=1)),
        clock_s=lambda: 0.0,
        start=lambda: None,
        job_to_search=lambda *_: (None, None),
        worker=SimpleNamespace(prepare=lambda _: None),
        compilers=SimpleNamespace(drop=lambda: None),
    )
    session = SimpleNamespace(
        measurements={},
        awaited={},
        known=list,
        remembered=list,
        ended_by="budget",
        outlook=None,
        finish=lambda _: False,
    )
    evaluator = nullcontext(SimpleNamespace(twins={}, job=None))
    for name, result in (("_first", []), ("_evaluator", evaluator), ("_session", session)):
        monkeypatch.setattr(ProblemSearch, name, lambda *_, result=result: result)
    monkeypatch.setattr(ProblemSearch, "_strategy", lambda *_: None)
    monkeypatch.setattr(searching, "search", lambda *_: None)
    monkeypatch.setattr(searching, "time", SimpleNamespace(monotonic=lambda: next(clock_s)))
    search = ProblemSearch(bench, None, 1, ignore)
    first = search.search(problem, GRID, Budget(), [])
    again = search.search(problem, GRID, Budget(), [first])
    assert [(found.seconds, found.searches) for found in (first, again)] == [(2.5, 1), (6.5, 2)]
