// C = A B, halves or bfloat16 in, float32 sums, row-major, any size: knows mma.sync and ldmatrix, which every NVIDIA
// GPU since sm_80 has.
//
// A is m x k, B is k x n, C is m x n, with dimensions to 2^30.
//
// The plan. A block computes tiles of BM x BN of C, one after the other. Tiles of A and B for the next STAGES - 1 steps
// of BK are on their way from global to shared memory by cp.async, also those of the next tile of C. A warp computes
// WM x WN as a grid of 16 x 8 tiles, the size of an mma. ldmatrix brings the operands of an mma: of A as it lies, of B
// turned, so that both may lie row by row. While the tensor cores multiply 16 of k, the next 16 are read.
//
// ldmatrix reads pieces of 16 bytes from eight rows at once, which would all lie in the same banks. LAYOUT: the pieces
// of a row change places (swizzle), or rows have a piece more (padded).

#ifndef LAYOUT
#define LAYOUT_swizzle 1
#define LAYOUT_padded 2
#define LAYOUT LAYOUT_swizzle
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1  // blocks that run on one multiprocessor
#endif
#include "hgemm.h"

constexpr int THREADS = 32 * (BM / WM) * (BN / WN);
constexpr bool IS_PADDED = LAYOUT == LAYOUT_padded;
constexpr int A_PITCH = 2 * BK + 16 * IS_PADDED, B_PITCH = 2 * BN + 16 * IS_PADDED;  // bytes from row to row
constexpr int A_BYTES = BM * A_PITCH, STAGE_BYTES = A_BYTES + BK * B_PITCH;
constexpr int TILES_M = WM / 16, TILES_N = WN / 8;  // mma tiles of a warp

static_assert(BM % WM == 0 && BN % WN == 0, "a block is whole warp tiles");
static_assert(WM % 16 == 0 && WN % 32 == 0, "a warp is whole mma tiles, four side by side");
static_assert(STAGE_BYTES % 128 == 0 || IS_PADDED, "places in a stage are found by changing bits");
static_assert((BK == 32 || BK == 64) && BN >= 64 && STAGES >= 2, "what the swizzle is made for");

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

// What a thread copies: of A's tiles every ROWS_A-th piece of a column of pieces, of B's every ROWS_B-th of another.
// Addresses go from step to step by one addition. ASYNC: rows of A and B are whole pieces, so copies go on meanwhile.
template <bool ASYNC>
struct Copies {
    static constexpr int IN_A = BK / PIECE, IN_B = BN / PIECE;  // pieces in a row
    static constexpr int ROWS_A = THREADS / IN_A, ROWS_B = THREADS / IN_B;
    static constexpr int WRITTEN_OUT = ASYNC ? 64 : 1;

    const Half *a, *b;     // this thread's first pieces of the next step
    int pitch_a, pitch_b;  // halves from row to row
    int rows_a, left_b;    // rows of A from the tile's first on, and columns of B from this thread's on, that exist
    int depth;             // of k from the next step on

    static __device__ __forceinline__ int row_a() { return threadIdx.x / IN_A; }
    static __device__ __forceinline__ int row_b() { return threadIdx.x / IN_B; }
    static __device__ __forceinline__ int piece_a() { return threadIdx.x % IN_A; }
    static __device__ __forceinline__ int piece_b() { return threadIdx.x % IN_B; }

    // Go to the first step of a tile.
    __device__ __forceinline__ void begin(Tile tile, const Half* from_a, const Half* from_b, int m, int n, int k)
    {
        const int col = tile.col + piece_b() * PIECE;
        a = from_a + static_cast<long long>(tile.row + row_a()) * pitch_a + piece_a() * PIECE;
        b = from_b + static_cast<long long>(row_b()) * pitch_b + col;
        rows_a = m - tile.row;
        left_b = n - col;
        depth = k;
    }

    // Start copying the next step's tiles to the stage at `to`. Outside of the matrices are zeros.
    __device__ __forceinline__ void start(unsigned to)
    {
        const int first_a = a_place(row_a(), piece_a()), first_b = A_BYTES + b_place(row_b(), piece_b());
#pragma unroll WRITTEN_OUT
        for (int i = 0; i < (BM + ROWS_A - 1) / ROWS_A; ++i) {
            const int row = row_a() + i * ROWS_A;
            if (BM % ROWS_A && row >= BM) break;
            // Eight rows are a turn of the swizzle.
            const int at = ROWS_A % 8 ? a_place(row, piece_a()) : first_a + i * ROWS_A * A_PITCH;
            const int left = row < rows_a ? depth - piece_a() * PIECE : 0;
            copy_piece(to + at, a + static_cast<long long>(i * ROWS_A) * pitch_a, left);
        }
#pragma unroll WRITTEN_OUT
        for (int i = 0; i < (BK + ROWS_B - 1) / ROWS_B; ++i) {
            const int row = row_b() + i * ROWS_B;
            if (BK % ROWS_B && row >= BK) break;
            const int at = ROWS_B % 8 ? A_BYTES + b_place(row, piece_b()) : first_b + i * ROWS_B * B_PITCH;
            copy_piece(to + at, b + static_cast<long long>(i * ROWS_B) * pitch_b, row < depth ? left_b : 0);
        }
        close_group();  // even if nothing was left to copy: await_groups counts groups
        a += BK;
        b += static_cast<long long>(BK) * pitch_b;
        depth -= BK;
    }

    // Copy a piece of which `left` halves exist; half by half, it is there at once.
    static __device__ __forceinline__ void copy_piece(unsigned to, const Half* from, int left)
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
};

// ---------------------------------------------------------------- products

using Sums = float[TILES_M][TILES_N * 4];

// A warp's operands for 16 of k.
struct Fragments {
    unsigned a[TILES_M][4], b[TILES_N][2];

    // Those of step `s` of a stage. `from_a`, `from_b`: where this lane's first row of the stage's A and B lies. Further
    // rows of A and of k lie at distances that are known; further pieces are found by changing bits of the place.
    __device__ __forceinline__ void read(unsigned from_a, unsigned from_b, int s)
    {
        from_a = IS_PADDED ? from_a + 32 * s : from_a ^ 32 * s;
#pragma unroll
        for (int i = 0; i < TILES_M; ++i)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(a[i][0]), "=r"(a[i][1]), "=r"(a[i][2]), "=r"(a[i][3])
                         : "r"(from_a + 16 * i * A_PITCH) : "memory");
#pragma unroll
        for (int j = 0; j < TILES_N; j += 2)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(b[j][0]), "=r"(b[j][1]), "=r"(b[j + 1][0]), "=r"(b[j + 1][1])
                         : "r"((IS_PADDED ? from_b + 16 * j : from_b ^ 16 * j) + 16 * s * B_PITCH) : "memory");
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

// Store a warp's tile of C, whose first row and column are `row` and `col`.
__device__ __forceinline__ void store(Result* c, const Sums& sum, int row, int col, int m, int n)
{
    const bool wide = rows_are_pieces(c, n);
    row += threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < TILES_M; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half, row += 8)
            store_row<TILES_N>(c + static_cast<long long>(row) * n + col, sum[i] + 2 * half, row < m ? n - col : 0,
                               wide);
}

// Compute every gridDim-th tile of C = A B from blockIdx on. Rows of A and B are `of_a` and `of_b` long. Copies do not
// pause between tiles. The loop of steps has no branches: only then does the compiler put copies between products.
template <bool ASYNC>
__device__ __forceinline__ void multiply(const Half* a, const Half* b, Result* c, int m, int n, int k, int of_a,
                                         int of_b)
{
    extern __shared__ __align__(128) float shared[];
    const unsigned tiles = Tile::count(m, n);
    const int steps = k > BK ? (k + BK - 1) / BK : 1;
    unsigned shared_at = shared_address(shared);
    asm volatile("" : "+r"(shared_at));  // or the compiler asks for it at every step

    unsigned tile = blockIdx.x, copied = tile;  // the tile that is computed, and the one that is copied for
    Copies<ASYNC> copies;
    copies.pitch_a = of_a, copies.pitch_b = of_b;
    copies.begin(Tile(tile, m, n), a, b, m, n, k);
    const auto go_on = [&] {  // to the next tile; beyond the last one are zeros
        if (copies.depth > 0 || copied >= tiles) return;
        copied += gridDim.x;
        if (copied < tiles) copies.begin(Tile(copied, m, n), a, b, m, n, k);
    };
#pragma unroll 1
    for (int step = 0; step < STAGES - 1; ++step) {
        copies.start(shared_at + step * STAGE_BYTES);
        go_on();
    }
    int stage = 0, free = STAGES - 1;  // the one in use, and the one that was used last
    await_groups<STAGES - 2>();
    __syncthreads();

    const int warp = threadIdx.x / 32, row = threadIdx.x % 16, upper = threadIdx.x % 32 / 16;
    const int warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;
    unsigned first_a = shared_at + a_place(warp_row + row, upper);
    unsigned first_b = shared_at + A_BYTES + b_place(row, warp_col / PIECE + upper);
    asm volatile("" : "+r"(first_a), "+r"(first_b));  // or the compiler works them out at every step
    Fragments now, next;
    next.read(first_a, first_b, 0);
#pragma unroll 1
    for (; tile < tiles; tile += gridDim.x) {
        Sums sum = {};
#pragma unroll 1
        for (int left = steps; left > 0; go_on()) {
            int run = copies.depth > 0 ? min(left, (copies.depth + BK - 1) / BK) : left;  // to where a tile ends
            left -= run;
#pragma unroll 1
            do {
                copies.start(shared_at + free * STAGE_BYTES);
#pragma unroll
                for (int s = 0; s < BK / 16; ++s) {
                    now = next;
                    if (s == BK / 16 - 1) {
                        await_groups<STAGES - 2>();  // this thread's part of the next stage is there,
                        __syncthreads();             // everybody's is, and nobody reads the last one any more
                        free = stage;
                        stage = stage == STAGES - 1 ? 0 : stage + 1;
                    }
                    next.read(first_a + stage * STAGE_BYTES, first_b + stage * STAGE_BYTES, (s + 1) % (BK / 16));
                    now.multiply(sum);
                }
            } while (--run);
        }
        const Tile done(tile, m, n);
        store(c, sum, done.row + warp_row, done.col + warp_col, m, n);
    }
    await_groups<0>();
}

// Grid: blocks, of which each takes every gridDim-th tile of C. Shared memory: STAGES * STAGE_BYTES.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
hgemm(const Half* __restrict__ a, const Half* __restrict__ b, Result* __restrict__ c, int m, int n, int k
      PADDED_PARAMETERS)
{
    int of_a = k, of_b = n;
#if PADDED
    if (!rows_are_pieces(a, k)) a = padded_a, of_a = padded(k);
    if (!rows_are_pieces(b, n)) b = padded_b, of_b = padded(n);
#endif
    if (PADDED || (rows_are_pieces(a, of_a) && rows_are_pieces(b, of_b))) multiply<true>(a, b, c, m, n, k, of_a, of_b);
    else multiply<false>(a, b, c, m, n, k, of_a, of_b);
}
