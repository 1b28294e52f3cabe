"""The device's process: whatever a task does to it, the next one is answered."""

import functools
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from sample_spaces import write_space

from autotune.compiling.binaries import compile_now
from autotune.compiling.job import compile_job
from autotune.data.arguments import Argument
from autotune.data.dataset import EXACT, RANDOM, Dataset
from autotune.data.prepare import prepare_dataset
from autotune.devices.base import Binary
from autotune.devices.choose import choose_device
from autotune.errors import AutotuneError, MissingDependencyError, SpecError
from autotune.kernel.catalog import load_file
from autotune.measure import worker_state
from autotune.measure.device_worker import DeviceWorker, device_actor
from autotune.measure.measurement import Status
from autotune.measure.process import ActorDied, ChildActor
from autotune.measure.timing import Caches, StoppingRule
from autotune.measure.worker_state import Job
from autotune.values import Configuration, Problem

pytestmark = [pytest.mark.opencl, pytest.mark.usefixtures("opencl_device")]

C = Configuration(BLOCK=32)
RULE = StoppingRule()
LAUNCH = '    """One thread per element."""\n'


@pytest.fixture(scope="module")
def worker():
    with DeviceWorker(device_actor(), 30.0) as made:
        yield made


@pytest.fixture
def device(opencl_device):
    return choose_device(opencl_device)


@pytest.fixture
def job(tmp_path, device):
    """The job of ``scale`` with some pieces of its space file changed."""

    def made(*edits, n=1000):
        kernel = load_file(write_space(tmp_path, *edits))
        sets = tuple(prepare_dataset(kernel, Problem(n=n), which) for which in (EXACT, RANDOM))
        return Job(kernel.file, Problem(n=n), device, sets)

    return made


def binary(job, configuration=C):
    kernel = load_file(job.origin)
    compiled = compile_now(compile_job(kernel, configuration, job.problem, job.device))
    assert compiled.binary is not None, compiled.message
    return compiled.binary


def ask(worker, task, *args):
    return worker.actor.ask(task, *args, timeout_s=60)


def standing_by(device):
    """A worker with two processes that stand by, as on a GPU."""
    return DeviceWorker(
        ChildActor(
            functools.partial(worker_state.get_ready, device), worker_state.prepare_job, standbys=2
        ),
        30.0,
    )


def measured(worker, job, configuration=C):
    return worker.measure(job, configuration, binary(job, configuration), RULE, ())


def in_launch(*lines):
    """An edit that makes the launch function do something first, in the worker's process only."""
    code = "".join(f"        {line}\n" for line in lines)
    only = f"    if os.getpid() != {os.getpid()}:\n"
    return (LAUNCH, f"{LAUNCH}    import os, time\n{only}{code}")


# ---------------------------------------------------------------- tasks of a test's own


def has_imported(module):
    return module in sys.modules


def pid():
    return os.getpid()


def kill_itself():
    os.kill(os.getpid(), signal.SIGKILL)


def fail(kind):
    raise kind


def lack_a_package():
    raise MissingDependencyError("cupy", "cuda13", "measuring")


def hang():
    time.sleep(600)


def shout():
    print("from a kernel's printf", flush=True)
    os.system("echo from a child of it")


# ---------------------------------------------------------------- the process


def test_a_missing_package_is_told_with_its_remedy(worker):
    """An exception that cannot be read here would break the pool and say nothing."""
    with pytest.raises(MissingDependencyError, match=r"pip install .*\[cuda13\]'"):
        ask(worker, lack_a_package)
    assert ask(worker, pid)


def test_ctrl_c_is_left_to_the_parent(worker):
    """A terminal sends it to the whole group; the parent decides what becomes of the measurement."""
    before = ask(worker, pid)
    os.kill(before, signal.SIGINT)
    time.sleep(0.2)
    assert ask(worker, pid) == before


def test_what_the_process_prints_stays_out_of_standard_output(capfd):
    """Standard output is the command's result, which another program may read."""
    with DeviceWorker(device_actor(), 30.0) as own:
        ask(own, shout)
    out, err = capfd.readouterr()
    assert out == ""
    assert "from a kernel's printf" in err
    assert "from a child of it" in err


# ---------------------------------------------------------------- measuring


def test_a_right_configuration_is_verified_on_both_data_sets_and_timed(worker, job):
    found = measured(worker, job())
    assert (found.status, found.message) == (Status.OK, "")
    assert [(check.dataset, check.is_correct) for check in found.checks] == [
        ("exact", True),
        ("random", True),
    ]
    assert RULE.min_samples <= len(found.samples_ms) <= RULE.max_samples
    assert found.median_ms > 0
    assert found.binary_key == binary(job()).key
    assert [entry.name for entry in found.entries] == ["scale"]
    assert found.verify_s > 0
    assert found.measure_s > 0


def test_checking_verifies_and_does_not_time(worker, job):
    given = job()
    found = worker.check(given, C, binary(given))
    assert found.status is Status.OK
    assert len(found.checks) == 2
    assert found.samples_ms == ()


def test_a_clearly_slower_one_says_what_it_was_compared_with(worker, job):
    given = job()
    found = worker.measure(given, C, binary(given), RULE, (1e-9,) * 21)
    assert found.status is Status.STOPPED_EARLY
    by_timing = "all 1 samples exceed 2e-09 ms"
    by_verifying = "all 2 launches that verified it exceed 1.5e-09 ms"  # on a slow machine
    before, _, after = found.message.partition("; ")
    assert before == "1e-09 ms is the best so far"
    assert (after, len(found.samples_ms)) in ((by_timing, 1), (by_verifying, 2))


def test_a_wrong_result_names_the_first_wrong_element(worker, job):
    """Half of 32 blocks of 32: the rest of the output is never written."""
    given = job(("grid=(blocks(p, c),)", "grid=(blocks(p, c) // 2,)"))
    found = measured(worker, given)
    assert found.status is Status.WRONG_RESULT
    assert found.message.startswith("out[512] is nan (not written), expected")
    assert found.checks[0].first_wrong == 512
    assert found.samples_ms == ()
    assert worker.check(given, C, binary(given)).status is Status.WRONG_RESULT


def test_a_refused_launch_is_this_configurations_failure(worker, job):
    """The block that was compiled in and the block that is launched differ."""
    given = job(("block=(c.BLOCK,)", "block=(c.BLOCK * 2,)"))
    before, found = ask(worker, pid), measured(worker, given)
    assert found.status is Status.LAUNCH_FAILED
    assert "WORK_GROUP_SIZE" in found.message
    assert "\n" not in found.message
    assert worker.check(given, C, binary(given)).status is Status.LAUNCH_FAILED
    assert ask(worker, pid) == before
    assert measured(worker, job()).status is Status.OK


def test_a_measurement_has_the_functions_that_were_launched(worker, job):
    given = job()
    real = binary(given)
    more = replace(real, entries=(*real.entries, replace(real.entries[0], name="other")))
    found = worker.measure(given, C, more, RULE, ())
    assert (found.status, found.entries) == (Status.OK, real.entries)


def test_a_binary_that_cannot_be_loaded_is_a_failed_launch(worker, job):
    given = job()
    real = binary(given)
    found = worker.measure(given, C, Binary(b"?", real.entries, "", "key"), RULE, ())
    assert found.status is Status.LAUNCH_FAILED
    assert (found.binary_key, found.entries) == ("key", real.entries)


def test_a_workspace_that_does_not_fit_is_this_configurations_failure(worker, job):
    scratch = (
        "@scale.scratch\ndef scratch(c, p):\n    return {'w': Out(1 << 50)}\n\n\n@scale.launch"
    )
    given = job(("@scale.launch", scratch))
    for found in (measured(worker, given), worker.check(given, C, binary(given))):
        assert found.status is Status.LAUNCH_FAILED
        assert "bytes" in found.message
    assert measured(worker, job()).status is Status.OK


def test_inputs_that_do_not_fit_end_the_run_with_a_remedy(worker, job, device):
    given = job()
    huge = Dataset(
        "exact", given.datasets[0].folder, (Argument("out", "out", "<f4", (1 << 48,)),), {}
    )
    too_large = Job(given.origin, given.problem, device, (huge,))
    with pytest.raises(AutotuneError, match=r"not enough device memory: .*; use a smaller problem"):
        worker.prepare(too_large)
    with pytest.raises(AutotuneError, match="not enough device memory"):
        worker.measure(too_large, C, binary(given), RULE, ())
    assert measured(worker, given).status is Status.OK


def test_a_time_that_cannot_be_true_is_implausible(worker, job, device):
    """Here the work is overstated and the device said to be slow: the message names both."""
    work = "@scale.work\ndef work(p):\n    return Work(bytes_read=1e12)\n\n\n@scale.launch"
    given = replace(job(("@scale.launch", work)), device=replace(device, peak_gb_per_s=1000.0))
    found = measured(worker, given)
    assert found.status is Status.IMPLAUSIBLE
    assert "below the device's bound of 970 ms" in found.message
    assert found.median_ms is None
    assert found.samples_ms
    assert measured(worker, replace(given, caches=Caches.HOT)).status is Status.OK


def test_a_mistake_in_a_hook_ends_the_run_as_a_spec_error(worker, job):
    """Every configuration would fail in the same way: the person has to mend it first."""
    for edit, message in (
        (in_launch("raise ValueError('five')"), r"launch: ValueError: five \(scale\.py:\d+\)"),
        (("block=(c.BLOCK,)", "block=(c.BLOCK,), args=('y',)"), r"no argument 'y' \(known: x, out"),
    ):
        with pytest.raises(SpecError, match=message):
            measured(worker, job(edit))
    assert measured(worker, job()).status is Status.OK


# ---------------------------------------------------------------- deaths while measuring


@pytest.mark.parametrize(
    ("line", "words"),
    [("os._exit(7)", "exit code 7"), ("os.kill(os.getpid(), 11)", "killed by signal 11")],
)
def test_a_configuration_that_kills_its_process_twice_has_crashed(
    worker, job, tmp_path, line, words
):
    """Twice, in two processes, and the next configuration is measured as if nothing had been."""
    log = tmp_path / "log"
    given = job(
        in_launch(
            "if c.BLOCK == 32:",
            f"    os.write(os.open({str(log)!r}, os.O_CREAT | os.O_APPEND | os.O_WRONLY), b'x')",
            f"    {line}",
        )
    )
    found = measured(worker, given)
    assert found.status is Status.CRASHED
    assert found.message == f"the process died twice: {words}"
    assert log.read_text() == "xx"
    assert found.entries == binary(given).entries
    other = Configuration(BLOCK=64)
    assert measured(worker, given, other).status is Status.OK


def test_processes_stand_by_with_everything_imported(job, device):
    given = job()
    with standing_by(device) as own:
        for _ in range(2):
            assert measured(own, given).status is Status.OK
            for _ in range(2):
                with pytest.raises(ActorDied):
                    ask(own, kill_itself)
                assert ask(own, has_imported, "pyopencl")
        assert measured(own, given).status is Status.OK


# ---------------------------------------------------------------- state


def test_state_is_kept_between_tasks_and_made_anew_for_another_job(worker, job):
    """Data are uploaded once per problem; another problem must not be checked against them."""
    small, large = job(n=1000), job(n=4099)
    ready = binary(small)
    statuses = Counter(
        worker.measure(given, C, ready, RULE, ()).status for given in (small, large, small, small)
    )
    assert statuses == {Status.OK: 4}
    assert np.load(large.datasets[0].folder / "x.npy").shape == (4099,)


def uploads(job):
    """Prepare a job; return the arrays that were uploaded for it, by size."""
    executor, sizes = worker_state.opened(job.device), []
    write = executor.write
    executor.write = lambda buffer, array: (sizes.append(array.shape), write(buffer, array))
    try:
        worker_state.prepare_job(job)
    finally:
        del executor.write
    return sizes


def linked(job, folder):
    """A job of which another folder holds links to the inputs, and nothing is expected."""
    made = []
    for dataset in job.datasets:
        (here := folder / dataset.name).mkdir(parents=True)
        (here / "x.npy").symlink_to(dataset.folder / "x.npy")
        made.append(replace(dataset, folder=here, bounds={}))
    return replace(job, datasets=tuple(made))


def test_inputs_stay_on_the_device_for_a_job_with_other_results(worker, job, tmp_path):
    """As where configurations agree on them."""
    given, other = job(), job(n=1001)
    # x and what is expected, of both data sets
    assert ask(worker, uploads, other) == 4 * [(1001,)]
    assert ask(worker, uploads, given) == 4 * [(1000,)]
    assert ask(worker, uploads, replace(given, caches=Caches.HOT)) == 2 * [(1000,)]
    assert ask(worker, uploads, linked(given, tmp_path / "links")) == []
    assert measured(worker, given).status is Status.OK


def test_a_context_is_made_before_there_is_a_job(job, device):
    with DeviceWorker(device_actor(device), 30.0) as own:
        own.start(device)
        own.start(device)
        assert ask(own, has_executor)
        assert measured(own, job()).status is Status.OK


def has_executor():
    deadline_s = time.monotonic() + 30
    while worker_state._state.executor is None and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return worker_state._state.executor is not None
