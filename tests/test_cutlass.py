"""The example that tunes a kernel of CUTLASS, compiled by NVRTC with the headers of a package."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from autotune.cli import run
from autotune.compiling.binaries import compiled_for
from autotune.devices.device import for_arch
from autotune.kernel.catalog import find_kernel

SPACES = Path(__file__).parents[1] / "examples" / "cutlass" / "spaces"


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("cutlass_library"), reason="make setup installs nvidia-cutlass")
def test_a_kernel_of_cutlass_is_compiled_and_its_arguments_are_checked() -> None:
    kernel = find_kernel("half_product", SPACES)
    problem = kernel.problems["cuda"][0]
    binary = compiled_for(kernel, kernel.default(), problem, for_arch("sm_90"))
    assert binary.entry("half_product").spill_bytes == 0
    assert (
        run(["check", "half_product", "--spaces", str(SPACES), "--arch", "sm_90", "--samples", "1"])
        == 0
    )


def test_without_the_package_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run(["check", "half_product", "--spaces", str(SPACES), "--arch", "sm_90"]) != 0
    assert "pip install --no-deps nvidia-cutlass" in "".join(capsys.readouterr())
