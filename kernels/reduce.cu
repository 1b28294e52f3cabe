/* out[0] = the sum of x[0 .. n) in float32: knows the classic ladder of reduction kernels, one parameter
   per rung, in the common subset of CUDA C++ and OpenCL C.

   The plan. A sum is one addition per element loaded, so the only limit worth reaching is the memory's.
   Four levels add up what the level below hands them:

     thread   its share of x, in registers: ITEMS loads of VEC floats are under way before the first
              addition, because a multiprocessor saturates the memory only with some 32 KB in flight
     block    BLOCK sums become one (BLOCK_RED), through shared memory or through warp shuffles
     warp     the last WARP of those may do without block barriers (WARP_TAIL)
     grid     the blocks' sums become one (FINISH)

   The ladder, from the bottom:
     interleaved addressing, divergent     BLOCK_RED=interleaved  VEC=1 ITEMS=1 GRID_MODE=oneshot
     sequential addressing                 BLOCK_RED=sequential   WARP_TAIL=barrier
     first addition while loading          ITEMS=2
     last warp without barriers            WARP_TAIL=syncwarp, or in registers: shfl_down, shfl_xor
     everything unrolled                   BLOCK_RED=unrolled
     many elements per thread              ITEMS=4 and more, VEC=4, GRID_MODE=stride
     no shared-memory tree at all          BLOCK_RED=shuffle
     one launch instead of two             FINISH=ticket */

#ifndef BLOCK
#define BLOCK 256 /* threads per block */
#endif
#ifndef VEC
#define VEC 4 /* floats per load: 1, 2 or 4 */
#endif
#ifndef ITEMS
#define ITEMS 4 /* loads in flight per thread */
#endif
#ifndef LOAD
#define LOAD_plain 0
#define LOAD_stream 1 /* tell the cache that nobody reads x a second time */
#define LOAD LOAD_plain
#endif
#ifndef GRID_MODE
#define GRID_MODE_oneshot 0 /* a block for every BLOCK * VEC * ITEMS elements */
#define GRID_MODE_stride 1  /* any number of blocks, each walking over x with the stride of the grid */
#define GRID_MODE GRID_MODE_stride
#endif
#ifndef BLOCK_RED
#define BLOCK_RED_interleaved 0
#define BLOCK_RED_sequential 1
#define BLOCK_RED_unrolled 2
#define BLOCK_RED_shuffle 3
#define BLOCK_RED BLOCK_RED_shuffle
#endif
#ifndef WARP_TAIL
#define WARP_TAIL_barrier 0
#define WARP_TAIL_syncwarp 1
#define WARP_TAIL_shfl_down 2
#define WARP_TAIL_shfl_xor 3
#define WARP_TAIL WARP_TAIL_shfl_down
#endif
#ifndef FINISH
#define FINISH_kernel 0 /* partial[block], added up by a launch of reduce_partials */
#define FINISH_ticket 1 /* the same, by whichever block ends last; ticket zeroed before */
#define FINISH FINISH_ticket
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1 /* blocks that must fit on one multiprocessor (CUDA only) */
#endif
#ifndef WARP
#ifdef __OPENCL_VERSION__
#define WARP 16 /* threads that run in step: the device's choice, 32 on CUDA */
#else
#define WARP 32
#endif
#endif

#include "sums.h"

#define SHUFFLES                           \
    (BLOCK_RED != BLOCK_RED_interleaved && \
     (WARP_TAIL == WARP_TAIL_shfl_down || WARP_TAIL == WARP_TAIL_shfl_xor))

#if BLOCK % WARP
#error "BLOCK must be whole warps"
#endif
#if BLOCK_RED != BLOCK_RED_shuffle && (BLOCK & (BLOCK - 1))
#error "a tree that halves needs a power of two for BLOCK"
#endif
#if BLOCK_RED == BLOCK_RED_shuffle && !SHUFFLES
#error "BLOCK_RED=shuffle needs WARP_TAIL=shfl_down or shfl_xor"
#endif

#if SHUFFLES
/* The sum over a warp, in every lane (xor) or in lane 0 (down). All its lanes must come here. */
DEVICE float warp_sum(float value)
{
    UNROLL_ALL
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
#if WARP_TAIL == WARP_TAIL_shfl_xor
        value += SHFL_XOR(value, distance);
#else
        value += SHFL_DOWN(value, distance);
#endif
    }
    return value;
}
#endif

/* The sum over the block, in thread 0; elsewhere anything. All threads must come here, with `shared`
   (BLOCK floats) free. */
DEVICE float block_sum(float value, SHARED_PTR float* shared)
{
    const int tid = TID(0);

#if BLOCK_RED == BLOCK_RED_shuffle
    /* Registers to registers inside each warp; shared memory sees one value per warp. A block may hold
       more warps than a warp has lanes, where WARP is small. */
    value = warp_sum(value);
    if (tid % WARP == 0) shared[tid / WARP] = value;
    SYNC();
    if (tid < WARP) {
        value = 0.0f;
        for (int warp = tid; warp < BLOCK / WARP; warp += WARP) value += shared[warp];
        value = warp_sum(value);
    }
    return value;

#elif BLOCK_RED == BLOCK_RED_interleaved
    /* Every second thread works, then every fourth: all warps stay busy with ever fewer lanes, and the
       addresses that they read lie ever further apart, in the same few banks. */
    shared[tid] = value;
    SYNC();
    for (int stride = 1; stride < BLOCK; stride *= 2) {
        if (tid % (2 * stride) == 0) shared[tid] += shared[tid + stride];
        SYNC();
    }
    return shared[0];

#else
    /* The first half works, then the first quarter: whole warps retire, and neighbours read neighbours. */
#define TREE_END (WARP_TAIL == WARP_TAIL_barrier ? 1 : WARP) /* values that the tree leaves */
    shared[tid] = value;
    SYNC();
#if BLOCK_RED == BLOCK_RED_unrolled
    UNROLL_ALL
#else
    UNROLL_BY(1)
#endif
    for (int stride = BLOCK / 2; stride >= TREE_END; stride /= 2) {
        if (tid < stride) shared[tid] += shared[tid + stride];
        SYNC();
    }
#if WARP_TAIL == WARP_TAIL_barrier
    value = shared[0];
#elif WARP_TAIL == WARP_TAIL_syncwarp
    /* One warp needs no block barrier, but its lanes need not run in step: SYNC_WARP orders their writes
       before the next reads. Within a step, lanes write below `stride` and read at or above it. */
    if (tid < WARP) {
        UNROLL_ALL
        for (int stride = WARP / 2; stride > 0; stride /= 2) {
            if (tid < stride) shared[tid] += shared[tid + stride];
            SYNC_WARP();
        }
        value = shared[0];
    }
#else
    if (tid < WARP) value = warp_sum(shared[tid]);
#endif
    return value;
#endif
}

#if LOAD == LOAD_stream
#define GET(p) LD_STREAM(p)
#define GET2(p) LD2_STREAM(p)
#define GET4(p) LD4_STREAM(p)
#else
#define GET(p) (*(p))
#define GET2(p) LD2(p)
#define GET4(p) LD4(p)
#endif

/* VEC floats of x in one load, or zeros. */
DEVICE void load(float* to, GLOBAL const float* from, int inside)
{
#if VEC == 4
    const float4 v = inside ? GET4(from) : MAKE4(0.0f, 0.0f, 0.0f, 0.0f);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
#elif VEC == 2
    const float2 v = inside ? GET2(from) : MAKE2(0.0f, 0.0f);
    to[0] = v.x, to[1] = v.y;
#else
    to[0] = inside ? GET(from) : 0.0f;
#endif
}

/* What one thread adds up alone. x starts at a multiple of 16 bytes, so vector v begins at x + v * VEC
   and is aligned; the n % VEC floats behind the last whole vector are block 0's. */
DEVICE float thread_sum(GLOBAL const float* RESTRICT x, i64 n)
{
    const int tid = TID(0);
    const i64 vectors = n / VEC;
    const i64 tile = BLOCK * ITEMS; /* vectors that a block takes at a time */

    float sum = 0.0f, lost = 0.0f;

#if GRID_MODE == GRID_MODE_stride
    for (i64 first = BID(0) * tile; first < vectors; first += GRID(0) * tile)
#else
    const i64 first = BID(0) * tile;
#endif
    {
        /* One pointer and one 32-bit count decide all loads of a tile, which leaves the issue slots to
           the loads themselves. */
        GLOBAL const float* from = x + (first + tid) * VEC;
        const int left = (int)(vectors - first < tile ? vectors - first : tile) - tid;
        float items[ITEMS * VEC];
        UNROLL_ALL
        for (int i = 0; i < ITEMS; ++i) load(items + i * VEC, from + i * BLOCK * VEC, i * BLOCK < left);
        add_keeping(&sum, &lost, sum_by_halves(items, ITEMS * VEC));
    }
    if (BID(0) == 0 && tid < (int)(n % VEC)) add_keeping(&sum, &lost, x[vectors * VEC + tid]);
    return with_lost(sum, lost);
}

#define BATCH 8 /* blocks' sums that a thread reads at a time: everything waits for the one block that does */

/* Any number of blocks' sums become one, in the same order every time. `partial` is volatile because other
   blocks of the same launch may have written it: a compiler must not have read it earlier. */
DEVICE float partials_sum(volatile GLOBAL const float* partial, int count, SHARED_PTR float* shared)
{
    float sum = 0.0f, lost = 0.0f;
    for (int first = TID(0); first < count; first += BATCH * BLOCK) {
        float items[BATCH];
        UNROLL_ALL
        for (int i = 0; i < BATCH; ++i) items[i] = first + i * BLOCK < count ? partial[first + i * BLOCK] : 0.0f;
        add_keeping(&sum, &lost, sum_by_halves(items, BATCH));
    }
    return block_sum(with_lost(sum, lost), shared);
}

/* Without a word on MIN_BLOCKS the compiler aims at full occupancy and fits the kernel into 32 registers,
   by waiting for each load before it issues the next: ITEMS would have no effect. */
KERNEL(BLOCK, 1, MIN_BLOCKS)
reduce(GLOBAL const float* RESTRICT x, GLOBAL float* out, GLOBAL float* partial, GLOBAL unsigned* ticket,
       i64 n)
{
    SHARED float shared[BLOCK];
    const float sum = block_sum(thread_sum(x, n), shared);

    if (TID(0) == 0) partial[BID(0)] = sum;

#if FINISH == FINISH_ticket
    /* Whoever draws the last ticket knows that all partial sums are there, provided that each was made
       visible to the device before its block drew, and is read only after the last draw: a fence on
       either side. The barrier extends both to the other threads of the block. */
    SHARED int is_last;
    if (TID(0) == 0) {
        FENCE_DEVICE();
        is_last = ATOMIC_INC(ticket) == (unsigned)GRID(0) - 1;
        FENCE_DEVICE();
    }
    SYNC_GLOBAL();
    if (is_last) {
        const float total = partials_sum(partial, GRID(0), shared);
        if (TID(0) == 0) {
            out[0] = total;
            *ticket = 0; /* a caller who keeps the ticket need not zero it for the next launch */
        }
    }
#endif
}

/* The second launch of FINISH=kernel: one block. */
KERNEL(BLOCK, 1, 1)
reduce_partials(GLOBAL const float* partial, GLOBAL float* out, int count)
{
    SHARED float shared[BLOCK];
    const float total = partials_sum(partial, count, shared);
    if (TID(0) == 0) out[0] = total;
}
