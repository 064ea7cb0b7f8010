#pragma once

/// \file
/// A call of mhla::bidirectional, mhla::causal or mhla::linear on a device: its checks, its outputs
/// and gradients, and the dispatcher's kernels. All arguments are checked before the device is
/// used.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mhla/cuda/attention/inputs.cuh>
#include <mhla/cuda/attention/mixing_inputs.cuh>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "../arguments.hpp"
#include "../blocks.hpp"
#include "choices.hpp"
#include "forms.hpp"
#include "mixing.hpp"
#include "partition.hpp"

namespace mhla_torch {

/// \throws option_error for options that mhla::cuda does not support.
inline void refuse_options(const char* function, const Options& options) {
  const auto refuse = [function](const char* argument, bool given) {
    if (given) fail<mhla::option_error>(function, argument, "is given", "none on CUDA");
  };
  refuse("normalizer_q", options.normalizer_q.has_value());
  refuse("normalizer_k", options.normalizer_k.has_value());
  refuse("query_map", options.query_map.has_value());
  refuse("key_map", options.key_map.has_value());
}

/// A call of an operator with tensors [B,N,H,.] or, heads first, [B,H,N,.].
/// \tparam Place  device, stream and memory of a call (launch.hpp)
template <class Form, class Place>
class Problem {
 public:
  explicit Problem(Arguments& from)
      : q_(from.take<Tensor>()),
        k_(from.take<Tensor>()),
        v_(from.take<Tensor>()),
        form_(from),
        options_(from) {
    expect_layout(kName, options_);
    refuse_options(kName, options_);
    const ScalarType type = expect_types(kName, q_, k_, v_, true);
    if (options_.gate) expect_type(kName, "gate", *options_.gate, type, 4);
    expect_both("query_angles", options_.query_angles, "key_angles", options_.key_angles);
    expect_both("query_offsets", options_.query_offsets, "key_offsets", options_.key_offsets);
    take_floats("gain", options_.gain, 1);
    take_floats("query_angles", options_.query_angles, 2);
    take_floats("key_angles", options_.key_angles, 2);
  }

  /// Computes the output. Checks all arguments before it calls CUDA.
  Tensor forward() const {
    return of_widths([&]<class F>() {
      const Partition blocks = partition();
      const Tensor out = like(q_, v_.size(3));
      Call call = call_of(blocks, tokens_first<std::byte>(out, options_));
      expect_one_array(blocks);
      F::check(call);
      Launch launch(*this, blocks);
      call.mixing = launch.mixing;
      launch.template run<F>(call);
      return out;
    });
  }

  /// Name of the form that would compute the output.
  std::string form() const {
    return of_widths([&]<class F>() -> std::string {
      const Partition blocks = partition();
      const Call call = call_of(blocks, tokens_first<std::byte>(like(q_, v_.size(3)), options_));
      expect_one_array(blocks);
      F::check(call);
      const Launch launch(*this, blocks);
      return F::form(call, launch.place.device());
    });
  }

  /// Computes gradients of q, k, v, the mixing matrix, the gain and the gate. Other gradients are
  /// of shape [0].
  /// \param out       output of the forward call; computed again if absent or with a gain
  /// \param unwanted  bit i leaves out gradient i
  std::array<Tensor, kGradients> backward(const Tensor& dout, const std::optional<Tensor>& out,
                                          std::int64_t unwanted) const {
    expect_type(kName, "dout", dout, q_.scalar_type(), 4);
    return of_widths([&]<class F>() {
      const Partition blocks = partition();
      std::array<Tensor, kGradients> gradients;
      for (Tensor& t : gradients) t = torch::stable::new_empty(q_, {0});
      const auto wants = [&](std::size_t i, const std::optional<Tensor>& argument) {
        return argument && (unwanted >> i & 1) == 0;
      };
      const auto of_tokens = [&](std::size_t i, const std::optional<Tensor>& argument) {
        if (!wants(i, argument)) return mhla::TensorView<std::byte>{};
        gradients[i] = like(*argument, argument->size(3));
        return tokens_first<std::byte>(gradients[i], options_);
      };
      const Tensor rows = with_dense_rows(dout);
      const std::optional<Tensor> kept = out ? std::optional(with_dense_rows(*out)) : out;
      GradientCall call{.forward = call_of(blocks, {}),
                        .dout = tokens_first<const std::byte>(rows, options_),
                        .out = kept ? tokens_first<const std::byte>(*kept, options_)
                                    : mhla::TensorView<const std::byte>{},
                        .dq = of_tokens(0, q_),
                        .dk = of_tokens(1, k_),
                        .dv = of_tokens(2, v_),
                        .dmixing = {},
                        .dgate = of_tokens(9, options_.gate)};
      if (form_.mixing) expect_matrices(blocks);
      if (wants(3, form_.mixing)) {
        gradients[3] = torch::stable::new_zeros(*form_.mixing, form_.mixing->sizes());
        call.dmixing =
            matrices_of(static_cast<float*>(gradients[3].mutable_data_ptr()), gradients[3], blocks);
      }
      if (wants(8, options_.gain)) {
        gradients[8] = torch::stable::new_empty(*options_.gain, options_.gain->sizes());
        call.dgain = {static_cast<float*>(gradients[8].mutable_data_ptr()),
                      static_cast<std::size_t>(gradients[8].numel())};
      }
      F::check(call);
      Launch launch(*this, blocks);
      call.forward.mixing = launch.mixing;
      launch.template run<F>(call);
      return gradients;
    });
  }

 private:
  static constexpr const char* kName = Form::kName;

  /// Calls work.operator()<Forms<T, D, E>>() for the tensors' type and widths.
  template <class Work>
  auto of_widths(const Work& work) const {
    return with_widths<true>(kName, q_, v_, [&]<class T, int D, int E>() {
      return work.template operator()<Forms<T, D, E>>();
    });
  }

  /// Blocks of the tokens, or of the longest packed sequence.
  Partition partition() const {
    const std::size_t tokens = options_.heads_first() ? 2 : 1;
    if (!packed()) return form_.partition(q_.size(tokens), k_.size(tokens));
    const auto longest = [](const char* argument, Index given, bool any) {
      if (given >= 1 || !any) return given;
      fail<mhla::option_error>(kName, argument, "is " + std::to_string(given),
                               "the tokens of the longest packed sequence on CUDA");
    };
    const Index queries = longest("max_queries", options_.max_queries, form_.any_queries());
    const Index keys = longest("max_keys", options_.max_keys, form_.any_keys());
    const Partition blocks = form_.partition(queries, keys);
    for (const auto& [argument, given, tokens] :
         {std::tuple{"max_queries", queries, blocks.query_tokens()},
          {"max_keys", keys, blocks.key_tokens()}}) {
      if (given == 0 || given == tokens) continue;
      fail<mhla::option_error>(kName, argument, "is " + std::to_string(given),
                               std::to_string(tokens) + " as the blocks");
    }
    return blocks;
  }
  bool packed() const { return options_.query_offsets.has_value(); }

  Call call_of(const Partition& blocks, const mhla::TensorView<std::byte>& out) const {
    Call call{.q = tokens_first<const std::byte>(q_, options_),
              .k = tokens_first<const std::byte>(k_, options_),
              .v = tokens_first<const std::byte>(v_, options_),
              .out = out,
              .query_blocks = blocks.queries,
              .key_blocks = blocks.keys,
              .causal = blocks.causal,
              .op = op(blocks),
              .mixing = {}};
    if (options_.query_angles) {
      call.rotary = {matrix(*options_.query_angles), matrix(*options_.key_angles)};
    }
    if (options_.gain) {
      call.gain = {static_cast<const float*>(options_.gain->const_data_ptr()),
                   static_cast<std::size_t>(options_.gain->numel())};
    }
    if (options_.gate) call.gate = tokens_first<const std::byte>(*options_.gate, options_);
    call.query_mask = mask_view(kName, "query_mask", options_.query_mask);
    call.key_mask = mask_view(kName, "key_mask", options_.key_mask);
    call.query_offsets = offsets("query_offsets", options_.query_offsets);
    call.key_offsets = offsets("key_offsets", options_.key_offsets);
    if (blocks.causal) call.key_offsets = call.query_offsets;
    call.query_prefix = blocks.query_prefix;
    call.key_prefix = blocks.key_prefix;
    return call;
  }

  static std::span<const std::int32_t> offsets(const char* argument,
                                               const std::optional<Tensor>& t) {
    const auto numbers = offsets_view<std::int32_t>(kName, argument, t);
    if (t && numbers.empty()) {
      fail<mhla::shape_error>(kName, argument, "has 0 numbers", "at least 1");
    }
    return numbers;
  }

  static void expect_both(const char* a, const std::optional<Tensor>& x, const char* b,
                          const std::optional<Tensor>& y) {
    if (x.has_value() == y.has_value()) return;
    fail<mhla::option_error>(kName, x ? b : a, "is absent", std::string("both ") + a + " and " + b);
  }

  /// Refuses offsets of keys that a causal form would not read. Gradients skip this check, because
  /// a tensor that autograd saved twice may have two addresses.
  void expect_one_array(const Partition& blocks) const {
    if (!packed() || !blocks.causal) return;
    const Tensor &a = *options_.query_offsets, &b = *options_.key_offsets;
    if (a.const_data_ptr() == b.const_data_ptr() && a.numel() == b.numel()) return;
    fail<mhla::option_error>(kName, "key_offsets", "is another tensor than query_offsets",
                             "the same in causal forms on CUDA");
  }

  static mhla::MatrixView<const float> matrix(const Tensor& t) {
    return {static_cast<const float*>(t.const_data_ptr()), t.size(0), t.size(1), t.size(1)};
  }

  /// Checks an optional tensor of floats, and copies it unless it is dense at a multiple of 16
  /// bytes.
  static void take_floats(const char* argument, std::optional<Tensor>& t, Index axes) {
    if (!t) return;
    expect_type(kName, argument, *t, ScalarType::Float, axes);
    if (!t->is_contiguous()) t = torch::stable::contiguous(*t);
    if (reinterpret_cast<std::uintptr_t>(t->const_data_ptr()) % 16 != 0) {
      t = torch::stable::clone(*t);
    }
  }

  /// A checked call on its device, with its mixing matrix.
  struct Launch {
    Launch(const Problem& problem, const Partition& blocks)
        : place(checked(problem, blocks)),
          matrix(problem.dense_mixing(blocks)),
          mixing(matrices_of(static_cast<const float*>(matrix.const_data_ptr()), matrix, blocks)) {
      mixing.pattern = pattern_words(kName, problem.form_.pattern, blocks);
    }

    template <class F, class AnyCall>
    void run(const AnyCall& call) {
      F::run(
          call, place.device(), [this](std::size_t bytes) { return place.workspace(bytes); },
          place.stream());
    }

    Place place;
    Tensor matrix;
    mhla::cuda::MixingMatrices<const float> mixing;

   private:
    static const Tensor& checked(const Problem& problem, const Partition& blocks) {
      if (problem.form_.mixing) problem.expect_matrices(blocks);
      problem.expect_one_device();
      return problem.q_;
    }
  };

  /// Returns the tensor, or a copy if its rows are not dense, as gradients need them.
  static Tensor with_dense_rows(const Tensor& t) {
    bool fits = t.stride(3) == 1 && reinterpret_cast<std::uintptr_t>(t.const_data_ptr()) % 16 == 0;
    const Index whole = 16 / static_cast<Index>(t.element_size());
    for (Index axis = 0; axis < 3; ++axis) {
      fits = fits && (t.size(axis) == 1 || t.stride(axis) % whole == 0);
    }
    if (fits) return t;
    return t.is_contiguous() ? torch::stable::clone(t) : torch::stable::contiguous(t);
  }

  /// Returns a new tensor with the tokens and heads of another, [B,N,H,width] in memory. Packed
  /// sequences may leave out tokens, whose rows are 0.
  Tensor like(const Tensor& t, Index width) const {
    const bool heads_first = options_.heads_first();
    const std::array<Index, 4> sizes{t.size(0), t.size(heads_first ? 2 : 1),
                                     t.size(heads_first ? 1 : 2), width};
    const torch::headeronly::IntHeaderOnlyArrayRef shape(sizes.data(), sizes.size());
    const Tensor dense =
        packed() ? torch::stable::new_zeros(t, shape) : torch::stable::new_empty(t, shape);
    return heads_first ? torch::stable::transpose(dense, 1, 2) : dense;
  }

  mhla::cuda::Operator op(const Partition& blocks) const {
    const FeatureMap map = feature_map(kName, options_.feature_map, options_.relu_eps);
    Denominator sums = denominator(kName, options_.normalizer);
    // Linear attention has one block, where cross-query denominators are key sums.
    if (!form_.mixing && !blocks.causal && sums == Denominator::kCrossQuery) {
      sums = Denominator::kKeySum;
    }
    return {.query_map = map,
            .key_map = map,
            .denominator = sums,
            .eps = static_cast<float>(options_.eps),
            .scale = static_cast<float>(options_.scale),
            .norm_eps = static_cast<float>(options_.norm_eps),
            .matrices = matrices(),
            .decay_terms = static_cast<std::int32_t>(blocks.terms)};
  }

  /// Packed sequences share the matrices of one item.
  mhla::cuda::Matrices matrices() const {
    using mhla::cuda::Matrices;
    const Index axes = form_.mixing ? form_.mixing->dim() : 2;
    if (axes == 4 && !packed()) return Matrices::kPerItemAndHead;
    return axes == 2 ? Matrices::kShared : Matrices::kPerHead;
  }

  void expect_matrices(const Partition& blocks) const {
    expect_mixing(kName, *form_.mixing, q_.size(0), q_.size(options_.heads_first() ? 1 : 2),
                  blocks);
  }

  void expect_one_device() const {
    mhla_torch::expect_one_device<Place>(kName, q_,
                                         {{"k", k_},
                                          {"v", v_},
                                          {"mixing", form_.mixing},
                                          {"pattern", form_.pattern},
                                          {"query_angles", options_.query_angles},
                                          {"key_angles", options_.key_angles},
                                          {"gain", options_.gain},
                                          {"gate", options_.gate},
                                          {"query_mask", options_.query_mask},
                                          {"key_mask", options_.key_mask},
                                          {"query_offsets", options_.query_offsets},
                                          {"key_offsets", options_.key_offsets}});
  }

  /// Returns the mixing matrices with dense rows. Without a matrix, one row of ones serves as all
  /// rows.
  Tensor dense_mixing(const Partition& blocks) const {
    if (!form_.mixing) {
      return torch::stable::fill_(
          torch::stable::new_empty(q_, {blocks.columns()}, ScalarType::Float), 1);
    }
    if (form_.mixing->stride(form_.mixing->dim() - 1) == 1) return *form_.mixing;
    return torch::stable::contiguous(*form_.mixing);
  }

  Tensor q_, k_, v_;
  Form form_;
  Options options_;
};

template <class Form, class Place>
void forward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Arguments from(stack);
  stack[0] = torch::stable::detail::from(Problem<Form, Place>(from).forward());
}

template <class Form, class Place>
void form(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Arguments from(stack);
  stack[0] = torch::stable::detail::from(Problem<Form, Place>(from).form());
}

/// \tparam kKeeps  true if the operator takes summaries, which gradients on CUDA do not read
template <class Form, class Place, bool kKeeps>
void backward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Arguments from(stack);
  const Tensor dout = from.take<Tensor>();
  const Problem<Form, Place> problem(from);
  if constexpr (kKeeps) (void)from.take<std::optional<Tensor>>();
  const auto out = from.take<std::optional<Tensor>>();
  const std::array<Tensor, kGradients> gradients =
      problem.backward(dout, out, from.take<std::int64_t>());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    stack[i] = torch::stable::detail::from(gradients[i]);
  }
}

/// Registers an operator, its gradient and the name of its form.
template <class Form, class Place, bool kKeeps>
void implement(torch::stable::detail::StableLibrary& library) {
  const std::string name = Form::kName;
  library.impl(name.c_str(), &forward<Form, Place>);
  library.impl((name + "_form").c_str(), &form<Form, Place>);
  library.impl((name + "_backward").c_str(), &backward<Form, Place, kKeeps>);
}

}  // namespace mhla_torch
