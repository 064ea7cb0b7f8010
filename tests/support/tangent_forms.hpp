#pragma once

/// \file
/// The tangent forms as tests call them, for one head or a batch, and required tangents.
///
/// A form adds to its backward form (gradient_forms.hpp) kName, kExactOutput, true if its output
/// has the bits of the forward form; kDivides, true if it has a normaliser; chain(p), the m of the
/// bound below; write(a, p, blocks, call) and bytes(in, p, blocks, executor); and forward(in, p,
/// blocks), the output of the forward form.
///
/// For a direction of all variables, dual numbers give the tangent through the definition of the
/// form, and the size s of its terms (dual.hpp). A form differs by at most gamma_m s and one
/// rounding of storage. A term of o' multiplies these chains of roundings, of which a sum over n
/// terms has n, with l = W + M + D, or 2 W + M + D in a causal block:
///
///     phi'(q)^T S~, phi(q)^T S~'        2 l, as two sums are added up       NoNormalizer
///     r' o                              2 l + l                             KeySum, CrossQuery
///     r r' o                            l + 2 l + l                         a square of r
///
/// and the features of queries and keys, two per chain of l. Products with m, the scale, f' and the
/// reciprocal take 16 more.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <variant>

#include "mhla/tangent/bidirectional.hpp"
#include "mhla/tangent/block_causal.hpp"
#include "mhla/tangent/causal.hpp"
#include "mhla/tangent/linear.hpp"
#include "mhla/tangent/naive.hpp"
#include "mhla/tangent/softmax.hpp"
#include "support/dual.hpp"
#include "support/gradient_forms.hpp"
#include "support/gradient_oracle.hpp"
#include "support/gradient_random.hpp"
#include "support/reference.hpp"

namespace mhla::test {

/// Tensors, their directions, and memory of the results.
template <class In>
struct TangentArguments {
  In in;
  detail::tangents_of<In> tangents;
  ParameterTangents<detail::sum_of<In>> parameters;
  WithTangent<detail::output_of<In>> out;
};

/// Roundings of one feature or of its tangent. Roundings of an exponent count eightfold (dual.hpp).
template <class A>
Index map_chain(const AnyMap<A>& map, Index d) {
  if (std::holds_alternative<Identity>(map.map) || std::holds_alternative<Relu>(map.map)) return 1;
  constexpr Index kExponential = 1 + static_cast<Index>(detail::kExponentialRoundoffs);
  return map.weights() == 0 ? kExponential : kExponential + 8 * (2 * d + 4) + 2 * map.features(d);
}
/// m of the bound above.
template <class T>
Index tangent_chain(const GradientProblem<T>& p) {
  const Index d = std::max(p.tensors[kQ].cols(), p.tensors[kNormalizerQ].cols());
  const Index features = p.op.query_map.features(d), blocks = p.blocks.keys.blocks();
  const Index w = largest_block(p.blocks.keys), l = (p.causal ? 2 * w : w) + blocks + features;
  const auto& z = p.op.normalizer.normalizer;
  const Index sums = std::holds_alternative<NoNormalizer>(z)    ? 2
                     : std::holds_alternative<SquarePlusOne>(z) ? 4
                                                                : 3;
  return sums * l + 2 * sums * std::max(map_chain(p.op.query_map, d), map_chain(p.op.key_map, d)) +
         16;
}

/// Common parts of the tangents of forms with a normaliser.
template <class Form>
struct DividingTangentForm : Form {
  using Backward = Form;
  static constexpr bool kDivides = true;

  template <class T>
  static Index chain(const GradientProblem<T>& p) {
    return tangent_chain(p);
  }
};

struct BidirectionalTangentForm : DividingTangentForm<BidirectionalForm> {
  static constexpr const char* kName = "bidirectional_tangent";
  static constexpr bool kExactOutput = true;

  template <class In, class P, class Blocks>
  static void write(const TangentArguments<In>& a, const P& p, const Blocks& blocks,
                    const Call& call) {
    bidirectional_tangent(a.in, blocks, p.mixing(), p.op, a.tangents, a.out, a.parameters, call);
  }
  template <class In, class P, class Blocks>
  static std::size_t bytes(const In& in, const P& p, const Blocks& blocks, const ExecutorRef& x) {
    return bidirectional_tangent_workspace_bytes(in, blocks, p.op, x);
  }
  template <class In, class P, class Blocks>
  static auto forward(const In& in, const P& p, const Blocks& blocks) {
    return bidirectional(in, blocks, p.mixing(), p.op);
  }
};

struct BlockCausalTangentForm : DividingTangentForm<BlockCausalForm> {
  static constexpr const char* kName = "block_causal_tangent";
  static constexpr bool kExactOutput = true;

  template <class In, class P, class Blocks>
  static void write(const TangentArguments<In>& a, const P& p, const Blocks& blocks,
                    const Call& call) {
    block_causal_tangent(a.in, blocks.queries, p.mixing(), kStep, p.op, a.tangents, a.out,
                         a.parameters, call);
  }
  template <class In, class P, class Blocks>
  static std::size_t bytes(const In& in, const P& p, const Blocks& blocks, const ExecutorRef& x) {
    return bidirectional_tangent_workspace_bytes(in, blocks, p.op, x);
  }
  template <class In, class P, class Blocks>
  static auto forward(const In& in, const P& p, const Blocks& blocks) {
    return block_causal(in, blocks.queries, p.mixing(), kStep, p.op);
  }
};

struct CausalTangentForm : DividingTangentForm<CausalForm> {
  static constexpr const char* kName = "causal_tangent";
  static constexpr bool kExactOutput = true;

  template <class In, class P, class Blocks>
  static void write(const TangentArguments<In>& a, const P& p, const Blocks& blocks,
                    const Call& call) {
    causal_tangent(a.in, blocks.queries, p.mixing(), p.op, a.tangents, a.out, a.parameters, call);
  }
  template <class In, class P, class Blocks>
  static std::size_t bytes(const In& in, const P& p, const Blocks& blocks, const ExecutorRef& x) {
    return causal_tangent_workspace_bytes(in, blocks.queries, p.op, x);
  }
  template <class In, class P, class Blocks>
  static auto forward(const In& in, const P& p, const Blocks& blocks) {
    return mhla::causal(in, blocks.queries, p.mixing(), p.op);
  }
};

template <bool kIsCausal>
struct LinearTangentForm : DividingTangentForm<LinearForm<kIsCausal>> {
  static constexpr const char* kName =
      kIsCausal ? "linear_causal_tangent" : "linear_bidirectional_tangent";
  static constexpr bool kExactOutput = !kIsCausal;

  template <class In, class P, class Blocks>
  static void write(const TangentArguments<In>& a, const P& p, const Blocks&, const Call& call) {
    if constexpr (kIsCausal) {
      linear_causal_tangent(a.in, p.op, a.tangents, a.out, a.parameters, call);
    } else {
      linear_bidirectional_tangent(a.in, p.op, a.tangents, a.out, a.parameters, call);
    }
  }
  template <class In, class P, class Blocks>
  static std::size_t bytes(const In& in, const P& p, const Blocks&, const ExecutorRef& x) {
    return kIsCausal ? linear_causal_tangent_workspace_bytes(in, p.op, x)
                     : linear_bidirectional_tangent_workspace_bytes(in, p.op, x);
  }
  template <class In, class P, class Blocks>
  static auto forward(const In& in, const P& p, const Blocks&) {
    return linear_bidirectional(in, p.op);
  }
};
using LinearTangent = LinearTangentForm<false>;
using LinearCausalTangent = LinearTangentForm<true>;

template <bool kIsCausal>
struct SoftmaxTangentForm : SoftmaxForm<kIsCausal> {
  static constexpr const char* kName =
      kIsCausal ? "softmax_causal_tangent" : "softmax_bidirectional_tangent";
  using Backward = SoftmaxForm<kIsCausal>;
  static constexpr bool kExactOutput = true, kDivides = false;

  /// A weight has the roundings of its exponent eightfold (dual.hpp), of the exponential, and of
  /// the factors that each tile may bring. A term has two weights and a score's tangent, and is
  /// summed over the keys twice.
  template <class T>
  static Index chain(const GradientProblem<T>& p) {
    const Index d = p.tensors[kQ].cols(), n = p.keys();
    const Index weight = 8 * (d + 3) + 4 + 3 * detail::ceil_div(n, detail::kStripTokens);
    return 2 * weight + 2 * n + 2 * d + 12;
  }
  template <class In, class P, class Blocks>
  static void write(const TangentArguments<In>& a, const P& p, const Blocks&, const Call& call) {
    const auto options = SoftmaxForm<kIsCausal>::options(p);
    if constexpr (kIsCausal) {
      softmax_causal_tangent(a.in, a.tangents, a.out, options, call);
    } else {
      softmax_bidirectional_tangent(a.in, a.tangents, a.out, options, call);
    }
  }
  template <class In, class P, class Blocks>
  static std::size_t bytes(const In& in, const P&, const Blocks&, const ExecutorRef& x) {
    return softmax_tangent_workspace_bytes(in, x);
  }
  template <class In, class P, class Blocks>
  static auto forward(const In& in, const P& p, const Blocks&) {
    const auto options = SoftmaxForm<kIsCausal>::options(p);
    return kIsCausal ? softmax_causal(in, options) : softmax_bidirectional(in, options);
  }
};
using SoftmaxTangent = SoftmaxTangentForm<false>;
using SoftmaxCausalTangent = SoftmaxTangentForm<true>;

using TangentForms = testing::Types<BidirectionalTangentForm, CausalTangentForm, LinearTangent,
                                    LinearCausalTangent, SoftmaxTangent, SoftmaxCausalTangent>;
using CausalTangentForms =
    testing::Types<CausalTangentForm, LinearCausalTangent, SoftmaxCausalTangent>;

/// Directions of all variables of a problem, shaped as gradients are.
template <class T>
using Directions = GradientBuffers<T>;
template <class T>
Directions<T> random_directions(const GradientProblem<T>& p, std::uint64_t seed) {
  Random rng(seed);
  return Directions<T>(p, [&] { return rng.uniform(-1, 1); });
}

/// The arguments of a call of one head. Directions may be made absent afterwards.
template <class T>
TangentArguments<Inputs<T>> tangent_arguments(const GradientProblem<T>& p, Directions<T>& x,
                                              WithTangent<Matrix<T>>& out) {
  const Gradients<T> views = x.views();
  const auto parameters = x.parameter_views();
  return {p.inputs(),
          {views.q, views.k, views.v, views.normalizer_q, views.normalizer_k},
          {parameters.mixing, parameters.query_map, parameters.key_map},
          {out.value, out.tangent}};
}
/// Makes a direction absent. A row of weights stays a pointer without elements.
template <class In>
void remove_part(TangentArguments<In>& a, Part part) {
  if (part == kQ) a.tangents.q = {};
  if (part == kK) a.tangents.k = {};
  if (part == kV) a.tangents.v = {};
  if (part == kNormalizerQ) a.tangents.normalizer_q = {};
  if (part == kNormalizerK) a.tangents.normalizer_k = {};
  if (part == kMixing) a.parameters.mixing = {};
  if (part == kQueryMap) a.parameters.query_map = a.parameters.query_map.first(0);
  if (part == kKeyMap) a.parameters.key_map = a.parameters.key_map.first(0);
}

/// Calls a form, in a workspace of exactly the stated bytes.
template <class Form, class In, class P, class Blocks>
void write_tangents(const TangentArguments<In>& a, const P& p, const Blocks& blocks,
                    const ExecutorRef& executor = {}) {
  GuardedWorkspace workspace(Form::bytes(a.in, p, blocks, executor));
  Form::write(a, p, blocks, {.workspace = workspace.get(), .executor = executor});
  EXPECT_TRUE(workspace.intact()) << p.text();
}
/// Returns the output and the tangent of a problem.
/// \param spoil  spoil(arguments) before the call
template <class Form, class T, class Spoil>
WithTangent<Matrix<T>> tangent_of(const GradientProblem<T>& p, Directions<T>& x,
                                  const ExecutorRef& executor, const Spoil& spoil) {
  const auto fresh = [&] { return unwritten<T>(p.queries(), p.tensors[kV].cols()); };
  WithTangent<Matrix<T>> out{fresh(), fresh()};
  auto a = tangent_arguments(p, x, out);
  spoil(a);
  write_tangents<Form>(a, p, p.blocks, executor);
  return out;
}
template <class Form, class T>
WithTangent<Matrix<T>> tangent_of(const GradientProblem<T>& p, Directions<T>& x,
                                  const ExecutorRef& executor = {}) {
  return tangent_of<Form>(p, x, executor, [](auto&) {});
}

template <class T>
void expect_same(const WithTangent<Matrix<T>>& a, const WithTangent<Matrix<T>>& b,
                 const GradientProblem<T>& p, const std::string& what) {
  EXPECT_TRUE(same_bits(a.value, b.value)) << what << ", output, " << p.text();
  EXPECT_TRUE(same_bits(a.tangent, b.tangent)) << what << ", tangent, " << p.text();
}

/// Returns the errors of a tangent along x', divided by their bounds. Directions that `wanted`
/// excludes count as zeros.
template <class Form, class T, class Wanted>
Matrix<double> tangent_errors(const GradientProblem<T>& p, const Matrix<T>& got,
                              Directions<T>& direction, const Wanted& wanted) {
  using A = accumulator_t<T>;
  using Real = long double;
  auto x = values_of<Dual<A>>(p);
  const auto along = direction.template values<Real>();
  for (const Part part : kAllParts) {
    for (Index i = 0; wanted(part) && i < along[part].size(); ++i) {
      x[part].data()[i].tangent = along[part].data()[i];
      x[part].data()[i].tangent_size = std::abs(along[part].data()[i]);
    }
  }
  const Matrix<Dual<A>> out = Form::template definition<Dual<A>>(p, x);
  const Real g = gamma(Form::chain(p), Real(kUnitRoundoff<T>)), kept = kStorageRoundoff<T>;
  const Real tiny = kept > 0 ? 0x1p-25L : 0;
  Matrix<double> errors(out.rows(), out.cols());
  for (Index i = 0; i < out.size(); ++i) {
    const Real right = out.data()[i].tangent;
    const Real error = std::abs(static_cast<Real>(static_cast<A>(got.data()[i])) - right);
    // Second-order terms are far below a sixteenth, since no denominator is near 0.
    const Real bound =
        (g * out.data()[i].tangent_size + kept * std::abs(right) + tiny) * (1 + Real(1) / 16);
    errors.data()[i] = error == 0 ? 0 : static_cast<double>(error / bound);
  }
  return errors;
}
/// Expects these errors to be at most 1, and returns the largest.
template <class Form, class T, class Wanted>
double expect_tangent(const GradientProblem<T>& p, const Matrix<T>& got, Directions<T>& direction,
                      const Wanted& wanted) {
  double worst = 0;
  const Matrix<double> errors = tangent_errors<Form>(p, got, direction, wanted);
  for (const double error : errors.reshaped()) {
    EXPECT_LE(error, 1) << Form::kName << " " << p.text();  // not so of NaN
    worst = std::max(worst, error);
  }
  return worst;
}

}  // namespace mhla::test
