// Your own kernel template, instantiated with a tuned configuration.
#include "winner.hpp"

namespace {

template <int VEC> struct Vector;
template <> struct Vector<1> { using type = float; };
template <> struct Vector<2> { using type = float2; };
template <> struct Vector<4> { using type = float4; };

// to = from: every thread has ITEMS loads of VEC floats in flight, and the grid may have any size.
template <int VEC, int ITEMS>
__device__ void copy(const float* __restrict__ from, float* __restrict__ to, long long n)
{
    using V = typename Vector<VEC>::type;
    const long long vectors = n / VEC, stride = static_cast<long long>(gridDim.x) * blockDim.x * ITEMS;
    long long first = static_cast<long long>(blockIdx.x) * blockDim.x * ITEMS + threadIdx.x;
    for (; first < vectors; first += stride) {
        V held[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            if (first + i * blockDim.x < vectors) held[i] = reinterpret_cast<const V*>(from)[first + i * blockDim.x];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            if (first + i * blockDim.x < vectors) reinterpret_cast<V*>(to)[first + i * blockDim.x] = held[i];
    }
    const long long rest = vectors * VEC + threadIdx.x;
    if (blockIdx.x == 0 && rest < n) to[rest] = from[rest];
}

}  // namespace

extern "C" __global__ void __launch_bounds__(example::winner.block.x)
tuned_copy(const float* __restrict__ from, float* __restrict__ to, long long n)
{
    copy<example::winner.VEC, example::winner.ITEMS>(from, to, n);
}
