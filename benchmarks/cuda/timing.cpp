#include "cuda/timing.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "cuda/kernels.hpp"
#include "support/median.hpp"

namespace mhla::cuda_bench {
namespace {

constexpr int kWarmUps = 3;
constexpr long long kHeadStart = 200000;  // clock ticks: 0.1 ms at 2 GHz, about 20 launches

std::size_t second_cache_bytes() {
  int device = 0, bytes = 0;
  expect_success(cudaGetDevice(&device), "cudaGetDevice");
  expect_success(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device),
                 "cudaDeviceGetAttribute(cudaDevAttrL2CacheSize)");
  return static_cast<std::size_t>(bytes);
}

/// Computes statistics of at least one run, in the order of the runs.
Seconds summarize(const std::vector<double>& runs) {
  std::vector<double> halves[2];
  for (std::size_t i = 0; i < runs.size(); ++i) halves[i % 2].push_back(runs[i]);
  Seconds seconds{bench::median(runs), *std::min_element(runs.begin(), runs.end()), 0};
  if (!halves[1].empty()) {
    const double difference = bench::median(halves[0]) - bench::median(halves[1]);
    seconds.repeatability = std::abs(difference) / seconds.median;
  }
  return seconds;
}

}  // namespace

ColdCache::ColdCache()
    : cache_bytes_(second_cache_bytes()),
      written_(static_cast<std::int64_t>(2 * cache_bytes_)),
      read_(static_cast<std::int64_t>(2 * cache_bytes_)),
      sink_(1) {
  write(read_.data(), read_.bytes(), 0, nullptr);
  expect_success(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

void ColdCache::prepare(cudaStream_t stream) {
  write(written_.data(), written_.bytes(), seed_, stream);
  seed_ += written_.bytes();
  read(read_.data(), read_.bytes(), 1, sink_.data(), stream);
  hold(kHeadStart, stream);
}

Seconds time_calls(const Enqueue& run, int runs, ColdCache& cache, cudaStream_t stream) {
  std::vector<double> times;
  Stopwatch stopwatch;
  for (int i = -kWarmUps; i < runs; ++i) {
    cache.prepare(stream);
    stopwatch.start(stream);
    run(stream);
    const double seconds = stopwatch.stop(stream);
    if (i >= 0) times.push_back(seconds);
  }
  expect_success(cudaGetLastError(), "a kernel that was timed");
  return summarize(times);
}

double time_replays(const Enqueue& run, int replays, cudaStream_t stream) {
  const CapturedGraph graph(stream, run);
  Stopwatch stopwatch;
  std::vector<double> times;
  for (int i = -kWarmUps; i < 5; ++i) {
    hold(kHeadStart, stream);
    stopwatch.start(stream);
    for (int replay = 0; replay < replays; ++replay) graph.replay(stream);
    const double seconds = stopwatch.stop(stream);
    if (i >= 0) times.push_back(seconds / replays);
  }
  return bench::median(times);
}

}  // namespace mhla::cuda_bench
