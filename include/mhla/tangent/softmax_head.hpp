#pragma once

/// \file
/// One head of the tangent of softmax attention; formulas: tangent/softmax.hpp.

#include <algorithm>

#include "mhla/attention/operator.hpp"
#include "mhla/attention/softmax_strip.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/policy/partition.hpp"
#include "mhla/tangent/tangents.hpp"
#include "mhla/tokens/gather.hpp"
#include "mhla/tokens/packed_keys.hpp"
#include "mhla/tokens/strip.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

template <Scalar T>
class SoftmaxTangentHead {
  using A = accumulator_t<T>;

  struct Worker {
    SoftmaxStrip<A> strip;
    Rows<A> dqueries;  // [strip, D], scaled
    Rows<A> dscores;   // [strip, tile]
    Rows<A> doutputs;  // [strip, E] dn
    A* dsums;          // [strip] sums of weights times ds

    Worker(const char* function, Arena& arena, Index d, Index e)
        : strip(function, arena, d, e),
          dqueries(function, arena, kStripTokens, d),
          dscores(function, arena, kStripTokens, kStripTokens),
          doutputs(function, arena, kStripTokens, e),
          dsums(arena.take<A>(function, kStripTokens)) {}
  };

 public:
  SoftmaxTangentHead(const char* function, Arena& arena, const Inputs<T>& in, A scale,
                     Index workers)
      : in_(in),
        scale_(scale),
        keys_(function, arena, in.k.rows, in.k.cols, in.v.cols),
        dkeys_(function, arena, in.k.rows, in.k.cols, 0),
        dvalues_(function, arena, in.k.rows, 0, in.v.cols),
        raw_(function, arena, kStripTokens, std::max(in.k.cols, in.v.cols)),
        workers_(function, arena, workers,
                 [&](Arena& a) { return Worker(function, a, in.q.cols, in.v.cols); }) {}

  /// \param causal  whether query t reads keys 0..t only
  void run(bool causal, const Tangents<T>& tangents, const WithTangent<MatrixView<T>>& out,
           const ExecutorRef& executor) {
    tangents_ = tangents;
    pack_keys();
    const Contiguous strips(in_.q.rows, kStripTokens);
    executor.for_each(strips.blocks(),
                      [&](Index s, Index w) { read_strip(strips, s, causal, workers_[w], out); });
  }

 private:
  bool score_tangents() const { return !tangents_.q.absent() || !tangents_.k.absent(); }

  void pack_keys() {
    keys_.clear();
    dkeys_.clear();
    dvalues_.clear();
    if (in_.k.rows == 0) return;
    const Contiguous all(in_.k.rows, in_.k.rows);
    StripCursor strip(all, 0, in_.key_mask);
    while (strip.next() > 0) {
      const Index *const tokens = strip.tokens(), count = strip.count();
      gather(in_.k, tokens, count, raw_);
      keys_.append(raw_, in_.v, tokens, tokens, count, A(1));
      if (!tangents_.k.absent()) {
        gather(tangents_.k, tokens, count, raw_);
        dkeys_.append(raw_, raw_, tokens, count, A(1));
      }
      if (!tangents_.v.absent()) {
        dvalues_.append(raw_, tangents_.v, tokens, tokens, count, A(1));
      }
    }
  }

  void read_strip(const Contiguous& strips, Index s, bool causal, const Worker& w,
                  const WithTangent<MatrixView<T>>& out) const {
    const Index d = in_.q.cols, e = in_.v.cols;
    clear_masked(strips, s, in_.query_mask, out.value);
    clear_masked(strips, s, in_.query_mask, out.tangent);
    StripCursor strip(strips, s, in_.query_mask);
    const Index rows = strip.next();
    if (rows == 0) return;
    gather(in_.q, strip.tokens(), rows, w.strip.queries);
    if (!tangents_.q.absent()) gather(tangents_.q, strip.tokens(), rows, w.dqueries);
    for (Index r = 0; r < rows; ++r) {
      scale(scale_, w.strip.queries.row(r), d);
      if (!tangents_.q.absent()) scale(scale_, w.dqueries.row(r), d);
      std::fill_n(w.doutputs.row(r), e, A(0));
      w.dsums[r] = 0;
    }
    w.strip.start(rows, e);
    for_each_key_tile(keys_, strip.tokens(), rows, causal,
                      [&](Index tile, const Index* seen) { read_tile(tile, seen, rows, w); });
    for (Index r = 0; r < rows; ++r) {
      const A den = w.strip.divide(r, e);
      if (den == 0) continue;  // no keys: zeros
      if (score_tangents())
        add_scaled<A>(-w.dsums[r], w.strip.outputs.row(r), w.doutputs.row(r), e);
      transform(w.doutputs.row(r), w.doutputs.row(r), e, [den](auto p) {
        return Eigen::internal::pdiv(p, Eigen::internal::pset1<decltype(p)>(den));
      });
    }
    scatter(w.strip.outputs, strip.tokens(), rows, out.value);
    scatter(w.doutputs, strip.tokens(), rows, out.tangent);
  }

  /// Adds the first seen[r] keys of a tile to every query r of a strip; seen is ascending.
  void read_tile(Index tile, const Index* seen, Index rows, const Worker& w) const {
    const SoftmaxStrip<A>& s = w.strip;
    keys_.score(s.queries, seen, rows, tile, s.scores);
    if (!tangents_.q.absent()) keys_.score(w.dqueries, seen, rows, tile, w.dscores);
    if (!tangents_.k.absent()) {
      dkeys_.score(s.queries, seen, rows, tile, w.dscores, nullptr,
                   tangents_.q.absent() ? Start::kZero : Start::kTarget);
    }
    for (Index r = 0; r < rows; ++r) {
      const A largest = maximum(s.scores.row(r), seen[r]);
      if (!(largest > s.maxima[r])) continue;
      const A factor = s.rescale(r, largest, in_.v.cols);
      scale(factor, w.doutputs.row(r), in_.v.cols);
      w.dsums[r] *= factor;
    }
    for (Index r = 0; r < rows; ++r) {
      s.weigh(r, seen[r]);
      if (!score_tangents()) continue;
      update(
          w.dscores.row(r), seen[r],
          [](auto ds, auto weight) { return Eigen::internal::pmul(ds, weight); }, s.scores.row(r));
      w.dsums[r] += sum(w.dscores.row(r), seen[r]);
    }
    keys_.add_values(s.scores, seen, rows, tile, s.outputs);
    if (score_tangents()) keys_.add_values(w.dscores, seen, rows, tile, w.doutputs);
    if (!tangents_.v.absent()) dvalues_.add_values(s.scores, seen, rows, tile, w.doutputs);
  }

  const Inputs<T>& in_;
  A scale_;
  Tangents<T> tangents_{};
  PackedKeys<A> keys_;     // with tokens as slots
  PackedKeys<A> dkeys_;    // directions of the keys
  PackedKeys<A> dvalues_;  // and of the values
  Rows<A> raw_;            // [64, D]
  Workers<Worker> workers_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
