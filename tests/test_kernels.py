"""The bundled products and sums: spaces, seeds, launches, and calls that read views where they lie."""

import ctypes
import re
from itertools import product as product_of
from math import prod

import numpy as np
import pytest
from thinned import thinned

from autotune import load
from autotune.calling.binding import bind
from autotune.cli.kernels import ptx_of
from autotune.compiling.binaries import compiled_for
from autotune.data.draw import Draw
from autotune.devices.choose import choose_device
from autotune.devices.device import for_arch
from autotune.errors import UsageError
from autotune.kernel.catalog import find_kernel
from autotune.kernel.launches import launch_sequence
from autotune.kernel.operand import NewArray, NothingToDo, Operand
from autotune.kernel.space import enumerate_space, is_member
from autotune.values import Problem

SM_90 = for_arch("sm_90")


@pytest.fixture(scope="module")
def sgemm():
    return find_kernel("sgemm")


@pytest.fixture(scope="module")
def space(sgemm):
    return enumerate_space(sgemm, SM_90)


def test_every_seed_can_be_tried(sgemm):
    seeds = [sgemm.default(), *map(sgemm.completed, sgemm.seeds)]
    assert [seed for seed in seeds if not is_member(sgemm, seed, SM_90)] == []
    assert len(set(seeds)) == len(seeds)


def test_the_space_stays_searchable(space):
    """Of 10^18 combinations, some 10^5: what cannot win is ruled out before it is compiled."""
    assert 1e5 < len(space) < 9e5 < 1e-6 * prod(space.sizes)


def test_a_block_computes_its_tile(sgemm, space):
    """Threads times their tiles are the block's, once for every slice; the grid covers C and no more."""
    p = Problem(m=1000, n=333, k=64)
    for number in range(0, len(space), len(space) // 500):
        c = space.configuration(number)
        if c["SOURCE"] != "cuda":
            continue
        step = sgemm.steps(c, p, SM_90)[-1]
        threads, tile = prod(step.block), c["BM"] * c["BN"]
        assert threads * c["TM"] * c["TN"] == tile * c["SLICES"], c
        blocks, z = step.grid[0], step.grid[2]
        assert z == c["SPLITK"]
        assert blocks * tile >= p["m"] * p["n"]
        assert (blocks - 1) * tile < (p["m"] + c["BM"]) * (p["n"] + c["BN"]), c
        # what the stages take, and what the kernel lays out in their place in the end
        assert step.shared_bytes >= 4 * c["STAGES"] * c["BK"] * (c["BM"] + c["BN"])
        if c["SPLITK"] * c["SLICES"] > 1:
            assert step.shared_bytes >= 4 * tile * c["SLICES"]


@pytest.mark.parametrize("variant", ["cuda", "slim", "outer"])
def test_every_parameter_of_a_source_is_known_to_it(sgemm, variant):
    source = sgemm.find_source(f"sgemm_{variant}.cu")
    headers = [
        source.parent / name for name in re.findall(r'#include "(\w+\.h)"', source.read_text())
    ]
    macros = set(re.findall(r"#ifndef (\w+)", "".join(f.read_text() for f in (source, *headers))))
    assert set(sgemm.sources[variant].parameters) <= macros


# ------------------------------------------------------------------ views


def operand(array, source):
    """An array of NumPy as a call function sees it."""
    strides = tuple(step // array.itemsize for step in array.strides)
    offset = array.ctypes.data % 16 // array.itemsize
    return Operand(array.shape, strides, str(array.dtype), offset, source)


def asked_for(sgemm, a, b, **named):
    """What a call with NumPy's arrays comes to."""
    if "out" in named:
        named["out"] = operand(named["out"], "out")
    return bind(sgemm, (operand(a, 0), operand(b, 1)), named, find_kernel)


def strided(memory, p, name, rows, columns):
    """The matrices of a problem in memory, as the kernels find them."""
    apart, stride, transposed = columns, 0, p.get(f"trans_{name}")
    if p.view:
        apart, stride = p[f"ld{name}"], p[f"stride_{name}"]
    steps = (stride, 1, apart) if transposed else (stride, apart, 1)
    return np.lib.stride_tricks.as_strided(
        memory, (p.batch, rows, columns), [4 * step for step in steps]
    )


def computed(sgemm, a, b, **named):
    """Do in NumPy what a call asks a kernel for; the result, and the problem."""
    asked = asked_for(sgemm, a, b, **named)
    arrays = {0: a, 1: b, "out": named.get("out")}
    p, memory = sgemm.filled(asked.problem), {}
    for name, passed in asked.arrays.items():
        assert not passed.is_copied
        source, begin, span = passed.operand.source, passed.operand.begin, passed.operand.span
        if isinstance(source, NewArray):
            arrays[source] = np.full(source.shape, np.nan, np.float32)
        address = arrays[source].ctypes.data + 4 * begin
        memory[name] = np.ctypeslib.as_array((ctypes.c_float * span).from_address(address))
        assert asked.arguments[name].nbytes == memory[name].nbytes
        assert p[f"offset_{name}"] == address % 16 // 4
    c = strided(memory["c"], p, "c", p.m, p.n)
    old = asked.scalars["beta"] * c if asked.scalars["beta"] else 0
    if p.k:
        of_a, of_b = strided(memory["a"], p, "a", p.m, p.k), strided(memory["b"], p, "b", p.k, p.n)
        c[...] = asked.scalars["alpha"] * (of_a @ of_b) + old
    else:
        c[...] = old
    return arrays[asked.arrays["c"].operand.source], p


def drawn(rng, *shape):
    """A matrix or a batch that is part of something larger, by rows or by columns; and that larger one."""
    transposed, first, beyond, below = (int(number) for number in rng.integers((2, 4, 4, 3)))
    *batch, rows, columns = (*shape[:-2], *shape[-2:][:: -1 if transposed else 1])
    whole = rng.standard_normal((*batch, rows + below, first + columns + beyond), np.float32)
    piece = whole[..., :rows, first : first + columns]
    return np.swapaxes(piece, -1, -2) if transposed else piece, whole


def test_every_view_is_read_where_it_lies(sgemm):
    """400 products: strides, columns, batches, broadcasts, any first element, and into any of these."""
    rng = np.random.default_rng(0)
    layouts = set()
    for _ in range(400):
        m, n, k = (int(size) for size in rng.integers(2, 9, size=3))
        batch = [(), (1,), (3,)][rng.integers(3)]
        a, _ = drawn(rng, *(batch if rng.integers(3) else ()), m, k)
        b, _ = drawn(rng, *(batch if rng.integers(2) else ()), k, n)
        if b.ndim == 3 and rng.integers(3) == 0:
            b = np.broadcast_to(b[:1], b.shape)
        alpha, beta = float(rng.integers(3)), 0.0
        product = alpha * np.matmul(a.astype(np.float64), b)
        if rng.integers(3):
            out, around = drawn(rng, *product.shape)
            beta = float(rng.integers(2))
            expected = around.copy()
            at = (out.ctypes.data - around.ctypes.data) // 4
            lies = np.lib.stride_tricks.as_strided(
                expected.reshape(-1)[at:], out.shape, out.strides
            )
            lies[...] = product + beta * out
            found, p = computed(sgemm, a, b, out=out, alpha=alpha, beta=beta)
            np.testing.assert_allclose(around, expected, rtol=1e-5, atol=1e-5)
        else:
            found, p = computed(sgemm, a, b, alpha=alpha)
            assert found.shape == product.shape
            np.testing.assert_allclose(found, product, rtol=1e-5, atol=1e-5)
        layouts.add((p.view, p.trans_a, p.trans_b, p.batch > 1, p.k > 0))
    views = {(1, *layout) for layout in product_of((0, 1), (0, 1), (False, True), (True,))}
    assert layouts >= views


def test_what_lies_as_it_is_tuned_is_no_view(sgemm):
    a, b = np.ones((64, 32), np.float32), np.ones((32, 48), np.float32)
    assert asked_for(sgemm, a, b).problem == Problem(m=64, n=48, k=32)
    batch = np.ones((5, 64, 32), np.float32)
    assert asked_for(sgemm, batch, b).problem == Problem(m=320, n=48, k=32)
    assert asked_for(sgemm, a[None], b[None]).problem == Problem(m=64, n=48, k=32)
    assert asked_for(sgemm, a, b, alpha=0.0).problem == Problem(m=64, n=48, k=0)


def test_what_no_axis_runs_through_is_copied(sgemm):
    a, b = np.ones((128, 64), np.float32)[::2, ::2], np.ones((48, 32), np.float32).T
    asked = asked_for(sgemm, a, b)
    assert asked.arrays["a"].is_copied
    assert not asked.arrays["b"].is_copied
    assert (asked.problem.trans_b, asked.problem.lda) == (1, 32)
    batch = np.ones((3, 128, 64), np.float32)[:, ::2, ::2]
    assert asked_for(sgemm, batch, b).arrays["a"].is_copied


@pytest.mark.parametrize(
    ("a", "b", "named", "message"),
    [
        ((2, 3), (4, 5), {}, r"a \[2, 3\] and b \[4, 5\]: a must have as many columns"),
        ((3,), (3, 5), {}, r"a \[3\] and b \[3, 5\]: matrices \(2-D\) or batches"),
        ((2, 4, 3), (3, 3, 5), {}, r"batches must have the same length, or length 1"),
        ((2, 3), (3, 5), {"out": (2, 4)}, r"give \[2, 5\], and out is \[2, 4\]"),
        ((2, 3), (3, 5), {"beta": 0.5}, r"beta=0.5 adds to the content of out: give out"),
    ],
)
def test_what_does_not_fit_is_refused(sgemm, a, b, named, message):
    named = {key: np.ones(v, np.float32) if key == "out" else v for key, v in named.items()}
    with pytest.raises(UsageError, match=message):
        asked_for(sgemm, np.ones(a, np.float32), np.ones(b, np.float32), **named)


def test_other_types_and_overlaps_are_refused(sgemm):
    a, b = np.ones((4, 3), np.float32), np.ones((3, 5), np.float32)
    with pytest.raises(UsageError, match="b is float64: float32 is needed"):
        asked_for(sgemm, a, b.astype(np.float64))
    shared = np.lib.stride_tricks.as_strided(np.ones(5, np.float32), (4, 5), (0, 4))
    with pytest.raises(UsageError, match="some elements share memory"):
        asked_for(sgemm, a, b, out=shared)


def test_of_empty_matrices_nothing_is_computed(sgemm):
    call, empty = sgemm.hook("call"), Operand.new
    done = call(empty((0, 3)), empty((3, 5)))
    assert isinstance(done, NothingToDo)
    assert done.results[0].shape == (0, 5)
    out = empty((2, 4, 0))
    assert call(empty((2, 4, 3)), empty((3, 0)), out=out).results == (out,)


def test_a_row_or_a_column_is_a_matrix_times_a_vector(sgemm):
    call, new = sgemm.hook("call"), Operand.new
    a, x = new((64, 32)), new((32, 1))
    column = call(a, x, alpha=2.0)
    assert (column.kernel, column.args[0], column.args[1].shape) == ("gemv", a, (32,))
    assert column.named["out"].shape == (64,)
    assert column.named["out"].source.shape == (64, 1)
    row = call(x.T, new((32, 48)), out=new((1, 48)), beta=1.0)
    assert (row.args[0].shape, row.args[1].shape, row.named["out"].shape) == (
        (48, 32),
        (32,),
        (48,),
    )


@pytest.mark.opencl
@pytest.mark.filterwarnings("ignore:.*default")
@pytest.mark.usefixtures("opencl_device")
def test_views_of_host_arrays():
    """Through `load`, on the CPU: columns of A and B, a piece of C, and k = 0."""
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(shape, np.float32) for shape in ((3, 41, 37), (3, 29, 41)))
    out = np.full((3, 37, 35), np.nan, np.float32)
    gemm = load("sgemm")
    assert gemm(a.transpose(0, 2, 1), b.transpose(0, 2, 1), out=out[:, :, 3:32]) is not None
    expected = np.einsum("bki,bjk->bij", a.astype(np.float64), b)
    np.testing.assert_allclose(out[:, :, 3:32], expected, atol=1e-4)
    assert np.isnan(out[:, :, :3]).all()
    assert np.isnan(out[:, :, 32:]).all()
    a[:] = np.nan
    y = np.ones((41, 29), np.float32)
    np.testing.assert_array_equal(gemm(a[0], b[0].T[:37], out=y, alpha=0, beta=0.5), 0.5)


@pytest.mark.opencl
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("narrow", ["columns", "rows"])
def test_few_columns_or_rows_of_host_arrays(narrow, opencl_device, monkeypatch):
    """The slim source on the CPU, the large matrix along k and across it; k is split over the grid, twice alike."""
    kernel, device = find_kernel("sgemm"), choose_device(opencl_device)
    chosen = {"SOURCE": "slim", "NARROW": narrow, "FEW": 4, "BLOCK_THREADS": 128, "TEAM": 16}
    chosen |= {"VEC": 4, "UNROLL": 2, "GRIDK": 3}
    chosen |= {"STAGED": 1024 if narrow == "columns" else 0}
    assert is_member(kernel, kernel.completed(chosen), device)
    monkeypatch.setattr(kernel, "default", lambda source="": kernel.completed(chosen))
    monkeypatch.setattr("autotune.calling.choice.lookup", lambda *_, **__: None)
    gemm, rng = load(kernel), np.random.default_rng(3)
    for k in (1036, 517):
        large, small = (rng.standard_normal(shape, np.float32) for shape in ((68, k), (k, 3)))
        for stored in (large, np.ascontiguousarray(large.T).T):
            a, b = (stored, small) if narrow == "columns" else (small.T, stored.T)
            first = gemm(a, b)
            np.testing.assert_allclose(first, a.astype(np.float64) @ b, atol=2e-4)
            np.testing.assert_array_equal(gemm(a, b), first)


@pytest.mark.parametrize("name", ["sgemm", "sgemm_tf32x3"])
@pytest.mark.parametrize(("columns", "may_run"), [(1001, True), (1002, True), (1000, False)])
def test_lines_are_for_rows_that_are_no_whole_quads(name, columns, may_run):
    product = find_kernel(name)
    chosen = product.default().replace(C_ROWS="lines")
    assert is_member(product, chosen, SM_90)
    assert product.allows(chosen, Problem(m=500, n=columns, k=64)) == may_run


@pytest.mark.parametrize("name", ["sgemm", "sgemm_tf32x3"])
def test_what_is_timed_adds_nothing_to_c(name):
    """Most calls have a beta of 0. Exact data, which are not timed, verify the sum."""
    product, problem = find_kernel(name), Problem(m=8, n=8, k=8)
    betas = {
        exact: product.call_hook("arguments", product.normal(problem), Draw(exact, 1))["beta"]
        for exact in (True, False)
    }
    assert betas == {True: 0.5, False: 0.0}


def test_sums_of_several_blocks_and_tails_have_no_lines(sgemm):
    tail = sgemm.completed(sgemm.seeds[0]).replace(TAIL=True)
    splits = ({"SPLITK": 2}, {"GRIDK": 2, "RASTER": 1}, {"SLICES": 2})
    for direct in (tail, *(sgemm.default().replace(**split) for split in splits)):
        assert is_member(sgemm, direct, SM_90)
        assert not is_member(sgemm, direct.replace(C_ROWS="lines"), SM_90)


@pytest.mark.opencl
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("team", "vec", "gridk"), [(16, 4, 1), (8, 4, 3), (1, 4, 24), (2, 1, 48), (32, 2, 256)]
)
def test_a_matrix_by_columns_of_host_arrays(team, vec, gridk, opencl_device, monkeypatch):
    """gemv_columns on the CPU: strips of any width, few sums of a strip and many, the same twice."""
    kernel, device = find_kernel("gemv_columns"), choose_device(opencl_device)
    chosen = {"BLOCK_THREADS": 128, "TEAM": team, "VEC": vec, "UNROLL": 8, "GRIDK": gridk}
    assert is_member(kernel, kernel.completed(chosen), device)
    few_rows = Problem(m=8, n=32 * gridk - 1)
    assert kernel.allows(kernel.completed(chosen), few_rows) == (gridk == 1)
    monkeypatch.setattr(kernel, "default", lambda source="": kernel.completed(chosen))
    monkeypatch.setattr("autotune.calling.choice.lookup", lambda *_, **__: None)
    product, rng = load(kernel), np.random.default_rng(3)
    for m, n in ((68, 8192), (131, 9001), (3, 20000)):
        a, x = rng.standard_normal((n, m), np.float32), rng.standard_normal(n, np.float32)
        expected, first = a.T.astype(np.float64) @ x, product(a, x)
        np.testing.assert_allclose(first, expected, atol=5e-3)
        np.testing.assert_array_equal(product(a, x), first)


@pytest.mark.opencl
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("team", "vec"), [(32, 1), (8, 4)])
def test_a_short_k_of_host_arrays(team, vec, opencl_device, monkeypatch):
    """The outer source on the CPU: parts of tiles, rows that are no whole quads, steps that go beyond k."""
    kernel, device = find_kernel("sgemm"), choose_device(opencl_device)
    chosen = {"SOURCE": "outer", "BLOCK_THREADS": 128, "TEAM": team, "TM": 4, "TN": 4, "VEC": vec}
    assert is_member(kernel, kernel.completed(chosen), device)
    assert not kernel.allows(kernel.completed(chosen), Problem(m=9, n=8, k=65))
    assert kernel.allows(kernel.completed(chosen), Problem(m=9, n=9, k=64)) == (vec == 1)
    monkeypatch.setattr(kernel, "default", lambda source="": kernel.completed(chosen))
    monkeypatch.setattr("autotune.calling.choice.lookup", lambda *_, **__: None)
    gemm, rng = load(kernel), np.random.default_rng(3)
    for m, n, k in ((70, 260, 1), (5, 132, 64), (33, 39, 7), (131, 17, 33), (9, 12, 0)):
        n -= n % vec
        a, b, c = (rng.standard_normal(shape, np.float32) for shape in ((m, k), (k, n), (m, n)))
        product = a.astype(np.float64) @ b
        np.testing.assert_allclose(gemm(a, b, out=np.full_like(c, np.nan)), product, atol=1e-4)
        expected = 2 * product + 0.5 * c
        np.testing.assert_allclose(gemm(a, b, out=c, alpha=2, beta=0.5), expected, atol=1e-4)


# ---------------------------------------------------------------------- sgemm_tf32x3 without a GPU


@pytest.fixture(scope="module")
def kernel():
    return find_kernel("sgemm_tf32x3")


def halves(x):
    """As kernels/sgemm_tf32x3.h splits them; what the tensor core ignores of the low half is 0."""
    hi = ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    lo = ((x - hi).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return hi, lo


def test_halves_lose_the_last_bit_at_most():
    x = np.random.default_rng(5).standard_normal(10**6).astype(np.float32)
    x *= np.float32(2.0) ** np.random.default_rng(6).integers(-30, 31, x.size).astype(np.float32)
    hi, lo = halves(x)
    lost = (x.astype(np.float64) - hi - lo) / np.abs(x)
    assert np.abs(lost).max() <= 2.0**-23
    assert abs(lost.mean()) < 1e-3 * 2.0**-23


@pytest.mark.parametrize("size", [(7, 7, 7), (129, 4, 33), (300, 310, 1027)])
def test_exact_data_need_all_three_products(kernel, size):
    problem = Problem(dict(zip("mnk", size, strict=True)))
    given = kernel.call_hook("arguments", problem, Draw(exact=True, key=3))
    a, b = given["a"], given["b"]
    (a_hi, a_lo), (b_hi, b_lo) = halves(a), halves(b)
    products = [
        x.astype(np.float64) @ y
        for x, y in ((a_hi, b_hi), (a_lo, b_hi), (a_hi, b_lo), (a_lo, b_lo))
    ]
    exact = a.astype(np.float64) @ b
    assert (exact == exact.astype(np.float32)).all()
    assert (sum(products[:3]) == exact).all()
    assert not products[3].any()
    for product in products[:3]:
        assert (exact - product != exact).mean() > 0.7


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_wgmma_is_offered_where_it_exists(kernel, arch):
    variants = {found["SOURCE"] for found in enumerate_space(kernel, for_arch(arch))}
    assert variants == ({"mma", "wgmma"} if arch == "sm_90" else {"mma"})


def test_what_is_added_up_by_wgmma_has_no_lines(kernel):
    """Parts of k, of slices too; a tail may have them."""
    seeds = map(kernel.completed, kernel.seeds)
    for seed in (seed for seed in seeds if seed["SOURCE"] == "wgmma"):
        is_added_up = seed["SPLITK"] * seed["GRIDK"] > 1 or seed["BM"] == seed["WM"]
        assert is_member(kernel, seed.replace(C_ROWS="lines"), SM_90) != is_added_up


@pytest.mark.parametrize("arch", thinned(("sm_80", "sm_90", "sm_120"), ["sm_80"]))
def test_both_sources_compile_where_they_are_offered(kernel, arch):
    pytest.importorskip("cuda.bindings.nvrtc", reason="pip install '.[nvrtc]'")
    device = for_arch(arch)
    space = enumerate_space(kernel, device)
    chosen = [space.configuration(i) for i in space.sample(np.random.default_rng(1), 4)]
    wgmma = [found for found in space if found["SOURCE"] == "wgmma"]
    chosen += {(c["BM"], c["BN"]): c for c in wgmma}.values()  # with PADDED
    plain = [found for found in wgmma if found["BM"] == 128 and not found["PADDED"]]
    chosen += {(c["SPLITK"] > 1, c["GRIDK"] > 1): c for c in plain}.values()
    chosen += {c["TAIL"]: c for c in plain if c["C_ROWS"] == "lines"}.values()
    for configuration in chosen:
        binary = compiled_for(kernel, configuration, kernel.first_problem("cuda"), device)
        if configuration["SOURCE"] == "wgmma":
            assert "wgmma" not in binary.log  # the compiler says so where it makes them wait
            # the producer's addresses at most, which it reads again once per step
            assert binary.entry("sgemm_tf32x3").spill_bytes <= 128


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_the_default_runs_wherever_something_does(kernel, arch):
    """It answers where nothing was tuned."""
    assert is_member(kernel, kernel.default(), for_arch(arch))


def test_only_rows_that_are_not_aligned_are_padded(kernel):
    """By a launch of its own, a thread for each quad, into workspaces of whole quads."""
    device = for_arch("sm_90")
    padded = kernel.default("wgmma").replace(PADDED=True)
    odd = Problem(m=777, n=1234, k=999)
    pad, product = launch_sequence(kernel, padded, odd, device).launches
    sizes = {name: out.shape for name, out in kernel.workspaces(padded, odd, device).items()}
    assert sizes == {"padded_a": 777 * 1000, "padded_b": 999 * 1236}
    assert (pad.entry, product.entry) == ("sgemm_tf32x3_pad", "sgemm_tf32x3")
    assert 0 <= 4 * 256 * pad.grid[0] - sum(sizes.values()) < 4 * 256
    assert kernel.allows(padded, odd)
    assert kernel.allows(padded, Problem(m=8, n=8, k=8, offset_b=1))
    assert not kernel.allows(padded, Problem(m=777, n=1232, k=1000))


# ---------------------------------------------------------------------- The sum of many floats keeps its digits


def test_reduce_collects_words_as_its_space_says():
    """Not pairs, which its source has too and its space does not declare."""
    reduce, device = find_kernel("reduce"), for_arch("sm_90")
    configuration = reduce.completed({"SOURCE": "cuda", "VEC": 4})
    ptx = ptx_of(reduce, configuration, Problem(n=1 << 20), device)
    assert "st.relaxed.gpu.global.b64" in ptx and "atom" not in ptx


#: Of several tiles for each thread of a small grid, and a tail.
N = 3 * 10**6 + 3


@pytest.fixture(params=["kernel", "ticket"])
def total(request, opencl_device, monkeypatch):
    """The sum by few blocks that walk, whose sums one of them or a second launch adds up."""
    kernel, device = find_kernel("reduce"), choose_device(opencl_device)
    chosen = {"BLOCK": 128, "VEC": 4, "ITEMS": 2, "WAVES": 4, "GRID_MODE": "stride"}
    chosen |= {"BLOCK_RED": "sequential", "WARP_TAIL": "barrier"}
    chosen["FINISH"] = request.param
    assert is_member(kernel, kernel.completed(chosen), device)
    monkeypatch.setattr(kernel, "default", lambda source="": kernel.completed(chosen))
    monkeypatch.setattr("autotune.calling.choice.lookup", lambda *_, **__: None)
    return load(kernel)


@pytest.mark.opencl
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("data", ["uniform", "normal", "constant"])
def test_a_sum_is_off_by_no_more_than_its_last_additions(total, data):
    """A chain of additions for each thread is off by 1e-5 where all numbers are alike."""
    rng = np.random.default_rng(5)
    x = {
        "uniform": lambda: rng.random(N, dtype=np.float32),
        "normal": lambda: rng.standard_normal(N, dtype=np.float32),
        "constant": lambda: np.full(N, 0.1, np.float32),
    }[data]()
    error = abs(total(x).item() - x.sum(dtype=np.float64))
    assert error <= 1.5e-7 * np.abs(x).sum(dtype=np.float64)


@pytest.mark.opencl
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((np.inf,), np.inf),
        ((-np.inf, 5.0), -np.inf),
        ((np.inf, -np.inf), np.nan),
        ((np.nan,), np.nan),
    ],
)
def test_what_is_no_number_gets_through(total, values, expected):
    x = np.ones(N, np.float32)
    x[1000 :: N // 3][: len(values)] = values
    np.testing.assert_equal(total(x).item(), expected)
