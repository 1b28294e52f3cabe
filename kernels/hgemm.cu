// C = A B, halves or bfloat16 in, float32 sums, row-major, any size: knows mma.sync and ldmatrix, which every NVIDIA
// GPU since sm_80 has.
//
// A is m x k, B is k x n, C is m x n, with dimensions to 2^30.
//
// The plan. A block computes BM x BN of C; tiles of A and B for the next STAGES - 2 steps of BK are on their way from
// global to shared memory by cp.async. Barriers in shared memory tell when a stage is full, and when all warps have
// read it. It is filled anew a step later, so that warps need not keep step: no warp waits for the slowest, which would
// leave the tensor cores idle at every step. A warp computes WM x WN of it as a grid of 16 x 8 tiles, the size of an mma.
// ldmatrix brings the operands of an mma: of A as it lies, of B turned, so that both may lie row by row. While the
// tensor cores multiply 16 of k, the next 16 are read.
//
// ldmatrix reads pieces of 16 bytes from eight rows at once, which would all lie in the same banks. LAYOUT says what
// is done about it: the pieces of a row change places (swizzle), or rows have a piece more (padded).

#ifndef BM
#define BM 128  // rows of C per block
#endif
#ifndef BN
#define BN 128  // columns of C per block
#endif
#ifndef BK
#define BK 32  // depth of one stage
#endif
#ifndef WM
#define WM 64  // rows of C per warp
#endif
#ifndef WN
#define WN 64  // columns of C per warp
#endif
#ifndef STAGES
#define STAGES 5  // pairs of tiles in shared memory: one in use, one that slow warps still read, others on their way
#endif
#ifndef LAYOUT
#define LAYOUT_swizzle 1
#define LAYOUT_padded 2
#define LAYOUT LAYOUT_swizzle
#endif
#ifndef RASTER
#define RASTER 8  // rows of blocks that run together, to share tiles of B in the L2 cache
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1  // blocks that must fit on one multiprocessor
#endif

#include "gemm.h"
#include "hgemm.h"

constexpr int THREADS = 32 * (BM / WM) * (BN / WN);
constexpr bool IS_PADDED = LAYOUT == LAYOUT_padded;
constexpr int A_PITCH = 2 * BK + 16 * IS_PADDED, B_PITCH = 2 * BN + 16 * IS_PADDED;  // bytes from row to row
constexpr int A_BYTES = BM * A_PITCH, STAGE_BYTES = A_BYTES + BK * B_PITCH;
constexpr int TILES_M = WM / 16, TILES_N = WN / 8;  // mma tiles of a warp

static_assert(BM % WM == 0 && BN % WN == 0, "a block is whole warp tiles");
static_assert(WM % 16 == 0 && WN % 32 == 0, "a warp is whole mma tiles, four side by side");
static_assert((BK == 32 || BK == 64) && BN >= 64 && STAGES >= 3, "what the swizzle is made for");

// ---------------------------------------------------------------- barriers

__device__ __forceinline__ void barrier_init(unsigned barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void arrive(unsigned barrier)
{
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier) : "memory");
}

// Arrive once this thread's copies so far are complete.
__device__ __forceinline__ void arrive_after_copies(unsigned barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// Until the phase of that parity is over.
__device__ __forceinline__ void await(unsigned barrier, unsigned parity)
{
#if __CUDA_ARCH__ >= 900
#define WAITED "mbarrier.try_wait.parity.shared.b64"
#else
#define WAITED "mbarrier.test_wait.parity.shared.b64"
#endif
    asm volatile(
        "{ .reg .pred done;\n"
        "again: " WAITED " done, [%0], %1;\n"
        "@!done bra again; }" ::"r"(barrier), "r"(parity) : "memory");
}

// Steps of k take the stages in turn: the one of a step, and the parity of its barriers' phase.
struct Turn {
    int stage = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void advance()
    {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// ---------------------------------------------------------------- global to shared memory

// Where a piece of A's tile lies, and one of B's. Pieces that ldmatrix reads together are in eight different places of
// 128 bytes.
__device__ __forceinline__ int a_place(int row, int piece)
{
    return row * A_PITCH + (IS_PADDED ? piece : piece ^ (BK == 64 ? row % 8 : row / 2 % 4)) * 16;
}
__device__ __forceinline__ int b_place(int k, int piece)
{
    return k * B_PITCH + (IS_PADDED ? piece : piece ^ k % 8) * 16;
}

// Start copying a piece of which `left` halves exist. Without ASYNC, half by half, it is there at once.
template <bool ASYNC>
__device__ __forceinline__ void copy_piece(unsigned to, const Half* from, int left)
{
    if constexpr (ASYNC) {
        copy_async_or_zero<4>(to, reinterpret_cast<const float*>(from), left > 0);
    } else {
        unsigned word[PIECE / 2];
#pragma unroll
        for (int i = 0; i < PIECE / 2; ++i) {
            const unsigned low = 2 * i < left ? from[2 * i] : 0, high = 2 * i + 1 < left ? from[2 * i + 1] : 0;
            word[i] = low | high << 16;
        }
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                     ::"r"(to), "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3]) : "memory");
    }
}

// A and B, and the lengths of their rows.
struct Operands {
    const Half *a, *b;
    int m, n, k, of_a, of_b;
    bool are_aligned;

    // Start copying the tiles of the step that begins at k0 to the stage at `to`. Outside of the matrices are zeros.
    __device__ __forceinline__ void start_copies(unsigned to, Tile tile, int k0) const
    {
        if (PADDED || are_aligned) start<true>(to, tile, k0);
        else start<false>(to, tile, k0);
    }

    template <bool ASYNC>
    __device__ __forceinline__ void start(unsigned to, Tile tile, int k0) const
    {
        constexpr int WRITTEN_OUT = ASYNC ? 64 : 1;
        constexpr int IN_A = BK / PIECE, IN_B = BN / PIECE;  // pieces in a row
        int pitch_a = of_a, pitch_b = of_b;
        // Makes the compiler work the addresses out at every step, instead of keeping them all in registers.
        asm volatile("" : "+r"(k0), "+r"(pitch_a), "+r"(pitch_b));
#pragma unroll WRITTEN_OUT
        for (int i = 0; i < (BM * IN_A + THREADS - 1) / THREADS; ++i) {
            const int piece = threadIdx.x + i * THREADS;
            if (BM * IN_A % THREADS && piece >= BM * IN_A) break;
            const int row = piece / IN_A, depth = k0 + piece % IN_A * PIECE, at = tile.row + row;
            copy_piece<ASYNC>(to + a_place(row, piece % IN_A), a + static_cast<long long>(at) * pitch_a + depth,
                              at < m ? k - depth : 0);
        }
#pragma unroll WRITTEN_OUT
        for (int i = 0; i < (BK * IN_B + THREADS - 1) / THREADS; ++i) {
            const int piece = threadIdx.x + i * THREADS;
            if (BK * IN_B % THREADS && piece >= BK * IN_B) break;
            const int row = piece / IN_B, at = k0 + row, col = tile.col + piece % IN_B * PIECE;
            copy_piece<ASYNC>(to + A_BYTES + b_place(row, piece % IN_B), b + static_cast<long long>(at) * pitch_b + col,
                              at < k ? n - col : 0);
        }
    }
};

// ---------------------------------------------------------------- products

using Sums = float[TILES_M][TILES_N * 4];

// A warp's operands for 16 of k.
struct Fragments {
    unsigned a[TILES_M][4], b[TILES_N][2];

    // Those of step `s` of the stage at `stage`.
    __device__ __forceinline__ void read(unsigned stage, int warp_row, int warp_col, int s)
    {
        const int row = threadIdx.x % 16, upper = threadIdx.x % 32 / 16;
#pragma unroll
        for (int i = 0; i < TILES_M; ++i)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(a[i][0]), "=r"(a[i][1]), "=r"(a[i][2]), "=r"(a[i][3])
                         : "r"(stage + a_place(warp_row + 16 * i + row, 2 * s + upper)) : "memory");
#pragma unroll
        for (int j = 0; j < TILES_N; j += 2)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(b[j][0]), "=r"(b[j][1]), "=r"(b[j + 1][0]), "=r"(b[j + 1][1])
                         : "r"(stage + A_BYTES + b_place(16 * s + row, warp_col / PIECE + j + upper)) : "memory");
    }

    __device__ __forceinline__ void multiply(Sums& sum) const
    {
#pragma unroll
        for (int i = 0; i < TILES_M; ++i)
#pragma unroll
            for (int l = 0; l < TILES_N; ++l) {
                const int j = i % 2 ? TILES_N - 1 - l : l;  // there and back: the next mma has an operand of this one
                float* const c = sum[i] + 4 * j;
                asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." PTX_TYPE "." PTX_TYPE
                             ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                             : "r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]), "r"(b[j][0]), "r"(b[j][1]));
            }
    }
};

// sum += A[tile.row .., ..] B[.., tile.col ..] for one warp's tile, whose first row and column within the block's are
// `warp_row` and `warp_col`. `barriers`: full and empty of each stage.
__device__ __forceinline__ void accumulate(Sums& sum, unsigned shared_at, unsigned barriers, const Operands& from,
                                           Tile tile, int warp_row, int warp_col)
{
    constexpr int AHEAD = STAGES - 2;
    const auto stage_at = [=](Turn turn) { return shared_at + turn.stage * STAGE_BYTES; };
    const auto full = [=](Turn turn) { return barriers + 16 * turn.stage; };
    const auto empty = [=](Turn turn) { return barriers + 16 * turn.stage + 8; };
    const int steps = (from.k + BK - 1) / BK;
    Turn use, fill;
    const auto start_copies = [&](int step) {
        if (step >= steps) return;
        from.start_copies(stage_at(fill), tile, step * BK);
        if (PADDED || from.are_aligned) arrive_after_copies(full(fill));
        else arrive(full(fill));
        fill.advance();
    };
#pragma unroll 1
    for (int step = 0; step < AHEAD; ++step) start_copies(step);
    if (steps == 0) return;

    Fragments now, next;
    await(full(use), use.parity);
    next.read(stage_at(use), warp_row, warp_col, 0);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        if (step + AHEAD < steps) await(empty(fill), fill.parity ^ 1);  // at once the first time round
        start_copies(step + AHEAD);
#pragma unroll
        for (int s = 0; s < BK / 16; ++s) {
            now = next;
            if (s == BK / 16 - 1) {
                __syncwarp();
                if (threadIdx.x % 32 == 0) arrive(empty(use));
                use.advance();
                if (step + 1 < steps) await(full(use), use.parity);
            }
            next.read(stage_at(use), warp_row, warp_col, (s + 1) % (BK / 16));
            now.multiply(sum);
        }
    }
}

// Grid: blocks of C. Shared memory: STAGES * STAGE_BYTES.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
hgemm(const Half* __restrict__ a, const Half* __restrict__ b, Result* __restrict__ c, int m, int n, int k
      PADDED_PARAMETERS)
{
    extern __shared__ __align__(128) float shared[];
    const Tile tile(blockIdx.x, m, n);
    const int warp = threadIdx.x / 32;
    const int warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;
    Operands from = {a, b, m, n, k, k, n, rows_are_pieces(a, k) && rows_are_pieces(b, n)};
#if PADDED
    if (!rows_are_pieces(a, k)) from.a = padded_a, from.of_a = padded(k);
    if (!rows_are_pieces(b, n)) from.b = padded_b, from.of_b = padded(n);
#endif
    __shared__ unsigned long long barriers[2 * STAGES];
    const unsigned barriers_at = static_cast<unsigned>(__cvta_generic_to_shared(barriers));
    if (threadIdx.x < STAGES) {
        barrier_init(barriers_at + 16 * threadIdx.x, THREADS);
        barrier_init(barriers_at + 16 * threadIdx.x + 8, THREADS / 32);
    }
    __syncthreads();
    Sums sum = {};
    accumulate(sum, shared_address(shared), barriers_at, from, tile, warp_row, warp_col);

    const bool wide = rows_are_pieces(c, n);
    const int col = tile.col + warp_col;
#pragma unroll
    for (int i = 0; i < TILES_M; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = tile.row + warp_row + 16 * i + 8 * half + threadIdx.x % 32 / 4;
            store_row<TILES_N>(c + static_cast<long long>(row) * n + col, sum[i] + 2 * half, row < m ? n - col : 0,
                               wide);
        }
}
