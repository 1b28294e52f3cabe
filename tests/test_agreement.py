"""Kernels without a reference: what most configurations compute is right, and every page says so."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sample_spaces import changed, write_space

from autotune.cli import run
from autotune.devices.choose import choose_device
from autotune.errors import AutotuneError, UsageError
from autotune.kernel.catalog import load_file
from autotune.run.bench import Bench
from autotune.run.request import Request
from autotune.values import Problem

pytestmark = pytest.mark.opencl

REFERENCE = "\n\n@scale.reference\ndef reference(x, factor):\n    return factor * x\n"
RIGHT = "if (i < n) out[i] = factor * x[i];"


def undescribed(folder: Path, store: str, blocks: str = "32, 64, 128, 256") -> Path:
    """A kernel without a reference, with what it does in place of the right statement."""
    file = write_space(folder, (REFERENCE, ""), ("BLOCK=(32, 64)", f"BLOCK=({blocks})"))
    source = folder / "kernels" / "scale.cu"
    source.write_text(changed(source.read_text(), (RIGHT, store)))
    return file


@pytest.mark.parametrize("wrong", [64, 32], ids=["another", "the default"])
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
    assert "no reference: configurations have to agree" in capsys.readouterr().out


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
    assert f"without a reference most configurations must agree, and {why}" in message
    assert "write @scale.reference" in message


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
    from autotune.fleet.site import checked

    kernel = load_file(undescribed(tmp_path, RIGHT))
    request = Request(kernel, choose_device(opencl_device), ())
    with pytest.raises(UsageError, match=r"scale: a fleet needs @scale\.reference"):
        checked([request])
