#pragma once

/// \file
/// The gradient of causal attention (attention/causal.hpp). Between blocks it is that of
/// bidirectional.hpp, with mixtures S~_i of earlier blocks. Inside a block it is that of
/// causal_block.hpp, strip by strip.
///
/// Query t reads keys 0..t only, so dq_t depends on no later token, and dk_j, dv_j on no query
/// before j. Later tokens enter no sum, not even multiplied by zero.
/// Cost: about 10*N*D*E + 3*M^2*D*E + 2.5*N*min(W,64)*(D+E) flops. Blocks of W > 64
/// cost up to 6*N*D*E more; summaries that the forward kept save 2*N*D*E.
/// Memory: 2*M*D*(E+1) + N*(D+E) numbers, and per worker what the bidirectional gradient has and
/// W/64*D*(E+1).
/// Source: derived from arXiv:2601.07832, section 4.2 and appendix C.

#include <algorithm>

#include "mhla/attention/causal.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/gradient/causal_block.hpp"
#include "mhla/gradient/check.hpp"
#include "mhla/gradient/driver.hpp"
#include "mhla/gradient/gradients.hpp"
#include "mhla/gradient/head_gradient.hpp"
#include "mhla/gradient/weight_parts.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Adds the gradients of one head, or of all heads of a batch, to `gradients` and `parameters`. In
/// parameters.mixing it adds to the lower triangle of the leading [M,M] part.
/// \param dout  gradient of the output; rows of masked queries are not read
/// \throws shape_error, option_error for anything that does not fit, before anything is written.
template <AttentionInputs In, BlocksOf Blocks, DifferentiableOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op>
void causal_gradient(const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing,
                     const Op& op, const std::type_identity_t<detail::dout_of<In>>& dout,
                     const detail::gradients_of<In>& gradients,
                     const detail::parameters_of<In>& parameters = {}, const Call& call = {});

/// Bytes of workspace for these arguments; reads no data.
template <AttentionInputs In, BlocksOf Blocks, DifferentiableOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op> std::size_t causal_gradient_workspace_bytes(
    const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing, const Op& op,
    const ExecutorRef& executor = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

template <Scalar T, Partition Blocks, class Op>
class CausalGradient {
  using A = accumulator_t<T>;
  using Worker = CausalGradientScratch<A>;

 public:
  /// \param kept  memory of the summaries; null: the arena
  CausalGradient(const char* function, Arena& arena, Arena* kept, const Inputs<T>& in,
                 const Blocks& blocks, const Op& op, Index workers, const BlockShare& share)
      : in_(in),
        blocks_(blocks),
        op_(op),
        head_(in, op),
        share_(share),
        group_(group_blocks<A>(share.count, sizes().features, sizes().values, workers)),
        summaries_(function, kept == nullptr ? arena : *kept, sizes(), share),
        dmixtures_(function, arena, share.all, sizes().features, sizes().values),
        dkey_sums_(arena.take<A>(function, {share.all, sum_features()})),
        intra_(function, arena, in.q.rows, sizes()),
        query_parts_(function, arena, share, op.query_map.weights()),
        key_parts_(function, arena, share, op.key_map.weights()),
        workers_(function, arena, workers, [&](Arena& a) {
          return Worker(function, a, head_.raw(), sizes(), group_, share.all,
                        largest_block(blocks));
        }) {}

  /// \param summarized  true if the summaries are computed already
  void run(MixingView<const A> mixing, MatrixView<const T> dout, const Gradients<T>& gradients,
           const ParameterGradients<A>& sums, bool summarized, const ExecutorRef& executor) {
    set(dout, gradients, sums);
    if (!summarized) {
      executor.for_each(tasks(), [&](Index b, Index w) { summarize_block(b, w); });
    }
    executor.for_each(query_groups(), [&](Index g, Index w) {
      const MixingGroup<A> group = query_group(mixing, g, w);
      for (Index r = 0; r < group.rows(); ++r) query_block(group, r, w);
      finish_group(group, w);
    });
    executor.for_each(key_groups(), [&](Index g, Index w) {
      const MixingGroup<A> group = key_group(mixing, g, w);
      for (Index r = 0; r < group.rows(); ++r) key_block(group, r, w);
    });
    finish();
  }

  // The pieces of these steps, by worker w, for ranks as in bidirectional_head.hpp.

  void set(MatrixView<const T> dout, const Gradients<T>& gradients,
           const ParameterGradients<A>& sums) {
    head_.set(dout, gradients);
    sums_ = sums;
    query_parts_.start(sums.query_map);
    key_parts_.start(sums.key_map);
  }
  Index tasks() const { return summaries_.tasks_before_last(); }
  void summarize_block(Index b, Index w) const {
    summaries_.summarize(in_, blocks_, b, op_, workers_[w].strips.key_scratch());
  }
  template <class F>
  void for_each_array(F&& f) const {
    summaries_.for_each_array(f);
  }
  Index query_groups() const { return groups_of(blocks_.blocks(), group_); }
  MixingGroup<A> query_group(MixingView<const A> mixing, Index g, Index worker) const {
    const GradientScratch<A>& w = workers_[worker].strips;
    const ColumnSpan span = group_blocks(share_, group_, g);
    const MixingGroup<A> group(mixing, span.begin, span.end, Reach::kEarlier, share_.all,
                               w.coefficients);
    mix(group, summaries_.values(), w.mixtures);
    group.mix(w.key_sums, summaries_.key_sums(), sum_features());
    return group;
  }
  Index query_block(const MixingGroup<A>& group, Index r, Index worker) const {
    const Worker& w = workers_[worker];
    const Index i = group.begin() + r, local = i - share_.first;
    const MixingView<A>& dmixing = sums_.mixing;
    const A dweight =
        CausalBlockGradient<T, Blocks, Op>(head_, in_, blocks_, local, op_, w)
            .run({group.matrix()(i, i), w.strips.mixtures.kv.row(r), w.strips.key_sums.row(r),
                  w.strips.mixtures.behind(r, group.rows())},
                 {dmixtures_.block(i), dkey_sum(i)}, query_parts_.part(local), intra_of(local));
    if (!dmixing.absent() && dmixing.pattern().holds(i, i)) dmixing.at(i, i) += dweight;
    return local;
  }
  void finish_group(const MixingGroup<A>& group, Index w) const {
    if (sums_.mixing.absent()) return;
    const Index begin = group.begin();
    MixingGradient<A> gradient = workers_[w].strips.dmixing;
    gradient.start(group.matrix().pattern(), begin, begin + group.rows(), Reach::kEarlier,
                   share_.all);
    gradient.add(dmixtures_, summaries_.values());
    gradient.add({dkey_sum(begin), sum_features()}, summaries_.key_sums(), sum_features());
    gradient.store(sums_.mixing);
  }
  template <class F>
  void for_each_mixture_array(F&& f) const {
    for_each_slab(dmixtures_, f);
    if (sum_features() > 0) f(Rows<A>{dkey_sums_, sum_features()}, sum_features());
  }
  Index key_groups() const { return query_groups(); }
  MixingGroup<A> key_group(MixingView<const A> mixing, Index g, Index worker) const {
    const GradientScratch<A>& w = workers_[worker].strips;
    const ColumnSpan span = group_blocks(share_, group_, g);
    const auto group = MixingGroup<A>::of_columns(mixing, span.begin, span.end, Reach::kEarlier,
                                                  share_.all, w.coefficients);
    mix(group, dmixtures_, w.mixtures);
    group.mix(w.key_sums, {dkey_sums_, sum_features()}, sum_features());
    return group;
  }
  void key_block(const MixingGroup<A>& group, Index r, Index worker) const {
    const GradientScratch<A>& w = workers_[worker].strips;
    const Index b = group.begin() - share_.first + r;
    const IntraGradients<A> keys = intra_of(b);
    head_.differentiate_keys(blocks_, b, w.mixtures.kv.row(r),
                             head_.sums() ? w.key_sums.row(r) : nullptr, key_parts_.part(b), w,
                             {keys.dkeys, keys.dvalues, keys.normalizer_dkeys});
  }
  const WeightParts<A>& query_parts() const { return query_parts_; }
  const WeightParts<A>& key_parts() const { return key_parts_; }
  void finish() const {
    query_parts_.finish(sums_.query_map);
    key_parts_.finish(sums_.key_map);
  }

 private:
  const HeadSizes& sizes() const { return head_.sizes(); }
  Index sum_features() const { return sizes().sum_features(); }
  A* dkey_sum(Index i) const { return dkey_sums_ + i * sum_features(); }  // dz~_i, i of all
  IntraGradients<A> intra_of(Index b) const { return intra_.from(blocks_.run(b, 0).begin); }

  const Inputs<T>& in_;
  const Blocks& blocks_;
  const Op& op_;
  HeadGradient<T, Op> head_;
  ParameterGradients<A> sums_{};
  BlockShare share_;
  Index group_;                 // blocks that are mixed together
  HeadSummaries<A> summaries_;  // S, z
  Summaries<A> dmixtures_;      // dS~
  A* dkey_sums_;                // dz~ [M, D or Dz]
  IntraGradients<A> intra_;
  WeightParts<A> query_parts_, key_parts_;
  Workers<Worker> workers_;
};

/// Head gradient for a mixing matrix; for decaying matrices see causal_decay.hpp.
template <class A, Scalar T, Partition Blocks, class Op>
auto causal_head_gradient(const char* function, Arena& arena, Arena* kept,
                          const MixingView<const A>&, const Inputs<T>& in, const Blocks& blocks,
                          const Op& op, Index workers) {
  return CausalGradient(function, arena, kept, in, blocks, op, workers, whole(blocks));
}

template <class A, class Blocks, class Op, class Mixing, Scalar T>
std::size_t gradient_bytes(const CausalForm<A, Blocks, Op, Mixing>& form, const Inputs<T>& in,
                           Index workers) {
  const auto& blocks = blocks_of(form.blocks, in.q.rows);
  return counted_bytes([&](Arena& arena) {
    return causal_head_gradient(form.name, arena, nullptr, form.mixing, in, blocks, form.op,
                                workers);
  });
}

template <class A, class Blocks, class Op, class Mixing, Scalar T>
void add_gradient(const CausalForm<A, Blocks, Op, Mixing>& form, Arena& arena, Arena* kept,
                  const Inputs<T>& in, MatrixView<const T> dout, const Gradients<T>& gradients,
                  const ParameterGradients<A>& sums, const ExecutorRef& executor) {
  const auto& blocks = blocks_of(form.blocks, in.q.rows);
  causal_head_gradient(form.name, arena, kept, form.mixing, in, blocks, form.op, executor.workers())
      .run(form.mixing, dout, gradients, sums, kept != nullptr, executor);
}

}  // namespace detail

template <AttentionInputs In, BlocksOf Blocks, DifferentiableOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op> std::size_t causal_gradient_workspace_bytes(
    const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing, const Op& op,
    const ExecutorRef& executor) {
  return detail::form_gradient_bytes(detail::causal_form(in, blocks, mixing, op, "causal_gradient"),
                                     in, detail::parameter_sizes(mixing, op), executor);
}

template <AttentionInputs In, BlocksOf Blocks, DifferentiableOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op>
void causal_gradient(const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing,
                     const Op& op, const std::type_identity_t<detail::dout_of<In>>& dout,
                     const detail::gradients_of<In>& gradients,
                     const detail::parameters_of<In>& parameters, const Call& call) {
  const auto form = detail::causal_form(in, blocks, mixing, op, "causal_gradient");
  detail::expect_parameters(form.name, mixing, op, parameters);
  detail::run_gradient(form, in, dout, gradients, detail::parameter_sizes(mixing, op), parameters,
                       call);
}

}  // namespace MHLA_TARGET
}  // namespace mhla
