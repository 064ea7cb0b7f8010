#pragma once

/// \file
/// The driver of a form whose blocks are split over ranks. (sequence, head) pairs go through the
/// steps of a head one after another. Rows of a pair's arrays are sent between two of its steps.
/// Meanwhile this rank works on the pairs before and after it, and on other parts of the same pair
/// (rank_steps.hpp, summary_transfer.hpp):
///
///     forward    summarize | read
///     gradient   summarize | read_queries | read_keys | finish, where maps have weights
///
/// Every step is that of one machine, on a share of the blocks, so all bits are the same.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "mhla/attention/form.hpp"
#include "mhla/attention/heads.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/distributed/call.hpp"
#include "mhla/distributed/communicator.hpp"
#include "mhla/distributed/rank_steps.hpp"
#include "mhla/distributed/route.hpp"
#include "mhla/distributed/summary_transfer.hpp"
#include "mhla/gradient/check.hpp"
#include "mhla/gradient/driver.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// A pair in flight: its head, and the transfers that it waits for.
template <class C, class T, class Blocks, class Make>
class PairInFlight {
  using SequenceBlocks =
      decltype(sequence_blocks(std::declval<const Blocks&>(), std::declval<Inputs<T>>()));
  using Head = std::invoke_result_t<const Make&, Arena&, const Inputs<T>&, const SequenceBlocks&,
                                    const CrossShares&>;

 public:
  /// \param make  make(arena, in, own blocks, shares) returns the head
  Head& open(std::byte* memory, const Inputs<T>& in, const Blocks& blocks,
             const CrossShares& shares, const Make& make) {
    in_ = in;
    sequence_.emplace(sequence_blocks(blocks, in));
    Arena arena(memory);
    head_.reset(new Head(make(arena, in_, *sequence_, shares)));
    return *head_;
  }
  Head& head() { return *head_; }

  /// Transfers of the head's summaries, and of the gradients of its mixtures.
  SummaryTransfer<C>& summaries() { return summaries_; }
  SummaryTransfer<C>& mixtures() { return mixtures_; }
  /// Starts the transfer of all rows of other arrays.
  void start(C& comm, const Route& route, const std::vector<distributed::SharedRows>& arrays) {
    if (!arrays.empty()) transfers_.push_back(route.start(comm, arrays));
  }
  void wait() {
    summaries_.wait();
    mixtures_.wait();
    for (auto& transfer : transfers_) transfer.wait();
    transfers_.clear();
  }
  void poll() {
    summaries_.poll();
    mixtures_.poll();
    for (auto& transfer : transfers_) static_cast<void>(transfer.done());
  }

 private:
  Inputs<T> in_;
  std::optional<SequenceBlocks> sequence_;
  std::unique_ptr<Head> head_;
  SummaryTransfer<C> summaries_, mixtures_;
  std::vector<TransferOf<C>> transfers_;
};

/// The pairs in flight of a call, each in its share of memory.
template <class Pair>
class InFlightHeads {
 public:
  InFlightHeads(const char* function, Index steps, std::size_t bytes)
      : share_(round_up(static_cast<Index>(bytes), kBufferAlignment)),
        memory_(function, {},
                static_cast<std::size_t>(checked_product(function, "workspace", {steps, share_}))),
        pairs_(static_cast<std::size_t>(steps)) {}

  Pair& operator[](Index pair) { return pairs_[place(pair)]; }
  std::byte* memory(Index pair) {
    return memory_.bytes().data() + static_cast<Index>(place(pair)) * share_;
  }
  void poll() {
    for (Pair& pair : pairs_) pair.poll();
  }
  void wait() {
    for (Pair& pair : pairs_) pair.wait();
  }

 private:
  std::size_t place(Index pair) const { return static_cast<std::size_t>(pair) % pairs_.size(); }

  Index share_;
  Scratch memory_;
  std::vector<Pair> pairs_;  // their transfers end before their memory does
};

/// Calls step(s, pair) for the steps s of every pair. Steps of a pair are in order, and between two
/// of them comes one step of each other pair in flight.
template <class Step>
void for_each_step(Index pairs, Index steps, Step&& step) {
  for (Index front = 0; front < pairs + steps - 1; ++front) {
    for (Index s = 0; s < steps; ++s) {
      if (front - s >= 0 && front - s < pairs) step(s, front - s);
    }
  }
}

/// Largest number of bytes of a head over all sequences.
template <class In, class Blocks, class Make>
std::size_t most_bytes(const In& in, const Blocks& blocks, const std::vector<Split>& splits,
                       const Make& make) {
  std::size_t most = 0;
  for (Index s = 0; s < sequences(in) && heads(in) > 0; ++s) {
    const auto head = head_inputs(in, s, 0);
    const auto sequence = sequence_blocks(blocks, head);
    most =
        std::max(most, counted_bytes([&](Arena& arena) {
                   return make(arena, head, sequence, splits[static_cast<std::size_t>(s)].shares);
                 }));
  }
  return most;
}

/// Computes the outputs of this rank's queries.
template <distributed::Communicator C, class Form, class In>
void run_ranks(C& comm, const Form& form, const In& in,
               const std::type_identity_t<output_of<In>>& out, const Call& call) {
  const std::vector<Split> splits =
      agree_on(comm, form, in, dout_of<In>(out), "out", call,
               [&](CallSignature&) { expect_separate(form.name, in, dout_of<In>(out)); });
  const auto make = [&](Arena& arena, const auto& head, const auto& sequence,
                        const CrossShares& shares) {
    return form.forward(arena, head, sequence, call.executor.workers(), shares);
  };
  using Pair =
      PairInFlight<C, scalar_of<In>, std::remove_cvref_t<decltype(form.blocks)>, decltype(make)>;
  InFlightHeads<Pair> pairs(form.name, 2, most_bytes(in, form.blocks, splits, make));
  const RankSteps steps(comm, pairs, call.executor);
  for_each_step(sequences(in) * heads(in), 2, [&](Index step, Index p) {
    const Index s = p / heads(in), h = p % heads(in);
    const Split& split = splits[static_cast<std::size_t>(s)];
    Pair& pair = pairs[p];
    if (step == 0) {
      pair.wait();  // for the previous pair, whose memory it reuses
      auto& head =
          pair.open(pairs.memory(p), head_inputs(in, s, h), form.blocks, split.shares, make);
      pair.summaries().begin(split.summaries,
                             shared_rows([&](auto&& f) { head.for_each_array(f); }));
      steps.summarize(head, pair.summaries());
    } else {
      steps.read(pair.head(), form.mixing.of_sequence(s).of_head(h), head_output(in, out, s, h),
                 pair.summaries());
    }
  });
  pairs.wait();
}

/// Adds the gradients of this rank's tokens, and the same gradients of parameters on all ranks.
template <distributed::Communicator C, class Form, class In>
void run_ranks_gradient(C& comm, const Form& form, const In& in,
                        const std::type_identity_t<dout_of<In>>& dout,
                        const gradients_of<In>& gradients, const parameters_of<In>& parameters,
                        const Call& call) {
  using A = sum_of<In>;
  const std::vector<Split> splits =
      agree_on(comm, form, in, dout, "dout", call, [&](CallSignature& signature) {
        expect_parameters(form.name, form.mixing, form.op, parameters);
        expect_batch_gradients(form.name, in, gradients);
        for (Index s = 0; s < sequences(in) && heads(in) > 0; ++s) {
          expect_gradients(form.name, head_inputs(in, s, 0), head_gradients(in, gradients, s, 0));
        }
        expect_separate_gradients(form.name, in, dout, gradients, parameters,
                                  mixing_places<scalar_of<In>>(form));
        signature.add("parameters.mixing", "presence", parameters.mixing.absent() ? 0 : 1);
        signature.add("parameters.query_map", "presence", parameters.query_map.empty() ? 0 : 1);
        signature.add("parameters.key_map", "presence", parameters.key_map.empty() ? 0 : 1);
      });
  if (!parameters.mixing.absent()) expect_one_split(form.name, splits);
  const auto make = [&](Arena& arena, const auto& head, const auto& sequence,
                        const CrossShares& shares) {
    return form.gradient(arena, head, sequence, call.executor.workers(), shares);
  };
  using Pair =
      PairInFlight<C, scalar_of<In>, std::remove_cvref_t<decltype(form.blocks)>, decltype(make)>;
  const bool weights = !parameters.query_map.empty() || !parameters.key_map.empty();
  const Index count = sequences(in) * heads(in), step_count = weights ? 4 : 3;
  InFlightHeads<Pair> pairs(form.name, step_count, most_bytes(in, form.blocks, splits, make));
  const RankSteps steps(comm, pairs, call.executor);
  const ParameterSizes sizes = parameter_sizes(form.mixing, form.op);
  Scratch memory(form.name, {}, counted_bytes([&](Arena& arena) {
                   return PairSums<A>(form.name, arena, count, sizes);
                 }));
  const PairSums<A> sums(form.name, memory.arena(), count, sizes);
  sums.start(parameters);
  Index group = 0;  // of the pair that is opened
  for_each_step(count, step_count, [&](Index step, Index p) {
    const Index s = p / heads(in), h = p % heads(in);
    const Split& split = splits[static_cast<std::size_t>(s)];
    Pair& pair = pairs[p];
    if (step == 0) {
      while (p >= sums.begin(group + 1)) ++group;
      auto& head =
          pair.open(pairs.memory(p), head_inputs(in, s, h), form.blocks, split.shares, make);
      head.set(head_output(in, dout, s, h), head_gradients(in, gradients, s, h),
               sums.of_pair(group, p, parameters));
      pair.summaries().begin(split.summaries,
                             shared_rows([&](auto&& f) { head.for_each_array(f); }));
      steps.summarize(head, pair.summaries());
      return;
    }
    pair.wait();
    auto& head = pair.head();
    if (step == 1) {
      pair.mixtures().begin(split.mixtures,
                            shared_rows([&](auto&& f) { head.for_each_mixture_array(f); }));
      steps.read_queries(head, form.mixing.of_sequence(s).of_head(h), pair.mixtures());
    } else if (step == 2) {
      steps.read_keys(head, form.mixing.of_sequence(s).of_head(h));
      if (!weights) return;
      pair.start(comm, split.query_parts,
                 shared_rows([&](auto&& f) { head.query_parts().for_each_array(f); }));
      pair.start(comm, split.key_parts,
                 shared_rows([&](auto&& f) { head.key_parts().for_each_array(f); }));
    } else {
      head.finish();
    }
  });
  sums.finish(parameters);
  if (!parameters.mixing.absent() && !splits.empty()) {
    gather_rows(comm, parameters.mixing, splits.front().queries);
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
