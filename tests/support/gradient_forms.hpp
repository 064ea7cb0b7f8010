#pragma once

/// \file
/// The backward forms as tests call them, for one head or a batch.
///
/// A form has these members. `name` is that of the backward function. `causal`; `mixes` is true if
/// it has a mixing matrix and keeps summaries. fit(p) turns any problem into one of the form.
/// definition<W>(p, x) is its output at the point x. add(a, p, blocks, call) is the call;
/// bytes(in, p, blocks, executor) its memory. Forms that mix also have kept_bytes(in, p, blocks)
/// and forward(in, p, blocks, call).

#include <algorithm>
#include <cmath>

#include "mhla/attention/naive.hpp"
#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/block_causal.hpp"
#include "mhla/gradient/causal.hpp"
#include "mhla/gradient/causal_decay.hpp"
#include "mhla/gradient/linear.hpp"
#include "mhla/gradient/softmax.hpp"
#include "support/any_gradient.hpp"

namespace mhla::test {

/// Output of the operator at the point x. naive_attention computes in W after the feature maps, and
/// the maps are in W too.
/// \param mixing  [Mq,Mk] at x
template <class W, class T>
Matrix<W> operator_at(const GradientProblem<T>& p, const Variables<W>& x, const Matrix<W>& mixing) {
  auto n = naive_problem<W>(p.inputs(), p.blocks, p.mixing(), p.op,
                            p.causal ? Order::kCausal : Order::kBidirectional);
  const auto features = [](const auto& map, const Matrix<W>& rows, const Matrix<W>& weights,
                           const W& factor) {
    const std::vector<W> flat(weights.data(), weights.data() + weights.size());
    Matrix<W> y(rows.rows(), map.features(rows.cols()));
    for (Index t = 0; t < rows.rows(); ++t) {
      const W* const row = rows.data() + t * rows.cols();
      const auto of_row = wide_features(map, std::vector<W>(row, row + rows.cols()), flat);
      for (Index j = 0; j < y.cols(); ++j) y(t, j) = factor * of_row[static_cast<std::size_t>(j)];
    }
    return y;
  };
  const W scale(p.op.scale);
  n.q = features(p.op.query_map, x[kQ], x[kQueryMap], scale);
  n.k = features(p.op.key_map, x[kK], x[kKeyMap], W(1));
  n.v = x[kV];
  if (!p.inputs().normalizer_q.absent()) {
    n.normalizer_q = features(p.op.query_map, x[kNormalizerQ], x[kQueryMap], scale);
    n.normalizer_k = features(p.op.key_map, x[kNormalizerK], x[kKeyMap], W(1));
  }
  n.mixing = mixing;
  return naive_attention(n);
}
template <class W, class T>
Matrix<W> operator_at(const GradientProblem<T>& p, const Variables<W>& x) {
  return operator_at(p, x, MixingView<const W>(x[kMixing].data(), p.pattern).dense());
}

struct BidirectionalForm {
  const char* name = "bidirectional_gradient";
  bool causal = false, mixes = true;

  template <class T>
  static void fit(GradientProblem<T>&) {}
  template <class W, class T>
  static Matrix<W> definition(const GradientProblem<T>& p, const Variables<W>& x) {
    return operator_at(p, x);
  }
  template <class In, class P, class Blocks>
  static void add(const GradientArguments<In>& a, const P& p, const Blocks& blocks,
                  const Call& call) {
    bidirectional_gradient(a.in, blocks, p.mixing(), p.op, a.dout, a.gradients, a.parameters, call);
  }
  template <class In, class P, class Blocks>
  static std::size_t bytes(const In& in, const P& p, const Blocks& blocks, const ExecutorRef& x) {
    return bidirectional_gradient_workspace_bytes(in, blocks, p.mixing(), p.op, x);
  }
  template <class In, class P, class Blocks>
  static std::size_t kept_bytes(const In& in, const P& p, const Blocks& blocks) {
    return bidirectional_kept_bytes(in, blocks, p.op);
  }
  template <class In, class P, class Blocks>
  static void forward(const In& in, const P& p, const Blocks& blocks, const Call& call) {
    bidirectional(in, blocks, p.mixing(), p.op, call);
  }
};

struct BlockCausalForm : BidirectionalForm {
  const char* name = "block_causal_gradient";
  static constexpr Index kStep = 2;  // blocks

  /// Makes keys of the queries' blocks, and coefficients of no later step.
  template <class T>
  static void fit(GradientProblem<T>& p) {
    if (p.op.normalizer.sums() == WeightSums::kCrossQuery) p.op.normalizer = {KeySum{0.125}};
    Random rng(p.seed);
    const Index n = p.queries(), blocks = std::max<Index>(1, p.blocks.queries.blocks());
    p.blocks.keys = p.blocks.queries;
    if (p.keys() != n) {
      p.key_mask.resize(0, 0);
      for (const Part part : {kK, kV, kNormalizerK}) {
        Matrix<T>& x = p.tensors[part];
        if (part != kNormalizerK || x.cols() > 0) x = rng.matrix<T>(n, x.cols());
      }
    }
    std::vector<std::vector<Index>> lists(static_cast<std::size_t>(blocks));
    for (Index i = 0; i < blocks; ++i) {
      for (Index b = 0; b < std::min(blocks, (i / kStep + 1) * kStep); b += rng.integer(1, 2)) {
        lists[static_cast<std::size_t>(i)].push_back(b);
      }
    }
    const bool square = p.pattern.rows() == p.pattern.cols();
    const Pattern pattern = p.pattern.sparse() ? Pattern(blocks, lists)
                            : square           ? p.pattern
                                               : Pattern(blocks, blocks);
    p.set_mixing(pattern.block_causal(kStep), rng, 0.1);
  }
  template <class In, class P, class Blocks>
  static void add(const GradientArguments<In>& a, const P& p, const Blocks& blocks,
                  const Call& call) {
    block_causal_gradient(a.in, blocks.queries, p.mixing(), kStep, p.op, a.dout, a.gradients,
                          a.parameters, call);
  }
  template <class In, class P, class Blocks>
  static void forward(const In& in, const P& p, const Blocks& blocks, const Call& call) {
    block_causal(in, blocks.queries, p.mixing(), kStep, p.op, call);
  }
};

struct CausalForm {
  const char* name = "causal_gradient";
  bool causal = true, mixes = true;

  template <class T>
  static void fit(GradientProblem<T>&) {}
  template <class W, class T>
  static Matrix<W> definition(const GradientProblem<T>& p, const Variables<W>& x) {
    return operator_at(p, x);
  }
  template <class In, class P, class Blocks>
  static void add(const GradientArguments<In>& a, const P& p, const Blocks& blocks,
                  const Call& call) {
    causal_gradient(a.in, blocks.queries, p.mixing(), p.op, a.dout, a.gradients, a.parameters,
                    call);
  }
  template <class In, class P, class Blocks>
  static std::size_t bytes(const In& in, const P& p, const Blocks& blocks, const ExecutorRef& x) {
    return causal_gradient_workspace_bytes(in, blocks.queries, p.mixing(), p.op, x);
  }
  template <class In, class P, class Blocks>
  static std::size_t kept_bytes(const In& in, const P& p, const Blocks& blocks) {
    return causal_kept_bytes(in, blocks.queries, p.op);
  }
  template <class In, class P, class Blocks>
  static void forward(const In& in, const P& p, const Blocks& blocks, const Call& call) {
    mhla::causal(in, blocks.queries, p.mixing(), p.op, call);
  }
};

/// The causal form with a decaying mixing matrix of one to three terms, parameters [2,R].
struct CausalDecayForm : CausalForm {
  template <class T>
  static void fit(GradientProblem<T>& p) {
    Random rng(p.seed);
    p.set_mixing(Pattern(2, rng.integer(1, 3)), rng, 0.05);
  }
  template <class W, class T>
  static Matrix<W> definition(const GradientProblem<T>& p, const Variables<W>& x) {
    const Index blocks = std::max<Index>(1, p.blocks.queries.blocks()), terms = p.pattern.cols();
    Matrix<W> mixing(blocks, blocks);
    for (Index i = 0; i < blocks; ++i) {
      for (Index b = 0; b < blocks; ++b) {
        mixing(i, b) = W(0);
        for (Index r = 0; r < terms && b <= i; ++r) {
          W coefficient = x[kMixing](0, r);
          for (Index step = b; step < i; ++step) {
            coefficient = coefficient * x[kMixing](0, terms + r);
          }
          mixing(i, b) = mixing(i, b) + coefficient;
        }
      }
    }
    return operator_at(p, x, mixing);
  }
  template <class P>
  static auto terms(const P& p) {
    return DecayView(p.coefficients.data(), p.pattern.cols());
  }
  template <class In, class P, class Blocks>
  static void add(const GradientArguments<In>& a, const P& p, const Blocks& blocks,
                  const Call& call) {
    causal_gradient(a.in, blocks.queries, terms(p), p.op, a.dout, a.gradients, a.parameters, call);
  }
  template <class In, class P, class Blocks>
  static std::size_t bytes(const In& in, const P& p, const Blocks& blocks, const ExecutorRef& x) {
    return causal_gradient_workspace_bytes(in, blocks.queries, terms(p), p.op, x);
  }
  template <class In, class P, class Blocks>
  static void forward(const In& in, const P& p, const Blocks& blocks, const Call& call) {
    mhla::causal(in, blocks.queries, terms(p), p.op, call);
  }
};

/// Linear attention: MHLA with a single block, without a mixing matrix.
template <bool kIsCausal>
struct LinearForm {
  const char* name = kIsCausal ? "linear_causal_gradient" : "linear_bidirectional_gradient";
  bool causal = kIsCausal, mixes = false;

  template <class T>
  static void fit(GradientProblem<T>& p) {
    const auto one_block = [](Index n) {
      return AnyPartition::of(Contiguous(n, std::max<Index>(1, n)));
    };
    p.blocks = {one_block(p.queries()), one_block(p.keys())};
    p.pattern = Pattern(1, 1);
    p.coefficients = Matrix<accumulator_t<T>>::Ones(1, 1);
  }
  template <class W, class T>
  static Matrix<W> definition(const GradientProblem<T>& p, const Variables<W>& x) {
    return operator_at(p, x);
  }
  template <class In, class P, class Blocks>
  static void add(const GradientArguments<In>& a, const P& p, const Blocks&, const Call& call) {
    if constexpr (kIsCausal) {
      linear_causal_gradient(a.in, p.op, a.dout, a.gradients, a.parameters, call);
    } else {
      linear_bidirectional_gradient(a.in, p.op, a.dout, a.gradients, a.parameters, call);
    }
  }
  template <class In, class P, class Blocks>
  static std::size_t bytes(const In& in, const P& p, const Blocks&, const ExecutorRef& x) {
    return kIsCausal ? linear_causal_gradient_workspace_bytes(in, p.op, x)
                     : linear_bidirectional_gradient_workspace_bytes(in, p.op, x);
  }
};
using Linear = LinearForm<false>;
using LinearCausal = LinearForm<true>;

/// Softmax attention with q, k and v alone.
template <bool kIsCausal>
struct SoftmaxForm {
  const char* name = kIsCausal ? "softmax_causal_gradient" : "softmax_bidirectional_gradient";
  bool causal = kIsCausal, mixes = false;

  template <class T>
  static void fit(GradientProblem<T>& p) {
    LinearForm<kIsCausal>::fit(p);
    p.tensors[kNormalizerQ] = p.tensors[kNormalizerK] = {};
    const double scale = p.op.scale;
    p.op = {{Identity{}}, {Identity{}}, {NoNormalizer{}}, scale};
  }
  /// Default options, or minus the problem's scale if it is not 1.
  template <class P>
  static SoftmaxOptions options(const P& p) {
    return p.op.scale == 1 ? SoftmaxOptions{} : SoftmaxOptions{-p.op.scale};
  }
  /// A query without keys has no output; it counts as 0.
  template <class W, class T>
  static Matrix<W> definition(const GradientProblem<T>& p, const Variables<W>& x) {
    using std::exp;
    using A = accumulator_t<T>;
    const Matrix<W>&q = x[kQ], &k = x[kK], &v = x[kV];
    const double plain = 1 / std::sqrt(static_cast<double>(q.cols()));
    const W scale(static_cast<A>(options(p).scale.value_or(plain)));
    Matrix<W> out = Matrix<W>::Constant(q.rows(), v.cols(), W(0));
    for (Index t = 0; t < q.rows(); ++t) {
      std::vector<Index> keys;
      std::vector<W> scores;
      for (Index j = 0; p.mask(p.query_mask)[t] && j < (kIsCausal ? t + 1 : k.rows()); ++j) {
        if (!p.mask(p.key_mask)[j]) continue;
        keys.push_back(j);
        scores.push_back(scale * naive_detail::inner(q, t, k, j));
      }
      if (keys.empty()) continue;
      const W largest = *std::max_element(scores.begin(), scores.end());
      W sum(0);
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const W weight = exp(scores[i] - largest);
        sum += weight;
        for (Index e = 0; e < v.cols(); ++e) out(t, e) += weight * v(keys[i], e);
      }
      for (Index e = 0; e < v.cols(); ++e) out(t, e) /= sum;
    }
    return out;
  }
  template <class In, class P, class Blocks>
  static void add(const GradientArguments<In>& a, const P& p, const Blocks&, const Call& call) {
    if constexpr (kIsCausal) {
      softmax_causal_gradient(a.in, a.dout, a.gradients, options(p), call);
    } else {
      softmax_bidirectional_gradient(a.in, a.dout, a.gradients, options(p), call);
    }
  }
  template <class In, class P, class Blocks>
  static std::size_t bytes(const In& in, const P&, const Blocks&, const ExecutorRef& x) {
    return softmax_gradient_workspace_bytes(in, x);
  }
};
using Softmax = SoftmaxForm<false>;
using SoftmaxCausal = SoftmaxForm<true>;

}  // namespace mhla::test
