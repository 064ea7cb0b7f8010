#pragma once

/// \file
/// How the gradients of a batch are shared out, and how those of shared parameters are summed.
///
/// Every (sequence, head) pair of a batch writes gradients of tensors of its own. Gradients of what
/// all pairs share are first summed over up to kPairGroups groups of consecutive pairs, each in the
/// order of the pairs, and then over the groups in order: the same sum for any executor.

#include <algorithm>

#include "mhla/attention/batch.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/packet.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/gradient/gradients.hpp"
#include "mhla/gradient/head_gradient.hpp"

namespace mhla::inline MHLA_TARGET::detail {

/// Most groups of pairs, and so most workers that share a batch.
inline constexpr Index kPairGroups = 64;

/// Head h of sequence s.
template <Scalar T>
Gradients<T> head_gradients(const BatchInputs<T>& in, const BatchGradients<T>& gradients, Index s,
                            Index h) {
  const Span queries = sequence_span(s, in.q.tokens(), in.query_offsets);
  const Span keys = sequence_span(s, in.k.tokens(), in.key_offsets);
  return {.q = head_of(gradients.q, queries, h),
          .k = head_of(gradients.k, keys, h),
          .v = head_of(gradients.v, keys, h),
          .normalizer_q = head_of(gradients.normalizer_q, queries, h),
          .normalizer_k = head_of(gradients.normalizer_k, keys, h)};
}

/// Throws unless a batch, the gradient of its output and its gradients fit together and
/// check(inputs, dout, gradients) accepts every sequence.
template <Scalar T, class Check>
void check_batch_gradient(const char* function, const BatchInputs<T>& in,
                          const TensorView<const T>& dout, const BatchGradients<T>& gradients,
                          Check&& check) {
  expect_batch(function, in, dout, "dout");
  const auto expect = [&](const char* argument, const TensorView<T>& gradient, Index tokens) {
    if (!gradient.absent()) {
      expect_tensor(function, argument, gradient, in.q.batch(), tokens, in.q.heads());
    }
  };
  expect("gradients.q", gradients.q, in.q.tokens());
  expect("gradients.k", gradients.k, in.k.tokens());
  expect("gradients.v", gradients.v, in.k.tokens());
  expect("gradients.normalizer_q", gradients.normalizer_q, in.q.tokens());
  expect("gradients.normalizer_k", gradients.normalizer_k, in.k.tokens());
  for (Index s = 0; s < sequences(in) && in.q.heads() > 0; ++s) {
    check(head_inputs(in, s, 0), head_output(in, dout, s, 0), head_gradients(in, gradients, s, 0));
  }
}

/// How many numbers the shared parameters have.
struct ParameterSizes {
  Index mixing = 0, query_map = 0, key_map = 0;
  Index all() const { return mixing + query_map + key_map; }
};

template <class A, class Op>
ParameterSizes parameter_sizes(const MixingMatrix<A>& mixing, const Op& op) {
  return {mixing.rows() * mixing.width(), op.query_map.weights(), op.key_map.weights()};
}

/// The memory of a batch's gradient and the order of its work.
template <class A>
class PairGroups {
 public:
  /// \param bytes  bytes(head, executor) of workspace of head 0 of a sequence
  template <Scalar T, class X, class Bytes>
  PairGroups(const char* function, Arena& arena, const BatchInputs<T>& in,
             const ParameterSizes& sizes, const X& executor, Bytes&& bytes)
      : heads_(in.q.heads()),
        pairs_(sequences(in) * heads_),
        groups_(std::min(pairs_, kPairGroups)),
        spread_(over_pairs(groups_, executor)),
        sizes_(sizes) {
    share_ = most_bytes(in, spread_, executor, bytes);
    const Index workers = spread_ ? static_cast<Index>(executor.workers()) : 1;
    shares_ = arena.take<std::byte>(function, {workers, static_cast<Index>(share_)});
    // A single pair adds to the caller's memory at once.
    sums_ = arena.take<A>(function, {groups_ > 1 ? groups_ : 0, sizes_.all()});
  }

  /// Calls run(sequence, head, sums, workspace, executor) for every pair.
  template <class X, class Run>
  void run(const ParameterSums<A>& sums, X& executor, Run&& run) const {
    const auto run_group = [&](Index g, Index w, auto& x) {
      const ParameterSums<A> own = groups_ > 1 ? sums_of_group(g, sums) : sums;
      const Workspace share(shares_ + w * static_cast<Index>(share_), share_);
      for (Index pair = begin(g); pair < begin(g + 1); ++pair) {
        run(pair / heads_, pair % heads_, own, share, x);
      }
    };
    if (groups_ > 1) std::fill_n(sums_, groups_ * sizes_.all(), A(0));
    if (spread_) {
      executor.for_each(groups_, [&](Index g, Index w) {
        Sequential alone;
        run_group(g, w, alone);
      });
    } else {
      for (Index g = 0; g < groups_; ++g) run_group(g, 0, executor);
    }
    if (groups_ <= 1) return;
    for (Index g = 0; g < groups_; ++g) {
      const ParameterSums<A> own = sums_of_group(g, sums);
      add(own.mixing, sizes_.mixing, sums.mixing);
      add(own.query_map, sizes_.query_map, sums.query_map);
      add(own.key_map, sizes_.key_map, sums.key_map);
    }
  }

 private:
  /// The first pair of group g.
  Index begin(Index g) const { return g * (pairs_ / groups_) + std::min(g, pairs_ % groups_); }

  ParameterSums<A> sums_of_group(Index g, const ParameterSums<A>& wanted) const {
    A* const first = sums_ + g * sizes_.all();
    return {wanted.mixing == nullptr ? nullptr : first,
            wanted.query_map == nullptr ? nullptr : first + sizes_.mixing,
            wanted.key_map == nullptr ? nullptr : first + sizes_.mixing + sizes_.query_map};
  }
  static void add(const A* from, Index count, A* to) {
    if (to != nullptr) add_rows_to(from, 0, 1, to, count);
  }

  Index heads_;
  Index pairs_;
  Index groups_;
  bool spread_;  // groups over the workers, or the blocks of a pair
  ParameterSizes sizes_;
  std::size_t share_ = 0;
  std::byte* shares_ = nullptr;  // [workers, share]
  A* sums_ = nullptr;            // [groups, parameters]
};

}  // namespace mhla::inline MHLA_TARGET::detail
