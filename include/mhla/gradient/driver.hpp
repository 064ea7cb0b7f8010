#pragma once

/// \file
/// The driver of the gradient of any form (attention/form.hpp) over heads, batches and threads.
///
/// Each (sequence, head) pair writes the gradients of its tensors. Gradients of shared parameters
/// are summed over up to kPairGroups groups of consecutive pairs. Each group adds its pairs in
/// order, and then the groups are added in order, so the sum is the same for any executor. The
/// whole sum is added once to the caller's memory.

#include <algorithm>
#include <optional>
#include <span>

#include "mhla/attention/batch.hpp"
#include "mhla/attention/form.hpp"
#include "mhla/attention/heads.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/overlap.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/gradient/check.hpp"
#include "mhla/gradient/gradients.hpp"
#include "mhla/kernel/packet.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Most groups of pairs, and so most workers that share a batch.
inline constexpr Index kPairGroups = 64;

template <class In>
struct GradientTraits;
template <Scalar T>
struct GradientTraits<Inputs<T>> {
  using Gradients = mhla::Gradients<T>;
};
template <Scalar T>
struct GradientTraits<BatchInputs<T>> {
  using Gradients = BatchGradients<T>;
};
template <class In>
using gradients_of = typename GradientTraits<In>::Gradients;
template <class In>
using parameters_of = std::type_identity_t<ParameterGradients<sum_of<In>>>;

/// Head h of sequence s of tensors that are shaped as the inputs.
template <class Head, Scalar T, class Batch>
Head head_tensors(const BatchInputs<T>& in, const Batch& batch, Index s, Index h) {
  const Span queries = query_span(in, s), keys = key_span(in, s);
  return {.q = head_of(batch.q, queries, h),
          .k = head_of(batch.k, keys, h),
          .v = head_of(batch.v, keys, h),
          .normalizer_q = head_of(batch.normalizer_q, queries, h),
          .normalizer_k = head_of(batch.normalizer_k, keys, h)};
}
template <Scalar T>
Gradients<T> head_gradients(const BatchInputs<T>& in, const BatchGradients<T>& gradients, Index s,
                            Index h) {
  return head_tensors<Gradients<T>>(in, gradients, s, h);
}
template <Scalar T>
Gradients<T> head_gradients(const Inputs<T>&, const Gradients<T>& gradients, Index, Index) {
  return gradients;
}

/// Throws unless the gradients of a batch are absent or agree with it in batch, tokens and heads,
/// and have distinct elements.
template <Scalar T>
void expect_batch_gradients(const char* function, const BatchInputs<T>& in,
                            const BatchGradients<T>& gradients) {
  const auto expect = [&](const char* argument, const TensorView<T>& gradient, Index tokens) {
    if (gradient.absent()) return;
    expect_tensor(function, argument, gradient, in.q.batch(), tokens, in.q.heads());
    expect_distinct(function, argument, gradient);
  };
  expect("gradients.q", gradients.q, in.q.tokens());
  expect("gradients.k", gradients.k, in.k.tokens());
  expect("gradients.v", gradients.v, in.k.tokens());
  expect("gradients.normalizer_q", gradients.normalizer_q, in.q.tokens());
  expect("gradients.normalizer_k", gradients.normalizer_k, in.k.tokens());
}
template <Scalar T>
void expect_batch_gradients(const char*, const Inputs<T>&, const Gradients<T>&) {}

/// Sizes of the shared parameters.
struct ParameterSizes {
  Pattern mixing{};
  Index query_map = 0, key_map = 0;

  Index all() const { return mixing.size() + query_map + key_map; }
};

template <class Op>
ParameterSizes parameter_sizes(const Pattern& mixing, const Op& op) {
  return {mixing, op.query_map.weights(), op.key_map.weights()};
}

/// The gradients of shared parameters, summed over groups of pairs.
template <class A>
class PairSums {
 public:
  PairSums(const char* function, Arena& arena, Index pairs, const ParameterSizes& sizes)
      : pairs_(pairs), groups_(std::min(pairs, kPairGroups)), sizes_(sizes) {
    // A single pair adds to the caller's memory directly.
    sums_ = arena.take<A>(function, {groups_ > 1 ? groups_ : 0, sizes_.all()});
  }

  Index groups() const { return groups_; }
  /// The first pair of group g.
  Index begin(Index g) const { return g * (pairs_ / groups_) + std::min(g, pairs_ % groups_); }
  /// Clears what is wanted; the pages of the rest are never touched.
  void start(const ParameterGradients<A>& wanted) const {
    if (groups_ <= 1) return;
    for (Index g = 0; g < groups_; ++g) {
      const ParameterGradients<A> group_sums = sums_of_group(g, wanted);
      for (const std::span<A> numbers :
           {group_sums.mixing.storage(), group_sums.query_map, group_sums.key_map}) {
        std::fill(numbers.begin(), numbers.end(), A(0));
      }
    }
  }
  /// Memory that the pairs of group g add to.
  ParameterGradients<A> of_group(Index g, const ParameterGradients<A>& wanted) const {
    return groups_ > 1 ? sums_of_group(g, wanted) : wanted;
  }
  /// Sums the groups in order and adds the sum.
  void finish(const ParameterGradients<A>& sums) const {
    if (groups_ <= 1) return;
    const ParameterGradients<A> total = sums_of_group(0, sums);
    for (Index g = 1; g < groups_; ++g) add(sums_of_group(g, sums), total);
    add(total, sums);
  }

 private:
  ParameterGradients<A> sums_of_group(Index g, const ParameterGradients<A>& wanted) const {
    A* const first = sums_ + g * sizes_.all();
    ParameterGradients<A> group_sums;
    if (!wanted.mixing.absent()) group_sums.mixing = {first, sizes_.mixing};
    if (!wanted.query_map.empty()) {
      group_sums.query_map = {first + sizes_.mixing.size(), wanted.query_map.size()};
    }
    if (!wanted.key_map.empty()) {
      group_sums.key_map = {first + sizes_.mixing.size() + sizes_.query_map, wanted.key_map.size()};
    }
    return group_sums;
  }
  static void add(const ParameterGradients<A>& from, const ParameterGradients<A>& to) {
    const auto add_numbers = [](std::span<const A> numbers, std::span<A> sums) {
      add_to(numbers.data(), sums.data(), std::ssize(numbers));
    };
    add_numbers(from.mixing.storage(), to.mixing.storage());
    add_numbers(from.query_map, to.query_map);
    add_numbers(from.key_map, to.key_map);
  }

  Index pairs_;
  Index groups_;
  ParameterSizes sizes_;
  A* sums_ = nullptr;  // [groups, parameters]
};

/// The memory of a batch's gradient and the order of its work.
template <class A>
class PairGroups {
 public:
  template <class Form, class In>
  PairGroups(const Form& form, Arena& arena, const In& in, const ParameterSizes& sizes,
             const ExecutorRef& executor)
      : heads_(heads(in)),
        sums_(form.name, arena, pairs(form.name, in), sizes),
        spread_(over_pairs(sums_.groups(), executor)) {
    const Index workers = executor.workers();
    share_ = static_cast<Index>(most_bytes(
        in, [&](const auto& head) { return gradient_bytes(form, head, spread_ ? 1 : workers); }));
    shares_ = arena.take<std::byte>(form.name, {spread_ ? workers : 1, share_});
  }

  /// Calls run(sequence, head, sums, memory, executor) for every pair.
  template <class Run>
  void run(const ParameterGradients<A>& sums, const ExecutorRef& executor, Run&& run) const {
    const auto run_group = [&](Index g, Index w, const ExecutorRef& x) {
      const ParameterGradients<A> group_sums = sums_.of_group(g, sums);
      for (Index pair = sums_.begin(g); pair < sums_.begin(g + 1); ++pair) {
        run(pair / heads_, pair % heads_, group_sums, shares_ + w * share_, x);
      }
    };
    sums_.start(sums);
    if (spread_) {
      executor.for_each(sums_.groups(), [&](Index g, Index w) { run_group(g, w, ExecutorRef()); });
    } else {
      for (Index g = 0; g < sums_.groups(); ++g) run_group(g, 0, executor);
    }
    sums_.finish(sums);
  }

 private:
  Index heads_;
  PairSums<A> sums_;
  bool spread_;  // groups over the workers; else the blocks of a pair
  Index share_ = 0;
  std::byte* shares_ = nullptr;  // [workers, share]
};

template <class Form, class In>
std::size_t form_gradient_bytes(const Form& form, const In& in, const ParameterSizes& sizes,
                                const ExecutorRef& executor) {
  return counted_bytes(
      [&](Arena& arena) { return PairGroups<sum_of<In>>(form, arena, in, sizes, executor); });
}

/// Adds the gradients of all heads. Nothing is written before everything has been checked.
template <class Form, class In>
void run_gradient(const Form& form, const In& in, const std::type_identity_t<dout_of<In>>& dout,
                  const gradients_of<In>& gradients, const ParameterSizes& sizes,
                  const ParameterGradients<sum_of<In>>& parameters, const Call& call) {
  using A = sum_of<In>;
  expect_batch(form.name, in, dout, "dout");
  expect_batch_gradients(form.name, in, gradients);
  for (Index s = 0; s < sequences(in) && heads(in) > 0; ++s) {
    const auto head = head_inputs(in, s, 0);
    form.check(head, head_output(in, dout, s, 0), "dout");
    expect_gradients(form.name, head, head_gradients(in, gradients, s, 0));
  }
  std::span<const A> mixing;
  if constexpr (requires { form.mixing.storage(); }) mixing = form.mixing.storage();
  expect_separate_gradients(form.name, in, dout, gradients, parameters, mixing);
  Scratch scratch(form.name, call.workspace, form_gradient_bytes(form, in, sizes, call.executor));
  const KeptMemory kept(form, in, call.kept, find_kept);
  const PairGroups<A> groups(form, scratch.arena(), in, sizes, call.executor);
  groups.run(parameters, call.executor,
             [&](Index s, Index h, const ParameterGradients<A>& sums, std::byte* memory,
                 const ExecutorRef& executor) {
               Arena arena(memory);
               std::optional<Arena> keep = kept.arena(s, h);
               add_gradient(form, arena, keep ? &*keep : nullptr, head_inputs(in, s, h),
                            head_output(in, dout, s, h), head_gradients(in, gradients, s, h), sums,
                            executor);
             });
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
