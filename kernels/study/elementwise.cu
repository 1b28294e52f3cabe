/* out = a + b, a * b, or b behind a: shows vectors, alignment, and blocks of any number of threads. OP is a field of
   the problem. Arrays may begin anywhere; vectors are used where all three sides allow them, else single floats.
   Whatever BLOCK is, a block is whole warps: of 100 threads the last warp has 28 lanes without work. */
#ifndef BLOCK
#define BLOCK 256 /* threads per block, a multiple of 32 or not */
#endif
#ifndef VEC
#define VEC 4 /* floats per access */
#endif
#ifndef ITEMS
#define ITEMS 1 /* accesses in flight per thread, of each array */
#endif
#ifndef OP
#define OP add
#endif
#define LOAD_plain 0
#define LOAD LOAD_plain
#define STORE_plain 0
#define STORE STORE_plain

#include "vectors.h"

#define OP_add 1
#define OP_mul 2
#define OP_concat 3
#define JOIN_(op) OP_##op
#define JOIN(op) JOIN_(op)
#define CONCAT (JOIN(OP) == OP_concat)
#define COMBINE(a, b) (JOIN(OP) == OP_add ? (a) + (b) : (a) * (b))

/* n elements of a; of b as many, or m for concat. */
KERNEL(BLOCK, 1, 1)
elementwise(GLOBAL const float* RESTRICT a, GLOBAL const float* RESTRICT b, GLOBAL float* RESTRICT out, i64 n, i64 m)
{
    const i64 count = CONCAT ? n + m : n, first = (i64)BID(0) * BLOCK * VEC * ITEMS;
    UNROLL_ALL
    for (int item = 0; item < ITEMS; ++item) {
        const i64 begin = first + (i64)item * BLOCK * VEC, i = begin + TID(0) * VEC;
#if CONCAT
        GLOBAL const float* from = i < n ? a + i : b + (i - n);
        const int whole = i + VEC <= n || (i >= n && i + VEC <= count);
        if (whole && IS_ALIGNED(from) && IS_ALIGNED(out)) {
            float values[VEC];
            load_vector(values, from, 1);
            store_vector(out + i, values);
        } else {
            UNROLL_ALL
            for (int v = 0; v < VEC; ++v)
                if (i + v < count) out[i + v] = i + v < n ? a[i + v] : b[i + v - n];
        }
#else
        if (i + VEC <= count && IS_ALIGNED(a) && IS_ALIGNED(b) && IS_ALIGNED(out)) {
            float left[VEC], right[VEC];
            load_vector(left, a + i, 1);
            load_vector(right, b + i, 1);
            UNROLL_ALL
            for (int v = 0; v < VEC; ++v) left[v] = COMBINE(left[v], right[v]);
            store_vector(out + i, left);
        } else {
            UNROLL_ALL
            for (int v = 0; v < VEC; ++v)
                if (i + v < count) out[i + v] = COMBINE(a[i + v], b[i + v]);
        }
#endif
    }
}
