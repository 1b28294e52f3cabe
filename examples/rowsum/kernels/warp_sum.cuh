// Returns the sum over a warp to all lanes.
#pragma once

__device__ inline float warp_sum(float value) {
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}
