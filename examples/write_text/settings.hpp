#pragma once

/// \file
/// What makes a language model and its training.

#include <mhla/core/scalar.hpp>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "../support/attention_names.hpp"

namespace write_text {

using examples::Attention;
using examples::MixingStart;
using mhla::Index;

constexpr Index kBytes = 256;  // what a token can be

/// Of a model. The block and what is said of mixing have an effect on MHLA alone.
struct Settings {
  Attention attention = Attention::kMhla;
  Index dim = 128;                                   ///< C, channels of a token
  Index depth = 4;                                   ///< layers of attention and perceptron
  Index heads = 2;                                   ///< H
  Index context = 2048;                              ///< N, bytes that a sequence has
  Index block = 64;                                  ///< W, tokens of a block
  MixingStart mixing_start = MixingStart::kUniform;  ///< as in the released language layer
  bool freeze_mixing = false;
  Index seed = 1;

  Index width() const { return dim / heads; }                     ///< D and E of a head
  Index hidden() const { return (8 * dim / 3 + 31) / 32 * 32; }   ///< of the perceptron
  Index blocks() const { return (context + block - 1) / block; }  ///< M
};

struct Schedule {
  Index steps = 800;
  Index batch = 4;             ///< sequences of a step
  double rate = 3e-3;          ///< largest learning rate
  double warm_up = 0.05;       ///< fraction of all steps in which the rate grows from 0
  double weight_decay = 0.05;  ///< of the weights of products
  double gradient_norm = 1;    ///< longer gradients are scaled to it
};

/// \throws std::runtime_error naming the option, what was expected and what came.
inline void expect_valid(const Settings& s, const Schedule& schedule) {
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
  if (!(schedule.rate > 0 && schedule.rate <= 1)) {
    fail("--rate", std::to_string(schedule.rate), "a number above 0, at most 1");
  }
}

inline nlohmann::json to_json(const Settings& s) {
  return {{"attention", examples::name_of(examples::kAttentions, s.attention)},
          {"dim", s.dim},
          {"depth", s.depth},
          {"heads", s.heads},
          {"context", s.context},
          {"block", s.block},
          {"init", examples::name_of(examples::kMixingStarts, s.mixing_start)},
          {"freeze_mixing", s.freeze_mixing},
          {"seed", s.seed}};
}

inline nlohmann::json to_json(const Schedule& s) {
  return {{"steps", s.steps},
          {"batch", s.batch},
          {"rate", s.rate},
          {"warm_up", s.warm_up},
          {"weight_decay", s.weight_decay},
          {"gradient_norm", s.gradient_norm}};
}

}  // namespace write_text
