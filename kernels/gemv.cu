/* y = alpha A x + beta y in float32, A row-major m x n, any size: knows how to cut A into work so that the
   memory never waits, in the common subset of CUDA C++ and OpenCL C.

   Dimensions to 2^30. When beta is 0, y is never read and may hold anything.

   The plan. Every element of A is used once, in one multiply-add, so the only limit worth reaching is the
   time to read A. What has to be got right is that enough loads are under way at every moment, for rows of
   any length, and that x, which every row wants again, costs little beside A.

     group   LANES threads walk along ROWS rows at once. Each thread has ROWS * UNROLL loads of VEC floats
             under way before the first multiply-add, and uses what it read of x for ROWS rows. A row
             of 16 floats wants LANES=4, so that one load of a warp covers 8 rows; a row of 16384 wants
             a warp or a block.
     block   BLOCK / LANES groups side by side. Its groups may share x in shared memory (X_SHARED).
     grid    a block for every BLOCK / LANES * ROWS rows, or a fixed number that walk over them (WAVES).
             Few long rows are too few groups: then SPLIT blocks share a row, and FINISH adds up.

   The ladder, from the bottom:
     a few threads per row, one load each      LANES=4    VEC=1 UNROLL=1 ROWS=4
     neighbouring threads, neighbouring words  LANES=32
     16 bytes per load                         VEC=4
     more loads in flight                      UNROLL=4 and more
     x from registers for several rows         ROWS=2 and more
     few long rows on the whole device         SPLIT=8 and more

   VIEW is the same for arrays that are part of others: rows of A lie lda floats apart, elements of x and y incx
   and incy. gemv_columns.cu is for an A that is stored by columns. */

#ifndef BLOCK
#define BLOCK 256 /* threads per block */
#endif
#ifndef LANES
#define LANES 32 /* threads that share a row */
#endif
#ifndef ROWS
#define ROWS 1 /* rows that they walk along at once */
#endif
#ifndef VEC
#define VEC 4 /* floats per load: 1, 2 or 4 */
#endif
#ifndef UNROLL
#define UNROLL 4 /* loads in flight per thread and row */
#endif
#ifndef LOAD
#define LOAD_plain 0
#define LOAD_stream 1 /* tell the caches that nobody reads A a second time */
#define LOAD_bypass 2 /* past the L1 cache, 256 bytes at a time into the L2 cache (CUDA only) */
#define LOAD LOAD_plain
#endif
#ifndef X_SHARED
#define X_SHARED 0 /* floats of x in shared memory at a time; 0: read x through the caches */
#endif
#ifndef WAVES
#define WAVES 0 /* above 0: there may be fewer blocks than tiles of rows */
#endif
#ifndef SPLIT
#define SPLIT 1 /* above 1: several blocks may share a row */
#endif
#ifndef FINISH
#define FINISH_ticket 0 /* their sums, added up by whichever block ends last; tickets zeroed before */
#define FINISH_kernel 1 /* by a launch of gemv_finish */
#define FINISH_atomic 2 /* onto beta y, which a launch of gemv_scale made before */
#define FINISH FINISH_ticket
#endif
#ifndef VIEW
#define VIEW 0
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1 /* blocks that must fit on one multiprocessor (CUDA only) */
#endif
#ifndef WARP
#ifdef __OPENCL_VERSION__
#define WARP 16 /* threads that run in step: the device's choice, 32 on CUDA */
#else
#define WARP 32
#endif
#endif

#include "dialect.h"

#define GROUPS (BLOCK / LANES)      /* groups of a block */
#define TILE_ROWS (GROUPS * ROWS)   /* rows of a block */
#define STEP (LANES * VEC)          /* columns that one load of each lane covers */
#define TILE (STEP * UNROLL)        /* columns that a group takes at a time */
#define ITEMS (UNROLL * VEC)        /* of which one lane takes so many */
#define CHAINS (ROWS < 4 ? VEC : 1) /* independent chains of additions per row */

#if BLOCK % WARP || BLOCK % LANES || (LANES & (LANES - 1))
#error "BLOCK must be whole warps and whole groups, LANES a power of two"
#endif
#if ROWS > LANES || (LANES > WARP && ROWS > WARP)
#error "every row of a group needs a lane that stores it"
#endif
#if X_SHARED && X_SHARED % TILE
#error "the part of x in shared memory must be whole tiles"
#endif
#if SPLIT > 1 && WAVES
#error "rows that are split are too few to walk over"
#endif

#if VIEW
#define VIEW_PARAMETERS , i64 lda, i64 incx, i64 incy
#define INCY_PARAMETER , i64 incy
typedef i64 pitch; /* in floats */
#else
#define VIEW_PARAMETERS
#define INCY_PARAMETER
typedef int pitch;
#endif

#if LOAD == LOAD_bypass
/* Not volatile: the compiler may move these like any load of constant memory. */
#define BYPASS "ld.global.nc.L1::no_allocate.L2::256B"
DEVICE float bypass(const float* p)
{
    float v;
    asm(BYPASS ".f32 %0, [%1];" : "=f"(v) : "l"(__cvta_generic_to_global(p)));
    return v;
}
DEVICE float2 bypass2(const float* p)
{
    float2 v;
    asm(BYPASS ".v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(__cvta_generic_to_global(p)));
    return v;
}
DEVICE float4 bypass4(const float* p)
{
    float4 v;
    asm(BYPASS ".v4.f32 {%0, %1, %2, %3}, [%4];"
        : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
        : "l"(__cvta_generic_to_global(p)));
    return v;
}
#define GET(p) bypass(p)
#define GET2(p) bypass2(p)
#define GET4(p) bypass4(p)
#elif LOAD == LOAD_stream
#define GET(p) LD_STREAM(p)
#define GET2(p) LD2_STREAM(p)
#define GET4(p) LD4_STREAM(p)
#else
#define GET(p) (*(p))
#define GET2(p) LD2(p)
#define GET4(p) LD4(p)
#endif

/* Where a block reads x from: the caches, or its own copy. */
#if X_SHARED
#define X_PTR SHARED_PTR
#define X2(p) LDS2(p)
#define X4(p) LDS4(p)
#else
#define X_PTR GLOBAL
#define X2(p) LD2(p)
#define X4(p) LD4(p)
#endif

/* `width` floats of A in one load, or zeros. */
DEVICE void load_a(float* to, GLOBAL const float* from, int width, int inside)
{
    if (width == 4) {
        const float4 v = inside ? GET4(from) : MAKE4(0.0f, 0.0f, 0.0f, 0.0f);
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else if (width == 2) {
        const float2 v = inside ? GET2(from) : MAKE2(0.0f, 0.0f);
        to[0] = v.x, to[1] = v.y;
    } else {
        to[0] = inside ? GET(from) : 0.0f;
    }
}

DEVICE void store(GLOBAL float* y, float sum, float alpha, float beta)
{
    *y = beta == 0.0f ? alpha * sum : FMA(beta, *y, alpha * sum);
}

/* `width` floats of x. */
DEVICE void load_x(float* to, X_PTR const float* from, int width, int inside)
{
    if (width == 4) {
        const float4 v = inside ? X4(from) : MAKE4(0.0f, 0.0f, 0.0f, 0.0f);
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else if (width == 2) {
        const float2 v = inside ? X2(from) : MAKE2(0.0f, 0.0f);
        to[0] = v.x, to[1] = v.y;
    } else {
        to[0] = inside ? *from : 0.0f;
    }
}

/* sums += A x over one tile of columns. `rows` and `x` stand at the lane's first item; a load on, the next
   `width` floats are LANES times as far. Of the columns from there, `left` exist; `full` says that all do,
   and saves asking. Elements of x are `incx` apart, 1 where `width` is more. */
DEVICE void add_tile(float* sums, GLOBAL const float* const* rows, X_PTR const float* x, pitch incx, int width,
                     int full, int left)
{
    float a_items[ROWS * ITEMS], x_items[ITEMS];
    UNROLL_ALL
    for (int i = 0; i < ITEMS; i += width) {
        UNROLL_ALL
        for (int r = 0; r < ROWS; ++r)
            load_a(a_items + r * ITEMS + i, rows[r] + i * LANES, width, full || i * LANES < left);
    }
    UNROLL_ALL
    for (int i = 0; i < ITEMS; i += width) load_x(x_items + i, x + i * LANES * incx, width, full || i * LANES < left);
    UNROLL_ALL
    for (int i = 0; i < ITEMS; ++i) {
        UNROLL_ALL
        for (int r = 0; r < ROWS; ++r) {
            const int chain = r * CHAINS + i % CHAINS;
            sums[chain] = FMA(a_items[r * ITEMS + i], x_items[i], sums[chain]);
        }
    }
}

/* sums += A x over `count` columns, of which `row_at` holds the first in each row of A, and `x` stands at it.
   The lane is part of the pointers, so that the loads of a tile differ by constants. */
DEVICE void add_columns(float* sums, GLOBAL const float* a, const i64* row_at, X_PTR const float* x,
                        pitch incx, int width, int count)
{
    const int lane_at = TID(0) % LANES * width;
    GLOBAL const float* rows[ROWS];
    UNROLL_ALL
    for (int r = 0; r < ROWS; ++r) rows[r] = a + row_at[r] + lane_at;
    x += lane_at * incx;

    int left = count;
    UNROLL_BY(1)
    for (; left >= TILE; left -= TILE) {
        add_tile(sums, rows, x, incx, width, 1, TILE);
        UNROLL_ALL
        for (int r = 0; r < ROWS; ++r) rows[r] += TILE;
        x += TILE * incx;
    }
    if (left > 0) add_tile(sums, rows, x, incx, width, 0, left - lane_at);
}

/* The sums of a group's rows over its lanes: lane r gets row r's, other lanes anything. All threads of the
   block must come here. `shared` holds ROWS floats for each warp. */
DEVICE float group_sum(float* sums, SHARED_PTR float* shared)
{
    const int lane = TID(0) % LANES;
    float sum = 0.0f;
    UNROLL_ALL
    for (int r = 0; r < ROWS; ++r) {
        UNROLL_ALL
        for (int distance = (LANES < WARP ? LANES : WARP) / 2; distance > 0; distance /= 2)
            sums[r] += SHFL_XOR(sums[r], distance);
        if (lane % WARP == r) sum = sums[r];
    }
#if LANES > WARP
    /* The first ROWS lanes of each warp hold its sums; the group's first warp adds up all of them. */
    const int in_warp = TID(0) % WARP;
    SYNC(); /* nobody reads an earlier tile's sums any more */
    if (in_warp < ROWS) shared[TID(0) / WARP * ROWS + in_warp] = sum;
    SYNC();
    if (lane < ROWS) {
        sum = 0.0f;
        UNROLL_ALL
        for (int warp = 0; warp < LANES / WARP; ++warp)
            sum += shared[(TID(0) / LANES * (LANES / WARP) + warp) * ROWS + lane];
    }
#endif
    return sum;
}

/* y for the rows of one tile, of which `splits` parts are there: part s of row i at partial[i * splits + s].
   volatile: other blocks of the same launch may have written them, so they must not have been read earlier. */
DEVICE void finish_rows(volatile GLOBAL const float* partial, GLOBAL float* y, pitch incy, float alpha,
                        float beta, int m, int splits, int first, SHARED_PTR float* shared)
{
    const int lane = TID(0) % LANES;
    float sums[ROWS];
    UNROLL_ALL
    for (int r = 0; r < ROWS; ++r) {
        const int row = first + r * GROUPS;
        sums[r] = 0.0f;
        for (int s = lane; s < splits && row < m; s += LANES) sums[r] += partial[(i64)row * splits + s];
    }
    const float sum = group_sum(sums, shared);
    const int row = first + lane * GROUPS;
    if (lane < ROWS && row < m) store(y + row * incy, sum, alpha, beta);
}

/* One part of the rows of one tile: columns begin .. end. */
DEVICE float tile_sum(GLOBAL const float* a, GLOBAL const float* x, pitch lda, pitch incx, int first, int begin,
                      int end, int m, int n, SHARED_PTR float* shared, SHARED_PTR float* x_part)
{
    float sums[ROWS * CHAINS];
    i64 row_at[ROWS];
    UNROLL_ALL
    for (int i = 0; i < ROWS * CHAINS; ++i) sums[i] = 0.0f;
    UNROLL_ALL
    for (int r = 0; r < ROWS; ++r) {
        /* Beyond the last row a group reads that one again, which costs less than asking at every load. */
        const int row = first + r * GROUPS;
        row_at[r] = (i64)(row < m ? row : m - 1) * lda;
    }

    /* Wide loads need every row of A to start at a multiple of VEC floats; if not, a thread loads as many
       single floats instead, from as many places. */
    const int wide = VEC > 1 && n % VEC == 0 && (!VIEW || (lda % VEC == 0 && incx == 1)) &&
                     ((size_t)a | (size_t)x) % (VEC * sizeof(float)) == 0;

#if X_SHARED
    for (int col = begin; col < end; col += X_SHARED) {
        const int count = end - col < X_SHARED ? end - col : X_SHARED;
        SYNC(); /* nobody reads the part before it any more */
        for (int i = TID(0); i < count; i += BLOCK) x_part[i] = x[(col + i) * incx];
        SYNC();
        if (wide) {
            add_columns(sums, a + col, row_at, x_part, 1, VEC, count);
        } else {
            add_columns(sums, a + col, row_at, x_part, 1, 1, count);
        }
    }
#else
    if (wide) {
        add_columns(sums, a + begin, row_at, x + begin, 1, VEC, end - begin);
    } else {
        add_columns(sums, a + begin, row_at, x + begin * incx, incx, 1, end - begin);
    }
#endif

    UNROLL_ALL
    for (int r = 0; r < ROWS; ++r) {
        UNROLL_ALL
        for (int i = 0; i < CHAINS; ++i) sums[r] = i == 0 ? sums[r * CHAINS] : sums[r] + sums[r * CHAINS + i];
    }
    return group_sum(sums, shared);
}

/* Without a word on MIN_BLOCKS the compiler aims at full occupancy and fits the kernel into 32 registers,
   by waiting for each load before it issues the next: ROWS and UNROLL would have no effect. */
KERNEL(BLOCK, 1, MIN_BLOCKS)
gemv(GLOBAL const float* RESTRICT a, GLOBAL const float* RESTRICT x, GLOBAL float* y, float alpha, float beta,
     int m, int n, GLOBAL float* partial, GLOBAL unsigned* tickets, int splits VIEW_PARAMETERS)
{
#if !VIEW
    const pitch lda = n, incx = 1, incy = 1;
#endif
    SHARED float shared[BLOCK / WARP * ROWS];
    SHARED ALIGN16 float x_part[X_SHARED ? X_SHARED : 4];
    const int lane = TID(0) % LANES, group = TID(0) / LANES;

#if SPLIT == 1
#if WAVES
    for (int tile = BID(0); tile < CEIL_DIV(m, TILE_ROWS); tile += GRID(0))
#else
    const int tile = BID(0);
#endif
    {
        /* Row r of the group is GROUPS below row r - 1: one load of the block reads neighbouring rows. */
        const int first = tile * TILE_ROWS + group;
        const float sum = tile_sum(a, x, lda, incx, first, 0, n, m, n, shared, x_part);
        const int row = first + lane * GROUPS;
        if (lane < ROWS && row < m) store(y + row * incy, sum, alpha, beta);
    }

#else
    /* Each part is whole steps of columns; the last ones of a row may have fewer, or none. */
    const int tile = BID(0) / splits, part = BID(0) % splits;
    const int first = tile * TILE_ROWS + group;
    const int columns = CEIL_DIV(CEIL_DIV(n, splits), STEP) * STEP;
    const int begin = part * columns < n ? part * columns : n;
    const int end = n - begin < columns ? n : begin + columns;
    const float sum = tile_sum(a, x, lda, incx, first, begin, end, m, n, shared, x_part);
    const int row = first + lane * GROUPS;
    const int stores = lane < ROWS && row < m;

#if FINISH == FINISH_atomic
    if (stores) ATOMIC_ADD(y + row * incy, alpha * sum);
#else
    if (stores) partial[(i64)row * splits + part] = sum;
#endif

#if FINISH == FINISH_ticket
    /* Whoever draws the last ticket of a tile knows that all parts of its rows are there, provided that each
       was made visible to the device before its block drew, and is read only after the last draw: a fence
       on either side. The barriers extend both to the other threads of the block. */
    SHARED int is_last;
    SYNC_GLOBAL();
    if (TID(0) == 0) {
        FENCE_DEVICE();
        is_last = ATOMIC_INC(tickets + tile) == (unsigned)splits - 1;
        FENCE_DEVICE();
    }
    SYNC_GLOBAL();
    if (is_last) {
        finish_rows(partial, y, incy, alpha, beta, m, splits, first, shared);
        if (TID(0) == 0) tickets[tile] = 0; /* a caller who keeps them need not zero them again */
    }
#endif
#endif
}

/* The second launch of FINISH=kernel: a block for each tile of rows. */
KERNEL(BLOCK, 1, 1)
gemv_finish(GLOBAL const float* partial, GLOBAL float* y, float alpha, float beta, int m, int splits INCY_PARAMETER)
{
#if !VIEW
    const pitch incy = 1;
#endif
    SHARED float shared[BLOCK / WARP * ROWS];
    finish_rows(partial, y, incy, alpha, beta, m, splits, BID(0) * TILE_ROWS + TID(0) / LANES, shared);
}

/* The first launch of FINISH=atomic: y = beta y. */
KERNEL(BLOCK, 1, 1)
gemv_scale(GLOBAL float* y, float beta, int m INCY_PARAMETER)
{
#if !VIEW
    const pitch incy = 1;
#endif
    const int row = BID(0) * BLOCK + TID(0);
    if (row < m) y[row * incy] = beta == 0.0f ? 0.0f : beta * y[row * incy];
}
