#pragma once

/// \file
/// Softmax attention, a baseline: O(N^2) time, tile by tile in O(N) memory.
///
///     o_t = sum_j p_tj v_j / sum_j p_tj,   p_tj = exp(scale q_t . k_j - max_j scale q_t . k_j)
///
/// Keys and values are packed once into tiles of 64 tokens. A strip of queries runs over the tiles
/// with a running maximum and rescales its sums when that grows.
/// Cost: 2*Nq*Nk*(D+E) flops and Nq*Nk exponentials, half of it when causal; memory Nk*(D+E).
/// Source: Vaswani et al., arXiv:1706.03762; running maximum: Milakov and Gimelshein,
/// arXiv:1805.02867.

#include <algorithm>
#include <cmath>

#include "mhla/attention/form.hpp"
#include "mhla/attention/matrix_calls.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/attention/softmax_strip.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/tokens/gather.hpp"
#include "mhla/tokens/packed_keys.hpp"
#include "mhla/tokens/strip.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Writes softmax attention of one head, or of every head of a batch, into `out`, which overlaps no
/// input, but may be q itself. Eigen matrices q, k, v stand for inputs(q, k, v) (matrix_calls.hpp).
/// A query without keys gets 0, and so does one whose scores are all -infinity. normalizer_q and
/// normalizer_k are ignored.
/// \throws shape_error, option_error for anything that does not fit, before `out` is touched.
template <AttentionInputs In>
void softmax_bidirectional(const In& in, const std::type_identity_t<detail::output_of<In>>& out,
                           const SoftmaxOptions& options = {}, const Call& call = {});
template <AttentionInputs In>
typename detail::InputTraits<In>::Owner softmax_bidirectional(const In& in,
                                                              const SoftmaxOptions& options = {},
                                                              const Call& call = {});
template <AttentionInputs In>
typename detail::InputTraits<In>::Owner softmax_bidirectional(const In& in, const Call& call) {
  return softmax_bidirectional(in, SoftmaxOptions{}, call);
}

/// The same where query t reads keys 0..t only; as many queries as keys.
template <AttentionInputs In>
void softmax_causal(const In& in, const std::type_identity_t<detail::output_of<In>>& out,
                    const SoftmaxOptions& options = {}, const Call& call = {});
template <AttentionInputs In>
typename detail::InputTraits<In>::Owner softmax_causal(const In& in,
                                                       const SoftmaxOptions& options = {},
                                                       const Call& call = {});
template <AttentionInputs In>
typename detail::InputTraits<In>::Owner softmax_causal(const In& in, const Call& call) {
  return softmax_causal(in, SoftmaxOptions{}, call);
}

/// Bytes of workspace for either call; reads no data.
template <AttentionInputs In>
std::size_t softmax_workspace_bytes(const In& in, const ExecutorRef& executor = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

template <Scalar T>
class SoftmaxHead {
  using A = accumulator_t<T>;

 public:
  SoftmaxHead(const char* function, Arena& arena, const Inputs<T>& in, A scale, Index workers)
      : in_(in),
        scale_(scale),
        keys_(function, arena, in.k.rows, in.k.cols, in.v.cols),
        raw_(function, arena, kStripTokens, in.k.cols),
        workers_(function, arena, workers,
                 [&](Arena& a) { return SoftmaxStrip<A>(function, a, in.q.cols, in.v.cols); }) {}

  /// \param causal  whether query t reads keys 0..t only
  void run(bool causal, MatrixView<T> out, const ExecutorRef& executor) {
    pack_keys();
    const Contiguous strips(in_.q.rows, kStripTokens);
    executor.for_each(strips.blocks(),
                      [&](Index s, Index w) { read_strip(strips, s, causal, workers_[w], out); });
  }

 private:
  void pack_keys() {
    keys_.clear();
    if (in_.k.rows == 0) return;
    const Contiguous all(in_.k.rows, in_.k.rows);
    StripCursor strip(all, 0, in_.key_mask);
    while (strip.next() > 0) {
      gather(in_.k, strip.tokens(), strip.count(), raw_);
      keys_.append(raw_, in_.v, strip.tokens(), strip.tokens(), strip.count(), A(1));
    }
  }

  void read_strip(const Contiguous& strips, Index s, bool causal, const SoftmaxStrip<A>& w,
                  MatrixView<T> out) const {
    const Index e = in_.v.cols;
    clear_masked(strips, s, in_.query_mask, out);
    StripCursor strip(strips, s, in_.query_mask);
    const Index rows = strip.next();
    if (rows == 0) return;
    gather(in_.q, strip.tokens(), rows, w.queries);
    for (Index r = 0; r < rows; ++r) scale(scale_, w.queries.row(r), in_.q.cols);
    w.start(rows, e);
    for_each_key_tile(keys_, strip.tokens(), rows, causal,
                      [&](Index tile, const Index* seen) { read_tile(tile, seen, rows, w); });
    for (Index r = 0; r < rows; ++r) w.divide(r, e);
    scatter(w.outputs, strip.tokens(), rows, out);
  }

  /// Adds the first seen[r] keys of a tile to every query r of a strip; seen is ascending.
  void read_tile(Index tile, const Index* seen, Index rows, const SoftmaxStrip<A>& w) const {
    keys_.score(w.queries, seen, rows, tile, w.scores);
    for (Index r = 0; r < rows; ++r) {
      const A largest = maximum(w.scores.row(r), seen[r]);
      if (largest > w.maxima[r]) w.rescale(r, largest, in_.v.cols);
    }
    for (Index r = 0; r < rows; ++r) w.weigh(r, seen[r]);
    keys_.add_values(w.scores, seen, rows, tile, w.outputs);
  }

  const Inputs<T>& in_;
  A scale_;
  PackedKeys<A> keys_;  // with tokens as slots
  Rows<A> raw_;         // [64, D]
  Workers<SoftmaxStrip<A>> workers_;
};

template <class A>
struct SoftmaxForm {
  static constexpr unsigned kKeeps = 0;

  const char* name;
  bool causal;
  SoftmaxOptions options;

  template <Scalar T>
  void check(const Inputs<T>& in, std::type_identity_t<MatrixView<const T>> out,
             const char* argument) const {
    expect_tokens(name, in, out, argument);
    expect_shape(name, "k", in.k, causal ? in.q.rows : -1, in.q.cols);
  }
  template <Scalar T>
  A scale(const Inputs<T>& in) const {
    return static_cast<A>(options.scale ? *options.scale
                                        : 1 / std::sqrt(static_cast<double>(in.q.cols)));
  }
  template <Scalar T>
  std::size_t bytes(const Inputs<T>& in, Index workers) const {
    return counted_bytes(
        [&](Arena& arena) { return SoftmaxHead<T>(name, arena, in, A(1), workers); });
  }
  template <Scalar T>
  void run(Arena& arena, Arena* /*kept*/, const Inputs<T>& in, MatrixView<T> out,
           const ExecutorRef& executor) const {
    SoftmaxHead<T>(name, arena, in, scale(in), executor.workers()).run(causal, out, executor);
  }
};

template <class In>
SoftmaxForm<sum_of<In>> softmax_form(const In& /*in*/, const char* name, bool causal,
                                     const SoftmaxOptions& options = {}) {
  return {name, causal, options};
}

}  // namespace detail

template <AttentionInputs In>
void softmax_bidirectional(const In& in, const std::type_identity_t<detail::output_of<In>>& out,
                           const SoftmaxOptions& options, const Call& call) {
  detail::run_form(detail::softmax_form(in, "softmax_bidirectional", false, options), in, out,
                   call);
}

template <AttentionInputs In>
typename detail::InputTraits<In>::Owner softmax_bidirectional(const In& in,
                                                              const SoftmaxOptions& options,
                                                              const Call& call) {
  return detail::run_form(detail::softmax_form(in, "softmax_bidirectional", false, options), in,
                          call);
}

template <AttentionInputs In>
void softmax_causal(const In& in, const std::type_identity_t<detail::output_of<In>>& out,
                    const SoftmaxOptions& options, const Call& call) {
  detail::run_form(detail::softmax_form(in, "softmax_causal", true, options), in, out, call);
}

template <AttentionInputs In>
typename detail::InputTraits<In>::Owner softmax_causal(const In& in, const SoftmaxOptions& options,
                                                       const Call& call) {
  return detail::run_form(detail::softmax_form(in, "softmax_causal", true, options), in, call);
}

template <AttentionInputs In>
std::size_t softmax_workspace_bytes(const In& in, const ExecutorRef& executor) {
  return detail::form_bytes(detail::softmax_form(in, "softmax", false), in, executor);
}

}  // namespace MHLA_TARGET
}  // namespace mhla
