// c = a b over float32, with tiles of a and b that TMA copies to shared memory while the block computes.
//
// Blocks are persistent: block i computes the tiles i, i + gridDim.x, ... Copies of the next STAGES - 1 pairs of tiles
// are under way, also across the boundary of two output tiles. TMA writes zeros for elements outside of a and b.
#include <cuda.h>

#ifndef BM
#define BM 64 // rows of a tile of c
#define BN 64 // columns of a tile of c
#define BK 16 // columns of a tile of a
#define TM 4 // rows per thread
#define TN 4 // columns per thread
#define STAGES 3 // pairs of tiles in shared memory
#endif
#define THREADS (BM / TM * (BN / TN))

__device__ unsigned address(const void* shared)
{
    return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

__device__ void copy_tile(void* tile, const CUtensorMap* map, int x, int y, const void* barrier)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        ::"r"(address(tile)), "l"(map), "r"(x), "r"(y), "r"(address(barrier)) : "memory");
}

__device__ void wait_for(const void* barrier, int parity)
{
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}" ::"r"(address(barrier)), "r"(parity) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS) product(
    const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float* c, int m, int n, int k)
{
    __shared__ alignas(128) float as[STAGES][BM][BK], bs[STAGES][BK][BN];
    __shared__ alignas(8) unsigned long long full[STAGES];
    const int across = (n + BN - 1) / BN, tiles = (m + BM - 1) / BM * across, steps = (k + BK - 1) / BK;
    const int first = blockIdx.x, stride = gridDim.x;
    const int copies = first < tiles ? ((tiles - first - 1) / stride + 1) * steps : 0;
    const int row = threadIdx.x / (BN / TN) * TM, column = threadIdx.x % (BN / TN) * TN;

    const auto copy = [&](int number) {
        const int tile = first + number / steps * stride, at = number % steps * BK, stage = number % STAGES;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&full[stage])),
            "r"((BM * BK + BK * BN) * 4) : "memory");
        copy_tile(as[stage], &a, at, tile / across * BM, &full[stage]);
        copy_tile(bs[stage], &b, tile % across * BN, at, &full[stage]);
    };
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&full[stage])) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (int number = 0; number < STAGES - 1 && number < copies; ++number)
            copy(number);
    }
    __syncthreads();

    for (int number = 0; number < copies;) {
        float sum[TM][TN] = {};
        const int tile = first + number / steps * stride;
        for (int step = 0; step < steps; ++step, ++number) {
            // All threads have read the stage that this copy overwrites.
            if (threadIdx.x == 0 && number + STAGES - 1 < copies)
                copy(number + STAGES - 1);
            const int stage = number % STAGES;
            wait_for(&full[stage], number / STAGES & 1);
#pragma unroll
            for (int x = 0; x < BK; ++x)
#pragma unroll
                for (int i = 0; i < TM; ++i)
#pragma unroll
                    for (int j = 0; j < TN; ++j)
                        sum[i][j] += as[stage][row + i][x] * bs[stage][x][column + j];
            __syncthreads();
        }
        const int top = tile / across * BM + row, left = tile % across * BN + column;
        for (int i = 0; i < TM && top + i < m; ++i)
            for (int j = 0; j < TN && left + j < n; ++j)
                c[static_cast<long long>(top + i) * n + left + j] = sum[i][j];
    }
}
