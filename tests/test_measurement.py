"""Clocks around measurements, and what makes a result wrong."""

import math
import re
from types import SimpleNamespace

import pytest
from sample_spaces import SOURCE, changed, counting, write_space

from autotune.compiling.binaries import compile_now
from autotune.compiling.job import compile_job
from autotune.data.dataset import EXACT, RANDOM
from autotune.data.prepare import prepare_dataset
from autotune.devices.choose import choose_device
from autotune.devices.device import Clocks, Power
from autotune.kernel.catalog import load_file
from autotune.measure import race, tasks, worker_state
from autotune.measure.measurement import (
    Status,
)
from autotune.measure.timing import Caches, StoppingRule, Timing, taking_of
from autotune.measure.verify import WrongResult
from autotune.measure.worker_state import Job
from autotune.values import Configuration, Problem

ONE, OTHER = Configuration(BLOCK=32), Configuration(BLOCK=64)


def test_both_ends_of_a_measurement_count_by_their_worse():
    before = Clocks(1980, 50, ("power cap",))
    after = Clocks(1700, 45, ("thermal (hardware)", "power cap"))
    worse = before.worst(after)
    assert worse == Clocks(1700, 50, ("power cap", "thermal (hardware)"))
    assert worse.is_throttled and not before.is_throttled
    assert Clocks().worst(before) == before.worst(Clocks()) == before
    assert Clocks().worst(Clocks()) == Clocks()


def test_the_power_of_the_idle_device_is_the_least_reading_or_a_share_of_the_limit(monkeypatch):
    monkeypatch.setattr(worker_state, "_state", worker_state._State())
    readings = iter((Power(400, 700), Power(65, 700), Power(90, 700)))
    executor = SimpleNamespace(power=lambda: next(readings))
    least = [worker_state.least_power_w(executor) for _ in range(3)]
    assert least == [pytest.approx(70), 65, 65]


def test_how_samples_were_taken_has_one_word_everywhere():
    ways = [(caches, way) for caches in Caches for way in ("graph", "stream")]
    words = [Timing.of(*way).value for way in ways]
    assert words == ["cold:graph", "cold:flush", "hot:graph", "hot", "mixed:graph", "mixed"]
    assert [(Timing(word).caches, Timing(word).by_graph) for word in words] == [
        (caches, way == "graph") for caches, way in ways
    ]
    assert [Timing(word).is_cold for word in words] == [True, True, False, False, False, False]
    assert Timing("cold") is Timing.OTHER and Timing.OTHER.is_cold


def test_mixed_samples_are_geometric_means_of_a_clean_call_and_a_hot_one():
    timer = SimpleNamespace(clean=lambda n: [4.0, 9.0, 1.0][:n], hot=lambda n: [1.0, 4.0, 4.0][:n])
    assert taking_of(timer, Caches.MIXED)(3) == [2.0, 6.0, 2.0]
    assert taking_of(timer, Caches.MIXED)(0) == []
    assert [taking_of(timer, caches) for caches in (Caches.COLD, Caches.HOT)] == [timer] * 2


# ---------------------------------------------------------------- on a device


@pytest.fixture
def compiled(tmp_path, opencl_device):
    """Makes the job and the binary of a configuration of ``scale``, for this process as the worker."""
    problem, device = Problem(n=1000), choose_device(opencl_device)

    def made(configuration, edits=(), source=(), caches=Caches.COLD):
        kernel = load_file(write_space(tmp_path, *edits))
        (tmp_path / "kernels" / "scale.cu").write_text(changed(SOURCE, *source))
        sets = tuple(prepare_dataset(kernel, problem, which) for which in (EXACT, RANDOM))
        job = Job(kernel.file, problem, device, sets, caches)
        return job, compile_now(compile_job(kernel, configuration, problem, device)).binary

    return made


@pytest.fixture
def measured(compiled):
    """Measures configurations of ``scale`` in this process, as the worker's would."""

    def made(configuration=ONE, caches=Caches.COLD, best=(), edits=(), source=()):
        job, binary = compiled(configuration, edits, source, caches)
        return tasks.measure(job, configuration, binary, StoppingRule(), best)

    return made


@pytest.fixture
def finalist(compiled, monkeypatch):
    """Checks a configuration of ``scale`` as after a race, for as long as it takes."""
    monkeypatch.setattr(race, "CHECKED_LAUNCHES_S", math.inf)

    def made(edits, source):
        job, binary = compiled(ONE, edits, source)
        race.take(job, race.Contender(ONE, binary)).verify(9, compare_runs=False)

    return made


def keeping(body):
    """Edits of space and source with a workspace ``kept``, of two floats an element."""
    scratch = 'def scratch(c, p):\n    return {"kept": Out(2 * p.n)}\n\n\n'
    space = (("@scale.launch", f"@scale.scratch\n{scratch}@scale.launch"),)
    source = (
        ("int n)", "int n, GLOBAL float* kept)"),
        ("if (i < n) out[i] = factor * x[i];", f"if (i < n) {{ {body} }}"),
    )
    return space, source


# ---------------------------------------------------------------- right at first


@pytest.mark.opencl
@pytest.mark.parametrize("caches", Caches)
@pytest.mark.parametrize("is_inout", [False, True], ids=["out", "inout"])
def test_one_that_becomes_wrong_while_it_is_timed_is_wrong(measured, caches, is_inout):
    """Right three times for verification: the first poison, the second, and other data."""
    late, source = counting("count[i] > 3 ? -1.0f : value", is_inout)
    found = measured(caches=caches, edits=late, source=source)
    assert found.status is Status.WRONG_RESULT
    assert re.match(r"after \d+ timed launches: (out|x)\[0\] is -1, expected ", found.message)
    assert (found.samples_ms, found.median_ms) == ((), None)
    never, source = counting("count[i] < 0 ? -1.0f : value", is_inout)
    assert measured(caches=caches, edits=never, source=source).status is Status.OK


@pytest.mark.opencl
def test_one_that_is_wrong_where_its_own_result_lies_is_wrong_after_timing(measured):
    """Not after one more launch on poisoned outputs, as where launches accumulate."""
    value = "out[i] == factor * x[i] || out[i] == -1.0f ? -1.0f : factor * x[i]"
    found = measured(source=(("factor * x[i]", value),))
    assert found.status is Status.WRONG_RESULT
    assert re.match(r"after \d+ timed launches: out\[0\] is -1, expected ", found.message)


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("harm", "message"),
    [
        ("out[n + 200000] = 1.0f", "wrote outside the bounds of out"),
        ("((GLOBAL float*)x)[i] = 7.0f", "changed its input x"),
    ],
)
def test_harm_done_while_it_is_timed_is_found(measured, harm, message):
    """Far beyond the end of a small buffer too, where a tile of its rows would end."""
    late, source = counting(f"count[i] > 9 ? ({harm}, value) : value")
    found = measured(edits=late, source=source)
    assert found.status is Status.WRONG_RESULT
    assert found.message.startswith("after ") and found.message.endswith(f"launches: {message}")


@pytest.mark.opencl
@pytest.mark.parametrize(
    "body",
    [
        "if (isnan(kept[i])) kept[i] = factor * x[i]; out[i] = kept[i];",
        "kept[i] = fmax(kept[i], factor * x[i]); out[i] = kept[i];",
    ],
    ids=["looked up", "largest so far"],
)
def test_what_workspaces_keep_of_other_data_makes_no_right_result(measured, body):
    """Right in both launches on the first data set, and in all that time it."""
    space, source = keeping(body)
    found = measured(edits=space, source=source)
    assert found.status is Status.WRONG_RESULT
    assert re.match(r"out\[\d+\] is \S+, expected \S+ on random data", found.message)


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("edits", "message"),
    [
        (counting("count[i] % 7 == 0 ? -1.0f : value"), r"timed launches: out\[0\] is -1, "),
        (counting("fmin(value, out[i])"), r"timed launches: .* on exact data"),
        (
            keeping("out[i] = as_int(kept[i]) == -1 ? factor * x[i] : -1.0f;"),
            r"timed launches: out\[0\] is -1, ",
        ),
    ],
    ids=["every seventh", "least so far", "first poison"],
)
def test_one_that_passed_its_search_is_found_out_after_the_race(measured, finalist, edits, message):
    for _ in range(5):  # by chance the last launch of a search may be a wrong one
        found = measured(edits=edits[0], source=edits[1])
        if found.status is Status.OK:
            break
    assert found.status is Status.OK
    with pytest.raises(WrongResult, match=message):
        finalist(*edits)


@pytest.mark.opencl
def test_one_that_is_right_stays_so_after_the_race(finalist):
    finalist(*counting("value"))
    finalist(*counting("value", is_inout=True))


@pytest.mark.opencl
@pytest.mark.parametrize("access", ["x[n]", "x[-1]"], ids=["after", "before"])
def test_what_is_read_beside_a_buffer_is_not_lost_in_a_sum(measured, access):
    found = measured(source=(("factor * x[i]", f"factor * x[i] + (i ? 0.0f : {access})"),))
    assert found.status is Status.WRONG_RESULT
