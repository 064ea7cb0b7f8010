#pragma once

/// \file
/// Arguments of the operators: converts the dispatcher's stack to the library's views, without
/// copies.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstddef>
#include <cstdint>
#include <mhla/attention/batch.hpp>
#include <mhla/gradient/gradients.hpp>
#include <mhla/policy/mixing_view.hpp>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace mhla_torch {

using mhla::Index;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

/// Takes the arguments of a call in order, with their ownership.
class Arguments {
 public:
  explicit Arguments(StableIValue* stack) : next_(stack) {}
  template <class T>
  T take() {
    return torch::stable::detail::to<T>(*next_++);
  }

 private:
  StableIValue* next_;
};

/// Arguments of every operator after its blocks.
struct Options {
  static constexpr const char* kSchema =
      "str feature_map='relu', str normalizer='key_sum', float eps=0., float scale=1., "
      "str layout='bnhd', Tensor? normalizer_q=None, Tensor? normalizer_k=None, "
      "Tensor? query_mask=None, Tensor? key_mask=None, Tensor? query_offsets=None, "
      "Tensor? key_offsets=None, Tensor? query_map=None, Tensor? key_map=None, "
      "Tensor? query_angles=None, Tensor? key_angles=None, Tensor? gain=None, Tensor? gate=None, "
      "float norm_eps=1e-6, float relu_eps=1e-6, int max_queries=0, int max_keys=0";

  explicit Options(Arguments& from)
      : feature_map(from.take<std::string>()),
        normalizer(from.take<std::string>()),
        eps(from.take<double>()),
        scale(from.take<double>()),
        layout(from.take<std::string>()),
        normalizer_q(from.take<std::optional<Tensor>>()),
        normalizer_k(from.take<std::optional<Tensor>>()),
        query_mask(from.take<std::optional<Tensor>>()),
        key_mask(from.take<std::optional<Tensor>>()),
        query_offsets(from.take<std::optional<Tensor>>()),
        key_offsets(from.take<std::optional<Tensor>>()),
        query_map(from.take<std::optional<Tensor>>()),
        key_map(from.take<std::optional<Tensor>>()),
        query_angles(from.take<std::optional<Tensor>>()),
        key_angles(from.take<std::optional<Tensor>>()),
        gain(from.take<std::optional<Tensor>>()),
        gate(from.take<std::optional<Tensor>>()),
        norm_eps(from.take<double>()),
        relu_eps(from.take<double>()),
        max_queries(from.take<std::int64_t>()),
        max_keys(from.take<std::int64_t>()) {}

  bool heads_first() const { return layout == "bhnd"; }

  std::string feature_map, normalizer;
  double eps, scale;
  std::string layout;
  std::optional<Tensor> normalizer_q, normalizer_k;
  std::optional<Tensor> query_mask, key_mask;        // bool [B,N]
  std::optional<Tensor> query_offsets, key_offsets;  // int64 [S + 1], on CUDA int32
  std::optional<Tensor> query_map, key_map;          // weights of the feature maps, one row each
  std::optional<Tensor> query_angles, key_angles;    // [N,D], cosine and sine of each pair
  std::optional<Tensor> gain, gate;                  // [E] and the shape of the output
  double norm_eps, relu_eps;
  Index max_queries, max_keys;  // tokens of the longest packed sequence, or 0: not given
};

/// Throws for a tensor's type: "mhla::causal: v has type Float, expected Double".
template <class Error>
[[noreturn]] void fail(const char* function, const char* argument, const std::string& got,
                       const std::string& expected) {
  throw Error("mhla::" + (function + (": " + (argument + (" " + got)))) + ", expected " + expected);
}

inline std::string type_name(ScalarType type) { return torch::headeronly::toString(type); }

/// Number of gradients of an operator: of q, k, v, mixing, normalizer_q, normalizer_k, query_map,
/// key_map, gain and gate, in this order. An absent argument has a gradient of shape [0], and so
/// has gradient i of a call whose argument `unwanted` has bit i.
inline constexpr std::size_t kGradients = 10;

template <class T>
constexpr ScalarType scalar_type_of() {
  if (std::is_same_v<T, float>) return ScalarType::Float;
  if (std::is_same_v<T, double>) return ScalarType::Double;
  return std::is_same_v<T, Eigen::half> ? ScalarType::Half : ScalarType::BFloat16;
}

/// Calls f(std::type_identity<T>{}) for the element type T of tensors of `type`.
template <class F>
auto with_scalar(const char* function, ScalarType type, F&& f) {
  switch (type) {
    case ScalarType::Float:
      return f(std::type_identity<float>{});
    case ScalarType::Double:
      return f(std::type_identity<double>{});
    case ScalarType::Half:
      return f(std::type_identity<Eigen::half>{});
    case ScalarType::BFloat16:
      return f(std::type_identity<Eigen::bfloat16>{});
    default:
      fail<mhla::option_error>(function, "q", "has type " + type_name(type),
                               "Float, Double, Half or BFloat16");
  }
}

inline void expect_type(const char* function, const char* argument, const Tensor& t,
                        ScalarType type, Index axes) {
  if (t.scalar_type() != type) {
    fail<mhla::option_error>(function, argument, "has type " + type_name(t.scalar_type()),
                             type_name(type));
  }
  if (t.dim() != axes) {
    fail<mhla::shape_error>(function, argument, "has " + std::to_string(t.dim()) + " axes",
                            std::to_string(axes));
  }
}

inline void expect_tensor(const char* function, const char* argument, const Tensor& t,
                          ScalarType type, Index axes) {
  expect_type(function, argument, t, type, axes);
  if (!t.is_cpu()) fail<mhla::option_error>(function, argument, "is on another device", "the CPU");
}

/// Returns the contiguous tensor. Calls the dispatcher only if that copies.
inline Tensor dense(const Tensor& t) {
  return t.is_contiguous() ? t : torch::stable::contiguous(t);
}

/// View of a tensor of four axes as [B,N,H,D] with its strides. T is const for inputs.
template <class T>
mhla::TensorView<T> tokens_first(const Tensor& t, const Options& options) {
  const std::size_t tokens = options.heads_first() ? 2 : 1, heads = 3 - tokens;
  const auto sizes = t.sizes(), strides = t.strides();
  T* data;
  if constexpr (std::is_const_v<T>) {
    data = static_cast<T*>(t.const_data_ptr());
  } else {
    data = static_cast<T*>(t.mutable_data_ptr());
  }
  return {data,
          {sizes[0], sizes[tokens], sizes[heads], sizes[3]},
          {strides[0], strides[tokens], strides[heads], strides[3]}};
}

template <class T>
mhla::TensorView<T> view(const char* function, const char* argument, const Tensor& t,
                         const Options& options) {
  expect_tensor(function, argument, t, scalar_type_of<std::remove_const_t<T>>(), 4);
  return tokens_first<T>(t, options);
}
template <class T>
mhla::TensorView<T> view(const char* function, const char* argument, const std::optional<Tensor>& t,
                         const Options& options) {
  return t ? view<T>(function, argument, *t, options) : mhla::TensorView<T>{};
}

/// View of a mask on any device.
inline mhla::BatchMask mask_view(const char* function, const char* argument,
                                 const std::optional<Tensor>& t) {
  if (!t) return {};
  expect_type(function, argument, *t, ScalarType::Bool, 2);
  return {static_cast<const bool*>(t->const_data_ptr()), t->size(0), t->size(1), t->stride(0),
          t->stride(1)};
}

inline mhla::BatchMask mask(const char* function, const char* argument,
                            const std::optional<Tensor>& t) {
  if (t) expect_tensor(function, argument, *t, ScalarType::Bool, 2);
  return mask_view(function, argument, t);
}

/// View of offsets of type I on any device.
template <class I>
std::span<const I> offsets_view(const char* function, const char* argument,
                                const std::optional<Tensor>& t) {
  if (!t) return {};
  constexpr bool kLong = std::is_same_v<I, std::int64_t>;
  expect_type(function, argument, *t, kLong ? ScalarType::Long : ScalarType::Int, 1);
  if (t->stride(0) != 1 && t->size(0) > 1) {
    fail<mhla::option_error>(function, argument, "is strided", "numbers side by side");
  }
  return {static_cast<const I*>(t->const_data_ptr()), static_cast<std::size_t>(t->size(0))};
}

/// Offsets on the CPU.
/// \param most  bound of the tokens of a sequence, by its name; 0 for none
inline std::span<const Index> offsets(const char* function, const char* argument,
                                      const std::optional<Tensor>& t, const char* bound,
                                      Index most) {
  if (t) expect_tensor(function, argument, *t, ScalarType::Long, 1);
  const std::span<const Index> numbers = offsets_view<Index>(function, argument, t);
  for (std::size_t s = 1; s < numbers.size(); ++s) {
    if (most == 0 || numbers[s] <= most || numbers[s] - most <= numbers[s - 1]) continue;
    fail<mhla::option_error>(function, bound, "is " + std::to_string(most),
                             "at least the tokens of the longest packed sequence");
  }
  return numbers;
}

inline void expect_layout(const char* function, const Options& options) {
  if (!options.heads_first() && options.layout != "bnhd") {
    fail<mhla::option_error>(function, "layout", "is \"" + options.layout + "\"", "bnhd or bhnd");
  }
}

template <class T>
mhla::BatchInputs<T> inputs(const char* function, const Tensor& q, const Tensor& k, const Tensor& v,
                            const Options& options) {
  expect_layout(function, options);
  return {.q = view<const T>(function, "q", q, options),
          .k = view<const T>(function, "k", k, options),
          .v = view<const T>(function, "v", v, options),
          .normalizer_q = view<const T>(function, "normalizer_q", options.normalizer_q, options),
          .normalizer_k = view<const T>(function, "normalizer_k", options.normalizer_k, options),
          .query_mask = mask(function, "query_mask", options.query_mask),
          .key_mask = mask(function, "key_mask", options.key_mask),
          .query_offsets = offsets(function, "query_offsets", options.query_offsets, "max_queries",
                                   options.max_queries),
          .key_offsets =
              offsets(function, "key_offsets", options.key_offsets, "max_keys", options.max_keys)};
}

/// View of a dense mixing matrix [M,M], of a matrix per head [H,M,M], or of their gradients.
template <class A>
mhla::MixingView<A> mixing_view(const char* function, const Tensor& t) {
  const Index axes = t.dim();
  expect_tensor(function, "mixing", t, scalar_type_of<std::remove_const_t<A>>(), axes == 3 ? 3 : 2);
  const mhla::Pattern all(t.size(axes - 2), t.size(axes - 1));
  const Index heads = axes == 3 ? t.size(0) : 1;
  if constexpr (std::is_const_v<A>) {
    return {static_cast<A*>(t.const_data_ptr()), all, heads, all.size()};
  } else {
    return {static_cast<A*>(t.mutable_data_ptr()), all, heads, all.size()};
  }
}

}  // namespace mhla_torch
