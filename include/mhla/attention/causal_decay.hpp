#pragma once

/// \file
/// The causal form with a decaying mixing matrix (policy/decay_mixing.hpp): that of causal.hpp with
/// m_ib = sum_r a_r lambda_r^(i-b), for any number of blocks.
///
///     S~_i = sum_{b < i} m_ib S_b     from R running states, stage/decay.hpp
///
/// Equal to causal() with decay_matrix(mixing, M) within rounding. Cost: that of causal() with
/// 4*M*R*D*E flops in place of M^2*D*E; memory 2*M*D*(E+1) numbers.

#include <algorithm>

#include "mhla/attention/causal.hpp"
#include "mhla/attention/causal_block.hpp"
#include "mhla/attention/form.hpp"
#include "mhla/attention/head_summaries.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/policy/decay_mixing.hpp"
#include "mhla/stage/decay.hpp"
#include "mhla/stage/mixing.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// DecayMixing<A> or a view of its terms.
template <class M, class A>
concept DecayTerms = std::convertible_to<const M&, DecayView<const A>>;

/// Writes the output of one head, or of every head of a batch, into `out`.
/// \param in      Inputs: one head; BatchInputs: a batch
/// \param blocks  consecutive tokens, in order; for a batch also a function of the sequence length
/// \param out     [N,E], of a batch [B,N,H,E]; overlaps no input, but may be q itself
/// \throws shape_error, option_error for anything that does not fit, before `out` is touched.
template <AttentionInputs In, BlocksOf Blocks, DecayTerms<detail::sum_of<In>> M,
          CausalOperatorOn<detail::scalar_of<In>> Op>
void causal(const In& in, const Blocks& blocks, const M& mixing, const Op& op,
            const std::type_identity_t<detail::output_of<In>>& out, const Call& call = {});
/// The same with the paper's operator.
template <AttentionInputs In, BlocksOf Blocks, DecayTerms<detail::sum_of<In>> M,
          std::convertible_to<detail::output_of<In>> Out>
void causal(const In& in, const Blocks& blocks, const M& mixing, Out&& out, const Call& call = {}) {
  causal(in, blocks, mixing, Operator<>{}, out, call);
}

/// Returns the output: a Matrix [N,E] of one head, a Tensor [B,N,H,E] of a batch.
template <AttentionInputs In, BlocksOf Blocks, DecayTerms<detail::sum_of<In>> M,
          CausalOperatorOn<detail::scalar_of<In>> Op = Operator<>>
typename detail::InputTraits<In>::Owner causal(const In& in, const Blocks& blocks, const M& mixing,
                                               const Op& op = {}, const Call& call = {});
template <AttentionInputs In, BlocksOf Blocks, DecayTerms<detail::sum_of<In>> M>
typename detail::InputTraits<In>::Owner causal(const In& in, const Blocks& blocks, const M& mixing,
                                               const Call& call) {
  return causal(in, blocks, mixing, Operator<>{}, call);
}

/// Bytes of workspace for these arguments, and of kept summaries causal_kept_bytes(in, blocks, op);
/// reads no data.
template <AttentionInputs In, BlocksOf Blocks, DecayTerms<detail::sum_of<In>> M,
          CausalOperatorOn<detail::scalar_of<In>> Op = Operator<>>
std::size_t causal_workspace_bytes(const In& in, const Blocks& blocks, const M& mixing,
                                   const Op& op = {}, const ExecutorRef& executor = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

template <Scalar T, Partition Blocks, class Op>
class CausalDecayHead {
  using A = accumulator_t<T>;

  struct Worker {
    CausalScratch<A> scratch;
    Rows<A> states;  // T of a piece [R, columns]
  };

 public:
  /// \param kept  memory of the summaries; null: the arena
  CausalDecayHead(const char* function, Arena& arena, Arena* kept, const Inputs<T>& in,
                  const Blocks& blocks, const Op& op, Index terms, Index workers)
      : in_(in),
        blocks_(blocks),
        op_(op),
        n_(head_sizes(in, op)),
        summaries_(function, kept == nullptr ? arena : *kept, n_, blocks.blocks()),
        mixtures_(function, arena, blocks.blocks(), n_.features, n_.values),
        key_sums_(function, arena, blocks.blocks(), n_.sum_features()),
        workers_(function, arena, workers, [&](Arena& a) {
          return Worker{{function, a, in, op, n_},
                        {function, a, terms, std::max(kDecayColumns, n_.sum_features())}};
        }) {}

  void run(const DecayView<const A>& mixing, MatrixView<T> out, const ExecutorRef& executor) {
    const Index m = blocks_.blocks();
    executor.for_each(summaries_.tasks_before_last(), [&](Index b, Index w) {
      summaries_.summarize(in_, blocks_, b, op_, workers_[w].scratch.keys);
    });
    for_each_piece(summaries_.values(), mixtures_.kv, executor,
                   [&](Index, Index w, Rows<A> s, Rows<A> mixtures, Index cols) {
                     scan_mixtures<A>(Scan::kForwards, mixing, s, m, cols, workers_[w].states,
                                      mixtures);
                   });
    scan_mixtures<A>(Scan::kForwards, mixing, summaries_.key_sums(), m, n_.sum_features(),
                     workers_[0].states, key_sums_);
    const A intra = decay_coefficient(mixing, 0);
    executor.for_each(m, [&](Index i, Index w) {
      read_causal_block(
          in_, blocks_, i, op_, n_,
          CausalSums<A>{intra, mixtures_.kv.row(i), key_sums_.row(i), mixtures_.behind(i, m)},
          workers_[w].scratch, out);
    });
  }

 private:
  const Inputs<T>& in_;
  const Blocks& blocks_;
  const Op& op_;
  HeadSizes n_;
  HeadSummaries<A> summaries_;
  Mixtures<A> mixtures_;  // of all blocks
  Rows<A> key_sums_;      // z~ [M, Dz]
  Workers<Worker> workers_;
};

template <class A, Scalar T, Partition Blocks, class Op>
auto causal_head(const char* function, Arena& arena, Arena* kept, const DecayView<const A>& mixing,
                 const Inputs<T>& in, const Blocks& blocks, const Op& op, Index workers) {
  return CausalDecayHead(function, arena, kept, in, blocks, op, mixing.terms(), workers);
}
template <class Form, class A>
void expect_causal_mixing(const Form& form, const DecayView<const A>& mixing, Index /*blocks*/) {
  expect_decay(form.name, mixing);
}

template <class In, class Blocks, class M, class Op>
auto causal_decay_form(const In& /*in*/, const Blocks& blocks, const M& mixing, const Op& op,
                       const char* name = "causal") {
  using A = sum_of<In>;
  return CausalForm<A, Blocks, Op, DecayView<const A>>{name, blocks, mixing, op};
}

}  // namespace detail

template <AttentionInputs In, BlocksOf Blocks, DecayTerms<detail::sum_of<In>> M,
          CausalOperatorOn<detail::scalar_of<In>> Op>
void causal(const In& in, const Blocks& blocks, const M& mixing, const Op& op,
            const std::type_identity_t<detail::output_of<In>>& out, const Call& call) {
  detail::run_form(detail::causal_decay_form(in, blocks, mixing, op), in, out, call);
}

template <AttentionInputs In, BlocksOf Blocks, DecayTerms<detail::sum_of<In>> M,
          CausalOperatorOn<detail::scalar_of<In>> Op>
typename detail::InputTraits<In>::Owner causal(const In& in, const Blocks& blocks, const M& mixing,
                                               const Op& op, const Call& call) {
  return detail::run_form(detail::causal_decay_form(in, blocks, mixing, op), in, call);
}

template <AttentionInputs In, BlocksOf Blocks, DecayTerms<detail::sum_of<In>> M,
          CausalOperatorOn<detail::scalar_of<In>> Op>
std::size_t causal_workspace_bytes(const In& in, const Blocks& blocks, const M& mixing,
                                   const Op& op, const ExecutorRef& executor) {
  return detail::form_bytes(detail::causal_decay_form(in, blocks, mixing, op), in, executor);
}

}  // namespace MHLA_TARGET
}  // namespace mhla
