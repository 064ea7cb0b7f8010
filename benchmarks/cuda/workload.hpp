#pragma once

/// \file
/// Data of cases on the device.

#include <cuda_profiler_api.h>

#include <cstdint>
#include <random>
#include <vector>

#include "cuda/device_memory.hpp"
#include "cuda/kernels.hpp"
#include "cuda/session.hpp"

namespace mhla::cuda_bench {

/// A mixing matrix [M, M] of numbers in [0.25, 1).
inline std::vector<float> random_mixing(Index blocks) {
  std::mt19937 random(11);
  std::vector<float> mixing;
  for (Index i = 0; i < blocks * blocks; ++i) {
    mixing.push_back(0.25f + 0.75f * static_cast<float>(random() >> 8) * 0x1p-24f);
  }
  return mixing;
}

/// Returns numbers of tensor number `tensor`, uniform in [-1, 1).
inline DeviceArray<Bits> random_tensor(std::int64_t size, std::uint64_t tensor, Session& session) {
  DeviceArray<Bits> data(size);
  draw(data.data(), size, tensor, session.stream);
  return data;
}

/// Poisons an output, calls run(stream) with the profiler on, and returns how many outputs are not
/// finite.
template <class Run>
std::int64_t run_on_poison(DeviceArray<Bits>& out, Run&& run, Session& session) {
  expect_success(cudaMemsetAsync(out.data(), 0xFF, out.bytes(), session.stream), "cudaMemsetAsync");
  session.stream.wait();
  expect_success(cudaProfilerStart(), "cudaProfilerStart");
  run(session.stream);
  session.stream.wait();
  expect_success(cudaProfilerStop(), "cudaProfilerStop");
  DeviceArray<unsigned long long> count(std::vector<unsigned long long>{0});
  count_not_finite(out.data(), out.size(), count.data(), session.stream);
  session.stream.wait();
  unsigned long long found = 0;
  expect_success(cudaMemcpy(&found, count.data(), sizeof(found), cudaMemcpyDeviceToHost),
                 "cudaMemcpy");
  return static_cast<std::int64_t>(found);
}

}  // namespace mhla::cuda_bench
