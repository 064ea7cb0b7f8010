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
};

/// Times a right result and its right peers. `result.deviation` and the peers' deviations must be
/// known.
/// \param peers  one arm for each of result.peers
inline void time_all(Session& session, const Enqueue& run, const std::vector<Arm>& peers,
                     Result& result) {
  if (!result.right() || session.runs == 0) return;
  std::vector<Arm> arms{{result.subject.label(), run}};
  for (std::size_t i = 0; i < peers.size(); ++i) {
    if (result.peers[i].deviation.acceptable()) arms.push_back(peers[i]);
  }
  const auto seconds = time_interleaved(arms, session.runs, session.cache, session.stream);
  result.seconds = seconds[0];
  std::size_t next = 1;
  for (PeerResult& peer : result.peers) {
    if (peer.deviation.acceptable()) peer.seconds = seconds[next++];
  }
  const bool small = result.cost.bytes < static_cast<double>(session.cache.cache_bytes()) / 2;
  if (small) result.replay = time_replays(run, 20, session.stream);
}

/// Measures a whole sequence: bidirectional or causal.
Result measure_form(const Case& c, Session& session);

/// Measures one token of every stream.
Result measure_step(const Case& c, Session& session);

}  // namespace mhla::cuda_bench
