/* out[i] = f(x[i]), where f is a chain of INTENSITY dependent multiply-adds: knows how a thread can ask for
   its next elements before it is done with the present one, in the common subset of CUDA C++ and OpenCL C
   (MODE=smem_roll_async is CUDA only).

   in and out start at multiples of 16 bytes.

   The plan. A fixed number of threads walks over the elements, thread t of T taking vectors t, t + T, ... of
   VEC floats. A load takes some 600 cycles. Where enough warps share a multiprocessor, others compute
   meanwhile and every MODE ends at the memory's speed. Where they are few, because of registers or shared
   memory, a thread has to have PDIST loads of its own under way:

     none             load, compute, store: one load at a time
     unroll           the same loop written out PDIST times; what overlaps is the compiler's choice
     l2               ask the L2 cache for the element PDIST rounds ahead, then as `none`
     reg_batch        PDIST loads into registers, then PDIST computations; nothing is under way during those
     reg_roll         PDIST registers in turn: each is loaded again as soon as its element is taken out
     smem_batch       as reg_batch, through shared memory: needs no registers, and no written-out loop
     smem_roll        as reg_roll, through shared memory. But a load passes through a register on its way
                      there, and the thread waits for it in the round that asked: PDIST is not reached
     smem_roll_async  as smem_roll, by cp.async: global to shared memory with no register and no waiting

   Each thread reads only the part of shared memory that it wrote itself, so there are no barriers. */

#ifndef INTENSITY
#define INTENSITY 8 /* multiply-adds per element, each waiting for the one before */
#endif
#ifndef BLOCK
#define BLOCK 128 /* threads per block */
#endif
#ifndef VEC
#define VEC 4 /* floats per load: 1, 2 or 4 */
#endif
#ifndef MODE
#define MODE_none 0
#define MODE_unroll 1
#define MODE_l2 2
#define MODE_reg_batch 3
#define MODE_reg_roll 4
#define MODE_smem_batch 5
#define MODE_smem_roll 6
#define MODE_smem_roll_async 7
#define MODE MODE_reg_batch
#endif
#ifndef PDIST
#define PDIST 4 /* rounds that a load is ahead of its use */
#endif
#ifndef LAYOUT
#define LAYOUT_slots 0   /* in shared memory: all threads' first slots, then all second ones, ... */
#define LAYOUT_threads 1 /* all slots of the first thread, then all of the second, ... */
#define LAYOUT LAYOUT_slots
#endif
#ifndef PADDING
#define PADDING 0 /* threads: unused slots of each thread, so that neighbours' slots are in different banks */
#endif

#include "dialect.h"

#if VEC == 4
typedef float4 vec;
#elif VEC == 2
typedef float2 vec;
#else
typedef float vec;
#endif

/* How many times the chain of multiply-adds appears in the program. Written out in full, many long chains
   would not fit the instruction cache. */
#if MODE == MODE_unroll || MODE == MODE_reg_batch || MODE == MODE_reg_roll
#define COPIES PDIST
#else
#define COPIES 1
#endif
#if COPIES * VEC * INTENSITY <= 2048
#define UNROLL_WORK UNROLL_ALL
#else
#define UNROLL_WORK UNROLL_BY(16)
#endif

/* f, for VEC elements. scale and shift come from outside, or the compiler would compute some of it itself. */
DEVICE vec work(vec v, float scale, float shift)
{
    UNROLL_WORK
    for (int i = 0; i < INTENSITY; ++i) {
#if VEC == 4
        v.x = FMA(scale, v.x, shift), v.y = FMA(scale, v.y, shift);
        v.z = FMA(scale, v.z, shift), v.w = FMA(scale, v.w, shift);
#elif VEC == 2
        v.x = FMA(scale, v.x, shift), v.y = FMA(scale, v.y, shift);
#else
        v = FMA(scale, v, shift);
#endif
    }
    return v;
}

#if MODE == MODE_none || MODE == MODE_unroll || MODE == MODE_l2

#ifdef __OPENCL_VERSION__
#define PREFETCH(p) prefetch(p, 1)
#else
#define PREFETCH(p) asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p)))
#endif
#if MODE == MODE_unroll
#define ROUNDS_WRITTEN_OUT PDIST
#else
#define ROUNDS_WRITTEN_OUT 1
#endif

/* One thread's share: `rounds` vectors, `stride` apart. */
DEVICE void walk(GLOBAL const vec* RESTRICT from, GLOBAL vec* RESTRICT to, i64 stride, int rounds, float scale,
                 float shift)
{
    UNROLL_BY(ROUNDS_WRITTEN_OUT)
    for (int round = 0; round < rounds; ++round) {
#if MODE == MODE_l2
        if (round + PDIST < rounds) PREFETCH(from + (round + PDIST) * stride);
#endif
        to[round * stride] = work(from[round * stride], scale, shift);
    }
}

#elif MODE == MODE_reg_batch

/* Up to PDIST rounds, of which `left` exist. */
DEVICE void batch(GLOBAL const vec* RESTRICT from, GLOBAL vec* RESTRICT to, i64 stride, int left, float scale,
                  float shift)
{
    vec items[PDIST];
    UNROLL_ALL
    for (int j = 0; j < PDIST; ++j)
        if (j < left) items[j] = from[j * stride];
    UNROLL_ALL
    for (int j = 0; j < PDIST; ++j)
        if (j < left) to[j * stride] = work(items[j], scale, shift);
}

DEVICE void walk(GLOBAL const vec* RESTRICT from, GLOBAL vec* RESTRICT to, i64 stride, int rounds, float scale,
                 float shift)
{
    UNROLL_BY(1)
    for (; rounds >= PDIST; rounds -= PDIST) {
        batch(from, to, stride, PDIST, scale, shift); /* a constant: no questions asked */
        from += PDIST * stride, to += PDIST * stride;
    }
    if (rounds > 0) batch(from, to, stride, rounds, scale, shift);
}

#elif MODE == MODE_reg_roll

/* Up to PDIST rounds, of which `left` exist, and the loads for as many rounds after them. */
DEVICE void roll(vec* items, GLOBAL const vec* RESTRICT from, GLOBAL vec* RESTRICT to, i64 stride, int left,
                 float scale, float shift)
{
    UNROLL_ALL
    for (int j = 0; j < PDIST; ++j) {
        if (j < left) {
            const vec item = items[j];
            if (j + PDIST < left) items[j] = from[(j + PDIST) * stride];
            to[j * stride] = work(item, scale, shift);
        }
    }
}

/* Registers have no addresses, so the round robin over them has to be written out. */
DEVICE void walk(GLOBAL const vec* RESTRICT from, GLOBAL vec* RESTRICT to, i64 stride, int rounds, float scale,
                 float shift)
{
    vec items[PDIST];
    UNROLL_ALL
    for (int j = 0; j < PDIST; ++j)
        if (j < rounds) items[j] = from[j * stride];
    UNROLL_BY(1)
    for (; rounds >= 2 * PDIST; rounds -= PDIST) {
        roll(items, from, to, stride, 2 * PDIST, scale, shift);
        from += PDIST * stride, to += PDIST * stride;
    }
    UNROLL_BY(1)
    for (; rounds > 0; rounds -= PDIST) {
        roll(items, from, to, stride, rounds, scale, shift);
        from += PDIST * stride, to += PDIST * stride;
    }
}

#else /* through shared memory */

#if LAYOUT == LAYOUT_threads
#define PITCH 1 /* from one slot of a thread to the next */
#define FIRST_SLOT (TID(0) * (PDIST + PADDING))
#else
#define PITCH BLOCK
#define FIRST_SLOT TID(0)
#endif
#define SLOTS (BLOCK * (PDIST + PADDING))

#if MODE == MODE_smem_batch

DEVICE void walk(GLOBAL const vec* RESTRICT from, GLOBAL vec* RESTRICT to, i64 stride, int rounds, float scale,
                 float shift, SHARED_PTR vec* slots)
{
    UNROLL_BY(1)
    for (; rounds > 0; rounds -= PDIST) {
        UNROLL_ALL
        for (int j = 0; j < PDIST; ++j)
            if (j < rounds) slots[j * PITCH] = from[j * stride];
        UNROLL_BY(1)
        for (int j = 0; j < PDIST && j < rounds; ++j) to[j * stride] = work(slots[j * PITCH], scale, shift);
        from += PDIST * stride, to += PDIST * stride;
    }
}

#elif MODE == MODE_smem_roll

DEVICE void walk(GLOBAL const vec* RESTRICT from, GLOBAL vec* RESTRICT to, i64 stride, int rounds, float scale,
                 float shift, SHARED_PTR vec* slots)
{
    UNROLL_ALL
    for (int j = 0; j < PDIST; ++j)
        if (j < rounds) slots[j * PITCH] = from[j * stride];
    int slot = 0;
    UNROLL_BY(1)
    for (int round = 0; round < rounds; ++round) {
        const vec item = slots[slot];
        if (round + PDIST < rounds) slots[slot] = from[(round + PDIST) * stride];
        to[round * stride] = work(item, scale, shift);
        slot = slot == (PDIST - 1) * PITCH ? 0 : slot + PITCH;
    }
}

#elif MODE == MODE_smem_roll_async

/* Copies are numbered in groups: one for each round, empty where there is nothing left to copy, so that
   "all but the last PDIST - 1 groups are done" always means the oldest slot. */
#define COPIES_END_GROUP() asm volatile("cp.async.commit_group;" ::: "memory")
#define WAIT_FOR_OLDEST() asm volatile("cp.async.wait_group %0;" ::"n"(PDIST - 1) : "memory")

DEVICE void copy_async(vec* to, const vec* from)
{
#if VEC == 4 /* past the L1 cache, which is possible with 16 bytes only */
#define COPY_ASYNC "cp.async.cg"
#else
#define COPY_ASYNC "cp.async.ca"
#endif
    asm volatile(COPY_ASYNC ".shared.global [%0], [%1], %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
                 "l"(__cvta_generic_to_global(from)), "n"(4 * VEC)
                 : "memory");
}

DEVICE void walk(const vec* RESTRICT from, vec* RESTRICT to, i64 stride, int rounds, float scale, float shift,
                 vec* slots)
{
    UNROLL_ALL
    for (int j = 0; j < PDIST; ++j) {
        if (j < rounds) copy_async(slots + j * PITCH, from + j * stride);
        COPIES_END_GROUP();
    }
    int slot = 0;
    UNROLL_BY(1)
    for (int round = 0; round < rounds; ++round) {
        WAIT_FOR_OLDEST();
        const vec item = slots[slot];
        if (round + PDIST < rounds) copy_async(slots + slot, from + (round + PDIST) * stride);
        COPIES_END_GROUP();
        to[round * stride] = work(item, scale, shift);
        slot = slot == (PDIST - 1) * PITCH ? 0 : slot + PITCH;
    }
}

#endif
#endif

/* Not called prefetch, because OpenCL C has a function of that name. */
KERNEL(BLOCK, 1, 1)
prefetch_map(GLOBAL const float* RESTRICT x, GLOBAL float* RESTRICT out, float scale, float shift, i64 n)
{
    const i64 vectors = n / VEC;
    const i64 first = (i64)BID(0) * BLOCK + TID(0);
    const i64 stride = (i64)GRID(0) * BLOCK;
    const int rounds = first < vectors ? (int)((vectors - first - 1) / stride) + 1 : 0;
    GLOBAL const vec* from = (GLOBAL const vec*)x + first;
    GLOBAL vec* to = (GLOBAL vec*)out + first;
#ifdef SLOTS
    SHARED vec slots[SLOTS];
    walk(from, to, stride, rounds, scale, shift, slots + FIRST_SLOT);
#else
    walk(from, to, stride, rounds, scale, shift);
#endif

    /* The n % VEC elements behind the last whole vector. */
    if (BID(0) == 0 && TID(0) < (int)(n % VEC)) {
        float v = x[vectors * VEC + TID(0)];
        for (int i = 0; i < INTENSITY; ++i) v = FMA(scale, v, shift);
        out[vectors * VEC + TID(0)] = v;
    }
}
