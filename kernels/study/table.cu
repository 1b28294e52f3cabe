/* out[i] = values[x[i]], a table of ENTRIES floats: shows where a table may lie.

     TABLE  global     each lane a load, which caches serve
            shared     each block reads the table once; lanes at one bank wait for each other
            registers  an array of the thread with an index that only the running program knows, which registers do not
                       have: a chain of selects while it is small, else local memory; up to 16 entries
            branches   a chain of comparisons, no memory at all; up to 16 entries
            pointers   a function for each entry, called by its address; up to 16 entries, CUDA only

   TABLE_IN=constant, a field of the problem, puts it into constant memory, whose reads of one address are as fast as
   of a register, and of several one after the other. CUDA only. */
#ifndef BLOCK
#define BLOCK 256
#endif
#ifndef ITEMS
#define ITEMS 4
#endif
#ifndef TABLE
#define TABLE_global 0
#define TABLE_shared 1
#define TABLE_registers 2
#define TABLE_branches 3
#define TABLE_pointers 4
#define TABLE TABLE_global
#endif
#ifndef ENTRIES
#define ENTRIES 16
#endif

#ifndef TABLE_IN
#define TABLE_IN array
#endif

#include "dialect.h"

#define TABLE_IN_array 0
#define TABLE_IN_constant 1
#define TABLE_IN_JOIN_(place) TABLE_IN_##place
#define TABLE_IN_JOIN(place) TABLE_IN_JOIN_(place)
#if TABLE_IN_JOIN(TABLE_IN) == TABLE_IN_constant
extern "C" {
__constant__ float values[ENTRIES];
}
#define VALUES
#else
#define VALUES GLOBAL const float *RESTRICT values,
#endif

#if TABLE == TABLE_pointers
#define ENTRY(e) \
    static __device__ __noinline__ float entry_##e(const float* own) { return own[e]; }
ENTRY(0) ENTRY(1) ENTRY(2) ENTRY(3) ENTRY(4) ENTRY(5) ENTRY(6) ENTRY(7)
ENTRY(8) ENTRY(9) ENTRY(10) ENTRY(11) ENTRY(12) ENTRY(13) ENTRY(14) ENTRY(15)
static __device__ float (*const entries[])(const float*) = {
    entry_0, entry_1, entry_2,  entry_3,  entry_4,  entry_5,  entry_6,  entry_7,
    entry_8, entry_9, entry_10, entry_11, entry_12, entry_13, entry_14, entry_15,
};
#endif

KERNEL(BLOCK, 1, 1)
table(GLOBAL const int* RESTRICT x, VALUES GLOBAL float* RESTRICT out, i64 n)
{
#if TABLE == TABLE_shared
    SHARED float own[ENTRIES];
    for (int entry = TID(0); entry < ENTRIES; entry += BLOCK) own[entry] = values[entry];
    SYNC();
#elif TABLE == TABLE_registers || TABLE == TABLE_branches
    float own[ENTRIES];
    UNROLL_ALL
    for (int entry = 0; entry < ENTRIES; ++entry) own[entry] = values[entry];
#endif
    UNROLL_ALL
    for (int item = 0; item < ITEMS; ++item) {
        const i64 i = ((i64)BID(0) * ITEMS + item) * BLOCK + TID(0);
        if (i >= n) return;
        const int entry = x[i];
#if TABLE == TABLE_global
        out[i] = values[entry];
#elif TABLE == TABLE_pointers
        out[i] = entries[entry](values);
#elif TABLE == TABLE_branches
        float found = own[0];
        UNROLL_ALL
        for (int e = 1; e < ENTRIES; ++e)
            if (entry == e) found = own[e];
        out[i] = found;
#else
        out[i] = own[entry];
#endif
    }
}
