#pragma once

/// \file
/// Results as a table and as JSON, which peers/torch_cuda_peers.py reads.

#include <ostream>
#include <string>
#include <vector>

#include "cuda/cases.hpp"
#include "cuda/definition.hpp"
#include "cuda/timing.hpp"

namespace mhla::cuda_bench {

/// What the numbers were measured on.
struct Context {
  std::string gpu;              ///< its name
  std::string driver, runtime;  ///< versions
  std::string compiler;
  std::string kernels;  ///< "sm_80" or "sm_90a": what the program has for this device
  std::string commit;
  int multiprocessors = 0;
  double cache_bytes = 0;     ///< of the second cache
  double copy_bandwidth = 0;  ///< bytes a second, read plus written
};

/// Another implementation of a case.
struct PeerResult {
  std::string name;
  Deviation deviation;
  Seconds seconds;
};

/// A case.
struct Result {
  Case subject;
  std::string form;  ///< of the plan
  std::string reason;
  std::string kernels;  ///< whose instructions they use: "sm_80", "sm_90a" or both
  double workspace_bytes = 0;
  bench::Cost cost;
  Deviation deviation{};
  Seconds seconds{};  ///< a call on cold caches
  double replay = 0;  ///< seconds of a graph's replay on warm caches, 0 where not measured
  std::vector<PeerResult> peers{};

  bool right() const { return deviation.acceptable(); }
};

/// Time that copying takes for as many bytes as the case's tensors have.
double floor_seconds(const Result& result, const Context& context);

void print_context(std::ostream& out, const Context& context);
void print_head(std::ostream& out);
/// A line of the table and one for every peer that was wrong.
void print_row(std::ostream& out, const Result& result, const Context& context);

void write_json(std::ostream& out, const Context& context, const std::vector<Result>& results);

}  // namespace mhla::cuda_bench
