"""Each rule of launches has a kernel that needs it, as in test_rules.py. The kernels are host functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import pytest
from rules_page import rows
from sample_spaces import write_space

from autotune.data.dataset import EXACT
from autotune.data.prepare import prepare_dataset
from autotune.devices.base import BoundLaunch, Executor, Poison
from autotune.devices.choose import backend, choose_device
from autotune.kernel.catalog import load_file
from autotune.kernel.spec import Out
from autotune.measure import verify
from autotune.measure.verify import DeviceData, WrongResult
from autotune.values import Problem

pytestmark = pytest.mark.opencl
N = 1000
POKE = "__kernel void poke(__global float* out, int index) { out[index] = 5.0f; }"
INOUT = (
    ("import Kernel, Launch, Out", "import InOut, Kernel, Launch, Out"),
    ('"x": x, "out": Out(p.n)', '"x": InOut(x)'),
)
SOME_NAN = (("return factor * x", "return np.where(x > 0, x, np.nan)"),)


class Host:
    """Reads and writes the buffers of a kernel."""

    def __init__(self, data: DeviceData) -> None:
        self.data = data
        self.expected = data.datasets[EXACT].expected(next(iter(data.datasets[EXACT].bounds)))

    def read(self, name: str) -> Any:
        return self.data.executor.read(self.data.all_buffers()[name], np.dtype("f4"), (N,))

    def write(self, name: str, values: Any) -> None:
        self.data.executor.write(self.data.all_buffers()[name], np.asarray(values, "f4"))

    def poke(self, name: str, index: int) -> None:
        executor = self.data.executor
        module = executor.load(backend("opencl").compile(POKE, {}, (), executor.device), {})
        args = (self.data.all_buffers()[name], np.int32(index))
        executor.run(module, [BoundLaunch("poke", (1, 1, 1), (1, 1, 1), 0, args)])


def right(host: Host) -> None:
    host.write("out", host.expected)


def nothing(host: Host) -> None:
    """Leave what is there."""


def only_finite(host: Host) -> None:
    host.write("out", np.where(np.isnan(host.expected), host.read("out"), host.expected))


def once(host: Host) -> None:
    """Be right if the workspace was never used."""
    is_fresh = np.isnan(host.read("work")[0])
    host.write("work", np.zeros(N))
    host.write("out", host.expected if is_fresh else 0 * host.expected)


def with_zeros(host: Host) -> None:
    """Expect zeros in the workspace."""
    host.write("out", host.expected + host.read("work"))
    host.write("work", np.zeros(N))


def outside(host: Host) -> None:
    right(host)
    host.poke("out", N)


def input_changed(host: Host) -> None:
    right(host)
    host.write("x", host.read("x") + 1)


def tripled(host: Host) -> None:
    host.write("x", 3 * host.read("x"))


Off: TypeAlias = Callable[[pytest.MonkeyPatch, type[Executor]], None]


def without(name: str, result: Any = None) -> Off:
    return lambda patch, _: patch.setattr(DeviceData, name, lambda *_, **__: result)


def intact(name: str) -> Off:
    return lambda patch, executor: patch.setattr(executor, name, lambda *_: True)


def fresh_workspaces(patch: pytest.MonkeyPatch, _: type[Executor]) -> None:
    kept = DeviceData.refresh

    def refreshed(data: DeviceData, *args: Any) -> None:
        kept(data, *args)
        data.poison_scratch()

    patch.setattr(DeviceData, "refresh", refreshed)


def guards_kept(patch: pytest.MonkeyPatch, _: type[Executor]) -> None:
    kept = DeviceData.refresh
    patch.setattr(
        DeviceData, "refresh", lambda data, name, _, poison: kept(data, name, False, poison)
    )


#: For each rule: how to switch it off, edits of the space file, the kernel before, the kernel, is it correct?
RULES: dict[str, tuple[Off, tuple[tuple[str, str], ...], Any, Any, bool]] = {
    "outputs are filled": (without("poison_outputs"), (), right, nothing, False),
    "they hold NaN, then a number": (
        lambda patch, _: patch.setattr(verify, "Poison", SimpleNamespace(NAN=Poison.NAN, FINITE=Poison.NAN)),
        SOME_NAN, nothing, only_finite, False,
    ),
    "a second launch": (
        lambda patch, _: patch.setattr(verify.verify, "__defaults__", (1, True)),
        (), nothing, once, False,
    ),
    "workspaces are filled": (
        without("poison_scratch"), (), nothing, with_zeros, False,
    ),
    "workspaces keep their contents": (fresh_workspaces, (), nothing, once, False),
    "guard bands": (intact("_guards_intact"), (), nothing, outside, False),
    "inputs are compared": (intact("_same_bytes"), (), nothing, input_changed, False),
    "read and written arrays are restored": (without("restore"), INOUT, nothing, tripled, True),
    "guard bands are restored": (guards_kept, (), outside, right, True),
}  # fmt: skip


@pytest.fixture(scope="module")
def executor(opencl_device: str) -> Executor:
    return backend("opencl").open(choose_device(opencl_device))


@pytest.fixture
def is_accepted(executor: Executor, tmp_path: Path) -> Callable[..., bool]:
    """Return whether verification accepts a kernel that runs after another."""

    def accepted(edits: tuple[tuple[str, str], ...], before: Any, kernel: Any) -> bool:
        dataset = prepare_dataset(load_file(write_space(tmp_path, *edits)), Problem(n=N), EXACT)
        data = DeviceData(executor, {EXACT: dataset})
        data.declare_scratch({"work": Out(N)})
        host = Host(data)
        host.write("work", np.zeros(N))
        before(host)
        try:
            verify.verify(data, EXACT, lambda: kernel(host))
        except WrongResult:
            return False
        return True

    return accepted


@pytest.mark.parametrize("rule", RULES)
def test_a_kernel_needs_each_rule_of_launches(
    rule: str,
    executor: Executor,
    is_accepted: Callable[..., bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    off, edits, before, kernel, is_correct = RULES[rule]
    assert is_accepted(edits, before, kernel) == is_correct
    off(monkeypatch, type(executor))
    assert is_accepted(edits, before, kernel) != is_correct


def test_the_page_has_each_rule_of_launches() -> None:
    assert rows("Launches") == {rule: case[3].__name__ for rule, case in RULES.items()}
