#include "cuda/definition.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "cuda/device_memory.hpp"

namespace mhla::cuda_bench {
namespace {

double phi(double x) { return std::max(x, 0.0) + static_cast<double>(1e-6f); }

/// All rows of a head of a dense [B, N, H, width] tensor.
std::vector<Bits> fetch_head(const Bits* tensor, const Call& c, int width, const Row& row) {
  const std::int64_t tokens = c.blocks.tokens();
  std::vector<Bits> numbers(static_cast<std::size_t>(tokens * width));
  const std::size_t bytes = static_cast<std::size_t>(width) * sizeof(Bits);
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

double to_double(Bits bits) {
  return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
}

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

ExactRow exact_row(const std::vector<double>& q, const std::vector<Bits>& k,
                   const std::vector<Bits>& v, const std::vector<double>& coefficient) {
  const std::size_t n = coefficient.size(), d = q.size(), e = v.size() / n;
  std::vector<double> features, sizes(e);
  for (const double x : q) features.push_back(phi(x));
  ExactRow row{std::vector<double>(e), std::vector<double>(e)};
  double sum = 0;
  for (std::size_t j = 0; j < n; ++j) {
    if (coefficient[j] == 0) continue;
    double weight = 0;
    for (std::size_t i = 0; i < d; ++i) weight += features[i] * phi(to_double(k[j * d + i]));
    weight *= coefficient[j];
    sum += weight;
    for (std::size_t i = 0; i < e; ++i) {
      const double value = to_double(v[j * e + i]);
      row.value[i] += weight * value;
      sizes[i] += weight * std::abs(value);
    }
  }
  const double u = 0x1p-8;
  const double chain = static_cast<double>(n + d) * 0x1p-24, growth = chain / (1 - chain);
  const double e_n = std::pow(1 + u, 5) * (1 + growth) - 1;
  const double e_d = std::pow(1 + u, 3) * (1 + growth) - 1;
  for (std::size_t i = 0; i < e; ++i) {
    row.value[i] /= sum;
    const double size = std::abs(row.value[i]);
    const double before = (e_n * sizes[i] / sum + e_d * size) / (1 - e_d);
    row.bound[i] = before + u * (size + before);
  }
  return row;
}

std::vector<ExactRow> exact_rows(const Case& c, const Call& call, const std::vector<float>& mixing,
                                 const std::vector<Row>& rows) {
  const auto n = static_cast<std::size_t>(call.blocks.tokens());
  const std::int64_t m = call.blocks.blocks();
  std::vector<ExactRow> result;
  std::vector<Bits> q, k, v;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const Row& row = rows[r];
    if (r == 0 || row.batch != rows[r - 1].batch || row.head != rows[r - 1].head) {
      q = fetch_head(call.q, call, call.width, row);
      k = fetch_head(call.k, call, call.width, row);
      v = fetch_head(call.v, call, call.values, row);
    }
    std::vector<double> query, coefficient(n);
    for (int i = 0; i < call.width; ++i) {
      query.push_back(to_double(q[static_cast<std::size_t>(row.token * call.width + i)]));
    }
    const std::int64_t row_of_matrix =
        call.blocks.block_of(static_cast<std::int32_t>(row.token)) * m;
    const std::size_t read =
        c.form == Form::kBidirectional ? n : static_cast<std::size_t>(row.token + 1);
    for (std::size_t j = 0; j < read; ++j) {
      const std::int64_t block = call.blocks.block_of(static_cast<std::int32_t>(j));
      coefficient[j] = static_cast<double>(mixing[static_cast<std::size_t>(row_of_matrix + block)]);
    }
    result.push_back(exact_row(query, k, v, coefficient));
  }
  return result;
}

void compare(const ExactRow& exact, const std::vector<Bits>& computed, Deviation& deviation) {
  double error = 0, norm = 0;
  for (std::size_t e = 0; e < exact.value.size(); ++e) {
    const double difference = std::abs(to_double(computed[e]) - exact.value[e]);
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
