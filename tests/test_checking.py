"""`autotune check`: what it says it did, and that it never passes what it did not look at."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_spaces import write_space

from autotune.cli import run
from autotune.errors import SpecError
from autotune.kernel.catalog import load_file
from autotune.run import checking
from autotune.run.checking import check_kernel

CUDA_ONLY = ('"scale.cu",', '"scale.cu",\n    backends=["cuda"],')
#: No configuration takes a problem that the space file names.
NEVER = (
    "@scale.launch",
    "@scale.requires\ndef requires(c, p):\n    return p.n <= -1\n\n\n@scale.launch",
)
WRONG = ("return factor * x", "return factor * x.reshape(7, 7)")


@pytest.mark.opencl
def test_each_row_says_whether_it_was_compiled_or_verified(
    tmp_path: Path, opencl_device: str
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    report = check_kernel(load_file(write_space(tmp_path)), ["sm_90"], samples=2, seed=0)
    results = {(row["target"], row["result"], row["problem"]) for row in report.samples}
    assert results == {("sm_90", "compiled", ""), ("opencl_cpu", "verified", "")}
    assert report.not_verified == ""


def test_arguments_and_reference_run_at_the_smallest_problem_of_any_kernel(tmp_path: Path) -> None:
    """Also where nothing can be launched: what they say is told, what is wrong in them an error."""
    sizes = (
        "problems=[Problem(n=1000)]",
        "problems=[Problem(n=1000)],\n    edge_problems=[Problem(n=7)]",
    )
    report = check_kernel(load_file(write_space(tmp_path, CUDA_ONLY, sizes)), [], 1, 0)
    exact, random, *_ = report.notes
    assert exact == "exact data, n=7: out is compared to the bit"
    assert random.startswith("random data, n=7: out is compared within ")
    with pytest.raises(SpecError, match=r"reference: ValueError: .*scale\.py:\d+"):
        check_kernel(load_file(write_space(tmp_path, CUDA_ONLY, WRONG)), [], 1, 0)


def test_a_default_that_is_not_valid_is_told(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    wide = (
        "@scale.launch",
        '@scale.constraint\ndef wide(BLOCK):\n    """Wide."""\n    return BLOCK >= 64\n\n\n@scale.launch',
    )
    for changes, told in (((CUDA_ONLY,), 0), ((CUDA_ONLY, wide), 1)):
        report = check_kernel(load_file(write_space(tmp_path, *changes)), ["sm_90"], 1, 0)
        found = [note for note in report.notes if note.startswith("the default (BLOCK=32")]
        assert len(found) == told
        assert all("breaks wide" in note and "'BLOCK': 64" in note for note in found)


def test_why_nothing_was_verified_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    file = str(write_space(tmp_path, CUDA_ONLY))
    assert run(["check", file, "--arch", "sm_90", "--samples", "1"]) == 0
    told = capsys.readouterr().out
    assert "not verified: a kernel of cuda only is compiled here, not launched; " in told
    assert "verified\n" not in told

    class NoDevice:
        def devices(self) -> list[object]:
            return []

    monkeypatch.setattr(checking, "backend", lambda name: NoDevice())
    report = check_kernel(load_file(write_space(tmp_path)), [], 1, 0)
    assert report.failures == [] and report.not_verified.startswith("no OpenCL device")
    assert f"not verified: {report.not_verified}" in report.notes


@pytest.mark.opencl
def test_it_fails_where_nothing_was_verified_and_nothing_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], opencl_device: str
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    assert run(["check", str(write_space(tmp_path, NEVER)), "--arch", "sm_90"]) == 3
    said = capsys.readouterr()
    assert "error: scale: nothing was verified: no configuration of the sample takes" in said.err
    assert "skipped: it requires what neither the first problem nor an odd size meets" in said.out
