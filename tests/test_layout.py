"""Arrays that lie otherwise than those that are tuned: verified, and answered for.

Placing them on a GPU: tests/gpu/test_layout.py.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import msgspec
import numpy as np
import pytest
from sample_records import KERNEL, answering, entry, plan, problem, record, table_of, write

from autotune import load
from autotune.answers.fit import Launches, fitted_tables
from autotune.answers.table import Portfolio
from autotune.calling.binding import ResolvedCall, bind
from autotune.calling.choice import choose
from autotune.checking.importing import checked
from autotune.checking.kernel_check import check_kernel
from autotune.devices.choose import choose_device
from autotune.devices.device import for_arch
from autotune.errors import NoAnswerError, UsageError
from autotune.kernel.catalog import find_kernel, load_file
from autotune.kernel.operand import Operand
from autotune.measure.measurement import Status
from autotune.run.recording import record_of
from autotune.run.request import Request, Search, VerifyOne
from autotune.run.run import Run
from autotune.search.session import Budget
from autotune.store import Store
from autotune.tuned.lookup import clear_cache, lookup
from autotune.tuned.reading import decode
from autotune.tuned.writing import encode, merge
from autotune.values import Configuration, Problem

pytestmark = pytest.mark.usefixtures("kept_processes")

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
def gather(tmp_path):
    for folder, name, text in (("spaces", "gather.py", SPACE), ("kernels", "gather.cu", SOURCE)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
    return load_file(tmp_path / "spaces" / "gather.py")


def ran(kernel, device, path, **options):
    request = Request(kernel, choose_device(device), budget=Budget(), **options)
    with Store.open(path) as store:
        tuning = Run(request.with_default_problems(), store)
        try:
            return tuning.run()
        finally:
            tuning.close()


def test_a_finalist_that_is_wrong_on_another_layout_is_disqualified(
    gather, opencl_device, tmp_path
):
    """The layout is compiled in: it is compiled again to be verified there."""
    fixed = {"BLOCK": (32,)}
    path = tmp_path / "store.sqlite"
    (result,) = ran(
        gather, opencl_device, path, problems=(Problem(n=1000),), goal=Search("exhaustive", fixed)
    ).problems
    assert {row.status for row in result.measured} == {Status.OK}
    (bad,) = result.disqualified
    assert bad.configuration.WHERE == "side_by_side"
    assert bad.status is Status.WRONG_RESULT
    assert bad.message.startswith("on n=63, step=3 with other inputs: out[")
    assert result.winner.WHERE == "steps"


def test_one_configuration_is_verified_on_a_layout_that_is_named(gather, opencl_device, tmp_path):
    only = Configuration(BLOCK=64, WHERE="steps")
    problems = (Problem(n=100, step=2), Problem(n=100, offset_x=0))
    result = ran(gather, opencl_device, tmp_path / "s", problems=problems, goal=VerifyOne(only))
    assert [solved.problem for solved in result.solved] == [Problem(n=100, step=2), Problem(n=100)]


def test_what_cannot_be_placed_is_left_out_and_told(gather, opencl_device):
    device = choose_device(opencl_device)
    edges = gather.edges_on(for_arch("sm_90"))
    assert edges == gather.edge_problems
    assert gather.edges_on(device) == edges[:2]
    gather.parameters["WHERE"] = ("steps",)
    report = check_kernel(gather, [], samples=4, seed=0)
    assert report.failures == []
    asked = Request(gather, device, (Problem(n=9, offset_x=1),), goal=VerifyOne(gather.default()))
    with pytest.raises(
        UsageError, match=r"\(n=9, offset_x=1\): offset_x: .* only supports aligned arrays"
    ):
        asked.with_default_problems()


def test_check_finds_what_is_wrong_on_another_layout_only(gather, opencl_device):
    gather.parameters.update(BLOCK=(32,))
    report = check_kernel(gather, [], samples=2, seed=0)
    failed = {row["config"]["WHERE"]: row["problem"] for row in report.samples}
    assert failed["steps"] == ""
    assert failed["side_by_side"].startswith("failed: wrong_result on n=63, step=3")


# ---------------------------------------------------------------------- records and answers


ALIGNED = ["==", ["%", "offset_a", 4], 0]


def aligned(bm, **changes):
    """A plan for arrays that begin at a boundary."""
    return plan(bm, requires=ALIGNED, **changes)


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Make records all that is known; ask for a problem of one size."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def ask(records, **layout):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for known in records:
            write(folder, known)
        monkeypatch.setenv("AUTOTUNE_TUNED", str(folder))
        clear_cache()
        return lookup(KERNEL, arch=90, m=64, n=64, dtype="float32", **layout)

    return ask


def with_layout(*rows, **changes):
    """A record of square problems by size."""
    entries = [entry(problem(size, size), chosen) for size, chosen in rows]
    return record(entries, **{"layout": {"offset_a": 0, "lda": 0}, **changes})


def test_what_a_winner_cannot_take_the_nearest_that_can_does(asked):
    known = with_layout((64, aligned(128)), (128, aligned(64)), (4096, plan(32)))
    for layout in ({}, {"offset_a": 0}, {"offset_a": 0, "lda": 0}):
        found = asked([known], **layout)
        assert (found["BM"], found.quality, found.expected_fraction) == (128, "exact", 1.0)
        assert found.grid is not None
    for layout, bm in (({"offset_a": 4}, 128), ({"lda": 65}, 128), ({"offset_a": 1}, 32)):
        found = asked([known], **layout)
        assert (found["BM"], found.quality) == (bm, "nearest_problem"), layout
        assert (found.expected_fraction, found.grid) == (None, None)


def test_a_further_plan_of_a_near_row_takes_a_layout(asked):
    table = table_of(aligned(128), plan(64), at=problem(128, 128))
    known = with_layout((4096, plan(32)), portfolio=answering(table))
    assert [asked([known], offset_a=offset)["BM"] for offset in (4, 1)] == [128, 64]


def test_where_nothing_takes_a_layout_there_is_no_answer(asked):
    known = with_layout((64, aligned(128)), default=aligned(32))
    with pytest.raises(NoAnswerError, match=r"offset_a=1.*they need .*offset_a"):
        asked([known], offset_a=1)
    able = with_layout((64, aligned(128)))
    assert asked([able], offset_a=1).quality == "default"


def test_further_plans_are_the_fastest_that_take_a_layout():
    plans = {
        128: aligned(128),
        64: plan(64, requires=["==", ["%", "offset_a", 2], 0]),
        32: plan(32),
    }
    portfolio = Portfolio(
        configurations=tuple(chosen.configuration for chosen in plans.values()),
        problems=(problem(64, 64), problem(128, 128), problem(256, 256)),
        median_ms=((1.0, 2.0, 1.0), (2.0, 3.0, None), (3.0, 1.0, 2.0)),
    )
    launches = Launches(
        lambda configuration, _: plans[int(configuration["BM"])],
        sm_count=1,
        layout={"offset_a": 0, "lda": 0},
        other_layouts=[{"offset_a": offset, "lda": 0} for offset in (4, 2, 1, 3)],
    )
    (table,) = fitted_tables(portfolio, launches).portfolio.tables
    found = [[plan.configuration["BM"] for plan in row.plans] for row in table.rows]
    assert found == [[128, 64, 32], [32], [128, 32]]


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"offset_b": 1}, "unknown problem field 'offset_b'; did you mean 'offset_a'"),
        ({"lda": "wide"}, "lda='wide' must be an integer"),
        ({"lda": 1.5}, "lda=1.5 must be an integer"),
    ],
)
def test_a_wrong_layout_is_a_usage_error(asked, layout, message):
    with pytest.raises(UsageError, match=message):
        asked([with_layout((64, plan()))], **layout)


def test_records_of_other_layouts_are_not_mixed(asked):
    """One from before the kernel had layout fields: nothing else was verified of it."""
    provenance = msgspec.structs.replace(record().provenance, created="2020-01-01")
    old = record([entry(problem(64, 64), plan(128))], provenance=provenance)
    new = with_layout((4096, plan(64)), device="Test GPU B")
    with pytest.warns(RuntimeWarning, match="Test_GPU_A.*left out: its problem fields"):
        assert asked([old, new])["BM"] == 64
    new = with_layout((4096, plan(64)))
    assert merge(old, new).record == new


def test_a_run_records_the_layout_that_it_tuned(gather, opencl_device, tmp_path):
    only = Configuration(BLOCK=64, WHERE="steps")
    result = ran(
        gather, opencl_device, tmp_path / "s", problems=(Problem(n=100),), goal=VerifyOne(only)
    )
    made = decode(encode(record_of(result)), "gather")
    assert made.layout == {"step": 1, "offset_x": 0}
    assert list(made.fields) == ["n"]
    assert made.problems[0].plan.requires == ["==", ["%", "offset_x", 2], 0]
    assert checked(made, gather) == made


# ---------------------------------------------------------------------- bundled kernels


def placed(*shape, offset=0):
    """An operand that begins past a boundary."""
    return dataclasses.replace(Operand.new(shape), source=0, offset=offset)


#: What a call takes beside its arrays, and the names of those.
CALLS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "reduce": ({}, ("x", "out")),
    "prefetch": ({"scale": 2.0, "shift": 1.0, "intensity": 8}, ("x", "out")),
    "ffma": ({"steps": 5, "shear": 0.5}, ("x", "y", "out")),
    "copy": ({}, ("x", "out")),
}


@pytest.mark.parametrize("kernel", CALLS)
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_120"])
def test_every_offset_of_every_array_has_a_configuration(kernel, arch):
    declared = find_kernel(kernel)
    scalars, names = CALLS[kernel]
    for n in (1, 1000, (1 << 28) + 1):
        for offsets in itertools.product(range(4), repeat=len(names)):
            arrays = {
                name: placed(1 if (kernel, name) == ("reduce", "out") else n, offset=offset)
                for name, offset in zip(names, offsets, strict=True)
            }
            bound = bind(declared, (), {**arrays, **scalars}, find_kernel)
            assert isinstance(bound, ResolvedCall)
            assert not any(passed.is_copied for passed in bound.arrays.values())
            if kernel != "copy":  # whose offsets are fields that are tuned
                assert declared.layout_of(bound.problem) == Problem(
                    {
                        f"offset_{name}": offset
                        for name, offset in zip(names, offsets, strict=True)
                        if offset
                    }
                )
            chosen = choose(declared, bound.problem, for_arch(arch))
            assert declared.allows(chosen.configuration, bound.problem)


def views(x):
    """Arrays of 24 elements that lie in different ways, made of one."""
    flat = np.asarray(x, np.float32)
    return {
        "one axis": flat[:24],
        "past a boundary": flat[1:25],
        "with gaps": flat[:48:2],
        "matrix": flat[:24].reshape(4, 6),
        "cube": flat[:24].reshape(2, 3, 4),
        "one element": flat[:1].reshape(()),
        "empty": flat[:0],
        "empty matrix": flat[:0].reshape(0, 5),
    }


@pytest.mark.parametrize("lies", views(np.zeros(50)))
def test_vectors_of_any_shape_are_taken(lies, opencl_device):
    x = views(np.arange(50) + 1)[lies]
    for kernel, (scalars, names) in CALLS.items():
        arrays = dict.fromkeys(names[:-1], x)
        expected = {"reduce": x.sum(keepdims=True), "copy": x}.get(kernel)
        out = np.full_like(x, 7.0) if kernel != "reduce" else np.full((), 7.0, np.float32)
        made = load(kernel)(**arrays, **scalars)
        given = load(kernel)(**arrays, **scalars, out=out)
        assert given is out
        assert np.array_equal(made.reshape(-1), given.reshape(-1))
        if kernel != "reduce":
            assert made.shape == x.shape
        if expected is not None:
            assert np.array_equal(made.reshape(-1), expected.reshape(-1))


def test_a_sum_is_of_all_axes_in_any_order(opencl_device):
    cube = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for x in (cube.T, cube.transpose(1, 0, 2), np.asfortranarray(cube), cube[:, :, ::-1].copy().T):
        assert load("reduce")(x)[0] == 276
    with pytest.raises(
        UsageError, match=r"reduce: x is float32\[2, 3, 2\] with strides .*; copy it"
    ):
        load("reduce")(cube[:, :, ::2])


@pytest.mark.parametrize(
    ("shape", "strides", "is_dense"),
    [
        ((2, 3), (3, 1), True),
        ((2, 3), (1, 2), True),
        ((2, 3), (4, 1), False),
        ((3, 3), (1, 1), False),
        ((4, 1, 2), (2, 0, 1), True),
        ((), (), True),
    ],
)
def test_dense_is_every_element_side_by_side_once(shape, strides, is_dense):
    assert Operand(shape, strides).is_dense == is_dense
