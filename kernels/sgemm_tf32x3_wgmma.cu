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

#include "gemm.h"
#include "sgemm_tf32x3.h"

constexpr int DEPTH = 32;   // of a step of k: 128 bytes, the longest row that wgmma's layouts know
constexpr int GROUP = 128;  // threads
constexpr int CONSUMERS = BM / WM;
constexpr int THREADS = (CONSUMERS + 1) * GROUP;
constexpr int SLABS = WM / 64;           // of 64 rows, for one wgmma
constexpr int BATCH = WM == 64 ? 4 : 2;  // steps of 8 of k whose halves of A are in registers at a time
constexpr int HALVES = BN / 64;          // of a column of B, that a thread of the producer loads
constexpr int A_BYTES = BM * DEPTH * 4, B_BYTES = BN * DEPTH * 4;
constexpr int STAGE_BYTES = A_BYTES + 2 * B_BYTES;
constexpr int HEAD_BYTES = 1024;  // barriers; wgmma's layouts repeat every 1024 bytes
// The three warpgroups start with 168 each.
constexpr int CONSUMER_REGISTERS = WM == 64 ? 208 : 224;
constexpr int PRODUCER_REGISTERS = 3 * 168 - 2 * CONSUMER_REGISTERS;

static_assert((WM == 64 || WM == 128) && (BN == 64 || BN == 128), "what fits in registers");
static_assert(CONSUMERS == 2, "setmaxnreg deals out the registers of three warpgroups");

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

// A thread's part in bringing B's tile, a float at a time: a column, or half of one, whatever the alignment.
// Columns beyond the matrix are replaced by the last one, which only feeds elements of C that are never
// stored; beyond the end of k are zeros. WIDE: B lies column by column, in whole quads.
template <bool WIDE = false>
struct Columns {
    const float* from;  // what is to be loaded next
    Pitch pitch;        // from there to the next k
    int row, half;
    float next[HALVES][16];  // by k

    __device__ Columns(const float* b, Tile tile, int n, Pitch ldb) : pitch(TRANS_B ? 1 : ldb)
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
                const float4 v = inside ? __ldg(reinterpret_cast<const float4*>(from + i))
                                        : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                next[turn][i] = v.x, next[turn][i + 1] = v.y, next[turn][i + 2] = v.z, next[turn][i + 3] = v.w;
            }
            from += 16;
        } else {
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                next[turn][i] = 16 * (half + turn) + i < left ? __ldg(from) : 0.0f;
                from += pitch;
            }
        }
        if (turn == HALVES - 1) from += static_cast<long long>(DEPTH - 16 * HALVES) * pitch;
    }

    __device__ __forceinline__ void store(int turn, unsigned hi_tile, unsigned lo_tile) const
    {
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

    __device__ Blocks(const float* b, Tile tile, int n, Pitch ldb) : pitch(ldb)
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
            const float4 v = inside ? __ldg(reinterpret_cast<const float4*>(from + (16ll * turn + 4 * i) * pitch))
                                    : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            next[turn][i][0] = v.x, next[turn][i][1] = v.y, next[turn][i][2] = v.z, next[turn][i][3] = v.w;
        }
        if (turn == HALVES - 1) from += static_cast<long long>(DEPTH) * pitch;
    }

    __device__ __forceinline__ void store(int turn, unsigned hi_tile, unsigned lo_tile) const
    {
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

template <typename Loader>
__device__ __forceinline__ void produce(Ring ring, Loader loader, const float* a, Pitch lda, Tile tile, int m, int k)
{
    const bool aligned = are_quads(a, k, lda);
#pragma unroll
    for (int turn = 0; turn < HALVES; ++turn) loader.load(turn, k);
    for (int k0 = 0; k0 < k; k0 += DEPTH) {
        await(ring.empty(), ring.parity ^ 1);  // at once the first time round
        if (TRANS_A) turn_a(ring.a(), a, lda, tile, k0, m, k);
        else if (aligned) copy_a<4>(ring.a(), a, lda, tile, k0, m, k);
        else copy_a<1>(ring.a(), a, lda, tile, k0, m, k);
        arrive_after_copies(ring.full());
#pragma unroll
        for (int turn = 0; turn < HALVES; ++turn) {
            loader.store(turn, ring.b_hi(), ring.b_lo());
            loader.load(turn, k - k0 - DEPTH);
        }
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
                for (int j = 0; j < BN / 16; ++j) {
                    const float* v = total[slab] + 8 * j + 2 * half;
                    store_quad(c + static_cast<long long>(at) * ldc + col + 16 * j, make_float4(v[0], v[1], v[4], v[5]),
                               alpha, beta, n - col - 16 * j, wide);
                }
            }
    }
};

// Grid: blocks of C. Shared memory: HEAD_BYTES + STAGES * STAGE_BYTES, and 1024 bytes to align them.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
sgemm_tf32x3(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, float alpha, float beta,
             int m, int n, int k VIEW_PARAMETERS)
{
    extern __shared__ __align__(1024) float shared[];
#if VIEW
    const int tiles = Tile::count(m, n), matrix = blockIdx.x / tiles;
    a += matrix * stride_a, b += matrix * stride_b, c += matrix * stride_c;
    const Tile tile(blockIdx.x % tiles, m, n);
#else
    const Pitch lda = k, ldb = n, ldc = n;
    const Tile tile(blockIdx.x, m, n);
#endif
    const int group = threadIdx.x / GROUP;

    Ring ring((shared_address(shared) + 1023) / 1024 * 1024);
    if (threadIdx.x == 0)
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(ring.barriers + 16 * stage, 2 * GROUP);  // each thread of the producer: B stored, A copied
            // Each thread of the consumers. One per warp, after __syncwarp, is as right and no faster, but
            // compute-sanitizer's racecheck takes the other lanes' reads for hazards.
            barrier_init(ring.barriers + 16 * stage + 8, CONSUMERS * GROUP);
        }
    __syncthreads();

    if (group == CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
#if TRANS_B
        using Vectors = Columns<true>;
#else
        using Vectors = Blocks;
#endif
        if (VECTORS && are_quads(b, TRANS_B ? k : n, ldb)) produce(ring, Vectors(b, tile, n, ldb), a, lda, tile, m, k);
        else produce(ring, Columns<>(b, tile, n, ldb), a, lda, tile, m, k);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        const int lane = threadIdx.x % 32;
        const int row = group * WM + threadIdx.x % GROUP / 32 * 16 + lane / 4;
        Consumer consumer;
        for (int k0 = 0; k0 < k; k0 += DEPTH) {
            await(ring.full(), ring.parity);
            consumer.multiply(ring, row);
            arrive(ring.empty());
            ring.advance();
        }
        consumer.store(c, ldc, alpha, beta, tile.row + row, tile.col + lane % 4 * 4, m, n);
    }
}
