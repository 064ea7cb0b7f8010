#pragma once

/// \file
/// Initial values of a tensor: the numbers that training begins with, as data.
///
///     g.tensor("norm.weight", {c}, Initial::ones());
///     g.dense("up", {hidden, c});                     // uniform in +-1/sqrt(c), like its bias
///     layer.initialize(seed);                         // sets all tensors of a layer
///
/// Random numbers are those of splitmix64, of sums and products that every machine rounds alike.
/// Sources: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014; the
/// modules of PyTorch and of the released models of arXiv:2601.07832.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/policy/distance_mixing.hpp"
#include "mhla/policy/grid_partition.hpp"
#include "mhla/policy/locality.hpp"
#include "mhla/policy/mixing_matrix.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// A rule for the initial values of a tensor.
struct Initial {
  enum class Rule {
    kZeros,
    kOnes,
    kUniform,
    kNormal,
    kIdentity,
    kLocality,
    kUniformCausal,
    kDistanceLocality
  };

  Rule rule = Rule::kZeros;
  Index terms = 0;      ///< of kUniform and kNormal
  GridShape blocks{1};  ///< of kLocality; offsets of kDistanceLocality

  static constexpr Initial zeros() { return {}; }
  static constexpr Initial ones() { return {.rule = Rule::kOnes}; }
  /// Uniform numbers in [-b, b), b = 1 / sqrt(terms), as PyTorch draws weights and biases.
  /// \param terms  of an output's sum; 0 for the numbers of the tensor per output
  static constexpr Initial uniform(Index terms = 0) {
    return {.rule = Rule::kUniform, .terms = terms};
  }
  /// Numbers of mean 0 and deviation 1 / sqrt(terms), at most 6 deviations large.
  static constexpr Initial normal(Index terms) { return {.rule = Rule::kNormal, .terms = terms}; }
  /// Weights of a dense layer [O,I] or of a depthwise convolution [C,1,...] that changes nothing.
  static constexpr Initial identity() { return {.rule = Rule::kIdentity}; }
  /// The authors' mixing matrix [M,M,...], or one per head, [H,M,M]: locality(blocks) of which each
  /// column sums to 1.
  static constexpr Initial locality(GridShape blocks) {
    return {.rule = Rule::kLocality, .blocks = blocks};
  }
  /// The same of the authors' language layer: uniform_causal(M).
  static constexpr Initial uniform_causal() { return {.rule = Rule::kUniformCausal}; }

  /// Tables of coefficients by offset [H,...], one per head or one in all: distance_locality.
  static constexpr Initial distance_locality(GridShape offsets) {
    return {.rule = Rule::kDistanceLocality, .blocks = offsets};
  }

  friend constexpr bool operator==(const Initial&, const Initial&) = default;
  /// Returns the rule in words, such as "uniform 1/sqrt(64)".
  std::string text() const;
  /// Returns whether the rule can fill a tensor. All rules fit a tensor without numbers.
  bool fits(const std::vector<Index>& shape) const;
};

// ------------------------------------------------------------------------------------------------

inline std::string Initial::text() const {
  constexpr const char* kWords[] = {"zeros",    "ones",     "uniform",        "normal",
                                    "identity", "locality", "uniform_causal", "distance_locality"};
  const std::string word = kWords[static_cast<int>(rule)];
  return terms == 0 ? word : word + " 1/sqrt(" + std::to_string(terms) + ")";
}

namespace detail {

/// Blocks of a mixing matrix [M,M,...] or [H,M,M].
inline Index mixing_blocks(const std::vector<Index>& shape) {
  return shape[shape.size() == 3 ? 1 : 0];
}

/// Random numbers of a seed.
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}

  /// Returns a multiple of 2^-52 in [-1, 1).
  double uniform() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1;
  }
  /// Returns half of the sum of 12 uniform numbers, which has a variance of 1.
  double normal() {
    double sum = 0;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum / 2;
  }

 private:
  std::uint64_t state_;
};

/// Writes the initial values of a tensor.
template <Accumulator A>
void set_initial(const Initial& initial, const std::vector<Index>& shape, SplitMix64& random,
                 std::span<A> numbers) {
  if (numbers.empty()) return;
  using Rule = Initial::Rule;
  const auto draw = [&](double (SplitMix64::*next)()) {
    const double scale = 1 / std::sqrt(static_cast<double>(initial.terms));
    for (A& number : numbers) number = static_cast<A>(scale * (random.*next)());
  };
  const bool dense = shape.size() == 2;
  const Index cols = shape.empty() ? 1 : std::ssize(numbers) / shape[0];
  const auto copies_of = [&](const MixingMatrix<A>& mixing) {
    const Matrix<A> one = mixing.dense();
    for (auto to = numbers.begin(); to != numbers.end(); to += one.size()) {
      std::copy_n(one.data(), one.size(), to);
    }
  };
  std::ranges::fill(numbers, A(initial.rule == Rule::kOnes ? 1 : 0));
  switch (initial.rule) {
    case Rule::kZeros:
    case Rule::kOnes:
      break;
    case Rule::kUniform:
      draw(&SplitMix64::uniform);
      break;
    case Rule::kNormal:
      draw(&SplitMix64::normal);
      break;
    case Rule::kIdentity:
      for (Index r = 0; r < (dense ? std::min(shape[0], cols) : shape[0]); ++r) {
        numbers[static_cast<std::size_t>(r * cols + (dense ? r : cols / 2))] = 1;
      }
      break;
    case Rule::kLocality:
      copies_of(locality<A>(initial.blocks, {.sum_to_one = SumToOne::kColumns}));
      break;
    case Rule::kUniformCausal:
      copies_of(uniform_causal<A>(mixing_blocks(shape)));
      break;
    case Rule::kDistanceLocality:
      std::ranges::copy(mhla::distance_locality<A>(initial.blocks, {}, shape[0]).storage(),
                        numbers.begin());
      break;
  }
}

}  // namespace detail

inline bool Initial::fits(const std::vector<Index>& shape) const {
  if (std::ranges::count(shape, 0) > 0) return true;  // there are no numbers
  switch (rule) {
    case Rule::kZeros:
    case Rule::kOnes:
      return true;
    case Rule::kUniform:
    case Rule::kNormal:
      return terms > 0;
    case Rule::kIdentity:
      return shape.size() >= 2;
    case Rule::kDistanceLocality:
      return shape.size() == 4 && std::ranges::equal(blocks.sizes, std::span(shape).subspan(1));
    case Rule::kLocality:
    case Rule::kUniformCausal:
      break;
  }
  if (shape.size() < 2) return false;
  const Index m = detail::mixing_blocks(shape);
  if (shape[shape.size() == 3 ? 2 : 1] != m) return false;
  return rule == Rule::kUniformCausal || blocks[0] * blocks[1] * blocks[2] == m;
}

}  // namespace MHLA_TARGET
}  // namespace mhla
