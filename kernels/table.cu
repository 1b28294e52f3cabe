/* out[i] = values[x[i]], a table of ENTRIES floats: shows where a table may lie. (As an array in constant memory, whose
   reads of one address are free: conv1d.)

     TABLE  global     each lane a load, which caches serve
            shared     each block reads the table once; lanes at one bank wait for each other
            registers  an array with an index that only the running program knows: it has no registers and goes to
                       local memory; up to 16 entries
            branches   a chain of comparisons, no memory at all; up to 16 entries */
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
#define TABLE TABLE_global
#endif
#ifndef ENTRIES
#define ENTRIES 16
#endif

#include "dialect.h"

KERNEL(BLOCK, 1, 1)
table(GLOBAL const int* RESTRICT x, GLOBAL const float* RESTRICT values, GLOBAL float* RESTRICT out, i64 n)
{
#if TABLE == TABLE_shared
    SHARED float own[ENTRIES];
    for (int entry = TID(0); entry < ENTRIES; entry += BLOCK) own[entry] = values[entry];
    SYNC();
#elif TABLE != TABLE_global
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
