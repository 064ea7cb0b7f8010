#pragma once

/// \file
/// Checks in double, with small models of random parameters: the gradient of the whole model
/// against differences of its loss, and logits token by token against the whole sequence.

#include <algorithm>
#include <cmath>
#include <mhla/distributed/thread_ranks.hpp>
#include <vector>

#include "../support/gradient_check.hpp"
#include "decoder.hpp"
#include "workers.hpp"

namespace write_text {

/// Largest allowed error of logits in double. Roundings are below 1e-12, faults far above.
inline constexpr double kLargestLogitError = 1e-10;

/// A small model whose parameters all differ, and a sequence of noise.
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

inline examples::GradientError check_gradient(Attention attention) {
  CheckedModel checked(attention);
  Model<double>& model = checked.model;
  Workers<double> workers(model.settings(), 1);
  const std::vector<Bytes> sequences{checked.bytes};
  std::vector<double> gradient(model.parameters().size());
  mhla::distributed::run_ranks(
      1, [&](auto& alone) { workers.learn(alone, model, sequences, std::span(gradient)); });
  const std::vector<double> row(model.parameters().begin(), model.parameters().end());
  return examples::gradient_error(trained_tensors(model.layout(), model.settings()), row, gradient,
                                  1e-6, [&](std::span<const double> parameters) {
                                    std::ranges::copy(parameters, model.parameters().begin());
                                    return workers.evaluate(model, sequences) * std::numbers::ln2;
                                  });
}

/// Largest difference between logits byte by byte and logits of the whole sequence, over the
/// largest logit.
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
