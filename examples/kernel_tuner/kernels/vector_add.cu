// vector_add: c = a + b. Parameters and arguments of Kernel Tuner's example of this name.
#include "dialect.h"

KERNEL(block_size_x, 1, 0) vector_add(GLOBAL float* c, GLOBAL const float* a, GLOBAL const float* b, int n) {
    const int i = BID(0) * block_size_x + TID(0);
    if (i < n) c[i] = a[i] + b[i];
}
