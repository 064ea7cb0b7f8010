#pragma once

/// \file
/// A step of a layer's graph (graph.hpp). It has a forward, an adjoint that adds to the gradients
/// of its inputs, and the bytes of both. A Pass has the views of the values that it reads and
/// writes.

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
namespace detail {

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

/// Most values of a graph. A pass has a view of each without allocating.
inline constexpr std::size_t kMostValues = 24;

/// Views that a step reads and writes in one pass. Data is null while bytes are counted.
template <class T>
struct Pass {
  using Rows = std::array<MatrixView<T>, kMostValues>;
  /// Memory that backward reads: values, and bytes that steps keep beside their outputs.
  struct Tape {
    Rows rows;
    std::array<Workspace, kMostValues> bytes;
  };
  struct Scratch {
    Rows rows, gradients;
    Workspace rest;  // of one step
  };

  LayerRows sizes;
  std::size_t output;  ///< the value that is the layer's output
  const Tape& tape;
  const Scratch& scratch;
  ExecutorRef executor{};
  std::span<const T> parameters{};
  MatrixView<const T> x{}, dy{};
  MatrixView<T> y{}, dx{};
  std::span<T> gradients{};  ///< of the parameters

  Call call() const { return {.workspace = scratch.rest, .executor = executor}; }
  /// The call of a step that keeps bytes beside an output.
  Call call(Value v) const { return {scratch.rest, executor, tape.bytes[v.at]}; }
  // Not inlined, for the time to compile: steps call these at dozens of places.
  MHLA_NOINLINE MatrixView<const T> in(Value v) const { return v.at == 0 ? columns(x, v) : out(v); }
  MHLA_NOINLINE MatrixView<T> out(Value v) const {
    if (v.absent()) return {};
    if (v.at == output) return columns(y, v);
    const MatrixView<T>& kept = tape.rows[v.at];
    return columns(kept.absent() ? scratch.rows[v.at] : kept, v);
  }
  /// Returns the gradient of an output.
  MHLA_NOINLINE MatrixView<const T> dout(Value v) const {
    return v.at == output ? columns(dy, v) : MatrixView<const T>(din(v));
  }
  /// Returns the gradient of an input, to which an adjoint adds. It may be absent.
  MHLA_NOINLINE MatrixView<T> din(Value v) const {
    if (v.absent()) return {};
    return columns(v.at == 0 ? dx : scratch.gradients[v.at], v);
  }

 private:
  template <class U>
  static MatrixView<U> columns(MatrixView<U> rows, Value v) {
    if (rows.data != nullptr) rows.data += v.first;
    if (!rows.absent()) rows.cols = v.cols;
    return rows;
  }
};

/// Values that a step uses.
struct StepValues {
  Value output;                      ///< absent if the step adds to an input
  std::array<Value, 5> inputs = {};  ///< of the forward; the adjoint adds to their gradients
  std::array<Value, 5> read = {};    ///< by the adjoint
};

template <class T>
struct Step {
  virtual ~Step() = default;
  virtual void forward(const Pass<T>& pass) const = 0;
  virtual void adjoint(const Pass<T>& pass) const = 0;
  /// Bytes of workspace, and of the memory that the forward keeps beside the output.
  virtual std::size_t forward_bytes(const Pass<T>& pass) const = 0;
  virtual std::size_t adjoint_bytes(const Pass<T>& pass) const = 0;
  virtual std::size_t kept_bytes(const Pass<T>& pass) const = 0;
};

struct NoBytes {
  template <class T>
  std::size_t operator()(const Pass<T>&) const {
    return 0;
  }
};

/// A step of functions of a pass.
template <class T, class Forward, class Adjoint, class ForwardBytes, class AdjointBytes, class Kept>
class StepOf final : public Step<T> {
 public:
  StepOf(const Forward& f, const Adjoint& a, const ForwardBytes& fb, const AdjointBytes& ab,
         const Kept& k)
      : forward_(f), adjoint_(a), forward_bytes_(fb), adjoint_bytes_(ab), kept_(k) {}
  void forward(const Pass<T>& pass) const override { forward_(pass); }
  void adjoint(const Pass<T>& pass) const override { adjoint_(pass); }
  std::size_t forward_bytes(const Pass<T>& pass) const override { return forward_bytes_(pass); }
  std::size_t adjoint_bytes(const Pass<T>& pass) const override { return adjoint_bytes_(pass); }
  std::size_t kept_bytes(const Pass<T>& pass) const override { return kept_(pass); }

 private:
  Forward forward_;
  Adjoint adjoint_;
  ForwardBytes forward_bytes_;
  AdjointBytes adjoint_bytes_;
  Kept kept_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
