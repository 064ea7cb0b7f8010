#pragma once

/// \file
/// Options and parameters of the video layer (video_layer.hpp), under the authors' names:
/// {q,k,v,o}.{weight,bias}, norm_{q,k}.weight, g_norm.weight, g.{weight,bias},
/// block_attn.conv.weight and lepe.{weight,bias}.

#include <span>
#include <string>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/layer/dense.hpp"
#include "mhla/layer/depthwise_convolution.hpp"
#include "mhla/layer/parameters.hpp"
#include "mhla/layer/rows.hpp"
#include "mhla/policy/by_name.hpp"
#include "mhla/policy/grid_partition.hpp"
#include "mhla/policy/mixing_view.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Options of a video layer.
struct VideoOptions {
  Index heads = 12;
  GridShape grid{1};    ///< tokens of a video: frames, rows, columns
  GridShape layout{1};  ///< blocks along each axis
  Index channels = 0;   ///< C; 0 for that of a file
  bool qk_norm = true;  ///< RMSNorm of q and k, over all heads together
  bool gate = false;
  bool lepe = false;
  AnyNormalizer normalizer = NoNormalizer{};  ///< or CrossQuery{1e-6}, as some configurations have
  double feature_eps = 1e-6;
  double norm_eps = 1e-6;
  double rotary_base = 10000;
  /// Softmax attention without features, normaliser, blocks and mixing, as a baseline.
  bool softmax = false;
};

namespace detail {

inline GridShape video_block(const VideoOptions& o) {
  return {o.grid[0] / o.layout[0], o.grid[1] / o.layout[1], o.grid[2] / o.layout[2]};
}

/// Returns the options after checking that they fit each other.
inline const VideoOptions& checked_video_options(const VideoOptions& o) {
  constexpr const char* kName = "VideoLayer";
  for (int axis = 0; axis < 3; ++axis) {
    if (o.grid[axis] < 1 || o.layout[axis] < 1 || o.grid[axis] % o.layout[axis] != 0) {
      fail_option(kName, "layout", "is " + grid_text(o.layout),
                  "one that divides the grid " + grid_text(o.grid));
    }
  }
  expect_positive(kName, "heads", o.heads);
  expect_channels(kName, o.channels);
  if (o.channels % o.heads != 0 || o.channels / o.heads % 2 != 0) {
    fail_option(kName, "channels", "is " + std::to_string(o.channels),
                "an even number for each of the " + std::to_string(o.heads) + " heads");
  }
  expect_not_negative(kName, "norm_eps", o.norm_eps);
  expect_above_zero(kName, "rotary_base", o.rotary_base);
  return o;
}

inline ParameterTable video_table(const VideoOptions& o) {
  const Index c = o.channels;
  const Index m = o.layout[0] * o.layout[1] * o.layout[2];
  ParameterTable table;
  const auto add_dense = [&](const std::string& name) {
    table.add(name + ".weight", {c, c});
    table.add(name + ".bias", {c});
  };
  for (const char* name : {"q", "k", "v", "o"}) add_dense(name);
  if (o.qk_norm) {
    table.add("norm_q.weight", {c});
    table.add("norm_k.weight", {c});
  }
  table.add("g_norm.weight", {c / o.heads});
  if (o.gate) add_dense("g");
  if (!o.softmax) table.add("block_attn.conv.weight", {m, m, 1, 1});
  if (o.lepe) {
    table.add("lepe.weight", {c, 1, 3, 3, 3});
    table.add("lepe.bias", {c});
  }
  return table;
}

/// Where the tensors lie.
struct VideoSlices {
  WeightSlices<DenseView> q, k, v, o;  // [C,C]
  ParameterSlice q_gain, k_gain;       // [C]
  ParameterSlice head_gain;            // [D]
  WeightSlices<DenseView> gate;        // [C,C]
  ParameterSlice mixing;               // [M,M]
  WeightSlices<ConvolutionView> lepe;  // [C,27]

  explicit VideoSlices(const ParameterTable& table)
      : q(table, "q"),
        k(table, "k"),
        v(table, "v"),
        o(table, "o"),
        q_gain(table.place("norm_q.weight")),
        k_gain(table.place("norm_k.weight")),
        head_gain(table.place("g_norm.weight")),
        gate(table, "g"),
        mixing(table.place("block_attn.conv.weight")),
        lepe(table, "lepe") {}
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
