/* C = alpha A B + beta C in float32, row-major, where k is short: knows how to write C at the rate of the memory, in
   the common subset of CUDA C++ and OpenCL C.

   A is m x k, B is k x n, C is m x n, with dimensions to 2^30 and k at most MOST_K. When beta is 0, C is never read
   and may hold anything; when k is 0, A and B are not.

   The plan. Of k outer products little is read, and all that takes time is C. A block has all of k at once, so
   there is no pipeline to fill: its rows of A lie in shared memory, B comes through the caches, and each thread
   adds up TM x TN elements of C in registers. TEAM threads side by side have neighbouring columns, TN times, so
   that rows of any length are written in whole lines; the teams of a block have neighbouring rows, TM times. */

#ifndef BLOCK_THREADS
#define BLOCK_THREADS 256
#endif
#ifndef TEAM
#define TEAM 32 /* threads that have a row of C side by side */
#endif
#ifndef TM
#define TM 8 /* rows of C per thread */
#endif
#ifndef TN
#define TN 4 /* columns of C per thread */
#endif
#ifndef VEC
#define VEC 1 /* of them that are neighbours: 1, or 4 where rows are whole quads */
#endif

#define LOAD_plain 0
#define LOAD LOAD_plain
#define STORE_plain 0
#define STORE STORE_plain
#include "vectors.h"

#define MOST_K 64 /* as spaces/sgemm.py has it */
#define STEP 4    /* of k, that a thread takes at a time */
#define BATCH 8   /* elements of A that it loads at a time */
/* Blocks of a multiprocessor with 65536 registers: sums, two steps of B and 32 others are what a thread needs. */
#define MIN_BLOCKS (65536 / (BLOCK_THREADS * (TM * TN + 2 * STEP * TN + 32)))
#define TEAMS (BLOCK_THREADS / TEAM)
#define TILE_M (TEAMS * TM)
#define TILE_N (TEAM * TN)
/* How far the thread's column number j of TN is from its first. */
#define COLUMN(j) ((j) / VEC * (TEAM * VEC) + (j) % VEC)

#if BLOCK_THREADS % TEAM || TN % VEC || MOST_K % STEP
#error "a block must be whole teams, a thread's columns whole vectors, MOST_K whole steps"
#endif

/* Copy `rows` rows of A, of the TILE_M of a tile, to shared memory, `pitch` floats apart; zeros where a step goes beyond
   k. A power of two threads has a row, and loads of BATCH rows are under way at a time. */
DEVICE void stage(SHARED_PTR float* staged, GLOBAL const float* a, int rows, int k, int pitch)
{
    int shift = 2;
    while (1 << shift < k) ++shift;
    const int at = TID(0) & ((1 << shift) - 1), first = TID(0) >> shift, apart = BLOCK_THREADS >> shift;
    a += first * (i64)k + at;
    staged += first * pitch + at;
    UNROLL_BY(1)
    for (int row = first; row < TILE_M; row += BATCH * apart) {
        float items[BATCH];
        UNROLL_ALL
        for (int i = 0; i < BATCH; ++i, a += apart * k)
            items[i] = at < k && row + i * apart < rows ? GET(a) : 0.0f;
        UNROLL_ALL
        for (int i = 0; i < BATCH; ++i, staged += apart * pitch)
            if (row + i * apart < TILE_M && at < pitch) *staged = items[i];
    }
}

/* A step of rows of B in the thread's columns, of which there are `columns` from its first on; zeros where `left`
   of k are fewer. */
DEVICE void load_step(float* of_b, GLOBAL const float* b, int columns, int left, int n)
{
    UNROLL_ALL
    for (int u = 0; u < STEP; ++u, b += n)
        UNROLL_ALL
        for (int j = 0; j < TN; j += VEC) load_vector(of_b + u * TN + j, b + COLUMN(j), u < left && COLUMN(j) < columns);
}

KERNEL(BLOCK_THREADS, 1, MIN_BLOCKS)
sgemm(GLOBAL const float* RESTRICT a, GLOBAL const float* RESTRICT b, GLOBAL float* RESTRICT c, float alpha, float beta,
      int m, int n, int k)
{
    SHARED ALIGN16 float staged[TILE_M * (MOST_K + STEP)];
    const int across = CEIL_DIV(n, TILE_N), team = TID(0) / TEAM;
    const int first_row = BID(0) / across * TILE_M;
    const int column = BID(0) % across * TILE_N + TID(0) % TEAM * VEC;
    /* An odd number of quads, so that the rows of a warp's teams lie in different banks. */
    const int pitch = (CEIL_DIV(k, STEP) | 1) * STEP;

    float next[STEP * TN], sums[TM * TN];
    b += column;
    load_step(next, b, n - column, k, n);
    stage(staged, a + first_row * (i64)k, m - first_row, k, pitch);
    UNROLL_ALL
    for (int i = 0; i < TM * TN; ++i) sums[i] = 0.0f;
    SYNC();

    SHARED_PTR const float* rows = staged + team * pitch;
    UNROLL_BY(1)
    for (int left = k; left > 0; left -= STEP, rows += STEP) {
        float of_b[STEP * TN];
        UNROLL_ALL
        for (int i = 0; i < STEP * TN; ++i) of_b[i] = next[i];
        b += STEP * (i64)n;
        load_step(next, b, n - column, left - STEP, n);
        UNROLL_ALL
        for (int i = 0; i < TM; ++i) {
            const float4 of_a = LDS4(rows + i * TEAMS * pitch);
            const float steps[STEP] = {of_a.x, of_a.y, of_a.z, of_a.w};
            UNROLL_ALL
            for (int u = 0; u < STEP; ++u)
                UNROLL_ALL
                for (int j = 0; j < TN; ++j) sums[i * TN + j] = FMA(steps[u], of_b[u * TN + j], sums[i * TN + j]);
        }
    }

    c += (first_row + team) * (i64)n + column;
    UNROLL_ALL
    for (int i = 0; i < TM; ++i, c += TEAMS * (i64)n) {
        if (first_row + team + i * TEAMS >= m) break;
        UNROLL_ALL
        for (int j = 0; j < TN; ++j) sums[i * TN + j] *= alpha;
        if (beta != 0.0f) {
            UNROLL_ALL
            for (int j = 0; j < TN; ++j)
                if (COLUMN(j) < n - column) sums[i * TN + j] = FMA(beta, c[COLUMN(j)], sums[i * TN + j]);
        }
        UNROLL_ALL
        for (int j = 0; j < TN; j += VEC)
            if (COLUMN(j) < n - column) store_vector(c + COLUMN(j), sums + i * TN + j);
    }
}
