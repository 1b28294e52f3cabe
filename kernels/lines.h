// How a warp writes rows of C that are no whole quads: from shared memory, so that its lanes write neighbours. A store
// of each lane's own quads, a float at a time, reaches 16 sectors or more for 4 or 8 bytes of each.
#pragma once

__device__ __forceinline__ float4 scaled(float4 v, float alpha)
{
    return make_float4(alpha * v.x, alpha * v.y, alpha * v.z, alpha * v.w);
}

// Store a strip in shared memory, rows of COLS floats `pitch` apart, to C from (row, col) on: ROWS of its rows, each
// APART from the one before. When beta is 0, C is not read and may hold anything.
template <int ROWS, int COLS, int APART, typename Pitch>
__device__ __forceinline__ void store_strip(const float* strip, int pitch, float* c, Pitch ldc, float beta, int row,
                                            int col, int m, int n)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int at = 0; at < ROWS * COLS; at += 32) {
        const int strip_row = (at + lane) / COLS, strip_col = (at + lane) % COLS;
        const int to_row = row + strip_row * APART, to_col = col + strip_col;
        if (to_row < m && to_col < n) {
            float* to = c + static_cast<long long>(to_row) * ldc + to_col;
            const float v = strip[strip_row * pitch + strip_col];
            *to = beta != 0.0f ? fmaf(beta, *to, v) : v;
        }
    }
}
