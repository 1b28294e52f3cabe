"""Energy on a GPU: what the counter says of calls back to back."""

import pytest
from sample_spaces import write_space

from autotune.cli import run
from autotune.devices.choose import backend, choose_device
from autotune.kernel.catalog import find_kernel, load_file
from autotune.measure.evaluator import DeviceEvaluator
from autotune.measure.measurement import ENERGY, Status
from autotune.run.bench import Bench
from autotune.run.request import Request
from autotune.tuned.reading import read
from autotune.values import Configuration, Problem

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


@pytest.fixture
def counted():
    """The first GPU, where it has a counter."""
    device = choose_device("cuda:0")
    if why := backend("cuda").why_no_energy(device):
        pytest.skip(why)
    return device


@pytest.mark.parametrize("n", [1000, 1 << 26])
def test_a_call_takes_power_times_time(counted, tmp_path, n):
    """Calls of a microsecond and of many, each at a power between that of rest and the limit."""
    kernel = load_file(write_space(tmp_path))
    bench = Bench(Request(kernel, counted, (Problem(n=n),), objective=ENERGY))
    try:
        job = bench.job(Problem(n=n))
        evaluator = DeviceEvaluator(kernel, job, bench.compilers, bench.worker)
        (found,) = evaluator.measure([Configuration(BLOCK=64)])
    finally:
        bench.close()
    assert found.status is Status.OK
    assert 20 < found.energy.power_w < 1.1 * found.energy.limit_w
    assert found.energy.window_s >= 0.3 and found.energy.clocks.sm_mhz > 0
    per_call_ms = found.energy.call_mj / found.energy.power_w
    assert per_call_ms > 0.2 * found.median_ms  # a cold call takes longer


def test_a_run_for_energy_says_so_everywhere(counted, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    problem = "m=1024,n=1024"
    budget = ["--budget", "8evals", "--objective", "energy", "--problem", problem]
    assert run(["run", "transpose", "--device", "cuda:0", *budget]) == 0
    assert "tuned for energy" in capsys.readouterr().out
    record = read(tmp_path / "reports-energy" / counted.folder / "transpose.json")
    (entry,) = record.problems
    assert record.objective == "energy" and entry.winner.energy.windows >= 6
    low, high = entry.winner.energy.call_mj.interval
    assert low <= entry.winner.energy.call_mj.value <= high < 1.2 * low
    assert all(other.energy for other in entry.race.runners_up)
    assert run(["results", "transpose", "--json"]) == 0
    assert find_kernel("transpose").name in capsys.readouterr().out
