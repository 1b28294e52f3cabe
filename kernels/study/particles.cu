/* out[i] = the sum of the first FIELDS of x, y, z of particle i: shows arrays of structs and structs of arrays.
   LAYOUT, a field of the problem, says how n particles lie (all are float32):

     aos12   x y z x y z ...                    12 bytes each: no vector fits
     aos16   x y z _ x y z _ ...                one load of 16 bytes, a quarter of which is nothing
     soa     all x, all y, all z                each load of a warp is one piece of 128 bytes
     aosoa   32 x, 32 y, 32 z, 32 x ...         the same, of one warp in one place

   With all fields used aos12 and soa move the same bytes. With one, aos12 moves three times what soa does.
     STAGE=shared (aos12): a block reads its structs side by side and takes them apart in shared memory; 3 and 32 have
     no common divisor, so banks do not conflict. */
#ifndef BLOCK
#define BLOCK 256
#endif
#ifndef ITEMS
#define ITEMS 1
#endif
#ifndef STAGE
#define STAGE_direct 0
#define STAGE_shared 1
#define STAGE STAGE_direct
#endif
#ifndef LAYOUT
#define LAYOUT soa
#endif
#ifndef FIELDS
#define FIELDS 3
#endif

#include "dialect.h"

/* LAYOUT is a field of the problem and arrives as a bare word. */
#define LAYOUT_aos12 1
#define LAYOUT_aos16 2
#define LAYOUT_soa 3
#define LAYOUT_aosoa 4
#define JOIN_(layout) LAYOUT_##layout
#define JOIN(layout) JOIN_(layout)

DEVICE float total(GLOBAL const float* RESTRICT p, i64 i, i64 n)
{
#if JOIN(LAYOUT) == LAYOUT_aos16 && FIELDS > 1
    const float4 all = LD4(p + 4 * i);
    return FIELDS == 2 ? all.x + all.y : all.x + all.y + all.z;
#else
    float sum = 0.0f;
    UNROLL_ALL
    for (int f = 0; f < FIELDS; ++f) {
#if JOIN(LAYOUT) == LAYOUT_aos12
        sum += p[3 * i + f];
#elif JOIN(LAYOUT) == LAYOUT_aos16
        sum += p[4 * i + f];
#elif JOIN(LAYOUT) == LAYOUT_soa
        sum += p[n * f + i];
#else
        sum += p[i / 32 * 96 + 32 * f + i % 32];
#endif
    }
    return sum;
#endif
}

KERNEL(BLOCK, 1, 1)
particles(GLOBAL const float* RESTRICT p, GLOBAL float* RESTRICT out, i64 n)
{
    const i64 first = (i64)BID(0) * BLOCK * ITEMS;
#if STAGE == STAGE_shared
    SHARED float structs[3 * BLOCK * ITEMS];
    const int inside = (int)(n - first < BLOCK * ITEMS ? n - first : BLOCK * ITEMS);
    for (int t = TID(0); t < 3 * inside; t += BLOCK) structs[t] = p[3 * first + t];
    SYNC();
    for (int t = TID(0); t < inside; t += BLOCK) {
        float sum = 0.0f;
        UNROLL_ALL
        for (int f = 0; f < FIELDS; ++f) sum += structs[3 * t + f];
        out[first + t] = sum;
    }
#else
    UNROLL_ALL
    for (int item = 0; item < ITEMS; ++item) {
        const i64 i = first + item * BLOCK + TID(0);
        if (i < n) out[i] = total(p, i, n);
    }
#endif
}
