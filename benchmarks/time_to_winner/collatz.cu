// out = steps from each x to 1, by halves of even numbers and 3 x + 1 of odd ones; space: collatz.py.
// A thread has ITEMS numbers, in a row or BLOCK apart. With TWO an odd number makes two steps at once.
#include "dialect.h"
#ifndef BLOCK
#define BLOCK 256
#define ITEMS 1
#define IN_A_ROW 0
#define TWO 0
#define UNROLLED 1
#endif

DEVICE int step(i64* value)
{
    if (*value == 1) return 0;
    if (*value % 2 == 0) {
        *value /= 2;
        return 1;
    }
#if TWO
    *value = (3 * *value + 1) / 2;
    return 2;
#else
    *value = 3 * *value + 1;
    return 1;
#endif
}

KERNEL(BLOCK, 1, 1) collatz(GLOBAL const int* RESTRICT x, GLOBAL int* RESTRICT out, int n)
{
    const int first = BID(0) * BLOCK * ITEMS;
    for (int item = 0; item < ITEMS; ++item) {
        const int i = first + (IN_A_ROW ? TID(0) * ITEMS + item : TID(0) + item * BLOCK);
        if (i >= n) continue;
        i64 value = x[i];
        int steps = 0;
        while (value > 1) {
            UNROLL_ALL
            for (int u = 0; u < UNROLLED; ++u) steps += step(&value);
        }
        out[i] = steps;
    }
}
