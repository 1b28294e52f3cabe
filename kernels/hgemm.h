// What the sources of hgemm share: parameters, the types of A, B and C, how sums of a row become elements of C, and the
// copy of matrices to where their rows are aligned.
#pragma once

#ifndef BM
#define BM 128  // rows of C per block
#endif
#ifndef BN
#define BN 128  // columns of C per block
#endif
#ifndef BK
#define BK 32  // depth of one stage; wgmma: always 64
#endif
#ifndef WM
#define WM 64  // rows of C per warp; wgmma: half of BM per warpgroup
#endif
#ifndef WN
#define WN 32  // columns of C per warp
#endif
#ifndef STAGES
#define STAGES 4  // pairs of tiles in shared memory: one in use, the others on their way
#endif
#ifndef RASTER
#define RASTER 8  // rows of blocks that run together, to share tiles of B in the L2 cache
#endif
#include "gemm.h"

// DTYPE, of A and B, and OUT_DTYPE, of C, are fields of the problem and arrive as bare words.
#ifndef DTYPE
#define DTYPE float16
#endif
#ifndef OUT_DTYPE
#define OUT_DTYPE float16
#endif
#define TYPE_float16 1
#define TYPE_bfloat16 2
#define TYPE_float32 3
#define TYPE_JOIN_(name) TYPE_##name
#define TYPE_JOIN(name) TYPE_JOIN_(name)

#if TYPE_JOIN(DTYPE) == TYPE_float16
#define PTX_TYPE "f16"
#elif TYPE_JOIN(DTYPE) == TYPE_bfloat16
#define PTX_TYPE "bf16"
#else
#error "DTYPE must be float16 or bfloat16"
#endif
#if TYPE_JOIN(OUT_DTYPE) == TYPE_float32
#define OUT_IS_FLOAT 1
using Result = float;
#elif TYPE_JOIN(OUT_DTYPE) == TYPE_JOIN(DTYPE)
#define OUT_IS_FLOAT 0
using Result = unsigned short;
#else
#error "OUT_DTYPE must be float32 or what DTYPE is"
#endif

using Half = unsigned short;  // bits of either type

constexpr int PIECE = 8;  // halves in 16 bytes, which is what copies and ldmatrix move

// Whether every row of a matrix is whole pieces, of C quads at least, at multiples of 16 bytes.
__device__ __forceinline__ bool rows_are_pieces(const void* matrix, int length)
{
    return length % PIECE == 0 && reinterpret_cast<unsigned long long>(matrix) % 16 == 0;
}

// ---------------------------------------------------------------- sums to elements of C

// Two sums rounded to nearest, the first in the lower bits.
__device__ __forceinline__ unsigned narrowed(float x, float y)
{
    unsigned both;
    asm("cvt.rn." PTX_TYPE "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
    return both;
}

// Thread t of four has word t of four pieces; it gets all words of piece t.
__device__ __forceinline__ void exchange(unsigned (&word)[4])
{
#pragma unroll
    for (int distance = 1; distance <= 2; distance *= 2) {
        const bool upper = threadIdx.x & distance;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i & distance) continue;
            const unsigned got = __shfl_xor_sync(~0u, upper ? word[i] : word[i + distance], distance);
            if (upper) word[i] = got;
            else word[i + distance] = got;
        }
    }
}

// Store two neighbours in a row of C, of which `left` lie inside. `wide`: both or none, and in one piece.
__device__ __forceinline__ void store_pair(Result* c, float x, float y, int left, bool wide)
{
#if OUT_IS_FLOAT
    using Both = float2;
    const Both both = make_float2(x, y);
    const Result each[2] = {x, y};
#else
    using Both = unsigned;
    const Both both = narrowed(x, y);
    const Result each[2] = {static_cast<Result>(both), static_cast<Result>(both >> 16)};
#endif
    if (wide && left > 0) *reinterpret_cast<Both*>(c) = both;
    else if (left > 0) c[0] = each[0];
    if (!wide && left > 1) c[1] = each[1];
}

// Store what four threads have of a row of C, as the tensor core leaves it: thread t has sums v[4 j] and v[4 j + 1]
// in columns 8 j + 2 t and the next, of TILES tiles of 8 columns. `left`: columns inside, from the first on, none
// where the row is outside. `wide`: rows of C are whole pieces at multiples of 16 bytes. All lanes take part.
template <int TILES>
__device__ __forceinline__ void store_row(Result* c, const float* v, int left, bool wide)
{
    const int t = threadIdx.x % 4;
    if (OUT_IS_FLOAT || !wide) {
#pragma unroll
        for (int j = 0; j < TILES; ++j)
            store_pair(c + 8 * j + 2 * t, v[4 * j], v[4 * j + 1], left - 8 * j - 2 * t, wide);
        return;
    }
#if !OUT_IS_FLOAT
    static_assert(TILES % 4 == 0, "a piece for each thread");
#pragma unroll
    for (int j = 0; j < TILES; j += 4) {
        unsigned word[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) word[i] = narrowed(v[4 * (j + i)], v[4 * (j + i) + 1]);
        exchange(word);
        if (8 * (j + t) < left)
            *reinterpret_cast<uint4*>(c + 8 * (j + t)) = make_uint4(word[0], word[1], word[2], word[3]);
    }
#endif
}

// ---------------------------------------------------------------- rows that are not aligned

// PADDED: a launch of its own copies A and B to where their rows are whole pieces, if they are not.
#ifndef PADDED
#define PADDED 0
#endif

// Halves from a row to the next where rows of `length` are made whole pieces.
__device__ __forceinline__ int padded(int length) { return (length + PIECE - 1) / PIECE * PIECE; }

#if PADDED
__device__ __forceinline__ void pad_piece(const Half* from, Half* to, unsigned length, unsigned piece)
{
    const unsigned pieces = (length + PIECE - 1) / PIECE;
    const unsigned row = piece / pieces, col = piece % pieces * PIECE;
    from += static_cast<long long>(row) * length + col;
    unsigned word[PIECE / 2];
#pragma unroll
    for (int i = 0; i < PIECE / 2; ++i) {
        const unsigned low = col + 2 * i < length ? from[2 * i] : 0, high = col + 2 * i + 1 < length ? from[2 * i + 1] : 0;
        word[i] = low | high << 16;
    }
    reinterpret_cast<uint4*>(to)[piece] = make_uint4(word[0], word[1], word[2], word[3]);
}

// Grid: a thread for each piece of A, then of B.
extern "C" __global__ void __launch_bounds__(256)
hgemm_pad(const Half* __restrict__ a, const Half* __restrict__ b, int m, int n, int k, Half* __restrict__ padded_a,
          Half* __restrict__ padded_b)
{
    const unsigned of_a = unsigned(m) * (padded(k) / PIECE), of_b = unsigned(k) * (padded(n) / PIECE);
    const unsigned piece = blockIdx.x * 256 + threadIdx.x;
    if (piece < of_a) {
        if (!rows_are_pieces(a, k)) pad_piece(a, padded_a, k, piece);
    } else if (piece - of_a < of_b) {
        if (!rows_are_pieces(b, n)) pad_piece(b, padded_b, n, piece - of_a);
    }
}
#define PADDED_PARAMETERS , const Half* __restrict__ padded_a, const Half* __restrict__ padded_b
#else
#define PADDED_PARAMETERS
#endif
