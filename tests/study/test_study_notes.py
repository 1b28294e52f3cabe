"""The page of the study notes: what is on record made it, its claims are judged by figures, its variants are valid."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from harness import RESULTS, ROOT  # type: ignore[import-not-found]
from study import claims, experiments, page  # type: ignore[import-not-found]

from autotune.devices.device import for_arch
from autotune.errors import AutotuneError
from autotune.kernel.catalog import find_kernel
from autotune.measure.counters import FIGURES

ROWS = [f"E{number:02}" for number in range(1, 32)]
FILES = sorted(RESULTS.glob("study-notes-NVIDIA_*.json"))


def results(document: dict[str, Any]) -> Any:
    return claims.Results(document)


def test_each_row_has_its_section_and_each_claim_a_row() -> None:
    assert list(page.ROWS) == ROWS
    assert len(claims.CLAIMS) == 36
    assert {claim.row for claim in claims.CLAIMS} <= set(ROWS)


def test_what_is_not_measured_is_open_and_says_so() -> None:
    for claim in claims.CLAIMS:
        verdict, why = claim.judged(results({"rows": {}}))
        assert verdict == claims.OPEN and "not measured" in why
    failed = {"rows": {row: {"error": "DeviceError: lost"} for row in ROWS}}
    assert all("lost" in claim.judged(results(failed))[1] for claim in claims.CLAIMS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_claims_are_judged_by_what_is_on_record(file: Any) -> None:
    """A claim whose rows were measured is not open, and its figures are numbers."""
    document = json.loads(file.read_text())
    for claim in claims.CLAIMS:
        verdict, figures = claim.judged(results(document))
        assert verdict in ("holds", "in part", "moved on", "open")
        assert re.search(r"\d", figures)


def test_the_page_is_what_the_results_make_of_it() -> None:
    documents = [json.loads(file.read_text()) for file in FILES]
    made = page.page(results(page.shown_of(documents)))
    assert (ROOT / "docs" / "study" / "notes.md").read_text(encoding="utf-8") == made


@pytest.mark.parametrize("row", experiments.ROWS)
def test_variants_are_of_their_kernel(row: str) -> None:
    """Each experiment has a variant that its problem allows, and names parameters and variants that exist."""
    for experiment in experiments.experiments(row, sm_count=132):
        try:
            kernel = find_kernel(experiment.kernel)
        except AutotuneError:
            assert experiment.kernel == "hgemm"  # whose row is open until it is there
            continue
        problem = kernel.normal(experiment.problem)
        named = [each for each in experiment.variants.values() if isinstance(each, str)]
        assert set(named) <= {*kernel.variants, "best"}
        given = [each for each in experiment.variants.values() if not isinstance(each, str)]
        assert all(each.keys() <= kernel.parameters.keys() for each in given)
        assert named or any(kernel.allows(kernel.completed(each), problem) for each in given)
        assert set(experiment.counts) <= {*FIGURES, *experiments.FURTHER}


def test_a_claim_moves_with_the_figures() -> None:
    """Off by one element: 5 sectors for 4; the verdict is another one if the counter is."""

    def with_sectors(off: float) -> Any:
        counts = {"sectors_ld_sum": 10.0, "sectors_st_sum": 5.0}
        variants = {
            f"off by {by}": {
                "variants": {
                    "4 bytes": {
                        "cold_ms": 0.03,
                        "counters": {"sectors_ld": n, "sectors_st": n, **counts},
                    }
                }
            }
            for by, n in ((0, 4.0), (1, off))
        }
        return results({"rows": {"E26": {"experiments": variants}}})

    assert claims.off_by_one_is_five_sectors(with_sectors(5.0))[0] == "holds"
    assert claims.off_by_one_is_five_sectors(with_sectors(4.0))[0] == "moved on"


def test_a_device_is_asked_for_whole_waves() -> None:
    blocks = [
        each.problem["m"] // 128
        for each in experiments.experiments("E18", for_arch("sm_90").sm_count)[1:]
    ]
    count = for_arch("sm_90").sm_count
    assert blocks == [count, count + 1, 8 * count, 8 * count + 1]
