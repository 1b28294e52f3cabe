"""Faulty kernels on a GPU; see contracts/faults.py."""

import pytest
from contracts.faults import EXPECTED, FaultContract

from autotune.measure.measurement import Status


@pytest.mark.gpu
class TestFaultsOnCuda(FaultContract):
    selector = "cuda:0"

    def test_a_misaligned_address_costs_only_itself(self, tmp_path) -> None:
        """Only CUDA refuses it; the CPU device allows any address."""
        run = self.tuned(tmp_path / "s.sqlite", BLOCK=(32, 64), FAULT=("misaligned", "none"))
        measured = run.problems[0].measured
        statuses = {(found.configuration["FAULT"], found.status) for found in measured}
        assert ("misaligned", Status.CRASHED) in statuses
        assert statuses & {("none", status) for status in EXPECTED["none"]}
