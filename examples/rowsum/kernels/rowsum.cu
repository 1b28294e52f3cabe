// Sums each row of a matrix with one warp. This is an ordinary CUDA C++ file of an application: it has a namespace, a
// template and an include, and no extern "C".
#include "warp_sum.cuh"

namespace app {

template <int Warps, int Unroll>
__global__ void rowsum(const float* matrix, float* sums, int rows, int columns) {
    const int row = blockIdx.x * Warps + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const float* const start = matrix + (long long)row * columns;
    float parts[Unroll] = {};
    int column = lane;
    for (; column + 32 * (Unroll - 1) < columns; column += 32 * Unroll)
        for (int i = 0; i < Unroll; ++i) parts[i] += start[column + 32 * i];
    for (; column < columns; column += 32) parts[0] += start[column];
    float sum = 0.0f;
    for (int i = 0; i < Unroll; ++i) sum += parts[i];
    sum = warp_sum(sum);
    if (lane == 0) sums[row] = sum;
}

}  // namespace app
