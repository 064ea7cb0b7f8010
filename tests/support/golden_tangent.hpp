#pragma once

/// \file
/// Checks of golden files with directions and tangents of the operator. Batches in double are
/// compared with the file, heads in float with dual numbers within the bound of tangent_forms.hpp.

#include <string>

#include "support/golden_operator.hpp"
#include "support/tangent_forms.hpp"

namespace mhla::test::golden {

/// The directions of one head, rounded to T.
template <class T>
Directions<T> head_directions(const Safetensors& file, const GradientProblem<T>& p, Index b,
                              Index h) {
  Directions<T> x(p);
  x.tensors[kQ] = Heads(file, "tq").head(b, h).cast<T>();
  x.tensors[kK] = Heads(file, "tk").head(b, h).cast<T>();
  x.tensors[kV] = Heads(file, "tv").head(b, h).cast<T>();
  x.parameters[0] =
      head_mixing(file, "tmixing", h).cast<T>().template reshaped<Eigen::RowMajor>().transpose();
  return x;
}

template <class T>
WithTangent<Matrix<T>> head_tangent(const GradientProblem<T>& p, Directions<T>& x) {
  return p.causal ? tangent_of<CausalTangentForm>(p, x)
                  : tangent_of<BidirectionalTangentForm>(p, x);
}

/// Checks files of kind op with tangents.
inline Result check_tangent(const Safetensors& file, const std::string& kind) {
  if (kind != "op") throw std::runtime_error("is of a kind that is unknown");
  const Heads q(file, "q"), k(file, "k"), v(file, "v"), out(file, "out"), tout(file, "tout");
  const Heads tq(file, "tq"), tk(file, "tk"), tv(file, "tv");
  const MixingMatrix<double> mixing = read_mixing(file, "mixing"),
                             tmixing = read_mixing(file, "tmixing");
  const auto common = head_problem<double>(file, q, k, v, 0, 0);  // but for the numbers
  const BatchInputs<double> in{.q = q.view, .k = k.view, .v = v.view};
  const BatchTangents<double> along{.q = tq.view, .k = tk.view, .v = tv.view};
  const ParameterTangents<double> parameters{.mixing = tmixing};
  const auto all_heads =
      common.causal
          ? causal_tangent(in, common.query_blocks, mixing, common.op(), along, parameters)
          : bidirectional_tangent(in, common.blocks(), mixing, common.op(), along, parameters);
  Result result;
  for (Index b = 0; b < q.view.batch(); ++b) {
    for (Index h = 0; h < q.view.heads(); ++h) {
      const auto p = differentiable(head_problem<double>(file, q, k, v, b, h));
      auto x = head_directions(file, p, b, h);
      const auto of = [&](const Tensor<double>& t) { return dense(t.view().head(b, h)); };
      result.outputs["out"].add(of(all_heads.value), out.head(b, h));
      result.outputs["tout"].add(of(all_heads.tangent), tout.head(b, h));
      Matrix<double> of_definition;
      tangent_of<BidirectionalTangentForm>(p, x, {}, [&](const auto& a) {
        of_definition = naive_tangent(a.in, p.blocks, p.mixing(), p.op, a.tangents, a.parameters,
                                      p.causal ? Order::kCausal : Order::kBidirectional);
      });
      result.outputs["tout of the definition"].add(of_definition, tout.head(b, h));
      const auto rounded = differentiable(head_problem<float>(file, q, k, v, b, h));
      auto directions = head_directions(file, rounded, b, h);
      const Matrix<float> in_float = head_tangent(rounded, directions).tangent;
      const auto all = [](Part) { return true; };
      const Matrix<double> errors =
          p.causal ? tangent_errors<CausalTangentForm>(rounded, in_float, directions, all)
                   : tangent_errors<BidirectionalTangentForm>(rounded, in_float, directions, all);
      result.raise_in_float(errors.maxCoeff(), 1);
    }
  }
  return result;
}

}  // namespace mhla::test::golden
