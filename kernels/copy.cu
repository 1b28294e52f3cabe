/* Moving floats and nothing else, in the common subset of CUDA C++ and OpenCL C: what a device's memory can
   do, found by the same means as everything else. MODE says which half of a copy is done:

     copy   out[i] = x[i]
     read   out[0] = the sum of x: a load whose value nobody needs is a load that the compiler leaves out
     write  out[i] = i, of which a float keeps the low 24 bits: each element differs from its neighbours

   for i in [0, n), n to 2^60, where x begins offset_in and out offset_out floats behind its buffer. Neither
   needs to be aligned.

   The plan. Bandwidth is bytes under way over latency (Little's law), so a thread issues ITEMS accesses of
   VEC floats before it waits for the first. A vector has to be aligned, and x or out, or both, may not be:

     PEEL=none   then everything goes float by float, which is still coalesced
     PEEL=head   the first floats are split off, so that out (of read: x) continues at a whole vector; where x
                 does not, its vectors are put together from single loads
     PEEL=shift  the same, but from the two aligned vectors that a misaligned one lies in. The second one is
                 the neighbouring thread's first, so it comes from the L1 cache, not from memory

   Blocks walk in one of three ways: GRID_MODE. */

#ifndef MODE
#define MODE copy
#endif
#ifndef BLOCK
#define BLOCK 256 /* threads per block */
#endif
#ifndef VEC
#define VEC 4 /* floats per access: 1, 2 or 4 */
#endif
#ifndef ITEMS
#define ITEMS 4 /* accesses in flight per thread */
#endif
#ifndef GRID_MODE
#define GRID_MODE_oneshot 0 /* a block for every BLOCK * VEC * ITEMS floats */
#define GRID_MODE_stride 1  /* any number of blocks, each taking every GRID-th tile of that size */
#define GRID_MODE_chunk 2   /* any number of blocks, each taking tiles side by side: CPUs like that */
#define GRID_MODE GRID_MODE_oneshot
#endif
#ifndef PEEL
#define PEEL_none 0
#define PEEL_head 1
#define PEEL_shift 2
#define PEEL PEEL_head
#endif
#ifndef LOAD
#define LOAD_plain 0
#define LOAD_stream 1
#define LOAD_bypass 2
#define LOAD LOAD_plain
#endif
#ifndef STORE
#define STORE_plain 0
#define STORE_stream 1
#define STORE STORE_plain
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1 /* blocks that must fit on one multiprocessor (CUDA only) */
#endif

#include "vectors.h"

/* MODE is a field of the problem and arrives as a bare word. */
#define MODE_copy 0
#define MODE_read 1
#define MODE_write 2
#define MODE_JOIN_(mode) MODE_##mode
#define MODE_JOIN(mode) MODE_JOIN_(mode)
#define READS (MODE_JOIN(MODE) == MODE_read)
#define WRITES (MODE_JOIN(MODE) == MODE_write)

#if BLOCK & (BLOCK - 1) || BLOCK < 64
#error "BLOCK must be a power of two, and at least 64"
#endif

/* How pieces of x and out are accessed. */
#define FLOATS 0  /* neither side aligned, or not known to be */
#define VECTORS 1 /* both sides aligned */
#define GATHER 2  /* out aligned; x in single floats */
#define SHIFT 3   /* out aligned; x in the two vectors around */

DEVICE float written(i64 i)
{
    return (float)((int)i & 0xffffff);
}

/* Of the 2 * VEC floats in `low` and `high`, leave in `low` those from place `shift` (1 .. VEC - 1) on. */
DEVICE void shift_down(float* low, const float* high, int shift)
{
    float both[2 * VEC];
    UNROLL_ALL
    for (int j = 0; j < VEC; ++j) both[j] = low[j], both[VEC + j] = high[j];
    UNROLL_ALL
    for (int j = 0; j < VEC; ++j) {
#if VEC == 4
        low[j] = shift == 1 ? both[j + 1] : shift == 2 ? both[j + 2] : both[j + 3];
#elif VEC == 2
        low[j] = both[j + 1];
#endif
    }
}

/* Move `count` pieces, floats or vectors, from `from` to `to`, which is element `first` of out. With SHIFT,
   `from` is the aligned place before the first piece. Returns what this thread has read, summed up. */
DEVICE float move(GLOBAL const float* RESTRICT from, GLOBAL float* RESTRICT to, i64 first, i64 count,
                  const int how, const int shift)
{
    const int width = how == FLOATS ? 1 : VEC; /* floats in a piece */
    const int pieces = ITEMS * VEC / width;    /* a thread has under way */
    const int tile = BLOCK * pieces;
    const i64 tiles = CEIL_DIV(count, tile);

    float sums[VEC]; /* VEC independent chains of additions */
    UNROLL_ALL
    for (int j = 0; j < VEC; ++j) sums[j] = 0.0f;

#if GRID_MODE == GRID_MODE_oneshot
    const i64 t = BID(0);
    if (t < tiles)
#elif GRID_MODE == GRID_MODE_stride
    for (i64 t = BID(0); t < tiles; t += GRID(0))
#else
    const i64 end = tiles * (BID(0) + 1) / GRID(0);
    for (i64 t = tiles * BID(0) / GRID(0); t < end; ++t)
#endif
    {
        /* One pointer and one 32-bit count decide all accesses of a tile. */
        const i64 piece = t * tile + TID(0);
        const int left = (int)(count - t * tile < tile ? count - t * tile : tile) - TID(0);
        GLOBAL const float* source = from + piece * width;
        GLOBAL float* target = to + piece * width;

        float items[ITEMS * VEC], next[ITEMS * VEC]; /* next: of SHIFT alone */
        UNROLL_ALL
        for (int i = 0; i < pieces; ++i) {
            float* item = items + i * width;
            const int step = i * BLOCK, inside = step < left;
#if WRITES
            for (int j = 0; j < width; ++j) item[j] = written(first + (piece + step) * width + j);
#else
            if (how == FLOATS) item[0] = inside ? GET(source + step) : 0.0f;
            if (how == VECTORS) load_vector(item, source + step * VEC, inside);
            if (how == GATHER)
                for (int j = 0; j < VEC; ++j) item[j] = inside ? GET(source + step * VEC + j) : 0.0f;
            if (how == SHIFT) {
                load_vector(item, source + step * VEC, inside);
                load_vector(next + i * VEC, source + step * VEC + VEC, inside);
            }
#endif
        }
        if (how == SHIFT) {
            UNROLL_ALL
            for (int i = 0; i < ITEMS * VEC; i += VEC) shift_down(items + i, next + i, shift);
        }
#if READS
        UNROLL_ALL
        for (int i = 0; i < ITEMS * VEC; ++i) sums[i % VEC] += items[i];
#else
        UNROLL_ALL
        for (int i = 0; i < pieces; ++i) {
            const int step = i * BLOCK, inside = step < left;
            if (inside && how == FLOATS) PUT(target + step, items[i]);
            if (inside && how != FLOATS) store_vector(target + step * VEC, items + i * VEC);
        }
#endif
    }
    UNROLL_ALL
    for (int j = 1; j < VEC; ++j) sums[0] += sums[j];
    return sums[0];
}

/* Element i alone: what lies before and behind the whole vectors. */
DEVICE float move_one(GLOBAL const float* from, GLOBAL float* to, i64 i)
{
#if READS
    return from[i];
#else
    to[i] = WRITES ? written(i) : from[i];
    return 0.0f;
#endif
}

/* Floats between the last place where a vector may begin and p. */
DEVICE int past_aligned(GLOBAL const float* p)
{
    return (int)((size_t)p / 4 % VEC);
}

DEVICE float move_all(GLOBAL const float* RESTRICT from, GLOBAL float* RESTRICT to, i64 n)
{
    /* The side that is aligned by splitting off a head, and the other one. */
    const int lead = past_aligned(READS ? from : to);
    const int other = READS || WRITES ? lead : past_aligned(from);

#if VEC == 1 || PEEL == PEEL_none
    if (lead || other) return move(from, to, 0, n, FLOATS, 0);
    const int shift = 0;
    i64 head = 0;
#else
    const int shift = (other - lead + VEC) % VEC; /* where x is when out is aligned */
    i64 head = (VEC - lead) % VEC;
    if (PEEL == PEEL_shift && head < shift) head += VEC; /* nothing is read that lies before x */
    if (head > n) head = n;
#endif
    i64 vectors = (n - head) / VEC;
#if PEEL == PEEL_shift
    if (shift) { /* nor behind it */
        vectors = (n - head + shift) / VEC - 1;
        if (vectors < 0) vectors = 0;
    }
#endif

    /* Head and tail have fewer elements than a block has threads. */
    float sum = 0.0f;
    const i64 tail = head + vectors * VEC;
    if (BID(0) == 0) {
        if (TID(0) < head) sum += move_one(from, to, TID(0));
        if (TID(0) < n - tail) sum += move_one(from, to, tail + TID(0));
    }
    from += head;
    to += head;
#if VEC > 1 && PEEL == PEEL_shift
    if (shift) return move(from - shift, to, head, vectors, SHIFT, shift);
#elif VEC > 1 && PEEL == PEEL_head
    if (shift) return move(from, to, head, vectors, GATHER, 0);
#endif
    return sum + move(from, to, head, vectors, VECTORS, 0);
}

KERNEL(BLOCK, 1, MIN_BLOCKS)
copy(GLOBAL const float* RESTRICT x, GLOBAL float* RESTRICT out, i64 n, int offset_in, int offset_out)
{
#if READS
    SHARED float sums[BLOCK];
    const int tid = TID(0);
    sums[tid] = move_all(x + offset_in, out, n);
    SYNC();
    UNROLL_ALL
    for (int stride = BLOCK / 2; stride > 0; stride /= 2) {
        if (tid < stride) sums[tid] += sums[tid + stride];
        SYNC();
    }
    if (tid == 0) ATOMIC_ADD(out, sums[0]); /* out[0] was zeroed before */
#else
    move_all(x + offset_in, out + offset_out, n);
#endif
}
