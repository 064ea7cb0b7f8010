#pragma once

/// \file
/// Text that a model writes token by token, and the cost per token by position.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include "decoder.hpp"

namespace write_text {

/// Draws a byte with the probabilities softmax(logits / temperature).
template <class T>
std::uint8_t draw_byte(mhla::MatrixView<const T> logits, double temperature,
                       examples::Random& random) {
  const T* const row = logits.row(logits.rows - 1);
  const double largest = static_cast<double>(*std::max_element(row, row + kBytes));
  std::vector<double> sums(kBytes);
  double sum = 0;
  for (std::size_t j = 0; j < sums.size(); ++j) {
    sum += std::exp((static_cast<double>(row[j]) - largest) / temperature);
    sums[j] = sum;
  }
  const auto drawn = std::upper_bound(sums.begin(), sums.end(), random.uniform() * sum);
  return static_cast<std::uint8_t>(std::min<std::ptrdiff_t>(drawn - sums.begin(), kBytes - 1));
}

/// Text that the model writes after a prompt, up to `count` bytes with it, at most the context.
template <class T>
std::string write(const Model<T>& model, const std::string& prompt, Index count,
                  double temperature) {
  examples::Random random(static_cast<std::uint64_t>(model.settings().seed));
  Decoder<T> decoder(model);
  std::string written;
  std::uint8_t next = 0;
  for (Index t = 0; t < std::min(count, model.settings().context); ++t) {
    const auto place = static_cast<std::size_t>(t);
    if (place < prompt.size()) next = static_cast<std::uint8_t>(prompt[place]);
    written.push_back(static_cast<char>(next));
    next = draw_byte(decoder.append({&next, 1}), temperature, random);
  }
  return written;
}

/// Cost of a token at a position.
struct TokenCost {
  Index position;
  double microseconds;      ///< median over the last eighth of the context up to position
  std::size_t state_bytes;  ///< bytes of the decoder's state
};

/// Costs at an eighth, a quarter, a half and the end of the context, with one thread.
template <class T>
std::vector<TokenCost> token_costs(const Model<T>& model, Bytes bytes) {
  using Clock = std::chrono::steady_clock;
  const Index context = model.settings().context, part = std::max<Index>(context / 8, 1);
  Decoder<T> decoder(model);
  std::vector<TokenCost> costs;
  std::vector<double> times;
  for (Index t = 0; t < context; ++t) {
    const auto begin = Clock::now();
    decoder.append(bytes.subspan(static_cast<std::size_t>(t), 1));
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    if (const Index seen = t + 1;
        seen == part || seen == 2 * part || seen == 4 * part || seen == context) {
      std::vector<double> last(times.end() - part, times.end());
      std::nth_element(last.begin(), last.begin() + part / 2, last.end());
      costs.push_back({seen, last[static_cast<std::size_t>(part / 2)], decoder.state_bytes()});
    }
  }
  return costs;
}

}  // namespace write_text
