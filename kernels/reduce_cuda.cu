/* out[0] = the sum of x[0 .. n) in float32, in one launch and nothing else: knows two ways in which the blocks
   of a grid make one sum of theirs, from compute capability 7.0 on.

   The plan. A vector of a few megabytes is read in a few microseconds, and what comes before and after costs
   as much: zeroing a ticket or an output is a step of its own on the device, a second kernel another, and a
   ticket three trips to the L2 cache one after the other (store, draw, read what others stored). So there is
   none of these. Each block has ITEMS loads of VEC floats under way in each thread, as in reduce.cu, and adds
   up by halves and by warp shuffles. What it then does with its sum is COLLECT:

     words   stores it and the number of the launch as one word of 64 bits, which others see as a whole or
             not at all: no fence, nothing to zero. The last block waits until the words of all others bear
             the number of this launch, adds them up in a fixed order, and counts up. Two trips to L2 and
             some waiting. Only one block ever waits, so all others find room to run.
     pair    adds it and a 1 to a pair of floats, by one atomic of two floats. The pair as it was before
             comes back, so whoever was last knows it by the count and has the sum in the same answer, writes
             it out and sets the pair back to zero. One trip to L2. With SENDER=warp each warp does so, which
             saves the barrier and the second round of shuffles in a block.

   What pair relies on: the last to count must find all sums in the answer. Both floats lie in one sector of the
   L2 cache and come in one request, which adds both before it takes the next. But PTX promises that only for
   each float by itself; so pair is for who asks for it, on compute capability 9.0, where
   tests/gpu/test_reduce.py puts it to the proof. It also adds in the order of arrival, in one chain: results
   differ from launch to launch, and digits are lost where many come.

   Words, number and pair belong to the loaded module: two launches of it must not overlap, on two streams say.
   Who wants that loads it twice, or takes reduce.cu. */

#ifndef BLOCK
#define BLOCK 512 /* threads per block */
#endif
#ifndef VEC
#define VEC 4 /* floats per load: 1, 2 or 4 */
#endif
#ifndef ITEMS
#define ITEMS 4 /* loads in flight per thread */
#endif
#ifndef LOAD
#define LOAD_plain 0
#define LOAD_stream 1
#define LOAD_bypass 2
#define LOAD LOAD_plain
#endif
#ifndef GRID_MODE
#define GRID_MODE_oneshot 0 /* a block for every BLOCK * VEC * ITEMS elements */
#define GRID_MODE_stride 1  /* any number of blocks, each walking over x with the stride of the grid */
#define GRID_MODE GRID_MODE_oneshot
#endif
#ifndef COLLECT
#define COLLECT_words 0 /* the last block waits for what all others stored */
#define COLLECT_pair 1  /* one atomic for sum and count */
#define COLLECT COLLECT_words
#endif
#ifndef SENDER
#define SENDER_block 0
#define SENDER_warp 1 /* pair: every warp by itself */
#define SENDER SENDER_block
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1 /* blocks that must fit on one multiprocessor */
#endif

#define STORE_plain 0
#define STORE STORE_plain
#include "sums.h"
#include "vectors.h"

#define WARPS (BLOCK / 32)

static_assert(BLOCK % 32 == 0 && WARPS <= 32, "a block is whole warps, and a warp adds up their sums");

#if SENDER == SENDER_warp && COLLECT != COLLECT_pair
#error "SENDER=warp needs COLLECT=pair"
#endif

/* The sum over a warp, in every lane. */
DEVICE float warp_sum(float value)
{
    UNROLL_ALL
    for (int distance = 16; distance > 0; distance /= 2) value += SHFL_XOR(value, distance);
    return value;
}

/* The sum over the block, in all threads of its first warp. `shared` holds a float for each warp. */
DEVICE float block_sum(float value, float* shared)
{
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x < 32) value = warp_sum(threadIdx.x < WARPS ? shared[threadIdx.x] : 0.0f);
    return value;
}

/* What one thread adds up alone; x is aligned to 16 bytes. The n % VEC floats behind the last whole vector
   are block 0's. */
DEVICE float thread_sum(const float* __restrict__ x, i64 n)
{
    const int tid = threadIdx.x;
    const i64 vectors = n / VEC;
    const i64 tile = BLOCK * ITEMS; /* vectors that a block takes at a time */

    float sum = 0.0f, lost = 0.0f;
#if GRID_MODE == GRID_MODE_stride
    for (i64 first = blockIdx.x * tile; first < vectors; first += gridDim.x * tile)
#else
    const i64 first = blockIdx.x * tile;
#endif
    {
        const float* from = x + (first + tid) * VEC;
        const int left = (int)(vectors - first < tile ? vectors - first : tile) - tid;
        float items[ITEMS * VEC];
        UNROLL_ALL
        for (int i = 0; i < ITEMS; ++i) load_vector(items + i * VEC, from + i * BLOCK * VEC, i * BLOCK < left);
        add_keeping(&sum, &lost, sum_by_halves(items, ITEMS * VEC));
    }
    if (blockIdx.x == 0 && tid < (int)(n % VEC)) add_keeping(&sum, &lost, x[vectors * VEC + tid]);
    return with_lost(sum, lost);
}

#if COLLECT == COLLECT_pair

/* x: the sum of all who have come, y: how many they are, exact up to 2^24. Zeros between launches. */
__device__ float2 total;

extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS)
reduce(const float* __restrict__ x, float* out, i64 n)
{
#if SENDER == SENDER_warp
    const float sum = warp_sum(thread_sum(x, n));
    const int senders = gridDim.x * WARPS;
    if (threadIdx.x % 32 > 0) return;
#else
    __shared__ float warps[WARPS];
    const float sum = block_sum(thread_sum(x, n), warps);
    const int senders = gridDim.x;
    if (threadIdx.x > 0) return;
#endif
    const float2 before = atomicAdd(&total, make_float2(sum, 1.0f));
    if ((int)before.y == senders - 1) {
        out[0] = before.x + sum;
        total = make_float2(0.0f, 0.0f); /* the next launch begins when this one has ended */
    }
}

#else

#define MOST_BLOCKS 32768 /* as spaces/reduce.py has it */
#define BATCH 8 /* words that a thread of the last block waits for at a time: one after the other takes too long */

/* A block's sum, in the low half, and the number of the launch that it belongs to: 1 or more. */
typedef unsigned long long Word;
__device__ Word words[MOST_BLOCKS];
__device__ unsigned launches = 0; /* that have ended */

/* Seen by all blocks, whole, and in no order with anything else. */
DEVICE void store_word(Word* p, Word word)
{
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(__cvta_generic_to_global(p)), "l"(word) : "memory");
}
DEVICE Word load_word(const Word* p)
{
    Word word;
    asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(word) : "l"(__cvta_generic_to_global(p)) : "memory");
    return word;
}

extern "C" __global__ void __launch_bounds__(BLOCK, MIN_BLOCKS)
reduce(const float* __restrict__ x, float* out, i64 n)
{
    __shared__ float warps[WARPS];
    const int tid = threadIdx.x, others = gridDim.x - 1;
    const unsigned launch = *(volatile unsigned*)&launches + 1;

    float sum = block_sum(thread_sum(x, n), warps);
    if (blockIdx.x < others) {
        if (tid == 0) store_word(words + blockIdx.x, (Word)launch << 32 | __float_as_uint(sum));
        return;
    }

    if (tid > 0) sum = 0.0f;
    float lost = 0.0f;
    for (int first = tid; first < others; first += BATCH * BLOCK) {
        Word batch[BATCH];
        bool all_there;
        do {
            all_there = true;
            UNROLL_ALL
            for (int i = 0; i < BATCH; ++i)
                batch[i] = first + i * BLOCK < others ? load_word(words + first + i * BLOCK) : (Word)launch << 32;
            UNROLL_ALL
            for (int i = 0; i < BATCH; ++i) all_there &= batch[i] >> 32 == launch;
        } while (!all_there);
        float items[BATCH];
        UNROLL_ALL
        for (int i = 0; i < BATCH; ++i) items[i] = __uint_as_float((unsigned)batch[i]);
        add_keeping(&sum, &lost, sum_by_halves(items, BATCH));
    }
    if (others > 0) {
        __syncthreads(); /* nobody reads the warps' sums any more */
        sum = block_sum(with_lost(sum, lost), warps);
    }
    if (tid == 0) {
        out[0] = sum;
        launches = launch; /* all others have read it: their words bear it */
    }
}

#endif
