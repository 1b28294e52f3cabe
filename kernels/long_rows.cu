// softmax, rms_norm, layer_norm and cross_entropy of long rows: each element is read once, and written once.
//
// CLUSTER blocks share a row. They keep it in registers: each thread has PIECES pieces of 16 bytes. Their sums meet in
// shared memory, in one exchange: each warp sends its own to every block of the cluster, and every warp joins all.
// So there is one launch, and one wait, however long a row is. The kernel answers every length that fits.
//
// Rows of an odd length begin anywhere. Pieces begin at multiples of 16 bytes; up to 2 * EACH - 1 elements in front of
// the first and behind the last piece of a row are single ones, which the first threads of the first block have.
// x, residual and y begin at multiples of 16 bytes, or all as far behind one; weight and bias begin at one. In a row
// that begins at none, a piece of theirs is made of two. There is one piece less, so that none lies behind their end.
//
//   softmax, cross_entropy  a warp's largest value, and its sum of powers over that one's power. float32 keeps powers;
//                           of 16-bit types x is kept, and its powers are computed again.
//   layer_norm              a warp's mean, and its sum of squared deviations from it: a sum of squares loses digits
//   rms_norm                a sum of squares. With a residual x + residual is kept as floats, and is written at once.
//
// Blocks of a cluster send by `st.async`, which counts what arrives. `barrier.cluster` with its release would make each
// warp wait for its own memory. It is used once, relaxed, while x is on its way: a block must have begun before others
// write to its memory. Nobody writes there after the exchange, so that blocks end by themselves.

#ifndef FUNCTION
#define FUNCTION softmax
#endif
#ifndef CLUSTER
#define CLUSTER 1  // blocks that share a row: a cluster, from sm_90 on
#endif
#ifndef THREADS
#define THREADS 256  // of a block
#endif
#ifndef PIECES
#define PIECES 4  // of 16 bytes, that a thread keeps
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1  // blocks that fit on a multiprocessor, by their registers
#endif

#define WARP 32
#define BYTES 16
#include "sums.h"
#include "types.h"

#define FUNCTION_softmax 1
#define FUNCTION_rms_norm 2
#define FUNCTION_rms_norm_residual 3
#define FUNCTION_layer_norm 4
#define FUNCTION_cross_entropy 5
#define FUNCTION_cross_entropy_gradient 6
#define FUNCTION_JOIN_(name) FUNCTION_##name
#define FUNCTION_JOIN(name) FUNCTION_JOIN_(name)
#define FUNCTION_IS(name) (FUNCTION_JOIN(FUNCTION) == FUNCTION_##name)
#define HAS_LOSS (FUNCTION_IS(cross_entropy) || FUNCTION_IS(cross_entropy_gradient))
#define HAS_POWERS (FUNCTION_IS(softmax) || HAS_LOSS)
#define HAS_RESIDUAL FUNCTION_IS(rms_norm_residual)
#define HAS_RESULT (!FUNCTION_IS(cross_entropy))
#define VECTORS (FUNCTION_IS(layer_norm) ? 2 : HAS_POWERS ? 0 : 1)  // weight and bias

// Words of a kept piece: EACH floats, or as in memory. Numbers that a warp sends; 3 are sent as 4.
#define WORDS (HAS_RESIDUAL ? EACH : 4)
#define NUMBERS (FUNCTION_IS(layer_norm) ? 4 : HAS_POWERS ? 2 : 1)
constexpr int WARPS = THREADS / WARP, SENDERS = CLUSTER * WARPS;

// Whether weight and bias are loaded before the exchange: where registers allow it. About 48 are for the rest.
constexpr int REGISTERS = 65536 / (THREADS * MIN_BLOCKS) < 255 ? 65536 / (THREADS * MIN_BLOCKS) : 255;
constexpr bool EARLY = VECTORS > 0 && (WORDS + 8 * VECTORS) * PIECES + 48 <= REGISTERS;

// The least float: with an infinity in its place a row or a warp of nothing else would have NaN as a difference.
constexpr float LEAST = -3.4028234663852886e38f;

// Words of a piece that is not there: zeros, or -infinity, whose power is 0.
constexpr unsigned NOTHING = !HAS_POWERS          ? 0
                             : TYPE_IS(float32)   ? 0xff800000u
                             : TYPE_IS(float16)   ? 0xfc00fc00u
                                                  : 0xff80ff80u;

struct Piece {
    unsigned word[4];
};
struct Kept {
    unsigned word[WORDS];
};

// ---------------------------------------------------------------- elements

DEVICE void widen(const Piece& piece, float* values)
{
    UNROLL_ALL
    for (int i = 0; i < 4; ++i) {
#if TYPE_IS(float32)
        values[i] = __uint_as_float(piece.word[i]);
#elif TYPE_IS(float16)
        asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
            : "=f"(values[2 * i]), "=f"(values[2 * i + 1]) : "r"(piece.word[i]));
#else
        values[2 * i] = __uint_as_float(piece.word[i] << 16);
        values[2 * i + 1] = __uint_as_float(piece.word[i] & 0xffff0000u);
#endif
    }
}

// Two floats in a word, rounded to the nearest.
DEVICE unsigned rounded(float low, float high)
{
    unsigned word;
#if TYPE_IS(float16)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#elif TYPE_IS(bfloat16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#else
    word = __float_as_uint(low);
#endif
    return word;
}

DEVICE Piece narrow(const float* values)
{
    Piece piece;
    UNROLL_ALL
    for (int i = 0; i < 4; ++i) piece.word[i] = rounded(values[i * EACH / 4], values[i * EACH / 4 + EACH / 4 - 1]);
    return piece;
}

DEVICE void store_single(TYPE* to, float value)
{
#if TYPE_IS(float32)
    *to = value;
#else
    *to = (TYPE)rounded(value, 0.0f);
#endif
}

DEVICE void read(const Kept& kept, float* values)
{
#if HAS_RESIDUAL
    UNROLL_ALL
    for (int e = 0; e < EACH; ++e) values[e] = __uint_as_float(kept.word[e]);
#else
    Piece piece;
    UNROLL_ALL
    for (int i = 0; i < 4; ++i) piece.word[i] = kept.word[i];
    widen(piece, values);
#endif
}

// Make the words of 16-bit types new to the compiler. It would keep their floats from one pass over them to the next,
// in twice as many registers. `zero` is 0, which the compiler does not know.
DEVICE void renew(Kept* kept, unsigned zero)
{
    UNROLL_ALL
    for (int i = 0; i < PIECES * WORDS; ++i) {
        unsigned& word = kept[i / WORDS].word[i % WORDS];
        if (TYPE_BYTES == 2 && WORDS == 4) word = (word + zero) ^ zero;
    }
}

// ---------------------------------------------------------------- memory, without branches: many loads are in flight

// x and residual, read once: the L1 cache is left to weight and bias. A piece that is not there stays as it is.
DEVICE void load_once(Piece& piece, const TYPE* from, bool is_there)
{
    asm volatile("{ .reg .pred is_there; setp.ne.b32 is_there, %5, 0;\n"
                 "@is_there ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(piece.word[0]), "+r"(piece.word[1]), "+r"(piece.word[2]), "+r"(piece.word[3])
                 : "l"(from), "r"((int)is_there));
}

DEVICE void load_again(Piece& piece, const TYPE* from, bool is_there)
{
    asm volatile("{ .reg .pred is_there; setp.ne.b32 is_there, %5, 0;\n"
                 "@is_there ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(piece.word[0]), "+r"(piece.word[1]), "+r"(piece.word[2]), "+r"(piece.word[3])
                 : "l"(from), "r"((int)is_there));
}

DEVICE void store(TYPE* to, const Piece& piece, bool is_there)
{
    asm volatile("{ .reg .pred is_there; setp.ne.b32 is_there, %5, 0;\n"
                 "@is_there st.global.v4.b32 [%4], {%0, %1, %2, %3}; }" ::"r"(piece.word[0]), "r"(piece.word[1]),
                 "r"(piece.word[2]), "r"(piece.word[3]), "l"(to), "r"((int)is_there) : "memory");
}

// The elements of weight or bias of a piece of the row: two pieces of theirs, unless the row's begins at one.
struct Pair {
    Piece low, high;
};

DEVICE Pair load_pair(const TYPE* from, int head, bool is_there)
{
    Pair pair = {};
    load_again(pair.low, from, is_there);
    load_again(pair.high, from + EACH, is_there && head > 0);
    return pair;
}

// `head` elements of the low piece are left out.
DEVICE Piece join(const Pair& pair, int head)
{
    unsigned word[8];
    Piece piece;
    UNROLL_ALL
    for (int i = 0; i < 4; ++i) word[i] = pair.low.word[i], word[i + 4] = pair.high.word[i];
    const int words = head * TYPE_BYTES / 4;
    UNROLL_ALL
    for (int i = 0; i < 6; ++i) word[i] = words & 2 ? word[i + 2] : word[i];
    UNROLL_ALL
    for (int i = 0; i < 5; ++i) word[i] = words & 1 ? word[i + 1] : word[i];
    UNROLL_ALL
    for (int i = 0; i < 4; ++i)
        piece.word[i] = TYPE_BYTES == 4 ? word[i] : __funnelshift_r(word[i], word[i + 1], head % 2 * 16);
    return piece;
}

// ---------------------------------------------------------------- sums

// e to a difference that is no larger than 0, as precise as the type has use for.
DEVICE float power(float difference)
{
#if TYPE_IS(float32)
    return expf(difference);
#else
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(difference * 1.4426950408889634f));
    return result;
#endif
}

// What warps send each other.
struct Exchange {
    alignas(16) float number[SENDERS][NUMBERS];
    unsigned long long arrived;  // counts bytes

    static __device__ __forceinline__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

    // Tell the other blocks of the cluster that this one has begun.
    __device__ __forceinline__ void begin()
    {
        if constexpr (CLUSTER > 1) {
            if (threadIdx.x == 0) {
                asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n"
                             "fence.mbarrier_init.release.cluster;\n"
                             "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&arrived)),
                             "n"(4 * SENDERS * NUMBERS) : "memory");
            }
            asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
        }
    }

    // Send a warp's numbers to every block of the cluster, and wait for those of all warps.
    __device__ __forceinline__ void meet(int sender, const float* own)
    {
        const int lane = threadIdx.x % WARP;
        if constexpr (CLUSTER == 1) {
            UNROLL_ALL
            for (int i = 0; i < NUMBERS; ++i)
                if (lane == 0) number[sender][i] = own[i];
            __syncthreads();
        } else {
            asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
            if (lane < CLUSTER) send(address(number[sender]), lane, own);
            unsigned is_complete = 0;
            while (!is_complete)
                asm volatile("{ .reg .pred is_complete;\n"
                             "mbarrier.try_wait.parity.shared::cta.b64 is_complete, [%1], 0;\n"
                             "selp.u32 %0, 1, 0, is_complete; }"
                             : "=r"(is_complete) : "r"(address(&arrived)) : "memory");
        }
    }

    __device__ __forceinline__ void send(unsigned place, int block, const float* own)
    {
        unsigned to, barrier;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(place), "r"(block));
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier) : "r"(address(&arrived)), "r"(block));
#define SEND "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
        if constexpr (NUMBERS == 1)
            asm volatile(SEND ".b32 [%0], %1, [%2];" ::"r"(to), "r"(__float_as_uint(own[0])), "r"(barrier) : "memory");
        else if constexpr (NUMBERS == 2)
            asm volatile(SEND ".v2.b32 [%0], {%1, %2}, [%3];" ::"r"(to), "r"(__float_as_uint(own[0])),
                         "r"(__float_as_uint(own[1])), "r"(barrier) : "memory");
        else
            asm volatile(SEND ".v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to), "r"(__float_as_uint(own[0])),
                         "r"(__float_as_uint(own[1])), "r"(__float_as_uint(own[2])), "r"(0), "r"(barrier) : "memory");
    }
};

// The sums of a row, joined: what is subtracted from each element, and by what the difference is multiplied.
struct Sums {
    float shift, scale;
};

DEVICE Sums join(const Exchange& exchange, int columns, float eps)
{
    constexpr int COUNT = CEIL_DIV(SENDERS, WARP);
    float number[COUNT][NUMBERS];
    UNROLL_ALL
    for (int k = 0; k < COUNT; ++k) {
        const int sender = threadIdx.x % WARP + k * WARP;
        UNROLL_ALL
        for (int i = 0; i < NUMBERS; ++i)
            number[k][i] = sender < SENDERS ? exchange.number[sender][i] : HAS_POWERS && i == 0 ? LEAST : 0.0f;
    }
    float shift = HAS_POWERS ? LEAST : 0.0f, sum = 0.0f;
#if HAS_POWERS
    UNROLL_ALL
    for (int k = 0; k < COUNT; ++k) shift = MAX(shift, number[k][0]);
    shift = WARP_MAX(shift);
    UNROLL_ALL
    for (int k = 0; k < COUNT; ++k) sum += number[k][1] * power(number[k][0] - shift);
    return {shift, WARP_SUM(sum)};
#elif FUNCTION_IS(layer_norm)
    UNROLL_ALL
    for (int k = 0; k < COUNT; ++k) shift += number[k][0] * number[k][2];
    shift = WARP_SUM(shift) / columns;
    UNROLL_ALL
    for (int k = 0; k < COUNT; ++k) {
        const float apart = number[k][2] > 0.0f ? number[k][0] - shift : 0.0f;
        sum += number[k][1] + number[k][2] * apart * apart;
    }
#else
    UNROLL_ALL
    for (int k = 0; k < COUNT; ++k) sum += number[k][0];
#endif
    return {shift, __frsqrt_rn(WARP_SUM(sum) / columns + eps)};
}

// ---------------------------------------------------------------- the kernel

// Grid: CLUSTER blocks for each row. columns < (CLUSTER * THREADS * PIECES + 1) * EACH.
extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(THREADS, MIN_BLOCKS)
long_rows(const TYPE* x,
#if VECTORS > 0
          const TYPE* __restrict__ weight,
#endif
#if FUNCTION_IS(layer_norm)
          const TYPE* __restrict__ bias,
#endif
#if HAS_LOSS
          const int* __restrict__ target, float* __restrict__ loss,
#endif
#if HAS_RESULT
          TYPE* y,
#endif
#if HAS_RESIDUAL
          TYPE* residual,
#endif
          int columns
#if VECTORS > 0
          , float eps
#endif
)
{
    __shared__ Exchange exchange;
    exchange.begin();
#if VECTORS == 0
    constexpr float eps = 0.0f;
#endif
    const int row = blockIdx.x / CLUSTER, rank = blockIdx.x % CLUSTER, thread = threadIdx.x;
    const long long begin = (long long)row * columns;
    x += begin;

    // Elements in front of the first piece, and pieces, of the row; and this thread's.
    const int head = (0u - (unsigned)((size_t)x / TYPE_BYTES)) % EACH;
    const int count = MAX(0, columns / EACH - (head > 0));
    const int share = CEIL_DIV(CEIL_DIV(count, CLUSTER), 8) * 8;  // lines of the caches
    const int first = rank * share + thread, left = MIN(share - thread, count - first);
    const bool has_single = rank == 0 && thread < columns - count * EACH;
    const int single_at = thread < head ? thread : thread + count * EACH;
    const int at = head + first * EACH;
    constexpr int STEP = THREADS * EACH;  // from a piece to the thread's next one

    // All that is read is asked for before any of it is waited for.
    Piece piece[PIECES];
    UNROLL_ALL
    for (int i = 0; i < PIECES; ++i) {
        piece[i] = {NOTHING, NOTHING, NOTHING, NOTHING};
        load_once(piece[i], x + at + i * STEP, i * THREADS < left);
    }
    float single = has_single ? WIDEN(x[single_at]) : HAS_POWERS ? -INFINITY : 0.0f;
#if HAS_RESIDUAL
    residual += begin;
    Piece other[PIECES];
    UNROLL_ALL
    for (int i = 0; i < PIECES; ++i) {
        other[i] = {};
        load_once(other[i], residual + at + i * STEP, i * THREADS < left);
    }
    if (has_single) single += WIDEN(residual[single_at]);
#endif
    Pair weights[EARLY ? PIECES : 1], biases[EARLY ? PIECES : 1];
    float factor = 1.0f, addend = 0.0f;  // of the single element
#if VECTORS > 0
    if constexpr (EARLY) {
        UNROLL_ALL
        for (int i = 0; i < PIECES; ++i)
            weights[i] = load_pair(weight + at - head + i * STEP, head, i * THREADS < left);
    }
    if (EARLY && has_single) factor = WIDEN(__ldg(weight + single_at));
#endif
#if VECTORS > 1
    if constexpr (EARLY) {
        UNROLL_ALL
        for (int i = 0; i < PIECES; ++i)
            biases[i] = load_pair(bias + at - head + i * STEP, head, i * THREADS < left);
    }
    if (EARLY && has_single) addend = WIDEN(__ldg(bias + single_at));
#endif
#if HAS_LOSS
    const int right = target[row];
    const float at_target = rank == 0 && thread == 0 ? WIDEN(x[right]) : 0.0f;
#endif

    Kept kept[PIECES];
    UNROLL_ALL
    for (int i = 0; i < PIECES; ++i) {
#if HAS_RESIDUAL
        float values[EACH], others[EACH];
        widen(piece[i], values);
        widen(other[i], others);
        UNROLL_ALL
        for (int e = 0; e < EACH; ++e) kept[i].word[e] = __float_as_uint(values[e] += others[e]);
        store(residual + at + i * STEP, narrow(values), i * THREADS < left);
#else
        UNROLL_ALL
        for (int j = 0; j < 4; ++j) kept[i].word[j] = piece[i].word[j];
#endif
    }
#if HAS_RESIDUAL
    if (has_single) store_single(residual + single_at, single);
#endif

    // The sums of this warp.
    float own[NUMBERS] = {};
#if HAS_POWERS
    own[0] = MAX(LEAST, single);
    UNROLL_ALL
    for (int i = 0; i < PIECES; ++i) {
        float values[EACH];
        read(kept[i], values);
        UNROLL_ALL
        for (int e = 0; e < EACH; ++e) own[0] = MAX(own[0], values[e]);
    }
    own[0] = WARP_MAX(own[0]);
    renew(kept, gridDim.y - 1);
    const float single_power = power(single - own[0]);
    own[1] = single_power;
    UNROLL_ALL
    for (int i = 0; i < PIECES; ++i) {
        float values[EACH];
        read(kept[i], values);
        UNROLL_ALL
        for (int e = 0; e < EACH; ++e) {
            values[e] = power(values[e] - own[0]);
            if (TYPE_IS(float32)) kept[i].word[e] = __float_as_uint(values[e]);
        }
        own[1] += sum_by_halves(values, EACH);
    }
    own[1] = WARP_SUM(own[1]);
#elif FUNCTION_IS(layer_norm)
    int number = has_single;
    own[0] = single;
    UNROLL_ALL
    for (int i = 0; i < PIECES; ++i) {
        float values[EACH];
        read(kept[i], values);
        own[0] += sum_by_halves(values, EACH);
        number += i * THREADS < left ? EACH : 0;
    }
    number = __reduce_add_sync(0xffffffffu, number);
    own[2] = (float)number;
    own[0] = WARP_SUM(own[0]) / MAX(1.0f, own[2]);
    renew(kept, gridDim.y - 1);
    own[1] = has_single ? (single - own[0]) * (single - own[0]) : 0.0f;
    UNROLL_ALL
    for (int i = 0; i < PIECES; ++i) {
        float values[EACH];
        read(kept[i], values);
        UNROLL_ALL
        for (int e = 0; e < EACH; ++e) values[e] = (values[e] - own[0]) * (values[e] - own[0]);
        own[1] += i * THREADS < left ? sum_by_halves(values, EACH) : 0.0f;
    }
    own[1] = WARP_SUM(own[1]);
#else
    own[0] = single * single;
    UNROLL_ALL
    for (int i = 0; i < PIECES; ++i) {
        float values[EACH];
        read(kept[i], values);
        UNROLL_ALL
        for (int e = 0; e < EACH; ++e) values[e] *= values[e];
        own[0] += sum_by_halves(values, EACH);
    }
    own[0] = WARP_SUM(own[0]);
#endif
    renew(kept, gridDim.z - 1);
    exchange.meet(rank * WARPS + thread / WARP, own);
    const Sums sums = join(exchange, columns, eps);
#if HAS_LOSS
    if (rank == 0 && thread == 0) loss[row] = logf(sums.scale) + sums.shift - at_target;
#endif

#if HAS_RESULT
    y += begin;
#if HAS_POWERS
    const float inverse = 1.0f / sums.scale, scale = TYPE_IS(float32) ? power(own[0] - sums.shift) * inverse : inverse;
#endif
    UNROLL_ALL
    for (int i = 0; i < PIECES; ++i) {
        const bool is_there = i * THREADS < left;
        float values[EACH];
        read(kept[i], values);
#if HAS_POWERS
        UNROLL_ALL
        for (int e = 0; e < EACH; ++e)
            values[e] = (TYPE_IS(float32) ? values[e] : power(values[e] - sums.shift)) * scale;
#if HAS_LOSS
        const int place = right - (at + i * STEP);
        if (0 <= place && place < EACH) {
            UNROLL_ALL
            for (int e = 0; e < EACH; ++e) values[e] -= e == place ? 1.0f : 0.0f;
        }
#endif
#else
        float factors[EACH];
        if constexpr (!EARLY) weights[0] = load_pair(weight + at - head + i * STEP, head, is_there);
        widen(join(weights[EARLY ? i : 0], head), factors);
        UNROLL_ALL
        for (int e = 0; e < EACH; ++e) values[e] = (values[e] - sums.shift) * sums.scale * factors[e];
#if VECTORS > 1
        float addends[EACH];
        if constexpr (!EARLY) biases[0] = load_pair(bias + at - head + i * STEP, head, is_there);
        widen(join(biases[EARLY ? i : 0], head), addends);
        UNROLL_ALL
        for (int e = 0; e < EACH; ++e) values[e] += addends[e];
#endif
#endif
        store(y + at + i * STEP, narrow(values), is_there);
    }
    if (has_single) {
#if HAS_POWERS
        single = (TYPE_IS(float32) ? single_power : power(single - sums.shift)) * scale;
#if HAS_LOSS
        if (right == single_at) single -= 1.0f;
#endif
#else
        if (!EARLY) factor = WIDEN(__ldg(weight + single_at));
#if VECTORS > 1
        if (!EARLY) addend = WIDEN(__ldg(bias + single_at));
#endif
        single = (single - sums.shift) * sums.scale * factor + addend;
#endif
        store_single(y + single_at, single);
    }
#endif
}
