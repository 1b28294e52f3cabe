// The operations of verification on device buffers: compare, find differences, fill.
// They are one module, compiled once. A library that compiles each operation separately would take seconds
// before the first configuration can be verified.
#ifdef TYPE_IS_HALF
#include <cuda_fp16.h>
#endif
#ifdef TYPE_IS_BFLOAT16
struct bfloat16 {
    unsigned short bits;
    __device__ operator double() const { return (double)__uint_as_float((unsigned)bits << 16); }
};
#endif
#ifdef CODE_BITS  // elements of 8 or 4 bits; VALUES has the value of each code as bits of a float
struct code {
    unsigned char bits;
};
__device__ const unsigned values_of_codes[] = {VALUES};
#endif
#ifndef TYPE
#define TYPE float
#endif
#ifndef EXPECTED  // type of the expected values: the same for integers; float if it holds them all, otherwise double
#define EXPECTED double
#endif

#ifndef BOUND  // type of the bounds by element
#define BOUND float
#endif

typedef unsigned long long u64;

#define FOR_EACH(i, count)                                                                   \
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < (count); i += gridDim.x * (u64)blockDim.x)

#ifdef TYPE_IS_INTEGER
// The larger minus the smaller is exact in 64 bits; only the conversion to double rounds.
__device__ double distance(TYPE got, TYPE want) {
    return (double)(got > want ? (u64)got - (u64)want : (u64)want - (u64)got);
}
#else
// NaN is correct only if NaN is expected.
template <typename Found>
__device__ double distance(Found found, EXPECTED expected) {
    const double got = (double)found, want = (double)expected;
    const bool both_nan = got != got && want != want;
    const double error = got == want || both_nan ? 0.0 : fabs(got - want);
    return error == error ? error : __longlong_as_double(0x7ff0000000000000ll);
}
#endif

// Two codes of 4 bits share a byte, the first in its low half.
__device__ auto element(const TYPE* out, u64 i) {
#ifdef CODE_BITS
    constexpr unsigned each = 8 / CODE_BITS, mask = (1u << CODE_BITS) - 1;
    return __uint_as_float(values_of_codes[out[i / each].bits >> (i % each * CODE_BITS) & mask]);
#else
    return out[i];
#endif
}

// Largest error of an output, its sum of squared errors, and the first index that exceeds its bound. The bound is
// bounds[i] if there are bounds, otherwise `bound`. The three results must start as 0, 0 and all ones.
extern "C" __global__ void compare(const TYPE* out, const EXPECTED* expected, u64 count, double bound,
                                   const BOUND* bounds, u64* max_error, double* square_sum,
                                   u64* first_wrong) {
    double worst = 0.0, squares = 0.0;
    u64 first = ~0ull;
    FOR_EACH(i, count) {
        const double error = distance(element(out, i), expected[i]);
        worst = fmax(worst, error);
        squares += error * error;
        // The first wrong element of a thread has its smallest index, because i only grows.
        if (error > (bounds ? (double)bounds[i] : bound) && first == ~0ull) first = i;
    }
    // Reduce within the warp first: atomics of all threads on one address take longer than reading the data.
    for (int lane = 16; lane > 0; lane /= 2) {
        worst = fmax(worst, __shfl_down_sync(~0u, worst, lane));
        squares += __shfl_down_sync(~0u, squares, lane);
    }
    if (threadIdx.x % 32 == 0) {
        // Non-negative doubles have the same order as their bits.
        atomicMax(max_error, (u64)__double_as_longlong(worst));
        atomicAdd(square_sum, squares);
    }
    if (first != ~0ull) atomicMin(first_wrong, first);
}

// Sets *differs if two ranges of bytes differ. Both have the same offset from a multiple of 16 bytes.
extern "C" __global__ void differ(const unsigned char* one, const unsigned char* other, u64 bytes,
                                  unsigned* differs) {
    const u64 before = -(u64)one % 16, head = before < bytes ? before : bytes;
    const u64 whole = (bytes - head) / 16;
    bool found = false;
    FOR_EACH(i, whole) {
        const uint4 a = ((const uint4*)(one + head))[i], b = ((const uint4*)(other + head))[i];
        found |= a.x != b.x || a.y != b.y || a.z != b.z || a.w != b.w;
    }
    FOR_EACH(i, bytes - 16 * whole) {
        const u64 at = i < head ? i : i + 16 * whole;
        found |= one[at] != other[at];
    }
    if (found) *differs = 1;
}

// Sets *differs if any byte of two ranges differs from a value.
extern "C" __global__ void not_all(const unsigned char* one, u64 bytes, const unsigned char* other,
                                   u64 other_bytes, unsigned value, unsigned* differs) {
    bool found = false;
    FOR_EACH(i, bytes) found |= one[i] != value;
    FOR_EACH(i, other_bytes) found |= other[i] != value;
    if (found) *differs = 1;
}

// Its time is the cost of timing.
extern "C" __global__ void empty() {}

// Fills with a pattern of `width` bytes (1, 2, 4 or 8), the low ones of `pattern`.
extern "C" __global__ void fill(unsigned char* bytes, u64 count, u64 pattern, unsigned width) {
    FOR_EACH(i, count) {
        if (width == 8) ((u64*)bytes)[i] = pattern;
        else if (width == 4) ((unsigned*)bytes)[i] = (unsigned)pattern;
        else if (width == 2) ((unsigned short*)bytes)[i] = (unsigned short)pattern;
        else bytes[i] = (unsigned char)pattern;
    }
}
