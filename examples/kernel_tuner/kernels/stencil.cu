// stencil: inside a domain the mean of each value and its four neighbours; the border stays. Parameters of
// Kernel Tuner's example of this name.
#include "dialect.h"

KERNEL(block_size_x, block_size_y, 0) stencil_kernel(GLOBAL float* x_new, GLOBAL const float* x_old) {
    const int x = BID(0) * block_size_x + TID(0), y = BID(1) * block_size_y + TID(1);
    if (x >= domain_width || y >= domain_height) return;
    GLOBAL const float* at = x_old + y * domain_width + x;
    const int is_inside = x > 0 && x < domain_width - 1 && y > 0 && y < domain_height - 1;
    x_new[y * domain_width + x] =
        is_inside ? (at[0] + at[-1] + at[1] + at[-domain_width] + at[domain_width]) / 5.0f : at[0];
}
