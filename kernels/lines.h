// How a warp writes rows of C that are no whole quads: from shared memory, so that its lanes write neighbours. A store
// of each lane's own quads, a float at a time, reaches 16 sectors or more for 4 or 8 bytes of each.
#pragma once

#ifndef C_ROWS
#define C_ROWS_direct 0
#define C_ROWS_lines 1  // by way of shared memory, in lines of neighbours
#define C_ROWS C_ROWS_direct  // how rows of C are written that are no whole quads
#endif
#define IN_LINES (C_ROWS == C_ROWS_lines)

#if IN_LINES
// Store a strip in shared memory, rows of COLS floats `pitch` apart, to C from (row, col) on: ROWS of its rows, each
// APART from the one before. A whole warp calls it with the same arguments, between two __syncwarp. When beta is 0, C is
// not read and may hold anything.
template <int ROWS, int COLS, int APART, typename Pitch>
__device__ __forceinline__ void store_strip(const float* strip, int pitch, float* c, Pitch ldc, float beta, int row,
                                            int col, int m, int n)
{
    static_assert(ROWS * COLS % 32 == 0, "every lane has as many elements");
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
#endif
