// What all CUDA sources of matrix products share: asynchronous copies, the order of blocks, and how a piece
// of a row of C is stored. Needs BM, BN and RASTER.
#pragma once

__device__ __forceinline__ unsigned shared_address(const float* p)
{
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// Start copying FLOATS from global to shared memory; zeros where not `inside`, and then `from` is not
// looked at.
template <int FLOATS>
__device__ __forceinline__ void copy_async_or_zero(unsigned to, const float* from, bool inside)
{
    if constexpr (FLOATS == 4)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                     ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
    else
        asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 4, %2;"
                     ::"r"(to), "l"(from), "r"(inside ? 4 : 0) : "memory");
}

// All copies since the last call become one group.
__device__ __forceinline__ void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most PENDING of this thread's groups are not complete.
template <int PENDING>
__device__ __forceinline__ void await_groups() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// Whether every row of a matrix with rows of `length` floats begins at a multiple of 16 bytes.
__device__ __forceinline__ bool rows_are_aligned(const float* matrix, int length)
{
    return length % 4 == 0 && reinterpret_cast<unsigned long long>(matrix) % 16 == 0;
}

// Whether the rows of a matrix, `pitch` floats apart and `length` long, are whole quads at multiples of 16
// bytes.
__device__ __forceinline__ bool rows_are_quads(const float* matrix, int length, long long pitch)
{
    return length % 4 == 0 && pitch % 4 == 0 && reinterpret_cast<unsigned long long>(matrix) % 16 == 0;
}

// First row and column of the tile of C that a block computes. Blocks are numbered down groups of RASTER
// rows, so that those at work at one time form a compact patch of C and find most of A and B in the L2
// cache.
struct Tile {
    int row, col;

    // Tiles of a matrix.
    static __device__ int count(int m, int n) { return (m + BM - 1) / BM * ((n + BN - 1) / BN); }

    __device__ Tile(int block, int m, int n)
    {
        const int blocks_m = (m + BM - 1) / BM, blocks_n = (n + BN - 1) / BN;
        const int group = block / (RASTER * blocks_n), in_group = block % (RASTER * blocks_n);
        const int group_rows = min(RASTER, blocks_m - group * RASTER);
        row = (group * RASTER + in_group % group_rows) * BM;
        col = in_group / group_rows * BN;
    }
};

// Four neighbours in a row of C, of which `left` lie inside. `wide`: aligned, and all inside or all outside.
// When beta is 0, C is not read and may hold anything.
__device__ __forceinline__ void store_quad(float* c, float4 v, float alpha, float beta, int left, bool wide)
{
    if (left <= 0) return;
    v = make_float4(alpha * v.x, alpha * v.y, alpha * v.z, alpha * v.w);
    if (wide) {
        if (beta != 0.0f) {
            const float4 old = *reinterpret_cast<const float4*>(c);
            v = make_float4(fmaf(beta, old.x, v.x), fmaf(beta, old.y, v.y), fmaf(beta, old.z, v.z),
                            fmaf(beta, old.w, v.w));
        }
        *reinterpret_cast<float4*>(c) = v;
    } else {
        const float one[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; ++j)
            if (j < left) c[j] = beta != 0.0f ? fmaf(beta, c[j], one[j]) : one[j];
    }
}
