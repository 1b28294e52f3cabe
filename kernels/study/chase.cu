/* Follow a chain of indices, one load after another: shows the latency of each level of memory. out[0] is where `steps`
   steps from 0 lead. Nothing can be loaded before the load in front of it is there, so time over steps is the latency;
   which level it is of, the length of the chain decides (a field of the problem). LEVEL=shared copies it to shared
   memory first. BLOCK threads do the same, without need: more do not make it faster, and hardly slower. */
#ifndef BLOCK
#define BLOCK 1
#endif
#ifndef LEVEL
#define LEVEL_global 0
#define LEVEL_shared 1
#define LEVEL LEVEL_global
#endif
#ifndef UNROLL
#define UNROLL 16
#endif

#include "dialect.h"

#define SHARED_WORDS 8192 /* 32 KB */

KERNEL(BLOCK, 1, 1)
chase(GLOBAL const int* RESTRICT next, GLOBAL int* RESTRICT out, int n, int steps)
{
#if LEVEL == LEVEL_shared
    SHARED int chain[SHARED_WORDS];
    for (int i = TID(0); i < n; i += BLOCK) chain[i] = next[i];
    SYNC();
#define NEXT(at) chain[at]
#else
#define NEXT(at) next[at]
#endif
    int at = 0;
    UNROLL_BY(UNROLL)
    for (int step = 0; step < steps; ++step) at = NEXT(at);
    if (TID(0) == 0) out[0] = at;
}
