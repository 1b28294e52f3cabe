"""The decorator on a GPU: tuned at the first call, remembered, launched by the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import NoAnswerError
from autotune.files import data_path

pytestmark = [pytest.mark.gpu]
pytest.importorskip("triton")
torch = pytest.importorskip("torch")

LAYERS = """
import triton
import triton.language as tl
from autotune.triton import autotune


@autotune(BLOCK=(64, 128, 256, 512, 1024, 2048), num_warps=(4,), num_stages=(2,), key=["n"], budget="20s")
@triton.jit
def add(x, y, out, n, scale, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    total = tl.load(x + offsets, mask=inside) + scale * tl.load(y + offsets, mask=inside)
    if BLOCK == WRONG:
        total += 1
    if BLOCK == FAULTY:
        tl.store(out + n.to(tl.int64) * 100000000 + offsets, total)
    if BLOCK == HANGING:
        while tl.load(x) == tl.load(x):
            tl.atomic_add(out, 0.0)
    tl.store(out + offsets, total, mask=inside)


WRONG: tl.constexpr = tl.constexpr({wrong})
FAULTY: tl.constexpr = tl.constexpr({faulty})
HANGING: tl.constexpr = tl.constexpr({hanging})
"""
PROGRAM = """
import time
import torch, triton
from layers import add

n = 1 << 20
x, y = torch.randn(n, device="cuda", dtype=torch.{dtype}), torch.randn(n, device="cuda", dtype=torch.{dtype})
out = torch.full_like(x, 7)
before = time.perf_counter()
add[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n, 2.0)
torch.cuda.synchronize()
took_s = time.perf_counter() - before
torch.testing.assert_close(out, x + 2 * y)
print(add.best_config.kwargs["BLOCK"], took_s)
"""


def called(
    folder: Path, dtype: str = "float32", wrong: int = 0, faulty: int = 0, hanging: int = 0
) -> tuple[int, float, str]:
    """Return the block that a process of its own launches, the time of its first call, and stderr."""
    text = LAYERS.format(wrong=wrong, faulty=faulty, hanging=hanging)
    (folder / "layers.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(dtype=dtype)],
        cwd=folder,
        env=os.environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    block, took_s = done.stdout.split()
    return int(block), float(took_s), done.stderr


def records() -> list[Path]:
    return list(Path(data_path("tuned")).rglob("add.json"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_second_process_tunes_nothing(tmp_path: Path, dtype: str) -> None:
    first, _, _ = called(tmp_path, dtype)
    (record,) = records()
    written = record.stat().st_mtime_ns
    again, _, _ = called(tmp_path, dtype)
    assert again == first and record.stat().st_mtime_ns == written


def test_what_is_wrong_faults_or_hangs_is_named_and_not_chosen(tmp_path: Path) -> None:
    """The others agree: three of six."""
    bad = {512: "wrong_result", 1024: "crashed", 2048: "timed_out"}
    block, _, said = called(tmp_path, wrong=512, faulty=1024, hanging=2048)
    for number, status in bad.items():
        named = [line for line in said.splitlines() if f"BLOCK={number}" in line]
        assert any(status in line for line in named), said
    assert block in (64, 128, 256), said


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The decorated function, in this process."""
    (tmp_path / "layers.py").write_text(LAYERS.format(wrong=0, faulty=0, hanging=0))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "layers", raising=False)
    return import_module("layers").add


def test_frozen_and_pinned_calls_tune_nothing(add: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x: Any = torch.ones(1 << 20, device="cuda")
    out = torch.empty_like(x)

    def block_of(n: int) -> int:
        """Call on n elements; return the block that ran."""
        out.fill_(7)
        add[lambda meta: (-(-n // meta["BLOCK"]),)](x, x, out, n, 3.0)
        assert bool((out[:n] == 4).all()) and bool((out[n:] == 7).all())
        return int(add.best_config.kwargs["BLOCK"])

    tuned = block_of(1 << 20)
    (record,) = records()
    written = record.stat().st_mtime_ns
    monkeypatch.setenv("AUTOTUNE_FROZEN", "1")
    assert block_of(1 << 20) == tuned
    for _ in range(2):
        with pytest.raises(
            NoAnswerError, match=r"add \(n=1000, .* frozen calls need an exact answer"
        ):
            block_of(1000)
    monkeypatch.setenv("AUTOTUNE_FROZEN", "nearest")
    assert block_of(1000) == tuned
    monkeypatch.setenv("AUTOTUNE_PIN", "add:BLOCK=128")
    assert block_of(2000) == 128
    assert record.stat().st_mtime_ns == written


def test_in_the_background_a_call_is_answered_at_once(
    add: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller may change its arrays meanwhile: they are copied; the next call switches."""
    monkeypatch.setenv("AUTOTUNE_TUNE", "background")
    x: Any = torch.ones(1 << 20, device="cuda")
    out = torch.empty_like(x)

    def call() -> None:
        add[lambda meta: (-(-len(x) // meta["BLOCK"]),)](x, x, out, len(x), 3.0)

    call()
    assert not records() and add.best_config.kwargs["BLOCK"] == 64
    (thread,) = (each for each in threading.enumerate() if each.name == "autotune-first-call")
    x.fill_(float("nan"))
    call()  # of the answer that is good meanwhile
    thread.join()
    (record,) = records()
    x.fill_(2.0)
    call()
    assert bool((out == 8).all())
    (entry,) = json.loads(record.read_text())["problems"]
    assert add.best_config.kwargs["BLOCK"] == entry["plans"][0]["configuration"]["BLOCK"]


def test_calls_of_a_captured_graph_are_answered_untuned(add: Any) -> None:
    import triton

    x: Any = torch.ones(1000, device="cuda")
    out, graph = torch.empty_like(x), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, x, out, 1000, 3.0)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((out == 4).all())
    assert not records()


def test_tensors_at_any_offset_are_tuned(add: Any, caplog: pytest.LogCaptureFixture) -> None:
    """An address that is not a multiple of 16 has a binary and an entry of its own."""
    memory: Any = torch.randn(1 << 20, device="cuda")
    n = len(memory) - 4
    for offset in (0, 1, 2, 0):
        x, out = memory[offset:][:n], torch.empty(n, device="cuda")
        kernel = add[lambda meta: (-(-meta["n"] // meta["BLOCK"]),)](x, x, out, n, 3.0)
        torch.testing.assert_close(out, 4 * x)
    assert "ptx" in kernel.asm and not caplog.records and not add.cache
    (record,) = records()
    types = [entry["problem"]["types"] for entry in json.loads(record.read_text())["problems"]]
    assert sorted(kind.split("-")[0] for kind in types) == ["fp32", "fp32@1", "fp32@2"]


DESCRIPTORS = """
import triton
import triton.language as tl
from autotune.triton import autotune


@autotune(M=(32, 64, 128), N=(64,), num_warps=(4,), key=["rows", "columns"], budget="20s")
@triton.jit
def doubled(x, out, rows, columns, M: tl.constexpr, N: tl.constexpr):
    read = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [M, N])
    written = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [M, N])
    place = [tl.program_id(0) * M, tl.program_id(1) * N]
    written.store(place, read.load(place) * 2)
"""


def test_descriptors_made_on_the_device_are_tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On two streams at once: each has a workspace of its own."""
    (tmp_path / "rows.py").write_text(DESCRIPTORS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "rows", raising=False)
    doubled = import_module("rows").doubled
    rows, columns = 1000, 512
    inputs: list[Any] = [torch.randn(rows, columns, device="cuda") for _ in range(2)]
    outputs = [torch.full_like(x, float("nan")) for x in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    for _ in range(20):
        for x, out, stream in zip(inputs, outputs, streams, strict=True):
            with torch.cuda.stream(stream):
                doubled[lambda meta: (-(-rows // meta["M"]), -(-columns // meta["N"]))](
                    x, out, rows, columns
                )
    torch.cuda.synchronize()
    for x, out in zip(inputs, outputs, strict=True):
        torch.testing.assert_close(out, 2 * x, rtol=0, atol=0)
    assert not caplog.records and not doubled.cache
    (record,) = Path(data_path("tuned")).rglob("doubled.json")
    (entry,) = json.loads(record.read_text())["problems"]
    assert len(entry["race"]["contenders"]) >= 1


@pytest.mark.parametrize("option", ["enable_fp_fusion", "launch_pdl", "launch_cooperative_grid"])
def test_an_option_in_a_call_is_tuned(
    add: Any, caplog: pytest.LogCaptureFixture, option: str
) -> None:
    x: Any = torch.ones(1000, device="cuda")
    out = torch.empty_like(x)
    add[lambda meta: (-(-1000 // meta["BLOCK"]),)](
        x, x, out, 1000, 3.0, **{option: option != "enable_fp_fusion"}
    )
    assert bool((out == 4).all()) and not caplog.records and len(records()) == 1


def test_an_unknown_option_in_a_call_is_left_to_triton(
    add: Any, caplog: pytest.LogCaptureFixture
) -> None:
    x: Any = torch.ones(1000, device="cuda")
    out = torch.empty_like(x)
    add[lambda meta: (-(-1000 // meta["BLOCK"]),)](x, x, out, 1000, 3.0, sanitize_overflow=False)
    assert bool((out == 4).all()) and len(add.cache) == 1
    assert "sanitize_overflow is neither an argument nor an option that is known" in caplog.text


def test_a_call_returns_the_compiled_kernel(add: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_TUNE", "off")
    x: Any = torch.ones(1000, device="cuda")
    out = torch.empty_like(x)
    kernel = add[(16,)](x, x, out, 1000, 3.0)
    assert "ptx" in kernel.asm and kernel.metadata.num_warps == 4
    assert bool((out == 4).all())


def test_a_search_without_a_winner_is_left_to_triton(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two configurations that differ have no majority; Triton takes the faster."""
    text = LAYERS.format(wrong=128, faulty=0, hanging=0).replace(", 256, 512, 1024, 2048", "")
    (tmp_path / "layers.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "layers", raising=False)
    add = import_module("layers").add
    x: Any = torch.ones(1 << 20, device="cuda")
    out = torch.empty_like(x)
    add[lambda meta: (-(-len(x) // meta["BLOCK"]),)](x, x, out, len(x), 3.0)
    assert "left to triton.autotune: no configuration was verified" in caplog.text
    assert len(add.cache) == 1 and not records()
