#pragma once

/// \file
/// Timing on a device: medians of runs on cold caches.

#include <cuda_runtime.h>

#include <functional>

#include "cuda/device_memory.hpp"

namespace mhla::cuda_bench {

/// Enqueues one call into a stream.
using Enqueue = std::function<void(cudaStream_t)>;

/// Seconds of a call.
struct Seconds {
  double median = 0;
  double fastest = 0;
  /// Difference between the medians of every second run and of the others, relative to the median.
  /// Smaller differences between calls are noise.
  double repeatability = 0;
};

/// Clears L2 between runs: writes twice its size, then reads as much. The written lines are then
/// not written back while a run is measured.
class ColdCache {
 public:
  ColdCache();
  /// Work that is enqueued after this finds none of its data in a cache. The device reaches that
  /// work only when all of it is enqueued, so that the cost of launches is not measured.
  void prepare(cudaStream_t stream);

  std::size_t cache_bytes() const { return cache_bytes_; }

 private:
  std::size_t cache_bytes_ = 0;
  std::uint64_t seed_ = 1;
  DeviceArray<unsigned char> written_, read_;
  DeviceArray<unsigned> sink_;
};

/// Times a call. The first three runs are not counted.
Seconds time_calls(const Enqueue& run, int runs, ColdCache& cache, cudaStream_t stream);

/// Seconds per replay of a graph of the call, over many consecutive replays on warm caches.
double time_replays(const Enqueue& run, int replays, cudaStream_t stream);

}  // namespace mhla::cuda_bench
