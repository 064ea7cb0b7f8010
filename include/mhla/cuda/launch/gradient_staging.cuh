#pragma once

/// \file
/// Gradients of forms of tokens that are masked or packed, have a prefix, or feature maps of one's
/// own. With the copies of staging.cuh in place of the tensors, all else is a gradient with
/// identity maps: of features, of values, and of the mixing matrix. A last pass multiplies
/// gradients of features by phi' and writes 0 for masked tokens. phi' is 0 or 1 for ReLU and
/// identity, and no bit changes. Other maps round once more: with |phi'| <= L, an error of L
/// (err(dphi) + u |dphi|), rounded.

#include <cstddef>
#include <cstdint>
#include <utility>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/launch/gradient_problem.cuh"
#include "mhla/cuda/launch/staging.cuh"

namespace mhla::cuda {

/// A gradient with copies, and the gradient of its copies.
template <int D, int E>
class GradientStaging {
 public:
  /// Counts the workspace's bytes where `workspace` is null.
  GradientStaging(const GradientProblem& problem, unsigned char* workspace)
      : outer_(problem), inner_(problem), staging_(problem.forward, workspace) {
    const std::int32_t queries = staging_.query_tokens(), keys = staging_.key_tokens();
    const GradientWants& wants = problem.wants;
    inner_.forward = staging_.inner();
    if (!problem.forward.queries.all()) {
      dout_ = staging_.take(true, queries, E);
      inner_.dout = read_only(dout_);
    }
    if (problem.forward.queries.moves()) {
      out_ = staging_.take(wants.has_out, queries, E);
      inner_.out = read_only(out_);
      inner_.dq = staging_.take(wants.q, queries, D);
      inner_.dgate = staging_.take(problem.forward.norm.gated, queries, E);
    }
    if (problem.forward.keys.moves()) {
      inner_.dk = staging_.take(wants.k, keys, D);
      inner_.dv = staging_.take(wants.v, keys, E);
    }
  }

  /// The gradient of the copies.
  const GradientProblem& inner() const { return inner_; }
  std::size_t bytes() const { return staging_.bytes(); }
  std::uint64_t traffic() const { return staging_.traffic(); }

  /// \param maps  the Operator or MappedOperator of the call
  template <class T, bool kRotary, class Stream, class Maps>
  void copy_inputs(const Stream& stream, const Maps& maps) const {
    staging_.template copy_inputs<T, kRotary>(stream, maps);
    const std::int32_t queries = staging_.query_tokens();
    for (const auto& [x, y] : {std::pair{outer_.dout, dout_}, std::pair{outer_.out, out_}}) {
      staging_.template copy<T, E>(x, y, queries, FeatureMap::identity(), outer_.forward.queries,
                                   stream);
    }
  }

  template <class T, class Stream, class Maps>
  void write_gradients(const Stream& stream, const Maps& maps) const {
    const Problem& forward = outer_.forward;
    const std::int32_t queries = staging_.query_tokens(), keys = staging_.key_tokens();
    if (outer_.wants.q && forward.copies_queries()) {
      staging_.template write<T, D>(read_only(inner_.dq), outer_.dq, forward.q, queries,
                                    maps.query_map, forward.queries, stream);
    }
    if (outer_.wants.k && forward.copies_keys()) {
      staging_.template write<T, D>(read_only(inner_.dk), outer_.dk, forward.k, keys, maps.key_map,
                                    forward.keys, stream);
    }
    if (outer_.wants.v && !forward.keys.all()) {
      staging_.template write<T, E>(read_only(inner_.dv), outer_.dv, {}, keys,
                                    FeatureMap::identity(), forward.keys, stream);
    }
    if (outer_.dgate.data != nullptr && forward.queries.moves()) {
      staging_.template write<T, E>(read_only(inner_.dgate), outer_.dgate, {}, queries,
                                    FeatureMap::identity(), forward.queries, stream);
    }
  }

 private:
  GradientProblem outer_;
  GradientProblem inner_;
  Staging<D, E> staging_;
  TokenTensor dout_{}, out_{};
};

}  // namespace mhla::cuda
