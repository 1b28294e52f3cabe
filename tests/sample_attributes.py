"""A kernel of three launches with attributes: a cluster, a programmatic dependent launch, a cooperative grid.

``synced`` computes ``y = 2 x``, ``z = y + 1`` and the sum of z. Each step is wrong without its attribute.
"""

from __future__ import annotations

from pathlib import Path

SPACE = '''\
"""synced: y = 2 x, z = y + 1 and the sum of z."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, ceil_div

BLOCK = 256

synced = Kernel(
    "synced.cu",
    problems=[Problem(n=100003)],
    backends=("cuda",),
    CLUSTER=(2, 4),  # blocks of a cluster
    PER_SM=(2, 64),  # blocks of the sum for each multiprocessor: 64 cannot run at once
    COOPERATIVE=(True, False),
)


@synced.arguments
def arguments(p, rng):
    x = rng.standard_normal(p.n, dtype=np.float32)
    return {"x": x, "y": Out(p.n), "z": Out(p.n), "total": Out(1), "n": np.int64(p.n)}


@synced.scratch
def scratch(c, p, device):
    return {"partial": Out(c.PER_SM * device.sm_count)}


@synced.reference
def reference(x):
    return {"y": 2 * x, "z": 2 * x + 1, "total": np.array([(2 * x + 1).sum()])}


@synced.launch
def launch(c, p, device):
    tiles = c.CLUSTER * ceil_div(p.n, c.CLUSTER * BLOCK)
    return (
        Launch((tiles,), (BLOCK,), entry="rotated", args=("x", "y", "n"), cluster=(c.CLUSTER,)),
        Launch((tiles,), (BLOCK,), entry="plus_one", args=("y", "z", "n"), programmatic=True),
        Launch(
            (c.PER_SM * device.sm_count,),
            (BLOCK,),
            entry="sum",
            args=("z", "partial", "total", "n"),
            cooperative=c.COOPERATIVE,
        ),
    )


@synced.call
def call(x, y=None, z=None, total=None):
    given = {"y": y, "z": z, "total": total}
    passed = {name: array for name, array in given.items() if array is not None}
    return Problem(n=len(x)), {"x": x, "n": len(x), **passed}
'''
SOURCE = """\
#include <cooperative_groups.h>
#ifndef BLOCK
#define BLOCK 256
#endif
namespace cg = cooperative_groups;

// Each block writes the tile that its neighbour in the cluster has in shared memory.
extern "C" __global__ void rotated(const float* x, float* y, long long n) {
  __shared__ float tile[BLOCK];
  asm volatile("griddepcontrol.launch_dependents;");
  cg::cluster_group cluster = cg::this_cluster();
  const unsigned blocks = cluster.num_blocks(), rank = cluster.block_rank(), next = (rank + 1) % blocks;
  const long long i = (long long)blockIdx.x * BLOCK + threadIdx.x;
  tile[threadIdx.x] = i < n ? x[i] : 0;
  cluster.sync();
  const long long j = i + ((long long)next - rank) * BLOCK;
  if (blocks > 1 && j < n) y[j] = 2 * cluster.map_shared_rank(tile, next)[threadIdx.x];
  cluster.sync();  // no block ends while its neighbour reads
}

// It may begin before the launch before it ends, and waits for it.
extern "C" __global__ void plus_one(const float* y, float* z, long long n) {
  const long long i = (long long)blockIdx.x * BLOCK + threadIdx.x;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (i < n) z[i] = y[i] + 1;
}

// The first block adds the sums of all blocks. The others are late, so that it must wait for them.
extern "C" __global__ void sum(const float* z, float* partial, float* total, long long n) {
  __shared__ float held[BLOCK];
  cg::grid_group grid = cg::this_grid();
  if (blockIdx.x > 0)
    for (int turn = 0; turn < 20; ++turn) __nanosleep(1000);
  float own = 0;
  const long long threads = (long long)gridDim.x * BLOCK;
  for (long long i = (long long)blockIdx.x * BLOCK + threadIdx.x; i < n; i += threads) own += z[i];
  held[threadIdx.x] = own;
  __syncthreads();
  for (int half = BLOCK / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) held[threadIdx.x] += held[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) partial[blockIdx.x] = held[0];
  if (grid.is_valid()) grid.sync();
  if (blockIdx.x > 0 || threadIdx.x > 0) return;
  float all = 0;
  for (unsigned block = 0; block < gridDim.x; ++block) all += partial[block];
  *total = all;
}
"""


def write_synced(folder: Path) -> Path:
    """Write the kernel and its space file below a folder; return the path of the space file."""
    for kind, name, text in (("kernels", "synced.cu", SOURCE), ("spaces", "synced.py", SPACE)):
        (folder / kind).mkdir(exist_ok=True)
        (folder / kind / name).write_text(text)
    return folder / "spaces" / "synced.py"
