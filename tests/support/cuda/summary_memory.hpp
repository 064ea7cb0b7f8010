#pragma once

/// \file
/// Summaries of blocks, or their mixtures, in device memory; NaN until they are written.

#include <cstdint>
#include <cstring>

#include "emulator/device.hpp"
#include "mhla/cuda/kernel/parameters.cuh"
#include "support/cuda/problem.hpp"

namespace cuda_test {

template <class T, int D, int E, mhla::cuda::Precision P>
struct SummaryMemory {
  static constexpr bool kPair = P == mhla::cuda::Precision::kPair;
  static constexpr int kParts = kPair ? 2 : 1;

  Array<T> high, low;    ///< [items, D, E]
  Array<float> key_sum;  ///< [items, D]

  explicit SummaryMemory(std::int64_t items)
      : high(items * D * E), low(high.size()), key_sum(items * D) {}

  /// Draws summaries with positive key sums. Sums of the first of `blocks` stay NaN if `causal`.
  void fill(Random& random, int blocks, bool causal = false) {
    for (std::int64_t i = 0; i < high.size(); ++i) {
      if (causal && i / (D * E) % blocks == 0) continue;
      const double x = random.normal();
      high[i] = from_double<T>(x);
      low[i] = from_double<T>(x - high.value(i));
    }
    for (std::int64_t i = 0; i < key_sum.size(); ++i) {
      if (causal && i / D % blocks == 0) continue;
      key_sum[i] = static_cast<float>(random.uniform(0.5, 9));
    }
  }

  /// The array for kernels, with low parts if the precision has them.
  mhla::cuda::SummaryArray array(bool with_key_sum) {
    return {high.raw(), kPair ? low.raw() : nullptr, with_key_sum ? key_sum.data() : nullptr};
  }
  /// Lets kernels access the parts of array(), as "high", "low" and "z".
  void track(emulator::Device& device, emulator::Access access, bool with_key_sum) const {
    device.track("high", high.raw(), high.bytes(), access);
    if (kPair) device.track("low", low.raw(), low.bytes(), access);
    if (with_key_sum) device.track("z", key_sum.raw(), key_sum.bytes(), access);
  }

  bool is_as(const SummaryMemory& other) const {
    return std::memcmp(high.raw(), other.high.raw(), high.bytes()) == 0 &&
           std::memcmp(low.raw(), other.low.raw(), low.bytes()) == 0 &&
           std::memcmp(key_sum.raw(), other.key_sum.raw(), key_sum.bytes()) == 0;
  }
};

}  // namespace cuda_test
