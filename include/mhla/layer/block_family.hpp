#pragma once

/// \file
/// Helpers of families of blocks (block_body.hpp).
///
/// A family has the types Scalar, Options, Attention and FeedForward (bodies), Norm and Condition
/// (parts). It has the names kName, kBackwardName and kOutput, and the prefixes of its parts. Its
/// functions make the parts from the options. An example is in vision_block.hpp.

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/scalar.hpp"
#include "mhla/layer/rows.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Position of a block's convolution, if its options enable one.
enum class BlockConvolution { kNever, kFirst, kLast };

/// Prefixes of the parameters of a block's parts.
struct BlockPrefixes {
  const char *attention_norm, *attention, *feed_forward_norm, *feed_forward;
  const char* condition = "";
  const char* convolution = "";
  std::array<std::string_view, 2> others{};  // of tensors of the whole model's block
};

/// Returns the options of a block that all families have, after checking that they fit each other.
template <class Options>
const Options& checked_block_options(const char* function, const Options& o) {
  expect_channels(function, o.channels);
  expect_not_negative(function, "norm_eps", o.norm_eps);
  return o;
}

/// Returns the options of a block's attention, with the block's channels.
template <class Options>
auto block_attention_options(const char* function, const Options& o) {
  auto attention = o.attention;
  if (attention.channels != 0 && attention.channels != o.channels) {
    fail_option(function, "attention.channels", "is " + std::to_string(attention.channels),
                "0, or the " + std::to_string(o.channels) + " channels of the block");
  }
  attention.channels = o.channels;
  return attention;
}

/// Returns the width of a feed-forward part.
/// \param fallback  width if the option is 0
inline Index block_hidden(const char* function, Index hidden, Index fallback) {
  if (hidden < 0) {
    fail_option(function, "hidden", "is " + std::to_string(hidden),
                "0 for " + std::to_string(fallback) + ", or more");
  }
  return hidden == 0 ? fallback : hidden;
}

/// Returns the mix of a block's image.
/// \param places  rows of its tokens, as those of the attention
template <class MixBody, class Options>
MixBody block_mix(const Options& o, std::vector<Index> places) {
  return MixBody({.tokens = o.attention.tokens,
                  .places = std::move(places),
                  .channels = o.channels,
                  .hidden = o.hidden});
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
