"""Structured scalars: structs that a kernel takes by value."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from sample_spaces import SOURCE, changed, write_space
from test_export_cuda import scale_record

from autotune import load
from autotune.checking.kernel_check import check_kernel
from autotune.data.arguments import declared_arguments
from autotune.errors import UsageError
from autotune.export.launcher import render
from autotune.kernel.catalog import load_file
from autotune.kernel.spec import Kernel
from autotune.values import Problem

#: As C lays it out: with 11 bytes of padding.
PAIR = np.dtype([("scale", "f4"), ("count", "i8"), ("sign", "i1")], align=True)
PAIR_TEXT = "np.dtype([('scale', 'f4'), ('count', 'i8'), ('sign', 'i1')], align=True)"
STRUCT = "struct pair { float scale; long count; char sign; };\nKERNEL(BLOCK, 1, 0)"
RIGHT = "a.scale * (float)a.sign * x[i]"


def described(folder: Path, stored: str = RIGHT, dtype: str = PAIR_TEXT) -> Kernel:
    """Return ``scale``, whose factor is in a struct."""
    drawn = f"np.array((rng.uniform(1, 4), p.n, rng.integers(1, 4)), {dtype})[()]"
    file = write_space(
        folder,
        ("return factor * x", "return a['scale'] * a['sign'] * x"),
        ("def reference(x, factor)", "def reference(x, a)"),
        ('"factor": np.float32(FACTOR)', f'"a": {drawn}'),
    )
    edits = (
        ("KERNEL(BLOCK, 1, 0)", STRUCT),
        ("float factor, int n", "struct pair a, int n"),
        ("factor * x[i]", stored),
    )
    (folder / "kernels" / "scale.cu").write_text(changed(SOURCE, *edits))
    return load_file(file)


def test_a_struct_is_passed_as_c_lays_it_out(tmp_path: Path, opencl_device: str) -> None:
    report = check_kernel(described(tmp_path), ["sm_90"], samples=2, seed=0)
    assert not report.failures
    results = [row["result"] for row in report.samples]
    assert "verified" in results and "compiled" in results


def test_a_member_that_is_lost_shows(tmp_path: Path, opencl_device: str) -> None:
    report = check_kernel(described(tmp_path, "a.scale * x[i]"), [], samples=2, seed=0)
    assert any("wrong_result" in str(row) for row in report.samples)


def test_a_struct_without_cs_padding_does_not_fit_its_parameter(tmp_path: Path) -> None:
    packed = PAIR_TEXT.replace(", align=True", "")
    report = check_kernel(described(tmp_path, dtype=packed), ["sm_90"], samples=1, seed=0)
    assert "parameter 3 of scale has 24 bytes, but argument a is void104 of 13 bytes" in str(report)
    assert "align=True" in str(report)


def test_a_stored_struct_is_the_same(tmp_path: Path) -> None:
    argument = declared_arguments(described(tmp_path), Problem(n=1000))["a"]
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(argument), type=type(argument))
    assert stored == argument and stored.scalar.dtype == PAIR
    assert stored.scalar["count"] == 1000


def test_a_call_passes_a_struct(tmp_path: Path, opencl_device: str) -> None:
    kernel = described(tmp_path)
    kernel.call(lambda x, a: (Problem(n=x.size), {"x": x, "a": a}))
    scale = load(kernel)
    x = np.arange(100, dtype=np.float32)
    for sign in (3, 2):
        found = scale(x, np.array((0.5, 100, sign), PAIR)[()])
        assert np.array_equal(found, 0.5 * sign * x)
    with pytest.raises(UsageError, match="scale: a is 3; it must be a structured scalar of"):
        scale(x, 3)


def test_an_exported_launcher_takes_the_bytes_of_a_struct(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described(tmp_path)
    monkeypatch.chdir(tmp_path)
    launcher = str(render([scale_record()])["scale_launch.hpp"])
    assert "std::array<unsigned char, 24> a;" in launcher and "#include <array>" in launcher
