"""The contracts of faults, resume and several devices on a GPU; see contracts/."""

from pathlib import Path

import pytest
from contracts.devices import SeveralDevicesContract
from contracts.faults import EXPECTED, FaultContract
from contracts.resume import kill_and_finish

from autotune.measure.measurement import Status


@pytest.mark.gpu
class TestFaultsOnCuda(FaultContract):
    selector = "cuda:0"

    @pytest.mark.parametrize("fault", ["misaligned", "illegal_address"])
    def test_a_bad_address_costs_only_itself_and_prints_nothing(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str], fault: str
    ) -> None:
        """A misaligned one only CUDA refuses; CuPy cannot unload a module afterwards."""
        run = self.tuned(tmp_path / "s.sqlite", BLOCK=(32, 64), FAULT=(fault, "none"))
        measured = run.problems[0].measured
        statuses = {(found.configuration["FAULT"], found.status) for found in measured}
        assert (fault, Status.CRASHED) in statuses
        assert statuses & {("none", status) for status in EXPECTED["none"]}
        assert capfd.readouterr() == ("", "")


# ---------------------------------------------------------------------- A tuner killed again and again on a GPU


@pytest.mark.gpu
def test_a_tuner_killed_at_twenty_moments_loses_and_doubles_nothing(tmp_path: Path) -> None:
    kill_and_finish(tmp_path, "cuda:0")


# ---------------------------------------------------------------------- Several devices in one run


@pytest.mark.gpu
class TestSeveralOnCuda(SeveralDevicesContract):
    selector = "cuda:0"
