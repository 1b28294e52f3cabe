// matmul: C = A B of square matrices, with tiles in shared memory. Parameters of Kernel Tuner's example of this name.
// A block computes block_size_x rows and block_size_x * tile_size_x columns of C; both numbers divide WIDTH.
#include "dialect.h"

KERNEL(block_size_x, block_size_y, 0)
matmul_kernel(GLOBAL float* C, GLOBAL const float* A, GLOBAL const float* B) {
    SHARED float a[block_size_x][block_size_x], b[block_size_x][block_size_x * tile_size_x];
    const int x = BID(0) * block_size_x * tile_size_x + TID(0), y = BID(1) * block_size_x + TID(1);
    float sums[tile_size_y][tile_size_x] = {{0.0f}};
    for (int start = 0; start < WIDTH; start += block_size_x) {
        UNROLL_ALL for (int i = 0; i < tile_size_y; ++i) {
            const int row = TID(1) + i * block_size_y;
            a[row][TID(0)] = A[(y + i * block_size_y) * WIDTH + start + TID(0)];
            UNROLL_ALL for (int j = 0; j < tile_size_x; ++j)
                b[row][TID(0) + j * block_size_x] = B[(start + row) * WIDTH + x + j * block_size_x];
        }
        SYNC();
        for (int k = 0; k < block_size_x; ++k)
            UNROLL_ALL for (int i = 0; i < tile_size_y; ++i)
                UNROLL_ALL for (int j = 0; j < tile_size_x; ++j)
                    sums[i][j] = FMA(a[TID(1) + i * block_size_y][k], b[k][TID(0) + j * block_size_x], sums[i][j]);
        SYNC();
    }
    UNROLL_ALL for (int i = 0; i < tile_size_y; ++i)
        UNROLL_ALL for (int j = 0; j < tile_size_x; ++j)
            C[(y + i * block_size_y) * WIDTH + x + j * block_size_x] = sums[i][j];
}
