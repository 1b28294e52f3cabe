/* Adding up many floats without losing digits: knows both languages, and no kernel.

   Every addition rounds, by up to half a unit in the last place of its result. In one chain of additions the
   results grow to the whole sum, so that each of n additions may lose as much as the last one; by halves only
   the last few are that large. Where there must be a chain, as in a loop, what it rounds away is kept. */
#ifndef SUMS_H
#define SUMS_H

#include "dialect.h"

/* The sum of `count` floats, a power of two: of neighbours, then of neighbouring sums. */
DEVICE float sum_by_halves(float* items, int count)
{
    UNROLL_ALL
    for (int apart = 1; apart < count; apart *= 2) {
        UNROLL_ALL
        for (int i = 0; i < count; i += 2 * apart) items[i] += items[i + apart];
    }
    return items[0];
}

/* sum += value, and lost += what that rounds away, exactly: the two-sum of Knuth, The Art of Computer
   Programming, volume 2, section 4.2.2, theorem B. */
DEVICE void add_keeping(float* sum, float* lost, float value)
{
    const float before = *sum, after = before + value, added = after - before;
    *lost += (before - (after - added)) + (value - added);
    *sum = after;
}

/* Once there is an infinity, what was lost is not a number, and the sum is right without it. */
DEVICE float with_lost(float sum, float lost) { return lost == lost ? sum + lost : sum; }

#endif
