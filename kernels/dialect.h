/* The common subset of CUDA C++, HIP and OpenCL C as macros: knows these languages, and no kernel.

   What the subset leaves out: templates, references and `auto` (OpenCL C has none), shared memory that
   is declared outside the kernel function or sized at launch, cp.async, TMA and tensor cores. A kernel
   that wants those has a second source in plain CUDA C++.

   Names that a kernel may use as parameters (UNROLL, VEC, PAD, ...) are not taken here, with one
   exception: a kernel that speaks to whole warps defines WARP, their width, before this file is included. */
#ifndef DIALECT_H
#define DIALECT_H

#ifdef __OPENCL_VERSION__

typedef long i64;

/* A kernel with a fixed block. An OpenCL sub-group is what CUDA calls a warp, but a compiler may choose
   its width per kernel, so where the source counts on WARP lanes it has to ask for them. */
#if defined(WARP) && defined(cl_intel_required_subgroup_size)
#define KERNEL_3D(block_x, block_y, block_z, min_blocks)                    \
    __kernel __attribute__((reqd_work_group_size(block_x, block_y, block_z))) \
    __attribute__((intel_reqd_sub_group_size(WARP))) void
#else
#define KERNEL_3D(block_x, block_y, block_z, min_blocks) \
    __kernel __attribute__((reqd_work_group_size(block_x, block_y, block_z))) void
#endif
#define DEVICE static inline
#define RESTRICT restrict

/* OpenCL pointers carry their address space: GLOBAL and SHARED_PTR stand in front of a pointer's type,
   SHARED in front of an array inside a kernel. */
#define GLOBAL __global
#define SHARED __local
#define SHARED_PTR __local

#define TID(d) ((int)get_local_id(d))
#define BID(d) ((int)get_group_id(d))
#define GRID(d) ((int)get_num_groups(d))

/* OpenCL orders shared and global memory apart: SYNC is enough for tiles in shared memory, SYNC_GLOBAL
   also shows a block what its other threads learned about global memory. */
#define SYNC() barrier(CLK_LOCAL_MEM_FENCE)
#define SYNC_GLOBAL() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define FENCE_DEVICE() \
    atomic_work_item_fence(CLK_GLOBAL_MEM_FENCE, memory_order_acq_rel, memory_scope_device)

#define SYNC_WARP() sub_group_barrier(CLK_LOCAL_MEM_FENCE)
#ifndef __AMDGCN__
/* Built in where the device has cl_khr_subgroup_shuffle and cl_khr_subgroup_shuffle_relative. */
#define SHFL_DOWN(value, distance) sub_group_shuffle_down(value, distance)
#define SHFL_XOR(value, mask) sub_group_shuffle_xor(value, mask)
#endif

#define FMA(a, b, c) fma(a, b, c)
#define MAKE2(x, y) ((float2)(x, y))
#define MAKE4(x, y, z, w) ((float4)(x, y, z, w))
#define LD2(p) (*(__global const float2*)(p))
#define LD4(p) (*(__global const float4*)(p))
#define ST2(p, v) (*(__global float2*)(p) = (v))
#define ST4(p, v) (*(__global float4*)(p) = (v))
#define LDS2(p) (*(__local const float2*)(p))
#define LDS4(p) (*(__local const float4*)(p))
#define STS4(p, v) (*(__local float4*)(p) = (v))
#define LD_STREAM(p) (*(p)) /* no cache hints in OpenCL C */
#define LD2_STREAM(p) LD2(p)
#define LD4_STREAM(p) LD4(p)

/* The value before the increment. */
#define ATOMIC_INC(p) atomic_inc((volatile __global unsigned*)(p))

/* OpenCL C has float atomics only as an extension: try until nobody came between reading and writing. */
static inline void ATOMIC_ADD(volatile __global float* p, float value)
{
    volatile __global unsigned* bits = (volatile __global unsigned*)p;
    unsigned seen = *bits;
    for (;;) {
        const unsigned before = atomic_cmpxchg(bits, seen, as_uint(as_float(seen) + value));
        if (before == seen) return;
        seen = before;
    }
}

#else /* CUDA C++ and HIP */

typedef long long i64;

#ifdef __HIP__ /* in which the second bound counts warps of a SIMD, not blocks of a multiprocessor */
#define KERNEL_3D(block_x, block_y, block_z, min_blocks) \
    extern "C" __global__ void __launch_bounds__((block_x) * (block_y) * (block_z))
#else
/* min_blocks: how many blocks must fit on one multiprocessor; the compiler limits its registers to that.
   With 0 it aims at full occupancy: 32 registers, if need be by waiting for one load before it issues the
   next. A kernel that keeps many loads in flight says at least 1. */
#define KERNEL_3D(block_x, block_y, block_z, min_blocks) \
    extern "C" __global__ void __launch_bounds__((block_x) * (block_y) * (block_z), min_blocks)
#endif
#define DEVICE static __device__ __forceinline__
#define RESTRICT __restrict__

#define GLOBAL
#define SHARED __shared__
#define SHARED_PTR

#define DIALECT_JOIN_(a, b) a##b
#define DIALECT_JOIN(a, b) DIALECT_JOIN_(a, b)
#define DIALECT_AXIS_0 x
#define DIALECT_AXIS_1 y
#define DIALECT_AXIS_2 z
#define TID(d) ((int)threadIdx.DIALECT_JOIN(DIALECT_AXIS_, d))
#define BID(d) ((int)blockIdx.DIALECT_JOIN(DIALECT_AXIS_, d))
#define GRID(d) ((int)gridDim.DIALECT_JOIN(DIALECT_AXIS_, d))

#define SYNC() __syncthreads()
#define SYNC_GLOBAL() __syncthreads()
#define FENCE_DEVICE() __threadfence()

#ifdef __HIP__
#define SYNC_WARP() (__builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront"), __builtin_amdgcn_wave_barrier())
#define FMA(a, b, c) __builtin_fmaf(a, b, c)
#else
/* Since Volta the lanes of a warp may drift apart, so even inside one warp an exchange needs a barrier. */
#define SYNC_WARP() __syncwarp()
#define SHFL_DOWN(value, distance) __shfl_down_sync(0xffffffffu, value, distance)
#define SHFL_XOR(value, mask) __shfl_xor_sync(0xffffffffu, value, mask)

#define FMA(a, b, c) __fmaf_rn(a, b, c)
#endif
#define MAKE2(x, y) make_float2(x, y)
#define MAKE4(x, y, z, w) make_float4(x, y, z, w)
#define LD2(p) (*(const float2*)(p))
#define LD4(p) (*(const float4*)(p))
#define ST2(p, v) (*(float2*)(p) = (v))
#define ST4(p, v) (*(float4*)(p) = (v))
#define LDS2(p) LD2(p)
#define LDS4(p) LD4(p)
#define STS4(p, v) ST4(p, v)
#ifdef __HIP__
#define LD_STREAM(p) (*(p))
#define LD2_STREAM(p) LD2(p)
#define LD4_STREAM(p) LD4(p)
#else
#define LD_STREAM(p) __ldcs(p) /* read once: first to leave the cache */
#define LD2_STREAM(p) __ldcs((const float2*)(p))
#define LD4_STREAM(p) __ldcs((const float4*)(p))
#endif

#define ATOMIC_INC(p) atomicAdd(p, 1u)
#define ATOMIC_ADD(p, value) atomicAdd(p, value)

/* What <math.h> and <float.h> define for nvcc, and OpenCL C by itself. */
#ifdef __CUDACC_RTC__
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#ifndef FLT_MAX
#define FLT_MAX 3.402823466e+38f
#endif
#ifndef FLT_EPSILON
#define FLT_EPSILON 1.192092896e-07f
#endif
#ifndef DBL_MAX
#define DBL_MAX 1.7976931348623157e+308
#endif
#endif

#endif

/* AMD's GPUs, through HIP or OpenCL: lanes read one another's registers by number. What comes from beyond
   the last lane is another lane's; WARP is 64 on CDNA (gfx9), 32 or 64 as compiled on RDNA. */
#if defined(__AMDGCN__) || defined(__HIP__)
DEVICE float dialect_of_lane(float value, int lane)
{
    union {
        float value;
        int bits;
    } word;
    word.value = value;
    word.bits = __builtin_amdgcn_ds_bpermute(4 * lane, word.bits);
    return word.value;
}
#define DIALECT_LANE() ((int)__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)))
#define SHFL_DOWN(value, distance) dialect_of_lane(value, DIALECT_LANE() + (distance))
#define SHFL_XOR(value, mask) dialect_of_lane(value, DIALECT_LANE() ^ (mask))
#endif

#define KERNEL(block_x, block_y, min_blocks) KERNEL_3D(block_x, block_y, 1, min_blocks)

#define ALIGN16 __attribute__((aligned(16)))

/* `UNROLL_ALL for (...)`, `UNROLL_BY(4) for (...)`; the count may be a macro. */
#define DIALECT_PRAGMA(text) _Pragma(#text)
#define UNROLL_ALL DIALECT_PRAGMA(unroll)
#define UNROLL_BY(count) DIALECT_PRAGMA(unroll count)

#define CEIL_DIV(a, b) (((a) + (b) - 1) / (b))

#endif
