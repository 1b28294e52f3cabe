// Compares an output with float64 expected values: error size and the first wrong element.
// TYPE is the output's element type. NaN is right only where NaN is expected.
#ifdef TYPE_IS_HALF
#include <cuda_fp16.h>
#endif
#ifndef TYPE
#define TYPE float
#endif

extern "C" __global__ void compare(const TYPE* out, const double* expected, long long count,
                                   double bound, double* max_error, double* square_sum,
                                   unsigned long long* first_wrong) {
    double worst = 0.0, squares = 0.0;
    unsigned long long first = ~0ull;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count;
         i += (long long)gridDim.x * blockDim.x) {
        const double got = (double)(TYPE)out[i], want = expected[i];
        const bool both_nan = got != got && want != want;
        double error = got == want || both_nan ? 0.0 : fabs(got - want);
        if (error != error) error = __longlong_as_double(0x7ff0000000000000ll);
        worst = fmax(worst, error);
        squares += error * error;
        // The first wrong element of this thread is its smallest index: i only grows.
        if (error > bound && first == ~0ull) first = (unsigned long long)i;
    }
    // Non-negative doubles order as their bits do.
    atomicMax((unsigned long long*)max_error, (unsigned long long)__double_as_longlong(worst));
    atomicAdd(square_sum, squares);
    if (first != ~0ull) atomicMin(first_wrong, first);
}
