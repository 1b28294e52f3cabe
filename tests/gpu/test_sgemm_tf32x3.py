"""sgemm_tf32x3 is as accurate as float32, on data that are hard for it, in every kind of configuration."""

from __future__ import annotations

from typing import Any

import pytest
from accuracy import DATA, Accuracy, Exact

from autotune import load
from autotune.kernel.catalog import find_kernel
from autotune.kernel.space import enumerate_space

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

SIZES = (1024, 2048, 4096, 8192, 1000)
#: What the largest and the root mean square error may be, of those of cublasSgemm on the same data.
FACTOR = 2.0


def errors(cupy: Any, tf32x3: Any, m: int, n: int, k: int, data: str) -> tuple[Accuracy, Accuracy]:
    """Of ours and of cublasSgemm."""
    a, b = DATA[data](m, n, k, cupy.random.default_rng(7))
    exact = Exact(a, b)
    c = cupy.full((m, n), cupy.nan, cupy.float32)
    find_kernel("sgemm_tf32x3").baselines[0].prepare(a, b, c, 1.0, 0.0, m, n, k)()
    vendor = exact.accuracy(c)
    return exact.accuracy(tf32x3(a, b)), vendor


def check(ours: Accuracy, vendor: Accuracy) -> None:
    """Also fails where something is NaN."""
    print(
        f"max {ours.max_error / vendor.max_error:.2f} rms {ours.rms_error / vendor.rms_error:.2f}"
    )
    assert ours.max_error <= FACTOR * vendor.max_error
    assert ours.rms_error <= FACTOR * vendor.rms_error


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("size", SIZES)
def test_what_load_picks_is_as_accurate_as_float32(cupy: Any, size: int, data: str) -> None:
    check(*errors(cupy, load("sgemm_tf32x3"), size, size, size, data))


@pytest.mark.parametrize("data", DATA)
def test_so_is_every_kind_of_configuration(
    cupy: Any, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sources, all depths of summation in the tensor core; sizes that divide nothing."""
    kernel = find_kernel("sgemm_tf32x3")
    monkeypatch.setattr(
        "autotune.calling.choice._recorded", lambda *_: None
    )  # so that load takes the default
    space = enumerate_space(kernel, _device())
    kinds = {}
    for configuration in map(space.configuration, range(len(space))):
        mma = configuration["VARIANT"] == "mma"
        names = ("BK", "FLUSH") if mma else ("BM", "BN", "VECTORS")
        kinds.setdefault(tuple(configuration[name] for name in ("VARIANT", *names)), configuration)
    for configuration in kinds.values():
        monkeypatch.setattr(kernel, "default_values", dict(configuration))
        print(configuration, end=" ")
        # Rows that are aligned, and not; large enough that cuBLAS does not split k, where its sums
        # are shorter: at 252 x 260 x 2052 one configuration has 2.3 times its largest error.
        for m, n, k in ((999, 1013, 4093), (1020, 1036, 2052)):
            check(*errors(cupy, load(kernel), m, n, k, data))


def test_an_infinity_spoils_only_its_row_and_column(cupy: Any) -> None:
    """As in float32, but that a sum which is infinite there may be NaN here."""
    a, b = DATA["normal"](300, 310, 320, cupy.random.default_rng(7))
    expected = a.astype("float64") @ b.astype("float64")
    a[7, 11], b[5, 9] = cupy.inf, cupy.nan
    c = load("sgemm_tf32x3")(a, b)
    assert not cupy.isfinite(c[7]).any()
    assert cupy.isnan(c[:, 9]).all()
    c[7], c[:, 9] = expected[7], expected[:, 9]
    assert float(abs(c - expected).max()) < 1e-4


def _device() -> Any:
    from autotune.devices.choose import backend

    return backend("cuda").devices()[0]
