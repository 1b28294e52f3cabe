// out = the inclusive prefix sums of x, in three launches: the sum of each tile, the sums before each tile, and the
// prefix sums within each tile; space: scan.py. A thread has ITEMS consecutive elements, a tile is those of a block.
#include "dialect.h"
#ifndef BLOCK
#define BLOCK 256
#define ITEMS 8
#define VEC 4
#define STAGED 0
#define SCAN 0
#endif

#define TILE (BLOCK * ITEMS)
// Threads of the block that adds up the tiles.
#define ONE_BLOCK 256

// Replace the value of each thread by the sum of the values before it; return the sum of all. THREADS threads take part.
#define EXCLUSIVE(name, THREADS)                                              \
    DEVICE float name(SHARED_PTR float* sums, SHARED_PTR float* total, int scan) \
    {                                                                         \
        const int t = TID(0);                                                 \
        if (scan == 0) { /* every thread adds in every step */                \
            for (int distance = 1; distance < THREADS; distance *= 2) {       \
                SYNC();                                                       \
                const float before = t >= distance ? sums[t - distance] : 0;  \
                SYNC();                                                       \
                sums[t] += before;                                            \
            }                                                                 \
            SYNC();                                                           \
            const float mine = t ? sums[t - 1] : 0;                           \
            if (t == THREADS - 1) *total = sums[t];                           \
            SYNC();                                                           \
            sums[t] = mine;                                                   \
        } else { /* up and down a tree */                                     \
            for (int distance = 1; distance < THREADS; distance *= 2) {       \
                SYNC();                                                       \
                const int right = 2 * distance * (t + 1) - 1;                 \
                if (right < THREADS) sums[right] += sums[right - distance];   \
            }                                                                 \
            SYNC();                                                           \
            if (t == 0) {                                                     \
                *total = sums[THREADS - 1];                                   \
                sums[THREADS - 1] = 0;                                        \
            }                                                                 \
            for (int distance = THREADS / 2; distance > 0; distance /= 2) {   \
                SYNC();                                                       \
                const int right = 2 * distance * (t + 1) - 1;                 \
                if (right < THREADS) {                                        \
                    const float left = sums[right - distance];                \
                    sums[right - distance] = sums[right];                     \
                    sums[right] += left;                                      \
                }                                                             \
            }                                                                 \
        }                                                                     \
        SYNC();                                                               \
        return *total;                                                        \
    }
EXCLUSIVE(exclusive, BLOCK)
EXCLUSIVE(exclusive_of_tiles, ONE_BLOCK)

KERNEL(BLOCK, 1, 1) scan_sums(GLOBAL const float* RESTRICT x, int n, GLOBAL float* RESTRICT tiles)
{
    SHARED float sums[BLOCK];
    const i64 begin = (i64)BID(0) * TILE;
    float sum = 0;
#if VEC == 4
    if (begin + TILE <= n) {
        for (int i = 4 * TID(0); i < TILE; i += 4 * BLOCK) {
            const float4 four = LD4(x + begin + i);
            sum += (four.x + four.y) + (four.z + four.w);
        }
    } else
#endif
        for (int i = TID(0); i < TILE; i += BLOCK)
            if (begin + i < n) sum += x[begin + i];
    sums[TID(0)] = sum;
    for (int apart = BLOCK / 2; apart > 0; apart /= 2) {
        SYNC();
        if (TID(0) < apart) sums[TID(0)] += sums[TID(0) + apart];
    }
    if (TID(0) == 0) tiles[BID(0)] = sums[0];
}

KERNEL(ONE_BLOCK, 1, 1) scan_tiles(int n, GLOBAL float* RESTRICT tiles)
{
    SHARED float sums[ONE_BLOCK];
    SHARED float total;
    const int count = CEIL_DIV(n, TILE);
    float before = 0;
    for (int begin = 0; begin < count; begin += ONE_BLOCK) {
        const int i = begin + TID(0);
        sums[TID(0)] = i < count ? tiles[i] : 0;
        const float sum = exclusive_of_tiles(sums, &total, SCAN);
        if (i < count) tiles[i] = before + sums[TID(0)];
        before += sum;
        SYNC();
    }
}

KERNEL(BLOCK, 1, 1)
scan_within(GLOBAL const float* RESTRICT x, GLOBAL float* RESTRICT out, int n, GLOBAL const float* RESTRICT tiles)
{
    SHARED float sums[BLOCK];
    SHARED float total;
#if STAGED
    SHARED float staged[TILE + TILE / 32]; // a float more after every 32, against conflicts of banks
#define PLACE(i) ((i) + (i) / 32)
#endif
    const i64 begin = (i64)BID(0) * TILE;
    const int mine = TID(0) * ITEMS;
    float items[ITEMS];
#if STAGED
    for (int i = TID(0); i < TILE; i += BLOCK) staged[PLACE(i)] = begin + i < n ? x[begin + i] : 0;
    SYNC();
    UNROLL_ALL
    for (int i = 0; i < ITEMS; ++i) items[i] = staged[PLACE(mine + i)];
#elif VEC == 4
    UNROLL_ALL
    for (int i = 0; i < ITEMS; i += 4) {
        const i64 place = begin + mine + i;
        const float4 four = place + 4 <= n ? LD4(x + place) : MAKE4(0, 0, 0, 0);
        items[i] = four.x;
        items[i + 1] = four.y;
        items[i + 2] = four.z;
        items[i + 3] = four.w;
        if (place + 4 > n)
            for (int j = 0; j < 4 && place + j < n; ++j) items[i + j] = x[place + j];
    }
#else
    UNROLL_ALL
    for (int i = 0; i < ITEMS; ++i) items[i] = begin + mine + i < n ? x[begin + mine + i] : 0;
#endif
    UNROLL_ALL
    for (int i = 1; i < ITEMS; ++i) items[i] += items[i - 1];
    sums[TID(0)] = items[ITEMS - 1];
    exclusive(sums, &total, SCAN);
    const float before = tiles[BID(0)] + sums[TID(0)];
#if STAGED
    UNROLL_ALL
    for (int i = 0; i < ITEMS; ++i) staged[PLACE(mine + i)] = before + items[i];
    SYNC();
    for (int i = TID(0); i < TILE; i += BLOCK)
        if (begin + i < n) out[begin + i] = staged[PLACE(i)];
#else
    UNROLL_ALL
    for (int i = 0; i < ITEMS; ++i)
        if (begin + mine + i < n) out[begin + mine + i] = before + items[i];
#endif
}
