/* out[i] = x[source(i)], or out[source(i)] = x[i]: shows what it costs when neighbours in a warp touch places that are
   apart. Memory moves in sectors of 32 bytes; a warp that reads 32 floats side by side touches 4 of them.

     PATTERN  stride     source(i) = STRIDE * i mod n: 17 floats are 68 bytes, so each lane has a sector of its own
              every      source(i) = STRIDE * i, of STRIDE * n elements: the same, without coming back for the rest
              swapped    i ^ 31: the order within a warp does not matter, sectors are counted
              broadcast  always 0: one sector
              random     index[i]
              reverse    n - 1 - i
     STAGE    shared     swapped and reverse: a block turns its tile round in shared memory, which has no sectors
              shuffle    reverse: a warp turns its piece round in registers */
#ifndef BLOCK
#define BLOCK 256
#endif
#ifndef ITEMS
#define ITEMS 1
#endif
#ifndef STAGE
#define STAGE_direct 0
#define STAGE_shared 1
#define STAGE_shuffle 2
#define STAGE STAGE_direct
#endif
#ifndef PATTERN
#define PATTERN stride
#endif
#ifndef SIDE
#define SIDE load
#endif
#ifndef STRIDE
#define STRIDE 17
#endif

#ifndef WARP
#define WARP 32
#endif

#include "dialect.h"

/* PATTERN and SIDE are fields of the problem and arrive as bare words. */
#define PATTERN_JOIN_(word) PATTERN_##word
#define PATTERN_JOIN(word) PATTERN_JOIN_(word)
#define PATTERN_IS(word) (PATTERN_JOIN(PATTERN) == PATTERN_##word)
#define SIDE_JOIN_(word) SIDE_##word
#define SIDE_JOIN(word) SIDE_JOIN_(word)
#define PATTERN_stride 1
#define PATTERN_every 2
#define PATTERN_swapped 3
#define PATTERN_broadcast 4
#define PATTERN_random 5
#define PATTERN_reverse 6
#define SIDE_load 1
#define SIDE_store 2

DEVICE i64 source(i64 i, i64 n, GLOBAL const int* RESTRICT index)
{
#if PATTERN_IS(stride)
    /* Division of 64 bits would take longer than the load. */
    return n <= 0x7fffffff / STRIDE ? (i64)((unsigned)i * STRIDE % (unsigned)n) : i * STRIDE % n;
#elif PATTERN_IS(every)
    return i * STRIDE;
#elif PATTERN_IS(swapped)
    return (i ^ 31) < n ? i ^ 31 : i;
#elif PATTERN_IS(broadcast)
    return 0;
#elif PATTERN_IS(random)
    return index[i];
#else
    return n - 1 - i;
#endif
}

KERNEL(BLOCK, 1, 1)
gather(GLOBAL const float* RESTRICT x, GLOBAL const int* RESTRICT index, GLOBAL float* RESTRICT out, i64 n)
{
    const i64 first = (i64)BID(0) * BLOCK * ITEMS;
#if STAGE == STAGE_shared
    /* Both sides side by side: what is read as tile[t] is written where source(i) = first + t. */
    SHARED float tile[BLOCK * ITEMS];
    const int inside = (int)(n - first < BLOCK * ITEMS ? n - first : BLOCK * ITEMS);
    for (int t = TID(0); t < inside; t += BLOCK) tile[t] = x[first + t];
    SYNC();
    const i64 base = PATTERN_IS(reverse) ? n - first - inside : first;
    for (int t = TID(0); t < inside; t += BLOCK) out[base + t] = tile[source(base + t, n, index) - first];
#elif STAGE == STAGE_shuffle
    const int lane = TID(0) % WARP;
    UNROLL_ALL
    for (int item = 0; item < ITEMS; ++item) {
        const i64 i = first + item * BLOCK + TID(0), from = n - WARP - (i - lane) + lane;
        float value = from >= 0 && from < n ? x[from] : 0.0f;
        value = SHFL_XOR(value, WARP - 1); /* of lane WARP - 1 - lane */
        if (i < n) out[i] = value;
    }
#else
    UNROLL_ALL
    for (int item = 0; item < ITEMS; ++item) {
        const i64 i = first + item * BLOCK + TID(0);
        if (i < n) {
#if SIDE_JOIN(SIDE) == SIDE_load
            out[i] = x[source(i, n, index)];
#else
            out[source(i, n, index)] = x[i];
#endif
        }
    }
#endif
}
