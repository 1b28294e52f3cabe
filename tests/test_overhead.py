"""What a configuration leaves behind: one row, one event and no memory.

What it costs in time is measured by benchmarks/overhead.py.
"""

from __future__ import annotations

from pathlib import Path

import overhead  # type: ignore[import-not-found]
import pytest

from autotune.interop.formats import read

DATA = Path(__file__).parent / "data" / "synthetic.json.gz"


@pytest.mark.parametrize("strategy", ["random", "surrogate", "kt:genetic_algorithm"])
def test_a_configuration_leaves_a_row_an_event_and_no_memory(strategy: str) -> None:
    """Through engine, strategy, store and events; that rows and events agree is asked there."""
    count = 1000 if strategy != "surrogate" else 500  # its model takes some milliseconds each
    found = overhead.replayed(read(DATA), strategy, count, every=count // 10)
    assert found["configurations"] == count
    assert len(found["rss_mb"]) == 10
    grown_kb = 1024 * (found["rss_mb"][-1] - found["rss_mb"][4]) / (count / 2)
    # The model's matrices hold a number for each pair: 6 KB for each of 500, in several of them.
    most_kb = 10 if strategy != "surrogate" else 40
    assert grown_kb < most_kb, f"{grown_kb:.0f} KB more for every configuration"
