// out = the two-dimensional convolution of an image with a filter of SIDE x SIDE; space: convolution.py.
// A block of BLOCK_X x BLOCK_Y threads has a rectangle of outputs, a thread TILE_X x TILE_Y of them, as far
// apart as the block is wide and high. What a block reads is staged in shared memory. Every loop over filter
// and tile is unrolled: SIDE * SIDE * TILE_X * TILE_Y multiplications stand one after another, which is what
// the compiler takes its seconds for.
#define SIDE 17
#ifndef BLOCK_X
#define BLOCK_X 32
#define BLOCK_Y 8
#define TILE_X 2
#define TILE_Y 2
#define PADDED 0
#define READ_ONLY 0
#endif

#define OUT_X (BLOCK_X * TILE_X)
#define OUT_Y (BLOCK_Y * TILE_Y)
#define IN_X (OUT_X + SIDE - 1)
#define IN_Y (OUT_Y + SIDE - 1)
#define PITCH (IN_X + PADDED)

#if READ_ONLY
#define LOAD(p) __ldg(p)
#else
#define LOAD(p) (*(p))
#endif

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y)
convolution(const float* image, const float* weights, float* out, int width, int height) {
    __shared__ float staged[IN_Y][PITCH];
    const int tx = threadIdx.x % BLOCK_X;
    const int ty = threadIdx.x / BLOCK_X;
    const int in_width = width + SIDE - 1;
    const int left = blockIdx.x * OUT_X;
    const int top = blockIdx.y * OUT_Y;

    for (int y = ty; y < IN_Y; y += BLOCK_Y)
        for (int x = tx; x < IN_X; x += BLOCK_X)
            if (top + y < height + SIDE - 1 && left + x < in_width)
                staged[y][x] = LOAD(image + (long long)(top + y) * in_width + left + x);
    __syncthreads();

    float sums[TILE_Y][TILE_X] = {};
#pragma unroll
    for (int i = 0; i < SIDE; ++i)
#pragma unroll
        for (int j = 0; j < SIDE; ++j) {
            const float weight = LOAD(weights + i * SIDE + j);
#pragma unroll
            for (int r = 0; r < TILE_Y; ++r)
#pragma unroll
                for (int c = 0; c < TILE_X; ++c)
                    sums[r][c] += weight * staged[ty + r * BLOCK_Y + i][tx + c * BLOCK_X + j];
        }

#pragma unroll
    for (int r = 0; r < TILE_Y; ++r)
#pragma unroll
        for (int c = 0; c < TILE_X; ++c) {
            const int x = left + tx + c * BLOCK_X;
            const int y = top + ty + r * BLOCK_Y;
            if (x < width && y < height) out[(long long)y * width + x] = sums[r][c];
        }
}
