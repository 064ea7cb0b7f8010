#pragma once

/// \file
/// The norms of a block (block_body.hpp) as parts: layer normalisation, with affine parameters or
/// without, and root-mean-square normalisation. Their parameters are {weight,bias} and weight.

#include <span>
#include <string_view>

#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/layer/layer_norm.hpp"
#include "mhla/layer/parameters.hpp"
#include "mhla/layer/rms_norm.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

template <Accumulator T>
class LayerNormPart {
 public:
  /// \param affine  true if there are a gain and a shift
  LayerNormPart(Index channels, bool affine, double eps) : eps_(eps) {
    if (!affine) return;
    table_.add("weight", {channels});
    table_.add("bias", {channels});
  }
  const ParameterTable& table() const { return table_; }

  void apply(std::span<const T> parameters, MatrixView<const T> x, MatrixView<T> y,
             const ExecutorRef& executor) const {
    layer_norm(x, table_.numbers(parameters, "weight"), table_.numbers(parameters, "bias"), eps_, y,
               executor);
  }
  static std::size_t adjoint_bytes(Index rows, Index channels) {
    return layer_norm_adjoint_workspace_bytes<T>(rows, channels);
  }
  void adjoint(std::span<const T> parameters, MatrixView<const T> x, MatrixView<const T> dy,
               MatrixView<T> dx, std::span<T> gradients, const Call& call) const {
    layer_norm_adjoint(x, table_.numbers(parameters, "weight"), eps_, dy, dx,
                       table_.numbers(gradients, "weight"), table_.numbers(gradients, "bias"),
                       call);
  }

 private:
  double eps_;
  ParameterTable table_;
};

template <Accumulator T>
class RmsNormPart {
 public:
  RmsNormPart(Index channels, double eps) : eps_(eps) { table_.add("weight", {channels}); }
  const ParameterTable& table() const { return table_; }

  void apply(std::span<const T> parameters, MatrixView<const T> x, MatrixView<T> y,
             const ExecutorRef& executor) const {
    rms_norm(x, parameters, eps_, y, executor);
  }
  static std::size_t adjoint_bytes(Index rows, Index channels) {
    return rms_norm_adjoint_workspace_bytes<T>(rows, channels);
  }
  void adjoint(std::span<const T> parameters, MatrixView<const T> x, MatrixView<const T> dy,
               MatrixView<T> dx, std::span<T> gradients, const Call& call) const {
    rms_norm_adjoint(x, parameters, eps_, dy, dx, gradients, call);
  }

 private:
  double eps_;
  ParameterTable table_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
