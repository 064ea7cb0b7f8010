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

/// Set-up of a measurement.
struct Context {
  std::string gpu;              ///< name
  std::string driver, runtime;  ///< versions
  std::string compiler;
  std::string kernels;  ///< architecture of the kernels for this device: "sm_80" or "sm_90a"
  std::string commit;
  int multiprocessors = 0;
  double cache_bytes = 0;     ///< of L2
  double copy_bandwidth = 0;  ///< bytes per second, read plus written
};

/// Result of a case.
struct Result {
  Case subject;
  std::string form;  ///< form of the plan
  std::string reason;
  std::string kernels;  ///< architecture of its kernels: "sm_80", "sm_90a" or both
  double workspace_bytes = 0;
  bench::Cost cost;
  Deviation deviation{};
  Seconds seconds{};  ///< per call, on cold caches
  double replay = 0;  ///< seconds per replay of a graph on warm caches, 0 if not measured

  bool right() const { return deviation.acceptable(); }
};

/// Seconds that a copy takes for as many bytes as the case's tensors have.
double floor_seconds(const Result& result, const Context& context);

void print_context(std::ostream& out, const Context& context);
void print_head(std::ostream& out);
/// Prints a line of the table.
void print_row(std::ostream& out, const Result& result, const Context& context);

void write_json(std::ostream& out, const Context& context, const std::vector<Result>& results);

}  // namespace mhla::cuda_bench
