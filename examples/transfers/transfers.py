"""Times copies between host and GPU, and their overlap with kernels: python examples/transfers/transfers.py

It answers three questions. How much faster are copies from pinned memory? Do copies in, kernels and copies out
overlap if the work is split into chunks on several streams? Do small kernels on several streams run at the same
time? Needs CuPy.
"""

import argparse
import json
import subprocess
import sys
import time
from statistics import median

import cupy
import numpy as np

CHAIN = """
extern "C" __global__ void chain(float* x, int n, int steps) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float value = x[i];
    for (int step = 0; step < steps; ++step) value = fmaf(value, 0.999f, 0.001f);
    x[i] = value;
}
"""
#: GB/s of a PCIe lane in one direction, by generation.
PCIE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
TO_DEVICE, TO_HOST = cupy.cuda.runtime.memcpyHostToDevice, cupy.cuda.runtime.memcpyDeviceToHost


def timed_ms(function, repeats=5):
    """Return the median time in ms until the device is idle again, without the first call."""
    times = []
    for _ in range(repeats + 1):
        cupy.cuda.Device().synchronize()
        began = time.perf_counter()
        function()
        cupy.cuda.Device().synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    return median(times[1:])


def pinned(n):
    """Return an array of n floats in pinned host memory, which the device copies without the CPU."""
    memory = cupy.cuda.alloc_pinned_memory(4 * n)
    return np.frombuffer(memory, np.float32, n)


def copies(n):
    """Return GB/s of one copy of n floats, by kind of host memory and direction."""
    device, found = cupy.empty(n, np.float32), {}
    for kind, host in (("pageable", np.ones(n, np.float32)), ("pinned", pinned(n))):
        for label, ends in (("in", (device.data.ptr, host.ctypes.data, TO_DEVICE)),
                            ("out", (host.ctypes.data, device.data.ptr, TO_HOST))):  # fmt: skip
            target, source, direction = ends
            ms = timed_ms(lambda t=target, s=source, d=direction: copy(t, s, 4 * n, d))
            found[f"{kind}, {label}"] = 4 * n / ms / 1e6
    return found


def copy(target, source, nbytes, direction):
    stream = cupy.cuda.get_current_stream().ptr
    cupy.cuda.runtime.memcpyAsync(target, source, nbytes, direction, stream)


def pipelines(n, kernel):
    """Return the ms of copy in, kernel and copy out of n floats, by number of chunks and streams."""
    host, device = pinned(n), cupy.empty(n, np.float32)
    host[:] = 1
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]

    def run(chunks, used):
        size = n // chunks
        for chunk in range(chunks):
            on_host = host.ctypes.data + 4 * chunk * size
            on_device = device.data.ptr + 4 * chunk * size
            with streams[chunk % used]:
                copy(on_device, on_host, 4 * size, TO_DEVICE)
                part = device[chunk * size : (chunk + 1) * size]
                kernel((-(-size // 256),), (256,), (part, np.int32(size), np.int32(2048)))
                copy(on_host, on_device, 4 * size, TO_HOST)

    shapes = ((1, 1), (4, 1), (2, 2), (4, 2), (4, 4), (8, 2), (8, 4))
    return {
        f"{chunks} on {used}": timed_ms(lambda c=chunks, u=used: run(c, u))
        for chunks, used in shapes
    }


def small_kernels(kernel):
    """Return the ms of four kernels of one block each, on one stream and on four streams."""
    x = cupy.ones(1024, np.float32)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]

    def run(used):
        for number in range(4):
            with streams[number % used]:
                part = x[256 * number : 256 * (number + 1)]
                kernel((1,), (256,), (part, np.int32(256), np.int32(1 << 18)))

    return {f"{used} streams": timed_ms(lambda u=used: run(u)) for used in (1, 4)}


def link():
    """Return the GB/s of the PCIe link in one direction; None if nvidia-smi does not report it."""
    fields = "pcie.link.gen.max,pcie.link.width.max"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", "0"]
    try:
        words = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=20
        ).stdout
        generation, width = (int(word) for word in words.split(","))
        return PCIE[generation] * width
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return None


def measured(n):
    """Return all results: launches and link first, then copies, pipelines and small kernels of n floats."""
    kernel = cupy.RawKernel(CHAIN, "chain")
    x = cupy.ones(256, np.float32)
    kernel.compile()
    launches = []
    for _ in range(5):
        began = time.perf_counter()
        kernel((1,), (256,), (x, np.int32(256), np.int32(1)))
        cupy.cuda.Device().synchronize()
        launches.append(1e3 * (time.perf_counter() - began))
    return {
        "first_launch_ms": launches[0],
        "later_launch_ms": median(launches[1:]),
        "link_gb_per_s": link(),
        "copy_gb_per_s": copies(n),
        "pipeline_ms": pipelines(n, kernel),
        "small_kernels_ms": small_kernels(kernel),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--floats", type=int, default=1 << 26, help="floats to copy")
    found = measured(parser.parse_args().floats)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
