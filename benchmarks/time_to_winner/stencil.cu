// out = centre * u + side * (the six neighbours' sum), zero outside; space: stencil.py.
// A block has BLOCK_X * TILE_X columns and BLOCK_Y rows, and marches through TILE_Z planes. A thread keeps the planes
// below, at and above its place in registers. With STAGED the neighbours in the plane come from shared memory.
#include "dialect.h"
#ifndef BLOCK_X
#define BLOCK_X 32
#define BLOCK_Y 8
#define TILE_X 1
#define TILE_Z 8
#define STAGED 0
#endif

#define WIDTH (BLOCK_X * TILE_X)

DEVICE float at(GLOBAL const float* RESTRICT u, int x, int y, int z, int nx, int ny, int nz)
{
    const int is_inside = x >= 0 && x < nx && y >= 0 && y < ny && z >= 0 && z < nz;
    return is_inside ? u[((i64)z * ny + y) * nx + x] : 0.0f;
}

KERNEL(BLOCK_X, BLOCK_Y, 1)
stencil(GLOBAL const float* RESTRICT u, GLOBAL float* RESTRICT out, float centre, float side, int nx, int ny, int nz)
{
#if STAGED
    SHARED float plane[BLOCK_Y + 2][WIDTH + 2];
#endif
    const int left = BID(0) * WIDTH, top = BID(1) * BLOCK_Y, first = BID(2) * TILE_Z;
    const int y = top + TID(1);
    float below[TILE_X], here[TILE_X];
    UNROLL_ALL
    for (int i = 0; i < TILE_X; ++i) {
        const int x = left + TID(0) + i * BLOCK_X;
        below[i] = at(u, x, y, first - 1, nx, ny, nz);
        here[i] = at(u, x, y, first, nx, ny, nz);
    }
    for (int z = first; z < first + TILE_Z && z < nz; ++z) {
#if STAGED
        SYNC(); // the block has read the plane before
        for (int row = TID(1); row < BLOCK_Y + 2; row += BLOCK_Y)
            for (int column = TID(0); column < WIDTH + 2; column += BLOCK_X)
                plane[row][column] = at(u, left + column - 1, top + row - 1, z, nx, ny, nz);
        SYNC();
#endif
        UNROLL_ALL
        for (int i = 0; i < TILE_X; ++i) {
            const int column = TID(0) + i * BLOCK_X, x = left + column;
            const float above = at(u, x, y, z + 1, nx, ny, nz);
#if STAGED
            const float around = plane[TID(1) + 1][column] + plane[TID(1) + 1][column + 2] + plane[TID(1)][column + 1]
                + plane[TID(1) + 2][column + 1];
#else
            const float around = at(u, x - 1, y, z, nx, ny, nz) + at(u, x + 1, y, z, nx, ny, nz)
                + at(u, x, y - 1, z, nx, ny, nz) + at(u, x, y + 1, z, nx, ny, nz);
#endif
            if (x < nx && y < ny) out[((i64)z * ny + y) * nx + x] = centre * here[i] + side * (around + below[i] + above);
            below[i] = here[i];
            here[i] = above;
        }
    }
}
