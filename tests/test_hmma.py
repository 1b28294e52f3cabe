"""hmma without a GPU: what is offered where, what compiles, and whether exact sums are exact."""

from __future__ import annotations

import numpy as np
import pytest
from thinned import thinned

from autotune import Problem
from autotune.calling.binding import bind
from autotune.cli.kernels import ptx_of
from autotune.compiling.binaries import compiled_for
from autotune.data.draw import Draw
from autotune.devices.device import for_arch
from autotune.errors import NothingValidError, UsageError
from autotune.kernel.catalog import find_kernel
from autotune.kernel.launches import launch_sequence
from autotune.kernel.operand import NothingToDo, Operand
from autotune.kernel.space import enumerate_space, is_member

KERNEL = find_kernel("hmma")
DTYPES = ("float16", "bfloat16")
#: The largest integer up to which float32 has all.
WHOLE = 2**24


def product(m: int, n: int, steps: int, dtype: str = "float16") -> Problem:
    return Problem(m=m, n=n, steps=steps, dtype=dtype)


def operands(problem: Problem, exact: bool) -> tuple[np.ndarray, np.ndarray]:
    """A and B as float64."""
    given = KERNEL.call_hook("arguments", problem, Draw(exact, 3))
    halves = (given["a"], given["b"])
    if problem.dtype == "bfloat16":
        halves = tuple(x.astype(np.float32) for x in halves)
    a, b = (x.astype(np.float64) for x in halves)
    return a, b


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_wgmma_is_offered_where_it_exists(arch: str) -> None:
    found = {c["VARIANT"] for c in enumerate_space(KERNEL, for_arch(arch))}
    assert found == {"mma"} | ({"wgmma"} if arch == "sm_90" else set())
    assert is_member(KERNEL, KERNEL.default(), for_arch(arch))


def test_older_gpus_have_no_configuration() -> None:
    with pytest.raises(NothingValidError, match=r"mma needs compute capability 8\.0"):
        enumerate_space(KERNEL, for_arch("sm_75"))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_every_configuration_covers_the_result(arch: str) -> None:
    """By blocks of whole warpgroups, in shared memory that the device has."""
    device, problem = for_arch(arch), product(1000, 777, 1)
    for configuration in enumerate_space(KERNEL, device):
        launch = launch_sequence(KERNEL, configuration, problem, device).main
        is_wgmma = configuration["VARIANT"] == "wgmma"
        width = configuration["COLUMNS"] if is_wgmma else 8
        down = -(-1000 // (16 * configuration["WARPS"]))
        across = -(-777 // (width * configuration["CHAINS"]))
        assert launch.grid[0] == down * across
        assert launch.block[0] in (128, 256, 512)
        assert launch.shared_bytes <= device.shared_bytes_per_block
        assert bool(launch.shared_bytes) == is_wgmma


@pytest.mark.parametrize("arch", thinned(("sm_80", "sm_90", "sm_120"), ["sm_80"]))
def test_seeds_and_extremes_keep_their_sums_in_registers(arch: str) -> None:
    """A spilled sum, or a wgmma that waits for the last, would be a limit of its own."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="pip install '.[nvrtc]'")
    device = for_arch(arch)
    space = enumerate_space(KERNEL, device)
    extremes = {(c["VARIANT"], c["CHAINS"], c["COLUMNS"]): c for c in space if c["UNROLL"] == 4}
    seeds = [c for c in map(KERNEL.completed, KERNEL.seeds) if is_member(KERNEL, c, device)]
    assert len(seeds) == (len(KERNEL.seeds) if arch == "sm_90" else 5)
    for number, configuration in enumerate([*seeds, *extremes.values()]):
        problem = product(64, 64, 64, DTYPES[number % 2])
        binary = compiled_for(KERNEL, configuration, problem, device)
        assert binary.entry("hmma").spill_bytes == 0, configuration
        assert "wgmma" not in binary.log  # the compiler says so where it makes them wait


@pytest.mark.parametrize(
    ("variant", "instruction", "count"),
    [
        ("mma", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 4 * 8),
        ("wgmma", "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16", 4),
    ],
)
def test_a_step_has_all_its_products(variant: str, instruction: str, count: int) -> None:
    """None is merged with another of the same operands, and none leaves the loop."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="pip install '.[nvrtc]'")
    configuration = KERNEL.completed(KERNEL.variants[variant])
    ptx = ptx_of(KERNEL, configuration, product(64, 64, 64, "bfloat16"), for_arch("sm_90"))
    assert ptx.count(instruction) == count


@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_sums_are_numbers_of_float32(dtype: str) -> None:
    """At the most steps that are tuned, so that one product that is missing or doubled shows."""
    steps = max(problem.steps for problem in KERNEL.problems["cuda"])
    a, b = operands(product(2000, 1024, steps, dtype), exact=True)
    assert np.abs(a).min() == np.abs(b).min() == 1
    assert steps * np.abs(a @ b.T).max() < WHOLE / 16


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_reference_is_what_steps_add_up_to(dtype: str) -> None:
    """Product by product in float32, each sum of 16 cut off as tensor cores do; far within the bound."""
    problem = product(7, 9, 257, dtype)
    a, b = operands(problem, exact=False)
    found = np.zeros((7, 9), np.float32)
    for _ in range(problem.steps):
        for k in range(0, 64, 16):
            exact = found + sum(np.multiply.outer(a[:, i], b[:, i]) for i in range(k, k + 16))
            nearest = exact.astype(np.float32)
            is_above = np.abs(nearest) > np.abs(exact)
            found = np.where(is_above, np.nextafter(nearest, np.float32(0)), nearest)
    expected = KERNEL.hooks["reference"](a, b, problem.steps)
    error, bound = np.abs(found - expected).max(), KERNEL.call_hook("tolerance", problem)
    assert 0 < error < bound / 8
    assert bound < np.median(np.abs(expected)) / 8


def operand(*shape: int, dtype: str = "float16") -> Operand:
    return Operand.new(shape, dtype)


def test_calls_say_what_is_multiplied() -> None:
    a, b = operand(5, 64, dtype="bfloat16"), operand(8, 64, dtype="bfloat16")
    found = bind(KERNEL, (a, b, 3), {}, find_kernel)
    assert found.problem == product(5, 8, 3, "bfloat16")
    assert (found.results[0].shape, found.results[0].dtype) == ((5, 8), "float32")
    assert isinstance(
        bind(KERNEL, (operand(0, 64), operand(8, 64), 3), {}, find_kernel), NothingToDo
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((operand(5, 64), operand(5, 63), 1), "pass two matrices of 64 columns"),
        (
            (operand(5, 64), operand(8, 64, dtype="bfloat16"), 1),
            "both in float16 or both in bfloat16",
        ),
        ((operand(5, 64), operand(64, 8).T, 1), "contiguous and aligned to 16 bytes; copy it"),
        ((operand(5, 64), operand(8, 64), 1, operand(5, 8)), r"it must be float32\[5, 8\]"),
    ],
)
def test_products_that_are_not_possible_are_refused(args: tuple, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        bind(KERNEL, args, {}, find_kernel)
