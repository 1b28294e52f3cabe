// out = how often each byte occurs in x; space: histogram.py.
// A fixed grid loops over x, VEC bytes per load. A block counts in COPIES histograms in shared memory, so that its
// threads collide less, and adds them to out. With RUNS equal bytes in a row are added at once.
#include "dialect_math.h"
#ifndef BLOCK
#define BLOCK 256
#define VEC 4
#define COPIES 1
#define PADDED 0
#define RUNS 0
#endif

#define BINS 256
#define PITCH (BINS + PADDED)
#define WORDS (VEC / 4)

KERNEL(BLOCK, 1, 1) histogram(GLOBAL const unsigned char* RESTRICT x, GLOBAL int* RESTRICT out, int n)
{
    SHARED int counts[COPIES * PITCH];
    SHARED_PTR int* mine = counts + TID(0) % COPIES * PITCH;
    for (int i = TID(0); i < COPIES * PITCH; i += BLOCK) counts[i] = 0;
    SYNC();

    GLOBAL const unsigned* RESTRICT words = (GLOBAL const unsigned*)x;
    const int vectors = n / VEC;
    for (i64 v = (i64)BID(0) * BLOCK + TID(0); v < vectors; v += (i64)GRID(0) * BLOCK) {
        unsigned loaded[WORDS];
#if WORDS == 4
        const uint4 four = ((GLOBAL const uint4*)words)[v];
        loaded[0] = four.x;
        loaded[1] = four.y;
        loaded[2] = four.z;
        loaded[3] = four.w;
#else
        UNROLL_ALL
        for (int w = 0; w < WORDS; ++w) loaded[w] = words[WORDS * v + w];
#endif
#if RUNS
        int last = loaded[0] & 255, run = 0;
#endif
        UNROLL_ALL
        for (int i = 0; i < VEC; ++i) {
            const int bin = loaded[i / 4] >> 8 * (i % 4) & 255;
#if RUNS
            if (bin != last) {
                ATOMIC_ADD(mine + last, run);
                last = bin;
                run = 0;
            }
            ++run;
#else
            ATOMIC_ADD(mine + bin, 1);
#endif
        }
#if RUNS
        ATOMIC_ADD(mine + last, run);
#endif
    }
    if (BID(0) == 0)
        for (int i = vectors * VEC + TID(0); i < n; i += BLOCK) ATOMIC_ADD(mine + x[i], 1);
    SYNC();

    for (int bin = TID(0); bin < BINS; bin += BLOCK) {
        int sum = 0;
        for (int copy = 0; copy < COPIES; ++copy) sum += counts[copy * PITCH + bin];
        if (sum) ATOMIC_ADD(out + bin, sum);
    }
}
