#pragma once

/// \file
/// A step of a layer's graph (graph.hpp). It has a forward and an adjoint that adds to the
/// gradients of its inputs. A Pass has the views of the values that it reads and writes:
///
///     const auto forward = [=](const Pass<T>& p) {
///       if (p.counting()) return p.needs(dense_workspace_bytes<T>(x.cols, y.cols));
///       dense(p.in(x), w(p.parameters), p.out(y), p.call());
///     };
///
/// A pass that counts bytes has no numbers, only shapes. Every step ends there in this way. A step
/// that keeps bytes for its adjoint first asks counting_kept().

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/layer/body.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Columns of a value of a graph.
struct Value {
  static constexpr std::size_t kAbsent = ~std::size_t{0};

  std::size_t at = kAbsent;  ///< 0 is the input of the layer
  Index first = 0, cols = 0;

  bool absent() const { return at == kAbsent; }
  /// Returns part `part` of `parts` equal parts of the columns.
  Value part(Index part, Index parts) const {
    return {at, first + part * (cols / parts), cols / parts};
  }
};

/// Values that a step uses.
struct StepValues {
  using Values = std::array<Value, 5>;

  Value output = {};     ///< absent if the step adds to `sum`
  Value sum = {};        ///< an earlier output, to which the step adds
  Values inputs = {};    ///< of the forward; the adjoint adds to their gradients
  Values read = {};      ///< by the adjoint
  Values unsloped = {};  ///< inputs of the forward that have no gradient here
  bool keeps = false;    ///< the forward keeps bytes for the adjoint
};

namespace detail {

/// Memory of values with a row per token, and of values with a row per item.
template <class T>
struct Buffers {
  T *rows = nullptr, *items = nullptr;
};

/// A value of a graph, and where it and its gradient lie.
struct Place {
  Index cols, stride;
  bool per_item;           // one row per item
  Value gradient;          // of the columns; another value's if both share one
  std::size_t writer = 0;  // a step
  bool kept = false, remade = false;
  // Numbers of a row before it: in the forward, and its value and its gradient in the backward.
  Index value = 0, again = 0, slope = 0;
};

/// Dense layers packed for many calls, by the places of their weights.
template <class T>
class PackedWeights;
/// A call that appends tokens to a state (language_decoding.hpp).
template <class T>
struct Decoding;

}  // namespace detail

/// Views that steps read and write in one pass.
template <class T>
struct Pass {
  /// Values that backward reads, and bytes that steps keep.
  struct Tape {
    detail::Buffers<T> values{};
    Workspace bytes{};
  };
  struct Scratch {
    detail::Buffers<T> values{};
    Workspace memory{};  // of values.rows, and after those that a step needs, its own
  };

  detail::LayerRows sizes;
  std::span<const detail::Place> places;
  std::size_t output, condition;
  Tape tape{};
  Scratch scratch{};
  ExecutorRef executor{};
  std::span<const T> parameters{};
  MatrixView<const T> x{}, c{}, dy{};
  MatrixView<T> y{}, dx{}, dc{};
  std::span<T> gradients{};  ///< of the parameters
  bool backward = false;
  Workspace rest{};                                         ///< of the step
  Workspace kept{};                                         ///< bytes that the step keeps
  std::size_t *counted = nullptr, *counted_kept = nullptr;  ///< bytes of a step
  const detail::PackedWeights<T>* packed = nullptr;         ///< those of a state
  const detail::Decoding<T>* decoding = nullptr;

  /// Rows of a value.
  Index rows(Value v) const { return places[v.at].per_item ? sizes.batch : sizes.rows; }
  bool counting() const { return counted != nullptr || counted_kept != nullptr; }
  /// Notes the bytes of workspace.
  void needs(std::size_t bytes) const { *counted = std::max(*counted, bytes); }
  /// True if the pass counts the bytes that a step keeps, and not its workspace.
  bool counting_kept() const { return counted_kept != nullptr; }
  void keeps(std::size_t bytes) const { *counted_kept = bytes; }
  Call call() const { return {rest, executor, kept}; }
  // Not inlined, for the time to compile: steps call these at dozens of places.
  MHLA_NOINLINE MatrixView<const T> in(Value v) const {
    if (counting() || (v.at != 0 && v.at != condition)) return out(v);
    return columns(v.at == 0 ? x : c, v);
  }
  MHLA_NOINLINE MatrixView<T> out(Value v) const {
    if (v.absent()) return {};
    if (v.at == output && !y.absent()) return columns(y, v);
    const detail::Place& p = places[v.at];
    if (p.kept) return view(tape.values, p.value, v);
    return view(scratch.values, backward ? p.again : p.value, v);
  }
  /// Returns the gradient of an output.
  MHLA_NOINLINE MatrixView<const T> dout(Value v) const {
    const Value g = gradient(v);
    return g.at == output ? columns(dy, g) : MatrixView<const T>(din(v));
  }
  /// Returns the gradient of an input, to which an adjoint adds. It may be absent.
  MHLA_NOINLINE MatrixView<T> din(Value v) const {
    if (v.absent()) return {};
    const Value g = gradient(v);
    if (g.at != 0 && g.at != condition) return view(scratch.values, places[g.at].slope, g);
    return columns(g.at == 0 ? dx : dc, g);
  }

 private:
  Value gradient(Value v) const {
    const Value& g = places[v.at].gradient;
    return {g.at, g.first + v.first, v.cols};
  }
  MatrixView<T> view(const detail::Buffers<T>& buffers, Index before, Value v) const {
    const detail::Place& p = places[v.at];
    T* data = p.per_item ? buffers.items : buffers.rows;
    if (data != nullptr) data += before * rows(v) + v.first;  // null while bytes are counted
    return {data, rows(v), v.cols, p.stride};
  }
  template <class U>
  static MatrixView<U> columns(MatrixView<U> rows, Value v) {
    if (rows.data != nullptr) rows.data += v.first;
    if (!rows.absent()) rows.cols = v.cols;
    return rows;
  }
};

template <class T>
struct Step {
  virtual ~Step() = default;
  virtual void forward(const Pass<T>& pass) const = 0;
  virtual void adjoint(const Pass<T>& pass) const = 0;
};

namespace detail {

/// A step of functions of a pass.
template <class T, class Forward, class Adjoint>
class StepOf final : public Step<T> {
 public:
  StepOf(const Forward& forward, const Adjoint& adjoint) : forward_(forward), adjoint_(adjoint) {}
  void forward(const Pass<T>& pass) const override { forward_(pass); }
  void adjoint(const Pass<T>& pass) const override { adjoint_(pass); }

 private:
  Forward forward_;
  Adjoint adjoint_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
