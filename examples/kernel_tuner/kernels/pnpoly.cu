// pnpoly: finds the points in a polygon. A ray from such a point crosses the edges an odd number of times. Parameters of
// Kernel Tuner's example of this name; its array in constant memory is an argument here.
#include "dialect.h"

DEVICE int is_between(float y, float from, float to) {
#if between_method == 0
    return (from > y) != (to > y);
#elif between_method == 1
    return (from <= y && y < to) || (to <= y && y < from);
#elif between_method == 2
    return (from <= y) ^ (to <= y);
#else
    return y >= (from < to ? from : to) && y < (from < to ? to : from);
#endif
}

KERNEL(block_size_x, 1, 0)
cn_pnpoly(GLOBAL int* bitmap, GLOBAL const float* points, GLOBAL const float* vertices, GLOBAL const float* slopes, int n) {
    const int first = BID(0) * block_size_x * tile_size + TID(0);
    int crossed[tile_size] = {0};
    float px[tile_size], py[tile_size];
    UNROLL_ALL for (int t = 0; t < tile_size; ++t) {
        const int i = first + t * block_size_x < n ? first + t * block_size_x : n - 1;
        px[t] = points[2 * i];
        py[t] = points[2 * i + 1];
    }
    for (int j = 0, k = VERTICES - 1; j < VERTICES; k = j++) {
        const float x = vertices[2 * j], y = vertices[2 * j + 1], from = vertices[2 * k + 1];
#if use_precomputed_slopes
        const float slope = slopes[j];
#else
        const float slope = (vertices[2 * k] - x) / (from - y);
#endif
        UNROLL_ALL for (int t = 0; t < tile_size; ++t) {
#if use_method == 0
            if (is_between(py[t], from, y) && px[t] < slope * (py[t] - y) + x) crossed[t] = !crossed[t];
#else
            crossed[t] ^= is_between(py[t], from, y) & (px[t] < slope * (py[t] - y) + x);
#endif
        }
    }
    UNROLL_ALL for (int t = 0; t < tile_size; ++t)
        if (first + t * block_size_x < n) bitmap[first + t * block_size_x] = crossed[t];
}
