/* out = x, matrices of m rows of n floats whose rows begin ldx and ldo floats apart: shows what a pitch is for. Rows of
   1001 floats begin at any of 8 places of a sector, and vectors are impossible; at a pitch of 1008 each row begins with
   one. What lies between the rows of out must stay. */
#ifndef BLOCK_X
#define BLOCK_X 64 /* threads along a row */
#endif
#ifndef BLOCK_Y
#define BLOCK_Y 4 /* rows */
#endif
#ifndef VEC
#define VEC 4 /* floats per access, where rows allow it */
#endif
#define LOAD_plain 0
#define LOAD LOAD_plain
#define STORE_plain 0
#define STORE STORE_plain

#include "vectors.h"

KERNEL(BLOCK_X, BLOCK_Y, 1)
pitch(GLOBAL const float* RESTRICT x, GLOBAL float* RESTRICT out, int m, int n, int ldx, int ldo)
{
    const int across = CEIL_DIV(n, BLOCK_X * VEC);
    const int row = BID(0) / across * BLOCK_Y + TID(1);
    const int col = BID(0) % across * BLOCK_X * VEC;
    if (row >= m) return;
    GLOBAL const float* from = x + (i64)row * ldx;
    GLOBAL float* to = out + (i64)row * ldo;
    const int wide = ldx % VEC == 0 && ldo % VEC == 0 && IS_ALIGNED(x) && IS_ALIGNED(out);
    const int mine = col + TID(0) * VEC;
    if (wide) {
        if (mine + VEC <= n) {
            float values[VEC];
            load_vector(values, from + mine, 1);
            store_vector(to + mine, values);
        } else
            for (int i = mine; i < n; ++i) to[i] = from[i];
        return;
    }
    UNROLL_ALL
    for (int v = 0; v < VEC; ++v) {
        const int i = col + v * BLOCK_X + TID(0);
        if (i < n) to[i] = from[i];
    }
}
