"""A race goes on without the contender that failed, whatever the failure took with it."""

import os
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from sample_spaces import SOURCE, changed, counting, write_space

from autotune.compiling.binaries import compile_now
from autotune.compiling.job import compile_job
from autotune.data.dataset import EXACT, RANDOM
from autotune.data.prepare import prepare_dataset
from autotune.devices.base import ContextLostError, LaunchError
from autotune.devices.choose import choose_device
from autotune.devices.device import for_arch
from autotune.kernel.catalog import load_file
from autotune.measure import race as racing
from autotune.measure import verify
from autotune.measure.device_worker import DeviceWorker, device_actor
from autotune.measure.measurement import Status
from autotune.measure.race import Contender, RaceRules, race
from autotune.measure.timing import Caches
from autotune.measure.verify import WrongResult
from autotune.measure.worker_state import Job
from autotune.values import Configuration, Problem

BLOCKS = (32, 64, 128)
BAD = 64
#: Turn of the bad one at which it fails: the first launch is one, then a turn a round.
TURN = 4
#: Longest turn of the worker here; only the kernel that is meant to hang takes it.
LIMIT_S = 4.0
#: What a sabotaged heat takes at least.
HEAT_S = 0.2


@pytest.fixture(scope="module")
def worker():
    with DeviceWorker(device_actor(), LIMIT_S) as made:
        yield made


@pytest.fixture
def job(tmp_path, opencl_device):
    """The job of ``scale`` with some pieces of its space file changed."""

    def made(*edits):
        kernel = load_file(write_space(tmp_path, *edits))
        sets = tuple(prepare_dataset(kernel, Problem(n=1000), which) for which in (EXACT, RANDOM))
        return Job(kernel.file, Problem(n=1000), choose_device(opencl_device), sets)

    return made


def contenders(job):
    kernel = load_file(job.origin)
    made = []
    for block in BLOCKS:
        configuration = Configuration(BLOCK=block)
        compiled = compile_now(compile_job(kernel, configuration, job.problem, job.device))
        assert compiled.binary is not None, compiled.message
        made.append(Contender(configuration, compiled.binary))
    return made


def counts(raced):
    """The number of rounds of each contender."""
    return [len(samples.times_ms) for samples in raced.samples]


# ---------------------------------------------------------------- in the worker


class Failing:
    """A timer whose launches fail from some turn on."""

    def __init__(self, timer, kind):
        self.timer, self.kind, self.turns = timer, kind, 0
        self.launched_by = timer.launched_by

    def by_stream(self):
        self.timer.by_stream()

    def clean(self, count):
        return self.timer.clean(count)

    def hot(self, count):
        return self.timer.hot(count)

    def singly(self, count):
        return self.timer.singly(count)

    def __call__(self, count):
        self.turns += 1
        if self.turns >= TURN:
            fail(self.kind)
        return self.timer(count)


def fail(kind):
    match kind:
        case "launch":
            raise LaunchError("out of resources, on purpose")
        case "context":
            raise ContextLostError("illegal address, on purpose")
        case "hang":
            time.sleep(3600)
        case "death":
            os._exit(4)
    flag = Path(kind)  # killed from outside: once
    if not flag.exists():
        flag.touch()
        os._exit(9)


_real_heat, _real_take = racing.run_heat, racing.take


def sabotaged(job, running, rules, progress):
    """A heat in which a contender fails as a file beside the space says; its time is noted there."""
    kind = (job.origin.parent / "kind").read_text()
    with (job.origin.parent / "left_s").open("a") as file:
        print(rules.max_seconds, file=file)
    time.sleep(HEAT_S)

    def take(job, contender):
        taken = _real_take(job, contender)
        is_bad = contender.configuration.get("BLOCK") == BAD
        return replace(taken, timer=Failing(taken.timer, kind)) if is_bad else taken

    racing.take = take
    return _real_heat(job, running, rules, progress)


@pytest.fixture
def sabotage(monkeypatch):
    """Make the bad one fail in some way."""

    def made(job, kind):
        (job.origin.parent / "kind").write_text(str(kind))
        monkeypatch.setattr(racing, "run_heat", sabotaged)

    return made


def assert_one_time_for_all(job, heats, max_seconds):
    """Every heat gets what those before it left."""
    left_s = [float(line) for line in (job.origin.parent / "left_s").read_text().split()]
    assert len(left_s) == heats
    assert left_s[0] <= max_seconds
    assert all(before - after >= HEAT_S for before, after in pairwise(left_s)), left_s


# ---------------------------------------------------------------- from outside


def test_all_contenders_are_timed_in_every_round(worker, job):
    given = job()
    raced = race(worker, given, contenders(given), RaceRules(9, 1, 60, finals=True))
    assert counts(raced) == [9, 9, 9]
    for samples in raced.samples:
        assert all(time_ms > 0 for time_ms in samples.times_ms)
        assert samples.clean_ms and samples.hot_ms
    assert raced.timing == "cold:flush"  # OpenCL has no graphs
    assert raced.device_uuid == given.device.uuid
    assert all(contender.binary is None for contender in raced.contenders)
    assert raced.failures == {}


@pytest.mark.parametrize(
    ("kind", "heats", "status", "message"),
    [
        ("launch", 1, Status.LAUNCH_FAILED, "out of resources, on purpose"),
        ("context", 2, Status.CRASHED, "illegal address, on purpose"),
        pytest.param(
            *("hang", 2, Status.TIMED_OUT, "no sample in 4 s; the kernel hangs"),
            marks=pytest.mark.full,  # contracts/faults.py has a race with one that hangs
        ),
        ("death", 3, Status.CRASHED, "the process died twice: exit code 4"),
    ],
)
def test_one_that_fails_is_out_and_the_others_go_on(
    worker, job, sabotage, kind, heats, status, message
):
    given = job()
    sabotage(given, kind)
    start = time.monotonic()
    raced = race(worker, given, contenders(given), RaceRules(9, 1, 3600, finals=True))
    assert time.monotonic() - start < 600, "what hangs would be waited for all the time of the race"
    assert_one_time_for_all(given, heats, max_seconds=3600)
    assert {
        place: (failure.status, failure.message) for place, failure in raced.failures.items()
    } == {1: (status, message)}
    assert counts(raced) == [9, 0, 9]
    assert [samples.clean_ms is None for samples in raced.samples] == [False, True, False]
    assert [samples.hot_ms is None for samples in raced.samples] == [False, True, False]
    again = race(worker, given, contenders(given)[::2], RaceRules(3, 1, 60))
    assert counts(again) == [3, 3], "the worker is as good as new"


def test_one_that_becomes_wrong_in_the_race_is_out(worker, job):
    """Whatever its samples are; the others, which share its buffers, are right."""
    space, source = counting(f"BLOCK == {BAD} && count[i] > 6 ? -1.0f : value")
    given = job(*space)
    (given.origin.parents[1] / "kernels" / "scale.cu").write_text(changed(SOURCE, *source))
    raced = race(worker, given, contenders(given), RaceRules(9, 1, 60))
    (failure,) = raced.failures.values()
    assert (list(raced.failures), failure.status) == ([1], Status.WRONG_RESULT)
    assert failure.message.startswith("after 9 timed launches: out[0] is -1, expected ")
    assert counts(raced) == [9, 0, 9]


@pytest.mark.parametrize("finals", [True, False])
def test_one_that_gives_other_bits_in_another_run_is_out(worker, job, finals):
    """Though every one of them is right. Who does not say that it is deterministic is not asked."""
    space, source = counting("BLOCK == 32 ? value : value * (1.0f + 1e-6f * (count[i] & 1))")
    declared = "@scale.deterministic\ndef d(c, p):\n    return c.BLOCK < 128\n\n\n"
    declared += "@scale.tolerance\ndef t(p):\n    return 1e-4\n\n\n@scale.launch"
    given = job(*space, ("@scale.launch", declared))
    given = replace(given, datasets=given.datasets[1:])  # exact data allow no other bits
    (given.origin.parents[1] / "kernels" / "scale.cu").write_text(changed(SOURCE, *source))
    raced = race(worker, given, contenders(given), RaceRules(3, 1, 60, finals=finals))
    out = {place: (failure.status, failure.message) for place, failure in raced.failures.items()}
    why = "declared deterministic, but run 2 on the same data gave other bits in out"
    assert out == ({1: (Status.NOT_DETERMINISTIC, why)} if finals else {})
    first, *others = (samples.identical_runs for samples in raced.samples)
    assert others == [0, 0]
    assert (3 <= first <= 100) == finals


def test_a_process_killed_from_outside_puts_nobody_out(worker, job, sabotage, tmp_path):
    given = job()
    sabotage(given, tmp_path / "killed once")
    raced = race(worker, given, contenders(given), RaceRules(9, 1, 60))
    assert_one_time_for_all(given, heats=2, max_seconds=60)
    assert raced.failures == {}
    assert counts(raced) == [9, 9, 9]


def test_one_that_cannot_even_enter_is_out(worker, job):
    given = job(("block=(c.BLOCK,)", "block=(c.BLOCK * (2 if c.BLOCK == 64 else 1),)"))
    raced = race(worker, given, contenders(given), RaceRules(3, 1, 60))
    assert raced.failures[1].status is Status.LAUNCH_FAILED
    assert "WORK_GROUP_SIZE" in raced.failures[1].message
    assert counts(raced) == [3, 0, 3]


def test_a_vendor_call_of_another_backend_has_no_samples_and_did_not_fail(worker, job):
    baseline = "@scale.baseline('blas')\ndef b(x, **_):\n    return print\n\n\n@scale.launch"
    given = job(("@scale.launch", baseline))
    entered = [contenders(given)[0], Contender(vendor="blas")]
    raced = race(worker, given, entered, RaceRules(3, 1, 60))
    assert counts(raced) == [3, 0]
    assert raced.failures == {}


@pytest.mark.parametrize("is_correct", [True, False])
def test_a_vendor_call_that_computes_something_else_is_not_timed(monkeypatch, is_correct):
    calls, device = [], for_arch("sm_90")
    executor = SimpleNamespace(
        time_calls=lambda prepare, arguments: lambda: calls.append(1),
        timer_of=lambda call, is_flushed: "timer",
    )
    data = SimpleNamespace(
        refresh=lambda *_, **__: None, arguments=(), buffers={}, scalars=lambda _: {}
    )
    baseline = SimpleNamespace(name="blas", backend="cuda", prepare=None)
    current = executor, data, SimpleNamespace(baselines=[baseline])
    job = SimpleNamespace(device=device, is_flushed=False, caches=Caches.HOT)
    monkeypatch.setattr(racing.worker_state, "prepare_job", lambda _: None)
    monkeypatch.setattr(racing.worker_state, "current", lambda: current)
    result = SimpleNamespace(is_correct=is_correct)
    monkeypatch.setattr(verify, "outputs", lambda *_: [result])
    if is_correct:
        entrant = racing.take(job, Contender(vendor="blas"))
        assert (entrant.timer, entrant.run, calls) == ("timer", None, [1])
    else:
        with pytest.raises(WrongResult, match="the baseline blas computes something else"):
            racing.take(job, Contender(vendor="blas"))


def test_a_contender_is_checked_by_a_launch_of_its_own_because_others_launched_since(monkeypatch):
    checks = []
    monkeypatch.setattr(racing.worker_state, "current", lambda: (None, None, None))
    monkeypatch.setattr(racing.tasks, "verify_timed", lambda *_, afresh: checks.append(afresh))
    assert racing.Entrant("timer", Caches.HOT).verify(9, compare_runs=True) == 0
    assert checks == [True]
