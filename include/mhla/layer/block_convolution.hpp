#pragma once

/// \file
/// The conditional positional encoding of a block (block_body.hpp) as a part: a depthwise
/// convolution of 3 x 3 taps over the image, with parameters {weight,bias}.
/// Source: Chu et al., arXiv:2102.10882.

#include <span>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/layer/depthwise_convolution.hpp"
#include "mhla/layer/parameters.hpp"
#include "mhla/policy/grid_partition.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

template <Accumulator T>
class ConvolutionPart {
 public:
  /// \param tokens  of an image
  /// \param places  as those of DepthwiseGrid
  ConvolutionPart(Index channels, GridShape tokens, std::vector<Index> places)
      : tokens_(tokens), places_(std::move(places)) {
    table_.add("weight", {channels, 1, kSide, kSide});
    table_.add("bias", {channels});
  }
  const ParameterTable& table() const { return table_; }

  static std::size_t bytes(Index channels) {
    return depthwise_convolution_workspace_bytes<T>(channels, {kSide, kSide});
  }
  void apply(std::span<const T> parameters, MatrixView<const T> x, MatrixView<T> y,
             const Call& call) const {
    depthwise_convolution(x, views(parameters), grid(), y, call);
  }
  static std::size_t adjoint_bytes(Index rows, Index channels) {
    return depthwise_convolution_adjoint_workspace_bytes<T>(rows, channels, {kSide, kSide});
  }
  void adjoint(std::span<const T> parameters, MatrixView<const T> x, MatrixView<const T> dy,
               MatrixView<T> dx, std::span<T> gradients, const Call& call) const {
    depthwise_convolution_adjoint(x, views(parameters), grid(), dy, dx, views(gradients), call);
  }

 private:
  static constexpr Index kSide = 3;

  DepthwiseGrid grid() const {
    return {.tokens = tokens_, .kernel = {kSide, kSide}, .places = places_};
  }
  template <class U>
  ConvolutionView<U> views(std::span<U> row) const {
    return {table_.matrix(row, "weight"), table_.numbers(row, "bias")};
  }

  GridShape tokens_;
  std::vector<Index> places_;
  ParameterTable table_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
