#pragma once

/// \file
/// Options and parameters of the vision layer (vision_layer.hpp), under the authors' names:
/// norm.{weight,bias}, to_qkv.{weight,bias}, {q,k}_norm.weight, lepe.{weight,bias},
/// piece_attn.conv.weight and to_out.0.{weight,bias}.

#include <span>
#include <string>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/layer/block_order.hpp"
#include "mhla/layer/dense.hpp"
#include "mhla/layer/depthwise_convolution.hpp"
#include "mhla/layer/parameters.hpp"
#include "mhla/layer/rows.hpp"
#include "mhla/policy/by_name.hpp"
#include "mhla/policy/grid_partition.hpp"
#include "mhla/policy/mixing_view.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Order of an image's tokens: raster order, or block after block.
enum class TokenOrder { kRaster, kBlocks };

/// A token order without a default. Options that leave it out do not compile.
class RequiredTokenOrder {
 public:
  constexpr RequiredTokenOrder(TokenOrder order) : order_(order) {}
  template <bool kGiven = false>
  constexpr RequiredTokenOrder() {
    static_assert(kGiven,
                  "mhla: a vision layer needs the order of its tokens: .order = "
                  "mhla::TokenOrder::kRaster for row after row, or .order = "
                  "mhla::TokenOrder::kBlocks for block after block");
  }
  constexpr operator TokenOrder() const { return order_; }

 private:
  TokenOrder order_;
};

/// Options of a vision layer.
struct VisionOptions {
  Index heads = 8;
  GridShape tokens{1};                          ///< of an image
  GridShape block{1};                           ///< of a block
  RequiredTokenOrder order;                     ///< kBlocks in the authors' models
  Index channels = 0;                           ///< C; 0 for that of a file
  bool layer_norm = true;                       ///< the layer's norm before the projection
  bool qk_norm = false;                         ///< of q and k, over all heads together
  bool qkv_bias = true;                         ///< to_qkv has a bias
  Index lepe = 3;                               ///< side of LePE's kernel, odd; 0 for none
  AnyNormalizer normalizer = CrossQuery{1e-6};  ///< the paper's is KeySum{1e-6}
  double feature_eps = 1e-6;
  double layer_norm_eps = 1e-5;
  double qk_norm_eps = 0;  ///< 0 for PyTorch's choice, the epsilon of A
  /// Softmax attention without features, normaliser, blocks and mixing, as a baseline.
  bool softmax = false;
};

namespace detail {

/// Returns the options after checking that they fit each other.
inline const VisionOptions& checked_vision_options(const VisionOptions& o) {
  constexpr const char* kName = "VisionLayer";
  for (int axis = 0; axis < 3; ++axis) {
    if (o.block[axis] < 1 || o.tokens[axis] < 1 || o.tokens[axis] % o.block[axis] != 0) {
      fail_option(kName, "block", "is " + grid_text(o.block),
                  "one that divides the tokens " + grid_text(o.tokens));
    }
  }
  expect_positive(kName, "heads", o.heads);
  expect_channels(kName, o.channels);
  if (o.channels % o.heads != 0) {
    fail_option(kName, "channels", "is " + std::to_string(o.channels),
                "a multiple of the " + std::to_string(o.heads) + " heads");
  }
  if (o.lepe < 0 || (o.lepe > 0 && o.lepe % 2 == 0)) {
    fail_option(kName, "lepe", "is " + std::to_string(o.lepe), "odd, or 0 for none");
  }
  expect_not_negative(kName, "layer_norm_eps", o.layer_norm_eps);
  expect_not_negative(kName, "qk_norm_eps", o.qk_norm_eps);
  return o;
}

/// Returns the rows of tokens in raster order, or nothing if rows are in raster order.
inline std::vector<Index> vision_places(const VisionOptions& o) {
  if (o.order == TokenOrder::kRaster) return {};
  const std::vector<Index> order = block_order(Grid(o.tokens, o.block));
  std::vector<Index> places(order.size());
  for (std::size_t place = 0; place < order.size(); ++place) {
    places[static_cast<std::size_t>(order[place])] = static_cast<Index>(place);
  }
  return places;
}

inline ParameterTable vision_table(const VisionOptions& o) {
  const Index c = o.channels, m = Grid(o.tokens, o.block).blocks();
  ParameterTable table;
  if (o.layer_norm) {
    table.add("norm.weight", {c});
    table.add("norm.bias", {c});
  }
  table.add("to_qkv.weight", {3 * c, c});
  if (o.qkv_bias) table.add("to_qkv.bias", {3 * c});
  if (o.qk_norm) {
    table.add("q_norm.weight", {c});
    table.add("k_norm.weight", {c});
  }
  if (o.lepe > 0) {
    table.add("lepe.weight", {c, 1, o.lepe, o.lepe});
    table.add("lepe.bias", {c});
  }
  if (!o.softmax) table.add("piece_attn.conv.weight", {m, m, 1, 1});
  table.add("to_out.0.weight", {c, c});
  table.add("to_out.0.bias", {c});
  return table;
}

/// Where the tensors lie.
struct VisionSlices {
  ParameterSlice norm_gain, norm_shift;  // [C]
  WeightSlices<DenseView> to_qkv;        // [3C,C]
  ParameterSlice q_gain, k_gain;         // [C]
  WeightSlices<ConvolutionView> lepe;    // [C,taps]
  ParameterSlice mixing;                 // [M,M]
  WeightSlices<DenseView> to_out;        // [C,C]

  explicit VisionSlices(const ParameterTable& table)
      : norm_gain(table.place("norm.weight")),
        norm_shift(table.place("norm.bias")),
        to_qkv(table, "to_qkv"),
        q_gain(table.place("q_norm.weight")),
        k_gain(table.place("k_norm.weight")),
        lepe(table, "lepe"),
        mixing(table.place("piece_attn.conv.weight")),
        to_out(table, "to_out.0") {}
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
