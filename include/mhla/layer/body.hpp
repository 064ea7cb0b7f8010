#pragma once

/// \file
/// Helpers of the bodies of layers (layer.hpp): tensors, memory, views of rows, and parts. A part
/// is a body with parameters.
///
/// A body, such as a Graph (graph.hpp), has Tape, ForwardScratch and BackwardScratch, each made
/// from an Arena: what backward reads, and scratch. It has the functions table, record (everything
/// that backward reads), write (the output after record) and backward (adds gradients), and may
/// have prepare.

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/tensor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/rows.hpp"
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

/// A body that also reads one row of condition() numbers for each item.
template <class Body>
concept Conditioned = requires(const Body& body) {
  body.condition();
};

/// A body that reads more than parameters. prepare() computes this data from the options, once and
/// before the first pass.
template <class Body>
concept Prepared = requires(Body& body) {
  body.prepare();
};

/// The places of NAME.weight and of NAME.bias, either of which may be missing.
/// \tparam View  DenseView or ConvolutionView
template <template <class> class View>
struct WeightSlices {
  ParameterSlice weight, bias;

  WeightSlices() = default;
  /// Adds the tensors to a table, the weight in this shape.
  WeightSlices(ParameterTable& table, const std::string& name, std::vector<Index> shape,
               bool has_bias = true)
      : weight(table.add(name + ".weight", shape).place()) {
    if (has_bias) bias = table.add(name + ".bias", {shape.front()}).place();
  }
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

/// The mixing matrix of m blocks, or one per head.
template <class T>
MixingView<T> mixing_at(const ParameterSlice& place, std::span<T> row, Index m) {
  const std::span<T> numbers = place.numbers(row);
  if (numbers.empty()) return {};
  return {numbers.data(), Pattern(m, m), std::ssize(numbers) / (m * m), m * m};
}

/// A matrix whose rows begin at cache lines and do not alias in a cache.
template <class A>
MatrixView<A> take_matrix(const char* function, Arena& arena, Index rows, Index cols) {
  return Rows<A>(function, arena, rows, cols).matrix(rows, cols);
}
/// Returns `count` shares of equally many bytes, or an empty span while bytes are counted.
inline Workspace take_bytes(const char* function, Arena& arena, std::size_t bytes,
                            std::size_t count = 1) {
  std::byte* const memory =
      arena.take<std::byte>(function, {static_cast<Index>(count), static_cast<Index>(bytes)});
  return {memory, memory == nullptr ? 0 : count * bytes};
}

/// Scratch of a body that needs none.
struct NoRoom {
  template <class Body>
  NoRoom(Arena&, const Body&, LayerRows, const ExecutorRef&) {}
};

/// Scratch of two bodies that run one after the other, over the same memory.
template <class One, class Other>
struct SharedScratch {
  One one;
  Other other;

  template <class OneBody, class OtherBody>
  SharedScratch(Arena& arena, const OneBody& one_body, const OtherBody& other_body, LayerRows sizes,
                const ExecutorRef& executor)
      : SharedScratch(arena, arena, one_body, other_body, sizes, executor) {}

 private:
  template <class OneBody, class OtherBody>
  SharedScratch(Arena& arena, Arena again, const OneBody& one_body, const OtherBody& other_body,
                LayerRows sizes, const ExecutorRef& executor)
      : one(arena, one_body, sizes, executor), other(again, other_body, sizes, executor) {
    if (again.bytes() > arena.bytes()) arena = again;
  }
};

/// Buffers of rows. Values share one if the times of their uses do not overlap.
template <class T>
class SharedBuffers {
 public:
  /// Adds a value. Values come in the order of their first uses.
  void add(std::size_t value, Index cols, std::size_t first_use, std::size_t last_use) {
    auto b = std::find_if(buffers_.begin(), buffers_.end(), [&](const Buffer& buffer) {
      return buffer.cols == cols && buffer.last_use < first_use;
    });
    if (b == buffers_.end()) b = buffers_.insert(b, Buffer{cols, 0, {}});
    b->last_use = last_use;
    b->values.push_back(value);
  }
  void take(const char* function, Arena& arena, Index rows, std::span<MatrixView<T>> to) const {
    for (const Buffer& b : buffers_) {
      const MatrixView<T> taken = take_matrix<T>(function, arena, rows, b.cols);
      for (const std::size_t value : b.values) to[value] = taken;
    }
  }

 private:
  struct Buffer {
    Index cols;
    std::size_t last_use;
    std::vector<std::size_t> values;
  };
  std::vector<Buffer> buffers_;
};

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

/// Returns the columns of part `part` of `parts` equal parts.
template <class T>
MatrixView<T> columns_of(const MatrixView<T>& x, Index part, Index parts) {
  const Index cols = x.cols / parts;
  // Null while bytes are counted.
  return {x.data == nullptr ? nullptr : x.data + part * cols, x.rows, cols, x.row_stride};
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

/// A body whose parameters are a part of another body's.
template <class Body>
class Part {
 public:
  /// Adds the parameters of `body` to `table`, under names below `prefix`.
  Part(ParameterTable& table, std::string_view prefix, Body body)
      : body_(std::move(body)), begin_(table.add(prefix, body_.table())) {}

  void prepare() requires Prepared<Body> { body_.prepare(); }

  const Body* operator->() const { return &body_; }
  const Body& operator*() const { return body_; }
  /// Returns the part's numbers of a row of all parameters or gradients; empty if the row is empty.
  template <class T>
  std::span<T> of(std::span<T> row) const {
    if (row.empty()) return row;
    return row.subspan(static_cast<std::size_t>(begin_),
                       static_cast<std::size_t>(body_.table().size()));
  }

 private:
  Body body_;
  Index begin_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
