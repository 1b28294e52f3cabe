"""A script for Kernel Tuner that tunes vector_add; `autotune new --from` converts it to a space file."""

import numpy as np
from kernel_tuner import tune_kernel

source = """
__global__ void vector_add(float* c, const float* a, const float* b, int n) {
    const int i = blockIdx.x * block_size_x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
"""
n = np.int32(10_000_000)
a = np.random.randn(n).astype(np.float32)
b = np.random.randn(n).astype(np.float32)
c = np.zeros_like(a)

tune_params = {"block_size_x": [64 * i for i in range(2, 17)]}
answer = [a + b, None, None, None]
tune_kernel("vector_add", source, n, [c, a, b, n], tune_params, answer=answer)
