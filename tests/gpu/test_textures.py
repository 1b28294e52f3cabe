"""Textures on a GPU: the driver makes them, configurations are verified, and calls move them."""

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_textures import write_filtered

from autotune import Texture, load
from autotune.devices.choose import choose_device
from autotune.devices.texture import TextureLayout
from autotune.errors import DeviceError
from autotune.kernel.catalog import find_kernel
from autotune.kernel.view_layout import layout_of
from autotune.measure.measurement import Status
from autotune.run.request import Request, Search
from autotune.run.run import Run
from autotune.search.session import Budget
from autotune.store import Store

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


def test_configurations_with_textures_are_right_and_timed(cupy: Any, tmp_path: Path) -> None:
    kernel, device = find_kernel("filtered", write_filtered(tmp_path)), choose_device("cuda:0")
    request = Request(
        kernel, device, kernel.problems["cuda"], goal=Search("random"), budget=Budget(evaluations=8)
    )
    with Store.open(tmp_path / "store.sqlite") as store, closing(Run(request, store)) as running:
        (found,) = running.run().problems
    assert found.winner is not None
    statuses = {row.status for row in found.trials}
    assert statuses <= {Status.OK, Status.PRUNED, Status.STOPPED_EARLY, Status.PENDING}


def test_a_call_has_textures_of_its_arrays(cupy: Any, tmp_path: Path) -> None:
    filtered = load("filtered", spaces=write_filtered(tmp_path))
    kernel = find_kernel("filtered", tmp_path / "spaces")
    for seed in range(3):  # new arrays, new addresses
        rng = np.random.default_rng(seed)
        image = rng.standard_normal((37, 72), dtype=np.float32)
        weights = rng.standard_normal(9, dtype=np.float32)
        kept = cupy.empty(1000 * seed + 4, np.float32)
        found = filtered(cupy.asarray(image), cupy.asarray(weights))
        wanted = kernel.hook("reference")(image, weights, 37, 72)["out"]
        assert np.allclose(found.get(), wanted, atol=1e-4)
        del kept


def test_a_thread_may_begin_with_a_call(cupy: Any, tmp_path: Path) -> None:
    """The driver makes no texture in a thread without a context."""
    filtered = load("filtered", spaces=write_filtered(tmp_path))
    images = [cupy.ones((37, 72), np.float32) for _ in range(2)]
    weights, out = cupy.full(9, 1 / 9, np.float32), []
    filtered(images[0], weights)
    thread = threading.Thread(target=lambda: out.append(filtered(images[1], weights)))
    thread.start()
    thread.join()
    assert np.allclose(out[0].get()[1:-1, 1:-1], 1, atol=1e-4)


def test_a_captured_call_has_textures_of_its_arrays(cupy: Any, tmp_path: Path) -> None:
    """Their first call is captured, in the mode in which torch captures."""
    filtered = load("filtered", spaces=write_filtered(tmp_path))
    weights, stream = cupy.full(9, 1 / 9, np.float32), cupy.cuda.Stream(non_blocking=True)
    filtered(cupy.zeros((37, 72), np.float32), weights)
    image, out = cupy.ones((37, 72), np.float32), cupy.empty((37, 72), np.float32)
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
        filtered(image, weights, out)
        graph = stream.end_capture()
        graph.launch(stream)
    stream.synchronize()
    assert np.allclose(out.get(), 1, atol=1e-4)


def test_an_address_that_the_driver_refuses_is_named(cupy: Any) -> None:
    layout = TextureLayout("float32", 1, 64, 300, 256)
    memory = cupy.empty(300 * 64 + 4, np.float32)
    assert layout.encoded(memory.data.ptr) == layout.encoded(memory.data.ptr)
    with pytest.raises(DeviceError, match="the address must be a multiple of 512"):
        layout.encoded(memory.data.ptr + 16)


READ = """
extern "C" __global__ void read(cudaTextureObject_t image, float* out) {
  for (int i = 0; i < 4; ++i) out[i] = tex2D<float>(image, (i - 1) / 2.0f, 0.25f);
}
"""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [51, 51, 51, 204]),
        ({"address": "border", "unit": True}, [0, 0.2, 0.2, 0.8]),
        ({"address": "border", "unit": True, "filter": "linear"}, [0, 0.075, 0.15, 0.375]),
        ({"address": "wrap", "unit": True, "normalized": True}, None),
    ],
)
def test_options_are_those_of_the_driver(
    cupy: Any, options: dict[str, Any], expected: list[float] | None
) -> None:
    """A row of 32 bytes: 51, 204, 0, ... Integers that are read as such come as bits."""

    class Array:
        stored_shape, type_name = (2, 32), "uint8"

    array = np.zeros((2, 32), np.uint8)
    array[:, :2] = 51, 204
    on_device, out = cupy.asarray(array), cupy.empty(4, np.float32)
    handle = layout_of(Texture("image", **options), Array()).encoded(on_device.data.ptr)
    code = READ if options.get("unit") else READ.replace("tex2D<float>", "tex2D<unsigned char>")
    cupy.RawKernel(code, "read")((1,), (1,), (np.frombuffer(handle, np.uint64)[0], out))
    if expected is None:  # fractions of the width: -1/2, 0, 1/2, 1 wraps to 0
        assert np.allclose(out.get()[[1, 3]], 0.2, atol=1e-3)
    else:
        assert np.allclose(out.get(), expected, atol=2e-3)
