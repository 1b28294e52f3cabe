/* out[0] = the sum of x: one thread per block adds up PIECE elements, and whoever draws the last ticket adds up
   the blocks' sums. Where the ticket is the module's, two launches at once draw from the same. */

#include "dialect.h"

#ifdef __OPENCL_VERSION__
#define MODULE __global
#else
#define MODULE __device__
#endif

#if TICKET != TICKET_caller
MODULE unsigned drawn = 0;
#endif

KERNEL(1, 1, 0) ticket(GLOBAL const float* x, GLOBAL float* out, int n, GLOBAL float* partial, GLOBAL unsigned* own)
{
#if TICKET != TICKET_caller
    GLOBAL unsigned* count = &drawn;
#else
    GLOBAL unsigned* count = own;
#endif
    volatile GLOBAL float* sums = partial;
    float sum = 0.0f;
    for (int i = BID(0) * PIECE; i < (BID(0) + 1) * PIECE && i < n; ++i) sum += x[i];
    sums[BID(0)] = sum;
    FENCE_DEVICE();
    if (ATOMIC_INC(count) != (unsigned)GRID(0) - 1) return;
    FENCE_DEVICE();
    sum = 0.0f;
    for (int i = 0; i < GRID(0); ++i) sum += sums[i];
    out[0] = sum;
    *count = 0;
}
