// What a launcher asks of CUDA's driver, written down line by line in place of being done: there is no GPU here.
#include <cuda.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace fake {

int major = 9, minor = 0;
std::string device = "NVIDIA H100 80GB HBM3";
int multiprocessors = 132, khz = 1980000;
std::size_t memory = 85017493504;
cuuint64_t capture = 0;                   // of every stream but the default one; 0: none
std::vector<std::vector<int>> sizes;      // in bytes, of what the next launches are passed
unsigned long long next_address = 1 << 20;
std::vector<std::string> modules;         // by handle, less one
std::vector<std::string> functions;

}  // namespace fake

extern "C" {

CUresult cuCtxGetDevice(CUdevice* device) { return *device = 0, CUDA_SUCCESS; }

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = fake::major; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = fake::multiprocessors; break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = fake::khz; break;
    default: *value = fake::minor;
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice) { return *bytes = fake::memory, CUDA_SUCCESS; }

CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  std::snprintf(name, length, "%s", fake::device.c_str());
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult, const char** name) { return *name = "CUDA_ERROR_FAKE", CUDA_SUCCESS; }

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  const char* text = static_cast<const char*>(image);
  const bool is_elf = std::memcmp(text, "\177ELF", 4) == 0;
  if (std::strncmp(text, "broken", 6) == 0) return CUDA_ERROR_INVALID_IMAGE;
  fake::modules.push_back(is_elf ? "ELF" : text);
  *module = reinterpret_cast<CUmodule>(fake::modules.size());
  std::printf("load %zu %s\n", fake::modules.size(), fake::modules.back().c_str());
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
  std::printf("unload %zu\n", reinterpret_cast<std::size_t>(module));
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  fake::functions.push_back(std::to_string(reinterpret_cast<std::size_t>(module)) + " " + name);
  *function = reinterpret_cast<CUfunction>(fake::functions.size());
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int value) {
  return std::printf("allow %d\n", value), CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* made, size_t bytes) {
  *made = fake::next_address;
  fake::next_address += (bytes + 255) / 256 * 256 + 256;
  return std::printf("alloc %llu %zu\n", *made, bytes), CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr at) { return std::printf("free %llu\n", at), CUDA_SUCCESS; }

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) { return CUDA_SUCCESS; }

CUresult cuStreamGetCaptureInfo(CUstream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph*,
                                const CUgraphNode**, const CUgraphEdgeData**, size_t*) {
  *status = fake::capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  *id = fake::capture;
  return CUDA_SUCCESS;
}

static CUresult filled(int width, CUdeviceptr at, unsigned bits, size_t count) {
  return std::printf("fill %llu %u %d %zu\n", at, bits, width, count), CUDA_SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char bits, size_t count, CUstream) { return filled(1, at, bits, count); }
CUresult cuMemsetD16Async(CUdeviceptr at, unsigned short bits, size_t count, CUstream) { return filled(2, at, bits, count); }
CUresult cuMemsetD32Async(CUdeviceptr at, unsigned bits, size_t count, CUstream) { return filled(4, at, bits, count); }

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t axes, void* begin,
                                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  std::memcpy(map, &begin, sizeof begin);
  std::printf("map %zu:", reinterpret_cast<std::size_t>(begin));
  for (cuuint32_t i = 0; i < axes; ++i)
    std::printf(" %llu %llu %u %u", static_cast<unsigned long long>(sizes[i]),
                i ? static_cast<unsigned long long>(strides[i - 1]) : 0, box[i], steps[i]);
  std::printf(" %d %d %d %d %d\n", type, interleave, swizzle, promotion, fill);
  return CUDA_SUCCESS;
}

static void print_attribute(const CUlaunchAttribute& given) {
  const auto& size = given.value.clusterDim;
  if (given.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) std::printf("cluster %u %u %u\n", size.x, size.y, size.z);
  if (given.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) std::printf("cooperative %d\n", given.value.cooperative);
  if (given.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
    std::printf("programmatic %d\n", given.value.programmaticStreamSerializationAllowed);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* how, CUfunction function, void** values, void**) {
  for (unsigned i = 0; i < how->numAttrs; ++i) print_attribute(how->attrs[i]);
  std::printf("launch %s on %zu: %u %u %u %u %u %u %u", fake::functions[reinterpret_cast<std::size_t>(function) - 1].c_str(),
              reinterpret_cast<std::size_t>(how->hStream), how->gridDimX, how->gridDimY, how->gridDimZ, how->blockDimX,
              how->blockDimY, how->blockDimZ, how->sharedMemBytes);
  if (!fake::sizes.empty()) {
    for (int size : fake::sizes.front()) {
      unsigned long long bits = 0;
      std::memcpy(&bits, *values++, size);
      std::printf(" %llu", bits);
    }
    fake::sizes.erase(fake::sizes.begin());
  }
  return std::printf("\n"), CUDA_SUCCESS;
}

}  // extern "C"
