/* C (m x n) = A (m x k) B (k x n) in float32, row-major, by the tiles of every tutorial: shows what unrolling and a cap
   on registers do to one loop. A block of TILE x TILE threads has SIDE x SIDE elements a thread; sgemm.cu is the
   product to use.

     UNROLL  0     no pragma, which lets the compiler decide: mostly to unroll all of it
             1 ... as it says
     CAP     0     no bound on registers; else __maxnreg__ (CUDA 12.4), in a head without launch bounds, because
                   compilers ignore -maxrregcount where there are bounds. With SIDE=1 a cap of
                   32 spills nothing; with SIDE=8 caps of 64 and 32 spill the 64 accumulators. CUDA only. */
#ifndef TILE
#define TILE 16 /* threads along each side of a block, and steps of k in shared memory */
#endif
#ifndef SIDE
#define SIDE 1 /* elements along each side of a thread's square */
#endif
#ifndef UNROLL
#define UNROLL 0
#endif
#ifndef CAP
#define CAP 0
#endif

#include "dialect.h"

#define WIDTH (TILE * SIDE)

#if CAP
#define HEAD extern "C" __global__ void __maxnreg__(CAP)
#else
#define HEAD KERNEL(TILE, TILE, 1)
#endif

HEAD
unroll(GLOBAL const float* RESTRICT a, GLOBAL const float* RESTRICT b, GLOBAL float* RESTRICT c, int m, int n, int k)
{
    SHARED float a_tile[WIDTH * TILE];
    SHARED float b_tile[TILE * WIDTH];
    const int across = CEIL_DIV(n, WIDTH), tx = TID(0), ty = TID(1);
    const int row0 = BID(0) / across * WIDTH, col0 = BID(0) % across * WIDTH;

    float sum[SIDE * SIDE];
    UNROLL_ALL
    for (int i = 0; i < SIDE * SIDE; ++i) sum[i] = 0.0f;

    for (int k0 = 0; k0 < k; k0 += TILE) {
        UNROLL_ALL
        for (int s = 0; s < SIDE; ++s) {
            const int row = row0 + ty + s * TILE, col = col0 + tx + s * TILE;
            a_tile[(ty + s * TILE) * TILE + tx] = row < m && k0 + tx < k ? a[(i64)row * k + k0 + tx] : 0.0f;
            b_tile[ty * WIDTH + tx + s * TILE] = col < n && k0 + ty < k ? b[(i64)(k0 + ty) * n + col] : 0.0f;
        }
        SYNC();
#if UNROLL > 0
        UNROLL_BY(UNROLL)
#endif
        for (int step = 0; step < TILE; ++step) {
            float of_a[SIDE], of_b[SIDE];
            UNROLL_ALL
            for (int s = 0; s < SIDE; ++s) {
                of_a[s] = a_tile[(ty + s * TILE) * TILE + step];
                of_b[s] = b_tile[step * WIDTH + tx + s * TILE];
            }
            UNROLL_ALL
            for (int i = 0; i < SIDE; ++i) {
                UNROLL_ALL
                for (int j = 0; j < SIDE; ++j) sum[i * SIDE + j] = FMA(of_a[i], of_b[j], sum[i * SIDE + j]);
            }
        }
        SYNC();
    }
    UNROLL_ALL
    for (int i = 0; i < SIDE; ++i) {
        UNROLL_ALL
        for (int j = 0; j < SIDE; ++j) {
            const int row = row0 + ty + i * TILE, col = col0 + tx + j * TILE;
            if (row < m && col < n) c[(i64)row * n + col] = sum[i * SIDE + j];
        }
    }
}
