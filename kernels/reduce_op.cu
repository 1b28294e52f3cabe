/* out[0] = x[0] (op) x[1] (op) ... of n elements, op one of sum, max, min, prod, in any type of types.h: knows
   the whole ladder of reduction kernels, in the common subset of CUDA C++ and OpenCL C.

   reduce.cu is the one to use for sums of float32; this one is for other operators and types, and to see each
   rung by itself. The rungs, from the bottom:

     BLOCK_RED=interleaved  every second thread works, then every fourth: all warps stay, ever emptier
     BLOCK_RED=spread       the same additions by the first threads: whole warps retire, but neighbours read
                            addresses 2, 4, 8 ... apart, which lie in the same few banks
     BLOCK_RED=sequential   the first half works, then the first quarter: neighbours read neighbours
     TAIL=syncwarp          the last warp does without barriers of the block
     BLOCK_RED=shuffle      no tree in shared memory: registers to registers
     ITEMS, BYTES           several loads of each thread under way before the first addition
     GRID_MODE=stride       a fixed grid walks over x; chunk: each block over a piece of its own
     FINISH=kernel          a second launch adds up the blocks; ticket: the block that ends last does;
                            atomic: each block adds its own, in the order of arrival */

#ifndef BLOCK
#define BLOCK 256 /* threads per block */
#endif
#ifndef BYTES
#define BYTES 16 /* of one load */
#endif
#ifndef ITEMS
#define ITEMS 4 /* loads in flight per thread */
#endif
#ifndef GRID_MODE
#define GRID_MODE_oneshot 0
#define GRID_MODE_stride 1
#define GRID_MODE_chunk 2
#define GRID_MODE GRID_MODE_stride
#endif
#ifndef BLOCK_RED
#define BLOCK_RED_interleaved 0
#define BLOCK_RED_spread 1
#define BLOCK_RED_sequential 2
#define BLOCK_RED_shuffle 3
#define BLOCK_RED BLOCK_RED_shuffle
#endif
#ifndef TAIL
#define TAIL_barrier 0
#define TAIL_syncwarp 1
#define TAIL_shuffle 2
#define TAIL TAIL_shuffle
#endif
#ifndef FINISH
#define FINISH_kernel 0
#define FINISH_ticket 1
#define FINISH_atomic 2
#define FINISH FINISH_ticket
#endif
#ifndef OP
#define OP sum
#endif
#ifndef WARP
#ifdef __OPENCL_VERSION__
#define WARP 16
#else
#define WARP 32
#endif
#endif

#include "types.h"

/* OP is a field of the problem and arrives as a bare word. */
#define OP_sum 1
#define OP_prod 2
#define OP_max 3
#define OP_min 4
#define OP_JOIN_(op) OP_##op
#define OP_JOIN(op) OP_JOIN_(op)
#define OP_IS(op) (OP_JOIN(OP) == OP_##op)

/* What leaves every other number as it is, and the operator. */
#if TYPE_IS(int32)
#define LEAST (-2147483647 - 1)
#define MOST 2147483647
#else
#define LEAST (-INFINITY)
#define MOST INFINITY
#endif
#if OP_IS(sum)
#define NEUTRAL ((WIDE)0)
#if TYPE_IS(int32)
#define COMBINE(a, b) ((int)((unsigned)(a) + (unsigned)(b))) /* a sum that wraps is defined without a sign */
#else
#define COMBINE(a, b) ((a) + (b))
#endif
#elif OP_IS(prod)
#define NEUTRAL ((WIDE)1)
#if TYPE_IS(int32)
#define COMBINE(a, b) ((int)((unsigned)(a) * (unsigned)(b)))
#else
#define COMBINE(a, b) ((a) * (b))
#endif
#elif OP_IS(max)
#define NEUTRAL ((WIDE)LEAST)
#define COMBINE(a, b) MAX(a, b)
#elif OP_IS(min)
#define NEUTRAL ((WIDE)MOST)
#define COMBINE(a, b) MIN(a, b)
#else
#error "OP must be sum, max, min or prod"
#endif

#if BLOCK_RED == BLOCK_RED_shuffle || (BLOCK_RED == BLOCK_RED_sequential && TAIL == TAIL_shuffle)
/* Of a warp, in lane 0. All its lanes must come here. */
DEVICE WIDE warp_total(WIDE value)
{
    UNROLL_ALL
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        const WIDE other = SHFL_DOWN(value, distance);
        value = COMBINE(value, other);
    }
    return value;
}
#endif

/* Of the block, in thread 0; elsewhere anything. All threads must come here, with `shared` free. */
DEVICE WIDE block_total(WIDE value, SHARED_PTR WIDE* shared)
{
    const int tid = TID(0);
#if BLOCK_RED == BLOCK_RED_shuffle
    value = warp_total(value);
    if (tid % WARP == 0) shared[tid / WARP] = value;
    SYNC();
    if (tid < WARP) {
        value = NEUTRAL;
        for (int warp = tid; warp < BLOCK / WARP; warp += WARP) value = COMBINE(value, shared[warp]);
        value = warp_total(value);
    }
    return value;
#else
    shared[tid] = value;
    SYNC();
#if BLOCK_RED == BLOCK_RED_interleaved
    for (int stride = 1; stride < BLOCK; stride *= 2) {
        if (tid % (2 * stride) == 0) shared[tid] = COMBINE(shared[tid], shared[tid + stride]);
        SYNC();
    }
#elif BLOCK_RED == BLOCK_RED_spread
    for (int stride = 1; stride < BLOCK; stride *= 2) {
        const int at = 2 * stride * tid;
        if (at < BLOCK) shared[at] = COMBINE(shared[at], shared[at + stride]);
        SYNC();
    }
#else
    for (int stride = BLOCK / 2; stride >= (TAIL == TAIL_barrier ? 1 : WARP); stride /= 2) {
        if (tid < stride) shared[tid] = COMBINE(shared[tid], shared[tid + stride]);
        SYNC();
    }
#if TAIL == TAIL_syncwarp
    if (tid < WARP) {
        UNROLL_ALL
        for (int stride = WARP / 2; stride > 0; stride /= 2) {
            if (tid < stride) shared[tid] = COMBINE(shared[tid], shared[tid + stride]);
            SYNC_WARP();
        }
    }
#elif TAIL == TAIL_shuffle
    return tid < WARP ? warp_total(shared[tid]) : value;
#endif
#endif
    return shared[0];
#endif
}

/* Of one thread. x begins at a multiple of 16 bytes; the elements behind the last whole piece are block 0's. */
DEVICE WIDE thread_total(GLOBAL const TYPE* RESTRICT x, i64 n)
{
    const int tid = TID(0);
    const i64 pieces = n / EACH, tile = BLOCK * ITEMS;
    GLOBAL const piece_bits* RESTRICT from = (GLOBAL const piece_bits*)x;
    WIDE total = NEUTRAL;

#if GRID_MODE == GRID_MODE_oneshot
    const i64 begin = BID(0) * tile, end = pieces, step = tile;
    const i64 stop = begin + 1; /* once */
#elif GRID_MODE == GRID_MODE_stride
    const i64 begin = BID(0) * tile, end = pieces, step = GRID(0) * tile;
    const i64 stop = pieces;
#else
    const i64 share = CEIL_DIV(pieces, (i64)GRID(0)), begin = BID(0) * share, step = tile;
    const i64 end = begin + share < pieces ? begin + share : pieces;
    const i64 stop = end;
#endif
    for (i64 first = begin; first < stop; first += step) {
        piece items[ITEMS];
        WIDE folded[ITEMS];
        UNROLL_ALL
        for (int i = 0; i < ITEMS; ++i) {
            const i64 at = first + tid + i * BLOCK;
            if (at < end) items[i].bits = from[at];
        }
        UNROLL_ALL
        for (int i = 0; i < ITEMS; ++i) {
            folded[i] = NEUTRAL;
            if (first + tid + i * BLOCK < end) {
                UNROLL_ALL
                for (int e = 0; e < EACH; ++e) folded[i] = COMBINE(folded[i], WIDEN(items[i].part[e]));
            }
        }
        UNROLL_ALL
        for (int apart = 1; apart < ITEMS; apart *= 2) {
            UNROLL_ALL
            for (int i = 0; i < ITEMS; i += 2 * apart) folded[i] = COMBINE(folded[i], folded[i + apart]);
        }
        total = COMBINE(total, folded[0]);
    }
    if (BID(0) == 0 && tid < (int)(n % EACH)) {
        const WIDE last = WIDEN(x[pieces * EACH + tid]);
        total = COMBINE(total, last);
    }
    return total;
}

#if FINISH != FINISH_atomic
/* Of the blocks' results, which other blocks of the same launch may have written. */
DEVICE WIDE blocks_total(volatile GLOBAL const WIDE* partial, int count, SHARED_PTR WIDE* shared)
{
    WIDE total = NEUTRAL;
    for (int i = TID(0); i < count; i += BLOCK) {
        const WIDE next = partial[i];
        total = COMBINE(total, next);
    }
    return block_total(total, shared);
}
#endif

KERNEL(BLOCK, 1, 1)
reduce_op(GLOBAL const TYPE* RESTRICT x, GLOBAL WIDE* out, i64 n, GLOBAL WIDE* partial, GLOBAL unsigned* ticket)
{
    SHARED WIDE shared[BLOCK];
    const WIDE total = block_total(thread_total(x, n), shared);
#if FINISH == FINISH_atomic
#if OP_IS(sum)
    if (TID(0) == 0) ATOMIC_ADD(out, total);
#elif OP_IS(max) && TYPE_IS(int32)
    if (TID(0) == 0) ATOMIC_MAX(out, total);
#elif OP_IS(min) && TYPE_IS(int32)
    if (TID(0) == 0) ATOMIC_MIN(out, total);
#else
#error "FINISH=atomic: sums, and largest and smallest int32"
#endif
#else
    if (TID(0) == 0) partial[BID(0)] = total;
#if FINISH == FINISH_ticket
    /* A fence on either side of the ticket, see reduce.cu. */
    SHARED int is_last;
    if (TID(0) == 0) {
        FENCE_DEVICE();
        is_last = ATOMIC_INC(ticket) == (unsigned)GRID(0) - 1;
        FENCE_DEVICE();
    }
    SYNC_GLOBAL();
    if (is_last) {
        const WIDE all = blocks_total(partial, GRID(0), shared);
        if (TID(0) == 0) out[0] = all;
    }
#endif
#endif
}

#if FINISH == FINISH_kernel
/* The second launch: one block. */
KERNEL(BLOCK, 1, 1)
reduce_op_blocks(GLOBAL const WIDE* partial, GLOBAL WIDE* out, int count)
{
    SHARED WIDE shared[BLOCK];
    const WIDE all = blocks_total(partial, count, shared);
    if (TID(0) == 0) out[0] = all;
}
#endif
