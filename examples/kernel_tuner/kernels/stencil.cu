// stencil: replaces each inner value by the mean of itself and its four neighbours; the border stays. Parameters of
// Kernel Tuner's example of this name.
#include "dialect.h"

KERNEL(block_size_x, block_size_y, 0) stencil_kernel(GLOBAL float* x_new, GLOBAL const float* x_old) {
    const int x = BID(0) * block_size_x + TID(0), y = BID(1) * block_size_y + TID(1);
    if (x >= WIDTH || y >= HEIGHT) return;
    GLOBAL const float* at = x_old + y * WIDTH + x;
    const int is_inside = x > 0 && x < WIDTH - 1 && y > 0 && y < HEIGHT - 1;
    x_new[y * WIDTH + x] =
        is_inside ? (at[0] + at[-1] + at[1] + at[-WIDTH] + at[WIDTH]) / 5.0f : at[0];
}
