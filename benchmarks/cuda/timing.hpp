#pragma once

/// \file
/// Time on a device: medians of interleaved runs on cold caches.

#include <cuda_runtime.h>

#include <functional>
#include <string>
#include <vector>

#include "cuda/device_memory.hpp"

namespace mhla::cuda_bench {

/// Puts one call into a stream.
using Enqueue = std::function<void(cudaStream_t)>;

/// One of the things that are compared.
struct Arm {
  std::string name;
  Enqueue run;
};

/// Seconds of an arm.
struct Seconds {
  double median = 0;
  double fastest = 0;
  /// Between the medians of every other run and of the rest, over the median: what a comparison
  /// cannot see.
  double repeatability = 0;
};

/// Statistics of some runs, at least one, in their order.
Seconds summarize(const std::vector<double>& runs);

/// Between runs, writes twice what the second cache holds and then reads as much, so that what was
/// written is not written back while a run is measured.
class ColdCache {
 public:
  ColdCache();
  /// What is put into the stream behind this finds nothing of its data in a cache, and has been put
  /// there completely before the device comes to it, so that the launches' cost is not measured.
  void prepare(cudaStream_t stream);

  std::size_t cache_bytes() const { return cache_bytes_; }

 private:
  std::size_t cache_bytes_ = 0;
  std::uint64_t seed_ = 1;
  DeviceArray<unsigned char> written_, read_;
  DeviceArray<unsigned> sink_;
};

/// Times of the arms, which take turns; three rounds before are not counted.
std::vector<Seconds> time_interleaved(const std::vector<Arm>& arms, int runs, ColdCache& cache,
                                      cudaStream_t stream);

/// Seconds of one replay of a graph of the call, many one after another on warm caches.
double time_replays(const Enqueue& run, int replays, cudaStream_t stream);

}  // namespace mhla::cuda_bench
