/* C (m x n) = A (m x k, sparse) B (k x n) in float32: A by compressed rows (row r has the entries row_start[r] to
   row_start[r + 1] of columns and values, in any order), B and C row-major. Knows three ways to share the entries out, in
   the common subset of CUDA C++ and OpenCL C.

   Lanes of a TEAM lie along the columns of C, VEC floats each. All of them need the same entry of A, one access, and
   read a piece of a row of B side by side; nothing has to be added across lanes.

     ALG  row    a team for each row: no more work than there is, but the longest row decides when all is over
          block  the same, but a row of more than SHARE entries is shared by all teams of its block, whose sums add up in
                 shared memory: the same bits in every run, and no row is long
          split  a team for every SHARE entries, wherever rows begin: an equal share, whatever the rows' lengths. The
                 first row is found by bisection; rows that a share cuts are added to C by atomics, others stored.
                 C is 0 before */
#ifndef BLOCK
#define BLOCK 256 /* threads per block */
#endif
#ifndef TEAM
#define TEAM 32 /* threads along the columns of C */
#endif
#ifndef VEC
#define VEC 1 /* columns of each: 1, 2 or 4 */
#endif
#ifndef ALG
#define ALG_row 0
#define ALG_split 1
#define ALG_block 2
#define ALG ALG_row
#endif
#ifndef SHARE
#define SHARE 128 /* split: entries of a team; block: of the longest row of a team */
#endif
#ifndef UNROLL
#define UNROLL 4 /* entries under way at once */
#endif
#define LOAD_plain 0
#define LOAD LOAD_plain
#define STORE_plain 0
#define STORE STORE_plain

#include "vectors.h"

#define TEAMS (BLOCK / TEAM)

/* sum += the entries from `entry` to `end`, times the columns of B from b on. */
DEVICE void add_entries(float* sum, int entry, int end, GLOBAL const int* RESTRICT columns,
                        GLOBAL const float* RESTRICT values, GLOBAL const float* RESTRICT b, int n)
{
    UNROLL_BY(UNROLL)
    for (; entry < end; ++entry) {
        float row[VEC];
        load_vector(row, b + (i64)columns[entry] * n, 1);
        const float value = values[entry];
        UNROLL_ALL
        for (int v = 0; v < VEC; ++v) sum[v] = FMA(value, row[v], sum[v]);
    }
}

DEVICE void clear(float* sum)
{
    UNROLL_ALL
    for (int v = 0; v < VEC; ++v) sum[v] = 0.0f;
}

#if ALG == ALG_split
/* The last row that begins at `entry` or before; of several empty ones too. */
DEVICE int row_of(GLOBAL const int* RESTRICT row_start, int m, int entry)
{
    int low = 0, high = m;
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        if (row_start[middle] <= entry)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Store the sum of a whole row; add that of a part to what other teams add. */
DEVICE void add_to_row(GLOBAL float* RESTRICT c, const float* sum, int is_whole)
{
    if (is_whole)
        store_vector(c, sum);
    else {
        UNROLL_ALL
        for (int v = 0; v < VEC; ++v) ATOMIC_ADD(c + v, sum[v]);
    }
}
#endif

KERNEL(BLOCK, 1, 1)
spmm(GLOBAL const int* RESTRICT row_start, GLOBAL const int* RESTRICT columns,
     GLOBAL const float* RESTRICT values, GLOBAL const float* RESTRICT b, GLOBAL float* RESTRICT c, int m, int n)
{
    const int team = BID(0) * TEAMS + TID(0) / TEAM;
    const int column = (BID(1) * TEAM + TID(0) % TEAM) * VEC;
    float sum[VEC];
    clear(sum);
#if ALG == ALG_block
    SHARED int starts[TEAMS + 1];
    SHARED float sums[BLOCK * VEC];
    const int first = BID(0) * TEAMS, own = TID(0) / TEAM, inside = column < n;
    for (int row = TID(0); row <= TEAMS; row += BLOCK) starts[row] = row_start[first + row < m ? first + row : m];
    SYNC();
    b += column, c += column;
    if (inside && team < m && starts[own + 1] - starts[own] <= SHARE) {
        add_entries(sum, starts[own], starts[own + 1], columns, values, b, n);
        store_vector(c + (i64)team * n, sum);
    }
    for (int row = 0; row < TEAMS; ++row) {
        const int begin = starts[row], end = starts[row + 1], each = CEIL_DIV(end - begin, TEAMS);
        if (end - begin <= SHARE) continue; /* for all threads alike */
        const int from = begin + own * each < end ? begin + own * each : end, to = from + each < end ? from + each : end;
        clear(sum);
        if (inside) add_entries(sum, from, to, columns, values, b, n);
        UNROLL_ALL
        for (int v = 0; v < VEC; ++v) sums[v * BLOCK + TID(0)] = sum[v];
        SYNC();
        if (own == 0 && inside) {
            for (int other = TEAM; other < BLOCK; other += TEAM) {
                UNROLL_ALL
                for (int v = 0; v < VEC; ++v) sum[v] += sums[v * BLOCK + other + TID(0)];
            }
            store_vector(c + (i64)(first + row) * n, sum);
        }
        SYNC();
    }
    return;
#endif
    if (column >= n) return;
    b += column, c += column;

#if ALG == ALG_row
    if (team >= m) return;
    add_entries(sum, row_start[team], row_start[team + 1], columns, values, b, n);
    store_vector(c + (i64)team * n, sum);
#elif ALG == ALG_split
    const int entries = row_start[m];
    if (team >= CEIL_DIV(entries, SHARE)) return; /* never more than INT_MAX / SHARE */
    const int begin = team * SHARE, end = begin + SHARE < entries ? begin + SHARE : entries;
    int row = row_of(row_start, m, begin), row_end = row_start[row + 1], is_whole = row_start[row] == begin;
    for (int entry = begin; entry < end; entry += UNROLL) {
        /* A batch's loads are under way together, whatever rows they belong to. */
        float rows[UNROLL][VEC], factors[UNROLL];
        UNROLL_ALL
        for (int u = 0; u < UNROLL; ++u) {
            const int at = entry + u < end ? entry + u : end - 1;
            load_vector(rows[u], b + (i64)columns[at] * n, 1);
            factors[u] = values[at];
        }
        UNROLL_ALL
        for (int u = 0; u < UNROLL; ++u) {
            if (entry + u >= end) break;
            if (entry + u == row_end) {
                add_to_row(c + (i64)row * n, sum, is_whole);
                clear(sum);
                is_whole = 1;
                do row_end = row_start[++row + 1];
                while (entry + u == row_end); /* empty rows */
            }
            UNROLL_ALL
            for (int v = 0; v < VEC; ++v) sum[v] = FMA(factors[u], rows[u][v], sum[v]);
        }
    }
    add_to_row(c + (i64)row * n, sum, is_whole && row_end <= end);
#endif
}
