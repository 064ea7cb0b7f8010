#pragma once

/// \file
/// Helpers of layers and their steps (step.hpp): tensors, memory and views of rows.

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/tensor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/layer/packed_dense.hpp"
#include "mhla/layer/parameters.hpp"
#include "mhla/layer/rows.hpp"
#include "mhla/policy/mixing_view.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Rows of a batch, as many for each item.
struct LayerRows {
  Index rows, batch;
};

/// The places of NAME.weight and of NAME.bias, either of which may be missing.
/// \tparam View  DenseView or ConvolutionView
template <template <class> class View>
struct WeightSlices {
  ParameterSlice weight{}, bias{};

  /// Returns the tensors of `row`.
  template <class T>
  View<T> operator()(std::span<T> row) const {
    return {weight.matrix(row), bias.numbers(row)};
  }
};

/// Shape of the mixing matrix of m blocks in a checkpoint: that of the authors with `axes` axes, or
/// [heads,m,m] for a matrix per head.
inline std::vector<Index> mixing_shape(Index m, std::size_t axes, bool per_head, Index heads) {
  if (per_head) return {heads, m, m};
  std::vector<Index> shape(axes, 1);
  shape[0] = shape[1] = m;
  return shape;
}

/// Dense layers packed for many calls. Not copied.
template <class T>
class PackedWeights {
 public:
  PackedWeights(std::span<const WeightSlices<DenseView>> layers, std::span<const T> parameters) {
    std::size_t bytes = 0;
    for (const auto& w : layers) bytes += packed_dense_bytes<T>(w.weight.cols, w.weight.rows);
    memory_.resize(bytes);
    Workspace rest(memory_);
    for (const auto& w : layers) {
      packed_.emplace_back(w.weight.begin, PackedDense<T>(rest, w(parameters)));
      rest = rest.subspan(packed_dense_bytes<T>(w.weight.cols, w.weight.rows));
    }
  }
  PackedWeights(const PackedWeights&) = delete;
  PackedWeights& operator=(const PackedWeights&) = delete;

  /// Returns the layer whose weight lies at this place.
  /// \throws option_error for a weight that Graph::dense has not added.
  const PackedDense<T>& at(const ParameterSlice& weight) const {
    const auto found = std::find_if(packed_.begin(), packed_.end(),
                                    [&](const auto& p) { return p.first == weight.begin; });
    if (found == packed_.end()) {
      fail_option("append", "graph", "has a dense step of another weight",
                  "weights of Graph::dense");
    }
    return found->second;
  }

 private:
  std::vector<std::byte, Allocator<std::byte>> memory_;
  std::vector<std::pair<Index, PackedDense<T>>> packed_;
};

/// The mixing matrix of m blocks, or one per head.
template <class T>
MixingView<T> mixing_at(const ParameterSlice& place, std::span<T> row, Index m) {
  const std::span<T> numbers = place.numbers(row);
  if (numbers.empty()) return {};
  return {numbers.data(), Pattern(m, m), std::ssize(numbers) / (m * m), m * m};
}

/// Returns bytes, or an empty span while bytes are counted.
inline Workspace take_bytes(const char* function, Arena& arena, std::size_t bytes) {
  std::byte* const memory = arena.take<std::byte>(function, static_cast<Index>(bytes));
  return {memory, memory == nullptr ? 0 : bytes};
}

/// Returns rows [B*N, ...] as heads [B,N,heads,width]: every `step`th head from `first` on.
template <class T>
TensorView<T> split_heads(const MatrixView<T>& x, Index batch, Index heads, Index width,
                          Index first = 0, Index step = 1) {
  if (x.absent()) return {};
  const Index n = batch == 0 ? 0 : x.rows / batch;
  return {x.data == nullptr ? nullptr : x.data + first * width,  // null while bytes are counted
          {batch, n, heads, width},
          {n * x.row_stride, x.row_stride, step * width, 1}};
}

template <class A>
void clear(MatrixView<A> x, const ExecutorRef& executor) {
  for_each_layer_strip(x.rows, executor, [&](Index begin, Index count) {
    for (Index r = begin; r < begin + count; ++r) std::fill_n(x.row(r), x.cols, A(0));
  });
}

/// y += x.
template <class A>
void add(MatrixView<const A> x, MatrixView<A> y, const ExecutorRef& executor) {
  for_each_layer_strip(x.rows, executor, [&](Index begin, Index count) {
    for (Index r = begin; r < begin + count; ++r) add_to(x.row(r), y.row(r), x.cols);
  });
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
