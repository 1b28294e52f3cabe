// How a float32 becomes two TF32 numbers.
//
// TF32 has the exponent of float32 and 11 bits of significand. A float32 x of 24 bits is hi + lo: hi is x
// rounded to 11 bits, lo the rest, at most 2^-11 of x, of which the tensor core uses 11 bits. Then
//
//     a b = a_hi b_hi + (a_lo b_hi + a_hi b_lo) + a_lo b_lo,
//
// and the last term, 2^-22 of a b at most, is left out: 2^-24.6 in the root mean square, and of either sign,
// because hi is rounded to nearest, but all of it where every a and b is 1 + 2^-11. lo has at most 12 bits,
// so that what its last bit loses is 2^-23 of x at most and has either sign too. Together a product is off
// by 2^-21 of itself at most.
#pragma once

#include "lines.h"  // C_ROWS

struct Split {
    unsigned hi, lo;  // as the tensor core takes them: it looks at the upper 19 bits only
};

// Three instructions. cvt.rna.tf32.f32 would be five for hi alone: Hopper has no such instruction, and
// what replaces it takes care of infinities and NaNs. Here a NaN gets through by way of lo; an infinity
// leaves lo = inf - inf, so a sum that should be infinite becomes NaN.
__device__ __forceinline__ Split split(float x)
{
    const unsigned hi = (__float_as_uint(x) + 0x1000) & 0xffffe000;
    return {hi, __float_as_uint(x - __uint_as_float(hi))};
}

// Where the matrices lie. Of a VIEW, their rows are lda, ldb and ldc floats apart, and there may be many of
// each, stride_a, stride_b and stride_c apart, whose tiles are numbered one after another. TRANS_A, TRANS_B: A
// or B lies column by column, so that it is its columns which are lda or ldb apart.
#ifndef VIEW
#define VIEW 0
#endif
#ifndef TRANS_A
#define TRANS_A 0
#endif
#ifndef TRANS_B
#define TRANS_B 0
#endif

#if VIEW
using Pitch = long long;  // floats from one row to the next
#define VIEW_PARAMETERS \
    , long long lda, long long ldb, long long ldc, long long stride_a, long long stride_b, long long stride_c
#else
using Pitch = int;
#define VIEW_PARAMETERS
static_assert(!TRANS_A && !TRANS_B, "what lies column by column is a view");
#endif

// Whether rows of `length` floats are whole quads, each at a multiple of 16 bytes.
__device__ __forceinline__ bool are_quads(const float* matrix, int length, Pitch pitch)
{
    return rows_are_aligned(matrix, length) && (!VIEW || pitch % 4 == 0);
}

__device__ __forceinline__ float4 scaled(float4 v, float alpha)
{
    return make_float4(alpha * v.x, alpha * v.y, alpha * v.z, alpha * v.w);
}
