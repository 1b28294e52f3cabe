// out[i] = 2 a[i] + b[i], in 450 right ways and 50 that go wrong; space: faulty_stream.py.
// Beside the first 1,024 of them stand a 64-bit integer and a complex number, the conjugate of b (1 + i).
// A block handles BLOCK * ITEMS consecutive elements; ORDER is the order in which it visits them,
// so that every right configuration is another binary with the same result.
#include "dialect.h"
#ifndef BLOCK
#define BLOCK 64
#define ITEMS 4
#define ORDER 0
#define FAULT FAULT_none
#define FAULT_none 0
#endif
#if FAULT == FAULT_late_wrong
#define LAUNCHES , GLOBAL int* launches
#else
#define LAUNCHES
#endif

KERNEL(BLOCK, 1, 0) faulty_stream(GLOBAL float* a, GLOBAL const float* b, GLOBAL float* out,
                                  GLOBAL i64* wide, GLOBAL float* pair, int n LAUNCHES) {
#if FAULT == FAULT_compile_error
    this is not a statement
#elif FAULT == FAULT_too_many_resources
    SHARED float huge[1 << 18];
    huge[TID(0)] = b[0];
    SYNC();
    out[0] = huge[(TID(0) + 1) % BLOCK];
#endif
#if ORDER == 1 || ORDER == 4
    const int block = (n + BLOCK * ITEMS - 1) / (BLOCK * ITEMS) - 1 - BID(0);
#else
    const int block = BID(0);
#endif
#if ORDER == 3 || ORDER == 4
    const int thread = BLOCK - 1 - TID(0);
#else
    const int thread = TID(0);
#endif
    for (int item = 0; item < ITEMS; ++item) {
#if ORDER == 2
        const int i = (block * ITEMS + ITEMS - 1 - item) * BLOCK + thread;
#else
        const int i = (block * ITEMS + item) * BLOCK + thread;
#endif
        if (i >= n) continue;
        float value = FMA(2.0f, a[i], b[i]);
        i64 large = ((i64)1 << 60) + i;
        float imaginary = -b[i];
#if FAULT == FAULT_wrong
        if (i == 3) value += a[i];
#elif FAULT == FAULT_nan
        if (i == 2) value = value / 0.0f - value / 0.0f;
#elif FAULT == FAULT_stale_output
        if (i == 5) continue;
#elif FAULT == FAULT_late_wrong
        if (i == 0) launches[0] = launches[0] < 0 ? 1 : launches[0] + 1;
        if (i == 0 && launches[0] > 2) value += 1.0f;
#elif FAULT == FAULT_only_over_nan
        if (out[i] == out[i]) continue;
#elif FAULT == FAULT_nan_unwritten
        if (value != value) continue;
#elif FAULT == FAULT_off_by_100
        if (i == 9) large += 100;
#elif FAULT == FAULT_imaginary_part
        if (i == 11) imaginary = 0.0f;
#elif FAULT == FAULT_input_overwritten
        if (i == 0) a[0] = 7.0f;
#elif FAULT == FAULT_worker_killed
        if (n < 0) out[0] = value;  // never; but another binary than the right one's
#elif FAULT == FAULT_hang
        // A loop on memory that nobody writes again: no compiler may assume that it ends.
        GLOBAL volatile float* flag = out;
        out[i] = -12345.0f;
        while (flag[i] == -12345.0f) {}
#elif FAULT == FAULT_illegal_address
        if (i == 0) out[((i64)1 << 40) + (i64)value % 7] = 1.0f;
#elif FAULT == FAULT_misaligned_address
        if (i == 0) *(GLOBAL volatile float*)((GLOBAL char*)out + 1) = value;
#endif
        out[i] = value;
        if (i < 1024) {
            wide[i] = large;
            pair[2 * i] = b[i];
            pair[2 * i + 1] = imaginary;
        }
    }
}
