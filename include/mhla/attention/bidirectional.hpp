#pragma once

/// \file
/// MHLA over a whole image, video or sequence: every query may read every key.
///
///     S_b  = sum_{t in b} phi(k_t) v_t^T             summary.hpp
///     S~_i = sum_b m_ib S_b                          mixing.hpp
///     o_t  = phi(q_t)^T S~_i / den_t                 read_out.hpp, denominator.hpp
///
/// Cross-attention takes CrossBlocks{queries, keys} and a mixing matrix [Mq,Mk]. Equal to
/// naive_attention. Cost: 4*N*D*E + 2*M^2*D*E flops; memory M*D*(E+1) numbers for summaries, and
/// G*D*(E+1) + G*M for mixtures and coefficients of each worker. G is 16, and up to 256 query
/// blocks where a worker has more than 64, or where 16 mixtures do not fit L2 (stage/mixing.hpp).
/// Compiled for AMX, bfloat16 tensors run on its tiles: stage/amx/unit.hpp says when, and with what
/// errors; workspace_bytes serves both ways. Summaries kept for the backward form are computed in
/// float. Source: arXiv:2601.07832, section 4.1.

#include <algorithm>
#include <string>

#include "mhla/attention/bidirectional_head.hpp"
#include "mhla/attention/call_diagnostics.hpp"
#include "mhla/attention/form.hpp"
#include "mhla/attention/matrix_calls.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Writes the output of one head, or of every head of a batch, into `out`. Eigen matrices q, k, v
/// stand for inputs(q, k, v) in every call (matrix_calls.hpp).
/// \param in      Inputs: one head; BatchInputs: a batch
/// \param blocks  a partition of the tokens into M blocks, or CrossBlocks of queries and keys;
///                for a batch also functions of the sequence length
/// \param mixing  [M,M], of cross-attention [Mq,Mk]; or one per head [H,M,M], or per
///                sequence and head [B,H,M,M]
/// \param out     [Nq,E], of a batch [B,Nq,H,E]; overlaps no input, but may be q itself
/// \throws shape_error, option_error for anything that does not fit, before `out` is touched.
template <AttentionInputs In, AttentionBlocks Blocks, OperatorOn<detail::scalar_of<In>> Op>
void bidirectional(const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing,
                   const Op& op, const std::type_identity_t<detail::output_of<In>>& out,
                   const Call& call = {});
/// The same with the paper's operator.
template <AttentionInputs In, AttentionBlocks Blocks>
void bidirectional(const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing,
                   const std::type_identity_t<detail::output_of<In>>& out, const Call& call = {});

/// Returns the output: a Matrix [Nq,E] of one head, a Tensor [B,Nq,H,E] of a batch.
template <AttentionInputs In, AttentionBlocks Blocks,
          OperatorOn<detail::scalar_of<In>> Op = Operator<>>
typename detail::InputTraits<In>::Owner bidirectional(const In& in, const Blocks& blocks,
                                                      const detail::mixing_of<In>& mixing,
                                                      const Op& op = {}, const Call& call = {});
template <AttentionInputs In, AttentionBlocks Blocks>
typename detail::InputTraits<In>::Owner bidirectional(const In& in, const Blocks& blocks,
                                                      const detail::mixing_of<In>& mixing,
                                                      const Call& call) {
  return bidirectional(in, blocks, mixing, Operator<>{}, call);
}

/// Refuses, in a sentence, what is no call.
template <class... X>
requires(detail::kMistake<X...> != detail::Mistake::kNone)
    detail::Refused<detail::kMistake<X...>, X...> bidirectional(const X&...);

/// Bytes of workspace for these arguments; reads no data.
template <AttentionInputs In, AttentionBlocks Blocks,
          OperatorOn<detail::scalar_of<In>> Op = Operator<>>
std::size_t bidirectional_workspace_bytes(const In& in, const Blocks& blocks, const Op& op = {},
                                          const ExecutorRef& executor = {});
/// Bytes of kept summaries for these arguments; reads no data.
template <AttentionInputs In, AttentionBlocks Blocks,
          OperatorOn<detail::scalar_of<In>> Op = Operator<>>
std::size_t bidirectional_kept_bytes(const In& in, const Blocks& blocks, const Op& op = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

template <class A, AttentionBlocks Blocks, class Op>
struct BidirectionalForm {
  static constexpr unsigned kKeeps = 1;

  const char* name;
  const Blocks& blocks;
  MixingView<const A> mixing;  ///< absent while bytes are counted
  const Op& op;

  template <Scalar T>
  void check(const Inputs<T>& in, std::type_identity_t<MatrixView<const T>> out,
             const char* argument) const {
    expect_inputs(name, in, op, out, argument);
    const auto& [queries, keys] = sequence_blocks(blocks, in);
    expect_partition(name, kIsCross<Blocks> ? "query_blocks" : "blocks", queries, in.q.rows);
    expect_partition(name, kIsCross<Blocks> ? "key_blocks" : "blocks", keys, in.k.rows);
    if (op.normalizer.sums() == WeightSums::kCrossQuery) {
      expect_cross_query(name, queries, keys.blocks());
    }
    expect_mixing_of(name, mixing, query_blocks(blocks), key_blocks(blocks), queries.blocks(),
                     keys.blocks());
  }

  template <Scalar T>
  std::size_t bytes(const Inputs<T>& in, Index workers) const {
    const auto sequence = sequence_blocks(blocks, in);
    const auto bytes_on = [&](auto unit) {
      return counted_bytes([&](Arena& arena) {
        return BidirectionalHead(unit, name, arena, nullptr, in, sequence.queries, sequence.keys,
                                 op, workers, {whole(sequence.queries), whole(sequence.keys)});
      });
    };
    const std::size_t bytes = bytes_on(vector_unit{});
    if constexpr (kMayUseAmx<T>) {
      if (fits_amx(head_sizes(in, op).features, in.v.cols)) {
        return std::max(bytes, bytes_on(amx{}));
      }
    }
    return bytes;
  }

  template <Scalar T>
  std::size_t kept_bytes(const Inputs<T>& in) const {
    return counted_bytes([&](Arena& arena) {
      return HeadSummaries<A>(name, arena, head_sizes(in, op),
                              blocks_of(key_blocks(blocks), in.k.rows).blocks());
    });
  }

  template <Scalar T>
  void run(Arena& arena, Arena* kept, const Inputs<T>& in, MatrixView<T> out,
           const ExecutorRef& executor) const {
    if constexpr (kMayUseAmx<T>) {
      if (kept == nullptr &&
          runs_on_amx(in.k, in.v, in.key_mask, head_sizes(in, op).features, mixing)) {
        return run_on(amx{}, arena, kept, in, out, executor);
      }
    }
    run_on(vector_unit{}, arena, kept, in, out, executor);
  }

 private:
  template <class Unit, Scalar T>
  void run_on(Unit unit, Arena& arena, Arena* kept, const Inputs<T>& in, MatrixView<T> out,
              const ExecutorRef& executor) const {
    const auto sequence = sequence_blocks(blocks, in);
    BidirectionalHead head(unit, name, arena, kept, in, sequence.queries, sequence.keys, op,
                           executor.workers(), {whole(sequence.queries), whole(sequence.keys)});
    head.summarize(executor);
    head.read(mixing, out, executor);
  }
};

template <class In, class Blocks, class Op>
auto bidirectional_form(const In& /*in*/, const Blocks& blocks, const mixing_of<In>& mixing,
                        const Op& op, const char* name = "bidirectional") {
  return BidirectionalForm<sum_of<In>, Blocks, Op>{name, blocks, mixing, op};
}

}  // namespace detail

template <AttentionInputs In, AttentionBlocks Blocks, OperatorOn<detail::scalar_of<In>> Op>
void bidirectional(const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing,
                   const Op& op, const std::type_identity_t<detail::output_of<In>>& out,
                   const Call& call) {
  detail::run_form(detail::bidirectional_form(in, blocks, mixing, op), in, out, call);
}

template <AttentionInputs In, AttentionBlocks Blocks>
void bidirectional(const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing,
                   const std::type_identity_t<detail::output_of<In>>& out, const Call& call) {
  bidirectional(in, blocks, mixing, Operator<>{}, out, call);
}

template <AttentionInputs In, AttentionBlocks Blocks, OperatorOn<detail::scalar_of<In>> Op>
typename detail::InputTraits<In>::Owner bidirectional(const In& in, const Blocks& blocks,
                                                      const detail::mixing_of<In>& mixing,
                                                      const Op& op, const Call& call) {
  return detail::run_form(detail::bidirectional_form(in, blocks, mixing, op), in, call);
}

template <AttentionInputs In, AttentionBlocks Blocks, OperatorOn<detail::scalar_of<In>> Op>
std::size_t bidirectional_workspace_bytes(const In& in, const Blocks& blocks, const Op& op,
                                          const ExecutorRef& executor) {
  return detail::form_bytes(detail::bidirectional_form(in, blocks, {}, op), in, executor);
}

template <AttentionInputs In, AttentionBlocks Blocks, OperatorOn<detail::scalar_of<In>> Op>
std::size_t bidirectional_kept_bytes(const In& in, const Blocks& blocks, const Op& op) {
  return detail::form_kept_bytes(detail::bidirectional_form(in, blocks, {}, op), in);
}

}  // namespace MHLA_TARGET
}  // namespace mhla
