#pragma once

/// \file
/// State that all cases share: the device, a stream, cold caches.

#include "cuda/device_memory.hpp"
#include "cuda/kernels.hpp"
#include "cuda/results.hpp"
#include "cuda/timing.hpp"

namespace mhla::cuda_bench {

struct Session {
  cuda::Device device = current_device();
  Stream stream;
  ColdCache cache;
  int runs = 51;  ///< timed runs per case; with 0 a case is only checked
  cuda::Operator op;
};

/// Times a case if its result is right.
inline void time_right(Session& session, const Enqueue& run, Result& result) {
  if (!result.right() || session.runs == 0) return;
  result.seconds = time_calls(run, session.runs, session.cache, session.stream);
  const bool small = result.cost.bytes < static_cast<double>(session.cache.cache_bytes()) / 2;
  if (small) result.replay = time_replays(run, 20, session.stream);
}

/// Measures a whole sequence: bidirectional or causal.
Result measure_form(const Case& c, Session& session);

/// Measures one token of every stream.
Result measure_step(const Case& c, Session& session);

}  // namespace mhla::cuda_bench
