/* C = alpha A B + beta C in float32, row-major, any size: knows three ways to cut C into work, in the
   common subset of CUDA C++ and OpenCL C.

   A is m x k, B is k x n, C is m x n, with dimensions to 2^30. When beta is 0, C is never read and may
   hold anything.

   The plan. Every element of C is a dot product of length k, so each element of A is wanted n times and
   each element of B m times; the three algorithms differ in where the second and later uses find it.

     naive     one thread, one element of C. Reuse is left to the caches.
     tile      a block of threads owns a tile of C and walks along k. For each step it copies one tile of
               A and one of B to shared memory, where BLOCK_X (BLOCK_Y) threads use each element again.
               Every multiply still costs two reads of shared memory, and those become the limit.
     register  a third level: a thread owns TM x TN elements of C in registers. For each k it reads TM + TN
               values from shared memory and does TM * TN multiply-adds with them, so an 8 x 8 thread
               tile reads shared memory 8 times less often than `tile` does.

   Blocks are numbered along one grid dimension, because the others stop at 65535 blocks. */

#ifndef ALG
#define ALG_naive 0
#define ALG_tile 1
#define ALG_register 2
#define ALG ALG_register
#endif

/* ALG naive and tile */
#ifndef BLOCK_X
#define BLOCK_X 32 /* threads along a row of C */
#endif
#ifndef BLOCK_Y
#define BLOCK_Y 8 /* threads along a column of C */
#endif

/* ALG tile and register */
#ifndef BK
#define BK 16 /* depth of the tiles of A and B in shared memory */
#endif
#ifndef UNROLL
#define UNROLL 4 /* steps along k written out in the inner loop */
#endif

/* ALG register */
#ifndef BM
#define BM 64 /* rows of C per block */
#endif
#ifndef BN
#define BN 64 /* columns of C per block */
#endif
#ifndef TM
#define TM 4 /* rows of C per thread */
#endif
#ifndef TN
#define TN 4 /* columns of C per thread */
#endif
#ifndef VEC
#define VEC 4 /* floats per load from global memory */
#endif
#ifndef PAD
#define PAD 0 /* floats added to each row of A's tile in shared memory */
#endif
#ifndef DOUBLE_SHARED
#define DOUBLE_SHARED 1 /* two pairs of tiles: fill one while the other is multiplied */
#endif
#ifndef DOUBLE_FRAGMENT
#define DOUBLE_FRAGMENT 0 /* read the values of step k+1 before the multiplications of step k */
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 0 /* blocks that must fit on one multiprocessor, 0: no demand (CUDA only) */
#endif

#include "dialect.h"

DEVICE void store(GLOBAL float* c, float product, float alpha, float beta)
{
    *c = beta == 0.0f ? alpha * product : FMA(beta, *c, alpha * product);
}

#if ALG == ALG_naive

/* Neighbouring threads take neighbouring columns: they read one row of B, and write C, in whole sectors,
   and all of them read the same element of A, which costs one access. */
KERNEL(BLOCK_X, BLOCK_Y, MIN_BLOCKS)
sgemm(GLOBAL const float* RESTRICT a, GLOBAL const float* RESTRICT b, GLOBAL float* RESTRICT c,
      float alpha, float beta, int m, int n, int k)
{
    const int tiles_n = CEIL_DIV(n, BLOCK_X);
    const int row = BID(0) / tiles_n * BLOCK_Y + TID(1);
    const int col = BID(0) % tiles_n * BLOCK_X + TID(0);
    if (row >= m || col >= n) return;

    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum = FMA(a[(i64)row * k + i], b[(i64)i * n + col], sum);
    store(c + (i64)row * n + col, sum, alpha, beta);
}

#elif ALG == ALG_tile

KERNEL(BLOCK_X, BLOCK_Y, MIN_BLOCKS)
sgemm(GLOBAL const float* RESTRICT a, GLOBAL const float* RESTRICT b, GLOBAL float* RESTRICT c,
      float alpha, float beta, int m, int n, int k)
{
    SHARED float a_tile[BLOCK_Y][BK];
    SHARED float b_tile[BK][BLOCK_X];

    const int tiles_n = CEIL_DIV(n, BLOCK_X);
    const int row0 = BID(0) / tiles_n * BLOCK_Y;
    const int col0 = BID(0) % tiles_n * BLOCK_X;
    const int tid = TID(1) * BLOCK_X + TID(0);

    float sum = 0.0f;
    for (int k0 = 0; k0 < k; k0 += BK) {
        /* The block copies as one long row of threads, so that the tiles need not have its shape. What
           lies outside the matrices counts as zero and adds nothing. */
        for (int i = tid; i < BLOCK_Y * BK; i += BLOCK_X * BLOCK_Y) {
            const int row = row0 + i / BK, col = k0 + i % BK;
            a_tile[i / BK][i % BK] = row < m && col < k ? a[(i64)row * k + col] : 0.0f;
        }
        for (int i = tid; i < BK * BLOCK_X; i += BLOCK_X * BLOCK_Y) {
            const int row = k0 + i / BLOCK_X, col = col0 + i % BLOCK_X;
            b_tile[i / BLOCK_X][i % BLOCK_X] = row < k && col < n ? b[(i64)row * n + col] : 0.0f;
        }
        SYNC(); /* the tiles are complete */
        UNROLL_BY(UNROLL)
        for (int i = 0; i < BK; ++i) sum = FMA(a_tile[TID(1)][i], b_tile[i][TID(0)], sum);
        SYNC(); /* nobody reads them any more */
    }

    /* Only now may threads outside C leave: until here they copied for the others. */
    const int row = row0 + TID(1), col = col0 + TID(0);
    if (row < m && col < n) store(c + (i64)row * n + col, sum, alpha, beta);
}

#elif ALG == ALG_register

#define THREADS_M (BM / TM)
#define THREADS_N (BN / TN)
#define THREADS (THREADS_M * THREADS_N)

/* A's tile lies transposed, [k][row], so that the TM rows a thread needs for one k are neighbours and
   come in reads of up to 16 bytes. Transposing makes the threads that store one row of A hit addresses
   A_PITCH apart; PAD moves those to different banks. A pitch that is no multiple of 4 floats breaks the
   alignment that wide reads need. */
#define A_PITCH (BM + PAD)
#define RUN_OF(floats) ((floats) % 4 == 0 ? 4 : (floats) % 2 == 0 ? 2 : 1)
#define RUN_M (PAD % 4 == 0 ? RUN_OF(TM) : 1)
#define RUN_N RUN_OF(TN)

/* A thread's rows are not TM neighbours but TM / RUN_M runs of RUN_M, THREADS_M * RUN_M apart: then the
   threads of a warp read one unbroken stretch of shared memory, which has no bank conflicts. */
#define ROW(i) ((i) / RUN_M * (THREADS_M * RUN_M) + thread_m * RUN_M + (i) % RUN_M)
#define COL(j) ((j) / RUN_N * (THREADS_N * RUN_N) + thread_n * RUN_N + (j) % RUN_N)

#define A_PIECES (BM * BK / VEC / THREADS) /* loads of VEC floats per thread and tile */
#define B_PIECES (BK * BN / VEC / THREADS)

#if BM % TM || BN % TN || BK % VEC || BN % VEC || BM * BK % (THREADS * VEC) || BK * BN % (THREADS * VEC)
#error "the tiles of A and B must be whole numbers of VEC-wide loads for every thread"
#endif

/* VEC floats of a rows x cols matrix, zero where they lie outside. `wide` says that every row starts
   at a multiple of VEC floats, so that VEC floats in one load are aligned, and all inside or all out. */
DEVICE void fetch(float* to, GLOBAL const float* RESTRICT from, int row, int col, int rows, int cols,
                  int wide)
{
    const i64 at = (i64)row * cols + col;
#if VEC == 4
    if (wide) {
        const float4 v = row < rows && col < cols ? LD4(from + at) : MAKE4(0.0f, 0.0f, 0.0f, 0.0f);
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
        return;
    }
#elif VEC == 2
    if (wide) {
        const float2 v = row < rows && col < cols ? LD2(from + at) : MAKE2(0.0f, 0.0f);
        to[0] = v.x, to[1] = v.y;
        return;
    }
#endif
    UNROLL_ALL
    for (int j = 0; j < VEC; ++j) to[j] = row < rows && col + j < cols ? from[at + j] : 0.0f;
}

/* `run` neighbouring floats of shared memory. */
DEVICE void read_run(float* to, SHARED_PTR const float* from, int run)
{
    if (run == 4) {
        const float4 v = LDS4(from);
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else if (run == 2) {
        const float2 v = LDS2(from);
        to[0] = v.x, to[1] = v.y;
    } else {
        to[0] = *from;
    }
}

/* What one thread needs from the tiles for one k: TM values of A and TN of B. */
DEVICE void read_fragments(float* a_frag, float* b_frag, SHARED_PTR const float* a_row,
                           SHARED_PTR const float* b_row, int thread_m, int thread_n)
{
    UNROLL_ALL
    for (int i = 0; i < TM; i += RUN_M) read_run(a_frag + i, a_row + ROW(i), RUN_M);
    UNROLL_ALL
    for (int j = 0; j < TN; j += RUN_N) read_run(b_frag + j, b_row + COL(j), RUN_N);
}

DEVICE void outer_product(float* sum, const float* a_frag, const float* b_frag)
{
    UNROLL_ALL
    for (int i = 0; i < TM; ++i) {
        UNROLL_ALL
        for (int j = 0; j < TN; ++j) sum[i * TN + j] = FMA(a_frag[i], b_frag[j], sum[i * TN + j]);
    }
}

/* sum += (tile of A) (tile of B), for the elements of one thread. */
DEVICE void multiply(float* sum, SHARED_PTR const float* a_tile, SHARED_PTR const float* b_tile,
                     int thread_m, int thread_n)
{
    float a_frag[TM], b_frag[TN];
#if DOUBLE_FRAGMENT
    /* The reads of the next step run while this one multiplies. The copies at the end of the step
       vanish where the loop is unrolled: the two sets just change names. */
    float a_next[TM], b_next[TN];
    read_fragments(a_frag, b_frag, a_tile, b_tile, thread_m, thread_n);
    UNROLL_BY(UNROLL)
    for (int i = 0; i < BK; ++i) {
        const int ahead = i + 1 < BK ? i + 1 : i;
        read_fragments(a_next, b_next, a_tile + ahead * A_PITCH, b_tile + ahead * BN, thread_m, thread_n);
        outer_product(sum, a_frag, b_frag);
        UNROLL_ALL
        for (int j = 0; j < TM; ++j) a_frag[j] = a_next[j];
        UNROLL_ALL
        for (int j = 0; j < TN; ++j) b_frag[j] = b_next[j];
    }
#else
    UNROLL_BY(UNROLL)
    for (int i = 0; i < BK; ++i) {
        read_fragments(a_frag, b_frag, a_tile + i * A_PITCH, b_tile + i * BN, thread_m, thread_n);
        outer_product(sum, a_frag, b_frag);
    }
#endif
}

/* This thread's pieces of the next tiles, into registers. */
DEVICE void fetch_tiles(float* a_pieces, float* b_pieces, GLOBAL const float* RESTRICT a,
                        GLOBAL const float* RESTRICT b, int row0, int col0, int k0, int m, int n, int k,
                        int tid)
{
    UNROLL_ALL
    for (int p = 0; p < A_PIECES; ++p) {
        const int piece = p * THREADS + tid;
        fetch(a_pieces + p * VEC, a, row0 + piece / (BK / VEC), k0 + piece % (BK / VEC) * VEC, m, k,
              k % VEC == 0);
    }
    UNROLL_ALL
    for (int p = 0; p < B_PIECES; ++p) {
        const int piece = p * THREADS + tid;
        fetch(b_pieces + p * VEC, b, k0 + piece / (BN / VEC), col0 + piece % (BN / VEC) * VEC, k, n,
              n % VEC == 0);
    }
}

/* The same pieces, from registers to shared memory; A's are transposed on the way. */
DEVICE void store_tiles(SHARED_PTR float* a_tile, SHARED_PTR float* b_tile, const float* a_pieces,
                        const float* b_pieces, int tid)
{
    UNROLL_ALL
    for (int p = 0; p < A_PIECES; ++p) {
        const int piece = p * THREADS + tid;
        const int row = piece / (BK / VEC), col = piece % (BK / VEC) * VEC;
        UNROLL_ALL
        for (int j = 0; j < VEC; ++j) a_tile[(col + j) * A_PITCH + row] = a_pieces[p * VEC + j];
    }
    UNROLL_ALL
    for (int p = 0; p < B_PIECES; ++p) {
        SHARED_PTR float* to = b_tile + (p * THREADS + tid) * VEC;
#if VEC == 4
        STS4(to, MAKE4(b_pieces[p * 4], b_pieces[p * 4 + 1], b_pieces[p * 4 + 2], b_pieces[p * 4 + 3]));
#else
        UNROLL_ALL
        for (int j = 0; j < VEC; ++j) to[j] = b_pieces[p * VEC + j];
#endif
    }
}

/* RUN_N neighbouring elements of one row of C, of which the first `left` lie inside it. */
DEVICE void store_run(GLOBAL float* c, const float* sum, float alpha, float beta, int left, int wide)
{
#if RUN_N == 4
    if (wide && left > 0) {
        float4 v = MAKE4(alpha * sum[0], alpha * sum[1], alpha * sum[2], alpha * sum[3]);
        if (beta != 0.0f) {
            const float4 old = LD4(c);
            v.x = FMA(beta, old.x, v.x), v.y = FMA(beta, old.y, v.y);
            v.z = FMA(beta, old.z, v.z), v.w = FMA(beta, old.w, v.w);
        }
        ST4(c, v);
        return;
    }
#endif
    UNROLL_ALL
    for (int j = 0; j < RUN_N; ++j)
        if (j < left) store(c + j, sum[j], alpha, beta);
}

KERNEL(THREADS, 1, MIN_BLOCKS)
sgemm(GLOBAL const float* RESTRICT a, GLOBAL const float* RESTRICT b, GLOBAL float* RESTRICT c,
      float alpha, float beta, int m, int n, int k)
{
    SHARED ALIGN16 float a_tiles[(1 + DOUBLE_SHARED) * BK * A_PITCH];
    SHARED ALIGN16 float b_tiles[(1 + DOUBLE_SHARED) * BK * BN];

    const int tiles_n = CEIL_DIV(n, BN);
    const int row0 = BID(0) / tiles_n * BM;
    const int col0 = BID(0) % tiles_n * BN;
    const int tid = TID(0);
    const int thread_m = tid / THREADS_N;
    const int thread_n = tid % THREADS_N;

    float sum[TM * TN];
    UNROLL_ALL
    for (int i = 0; i < TM * TN; ++i) sum[i] = 0.0f;

    float a_pieces[A_PIECES * VEC], b_pieces[B_PIECES * VEC];
    fetch_tiles(a_pieces, b_pieces, a, b, row0, col0, 0, m, n, k, tid);
    store_tiles(a_tiles, b_tiles, a_pieces, b_pieces, tid);
    SYNC();

    int full = 0; /* the pair of tiles that is ready */
    for (int k0 = 0; k0 < k; k0 += BK) {
        const int more = k0 + BK < k;
#if DOUBLE_SHARED
        /* The loads are under way while the block multiplies, and one barrier a step is enough. */
        if (more) fetch_tiles(a_pieces, b_pieces, a, b, row0, col0, k0 + BK, m, n, k, tid);
#endif
        multiply(sum, a_tiles + full * BK * A_PITCH, b_tiles + full * BK * BN, thread_m, thread_n);
#if DOUBLE_SHARED
        full = 1 - full;
#else
        SYNC(); /* nobody reads the tiles any more */
        if (more) fetch_tiles(a_pieces, b_pieces, a, b, row0, col0, k0 + BK, m, n, k, tid);
#endif
        if (more)
            store_tiles(a_tiles + full * BK * A_PITCH, b_tiles + full * BK * BN, a_pieces, b_pieces, tid);
        SYNC();
    }

    UNROLL_ALL
    for (int i = 0; i < TM; ++i) {
        const int row = row0 + ROW(i);
        if (row >= m) continue;
        UNROLL_ALL
        for (int j = 0; j < TN; j += RUN_N) {
            const int col = col0 + COL(j);
            store_run(c + (i64)row * n + col, sum + i * TN + j, alpha, beta, n - col, n % 4 == 0);
        }
    }
}

#endif
