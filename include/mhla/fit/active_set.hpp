#pragma once

/// \file
/// The active set of nonnegative least squares (nonnegative.hpp). It has the entries that may be
/// more than 0, a Cholesky factor that grows with them, and the choice of the next entry.
///
/// Every step lowers the residual, so the iteration ends. Cost: P n per step with P free entries,
/// and P^2 for its minimum; P^3 / 3 after an entry has returned to 0.

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/kernel/packet.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// `free_` lists the entries that may be more than 0. `factor_` is the Cholesky factor of their
/// part of G + shift w w^T. The shift moves no minimum among x with w^T x = 1. It makes the matrix
/// regular where this sum alone determines x.
class NonnegativeSolver {
 public:
  NonnegativeSolver(MatrixView<const double> gram, std::span<const double> right,
                    std::span<const double> weights)
      : gram_(gram),
        right_(right.data()),
        n_(gram.rows),
        weights_(weights),
        x_(right.size()),
        useless_(right.size()),
        banned_(right.size()),
        factor_(n_, n_) {
    double trace = 0, squares = 0;
    for (Index j = 0; j < n_; ++j) trace += gram(j, j);
    for (const double w : weights) squares += w * w;
    if (fixed()) shift_ = trace > 0 ? trace / squares : 1;
  }

  const std::vector<double>& x() const { return x_; }
  Index nonzeros() const { return static_cast<Index>(free_.size()); }

  /// Minimises over the entries that are not banned, starting from the previous x.
  void solve() {
    start();
    while (true) {
      const Index entering = steepest();
      if (entering < 0) return;
      const std::vector<double> x = x_;
      const std::vector<Index> free = free_;
      const double objective = this->objective();
      useless_[at(entering)] = true;  // unless it lowers the residual
      if (!append(entering)) continue;
      descend();
      if (this->objective() < objective) {
        useless_ = banned_;
      } else {
        x_ = x;
        refactor(free);
      }
    }
  }

  /// Bans free entries until `most` are left, each time the one whose removal raises the residual
  /// least. Their inverse matrix changes with each removal. A removal that would make entries
  /// negative, or an entry worth freeing, is followed by solve().
  void prune(Index most) {
    while (nonzeros() > most) {
      Matrix<double> inverse = this->inverse();
      while (nonzeros() > most && remove_cheapest(inverse)) {
      }
      solve();  // exactly
    }
  }

 private:
  static std::size_t at(Index j) { return static_cast<std::size_t>(j); }
  bool fixed() const { return !weights_.empty(); }
  double weight(Index j) const { return fixed() ? weights_[at(j)] : 0; }
  /// An element of G + shift w w^T.
  double shifted(Index i, Index j) const { return gram_(i, j) + shift_ * weight(i) * weight(j); }
  /// w^T y of values at the free entries.
  double weighted_sum(const std::vector<double>& y) const {
    double sum = 0;
    for (std::size_t p = 0; p < y.size(); ++p) sum += weight(free_[p]) * y[p];
    return sum;
  }

  /// Returns the inverse of the part of G + shift w w^T of the free entries.
  Matrix<double> inverse() const {
    Matrix<double> all(nonzeros(), nonzeros());
    for (Index p = 0; p < all.rows(); ++p) {
      const Index unit = free_[at(p)];
      const std::vector<double> row = solved([&](Index j) { return j == unit ? 1.0 : 0.0; });
      std::copy(row.begin(), row.end(), &all(p, 0));
    }
    return all;
  }

  /// Bans the free entry whose removal raises the residual least, and moves x to the minimum.
  /// \param inverse  Inverse of the free entries in its first rows and columns.
  /// \return false if x has not moved, or is not the minimum of all entries that are not banned
  bool remove_cheapest(Matrix<double>& inverse) {
    const Index count = nonzeros(), last = count - 1;
    Index positive = 0;  // positive weights: the last must stay
    for (Index j = 0; j < n_; ++j) positive += !banned_[at(j)] && weight(j) > 0;
    std::vector<double> x(free_.size()), along(free_.size());  // along: inverse w
    for (Index p = 0; p < count; ++p) {
      x[at(p)] = x_[at(free_[at(p)])];
      if (fixed()) add_scaled(weight(free_[at(p)]), &inverse(p, 0), along.data(), count);
    }
    const double squares = weighted_sum(along);
    // The inverse among entries with the same w^T x.
    const auto within = [&](Index p, Index q) {
      return inverse(p, q) - (fixed() ? along[at(p)] * (along[at(q)] / squares) : 0);
    };
    Index cheapest = -1;
    double least = 0;
    for (Index p = 0; p < count; ++p) {
      if (positive == 1 && weight(free_[at(p)]) > 0) continue;
      const double cost = x[at(p)] * x[at(p)] / within(p, p);
      if (cheapest < 0 || cost < least) least = cost, cheapest = p;
    }
    banned_[at(free_[at(cheapest)])] = true;
    const double step = x[at(cheapest)] / within(cheapest, cheapest);
    x[at(cheapest)] = 0;
    for (Index p = 0; p < count; ++p) {
      if (p == cheapest) continue;
      x[at(p)] -= within(p, cheapest) * step;
      if (!(x[at(p)] > 0)) return false;
    }
    for (Index p = 0; p < count; ++p) x_[at(free_[at(p)])] = x[at(p)];
    // The entry changes places with the last one, and leaves.
    std::swap(free_[at(cheapest)], free_.back());
    free_.pop_back();
    for (Index p = 0; p < count; ++p) std::swap(inverse(cheapest, p), inverse(last, p));
    for (Index p = 0; p < count; ++p) std::swap(inverse(p, cheapest), inverse(p, last));
    for (Index p = 0; p < last; ++p) {
      add_scaled(-inverse(p, last) / inverse(last, last), &inverse(last, 0), &inverse(p, 0), last);
    }
    useless_ = banned_;
    return steepest() < 0;
  }

  /// Row j of G times x.
  double times_x(Index j) const {
    double sum = 0;
    for (const Index k : free_) sum += gram_(j, k) * x_[at(k)];
    return sum;
  }
  double objective() const {
    double sum = 0;
    for (const Index j : free_) sum += x_[at(j)] * (times_x(j) - 2 * right_[j]);
    return sum;
  }

  /// Starts from the previous x without banned entries: makes it feasible and minimises over it.
  void start() {
    useless_ = banned_;
    std::vector<Index> free;
    double sum = 0;
    for (const Index j : free_) {
      if (banned_[at(j)]) x_[at(j)] = 0;
      if (x_[at(j)] > 0) free.push_back(j), sum += weight(j) * x_[at(j)];
    }
    if (fixed() && !(sum > 0)) {  // start with the best single entry
      for (const Index j : free) x_[at(j)] = 0;
      free.clear();
      const auto objective = [this](Index j) {
        return (gram_(j, j) / weight(j) - 2 * right_[j]) / weight(j);
      };
      for (Index j = 0; j < n_; ++j) {
        if (banned_[at(j)] || !(weight(j) > 0)) continue;
        if (free.empty()) free.push_back(j);
        if (objective(j) < objective(free[0])) free[0] = j;
      }
      x_[at(free[0])] = 1 / weight(free[0]);
      sum = 1;
    }
    for (const Index j : free) x_[at(j)] /= fixed() ? sum : 1;
    refactor(free);
    descend();
  }

  /// Returns the zero entry along which the residual falls fastest, or -1 if it falls along none by
  /// more than rounding. Where w^T x is fixed, x_j grows at the cost of all others, in proportion.
  Index steepest() const {
    double common = 0;
    for (const Index j : free_) common += fixed() ? x_[at(j)] * (times_x(j) - right_[j]) : 0;
    Index entering = -1;
    double least = 0;
    for (Index j = 0; j < n_; ++j) {
      if (useless_[at(j)] || x_[at(j)] > 0) continue;
      const double product = times_x(j), others = weight(j) * common;
      const double slope = product - right_[j] - others;
      const double rounding = 4 * static_cast<double>(n_) * std::numeric_limits<double>::epsilon() *
                              (std::abs(product) + std::abs(right_[j]) + std::abs(others));
      if (slope < least && slope < -rounding) least = slope, entering = j;
    }
    return entering;
  }

  /// Frees entry j.
  /// \return false if its column depends on other free columns; entry j then stays 0
  bool append(Index j) {
    const Index p = nonzeros();
    double* const row = &factor_(p, 0);
    double pivot = shifted(j, j);
    const double negligible =
        4 * static_cast<double>(n_) * std::numeric_limits<double>::epsilon() * pivot;
    for (Index r = 0; r < p; ++r) {
      double sum = shifted(free_[at(r)], j);
      for (Index k = 0; k < r; ++k) sum -= factor_(r, k) * row[k];
      row[r] = sum / factor_(r, r);
      pivot -= row[r] * row[r];
    }
    if (!(pivot > negligible)) return false;
    row[p] = std::sqrt(pivot);
    free_.push_back(j);
    return true;
  }
  /// Frees these entries and no others. Entries that depend on earlier ones become 0.
  void refactor(const std::vector<Index>& free) {
    free_.clear();
    for (const Index j : free) {
      if (!append(j)) x_[at(j)] = 0;
    }
  }

  /// Returns (L L^T)^-1 times the values of f at the free entries.
  template <class F>
  std::vector<double> solved(F&& f) const {
    const Index p = nonzeros();
    std::vector<double> y(free_.size());
    for (Index r = 0; r < p; ++r) {
      double sum = f(free_[at(r)]);
      for (Index k = 0; k < r; ++k) sum -= factor_(r, k) * y[at(k)];
      y[at(r)] = sum / factor_(r, r);
    }
    for (Index r = p - 1; r >= 0; --r) {
      for (Index k = r + 1; k < p; ++k) y[at(r)] -= factor_(k, r) * y[at(k)];
      y[at(r)] /= factor_(r, r);
    }
    return y;
  }

  /// Returns the minimum over the free entries, of any sign.
  std::vector<double> minimum() const {
    std::vector<double> x = solved([this](Index j) { return right_[j]; });
    if (!fixed()) return x;
    const std::vector<double> along = solved([this](Index j) { return weight(j); });
    const double step = (1 - weighted_sum(x)) / weighted_sum(along);
    for (std::size_t p = 0; p < x.size(); ++p) x[p] += step * along[p];
    return x;
  }

  /// Moves x to this minimum, or until the first entry reaches 0. Entries at 0 leave the free set,
  /// and the move is repeated.
  void descend() {
    while (!free_.empty()) {
      const std::vector<double> to = minimum();
      double step = 1;
      std::size_t first = to.size();  // first entry to reach 0
      for (std::size_t p = 0; p < to.size(); ++p) {
        const double from = x_[at(free_[p])];
        if (to[p] > 0 || from > step * (from - to[p])) continue;
        step = from > 0 ? from / (from - to[p]) : 0;
        first = p;
      }
      std::vector<Index> left;
      for (std::size_t p = 0; p < to.size(); ++p) {
        double& x = x_[at(free_[p])];
        x = first == to.size() ? to[p] : p == first ? 0 : std::max(0.0, x + step * (to[p] - x));
        if (x > 0) left.push_back(free_[p]);
      }
      if (first == to.size()) return;
      refactor(left);
    }
  }

  MatrixView<const double> gram_;
  const double* right_;
  Index n_;
  std::span<const double> weights_;
  double shift_ = 0;
  std::vector<double> x_;      // [n]
  std::vector<bool> useless_;  // banned, or freed in vain from this x
  std::vector<bool> banned_;
  std::vector<Index> free_;
  Matrix<double> factor_;  // [n,n], lower triangle, rows as in free_
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
