"""From configurations to measurements: compiled, pruned, measured, in the order asked."""

import os
import time
from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise
from statistics import median
from types import SimpleNamespace

import pytest
from sample_spaces import SOURCE, changed, write_space

from autotune.compiling.binaries import Compiled, CompileFailure
from autotune.data.dataset import EXACT, RANDOM
from autotune.data.prepare import prepare_dataset
from autotune.devices.choose import choose_device
from autotune.devices.device import for_arch
from autotune.kernel.catalog import load_file
from autotune.measure.compilers import CompilerPool
from autotune.measure.device_worker import DeviceWorker, device_actor
from autotune.measure.evaluator import DeviceEvaluator
from autotune.measure.measurement import ENERGY, TIME, Measurement, Status
from autotune.measure.timing import StoppingRule
from autotune.measure.worker_state import Job
from autotune.values import Configuration, Problem

pytestmark = [pytest.mark.opencl, pytest.mark.usefixtures("opencl_device")]

PROBLEM = Problem(n=1000)
#: A parameter FAULT: `none` is right, each of the others goes wrong in its own way.
FAULTS = (
    (
        "    BLOCK=(32, 64),",
        '    BLOCK=(32, 64, 16384),\n    FAULT=("none", "broken", "large", "wrong"),',
    ),
)
BROKEN = """\
#include "dialect.h"
#if FAULT == FAULT_broken
#error broken on purpose
#endif
KERNEL(BLOCK, 1, 0) scale(GLOBAL const float* x, GLOBAL float* out, float factor, int n) {
#if FAULT == FAULT_large
    SHARED float tile[1 << 20];
    tile[TID(0)] = x[0];
    SYNC();
    out[0] = tile[TID(0) + 1];
#endif
    const int i = BID(0) * BLOCK + TID(0);
    if (i < n) out[i] = factor * x[i];
#if FAULT == FAULT_wrong
    if (i == 7) out[i] = 0;
#endif
}
"""


class Watched(DeviceWorker):
    """The device's process, what it was asked to measure, and when; ``before`` is called each time."""

    def __init__(self, measure_timeout_s):
        super().__init__(device_actor(), measure_timeout_s)
        self.watch()

    def watch(self, before=lambda: None):
        self.before = before
        self.asked, self.held_against, self.spans_s = [], [], []

    def measure(self, job, configuration, binary, *given, task=None):
        if task is not None:
            return super().measure(job, configuration, binary, *given, task=task)
        self.before()
        self.asked.append(configuration)
        self.held_against.append(given[1])
        begun_s = time.monotonic()
        try:
            return super().measure(job, configuration, binary, *given)
        finally:
            self.spans_s.append((begun_s, time.monotonic()))


@pytest.fixture(scope="module")
def worker():
    with Watched(30.0) as made:
        yield made


@pytest.fixture(scope="module")
def compilers():
    with CompilerPool(1) as made:
        yield made


@pytest.fixture
def evaluator(tmp_path, opencl_device, worker, compilers):
    """An evaluator of ``scale`` changed by some edits."""

    def made(*edits, pool=compilers, source=None, rule=None, others=(), **job):
        kernel = load_file(write_space(tmp_path, *edits))
        if source:
            (tmp_path / "kernels" / "scale.cu").write_text(source)
        sets = tuple(prepare_dataset(kernel, PROBLEM, which) for which in (EXACT, RANDOM))
        given = Job(kernel.file, PROBLEM, choose_device(opencl_device), sets)
        worker.watch()
        # Slow samples in a row prove nothing here: nothing stops early unless a test wants it.
        rule = rule or StoppingRule(false_stop=0.0)
        return DeviceEvaluator(kernel, replace(given, **job), pool, worker, rule, others)

    return made


def test_each_ending_has_its_status_and_the_order_is_kept(evaluator, worker):
    asked = [
        Configuration(BLOCK=block, FAULT=fault)
        for block, fault in [
            (32, "broken"), (32, "none"), (16384, "none"), (64, "wrong"), (64, "large"), (64, "none"),
        ]
    ]  # fmt: skip
    found = list(evaluator(*FAULTS, source=BROKEN).measure(asked))
    assert [measurement.configuration for measurement in found] == asked
    assert [str(measurement.status) for measurement in found] == [
        "compile_failed",
        "ok",
        "pruned",
        "wrong_result",
        "pruned",
        "ok",
    ]
    broken, _, wide, wrong, large, _ = found
    assert "broken on purpose" in broken.message
    assert broken.compile_s > 0
    assert "16384 threads" in wide.message
    assert wide.compile_s == 0
    assert wrong.message.startswith("out[7] is 0, expected ")
    assert "4194304 bytes of shared memory" in large.message
    assert large.entries[0].shared_bytes == 1 << 22
    assert worker.asked == [asked[1], asked[3], asked[5]]


@pytest.mark.parametrize(("objective", "false_stop"), [(TIME, 0.01), (ENERGY, 0.0)])
def test_a_slow_configuration_is_not_stopped_if_energy_decides(evaluator, objective, false_stop):
    rules = []

    class Recorder:
        actor = SimpleNamespace(queues=False)

        def measure(self, job, configuration, binary, rule, *best):
            rules.append(rule)
            return Measurement(configuration, Status.OK, samples_ms=(1.0,) * 3)

    made = evaluator(rule=StoppingRule(false_stop=0.01))
    job = replace(made.job, objective=objective)
    judged = DeviceEvaluator(
        made.kernel, job, made.compilers, Recorder(), StoppingRule(false_stop=0.01)
    )
    list(judged.measure([Configuration(BLOCK=32)]))
    assert [rule.false_stop for rule in rules] == [false_stop]


def test_rows_come_one_at_a_time(evaluator, worker):
    """Each is stored as soon as it is there, so that a crash costs one measurement."""
    results = evaluator().measure([Configuration(BLOCK=32), Configuration(BLOCK=64)])
    assert worker.asked == []
    next(results)
    assert worker.asked == [Configuration(BLOCK=32)]
    next(results)
    assert len(worker.asked) == 2


# ---------------------------------------------------------------- equal binaries


class SameCode(CompilerPool):
    """Compiles every configuration to the code of the first, as a parameter without effect would.

    NVRTC does that; Intel's compiler writes something random into each binary.
    """

    first = None

    def submit(self, job):
        self.first = self.first or super().submit(job).result()
        return done(replace(self.first, seconds=float(dict(job.defines)["BLOCK"])))


def done(compiled):
    future = Future()
    future.set_result(compiled)
    return future


@pytest.fixture
def same_code():
    with SameCode(1) as made:
        yield made


def test_equal_binary_and_launch_share_one_measurement(evaluator, worker, same_code):
    made = evaluator(("(blocks(p, c),), block=(c.BLOCK,)", "(32,), block=(32,)"), pool=same_code)
    first, twin = made.measure([Configuration(BLOCK=32), Configuration(BLOCK=64)])
    assert worker.asked == [Configuration(BLOCK=32)]
    assert first.configuration == Configuration(BLOCK=32)
    assert twin == replace(first, configuration=Configuration(BLOCK=64), compile_s=64.0)
    assert first.status is Status.OK


def test_compilers_that_are_busy_for_others_do_not_end_a_search(evaluator, same_code, monkeypatch):
    """Of other problems, for example."""
    made = evaluator(pool=same_code)
    made.compiles_ahead = True  # as on a GPU
    monkeypatch.setattr(SameCode, "has_enough", property(lambda self: True))
    asked = [Configuration(BLOCK=32), Configuration(BLOCK=64)]
    assert {found.configuration for found in made.measure(asked)} == {*asked}


def test_what_was_timed_before_the_reference_is_verified_and_not_timed_again(
    evaluator, worker, same_code, monkeypatch
):
    made = evaluator(("(blocks(p, c),), block=(c.BLOCK,)", "(32,), block=(32,)"), pool=same_code)
    with monkeypatch.context() as patch:
        timed = worker.measure
        patch.setattr(worker, "measure", lambda *a: replace(timed(*a), status=Status.PENDING))
        (first,) = made.measure([Configuration(BLOCK=32)])
    made.go_on(replace(made.job))
    (twin,) = made.measure([Configuration(BLOCK=64)])
    assert worker.asked == [Configuration(BLOCK=32)]
    assert first.status is Status.PENDING and twin.status is Status.OK
    assert twin.samples_ms == first.samples_ms


@pytest.mark.parametrize(
    "launch",
    [
        "grid=(32 * c.BLOCK // 32,), block=(32,)",
        "grid=(32,), block=(32,), shared_bytes=c.BLOCK - 32",
    ],
    ids=["grid", "shared memory"],
)
def test_an_equal_binary_launched_otherwise_is_measured_by_itself(
    evaluator, worker, same_code, launch
):
    made = evaluator(("grid=(blocks(p, c),), block=(c.BLOCK,)", launch), pool=same_code)
    list(made.measure([Configuration(BLOCK=32), Configuration(BLOCK=64)]))
    assert len(worker.asked) == 2


def test_an_equal_binary_with_another_workspace_is_measured_by_itself(evaluator, worker, same_code):
    workspace = (
        ("grid=(blocks(p, c),), block=(c.BLOCK,)", "grid=(32,), block=(32,)"),
        (
            "@scale.launch",
            "@scale.scratch\ndef scratch(c, p):\n    return {'w': Out(c.BLOCK)}\n\n\n@scale.launch",
        ),
    )
    source = changed(
        SOURCE,
        ("KERNEL(BLOCK", "KERNEL(32"),
        ("* BLOCK", "* 32"),
        ("int n)", "int n, GLOBAL float* w)"),
        ("    if (i", "    if (i < 64) w[i] = 0;\n    if (i"),
    )
    made = evaluator(*workspace, pool=same_code, source=source)
    enough, little = made.measure([Configuration(BLOCK=64), Configuration(BLOCK=32)])
    assert enough.status is Status.OK
    assert (little.status, little.message) == (Status.WRONG_RESULT, "wrote outside the bounds of w")
    assert len(worker.asked) == 2


# ---------------------------------------------------------------- hints


def begun_or_waiting(compilers):
    return {*compilers._futures, *compilers._suggested}


def test_a_cpu_does_not_compile_ahead(evaluator, compilers):
    """It would disturb the timing, which runs on the same cores."""
    made, before = evaluator(), begun_or_waiting(compilers)
    made.hint([Configuration(BLOCK=32)])
    assert begun_or_waiting(compilers) == before


def test_on_a_gpu_what_is_compiled_first_is_measured_first(evaluator, tmp_path, worker):
    """And a batch is read no further than compilers have work: a space can be one batch."""
    pytest.importorskip("cuda.bindings.nvrtc")
    os.mkfifo(tmp_path / "pipe.h")
    blocks = tuple(32 * step for step in range(1, 32))
    # The name is a macro: our own inlining does not read the pipe, the compiler waits for a writer.
    source = (
        f'#if BLOCK == 32\n#define FILE "{tmp_path}/pipe.h"\n#include FILE\n#endif\n#error no\n'
    )
    taken, begun = [], []
    with CompilerPool(2) as pool:
        made = evaluator(
            ("(32, 64)", str(blocks)), source=source, pool=pool, device=for_arch("sm_90")
        )
        asked = (taken.append(block) or Configuration(BLOCK=block) for block in blocks)
        results = made.measure(asked, begun.append)
        first = next(results)
        assert first.configuration.BLOCK != 32
        assert begun == [first.configuration]
        assert len(taken) < len(blocks)
        others = [next(results) for _ in blocks[2:]]
        opened = os.open(tmp_path / "pipe.h", os.O_WRONLY)
        os.close(opened)
        (last,) = results
    assert last.configuration.BLOCK == 32
    found = [first, *others, last]
    assert {measurement.configuration.BLOCK for measurement in found} == {*blocks}
    assert begun == [measurement.configuration for measurement in found]
    assert {measurement.status for measurement in found} == {Status.COMPILE_FAILED}
    assert worker.asked == []


# ---------------------------------------------------------------- the best so far


def measurement(ms, status=Status.OK):
    return Measurement(Configuration(BLOCK=1), status, samples_ms=(ms,))


def test_only_right_results_are_the_best_so_far(evaluator, worker):
    made = evaluator()
    for recalled in (measurement(5e-9), measurement(7e-9), measurement(4e-9)):
        made.recall(recalled)
    for status in set(Status) - {Status.OK}:
        made.recall(measurement(1e-12, status))
    list(made.measure([Configuration(BLOCK=32)]))
    assert worker.held_against == [(4e-9,)]


def test_what_was_measured_or_recalled_stops_slower_ones_early(evaluator, worker):
    made = evaluator(rule=StoppingRule())
    fast = replace(measurement(1e-9), samples_ms=(1e-9,) * 21)
    (first,) = made.measure([Configuration(BLOCK=32)])
    made.recall(fast)
    (second,) = made.measure([Configuration(BLOCK=64)])
    assert (first.status, second.status) == (Status.OK, Status.STOPPED_EARLY)
    assert worker.held_against == [(), fast.samples_ms]


# ---------------------------------------------------------------- several devices


@pytest.fixture
def twin():
    """The same device under another uuid, in a process of its own."""
    with Watched(30.0) as worker:
        yield replace(choose_device("opencl:cpu"), uuid="the other of the same model"), worker


def test_each_of_two_measures_one_at_a_time_and_knows_the_best_of_its_own(evaluator, worker, twin):
    """The next gets ready meanwhile; it is measured after, and held against the one before."""
    asked = [Configuration(BLOCK=32 << step) for step in range(6)]
    with evaluator(others=[twin]) as both:
        found = list(both.measure(asked))
    assert {measurement.configuration for measurement in found} == {*asked}
    for device, its_worker in ((both.job.device, worker), twin):
        mine = [measurement for measurement in found if measurement.device_uuid == device.uuid]
        assert mine, "one of the two did nothing"
        assert [measurement.configuration for measurement in mine] == its_worker.asked
        for (_, end_s), (next_s, _) in pairwise(its_worker.spans_s):
            assert end_s <= next_s
        for done, held_against in enumerate(its_worker.held_against):
            samples = [measurement.samples_ms for measurement in mine[:done]]
            assert held_against == min(samples, key=median, default=())


def test_what_is_recalled_counts_for_the_device_that_measured_it(evaluator, worker, twin):
    device, beside = twin
    with evaluator(others=[twin]) as both:
        both.recall(replace(measurement(1e-9), device_uuid=device.uuid))
        both.recall(replace(measurement(2e-9), device_uuid="of a card that is gone"))
        list(both.measure([Configuration(BLOCK=32), Configuration(BLOCK=64)]))
    assert (worker.held_against, beside.held_against) == ([()], [(1e-9,)])


# ---------------------------------------------------------------- how compiling can end


class Failing(CompilerPool):
    """Answers what it was told to."""

    answer = None

    def submit(self, job):
        return done(self.answer)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (Compiled(None, "took too long", 60.0, CompileFailure.TIMED_OUT), Status.TIMED_OUT),
        (Compiled(None, "too much shared data", 1.0, CompileFailure.RESOURCES), Status.PRUNED),
        (Compiled(None, "error", 1.0), Status.COMPILE_FAILED),
    ],
    ids=["slow", "large", "wrong"],
)
def test_how_compiling_ended_decides_the_status(evaluator, worker, answer, status):
    with Failing(1) as pool:
        pool.answer = answer
        (found,) = evaluator(pool=pool).measure([Configuration(BLOCK=32)])
    assert (found.status, found.message, found.compile_s) == (
        status,
        answer.message,
        answer.seconds,
    )
    assert worker.asked == []
