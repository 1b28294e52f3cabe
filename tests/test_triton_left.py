"""Calls that the decorator leaves to `triton.autotune`; `install` for whole libraries."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[1]
#: Kernels of which the decorator cannot record some calls; `CASES` has the calls.
KERNELS = """
import numpy as np
import triton
import triton.language as tl
from triton import Config


def fills(given, reset_only=False):
    given["out"].zero_()


def reads(given, reset_only=False):
    given["out"].zero_()
    given["out"].sum()


def unlisted(configs, given, **named):
    return [Config({"BLOCK": 64}, num_warps=2)]


@triton.autotune([Config({"BLOCK": 64}), Config({"BLOCK": 128})], ["n"])
@triton.jit
def add(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=inside) + 1, mask=inside)


@triton.autotune([Config({"BLOCK": 64, "MORE": 2}), Config({"BLOCK": 128})], ["n"])
@triton.jit
def lacking(x, out, n, BLOCK: tl.constexpr, MORE: tl.constexpr = 1):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=inside) + MORE, mask=inside)


@triton.autotune([Config({"BLOCK": 64}), Config({"BLOCK": 128})], ["n"], pre_hook=reads)
@triton.jit
def hooked(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=inside) + 1, mask=inside)


@triton.autotune(
    [Config({"BLOCK": 64}), Config({"BLOCK": 128})], ["n"], {"early_config_prune": unlisted}
)
@triton.jit
def pruned(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=inside) + 1, mask=inside)


@triton.autotune([Config({"BLOCK": 64}), Config({"BLOCK": 128})], ["n"])
@triton.jit
def summed(pair, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(out + offsets, tl.load(pair[0] + offsets, mask=inside) + pair[1], mask=inside)


@triton.autotune([Config({"BLOCK": 64}), Config({"BLOCK": 128})], ["n"], pre_hook=fills)
@triton.jit
def faulty(x, out, n, BLOCK: tl.constexpr):
    tl.store(out, tl.load(x) + tl.arange(0, BLOCK))
"""
PROGRAM = """
import logging, sys
logging.basicConfig(format="%(message)s", stream=sys.stdout)
import numpy as np
import autotune.triton
if sys.argv[1] == "ours":
    autotune.triton.install()
import triton
from triton.runtime.autotuner import Autotuner
import kernels
from autotune.languages.interpreter import Pointer


class Buffer(np.ndarray):
    def zero_(self):
        self[...] = 0


class Tensor(Pointer):  # as much of torch's as Triton's interpreter and the hooks ask for
    def __init__(self, array):
        super().__init__(array.ctypes.data, array.dtype.name)
        self.zero_, self.sum = array.view(Buffer).zero_, array.sum


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


function = getattr(kernels, sys.argv[2])
if sys.argv[1] != "ours":
    function._do_bench = lambda call, quantiles: [1.0] * 3
x, out = np.arange(100, dtype=np.float32), np.full(100, 7, np.float32)
a, b = (x.view(Buffer), out.view(Buffer)) if sys.argv[1] == "ours" else (Tensor(x), Tensor(out))
try:
    for _ in range(2):
        function[grid](eval(sys.argv[3]), b, 100)
except Exception as error:
    print("raised", type(error).__name__)
print(type(function) is Autotuner, getattr(function, "best_config", None), out.sum())
"""
#: Kernel, the first argument of its calls, and the reason in the log.
CASES = [
    ("add", "a", ""),
    ("lacking", "a", "a configuration lacks MORE, which others have"),
    ("hooked", "a", "a hook uses out.sum; hooks of a tuned function may only fill arrays"),
    ("pruned", "a", "prune_configs_by returns a configuration that is not in the list"),
    ("summed", "(Tensor(x), 2.0)", "pair is a tuple"),
    ("faulty", "a", ""),
]


def printed(folder: Path, *arguments: str, **environ: str) -> list[str]:
    (folder / "kernels.py").write_text(KERNELS)
    given = {"TRITON_INTERPRET": "1", "AUTOTUNE_RECORD_SIZES": "1", **environ}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=folder,
        env={**os.environ, "XDG_DATA_HOME": str(folder / "data"), **given},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(("name", "first", "reason"), CASES, ids=[name for name, *_ in CASES])
def test_a_call_that_is_not_taken_does_what_triton_does(
    tmp_path: Path, name: str, first: str, reason: str
) -> None:
    """One line of the log has the reason, and no error is ours."""
    *log, ours = printed(tmp_path, "ours", name, first)
    *_, theirs = printed(tmp_path, "triton's", name, first)
    assert theirs == ours.replace("False", "True", 1)
    said = [line for line in log if "left to triton.autotune" in line]
    assert len(said) == bool(reason) and all(reason in line for line in said), log


def test_without_a_gpu_the_error_is_tritons(tmp_path: Path) -> None:
    *_, raised, _ = printed(tmp_path, "ours", "add", "a", TRITON_INTERPRET="0")
    assert raised == "raised RuntimeError"  # 0 active drivers


STARTED = """
import site, sys
site.addsitedir(sys.argv[1])  # as Python does when it starts
import triton
from autotune.triton import Decorated, uninstall
import kernels
assert type(kernels.add) is Decorated
assert kernels.add.name == "add_kernels"
uninstall()
assert triton.autotune is triton.runtime.autotuner.autotune is triton.runtime.autotune
del sys.modules["kernels"]
import kernels
assert type(kernels.add) is triton.runtime.autotuner.Autotuner
"""


def test_a_variable_installs_it_where_triton_is_imported(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(KERNELS)
    command = [sys.executable, "-c", STARTED, str(ROOT / "autotune" / "triton")]
    environ = {**os.environ, "AUTOTUNE_TRITON": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for value in ("", "0"):
        environ["AUTOTUNE_TRITON"] = value
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
        assert done.stderr.endswith("AssertionError\n")  # it is not a Decorated


def test_what_the_decorator_refuses_is_left_to_triton_when_installed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    import triton

    from autotune.triton import install, uninstall

    original = triton.autotune
    install(tune="off")
    try:
        with pytest.raises(TypeError, match="later_argument"):  # of Triton
            triton.autotune(configs=[], key=[], later_argument=1)(triton.jit(scale))
        assert "left to triton.autotune" in caplog.text
    finally:
        uninstall()
    assert triton.autotune is original


def scale(x, n, BLOCK): ...
