/// \file
/// The operators on CUDA: mhla::bidirectional, mhla::causal and mhla::linear, forwards.
///
/// A call checks its arguments, takes its output and workspace from PyTorch's allocator, and puts
/// its kernels into the current stream of the tensors' device. It waits for nothing, and its
/// workspace may be freed behind the launch: the allocator lends it again in the same stream only.

#define USE_CUDA  // aoti_torch_get_current_cuda_stream
#include <torch/csrc/stable/accelerator.h>

#include <algorithm>
#include <mhla/cuda/attention/inputs.cuh>
#include <mhla/cuda/launch/error.cuh>

#include "../arguments.hpp"
#include "../blocks.hpp"
#include "forms.hpp"

namespace mhla_torch {
namespace {

using mhla::cuda::Denominator;
using mhla::cuda::FeatureMap;
using mhla::cuda::TokenBlocks;

/// \throws option_error for options that mhla::cuda has nothing for.
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

FeatureMap feature_map(const char* function, const std::string& name) {
  if (name == "relu") return FeatureMap::relu();
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

/// Blocks of a call, and how its mixing matrix is read.
struct Partition {
  TokenBlocks queries, keys;
  bool causal;
  bool leading;  ///< of a larger matrix the leading part
};

struct Bidirectional {
  static constexpr const char* kName = "bidirectional";

  explicit Bidirectional(Arguments& from)
      : mixing(from.take<Tensor>()),
        blocks{from.take<std::vector<std::int64_t>>(), from.take<std::vector<std::int64_t>>(),
               from.take<std::int64_t>()} {}

  Partition partition(Index queries, Index keys) const {
    blocks.check(kName);
    if (blocks.prefix != 0) {
      fail<mhla::option_error>(kName, "prefix", "is " + std::to_string(blocks.prefix), "0 on CUDA");
    }
    if (blocks.grid.empty()) {
      return {mhla::cuda::contiguous(queries, blocks.block[0]),
              mhla::cuda::contiguous(keys, blocks.block[0]), false, true};
    }
    const TokenBlocks grid = mhla::cuda::grid(grid_shape("mhla::Grid", "grid", blocks.grid),
                                              grid_shape("mhla::Grid", "block", blocks.block));
    return {grid, grid, false, false};
  }

  std::optional<Tensor> mixing;
  BlocksOfLength blocks;
};

struct Causal {
  static constexpr const char* kName = "causal";

  explicit Causal(Arguments& from)
      : mixing(from.take<Tensor>()), block(from.take<std::int64_t>()) {}

  Partition partition(Index queries, Index) const {
    const TokenBlocks blocks = mhla::cuda::contiguous(queries, block);
    return {blocks, blocks, true, true};
  }

  std::optional<Tensor> mixing;
  std::int64_t block;
};

/// MHLA whose blocks are all mixed with weights of 1.
struct Linear {
  static constexpr const char* kName = "linear";

  explicit Linear(Arguments& from) : causal(from.take<bool>()) {}

  Partition partition(Index queries, Index keys) const {
    if (!causal) return {sixteen_blocks(queries), sixteen_blocks(keys), false, false};
    // Of a token W (D + E) flops are inside of its block and N D E / W^2 mixing: near each other.
    Index length = 64;
    while (length * length * length < 64 * queries) length *= 2;
    const TokenBlocks blocks = mhla::cuda::contiguous(queries, length);
    return {blocks, blocks, true, false};
  }

  std::optional<Tensor> mixing;  // none
  bool causal;

 private:
  /// At most 16: enough to keep a device busy, few enough for the fused form.
  static TokenBlocks sixteen_blocks(Index tokens) {
    return mhla::cuda::contiguous(tokens, (tokens + 255) / 256 * 16);
  }
};

/// Forwards, of tensors [B,N,H,.] or, heads first, [B,H,N,.].
template <class Form>
class Forward {
 public:
  explicit Forward(Arguments& from)
      : q_(from.take<Tensor>()),
        k_(from.take<Tensor>()),
        v_(from.take<Tensor>()),
        form_(from),
        options_(from) {}

  /// Checks all arguments before CUDA is called.
  Tensor operator()() const {
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
    return type == ScalarType::Half ? of_widths<Eigen::half>() : of_widths<Eigen::bfloat16>();
  }

 private:
  static constexpr const char* kName = Form::kName;

  template <class T>
  Tensor of_widths() const {
    const Index d = q_.size(3), e = v_.size(3);
    if (d == 64 && e == 64) return run<Forms<T, 64, 64>>();
    if (d == 72 && e == 72) return run<Forms<T, 72, 72>>();
    if (d == 128 && e == 128) return run<Forms<T, 128, 128>>();
    if (d == 128 && e == 256) return run<Forms<T, 128, 256>>();
    fail<mhla::shape_error>(kName, "(q, v)",
                            "have widths (" + std::to_string(d) + ", " + std::to_string(e) + ")",
                            "(64, 64), (72, 72), (128, 128) or (128, 256) on CUDA");
  }

  template <class F>
  Tensor run() const {
    const std::size_t tokens = options_.heads_first() ? 2 : 1;
    const Partition blocks = form_.partition(q_.size(tokens), k_.size(tokens));
    const Tensor out = output();
    Call call{.q = tokens_first<const std::byte>(q_, options_),
              .k = tokens_first<const std::byte>(k_, options_),
              .v = tokens_first<const std::byte>(v_, options_),
              .out = tokens_first<std::byte>(out, options_),
              .query_blocks = blocks.queries,
              .key_blocks = blocks.keys,
              .causal = blocks.causal,
              .op = op(blocks),
              .mixing = {}};
    F::check(call);
    if (form_.mixing) expect_mixing(*form_.mixing, blocks);
    expect_one_device();

    const auto device = q_.get_device_index();
    const torch::stable::accelerator::DeviceGuard guard(device);
    // The guard tells PyTorch's runtime; this library has one of its own.
    mhla::cuda::expect_success(cudaSetDevice(device), "cudaSetDevice");
    const Tensor mixing = dense_mixing(blocks);
    call.mixing = {static_cast<const float*>(mixing.const_data_ptr()), blocks.queries.blocks(),
                   blocks.keys.blocks(), form_.mixing ? mixing.stride(0) : 0};
    std::optional<Tensor> workspace;
    const auto lend = [&](std::size_t bytes) -> mhla::Workspace {
      workspace = torch::stable::new_empty(q_, {static_cast<Index>(bytes)}, ScalarType::Byte);
      return {static_cast<std::byte*>(workspace->mutable_data_ptr()), bytes};
    };
    void* stream = nullptr;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
    F::run(call, device, lend, static_cast<cudaStream_t>(stream));
    return out;
  }

  /// [B,N,H,E] in memory.
  Tensor output() const {
    const bool heads_first = options_.heads_first();
    const Tensor dense = torch::stable::new_empty(
        q_, {q_.size(0), q_.size(heads_first ? 2 : 1), q_.size(heads_first ? 1 : 2), v_.size(3)});
    return heads_first ? torch::stable::transpose(dense, 1, 2) : dense;
  }

  mhla::cuda::Operator op(const Partition& blocks) const {
    const FeatureMap map = feature_map(kName, options_.feature_map);
    Denominator sums = denominator(kName, options_.normalizer);
    // In one block, which linear attention is, a query mixes with no other.
    if (!form_.mixing && !blocks.causal && sums == Denominator::kCrossQuery) {
      sums = Denominator::kKeySum;
    }
    return {.query_map = map,
            .key_map = map,
            .denominator = sums,
            .eps = static_cast<float>(options_.eps),
            .scale = static_cast<float>(options_.scale)};
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
  }

  /// The mixing matrix with dense rows; without one a row of ones, which serves as all rows.
  Tensor dense_mixing(const Partition& blocks) const {
    if (!form_.mixing) {
      return torch::stable::fill_(
          torch::stable::new_empty(q_, {blocks.keys.blocks()}, ScalarType::Float), 1);
    }
    if (form_.mixing->stride(1) == 1) return *form_.mixing;
    return torch::stable::contiguous(*form_.mixing);
  }

  Tensor q_, k_, v_;
  Form form_;
  Options options_;
};

template <class Form>
void forward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Arguments from(stack);
  stack[0] = torch::stable::detail::from(Forward<Form>(from)());
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(mhla, CUDA, library) {
  library.impl("bidirectional", &forward<Bidirectional>);
  library.impl("causal", &forward<Causal>);
  library.impl("linear", &forward<Linear>);
}

}  // namespace mhla_torch
