/* count[u] = triangles of which u is the first vertex: of a graph by compressed rows, each edge once, from its first
   vertex to its second, neighbours of u in rising order from row_start[u] to row_start[u + 1]. Edges that go from the
   vertex of lower degree to that of higher keep the lists short. Knows three ways to intersect two lists, in the common
   subset of CUDA C++ and OpenCL C. A TEAM of threads has a vertex u:

     ALG  merge   each thread takes neighbours v of u, and walks along both lists at once
          search  the team takes each v in turn, a thread each neighbour w of v, and bisects the list of u for it
          hash    the same, with the list of u in a table in shared memory: one or a few reads for each w. A list
                  that is too long for the table is bisected. A team is the block */
#ifndef TEAM
#define TEAM 32
#endif
#ifndef BLOCK
#define BLOCK 128
#endif
#ifndef ALG
#define ALG_merge 0
#define ALG_search 1
#define ALG_hash 2
#define ALG ALG_search
#endif
#ifndef SLOTS
#define SLOTS 1024 /* hash: a power of two, twice the longest list that the table takes */
#endif

#include "dialect_math.h"

DEVICE int has(GLOBAL const int* RESTRICT list, int length, int wanted)
{
    int low = 0, high = length;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (list[middle] < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return low < length && list[low] == wanted;
}

#if ALG == ALG_merge
DEVICE int common(GLOBAL const int* RESTRICT a, int of_a, GLOBAL const int* RESTRICT b, int of_b)
{
    int found = 0, i = 0, j = 0;
    while (i < of_a && j < of_b) {
        const int left = a[i], right = b[j];
        found += left == right;
        i += left <= right;
        j += right <= left;
    }
    return found;
}
#endif

#if ALG == ALG_hash
#define SLOT(v) ((int)((unsigned)(v) * 2654435769u >> 7) & (SLOTS - 1))
DEVICE int in_table(SHARED_PTR int* table, int wanted)
{
    int slot = SLOT(wanted);
    while (table[slot] != -1) {
        if (table[slot] == wanted) return 1;
        slot = (slot + 1) & (SLOTS - 1);
    }
    return 0;
}
#endif

KERNEL(BLOCK, 1, 1)
triangles(GLOBAL const int* RESTRICT row_start, GLOBAL const int* RESTRICT columns, GLOBAL int* RESTRICT count, int n)
{
    const int u = BID(0) * (BLOCK / TEAM) + TID(0) / TEAM, lane = TID(0) % TEAM;
    const int inside = u < n, begin = inside ? row_start[u] : 0, length = inside ? row_start[u + 1] - begin : 0;
    GLOBAL const int* own = columns + begin;
    int found = 0;

#if ALG == ALG_hash
    SHARED int table[SLOTS];
    const int is_short = 2 * length <= SLOTS;
    for (int slot = TID(0); slot < SLOTS; slot += BLOCK) table[slot] = -1;
    SYNC();
    if (is_short)
        for (int i = lane; i < length; i += TEAM) {
            int slot = SLOT(own[i]);
            while (ATOMIC_CAS(&table[slot], -1, own[i]) != -1) slot = (slot + 1) & (SLOTS - 1);
        }
    SYNC();
#endif

#if ALG == ALG_merge
    for (int i = lane; i < length; i += TEAM) {
        const int v = own[i];
        found += common(own, length, columns + row_start[v], row_start[v + 1] - row_start[v]);
    }
#else
    for (int i = 0; i < length; ++i) {
        const int v = own[i], end = row_start[v + 1];
        for (int at = row_start[v] + lane; at < end; at += TEAM) {
#if ALG == ALG_hash
            found += is_short ? in_table(table, columns[at]) : has(own, length, columns[at]);
#else
            found += has(own, length, columns[at]);
#endif
        }
    }
#endif

    SHARED int sums[BLOCK];
    sums[TID(0)] = found;
    SYNC();
    for (int stride = TEAM / 2; stride > 0; stride /= 2) {
        if (lane < stride) sums[TID(0)] += sums[TID(0) + stride];
        SYNC();
    }
    if (inside && lane == 0) count[u] = sums[TID(0)];
}
