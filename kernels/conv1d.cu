/* out[i] = sum over j < TAPS of weights[j] * x[i + j - TAPS / 2], with 0 beyond both ends, any n: knows where
   weights and inputs may wait, in the common subset of CUDA C++ and OpenCL C.

   The plan. 8 bytes move for each output, and TAPS multiply-adds are calculated: up to some 80 taps memory is
   the limit of an H100. But each multiply-add needs an input and a weight, and a multiprocessor loads 32
   values a clock while it multiplies 128: two loads for each multiply-add are the real limit.

     MASK    global     every weight is a load, the same for all threads
             shared     the same from shared memory
             registers  TAPS registers of each thread, no load; for few taps
             (MASK_IN=constant, a field of the problem: a __constant__ array, which a multiply-add reads as
             an operand if it knows the index when it is compiled: UNROLL=0. CUDA only.)
     INPUT   direct     every input is a load, which the cache serves TAPS times
             shared     a block loads its inputs once
             vectors    a thread loads all inputs of its outputs before it begins, 16 bytes at a time, which the cache
                        serves; OUTPUTS 4 or more, side by side, few taps, all written out
             staged     the same from shared memory, where a block has them once; outputs leave by it, too, since
                        threads that store 8 or more of their own write half a sector at a time
     WINDOW  0          a thread's outputs are BLOCK apart: neighbours load neighbours
             1          they are side by side, and slide over the same inputs in registers: one load for
                        OUTPUTS multiply-adds. PAD keeps such threads out of each other's banks */

#ifndef BLOCK
#define BLOCK 256 /* threads per block */
#endif
#ifndef OUTPUTS
#define OUTPUTS 4 /* per thread */
#endif
#ifndef MASK
#define MASK_global 0
#define MASK_shared 1
#define MASK_registers 2
#define MASK MASK_global
#endif
#ifndef INPUT
#define INPUT_direct 0
#define INPUT_shared 1
#define INPUT_vectors 2
#define INPUT_staged 3
#define INPUT INPUT_shared
#endif
#ifndef WINDOW
#define WINDOW 1
#endif
#ifndef PAD
#define PAD 0
#endif
#ifndef UNROLL
#define UNROLL 4 /* taps written out; 0: all */
#endif
#ifndef TAPS
#define TAPS 9
#endif
#ifndef MASK_IN
#define MASK_IN array
#endif

#include "dialect.h"

#define MASK_IN_array 0
#define MASK_IN_constant 1
#define MASK_IN_JOIN_(place) MASK_IN_##place
#define MASK_IN_JOIN(place) MASK_IN_JOIN_(place)

#if MASK_IN_JOIN(MASK_IN) == MASK_IN_constant
#ifdef __OPENCL_VERSION__
#error "OpenCL C has no arrays in constant memory that a program fills: mask_in=array"
#endif
extern "C" {
__constant__ float weights[TAPS];
}
#define WEIGHTS
#else
#define WEIGHTS GLOBAL const float *RESTRICT weights,
#endif

#define VECTORS (INPUT == INPUT_vectors || INPUT == INPUT_staged)

#if UNROLL == 0 || MASK == MASK_registers || VECTORS
#define UNROLL_TAPS UNROLL_ALL
#else
#define UNROLL_TAPS UNROLL_BY(UNROLL)
#endif

#define TILE (BLOCK * OUTPUTS)          /* outputs of a block */
#define WIDTH (TILE + TAPS - 1)         /* inputs of a block */
#define PLACE(i) ((i) + (PAD ? (i) / OUTPUTS : 0))

#define BEFORE ((TAPS / 2 + 3) / 4 * 4) /* vectors: inputs in front of the outputs, and beyond what taps need */
#define SKIPPED (BEFORE - TAPS / 2)
#define NEAR ((SKIPPED + OUTPUTS + TAPS + 2) / 4 * 4)
#define INSIDE (first >= BEFORE && first + TILE - OUTPUTS - BEFORE + NEAR <= n)
#define FOURS ((TILE - OUTPUTS + NEAR) / 4)          /* staged: of a block */
#define SLOT(four) ((four) + (four) / (OUTPUTS / 4)) /* eight neighbours' are in banks of their own */

DEVICE float element(GLOBAL const float* x, i64 i, i64 n) { return i >= 0 && i < n ? x[i] : 0.0f; }

KERNEL(BLOCK, 1, 1)
conv1d(GLOBAL const float* RESTRICT x, WEIGHTS GLOBAL float* RESTRICT out, i64 n)
{
    const int tid = TID(0);
    const i64 first = (i64)BID(0) * TILE; /* output of this block */
    const i64 left = first - TAPS / 2;    /* input that it reads first */

#if INPUT == INPUT_shared
    SHARED float tile[PLACE(WIDTH - 1) + 1];
    for (int i = tid; i < WIDTH; i += BLOCK) tile[PLACE(i)] = element(x, left + i, n);
#define IN(i) tile[PLACE(i)]
#elif INPUT == INPUT_staged
    SHARED float4 tile[SLOT(FOURS - 1) + 1];
#if MASK == MASK_shared
    const float own = tid < TAPS ? weights[tid] : 0.0f; /* under way while the inputs are */
#endif
    if (INSIDE) {
        UNROLL_ALL
        for (int k = 0; k < FOURS; k += BLOCK)
            if (tid < FOURS - k) tile[SLOT(tid) + SLOT(k)] = LD4(x + (first - BEFORE + 4 * tid) + 4 * k);
    } else {
        UNROLL_BY(1)
        for (int k = tid; k < FOURS; k += BLOCK) {
            const i64 i = first - BEFORE + 4 * k;
            tile[SLOT(k)] = MAKE4(element(x, i, n), element(x, i + 1, n), element(x, i + 2, n), element(x, i + 3, n));
        }
    }
#define FOUR(i) tile[SLOT(tid * OUTPUTS / 4) + SLOT((i) / 4)]
#else
#define FOUR(i) LD4(x + from + (i))
#define IN(i) element(x, left + (i), n)
#endif

#if MASK == MASK_shared
    SHARED float mask[(TAPS + 3) / 4 * 4]; /* compilers read 16 bytes at a time, the last one's, too */
#if INPUT == INPUT_staged
    if (tid < TAPS) mask[tid] = own;
#else
    for (int j = tid; j < TAPS; j += BLOCK) mask[j] = weights[j];
#endif
#define W(j) mask[j]
#elif MASK == MASK_registers
    float mask[TAPS];
    UNROLL_ALL
    for (int j = 0; j + 4 <= TAPS; j += 4) {
        const float4 four = LD4(weights + j);
        mask[j] = four.x, mask[j + 1] = four.y, mask[j + 2] = four.z, mask[j + 3] = four.w;
    }
    UNROLL_ALL
    for (int j = TAPS / 4 * 4; j < TAPS; ++j) mask[j] = weights[j];
#define W(j) mask[j]
#else
#define W(j) weights[j]
#endif
#if INPUT == INPUT_shared || INPUT == INPUT_staged || MASK == MASK_shared
    SYNC();
#endif

    float sum[OUTPUTS];
    UNROLL_ALL
    for (int o = 0; o < OUTPUTS; ++o) sum[o] = 0.0f;

#if VECTORS
    const int begin = tid * OUTPUTS, step = 1;
    const i64 from = first + begin - BEFORE;
    float near[NEAR];
    if (INSIDE || INPUT == INPUT_staged) {
        UNROLL_ALL
        for (int i = 0; i < NEAR; i += 4) {
            const float4 four = FOUR(i);
            near[i] = four.x, near[i + 1] = four.y, near[i + 2] = four.z, near[i + 3] = four.w;
        }
    } else {
        UNROLL_ALL
        for (int i = 0; i < NEAR; ++i) near[i] = element(x, from + i, n);
    }
    UNROLL_TAPS
    for (int j = 0; j < TAPS; ++j) {
        const float weight = W(j);
        UNROLL_ALL
        for (int o = 0; o < OUTPUTS; ++o) sum[o] = FMA(weight, near[SKIPPED + j + o], sum[o]);
    }
#elif WINDOW
    const int begin = tid * OUTPUTS, step = 1;
    float window[OUTPUTS];
    UNROLL_ALL
    for (int o = 1; o < OUTPUTS; ++o) window[o] = IN(begin + o - 1);
    UNROLL_TAPS
    for (int j = 0; j < TAPS; ++j) {
        UNROLL_ALL
        for (int o = 1; o < OUTPUTS; ++o) window[o - 1] = window[o];
        window[OUTPUTS - 1] = IN(begin + j + OUTPUTS - 1);
        const float weight = W(j);
        UNROLL_ALL
        for (int o = 0; o < OUTPUTS; ++o) sum[o] = FMA(weight, window[o], sum[o]);
    }
#else
    const int begin = tid, step = BLOCK;
    UNROLL_TAPS
    for (int j = 0; j < TAPS; ++j) {
        const float weight = W(j);
        UNROLL_ALL
        for (int o = 0; o < OUTPUTS; ++o) sum[o] = FMA(weight, IN(begin + o * step + j), sum[o]);
    }
#endif

#if INPUT == INPUT_staged /* a thread's outputs by fours that neighbours write beside each other */
    SYNC();
    UNROLL_ALL
    for (int o = 0; o < OUTPUTS; o += 4) FOUR(o) = MAKE4(sum[o], sum[o + 1], sum[o + 2], sum[o + 3]);
    SYNC();
    UNROLL_ALL
    for (int o = 0; o < OUTPUTS; o += 4) {
        const float4 four = tile[SLOT(tid) + SLOT(o / 4 * BLOCK)];
        sum[o] = four.x, sum[o + 1] = four.y, sum[o + 2] = four.z, sum[o + 3] = four.w;
    }
#define AT(o) (first + (4 * (tid + (o) / 4 * BLOCK) + (o) % 4))
#define END (first + TILE)
#else
#define AT(o) (first + begin + (o) * step)
#define END (first + begin + OUTPUTS)
#endif

#if (WINDOW || VECTORS) && OUTPUTS % 4 == 0
    if (END <= n) { /* a multiple of 16 bytes past the begin of out */
        UNROLL_ALL
        for (int o = 0; o < OUTPUTS; o += 4)
            ST4(out + AT(o), MAKE4(sum[o], sum[o + 1], sum[o + 2], sum[o + 3]));
        return;
    }
#endif
    UNROLL_ALL
    for (int o = 0; o < OUTPUTS; ++o)
        if (AT(o) < n) out[AT(o)] = sum[o];
}
