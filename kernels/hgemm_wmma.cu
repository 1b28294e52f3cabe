// C = A B, halves or bfloat16 in, float32 sums, row-major, any size: knows wmma, the tensor cores as CUDA C++ shows
// them. The shortest of the three sources, to read first.
//
// A is m x k, B is k x n, C is m x n, with dimensions to 2^30.
//
// The plan. A block computes BM x BN of C, a warp WM x WN of it in fragments: tiles that the registers of a warp hold
// between them, no one says how. For each BK of k, the block copies its tiles of A and B to shared memory, waits, and
// multiplies from there. At the end sums go by way of shared memory too, since there one can find the elements.

#include <mma.h>

#ifndef BM
#define BM 64  // rows of C per block
#endif
#ifndef BN
#define BN 64  // columns of C per block
#endif
#ifndef BK
#define BK 32  // depth of a step
#endif
#ifndef WM
#define WM 32  // rows of C per warp
#endif
#ifndef WN
#define WN 32  // columns of C per warp
#endif
#ifndef FRAGMENT
#define FRAGMENT_m16n16 1  // rows and columns of C in a fragment; k is always 16
#define FRAGMENT_m32n8 2
#define FRAGMENT_m8n32 3
#define FRAGMENT FRAGMENT_m16n16
#endif
#ifndef RASTER
#define RASTER 8  // rows of blocks that run together, to share tiles of B in the L2 cache
#endif

#include "gemm.h"
#include "hgemm.h"

#if TYPE_JOIN(DTYPE) == TYPE_float16
using Element = half;
#else
using Element = __nv_bfloat16;
#endif

constexpr int THREADS = 32 * (BM / WM) * (BN / WN);
constexpr int FM = FRAGMENT == FRAGMENT_m32n8 ? 32 : FRAGMENT == FRAGMENT_m8n32 ? 8 : 16, FN = 256 / FM;
constexpr int A_PITCH = BK + 8, B_PITCH = BN + 8, C_PITCH = BN + 4;  // padded against bank conflicts

static_assert(BM % WM == 0 && BN % WN == 0 && WM % FM == 0 && WN % FN == 0 && BK % 16 == 0, "whole tiles");

template <typename Use, typename... Order>
using Fragment = nvcuda::wmma::fragment<Use, FM, FN, 16, Order...>;

// Copy `rows` x COLS of a matrix from (row, col) on; zeros outside.
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
    const Tile tile(blockIdx.x, m, n);
    const int warp = threadIdx.x / 32, warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;

    Fragment<nvcuda::wmma::accumulator, float> sum[WM / FM][WN / FN];
    for (auto& row : sum)
        for (auto& one : row) nvcuda::wmma::fill_fragment(one, 0.0f);
    for (int k0 = 0; k0 < k; k0 += BK) {
        copy<BM, BK>(a_tile, A_PITCH, a, tile.row, k0, m, k);
        copy<BK, BN>(b_tile, B_PITCH, b, k0, tile.col, k, n);
        __syncthreads();
        for (int s = 0; s < BK; s += 16) {
            Fragment<nvcuda::wmma::matrix_a, Element, nvcuda::wmma::row_major> left[WM / FM];
            Fragment<nvcuda::wmma::matrix_b, Element, nvcuda::wmma::row_major> right;
            for (int i = 0; i < WM / FM; ++i)
                nvcuda::wmma::load_matrix_sync(
                    left[i], reinterpret_cast<Element*>(a_tile + (warp_row + i * FM) * A_PITCH + s), A_PITCH);
            for (int j = 0; j < WN / FN; ++j) {
                nvcuda::wmma::load_matrix_sync(
                    right, reinterpret_cast<Element*>(b_tile + s * B_PITCH + warp_col + j * FN), B_PITCH);
                for (int i = 0; i < WM / FM; ++i) nvcuda::wmma::mma_sync(sum[i][j], left[i], right, sum[i][j]);
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < WM / FM; ++i)
        for (int j = 0; j < WN / FN; ++j)
            nvcuda::wmma::store_matrix_sync(shared + (warp_row + i * FM) * C_PITCH + warp_col + j * FN, sum[i][j],
                                            C_PITCH, nvcuda::wmma::mem_row_major);
    __syncthreads();
    const bool wide = rows_are_pieces(c, n);
    for (int i = 2 * threadIdx.x; i < BM * BN; i += 2 * THREADS) {
        const int row = tile.row + i / BN, col = tile.col + i % BN;
        const float* const v = shared + i / BN * C_PITCH + i % BN;
        if (row < m) store_pair(c + static_cast<long long>(row) * n + col, v[0], v[1], n - col, wide);
    }
}
