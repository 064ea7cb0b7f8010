#pragma once

/// \file
/// What the kernels of a call do, from the emulation of some of their blocks.
///
/// The call is planned as it is, and run for kPairs (batch item, head) pairs instead of all; of
/// each launch some blocks run, spread over the grid. Work is counted in items: the blocks that the
/// kernel would have if there were a multiprocessor for each. (Blocks of persistent kernels do
/// several.) Launches for P pairs have P / kPairs times the items, all alike but for their place in
/// the sequence.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "mhla/cuda/launch/plan.cuh"
#include "support/cuda/emulator/counters.hpp"

namespace mhla::cuda::model {

inline constexpr std::int32_t kPairs = 3;

/// Sizes of a call of bfloat16 tensors with key sums as denominators.
struct Sizes {
  std::int32_t batch, heads;
  int width, values;
  TokenBlocks blocks;
  bool causal;

  std::int32_t pairs() const { return batch * heads; }
};

/// A kernel that is launched.
struct Launch {
  std::string kernel;  ///< its type
  bool early;
  int threads, blocks_per_multiprocessor;
  double items;
  double share = 1;  ///< of calls that launch it
  // Of the blocks that ran:
  double sampled_items = 0, sampled_blocks = 0;
  emulator::Report report = {};
};

/// A call: its plan and what its launches do.
struct Call {
  Plan plan;
  std::vector<Launch> launches;
  /// Bytes of the arrays that launches read and write, by the names of Report::traffic, of all
  /// pairs.
  std::map<std::string, double> arrays;
};

/// Plans and samples a form. \param device  what it is planned for
template <int D, int E>
Call sample(const Sizes& sizes, const Device& device);
/// Steps of streams in the middle of the sequence: the first token of a block, which adds the block
/// before to its mixture, those within (for all of them one in the middle), and the last, which
/// makes the summary. Of all calls each is a share.
template <int D, int E>
Call sample_steps(const Sizes& sizes);

}  // namespace mhla::cuda::model
