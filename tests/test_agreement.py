"""Kernels without a reference: what most configurations compute is right, and every page says so."""

import json
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sample_spaces import changed, write_space

from autotune.cli import run
from autotune.devices.choose import choose_device
from autotune.errors import AutotuneError, UsageError
from autotune.kernel.catalog import load_file
from autotune.measure.device_worker import DeviceWorker
from autotune.measure.tasks import write_results
from autotune.measure.worker_state import Job
from autotune.run.bench import BegunSite, Bench
from autotune.run.request import Request
from autotune.values import Configuration, Problem

pytestmark = [pytest.mark.opencl, pytest.mark.usefixtures("kept_processes")]

REFERENCE = "\n\n@scale.reference\ndef reference(x, factor):\n    return factor * x\n"
RIGHT = "if (i < n) out[i] = factor * x[i];"


def undescribed(folder: Path, store: str, blocks: str = "32, 64, 128, 256") -> Path:
    """A kernel without a reference, with what it does in place of the right statement."""
    file = write_space(folder, (REFERENCE, ""), ("BLOCK=(32, 64)", f"BLOCK=({blocks})"))
    source = folder / "kernels" / "scale.cu"
    source.write_text(changed(source.read_text(), (RIGHT, store)))
    return file


@pytest.mark.parametrize(
    "wrong",
    [pytest.param(64, marks=pytest.mark.full), 32],
    ids=["another", "the default"],
)
def test_what_differs_from_most_is_wrong_and_the_answer_says_how_it_was_checked(
    tmp_path: Path, opencl_device: str, capsys: pytest.CaptureFixture[str], wrong: int
) -> None:
    store = f"if (i < n) out[i] = BLOCK == {wrong} && i == 7 ? 0 : factor * x[i];"
    space, out = undescribed(tmp_path, store), tmp_path / "out"
    options = ["--device", opencl_device, "--strategy", "exhaustive", "--out", str(out)]
    assert run(["run", str(space), *options]) == 0
    printed = capsys.readouterr()
    assert "no reference)" in printed.out  # noisy, perhaps
    assert "1 wrong_result" in printed.err
    (file,) = out.rglob("scale.json")
    (entry,) = json.loads(file.read_text())["problems"]
    assert entry["checks"]["agreed"] == 3
    page = file.with_suffix(".md").read_text()
    assert "no reference, 3 configurations agree on the results" in page
    assert run(["run", str(space), *options, "--config", "BLOCK=128"]) == 0
    assert "ok, no reference" in capsys.readouterr().out
    assert run(["check", str(space)]) == 3
    assert "no reference: configurations must agree" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("store", "blocks", "why"),
    [
        ("if (i < n) out[i] = BLOCK * x[i];", "32, 64", "1 of 2 that ran do"),
        ("if (i < n) out[i] = (BLOCK / 128) * x[i];", "32, 64, 128, 256", "2 of 4 that ran do"),
        (RIGHT, "32,", "1 of 1 that ran do"),
        ("if (i < n - 1) out[i] = factor * x[i];", "32, 64", "0 of 2 that ran do"),
    ],
    ids=["all differ", "half of them", "only one", "an element is not written"],
)
def test_what_decides_nothing_is_refused(
    tmp_path: Path,
    opencl_device: str,
    capsys: pytest.CaptureFixture[str],
    store: str,
    blocks: str,
    why: str,
) -> None:
    space = undescribed(tmp_path, store, blocks)
    assert run(["run", str(space), "--device", opencl_device, "--out", str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert f"without a reference most configurations must agree, but only {why}" in message
    assert "write @scale.reference" in message


@pytest.mark.parametrize("tolerance", [None, 0.01])
def test_configurations_agree_within_the_declared_tolerance(
    tmp_path: Path, opencl_device: str, tolerance: float | None
) -> None:
    """They differ by at most 0.005 on random data, and are equal on integers."""
    rounded = "factor * x[i] + (BLOCK == 64 ? 0.01f * (x[i] - rint(x[i])) : 0.0f);"
    file = undescribed(tmp_path, f"if (i < n) out[i] = {rounded}", "32, 64")
    kernel, problem = load_file(file), Problem(n=1000)
    if tolerance is not None:
        kernel.tolerance(lambda p: tolerance)
    request = Request.without_search(kernel, choose_device(opencl_device), [problem])
    with closing(Bench(request)) as bench:
        if tolerance is None:
            with pytest.raises(AutotuneError, match="1 of 2 that ran do"):
                bench.job(problem)
        else:
            assert {dataset.agreed for dataset in bench.job(problem).datasets} == {2}


def read_and_written(file: Path) -> None:
    """Declare both arrays as `InOut`."""
    declared = ('{"x": x, "out": Out(p.n)', '{"x": InOut(x), "out": InOut(x.copy())')
    imported = ("import Kernel, Launch, Out", "import InOut, Kernel, Launch")
    file.write_text(changed(file.read_text(), declared, imported))
    source = file.parents[1] / "kernels" / "scale.cu"
    source.write_text(changed(source.read_text(), ("GLOBAL const float* x", "GLOBAL float* x")))


@pytest.mark.parametrize(
    ("factor", "wrong"),
    [
        ("factor", []),
        ("BLOCK == 512 ? 5 : factor", [512]),
        ("BLOCK == 32 ? 5 : factor", [32]),
        ("BLOCK < 128 ? BLOCK : factor", [32, 64]),
        ("BLOCK < 128 ? 5 : factor", [32, 64]),
    ],
    ids=["all agree", "one is wrong", "the default is", "two are", "two are wrong alike"],
)
@pytest.mark.parametrize("is_inout", [False, True], ids=["outputs", "arrays read and written"])
def test_files_are_written_of_a_configuration_once_those_before_it_failed(
    tmp_path: Path,
    opencl_device: str,
    monkeypatch: pytest.MonkeyPatch,
    factor: str,
    wrong: list[int],
    is_inout: bool,
) -> None:
    """Of an array that it leaves as it was there are none."""
    store = f"if (i < n) out[i] = ({factor}) * x[i];"
    file = undescribed(tmp_path, store, "32, 64, 128, 256, 512")
    if is_inout:
        read_and_written(file)
    kernel, asked = load_file(file), DeviceWorker.measure
    claimed = list[int]()

    def measure(worker: DeviceWorker, job: Job, c: Configuration, *how: Any, **named: Any) -> Any:
        if named.get("task") is write_results:
            claimed.append(c["BLOCK"])
        return asked(worker, job, c, *how, **named)

    monkeypatch.setattr(DeviceWorker, "measure", measure)
    problem, device = Problem(n=1000), choose_device(opencl_device)
    with closing(Bench(Request(kernel, device, (problem,)))) as bench:
        job = bench.job(problem)
        others = bench.other_jobs(job)
    *refused, chosen = claimed[: len(claimed) // 2]
    assert claimed == 2 * [*refused, chosen]  # once more for random data of another seed
    assert claimed[0] == 32 and {*refused} <= {*wrong} and chosen not in wrong
    for dataset in (*job.datasets, *others[-1].datasets):
        assert dataset.agreed == 5 - len(wrong)
        np.testing.assert_array_equal(dataset.expected("out"), 3 * dataset.array("x"))
        assert {*dataset.bounds} == {"out"}
        assert not list(dataset.folder.glob("*.result.npy"))


@pytest.mark.parametrize(
    ("store", "wrong", "outputs"),
    [
        ("if (i < n) { if (BLOCK == 64) x[i] += 1; out[i] = 2 * x[i]; }", 64, {"out"}),
        ("if (i < n && BLOCK != 32) x[i] = 0;", 32, {"x"}),
        ("if (i < n && n > 2000) x[i] = 0;", 0, {"x", "out"}),
        ("if (i < n && factor * x[i] > 6) x[i] = 0;", 0, {"x"}),
    ],
    ids=["it is changed", "it is not changed", "nothing is", "one data set is"],
)
def test_an_array_that_most_leave_as_it_is_may_not_change(
    tmp_path: Path, opencl_device: str, store: str, wrong: int, outputs: set[str]
) -> None:
    """The largest exact number is 2, times 3."""
    file = undescribed(tmp_path, store)
    read_and_written(file)
    kernel, problem, device = load_file(file), Problem(n=1000), choose_device(opencl_device)
    with closing(Bench(Request(kernel, device, (problem,)))) as bench:
        job, answers = bench.job(problem), dict[int, str]()
        for block in (32, 64, 128, 256):
            c = Configuration(BLOCK=block)
            binary = bench.compilers.result(bench.compile_job(c, problem)).binary
            assert binary is not None
            answers[block] = bench.worker.check(job, c, binary).status
    assert [block for block, status in answers.items() if status != "ok"] == [wrong] * bool(wrong)
    assert [{*dataset.bounds} for dataset in job.datasets] == 2 * [outputs]


def test_a_callers_own_data_are_not_drawn_again(tmp_path: Path, opencl_device: str) -> None:
    kernel, problem = load_file(undescribed(tmp_path, RIGHT)), Problem(n=1000)
    request = Request(kernel, choose_device(opencl_device), (problem,), has_callers_data=True)
    with closing(Bench(request)) as bench:
        job = bench.job(problem)
        assert bench.other_jobs(job) == [job]


def test_processes_begin_before_a_run_that_ends_them(tmp_path: Path, opencl_device: str) -> None:
    kernel, problem = load_file(undescribed(tmp_path, RIGHT)), Problem(n=1000)
    request = Request(kernel, choose_device(opencl_device), (problem,))
    with closing(BegunSite(request)) as site:
        actor = site.device_actor(request.device)
        begun = actor.ask(os.getpid, timeout_s=60)
        with closing(Bench(request, site)) as bench:
            folders = [dataset.folder for dataset in bench.job(problem).datasets]
            assert bench.compilers is site.compilers(request)
            assert bench.worker.actor.ask(os.getpid, timeout_s=60) == begun
        with pytest.raises(AutotuneError, match="the processes of the run were ended"):
            actor.ask(os.getpid, timeout_s=60)
        assert all(folder.exists() for folder in folders)
    assert not any(folder.exists() for folder in folders)


@pytest.mark.parametrize("scale", [1, 1e9], ids=["fractions", "integers that are rounded"])
def test_results_that_rounding_parts_agree(
    tmp_path: Path, opencl_device: str, scale: float
) -> None:
    store = f"if (i < n) out[i] = BLOCK < 128 ? x[i] * {scale}f / 3 : x[i] * ({scale}f / 3);"
    kernel, device = load_file(undescribed(tmp_path, store.replace("1f", "1.0f"))), opencl_device
    problem = Problem(n=1000)
    with closing(Bench(Request(kernel, choose_device(device), (problem,)))) as bench:
        exact, random = bench.job(problem).datasets
    assert exact.agreed == random.agreed == 4
    assert exact.bounds["out"] > 0 < random.bounds["out"]


def test_results_that_the_cache_lost_let_nothing_pass(tmp_path: Path, opencl_device: str) -> None:
    kernel, device = load_file(undescribed(tmp_path, RIGHT)), choose_device(opencl_device)
    (problem,) = problems = (Problem(n=1000),)
    with closing(Bench(Request(kernel, device, problems))) as bench:
        job = bench.job(problem)
        assert {dataset.agreed for dataset in job.datasets} == {4}
        assert bench.job(problem) == job  # from the cache
        lost = replace(job, datasets=tuple(replace(d, bounds={}) for d in job.datasets))
        binary = bench.compilers.result(bench.compile_job(kernel.default(), problem)).binary
        assert binary is not None
        with pytest.raises(AutotuneError, match="were removed from the cache of data"):
            bench.worker.check(lost, kernel.default(), binary)


def test_a_fleet_needs_a_reference(tmp_path: Path, opencl_device: str) -> None:
    pytest.importorskip("distributed")
    from autotune.fleet.site import FleetSite

    kernel = load_file(undescribed(tmp_path, RIGHT))
    request = Request(kernel, choose_device(opencl_device), ())
    with pytest.raises(
        UsageError, match=r"scale: a fleet needs a reference, .* write @scale\.reference"
    ):
        FleetSite(SimpleNamespace()).require_supported(request)
