// CUB's two reductions behind a C interface, for rivals.py: in temporary memory that the caller gives, so that
// nothing is allocated at a call. TYPE is the type of the elements, WIDE that of the result, OP the operator.
#ifndef TYPE
#define TYPE float
#define WIDE float
#define OP sum
#endif
#include <cub/device/device_reduce.cuh>
#include <cuda/execution>
#include <cuda/functional>
#include <cuda/memory_resource>
#include <cuda/std/execution>
#include <cuda/std/functional>
#include <cuda/std/limits>
#include <cuda/stream>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <new>

namespace {

// Always the same memory, for an algorithm that asks for some once a call.
struct Given {
    void* memory;
    size_t size;

    void* allocate_sync(size_t bytes, size_t) {
        if (bytes > size) throw std::bad_alloc();
        return memory;
    }
    void deallocate_sync(void*, size_t, size_t) noexcept {}
    void* allocate(cuda::stream_ref, size_t bytes, size_t alignment) { return allocate_sync(bytes, alignment); }
    void deallocate(cuda::stream_ref, void*, size_t, size_t) noexcept {}
    bool operator==(const Given& other) const { return memory == other.memory; }
    bool operator!=(const Given& other) const { return memory != other.memory; }
};

// Operators that CUB knows, and what each of them begins with.
namespace sum { using Operator = cuda::std::plus<WIDE>; constexpr WIDE first = 0; }
namespace prod { using Operator = cuda::std::multiplies<WIDE>; constexpr WIDE first = 1; }
namespace max { using Operator = cuda::maximum<WIDE>; constexpr WIDE first = cuda::std::numeric_limits<WIDE>::lowest(); }
namespace min { using Operator = cuda::minimum<WIDE>; constexpr WIDE first = cuda::std::numeric_limits<WIDE>::max(); }

template <class Determinism>
int reduce(Determinism determinism, Given temporary, const void* x, void* out, long long n, void* stream) {
    auto environment = cuda::std::execution::env{
        cuda::execution::require(determinism), cuda::stream_ref{(cudaStream_t)stream},
        cuda::std::execution::prop{cuda::mr::get_memory_resource, temporary}};
    return cub::DeviceReduce::Reduce((const TYPE*)x, (WIDE*)out, n, OP::Operator{}, OP::first, environment);
}

}  // namespace

extern "C" int run_to_run(void* memory, size_t size, const void* x, void* out, long long n, void* stream) {
    return reduce(cuda::execution::determinism::run_to_run, {memory, size}, x, out, n, stream);
}

extern "C" int not_guaranteed(void* memory, size_t size, const void* x, void* out, long long n, void* stream) {
    return reduce(cuda::execution::determinism::not_guaranteed, {memory, size}, x, out, n, stream);
}
