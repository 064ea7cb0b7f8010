#pragma once

/// \file
/// The gradient of causal attention (attention/causal.hpp): that of bidirectional.hpp with the
/// mixtures S~_i of the blocks before, and inside a block the adjoint of intra_block.hpp:
///
///     P = phi(Q_i) phi(K_i)^T,   r_t = phi(q_t) . z~_i + m_ii sum_{j<=t} P_tj
///     dP_tj = m_ii (dn_t . v_j + dr_t) for j <= t
///
/// Query t reads keys 0..t only, so dq_t depends on no later token, and dk_j, dv_j on queries from
/// j on alone. Later tokens enter no sum, not even multiplied by zero.
/// Cost: about 10*N*D*E + 3*M^2*D*E + 2.5*N*W*(D+E) flops, 2*N*D*E less with summaries that the
/// forward kept; memory 2*M*D*(E+1) + N*(D+E) numbers and as many for mixtures as the forward.
/// Source: derived from arXiv:2601.07832, section 4.2 and appendix C.

#include <algorithm>
#include <utility>

#include "mhla/attention/causal.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/gradient/causal_block.hpp"
#include "mhla/gradient/gradients.hpp"
#include "mhla/gradient/head_gradient.hpp"

namespace mhla::inline MHLA_TARGET {

/// Adds the gradients of one head to `gradients` and `parameters`. Of parameters.mixing the lower
/// triangle of the leading [M,M] part is added to.
/// \param dout       [N,E] gradient of the output; rows of masked queries are not read
/// \param workspace  at least causal_gradient_workspace_bytes(...), or empty to allocate
/// \param executor   splits over blocks; results do not depend on it
/// \param kept       what the forward kept of the same inputs, or empty
/// \throws shape_error, option_error for anything that does not fit, before anything is written.
template <Scalar T, Partition Blocks, DifferentiableOperatorOn<T> Op, Executor X = Sequential>
requires CausalOperator<Op>
void causal_gradient(const Inputs<T>& in, const Blocks& blocks,
                     const MixingMatrix<accumulator_t<T>>& mixing, const Op& op,
                     std::type_identity_t<MatrixView<const T>> dout, const Gradients<T>& gradients,
                     const ParameterGradients<accumulator_t<T>>& parameters = {},
                     Workspace workspace = {}, X&& executor = {}, Workspace kept = {});

/// Bytes of workspace such a call needs; the data of `in` and `mixing` is not read.
template <Scalar T, Partition Blocks, DifferentiableOperatorOn<T> Op, Executor X = Sequential>
requires CausalOperator<Op> std::size_t causal_gradient_workspace_bytes(
    const Inputs<T>& in, const Blocks& blocks, const MixingMatrix<accumulator_t<T>>& mixing,
    const Op& op, const X& executor = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

/// One head of the backward form.
template <Scalar T, Partition Blocks, class Op>
class CausalGradient {
  using A = accumulator_t<T>;
  using Worker = CausalGradientScratch<A>;
  static constexpr bool kSums = kUsesKeySums<normalizer_t<Op>>;

 public:
  /// \param kept  where the summaries lie; null for the arena
  CausalGradient(const char* function, Arena& arena, Arena* kept, const Inputs<T>& in,
                 const Blocks& blocks, const Op& op, Index workers)
      : in_(in),
        blocks_(blocks),
        op_(op),
        head_(in, op),
        group_(gradient_group<A>(op, blocks.blocks(), sizes(), workers)),
        summaries_(function, kept == nullptr ? arena : *kept, sizes(), blocks.blocks()),
        dmixtures_(function, arena, blocks.blocks(), sizes().features, sizes().values),
        dkey_sums_(arena.take<A>(function, {blocks.blocks(), sum_features()})),
        intra_(function, arena, in.q.rows, sizes()),
        query_parts_(function, arena, groups_of(blocks.blocks(), group_), op.query_map.weights()),
        key_parts_(function, arena, groups_of(blocks.blocks(), group_), op.key_map.weights()),
        workers_(function, arena, workers, [&](Arena& a) {
          return Worker(function, a, head_.width(), sizes(), group_, blocks.blocks(),
                        largest_block(blocks));
        }) {}

  /// \param summarized  whether the summaries are there already
  template <class X>
  void run(const MixingMatrix<A>& mixing, MatrixView<const T> dout, const Gradients<T>& gradients,
           const ParameterSums<A>& sums, bool summarized, X& executor) {
    const Index m = blocks_.blocks();
    head_.set(dout, gradients);
    query_parts_.start(sums.query_map);
    key_parts_.start(sums.key_map);
    if (!summarized) {
      executor.for_each(m - 1, [&](Index b, Index w) {  // nothing reads that of the last block
        const GradientScratch<A>& local = workers_[w].strips;
        summaries_.summarize_block(in_, blocks_, b, op_,
                                   KeyScratch<A>(local.raw, local.keys, local.values));
      });
    }
    executor.for_each(groups_of(m, group_), [&](Index g, Index w) {
      query_group(mixing, g, std::min((g + 1) * group_, m), sums.mixing, workers_[w]);
    });
    executor.for_each(groups_of(m, group_), [&](Index g, Index w) {
      key_group(mixing, g, std::min((g + 1) * group_, m), workers_[w].strips);
    });
    query_parts_.finish(sums.query_map);
    key_parts_.finish(sums.key_map);
  }

 private:
  const HeadSizes& sizes() const { return head_.sizes(); }
  Index sum_features() const { return kSums ? key_sum_features(sizes()) : 0; }
  A* dkey_sum(Index i) const { return dkey_sums_ + i * sum_features(); }  // dz~_i
  IntraGradients<A> intra_of(Index b) const { return intra_.from(blocks_.run(b, 0).begin); }

  /// The query side of the blocks of group g, which ends before `end`.
  void query_group(const MixingMatrix<A>& mixing, Index g, Index end, A* dmixing,
                   const Worker& w) const {
    const Index begin = g * group_, m = blocks_.blocks();
    const Mixtures<A>& mixtures = w.strips.mixtures;
    const MixingGroup<A> group(mixing, begin, end, Reach::kEarlier, m, mixtures.coefficients);
    summaries_.mix_group(group, mixtures);
    for (Index i = begin; i < end; ++i) {
      const IntraGradients<A> keys = intra_of(i);
      keys.clear(blocks_.block_size(i), sizes());
      const A dweight = CausalBlockGradient<T, Blocks, Op>(head_, in_, blocks_, i, op_, w)
                            .run({mixing(i, i), mixtures.block(i - begin),
                                  mixtures.key_sum + (i - begin) * sum_features()},
                                 {dmixtures_.block(i), dkey_sum(i)}, query_parts_.part(g), keys);
      if (dmixing != nullptr) dmixing[i * mixing.width() + i - mixing.first(i)] += dweight;
    }
    if (dmixing == nullptr) return;
    MixingGradient<A> gradient = w.strips.dmixing;
    gradient.start(mixing, begin, end, Reach::kEarlier, m);
    gradient.add(dmixtures_, summaries_.values());
    if constexpr (kSums) {
      gradient.add({dkey_sum(begin), sum_features()}, summaries_.key_sums(), sum_features());
    }
    gradient.store(dmixing);
  }

  /// The key side of the blocks of group g, which ends before `end`.
  void key_group(const MixingMatrix<A>& mixing, Index g, Index end,
                 const GradientScratch<A>& w) const {
    const Index begin = g * group_;
    const auto group = MixingGroup<A>::of_columns(mixing, begin, end, Reach::kEarlier,
                                                  blocks_.blocks(), w.mixtures.coefficients);
    mix_values(group, dmixtures_, w.mixtures);
    if constexpr (kSums) mix_key_sums(group, dkey_sums_, sum_features(), w.mixtures);
    for (Index b = begin; b < end; ++b) {
      const IntraGradients<A> keys = intra_of(b);
      head_.differentiate_keys(blocks_, b, w.mixtures.block(b - begin),
                               kSums ? w.mixtures.key_sum + (b - begin) * sum_features() : nullptr,
                               key_parts_.part(g), w, {keys.dkeys, keys.dvalues, keys.own_dkeys});
    }
  }

  const Inputs<T>& in_;
  const Blocks& blocks_;
  const Op& op_;
  HeadGradient<T, Op> head_;
  Index group_;                     // blocks that are mixed together
  HeadSummaries<T, Op> summaries_;  // S, z
  Summaries<A> dmixtures_;          // dS~
  A* dkey_sums_;                    // dz~ [M, D or Dz]
  IntraGradients<A> intra_;
  WeightParts<A> query_parts_, key_parts_;
  Workers<Worker> workers_;
};

/// Throws unless one head's arguments fit each other.
template <Scalar T, Partition Blocks, class Op>
void expect_causal_gradient(const char* function, const Inputs<T>& in, const Blocks& blocks,
                            const MixingMatrix<accumulator_t<T>>& mixing, const Op& op,
                            MatrixView<const T> dout, const Gradients<T>& gradients) {
  expect_causal(function, in, blocks, mixing, op, dout, "dout");
  expect_gradients(function, in, gradients);
}

/// The form without the checks.
template <Scalar T, Partition Blocks, class Op, class X>
void run_causal_gradient(const Inputs<T>& in, const Blocks& blocks,
                         const MixingMatrix<accumulator_t<T>>& mixing, const Op& op,
                         MatrixView<const T> dout, const Gradients<T>& gradients,
                         const ParameterSums<accumulator_t<T>>& sums, Workspace workspace,
                         X& executor, Workspace kept) {
  constexpr const char* kName = "causal_gradient";
  Scratch scratch(kName, workspace,
                  causal_gradient_workspace_bytes(in, blocks, mixing, op, executor));
  Arena kept_arena(kept.data());
  CausalGradient<T, Blocks, Op>(kName, scratch.arena(), kept.empty() ? nullptr : &kept_arena, in,
                                blocks, op, executor.workers())
      .run(mixing, dout, gradients, sums, !kept.empty(), executor);
}

}  // namespace detail

template <Scalar T, Partition Blocks, DifferentiableOperatorOn<T> Op, Executor X>
requires CausalOperator<Op> std::size_t causal_gradient_workspace_bytes(
    const Inputs<T>& in, const Blocks& blocks, const MixingMatrix<accumulator_t<T>>& /*mixing*/,
    const Op& op, const X& executor) {
  detail::Arena counting;
  detail::CausalGradient<T, Blocks, Op>("causal_gradient", counting, nullptr, in, blocks, op,
                                        executor.workers());
  return counting.bytes();
}

template <Scalar T, Partition Blocks, DifferentiableOperatorOn<T> Op, Executor X>
requires CausalOperator<Op>
void causal_gradient(const Inputs<T>& in, const Blocks& blocks,
                     const MixingMatrix<accumulator_t<T>>& mixing, const Op& op,
                     std::type_identity_t<MatrixView<const T>> dout, const Gradients<T>& gradients,
                     const ParameterGradients<accumulator_t<T>>& parameters, Workspace workspace,
                     X&& executor, Workspace kept) {
  constexpr const char* kName = "causal_gradient";
  detail::expect_causal_gradient(kName, in, blocks, mixing, op, dout, gradients);
  detail::expect_parameters(kName, mixing, op, parameters);
  detail::expect_kept(kName, kept, causal_kept_bytes(in, blocks, op));
  detail::run_causal_gradient(in, blocks, mixing, op, dout, gradients, detail::sums_of(parameters),
                              workspace, executor, kept);
}

}  // namespace mhla::inline MHLA_TARGET
