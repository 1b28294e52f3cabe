"""Counters of Nsight Compute on a GPU, with the figures that are known; parsing: tests/test_explain.py."""

import json

import pytest

from autotune.cli import run
from autotune.measure.counters import FIGURES
from autotune.measure.profile import profiler

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not profiler(), reason="no ncu"),
]


def test_the_sectors_of_the_transposes_are_those_of_the_study_notes(capsys, tmp_path):
    command = ["explain", "transpose", "--device", "cuda:0", "--problem", "m=1024,n=1024", "--json"]
    assert run([*command, "--variants", "naive,narrow,register", "--out", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    if any("ERR_NVGPUCTRPERM" in note for note in told["notes"]):
        pytest.skip("no permission to read counters")
    sectors = {
        each["name"]: [each["metrics"][FIGURES[f"sectors_{side}"].metric] for side in ("ld", "st")]
        for each in told["variants"]
    }
    assert sectors == {"naive": [4, 32], "narrow": [4, 8], "register": [16, 16]}
    assert all(each["time_ms"] > 0 for each in told["variants"])
    assert list(tmp_path.glob("*/transpose.explain.json"))
