// C = A B, halves or bfloat16 in, float32 sums, row-major, any size: knows wmma, the oldest way to the tensor cores and
// the simplest. The shortest of the three sources, to read first.
//
// A is m x k, B is k x n, C is m x n, with dimensions to 2^30.
//
// The plan. A block computes BM x BN of C, a warp WM x WN of it in fragments: tiles of 16 x 16 that the registers of a
// warp hold between them, nobody says how. For each BK of k, the block copies its tiles of A and B to shared memory,
// waits, and multiplies from there. At the end sums go by way of shared memory too, since there one can find the
// elements. CUDA C++ has the same in <mma.h>; the instructions themselves need no header.

#include "hgemm.h"

constexpr int THREADS = 32 * (BM / WM) * (BN / WN);
constexpr int A_PITCH = BK + 8, B_PITCH = BN + 8, C_PITCH = BN + 4;  // padded against bank conflicts

static_assert(BM % WM == 0 && BN % WN == 0 && WM % 16 == 0 && WN % 16 == 0 && BK % 16 == 0, "whole fragments");

// A thread's part of a fragment: of A or B 8 registers of halves, 4 of bfloat16; of C 8 sums.
#if TYPE_JOIN(DTYPE) == TYPE_float16
#define REGISTERS(form, x) form(x[0]), form(x[1]), form(x[2]), form(x[3]), form(x[4]), form(x[5]), form(x[6]), form(x[7])
#define LOADED "{%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"
#define OPERANDS "{%8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19, %20, %21, %22, %23}"
#define WMMA_TYPES "f32.f32"
#else
#define REGISTERS(form, x) form(x[0]), form(x[1]), form(x[2]), form(x[3])
#define LOADED "{%0, %1, %2, %3}, [%4], %5;"
#define OPERANDS "{%8, %9, %10, %11}, {%12, %13, %14, %15}"
#define WMMA_TYPES "f32.bf16.bf16.f32"
#endif
#define SUMS "{%0, %1, %2, %3, %4, %5, %6, %7}"
#define LOAD(which) "wmma.load." which ".sync.aligned.row.m16n16k16.shared." PTX_TYPE " " LOADED
using Operand = unsigned[8];
using Sums = float[8];

// Get the fragment at `from` in shared memory, whose rows are PITCH halves apart: of A, or else of B.
template <bool OF_A, int PITCH>
__device__ __forceinline__ void load(Operand& x, unsigned from)
{
    if constexpr (OF_A) asm volatile(LOAD("a") : REGISTERS("=r", x) : "r"(from), "r"(PITCH) : "memory");
    else asm volatile(LOAD("b") : REGISTERS("=r", x) : "r"(from), "r"(PITCH) : "memory");
}

__device__ __forceinline__ void add_product(Sums& c, const Operand& a, const Operand& b)
{
    asm volatile("wmma.mma.sync.aligned.row.row.m16n16k16." WMMA_TYPES " " SUMS ", " OPERANDS ", " SUMS ";"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
                 : REGISTERS("r", a), REGISTERS("r", b));
}

__device__ __forceinline__ void store(unsigned to, const Sums& c)
{
    asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%8], " SUMS ", %9;"
                 ::"f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]), "f"(c[4]), "f"(c[5]), "f"(c[6]), "f"(c[7]), "r"(to),
                   "r"(C_PITCH) : "memory");
}

// Copy ROWS x COLS of a matrix from (row, col) on; zeros outside.
template <int ROWS, int COLS>
__device__ __forceinline__ void copy(Half* to, int pitch, const Half* matrix, int row, int col, int height, int width)
{
    for (int i = threadIdx.x; i < ROWS * COLS; i += THREADS) {
        const int r = row + i / COLS, c = col + i % COLS;
        to[i / COLS * pitch + i % COLS] =
            r < height && c < width ? matrix[static_cast<long long>(r) * width + c] : Half(0);
    }
}

// Grid: blocks of C. Shared memory: the larger of both tiles and of BM * C_PITCH floats.
extern "C" __global__ void __launch_bounds__(THREADS)
hgemm(const Half* __restrict__ a, const Half* __restrict__ b, Result* __restrict__ c, int m, int n, int k)
{
    extern __shared__ __align__(128) float shared[];
    Half* const a_tile = reinterpret_cast<Half*>(shared);
    Half* const b_tile = a_tile + BM * A_PITCH;
    const unsigned a_at = shared_address(shared), b_at = a_at + 2 * BM * A_PITCH;
    const Tile tile(blockIdx.x, m, n);
    const int warp = threadIdx.x / 32, warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;

    Sums sums[WM / 16][WN / 16] = {};
    for (int k0 = 0; k0 < k; k0 += BK) {
        copy<BM, BK>(a_tile, A_PITCH, a, tile.row, k0, m, k);
        copy<BK, BN>(b_tile, B_PITCH, b, k0, tile.col, k, n);
        __syncthreads();
#pragma unroll
        for (int s = 0; s < BK; s += 16) {
            Operand left[WM / 16], right;
#pragma unroll
            for (int i = 0; i < WM / 16; ++i)
                load<true, A_PITCH>(left[i], a_at + 2 * ((warp_row + 16 * i) * A_PITCH + s));
#pragma unroll
            for (int j = 0; j < WN / 16; ++j) {
                load<false, B_PITCH>(right, b_at + 2 * (s * B_PITCH + warp_col + 16 * j));
#pragma unroll
                for (int i = 0; i < WM / 16; ++i) add_product(sums[i][j], left[i], right);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < WM / 16; ++i)
#pragma unroll
        for (int j = 0; j < WN / 16; ++j)
            store(a_at + 4 * ((warp_row + 16 * i) * C_PITCH + warp_col + 16 * j), sums[i][j]);
    __syncthreads();
    const bool wide = rows_are_pieces(c, n);
    for (int i = 2 * threadIdx.x; i < BM * BN; i += 2 * THREADS) {
        const int row = tile.row + i / BN, col = tile.col + i % BN;
        const float* const v = shared + i / BN * C_PITCH + i % BN;
        if (row < m) store_pair(c + static_cast<long long>(row) * n + col, v[0], v[1], n - col, wide);
    }
}
