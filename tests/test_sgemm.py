"""The space of sgemm: its seeds are in it, it stays searchable, and its launch fits what it says to the kernel."""

import re
from math import prod

import pytest

from autotune.devices.device import for_arch
from autotune.kernel.catalog import find_kernel
from autotune.kernel.membership import is_member
from autotune.kernel.space import enumerate_space
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
    """Of 10^14 combinations, some 10^5: what cannot win is ruled out before it is compiled."""
    assert 1e5 < len(space) < 9e5 < 1e-6 * prod(space.sizes)


def test_a_block_computes_its_tile(sgemm, space):
    """Threads times their tiles are the block's, once for every slice; the grid covers C and no more."""
    p = Problem(m=1000, n=333, k=64)
    for number in range(0, len(space), len(space) // 500):
        c = space.configuration(number)
        if c["VARIANT"] != "cuda":
            continue
        (step,) = sgemm.steps(c, p, SM_90)
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


def test_every_parameter_of_the_fast_path_is_one_of_its_source(sgemm, space):
    """A misspelt macro would be tuned without effect."""
    source = (find_kernel("sgemm").file.parent.parent / "kernels/sgemm_cuda.cu").read_text()
    macros = set(re.findall(r"#ifndef (\w+)", source))
    relevant = {
        name
        for name in sgemm.parameters
        for rule in sgemm.applies_rules
        if rule.name == "cuda" and name in rule.governs
    }
    assert relevant
    assert relevant <= macros
