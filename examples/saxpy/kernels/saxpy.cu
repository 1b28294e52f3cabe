// saxpy: out = alpha * x + y. The ITEMS elements of a thread are BLOCK apart, so the accesses of a warp are adjacent.
#include "dialect.h"
#ifndef BLOCK
#define BLOCK 256
#define ITEMS 4
#endif

KERNEL(BLOCK, 1, 0) saxpy(GLOBAL const float* x, GLOBAL const float* y, GLOBAL float* out,
                          float alpha, int n) {
    const int first = BID(0) * BLOCK * ITEMS + TID(0);
    for (int item = 0; item < ITEMS; ++item) {
        const int i = first + item * BLOCK;
        if (i < n) out[i] = FMA(alpha, x[i], y[i]);
    }
}
