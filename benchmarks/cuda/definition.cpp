#include "cuda/definition.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>

#include "cuda/device_memory.hpp"

namespace mhla::cuda_bench {
namespace {

using T = Eigen::bfloat16;

/// All rows of a head of a dense [B, N, H, width] tensor.
Matrix<T> fetch_head(const Bits* tensor, const Call& c, int width, const Row& row) {
  const std::int64_t tokens = c.blocks.tokens();
  Matrix<T> numbers(tokens, width);
  const std::size_t bytes = static_cast<std::size_t>(width) * sizeof(T);
  const auto heads = static_cast<std::size_t>(c.heads);
  const Bits* const begin = tensor + (row.batch * tokens * c.heads + row.head) * width;
  expect_success(cudaMemcpy2D(numbers.data(), bytes, begin, bytes * heads, bytes,
                              static_cast<std::size_t>(tokens), cudaMemcpyDeviceToHost),
                 "cudaMemcpy2D");
  return numbers;
}

/// Returns infinity for NaN, so that NaN counts as the largest error.
double finite(double x) { return std::isfinite(x) ? x : std::numeric_limits<double>::infinity(); }

}  // namespace

bool Deviation::acceptable() const {
  return not_finite == 0 && relative <= kLargestError && over_bound <= 1;
}

std::vector<Row> sample_rows(const Shape& shape) {
  std::mt19937_64 random(7);
  const auto below = [&random](Index n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  const Index last = shape.tokens() - 1, w = shape.block_length();
  std::vector<Row> rows;
  for (int head = 0; head < 4; ++head) {
    const std::int64_t b = head == 0 ? shape.batch - 1 : below(shape.batch);
    const std::int64_t h = head == 0 ? shape.heads - 1 : below(shape.heads);
    for (const Index t : {Index{0}, w - 1, below(last + 1), below(last + 1), last}) {
      rows.push_back({b, h, t});
    }
  }
  return rows;
}

std::vector<ExactRow> exact_rows(const Case& c, const Call& call, const std::vector<float>& mixing,
                                 const std::vector<Row>& rows) {
  const cuda::TokenBlocks& blocks = call.blocks;
  const Grid grid({blocks.frames(), blocks.rows(), blocks.columns()},
                  {blocks.block_frames(), blocks.block_rows(), blocks.block_columns()});
  const double chain = bench::number(blocks.tokens() + call.width) * 0x1p-24;
  const double error = std::pow(1 + 0x1p-8, 5) / (1 - chain) - 1;
  std::vector<ExactRow> result;
  Matrix<T> q, k, v;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const Row& row = rows[r];
    if (r == 0 || row.batch != rows[r - 1].batch || row.head != rows[r - 1].head) {
      q = fetch_head(call.q, call, call.width, row);
      k = fetch_head(call.k, call, call.width, row);
      v = fetch_head(call.v, call, call.values, row);
    }
    const Inputs<T> in{.q = q, .k = k, .v = v};
    const auto coefficient =
        [&, own = blocks.block_of(static_cast<std::int32_t>(row.token))](Index b) {
          return mixing[static_cast<std::size_t>(own * Index{blocks.blocks()} + b)];
        };
    const auto weights = [&](const auto& keys) {
      return bench::weights_of_row(in, row.token, keys, coefficient, Operator{}, 0);
    };
    bench::Weights w = c.form == Form::kBidirectional
                           ? weights(grid)
                           : weights(Contiguous(row.token + 1, blocks.block_columns()));
    std::ranges::fill(w.error, error);
    result.push_back(bench::weigh(w, in.v));
  }
  return result;
}

void compare(const ExactRow& exact, const std::vector<Bits>& computed, Deviation& deviation) {
  double error = 0, norm = 0;
  for (std::size_t e = 0; e < exact.value.size(); ++e) {
    const double difference =
        std::abs(bench::exactly(std::bit_cast<T>(computed[e])) - exact.value[e]);
    error += difference * difference;
    norm += exact.value[e] * exact.value[e];
    deviation.over_bound = std::max(deviation.over_bound, finite(difference / exact.bound[e]));
  }
  deviation.relative = std::max(deviation.relative, finite(std::sqrt(error / norm)));
}

std::vector<Bits> fetch(const Bits* data, std::int64_t count) {
  std::vector<Bits> numbers(static_cast<std::size_t>(count));
  expect_success(
      cudaMemcpy(numbers.data(), data, numbers.size() * sizeof(Bits), cudaMemcpyDeviceToHost),
      "cudaMemcpy");
  return numbers;
}

}  // namespace mhla::cuda_bench
