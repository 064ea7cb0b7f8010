#pragma once

/// \file
/// Settings of a model, and of drawing with it.

#include <mhla/core/scalar.hpp>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "../support/attention_names.hpp"

namespace draw_images {

using examples::Attention;
using mhla::Index;

/// Settings of a model.
struct Settings {
  Attention attention = Attention::kMhla;
  Index dim = 64;   ///< C, channels of a token
  Index depth = 4;  ///< blocks
  Index heads = 2;  ///< H of an attention
  Index seed = 1;   ///< of parameters, and of the images, times and noise of every step
};

/// Settings of drawing with a trained model.
struct Drawing {
  Index sets = 3;         ///< of images, each of its own noise: the distance has their spread
  Index images = 1000;    ///< of a set, as many of each class
  Index steps = 25;       ///< of DDIM
  double guidance = 1.5;  ///< 1: none
};

/// \throws std::runtime_error naming the option, what was expected and what came.
inline void expect_valid(const Settings& s, const Drawing& drawing) {
  const auto fail = [](const std::string& option, const std::string& value,
                       const std::string& expected) {
    throw std::runtime_error(option + " is " + value + ", expected " + expected);
  };
  if (s.dim % (4 * s.heads) != 0) {
    fail("--dim", std::to_string(s.dim),
         "a multiple of 4 x --heads, which is " + std::to_string(4 * s.heads));
  }
  if (!(drawing.guidance >= 0 && drawing.guidance <= 100)) {
    fail("--guidance", std::to_string(drawing.guidance), "a number from 0 to 100");
  }
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Settings, attention, dim, depth, heads, seed)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Drawing, sets, images, steps, guidance)

}  // namespace draw_images
