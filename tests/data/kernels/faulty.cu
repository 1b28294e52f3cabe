// A row-wise dot product out[i] = sum_k a[i,k] * x[k] that can be made to go wrong in every way
// that a tuner must survive. FAULT picks the way; one thread computes one row.
#include "dialect.h"
#ifndef BLOCK
#define BLOCK 64
#define FAULT FAULT_none
#define FAULT_none 0
#endif
#if FAULT == FAULT_late_wrong
#define LAUNCHES , GLOBAL int* launches
#else
#define LAUNCHES
#endif

KERNEL(BLOCK, 1, 0) faulty(GLOBAL float* a, GLOBAL const float* x, GLOBAL float* out, int rows,
                           int depth LAUNCHES) {
#if FAULT == FAULT_syntax_error
    this is not a statement
#elif FAULT == FAULT_too_much_shared
    SHARED float huge[1 << 18];
    huge[TID(0)] = x[0];
    SYNC();
    out[0] = huge[(TID(0) + 1) % BLOCK];
#endif
    const int row = BID(0) * BLOCK + TID(0);
    if (row >= rows) return;
    float sum = 0.0f;
#if FAULT == FAULT_k_step_dropped
    for (int k = 0; k < depth - 1; ++k) sum = FMA(a[row * depth + k], x[k], sum);
#else
    for (int k = 0; k < depth; ++k) sum = FMA(a[row * depth + k], x[k], sum);
#endif
#if FAULT == FAULT_element_doubled
    if (row == 3) sum = FMA(a[row * depth], x[0], sum);
#elif FAULT == FAULT_nan
    if (row == 2) sum = sum / 0.0f - sum / 0.0f;
#elif FAULT == FAULT_unwritten
    if (row == 5) return;
#elif FAULT == FAULT_late_wrong
    if (row == 0) launches[0] = launches[0] < 0 ? 1 : launches[0] + 1;
    if (row == 0 && launches[0] > 3) sum += 1.0f;
#elif FAULT == FAULT_only_over_nan
    if (out[row] == out[row]) return;
#elif FAULT == FAULT_far_out_of_bounds
    if (row == 0) out[rows + 200000] = 1.0f;
#elif FAULT == FAULT_input_overwritten
    if (row == 0) a[0] = 7.0f;
#elif FAULT == FAULT_hang
    // A loop on memory that nobody writes again: no compiler may assume that it ends.
    GLOBAL volatile float* flag = out;
    if (row == 0) out[row] = -12345.0f;
    while (row == 0 && flag[row] == -12345.0f) {}
#elif FAULT == FAULT_out_of_bounds
    if (row == 0) out[rows + 16] = 1.0f;
#elif FAULT == FAULT_illegal_address
    if (row == 0) out[((i64)1 << 40) + (i64)sum % 7] = 1.0f;
#elif FAULT == FAULT_misaligned
    if (row == 0) *(GLOBAL volatile float*)((GLOBAL char*)out + 1) = sum;
#endif
    out[row] = sum;
}
