"""Finals on a GPU that is not there: what is verified, how often and in which order, and what races."""

import warnings
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.data.dataset import EXACT, RANDOM, Dataset
from autotune.devices.base import Binary
from autotune.devices.device import for_arch
from autotune.kernel.spec import Kernel
from autotune.languages.triton import TritonLanguage
from autotune.measure.measurement import Measurement, Status
from autotune.measure.race import ContenderSamples, Failure, Race
from autotune.measure.tasks import check_at_once
from autotune.measure.timing import Timing
from autotune.measure.worker_state import Job
from autotune.run import bench as run_bench
from autotune.run.finals import Finals
from autotune.run.request import EFFORTS, Request
from autotune.values import Configuration, Problem

GPU = for_arch("sm_90")
CPU = replace(GPU, backend="opencl")
OWN = Problem(n=4096)
BLOCKS = (32, 64, 128, 256, 512)


def kernel(**hooks):
    edges = [Problem(n=127), Problem(n=63, step=5)]
    layout = {"layout": {"step": 1}, "static": ["step"]}
    made = Kernel("x { }", name="x", problems=[OWN], edge_problems=edges, **layout, BLOCK=BLOCKS)
    for name, function in hooks.items():
        getattr(made, name)(function)
    return made


def job(n, **layout):
    problem = Problem(n=n, **layout)
    return Job(b"", problem, GPU, (Dataset(RANDOM, Path(f"of {problem}"), (), {}),))


def row(block):
    """The larger the block, the slower."""
    samples_ms = (block / 100,) * 3
    return Measurement(Configuration(BLOCK=block), Status.OK, samples_ms=samples_ms)


class Bench:
    """The processes of a run. Results are right, except where ``wrong`` names the call."""

    def __init__(self, kernel, *odd, device=GPU, wrong=(), message="", call_s=0.0, finalists=5):
        self.kernel, self.device, self.jobs = kernel, device, [*odd, job(4096)]
        effort = replace(EFFORTS["quick"], finalists=finalists)
        self.request = Request(kernel, device, (OWN,), effort)
        self.worker = self.compilers = self
        self.wrong, self.message, self.call_s = wrong, message, call_s
        #: Calls of the worker: what, the size, the block, and the binary.
        self.calls, self.submitted, self.suggested, self.now_s = [], [], [], 0.0
        self.off_budget = nullcontext

    def called(self, what):
        return [(n, block) for kind, n, block, _ in self.calls if kind == what]

    def clock_s(self):
        return self.now_s

    def scope(self, problem):
        return problem

    def other_jobs(self, _):
        return self.jobs

    def make_data(self, wanted, seed=None):
        pass

    def compile_job(self, configuration, problem):
        return configuration, problem

    def submit(self, asked):
        self.submitted.append((asked[1].n, asked[0].BLOCK))

    def suggest(self, asked):
        self.suggested += [(problem.n, configuration.BLOCK) for configuration, problem in asked]

    def result(self, asked):
        own = OWN if self.kernel.shares_binary(asked[1], OWN) else asked[1]
        return SimpleNamespace(binary=Binary(b"", (), "", f"of n={own.n}"), message="")

    def drop(self):
        pass

    compiled, verify = run_bench.Bench.compiled, run_bench.Bench.verify

    def measure(self, job, configuration, binary, task):
        if task is check_at_once:
            return replace(self._answer("twice", job, configuration, binary), message=self.message)
        return self._answer("alone", job, configuration, binary)

    def _answer(self, what, job, configuration, binary):
        call = (what, job.problem.n, configuration.BLOCK)
        self.now_s += self.call_s
        self.calls.append((*call, binary.key))
        return replace(
            row(call[2]), status=Status.WRONG_RESULT if call in self.wrong else Status.OK
        )


class AllSizesRight:
    """Stands for `OtherSizes`; verifies all finalists at one size."""

    def __init__(self, bench, job, known, check, *_):
        self.check = check

    def verified(self, finalists):
        for each in finalists:
            self.check(each, job(97))
        return list(finalists), []


@pytest.fixture
def held(monkeypatch):
    """Hold finals of all blocks on a bench; return the contenders and seconds of each race."""
    races = []

    def made(bench, seconds=100.0, failing=(), finals=None):
        def race(worker, job, contenders, rules):
            races.append(([one.vendor or one.configuration.BLOCK for one in contenders], rules))
            samples = [
                ContenderSamples(failure=Failure(Status.CRASHED, "died"))
                if one.configuration.get("BLOCK") in failing
                else ContenderSamples((1.0,))
                for one in contenders
            ]
            return Race(tuple(contenders), tuple(samples), Timing.COLD_GRAPH)

        monkeypatch.setattr("autotune.run.finals.race", race)
        monkeypatch.setattr("autotune.run.finals.OtherSizes", AllSizesRight)
        stored = []
        store = SimpleNamespace(add_many=lambda *added: stored.append(added))
        finals = finals or Finals(bench, store, 1, lambda event: None)
        races.clear()
        result, out = finals.hold(bench.jobs[-1], [row(block) for block in BLOCKS], seconds)
        done = {"result": result, "out": out, "stored": stored, "finals": finals}
        return SimpleNamespace(races=list(races), **done)

    return made


@pytest.mark.parametrize(
    ("device", "hooks", "sizes"),
    [
        (GPU, {}, {127, 4096}),
        (CPU, {}, {4096}),
        (GPU, {"exclusive": lambda c: True}, set()),
        (GPU, {"requires": lambda c, p: p.n != 127}, {63, 4096}),
    ],
    ids=["GPU", "CPU", "exclusive", "requires"],
)
def test_finalists_run_twice_at_once_on_the_problem_and_on_a_gpu_at_the_largest_odd_size(
    held, device, hooks, sizes
):
    bench = Bench(kernel(**hooks), job(127), job(63), device=device)
    ((raced, _),) = held(bench).races
    assert raced == list(BLOCKS)
    assert set(bench.called("twice")) == {(n, block) for n in sizes for block in BLOCKS}
    allowed = {63, 4096, 97} | ({127} if "requires" not in hooks else set())
    assert set(bench.called("alone")) == {(n, block) for n in allowed for block in BLOCKS}


def test_what_shares_state_between_launches_is_out(held):
    bench = Bench(kernel(), job(63), wrong=[("twice", 63, 64)])
    done = held(bench, failing=[128])
    assert done.races[0][0] == [32, 128, 256, 512]
    assert [found.configuration.BLOCK for found in done.out] == [64, 128]
    assert done.out[0].message.startswith("its launches share state: two launches at once on n=63")


@pytest.mark.parametrize(("message", "count"), [("", 0), ("no memory", 1)])
def test_two_launches_that_were_not_tried_are_told(held, message, count):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        held(Bench(kernel(), message=message, finalists=1))
    assert ["two launches at once were not tried" in str(each.message) for each in told] == (
        [True] * count
    )


def test_what_is_compiled_in_differs_from_the_problem_of_the_finals(held):
    bench = Bench(kernel(), job(63, step=5), job(127))
    held(bench)
    binaries = {n: key for _, n, _, key in bench.calls}
    assert binaries == {63: "of n=63", 127: "of n=4096", 4096: "of n=4096", 97: "of n=4096"}
    assert bench.submitted == [(63, block) for block in BLOCKS]


def test_a_language_compiles_for_each_size(held):
    """Triton's binary may know that 16 divides a size, and is wrong for others."""
    declared = kernel()
    declared.language = TritonLanguage()
    bench = Bench(declared, job(63, step=5), job(127))
    held(bench)
    binaries = {n: key for _, n, _, key in bench.calls}
    assert binaries == {63: "of n=63", 127: "of n=127", 4096: "of n=4096", 97: "of n=97"}


@pytest.mark.parametrize(
    ("hooks", "raced"),
    [
        ({}, [32, 64, 128]),
        ({"deterministic": lambda c, p: c.BLOCK >= 256}, [256, 32, 64]),
    ],
    ids=["best", "deterministic"],
)
def test_with_no_time_three_are_verified_the_best_deterministic_one_among_them(held, hooks, raced):
    bench = Bench(kernel(**hooks), job(63, step=5), call_s=1.0)
    bench.now_s = 1.0  # so that the time was over before
    done = held(bench, seconds=-1.0)
    assert done.races[0][0] == raced
    assert {block for _, block in bench.submitted} == set(raced)
    bench.now_s = 0.0
    known = held(bench, finals=done.finals)
    assert sorted(known.races[0][0]) == list(BLOCKS)
    bench.calls.clear()
    again = held(bench, seconds=-1.0, finals=done.finals)
    assert (sorted(again.races[0][0]), bench.calls) == (list(BLOCKS), [])


def test_half_of_the_time_is_for_verifying(held):
    """Two calls of a second for each finalist."""
    assert held(Bench(kernel(), call_s=1.0), seconds=8.0).races[0][0] == [32, 64, 128]


def test_those_that_had_no_turn_race_where_all_others_fail(held):
    done = held(Bench(kernel(), call_s=1.0), seconds=0.0, failing=[32, 64, 128])
    assert [raced for raced, _ in done.races] == [[32, 64, 128], [256, 512]]
    assert done.result is not None
    assert [found.message for found in done.out] == ["in the finals: died"] * 3


def test_a_size_that_ran_alone_in_other_finals_runs_twice_where_it_is_the_largest(held):
    bench = Bench(kernel(), job(63), job(127), finalists=1)
    done = held(bench)
    assert (63, 32) not in bench.called("twice")
    bench.jobs = [job(63), job(4096)]
    held(bench, finals=done.finals)
    assert (63, 32) in bench.called("twice")


@pytest.mark.parametrize(
    ("device", "seconds", "expected_s"), [(GPU, 0, 2), (GPU, 1000, 60), (GPU, 9, 9), (CPU, 99, 3)]
)
def test_the_race_gets_the_time_that_is_left(held, device, seconds, expected_s):
    ((_, rules),) = held(Bench(kernel(), device=device), seconds).races
    assert rules.max_seconds == expected_s


def test_vendors_of_the_backend_race_and_alone_they_are_no_result(held):
    made = kernel()
    made.baseline("cublas")(lambda: None)
    made.baseline("clblast", "opencl")(lambda: None)
    bench = Bench(made)
    done = held(bench, failing=BLOCKS)
    assert done.races[0][0] == [*BLOCKS, "cublas"]
    assert done.result is None
    assert len(done.out) == len(BLOCKS)
    assert done.stored == [(1, bench.jobs[-1].problem, list(done.out))]


def test_compilers_begin_with_sizes_that_compile_otherwise():
    bench = Bench(kernel(requires=lambda c, p: p.n != 63 or c.BLOCK > 32))
    finals = Finals(bench, SimpleNamespace(), 1, lambda event: None)
    finals.expect(OWN, [row(block) for block in BLOCKS])
    assert bench.suggested == [(63, block) for block in BLOCKS[1:]]


def test_data_of_another_seed_are_brought_to_the_first_device():
    def dataset(name, seed):
        return SimpleNamespace(name=name, seed=seed)

    made, placed = kernel(), []
    bench = SimpleNamespace(
        request=Request(made, GPU, (OWN,)),
        kernel=made,
        device=GPU,
        worker="worker",
        site=SimpleNamespace(
            place=lambda worker, job: placed.append((worker, job)),
        ),
        off_budget=nullcontext,
        make_data=lambda *_: None,
        job=lambda problem, seed: (problem, seed),
        _data_of_finals=lambda problem: {},
        _dataset=lambda problem, name, seed: dataset(name, seed),
        _agreed=lambda job: job,
    )
    given = Job(b"", OWN, GPU, (dataset(EXACT, 0), dataset(RANDOM, 0)))
    *edges, own = run_bench.Bench.other_jobs(bench, given)
    assert edges == [(edge, 1) for edge in made.edges_like(OWN, GPU)]
    assert own.datasets == (dataset(EXACT, 0), dataset(RANDOM, 1))
    assert placed == [("worker", own)]
