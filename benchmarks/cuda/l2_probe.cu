// Measures if lines that a kernel writes reach DRAM before the kernel overwrites them, and what
// discard.global.L2 and eviction hints change: l2_probe [--once]
//
// Each thread block writes its part of a buffer 50 times. The program prints predictions, then the
// time and the rate of every arm. With --once every arm runs once and untimed, in the order of the
// printed table, for a profiler:
//   ncu --clock-control none --cache-control none --csv --page raw \
//     --metrics dram__bytes_write.sum,dram__bytes_read.sum l2_probe --once
// The program needs no other file of the repository: nvcc -O3 -std=c++17 -arch=sm_80 l2_probe.cu

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr int kPasses = 50, kThreads = 512, kRuns = 9;
constexpr double kMemory = 3.18e12;  // bytes per second written to an H100's memory, measured
constexpr double kCache = 5.5e12;    // bytes per second written to its L2, assumed

/// Way of writing of an arm. kRead reads each pass back before the next. kPause waits 20 us after
/// each.
enum Arm { kPlain, kDiscard, kRead, kReadDiscard, kPause, kPauseDiscard, kKeep, kArms };
constexpr const char* kNames[kArms] = {
    "rewrite",     "discard, rewrite",     "rewrite, read",  "rewrite, read, discard",
    "with pauses", "with pauses, discard", "hint evict_last"};

__host__ __device__ constexpr bool discards(int arm) {
  return arm == kDiscard || arm == kReadDiscard || arm == kPauseDiscard;
}

__device__ void store(uint4* to, uint4 x, std::uint64_t keep) {
  if (keep != 0) {
    asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "r"(x.x),
                 "r"(x.y), "r"(x.z), "r"(x.w), "l"(keep)
                 : "memory");
  } else {
    *to = x;
  }
}

__device__ std::uint64_t nanoseconds() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

/// Writes `words` uint4, a multiple of 32 per thread block, `passes` times.
template <int kArm>
__global__ void __launch_bounds__(kThreads)
    rewrite(uint4* buffer, std::int64_t words, int passes, unsigned* sink) {
  const std::int64_t part = words / gridDim.x;
  uint4* const begin = buffer + part * blockIdx.x;
  std::uint64_t keep = 0;
  if (kArm == kKeep) asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
  unsigned sum = 0;
  for (int pass = 0; pass < passes; ++pass) {
    for (std::int64_t i = threadIdx.x; i < part; i += kThreads) {
      const unsigned x = static_cast<unsigned>(i) * 2654435761u ^ static_cast<unsigned>(pass);
      if (discards(kArm) && pass > 0) {
        if (threadIdx.x % 8 == 0) {  // 8 threads write a line
          asm volatile("discard.global.L2 [%0], 128;" ::"l"(begin + i) : "memory");
        }
        __syncwarp();
      }
      store(begin + i, make_uint4(x, ~x, x + blockIdx.x, x * 3), keep);
    }
    if (kArm == kRead || kArm == kReadDiscard) {
      __syncthreads();
      for (std::int64_t i = threadIdx.x; i < part; i += kThreads) {
        const uint4 x = __ldcg(begin + i);
        sum += x.x ^ x.y ^ x.z ^ x.w;
      }
    }
    if (kArm == kPause || kArm == kPauseDiscard) {
      __syncthreads();
      for (const std::uint64_t end = nanoseconds() + 20000; nanoseconds() < end;) {
      }
    }
    __syncthreads();
  }
  if (sum == 12345) *sink = sum;
}

void expect_success(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  std::printf("%s: %s\n", call, cudaGetErrorString(status));
  std::exit(1);
}

struct Probe {
  uint4* buffer;
  unsigned* sink;
  int blocks;

  void launch(int arm, std::int64_t bytes, int passes) const {
    using Kernel = void (*)(uint4*, std::int64_t, int, unsigned*);
    constexpr Kernel kKernels[kArms] = {rewrite<0>, rewrite<1>, rewrite<2>, rewrite<3>,
                                        rewrite<4>, rewrite<5>, rewrite<6>};
    kKernels[arm]<<<blocks, kThreads>>>(buffer, bytes / 16, passes, sink);
    expect_success(cudaGetLastError(), "launch");
  }

  double seconds(int arm, std::int64_t bytes, int passes) const {
    cudaEvent_t begin, end;
    expect_success(cudaEventCreate(&begin), "cudaEventCreate");
    expect_success(cudaEventCreate(&end), "cudaEventCreate");
    std::vector<float> times;
    for (int run = -2; run < kRuns; ++run) {
      expect_success(cudaEventRecord(begin), "cudaEventRecord");
      launch(arm, bytes, passes);
      expect_success(cudaEventRecord(end), "cudaEventRecord");
      expect_success(cudaEventSynchronize(end), "cudaEventSynchronize");
      float milliseconds = 0;
      expect_success(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
      if (run >= 0) times.push_back(milliseconds);
    }
    std::sort(times.begin(), times.end());
    return 1e-3 * static_cast<double>(times[times.size() / 2]);
  }
};

}  // namespace

int main(int count, char** arguments) {
  const bool once = count > 1 && std::strcmp(arguments[1], "--once") == 0;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no CUDA device is there: L2 is not probed\n");
    return 0;
  }
  cudaDeviceProp device{};
  expect_success(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  const int blocks = 4 * device.multiProcessorCount;
  // Thread blocks write whole warps of 512 bytes.
  const std::int64_t unit = std::int64_t{blocks} * 512;
  const std::int64_t large = (std::int64_t{1} << 30) / unit * unit;
  Probe probe{nullptr, nullptr, blocks};
  expect_success(cudaMalloc(&probe.buffer, static_cast<std::size_t>(large)), "cudaMalloc");
  expect_success(cudaMalloc(&probe.sink, 4), "cudaMalloc");

  std::printf("%s, L2 of %.0f MB, %d passes over each size\n", device.name,
              1e-6 * device.l2CacheSize, kPasses);
  if (!once) {
    std::printf("predicted of \"rewrite\", MB written to DRAM and us:\n");
    for (const int megabytes : {4, 16, 24, 32}) {
      const double bytes = 1e6 * megabytes * kPasses;
      std::printf(
          "  %2d MB: lines drain while the kernel runs %5.0f, %4.0f; lines stay %5d, %4.0f\n",
          megabytes, 1e-6 * bytes, 1e6 * bytes / kMemory, megabytes, 1e6 * bytes / kCache);
    }
    std::printf(
        "  with discard: 0 MB where lines stay; where they drain, what has left before it\n");
    std::printf("1 GiB written twice: %.2f TB/s\n",
                2e-12 * static_cast<double>(large) / probe.seconds(kPlain, large, 2));
    std::printf("%-24s %5s %9s %8s\n", "arm", "MB", "us", "TB/s");
  }
  for (const int megabytes : {4, 16, 24, 32}) {
    const std::int64_t bytes = megabytes * std::int64_t{1000000} / unit * unit;
    for (int arm = 0; arm < kArms; ++arm) {
      if (once) {
        probe.launch(arm, bytes, kPasses);
        expect_success(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        std::printf("arm,%s,%.1f\n", kNames[arm], 1e-6 * static_cast<double>(bytes));
        continue;
      }
      const double seconds = probe.seconds(arm, bytes, kPasses);
      std::printf("%-24s %5.1f %9.1f %8.2f\n", kNames[arm], 1e-6 * static_cast<double>(bytes),
                  1e6 * seconds, 1e-12 * kPasses * static_cast<double>(bytes) / seconds);
    }
  }
  return 0;
}
