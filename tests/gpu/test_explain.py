"""Counters of Nsight Compute on a GPU, with the figures that are known; parsing: tests/test_explain.py."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import run
from autotune.measure.counters import by_name
from autotune.measure.profile import profiler

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,  # who else uses the GPU may keep ncu from its counters
    pytest.mark.skipif(not profiler(), reason="no ncu"),
]


def explained(capsys: pytest.CaptureFixture[str], kernel: str, *options: str) -> list[Any]:
    """Explain on the GPU; return variants whose metrics have short names. Skips without permission."""
    assert run(["explain", kernel, "--device", "cuda:0", "--json", *options]) == 0
    told = json.loads(capsys.readouterr().out)
    if any("ERR_NVGPUCTRPERM" in note for note in told["notes"]):
        pytest.skip("no permission to read counters")
    for each in told["variants"]:
        assert each["failure"] == "" and each["time_ms"] > 0
        each["counters"] = by_name(each["metrics"])
        assert each["counters"], told["notes"]
    return list(told["variants"])


def counted(variants: list[Any], *names: str) -> list[list[float]]:
    return [[each["counters"][name] for name in names] for each in variants]


def test_the_sectors_of_the_transposes_are_those_of_the_study_notes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = ("--problem", "m=1024,n=1024", "--variants", "naive,narrow,register")
    variants = explained(capsys, "transpose", *given, "--out", str(tmp_path))
    assert counted(variants, "sectors_ld", "sectors_st") == [[4, 32], [4, 8], [16, 16]]
    assert list(tmp_path.glob("*/transpose.explain.json"))


def test_one_element_off_costs_a_sector(capsys: pytest.CaptureFixture[str]) -> None:
    """32 floats from a boundary are 4 sectors, from one float further 5."""
    sectors = []
    for off in (0, 1):
        at = ",".join(f"offset_{side}={off}" for side in ("a", "b", "out"))
        problem = f"n=1048576,op=add,m=1048576,{at}"
        found = explained(
            capsys, "elementwise", "--problem", problem, "--config", "BLOCK=256,VEC=1"
        )
        sectors += counted(found, "sectors_ld", "sectors_st")
    assert sectors == [[4, 4], [pytest.approx(5, rel=1e-3)] * 2]


def test_a_stride_of_32_words_conflicts_in_32_ways(capsys: pytest.CaptureFixture[str]) -> None:
    """Of 2^14 threads a warp loads 64 times, in a wavefront each where banks do not conflict."""
    layouts = [f"BLOCK=256,LAYOUT={layout}" for layout in ("plain", "padded", "xor")]
    options = [word for layout in layouts for word in ("--config", layout)]
    found = explained(capsys, "banks", "--problem", "n=16384,stride=32,reads=64", *options)
    loads = 16384 // 32 * 64
    (plain, *others) = counted(found, "wave_ld", "bank_ld")
    assert plain == [32 * loads, 31 * loads]
    assert others == [[loads, 0]] * 2


def test_a_cap_of_64_registers_spills_the_square_of_a_thread(
    capsys: pytest.CaptureFixture[str],
) -> None:
    caps = [f"TILE=16,SIDE={side},CAP={cap}" for side, cap in ((1, 32), (8, 128), (8, 64))]
    options = [word for cap in caps for word in ("--config", cap)]
    fits, fits_too, spills = explained(capsys, "unroll", "--problem", "m=512,n=512,k=512", *options)
    assert fits["spill_bytes"] == fits_too["spill_bytes"] == 0 < spills["spill_bytes"]
    assert counted([fits, fits_too], "local_ld", "local_st") == [[0, 0]] * 2
    assert spills["counters"]["local_ld"] > 0 < spills["counters"]["local_st"]
    assert spills["registers"] == 64
