// c = a b over row-major float16 matrices, sums in float32: the kernel of CUTLASS 2.x for tensor cores from sm_80 on.
// NVRTC compiles it with the headers of the package nvidia-cutlass; its device code fills the parameters that CUTLASS
// fills on the host.

#include <cute/config.hpp>
// The package declares std::tuple_size for NVRTC, which the headers of CUDA 13 declare as well, in another way.
#undef CUTE_STL_NAMESPACE_IS_CUDA_STD

#include <cutlass/cutlass.h>
#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/gemm/kernel/default_gemm.h>
#include <cutlass/gemm/threadblock/threadblock_swizzle.h>

using Half = cutlass::half_t;
using RowMajor = cutlass::layout::RowMajor;
using Tile = cutlass::gemm::GemmShape<BM, BN, BK>;
using TileOfWarp = cutlass::gemm::GemmShape<WM, WN, BK>;
using Instruction = cutlass::gemm::GemmShape<16, 8, 16>;
using Epilogue = cutlass::epilogue::thread::LinearCombination<Half, 8, float, float>;
using Swizzle = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<1>;
using Gemm = cutlass::gemm::kernel::DefaultGemm<
    Half, RowMajor, 8, Half, RowMajor, 8, Half, RowMajor, float, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80,
    Tile, TileOfWarp, Instruction, Epilogue, Swizzle, STAGES, false, cutlass::arch::OpMultiplyAdd>::GemmKernel;

static_assert(sizeof(Gemm::SharedStorage) <= SHARED_BYTES, "the launch gives too little shared memory");

extern "C" __global__ void __launch_bounds__(Gemm::kThreadCount)
    half_product(const Half* a, const Half* b, Half* c, int m, int n, int k) {
  extern __shared__ __align__(16) char memory[];
  const cutlass::gemm::GemmCoord size(m, n, k);
  const auto tiles = Swizzle::get_tiled_shape(size, {BM, BN, BK}, 1);
  const Gemm::Params params(size, tiles, {const_cast<Half*>(a), k}, {const_cast<Half*>(b), n}, {c, n}, {c, n},
                            {1.0f, 0.0f});
  Gemm()(params, *reinterpret_cast<Gemm::SharedStorage*>(memory));
}
