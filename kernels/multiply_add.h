/* As many multiply-adds as one instruction has: knows both languages and the architectures that have two, and no
   kernel.

   PTX has two at once from sm_100 on (PTX ISA 8.6, "fma", .f32x2), but for sm_120 ptxas makes two instructions of
   them again. */
#ifndef MULTIPLY_ADD_H
#define MULTIPLY_ADD_H

#include "dialect.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200
#define FMA_FLOATS 2

/* sums[i] += a * b[i] for all i below FMA_FLOATS, each rounded once. */
DEVICE void multiply_add(float* sums, const float a, const float* b)
{
    asm("{ .reg .b64 sums, a, b;\n"
        "mov.b64 sums, {%0, %1}; mov.b64 a, {%2, %2}; mov.b64 b, {%3, %4};\n"
        "fma.rn.f32x2 sums, a, b, sums;\n"
        "mov.b64 {%0, %1}, sums; }" : "+f"(sums[0]), "+f"(sums[1]) : "f"(a), "f"(b[0]), "f"(b[1]));
}
#else
#define FMA_FLOATS 1

DEVICE void multiply_add(float* sums, const float a, const float* b) { *sums = FMA(a, *b, *sums); }
#endif

#endif
