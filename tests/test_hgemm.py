"""hgemm without a GPU: what is offered where, what compiles, and whether exact data are exact in C's type."""

from __future__ import annotations

import numpy as np
import pytest

from autotune import Problem
from autotune.calling.binding import bind
from autotune.cli.kernels import ptx_of
from autotune.compiling.binaries import compiled_for
from autotune.data.draw import Draw
from autotune.devices.device import for_arch
from autotune.errors import UsageError
from autotune.kernel.catalog import find_kernel
from autotune.kernel.launches import launch_sequence
from autotune.kernel.operand import NothingToDo, Operand
from autotune.kernel.space import enumerate_space, is_member

KERNEL = find_kernel("hgemm")
TYPES = [(edge.dtype, edge.out_dtype) for edge in KERNEL.edge_problems[:4]]
#: The largest integer up to which a type has all.
WHOLE = {"float16": 2**11, "bfloat16": 2**8, "float32": 2**24}


def product(m: int, n: int, k: int, dtype: str = "float16", out_dtype: str = "float16") -> Problem:
    return Problem(m=m, n=n, k=k, dtype=dtype, out_dtype=out_dtype)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_wgmma_is_offered_where_it_exists(arch: str) -> None:
    found = {c["SOURCE"] for c in enumerate_space(KERNEL, for_arch(arch))}
    assert found == {"mma", "wmma"} | ({"wgmma"} if arch == "sm_90" else set())
    assert is_member(KERNEL, KERNEL.default(), for_arch(arch))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_every_configuration_can_be_launched(arch: str) -> None:
    """As far as shared memory, threads and the tiles of wgmma decide."""
    device = for_arch(arch)
    space = enumerate_space(KERNEL, device)
    for number in space.sample(np.random.default_rng(1), 400):
        configuration = space.configuration(number)
        size = (64, 64, 8192) if not configuration.get("PADDED") else (63, 65, 8191)
        assert KERNEL.allows(configuration, product(*size))
        launch = launch_sequence(KERNEL, configuration, product(*size), device).main
        assert launch.shared_bytes <= device.shared_bytes_per_block
        assert 64 <= launch.block[0] <= 384
        assert configuration["SOURCE"] != "wgmma" or configuration["BM"] >= 128


@pytest.mark.full
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_every_source_compiles_in_every_type(arch: str) -> None:
    """A few of each, among them whatever changes the text that is compiled."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="pip install '.[nvrtc]'")
    device = for_arch(arch)
    members = [c for c in map(KERNEL.completed, KERNEL.seeds) if is_member(KERNEL, c, device)]
    kinds = {
        tuple(c.get(name) for name in ("SOURCE", "PADDED", "CLUSTER", "SPLITK", "BN", "BK")): c
        for c in members
    }
    assert len(kinds) >= (8 if arch == "sm_90" else 4)
    for number, configuration in enumerate(kinds.values()):
        problem = product(64, 64, 64, *TYPES[number % len(TYPES)])
        binary = compiled_for(KERNEL, configuration, problem, device)
        is_wgmma = configuration["SOURCE"] == "wgmma"
        assert binary.entry("hgemm").spill_bytes <= (0 if is_wgmma else 128)
        if is_wgmma:
            assert "wgmma" not in binary.log  # the compiler says so where it makes them wait


@pytest.mark.parametrize(
    ("variant", "instruction"),
    [
        ("naive", "wmma.mma.sync.aligned.row.row.m16n16k16.f32.bf16.bf16.f32"),
        ("mma", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"),
        ("wgmma", "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16"),
    ],
)
def test_a_variant_has_its_instruction(variant: str, instruction: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="pip install '.[nvrtc]'")
    configuration = KERNEL.completed(KERNEL.variants[variant])
    problem = product(64, 64, 64, "bfloat16", "float32")
    ptx = ptx_of(KERNEL, configuration, problem, for_arch("sm_90"))
    assert instruction in ptx
    assert ("ldmatrix" in ptx) == (variant == "mma")
    assert ("tensormap.replace" in ptx) == (variant == "wgmma")


@pytest.mark.parametrize(("dtype", "out_dtype"), TYPES)
@pytest.mark.parametrize("k", [555, 4096, 20000])
def test_exact_sums_are_numbers_of_the_type(dtype: str, out_dtype: str, k: int) -> None:
    """So that one element that is missing or doubled shows."""
    given = KERNEL.call_hook("arguments", product(300, 310, k, dtype, out_dtype), Draw(True, 3))
    a, b = (x.astype(np.float32) if dtype == "bfloat16" else x for x in (given["a"], given["b"]))
    exact = a.astype(np.float64) @ b
    assert np.abs(exact).max() <= WHOLE[out_dtype]
    assert np.count_nonzero(a, axis=1).min() > 150


def test_rows_that_are_not_whole_pieces_are_padded() -> None:
    """By a launch of its own, a thread for each piece, into workspaces of whole pieces."""
    device, odd, even = for_arch("sm_90"), product(333, 777, 555), product(333, 776, 552)
    padded = next(KERNEL.completed(seed) for seed in KERNEL.seeds if seed.get("CLUSTER") == 2)
    padded = padded.replace(PADDED=True)
    pad, multiply = launch_sequence(KERNEL, padded, odd, device).launches
    sizes = {name: out.shape for name, out in KERNEL.workspaces(padded, odd, device).items()}
    assert (sizes["padded_a"], sizes["padded_b"]) == (333 * 560, 555 * 784)
    assert (pad.entry, multiply.entry) == ("hgemm_pad", "hgemm")
    assert 0 <= 8 * 256 * pad.grid[0] - sizes["padded_a"] - sizes["padded_b"] < 8 * 256
    assert KERNEL.allows(padded, odd)
    assert not KERNEL.allows(padded, even)
    plain = padded.replace(PADDED=False)
    assert KERNEL.allows(plain, even)
    assert not KERNEL.allows(plain, odd)
    assert KERNEL.allows(KERNEL.default(), odd)


@pytest.mark.parametrize("size", [(1, 8, 8), (129, 8, 64), (4096, 4096, 4096), (385, 264, 64)])
def test_a_grid_is_whole_clusters(size: tuple[int, int, int]) -> None:
    device = for_arch("sm_90")
    for seed in KERNEL.seeds:
        configuration, problem = KERNEL.completed(seed), product(*size)
        if configuration["SOURCE"] == "wgmma" and KERNEL.allows(configuration, problem):
            (launch,) = launch_sequence(KERNEL, configuration, problem, device).launches
            assert launch.grid[0] % configuration["CLUSTER"] == 0
            assert launch.grid[2] == configuration["SPLITK"]
            maps = KERNEL.workspaces(configuration, problem, device)["maps"]
            assert maps.shape == 128 * (2 * launch.grid[0] * launch.grid[2] + 1)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("size", [(1, 8, 0), (129, 8, 64), (4096, 4096, 4096)])
def test_mma_has_as_many_blocks_as_run_at_once(size: tuple[int, int, int], arch: str) -> None:
    """Each takes tile after tile; wmma has a block for each tile."""
    device, problem = for_arch(arch), product(*size)
    for seed in KERNEL.seeds:
        configuration = KERNEL.completed(seed)
        if configuration["SOURCE"] == "wgmma" or not KERNEL.allows(configuration, problem):
            continue
        tiles = -(-problem.m // configuration["BM"]) * -(-problem.n // configuration["BN"])
        most = device.sm_count * configuration.get("MIN_BLOCKS", 1)
        (launch,) = launch_sequence(KERNEL, configuration, problem, device).launches
        is_mma = configuration["SOURCE"] == "mma"
        assert launch.grid[0] == (min(tiles, most) if is_mma else tiles)


def operand(*shape: int, dtype: str = "float16") -> Operand:
    return Operand.new(shape, dtype)


def test_calls_say_what_is_multiplied() -> None:
    a, b = operand(5, 64, dtype="bfloat16"), operand(64, 8, dtype="bfloat16")
    found = bind(KERNEL, (a, b), {}, find_kernel)
    assert found.problem == product(5, 8, 64, "bfloat16", "bfloat16")
    wide = bind(KERNEL, (a, b), {"out_dtype": "float32"}, find_kernel)
    assert (wide.problem["out_dtype"], wide.results[0].dtype) == ("float32", "float32")
    assert isinstance(bind(KERNEL, (operand(0, 64), operand(64, 8)), {}, find_kernel), NothingToDo)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((operand(5, 64), operand(63, 8)), "pass two matrices, m x k and k x n"),
        ((operand(5, 64), operand(64, 8, dtype="bfloat16")), "both in float16 or both in bfloat16"),
        ((operand(5, 64), operand(8, 64).T), "contiguous and aligned to 16 bytes; copy it"),
        (
            (operand(5, 64), operand(64, 8), operand(5, 8, dtype="float64")),
            "it must be 5 x 8, in float16 or float32",
        ),
    ],
)
def test_products_that_are_not_possible_are_refused(
    args: tuple[Operand, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        bind(KERNEL, args, {}, find_kernel)
