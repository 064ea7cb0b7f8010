#include <algorithm>

#include "cuda/kernels.hpp"
#include "mhla/cuda/launch/device.cuh"
#include "mhla/cuda/launch/error.cuh"

namespace mhla::cuda_bench {
namespace {

constexpr int kThreads = 256;

__device__ std::int64_t first() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ std::int64_t step() { return static_cast<std::int64_t>(gridDim.x) * blockDim.x; }

__device__ std::uint64_t splitmix64(std::uint64_t counter) {
  std::uint64_t z = counter * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

__global__ void draw_kernel(Bits* data, std::int64_t size, std::uint64_t tensor) {
  for (std::int64_t i = first(); i < size; i += step()) {
    const std::uint64_t bits = splitmix64((tensor << 40) + static_cast<std::uint64_t>(i)) >> 40;
    const float x = static_cast<float>(static_cast<std::int32_t>(bits)) * 0x1p-23f - 1.0f;
    const unsigned word = __float_as_uint(x);  // finite: the nearest bfloat16, ties to even
    data[i] = static_cast<Bits>((word + 0x7FFFu + (word >> 16 & 1u)) >> 16);
  }
}

__global__ void count_kernel(const Bits* data, std::int64_t size, unsigned long long* count) {
  unsigned long long found = 0;
  for (std::int64_t i = first(); i < size; i += step()) found += (data[i] & 0x7F80) == 0x7F80;
  if (found != 0) atomicAdd(count, found);
}

__global__ void write_kernel(uint4* data, std::int64_t size, std::uint64_t seed) {
  for (std::int64_t i = first(); i < size; i += step()) {
    const std::uint64_t x = splitmix64(seed + static_cast<std::uint64_t>(i));
    const auto low = static_cast<unsigned>(x), high = static_cast<unsigned>(x >> 32);
    data[i] = make_uint4(low, high, low ^ 0x5A5A5A5Au, high ^ 0xA5A5A5A5u);
  }
}

__global__ void copy_kernel(const uint4* from, uint4* to, std::int64_t size) {
  for (std::int64_t i = first(); i < size; i += step()) to[i] = __ldcg(from + i);
}

/// Keeps four loads per thread in flight. In every pass a block reads what another block read in
/// the previous pass.
__global__ void read_kernel(const uint4* data, std::int64_t size, int passes, unsigned* sink) {
  unsigned mixed = 0;
  for (int pass = 0; pass < passes; ++pass) {
    const std::int64_t block = (blockIdx.x + static_cast<std::int64_t>(pass) * 37) % gridDim.x;
    std::int64_t i = block * blockDim.x + threadIdx.x;
    for (; i + 3 * step() < size; i += 4 * step()) {
      const uint4 a = __ldcg(data + i), b = __ldcg(data + i + step()),
                  c = __ldcg(data + i + 2 * step()), d = __ldcg(data + i + 3 * step());
      mixed ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w;
      mixed ^= c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    for (; i < size; i += step()) {
      const uint4 a = __ldcg(data + i);
      mixed ^= a.x ^ a.y ^ a.z ^ a.w;
    }
  }
  if (mixed == 0x12345678u) atomicAdd(sink, 1u);
}

__global__ void hold_kernel(long long ticks) {
  const long long begin = clock64();
  while (clock64() - begin < ticks) {
  }
}

__global__ void nothing_kernel() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
}

/// Number of thread blocks that fills the device, or fewer for little data.
unsigned fill(std::int64_t size) {
  static const int multiprocessors = cuda::current_device().multiprocessors;
  const std::int64_t needed = (size + kThreads - 1) / kThreads;
  return static_cast<unsigned>(
      std::clamp<std::int64_t>(needed, 1, std::int64_t{multiprocessors} * 8));
}

void expect_launched(const char* kernel) { cuda::expect_success(cudaGetLastError(), kernel); }

}  // namespace

cuda::Device current_device() { return cuda::current_device(); }

void draw(Bits* data, std::int64_t size, std::uint64_t tensor, cudaStream_t stream) {
  draw_kernel<<<fill(size), kThreads, 0, stream>>>(data, size, tensor);
  expect_launched("draw");
}

void count_not_finite(const Bits* data, std::int64_t size, unsigned long long* count,
                      cudaStream_t stream) {
  count_kernel<<<fill(size), kThreads, 0, stream>>>(data, size, count);
  expect_launched("count_not_finite");
}

void write(void* data, std::size_t bytes, std::uint64_t seed, cudaStream_t stream) {
  const auto size = static_cast<std::int64_t>(bytes / 16);
  write_kernel<<<fill(size), kThreads, 0, stream>>>(static_cast<uint4*>(data), size, seed);
  expect_launched("write");
}

void copy(const void* from, void* to, std::size_t bytes, cudaStream_t stream) {
  const auto size = static_cast<std::int64_t>(bytes / 16);
  copy_kernel<<<fill(size), kThreads, 0, stream>>>(static_cast<const uint4*>(from),
                                                   static_cast<uint4*>(to), size);
  expect_launched("copy");
}

void read(const void* data, std::size_t bytes, int passes, unsigned* sink, cudaStream_t stream) {
  const auto size = static_cast<std::int64_t>(bytes / 16);
  read_kernel<<<fill(size), kThreads, 0, stream>>>(static_cast<const uint4*>(data), size, passes,
                                                   sink);
  expect_launched("read");
}

void hold(long long ticks, cudaStream_t stream) {
  hold_kernel<<<1, 1, 0, stream>>>(ticks);
  expect_launched("hold");
}

void nothing(bool early, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(32);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  cuda::expect_success(cudaLaunchKernelEx(&config, nothing_kernel), "nothing");
}

}  // namespace mhla::cuda_bench
