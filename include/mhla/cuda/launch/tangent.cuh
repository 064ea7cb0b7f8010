#pragma once

/// \file
/// Plan and launch of a tangent: outputs of a form, and their derivative along directions of q, k,
/// v and the mixing matrix. The form without denominators, F(phi(q), phi(k), v; m), is linear in
/// each of its arguments, so the tangent of a numerator is a sum of at most four forms:
///
///     n' = F(phi'(q) q', phi(k), v; m) + F(phi(q), phi'(k) k', v; m)
///          + F(phi(q), phi(k), v'; m) + F(phi(q), phi(k), v; m')
///
/// Kernels in launch order, of which the forms run one after another in the same workspace:
///
///     (form of the outputs) -> feature_tangents -> up to four forms
///       -> (token_sums -> mixed_sums) -> output_tangents
///
/// A form writes its addend times s, a power of two: the summary_scale of the keys, about 1 / W. A
/// scaled addend of half is below 65520 and keeps its digits above 2^-14.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/feature_tangents_sm80.cuh"
#include "mhla/cuda/kernel/mixed_sums_sm80.cuh"
#include "mhla/cuda/kernel/output_tangents_sm80.cuh"
#include "mhla/cuda/kernel/token_sums_sm80.cuh"
#include "mhla/cuda/launch/forms.cuh"
#include "mhla/cuda/launch/plan.cuh"
#include "mhla/cuda/launch/problem.cuh"
#include "mhla/cuda/launch/workspace_cursor.cuh"

namespace mhla::cuda {

/// A direction: of q, of k, of v or of the mixing matrix.
enum class Along { kQueries, kKeys, kValues, kMixing };
inline constexpr Along kDirections[] = {Along::kQueries, Along::kKeys, Along::kValues,
                                        Along::kMixing};

/// A tangent call. Directions that are not wanted count as zeros.
struct TangentProblem {
  Problem forward;      ///< the forward call, which writes the outputs
  bool wants[4];        ///< directions, by Along
  ConstTokenTensor q;   ///< q' [B, Nq, H, D]
  ConstTokenTensor k;   ///< k' [B, Nk, H, D]
  ConstTokenTensor v;   ///< v' [B, Nk, H, E]
  MixingArray mixing;   ///< m'
  TokenTensor tangent;  ///< o' [B, Nq, H, E]

  constexpr bool wants_along(Along which) const { return wants[static_cast<int>(which)]; }
  constexpr bool key_sums() const { return forward.op.denominator == Denominator::kKeySum; }
};

struct TangentPlan {
  std::size_t workspace_bytes;  ///< a multiple of 256
  Traffic traffic;
  Plan outputs;   ///< of the forward call
  Plan parts[4];  ///< of the wanted addends
};

/// Arrays of a tangent's workspace, and the problems of its forms.
template <int D, int E>
class TangentLayout {
 public:
  /// Counts bytes where `workspace` is null.
  TangentLayout(const TangentProblem& of, unsigned char* workspace) : problem(of) {
    WorkspaceCursor place(workspace);
    const std::int64_t nq = forward().query_blocks.tokens(), nk = forward().key_blocks.tokens();
    const std::int64_t pairs = forward().pairs();
    const bool sums = of.key_sums(), keys = sums && of.wants_along(Along::kKeys),
               mixing = sums && of.wants_along(Along::kMixing);
    query_features = place.tensor(of.wants_along(Along::kQueries), forward(), nq, D);
    key_features = place.tensor(of.wants_along(Along::kKeys), forward(), nk, D);
    for (int n = 0; n < 4; ++n) parts[n] = place.tensor(of.wants[n], forward(), nq, E);
    const std::int64_t read = pairs * forward().key_blocks.blocks() * D,
                       mixed = pairs * forward().query_blocks.blocks() * D;
    key_sums = place.floats(sums, read);
    key_sum_tangents = place.floats(keys, read);
    mixed_key_sums = place.floats(sums, mixed);
    mixed_parts[0] = place.floats(keys, mixed);
    mixed_parts[1] = place.floats(mixing, mixed);
    forms = workspace != nullptr ? workspace + place.used() : nullptr;
    bytes = place.used();
  }

  const Problem& forward() const { return problem.forward; }
  /// Factor of the addends.
  float scale() const { return summary_scale(forward().key_blocks.slots()); }
  /// The form of one addend.
  Problem part(Along along) const {
    Problem part = forward();
    part.o = parts[static_cast<int>(along)];
    part.op.denominator = Denominator::kNone;
    part.op.scale = scale();
    if (along == Along::kQueries) {
      part.q = read_only(query_features);
      part.op.query_map = FeatureMap::identity();
    } else if (along == Along::kKeys) {
      part.k = read_only(key_features);
      part.op.key_map = FeatureMap::identity();
    } else if (along == Along::kValues) {
      part.v = problem.v;
    }
    return part;
  }

  TangentProblem problem;
  TokenTensor query_features{}, key_features{};            ///< phi'(q) q' and phi'(k) k'
  TokenTensor parts[4]{};                                  ///< addends of n', times scale()
  float *key_sums = nullptr, *key_sum_tangents = nullptr;  ///< z and its tangent [pairs, Mk, D]
  float *mixed_key_sums = nullptr, *mixed_parts[2]{};      ///< z~, addends of z~' [pairs, Mq, D]
  unsigned char* forms = nullptr;                          ///< workspace of forms
  std::size_t bytes = 0;                                   ///< before it
};

/// Plans a tangent on a device. Does not read the tensors.
template <int D, int E>
TangentPlan tangent_plan(const TangentProblem& problem, const Device& device) {
  const TangentLayout<D, E> layout(problem, nullptr);
  const Problem& forward = problem.forward;
  TangentPlan plan{};
  plan.outputs = cuda::plan<D, E>(forward, device);
  const auto rows = static_cast<std::uint64_t>(forward.pairs()) *
                    static_cast<std::uint64_t>(forward.number_bytes());
  const auto nq = rows * static_cast<std::uint64_t>(forward.query_blocks.tokens());
  const auto nk = rows * static_cast<std::uint64_t>(forward.key_blocks.tokens());
  plan.traffic = plan.outputs.traffic;
  plan.traffic.tensors += nq * E;  // o'
  std::size_t forms = plan.outputs.workspace_bytes;
  for (const Along along : kDirections) {
    if (!problem.wants_along(along)) continue;
    Plan& part = plan.parts[static_cast<int>(along)];
    part = cuda::plan<D, E>(layout.part(along), device);
    forms = std::max(forms, part.workspace_bytes);
    plan.traffic += part.traffic;
    plan.traffic.tensors += nq * E;
  }
  plan.workspace_bytes = layout.bytes + forms;
  if (problem.wants_along(Along::kQueries)) plan.traffic.tensors += nq * (3 * D);
  if (problem.wants_along(Along::kKeys)) plan.traffic.tensors += nk * (3 * D);
  if (problem.key_sums()) plan.traffic.tensors += nq * (2 * D + E) + nk * (2 * D);
  return plan;
}

/// Launches the kernels of a planned tangent into a stream.
/// \tparam kCausal   problem.forward.causal
/// \tparam kRotary   problem.forward.rotary
/// \param workspace  the plan's workspace_bytes, aligned to 256 bytes
template <class T, int D, int E, bool kCausal, bool kRotary, class Stream>
void run_tangent(const TangentPlan& plan, const TangentProblem& problem, MixingArray mixing,
                 unsigned char* workspace, const Device& device, const Stream& stream) {
  const Problem& forward = problem.forward;
  const std::int32_t pairs = forward.pairs();
  if (pairs == 0) return;
  const TangentLayout<D, E> layout(problem, workspace);
  run<T, D, E, kCausal, kRotary>(plan.outputs, forward, mixing, layout.forms, device, stream);
  const auto map = [&](const ConstTokenTensor& x, const ConstTokenTensor& tangent,
                       const TokenTensor& features, const TokenBlocks& blocks,
                       const FeatureMap& phi) {
    stream.template run<FeatureTangentsSm80<T, D>>(
        {x, tangent, features, blocks.tokens(), forward.heads, phi}, pairs);
  };
  const bool queries = problem.wants_along(Along::kQueries),
             keys = problem.wants_along(Along::kKeys);
  if (queries) {
    map(forward.q, problem.q, layout.query_features, forward.query_blocks, forward.op.query_map);
  }
  if (keys) map(forward.k, problem.k, layout.key_features, forward.key_blocks, forward.op.key_map);
  for (const Along along : kDirections) {
    if (!problem.wants_along(along)) continue;
    run<T, D, E, kCausal, kRotary>(plan.parts[static_cast<int>(along)], layout.part(along),
                                   along == Along::kMixing ? problem.mixing : mixing, layout.forms,
                                   device, stream);
  }
  if (problem.key_sums()) {
    const auto sum = [&](const ConstTokenTensor& x, const FeatureMap& phi, float* sums) {
      stream.template run<TokenSumsSm80<T, D>>(
          {x, forward.key_blocks, forward.heads, phi, nullptr, sums}, pairs);
    };
    const auto mix = [&](const float* sums, const MixingArray& m, float* mixed) {
      if (mixed == nullptr) return;
      stream.template run<MixedSumsSm80>({sums, mixed, m, forward.query_blocks.blocks(),
                                          forward.key_blocks.blocks(), D, forward.heads},
                                         pairs);
    };
    sum(forward.k, forward.op.key_map, layout.key_sums);
    if (keys) sum(read_only(layout.key_features), FeatureMap::identity(), layout.key_sum_tangents);
    mix(layout.key_sums, mixing, layout.mixed_key_sums);
    mix(layout.key_sum_tangents, mixing, layout.mixed_parts[0]);
    mix(layout.key_sums, problem.mixing, layout.mixed_parts[1]);
  }
  const auto& parts = layout.parts;
  stream.template run<OutputTangentsSm80<T, D, E>>(
      {.parts = {read_only(parts[0]), read_only(parts[1]), read_only(parts[2]),
                 read_only(parts[3])},
       .unit = 1 / layout.scale(),
       .tangent = problem.tangent,
       .blocks = forward.query_blocks,
       .heads = forward.heads,
       .normalization = forward.normalization(),
       .out = read_only(forward.o),
       .q = forward.q,
       .features = read_only(layout.query_features),
       .map = forward.op.query_map,
       .key_sums = layout.mixed_key_sums,
       .key_sum_parts = {layout.mixed_parts[0], layout.mixed_parts[1]}},
      pairs);
}

}  // namespace mhla::cuda
