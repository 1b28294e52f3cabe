// C = A B, halves or bfloat16 in, float32 sums, row-major: knows wgmma and the tensor memory accelerator, which only
// sm_90a has.
//
// A is m x k, B is k x n, C is m x n, with dimensions to 2^30, and k is not 0. Rows of A and B are whole pieces of 16
// bytes at multiples of 16 bytes, as PADDED makes them.
//
// The plan. Each multiprocessor has one block, which takes tiles of BM x BN of C in turn. Of its three warpgroups
// the last is the producer, of which one thread works; the others multiply:
//
//   producer  Tells the memory accelerator to bring the tiles of A and B for the next steps of DEPTH = 64 of k into
//             shared memory, STAGES steps deep, and into the next tile of C while the consumers still store.
//   consumer  BM / 2 x BN of C: wgmma takes both operands from shared memory, B as it lies, with n innermost.
//
// Two blocks of a CLUSTER have tiles one below the other, and so the same columns of B: each brings half of B's tile
// for both, and the L2 cache is asked for less.
//
// The accelerator wants a description of each matrix, which a host makes as a rule. Here every block makes its own:
// 128 bytes of zeros in shared memory, of which tensormap.replace fills every field, and which are then copied to a
// workspace, since the accelerator reads them from global memory alone.
//
// Where C has too few tiles for the device, SPLITK blocks of a cluster share a tile, each with a part of k. Their
// sums meet in shared memory.

#ifndef CLUSTER
#define CLUSTER 2  // blocks that share tiles of B
#endif
#ifndef SPLITK
#define SPLITK 1  // blocks that share one tile of C, each with a part of k
#endif

#include "hgemm.h"

constexpr int DEPTH = 64;   // of a step of k: 128 bytes, the longest row that wgmma's layouts know
constexpr int GROUP = 128;  // threads
constexpr int CONSUMERS = 2;
constexpr int THREADS = (CONSUMERS + 1) * GROUP;
// Steps by which one consumer is ahead, so that it multiplies while the other stores. The stages keep the distance that
// they begin with: the one ahead waits for a stage that the other frees.
constexpr int LEAD = SPLITK > 1 ? 0 : 2;
constexpr int ROWS_EACH = BM / CONSUMERS, SLABS = ROWS_EACH / 64;  // slabs of 64 rows, for one wgmma
constexpr int PANELS = BN / 64;  // of 64 columns of B, a row each for every k
constexpr int ROW_BYTES = 128, PANEL_BYTES = DEPTH * ROW_BYTES;
constexpr int A_BYTES = BM * ROW_BYTES, B_BYTES = PANELS * PANEL_BYTES;
constexpr int STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int MAP_BYTES = 128, MAPS_AT = 512;  // after the barriers
constexpr int HEAD_BYTES = 1024;  // barriers and maps; wgmma's layouts repeat every 1024 bytes
// The three warpgroups start with 168 each.
constexpr int CONSUMER_REGISTERS = 232, PRODUCER_REGISTERS = 40;

static_assert(BM == 128 || BM == 256, "64 or 128 rows of a consumer");
static_assert(BN == 64 || BN == 128 || BN == 256, "a wgmma's columns");
static_assert(BM * BN <= 128 * 256, "what fits in registers");
static_assert(CLUSTER == 1 || (PANELS % CLUSTER == 0 && RASTER % CLUSTER == 0 && SPLITK == 1), "");
static_assert(16 * STAGES <= MAPS_AT, "");

#if SPLITK > 1
// What split_k.h wants to know.
#define GRIDK 1
#define TAIL 0
using Pitch = int;
[[maybe_unused]] constexpr int SLICES = 1, AT_ONCE = 1;
constexpr int ADDERS = CONSUMERS * GROUP, C_PITCH = BN + 8;
#include "split_k.h"
#endif

// ---------------------------------------------------------------- barriers

__device__ __forceinline__ void barrier_init(unsigned barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Arrive at the barrier of that place in a block of the cluster. That a stage was read is known before; `.release` for
// the cluster would make every warp wait for all of its memory, a microsecond each time.
__device__ __forceinline__ void arrive_at(unsigned barrier, int block)
{
    if constexpr (CLUSTER == 1) {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
    } else {
        asm volatile(
            "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
            "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(barrier), "r"(block) : "memory");
    }
}

// Arrive, and say how many bytes are to come.
__device__ __forceinline__ void arrive_and_expect(unsigned barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Until the phase of that parity is over.
__device__ __forceinline__ void await(unsigned barrier, unsigned parity)
{
    asm volatile(
        "{ .reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again; }" ::"r"(barrier), "r"(parity) : "memory");
}

// Of all threads of all blocks of a cluster, or of the block where there is none.
__device__ __forceinline__ void meet()
{
    if constexpr (CLUSTER * SPLITK == 1) __syncthreads();
    else asm volatile("barrier.cluster.arrive.release;\n"
                      "barrier.cluster.wait.acquire;" ::: "memory");
}

// Steps of k take the stages in turn, through all tiles of a block. The barrier `full` of a stage is passed when its
// bytes are there, and `empty` when the consumers have read it.
struct Ring {
    unsigned barriers, stages;  // addresses in shared memory
    int stage = 0;
    unsigned parity = 0;

    __device__ explicit Ring(unsigned shared) : barriers(shared), stages(shared + HEAD_BYTES) {}
    __device__ unsigned full() const { return barriers + 16 * stage; }
    __device__ unsigned empty() const { return barriers + 16 * stage + 8; }
    __device__ unsigned a() const { return stages + stage * STAGE_BYTES; }
    __device__ unsigned b() const { return a() + A_BYTES; }
    __device__ void advance()
    {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// ---------------------------------------------------------------- the work of a block

// A block's part of the work: tiles of C that it takes in turn, and steps of k.
struct Part {
    int m, n, k0, steps, tiles;

    __device__ Part(int rows, int n, int k) : n(n)
    {
        // Whole clusters of tiles, of which some may lie below C.
        m = (rows + CLUSTER * BM - 1) / (CLUSTER * BM) * (CLUSTER * BM);
        tiles = Tile::count(m, n);
        const int all = (k + DEPTH - 1) / DEPTH, part = (all + SPLITK - 1) / SPLITK;
        const int first = min(static_cast<int>(blockIdx.z) * part, all);
        k0 = first * DEPTH;
        steps = max(1, min(part, all - first));  // beyond the end of k are zeros
    }
};

// ---------------------------------------------------------------- producer

#define REPLACE(field, form, ...) "tensormap.replace.tile." field ".shared::cta.b1024." form " [%0], " __VA_ARGS__ ";\n"

// Describe a matrix of halves, and the part of it that a copy brings: `rows` rows of 64 halves. `map`: 128 bytes of
// zeros in shared memory.
__device__ __forceinline__ void describe(unsigned map, const Half* matrix, int height, int width, int rows)
{
    asm volatile(
        REPLACE("global_address", "b64", "%1")
        REPLACE("rank", "b32", "1")  // one less than there are dimensions
        REPLACE("box_dim", "b32", "0, 64")
        REPLACE("box_dim", "b32", "1, %2")
        REPLACE("global_dim", "b32", "0, %3")
        REPLACE("global_dim", "b32", "1, %4")
        REPLACE("global_stride", "b64", "0, %5")
        REPLACE("element_stride", "b32", "0, 1")
        REPLACE("element_stride", "b32", "1, 1")
        REPLACE("elemtype", "b32", "1")  // u16
        REPLACE("interleave_layout", "b32", "0")
        REPLACE("swizzle_mode", "b32", "3")  // of 128 bytes
        REPLACE("fill_mode", "b32", "0")     // zeros outside
        ::"r"(map), "l"(matrix), "r"(rows), "r"(width), "r"(height), "l"(2ll * width)
        : "memory");
}

// Describe A and B to the accelerator, in global memory at `maps`. `here`: room for both in shared memory. A whole
// warp's work, whose threads may then use them.
__device__ __forceinline__ void describe_both(char* maps, unsigned here, const Half* a, const Half* b, int m, int k,
                                              int of_a, int of_b)
{
    const int lane = threadIdx.x % 32;
    for (int i = lane; i < 2 * MAP_BYTES / 4; i += 32)
        asm volatile("st.shared.b32 [%0], 0;" ::"r"(here + 4 * i) : "memory");
    __syncwarp();
    if (lane < 2)
        describe(here + lane * MAP_BYTES, lane ? b : a, lane ? k : m, lane ? of_b : of_a, lane ? DEPTH : min(BM, m));
    __syncwarp();
    // Copied by stores, not by tensormap.cp_fenceproxy, whose writes compute-sanitizer does not see.
    for (int i = lane; i < 2 * MAP_BYTES / 4; i += 32) {
        unsigned word;
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(here + 4 * i) : "memory");
        reinterpret_cast<unsigned*>(maps)[i] = word;
    }
    asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
    __syncwarp();
    asm volatile(
        "fence.proxy.tensormap::generic.acquire.gpu [%0], 128;\n"
        "fence.proxy.tensormap::generic.acquire.gpu [%1], 128;"
        ::"l"(maps), "l"(maps + MAP_BYTES) : "memory");
}

// Start bringing the part of a matrix whose first column and row are given to `to`; `full` gets its bytes. SHARED: to
// all blocks of the cluster.
template <bool SHARED>
__device__ __forceinline__ void bring(unsigned to, const void* map, int col, int row, unsigned full)
{
    if constexpr (SHARED)
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
            "[%0], [%1, {%2, %3}], [%4], %5;"
            ::"r"(to), "l"(map), "r"(col), "r"(row), "r"(full), "h"(static_cast<short>((1 << CLUSTER) - 1)) : "memory");
    else
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
            ::"r"(to), "l"(map), "r"(col), "r"(row), "r"(full) : "memory");
}

// One thread's. `stage_bytes`: what a stage gets. Where C has few rows, copies do without those outside; what lies there
// instead only feeds rows of C that are never stored.
__device__ __forceinline__ void produce(Ring ring, const Part& work, const char* map_a, const char* map_b,
                                        int stage_bytes)
{
    const int rank = blockIdx.x % CLUSTER;
    for (int block = blockIdx.x; block < work.tiles; block += gridDim.x) {
        const Tile tile(block, work.m, work.n);
        for (int step = 0; step < work.steps; ++step) {
            const int k0 = work.k0 + step * DEPTH;
            await(ring.empty(), ring.parity ^ 1);  // at once the first time round
            arrive_and_expect(ring.full(), stage_bytes);
            bring<false>(ring.a(), map_a, k0, tile.row, ring.full());
#pragma unroll
            for (int i = 0; i < PANELS / CLUSTER; ++i) {
                const int panel = rank * (PANELS / CLUSTER) + i;
                bring<(CLUSTER > 1)>(ring.b() + panel * PANEL_BYTES, map_b, tile.col + 64 * panel, k0, ring.full());
            }
            ring.advance();
        }
    }
}

// ---------------------------------------------------------------- consumer

using Sums = float[BN / 2];  // a thread's part of 64 x BN

// What wgmma wants to know of a tile: where it is, the swizzle of 128 bytes, and two distances. Of A, with k innermost,
// 8 rows are 1024 bytes. Of B, with n innermost, 8 of k are 1024 bytes, and 64 columns a panel.
__device__ __forceinline__ unsigned long long descriptor(unsigned tile, int leading)
{
    return (tile & 0x3ffff) >> 4 | static_cast<unsigned long long>(leading >> 4) << 16 | 1024ull >> 4 << 32 | 1ull << 62;
}

#define FOUR(x, i) "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3])
#define SIXTEEN(x, i) FOUR(x, i), FOUR(x, i + 4), FOUR(x, i + 8), FOUR(x, i + 12)
#define SIXTY_FOUR(x, i) SIXTEEN(x, i), SIXTEEN(x, i + 16), SIXTEEN(x, i + 32), SIXTEEN(x, i + 48)
#define REGISTERS_32                                                              \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "      \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_64                                                                          \
    REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "    \
    "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_128                                                                             \
    REGISTERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, "   \
    "%79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, "   \
    "%97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "      \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#if BN == 64
#define ALL(x) SIXTEEN(x, 0), SIXTEEN(x, 16)
#define WGMMA(type) "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" REGISTERS_32 "}, %32, %33, add"
#define ADDS "%34"
#elif BN == 128
#define ALL(x) SIXTY_FOUR(x, 0)
#define WGMMA(type) "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" REGISTERS_64 "}, %64, %65, add"
#define ADDS "%66"
#else
#define ALL(x) SIXTY_FOUR(x, 0), SIXTY_FOUR(x, 64)
#define WGMMA(type) "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {" REGISTERS_128 "}, %128, %129, add"
#define ADDS "%130"
#endif

// Start sum += a b, or sum = a b if not `add`, for 64 x BN by 16. B is turned on the way.
__device__ __forceinline__ void start_product(Sums& sum, unsigned long long a, unsigned long long b, bool add)
{
    asm volatile("{ .reg .pred add; setp.ne.b32 add, " ADDS ", 0;\n" WGMMA(PTX_TYPE) ", 1, 1, 0, 1; }"
                 : ALL(sum) : "l"(a), "l"(b), "r"(int(add)));
}

struct Consumer {
    Sums sum[SLABS];
    int group = threadIdx.x / GROUP;
    bool is_first = true;

    // The product of a tile of C.
    __device__ __forceinline__ void multiply(Ring& ring, int steps)
    {
        if (LEAD > 0 && is_first && group == 1) asm volatile("bar.sync 2, %0;" ::"n"(CONSUMERS * GROUP) : "memory");
        unsigned before = 0;  // the barrier of the stage that is read no more when the next products are under way
        for (int step = 0; step < steps; ++step) {
            await(ring.full(), ring.parity);
            const unsigned long long a = descriptor(ring.a() + group * ROWS_EACH * ROW_BYTES, 16);
            const unsigned long long b = descriptor(ring.b(), PANEL_BYTES);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int s = 0; s < DEPTH / 16; ++s)
#pragma unroll
                for (int slab = 0; slab < SLABS; ++slab)
                    start_product(sum[slab], a + (slab * 64 * ROW_BYTES + s * 32 >> 4), b + (s * 16 * ROW_BYTES >> 4),
                                  step + s > 0);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            if (step > 0) release(before);
            before = ring.empty();
            ring.advance();
            if (LEAD > 0 && is_first && group == 0 && step == min(LEAD, steps) - 1)
                asm volatile("bar.arrive 2, %0;" ::"n"(CONSUMERS * GROUP) : "memory");
        }
        is_first = false;
#pragma unroll
        for (int slab = 0; slab < SLABS; ++slab)  // named, so that nobody reads them before
            asm volatile("wgmma.wait_group.sync.aligned 0;" : ALL(sum[slab])::"memory");
        release(before);
    }

    // A warp has read a stage, which blocks of the cluster write to.
    static __device__ __forceinline__ void release(unsigned empty)
    {
        if (threadIdx.x % 32 < CLUSTER) arrive_at(empty, threadIdx.x % 32);
    }

    // This thread's first row in the block's tile.
    __device__ int row() const { return group * ROWS_EACH + threadIdx.x % GROUP / 32 * 16 + threadIdx.x % 32 / 4; }

    __device__ __forceinline__ void store(Result* c, Tile tile, int m, int n) const
    {
        const bool wide = rows_are_pieces(c, n);
#pragma unroll
        for (int slab = 0; slab < SLABS; ++slab)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int at = tile.row + row() + 64 * slab + 8 * half;
                store_row<BN / 8>(c + static_cast<long long>(at) * n + tile.col, sum[slab] + 2 * half,
                                  at < m ? n - tile.col : 0, wide);
            }
    }

#if SPLITK > 1
    // This thread's sums in a tile whose rows are C_PITCH floats apart.
    __device__ __forceinline__ void lay_out(float* tile) const
    {
#pragma unroll
        for (int slab = 0; slab < SLABS; ++slab)
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int j = 0; j < BN / 8; ++j)
                    *reinterpret_cast<float2*>(tile + (row() + 64 * slab + 8 * half) * C_PITCH + 8 * j +
                                               threadIdx.x % 4 * 2) =
                        make_float2(sum[slab][4 * j + 2 * half], sum[slab][4 * j + 2 * half + 1]);
    }
#endif
};

#if SPLITK > 1
// Add up this block's share of what the blocks of a cluster have laid out, and store it.
__device__ __forceinline__ void add_up(float* tiles, Result* c, Tile tile, int m, int n)
{
    const bool wide = rows_are_pieces(c, n);
    for (int unit = Share<4>::begin(); unit < Share<4>::end(); unit += ADDERS) {
        const float* at = tiles + Share<4>::row(unit) * C_PITCH + Share<4>::col(unit);
        Unit<4> total;
#pragma unroll
        for (int block = 0; block < SPLITK; ++block) total.add(Unit<4>(at, block));
        const int row = tile.row + Share<4>::row(unit), col = tile.col + Share<4>::col(unit);
        if (row >= m) continue;
        Result* to = c + static_cast<long long>(row) * n + col;
#pragma unroll
        for (int i = 0; i < 4; i += 2) store_pair(to + i, total.v[i], total.v[i + 1], n - col - i, wide);
    }
}
#endif

// ---------------------------------------------------------------- the kernel

// Grid: whole clusters of blocks, as many as run at once or as there are tiles; where k is split, (tiles, 1, SPLITK).
// Shared memory: HEAD_BYTES, 1024 bytes to align them, and STAGES * STAGE_BYTES; but BM * C_PITCH floats at least
// where k is split.
extern "C" __global__ void
#if SPLITK > 1
__cluster_dims__(1, 1, SPLITK)
#elif CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(THREADS, 1)
hgemm(const Half* __restrict__ a, const Half* __restrict__ b, Result* __restrict__ c, int m, int n, int k,
      char* maps  // two of MAP_BYTES for each block, and MAP_BYTES to align them
      PADDED_PARAMETERS)
{
    extern __shared__ __align__(1024) float shared[];
    const unsigned head = (shared_address(shared) + 1023) / 1024 * 1024;
    const Part work(m, n, k);
    Ring ring(head);
    const int group = threadIdx.x / GROUP, number = blockIdx.z * gridDim.x + blockIdx.x;
    maps += (MAP_BYTES - reinterpret_cast<unsigned long long>(maps) % MAP_BYTES) % MAP_BYTES;
    maps += static_cast<long long>(number) * (2 * MAP_BYTES);
    const bool is_producer = threadIdx.x / 32 == CONSUMERS * GROUP / 32;
    if (is_producer) {
        int of_a = k, of_b = n;
#if PADDED
        if (!rows_are_pieces(a, k)) a = padded_a, of_a = padded(k);
        if (!rows_are_pieces(b, n)) b = padded_b, of_b = padded(n);
#endif
        describe_both(maps, head + MAPS_AT, a, b, m, k, of_a, of_b);
    }
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(ring.barriers + 16 * stage, 1);
            barrier_init(ring.barriers + 16 * stage + 8, CLUSTER * CONSUMERS * GROUP / 32);  // each warp that reads it
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    meet();

    if (group == CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (is_producer && threadIdx.x % 32 == 0)
            produce(ring, work, maps, maps + MAP_BYTES, min(BM, m) * ROW_BYTES + B_BYTES);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        Consumer consumer;
        for (int block = blockIdx.x; block < work.tiles; block += gridDim.x) {
            consumer.multiply(ring, work.steps);
            const Tile tile(block, work.m, n);
#if SPLITK > 1
            float* const tiles = shared + (ring.stages - shared_address(shared)) / 4;
            adders_barrier();  // nobody reads the stages any more
            consumer.lay_out(tiles);
#else
            consumer.store(c, tile, m, n);
#endif
        }
    }
    __syncwarp();
#if SPLITK > 1
    meet();
    if (group < CONSUMERS)
        add_up(shared + (ring.stages - shared_address(shared)) / 4, c, Tile(blockIdx.x, work.m, n), m, n);
#endif
    if constexpr (CLUSTER * SPLITK > 1) meet();  // a block's shared memory lives only as long as the block
}
