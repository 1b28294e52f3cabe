// C = alpha A B + beta C in float32, row-major, any size: knows how to keep the FFMA pipe of an
// NVIDIA GPU since sm_80 busy, and nothing of tensor cores.
//
// A is m x k, B is k x n, C is m x n, with dimensions to 2^30. When beta is 0, C is never read and may
// hold anything; when k is 0, A and B are not.
//
// VIEW 0 is what is tuned: the matrices lie row by row without gaps, and B and C begin at multiples of 16
// bytes where n is a multiple of 4. With VIEW 1 they lie anywhere, their rows any distance apart, those of A
// and B (TRANS_A, TRANS_B) perhaps column by column, and there may be many of each; whether a row can be
// copied in units of 16 bytes is looked at here.
//
// The plan. On these GPUs a scheduler starts one warp instruction per clock, and a multiply-add occupies
// the whole pipe for that clock, so every instruction that is not an FFMA costs its share of the peak.
// Each level of the hierarchy exists to need fewer of the others per FFMA:
//
//   block   BM x BN of C. Walks along k in steps of BK; the tiles of A and B for the next STAGES - 1 steps
//           are on their way from global to shared memory by cp.async, which needs no registers.
//   warp    WM x WN of the block's tile. Its lanes form a grid, so that the fragments they read from
//           shared memory together are one short row of A's tile and one of B's, without bank conflicts.
//   thread  TM x TN of the warp's tile, in registers, as quads of 4 x 4 so that fragments come in 16-byte
//           reads. Per k: TM * TN multiply-adds for (TM + TN) / 4 reads. 16 x 8 needs 6 reads for 128.
//
// Few threads with many registers, then: 128 threads at a 16 x 8 tile use up half a multiprocessor's
// registers, and two such blocks take turns at computing and waiting.
//
// Where C has too few tiles for the device, k is divided as well: within a block among SLICES groups of warps
// that share the tiles in shared memory, among SPLITK blocks of a cluster, and among GRIDK clusters. A slice
// costs no traffic beyond the block, and gives a lone block on a multiprocessor the warps that hide its
// waiting. Blocks of a cluster add up through each other's shared memory. Clusters leave their sums in a
// workspace, that is in the L2 cache, where whoever comes last finds them: two trips there, but no limit; with
// 64 x 64 elements of C and k in the ten thousands it takes both to have work for all. Tiles that are
// multiples of 12 fit where powers of two leave a sliver: 1025 columns are 8 tiles of 128 and a
// ninth for one column, or 11 of 96.
//
// Where C has many tiles, their last wave leaves some multiprocessors idle. With TAIL two blocks share each tile of that
// wave: the first leaves a short rest of k, and those multiprocessors take the rests, several in turn. Whoever comes
// second adds up. That is what stream-K (Osama et al., PPoPP 2023) aims at, without blocks that stay and walk over the
// tiles: a main loop that has all registers in use gets slower by theirs.
//
// A's tile lies transposed in shared memory, [k][row], because a fragment is a column of A. cp.async in
// units of 4 bytes does that on the way, whatever the alignment of A's rows: per step of k = 16 and per
// thread that is 16 instructions next to 2048 FFMA. B's rows are copied in units of 16 bytes where n is a
// multiple of 4, else in units of 4. A matrix that lies column by column is copied as the other is: A's
// columns like B's rows, B's columns like A's rows. Copies of 4 bytes keep the copying units busier than the
// multiplications leave time for. So with B_ROWS=padded a first kernel copies such a B to rows that are whole quads;
// with B_ROWS=shifted its rows are copied as the aligned quads that have them, and moved by up to three places in
// shared memory while the step before is computed.
//
// Where n is no multiple of 4, a thread writes each quad of C in four stores, and each store of a warp reaches 16 sectors
// or more, for 4 or 8 bytes of each. With a short k this takes most of the time. With C_ROWS=lines a warp's sums go
// through shared memory, and its lanes write neighbours.
//
// Edges cost the main loop nothing. Rows of A and columns of B beyond the matrix are replaced by the last
// ones inside, which only feeds elements of C that are never stored; and if k is no multiple of BK, the
// first step is the short one, filled up with zeros before the loop begins.

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
#define WN 64  // columns of C per warp
#endif
#ifndef TM
#define TM 16  // rows of C per thread
#endif
#ifndef TN
#define TN 8  // columns of C per thread
#endif
#ifndef STAGES
#define STAGES 3  // pairs of tiles in shared memory: one in use, the others on their way
#endif
#ifndef REG_DB
#define REG_DB 1  // read the fragments of step k + 1 before the multiplications of step k
#endif
#ifndef BURSTS
#define BURSTS 4  // times per step at which copies are started; all at once, they hold up the reads behind them
#endif
#ifndef LANES
#define LANES_rows 0
#define LANES_pairs 1
#define LANES LANES_rows  // how a warp's lanes are laid out over its tile
#endif
#ifndef PAD
#define PAD 4  // floats added to rows of a tile that is transposed; 4 makes the stores free of conflicts
#endif
#ifndef RASTER
#define RASTER 8  // rows of blocks that run together, to share tiles of B in the L2 cache
#endif
#ifndef SPLITK
#define SPLITK 1  // blocks that share one tile of C, each with a part of k: a cluster, from sm_90 on
#endif
#ifndef GRIDK
#define GRIDK 1  // clusters (blocks, where SPLITK is 1) that share one tile of C, each with a part of k
#endif
#ifndef SLICES
#define SLICES 1  // groups of warps that share one tile of C, each with a part of every step
#endif
#ifndef B_ROWS
#define B_ROWS_direct 0
#define B_ROWS_padded 1   // to rows that are whole quads, by pad_rows, before
#define B_ROWS_shifted 2  // in quads, wherever they begin, and then into place
#define B_ROWS B_ROWS_direct  // how rows of B are copied
#endif
#define PADDED (B_ROWS == B_ROWS_padded)
#define SHIFTED (B_ROWS == B_ROWS_shifted)
#include "lines.h"  // C_ROWS
#ifndef TAIL
#define TAIL 0  // 1: two blocks share each tile of the last wave
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 2  // blocks that must fit on one multiprocessor, 0: no demand
#endif

#ifndef VIEW
#define VIEW 0  // 1: further arguments say how the matrices lie
#endif
#ifndef TRANS_A
#define TRANS_A 0  // 1: A lies column by column
#endif
#ifndef TRANS_B
#define TRANS_B 0  // 1: B lies column by column
#endif

constexpr int SLICE_THREADS = 32 * (BM / WM) * (BN / WN);  // hold the block's tile of C once
constexpr int SLICE_K = BK / SLICES;
constexpr int THREADS = SLICE_THREADS * SLICES;
constexpr int LANES_M = WM / TM;
constexpr int LANES_N = WN / TN;
constexpr int A_PITCH = BM + (TRANS_A ? 0 : PAD);
constexpr int B_PITCH = BN + (TRANS_B ? PAD : SHIFTED ? 4 : 0);
constexpr int A_FLOATS = BK * A_PITCH;
constexpr int STAGE_FLOATS = A_FLOATS + BK * B_PITCH;
constexpr bool ADDED_UP = GRIDK * SPLITK * SLICES > 1;  // sums of several threads make an element of C
constexpr int C_PITCH = BN + 4;  // of the tiles that they are added up in: quads 4 rows apart are in other banks

static_assert(BM % WM == 0 && BN % WN == 0, "a block is whole warp tiles");
static_assert(LANES_M * TM == WM && LANES_N * TN == WN && LANES_M * LANES_N == 32, "32 lanes make a warp");
static_assert(TM % 4 == 0 && TN % 4 == 0 && PAD % 4 == 0, "fragments are 16-byte reads");
static_assert(BK % 8 == 0, "eight lanes copy a row of A");
static_assert(SLICE_K % 2 == 0, "two sets of fragments take turns");
static_assert(SLICE_K % BURSTS == 0, "copies start between two steps of k");
static_assert(STAGES >= 2, "one stage is read while another is filled");
static_assert(!PADDED || !VIEW, "a view of B is read where it lies");
static_assert(!SHIFTED || (STAGES > 2 && REG_DB && !VIEW), "what is shifted has arrived a step before it is used");
static_assert(!TAIL || (!ADDED_UP && !VIEW), "nothing else is split");
static_assert(!IN_LINES || !(ADDED_UP || TAIL), "what is added up is written in lines anyway");
static_assert(LANES == LANES_rows || LANES_M % 2 == 0, "pairs of lanes lie one above the other");

#include "gemm.h"
#include "multiply_add.h"

using Sums = float[TM][TN];

// Elements from a row of a matrix (a column, where it lies column by column) to the next.
#if VIEW
using Pitch = long long;
#else
static_assert(!TRANS_A && !TRANS_B, "what lies column by column is a view");
using Pitch = int;
#endif

constexpr int ADDERS = THREADS;
// Each is a trip to the L2 cache, so several at once, unless registers for them may cost another block its place.
[[maybe_unused]] constexpr int AT_ONCE = MIN_BLOCKS > 1 ? 1 : GRIDK > 4 ? 32 / GRIDK : 8;
#include "split_k.h"

// ---------------------------------------------------------------- what C++ has no word for

// Makes the compiler take a value as it is, in a register. Left alone it would take addresses apart again,
// and four instructions per copy instead of one would put them together in the main loop.
template <typename T>
__device__ __forceinline__ void keep(T& value)
{
    if constexpr (sizeof(T) == 8) asm("" : "+l"(value));
    else asm("" : "+r"(value));
}

// Start copying FLOATS from global to shared memory, if `wanted`. Only copies of 16 bytes can pass by L1.
template <int FLOATS>
__device__ __forceinline__ void copy_async(unsigned to, const float* from, bool wanted)
{
    if constexpr (FLOATS == 4)
        asm volatile(
            "{ .reg .pred wanted; setp.ne.b32 wanted, %2, 0;\n"
            "@wanted cp.async.cg.shared.global.L2::128B [%0], [%1], 16; }"
            ::"r"(to), "l"(from), "r"(int(wanted)) : "memory");
    else
        asm volatile(
            "{ .reg .pred wanted; setp.ne.b32 wanted, %2, 0;\n"
            "@wanted cp.async.ca.shared.global.L2::128B [%0], [%1], 4; }"
            ::"r"(to), "l"(from), "r"(int(wanted)) : "memory");
}

// Start copying a quad where it is `inside`, else four zeros, if `wanted`.
__device__ __forceinline__ void copy_or_clear_async(unsigned to, const float* from, bool inside, bool wanted)
{
    asm volatile(
        "{ .reg .pred wanted; setp.ne.b32 wanted, %3, 0;\n"
        "@wanted cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2; }"
        ::"r"(to), "l"(from), "r"(inside ? 16 : 0), "r"(int(wanted)) : "memory");
}

// ---------------------------------------------------------------- global to shared memory

// One thread's part in copying tiles of a matrix that lies along k, EXTENT rows at a time, step by step along
// k, to BEGIN floats into each stage. Transposes: the tile is [k][row].
template <int EXTENT, int TILE_PITCH, int BEGIN>
struct TransposingCopies {
    // Eight lanes take a sector of 32 bytes from one row, the next eight from the next row: no byte is
    // fetched in vain, and with PAD = 4 the 32 transposed floats land in 32 banks, k * 4 + row.
    static constexpr int ROWS = THREADS / 8;  // that the block copies at a time
    static constexpr int PASSES = (EXTENT + ROWS - 1) / ROWS;
    static constexpr int COUNT = PASSES * (BK / 8);

    const float* from[PASSES];  // this thread's first element of each row that it copies
    int step = 0;               // how far along k the current step is

    // Of the rows from `first` on; beyond the last of `rows` it takes the last.
    __device__ TransposingCopies(const float* matrix, int first, int rows, Pitch pitch, int)
    {
        keep(step);
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            from[pass] = matrix + static_cast<long long>(min(first + row(pass), rows - 1)) * pitch + k();
            keep(from[pass]);
        }
    }

    static __device__ int k() { return threadIdx.x % 8; }
    static __device__ int row(int pass) { return threadIdx.x / 8 + pass * ROWS; }

    // Start copy number `i` of COUNT, after those before it, into the stage at `to`. Of the FIRST step, only
    // `depth` elements along k exist.
    template <bool FIRST>
    __device__ __forceinline__ void start(int i, unsigned to, bool wanted, int depth, Pitch)
    {
        const int pass = i / (BK / 8), at = i % (BK / 8) * 8;
        if (EXTENT % ROWS && row(pass) >= EXTENT) return;
        to += 4 * (BEGIN + (k() + at) * TILE_PITCH + row(pass));
        const float* element = from[pass] + step + at;
        if (FIRST) copy_async_or_zero<1>(to, element, k() + at < depth);
        else copy_async<1>(to, element, wanted);
    }

    // Go on to the next step, once all copies of one that was `depth` deep are started.
    __device__ __forceinline__ void advance(int depth, Pitch) { step += depth; }
};

// The same of a matrix that lies across k, EXTENT columns at a time: the tile is [k][column] as well. UNIT:
// floats per copy.
template <int EXTENT, int TILE_PITCH, int BEGIN, int UNIT>
struct StraightCopies {
    // As many lanes as make whole passes over a row; each may have several columns.
    static constexpr int UNITS = EXTENT / UNIT;
    static constexpr int LANES_OF_ROW = UNITS % 32 == 0 ? 32 : UNITS % 16 == 0 ? 16 : UNITS % 8 == 0 ? 8 : 4;
    static constexpr int COLS = UNITS / LANES_OF_ROW;
    static constexpr int ROWS = THREADS / LANES_OF_ROW;
    static constexpr int PASSES = (BK + ROWS - 1) / ROWS;
    static constexpr int COUNT = PASSES * COLS;

    const float* from;  // the row to copy from next
    int col[COLS];      // and this thread's places in it
    int cols;           // of the matrix

    // Of the columns from `first` on; beyond the last of `cols` it takes the last.
    __device__ StraightCopies(const float* matrix, int first, int cols_, Pitch pitch, int) : cols(cols_)
    {
        from = matrix + static_cast<long long>(row(0)) * pitch;
#pragma unroll
        for (int j = 0; j < COLS; ++j)
            col[j] = min(first + (int(threadIdx.x % LANES_OF_ROW) + j * LANES_OF_ROW) * UNIT, cols - UNIT);
    }

    static __device__ int row(int pass) { return threadIdx.x / LANES_OF_ROW + pass * ROWS; }

    template <bool FIRST>
    __device__ __forceinline__ void start(int i, unsigned to, bool wanted, int depth, Pitch pitch)
    {
        const int pass = i / COLS, j = i % COLS;
        if (BK % ROWS == 0 || row(pass) < BK) {
            to += 4 * (BEGIN + row(pass) * TILE_PITCH + (threadIdx.x % LANES_OF_ROW + j * LANES_OF_ROW) * UNIT);
            if (FIRST) copy_async_or_zero<UNIT>(to, from + col[j], row(pass) < depth);
            else copy_async<UNIT>(to, from + col[j], wanted);
        }
        if (j == COLS - 1) from += static_cast<long long>(ROWS) * pitch;
    }

    __device__ __forceinline__ void advance(int depth, Pitch pitch)
    {
        from += static_cast<long long>(depth - PASSES * ROWS) * pitch;
    }
};

// The same of a matrix whose rows begin and end anywhere: they are copied as the aligned quads that have them, which
// may be one more than they have floats for, and shifted into place by the lanes that copied them.
template <int EXTENT, int TILE_PITCH, int BEGIN>
struct ShiftedCopies {
    static constexpr int LANES_OF_ROW = EXTENT % 32 == 0 ? 32 : 16;
    static constexpr int COLS = (EXTENT / 4 + LANES_OF_ROW - 1) / LANES_OF_ROW;
    static constexpr bool LAST_APART = EXTENT / 4 % LANES_OF_ROW == 0;  // no lane has time for the quad more
    static constexpr int ROWS = THREADS / LANES_OF_ROW;
    static constexpr int PASSES = BK / ROWS;
    static constexpr int COUNT = PASSES * COLS + LAST_APART;
    static constexpr int FLOATS = EXTENT / LANES_OF_ROW;  // of a row, that a lane shifts
    static_assert(EXTENT % LANES_OF_ROW == 0 && BK % ROWS == 0 && PASSES <= LANES_OF_ROW, "all have equally much to do");
    static_assert(ROWS % 4 == 0, "all rows of a thread begin at the same place of a quad");

    const float* from;  // the row to copy from next
    const float* last;  // where the last quad of one row is, which this lane copies
    const float* end;   // of the last row
    int left;           // columns after the first
    int col[COLS];      // this thread's places in its rows

    // Of the columns from `first` on, of `depth` rows; beyond the last of `cols` columns it takes the quad of the last.
    __device__ ShiftedCopies(const float* matrix, int first, int cols, Pitch pitch, int depth)
    {
        left = cols - first - 1;
        from = matrix + static_cast<long long>(row(0)) * pitch + first;
        last = from + static_cast<long long>(lane() * ROWS) * pitch + min(EXTENT, left);
        end = matrix + static_cast<long long>(depth) * pitch;
#pragma unroll
        for (int j = 0; j < COLS; ++j) col[j] = min(quad(j) * 4, left);
    }

    static __device__ int lane() { return threadIdx.x % LANES_OF_ROW; }
    static __device__ int quad(int j) { return lane() + j * LANES_OF_ROW; }
    static __device__ int row(int pass) { return threadIdx.x / LANES_OF_ROW + pass * ROWS; }

    static __device__ const float* quad_of(const float* p)
    {
        return reinterpret_cast<const float*>(reinterpret_cast<unsigned long long>(p) & ~15ull);
    }

    // How far into their first quads the rows begin that are copied from now on.
    __device__ int skew() const { return reinterpret_cast<unsigned long long>(from) / 4 % 4; }

    template <bool FIRST>
    __device__ __forceinline__ void start(int i, unsigned to, bool wanted, int depth, Pitch pitch)
    {
        if (i == PASSES * COLS) {
            to += 4 * (BEGIN + (row(0) + lane() * ROWS) * TILE_PITCH + EXTENT);
            copy<FIRST, true>(to, quad_of(last), wanted && lane() < PASSES, row(0) + lane() * ROWS < depth);
            return;
        }
        const int pass = i / COLS, j = i % COLS;
        const bool has_quad = LAST_APART || j < COLS - 1 || quad(j) <= EXTENT / 4;
        to += 4 * (BEGIN + row(pass) * TILE_PITCH + quad(j) * 4);
        if (pass == PASSES - 1) copy<FIRST, true>(to, quad_of(from + col[j]), wanted && has_quad, row(pass) < depth);
        else copy<FIRST, false>(to, quad_of(from + col[j]), wanted && has_quad, row(pass) < depth);
        if (j == COLS - 1) from += static_cast<long long>(ROWS) * pitch;
    }

    // A quad, or of the FIRST step zeros where not `inside`. It MAY_END in the row that is the last of all, and of its
    // step: a part of a quad is left to `finish`, since what follows is not ours to read.
    template <bool FIRST, bool MAY_END>
    __device__ __forceinline__ void copy(unsigned to, const float* at, bool wanted, bool inside)
    {
        if (FIRST) copy_or_clear_async(to, at, inside, wanted && (!inside || at < quad_of(end)));
        else copy_async<4>(to, at, wanted && (!MAY_END || at < quad_of(end)));
    }

    // Of the last step, `depth` deep: the floats at the end of the last row, by lanes of the warp that shifts it.
    __device__ __forceinline__ void finish(unsigned to, int depth)
    {
        const int row = depth - 1;
        const float* at = quad_of(end) + lane();
        const int col = static_cast<int>(at - quad_of(end - 1 - left));
        copy_async<1>(to + 4 * (BEGIN + row * TILE_PITCH + col), at,
                      at < end && col < EXTENT + 4 && int(threadIdx.x / LANES_OF_ROW) == row % ROWS);
    }

    __device__ __forceinline__ void advance(int depth, Pitch pitch)
    {
        from += static_cast<long long>(depth - PASSES * ROWS) * pitch;
        last += static_cast<long long>(depth) * pitch;
    }

    // Shifting the rows of a thread, in two halves, between which all its lanes meet.
    static __device__ __forceinline__ void lift(float (&moved)[FLOATS], float* stage, int pass, int skew)
    {
#pragma unroll
        for (int i = 0; i < FLOATS; ++i) moved[i] = place(stage, pass)[skew + i * LANES_OF_ROW];
    }
    static __device__ __forceinline__ void drop(const float (&moved)[FLOATS], float* stage, int pass)
    {
#pragma unroll
        for (int i = 0; i < FLOATS; ++i) place(stage, pass)[i * LANES_OF_ROW] = moved[i];
    }
    static __device__ float* place(float* stage, int pass) { return stage + BEGIN + row(pass) * TILE_PITCH + lane(); }
};

// One thread's part in copying the tiles of A and B. UNIT: floats per copy of what lies across k.
template <int UNIT>
struct Copies {
    Pitch lda, ldb;
#if TRANS_A
    StraightCopies<BM, A_PITCH, 0, UNIT> of_a;
#else
    TransposingCopies<BM, A_PITCH, 0> of_a;
#endif
#if TRANS_B
    TransposingCopies<BN, B_PITCH, A_FLOATS> of_b;
#elif SHIFTED
    ShiftedCopies<BN, B_PITCH, A_FLOATS> of_b;
#else
    StraightCopies<BN, B_PITCH, A_FLOATS, UNIT> of_b;
#endif
    static constexpr int COUNT = decltype(of_a)::COUNT + decltype(of_b)::COUNT;

    __device__ Copies(const float* a, const float* b, Tile tile, int m, int n, int k, Pitch lda_, Pitch ldb_)
        : lda(lda_), ldb(ldb_), of_a(a, tile.row, m, lda, k), of_b(b, tile.col, n, ldb, k)
    {
    }

    // Start copy number `i` of COUNT, after those before it, into the stage at `to`. Of the FIRST step,
    // only `depth` columns of A and rows of B exist.
    template <bool FIRST>
    __device__ __forceinline__ void start(int i, unsigned to, bool wanted, int depth)
    {
        if (i < of_a.COUNT) of_a.template start<FIRST>(i, to, wanted, depth, lda);
        else of_b.template start<FIRST>(i - of_a.COUNT, to, wanted, depth, ldb);
    }

    // Part `burst` of BURSTS of a step's copies.
    __device__ __forceinline__ void start_burst(int burst, unsigned to, bool wanted)
    {
        constexpr int EACH = (COUNT + BURSTS - 1) / BURSTS;
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            if (burst * EACH + i < COUNT) start<false>(burst * EACH + i, to, wanted, BK);
    }

    // What the last step needs besides, `depth` deep.
    __device__ __forceinline__ void finish(unsigned to, int depth)
    {
#if SHIFTED
        of_b.finish(to, depth);
#endif
    }

    // Go on to the next step, once all copies of one that was `depth` deep are started.
    __device__ __forceinline__ void advance(int depth)
    {
        of_a.advance(depth, lda);
        of_b.advance(depth, ldb);
    }
};

// ---------------------------------------------------------------- shared memory to registers

// Where a thread's tile lies in the block's: its quads are LANES_M (LANES_N) quads apart.
struct Place {
    int m, n;  // of the first quad

    __device__ Place()
    {
        const int warp = threadIdx.x % SLICE_THREADS / 32, lane = threadIdx.x % 32;
        // A 16-byte read is served for a quarter of the warp at a time. In rows, such a quarter shares one
        // quad of A and reads LANES_N of B; in pairs, two of A and half as many of B.
        const int lane_m = LANES == LANES_rows ? lane / LANES_N : lane / (2 * LANES_N) * 2 + lane % 2;
        const int lane_n = LANES == LANES_rows ? lane % LANES_N : lane / 2 % LANES_N;
        m = warp / (BN / WN) * WM + lane_m * 4;
        n = warp % (BN / WN) * WN + lane_n * 4;
    }
    __device__ int row(int i) const { return m + i / 4 * (4 * LANES_M) + i % 4; }
    __device__ int col(int j) const { return n + j / 4 * (4 * LANES_N) + j % 4; }
};

// The TM floats of A and TN floats of B that a thread needs for step k of a stage, whose tiles begin, for
// this thread, at `a_tile` and `b_tile`.
__device__ __forceinline__ void read_fragments(float (&a_frag)[TM], float (&b_frag)[TN], const float* a_tile,
                                               const float* b_tile, int k)
{
#pragma unroll
    for (int i = 0; i < TM; i += 4)
        *reinterpret_cast<float4*>(a_frag + i) = *reinterpret_cast<const float4*>(a_tile + k * A_PITCH + i * LANES_M);
#pragma unroll
    for (int j = 0; j < TN; j += 4)
        *reinterpret_cast<float4*>(b_frag + j) = *reinterpret_cast<const float4*>(b_tile + k * B_PITCH + j * LANES_N);
}

// An FFMA reads three registers, more than the two banks of the register file deliver per clock; an
// operand that the instruction before also read comes from a small cache instead. Turning round at the
// end of each row keeps one operand common across the turn.
__device__ __forceinline__ void outer_product(Sums& sum, const float (&a_frag)[TM], const float (&b_frag)[TN])
{
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int step = 0; step < TN; step += FMA_FLOATS) {
            const int j = i % 2 ? TN - FMA_FLOATS - step : step;
            multiply_add(sum[i] + j, a_frag[i], b_frag + j);
        }
}

// ---------------------------------------------------------------- the main loop

#if SHIFTED
// Shifts the rows of B in a stage that has arrived, some at a time between the steps of k of the second half of a step.
struct Shift {
    using Rows = decltype(Copies<4>::of_b);
    static constexpr int BEGIN = SLICE_K / 2, TURNS = SLICE_K - 1 - BEGIN;  // before the last, which is the next stage's
    static constexpr int EACH = (Rows::PASSES + TURNS - 1) / TURNS;
    static_assert(TURNS >= 1, "there is time to shift");

    float moved[EACH][Rows::FLOATS];

    __device__ __forceinline__ void lift(float* stage, int turn, int skew)
    {
        if (turn == 0) __syncwarp();  // what any lane has copied is there for all
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            if (turn * EACH + i < Rows::PASSES) Rows::lift(moved[i], stage, turn * EACH + i, skew);
    }
    __device__ __forceinline__ void drop(float* stage, int turn) const
    {
        if (turn * EACH >= Rows::PASSES) return;
        __syncwarp();
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            if (turn * EACH + i < Rows::PASSES) Rows::drop(moved[i], stage, turn * EACH + i);
    }
};
#endif

// sum += A[tile.row .., 0 .. k) B[0 .. k), tile.col ..) for one thread's elements.
template <int UNIT>
__device__ __forceinline__ void accumulate(Sums& sum, float* shared, const float* a, const float* b, Tile tile,
                                           int m, int n, int k, Pitch lda, Pitch ldb, Place place)
{
    Copies<UNIT> copies(a, b, tile, m, n, k, lda, ldb);
    const int steps = (k + BK - 1) / BK;
    const int first_depth = k - (steps - 1) * BK;
    const unsigned shared_at = shared_address(shared);

#if SHIFTED
    Shift shift;
    const int first_skew = copies.of_b.skew();
#endif
    if (steps > 0)
#pragma unroll
        for (int i = 0; i < copies.COUNT; ++i) copies.template start<true>(i, shared_at, true, first_depth);
    if (steps == 1) copies.finish(shared_at, first_depth);
    copies.advance(first_depth);
    close_group();
#if SHIFTED
    const int skew = copies.of_b.skew();  // of all further steps, which are whole quads deep
#endif
    for (int step = 1; step < STAGES - 1; ++step) {
#pragma unroll
        for (int i = 0; i < copies.COUNT; ++i)
            copies.template start<false>(i, shared_at + step * (4 * STAGE_FLOATS), step < steps, BK);
        if (step == steps - 1) copies.finish(shared_at + step * (4 * STAGE_FLOATS), BK);
        copies.advance(BK);
        close_group();
    }

    int stage = 0;                           // the one in use
    int free = STAGES - 1;                   // the one that was used last
    const int first_k = threadIdx.x / SLICE_THREADS * SLICE_K;  // of this thread's slice of a step
    const float* a_tile = shared + first_k * A_PITCH + place.m;  // this thread's part of the stage in use
    const float* b_tile = shared + A_FLOATS + first_k * B_PITCH + place.n;
    [[maybe_unused]] const auto after = [](int used) { return used == STAGES - 1 ? 0 : used + 1; };
    const auto next_stage = [&] {
        await_groups<STAGES - 2>();  // this thread's part of the next stage is there,
        __syncthreads();             // everybody's is, and nobody reads the last one any more
        free = stage;
        const int distance = stage == STAGES - 1 ? 1 - STAGES : 1;
        stage += distance;
        a_tile += distance * STAGE_FLOATS;
        b_tile += distance * STAGE_FLOATS;
    };
    await_groups<STAGES - 2>();
#if SHIFTED
#pragma unroll
    for (int turn = 0; turn < Shift::TURNS; ++turn) {
        shift.lift(shared, turn, first_skew);
        shift.drop(shared, turn);
    }
#endif
    __syncthreads();

    alignas(16) float a_frag[1 + REG_DB][TM], b_frag[1 + REG_DB][TN];
    if (REG_DB) read_fragments(a_frag[0], b_frag[0], a_tile, b_tile, 0);

    for (int step = 0; step < steps; ++step) {
        const bool more = step + STAGES - 1 < steps;
#pragma unroll
        for (int burst = 0; burst < BURSTS; ++burst) {
            copies.start_burst(burst, shared_at + free * (4 * STAGE_FLOATS), more);
            if (burst == BURSTS - 1) {
                if (step + STAGES == steps) copies.finish(shared_at + free * (4 * STAGE_FLOATS), BK);
                copies.advance(BK);
                close_group();  // even if empty: await_groups counts groups
            }
#pragma unroll
            for (int i = burst * (SLICE_K / BURSTS); i < (burst + 1) * (SLICE_K / BURSTS); ++i) {
                if (REG_DB) {
#if SHIFTED
                    if (i == SLICE_K - 1) shift.drop(shared + after(stage) * STAGE_FLOATS, Shift::TURNS - 1);
#endif
                    if (i == SLICE_K - 1) next_stage();
                    read_fragments(a_frag[(i + 1) % 2], b_frag[(i + 1) % 2], a_tile, b_tile, (i + 1) % SLICE_K);
#if SHIFTED
                    // What the last turn has lifted is there by now.
                    const int turn = i - Shift::BEGIN;
                    if (0 < turn && turn < Shift::TURNS) shift.drop(shared + after(stage) * STAGE_FLOATS, turn - 1);
                    if (turn == 0) await_groups<STAGES - 3 + (BURSTS == 2)>();  // which have closed this step's group
                    if (0 <= turn && turn < Shift::TURNS)
                        shift.lift(shared + after(stage) * STAGE_FLOATS, turn, skew);
#endif
                } else {
                    read_fragments(a_frag[0], b_frag[0], a_tile, b_tile, i);
                }
                outer_product(sum, a_frag[REG_DB ? i % 2 : 0], b_frag[REG_DB ? i % 2 : 0]);
            }
        }
        if (!REG_DB) next_stage();
    }
}

// ---------------------------------------------------------------- registers to C

// Four neighbours of a thread's sums.
__device__ __forceinline__ float4 quad_of(const Sums& sum, int i, int j)
{
    return make_float4(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]);
}

// The same times alpha. What is written from other registers than it was summed up in may be summed up in any: where
// sums have to lie as quads, ptxas leaves up to a ninth of the main loop's FFMAs a conflict of register banks.
__device__ __forceinline__ float4 scaled_quad_of(const Sums& sum, int i, int j, float alpha)
{
    return make_float4(__fmul_rn(alpha, sum[i][j]), __fmul_rn(alpha, sum[i][j + 1]), __fmul_rn(alpha, sum[i][j + 2]),
                       __fmul_rn(alpha, sum[i][j + 3]));
}

__device__ __forceinline__ void store(const Sums& sum, float* c, float alpha, float beta, Tile tile, int m, int n,
                                      Pitch ldc, bool wide, Place place)
{
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int row = tile.row + place.row(i);
        if (row < m)
#pragma unroll
            for (int j = 0; j < TN; j += 4) {
                const int col = tile.col + place.col(j);
                store_quad(c + static_cast<long long>(row) * ldc + col, quad_of(sum, i, j), alpha, beta, n - col,
                           wide);
            }
    }
}

#if IN_LINES
// The same where rows of C are no whole quads: every warp lays LANES_M rows at a time out in shared memory, from where
// neighbours write neighbours.
constexpr int STRIP_PITCH = WN + (WN % 32 ? 0 : 16);  // two rows that are written at once lie in different banks
constexpr int STRIP_FLOATS = LANES_M * STRIP_PITCH;
static_assert(THREADS / 32 * STRIP_FLOATS <= STAGES * STAGE_FLOATS, "strips lie where the stages were");

__device__ __forceinline__ void store_in_lines(const Sums& sum, float* shared, float* c, float alpha, float beta,
                                               Tile tile, int m, int n, Pitch ldc, Place place)
{
    const int warp = threadIdx.x / 32;
    const int warp_row = warp / (BN / WN) * WM, warp_col = warp % (BN / WN) * WN;
    float* strip = shared + warp * STRIP_FLOATS;
    float* mine = strip + (place.m - warp_row) / 4 * STRIP_PITCH - warp_col;
    await_groups<0>();
    __syncthreads();  // the stages are no longer in use
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int j = 0; j < TN; j += 4)
            *reinterpret_cast<float4*>(mine + place.col(j)) = scaled_quad_of(sum, i, j, alpha);
        __syncwarp();
        const int row = tile.row + warp_row + i / 4 * (4 * LANES_M) + i % 4;
        store_strip<LANES_M, WN, 4>(strip, STRIP_PITCH, c, ldc, beta, row, tile.col + warp_col, m, n);
        __syncwarp();
    }
}
#endif

// Lay the sums of each slice, times alpha, out as a tile in shared memory.
__device__ __forceinline__ void lay_out(const Sums& sum, float alpha, float* tiles, Place place)
{
    float* tile = tiles + threadIdx.x / SLICE_THREADS * (BM * C_PITCH);
    await_groups<0>();
    __syncthreads();  // the stages are no longer in use
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; j += 4)
            *reinterpret_cast<float4*>(tile + place.row(i) * C_PITCH + place.col(j)) = scaled_quad_of(sum, i, j, alpha);
    __syncthreads();
}

// Quads of a row of n floats, the last of them perhaps not whole.
__device__ __forceinline__ int quads_of(int n) { return n / 4 + (n % 4 > 0); }

// Elements that so many steps of k are in A and in B.
__device__ __forceinline__ long long steps_of_a(int k, Pitch lda) { return TRANS_A ? static_cast<long long>(k) * lda : k; }
__device__ __forceinline__ long long steps_of_b(int k, Pitch ldb) { return TRANS_B ? k : static_cast<long long>(k) * ldb; }

// Grid: (blocks of C, of one matrix after the other, GRIDK, SPLITK): the grid's y and z end at 65535. With TAIL a second
// block for each tile of the last wave follows.
// Shared memory: max(STAGES * STAGE_FLOATS, ADDED_UP ? SLICES * BM * C_PITCH : 0) floats.
extern "C" __global__ void
#if SPLITK > 1
__cluster_dims__(1, 1, SPLITK)
#endif
__launch_bounds__(THREADS, MIN_BLOCKS)
sgemm(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, float alpha, float beta,
      int m, int n, int k
#if VIEW
      , Pitch lda, Pitch ldb, Pitch ldc
      , long long stride_a, long long stride_b, long long stride_c  // elements from a matrix to the next
#endif
#if GRIDK > 1
      , float* partial  // GRIDK * blocks of C * BM * BN floats, to be written before they are read
#elif TAIL
      , float* partial  // 2 * the last wave's tiles * BM * BN floats, likewise
      , int turns       // as Task has them
#endif
)
{
    extern __shared__ __align__(16) float shared[];
#if VIEW
    const int tiles = Tile::count(m, n);
    const int matrix = blockIdx.x / tiles;
    a += matrix * stride_a, b += matrix * stride_b, c += matrix * stride_c;
    const Tile tile(blockIdx.x % tiles, m, n);
#else
#if TAIL
    const Task<BK> task(m, n, k, turns);
    const Tile tile(task.tile, m, n);
#else
    const Tile tile(blockIdx.x, m, n);
#endif
    const Pitch lda = k, ldb = PADDED ? quads_of(n) * 4 : n, ldc = n;
#endif

#if TAIL
    const int k0 = task.k0, depth = task.depth;
#else
    // This block's part of k.
    constexpr int PARTS = SPLITK * GRIDK;
    const int depth_of_part = (k + BK * PARTS - 1) / (BK * PARTS) * BK;
    const int k0 = min(static_cast<int>(blockIdx.y * SPLITK + blockIdx.z) * depth_of_part, k);
    const int depth = min(depth_of_part, k - k0);
#endif

    const Place place;
    Sums sum = {};
#if VIEW
    const bool wide = (!TRANS_A || rows_are_quads(a, m, lda)) && (TRANS_B || rows_are_quads(b, n, ldb));
    const bool wide_c = rows_are_quads(c, n, ldc);
#else
    const bool wide_c = n % 4 == 0, wide = PADDED || SHIFTED || wide_c;
#endif
    a += steps_of_a(k0, lda), b += steps_of_b(k0, ldb);
    const int columns = PADDED ? ldb : n;
    if (wide) accumulate<4>(sum, shared, a, b, tile, m, columns, depth, lda, ldb, place);
    else accumulate<1>(sum, shared, a, b, tile, m, columns, depth, lda, ldb, place);

    if constexpr (ADDED_UP) {
#if GRIDK == 1
        float* const partial = nullptr;
#endif
        lay_out(sum, alpha, shared, place);
        if (wide_c) add_up_and_store<4>(shared, c, 1.0f, beta, tile, m, n, ldc, partial);
        else add_up_and_store<1>(shared, c, 1.0f, beta, tile, m, n, ldc, partial);
    } else {
#if TAIL
        if (task.of_shared >= 0) {
            if (!has_all_sums(sum, alpha, task, partial)) return;
            alpha = 1.0f;
        }
#endif
#if IN_LINES
        if (!wide_c) return store_in_lines(sum, shared, c, alpha, beta, tile, m, n, ldc, place);
#endif
        store(sum, c, alpha, beta, tile, m, n, ldc, wide_c, place);
    }
}

#if PADDED
// Copy B to rows of whole quads, the last one filled up with zeros.
extern "C" __global__ void __launch_bounds__(256) pad_rows(const float* __restrict__ b, float* __restrict__ padded, int n, int k)
{
    const int quads = quads_of(n);
    const long long all = static_cast<long long>(k) * quads;
    for (long long i = blockIdx.x * 256ll + threadIdx.x; i < all; i += gridDim.x * 256ll) {
        const int row = static_cast<int>(i / quads), col = static_cast<int>(i % quads) * 4;
        const float* from = b + static_cast<long long>(row) * n + col;
        float4 quad = {from[0], 0.0f, 0.0f, 0.0f};
        if (col + 1 < n) quad.y = from[1];
        if (col + 2 < n) quad.z = from[2];
        if (col + 3 < n) quad.w = from[3];
        reinterpret_cast<float4*>(padded)[i] = quad;
    }
}
#endif
