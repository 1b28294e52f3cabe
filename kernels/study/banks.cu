/* Each thread adds up READS floats of shared memory: shows bank conflicts. Shared memory has 32 banks, one float wide;
   lanes of a warp that want different words of one bank wait for each other, lanes that want the same word do not.

   Lane l reads word l * STRIDE (a field of the problem): 0 is one word for all, 1 every bank once, 2 every second bank
   twice, 32 one bank 32 times, 33 every bank once again. PAD puts a word between every 32, so that 32 becomes 33 and
   2, 4 ... lose their conflicts for some of their lanes; XOR moves words within rows of 32 instead, and takes no room. */
#ifndef BLOCK
#define BLOCK 256 /* threads per block */
#endif
#ifndef LAYOUT
#define LAYOUT_plain 0
#define LAYOUT_padded 1
#define LAYOUT_xor 2
#define LAYOUT LAYOUT_plain
#endif
#ifndef UNROLL
#define UNROLL 8
#endif
#ifndef STRIDE
#define STRIDE 32
#endif
#ifndef READS
#define READS 256
#endif

#include "dialect.h"

#define WORDS 2048 /* a power of two; indices wrap */
#if LAYOUT == LAYOUT_padded
#define PLACE(i) ((i) + (i) / 32)
#elif LAYOUT == LAYOUT_xor
#define PLACE(i) ((i) ^ ((i) / 32 % 32))
#else
#define PLACE(i) (i)
#endif

KERNEL(BLOCK, 1, 1)
banks(GLOBAL const float* RESTRICT x, GLOBAL float* RESTRICT out, int n)
{
    SHARED float words[WORDS + WORDS / 32];
    for (int i = TID(0); i < WORDS; i += BLOCK) words[PLACE(i)] = x[i];
    SYNC();
    const int thread = BID(0) * BLOCK + TID(0), lane = thread % 32 * STRIDE;
    float sum = 0.0f;
    UNROLL_BY(UNROLL)
    for (int read = 0; read < READS; ++read) {
        const int i = (lane + read) % WORDS; /* all lanes one word further: the same ways each time */
        sum += words[PLACE(i)];
    }
    if (thread < n) out[thread] = sum;
}
