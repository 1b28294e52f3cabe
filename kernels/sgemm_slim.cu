/* C = alpha A B + beta C in float32, row-major, where C has a few columns, or a few rows: knows how to read the
   one large matrix once, at the rate of the memory, in the common subset of CUDA C++ and OpenCL C.

   A is m x k, B is k x n, C is m x n, with dimensions to 2^30, and min(m, n) at most FEW. When beta is 0, C is
   never read and may hold anything; when k is 0, A and B are not. VIEW, TRANS_A and TRANS_B are as in sgemm.cu.

   The plan. Of the large matrix, A where C has few columns and B where it has few rows, every element is wanted
   FEW times, all of them by one thread: it goes from memory into a register, and never lies in shared memory.
   What is left to get right is that enough loads are under way at every moment, 40 to 64 KB of them on a
   multiprocessor of an H100, and that what they wait for is not the small matrix.

     line   a row of A, or a column of B: k elements of the large matrix that make FEW elements of C.
     along  k, where a line is contiguous (A; B if it lies column by column). TEAM threads read a line side by
            side, LINES lines at once, UNROLL loads of VEC floats from each, and add up by shuffles.
     across k, where neighbouring lines are neighbours in memory (B; A if it lies column by column). A thread owns
            VEC neighbouring lines, LINES times, and TEAM threads side by side a strip of the matrix; the
            teams of a block walk down it, UNROLL steps of k each at a time, and add up in shared memory.
     grid   a block for every TILE lines, or GRIDK of them that share k where tiles are few: they leave sums in
            a workspace, and whoever comes last adds them up, in one order.

   The small matrix comes through the caches, or from a copy in shared memory (STAGED), which every block makes. */

#ifndef NARROW
#define NARROW_columns 0
#define NARROW_rows 1
#define NARROW NARROW_columns /* what C has few of */
#endif
#ifndef FEW
#define FEW 1 /* of them at most */
#endif
#ifndef BLOCK_THREADS
#define BLOCK_THREADS 256
#endif
#ifndef TEAM
#define TEAM 32 /* threads that read side by side */
#endif
#ifndef LINES
#define LINES 1 /* lines, or VEC times as many, of each of them at once */
#endif
#ifndef VEC
#define VEC 4 /* floats per load: 1, 2 or 4 */
#endif
#ifndef UNROLL
#define UNROLL 4 /* loads in flight per thread and line */
#endif
#ifndef LOAD
#define LOAD_plain 0
#define LOAD_stream 1
#define LOAD_bypass 2
#define LOAD LOAD_plain
#endif
#ifndef STAGED
#define STAGED 0 /* steps of k for which the small matrix lies in shared memory at a time; 0: in the caches */
#endif
#ifndef GRIDK
#define GRIDK 1 /* blocks that share k */
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
#ifndef VIEW
#define VIEW 0
#endif
#ifndef TRANS_A
#define TRANS_A 0
#endif
#ifndef TRANS_B
#define TRANS_B 0
#endif
#ifndef PITCH
#define PITCH int /* type of distances without VIEW */
#endif

#define STORE_plain 0
#define STORE STORE_plain
#include "vectors.h"

#if NARROW == NARROW_columns
#define ALONG (!TRANS_A)
#define SMALL_ALONG TRANS_B /* whether the small matrix is contiguous along k */
#else
#define ALONG TRANS_B
#define SMALL_ALONG (!TRANS_A)
#endif

#define TEAMS (BLOCK_THREADS / TEAM)
#define IN_STEP (TEAM < WARP ? TEAM : WARP) /* threads of a team that are in one warp */
#if ALONG
#define TILE (TEAMS * LINES)          /* lines of a block */
#define STEP (TEAM * VEC * UNROLL)    /* of k, that a block takes at a time */
#define GRAIN (TEAM * VEC)            /* parts of k are multiples of it */
#define COPIES (TEAM / IN_STEP)       /* warps that have a part of one sum */
#define CHAINS (LINES * FEW < 4 ? VEC : 1) /* independent chains of additions per sum */
#define SUMS (LINES * FEW * CHAINS)
#else
#define TILE (TEAM * VEC * LINES)
#define STEP (TEAMS * UNROLL)
#define GRAIN UNROLL
#define COPIES (BLOCK_THREADS / (TEAM > WARP ? TEAM : WARP))
#define SUMS (LINES * VEC * FEW)
#endif

#if BLOCK_THREADS % WARP || BLOCK_THREADS % TEAM || (TEAM & (TEAM - 1))
#error "a block must be whole warps and whole teams, TEAM a power of two"
#endif
#if STAGED % STEP
#error "what is staged of the small matrix must be whole steps"
#endif

#if VIEW
#define VIEW_ARGUMENTS , i64 lda, i64 ldb, i64 ldc, i64 stride_a, i64 stride_b, i64 stride_c
typedef i64 pitch; /* in floats */
#else
#define VIEW_ARGUMENTS
typedef PITCH pitch;
#endif

#if STAGED
#define SMALL_PTR SHARED_PTR
#define SMALL2(p) LDS2(p)
#define SMALL4(p) LDS4(p)
#define SMALL_PITCH (STAGED + 4) /* a multiple of 16 bytes, and FEW columns are stored to as many banks */
#else
#define SMALL_PTR GLOBAL
#define SMALL2(p) LD2(p)
#define SMALL4(p) LD4(p)
#endif

/* `width` floats of the large matrix, VEC or 1, in one load, or zeros. */
DEVICE void load_large(float* to, GLOBAL const float* from, int width, int inside)
{
    if (width == VEC) {
        load_vector(to, from, inside);
    } else {
        to[0] = inside ? GET(from) : 0.0f;
    }
}

DEVICE void store(GLOBAL float* c, float sum, float alpha, float beta)
{
    *c = beta == 0.0f ? alpha * sum : FMA(beta, *c, alpha * sum);
}

#if ALONG

/* The small matrix at `width` neighbouring steps of k, VEC or 1: that of its line j in to[j * VEC] and after. The
   one after `few` lines is read again, for sums that nobody stores. */
DEVICE void load_small(float* to, SMALL_PTR const float* from, pitch apart, int few, int width, int inside)
{
    UNROLL_ALL
    for (int j = 0; j < FEW; ++j) {
        SMALL_PTR const float* line = from + (j < few ? j : few - 1) * (i64)apart;
#if VEC == 4
        if (width == 4) {
            const float4 v = inside ? SMALL4(line) : MAKE4(0.0f, 0.0f, 0.0f, 0.0f);
            to[j * VEC] = v.x, to[j * VEC + 1] = v.y, to[j * VEC + 2] = v.z, to[j * VEC + 3] = v.w;
            continue;
        }
#elif VEC == 2
        if (width == 2) {
            const float2 v = inside ? SMALL2(line) : MAKE2(0.0f, 0.0f);
            to[j * VEC] = v.x, to[j * VEC + 1] = v.y;
            continue;
        }
#endif
        to[j * VEC] = inside ? *line : 0.0f;
    }
}

/* sums += lines times the small matrix over one step. `lines` and `small` stand at the thread's first element; a
   load on, the next `width` are TEAM times as far. Of k from there `left` is; `full` says that all of a step is,
   and saves asking. Lines of the small matrix are `apart`, what it has for a step of k is `step` on. */
DEVICE void add_step(float* sums, GLOBAL const float* const* lines, SMALL_PTR const float* small, pitch apart,
                     pitch step, int few, int width, int full, int left)
{
    float items[LINES * UNROLL * VEC];
    UNROLL_ALL
    for (int i = 0; i < UNROLL * VEC; i += width) {
        UNROLL_ALL
        for (int line = 0; line < LINES; ++line)
            load_large(items + line * UNROLL * VEC + i, lines[line] + i * TEAM, width, full || i * TEAM < left);
    }
    UNROLL_ALL
    for (int i = 0; i < UNROLL * VEC; i += width) {
        float factors[FEW * VEC];
        load_small(factors, small + i * TEAM * step, apart, few, width, full || i * TEAM < left);
        UNROLL_ALL
        for (int v = 0; v < width; ++v) {
            UNROLL_ALL
            for (int s = 0; s < LINES * FEW; ++s) {
                const int chain = s * CHAINS + (i + v) % CHAINS;
                sums[chain] = FMA(items[s / FEW * UNROLL * VEC + i + v], factors[s % FEW * VEC + v], sums[chain]);
            }
        }
    }
}

/* sums += for a part of k, `count` of it, at which `large` and `small` stand. */
DEVICE void add_part(float* sums, GLOBAL const float* large, i64 ld, SMALL_PTR const float* small, pitch apart,
                     pitch step, int first, int lines_in_all, int few, int width, int count)
{
    const int at = TID(0) % TEAM * width;
    GLOBAL const float* lines[LINES];
    UNROLL_ALL
    for (int line = 0; line < LINES; ++line) {
        /* Beyond the last line that one is read again, which costs less than asking at every load. */
        const int number = first + line * TEAMS + TID(0) / TEAM;
        lines[line] = large + (number < lines_in_all ? number : lines_in_all - 1) * ld + at;
    }
    small += at * step;

    int left = count;
    UNROLL_BY(1)
    for (; left >= STEP; left -= STEP) {
        add_step(sums, lines, small, apart, step, few, width, 1, STEP);
        UNROLL_ALL
        for (int line = 0; line < LINES; ++line) lines[line] += STEP;
        small += STEP * step;
    }
    if (left > 0) add_step(sums, lines, small, apart, step, few, width, 0, left - at);
}

/* Add up `sums` over the threads of a team that are in one warp. */
DEVICE void add_up_in_warp(float* sums)
{
    UNROLL_ALL
    for (int s = 0; s < LINES * FEW; ++s) {
        float sum = sums[s * CHAINS];
        UNROLL_ALL
        for (int i = 1; i < CHAINS; ++i) sum += sums[s * CHAINS + i];
        UNROLL_ALL
        for (int distance = IN_STEP / 2; distance > 0; distance /= 2) sum += SHFL_XOR(sum, distance);
        sums[s] = sum;
    }
}

/* Leave those of column (row) j of C as this warp's copy of the tile. */
DEVICE void leave(SHARED_PTR float* copies, const float* sums, int j, int width)
{
    if (TID(0) % IN_STEP) return;
    UNROLL_ALL
    for (int line = 0; line < LINES; ++line)
        copies[TID(0) % TEAM / WARP * TILE + line * TEAMS + TID(0) / TEAM] = sums[line * FEW + j];
}

#else /* across */

/* Where in a tile the thread's line number i of LINES * VEC is: VEC are neighbours, or the team's, where `width`
   is 1. */
DEVICE int line_of(int i, int width)
{
    return width == VEC ? (i / VEC * TEAM + TID(0) % TEAM) * VEC + i % VEC : i * TEAM + TID(0) % TEAM;
}

/* sums += for the UNROLL steps of k at which `large` and `small` stand, of which `left` exist. */
DEVICE void add_step(float* sums, GLOBAL const float* large, i64 ld, const int* lines, SMALL_PTR const float* small,
                     pitch apart, pitch step, int few, int width, int full, int left)
{
    float items[UNROLL * LINES * VEC];
    UNROLL_ALL
    for (int u = 0; u < UNROLL; ++u) {
        UNROLL_ALL
        for (int i = 0; i < LINES * VEC; i += width)
            load_large(items + u * LINES * VEC + i, large + u * ld + lines[i], width, full || u < left);
    }
    UNROLL_ALL
    for (int u = 0; u < UNROLL; ++u) {
        UNROLL_ALL
        for (int j = 0; j < FEW; ++j) {
            const float factor = full || u < left ? small[(j < few ? j : few - 1) * (i64)apart + u * step] : 0.0f;
            UNROLL_ALL
            for (int i = 0; i < LINES * VEC; ++i)
                sums[i * FEW + j] = FMA(items[u * LINES * VEC + i], factor, sums[i * FEW + j]);
        }
    }
}

DEVICE void add_part(float* sums, GLOBAL const float* large, i64 ld, SMALL_PTR const float* small, pitch apart,
                     pitch step, int first, int lines_in_all, int few, int width, int count)
{
    int lines[LINES * VEC];
    UNROLL_ALL
    for (int i = 0; i < LINES * VEC; ++i) {
        /* Beyond the last line, the last that a load of `width` can begin at. */
        const int number = first + line_of(i, width);
        lines[i] = number <= lines_in_all - width ? number : lines_in_all - width;
    }
    const int begin = TID(0) / TEAM * UNROLL;
    large += begin * ld;
    small += begin * step;

    int left = count - begin;
    UNROLL_BY(1)
    for (; left >= UNROLL; left -= STEP) {
        add_step(sums, large, ld, lines, small, apart, step, few, width, 1, UNROLL);
        large += STEP * ld;
        small += STEP * step;
    }
    if (left > 0) add_step(sums, large, ld, lines, small, apart, step, few, width, 0, left);
}

/* Add up `sums` over the teams that are in one warp. */
DEVICE void add_up_in_warp(float* sums)
{
    UNROLL_ALL
    for (int s = 0; s < SUMS; ++s) {
        UNROLL_ALL
        for (int distance = TEAM; distance < WARP; distance *= 2) sums[s] += SHFL_XOR(sums[s], distance);
    }
}

DEVICE void leave(SHARED_PTR float* copies, const float* sums, int j, int width)
{
    if (TID(0) % WARP >= IN_STEP) return;
    UNROLL_ALL
    for (int i = 0; i < LINES * VEC; ++i)
        copies[TID(0) / (TEAM > WARP ? TEAM : WARP) * TILE + line_of(i, width)] = sums[i * FEW + j];
}

#endif

#if GRIDK > 1
#define MOST_SHARES 1024 /* as spaces/sgemm.py and spaces/gemv_columns.py have it */

/* How many blocks have left their sums of a tile in the workspace. Zeros between launches, so that two launches
   of one loaded module must not overlap, on two streams say. */
#ifdef __OPENCL_VERSION__
__global unsigned arrived[MOST_SHARES];
#else
__device__ unsigned arrived[MOST_SHARES];
#endif
#define PARTIAL_ARGUMENT , GLOBAL float* partial
#else
#define PARTIAL_ARGUMENT
#endif

/* Grid: (tiles of C, of one matrix after the other, GRIDK). Without a word on MIN_BLOCKS the compiler aims at full
   occupancy, by waiting for each load before it issues the next. */
KERNEL(BLOCK_THREADS, 1, MIN_BLOCKS)
sgemm(GLOBAL const float* RESTRICT a, GLOBAL const float* RESTRICT b, GLOBAL float* RESTRICT c,
      float alpha, float beta, int m, int n, int k VIEW_ARGUMENTS PARTIAL_ARGUMENT)
{
    SHARED float copies[COPIES * TILE];
#if STAGED
    SHARED ALIGN16 float staged[FEW * SMALL_PITCH];
#endif

#if NARROW == NARROW_columns
    const int count = m, few = n;
#else
    const int count = n, few = m;
#endif
#if VIEW
    const int tiles = CEIL_DIV(count, TILE), first = BID(0) % tiles * TILE;
    const i64 matrix = BID(0) / tiles;
    a += matrix * stride_a, b += matrix * stride_b, c += matrix * stride_c;
#else
    const int first = BID(0) * TILE;
    const pitch lda = TRANS_A ? m : k, ldb = TRANS_B ? k : n, ldc = n;
#endif
#if NARROW == NARROW_columns
    GLOBAL const float *large = a, *small = b;
    const pitch ld = lda, line_of_c = ldc, next_of_c = 1;
    const pitch apart = SMALL_ALONG ? ldb : 1, step = SMALL_ALONG ? 1 : ldb;
#else
    GLOBAL const float *large = b, *small = a;
    const pitch ld = ldb, line_of_c = 1, next_of_c = ldc;
    const pitch apart = SMALL_ALONG ? lda : 1, step = SMALL_ALONG ? 1 : lda;
#endif

    /* Wide loads need every line, or every step of k, to start at a multiple of VEC floats; if not, a thread
       loads as many single floats instead. */
    const int length = ALONG ? k : count;
    int wide = length % VEC == 0 && ld % VEC == 0 && IS_ALIGNED(large);
#if ALONG && !STAGED
    wide = wide && step == 1 && (few == 1 || apart % VEC == 0) && IS_ALIGNED(small);
#endif

    /* This block's part of k: whole steps of its teams; the last ones may have fewer, or none. */
#if GRIDK > 1
    const int depth = CEIL_DIV(CEIL_DIV(k, GRIDK), GRAIN) * GRAIN;
    const int begin = BID(1) * depth < k ? BID(1) * depth : k;
    const int end = k - begin < depth ? k : begin + depth;
#else
    const int begin = 0, end = k;
#endif

    float sums[SUMS];
    UNROLL_ALL
    for (int s = 0; s < SUMS; ++s) sums[s] = 0.0f;
#if STAGED
    for (int from = begin; from < end; from += STAGED) {
        const int part = end - from < STAGED ? end - from : STAGED;
        SYNC(); /* nobody reads the part before it any more */
        for (int i = TID(0); i < FEW * STAGED; i += BLOCK_THREADS) {
            const int j = SMALL_ALONG ? i / STAGED : i % FEW, at = SMALL_ALONG ? i % STAGED : i / FEW;
            if (j < few && at < part) staged[j * SMALL_PITCH + at] = small[j * (i64)apart + (from + at) * (i64)step];
        }
        SYNC();
        GLOBAL const float* here = large + from * (ALONG ? (i64)1 : (i64)ld);
        if (wide) {
            add_part(sums, here, ld, staged, SMALL_PITCH, 1, first, count, few, VEC, part);
        } else {
            add_part(sums, here, ld, staged, SMALL_PITCH, 1, first, count, few, 1, part);
        }
    }
#else
    large += begin * (ALONG ? (i64)1 : (i64)ld);
    small += begin * (i64)step;
    if (wide) {
        add_part(sums, large, ld, small, apart, ALONG ? 1 : step, first, count, few, VEC, end - begin);
    } else {
        add_part(sums, large, ld, small, apart, step, first, count, few, 1, end - begin);
    }
#endif

    add_up_in_warp(sums);
    c += first * (i64)line_of_c;
#if GRIDK > 1
    GLOBAL float* mine = partial + ((i64)BID(1) * GRID(0) + BID(0)) * (TILE * FEW);
#endif
    UNROLL_ALL
    for (int j = 0; j < FEW; ++j) {
        if (j > 0) SYNC(); /* nobody reads what was left before any more */
        if (wide) {
            leave(copies, sums, j, VEC);
        } else {
            leave(copies, sums, j, 1);
        }
        SYNC();
        UNROLL_BY(1)
        for (int line = TID(0); line < TILE; line += BLOCK_THREADS) {
            float sum = copies[line];
            UNROLL_ALL
            for (int copy = 1; copy < COPIES; ++copy) sum += copies[copy * TILE + line];
#if GRIDK > 1
            mine[j * TILE + line] = sum;
#else
            if (first + line < count && j < few) store(c + line * line_of_c + j * (i64)next_of_c, sum, alpha, beta);
#endif
        }
    }

#if GRIDK > 1
    /* Whoever is the last of a tile knows that all sums of it are there, provided that each was made visible to
       the device before its block counted, and is read only after the last one did: a fence on either side. The
       barriers extend both to the other threads of the block. */
    SHARED int is_last;
    SYNC_GLOBAL();
    if (TID(0) == 0) {
        FENCE_DEVICE();
        is_last = ATOMIC_INC(arrived + BID(0)) == GRIDK - 1;
        if (is_last) arrived[BID(0)] = 0;
        FENCE_DEVICE();
    }
    SYNC_GLOBAL();
    if (!is_last) return;
#if GRIDK > 16
    /* Many parts of a small tile. Each float of `copies` takes the sum of every COPIES-th part, then the copies are
       added up. The parts are read as volatile, as below. */
    UNROLL_ALL
    for (int j = 0; j < FEW; ++j) {
        if (j > 0) SYNC();
        UNROLL_BY(1)
        for (int i = TID(0); i < COPIES * TILE; i += BLOCK_THREADS) {
            const i64 first_part = i / TILE, next_part = (i64)GRID(0) * (TILE * FEW);
            volatile GLOBAL const float* theirs =
                partial + first_part * next_part + (i64)BID(0) * (TILE * FEW) + j * TILE + i % TILE;
            float sum = 0.0f;
            UNROLL_ALL
            for (int part = 0; part < GRIDK; part += COPIES)
                if (part + first_part < GRIDK) sum += theirs[part * next_part];
            copies[i] = sum;
        }
        SYNC();
        UNROLL_BY(1)
        for (int line = TID(0); line < TILE; line += BLOCK_THREADS) {
            float sum = copies[line];
            UNROLL_ALL
            for (int copy = 1; copy < COPIES; ++copy) sum += copies[copy * TILE + line];
            if (first + line < count && j < few) store(c + line * line_of_c + j * (i64)next_of_c, sum, alpha, beta);
        }
    }
#else
    UNROLL_BY(1)
    for (int i = TID(0); i < TILE * FEW; i += BLOCK_THREADS) {
        const int j = i / TILE, line = i % TILE;
        /* volatile: other blocks wrote them, so they must not have been read earlier */
        volatile GLOBAL const float* theirs = partial + (i64)BID(0) * (TILE * FEW) + i;
        float sum = 0.0f;
        UNROLL_ALL
        for (int part = 0; part < GRIDK; ++part) sum += theirs[(i64)part * GRID(0) * (TILE * FEW)];
        if (first + line < count && j < few) store(c + line * line_of_c + j * (i64)next_of_c, sum, alpha, beta);
    }
#endif
#endif
}
