/* More words for CUDA C++, HIP and OpenCL C, beside those of dialect.h: functions of numbers, atomics on integers
   and in shared memory, and reductions of a warp. Includes dialect.h; knows these languages, and no kernel. */
#ifndef DIALECT_MATH_H
#define DIALECT_MATH_H

#include "dialect.h"

#ifdef __OPENCL_VERSION__
#define DIALECT_OVERLOAD static inline __attribute__((overloadable))
#define DIALECT_FLOAT(name) name
#else
#define DIALECT_OVERLOAD DEVICE
#define DIALECT_FLOAT(name) name##f
#endif

/* Functions: an argument is evaluated once, so it may shuffle. */
DIALECT_OVERLOAD float MAX(float a, float b) { return DIALECT_FLOAT(fmax)(a, b); }
DIALECT_OVERLOAD float MIN(float a, float b) { return DIALECT_FLOAT(fmin)(a, b); }
DIALECT_OVERLOAD int MAX(int a, int b) { return a > b ? a : b; }
DIALECT_OVERLOAD int MIN(int a, int b) { return a < b ? a : b; }
DIALECT_OVERLOAD unsigned MAX(unsigned a, unsigned b) { return a > b ? a : b; }
DIALECT_OVERLOAD unsigned MIN(unsigned a, unsigned b) { return a < b ? a : b; }

#define EXP(x) DIALECT_FLOAT(exp)(x)
#define LOG(x) DIALECT_FLOAT(log)(x)
#define SQRT(x) DIALECT_FLOAT(sqrt)(x)
#define RSQRT(x) DIALECT_FLOAT(rsqrt)(x)

#ifdef __OPENCL_VERSION__

/* dialect.h adds to floats in global memory alone. */
DIALECT_OVERLOAD void dialect_add(volatile __global float* p, float value) { ATOMIC_ADD(p, value); }
DIALECT_OVERLOAD void dialect_add(volatile __local float* p, float value)
{
    volatile __local unsigned* bits = (volatile __local unsigned*)p;
    unsigned seen = *bits;
    for (;;) {
        const unsigned before = atomic_cmpxchg(bits, seen, as_uint(as_float(seen) + value));
        if (before == seen) return;
        seen = before;
    }
}
DIALECT_OVERLOAD int dialect_add(volatile __global int* p, int value) { return atomic_add(p, value); }
DIALECT_OVERLOAD int dialect_add(volatile __local int* p, int value) { return atomic_add(p, value); }
DIALECT_OVERLOAD unsigned dialect_add(volatile __global unsigned* p, unsigned value) { return atomic_add(p, value); }
DIALECT_OVERLOAD unsigned dialect_add(volatile __local unsigned* p, unsigned value) { return atomic_add(p, value); }
#define ATOMIC_ADD(p, value) dialect_add(p, value)

#define ATOMIC_MAX(p, value) atomic_max(p, value)
#define ATOMIC_MIN(p, value) atomic_min(p, value)
#define ATOMIC_AND(p, value) atomic_and(p, value)
#define ATOMIC_OR(p, value) atomic_or(p, value)
#define ATOMIC_EXCHANGE(p, value) atomic_xchg(p, value)
#define ATOMIC_CAS(p, expected, value) atomic_cmpxchg(p, expected, value)

#else

#define ATOMIC_MAX(p, value) atomicMax(p, value)
#define ATOMIC_MIN(p, value) atomicMin(p, value)
#define ATOMIC_AND(p, value) atomicAnd(p, value)
#define ATOMIC_OR(p, value) atomicOr(p, value)
#define ATOMIC_EXCHANGE(p, value) atomicExch(p, value)
#define ATOMIC_CAS(p, expected, value) atomicCAS(p, expected, value)

#endif

/* Every lane of a warp gets the result. All WARP lanes take part, in the same order in each language. */
#ifdef WARP
DEVICE float WARP_SUM(float value)
{
    UNROLL_ALL
    for (int distance = WARP / 2; distance > 0; distance /= 2) value += SHFL_XOR(value, distance);
    return value;
}
DEVICE float WARP_MAX(float value)
{
    UNROLL_ALL
    for (int distance = WARP / 2; distance > 0; distance /= 2) value = MAX(value, SHFL_XOR(value, distance));
    return value;
}
DEVICE float WARP_MIN(float value)
{
    UNROLL_ALL
    for (int distance = WARP / 2; distance > 0; distance /= 2) value = MIN(value, SHFL_XOR(value, distance));
    return value;
}
#endif

#endif
