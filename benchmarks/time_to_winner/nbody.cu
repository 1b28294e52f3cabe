// out = the acceleration of each body by the gravity of all; a body is x, y, z and its mass; space: nbody.py.
// A thread has TILE bodies, BLOCK apart. With STAGED a block reads the others through shared memory, BLOCK at a time.
#include "dialect_math.h"
#ifndef BLOCK
#define BLOCK 256
#define TILE 1
#define UNROLLED 1
#define STAGED 0
#endif

#define SOFTENING 0.01f

KERNEL(BLOCK, 1, 1) nbody(GLOBAL const float* RESTRICT bodies, GLOBAL float* RESTRICT out, int n)
{
#if STAGED
    SHARED ALIGN16 float others[4 * BLOCK];
#endif
    const int first = BID(0) * BLOCK * TILE + TID(0);
    float x[TILE], y[TILE], z[TILE], ax[TILE], ay[TILE], az[TILE];
    UNROLL_ALL
    for (int i = 0; i < TILE; ++i) {
        const int body = first + i * BLOCK;
        const float4 mine = body < n ? LD4(bodies + 4 * body) : MAKE4(0, 0, 0, 0);
        x[i] = mine.x;
        y[i] = mine.y;
        z[i] = mine.z;
        ax[i] = ay[i] = az[i] = 0;
    }
    for (int begin = 0; begin < n; begin += BLOCK) {
        const int count = n - begin < BLOCK ? n - begin : BLOCK;
#if STAGED
        SYNC();
        if (TID(0) < count) STS4(others + 4 * TID(0), LD4(bodies + 4 * (begin + TID(0))));
        SYNC();
#endif
        UNROLL_BY(UNROLLED)
        for (int j = 0; j < count; ++j) {
#if STAGED
            const float4 other = LDS4(others + 4 * j);
#else
            const float4 other = LD4(bodies + 4 * (begin + j));
#endif
            UNROLL_ALL
            for (int i = 0; i < TILE; ++i) {
                const float dx = other.x - x[i], dy = other.y - y[i], dz = other.z - z[i];
                const float near = RSQRT(FMA(dx, dx, FMA(dy, dy, FMA(dz, dz, SOFTENING))));
                const float pull = other.w * near * near * near;
                ax[i] = FMA(pull, dx, ax[i]);
                ay[i] = FMA(pull, dy, ay[i]);
                az[i] = FMA(pull, dz, az[i]);
            }
        }
    }
    UNROLL_ALL
    for (int i = 0; i < TILE; ++i) {
        const int body = first + i * BLOCK;
        if (body < n) {
            out[3 * body] = ax[i];
            out[3 * body + 1] = ay[i];
            out[3 * body + 2] = az[i];
        }
    }
}
