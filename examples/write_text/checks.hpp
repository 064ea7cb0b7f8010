#pragma once

/// \file
/// The gradient of the whole model against differences of its loss, and what is read token by token
/// against the whole sequence: in double, with small models of random parameters.
///
/// Along a random direction of each tensor (L(p + h) - L(p - h)) / 2h differs from the derivative
/// by h^2 L''' / 6 and by roundings of about 2^-53 L / h.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "decoder.hpp"
#include "training.hpp"

namespace write_text {

inline constexpr double kLargestGradientError = 1e-6;
/// Of logits, in double: roundings are below 1e-12, a fault would be far above.
inline constexpr double kLargestLogitError = 1e-10;

struct GradientError {
  double relative = 0;  ///< largest, over the larger of the derivative and the gradient's norm
  std::string tensor;   ///< where
};

/// A small model whose parameters are no two alike, and a sequence of noise.
struct CheckedModel {
  Model<double> model;
  std::vector<std::uint8_t> bytes;

  explicit CheckedModel(Attention attention)
      : model(
            {.attention = attention, .dim = 16, .depth = 2, .heads = 2, .context = 40, .block = 8}),
        bytes(41) {
    examples::Random random(2);
    for (double& p : model.parameters()) p *= 0.5 + random.uniform();
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.below(kBytes));
  }
};

inline GradientError check_gradient(Attention attention) {
  constexpr double kStep = 1e-7;  // norms of heads near 0 bend within more
  CheckedModel checked(attention);
  Model<double>& model = checked.model;
  Workers<double> workers(model.settings(), 1);
  const std::vector<Bytes> sequences{checked.bytes};
  std::vector<double> gradient(model.parameters().size());
  workers.learn(model, sequences, std::span<double>(gradient));
  examples::Random random(3);
  const auto loss = [&] { return workers.evaluate(model, sequences) * std::numbers::ln2; };

  GradientError worst;
  for (const mhla::Parameter& p : model.layout().table().all()) {
    const auto numbers = p.place().numbers(model.parameters());
    const auto slopes = p.place().numbers(std::span<const double>(gradient));
    const std::vector<double> before(numbers.begin(), numbers.end());
    std::vector<double> direction(before.size());
    double derivative = 0;
    for (std::size_t i = 0; i < direction.size(); ++i) {
      const Index row = static_cast<Index>(i) / p.place().cols;
      const Index col = static_cast<Index>(i) % p.place().cols;
      direction[i] = is_mixing(p) && col > row ? 0 : random.normal();  // the triangle that is read
      derivative += direction[i] * slopes[i];
    }
    const auto loss_at = [&](double h) {
      for (std::size_t i = 0; i < before.size(); ++i) numbers[i] = before[i] + h * direction[i];
      return loss();
    };
    const double difference = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    std::copy(before.begin(), before.end(), numbers.begin());
    const double norm = Eigen::Map<const Eigen::VectorXd>(slopes.data(), p.size).norm();
    const double error = std::abs(difference - derivative) / std::max(std::abs(difference), norm);
    if (!(error <= worst.relative)) worst = {error, p.name};
  }
  return worst;
}

/// The largest difference of the logits, over the largest logit: of a sequence byte by byte, and of
/// the whole.
template <class T>
double streaming_error(const Model<T>& model, Bytes bytes) {
  CausalAttention<T> attention(model.settings());
  Activations<T> whole(model.settings(), std::ssize(bytes));
  forward(model, bytes, attention, whole);
  Decoder<T> decoder(model);
  const auto expected = whole.logits.rows(std::ssize(bytes));
  double error = 0, largest = 0;
  for (Index t = 0; t < expected.rows; ++t) {
    const auto logits = decoder.append(bytes.subspan(static_cast<std::size_t>(t), 1));
    for (Index j = 0; j < kBytes; ++j) {
      error = std::max(error, std::abs(static_cast<double>(logits(0, j) - expected(t, j))));
      largest = std::max(largest, std::abs(static_cast<double>(expected(t, j))));
    }
  }
  return error / largest;
}

inline double check_streaming(Attention attention) {
  const CheckedModel checked(attention);
  return streaming_error(checked.model, Bytes(checked.bytes).first(40));
}

}  // namespace write_text
