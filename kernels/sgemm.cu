/* C = alpha A B + beta C in float32, row-major, any size: knows three ways to cut C into work, in the
   common subset of CUDA C++ and OpenCL C.

   A is m x k, B is k x n, C is m x n, with dimensions to 2^30. When beta is 0, C is never read and may
   hold anything; when k is 0, A and B are not.

   VIEW 0 is what is tuned: the matrices lie row by row without gaps, from multiples of 4 * VEC bytes (C of
   16) where their rows are that. With VIEW 1 they lie anywhere, their rows any distance apart, those of A
   and B (TRANS_A, TRANS_B) perhaps column by column, and there may be many of each.

   The plan. Every element of C is a dot product of length k, so each element of A is wanted n times and
   each element of B m times; the three algorithms differ in where the second and later uses find it.

     naive     one thread, one element of C. Reuse is left to the caches.
     tile      a block of threads owns a tile of C and walks along k. For each step it copies one tile of
               A and one of B to shared memory, where BLOCK_X (BLOCK_Y) threads use each element again.
               Every multiply still costs two reads of shared memory, and those become the limit.
     register  a third level: a thread owns TM x TN elements of C in registers. For each k it reads TM + TN
               values from shared memory and does TM * TN multiply-adds with them, so an 8 x 8 thread
               tile reads shared memory 8 times less often than `tile` does.

   Blocks are numbered along one grid dimension, of one C after the other, because the others stop at 65535
   blocks. */

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

#ifndef VIEW
#define VIEW 0 /* 1: further arguments say how the matrices lie */
#endif
#ifndef TRANS_A
#define TRANS_A 0 /* 1: A lies column by column */
#endif
#ifndef TRANS_B
#define TRANS_B 0 /* 1: B lies column by column */
#endif

#include "dialect.h"

/* Rows and columns of C that a block computes. */
#if ALG == ALG_register
#define TILE_M BM
#define TILE_N BN
#else
#define TILE_M BLOCK_Y
#define TILE_N BLOCK_X
#endif

#if VIEW

/* `lda` is the distance from a row of A (a column, where it lies column by column) to the next, `stride_a`
   that from an A to the next. */
#define VIEW_ARGUMENTS , i64 lda, i64 ldb, i64 ldc, i64 stride_a, i64 stride_b, i64 stride_c
#define LDA lda
#define LDB ldb
#define LDC ldc
typedef i64 Pitch;

#define TILES (CEIL_DIV(m, TILE_M) * CEIL_DIV(n, TILE_N))
#define BLOCK (BID(0) % TILES)
/* Let a, b and c be the matrices that this block is there for. */
#define GO_TO_MATRIX()                                  \
    const int matrix = BID(0) / TILES;                  \
    a += matrix * stride_a;                             \
    b += matrix * stride_b;                             \
    c += matrix * stride_c

#else

#define VIEW_ARGUMENTS
#define LDA k
#define LDB n
#define LDC n
typedef int Pitch;

#define BLOCK BID(0)
#define GO_TO_MATRIX()

#endif

/* Whether rows of `length` floats, `pitch` apart, are whole vectors of `floats`, and aligned. */
#if VIEW
#define IS_WIDE(matrix, length, pitch, floats) \
    ((length) % (floats) == 0 && (pitch) % (floats) == 0 && (i64)(matrix) % (4 * (floats)) == 0)
#else
#define IS_WIDE(matrix, length, pitch, floats) ((length) % (floats) == 0)
#endif

/* Where an element of A or B lies. */
#define A_AT(row, col) (TRANS_A ? (i64)(col) * LDA + (row) : (i64)(row) * LDA + (col))
#define B_AT(row, col) (TRANS_B ? (i64)(col) * LDB + (row) : (i64)(row) * LDB + (col))

DEVICE void store(GLOBAL float* c, float product, float alpha, float beta)
{
    *c = beta == 0.0f ? alpha * product : FMA(beta, *c, alpha * product);
}

#if ALG == ALG_naive

/* Neighbouring threads take neighbouring columns: they read one row of B, and write C, in whole sectors,
   and all of them read the same element of A, which costs one access. */
KERNEL(BLOCK_X, BLOCK_Y, MIN_BLOCKS)
sgemm(GLOBAL const float* RESTRICT a, GLOBAL const float* RESTRICT b, GLOBAL float* RESTRICT c,
      float alpha, float beta, int m, int n, int k VIEW_ARGUMENTS)
{
    GO_TO_MATRIX();
    const int tiles_n = CEIL_DIV(n, BLOCK_X);
    const int row = BLOCK / tiles_n * BLOCK_Y + TID(1);
    const int col = BLOCK % tiles_n * BLOCK_X + TID(0);
    if (row >= m || col >= n) return;

    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum = FMA(a[A_AT(row, i)], b[B_AT(i, col)], sum);
    store(c + (i64)row * LDC + col, sum, alpha, beta);
}

#elif ALG == ALG_tile

KERNEL(BLOCK_X, BLOCK_Y, MIN_BLOCKS)
sgemm(GLOBAL const float* RESTRICT a, GLOBAL const float* RESTRICT b, GLOBAL float* RESTRICT c,
      float alpha, float beta, int m, int n, int k VIEW_ARGUMENTS)
{
    SHARED float a_tile[BLOCK_Y][BK];
    SHARED float b_tile[BK][BLOCK_X];

    GO_TO_MATRIX();
    const int tiles_n = CEIL_DIV(n, BLOCK_X);
    const int row0 = BLOCK / tiles_n * BLOCK_Y;
    const int col0 = BLOCK % tiles_n * BLOCK_X;
    const int tid = TID(1) * BLOCK_X + TID(0);

    float sum = 0.0f;
    for (int k0 = 0; k0 < k; k0 += BK) {
        /* The block copies as one long row of threads, so that the tiles need not have its shape. What
           lies outside the matrices counts as zero and adds nothing. */
        for (int i = tid; i < BLOCK_Y * BK; i += BLOCK_X * BLOCK_Y) {
            const int row = row0 + i / BK, col = k0 + i % BK;
            a_tile[i / BK][i % BK] = row < m && col < k ? a[A_AT(row, col)] : 0.0f;
        }
        for (int i = tid; i < BK * BLOCK_X; i += BLOCK_X * BLOCK_Y) {
            const int row = k0 + i / BLOCK_X, col = col0 + i % BLOCK_X;
            b_tile[i / BLOCK_X][i % BLOCK_X] = row < k && col < n ? b[B_AT(row, col)] : 0.0f;
        }
        SYNC(); /* the tiles are complete */
        UNROLL_BY(UNROLL)
        for (int i = 0; i < BK; ++i) sum = FMA(a_tile[TID(1)][i], b_tile[i][TID(0)], sum);
        SYNC(); /* nobody reads them any more */
    }

    /* Only now may threads outside C leave: until here they copied for the others. */
    const int row = row0 + TID(1), col = col0 + TID(0);
    if (row < m && col < n) store(c + (i64)row * LDC + col, sum, alpha, beta);
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

#if BM % TM || BN % TN || BK % VEC || BM % VEC || BN % VEC || BM * BK % (THREADS * VEC) || BK * BN % (THREADS * VEC)
#error "the tiles of A and B must be whole numbers of VEC-wide loads for every thread"
#endif

/* The row and column of a tile, whose rows in memory are `floats` long, at which a piece begins. */
#define PIECE_ROW(piece, floats) ((piece) / ((floats) / VEC))
#define PIECE_COL(piece, floats) ((piece) % ((floats) / VEC) * VEC)

/* VEC floats of a rows x cols matrix, zero where they lie outside. `wide` says that every row starts
   at a multiple of VEC floats, so that VEC floats in one load are aligned, and all inside or all out. */
DEVICE void fetch(float* to, GLOBAL const float* RESTRICT from, int row, int col, int rows, int cols,
                  Pitch pitch, int wide)
{
    const i64 at = (i64)row * pitch + col;
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
                        Pitch lda, Pitch ldb, int tid)
{
    UNROLL_ALL
    for (int p = 0; p < A_PIECES; ++p) {
        const int piece = p * THREADS + tid;
#if TRANS_A
        fetch(a_pieces + p * VEC, a, k0 + PIECE_ROW(piece, BM), row0 + PIECE_COL(piece, BM), k, m, lda,
              IS_WIDE(a, m, lda, VEC));
#else
        fetch(a_pieces + p * VEC, a, row0 + PIECE_ROW(piece, BK), k0 + PIECE_COL(piece, BK), m, k, lda,
              IS_WIDE(a, k, lda, VEC));
#endif
    }
    UNROLL_ALL
    for (int p = 0; p < B_PIECES; ++p) {
        const int piece = p * THREADS + tid;
#if TRANS_B
        fetch(b_pieces + p * VEC, b, col0 + PIECE_ROW(piece, BK), k0 + PIECE_COL(piece, BK), n, k, ldb,
              IS_WIDE(b, k, ldb, VEC));
#else
        fetch(b_pieces + p * VEC, b, k0 + PIECE_ROW(piece, BN), col0 + PIECE_COL(piece, BN), k, n, ldb,
              IS_WIDE(b, n, ldb, VEC));
#endif
    }
}

/* One piece, from registers to the tile of a matrix that lies along k: transposed on the way. */
DEVICE void store_transposed(SHARED_PTR float* tile, int pitch, const float* pieces, int piece)
{
    const int row = PIECE_ROW(piece, BK), col = PIECE_COL(piece, BK);
    UNROLL_ALL
    for (int j = 0; j < VEC; ++j) tile[(col + j) * pitch + row] = pieces[j];
}

/* The same of a matrix that lies across k. */
DEVICE void store_straight(SHARED_PTR float* to, const float* pieces)
{
#if VEC == 4 && (PAD % 4 == 0 || !TRANS_A)
    STS4(to, MAKE4(pieces[0], pieces[1], pieces[2], pieces[3]));
#else
    UNROLL_ALL
    for (int j = 0; j < VEC; ++j) to[j] = pieces[j];
#endif
}

/* The same pieces, from registers to shared memory. */
DEVICE void store_tiles(SHARED_PTR float* a_tile, SHARED_PTR float* b_tile, const float* a_pieces,
                        const float* b_pieces, int tid)
{
    UNROLL_ALL
    for (int p = 0; p < A_PIECES; ++p) {
        const int piece = p * THREADS + tid;
#if TRANS_A
        store_straight(a_tile + PIECE_ROW(piece, BM) * A_PITCH + PIECE_COL(piece, BM), a_pieces + p * VEC);
#else
        store_transposed(a_tile, A_PITCH, a_pieces + p * VEC, piece);
#endif
    }
    UNROLL_ALL
    for (int p = 0; p < B_PIECES; ++p) {
        const int piece = p * THREADS + tid;
#if TRANS_B
        store_transposed(b_tile, BN, b_pieces + p * VEC, piece);
#else
        store_straight(b_tile + piece * VEC, b_pieces + p * VEC);
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
      float alpha, float beta, int m, int n, int k VIEW_ARGUMENTS)
{
    SHARED ALIGN16 float a_tiles[(1 + DOUBLE_SHARED) * BK * A_PITCH];
    SHARED ALIGN16 float b_tiles[(1 + DOUBLE_SHARED) * BK * BN];

    GO_TO_MATRIX();
    const int tiles_n = CEIL_DIV(n, BN);
    const int row0 = BLOCK / tiles_n * BM;
    const int col0 = BLOCK % tiles_n * BN;
    const int tid = TID(0);
    const int thread_m = tid / THREADS_N;
    const int thread_n = tid % THREADS_N;

    float sum[TM * TN];
    UNROLL_ALL
    for (int i = 0; i < TM * TN; ++i) sum[i] = 0.0f;

    float a_pieces[A_PIECES * VEC], b_pieces[B_PIECES * VEC];
    fetch_tiles(a_pieces, b_pieces, a, b, row0, col0, 0, m, n, k, LDA, LDB, tid);
    store_tiles(a_tiles, b_tiles, a_pieces, b_pieces, tid);
    SYNC();

    int full = 0; /* the pair of tiles that is ready */
    for (int k0 = 0; k0 < k; k0 += BK) {
        const int more = k0 + BK < k;
#if DOUBLE_SHARED
        /* The loads are under way while the block multiplies, and one barrier a step is enough. */
        if (more)
            fetch_tiles(a_pieces, b_pieces, a, b, row0, col0, k0 + BK, m, n, k, LDA, LDB, tid);
#endif
        multiply(sum, a_tiles + full * BK * A_PITCH, b_tiles + full * BK * BN, thread_m, thread_n);
#if DOUBLE_SHARED
        full = 1 - full;
#else
        SYNC(); /* nobody reads the tiles any more */
        if (more)
            fetch_tiles(a_pieces, b_pieces, a, b, row0, col0, k0 + BK, m, n, k, LDA, LDB, tid);
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
            store_run(c + (i64)row * LDC + col, sum + i * TN + j, alpha, beta, n - col,
                      IS_WIDE(c, n, LDC, 4));
        }
    }
}

#endif
