#pragma once

/// \file
/// The driver of the gradient of any form (attention/form.hpp) over heads, batches and threads.
///
/// Each (sequence, head) pair writes the gradients of its tensors. Gradients of shared parameters
/// are summed over up to kPairGroups groups of consecutive pairs. Each group adds its pairs in
/// order, and then the groups are added in order, so the sum is the same for any executor. The
/// whole sum is added once to the caller's memory. The gradient of a mixing matrix per head is a
/// sum over the sequences alone, in the same order. That of a matrix per sequence and head is no
/// sum.

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
  Index matrices = 1;  ///< mixing matrices: 1, one per head, or one per sequence and head
  Index query_map = 0, key_map = 0;
};

template <class A, class Op>
ParameterSizes parameter_sizes(const MixingView<A>& mixing, const Op& op) {
  return {mixing.pattern(), mixing.matrices(), op.query_map.weights(), op.key_map.weights()};
}

/// The gradients of shared parameters, summed over groups of pairs. A group has a matrix for each
/// mixing matrix of its pairs: pair begin(g) + n of group g adds to matrix n modulo all matrices.
template <class A>
class PairSums {
 public:
  PairSums(const char* function, Arena& arena, Index pairs, const ParameterSizes& sizes)
      : pairs_(pairs),
        groups_(std::min(pairs, kPairGroups)),
        sizes_(sizes),
        matrices_(std::min(sizes.matrices, ceil_div(pairs, std::max<Index>(groups_, 1)))),
        mixing_size_(checked_product(function, "workspace", {matrices_, sizes.mixing.size()})),
        stride_(mixing_size_ + sizes.query_map + sizes.key_map) {
    // A single pair adds to the caller's memory directly.
    sums_ = arena.take<A>(function, {groups_ > 1 ? groups_ : 0, stride_});
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
  /// Memory that a pair of group g adds to.
  ParameterGradients<A> of_pair(Index g, Index pair, const ParameterGradients<A>& wanted) const {
    ParameterGradients<A> sums = groups_ > 1 ? sums_of_group(g, wanted) : wanted;
    sums.mixing = sums.mixing.matrix((pair - begin(g)) % sizes_.matrices);
    return sums;
  }
  /// Sums the groups in order and adds the sum.
  void finish(const ParameterGradients<A>& sums) const {
    if (groups_ <= 1) return;
    const Index all = sizes_.matrices;
    for (Index n = 0; n < sums.mixing.matrices(); ++n) {
      add_groups(
          sums.mixing.matrix(n).storage(),
          [&](Index g, const auto& group_sums) {
            const Index place = (n + all - begin(g) % all) % all;
            return place < begin(g + 1) - begin(g) ? group_sums.mixing.matrix(place).storage()
                                                   : std::span<A>();
          },
          sums);
    }
    add_groups(
        sums.query_map, [](Index, const auto& of) { return of.query_map; }, sums);
    add_groups(
        sums.key_map, [](Index, const auto& of) { return of.key_map; }, sums);
  }

 private:
  ParameterGradients<A> sums_of_group(Index g, const ParameterGradients<A>& wanted) const {
    A* const first = sums_ + g * stride_;
    ParameterGradients<A> group_sums;
    if (!wanted.mixing.absent()) {
      group_sums.mixing = {first, sizes_.mixing, matrices_, sizes_.mixing.size()};
    }
    if (!wanted.query_map.empty()) {
      group_sums.query_map = {first + mixing_size_, wanted.query_map.size()};
    }
    if (!wanted.key_map.empty()) {
      group_sums.key_map = {first + mixing_size_ + sizes_.query_map, wanted.key_map.size()};
    }
    return group_sums;
  }
  /// Adds the sum of some numbers of all groups.
  /// \param part  part(g, sums of group g): the numbers, empty if the group has none
  template <class Part>
  void add_groups(std::span<A> to, const Part& part, const ParameterGradients<A>& wanted) const {
    std::span<A> total;
    for (Index g = 0; g < groups_; ++g) {
      const std::span<A> numbers = part(g, sums_of_group(g, wanted));
      if (total.empty()) {
        total = numbers;
      } else if (!numbers.empty()) {
        add_to(numbers.data(), total.data(), std::ssize(total));
      }
    }
    add_to(total.data(), to.data(), std::ssize(total));
  }

  Index pairs_;
  Index groups_;
  ParameterSizes sizes_;
  Index matrices_;     // of a group
  Index mixing_size_;  // their numbers
  Index stride_;
  A* sums_ = nullptr;  // [groups, stride]
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
      for (Index pair = sums_.begin(g); pair < sums_.begin(g + 1); ++pair) {
        run(pair / heads_, pair % heads_, sums_.of_pair(g, pair, sums), shares_ + w * share_, x);
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
  expect_batch_of(form, in, dout, "dout");
  expect_batch_gradients(form.name, in, gradients);
  for (Index s = 0; s < sequences(in) && heads(in) > 0; ++s) {
    const auto head = head_inputs(in, s, 0);
    form.check(head, head_output(in, dout, s, 0), "dout");
    expect_gradients(form.name, head, head_gradients(in, gradients, s, 0));
  }
  expect_separate_gradients(form.name, in, dout, gradients, parameters,
                            mixing_places<scalar_of<In>>(form));
  Scratch scratch(form.name, call.workspace, form_gradient_bytes(form, in, sizes, call.executor));
  const KeptMemory kept(form, in, call.kept, Kept::kRead);
  const PairGroups<A> groups(form, scratch.arena(), in, sizes, call.executor);
  groups.run(parameters, call.executor,
             [&](Index s, Index h, const ParameterGradients<A>& sums, std::byte* memory,
                 const ExecutorRef& executor) {
               Arena arena(memory);
               std::optional<Arena> keep = kept.arena(s, h);
               add_gradient(of_pair(form, s, h), arena, keep ? &*keep : nullptr,
                            head_inputs(in, s, h), head_output(in, dout, s, h),
                            head_gradients(in, gradients, s, h), sums, executor);
             });
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
