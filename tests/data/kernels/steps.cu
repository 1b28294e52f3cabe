// Three launches and a fill that need each other: sums of TAPS neighbours per block, their total, and an
// array doubled in place. TAPS is a problem field that is compiled in.
#include "dialect.h"
#ifndef BLOCK
#define BLOCK 32
#define UNROLL 1
#define TAPS 3
#endif

KERNEL(BLOCK, 1, 0) partial(GLOBAL const float* x, GLOBAL float* partials, GLOBAL unsigned* count,
                            int n) {
    SHARED float sums[BLOCK];
    float sum = 0.0f;
    UNROLL_BY(UNROLL)
    for (int i = BID(0) * BLOCK + TID(0); i < n; i += GRID(0) * BLOCK) {
        for (int tap = 0; tap < TAPS; ++tap) sum += x[(i + tap) % n];
        ATOMIC_INC(count);
    }
    sums[TID(0)] = sum;
    SYNC();
    for (int step = BLOCK / 2; step > 0; step /= 2) {
        if (TID(0) < step) sums[TID(0)] += sums[TID(0) + step];
        SYNC();
    }
    if (TID(0) == 0) partials[BID(0)] = sums[0];
}

KERNEL(1, 1, 0) finish(GLOBAL const float* partials, GLOBAL float* total, int blocks) {
    float sum = 0.0f;
    for (int i = 0; i < blocks; ++i) sum += partials[i];
    total[0] = sum;
}

KERNEL(BLOCK, 1, 0) twice(GLOBAL float* y, int n) {
    const int i = BID(0) * BLOCK + TID(0);
    if (i < n) y[i] *= 2.0f;
}
