// C = alpha A B + beta C, float32 in and out, row-major, any size, by three TF32 products on the tensor
// cores: knows mma.sync, which every NVIDIA GPU since sm_80 has.
//
// A is m x k, B is k x n, C is m x n, with dimensions to 2^30.
//
// The plan. A block computes BM x BN of C; tiles of A and B for the next STAGES - 1 steps of BK are on
// their way from global to shared memory by cp.async. A warp computes WM x WN of it as a grid of 16 x 8
// tiles, the size of an mma. Per 8 of k it reads its fragments, splits each number into hi and lo in
// registers, and multiplies: lo hi and hi lo first, then hi hi, each for all tiles in turn, so that no mma
// waits for the one before.
//
// The tensor core adds with truncation: each addition loses up to one unit in the last place of the sum,
// always toward zero. Over thousands of k that is 25 times the error of cuBLAS. So an mma sums up FLUSH of
// k only, in `part`, which is then added to `total` by an ordinary, rounding addition. That costs a second
// set of accumulators, which is why warp tiles are small here, and FLUSH is the trade between speed and
// accuracy.
//
// Fragments. An mma does not care which k its eight columns of A are, as long as the rows of B are the
// same. So thread t of four takes k = 2t and 2t + 1 where the hardware means t and t + 4: its two elements
// of a row of A become one 8-byte read. Nor does it care which columns of C a tile has. Four tiles side by
// side interleave their columns, so that a thread's four elements in a row of B are one 16-byte read, and
// what it holds of a row of C are eight neighbours. A's rows are padded by 8 floats and B's are swizzled,
// which leaves either read without bank conflicts.
//
// A matrix that lies column by column keeps that order in shared memory: A's tile is then [k][row], whose rows
// are padded by 4 floats, and B's [column][k], which is swizzled. Their reads are free of conflicts too, but
// those of A half as wide.

#ifndef BM
#define BM 128  // rows of C per block
#endif
#ifndef BN
#define BN 128  // columns of C per block
#endif
#ifndef BK
#define BK 16  // depth of one stage
#endif
#ifndef WM
#define WM 64  // rows of C per warp
#endif
#ifndef WN
#define WN 32  // columns of C per warp
#endif
#ifndef STAGES
#define STAGES 4  // pairs of tiles in shared memory: one in use, the others on their way
#endif
#ifndef FLUSH
#define FLUSH 32  // products summed up in the tensor core before float32 takes over
#endif
#ifndef RASTER
#define RASTER 8  // rows of blocks that run together, to share tiles of B in the L2 cache
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1  // blocks that must fit on one multiprocessor
#endif

#include "gemm.h"
#include "sgemm_tf32x3.h"

constexpr int THREADS = 32 * (BM / WM) * (BN / WN);
constexpr int A_PITCH = TRANS_A ? BM + 4 : BK + 8;
constexpr int A_FLOATS = (TRANS_A ? BK : BM) * A_PITCH;
constexpr int STAGE_FLOATS = A_FLOATS + BK * BN;
constexpr int TILES_M = WM / 16;  // mma tiles of a warp
constexpr int TILES_N = WN / 8;
constexpr int STEPS_PER_FLUSH = FLUSH > BK ? FLUSH / BK : 1;

static_assert(BM % WM == 0 && BN % WN == 0, "a block is whole warp tiles");
static_assert(WM % 16 == 0 && WN % 32 == 0, "a warp is whole mma tiles, four side by side");
static_assert(BK % 8 == 0 && STAGES >= 2, "");
static_assert(!TRANS_B || BK == 16 || BK == 32, "what the swizzle is made for");
static_assert(FLUSH % 8 == 0 && (FLUSH % BK == 0 || BK % FLUSH == 0), "");

using Sums = float[TILES_M][TILES_N][4];

// ---------------------------------------------------------------- global to shared memory

// Where element (row, k) of A's tile lies.
__device__ __forceinline__ int a_place(int row, int k) { return TRANS_A ? k * A_PITCH + row : row * A_PITCH + k; }

// Where element (k, n) of B's tile lies: pieces of four floats change places so that the rows 2t which the
// threads of a quarter warp read together lie in different banks. Column by column, so do the columns: those
// that eight groups of threads read together, four apart, lie one after another, in pieces of eight floats.
__device__ __forceinline__ int b_place(int k, int n)
{
    if (!TRANS_B) return k * BN + (n ^ k / 2 % 4 * 8);
    const int group = n / 4 % 8;
    return (n / 32 * 32 + n % 4 * 8 + group) * BK + (k ^ (BK == 16 ? group / 2 % 2 : group % 4) * 8);
}

// Start copying a tile of a matrix that lies along k, in pieces of UNIT floats: EXTENT rows (or columns), which
// begin at `first` of `count`, from k0 on. Beyond the end of k are zeros. Those beyond the matrix are replaced
// by the last one inside, which only feeds elements of C that are never stored.
template <int UNIT, int EXTENT, typename Place>
__device__ __forceinline__ void copy_along_k(const float* matrix, Pitch pitch, int first, int count, int k0, int k,
                                             Place place)
{
    constexpr int UNITS = BK / UNIT;                 // in a row
    constexpr int WRITTEN_OUT = UNIT == 4 ? 64 : 2;  // copies; small ones are four times as many
#pragma unroll WRITTEN_OUT
    for (int i = 0; i < (EXTENT * UNITS + THREADS - 1) / THREADS; ++i) {
        const int unit = threadIdx.x + i * THREADS;
        const int row = unit / UNITS, depth = unit % UNITS * UNIT;
        if (EXTENT * UNITS % THREADS && row >= EXTENT) break;
        copy_async_or_zero<UNIT>(place(row, depth),
                                 matrix + static_cast<long long>(min(first + row, count - 1)) * pitch + k0 + depth,
                                 k0 + depth < k);
    }
}

// The same of one that lies across k.
template <int UNIT, int EXTENT, typename Place>
__device__ __forceinline__ void copy_across_k(const float* matrix, Pitch pitch, int first, int count, int k0, int k,
                                              Place place)
{
    constexpr int UNITS = EXTENT / UNIT;
    constexpr int WRITTEN_OUT = UNIT == 4 ? 64 : 2;
#pragma unroll WRITTEN_OUT
    for (int i = 0; i < (BK * UNITS + THREADS - 1) / THREADS; ++i) {
        const int unit = threadIdx.x + i * THREADS;
        const int depth = unit / UNITS, col = unit % UNITS * UNIT;
        if (BK * UNITS % THREADS && depth >= BK) break;
        copy_async_or_zero<UNIT>(place(col, depth),
                                 matrix + static_cast<long long>(k0 + depth) * pitch + min(first + col, count - UNIT),
                                 k0 + depth < k);
    }
}

// Start copying the tiles of the step that begins at k0 to the stage at `to`.
template <int UNIT>
__device__ __forceinline__ void start_copies(unsigned to, const float* a, const float* b, Pitch lda, Pitch ldb,
                                             Tile tile, int k0, int m, int n, int k)
{
    // Makes the compiler work the addresses out at every step, with one multiplication each, instead of
    // keeping them all: registers are what this kernel has least of.
    asm volatile("" : "+r"(k0), "+r"(m), "+r"(n), "+r"(k));
#if VIEW
    asm volatile("" : "+l"(lda), "+l"(ldb));
#else
    lda = k, ldb = n;
#endif
    const auto in_a = [to](int row, int depth) { return to + 4 * a_place(row, depth); };
    const auto in_b = [to](int col, int depth) { return to + 4 * (A_FLOATS + b_place(depth, col)); };
    if constexpr (TRANS_A) copy_across_k<UNIT, BM>(a, lda, tile.row, m, k0, k, in_a);
    else copy_along_k<UNIT, BM>(a, lda, tile.row, m, k0, k, in_a);
    if constexpr (TRANS_B) copy_along_k<UNIT, BN>(b, ldb, tile.col, n, k0, k, in_b);
    else copy_across_k<UNIT, BN>(b, ldb, tile.col, n, k0, k, in_b);
}

// ---------------------------------------------------------------- shared memory to registers

// A warp's numbers for 8 of k, as they were.
struct Raw {
    float a[TILES_M][4];
    float b[TILES_N][2];

    // Those at `k` of the stage at `a_tile`, `b_tile`: the first element of this lane's rows and columns.
    __device__ __forceinline__ void read(const float* a_tile, const float* b_tile, int k)
    {
        const int lane = threadIdx.x % 32, group = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < TILES_M; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {  // rows group and group + 8
                const float* from = a_tile + a_place(16 * i + 8 * half + group, k + 2 * t);
                const float2 v = TRANS_A ? make_float2(from[0], from[A_PITCH]) : *reinterpret_cast<const float2*>(from);
                a[i][half] = v.x, a[i][2 + half] = v.y;
            }
#pragma unroll
        for (int j = 0; j < TILES_N; j += 4)
            if constexpr (TRANS_B) {
#pragma unroll
                for (int next = 0; next < 4; ++next) {
                    const float2 v =
                        *reinterpret_cast<const float2*>(b_tile + b_place(k + 2 * t, 8 * j + 4 * group + next));
                    b[j + next][0] = v.x, b[j + next][1] = v.y;
                }
            } else {
#pragma unroll
                for (int odd = 0; odd < 2; ++odd) {  // k = 2t and 2t + 1
                    const float4 v = *reinterpret_cast<const float4*>(b_tile + (k + 2 * t + odd) * BN +
                                                                      (8 * j + 4 * group ^ 8 * t));
                    b[j][odd] = v.x, b[j + 1][odd] = v.y, b[j + 2][odd] = v.z, b[j + 3][odd] = v.w;
                }
            }
    }
};

// ---------------------------------------------------------------- products

// sum = a b + before, of 16 x 8 by 8.
__device__ __forceinline__ void mma(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                    float b0, float b1, float b2, float b3)
{
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(b0), "f"(b1), "f"(b2), "f"(b3));
}

__device__ __forceinline__ void flush(Sums& total, Sums& part)
{
#pragma unroll
    for (int i = 0; i < TILES_M; ++i)
#pragma unroll
        for (int j = 0; j < TILES_N; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) total[i][j][e] += part[i][j][e], part[i][j][e] = 0.0f;
}

struct Fragments {
    unsigned a_hi[TILES_M][4], a_lo[TILES_M][4], b_hi[TILES_N][2], b_lo[TILES_N][2];

    __device__ explicit Fragments(const Raw& raw)
    {
#pragma unroll
        for (int i = 0; i < TILES_M; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const Split s = split(raw.a[i][e]);
                a_hi[i][e] = s.hi, a_lo[i][e] = s.lo;
            }
#pragma unroll
        for (int j = 0; j < TILES_N; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const Split s = split(raw.b[j][e]);
                b_hi[j][e] = s.hi, b_lo[j][e] = s.lo;
            }
    }

    // part += a b, or, where `fresh`, part = a b once `total` has what it held. The small products come
    // first: while the sum is small, so is what truncation takes from it.
    __device__ __forceinline__ void multiply(Sums& part, Sums& total, bool fresh) const
    {
#pragma unroll
        for (int i = 0; i < TILES_M; ++i)
#pragma unroll
            for (int j = 0; j < TILES_N; ++j) {
                float(&sum)[4] = part[i][j];
                if (fresh) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) total[i][j][e] += sum[e];
                    mma(sum, a_lo[i], b_hi[j], 0.0f, 0.0f, 0.0f, 0.0f);
                } else {
                    mma(sum, a_lo[i], b_hi[j], sum[0], sum[1], sum[2], sum[3]);
                }
            }
#pragma unroll
        for (int i = 0; i < TILES_M; ++i)
#pragma unroll
            for (int j = 0; j < TILES_N; ++j) {
                float(&sum)[4] = part[i][j];
                mma(sum, a_hi[i], b_lo[j], sum[0], sum[1], sum[2], sum[3]);
            }
#pragma unroll
        for (int i = 0; i < TILES_M; ++i)
#pragma unroll
            for (int j = 0; j < TILES_N; ++j) {
                float(&sum)[4] = part[i][j];
                mma(sum, a_hi[i], b_hi[j], sum[0], sum[1], sum[2], sum[3]);
            }
    }
};

// ---------------------------------------------------------------- the main loop

// total += A[tile.row .., ..] B[.., tile.col ..] for one warp's tile, whose first row and column within the
// block's are `warp_row` and `warp_col`.
template <int UNIT>
__device__ __forceinline__ void accumulate(Sums& total, float* shared, const float* a, const float* b, Pitch lda,
                                           Pitch ldb, Tile tile, int m, int n, int k, int warp_row, int warp_col)
{
    const unsigned shared_at = shared_address(shared);
    const int steps = (k + BK - 1) / BK;
#pragma unroll
    for (int step = 0; step < STAGES - 1; ++step) {
        start_copies<UNIT>(shared_at + step * (4 * STAGE_FLOATS), a, b, lda, ldb, tile, step * BK, m, n, k);
        close_group();
    }
    int stage = 0;           // the one in use
    int free = STAGES - 1;   // the one that was used last
    const float* a_tile = shared + a_place(warp_row, 0);
    const float* b_tile = shared + A_FLOATS + (TRANS_B ? warp_col * BK : warp_col);
    await_groups<STAGES - 2>();
    __syncthreads();

    Sums part = {};
    Raw raw;
    raw.read(a_tile, b_tile, 0);
    for (int step = 0; step < steps; ++step) {
        start_copies<UNIT>(shared_at + free * (4 * STAGE_FLOATS), a, b, lda, ldb, tile, (step + STAGES - 1) * BK, m, n,
                           k);
        close_group();  // even if nothing was left to copy: await_groups counts groups
        if (FLUSH > BK && step % STEPS_PER_FLUSH == 0) flush(total, part);
#pragma unroll
        for (int k8 = 0; k8 < BK; k8 += 8) {
            const Fragments fragments(raw);
            if (k8 == BK - 8) {
                await_groups<STAGES - 2>();  // this thread's part of the next stage is there,
                __syncthreads();             // everybody's is, and nobody reads the last one any more
                free = stage;
                const int distance = stage == STAGES - 1 ? 1 - STAGES : 1;
                stage += distance;
                a_tile += distance * STAGE_FLOATS;
                b_tile += distance * STAGE_FLOATS;
            }
            raw.read(a_tile, b_tile, (k8 + 8) % BK);  // while the products of these 8 are under way
            fragments.multiply(part, total, FLUSH <= BK && k8 % FLUSH == 0);
        }
    }
    flush(total, part);
}

// ---------------------------------------------------------------- registers to C

// Four neighbours in a row of C: element `e` of four tiles side by side.
__device__ __forceinline__ float4 quad_of(const Sums& total, int i, int j, int e)
{
    return make_float4(total[i][j][e], total[i][j + 1][e], total[i][j + 2][e], total[i][j + 3][e]);
}

#if IN_LINES
// Every warp lays 8 rows at a time out in shared memory, from where neighbours write neighbours.
constexpr int STRIP_PITCH = WN + 4;  // two rows of four quads, each eight floats from the next, fill the banks
static_assert(THREADS / 32 * 8 * STRIP_PITCH <= STAGES * STAGE_FLOATS, "strips lie where the stages were");

// `row` and `col`: the first ones of the warp's tile.
__device__ __forceinline__ void store_in_lines(const Sums& total, float* shared, float* c, float alpha, float beta,
                                               int row, int col, int m, int n, Pitch ldc)
{
    const int lane = threadIdx.x % 32;
    float* strip = shared + threadIdx.x / 32 * (8 * STRIP_PITCH);
    float* mine = strip + lane / 4 * STRIP_PITCH + lane % 4 * 8;
    await_groups<0>();
    __syncthreads();  // the stages are no longer in use
#pragma unroll
    for (int i = 0; i < TILES_M; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int j = 0; j < TILES_N; j += 4)
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    *reinterpret_cast<float4*>(mine + 8 * j + 4 * e) = scaled(quad_of(total, i, j, 2 * half + e), alpha);
            __syncwarp();
            store_strip<8, WN, 1>(strip, STRIP_PITCH, c, ldc, beta, row + 16 * i + 8 * half, col, m, n);
            __syncwarp();
        }
}
#endif

// Grid: blocks of C. Shared memory: STAGES * STAGE_FLOATS floats.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
sgemm_tf32x3(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, float alpha, float beta,
             int m, int n, int k VIEW_PARAMETERS)
{
    extern __shared__ __align__(16) float shared[];
#if VIEW
    const int tiles = Tile::count(m, n), matrix = blockIdx.x / tiles;
    a += matrix * stride_a, b += matrix * stride_b, c += matrix * stride_c;
    const Tile tile(blockIdx.x % tiles, m, n);
#else
    const Pitch lda = k, ldb = n, ldc = n;
    const Tile tile(blockIdx.x, m, n);
#endif
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;

    Sums total = {};
    if (are_quads(a, TRANS_A ? m : k, lda) && are_quads(b, TRANS_B ? k : n, ldb))
        accumulate<4>(total, shared, a, b, lda, ldb, tile, m, n, k, warp_row, warp_col);
    else
        accumulate<1>(total, shared, a, b, lda, ldb, tile, m, n, k, warp_row, warp_col);

    const bool wide = are_quads(c, n, ldc);
#if IN_LINES
    if (!wide) return store_in_lines(total, shared, c, alpha, beta, tile.row + warp_row, tile.col + warp_col, m, n, ldc);
#endif
#pragma unroll
    for (int i = 0; i < TILES_M; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = tile.row + warp_row + 16 * i + 8 * half + lane / 4;
            if (row >= m) continue;
#pragma unroll
            for (int j = 0; j < TILES_N; j += 4)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int col = tile.col + warp_col + 8 * j + lane % 4 * 8 + 4 * e;
                    store_quad(c + static_cast<long long>(row) * ldc + col, quad_of(total, i, j, 2 * half + e), alpha,
                               beta, n - col, wide);
                }
        }
}
