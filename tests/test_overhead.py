"""What the framework costs beside compiling and the device; see benchmarks/overhead.py."""

from __future__ import annotations

from pathlib import Path

import overhead  # type: ignore[import-not-found]
import pytest

from autotune.replay import load

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data" / "synthetic.json.gz"
#: Most that a configuration may cost.
ALLOWED_MS = 3.0


@pytest.mark.parametrize("strategy", ["random", "auto", "kt:genetic_algorithm"])
def test_a_configuration_costs_little_through_engine_strategy_store_and_events(
    strategy: str,
) -> None:
    found = overhead.replayed(load(DATA), strategy, 1000, every=100)
    # Processor time: other processes of a test machine are no overhead of ours.
    assert 1000 * found["cpu_seconds"] / found["configurations"] <= ALLOWED_MS
    assert len(found["rss_mb"]) == 10
    grown_kb = 1024 * (found["rss_mb"][-1] - found["rss_mb"][4]) / 500
    assert grown_kb < 10, f"{grown_kb:.0f} KB more for every configuration"
