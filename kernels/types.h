/* The types that a kernel may be compiled for: knows both languages, and no kernel.

   DTYPE, a problem field that is compiled in, names the type of the elements in memory. TYPE is that type,
   WIDE the one to calculate in, and WIDEN(x) turns the first into the second. The 16-bit types are bits in
   memory and float in registers, so that no header of the vendor's is needed. */
#ifndef TYPES_H
#define TYPES_H

#include "dialect_math.h"

/* A field of the problem arrives as a bare word. */
#ifndef DTYPE
#define DTYPE float32
#endif
#define TYPE_float32 1
#define TYPE_float64 2
#define TYPE_int32 3
#define TYPE_float16 4
#define TYPE_bfloat16 5
#define TYPE_JOIN_(name) TYPE_##name
#define TYPE_JOIN(name) TYPE_JOIN_(name)
#define TYPE_IS(name) (TYPE_JOIN(DTYPE) == TYPE_##name)

#if TYPE_IS(float32)
#define TYPE float
#define TYPE_BYTES 4
#define WIDE float
#define WIDEN(x) (x)
#elif TYPE_IS(float64)
#ifdef __OPENCL_VERSION__
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#define TYPE double
#define TYPE_BYTES 8
#define WIDE double
#define WIDEN(x) (x)
DIALECT_OVERLOAD double MAX(double a, double b) { return fmax(a, b); }
DIALECT_OVERLOAD double MIN(double a, double b) { return fmin(a, b); }
#elif TYPE_IS(int32)
#define TYPE int
#define TYPE_BYTES 4
#define WIDE int
#define WIDEN(x) (x)
#elif TYPE_IS(float16)
#define TYPE unsigned short
#define TYPE_BYTES 2
#define WIDE float
#ifdef __OPENCL_VERSION__
DEVICE float WIDEN(unsigned short bits) { return vload_half(0, (const half*)&bits); }
#else
DEVICE float WIDEN(unsigned short bits)
{
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
    return wide;
}
#endif
#elif TYPE_IS(bfloat16)
#define TYPE unsigned short
#define TYPE_BYTES 2
#define WIDE float
/* The upper half of a float. */
DEVICE float WIDEN(unsigned short bits)
{
    union {
        unsigned bits;
        float value;
    } word;
    word.bits = (unsigned)bits << 16;
    return word.value;
}
#else
#error "DTYPE must be float32, float64, int32, float16 or bfloat16"
#endif

#if TYPE_BYTES != 4 || TYPE_IS(int32)
#if defined(__HIP__) || defined(__AMDGCN__)
#error "on AMD's GPUs dialect.h shuffles floats alone: DTYPE must be float32"
#endif
#endif

/* EACH elements in one access of BYTES, or one element where that is more. */
#if BYTES == 16
typedef uint4 piece_bits;
#elif BYTES == 8 || TYPE_BYTES == 8
typedef uint2 piece_bits;
#elif BYTES == 4
typedef unsigned piece_bits;
#else
#error "BYTES must be 4, 8 or 16"
#endif
#define EACH (BYTES > TYPE_BYTES ? BYTES / TYPE_BYTES : 1)
typedef union {
    piece_bits bits;
    TYPE part[EACH];
} piece;

#endif
