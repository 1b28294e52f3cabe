// Small kernels for the contract of backends (contracts/backend.py), in the common dialect.
#include "dialect.h"
#ifndef FACTOR
#define FACTOR 2
#endif

KERNEL(64, 1, 0) scaled(GLOBAL const float* x, GLOBAL float* out, float addend, int n) {
    const int i = BID(0) * 64 + TID(0);
    if (i < n) out[i] = FACTOR * x[i] + addend;
}

KERNEL(32, 1, 0) reversed_tile(GLOBAL const float* x, GLOBAL float* out) {
    SHARED float tile[256];
    for (int i = TID(0); i < 256; i += 32) tile[i] = x[i];
    SYNC();
    for (int i = TID(0); i < 256; i += 32) out[i] = tile[255 - i];
}

KERNEL(1, 1, 0) poke(GLOBAL int* out, int index, int value) { out[index] = value; }

KERNEL(1, 1, 0) typed(GLOBAL double* out, i64 wide, int whole, float single, double twice,
                      unsigned char tiny) {
    out[0] = (double)wide;
    out[1] = (double)whole;
    out[2] = (double)single;
    out[3] = twice;
    out[4] = (double)tiny;
}

KERNEL(4, 2, 0) where(GLOBAL int* out, int width) {
    const int x = BID(0) * 4 + TID(0), y = BID(1) * 2 + TID(1);
    out[y * width + x] = 1000 * BID(1) + 100 * BID(0) + 10 * TID(1) + TID(0);
}

KERNEL(32, 1, 0) spin(GLOBAL float* out, int turns) {
    float value = out[TID(0)];
    for (int i = 0; i < turns; ++i) value = FMA(value, 0.999f, 0.001f);
    out[TID(0)] = value;
}
