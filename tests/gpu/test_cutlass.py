"""The example that tunes a kernel of CUTLASS, on a GPU."""

from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune import load
from autotune.devices.choose import choose_device
from autotune.kernel.catalog import find_kernel
from autotune.measure.measurement import Status
from autotune.run.request import Request, Search
from autotune.run.run import Run
from autotune.search.session import Budget
from autotune.store import Store

SPACES = Path(__file__).parents[2] / "examples" / "cutlass" / "spaces"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not find_spec("cutlass_library"), reason="nvidia-cutlass is not installed"),
]


def test_configurations_of_cutlass_are_right_and_timed(cupy: Any, tmp_path: Path) -> None:
    kernel, device = find_kernel("half_product", SPACES), choose_device("cuda:0")
    problems = kernel.problems["cuda"][1:]
    request = Request(kernel, device, problems, goal=Search("random"), budget=Budget(evaluations=8))
    with Store.open(tmp_path / "store.sqlite") as store, closing(Run(request, store)) as running:
        (found,) = running.run().problems
    assert found.winner is not None
    statuses = {row.status for row in found.trials}
    assert statuses <= {Status.OK, Status.PRUNED, Status.STOPPED_EARLY, Status.PENDING}


def test_a_call_is_a_product(cupy: Any) -> None:
    product, rng = load("half_product", spaces=SPACES), np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((77, 104), (104, 264)))
    found = product(cupy.asarray(a), cupy.asarray(b))
    assert np.allclose(found.get(), a.astype(np.float32) @ b, atol=0.05)
