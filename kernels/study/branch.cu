/* out[i] = f(x[i]) for even x[i], else g(x[i]): shows branches that lanes of a warp disagree about. f and g are 2 x and
   3 x, then WORK multiply-adds, all modulo 2^32, with other constants in each.

     FORM  stores   if, else, a store in each path
           chosen   if, else, and one store
           ternary  both results, and one of them taken: c ? f : g
           mask     both, put together by bits
           sorted   a block puts its even elements first, in shared memory, so that all warps but one agree
   As soon as lanes disagree, a warp does both paths, one after the other. Short paths become predicates or selects,
   whatever the source says: see the SASS. Both is also what ternary and mask say, in every warp. */
#ifndef BLOCK
#define BLOCK 256
#endif
#ifndef ITEMS
#define ITEMS 1
#endif
#ifndef FORM
#define FORM_stores 0
#define FORM_chosen 1
#define FORM_ternary 2
#define FORM_mask 3
#define FORM_sorted 4
#define FORM FORM_stores
#endif
#ifndef WORK
#define WORK 0
#endif

#include "dialect.h"

DEVICE unsigned path(unsigned v, unsigned factor, unsigned multiplier, unsigned addend)
{
    v *= factor;
    UNROLL_BY(8)
    for (int i = 0; i < WORK; ++i) v = v * multiplier + addend;
    return v;
}
#define EVEN(v) path(v, 2u, 1664525u, 1013904223u)
#define ODD(v) path(v, 3u, 22695477u, 12345u)

#if FORM == FORM_sorted
/* Where this thread's element goes when the even ones of a block come first. */
DEVICE int sorted_place(int even, SHARED_PTR int* evens)
{
    const int tid = TID(0);
    evens[tid] = even;
    SYNC();
    for (int apart = 1; apart < BLOCK; apart *= 2) {
        const int before = tid >= apart ? evens[tid - apart] : 0;
        SYNC();
        evens[tid] += before;
        SYNC();
    }
    return even ? evens[tid] - 1 : evens[BLOCK - 1] + tid - evens[tid];
}
#endif

KERNEL(BLOCK, 1, 1)
branch(GLOBAL const unsigned* RESTRICT x, GLOBAL unsigned* RESTRICT out, i64 n)
{
#if FORM == FORM_sorted
    SHARED int evens[BLOCK];
    SHARED unsigned values[BLOCK];
    for (int item = 0; item < ITEMS; ++item) {
        const i64 i = ((i64)BID(0) * ITEMS + item) * BLOCK + TID(0);
        const unsigned v = i < n ? x[i] : 0u;
        const int place = sorted_place(v % 2 == 0, evens);
        values[place] = v;
        SYNC();
        const unsigned mine = values[TID(0)];
        if (mine % 2 == 0)
            values[TID(0)] = EVEN(mine);
        else
            values[TID(0)] = ODD(mine);
        SYNC();
        if (i < n) out[i] = values[place];
        SYNC();
    }
#else
    UNROLL_ALL
    for (int item = 0; item < ITEMS; ++item) {
        const i64 i = ((i64)BID(0) * ITEMS + item) * BLOCK + TID(0);
        if (i >= n) return;
        const unsigned v = x[i], even = v % 2 == 0;
#if FORM == FORM_stores
        if (even)
            out[i] = EVEN(v);
        else
            out[i] = ODD(v);
#elif FORM == FORM_chosen
        unsigned chosen;
        if (even)
            chosen = EVEN(v);
        else
            chosen = ODD(v);
        out[i] = chosen;
#elif FORM == FORM_ternary
        const unsigned f = EVEN(v), g = ODD(v);
        out[i] = even ? f : g;
#else
        const unsigned mask = even - 1u; /* all bits for odd */
        out[i] = (EVEN(v) & ~mask) | (ODD(v) & mask);
#endif
    }
#endif
}
