#pragma once
// nvcc gets <math.h> and the functions of the device's runtime by this header, NVIDIA's own header under NVRTC lacks them.
#include_next <cuda_runtime.h>
#include <cmath>
#include <cuda_device_runtime_api.h>
