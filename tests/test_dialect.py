"""`dialect.h`: three dimensions and the limits of numbers, the same in CUDA C++ and OpenCL C."""

import re
from pathlib import Path

import numpy as np
import pytest

from autotune.devices.base import BoundLaunch
from autotune.devices.choose import backend, choose_device
from autotune.devices.device import for_arch
from autotune.kernel.source import flattened

ROOT = Path(__file__).parents[1]
SOURCE = """
#include "dialect.h"
KERNEL_3D(4, 2, 3, 0) k(GLOBAL float* out, int n) {
    const int block = (BID(2) * GRID(1) + BID(1)) * GRID(0) + BID(0);
    const int i = block * 24 + (TID(2) * 2 + TID(1)) * 4 + TID(0);
    if (i < n) out[i] = i % 5 == 0 ? -INFINITY : i % 5 == 1 ? NAN : i % 5 == 2 ? FLT_MAX : i;
    if (DBL_MAX < 1 || FLT_EPSILON > 1) out[0] = 0.0f;
}
"""


def test_every_word_is_in_the_reference():
    header = (ROOT / "kernels" / "dialect.h").read_text()
    page = (ROOT / "docs" / "spaces.md").read_text().partition("\n## Words of dialect.h\n")[2]
    words = set(re.findall(r"#define (\w+)|\btypedef .*?(\w+);|static inline \w+ (\w+)\(", header))
    names = {name for found in words for name in found if name}
    own = {name for name in names if not name.startswith("DIALECT_")}  # the others join these
    assert len(own) > 40
    assert own - set(re.findall(r"`(\w+)", page)) == set()


@pytest.fixture
def compiled(tmp_path):
    def made(device, options=(), before=""):
        file = tmp_path / "k.cu"
        file.write_text(before + SOURCE)
        return backend(device.backend).compile(flattened(file), {}, options, device, ("k",))

    return made


def test_nvrtc_knows_the_limits_also_beside_its_own_headers(compiled):
    pytest.importorskip("cuda.bindings.nvrtc")
    for headers in ("", "#include <cuda/std/cfloat>\n#include <cuda/std/limits>\n"):
        assert compiled(for_arch("sm_90"), before=headers).entry("k").registers


@pytest.mark.opencl
def test_blocks_and_grids_have_three_dimensions(compiled, opencl_device):
    device = choose_device(opencl_device)
    executor = backend("opencl").open(device)
    count = 24 * 2 * 3 * 5
    out = executor.allocate(4 * count)
    module = executor.load(compiled(device), {})
    launch = BoundLaunch("k", (2, 3, 5), (4, 2, 3), 0, (out, np.int32(count)))
    executor.run(module, [launch])
    found = executor.read(out, np.dtype(np.float32), (count,))
    expected = np.arange(count, dtype=np.float32)
    limits = (-np.inf, np.nan, np.finfo(np.float32).max)
    for first, limit in enumerate(limits):
        expected[first::5] = limit
    np.testing.assert_array_equal(found, expected)
