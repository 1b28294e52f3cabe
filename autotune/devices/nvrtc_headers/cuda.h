#pragma once
// Types of the driver API that kernels take; NVRTC refuses the driver's functions, which are host code.
#include <cstdint>
#include <cstdlib>
typedef std::uint32_t cuuint32_t;
typedef std::uint64_t cuuint64_t;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUtexObject;
typedef unsigned long long CUsurfObject;
typedef struct alignas(64) CUtensorMap_st {
    cuuint64_t opaque[16];
} CUtensorMap;
