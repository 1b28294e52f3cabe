// reduction: each of num_blocks blocks computes a sum; a second launch with one block adds these sums. Parameters of
// Kernel Tuner's example of this name; any number of elements.
#include "dialect.h"

KERNEL(block_size_x, 1, 0) sum_floats(GLOBAL float* sum_global, GLOBAL const float* array, int n) {
    SHARED float shared[block_size_x];
    const int lane = TID(0), first = BID(0) * block_size_x + lane, step = GRID(0) * block_size_x;
    float sum = 0.0f;
    for (int i = first; i < n / vector; i += step) {
#if vector == 1
        sum += array[i];
#elif vector == 2
        const float2 pair = LD2(array + 2 * i);
        sum += pair.x + pair.y;
#else
        const float4 four = LD4(array + 4 * i);
        sum += (four.x + four.y) + (four.z + four.w);
#endif
    }
    if (first < n % vector) sum += array[n / vector * vector + first];
    shared[lane] = sum;
    SYNC();
    for (int apart = block_size_x / 2; apart > (use_shuffle ? 16 : 0); apart /= 2) {
        if (lane < apart) shared[lane] += shared[lane + apart];
        SYNC();
    }
    sum = shared[lane];
#if use_shuffle
    if (lane < 32)
        for (int apart = 16; apart > 0; apart /= 2) sum += SHFL_DOWN(sum, apart);
#endif
    if (lane == 0) sum_global[BID(0)] = sum;
}
