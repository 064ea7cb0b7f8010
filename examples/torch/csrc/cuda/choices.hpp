#pragma once

/// \file
/// Checks of types and devices, and choices of kernels, of all operators on a device.

#include <torch/csrc/stable/tensor.h>

#include <array>
#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <mhla/cuda/kernel/parameters.cuh>
#include <mhla/cuda/kernel/widths.cuh>
#include <mhla/cuda/launch/problem.cuh>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "../arguments.hpp"

namespace mhla_torch {

using mhla::cuda::Denominator;
using mhla::cuda::FeatureMap;

/// Returns the type of q, k and v.
/// \param floats  they may be float32
/// \throws option_error, shape_error unless they have one type with kernels, and four axes.
inline ScalarType expect_types(const char* function, const Tensor& q, const Tensor& k,
                               const Tensor& v, bool floats) {
  const ScalarType type = q.scalar_type();
  const bool is_float = floats && type == ScalarType::Float;
  if (type != ScalarType::BFloat16 && type != ScalarType::Half && !is_float) {
    fail<mhla::option_error>(
        function, "q", "has type " + type_name(type),
        floats ? "BFloat16, Half or Float on CUDA" : "BFloat16 or Half on CUDA");
  }
  for (const auto& [argument, tensor] : {std::pair{"q", &q}, {"k", &k}, {"v", &v}}) {
    expect_type(function, argument, *tensor, type, 4);
  }
  return type;
}

/// \throws option_error unless all tensors are on q's device, where `Place` has kernels.
template <class Place>
void expect_one_device(
    const char* function, const Tensor& q,
    std::initializer_list<std::pair<const char*, std::optional<Tensor>>> others) {
  const auto name = [](const Tensor& t) {
    if (Place::takes(t)) return "cuda:" + std::to_string(t.get_device_index());
    return std::string(t.is_cpu() ? "cpu" : "another device");
  };
  if (!Place::takes(q))
    fail<mhla::option_error>(function, "q", "is on " + name(q), "a CUDA device");
  for (const auto& [argument, t] : others) {
    if (!t || name(*t) == name(q)) continue;
    fail<mhla::option_error>(function, argument, "is on " + name(*t), name(q));
  }
}

inline FeatureMap feature_map(const char* function, const std::string& name, double relu_eps) {
  if (name == "relu") return FeatureMap::relu(static_cast<float>(relu_eps));
  if (name == "elu_plus_one") return FeatureMap::elu_plus_one();
  if (name == "identity") return FeatureMap::identity();
  fail<mhla::option_error>(function, "feature_map", "is \"" + name + "\"",
                           "relu, elu_plus_one or identity on CUDA");
}

inline Denominator denominator(const char* function, const std::string& name) {
  if (name == "none") return Denominator::kNone;
  if (name == "key_sum") return Denominator::kKeySum;
  if (name == "cross_query") return Denominator::kCrossQuery;
  fail<mhla::option_error>(function, "normalizer", "is \"" + name + "\"",
                           "none, key_sum or cross_query");
}

/// \throws option_error for a number of decaying terms without kernels.
[[noreturn]] inline void fail_terms(const char* function, const char* argument, Index count) {
  fail<mhla::option_error>(function, argument, "has " + std::to_string(count) + " decaying terms",
                           "1 to " + std::to_string(mhla::cuda::DecayArray::kMost) + " on CUDA");
}

/// Returns the number of decaying terms [.., 2, R].
/// \throws option_error for a number without kernels.
inline Index decay_terms(const char* function, const Tensor& mixing) {
  const Index axes = mixing.dim(), count = axes > 0 ? mixing.size(axes - 1) : 0;
  if (count < 1 || count > mhla::cuda::DecayArray::kMost) fail_terms(function, "mixing", count);
  return count;
}

/// For each pair of widths, true if kernels take float32 tensors.
inline constexpr auto kTakesFloats = []<std::size_t... i>(std::index_sequence<i...>) {
  using mhla::cuda::kWidthPairs, mhla::cuda::Widths;
  return std::array{Widths<kWidthPairs[i].d, kWidthPairs[i].e>::kFloats...};
}
(std::make_index_sequence<std::size(mhla::cuda::kWidthPairs)>{});

/// \param floats  of float32 tensors
/// \throws shape_error unless there are kernels of the widths d and e, which `argument` has.
inline void expect_widths(const char* function, const char* argument, Index d, Index e,
                          bool floats = false) {
  const auto text = [](Index keys, Index values) {
    return "(" + std::to_string(keys) + ", " + std::to_string(values) + ")";
  };
  std::string known;
  for (std::size_t i = 0; i < kTakesFloats.size(); ++i) {
    if (floats && !kTakesFloats[i]) continue;
    const mhla::cuda::WidthPair& pair = mhla::cuda::kWidthPairs[i];
    if (pair.d == d && pair.e == e) return;
    known += (known.empty() ? "" : ", ") + text(pair.d, pair.e);
  }
  fail<mhla::shape_error>(function, argument, "have widths " + text(d, e),
                          "one of " + known + (floats ? " of Float" : "") + " on CUDA");
}

/// Returns the first pair from `i` on with kernels for tensors of T, or the number of pairs.
template <class T>
constexpr std::size_t next_pair(std::size_t i) {
  while (std::is_same_v<T, float> && i < kTakesFloats.size() && !kTakesFloats[i]) ++i;
  return i;
}

/// Calls work.operator()<T, D, E>() for the widths (d, e), the kPair-th of kWidthPairs or later.
template <class T, std::size_t kPair = next_pair<T>(0), class Work>
auto with_pair(Index d, Index e, const Work& work) {
  constexpr mhla::cuda::WidthPair pair = mhla::cuda::kWidthPairs[kPair];
  constexpr std::size_t kNext = next_pair<T>(kPair + 1);
  if constexpr (kNext < kTakesFloats.size()) {
    if (d != pair.d || e != pair.e) return with_pair<T, kNext>(d, e, work);
  }
  return work.template operator()<T, pair.d, pair.e>();
}

/// Calls work.operator()<T, D, E>() for the type and the widths of q and v.
/// \tparam kFloats  true if there are kernels for float32 tensors
/// \throws shape_error for widths without kernels.
template <bool kFloats, class Work>
auto with_widths(const char* function, const Tensor& q, const Tensor& v, const Work& work) {
  const Index d = q.size(3), e = v.size(3);
  const bool floats = q.scalar_type() == ScalarType::Float;
  expect_widths(function, "(q, v)", d, e, floats);
  if constexpr (kFloats) {
    if (floats) return with_pair<float>(d, e, work);
  }
  if (q.scalar_type() == ScalarType::Half) return with_pair<Eigen::half>(d, e, work);
  return with_pair<Eigen::bfloat16>(d, e, work);
}

}  // namespace mhla_torch
