#pragma once

/// \file
/// Settings of a language model.

#include <mhla/core/scalar.hpp>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "../support/attention_names.hpp"

namespace write_text {

using examples::Attention;
using examples::MixingStart;
using mhla::Index;

constexpr Index kBytes = 256;  // number of different tokens

/// Settings of a model. Settings of blocks and mixing have an effect on MHLA alone.
struct Settings {
  Attention attention = Attention::kMhla;
  Index dim = 128;                           ///< C, channels of a token
  Index depth = 4;                           ///< layers of attention and perceptron
  Index heads = 2;                           ///< H
  Index context = 2048;                      ///< N, bytes that a sequence has
  Index block = 64;                          ///< W, tokens of a block
  MixingStart init = MixingStart::kUniform;  ///< of mixing, as in the released language layer
  bool freeze_mixing = false;
  Index seed = 1;

  Index width() const { return dim / heads; }                     ///< D and E of a head
  Index hidden() const { return (8 * dim / 3 + 31) / 32 * 32; }   ///< of the perceptron
  Index blocks() const { return (context + block - 1) / block; }  ///< M
};

/// \throws std::runtime_error naming the option, what was expected and what came.
inline void expect_valid(const Settings& s) {
  const auto fail = [](const std::string& option, const std::string& value,
                       const std::string& expected) {
    throw std::runtime_error(option + " is " + value + ", expected " + expected);
  };
  if (s.dim % (2 * s.heads) != 0) {
    fail("--heads", std::to_string(s.heads),
         "heads of an even width of --dim, which is " + std::to_string(s.dim));
  }
  if (s.block > s.context) {
    fail("--block", std::to_string(s.block), "at most --context, " + std::to_string(s.context));
  }
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Settings, attention, dim, depth, heads, context, block, init,
                                   freeze_mixing, seed)

}  // namespace write_text
