/* What a device reaches at best: knows three limits, each by a kernel that does one thing and nothing else,
   in the common subset of CUDA C++ and OpenCL C.

     probe_read    loads every float of a buffer and keeps only their sums: the memory's read bandwidth
     probe_copy    loads and stores every float: what an elementwise kernel or a transpose can reach
     probe_ffma    multiplies and adds in registers: the arithmetic peak
     probe_empty   does nothing: the least time that a launch takes
     probe_fill    random floats to read. Zeros would flatter: wires that do not toggle draw less power,
                   and a chip that draws less power clocks higher

   Which way of writing one is fastest differs between devices, so each limit is the best of several:

     bytes in flight   A load takes some 500 ns, so bandwidth is bytes under way / 500 ns (Little's law):
                       an H100 wants more than 32 KB of them per multiprocessor, an H200 48 KB. ITEMS loads
                       of VEC floats per thread are issued before the first is used.
     coalescing        Neighbouring threads touch neighbouring addresses in every load (GPUs), or each
                       block walks through memory of its own (CPUs, whose prefetchers like that): WALK.
     independent work  A fused multiply-add takes 4 cycles or more, and one can start every cycle: CHAINS
                       pairs of numbers per thread, none of which waits for another. */

#ifndef BLOCK
#define BLOCK 256 /* threads per block */
#endif
#ifndef VEC
#define VEC 4 /* floats per load: 1 or 4 */
#endif
#ifndef ITEMS
#define ITEMS 4 /* loads in flight per thread */
#endif
#ifndef LOAD
#define LOAD_plain 0
#define LOAD_stream 1 /* tell the cache that nobody reads x a second time */
#define LOAD LOAD_plain
#endif
#ifndef WALK
#define WALK_stride 0 /* a block takes every GRID-th tile */
#define WALK_chunk 1  /* a block takes tiles that lie side by side */
#define WALK WALK_stride
#endif
#ifndef CHAINS
#define CHAINS 8 /* independent pairs per thread */
#endif
#ifndef DEPTH
#define DEPTH 32 /* steps of every chain per turn of the loop: makes the loop's own instructions rare */
#endif

#ifndef SHEAR
#define SHEAR_uniform 0  /* the multiplier is read from the constant bank or a register of the warp */
#define SHEAR_register 1 /* every thread has it in a register of its own */
#define SHEAR SHEAR_uniform
#endif

#include "dialect.h"

#if VEC == 4
#define VECTOR float4
#define STORE(p, v) ST4(p, v)
#define SUM_OF(v) (((v).x + (v).y) + ((v).z + (v).w))
#if LOAD == LOAD_stream
#define LOAD_FROM(p) LD4_STREAM(p)
#else
#define LOAD_FROM(p) LD4(p)
#endif
#elif VEC == 1
#define VECTOR float
#define STORE(p, v) (*(p) = (v))
#define SUM_OF(v) (v)
#if LOAD == LOAD_stream
#define LOAD_FROM(p) LD_STREAM(p)
#else
#define LOAD_FROM(p) (*(p))
#endif
#else
#error "VEC must be 1 or 4"
#endif

#define TILE (BLOCK * VEC * ITEMS) /* floats that a block has under way at once */

/* The tiles of this block: from FIRST up to END in steps of STEP. There is no edge to take care of:
   the host asks for whole tiles. */
#if WALK == WALK_stride
#define FIRST(tiles) ((i64)BID(0))
#define END(tiles) (tiles)
#define STEP ((i64)GRID(0))
#else
#define FIRST(tiles) ((tiles) * BID(0) / GRID(0))
#define END(tiles) ((tiles) * (BID(0) + 1) / GRID(0))
#define STEP 1
#endif

/* Every thread stores its sum: a load whose value nobody needs is a load that the compiler leaves out. */
KERNEL(BLOCK, 1, 0) probe_read(GLOBAL const float* RESTRICT x, GLOBAL float* RESTRICT sums, const i64 tiles)
{
    const i64 end = END(tiles);
    float sum = 0.0f;
    for (i64 tile = FIRST(tiles); tile < end; tile += STEP) {
        GLOBAL const float* mine = x + tile * TILE + VEC * TID(0);
        VECTOR value[ITEMS];
        UNROLL_ALL
        for (int i = 0; i < ITEMS; i++) value[i] = LOAD_FROM(mine + i * BLOCK * VEC);
        UNROLL_ALL
        for (int i = 0; i < ITEMS; i++) sum += SUM_OF(value[i]);
    }
    sums[(i64)BID(0) * BLOCK + TID(0)] = sum;
}

KERNEL(BLOCK, 1, 0) probe_copy(GLOBAL float* RESTRICT y, GLOBAL const float* RESTRICT x, const i64 tiles)
{
    const i64 end = END(tiles);
    for (i64 tile = FIRST(tiles); tile < end; tile += STEP) {
        const i64 offset = tile * TILE + VEC * TID(0);
        VECTOR value[ITEMS];
        UNROLL_ALL
        for (int i = 0; i < ITEMS; i++) value[i] = LOAD_FROM(x + offset + i * BLOCK * VEC);
        UNROLL_ALL
        for (int i = 0; i < ITEMS; i++) STORE(y + offset + i * BLOCK * VEC, value[i]);
    }
}

/* 4 * CHAINS * DEPTH * turns operations per thread, and no memory until the end.

   A pair (x, y) is turned by two shears, x += s y and y -= s x (Minsky's circle, HAKMEM item 149). It
   runs round an ellipse for ever, so the numbers neither settle nor overflow: all bits keep toggling, as
   in real work, however many turns are asked for. The shear comes from outside, so that no compiler can
   work the orbit out. Where it is uniform, a multiply-add has two registers to read instead of three, and
   two cannot be in each other's way: a GPU's registers lie in two banks. */
KERNEL(BLOCK, 1, 0) probe_ffma(GLOBAL float* RESTRICT sums, const float shear, const int turns)
{
#if SHEAR == SHEAR_register
    const float s = shear + 1e-30f * (float)TID(0); /* the same number, but the compiler cannot know */
#else
    const float s = shear;
#endif
    float x[CHAINS], y[CHAINS];
    UNROLL_ALL
    for (int i = 0; i < CHAINS; i++) {
        x[i] = 0.01f * (float)(TID(0) + i + 1);
        y[i] = 1.0f - x[i];
    }
    UNROLL_BY(1)
    for (int turn = 0; turn < turns; turn++) {
        UNROLL_ALL
        for (int step = 0; step < DEPTH; step++) {
            UNROLL_ALL
            for (int i = 0; i < CHAINS; i++) x[i] = FMA(s, y[i], x[i]);
            UNROLL_ALL
            for (int i = 0; i < CHAINS; i++) y[i] = FMA(-s, x[i], y[i]);
        }
    }
    float sum = 0.0f;
    UNROLL_ALL
    for (int i = 0; i < CHAINS; i++) sum += x[i] + y[i];
    sums[(i64)BID(0) * BLOCK + TID(0)] = sum;
}

KERNEL(1, 1, 0) probe_empty(void)
{
}

/* x[i] = a random float in [-1, 1): a hash of i, so any thread can make any element. The mixing steps
   are Wellons' lowbias32 (nullprogram.com/blog/2018/07/31). */
KERNEL(BLOCK, 1, 0) probe_fill(GLOBAL float* RESTRICT x, const i64 count)
{
    for (i64 i = (i64)BID(0) * BLOCK + TID(0); i < count; i += (i64)GRID(0) * BLOCK) {
        unsigned hash = (unsigned)i;
        hash = (hash ^ (hash >> 16)) * 0x7feb352du;
        hash = (hash ^ (hash >> 15)) * 0x846ca68bu;
        hash ^= hash >> 16;
        x[i] = (float)(hash >> 8) * (2.0f / 16777216.0f) - 1.0f;
    }
}
