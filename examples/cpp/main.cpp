// Calls tuned kernels from C++, checks their results, and compares their times with cuBLAS.
//
//   tuned [--quick] [--json FILE]
//
// --quick runs only small sizes and few calls, for compute-sanitizer. The exit status is 1 if a result is wrong. The
// program loads cuBLAS at run time, so the build does not need it.

#include <autotune/gemv.hpp>

#include "reduce_launch.hpp"
#include "sgemm_launch.hpp"
#include "winner.hpp"

#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

// The header answers also at compile time, and does not need CUDA. Without a valid configuration the answer is empty.
constexpr auto gemv_winner = autotune::gemv::lookup(90, 4096, 4096);
static_assert(gemv_winner && gemv_winner->hit != autotune::gemv::quality::kernel_default && gemv_winner->BLOCK >= 32,
              "tuned for sm_90");

namespace {

// ---------------------------------------------------------------- wrappers of the driver API

void check(CUresult result, const char* doing) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  throw std::runtime_error(std::string(doing) + ": " + (name ? name : "unknown error"));
}
#define CHECK(call) check(call, #call)

/// An array of floats on the device.
class Array {
 public:
  explicit Array(std::size_t count) : bytes_(4 * count) { CHECK(cuMemAlloc(&at_, bytes_)); }
  explicit Array(const std::vector<float>& values) : Array(values.size()) {
    CHECK(cuMemcpyHtoD(at_, values.data(), bytes_));
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { cuMemFree(at_); }

  CUdeviceptr at() const { return at_; }
  void spoil() const { CHECK(cuMemsetD32(at_, 0x7fc00000u, bytes_ / 4)); }  // NaN, so that unwritten elements show
  std::vector<float> values() const {
    std::vector<float> read(bytes_ / 4);
    CHECK(cuMemcpyDtoH(read.data(), at_, bytes_));
    return read;
  }

 private:
  CUdeviceptr at_ = 0;
  std::size_t bytes_;
};

class Stream {
 public:
  Stream() { CHECK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cuStreamDestroy(stream_); }
  operator CUstream() const { return stream_; }
  void wait() const { CHECK(cuStreamSynchronize(stream_)); }

 private:
  CUstream stream_ = nullptr;
};

std::vector<float> normal(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> draw;
  std::vector<float> made(count);
  for (float& value : made) value = draw(generator);
  return made;
}

/// Random values of -2, -1, 1 and 2. All their sums are integers that float represents, so the order of additions does
/// not matter.
std::vector<float> whole(std::size_t count, unsigned seed) {
  const float values[] = {-2, -1, 1, 2};
  std::mt19937 generator(seed);
  std::vector<float> made(count);
  for (float& value : made) value = values[generator() % 4];
  return made;
}

// ---------------------------------------------------------------- time

using Call = std::function<void(CUstream)>;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Milliseconds between CUDA events. Cold: single calls after a write of 512 MB, which evicts their data from the
/// caches. Hot: calls back to back, which find the data of the previous call in the caches.
class Clock {
 public:
  explicit Clock(bool is_quick) : is_quick_(is_quick), flushed_(flushed_count) {
    CHECK(cuEventCreate(&begin_, CU_EVENT_DEFAULT));
    CHECK(cuEventCreate(&end_, CU_EVENT_DEFAULT));
  }
  ~Clock() {
    cuEventDestroy(begin_);
    cuEventDestroy(end_);
  }

  double cold_ms(const Call& call) {
    // This also keeps the device busy until the call is enqueued.
    CHECK(cuMemsetD32Async(flushed_.at(), 0, flushed_count, stream_));
    return between(call, 1);
  }
  double hot_ms(const Call& call, int times) { return between(call, times) / times; }

  const Stream& stream() const { return stream_; }
  bool is_quick() const { return is_quick_; }

 private:
  static constexpr std::size_t flushed_count = std::size_t{1} << 27;

  double between(const Call& call, int times) {
    CHECK(cuEventRecord(begin_, stream_));
    for (int i = 0; i < times; ++i) call(stream_);
    CHECK(cuEventRecord(end_, stream_));
    stream_.wait();
    float ms = 0;
    CHECK(cuEventElapsedTime(&ms, begin_, end_));
    return ms;
  }

  const bool is_quick_;
  Array flushed_;
  Stream stream_;
  CUevent begin_ = nullptr, end_ = nullptr;
};

struct Times {
  double cold_ms, hot_ms;
};

/// Medians of calls that run in turn, after a warm-up of all of them.
std::vector<Times> timed(Clock& clock, const std::vector<Call>& calls) {
  const int rounds = clock.is_quick() ? 1 : 15;
  std::vector<int> times;
  for (const Call& call : calls) {
    clock.hot_ms(call, 3);
    const int in_10_ms = static_cast<int>(10 / clock.hot_ms(call, 3));
    times.push_back(clock.is_quick() ? 1 : std::max(3, std::min(200, in_10_ms)));
  }
  std::vector<std::vector<double>> cold(calls.size()), hot(calls.size());
  for (int round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < calls.size(); ++i) {
      cold[i].push_back(clock.cold_ms(calls[i]));
      hot[i].push_back(clock.hot_ms(calls[i], times[i]));
    }
  std::vector<Times> found;
  for (std::size_t i = 0; i < calls.size(); ++i) found.push_back({median(cold[i]), median(hot[i])});
  return found;
}

// ---------------------------------------------------------------- cuBLAS

/// cublasSgemm for row-major matrices; absent if the library is not installed.
class Cublas {
 public:
  Cublas() {
    for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"})
      if (library_ == nullptr) library_ = dlopen(name, RTLD_NOW);
    if (library_ == nullptr) return;
    using Create = int (*)(void**);
    const auto create = reinterpret_cast<Create>(dlsym(library_, "cublasCreate_v2"));
    set_stream_ = reinterpret_cast<SetStream>(dlsym(library_, "cublasSetStream_v2"));
    sgemm_ = reinterpret_cast<Sgemm>(dlsym(library_, "cublasSgemm_v2"));
    if (create == nullptr || set_stream_ == nullptr || sgemm_ == nullptr || create(&handle_) != 0)
      throw std::runtime_error("cuBLAS was found and cannot be used");
  }

  explicit operator bool() const { return library_ != nullptr; }

  /// C = A B. cuBLAS is column-major, so it computes C' = B' A'.
  void multiply(int m, int n, int k, CUdeviceptr a, CUdeviceptr b, CUdeviceptr c, CUstream stream) const {
    const float one = 1, zero = 0;
    if (set_stream_(handle_, stream) != 0 || sgemm_(handle_, 0, 0, n, m, k, &one, b, n, a, k, &zero, c, n) != 0)
      throw std::runtime_error("cublasSgemm failed");
  }

 private:
  using SetStream = int (*)(void*, CUstream);
  using Sgemm = int (*)(void*, int, int, int, int, int, const float*, CUdeviceptr, int, CUdeviceptr, int, const float*,
                        CUdeviceptr, int);
  void* library_ = nullptr;
  void* handle_ = nullptr;
  SetStream set_stream_ = nullptr;
  Sgemm sgemm_ = nullptr;
};

// ---------------------------------------------------------------- checks and measurements

/// A row of the output and of the JSON file; NaN means not measured.
struct Row {
  std::string what, problem, how;
  Times ours;
  Times vendor{NAN, NAN};
  std::string rate{};
  double error = 0, bound = 0;
};

const char* name_of(autotune::sgemm::quality hit) {
  const char* const names[] = {"exact", "nearest problem", "same arch", "nearest arch", "default"};
  return names[static_cast<int>(hit)];
}

template <typename... Values>
std::string text(const char* format, Values... values) {
  char made[200];
  std::snprintf(made, sizeof made, format, values...);
  return made;
}

Row multiplied(Clock& clock, autotune::sgemm::launcher& sgemm, const Cublas& cublas, int m, int n, int k) {
  const Array a(normal(std::size_t(m) * k, 1)), b(normal(std::size_t(k) * n, 2)), c(std::size_t(m) * n), theirs(std::size_t(m) * n);
  c.spoil();
  const auto chosen = sgemm.prepare({m, n, k}, clock.stream());
  const Call ours = [&](CUstream stream) { sgemm.launch({m, n, k}, {a.at(), b.at(), c.at(), 1.0f, 0.0f}, stream); };
  const Call vendor = [&](CUstream stream) { cublas.multiply(m, n, k, a.at(), b.at(), theirs.at(), stream); };
  std::string how = name_of(chosen.hit);
  // Parameters of the sources that do not run are zero.
  const int parts = chosen.cuda.SPLITK * chosen.cuda.GRIDK + chosen.slim.GRIDK;
  if (parts > 1) how += text(", k in %d parts", parts);
  if (chosen.exclusive) how += ", exclusive";
  Row row{"sgemm", text("m=%d n=%d k=%d", m, n, k), how, {}};
  row.bound = 1.1920929e-7 * (4.0 * k + 64);  // as in spaces/sgemm.py: error of adding normal products
  if (!cublas) {
    row.ours = timed(clock, {ours})[0];
    row.error = NAN;
  } else {
    const auto times = timed(clock, {ours, vendor});
    row.ours = times[0], row.vendor = times[1];
    const auto got = c.values(), expected = theirs.values();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double error = std::abs(double(got[i]) - expected[i]);
      if (!(error <= row.error)) row.error = error;  // NaN too
    }
  }
  row.rate = text("%.1f TFLOP/s", 2e-9 * m * n * k / row.ours.cold_ms);
  return row;
}

Row summed(Clock& clock, autotune::reduce::launcher& reduce, long long n) {
  const auto values = normal(n, 3);
  double expected = 0;
  for (float value : values) expected += value;
  const Array x(values), out(1);
  out.spoil();
  reduce.prepare({n}, clock.stream());
  const Call ours = [&](CUstream stream) { reduce.launch({n}, {x.at(), out.at()}, stream); };
  Row row{"reduce", text("n=%lld", n), "", timed(clock, {ours})[0]};
  row.how = name_of(static_cast<autotune::sgemm::quality>(reduce.choose({n}).hit));
  if (reduce.choose({n}).exclusive) row.how += ", exclusive";
  row.rate = text("%.0f GB/s", 4e-6 * n / row.ours.cold_ms);
  row.error = std::abs(double(out.values()[0]) - expected);
  row.bound = 1.1920929e-7 * (16 * std::sqrt(double(n)) + n / 50.0);  // as in spaces/reduce.py
  return row;
}

#ifdef WINNER
Row copied(Clock& clock, long long n) {
  CUmodule module;
  CUfunction function;
  CHECK(cuModuleLoad(&module, WINNER));
  CHECK(cuModuleGetFunction(&function, module, "tuned_copy"));
  const auto values = normal(n, 4);
  const Array from(values), to(n);
  to.spoil();
  const auto grid = example::winner.grid(n, example::mode_value::copy, 0, 0);
  const auto block = example::winner.block;
  const Call ours = [&](CUstream stream) {
    CUdeviceptr in = from.at(), out = to.at();
    long long count = n;
    void* given[] = {&in, &out, &count};
    CHECK(cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, example::winner.shared_bytes,
                         stream, given, nullptr));
  };
  Row row{"copy (a template)", text("n=%lld", n), "constants of the header", timed(clock, {ours})[0]};
  row.rate = text("%.0f GB/s", 8e-6 * n / row.ours.cold_ms);
  row.error = to.values() == values ? 0 : 1;
  CHECK(cuModuleUnload(module));
  return row;
}
#endif

/// Counts the wrong results of calls on four concurrent streams, and of concurrent replays of captured graphs.
int wrong_at_once(autotune::sgemm::launcher& sgemm, autotune::reduce::launcher& reduce, int calls) {
  constexpr int m = 64, n = 64, k = 65536, sum_n = 1 << 20, streams = 4;
  const Array a(whole(std::size_t(m) * k, 5)), b(whole(std::size_t(k) * n, 6)), x(whole(sum_n, 7));
  std::vector<std::vector<float>> expected;  // of a call that runs alone
  {
    const Array c(m * n), out(1);
    sgemm.launch({m, n, k}, {a.at(), b.at(), c.at(), 1.0f, 0.0f});
    reduce.launch({sum_n}, {x.at(), out.at()});
    CHECK(cuCtxSynchronize());
    expected = {c.values(), out.values()};
  }
  // Each call has its own output array.
  const Array products(std::size_t(streams) * calls * m * n), sums(std::size_t(streams) * calls * 4);
  const auto enqueue = [&](int stream, int call, CUstream on) {
    const std::size_t place = std::size_t(stream) * calls + call;
    sgemm.launch({m, n, k}, {a.at(), b.at(), products.at() + 4 * place * m * n, 1.0f, 0.0f}, on);
    reduce.launch({sum_n}, {x.at(), sums.at() + 16 * place}, on);
  };
  int wrong = 0;
  const auto count = [&] {
    const auto all_products = products.values(), all_sums = sums.values();
    for (std::size_t place = 0; place < std::size_t(streams) * calls; ++place) {
      wrong += !std::equal(expected[0].begin(), expected[0].end(), all_products.begin() + place * m * n);
      wrong += all_sums[4 * place] != expected[1][0];
    }
    products.spoil();
    sums.spoil();
  };
  Stream on[streams];
  products.spoil();
  sums.spoil();
  for (int call = 0; call < calls; ++call)
    for (int stream = 0; stream < streams; ++stream) enqueue(stream, call, on[stream]);
  CHECK(cuCtxSynchronize());
  count();

  CUgraphExec graphs[streams];
  for (int stream = 0; stream < streams; ++stream) {
    CUgraph graph;
    // All captures use one stream, but each graph gets its own workspace.
    CHECK(cuStreamBeginCapture(on[0], CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int call = 0; call < calls; ++call) enqueue(stream, call, on[0]);
    CHECK(cuStreamEndCapture(on[0], &graph));
    CHECK(cuGraphInstantiate(&graphs[stream], graph, 0));
    CHECK(cuGraphDestroy(graph));
  }
  for (int replay = 0; replay < 3; ++replay) {
    for (int stream = 0; stream < streams; ++stream) CHECK(cuGraphLaunch(graphs[stream], on[stream]));
    CHECK(cuCtxSynchronize());
    count();
  }
  for (CUgraphExec graph : graphs) CHECK(cuGraphExecDestroy(graph));
  return wrong;
}

/// Host time in microseconds for a launch of a product whose problem is already known.
double launch_us(autotune::sgemm::launcher& sgemm, const Stream& stream) {
  constexpr int size = 128, batch = 500;
  const Array a(whole(size * size, 8)), b(whole(size * size, 9)), c(size * size);
  std::vector<double> found;
  for (int round = 0; round < 21; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < batch; ++i) sgemm.launch({size, size, size}, {a.at(), b.at(), c.at(), 1.0f, 0.0f}, stream);
    const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - begin;
    stream.wait();
    found.push_back(taken.count() / batch);
  }
  return median(found);
}

/// Host time in microseconds for the driver's call alone, with equally many arguments; NaN without kernels compiled
/// ahead.
double driver_us(const Stream& stream) {
#ifdef CUBINS
  constexpr int size = 128, batch = 500;
  const Array a(whole(size * size, 8)), b(whole(size * size, 9)), c(size * size);
  constexpr auto chosen = *autotune::sgemm::lookup(90, size, size, size);
  const auto grid = chosen.grid(size, size, size);
  const std::string file = std::string(CUBINS) + "/" + autotune::sgemm::detail::sources[chosen.plan].name + ".cubin";
  CUmodule module;
  CUfunction function;
  CHECK(cuModuleLoad(&module, file.c_str()));
  CHECK(cuModuleGetFunction(&function, module, "sgemm"));
  CHECK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, int(chosen.shared_bytes)));
  CUdeviceptr at[] = {a.at(), b.at(), c.at(), 0};
  float alpha = 1, beta = 0;
  int sides[] = {size, size, size};
  void* given[] = {&at[0], &at[1], &at[2], &alpha, &beta, &sides[0], &sides[1], &sides[2], &at[3]};
  std::vector<double> found;
  for (int round = 0; round < 21; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < batch; ++i)
      CHECK(cuLaunchKernel(function, grid.x, grid.y, grid.z, chosen.block.x, chosen.block.y, chosen.block.z,
                           chosen.shared_bytes, stream, given, nullptr));
    const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - begin;
    stream.wait();
    found.push_back(taken.count() / batch);
  }
  CHECK(cuModuleUnload(module));
  return median(found);
#else
  (void)stream;
  return NAN;
#endif
}

std::string number(const char* format, double value) { return std::isnan(value) ? "–" : text(format, value); }

void print(const std::vector<Row>& rows) {
  std::printf("| kernel | problem | answered from | cold ms | hot ms | cold rate | cuBLAS / ours, cold | hot | error / bound |\n"
              "|---|---|---|---|---|---|---|---|---|\n");
  for (const Row& row : rows)
    std::printf("| %s | %s | %s | %.4g | %.4g | %s | %s | %s | %s |\n", row.what.c_str(), row.problem.c_str(),
                row.how.c_str(), row.ours.cold_ms, row.ours.hot_ms, row.rate.c_str(),
                number("%.3f", row.vendor.cold_ms / row.ours.cold_ms).c_str(),
                number("%.3f", row.vendor.hot_ms / row.ours.hot_ms).c_str(),
                number("%.2g", row.bound > 0 ? row.error / row.bound : row.error).c_str());
}

std::string json(double value) { return std::isnan(value) ? "null" : text("%.6g", value); }

void write(const char* file, const char* device, const std::vector<Row>& rows, double us, double bare_us, int wrong) {
  std::ostringstream out;
  out << "{\n \"device\": \"" << device << "\",\n \"launch_us\": " << json(us) << ",\n \"driver_us\": " << json(bare_us)
      << ",\n \"wrong_at_once\": " << wrong << ",\n \"rows\": [";
  const char* between = "\n";
  for (const Row& row : rows) {
    out << between << "  {\"kernel\": \"" << row.what << "\", \"problem\": \"" << row.problem << "\", \"answered_from\": \""
        << row.how << "\", \"cold_ms\": " << json(row.ours.cold_ms) << ", \"hot_ms\": " << json(row.ours.hot_ms)
        << ", \"vendor_cold_ms\": " << json(row.vendor.cold_ms) << ", \"vendor_hot_ms\": " << json(row.vendor.hot_ms)
        << ", \"rate\": \"" << row.rate << "\", \"error\": " << json(row.error) << ", \"bound\": " << json(row.bound) << "}";
    between = ",\n";
  }
  out << "\n ]\n}\n";
  std::ofstream(file) << out.str();
}

int run(bool is_quick, const char* json_file) {
  CHECK(cuInit(0));
  CUdevice device;
  CUcontext context;
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  char name[256];
  CHECK(cuDeviceGetName(name, sizeof name, device));
  int failures = 0;
  std::vector<Row> rows;
  {
    Clock clock(is_quick);
    const Cublas cublas;
    if (!cublas) std::printf("cuBLAS is not installed here: products are not checked\n");
#ifdef CUBINS
    autotune::sgemm::launcher sgemm(CUBINS);
    autotune::reduce::launcher reduce(CUBINS);
#else
    autotune::sgemm::launcher sgemm(SOURCES);
    autotune::reduce::launcher reduce(SOURCES);
#endif
    const int sizes[][3] = {
        {4096, 4096, 4096}, {1024, 1024, 1024}, {256, 256, 256}, {127, 333, 2047},
        {1500, 700, 900},     // not tuned
        {5000, 3000, 100},    // not tuned
        {64, 64, 65536},      // k is split over the grid
        {100, 200, 50000},    // not tuned, and split
    };
    for (const auto& size : sizes)
      if (!is_quick || double(size[0]) * size[1] * size[2] < 1e9) rows.push_back(multiplied(clock, sgemm, cublas, size[0], size[1], size[2]));
    for (long long n : {1LL << 16, 10000003LL, 1LL << 26})
      if (!is_quick || n < 1 << 20) rows.push_back(summed(clock, reduce, n));
#ifdef WINNER
    rows.push_back(copied(clock, (is_quick ? 1 << 16 : 1 << 26) + 3));
#endif
#if defined(CUBINS) && defined(AUTOTUNE_NVRTC)
    {  // the same sources, compiled by NVRTC
      autotune::sgemm::launcher compiled(SOURCES);
      const auto begin = std::chrono::steady_clock::now();
      compiled.prepare({1024, 1024, 1024});
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
      rows.push_back(multiplied(clock, compiled, cublas, 1024, 1024, 1024));
      rows.back().what = text("sgemm (NVRTC, %.1f s)", taken.count());
    }
#endif
    print(rows);
    for (const Row& row : rows) failures += !(row.error <= row.bound) && !std::isnan(row.error);
    for (const Row& row : rows) failures += cublas && std::isnan(row.error);

    const int calls = is_quick ? 5 : 200, wrong = wrong_at_once(sgemm, reduce, calls);
    const double us = launch_us(sgemm, clock.stream()), bare_us = driver_us(clock.stream());
    std::printf("\nFour streams at once, then four captured graphs: %d results of %d wrong.\n", wrong, 4 * 8 * calls);
    std::printf("A launch of sgemm takes the host %.2f µs, the driver's call alone %s.\n", us,
                number("%.2f µs", bare_us).c_str());
    failures += wrong != 0;
    if (json_file != nullptr) write(json_file, name, rows, us, bare_us, wrong);
  }
  std::printf("%s\n", failures == 0 ? "All right." : "WRONG.");
  CHECK(cuDevicePrimaryCtxRelease(device));
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  bool is_quick = false;
  const char* json_file = nullptr;
  for (int i = 1; i < count; ++i) {
    if (std::strcmp(words[i], "--quick") == 0) {
      is_quick = true;
    } else if (std::strcmp(words[i], "--json") == 0 && i + 1 < count) {
      json_file = words[++i];
    } else {
      std::fprintf(stderr, "usage: %s [--quick] [--json FILE]\n", words[0]);
      return 2;
    }
  }
  try {
    return run(is_quick, json_file);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
