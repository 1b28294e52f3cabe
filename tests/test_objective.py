"""Objectives: what is minimised, what it is refused for, and who wins by it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from sample_records import entered, race
from sample_records import record as sample
from sample_spaces import write_space

from autotune.cli import run as command
from autotune.devices.choose import backend, choose_device
from autotune.devices.device import Clocks, for_arch
from autotune.errors import DeviceError, SpecError, UsageError
from autotune.files import data_path
from autotune.kernel.catalog import find_kernel, load_file
from autotune.kernel.space import enumerate_space
from autotune.measure.measurement import (
    EDP,
    ENERGY,
    TIME,
    Energy,
    Measurement,
    Status,
    find_objective,
    front,
    require,
    with_metrics,
)
from autotune.measure.timing import Reading, energy_of
from autotune.retune.stale import known_entries
from autotune.run.verdict import judge
from autotune.search.session import Budget, SearchSession
from autotune.store import RunInfo, Scope, Store
from autotune.tuned.merged import build_table
from autotune.tuned.reading import RecordFile, read
from autotune.values import Configuration, Problem

pytestmark = pytest.mark.usefixtures("kept_processes")

P = Problem(n=1000)
GPU = for_arch("sm_90")
METRICS = '''

@scale.metric
def width(c):
    """Threads per block."""
    return c.BLOCK


@scale.metric
def per_watt(p, time_ms, power_w):
    """Energy of an element."""
    return time_ms * power_w / p.n


@scale.metric
def needed(time_ms, registers):
    return time_ms * registers


@scale.launch'''


@pytest.fixture
def kernel(tmp_path):
    return load_file(write_space(tmp_path, ("\n\n@scale.launch", METRICS)))


def measured(block, ms, mj=None, **more):
    energy = None if mj is None else Energy(mj, mj / ms, calls=10, window_s=0.3)
    return Measurement(
        Configuration(BLOCK=block), Status.OK, samples_ms=(ms,) * 7, energy=energy, **more
    )


# ---------------------------------------------------------------- windows


def test_a_window_is_power_times_time_between_steps_of_each_count():
    """The counter moves every 100 ms by 50 J, and one of four looks finds a batch of 8 done."""
    looks = [
        Reading(at_s=k / 1000, calls=8 * (k // 4), taken_mj=50_000 * (k // 100))
        for k in range(37, 437)
    ]
    found = energy_of(looks)
    assert found.power_w == pytest.approx(500)
    assert found.call_mj == pytest.approx(500 * 0.5)  # W times ms of a call: 8 in 4 ms
    assert found.calls == looks[-1].calls - looks[3].calls


def test_what_lies_before_the_first_step_counts_neither_as_time_nor_as_energy():
    steady = [Reading(k / 100, k, 1000 * (k // 10)) for k in range(100)]
    late = [Reading(k / 100, 40, 4000) for k in range(34, 40)] + steady[40:]
    assert energy_of(late).power_w == pytest.approx(energy_of(steady).power_w)
    assert energy_of(late).call_mj == pytest.approx(energy_of(steady).call_mj)


# ---------------------------------------------------------------- objectives


def test_objectives_by_name():
    found = [find_objective(name) for name in ("time", "energy", "edp")]
    assert found == [TIME, ENERGY, EDP]
    with pytest.raises(UsageError, match=r"unknown objective 'enrgy'; did you mean 'energy'\?"):
        find_objective("enrgy")


def test_costs():
    row = measured(64, 2.0, 600.0)
    for objective, cost in ((TIME, 2.0), (ENERGY, 600.0), (EDP, 1200.0)):
        assert objective.cost(row) == objective.scored(row).cost == pytest.approx(cost)
        assert objective.cost(replace(row, status=Status.WRONG_RESULT)) is None
    assert ENERGY.cost(measured(64, 2.0)) is EDP.cost(measured(64, 2.0)) is None


def test_metrics_of_what_is_known_are_kept(kernel):
    assert dict(with_metrics(measured(32, 2.0), kernel, P, GPU).metrics) == {"width": 32.0}
    both = with_metrics(measured(32, 2.0, 600.0), kernel, P, GPU).metrics
    assert both == {"width": 32.0, "per_watt": pytest.approx(0.6)}


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("@scale.metric\ndef m(time): ...", "unknown argument 'time'; did you mean 'time_ms'"),
        ("@scale.metric\ndef energy(time_ms): ...", "metric 'energy' is an objective"),
    ],
)
def test_a_metric_is_checked_when_it_is_declared(tmp_path, metric, message):
    with pytest.raises(SpecError, match=message):
        load_file(write_space(tmp_path, ("@scale.launch", f"{metric}\n\n\n@scale.launch")))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("'3'", "metric m: returned '3' for .*expected a finite number"),
        ("1 / 0", r"metric m: ZeroDivisionError.*scale.py:\d+"),
    ],
)
def test_what_a_metric_returns_is_checked(tmp_path, result, message):
    metric = f"@scale.metric\ndef m(time_ms):\n    return {result}\n\n\n"
    kernel = load_file(write_space(tmp_path, ("@scale.launch", f"{metric}@scale.launch")))
    with pytest.raises(SpecError, match=message):
        with_metrics(measured(32, 2.0), kernel, P, GPU)


def test_a_device_without_counter_refuses_energy_and_nothing_else(opencl_device):
    device = choose_device(opencl_device)
    why = backend(device.backend).why_no_energy(device)
    require(TIME, device, why)
    with pytest.raises(
        DeviceError, match=r"the objective edp needs the energy of .*RAPL.*not supp"
    ):
        require(EDP, device, why)


# ---------------------------------------------------------------- who wins


def test_a_front_holds_what_is_faster_or_takes_less():
    rows = [measured(k, *point) for k, point in enumerate([(3, 5), (1, 9), (2, 7), (2, 8), (4, 6)])]
    hidden = [
        measured(9, 0.5),
        replace(measured(8, 0.5, 1.0), status=Status.STOPPED_EARLY),
        replace(measured(7, 0.5, 1.0), energy=Energy(1.0, 70.0)),
    ]
    found = front([*rows, *hidden])
    assert [(row.median_ms, row.energy_mj) for row in found] == [(1, 9), (2, 7), (3, 5)]


def test_finals_rank_by_cost():
    """Energies are of windows, which are fewer than rounds; a vendor's call has both ratios."""

    def windows(*mj):
        return tuple(Energy(each, each, calls=10) for each in mj)

    quick = entered(measured(32, 1.0), [1.0] * 30, energy=windows(500.0, 501.0) * 4)
    frugal = entered(measured(64, 1.2), [1.2] * 30, energy=windows(400.0, 401.0) * 4)
    held = race([quick, frugal], {"blas": [0.6] * 30}, energy=windows(800.0, 802.0) * 4)
    result = judge(held, ENERGY)
    assert result and result.vendor
    assert (result.winner.configuration, result.tied) == ({"BLOCK": 64}, 1)
    assert result.winner.energy and result.winner.energy.call_mj.value == 400.5
    assert result.runners_up[0].ratio.value == pytest.approx(1.25, rel=0.01)
    assert result.vendor.ratio.value == pytest.approx(2.0, rel=0.01)
    assert result.speedup and result.speedup.value == 0.5
    by_time = judge(held)
    assert by_time and by_time.winner.configuration == {"BLOCK": 32}


def test_energy_of_finals_is_the_median_of_windows_under_the_least_limit():
    powers, limits, clocks = (100.0, 104.0, 300.0), (700.0, None, 500.0), (1200, 1980, 1400)
    windows = tuple(
        Energy(200.0 + 90 * k, power, 10, 0.3, limit, Clocks(sm_mhz=mhz))
        for k, (power, limit, mhz) in enumerate(zip(powers, limits, clocks, strict=True))
    )
    result = judge(race([entered(measured(32, 1.0), [1.0] * 30, energy=windows)]), ENERGY)
    assert result and result.winner.energy
    energy = result.winner.energy
    assert (energy.power_w, energy.limit_w, energy.sm_mhz, energy.windows) == (
        104.0,
        500.0,
        1400,
        3,
    )
    assert any(reason.startswith("the objective is known") for reason in result.noise)


# ---------------------------------------------------------------- remembered rows


class Frugal:
    """An evaluator of a device with a counter: wide blocks take longer, and less."""

    def __init__(self):
        self.asked: list[int] = []

    def measure(self, configurations, begin=lambda _: None, ahead=None, at_hand=lambda: None):
        for configuration in configurations:
            self.asked.append(configuration.BLOCK)
            yield measured(configuration.BLOCK, configuration.BLOCK, 1e4 / configuration.BLOCK)

    def hint(self, configurations):
        pass

    def recall(self, measurement):
        pass


def test_rows_without_energy_do_not_answer_a_search_for_it(tmp_path, kernel):
    space = enumerate_space(kernel, GPU)
    scope = Scope("scale", P, "u", "Test", "1", "1", "s", "a", "cold")
    stopped = replace(measured(64, 9.0, 1.0), status=Status.STOPPED_EARLY)
    with Store.open(tmp_path / "s.sqlite") as store:
        run_id = store.begin_run(RunInfo("scale", "Test", "test", 0, "0", ""))
        store.add_many(run_id, scope, [measured(32, 1.0), stopped])

        def searched(objective):
            evaluator = Frugal()
            session = SearchSession(
                space, evaluator, store, run_id, scope, Budget(), objective=objective
            )
            session.measure(range(len(space)))
            return session, evaluator.asked

        by_energy, asked = searched(ENERGY)
        assert asked == [32, 64]
        assert [space.configuration(i).BLOCK for i in by_energy.best(2)] == [64, 32]
        again, asked = searched(EDP)
        assert asked == []
        assert [found.cost for found in again.known()] == pytest.approx([1e4, 1e4])
        told: dict[int, Measurement] = {}
        streamed = SearchSession(space, Frugal(), None, run_id, scope, Budget(), objective=EDP)
        streamed.stream(iter(range(2)), told.__setitem__, 1)
        assert [found.cost for found in told.values()] == pytest.approx([1e4, 1e4])
        by_time, asked = searched(TIME)
        assert asked == []
        assert [space.configuration(i).BLOCK for i in by_time.best(2)] == [32, 64]


# ---------------------------------------------------------------- a whole run, on the CPU


@pytest.fixture
def ran(opencl_device, tmp_path, kernel, monkeypatch, capsys):
    """Run ``autotune`` with these arguments, of ``run`` those that follow the space and the CPU.

    Exit code, standard output and standard error.
    """
    monkeypatch.chdir(tmp_path)
    tuning = ["run", "scale", "--spaces", str(kernel.file.parent), "--device", opencl_device]

    def run(name, *arguments):
        code = command([*(tuning if name == "run" else [name]), *arguments])
        return code, *capsys.readouterr()

    return run


def test_a_run_records_metrics(ran):
    assert ran("run", "--budget", "2evals")[0] == 0
    (file,) = Path("reports").glob("*/scale.json")
    (entry,) = read(file).problems
    assert entry.metrics["width"] == entry.configuration["BLOCK"]
    assert "per_watt" not in entry.metrics
    assert "width" in file.with_suffix(".md").read_text()
    _, out, _ = ran("results", "scale", "--json")
    assert {row["metrics"]["width"] for row in json.loads(out)} == {32, 64}


def test_records_of_energy_are_kept_apart(ran, opencl_device, monkeypatch):
    device = choose_device(opencl_device)
    assert ran("run", "--budget", "2evals", "--out", "reports-energy")[0] == 0
    (file,) = Path("reports-energy").glob("*/scale.json")
    shutil.rmtree(data_path("tuned"))  # lookup reads it by default
    file.write_text(json.dumps({**json.loads(file.read_text()), "objective": "energy"}))
    code, out, err = ran("run", "--out", "reports-energy", "--budget", "2evals")
    assert (code, out) == (2, "")
    assert (
        f"{file} is tuned for energy, not for time" in err and "choose another folder (--out" in err
    )

    assert known_entries(find_kernel("scale"), device) == []
    monkeypatch.setenv("AUTOTUNE_TUNED", str(file.parent.parent.absolute()))
    _, out, _ = ran("lookup", "scale", "n=1000", "--json", "--device", read(file).device.name)
    assert json.loads(out)["objective"] == "energy"


def test_energy_is_refused_in_one_line_where_there_is_no_counter(ran):
    code, out, err = ran("run", "--objective", "energy")
    assert (code, out) == (4, "")
    assert err.count("\n") == 1
    assert err.startswith("error: the objective energy needs the energy of")
    assert not Path("reports-energy").exists()


# ---------------------------------------------------------------- reports


def test_records_of_several_objectives_are_not_one_table():
    by_time = sample()
    assert by_time.objective == "time"  # what records of before say nothing of
    by_energy = msgspec.structs.replace(by_time, objective="energy")
    loaded = [RecordFile("AUTOTUNE_TUNED", "a", by_energy), RecordFile("user", "b", by_time)]
    table = build_table(loaded)
    assert table.objective == "energy" and list(table.devices) == ["a"]
