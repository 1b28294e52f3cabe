// Rounds each row of bfloat16 to 8-bit floats with a scale of its own: q = x / scale, scale = max |x| / 448.
// A block takes a row. Each thread keeps KEPT vectors of it in registers between its two passes, and reads others again.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

struct alignas(2 * VECTOR) Wide {
    __nv_bfloat16 x[VECTOR];
};
struct alignas(VECTOR) Narrow {
    __nv_fp8_e4m3 q[VECTOR];
};

__device__ float largest(const Wide& wide, float most) {
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) most = fmaxf(most, fabsf(__bfloat162float(wide.x[i])));
    return most;
}

__device__ Narrow rounded(const Wide& wide, float factor) {
    Narrow narrow;
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) narrow.q[i] = __nv_fp8_e4m3(__bfloat162float(wide.x[i]) * factor);
    return narrow;
}

__device__ float largest_of_block(float most) {
    __shared__ float of_warps[BLOCK / 32];
    for (int lane = 16; lane > 0; lane /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, lane));
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = most;
    __syncthreads();
    for (int warp = 0; warp < BLOCK / 32; ++warp) most = fmaxf(most, of_warps[warp]);
    return most;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
fp8_rows(const __nv_bfloat16* x, __nv_fp8_e4m3* q, float* scale, int columns) {
    const size_t row = blockIdx.x, begin = row * columns;
    const Wide* const from = reinterpret_cast<const Wide*>(x + begin);
    Narrow* const to = reinterpret_cast<Narrow*>(q + begin);
    const int vectors = columns / VECTOR;
    Wide kept[KEPT];
    float most = 0.0f;
#pragma unroll
    for (int k = 0; k < KEPT; ++k) {
        const int i = threadIdx.x + k * BLOCK;
        if (i < vectors) most = largest(kept[k] = from[i], most);
    }
    for (int i = threadIdx.x + KEPT * BLOCK; i < vectors; i += BLOCK) most = largest(from[i], most);
    most = largest_of_block(most);
    const float factor = most > 0.0f ? 448.0f / most : 1.0f;
#pragma unroll
    for (int k = 0; k < KEPT; ++k) {
        const int i = threadIdx.x + k * BLOCK;
        if (i < vectors) to[i] = rounded(kept[k], factor);
    }
    for (int i = threadIdx.x + KEPT * BLOCK; i < vectors; i += BLOCK) to[i] = rounded(from[i], factor);
    if (threadIdx.x == 0) scale[row] = most > 0.0f ? most / 448.0f : 1.0f;
}
