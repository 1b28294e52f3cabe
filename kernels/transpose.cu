/* out (n x m) = the transpose of x (m x n) in float32, both row-major, any size: knows three ways to turn
   rows into columns, in the common subset of CUDA C++ and OpenCL C.

   The plan. Nothing is computed, so the limit is a copy of the same matrix. What makes it harder than a
   copy: memory moves in sectors of 32 bytes, and whatever runs along a row of x runs down a column of
   out. One side is always read or written in the wrong direction, unless the turn is made in between.

     naive      one thread, one element. The warp's BLOCK_X neighbours read one row of x and write BLOCK_X
                rows of out, BLOCK_Y elements of each. 32 x 8 reads whole lines and writes whole sectors,
                8 x 32 the reverse; no shape does both, so caches have to collect what belongs together.
     register   one thread, VEC x VEC elements, turned in registers: every access on either side is a
                vector, but neighbouring threads still write to different rows.
     shared     a block turns a tile of TILE_Y x TILE_X in shared memory: both sides are touched row by
                row, by threads side by side. 64 x 64 means 256 bytes in one piece on either side, which is
                what the memory likes; 32 x 32 stays behind whatever else is done.

   Shared memory has 32 banks, one float wide, and one side of the turn walks down a column of the tile: if
   rows are a multiple of 32 floats apart, that is one bank over and over (LAYOUT=plain). Either rows are
   made longer (padded), or each row has its vectors in an order of its own (xor).

   STORE=bulk hands the rows of the turned tile to the copy engine, one instruction for a row. A row of out then
   leaves in one piece, where vectors of many threads leave in the order in which their warps come by.

   Vectors need a row length that VEC divides, and an aligned matrix. That is found out at run time, for
   either side alone; the other way goes element by element, and as coalesced.

   VIEW is the same for matrices that are part of others: their rows are ldx and ldo floats apart, and there
   may be several, stride_x and stride_out floats apart. The tiles of all are numbered one after another.

   Blocks are numbered along one grid dimension, because the others stop at 65535 blocks; ORDER says which
   tile a block takes. */

#ifndef ALG
#define ALG_naive 0
#define ALG_register 1
#define ALG_shared 2
#define ALG ALG_shared
#endif

/* ALG naive and register */
#ifndef BLOCK_X
#define BLOCK_X 32 /* threads along a row of x */
#endif
#ifndef BLOCK_Y
#define BLOCK_Y 8 /* threads along a column of x */
#endif

/* ALG shared */
#ifndef TILE_X
#define TILE_X 64 /* columns of x per block */
#endif
#ifndef TILE_Y
#define TILE_Y 64 /* rows of x per block */
#endif
#ifndef BLOCK
#define BLOCK 128 /* threads per block; each moves TILE_X * TILE_Y / BLOCK floats, all in flight at once */
#endif
#ifndef LAYOUT
#define LAYOUT_plain 0
#define LAYOUT_padded 1 /* VEC floats between the rows of the tile */
#define LAYOUT_xor 2    /* row c has vector v in place v ^ c */
#define LAYOUT LAYOUT_xor
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1 /* blocks that must fit on one multiprocessor (CUDA only) */
#endif

/* all but naive */
#ifndef VEC
#define VEC 4 /* floats per access: 1, 2 or 4 */
#endif

#ifndef ORDER
#define ORDER_row 0      /* along the rows of x */
#define ORDER_column 1   /* along its columns, which are the rows of out */
#define ORDER_diagonal 2 /* along its diagonals: neighbours touch different rows and columns */
#define ORDER_group 3    /* down GROUP rows of tiles, then the next column: compact on both sides */
#define ORDER ORDER_row
#endif
#ifndef GROUP
#define GROUP 8
#endif
#ifndef VIEW
#define VIEW 0
#endif
#ifndef LOAD
#define LOAD_plain 0
#define LOAD_stream 1
#define LOAD_bypass 2
#define LOAD LOAD_plain
#endif
#ifndef STORE
#define STORE_plain 0
#define STORE_stream 1
#define STORE_bulk 2 /* shared, CUDA from compute capability 9.0 on: rows of the tile as asynchronous copies */
#define STORE STORE_plain
#endif

#include "vectors.h"

#define BULK (ALG == ALG_shared && STORE == STORE_bulk)

#if ALG != ALG_shared
#undef TILE_X
#undef TILE_Y
#define TILE_X (BLOCK_X * VEC)
#define TILE_Y (BLOCK_Y * VEC)
#endif

#if ALG == ALG_naive && VEC != 1
#error "ALG=naive moves single floats: VEC=1"
#endif

#if VIEW
#define VIEW_PARAMETERS , i64 ldx, i64 ldo, i64 stride_x, i64 stride_out
#define TO_MATRIX(number) \
    const i64 matrix = number;        \
    x += matrix * stride_x;           \
    out += matrix * stride_out
typedef i64 pitch; /* floats from one row to the next */
#else
#define VIEW_PARAMETERS
#define TO_MATRIX(number) \
    number;            \
    const int ldx = n, ldo = m
typedef int pitch;
#endif

/* Whether rows of `length` floats are whole vectors; `matrix` is as aligned as each of them. */
#define IN_VECTORS(matrix, length, ld) ((length) % VEC == 0 && (!VIEW || (ld) % VEC == 0) && IS_ALIGNED(matrix))

/* The first row and column of this block's tile, and its matrix. */
DEVICE int find_tile(int m, int n, int* row0, int* col0)
{
    const int rows = CEIL_DIV(m, TILE_Y), cols = CEIL_DIV(n, TILE_X); /* of tiles */
    const int block = VIEW ? BID(0) % (rows * cols) : BID(0);
#if ORDER == ORDER_row
    const int row = block / cols, col = block % cols;
#elif ORDER == ORDER_column
    const int row = block % rows, col = block / rows;
#elif ORDER == ORDER_diagonal
    const int row = block / cols, col = (int)(((i64)row + block % cols) % cols);
#else
    const int first = (int)((i64)block / ((i64)GROUP * cols)) * GROUP; /* row of tiles of this group */
    const int height = rows - first < GROUP ? rows - first : GROUP;
    const int inside = (int)(block - (i64)first * cols);
    const int row = first + inside % height, col = inside / height;
#endif
    *row0 = row * TILE_Y;
    *col0 = col * TILE_X;
    return VIEW ? BID(0) / (rows * cols) : 0;
}

#if ALG != ALG_shared

/* With VEC=1 this is the naive transpose. */
KERNEL(BLOCK_X, BLOCK_Y, MIN_BLOCKS)
transpose(GLOBAL const float* RESTRICT x, GLOBAL float* RESTRICT out, int m, int n VIEW_PARAMETERS)
{
    int row, col;
    TO_MATRIX(find_tile(m, n, &row, &col));
    row += TID(1) * VEC;
    col += TID(0) * VEC;
    if (row >= m || col >= n) return;

    GLOBAL const float* from = x + (i64)row * ldx + col;
    GLOBAL float* to = out + (i64)col * ldo + row;
    if (VEC > 1 && !(IN_VECTORS(x, n, ldx) && IN_VECTORS(out, m, ldo))) {
        for (int j = 0; j < VEC && col + j < n; ++j)
            for (int i = 0; i < VEC && row + i < m; ++i) to[(i64)j * ldo + i] = from[(i64)i * ldx + j];
        return;
    }
    float block[VEC][VEC], turned[VEC];
    UNROLL_ALL
    for (int i = 0; i < VEC; ++i) load_vector(block[i], from + (i64)i * ldx, 1);
    UNROLL_ALL
    for (int j = 0; j < VEC; ++j) {
        UNROLL_ALL
        for (int i = 0; i < VEC; ++i) turned[i] = block[i][j];
        store_vector(to + (i64)j * ldo, turned);
    }
}

#else

#define FLOATS (TILE_X * TILE_Y / BLOCK) /* that a thread moves */
#define PIECES_X (TILE_X / VEC)          /* vectors in a row of the tile of x */
#define PIECES_Y (TILE_Y / VEC)          /* vectors in a row of the tile of out */
#define PITCH (TILE_Y + (LAYOUT == LAYOUT_padded ? VEC : 0))

#if FLOATS % (VEC * VEC) || BLOCK % TILE_X || BLOCK % TILE_Y
#error "a thread must have whole squares of VEC x VEC, and a block whole rows of the tile on either side"
#endif
#if BULK && (VEC != 4 || LAYOUT == LAYOUT_xor)
#error "STORE=bulk needs VEC=4, and the rows of the tile in order"
#endif

/* Where the tile, which is kept turned, has the element of x's row and column. A vector of VEC rows
   stays together. Unsigned, here and below: division by a power of two is then a shift. */
DEVICE unsigned place(unsigned row, unsigned col)
{
#if LAYOUT == LAYOUT_xor
    return col * PITCH + ((row / VEC) ^ (col / VEC % PIECES_Y)) * VEC + row % VEC;
#else
    return col * PITCH + row;
#endif
}

DEVICE void write_tile(SHARED_PTR float* to, const float* from)
{
#if VEC == 4
    STS4(to, MAKE4(from[0], from[1], from[2], from[3]));
#elif VEC == 2
    *(SHARED_PTR float2*)to = MAKE2(from[0], from[1]);
#else
    *to = *from;
#endif
}

DEVICE void read_tile(float* to, SHARED_PTR const float* from)
{
#if VEC == 4
    const float4 v = LDS4(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
#elif VEC == 2
    const float2 v = LDS2(from);
    to[0] = v.x, to[1] = v.y;
#else
    *to = *from;
#endif
}

/* In vectors: a thread loads squares of VEC x VEC and turns them in registers, so that it writes vectors
   to the tile too. All loads come before the first use. `x` is the tile's corner, `rows` and `cols` what
   is left of the matrix from there. */
DEVICE void load_squares(SHARED_PTR float* tile, GLOBAL const float* x, pitch ldx, int rows, int cols)
{
    const unsigned tid = TID(0), row = tid / PIECES_X * VEC, col = tid % PIECES_X * VEC;
    GLOBAL const float* from = x + (i64)row * ldx + col;
    const int left = (int)col < cols ? rows - (int)row : 0;
    const int step = BLOCK / PIECES_X * VEC; /* rows between a thread's squares */

    float squares[FLOATS / VEC][VEC], turned[VEC];
    UNROLL_ALL
    for (int i = 0; i < FLOATS / VEC; ++i) {
        load_vector(squares[i], from, i / VEC * step + i % VEC < left);
        from += i % VEC < VEC - 1 ? ldx : (i64)(step - VEC + 1) * ldx;
    }
    UNROLL_ALL
    for (int i = 0; i < FLOATS / VEC; i += VEC) {
        UNROLL_ALL
        for (int j = 0; j < VEC; ++j) {
            UNROLL_ALL
            for (int k = 0; k < VEC; ++k) turned[k] = squares[i + k][j];
            write_tile(tile + place(row + i / VEC * step, col + j), turned);
        }
    }
}

#if BULK
/* Whole rows of the tile, each by one instruction. */
DEVICE void store_rows(float* out, const float* tile, pitch ldo, int rows, int cols)
{
    const int bytes = 4 * (rows < TILE_Y ? rows : TILE_Y);
    for (int col = threadIdx.x; col < TILE_X && col < cols; col += BLOCK)
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                         __cvta_generic_to_global(out + (i64)col * ldo)),
                     "r"((unsigned)__cvta_generic_to_shared(tile + col * PITCH)), "r"(bytes)
                     : "memory");
    /* The tile must last until it has been read; nobody waits for what was written. */
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
#else
DEVICE void store_vectors(GLOBAL float* out, SHARED_PTR const float* tile, pitch ldo, int rows, int cols)
{
    const unsigned tid = TID(0), row = tid % PIECES_Y * VEC, col = tid / PIECES_Y;
    GLOBAL float* to = out + (i64)col * ldo + row;
    const int left = (int)row < rows ? cols - (int)col : 0;
    const int step = BLOCK / PIECES_Y;

    float vectors[FLOATS / VEC][VEC];
    UNROLL_ALL
    for (int i = 0; i < FLOATS / VEC; ++i) read_tile(vectors[i], tile + place(row, col + i * step));
    UNROLL_ALL
    for (int i = 0; i < FLOATS / VEC; ++i) {
        if (i * step < left) store_vector(to, vectors[i]);
        to += (i64)step * ldo;
    }
}
#endif

#if VEC > 1
/* Element by element, where rows are no whole vectors. */
DEVICE void load_floats(SHARED_PTR float* tile, GLOBAL const float* x, pitch ldx, int rows, int cols)
{
    const unsigned tid = TID(0), row = tid / TILE_X, col = tid % TILE_X;
    GLOBAL const float* from = x + (i64)row * ldx + col;
    const int left = (int)col < cols ? rows - (int)row : 0;
    const int step = BLOCK / TILE_X;

    float floats[FLOATS];
    UNROLL_ALL
    for (int i = 0; i < FLOATS; ++i) {
        floats[i] = i * step < left ? GET(from) : 0.0f;
        from += (i64)step * ldx;
    }
    UNROLL_ALL
    for (int i = 0; i < FLOATS; ++i) tile[place(row + i * step, col)] = floats[i];
}

DEVICE void store_floats(GLOBAL float* out, SHARED_PTR const float* tile, pitch ldo, int rows, int cols)
{
    const unsigned tid = TID(0), row = tid % TILE_Y, col = tid / TILE_Y;
    GLOBAL float* to = out + (i64)col * ldo + row;
    const int left = (int)row < rows ? cols - (int)col : 0;
    const int step = BLOCK / TILE_Y;

    float floats[FLOATS];
    UNROLL_ALL
    for (int i = 0; i < FLOATS; ++i) floats[i] = tile[place(row, col + i * step)];
    UNROLL_ALL
    for (int i = 0; i < FLOATS; ++i) {
        if (i * step < left) PUT(to, floats[i]);
        to += (i64)step * ldo;
    }
}
#endif

KERNEL(BLOCK, 1, MIN_BLOCKS)
transpose(GLOBAL const float* RESTRICT x, GLOBAL float* RESTRICT out, int m, int n VIEW_PARAMETERS)
{
#ifdef __OPENCL_VERSION__
    SHARED ALIGN16 float tile[TILE_X * PITCH];
#else
    /* Its size comes with the launch: RESIDENT asks for more than the tile needs. */
    extern SHARED ALIGN16 float tile[];
#endif
    int row0, col0;
    TO_MATRIX(find_tile(m, n, &row0, &col0));
    x += (i64)row0 * ldx + col0;
    out += (i64)col0 * ldo + row0;

#if VEC > 1
    /* A tile begins at a multiple of VEC in its row, so its corner is as aligned as the matrix. */
    if (!IN_VECTORS(x, n, ldx))
        load_floats(tile, x, ldx, m - row0, n - col0);
    else
#endif
        load_squares(tile, x, ldx, m - row0, n - col0);

#if BULK
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* copies see what threads wrote */
#endif
    SYNC();

#if VEC > 1
    if (!IN_VECTORS(out, m, ldo))
        store_floats(out, tile, ldo, m - row0, n - col0);
    else
#endif
#if BULK
        store_rows(out, tile, ldo, m - row0, n - col0);
#else
        store_vectors(out, tile, ldo, m - row0, n - col0);
#endif
}

#endif
