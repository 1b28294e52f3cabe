"""Arrays that lie otherwise than those that are tuned: verified, and answered for.

Placing them on a GPU: tests/gpu/test_layout.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.cli.checking import check_kernel
from autotune.devices.choose import choose_device
from autotune.devices.device import for_arch
from autotune.errors import UsageError
from autotune.kernel.catalog import load_file
from autotune.kernel.spec import Kernel
from autotune.measure.measurement import Status
from autotune.run.request import Request
from autotune.run.run import Run
from autotune.search.session import Budget
from autotune.store import Store
from autotune.values import Configuration, Problem

SOURCE = """\
#include "dialect.h"
#ifndef BLOCK
#define BLOCK 32
#endif
#ifndef STEP
#define STEP 1
#endif

KERNEL(BLOCK, 1, 0) gather(GLOBAL const float* x, GLOBAL float* out, GLOBAL const float* none, int n) {
    const int i = BID(0) * BLOCK + TID(0);
    if (i < n) out[i] = x[i * (WHERE == WHERE_steps ? STEP : 1)] + (none ? 1.0f : 0.0f);
}
"""

SPACE = '''\
"""gather: out = x[::step], of a vector that may begin anywhere; an empty input is a null pointer."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, ceil_div

gather = Kernel(
    "gather.cu",
    problems=[Problem(n=1000)],
    layout={"step": 1, "offset_x": 0},
    static=("step",),
    edge_problems=[Problem(n=7), Problem(n=63, step=3), Problem(n=9, offset_x=1)],
    BLOCK=(32, 64),
    WHERE=("side_by_side", "steps"),
)


@gather.requires
def requires(c, p):
    """The larger block loads two at a time."""
    return p.offset_x % (c.BLOCK // 32) == 0


@gather.launch
def launch(c, p):
    return Launch((ceil_div(p.n, c.BLOCK),), (c.BLOCK,), args=("x", "out", "none", "n"))


@gather.arguments
def arguments(p, rng):
    x = rng.standard_normal((p.n - 1) * p.step + 1)
    none = np.empty(0, np.float32)
    return {"x": x, "out": Out(p.n), "none": none, "n": p.n, "step": p.step}


@gather.reference
def reference(x, step):
    return x[::step]
'''


@pytest.fixture
def gather(tmp_path: Path) -> Kernel:
    for folder, name, text in (("spaces", "gather.py", SPACE), ("kernels", "gather.cu", SOURCE)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
    return load_file(tmp_path / "spaces" / "gather.py")


def ran(kernel: Kernel, device: str, path: Path, **options: Any) -> Any:
    request = Request(kernel, choose_device(device), budget=Budget(), **options)
    with Store.open(path) as store:
        tuning = Run(request.with_default_problems(), store)
        try:
            return tuning.run()
        finally:
            tuning.close()


def test_a_finalist_that_is_wrong_on_another_layout_is_disqualified(
    gather: Kernel, opencl_device: str, tmp_path: Path
) -> None:
    """The layout is compiled in: it is compiled again to be verified there."""
    fixed = {"BLOCK": (32,)}
    path = tmp_path / "store.sqlite"
    (result,) = ran(
        gather,
        opencl_device,
        path,
        problems=(Problem(n=1000),),
        strategy="exhaustive",
        fixed=fixed,
    ).problems
    assert {row.status for row in result.measured} == {Status.OK}
    (bad,) = result.disqualified
    assert bad.configuration.WHERE == "side_by_side"
    assert bad.status is Status.WRONG_RESULT
    assert bad.message.startswith("on n=63, step=3 with other inputs: out[1] is")
    assert result.finals.winner.measurement.configuration.WHERE == "steps"


def test_one_configuration_is_verified_on_a_layout_that_is_named(
    gather: Kernel, opencl_device: str, tmp_path: Path
) -> None:
    only = Configuration(BLOCK=64, WHERE="steps")
    problems = (Problem(n=100, step=2), Problem(n=100, offset_x=0))
    result = ran(gather, opencl_device, tmp_path / "s", problems=problems, only=only)
    assert [solved.problem for solved in result.solved] == [
        Problem(n=100, step=2),
        Problem(n=100),
    ]


def test_what_cannot_be_placed_is_left_out_and_told(gather: Kernel, opencl_device: str) -> None:
    device = choose_device(opencl_device)
    edges = gather.edges_on(for_arch("sm_90"))
    assert edges == gather.edge_problems
    assert gather.edges_on(device) == edges[:2]
    gather.parameters["WHERE"] = ("steps",)
    report = check_kernel(gather, [], samples=4, seed=0)
    assert report.failures == []
    (told,) = [note for note in report.notes if "left out" in note]
    assert told.startswith(
        f"{device.arch}: 1 of 3 odd sizes left out (offset_x: arrays begin aligned"
    )
    asked = Request(gather, device, (Problem(n=9, offset_x=1),), only=gather.default())
    with pytest.raises(UsageError, match=r"\(n=9, offset_x=1\): offset_x: arrays begin aligned"):
        asked.with_default_problems()
