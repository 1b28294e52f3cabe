// How blocks that each have the sums of a part of k make one tile of C of them: the blocks of a cluster (SPLITK)
// through each other's shared memory, clusters (GRIDK) through a workspace, as the two blocks do that share a tile of
// the last wave (TAIL). Every element is added up in the same order every time.
//
// Needs gemm.h, BM, BN, SPLITK, GRIDK and TAIL, and SLICES, the tiles that a block itself has, C_PITCH, floats from
// a row of those to the next, ADDERS, those of a block's THREADS that add up: the first ones, or all, and AT_ONCE, the
// elements of which each of them loads all clusters' sums at a time.
#pragma once

#if SPLITK > 1
// Of all threads of a cluster, whether they add up or not.
__device__ __forceinline__ void cluster_barrier()
{
    asm volatile("barrier.cluster.arrive.release;\n"
                 "barrier.cluster.wait.acquire;" ::: "memory");
}

// Where `p` of this block's shared memory lies in another block of the cluster.
__device__ __forceinline__ unsigned shared_address_in(const float* p, int block)
{
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(block));
    return there;
}
#endif

// Of the adders alone, where there are other threads.
__device__ __forceinline__ void adders_barrier()
{
    if constexpr (ADDERS == THREADS) __syncthreads();
    else asm volatile("bar.sync 1, %0;" ::"n"(ADDERS) : "memory");
}

// The same, and whether any of them says so.
__device__ __forceinline__ bool adders_barrier_or(bool mine)
{
    if constexpr (ADDERS == THREADS) return __syncthreads_or(mine);
    int any;
    asm volatile(
        "{ .reg .pred mine, any; setp.ne.b32 mine, %1, 0;\n"
        "bar.red.or.pred any, 1, %2, mine;\n"
        "selp.b32 %0, 1, 0, any; }" : "=r"(any) : "r"(int(mine)), "n"(ADDERS) : "memory");
    return any;
}

// WIDTH neighbours, 4 or 1, which are read and written at once.
template <int WIDTH>
struct Unit {
    float v[WIDTH] = {};

    __device__ Unit() {}
    __device__ explicit Unit(const float* p)
    {
        if constexpr (WIDTH == 4) {
            const float4 all = *reinterpret_cast<const float4*>(p);
            v[0] = all.x, v[1] = all.y, v[2] = all.z, v[3] = all.w;
        } else {
            v[0] = *p;
        }
    }
#if SPLITK > 1
    // From the same place in another block of the cluster.
    __device__ Unit(const float* p, int block)
    {
        if constexpr (WIDTH == 4)
            asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                         : "r"(shared_address_in(p, block)) : "memory");
        else
            asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v[0]) : "r"(shared_address_in(p, block)) : "memory");
    }
#endif
    // From memory that other blocks have written: past this multiprocessor's own cache.
    static __device__ Unit of_others(const float* p)
    {
        Unit unit;
        if constexpr (WIDTH == 4) {
            const float4 all = __ldcg(reinterpret_cast<const float4*>(p));
            unit.v[0] = all.x, unit.v[1] = all.y, unit.v[2] = all.z, unit.v[3] = all.w;
        } else {
            unit.v[0] = __ldcg(p);
        }
        return unit;
    }
    __device__ void write(float* p) const
    {
        if constexpr (WIDTH == 4) *reinterpret_cast<float4*>(p) = make_float4(v[0], v[1], v[2], v[3]);
        else *p = v[0];
    }
    __device__ void add(const Unit& other, float factor = 1.0f)
    {
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) v[j] = fmaf(factor, other.v[j], v[j]);
    }
    __device__ void scale(float factor)
    {
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) v[j] *= factor;
    }
};

// Which units of a tile this block of its cluster takes care of. WIDTH 1 is for rows of C that are not aligned:
// stores of single floats reach memory in few pieces only where neighbours of a warp write neighbours of a row.
template <int WIDTH>
struct Share {
    static constexpr int UNITS = BM * BN / WIDTH;

    static __device__ int begin() { return UNITS * blockIdx.z / SPLITK + threadIdx.x; }
    static __device__ int end() { return UNITS * (blockIdx.z + 1) / SPLITK; }
    static __device__ int row(int unit) { return unit / (BN / WIDTH); }
    static __device__ int col(int unit) { return unit % (BN / WIDTH) * WIDTH; }
};

// The sum of all slices at `at` of the first one's tile.
template <int WIDTH>
__device__ __forceinline__ Unit<WIDTH> sum_of_slices(const float* at)
{
    Unit<WIDTH> total(at);
#pragma unroll
    for (int slice = 1; slice < SLICES; ++slice) total.add(Unit<WIDTH>(at + slice * (BM * C_PITCH)));
    return total;
}

// Finish one unit of C.
template <int WIDTH>
__device__ __forceinline__ void store_unit(Unit<WIDTH> total, int unit, float* c, float alpha, float beta, Tile tile,
                                           int m, int n, Pitch ldc)
{
    const int row = tile.row + Share<WIDTH>::row(unit), col = tile.col + Share<WIDTH>::col(unit);
    if (row >= m || col >= n) return;
    float* to = c + static_cast<long long>(row) * ldc + col;
    total.scale(alpha);
    if (beta != 0.0f) total.add(Unit<WIDTH>(to), beta);
    total.write(to);
}

#if GRIDK > 1 || TAIL
#define MOST_SHARES 1024  // as the space files have it

// How many blocks have left their sums of a share of a tile in the workspace. Zeros between launches, so that
// two launches of one loaded module must not overlap, on two streams say.
__device__ unsigned arrived[MOST_SHARES];

// Whether the sums that all other `blocks` have of a share are in the workspace, and so this block is the last.
__device__ __forceinline__ bool is_last_to_arrive(int share, int blocks)
{
    unsigned* count = arrived + share;
    __threadfence();   // what this thread has written is seen by all,
    adders_barrier();  // and so is what the block has,
    const bool last = adders_barrier_or(threadIdx.x == 0 && atomicAdd(count, 1) == blocks - 1);  // before it counts
    if (last && threadIdx.x == 0) *count = 0;
    __threadfence();
    return last;
}
#endif

#if TAIL
// A block's tile, and the part of k from k0 on, which ends with a whole step. The first blocks have whole tiles; those
// of the last wave, `shared` of them, have two blocks each: one for the first part of k, later one for the rest.
template <int STEP>
struct Task {
    int tile, k0, depth;
    int shared, of_shared;  // which of them the tile is, if any; else of_shared is negative
    bool is_rest;

    // `turns`: rests that a multiprocessor takes one after the other, while others are at one first part.
    __device__ Task(int m, int n, int k, int turns)
    {
        const int tiles = Tile::count(m, n), block = blockIdx.x;
        shared = static_cast<int>(gridDim.x) - tiles;
        is_rest = block >= tiles;
        tile = block - (is_rest ? shared : 0);
        of_shared = tile - (tiles - shared);
        // To fill the stages and to hand sums over takes a rest about as long as 32 of k.
        const long long first = (k + 32ll) * turns / (turns + 1);
        const int end = static_cast<int>(min((first + STEP - 1) / STEP * STEP, static_cast<long long>(k)));
        k0 = is_rest ? end : 0;
        depth = (of_shared < 0 || is_rest ? k : end) - k0;
    }
};

// Whether this block is the second of two to come; then the sums, a thread's in quads, are those of both, times alpha.
template <int ROWS, int COLS, int STEP>
__device__ __forceinline__ bool has_all_sums(float (&sum)[ROWS][COLS], float alpha, const Task<STEP>& task,
                                             float* partial)
{
    static_assert(ROWS * COLS * ADDERS == BM * BN, "every adder has its part of the tile");
    // As they lie in registers: neighbouring threads write neighbouring quads.
    const auto sums_of = [&](bool rest) {
        return partial + (static_cast<long long>(rest ? task.shared : 0) + task.of_shared) * (BM * BN) + threadIdx.x * 4;
    };
    float* const ours = sums_of(task.is_rest);
    const float* const theirs = sums_of(!task.is_rest);
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int j = 0; j < COLS; j += 4) {
            Unit<4> quad;
#pragma unroll
            for (int l = 0; l < 4; ++l) quad.v[l] = __fmul_rn(alpha, sum[i][j + l]);
            quad.write(ours + (i * COLS + j) * ADDERS);
        }
    if (!is_last_to_arrive(task.of_shared, 2)) return false;
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int j = 0; j < COLS; j += 4) {
            const auto other = Unit<4>::of_others(theirs + (i * COLS + j) * ADDERS);
#pragma unroll
            for (int l = 0; l < 4; ++l) sum[i][j + l] = __fadd_rn(__fmul_rn(alpha, sum[i][j + l]), other.v[l]);
        }
    return true;
}
#endif

#if GRIDK > 1
// This block's sums of cluster `part` in the workspace.
__device__ __forceinline__ float* sums_of(float* partial, int part)
{
    return partial + (static_cast<long long>(part) * gridDim.x + blockIdx.x) * (BM * BN);
}
#endif

// Add up what slices, blocks of the cluster and clusters have, and store it. The adders of every block call it
// once its tiles are complete, and all other threads meet them in two `cluster_barrier`.
template <int WIDTH>
__device__ __forceinline__ void add_up_and_store(float* tiles, float* c, float alpha, float beta, Tile tile, int m,
                                                 int n, Pitch ldc, float* partial)
{
    using Units = Share<WIDTH>;
#if SPLITK > 1
    if (SLICES > 1)
#pragma unroll 4
        for (int quad = threadIdx.x; quad < BM * BN / 4; quad += ADDERS) {
            float* at = tiles + quad / (BN / 4) * C_PITCH + quad % (BN / 4) * 4;
            sum_of_slices<4>(at).write(at);
        }
    cluster_barrier();
#endif
#pragma unroll 4
    for (int unit = Units::begin(); unit < Units::end(); unit += ADDERS) {
        const float* at = tiles + Units::row(unit) * C_PITCH + Units::col(unit);
#if SPLITK > 1
        Unit<WIDTH> total;
#pragma unroll
        for (int block = 0; block < SPLITK; ++block) total.add(Unit<WIDTH>(at, block));
#else
        Unit<WIDTH> total = sum_of_slices<WIDTH>(at);
#endif
#if GRIDK > 1
        total.write(sums_of(partial, blockIdx.y) + unit * WIDTH);
#else
        store_unit(total, unit, c, alpha, beta, tile, m, n, ldc);
#endif
    }
#if SPLITK > 1
    cluster_barrier();  // a block's shared memory lives only as long as the block
#endif
#if GRIDK > 1
    if (!is_last_to_arrive(blockIdx.x * SPLITK + blockIdx.z, GRIDK)) return;
    for (int first = Units::begin(); first < Units::end(); first += AT_ONCE * ADDERS) {
        const auto unit = [&](int i) { return i == 0 ? first : min(first + i * ADDERS, Units::end() - 1); };
        Unit<WIDTH> parts[AT_ONCE][GRIDK];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
#pragma unroll
            for (int part = 0; part < GRIDK; ++part)
                parts[i][part] = Unit<WIDTH>::of_others(sums_of(partial, part) + unit(i) * WIDTH);
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            Unit<WIDTH> total;
#pragma unroll
            for (int part = 0; part < GRIDK; ++part) total.add(parts[i][part]);
            if (i == 0 || first + i * ADDERS < Units::end()) store_unit(total, unit(i), c, alpha, beta, tile, m, n, ldc);
        }
    }
#endif
}
