/// \file
/// CUDA implementations of mhla::bidirectional, mhla::causal and mhla::linear, and of their
/// gradients.
///
/// A call checks its arguments, allocates its outputs and workspace from PyTorch's allocator, and
/// enqueues its kernels into the current stream of the tensors' device. It waits for nothing. Its
/// workspace may be freed right after the launch, because the allocator reuses it in the same
/// stream only.

#define USE_CUDA  // aoti_torch_get_current_cuda_stream
#include <torch/csrc/stable/accelerator.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mhla/cuda/attention/inputs.cuh>
#include <mhla/cuda/launch/error.cuh>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "../arguments.hpp"
#include "../blocks.hpp"
#include "forms.hpp"
#include "partition.hpp"

namespace mhla_torch {
namespace {

using mhla::cuda::Denominator;
using mhla::cuda::FeatureMap;
using mhla::cuda::TokenBlocks;

/// \throws option_error for options that mhla::cuda does not support.
void refuse_options(const char* function, const Options& options) {
  const auto refuse = [function](const char* argument, bool given) {
    if (given) fail<mhla::option_error>(function, argument, "is given", "none on CUDA");
  };
  refuse("normalizer_q", options.normalizer_q.has_value());
  refuse("normalizer_k", options.normalizer_k.has_value());
  refuse("query_mask", options.query_mask.has_value());
  refuse("key_mask", options.key_mask.has_value());
  refuse("query_offsets", options.query_offsets.has_value());
  refuse("key_offsets", options.key_offsets.has_value());
  refuse("query_map", options.query_map.has_value());
  refuse("key_map", options.key_map.has_value());
}

FeatureMap feature_map(const char* function, const Options& options) {
  const std::string& name = options.feature_map;
  if (name == "relu") return FeatureMap::relu(static_cast<float>(options.relu_eps));
  if (name == "elu_plus_one") return FeatureMap::elu_plus_one();
  if (name == "identity") return FeatureMap::identity();
  fail<mhla::option_error>(function, "feature_map", "is \"" + name + "\"",
                           "relu, elu_plus_one or identity on CUDA");
}

Denominator denominator(const char* function, const std::string& name) {
  if (name == "none") return Denominator::kNone;
  if (name == "key_sum") return Denominator::kKeySum;
  if (name == "cross_query") return Denominator::kCrossQuery;
  fail<mhla::option_error>(function, "normalizer", "is \"" + name + "\"",
                           "none, key_sum or cross_query");
}

/// A call of an operator with tensors [B,N,H,.] or, heads first, [B,H,N,.].
template <class Form>
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
    const ScalarType type = q_.scalar_type();
    if (type != ScalarType::BFloat16 && type != ScalarType::Half) {
      fail<mhla::option_error>(kName, "q", "has type " + type_name(type),
                               "BFloat16 or Half on CUDA");
    }
    for (const auto& [argument, tensor] : {std::pair{"q", &q_}, {"k", &k_}, {"v", &v_}}) {
      expect_type(kName, argument, *tensor, type, 4);
    }
    if (options_.gate) expect_type(kName, "gate", *options_.gate, type, 4);
    if (options_.query_angles.has_value() != options_.key_angles.has_value()) {
      fail<mhla::option_error>(kName, options_.query_angles ? "key_angles" : "query_angles",
                               "is absent", "both query_angles and key_angles");
    }
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
      F::check(call);
      const Launch launch(*this, blocks);
      call.mixing = launch.mixing;
      F::run(call, launch.device, launch.lend, launch.stream);
      return out;
    });
  }

  /// Name of the form that would compute the output.
  std::string form() const {
    return of_widths([&]<class F>() -> std::string {
      const Partition blocks = partition();
      const Call call = call_of(blocks, tokens_first<std::byte>(like(q_, v_.size(3)), options_));
      F::check(call);
      const Launch launch(*this, blocks);
      return F::form(call, launch.device);
    });
  }

  /// Computes gradients of q, k, v, the mixing matrix, the gain and the gate, and [0] in place of
  /// the others.
  /// \param out  output of the forward call; computed again if absent or with a gain
  std::array<Tensor, kGradients> backward(const Tensor& dout,
                                          const std::optional<Tensor>& out) const {
    expect_type(kName, "dout", dout, q_.scalar_type(), 4);
    return of_widths([&]<class F>() {
      const Partition blocks = partition();
      std::array<Tensor, kGradients> gradients;
      gradients.fill(torch::stable::new_empty(q_, {0}));
      gradients[0] = like(q_, q_.size(3));
      gradients[1] = like(k_, k_.size(3));
      gradients[2] = like(v_, v_.size(3));
      const Tensor rows = with_dense_rows(dout);
      const std::optional<Tensor> kept = out ? std::optional(with_dense_rows(*out)) : out;
      GradientCall call{.forward = call_of(blocks, {}),
                        .dout = tokens_first<const std::byte>(rows, options_),
                        .out = kept ? tokens_first<const std::byte>(*kept, options_)
                                    : mhla::TensorView<const std::byte>{},
                        .dq = tokens_first<std::byte>(gradients[0], options_),
                        .dk = tokens_first<std::byte>(gradients[1], options_),
                        .dv = tokens_first<std::byte>(gradients[2], options_),
                        .dmixing = {}};
      if (form_.mixing) {
        expect_mixing(*form_.mixing, blocks);
        gradients[3] = torch::stable::new_zeros(*form_.mixing, form_.mixing->sizes());
        call.dmixing = {static_cast<float*>(gradients[3].mutable_data_ptr()),
                        blocks.queries.blocks(), blocks.keys.blocks(), gradients[3].size(1)};
      }
      if (options_.gain) {
        gradients[8] = torch::stable::new_empty(*options_.gain, options_.gain->sizes());
        call.dgain = {static_cast<float*>(gradients[8].mutable_data_ptr()),
                      static_cast<std::size_t>(gradients[8].numel())};
      }
      if (options_.gate) {
        gradients[9] = like(*options_.gate, options_.gate->size(3));
        call.dgate = tokens_first<std::byte>(gradients[9], options_);
      }
      F::check(call);
      const Launch launch(*this, blocks);
      call.forward.mixing = launch.mixing;
      F::run(call, launch.device, launch.lend, launch.stream);
      return gradients;
    });
  }

 private:
  static constexpr const char* kName = Form::kName;

  /// Calls work.operator()<Forms<T, D, E>>() for the tensors' type and widths.
  template <class Work>
  auto of_widths(const Work& work) const {
    if (q_.scalar_type() == ScalarType::Half) return of_type<Eigen::half>(work);
    return of_type<Eigen::bfloat16>(work);
  }
  template <class T, class Work>
  auto of_type(const Work& work) const {
    const Index d = q_.size(3), e = v_.size(3);
    if (d == 64 && e == 64) return work.template operator()<Forms<T, 64, 64>>();
    if (d == 72 && e == 72) return work.template operator()<Forms<T, 72, 72>>();
    if (d == 128 && e == 128) return work.template operator()<Forms<T, 128, 128>>();
    if (d == 128 && e == 256) return work.template operator()<Forms<T, 128, 256>>();
    fail<mhla::shape_error>(kName, "(q, v)",
                            "have widths (" + std::to_string(d) + ", " + std::to_string(e) + ")",
                            "(64, 64), (72, 72), (128, 128) or (128, 256) on CUDA");
  }

  Partition partition() const {
    const std::size_t tokens = options_.heads_first() ? 2 : 1;
    return form_.partition(q_.size(tokens), k_.size(tokens));
  }

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
    return call;
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

  /// Arguments of a launch. The tensors' device is the current device during the object's lifetime.
  class Launch {
   public:
    Launch(const Problem& problem, const Partition& blocks)
        : device(checked(problem, blocks)),
          lend([this, &problem](std::size_t bytes) -> mhla::Workspace {
            workspace_ =
                torch::stable::new_empty(problem.q_, {static_cast<Index>(bytes)}, ScalarType::Byte);
            return {static_cast<std::byte*>(workspace_->mutable_data_ptr()), bytes};
          }),
          guard_(device) {
      // The guard sets the device of PyTorch's runtime. This library links a runtime of its own.
      mhla::cuda::expect_success(cudaSetDevice(device), "cudaSetDevice");
      mixing_ = problem.dense_mixing(blocks);
      mixing = {static_cast<const float*>(mixing_->const_data_ptr()), blocks.queries.blocks(),
                blocks.keys.blocks(), problem.form_.mixing ? mixing_->stride(0) : 0};
      void* current = nullptr;
      if (aoti_torch_get_current_cuda_stream(device, &current) != AOTI_TORCH_SUCCESS) {
        throw std::runtime_error("mhla: PyTorch has no current stream of cuda:" +
                                 std::to_string(device));
      }
      stream = static_cast<cudaStream_t>(current);
    }
    Launch(const Launch&) = delete;
    Launch& operator=(const Launch&) = delete;

    std::int32_t device;
    std::function<mhla::Workspace(std::size_t)> lend;
    mhla::MatrixView<const float> mixing;
    cudaStream_t stream;

   private:
    static std::int32_t checked(const Problem& problem, const Partition& blocks) {
      if (problem.form_.mixing) expect_mixing(*problem.form_.mixing, blocks);
      problem.expect_one_device();
      return problem.q_.get_device_index();
    }

    torch::stable::accelerator::DeviceGuard guard_;
    std::optional<Tensor> mixing_, workspace_;
  };

  /// Returns the tensor, or a copy if its rows are not dense, as gradients need them.
  static Tensor with_dense_rows(const Tensor& t) {
    bool fits = t.stride(3) == 1 && reinterpret_cast<std::uintptr_t>(t.const_data_ptr()) % 16 == 0;
    for (Index axis = 0; axis < 3; ++axis) {
      fits = fits && (t.size(axis) == 1 || t.stride(axis) % 8 == 0);
    }
    if (fits) return t;
    return t.is_contiguous() ? torch::stable::clone(t) : torch::stable::contiguous(t);
  }

  /// Returns a new tensor with the tokens and heads of another, [B,N,H,width] in memory.
  Tensor like(const Tensor& t, Index width) const {
    const bool heads_first = options_.heads_first();
    const Tensor dense = torch::stable::new_empty(
        t, {t.size(0), t.size(heads_first ? 2 : 1), t.size(heads_first ? 1 : 2), width});
    return heads_first ? torch::stable::transpose(dense, 1, 2) : dense;
  }

  mhla::cuda::Operator op(const Partition& blocks) const {
    const FeatureMap map = feature_map(kName, options_);
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
            .norm_eps = static_cast<float>(options_.norm_eps)};
  }

  static void expect_mixing(const Tensor& mixing, const Partition& blocks) {
    expect_type(kName, "mixing", mixing, ScalarType::Float, 2);
    const Index rows = blocks.queries.blocks(), columns = blocks.keys.blocks();
    const bool fits = blocks.leading ? mixing.size(0) >= rows && mixing.size(1) >= columns
                                     : mixing.size(0) == rows && mixing.size(1) == columns;
    if (fits) return;
    const auto text = [](Index m, Index n) {
      return "[" + std::to_string(m) + ", " + std::to_string(n) + "]";
    };
    fail<mhla::shape_error>(kName, "mixing", "has shape " + text(mixing.size(0), mixing.size(1)),
                            (blocks.leading ? "at least " : "") + text(rows, columns));
  }

  void expect_one_device() const {
    const auto name = [](const Tensor& t) {
      if (t.is_cuda()) return "cuda:" + std::to_string(t.get_device_index());
      return std::string(t.is_cpu() ? "cpu" : "another device");
    };
    const auto expect = [&](const char* argument, const Tensor& t) {
      if (name(t) == name(q_)) return;
      fail<mhla::option_error>(kName, argument, "is on " + name(t), name(q_));
    };
    if (!q_.is_cuda()) fail<mhla::option_error>(kName, "q", "is on " + name(q_), "a CUDA device");
    expect("k", k_);
    expect("v", v_);
    if (form_.mixing) expect("mixing", *form_.mixing);
    for (const auto& [argument, tensor] : {std::pair{"query_angles", &options_.query_angles},
                                           {"key_angles", &options_.key_angles},
                                           {"gain", &options_.gain},
                                           {"gate", &options_.gate}}) {
      if (*tensor) expect(argument, **tensor);
    }
  }

  /// Returns the mixing matrix with dense rows. Without a matrix, one row of ones serves as all
  /// rows.
  Tensor dense_mixing(const Partition& blocks) const {
    if (!form_.mixing) {
      return torch::stable::fill_(
          torch::stable::new_empty(q_, {blocks.keys.blocks()}, ScalarType::Float), 1);
    }
    if (form_.mixing->stride(1) == 1) return *form_.mixing;
    return torch::stable::contiguous(*form_.mixing);
  }

  friend class Launch;
  Tensor q_, k_, v_;
  Form form_;
  Options options_;
};

template <class Form>
void forward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Arguments from(stack);
  stack[0] = torch::stable::detail::from(Problem<Form>(from).forward());
}

template <class Form>
void form(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Arguments from(stack);
  stack[0] = torch::stable::detail::from(Problem<Form>(from).form());
}

/// \tparam kKeeps  true if the operator takes summaries, which gradients on CUDA do not read
template <class Form, bool kKeeps>
void backward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Arguments from(stack);
  const Tensor dout = from.take<Tensor>();
  const Problem<Form> problem(from);
  if constexpr (kKeeps) (void)from.take<std::optional<Tensor>>();
  const std::array<Tensor, kGradients> gradients =
      problem.backward(dout, from.take<std::optional<Tensor>>());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    stack[i] = torch::stable::detail::from(gradients[i]);
  }
}

template <class Form, bool kKeeps>
void implement(torch::stable::detail::StableLibrary& library) {
  const std::string name = Form::kName;
  library.impl(name.c_str(), &forward<Form>);
  library.impl((name + "_form").c_str(), &form<Form>);
  library.impl((name + "_backward").c_str(), &backward<Form, kKeeps>);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(mhla, CUDA, library) {
  implement<Bidirectional, true>(library);
  implement<Causal, true>(library);
  implement<Linear, false>(library);
}

}  // namespace mhla_torch
