// convolution: each pixel is the sum of its neighbours, weighted by a filter. A block keeps its part of the image in
// shared memory. Parameters of Kernel Tuner's example of this name; any image size.
#include "dialect.h"

#define tile_width (block_size_x * tile_size_x)
#define tile_height (block_size_y * tile_size_y)
#define input_width (image_width + filter_width - 1)
#define input_height (image_height + filter_height - 1)

KERNEL(block_size_x, block_size_y, 0)
convolution_kernel(GLOBAL float* output, GLOBAL const float* input, GLOBAL const float* filter) {
    SHARED float near[tile_height + filter_height - 1][tile_width + filter_width - 1];
    const int left = BID(0) * tile_width, top = BID(1) * tile_height;
    for (int y = TID(1); y < tile_height + filter_height - 1; y += block_size_y)
        for (int x = TID(0); x < tile_width + filter_width - 1; x += block_size_x) {
            const int is_inside = left + x < input_width && top + y < input_height;
            near[y][x] = is_inside ? input[(top + y) * input_width + left + x] : 0.0f;
        }
    SYNC();
    float sums[tile_size_y][tile_size_x] = {{0.0f}};
    for (int i = 0; i < filter_height; ++i)
        for (int j = 0; j < filter_width; ++j) {
            const float weight = filter[i * filter_width + j];
            UNROLL_ALL for (int v = 0; v < tile_size_y; ++v)
                UNROLL_ALL for (int u = 0; u < tile_size_x; ++u)
                    sums[v][u] = FMA(
                        weight, near[TID(1) + v * block_size_y + i][TID(0) + u * block_size_x + j], sums[v][u]);
        }
    UNROLL_ALL for (int v = 0; v < tile_size_y; ++v)
        UNROLL_ALL for (int u = 0; u < tile_size_x; ++u) {
            const int x = left + TID(0) + u * block_size_x, y = top + TID(1) + v * block_size_y;
            if (x < image_width && y < image_height) output[y * image_width + x] = sums[v][u];
        }
}
