// C = alpha A B + beta C, float32 in and out, row-major, any size, by three TF32 products on the tensor
// cores: knows wgmma, the asynchronous product of a whole warpgroup, which only sm_90a has.
//
// A is m x k, B is k x n, C is m x n, with dimensions to 2^30. See sgemm_tf32x3.cu for the arithmetic.
//
// The plan. wgmma reaches twice the rate of mma.sync, and it leaves the threads free while it runs. Of the
// warpgroups of a block, the last is the producer, the others multiply:
//
//   producer  Brings tiles of A and B for a step of DEPTH = 32 into shared memory, STAGES steps deep. A's tile
//             is copied by cp.async as it is. B's has to be turned, since wgmma wants TF32 operands with k
//             innermost, and is split on the way: each element once for the block. A thread loads a step
//             ahead, and stores four hi or four lo at a time.
//   consumer  WM x BN of C. Reads its rows of A from shared memory, splits them in registers, from where
//             wgmma takes them, and lets it multiply them by the tiles B_hi and B_lo. 64 rows at a time:
//             12 wgmma on `part`, which are then added to `total`, in float32.
//
// While one consumer reads, splits and adds, the tensor cores work for the other; that is why there are two.
// Small products come first: as long as the sum is small, so is what the tensor core's truncation takes
// from it. What is left is the truncation of 32 large products.
//
// Registers go where they are needed: setmaxnreg moves them from the producer to the consumers.
//
// Where a matrix lies column by column, B need not be turned: a thread's part of a column is then in one piece.
// A has to be, float by float.
//
// Where C has too few tiles for the device, k is divided among SPLITK blocks of a cluster, and GRIDK clusters;
// where it has too few rows for two warpgroups (BM = WM), the consumers take steps of k in turn. Who has a part
// lays its sums out in shared memory, where split_k.h finds them.
//
// A block that has an SM for itself and few steps waits for B most of the time: the loads of one step are all
// that registers hold. With AHEAD > 1 they are copies to shared memory instead, each thread's for itself, so
// that nobody has to be waited for.
//
// PADDED: rows that are not whole quads at multiples of 16 bytes are copied first, by a launch of its own, to
// where they are.

#ifndef BM
#define BM 128  // rows of C per block
#endif
#ifndef BN
#define BN 128  // columns of C per block, and of one wgmma
#endif
#ifndef WM
#define WM 64  // rows of C per warpgroup
#endif
#ifndef STAGES
#define STAGES 4  // steps of k in shared memory
#endif
#ifndef RASTER
#define RASTER 8  // rows of blocks that run together, to share tiles of B in the L2 cache
#endif
#ifndef VECTORS
#define VECTORS 1  // load B 16 bytes at a time where its rows are aligned
#endif
#ifndef AHEAD
#define AHEAD 1  // steps of B that are on their way: one in registers, or more in shared memory
#endif
#ifndef SPLITK
#define SPLITK 1  // blocks that share one tile of C, each with a part of k: a cluster
#endif
#ifndef GRIDK
#define GRIDK 1  // clusters (blocks, where SPLITK is 1) that share one tile of C, each with a part of k
#endif
#ifndef TAIL
#define TAIL 0  // 1: two blocks share each tile of the last wave
#endif
#ifndef PADDED
#define PADDED 0  // copy A and B to where their rows are aligned, if they are not
#endif

#include "gemm.h"
#include "sgemm_tf32x3.h"

constexpr int DEPTH = 32;   // of a step of k: 128 bytes, the longest row that wgmma's layouts know
constexpr int GROUP = 128;  // threads
constexpr int CONSUMERS = 2;
constexpr int SLICES = CONSUMERS * WM / BM;  // consumers with the same rows, which take steps of k in turn
constexpr int THREADS = (CONSUMERS + 1) * GROUP;
constexpr int SLABS = WM / 64;           // of 64 rows, for one wgmma
constexpr int BATCH = WM == 64 ? 4 : 2;  // steps of 8 of k whose halves of A are in registers at a time
constexpr int HALVES = BN / 64;          // of a column of B, that a thread of the producer loads
constexpr int A_BYTES = BM * DEPTH * 4, B_BYTES = BN * DEPTH * 4;
constexpr int STAGE_BYTES = A_BYTES + 2 * B_BYTES;
constexpr int HEAD_BYTES = 1024;  // barriers; wgmma's layouts repeat every 1024 bytes
constexpr int ADDERS = CONSUMERS * GROUP;
[[maybe_unused]] constexpr int AT_ONCE = 1;  // the elements of C are few, and registers dealt out
constexpr int C_PITCH = BN + 16;  // of the tiles that sums are added up in: two rows of four quads fill the banks
constexpr bool ADDED_UP = GRIDK * SPLITK * SLICES > 1;  // sums of several threads make an element of C
// The three warpgroups start with 168 each.
constexpr int CONSUMER_REGISTERS = WM == 64 ? 208 : 224;
constexpr int PRODUCER_REGISTERS = 3 * 168 - 2 * CONSUMER_REGISTERS;

static_assert((WM == 64 || WM == 128) && (BN == 64 || BN == 128), "what fits in registers");
static_assert(BM == WM || BM == 2 * WM, "setmaxnreg deals out the registers of three warpgroups");
static_assert(STAGES % SLICES == 0, "a stage is always the same consumer's, which so misses none of its phases");
static_assert(!(PADDED || TAIL) || !VIEW, "views are taken as they are");
static_assert(!TAIL || !ADDED_UP, "nothing else is split");
static_assert(!IN_LINES || !ADDED_UP, "what is added up is written in lines anyway");

#include "split_k.h"

// ---------------------------------------------------------------- barriers

__device__ __forceinline__ void barrier_init(unsigned barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void arrive(unsigned barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrive once this thread's copies so far are complete.
__device__ __forceinline__ void arrive_after_copies(unsigned barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Until the phase of that parity is over.
__device__ __forceinline__ void await(unsigned barrier, unsigned parity)
{
    asm volatile(
        "{ .reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again; }" ::"r"(barrier), "r"(parity) : "memory");
}

// Steps of k take the stages in turn. The barrier `full` of a stage is passed when the producer has filled
// it, and `empty` when the consumers have read it.
struct Ring {
    unsigned barriers, stages;  // addresses in shared memory
    int stage = 0;
    unsigned parity = 0;

    __device__ explicit Ring(unsigned shared) : barriers(shared), stages(shared + HEAD_BYTES) {}
    __device__ unsigned full() const { return barriers + 16 * stage; }
    __device__ unsigned empty() const { return barriers + 16 * stage + 8; }
    __device__ unsigned a() const { return stages + stage * STAGE_BYTES; }
    __device__ unsigned b_hi() const { return a() + A_BYTES; }
    __device__ unsigned b_lo() const { return b_hi() + B_BYTES; }
    __device__ unsigned ahead() const { return stages + STAGES * STAGE_BYTES; }
    __device__ void advance()
    {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// ---------------------------------------------------------------- producer

// Where B's elements go. wgmma does not care which k is which, nor which column; what follows from the
// order chosen is that a consumer's thread finds its numbers of a row of A in pieces of 16 bytes, and holds
// four neighbours of a row of C.
//
// Rows of the tile in shared memory are columns of B: column 16 q + 4 t + 2 p + e becomes row
// 8 (2 q + p) + 2 t + e, since an accumulator of wgmma holds columns 2t and 2t + 1 of 8.
//
// Along a row: the tensor core's columns t and t + 4 of step s of 8 are k = s / 2 * 16 + 4 t + s % 2 * 2 and
// the next one. So a piece of 16 bytes holds four k that are 4 apart, and half a row 16 successive ones.
// Piece `i` of a half begins with k:
__device__ constexpr int piece_k(int i) { return i / 2 * 2 + i % 2; }

// Pieces change places within a row, the "128-byte swizzle" of wgmma: no bank conflicts here or there.
__device__ __forceinline__ unsigned piece_place(int row, int piece) { return row * (DEPTH * 4) + (piece ^ row % 8) * 16; }

// Split four elements and store them as one piece of either tile.
__device__ __forceinline__ void store_piece(unsigned hi_tile, unsigned lo_tile, unsigned place, float x0, float x1,
                                            float x2, float x3)
{
    const Split s0 = split(x0), s1 = split(x1), s2 = split(x2), s3 = split(x3);
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                 ::"r"(hi_tile + place), "r"(s0.hi), "r"(s1.hi), "r"(s2.hi), "r"(s3.hi) : "memory");
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                 ::"r"(lo_tile + place), "r"(s0.lo), "r"(s1.lo), "r"(s2.lo), "r"(s3.lo) : "memory");
}

// Makes the compiler work out anew what depends on `x`, where it would keep it in registers.
__device__ __forceinline__ int anew(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

// Where a thread of the producer keeps what it has copied ahead, of B as it lies: AHEAD steps in turn, of HALVES
// times 16 floats. Threads' pieces of UNIT floats lie side by side.
struct Ahead {
    unsigned slots;  // this step's
    int step = 0;

    __device__ explicit Ahead(unsigned ahead) : slots(ahead) {}
    template <int UNIT>
    __device__ unsigned slot(int turn, int i) const
    {
        return slots + ((turn * 16 + i) * GROUP + threadIdx.x % GROUP * UNIT) * 4;
    }
    // Go on to the slots which are read next, and then filled anew.
    __device__ void advance()
    {
        const int distance = ++step == AHEAD ? 1 - AHEAD : 1;
        if (step == AHEAD) step = 0;
        slots += distance * B_BYTES;
    }
};

__device__ __forceinline__ float4 read_quad(unsigned from)
{
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(from) : "memory");
    return v;
}

__device__ __forceinline__ float read_float(unsigned from)
{
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory");
    return v;
}

// A thread's part in bringing B's tile, a float at a time: a column, or half of one, whatever the alignment.
// Columns beyond the matrix are replaced by the last one, which only feeds elements of C that are never
// stored; beyond the end of k are zeros. WIDE: B lies column by column, in whole quads.
template <bool WIDE = false>
struct Columns {
    const float* from;  // what is to be loaded next
    Pitch pitch;        // from there to the next k
    int row, half;
    float next[HALVES][16];  // by k
    Ahead ahead;

    __device__ Columns(const float* b, Tile tile, int n, Pitch ldb, unsigned slots)
        : pitch(TRANS_B ? 1 : ldb), ahead(slots)
    {
        row = threadIdx.x % BN, half = threadIdx.x % GROUP / BN;
        const int column = row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2;
        const int inside = min(tile.col + column, n - 1);
        if (TRANS_B) from = b + static_cast<long long>(inside) * ldb + 16 * half;
        else from = b + static_cast<long long>(16 * half) * pitch + inside;
    }

    // The tile of which `left` of k exist.
    __device__ __forceinline__ void load(int turn, int left)
    {
        if constexpr (WIDE) {
#pragma unroll
            for (int i = 0; i < 16; i += 4) {
                const bool inside = 16 * (half + turn) + i < left;
                if constexpr (AHEAD > 1) {
                    copy_async_or_zero<4>(ahead.slot<4>(turn, i), from + i, inside);
                    continue;
                }
                const float4 v = inside ? __ldg(reinterpret_cast<const float4*>(from + i))
                                        : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                next[turn][i] = v.x, next[turn][i + 1] = v.y, next[turn][i + 2] = v.z, next[turn][i + 3] = v.w;
            }
            from += 16;
        } else {
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                const bool inside = 16 * (half + turn) + i < left;
                if constexpr (AHEAD > 1) copy_async_or_zero<1>(ahead.slot<1>(turn, i), from, inside);
                else next[turn][i] = inside ? __ldg(from) : 0.0f;
                from += pitch;
            }
        }
        if (turn == HALVES - 1) from += static_cast<long long>(DEPTH - 16 * HALVES) * pitch;
    }

    __device__ __forceinline__ void store(int turn, unsigned hi_tile, unsigned lo_tile)
    {
        if constexpr (AHEAD > 1) {
#pragma unroll
            for (int i = 0; i < 16; i += 4) {
                float(&x)[16] = next[turn];
                if constexpr (WIDE) {
                    const float4 v = read_quad(ahead.slot<4>(turn, i));
                    x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
                } else {
#pragma unroll
                    for (int j = i; j < i + 4; ++j) x[j] = read_float(ahead.slot<1>(turn, j));
                }
            }
        }
        const int to = anew(row);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float* x = next[turn] + piece_k(i);
            store_piece(hi_tile, lo_tile, piece_place(to, 4 * (half + turn) + i), x[0], x[4], x[8], x[12]);
        }
    }
};

// The same where rows of B are aligned to 16 bytes: blocks of 4 k by 4 columns, in which each column is one
// piece. A quarter of the loads and of the addresses. The lanes of a quarter warp have four successive
// blocks of columns, and of two pieces: so their stores meet in no bank, and their loads are whole sectors.
struct Blocks {
    const float* from;
    Pitch pitch;
    int row, piece;
    float next[HALVES][4][4];  // by k
    Ahead ahead;

    __device__ Blocks(const float* b, Tile tile, int n, Pitch ldb, unsigned slots) : pitch(ldb), ahead(slots)
    {
        const int warp = threadIdx.x % GROUP / 32, lane = threadIdx.x % 32, t = lane % 4;
        const int column = warp % (BN / 64) * 64 + lane / 8 * 16;
        row = column + 2 * t;
        piece = warp / (BN / 64) * 2 + lane / 4 % 2;  // of the first half
        from = b + static_cast<long long>(k_of(piece)) * pitch + min(tile.col + column + 4 * t, n - 4);
    }
    static __device__ int k_of(int piece) { return piece / 4 * 16 + piece_k(piece % 4); }

    __device__ __forceinline__ void load(int turn, int left)
    {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const bool inside = k_of(piece) + 16 * turn + 4 * i < left;
            const float* at = from + (16ll * turn + 4 * i) * pitch;
            if constexpr (AHEAD > 1) {
                copy_async_or_zero<4>(ahead.slot<4>(turn, 4 * i), at, inside);
                continue;
            }
            const float4 v = inside ? __ldg(reinterpret_cast<const float4*>(at))
                                    : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            next[turn][i][0] = v.x, next[turn][i][1] = v.y, next[turn][i][2] = v.z, next[turn][i][3] = v.w;
        }
        if (turn == HALVES - 1) from += static_cast<long long>(DEPTH) * pitch;
    }

    __device__ __forceinline__ void store(int turn, unsigned hi_tile, unsigned lo_tile)
    {
        if constexpr (AHEAD > 1) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float4 v = read_quad(ahead.slot<4>(turn, 4 * i));
                next[turn][i][0] = v.x, next[turn][i][1] = v.y, next[turn][i][2] = v.z, next[turn][i][3] = v.w;
            }
        }
        const int to = anew(row);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float(&x)[4][4] = next[turn];
            store_piece(hi_tile, lo_tile, piece_place(to + j / 2 * 8 + j % 2, piece + 4 * turn), x[0][j], x[1][j],
                        x[2][j], x[3][j]);
        }
    }
};

// Where element (row, depth) of A's tile lies. Odd rows have their halves exchanged, so that the threads which
// read two rows find no conflicts.
__device__ __forceinline__ unsigned a_place(unsigned row, int depth)
{
    return row * (DEPTH * 4) + (depth ^ row % 2 * 16) * 4;
}

// Start copying A's tile of the step that begins at k0, in pieces of UNIT floats. Beyond the end of k are zeros.
template <int UNIT>
__device__ __forceinline__ void copy_a(unsigned to, const float* a, Pitch lda, Tile tile, int k0, int m, int k)
{
    constexpr int UNITS = DEPTH / UNIT, ROWS = GROUP / UNITS;
    const int depth = threadIdx.x % UNITS * UNIT, first = threadIdx.x % GROUP / UNITS;
    const float* from = a + static_cast<long long>(tile.row) * lda + k0 + depth;
    const unsigned last = m - 1 - tile.row;  // rows beyond the matrix are replaced by this one
#pragma unroll 4
    for (int i = 0; i < BM / ROWS; ++i) {
        const unsigned row = first + i * ROWS;
#if VIEW
        const unsigned long long pitch = lda;
#else
        const unsigned pitch = lda;
#endif
        copy_async_or_zero<UNIT>(to + a_place(row, depth),
                         from + static_cast<unsigned long long>(min(row, last)) * pitch,
                         k0 + depth < k);
    }
}

// The same where A lies column by column: sectors of eight rows, and 16 of k at a time.
__device__ __forceinline__ void turn_a(unsigned to, const float* a, Pitch lda, Tile tile, int k0, int m, int k)
{
    constexpr int AT_ONCE = GROUP / 8;
    const int first = threadIdx.x % 8, depth = threadIdx.x % GROUP / 8;
    const float* from = a + static_cast<long long>(k0 + depth) * lda + tile.row;
    const int last = m - 1 - tile.row;
#pragma unroll
    for (int at = depth; at < DEPTH; at += AT_ONCE) {
#pragma unroll 4
        for (int row = first; row < BM; row += 8)
            copy_async_or_zero<1>(to + a_place(row, at), from + min(row, last), k0 + at < k);
        from += AT_ONCE * lda;
    }
}

// Of this block's part of k, whose depth `k` is. `row_of_a`: floats in a row of A.
template <typename Loader>
__device__ __forceinline__ void produce(Ring ring, Loader loader, const float* a, Pitch lda, Tile tile, int m, int k,
                                        int row_of_a)
{
    const bool aligned = are_quads(a, row_of_a, lda);
    const auto load = [&](int turn, int left) {
        // Copies that bring nothing would come when their place is used otherwise.
        if (AHEAD == 1 || left > 0) loader.load(turn, left);
    };
    const auto next_slots = [&] {
        if constexpr (AHEAD > 1) {
            close_group();  // even if empty: await_groups counts groups
            loader.ahead.advance();
        }
    };
#pragma unroll 1
    for (int k0 = 0; k0 < AHEAD * DEPTH; k0 += DEPTH) {
#pragma unroll
        for (int turn = 0; turn < HALVES; ++turn) load(turn, k - k0);
        next_slots();
    }
    for (int k0 = 0; k0 < k; k0 += DEPTH) {
        await(ring.empty(), ring.parity ^ 1);  // at once the first time round
        if (TRANS_A) turn_a(ring.a(), a, lda, tile, k0, m, k);
        else if (aligned) copy_a<4>(ring.a(), a, lda, tile, k0, m, k);
        else copy_a<1>(ring.a(), a, lda, tile, k0, m, k);
        arrive_after_copies(ring.full());
        if constexpr (AHEAD > 1) await_groups<AHEAD - 1>();  // this thread's own copies are all that it reads
#pragma unroll
        for (int turn = 0; turn < HALVES; ++turn) {
            loader.store(turn, ring.b_hi(), ring.b_lo());
            load(turn, k - k0 - AHEAD * DEPTH);
        }
        next_slots();
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // wgmma is another kind of reader
        arrive(ring.full());
        ring.advance();
    }
}

// ---------------------------------------------------------------- consumer

using Sums = float[BN / 2];  // a thread's part of 64 x BN

// What wgmma wants to know of a tile with k innermost: where it is, that 8 rows are 1024 bytes, and the swizzle.
__device__ __forceinline__ unsigned long long descriptor(unsigned tile)
{
    return (tile & 0x3ffff) >> 4 | 1ull << 16 | 1024ull >> 4 << 32 | 1ull << 62;
}

#define FOUR(x, i) "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3])
#define SIXTEEN(x, i) FOUR(x, i), FOUR(x, i + 4), FOUR(x, i + 8), FOUR(x, i + 12)
#if BN == 64
#define ALL(x) SIXTEEN(x, 0), SIXTEEN(x, 16)
#define WGMMA                                                                                            \
    "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 "                                               \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                            \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "                  \
    "{%32, %33, %34, %35}, %36, add, 1, 1;"
#define ADDS "%37"
#else
#define ALL(x) SIXTEEN(x, 0), SIXTEEN(x, 16), SIXTEEN(x, 32), SIXTEEN(x, 48)
#define WGMMA                                                                                            \
    "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 "                                              \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                            \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                   \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                   \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "                  \
    "{%64, %65, %66, %67}, %68, add, 1, 1;"
#define ADDS "%69"
#endif

// Start part += a b, or part = a b if not `add`, for 64 x BN by 8.
__device__ __forceinline__ void start_product(Sums& part, const unsigned (&a)[4], unsigned long long b, bool add)
{
    asm volatile("{ .reg .pred add; setp.ne.b32 add, " ADDS ", 0;\n" WGMMA " }"
                 : ALL(part)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)));
}

// Wait for the products started. `part` is named, so that nobody reads it before.
__device__ __forceinline__ void await_products(Sums& part)
{
    asm volatile("wgmma.commit_group.sync.aligned;\n"
                 "wgmma.wait_group.sync.aligned 0;" : ALL(part)::"memory");
}

struct Consumer {
    Sums total[SLABS] = {};

    // total += the product of one step. `a_row`: this thread's first row of A's tile.
    __device__ __forceinline__ void multiply(const Ring& ring, int a_row)
    {
        const int t = threadIdx.x % 4;
        const unsigned long long b_hi = descriptor(ring.b_hi()), b_lo = descriptor(ring.b_lo());
#pragma unroll
        for (int slab = 0; slab < SLABS; ++slab) {
            Sums part;
#pragma unroll
            for (int s0 = 0; s0 < 4; s0 += BATCH) {
                unsigned hi[BATCH][4], lo[BATCH][4];
#pragma unroll
                for (int half = 0; half < 2; ++half)  // rows a_row and a_row + 8
#pragma unroll
                    for (int s = 0; s < BATCH; s += 2) {
                        const int row = a_row + 64 * slab + 8 * half;
                        float v[4];
                        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                                     : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                                     : "r"(ring.a() + row * (DEPTH * 4) + (((s0 + s) * 8 + 4 * t) ^ row % 2 * 16) * 4));
#pragma unroll
                        for (int e = 0; e < 4; ++e) {
                            const Split both = split(v[e]);
                            hi[s + e / 2][half + e % 2 * 2] = both.hi;
                            lo[s + e / 2][half + e % 2 * 2] = both.lo;
                        }
                    }
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");  // the registers are written
#pragma unroll
                for (int s = 0; s < BATCH; ++s) start_product(part, lo[s], b_hi + 2 * (s0 + s), s0 + s > 0);
#pragma unroll
                for (int s = 0; s < BATCH; ++s) start_product(part, hi[s], b_lo + 2 * (s0 + s), true);
#pragma unroll
                for (int s = 0; s < BATCH; ++s) start_product(part, hi[s], b_hi + 2 * (s0 + s), true);
                await_products(part);
            }
#pragma unroll
            for (int i = 0; i < BN / 2; ++i) total[slab][i] += part[i];
        }
    }

    // Neighbours in a row of C.
    __device__ __forceinline__ float4 quad(int slab, int half, int j) const
    {
        const float* v = total[slab] + 8 * j + 2 * half;
        return make_float4(v[0], v[1], v[4], v[5]);
    }

    // This thread's sums in a tile whose rows are C_PITCH floats apart.
    __device__ __forceinline__ void lay_out(float* tile, int row, int col) const
    {
#pragma unroll
        for (int slab = 0; slab < SLABS; ++slab)
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int j = 0; j < BN / 16; ++j)
                    *reinterpret_cast<float4*>(tile + (row + 64 * slab + 8 * half) * C_PITCH + col + 16 * j) =
                        quad(slab, half, j);
    }

#if IN_LINES
    // Every warp lays 8 rows at a time out in its strip, from where neighbours write neighbours. `row`, `col`: the first
    // ones of the warp's part of C.
    __device__ __forceinline__ void store_in_lines(float* strips, float* c, Pitch ldc, float alpha, float beta, int row,
                                                   int col, int m, int n) const
    {
        static_assert(ADDERS / 32 * 8 * C_PITCH * 4 <= STAGES * STAGE_BYTES, "strips lie where the stages were");
        const int lane = threadIdx.x % 32;
        float* strip = strips + threadIdx.x / 32 * (8 * C_PITCH);
        float* mine = strip + lane / 4 * C_PITCH + lane % 4 * 4;
#pragma unroll
        for (int slab = 0; slab < SLABS; ++slab)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll
                for (int j = 0; j < BN / 16; ++j)
                    *reinterpret_cast<float4*>(mine + 16 * j) = scaled(quad(slab, half, j), alpha);
                __syncwarp();
                store_strip<8, BN, 1>(strip, C_PITCH, c, ldc, beta, row + 64 * slab + 8 * half, col, m, n);
                __syncwarp();
            }
    }
#endif

    __device__ __forceinline__ void store(float* c, Pitch ldc, float alpha, float beta, int row, int col, int m,
                                          int n) const
    {
        const bool wide = are_quads(c, n, ldc);
#pragma unroll
        for (int slab = 0; slab < SLABS; ++slab)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int at = row + 64 * slab + 8 * half;
                if (at >= m) continue;
#pragma unroll
                for (int j = 0; j < BN / 16; ++j)
                    store_quad(c + static_cast<long long>(at) * ldc + col + 16 * j, quad(slab, half, j), alpha, beta,
                               n - col - 16 * j, wide);
            }
    }
};

// ---------------------------------------------------------------- rows that are not aligned

// Floats from a row to the next where rows of `length` are made whole quads.
__device__ __forceinline__ int padded(int length) { return (length + 3) / 4 * 4; }

#if PADDED
__device__ __forceinline__ void pad_quad(const float* from, float* to, unsigned length, unsigned quad)
{
    const unsigned quads = (length + 3) / 4;
    const unsigned row = quad / quads, col = quad % quads * 4;
    from += static_cast<long long>(row) * length + col;
    float v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = col + j < length ? __ldg(from + j) : 0.0f;
    reinterpret_cast<float4*>(to)[quad] = make_float4(v[0], v[1], v[2], v[3]);
}

// Grid: a thread for each quad of A, then of B.
extern "C" __global__ void __launch_bounds__(256)
sgemm_tf32x3_pad(const float* __restrict__ a, const float* __restrict__ b, int m, int n, int k,
                 float* __restrict__ padded_a, float* __restrict__ padded_b)
{
    const unsigned quads_a = unsigned(m) * (padded(k) / 4), quads_b = unsigned(k) * (padded(n) / 4);
    const unsigned quad = blockIdx.x * 256 + threadIdx.x;
    if (quad < quads_a) {
        if (!are_quads(a, k, k)) pad_quad(a, padded_a, k, quad);
    } else if (quad - quads_a < quads_b) {
        if (!are_quads(b, n, n)) pad_quad(b, padded_b, n, quad - quads_a);
    }
}
#endif

// ---------------------------------------------------------------- the kernel

// Grid: (blocks of C, GRIDK, SPLITK), and with TAIL a second block for each tile of the last wave. Shared memory: HEAD_BYTES, 1024 bytes to align them, and STAGES *
// STAGE_BYTES and, where AHEAD > 1, AHEAD * B_BYTES; but SLICES * BM * C_PITCH floats at least where ADDED_UP.
extern "C" __global__ void
#if SPLITK > 1
__cluster_dims__(1, 1, SPLITK)
#endif
__launch_bounds__(THREADS, 1)
sgemm_tf32x3(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, float alpha, float beta,
             int m, int n, int k VIEW_PARAMETERS
#if GRIDK > 1
             , float* partial  // GRIDK * blocks of C * BM * BN floats, to be written before they are read
#elif TAIL
             , float* partial  // 2 * the last wave's tiles * BM * BN floats, likewise
             , int turns       // as Task has them
#endif
#if PADDED
             , const float* __restrict__ padded_a, const float* __restrict__ padded_b
#endif
)
{
    extern __shared__ __align__(1024) float shared[];
#if VIEW
    const int tiles = Tile::count(m, n), matrix = blockIdx.x / tiles;
    a += matrix * stride_a, b += matrix * stride_b, c += matrix * stride_c;
    const Tile tile(blockIdx.x % tiles, m, n);
#else
    const Pitch ldc = n;
    Pitch lda = k, ldb = n;
#if TAIL
    const Task<DEPTH> task(m, n, k, turns);
    const Tile tile(task.tile, m, n);
#else
    const Tile tile(blockIdx.x, m, n);
#endif
#endif
    int row_of_a = k, row_of_b = TRANS_B ? k : n;
#if PADDED
    if (!are_quads(a, k, lda)) a = padded_a, row_of_a = lda = padded(k);
    if (!are_quads(b, n, ldb)) b = padded_b, row_of_b = ldb = padded(n);
#endif
    int depth = k;  // of this block's part
#if TAIL
    depth = task.depth;
    a += task.k0;
    b += static_cast<long long>(task.k0) * ldb;
#endif
    if constexpr (GRIDK * SPLITK > 1) {
        constexpr int PARTS = GRIDK * SPLITK;
        const int depth_of_part = (k + DEPTH * PARTS - 1) / (DEPTH * PARTS) * DEPTH;
        const int k0 = min(static_cast<int>(blockIdx.y * SPLITK + blockIdx.z) * depth_of_part, k);
        depth = min(depth_of_part, k - k0);
        a += TRANS_A ? static_cast<long long>(k0) * lda : k0;
        b += TRANS_B ? k0 : static_cast<long long>(k0) * ldb;
    }
    const int group = threadIdx.x / GROUP;

    Ring ring((shared_address(shared) + 1023) / 1024 * 1024);
    if (threadIdx.x == 0)
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(ring.barriers + 16 * stage, 2 * GROUP);  // each thread of the producer: B stored, A copied
            // Each thread of the consumers that read it. One per warp, after __syncwarp, is as right and no
            // faster, but compute-sanitizer's racecheck takes the other lanes' reads for hazards.
            barrier_init(ring.barriers + 16 * stage + 8, CONSUMERS / SLICES * GROUP);
        }
    __syncthreads();

    if (group == CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
#if TRANS_B
        using Vectors = Columns<true>;
        const int columns = n;
#else
        using Vectors = Blocks;
        const int columns = row_of_b;
#endif
        if (VECTORS && are_quads(b, row_of_b, ldb))
            produce(ring, Vectors(b, tile, columns, ldb, ring.ahead()), a, lda, tile, m, depth, row_of_a);
        else
            produce(ring, Columns<>(b, tile, n, ldb, ring.ahead()), a, lda, tile, m, depth, row_of_a);
#if SPLITK > 1
        cluster_barrier();  // those of add_up_and_store
        cluster_barrier();
#endif
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        const int lane = threadIdx.x % 32;
        const int slice = SLICES > 1 ? group : 0;
        const int row = (SLICES > 1 ? 0 : group * WM) + threadIdx.x % GROUP / 32 * 16 + lane / 4;
        Consumer consumer;
        if (slice > 0) ring.advance();
        for (int k0 = slice * DEPTH; k0 < depth; k0 += SLICES * DEPTH) {
            await(ring.full(), ring.parity);
            consumer.multiply(ring, row);
            arrive(ring.empty());
#pragma unroll
            for (int i = 0; i < SLICES; ++i) ring.advance();
        }
        if constexpr (ADDED_UP) {
            float* const tiles = shared + (ring.stages - shared_address(shared)) / 4;
            adders_barrier();  // nobody reads the stages any more
            consumer.lay_out(tiles + slice * (BM * C_PITCH), row, lane % 4 * 4);
            adders_barrier();
#if GRIDK == 1
            float* const partial = nullptr;
#endif
            if (are_quads(c, n, ldc)) add_up_and_store<4>(tiles, c, alpha, beta, tile, m, n, ldc, partial);
            else add_up_and_store<1>(tiles, c, alpha, beta, tile, m, n, ldc, partial);
        } else {
#if TAIL
            if (task.of_shared >= 0) {
                if (!has_all_sums(consumer.total, alpha, task, partial)) return;
                alpha = 1.0f;
            }
#endif
#if IN_LINES
            if (!are_quads(c, n, ldc)) {
                float* const strips = shared + (ring.stages - shared_address(shared)) / 4;
                adders_barrier();  // nobody reads the stages any more
                return consumer.store_in_lines(strips, c, ldc, alpha, beta, tile.row + row - lane / 4, tile.col, m, n);
            }
#endif
            consumer.store(c, ldc, alpha, beta, tile.row + row, tile.col + lane % 4 * 4, m, n);
        }
    }
}
