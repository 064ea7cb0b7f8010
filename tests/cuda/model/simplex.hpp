#pragma once

/// \file
/// Linear programs by the simplex method on a dense table, for some hundred variables.

#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <vector>

namespace mhla::cuda::model {

/// The least c.x with A x = b and x >= 0. All that is not zero is given; b >= 0.
class LinearProgram {
 public:
  explicit LinearProgram(std::size_t rows) : b_(rows) {}

  /// Adds a variable. \returns its number
  std::size_t add(double cost) {
    cost_.push_back(cost);
    columns_.emplace_back(b_.size());
    return cost_.size() - 1;
  }
  void set(std::size_t row, std::size_t variable, double a) { columns_[variable][row] += a; }
  double& right(std::size_t row) { return b_[row]; }

  /// Returns x. Rows that cannot be met are left over at a price above all costs.
  /// \throws std::runtime_error if it does not end.
  std::vector<double> solve() const;

 private:
  std::vector<double> b_, cost_;
  std::vector<std::vector<double>> columns_;  // [variable][row]
};

// -------------------------------------------------------------------------------------------------

inline std::vector<double> LinearProgram::solve() const {
  const std::size_t rows = b_.size(), columns = cost_.size();
  constexpr double kPrice = 1e7, kNothing = 1e-9;
  // table[row]: A and b in terms of the basis; the last row: what a variable not in it would cost.
  std::vector<std::vector<double>> table(rows + 1, std::vector<double>(columns + 1));
  std::vector<std::size_t> basis(rows, columns);  // `columns`: left over
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) table[r][c] = columns_[c][r];
    // A little more on each row: no two pivots are as good, so that it cannot run in a circle.
    table[r][columns] = b_[r] + 1e-6 * (1 + static_cast<double>(r) / static_cast<double>(rows));
  }
  std::vector<double>& price = table[rows];
  for (std::size_t c = 0; c < columns; ++c) {
    price[c] = cost_[c];
    for (std::size_t r = 0; r < rows; ++r) price[c] -= kPrice * table[r][c];
  }
  for (std::size_t step = 0; step < 100 * (rows + columns); ++step) {
    std::size_t in = 0;
    for (std::size_t c = 1; c < columns; ++c) in = price[c] < price[in] ? c : in;
    if (price[in] > -1e-6) {
      std::vector<double> x(columns);
      for (std::size_t r = 0; r < rows; ++r) {
        if (basis[r] < columns) x[basis[r]] = table[r][columns];
      }
      return x;
    }
    std::size_t out = rows;
    double least = 0;
    for (std::size_t r = 0; r < rows; ++r) {
      if (table[r][in] < kNothing) continue;
      const double ratio = table[r][columns] / table[r][in];
      if (out == rows || ratio < least) out = r, least = ratio;
    }
    if (out == rows) throw std::runtime_error("linear program: has no least value");
    const double pivot = table[out][in];
    for (double& x : table[out]) x /= pivot;
    for (std::size_t r = 0; r <= rows; ++r) {
      const double factor = r == out ? 0 : table[r][in];
      if (std::abs(factor) < 1e-12) continue;
      for (std::size_t c = 0; c <= columns; ++c) table[r][c] -= factor * table[out][c];
    }
    basis[out] = in;
  }
  throw std::runtime_error("linear program: does not end");
}

}  // namespace mhla::cuda::model
