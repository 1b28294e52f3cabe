/* What HIP's own headers give the kernels, as far as they use it: for compiling without ROCm, not for running. */
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))

typedef __SIZE_TYPE__ size_t;

struct float2 { float x, y; } __attribute__((aligned(8)));
struct float4 { float x, y, z, w; } __attribute__((aligned(16)));
struct uint2 { unsigned x, y; } __attribute__((aligned(8)));
struct uint4 { unsigned x, y, z, w; } __attribute__((aligned(16)));
struct place { unsigned x, y, z; };

static __device__ float2 make_float2(float x, float y) { return {x, y}; }
static __device__ float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

/* Plain loads from memory that nothing writes: enough to compile, and opaque to the optimiser. */
extern __device__ place threadIdx, blockIdx, gridDim, blockDim;

static __device__ void __syncthreads() { __builtin_amdgcn_s_barrier(); }
static __device__ void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
static __device__ float atomicAdd(float* p, float v) { return __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
static __device__ unsigned atomicAdd(unsigned* p, unsigned v) { return __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
static __device__ int atomicAdd(int* p, int v) { return __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
#define ATOMIC(name, call) \
    template <class T> static __device__ T name(T* p, T v) { return call(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
ATOMIC(atomicMax, __hip_atomic_fetch_max)
ATOMIC(atomicMin, __hip_atomic_fetch_min)
ATOMIC(atomicAnd, __hip_atomic_fetch_and)
ATOMIC(atomicOr, __hip_atomic_fetch_or)
ATOMIC(atomicExch, __hip_atomic_exchange)
static __device__ int atomicCAS(int* p, int before, int v)
{
    __hip_atomic_compare_exchange_strong(p, &before, v, __ATOMIC_RELAXED, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    return before;
}
static __device__ float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
static __device__ float fminf(float a, float b) { return __builtin_fminf(a, b); }
extern "C" __device__ float expf(float), logf(float), sqrtf(float), rsqrtf(float);
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
