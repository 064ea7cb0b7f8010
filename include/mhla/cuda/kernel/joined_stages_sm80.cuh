#pragma once

/// \file
/// All three stages in one kernel: summaries, their mixtures and outputs, with the bits of the
/// kernels of sm_80 (summary_sm80.cuh, mixing_sm80.cuh, read_out_sm80.cuh,
/// causal_read_out_sm80.cuh) whose code it runs.
///
/// A thread block does the work of one thread block of one stage of one pair: an item. Items go in
/// steps. Step s has the outputs of pair s - 2 lag, the mixtures of pair s - lag and the summaries
/// of pair s. While pairs are between stages, other pairs keep multiprocessors busy. Only the
/// summaries and mixtures of lag + 1 pairs are in use at a time, and L2 has them.
///
/// A thread block takes the number of its item from a counter. An item waits until all items of the
/// pair's previous stage have ended. These items have lower numbers. So thread blocks that run, or
/// have run, have taken them, in whatever order thread blocks begin. ZeroCountersSm80 runs before.
///
/// Items have 128 threads. Where a summary of summary_sm80.cuh takes 256, two items have half of
/// its columns each. Summaries are of Precision::kSingle: pairs would take twice the space in L2,
/// and their outputs 256 threads where D is 128.
///
/// Shared memory: that of the largest stage, and 16 bytes for the item's number. Device memory: the
/// tensors as in three kernels. S and S~ are written, and are read from L2.
/// Source: arXiv:2601.07832, section 4.1, eq. (3) and (4).

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/causal_read_out_sm80.cuh"
#include "mhla/cuda/kernel/mixing_sm80.cuh"
#include "mhla/cuda/kernel/occupancy.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/read_out_sm80.cuh"
#include "mhla/cuda/kernel/stage_counters.cuh"
#include "mhla/cuda/kernel/summary_sm80.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/counter.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"

namespace mhla::cuda {

/// Order of the items.
struct StageOrder {
  std::uint32_t summaries;  ///< items per pair
  std::uint32_t mixtures;
  std::uint32_t outputs;
  std::int32_t pairs;
  std::int32_t lag;  ///< steps from a stage of a pair to the next

  /// An item. There is none if the pair is below 0 or not below `pairs`.
  struct Item {
    int stage;  ///< 0, 1 or 2
    std::int32_t pair;
    std::uint32_t index;  ///< among the items of the stage of the pair
  };

  MHLA_HOST_DEVICE constexpr std::uint32_t step_items() const {
    return summaries + mixtures + outputs;
  }
  /// Number of items, with those that the first and last steps lack.
  constexpr unsigned count() const { return static_cast<unsigned>(pairs + 2 * lag) * step_items(); }
  MHLA_HOST_DEVICE constexpr Item item(std::uint32_t number) const {
    const auto step = static_cast<std::int32_t>(number / step_items());
    std::uint32_t index = number % step_items();
    if (index < outputs) return {2, step - 2 * lag, index};
    index -= outputs;
    if (index < mixtures) return {1, step - lag, index};
    return {0, step, index - mixtures};
  }
  MHLA_HOST_DEVICE constexpr bool has(const Item& item) const {
    return item.pair >= 0 && item.pair < pairs;
  }

  /// The least lag with which `at_once` items lie between the stages of a pair, so that an item
  /// rarely waits where so many run at a time.
  static constexpr std::int32_t least_lag(const StageOrder& order, std::int32_t at_once) {
    const auto items = static_cast<std::int32_t>(order.step_items());
    const auto between = static_cast<std::int32_t>(std::min(order.summaries, order.outputs));
    const std::int32_t lag = 1 + (std::max(at_once - between, 0) + items - 1) / items;
    return std::min(lag, order.pairs);
  }
};

template <class ReadOut>
struct JoinedStagesParameters {
  SummaryParameters summary;
  MixingParameters mixing;
  ReadOut read_out;
  StageCounters counters;
  StageOrder order;
};

template <class T, int D, int E, bool kCausal>
struct JoinedStagesSm80 {
  static constexpr Precision P = Precision::kSingle;
  using Summary = SummarySm80<T, D, E, P, false, D / 64>;
  using Mixing = MixingSm80<T, D, E, P>;
  using ReadOut =
      std::conditional_t<kCausal, CausalReadOutSm80<T, D, E, P>, ReadOutSm80<T, D, E, P>>;
  using Params = JoinedStagesParameters<typename ReadOut::Params>;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  /// Offset of the item's number in shared memory.
  static constexpr int kNumber =
      std::max({Summary::kSharedBytes, Mixing::kSharedBytes, ReadOut::kSharedBytes});
  static constexpr int kSharedBytes = kNumber + 16;
  static constexpr int kBlocksPerMultiprocessor =
      std::min({Summary::kBlocksPerMultiprocessor, Mixing::kBlocksPerMultiprocessor,
                ReadOut::kBlocksPerMultiprocessor, resident_blocks(kThreads, 0, kSharedBytes)});
  static_assert(Summary::kThreads == kThreads && Mixing::kThreads == kThreads &&
                ReadOut::kThreads == kThreads);

  /// The order of the stages of `p`.
  static constexpr StageOrder order(const Params& p, std::int32_t pairs,
                                    std::int32_t multiprocessors) {
    StageOrder order{Summary::grid(p.summary, 1), Mixing::grid(p.mixing, 1),
                     ReadOut::grid(p.read_out, 1), pairs, 0};
    order.lag = StageOrder::least_lag(order, kBlocksPerMultiprocessor * multiprocessors);
    return order;
  }

  static constexpr unsigned grid(const Params& p, int) { return p.order.count(); }

  MHLA_DEVICE void operator()(const Params& p) const {
    ptx::griddepcontrol_wait();
    if (ptx::tid_x() == 0) {
      const std::uint32_t taken = ptx::atom_add(p.counters.taken());
      ptx::st_shared(ptx::shared_begin() + kNumber, taken);
      wait_for_stage(p, p.order.item(taken));
    }
    ptx::bar_sync();
    const StageOrder::Item item = taken_item(p);
    if (!p.order.has(item)) return;
    const auto pair = static_cast<std::uint32_t>(item.pair);
    if (item.stage == 2) {
      ReadOut::run(p.read_out, pair * p.order.outputs + item.index);
      return;
    }
    if (item.stage == 1) {
      // The last rows use most summaries and begin first.
      Mixing::run(p.mixing, (pair + 1) * p.order.mixtures - 1 - item.index);
    } else {
      Summary::run(p.summary, pair * p.order.summaries + item.index);
    }
    ptx::bar_sync();  // all threads have stored
    if (ptx::tid_x() == 0) {
      const StageOrder::Item ended = taken_item(p);  // read again, to save registers
      ptx::red_add_release(p.counters.ended(ended.stage, ended.pair));
    }
  }

 private:
  static MHLA_DEVICE StageOrder::Item taken_item(const Params& p) {
    return p.order.item(ptx::ld_shared(ptx::shared_begin() + kNumber));
  }
  /// Waits until the previous stage of the item's pair has ended.
  static MHLA_DEVICE void wait_for_stage(const Params& p, const StageOrder::Item& item) {
    if (item.stage == 0 || !p.order.has(item)) return;
    ptx::wait_acquire(p.counters.ended(item.stage - 1, item.pair),
                      item.stage == 1 ? p.order.summaries : p.order.mixtures);
  }
};

}  // namespace mhla::cuda
