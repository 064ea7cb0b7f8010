#pragma once

/// \file
/// A model around blocks of the library: its parameters in one row of numbers, and the forward and
/// backward pass through its blocks.

#include <algorithm>
#include <cstddef>
#include <mhla/layer/dense.hpp>
#include <mhla/layer/parameters.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "buffer.hpp"
#include "optimizer.hpp"

namespace examples {

/// Parameters in one row; each block has a copy of its part.
template <class Block>
class BlockModel {
 public:
  using T = typename Block::A;

  const mhla::ParameterTable& table() const { return table_; }
  const std::vector<Block>& blocks() const { return blocks_; }
  std::span<const T> parameters() const { return row_; }

  /// \param row  in the layout of the table
  void set_parameters(std::span<const T> row) {
    row_.assign(row.begin(), row.end());
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      std::ranges::copy(of_block(b, row), blocks_[b].parameters().begin());
    }
  }
  /// The part of a block in a row of all parameters.
  template <class U>
  std::span<U> of_block(std::size_t b, std::span<U> row) const {
    const std::size_t size = blocks_[b].parameters().size();
    return row.subspan(static_cast<std::size_t>(first_block_) + b * size, size);
  }
  /// NAME.weight and NAME.bias in a row of all parameters.
  template <class U>
  mhla::DenseView<U> dense(std::span<U> row, const std::string& name) const {
    return {table_.matrix(row, name + ".weight"), table_.numbers(row, name + ".bias")};
  }

 protected:
  void add(const std::string& name, std::vector<mhla::Index> shape) {
    table_.add(name, std::move(shape));
  }
  /// Adds NAME.weight [O,I] and NAME.bias [O].
  void add_dense(const std::string& name, mhla::Index outputs, mhla::Index inputs) {
    table_.add(name + ".weight", {outputs, inputs});
    table_.add(name + ".bias", {outputs});
  }
  /// Adds NAME.weight and NAME.bias of a norm.
  void add_norm(const std::string& name, mhla::Index channels) {
    table_.add(name + ".weight", {channels});
    table_.add(name + ".bias", {channels});
  }
  /// Adds the blocks as blocks.0., blocks.1. and so on; call it once.
  void add_blocks(mhla::Index count, const typename Block::Options& options) {
    first_block_ = table_.size();
    for (mhla::Index b = 0; b < count; ++b) {
      blocks_.emplace_back(options);
      table_.add("blocks." + std::to_string(b) + ".", blocks_.back().table());
    }
  }

 private:
  mhla::ParameterTable table_;
  mhla::Index first_block_ = 0;  // index of its first parameter
  std::vector<Block> blocks_;
  std::vector<T> row_;
};

/// True for the mixing matrix of a vision or video layer.
inline bool is_mixing(std::string_view name) { return name.ends_with("_attn.conv.weight"); }

/// The trained tensors; weights of products decay.
inline std::vector<TrainedTensor> trained_tensors(const mhla::ParameterTable& table,
                                                  bool freeze_mixing) {
  std::vector<TrainedTensor> tensors;
  for (const mhla::Parameter& p : table.all()) {
    if (is_mixing(p.name) && freeze_mixing) continue;
    const bool decays = p.shape.size() == 2 && p.name.ends_with(".weight");
    tensors.push_back({p.name, p.shape, p.begin, p.size, decays});
  }
  return tensors;
}

/// The authors' constraint of mixing matrices: coefficients in [0, 1].
template <class T>
void constrain_mixing(const mhla::ParameterTable& table, std::span<T> row) {
  for (const mhla::Parameter& p : table.all()) {
    if (!is_mixing(p.name)) continue;
    for (T& coefficient : p.place().numbers(row)) coefficient = std::clamp(coefficient, T(0), T(1));
  }
}

/// Activations and scratch of a worker for the blocks of a model, for up to a number of items.
template <class Block>
class BlockPass {
  using T = typename Block::A;
  using Index = mhla::Index;
  using View = mhla::MatrixView<T>;

 public:
  BlockPass(const BlockModel<Block>& model, Index items, Index tokens, Index channels)
      : tokens_(tokens),
        x_(model.blocks().size() + 1, Buffer<T>(items * tokens, channels)),
        dx_(items * tokens, channels),
        dinput_(dx_) {
    for (const Block& block : model.blocks()) {
      const Index rows = items * tokens;
      const mhla::LayerCall call{.batch = items};
      kept_.emplace_back(block.kept_bytes(rows, items));
      workspace_.resize(std::max({workspace_.size(), block.workspace_bytes(rows, call),
                                  block.backward_workspace_bytes(rows, call)}));
    }
  }

  View input(Index items) { return x_.front().rows(items * tokens_); }
  View output(Index items) { return x_.back().rows(items * tokens_); }
  /// Input of block b.
  View input_of(std::size_t b, Index items) { return x_[b].rows(items * tokens_); }
  /// Gradient of the output, set to zeros; after backward it is the gradient of the input.
  View zero_gradient(Index items) { return dx_.zero_rows(items * tokens_); }
  View gradient(Index items) { return dx_.rows(items * tokens_); }

  /// Computes the output from the input.
  /// \param condition  a row per item, for blocks that have one
  void forward(const BlockModel<Block>& model, Index items, const auto&... condition) {
    for (std::size_t b = 0; b < kept_.size(); ++b) {
      model.blocks()[b](x_[b].rows(items * tokens_), condition..., x_[b + 1].rows(items * tokens_),
                        {.batch = items, .workspace = workspace_, .kept = kept_[b]});
    }
  }
  /// Computes the gradient of the input from the gradient of the output, after forward. Adds the
  /// gradients of the parameters and of the condition.
  /// \param conditions  the condition and its gradient, for blocks that have one
  void backward(const BlockModel<Block>& model, Index items, std::span<T> gradient,
                const auto&... conditions) {
    for (std::size_t b = kept_.size(); b-- > 0;) {
      run_backward(model.blocks()[b], x_[b].rows(items * tokens_), dx_.rows(items * tokens_),
                   dinput_.zero_rows(items * tokens_), model.of_block(b, gradient),
                   {.batch = items, .workspace = workspace_, .kept = kept_[b]}, conditions...);
      std::swap(dx_, dinput_);
    }
  }

 private:
  static void run_backward(const Block& block, View x, View dy, View dx, std::span<T> gradient,
                           const mhla::LayerCall& call) {
    block.backward(x, dy, dx, gradient, call);
  }
  static void run_backward(const Block& block, View x, View dy, View dx, std::span<T> gradient,
                           const mhla::LayerCall& call, View c, View dc) {
    block.backward(x, c, dy, dx, dc, gradient, call);
  }

  Index tokens_;              // per item
  std::vector<Buffer<T>> x_;  // input of every block, and output of the last
  std::vector<std::vector<std::byte>> kept_;
  Buffer<T> dx_, dinput_;
  std::vector<std::byte> workspace_;
};

}  // namespace examples
