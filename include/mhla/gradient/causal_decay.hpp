#pragma once

/// \file
/// The gradient of the causal form with a decaying mixing matrix (attention/causal_decay.hpp). It
/// follows causal.hpp, with scans over the blocks in place of products with a matrix
/// (stage/decay.hpp).
/// Cost: that of causal.hpp with 20*M*R*D*E flops in place of 3*M^2*D*E; memory 3*M*D*(E+1) +
/// N*(D+E) numbers, and W/64*D*(E+1) per worker.

#include <algorithm>

#include "mhla/attention/causal_decay.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/gradient/causal.hpp"
#include "mhla/gradient/causal_block.hpp"
#include "mhla/gradient/check.hpp"
#include "mhla/gradient/driver.hpp"
#include "mhla/gradient/gradients.hpp"
#include "mhla/gradient/head_gradient.hpp"
#include "mhla/gradient/weight_parts.hpp"
#include "mhla/stage/decay.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Adds the gradients of one head, or of all heads of a batch, to `gradients` and `parameters`.
/// Gradients of the weights and decays go to parameters.mixing, [2,R] (DecayView::matrix).
/// \param dout  gradient of the output; rows of masked queries are not read
/// \throws shape_error, option_error for anything that does not fit, before anything is written.
template <AttentionInputs In, BlocksOf Blocks, DecayTerms<detail::sum_of<In>> M,
          DifferentiableOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op>
void causal_gradient(const In& in, const Blocks& blocks, const M& mixing, const Op& op,
                     const std::type_identity_t<detail::dout_of<In>>& dout,
                     const detail::gradients_of<In>& gradients,
                     const detail::parameters_of<In>& parameters = {}, const Call& call = {});

/// Bytes of workspace for these arguments; reads no data.
template <AttentionInputs In, BlocksOf Blocks, DecayTerms<detail::sum_of<In>> M,
          DifferentiableOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op> std::size_t causal_gradient_workspace_bytes(
    const In& in, const Blocks& blocks, const M& mixing, const Op& op,
    const ExecutorRef& executor = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

template <Scalar T, Partition Blocks, class Op>
class CausalDecayGradient {
  using A = accumulator_t<T>;

  struct Worker {
    CausalGradientScratch<A> scratch;
    Rows<A> states;  // T and V of a piece [2R, columns]
  };

 public:
  /// \param kept  memory of the summaries; null: the arena
  CausalDecayGradient(const char* function, Arena& arena, Arena* kept, const Inputs<T>& in,
                      const Blocks& blocks, const Op& op, Index terms, Index workers)
      : in_(in),
        blocks_(blocks),
        op_(op),
        head_(in, op),
        summaries_(function, kept == nullptr ? arena : *kept, sizes(), blocks.blocks()),
        mixtures_(function, arena, blocks.blocks(), round_up(sizes().features, kRowAlignment),
                  sizes().values),
        key_sums_(function, arena, blocks.blocks(), sum_features()),
        dmixtures_(function, arena, blocks.blocks(), sizes().features, sizes().values),
        dkey_sums_(function, arena, blocks.blocks(), sum_features()),
        downs_(arena.take<A>(function, blocks.blocks())),
        dterms_(arena.take<A>(function, {pieces() + 1, 2 * terms})),
        intra_(function, arena, in.q.rows, sizes()),
        query_parts_(function, arena, whole(blocks), op.query_map.weights()),
        key_parts_(function, arena, whole(blocks), op.key_map.weights()),
        workers_(function, arena, workers, [&](Arena& a) {
          return Worker{{function, a, head_.raw(), sizes(), 1, 1, largest_block(blocks)},
                        {function, a, 2 * terms, std::max(kDecayColumns, sum_features())}};
        }) {}

  /// \param summarized  true if the summaries are computed already
  void run(const DecayView<const A>& mixing, MatrixView<const T> dout,
           const Gradients<T>& gradients, const ParameterGradients<A>& sums, bool summarized,
           const ExecutorRef& executor) {
    const Index m = blocks_.blocks();
    head_.set(dout, gradients);
    query_parts_.start(sums.query_map);
    key_parts_.start(sums.key_map);
    if (!summarized) {
      executor.for_each(summaries_.tasks_before_last(), [&](Index b, Index w) {
        summaries_.summarize(in_, blocks_, b, op_, workers_[w].scratch.strips.key_scratch());
      });
    }
    mix(Scan::kForwards, mixing, summaries_.values(), summaries_.key_sums(), executor);
    executor.for_each(m, [&](Index i, Index w) {
      query_block(decay_coefficient(mixing, 0), i, query_parts_.part(i), workers_[w].scratch);
    });
    if (!sums.mixing.absent()) add_terms(mixing, sums.mixing, executor);
    // From here on mixtures are gradients of summaries.
    mix(Scan::kBackwards, mixing, dmixtures_, dkey_sums_, executor);
    executor.for_each(m, [&](Index b, Index w) {
      const IntraGradients<A> keys = intra_of(b);
      head_.differentiate_keys(blocks_, b, mixtures_.kv.row(b),
                               head_.sums() ? key_sums_.row(b) : nullptr, key_parts_.part(b),
                               workers_[w].scratch.strips,
                               {keys.dkeys, keys.dvalues, keys.normalizer_dkeys});
    });
    query_parts_.finish(sums.query_map);
    key_parts_.finish(sums.key_map);
  }

 private:
  const HeadSizes& sizes() const { return head_.sizes(); }
  Index sum_features() const { return sizes().sum_features(); }
  IntraGradients<A> intra_of(Index b) const { return intra_.from(blocks_.run(b, 0).begin); }
  Index pieces() const {
    return summaries_.values().slabs() * decay_pieces_of_slab(sizes().values);
  }

  /// Scans into mixtures_ and key_sums_.
  void mix(Scan scan, const DecayView<const A>& mixing, const Summaries<A>& from,
           Rows<const A> sums, const ExecutorRef& executor) const {
    const Index m = blocks_.blocks();
    for_each_piece(from, mixtures_.kv, executor,
                   [&](Index, Index w, Rows<A> rows, Rows<A> mixtures, Index cols) {
                     scan_mixtures<A>(scan, mixing, rows, m, cols, workers_[w].states, mixtures);
                   });
    scan_mixtures<A>(scan, mixing, sums, m, sum_features(), workers_[0].states, key_sums_);
  }

  void query_block(A intra, Index i, A* dweights, const CausalGradientScratch<A>& scratch) const {
    const IntraGradients<A> keys = intra_of(i);
    downs_[i] = CausalBlockGradient<T, Blocks, Op>(head_, in_, blocks_, i, op_, scratch)
                    .run({intra, mixtures_.kv.row(i), key_sums_.row(i),
                          mixtures_.behind(i, blocks_.blocks())},
                         {dmixtures_.block(i), dkey_sums_.row(i)}, dweights, keys);
  }

  /// Gradients of weights and decays: first per piece, then summed over the pieces in order.
  void add_terms(const DecayView<const A>& mixing, const MixingView<A>& to,
                 const ExecutorRef& executor) const {
    const Index m = blocks_.blocks(), terms = mixing.terms(), count = pieces();
    std::fill_n(dterms_, (count + 1) * 2 * terms, A(0));
    const Summaries<A>& s = summaries_.values();
    for_each_piece(
        s, mixtures_.kv, executor, [&](Index piece, Index w, Rows<A> rows, Rows<A>, Index cols) {
          const Rows<A> gradients{dmixtures_.kv + (rows.data - s.kv), dmixtures_.block_stride};
          add_decay_adjoint<A>(mixing, rows, gradients, m, cols, workers_[w].states,
                               dterms_ + piece * 2 * terms);
        });
    add_decay_adjoint<A>(mixing, summaries_.key_sums(), dkey_sums_, m, sum_features(),
                         workers_[0].states, dterms_ + count * 2 * terms);
    add_rows_to(dterms_ + 2 * terms, 2 * terms, count, dterms_, 2 * terms);
    const A total = sum(downs_, m);
    for (Index r = 0; r < terms; ++r) dterms_[r] += total;
    add_to(dterms_, to.storage().data(), 2 * terms);
  }

  const Inputs<T>& in_;
  const Blocks& blocks_;
  const Op& op_;
  HeadGradient<T, Op> head_;
  HeadSummaries<A> summaries_;  // S, z
  Mixtures<A> mixtures_;        // S~ of all blocks, then dS
  Rows<A> key_sums_;            // z~ [M, Dz], then dz
  Summaries<A> dmixtures_;      // dS~
  Rows<A> dkey_sums_;           // dz~ [M, Dz]
  A* downs_;                    // dm_ii [M]
  A* dterms_;                   // of each piece [pieces + 1, 2R]
  IntraGradients<A> intra_;
  WeightParts<A> query_parts_, key_parts_;
  Workers<Worker> workers_;
};

template <class A, Scalar T, Partition Blocks, class Op>
auto causal_head_gradient(const char* function, Arena& arena, Arena* kept,
                          const DecayView<const A>& mixing, const Inputs<T>& in,
                          const Blocks& blocks, const Op& op, Index workers) {
  return CausalDecayGradient(function, arena, kept, in, blocks, op, mixing.terms(), workers);
}

}  // namespace detail

template <AttentionInputs In, BlocksOf Blocks, DecayTerms<detail::sum_of<In>> M,
          DifferentiableOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op> std::size_t causal_gradient_workspace_bytes(
    const In& in, const Blocks& blocks, const M& mixing, const Op& op,
    const ExecutorRef& executor) {
  const auto form = detail::causal_decay_form(in, blocks, mixing, op, "causal_gradient");
  return detail::form_gradient_bytes(form, in, detail::parameter_sizes(form.mixing.matrix(), op),
                                     executor);
}

template <AttentionInputs In, BlocksOf Blocks, DecayTerms<detail::sum_of<In>> M,
          DifferentiableOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op>
void causal_gradient(const In& in, const Blocks& blocks, const M& mixing, const Op& op,
                     const std::type_identity_t<detail::dout_of<In>>& dout,
                     const detail::gradients_of<In>& gradients,
                     const detail::parameters_of<In>& parameters, const Call& call) {
  const auto form = detail::causal_decay_form(in, blocks, mixing, op, "causal_gradient");
  detail::expect_decay(form.name, form.mixing);
  const auto terms = form.mixing.matrix();
  detail::expect_parameters(form.name, terms, op, parameters);
  detail::run_gradient(form, in, dout, gradients, detail::parameter_sizes(terms, op), parameters,
                       call);
}

}  // namespace MHLA_TARGET
}  // namespace mhla
