"""What the framework costs beside compiling and the device; see benchmarks/overhead.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from autotune.replay import load

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data" / "synthetic.json.gz"
#: Issue 4: framework overhead per configuration.
ALLOWED_MS = 3.0


@pytest.fixture(scope="module")
def overhead() -> ModuleType:
    file = ROOT / "benchmarks" / "overhead.py"
    made = importlib.util.spec_from_file_location("overhead", file)
    assert made is not None
    assert made.loader is not None
    module = importlib.util.module_from_spec(made)
    sys.modules["overhead"] = module  # dataclasses look their module up
    made.loader.exec_module(module)
    return module


@pytest.mark.parametrize("strategy", ["random", "auto", "kt:genetic_algorithm"])
def test_a_configuration_costs_little_through_engine_strategy_store_and_events(
    overhead: ModuleType, strategy: str
) -> None:
    found = overhead.replayed(load(DATA), strategy, 1000, every=100)
    # Processor time: other processes of a test machine are no overhead of ours.
    assert 1000 * found["cpu_seconds"] / found["configurations"] <= ALLOWED_MS
    assert len(found["rss_mb"]) == 10
    grown_kb = 1024 * (found["rss_mb"][-1] - found["rss_mb"][4]) / 500
    assert grown_kb < 10, f"{grown_kb:.0f} KB more for every configuration"
