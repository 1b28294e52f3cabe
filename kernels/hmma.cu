// Products on tensor cores and nothing else: the rate of their arithmetic, found by the same means as everything else.
//
//   out = steps A B', of A (m x 64) and B (n x 64) in halves or bfloat16, out (m x n) in float32, all row-major
//
// A and B are added up `steps` times, 16 of their 64 columns with each instruction. Their numbers are random, and two
// instructions in a row have different ones: the tensor cores' power, and so their clock, depend on the bits that change.
//
// The plan. A warp has 16 rows of out, and CHAINS tiles of WIDTH columns, whose sums stay in registers from the first
// step to the last. No product of a chain waits for another chain's. A and B are read once:
//
//   mma    mma.sync 16 x 8 x 16, which every NVIDIA GPU since sm_80 has. Both operands stay in registers.
//   wgmma  wgmma 64 x COLUMNS x 16 by the four warps of a warpgroup, which only sm_90a has. Both operands are in shared
//          memory.
//
// The products are `asm volatile`: the compiler neither drops one of two that are alike nor moves it out of the loop.

#ifndef VARIANT
#define VARIANT_mma 1
#define VARIANT_wgmma 2
#define VARIANT VARIANT_mma
#endif
#ifndef WARPS
#define WARPS 8  // per block
#endif
#ifndef CHAINS
#define CHAINS 8  // independent sums of a warp, or of a warpgroup
#endif
#ifndef COLUMNS
#define COLUMNS 128  // of a chain; wgmma
#endif
#ifndef UNROLL
#define UNROLL 1  // steps written out
#endif

// DTYPE, of A and B, is a field of the problem and arrives as a bare word.
#ifndef DTYPE
#define DTYPE float16
#endif
#define TYPE_float16 1
#define TYPE_bfloat16 2
#define TYPE_JOIN_(name) TYPE_##name
#define TYPE_JOIN(name) TYPE_JOIN_(name)
#if TYPE_JOIN(DTYPE) == TYPE_float16
#define PTX_TYPE "f16"
#elif TYPE_JOIN(DTYPE) == TYPE_bfloat16
#define PTX_TYPE "bf16"
#else
#error "DTYPE must be float16 or bfloat16"
#endif

using Half = unsigned short;  // bits of either type

constexpr int DEPTH = 64, SLICES = DEPTH / 16;  // columns of A and B; of 16, which an instruction multiplies
constexpr int THREADS = 32 * WARPS;
constexpr int WIDTH = VARIANT == VARIANT_wgmma ? COLUMNS : 8;
constexpr int BM = 16 * WARPS, BN = WIDTH * CHAINS;  // rows and columns of out per block

using Sums = float[CHAINS][WIDTH / 2];  // a thread's: of every 8 columns two neighbours, in two rows

#if VARIANT == VARIANT_mma
// ---------------------------------------------------------------- mma

// Two neighbours in a row of A or B; zeros where there is no such row.
__device__ __forceinline__ unsigned pair(const Half* matrix, int row, int rows, int number)
{
    const unsigned* const pairs = reinterpret_cast<const unsigned*>(matrix);
    return row < rows ? pairs[static_cast<long long>(row) * (DEPTH / 2) + number] : 0;
}

// sum += steps A B' of a warp's rows, from `row` on, and of the columns from `col` on.
__device__ __forceinline__ void accumulate(Sums& sum, const Half* from_a, const Half* from_b, int row, int col, int m,
                                           int n, int steps)
{
    const int lane = threadIdx.x % 32;
    unsigned a[SLICES][4], b[CHAINS][SLICES][2];
    row += threadIdx.x / 32 * 16;
#pragma unroll
    for (int s = 0; s < SLICES; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            a[s][i] = pair(from_a, row + lane / 4 + i % 2 * 8, m, 8 * s + lane % 4 + i / 2 * 4);
#pragma unroll
        for (int chain = 0; chain < CHAINS; ++chain)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                b[chain][s][i] = pair(from_b, col + 8 * chain + lane / 4, n, 8 * s + lane % 4 + i * 4);
    }
#pragma unroll UNROLL
    for (int step = 0; step < steps; ++step)
#pragma unroll
        for (int s = 0; s < SLICES; ++s)
#pragma unroll
            for (int chain = 0; chain < CHAINS; ++chain) {
                float* const c = sum[chain];
                asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." PTX_TYPE "." PTX_TYPE
                             ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                             : "r"(a[s][0]), "r"(a[s][1]), "r"(a[s][2]), "r"(a[s][3]), "r"(b[chain][s][0]),
                               "r"(b[chain][s][1]));
            }
}

#else
// ---------------------------------------------------------------- wgmma

constexpr int ROW_BYTES = 2 * DEPTH;       // of A and B: the longest row that wgmma's layouts know
constexpr int GROUP = 128, GROUP_ROWS = 64;  // threads and rows of a warpgroup
constexpr int PIECES = ROW_BYTES / 16;

static_assert(WARPS % 4 == 0, "a block is whole warpgroups");
static_assert(COLUMNS == 64 || COLUMNS == 128 || COLUMNS == 256, "a wgmma's columns");

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
#if COLUMNS == 64
#define ALL(x) SIXTEEN(x, 0), SIXTEEN(x, 16)
#define WGMMA "wgmma.mma_async.sync.aligned.m64n64k16.f32." PTX_TYPE "." PTX_TYPE " {" REGISTERS_32 "}, %32, %33"
#elif COLUMNS == 128
#define ALL(x) SIXTY_FOUR(x, 0)
#define WGMMA "wgmma.mma_async.sync.aligned.m64n128k16.f32." PTX_TYPE "." PTX_TYPE " {" REGISTERS_64 "}, %64, %65"
#else
#define ALL(x) SIXTY_FOUR(x, 0), SIXTY_FOUR(x, 64)
#define WGMMA "wgmma.mma_async.sync.aligned.m64n256k16.f32." PTX_TYPE "." PTX_TYPE " {" REGISTERS_128 "}, %128, %129"
#endif

// Start sum += a b' of 16 columns, of matrices that are described.
__device__ __forceinline__ void start_product(float (&sum)[WIDTH / 2], unsigned long long a, unsigned long long b)
{
    asm volatile("{ .reg .pred add; setp.ne.b32 add, 1, 0;\n" WGMMA ", add, 1, 1, 0, 0; }"
                 : ALL(sum) : "l"(a), "l"(b));
}

// Describe rows of ROW_BYTES to wgmma: where they are, the swizzle of 128 bytes, and that 8 rows are 1024 bytes. 16 of
// their columns are 32 bytes further on.
__device__ __forceinline__ unsigned long long descriptor(unsigned rows)
{
    return (rows & 0x3ffff) >> 4 | 1ull << 16 | 1024ull >> 4 << 32 | 1ull << 62;
}

// Copy COUNT rows of A or B, from `first` on, to shared memory at `to`, a multiple of 1024; zeros where there is no such
// row. The pieces of a row change places as the swizzle wants it.
template <int COUNT>
__device__ __forceinline__ void copy_rows(unsigned to, const Half* matrix, int first, int rows)
{
    const uint4* const pieces = reinterpret_cast<const uint4*>(matrix);
    for (int i = threadIdx.x; i < COUNT * PIECES; i += THREADS) {
        const int row = i / PIECES, piece = i % PIECES;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (first + row < rows) x = pieces[static_cast<long long>(first + row) * PIECES + piece];
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                     ::"r"(to + row * ROW_BYTES + (piece ^ row % 8) * 16), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                     : "memory");
    }
}

// sum += steps A B' of a block's rows, from `row` on, and of the columns from `col` on.
__device__ __forceinline__ void accumulate(Sums& sum, const Half* from_a, const Half* from_b, int row, int col, int m,
                                           int n, int steps)
{
    extern __shared__ __align__(1024) char shared[];  // wgmma's layouts repeat every 1024 bytes
    const unsigned to_a = (static_cast<unsigned>(__cvta_generic_to_shared(shared)) + 1023) / 1024 * 1024;
    const unsigned to_b = to_a + BM * ROW_BYTES;
    copy_rows<BM>(to_a, from_a, row, m);
    copy_rows<BN>(to_b, from_b, col, n);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // wgmma is to see what was stored
    __syncthreads();

    const unsigned long long a = descriptor(to_a + threadIdx.x / GROUP * (GROUP_ROWS * ROW_BYTES));
    const unsigned long long b = descriptor(to_b);
#pragma unroll UNROLL
    for (int step = 0; step < steps; ++step) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int s = 0; s < SLICES; ++s)
#pragma unroll
            for (int chain = 0; chain < CHAINS; ++chain)
                start_product(sum[chain], a + (s * 32 >> 4), b + (chain * COLUMNS * ROW_BYTES + s * 32 >> 4));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");  // so that one step is always under way
    }
#pragma unroll
    for (int chain = 0; chain < CHAINS; ++chain)  // named, so that nothing reads them before
        asm volatile("wgmma.wait_group.sync.aligned 0;" : ALL(sum[chain])::"memory");
}
#endif

// ---------------------------------------------------------------- the kernel

// Grid: a block for each BM x BN of out. Shared memory: wgmma: (BM + BN) * ROW_BYTES, and 1024 bytes to align them.
extern "C" __global__ void __launch_bounds__(THREADS)
hmma(const Half* __restrict__ a, const Half* __restrict__ b, float* __restrict__ out, int m, int n, int steps)
{
    const int across = (n + BN - 1) / BN;
    const int row = blockIdx.x / across * BM, col = blockIdx.x % across * BN;
    Sums sum = {};
    accumulate(sum, a, b, row, col, m, n, steps);

    const int lane = threadIdx.x % 32;
    const int first_row = row + threadIdx.x / 32 * 16 + lane / 4, first_col = col + lane % 4 * 2;
#pragma unroll
    for (int chain = 0; chain < CHAINS; ++chain)
#pragma unroll
        for (int i = 0; i < WIDTH / 2; ++i) {
            const int to_row = first_row + i / 2 % 2 * 8, to_col = first_col + chain * WIDTH + i / 4 * 8 + i % 2;
            if (to_row < m && to_col < n) out[static_cast<long long>(to_row) * n + to_col] = sum[chain][i];
        }
}
