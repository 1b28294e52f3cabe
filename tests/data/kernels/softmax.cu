/* out[r][c] = exp(x[r][c]) / the sum of the row: one block per row, in the words of dialect_math.h. */
#include "dialect_math.h"

#define WARPS (BLOCK / WARP)

/* The value of every warp's `value` combined, in all threads of the block. */
#define OVER_BLOCK(name, of_warp, combine)                                             \
    DEVICE float name(float value, SHARED_PTR float* warps)                            \
    {                                                                                  \
        value = of_warp(value);                                                        \
        SYNC(); /* the last call's reads */                                            \
        if (TID(0) % WARP == 0) warps[TID(0) / WARP] = value;                          \
        SYNC();                                                                        \
        value = warps[0];                                                              \
        for (int warp = 1; warp < WARPS; ++warp) value = combine(value, warps[warp]);  \
        return value;                                                                  \
    }
#define PLUS(a, b) ((a) + (b))
OVER_BLOCK(block_max, WARP_MAX, MAX)
OVER_BLOCK(block_sum, WARP_SUM, PLUS)

KERNEL(BLOCK, 1, 1) softmax(GLOBAL const float* x, GLOBAL float* out, int columns)
{
    SHARED float warps[WARPS];
    GLOBAL const float* from = x + (i64)BID(0) * columns;
    GLOBAL float* to = out + (i64)BID(0) * columns;
    float largest = -INFINITY;
    for (int c = TID(0); c < columns; c += BLOCK) largest = MAX(largest, from[c]);
    largest = block_max(largest, warps);
    float sum = 0.0f;
    for (int c = TID(0); c < columns; c += BLOCK) sum += EXP(from[c] - largest);
    sum = block_sum(sum, warps);
    for (int c = TID(0); c < columns; c += BLOCK) to[c] = EXP(from[c] - largest) / sum;
}
