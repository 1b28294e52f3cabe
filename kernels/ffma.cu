/* Multiplying and adding and nothing else, in the common subset of CUDA C++ and OpenCL C: what a device's
   arithmetic can do, found by the same means as everything else.

     out[i] = u + v, where (u, v) is (x[i], y[i]) after `steps` turns of  u += shear v,  v -= shear u

   for i in [0, n). Two shears are a turn of Minsky's circle (HAKMEM item 149): it runs round an ellipse for
   ever, so the numbers neither settle nor overflow, and all bits keep toggling as in real work, however many
   turns are asked for. With shear = 1 a point comes home after six turns, and integers stay integers. The
   shear comes from outside, so that no compiler can work the orbit out.

   The plan. A fused multiply-add takes 4 cycles or more, and one can start every cycle: a thread turns CHAINS
   points, none of which waits for another, and as many warps as fit share a multiprocessor. DEPTH turns are
   written out, so that the loop's own instructions are rare. */

#ifndef BLOCK
#define BLOCK 256 /* threads per block */
#endif
#ifndef CHAINS
#define CHAINS 4 /* points that a thread turns at once */
#endif
#ifndef DEPTH
#define DEPTH 32 /* turns written out */
#endif
#ifndef SHEAR
#define SHEAR_uniform 0  /* the shear is read from the constant bank or a register of the warp: a multiply-add
                            then has two registers to read, which cannot be in each other's bank */
#define SHEAR_register 1 /* every thread has it in a register of its own */
#define SHEAR SHEAR_uniform
#endif

#include "multiply_add.h"

#define TILE (BLOCK * CHAINS) /* points of a block at a time; neighbours are with neighbouring threads */

/* u += s v, of all points of a thread: several with one instruction, if they come out even. */
DEVICE void add_sheared(float* u, const float s, const float* v)
{
    UNROLL_ALL
#if CHAINS % FMA_FLOATS
    for (int i = 0; i < CHAINS; ++i) u[i] = FMA(s, v[i], u[i]);
#else
    for (int i = 0; i < CHAINS; i += FMA_FLOATS) multiply_add(u + i, s, v + i);
#endif
}

/* One turn of all points of a thread. */
DEVICE void turn(float* u, float* v, const float s)
{
    add_sheared(u, s, v);
    add_sheared(v, -s, u);
}

KERNEL(BLOCK, 1, 1)
ffma(GLOBAL const float* RESTRICT x, GLOBAL const float* RESTRICT y, GLOBAL float* RESTRICT out, i64 n,
     int steps, float shear)
{
#if SHEAR == SHEAR_register
    const float s = shear + 1e-30f * (float)TID(0); /* the same number, but the compiler cannot know */
#else
    const float s = shear;
#endif
    for (i64 tile = BID(0); tile * TILE < n; tile += GRID(0)) {
        const i64 first = tile * TILE + TID(0);
        float u[CHAINS], v[CHAINS];
        UNROLL_ALL
        for (int i = 0; i < CHAINS; ++i) {
            const int inside = first + i * BLOCK < n;
            u[i] = inside ? x[first + i * BLOCK] : 0.0f;
            v[i] = inside ? y[first + i * BLOCK] : 0.0f;
        }
        UNROLL_BY(1)
        for (int left = steps / DEPTH; left > 0; --left) {
            UNROLL_ALL
            for (int j = 0; j < DEPTH; ++j) turn(u, v, s);
        }
        UNROLL_BY(1)
        for (int left = steps % DEPTH; left > 0; --left) turn(u, v, s);
        UNROLL_ALL
        for (int i = 0; i < CHAINS; ++i)
            if (first + i * BLOCK < n) out[first + i * BLOCK] = u[i] + v[i];
    }
}
