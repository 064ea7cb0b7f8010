#pragma once

/// \file
/// Promises of a product C (+)= A B (kernel/product.hpp), for any function that computes it. Each
/// check takes a `multiply`, which it calls with a detail::Product<A>.
///
/// Every element of C is one chain of multiply-adds over k in ascending order. So its bits do not
/// depend on its place in a tile, on alignment, strides, the order of the rows, or the split of a
/// product into calls.

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "mhla/kernel/product.hpp"
#include "support/chain.hpp"
#include "support/placed.hpp"
#include "support/seeds.hpp"

namespace mhla::test {

/// A product with random numbers, strides, alignments and options. Numbers that it must not read
/// are NaN.
template <class A>
struct ProductCase {
  using Product = detail::Product<A>;
  using Span = detail::ColumnSpan;

  Index rows, cols, depth;
  bool transposed, ordered, scaled, banded;
  detail::Start start;
  Index a_left, b_left, c_left;  // numbers before the first column
  Matrix<A> a_memory, b_memory, c_memory;
  std::vector<A> factors;
  std::vector<Index> order;
  std::vector<Span> spans;

  ProductCase(Random& rng, Index rows_, Index cols_, Index depth_)
      : rows(rows_),
        cols(cols_),
        depth(depth_),
        transposed(rng.chance(0.3)),
        ordered(rng.chance(0.5)),
        scaled(rng.chance(0.5)),
        banded(rng.chance(0.4)),
        start(rng.chance(0.5) ? detail::Start::kZero : detail::Start::kTarget),
        a_left(rng.integer(0, 15)),
        b_left(rng.integer(0, 15)),
        c_left(rng.integer(0, 15)),
        factors(numbers<A>(rng, rows)),
        order(static_cast<std::size_t>(rows)) {
    const auto around = [&rng](Index height, Index width, Index left) {
      return Matrix<A>::Constant(height + 1, left + width + rng.integer(0, 5), kNaN<A>).eval();
    };
    a_memory = transposed ? around(depth, rows, a_left) : around(rows, depth, a_left);
    b_memory = around(depth, cols, b_left);
    const Index below = rng.integer(0, 3);  // rows of C outside the product
    c_memory = rng.matrix<A>(rows + below, c_left + cols + rng.integer(0, 5));
    std::vector<Index> places(static_cast<std::size_t>(rows + below));
    std::iota(places.begin(), places.end(), Index{0});
    for (std::size_t r = 0; r < order.size(); ++r) {
      if (ordered) std::swap(places[r], places[r + rng.bits() % (places.size() - r)]);
      order[r] = places[r];
    }
    const Index kind = rng.integer(0, 3);
    for (Index r = 0; r < rows; ++r) spans.push_back(banded ? span(rng, kind, r) : Span{0, depth});
    for (Index r = 0; r < rows; ++r) {
      const Span range = spans[static_cast<std::size_t>(r)];
      for (Index k = range.begin; k < range.end; ++k)
        left(r, k) = static_cast<A>(rng.uniform(-1, 1));
    }
    b_memory.block(0, b_left, depth, cols) = rng.matrix<A>(depth, cols);
  }

  A& left(Index r, Index k) {
    return transposed ? a_memory(k, a_left + r) : a_memory(r, a_left + k);
  }
  A& right(Index k, Index j) { return b_memory(k, b_left + j); }
  A& target(Matrix<A>& c, Index r, Index j) const {
    return c(order[static_cast<std::size_t>(r)], c_left + j);
  }

  /// Returns the product whose C lies in `c`.
  Product into(Matrix<A>& c) const {
    const Index stride = a_memory.cols();
    return {.out = {c.data() + c_left, c.cols(), ordered ? order.data() : nullptr},
            .a = {a_memory.data() + a_left, rows, depth, transposed ? 1 : stride,
                  transposed ? stride : 1},
            .b = {b_memory.data() + b_left, b_memory.cols()},
            .cols = cols,
            .start = start,
            .factors = scaled ? factors.data() : nullptr,
            .spans = banded ? spans.data() : nullptr};
  }
  /// Memory of C before the product; NaN if the product starts from zero.
  Matrix<A> before() const {
    Matrix<A> c = c_memory;
    for (Index r = 0; r < rows && start == detail::Start::kZero; ++r) {
      for (Index j = 0; j < cols; ++j) target(c, r, j) = kNaN<A>;
    }
    return c;
  }
  /// Memory of C after the product.
  template <class Multiply>
  Matrix<A> after(const Multiply& multiply) const {
    Matrix<A> c = before();
    multiply(into(c));
    return c;
  }
  /// Memory of C after the chains alone.
  Matrix<A> chains() {
    Matrix<A> c = c_memory;
    for (Index r = 0; r < rows; ++r) {
      const auto i = static_cast<std::size_t>(r);
      for (Index j = 0; j < cols; ++j) {
        A& sum = target(c, r, j);
        if (start == detail::Start::kZero) sum = 0;
        for (Index k = spans[i].begin; k < spans[i].end; ++k) {
          sum = step(left(r, k), right(k, j), sum);
        }
        if (scaled) sum *= factors[i];
      }
    }
    return c;
  }
  std::string text() const {
    return detail::shape_text({rows, depth}) + " times " + detail::shape_text({depth, cols}) +
           (transposed ? " transposed" : "") + (ordered ? " ordered" : "") +
           (scaled ? " scaled" : "") + (banded ? " banded" : "") +
           (start == detail::Start::kTarget ? " added" : "");
  }

 private:
  /// Returns any span, a moving window, all earlier columns, or mostly empty spans.
  Span span(Random& rng, Index kind, Index r) const {
    const Index a = rng.integer(0, depth), b = rng.integer(0, depth);
    if (kind == 0) return {std::min(a, b), std::max(a, b)};
    if (kind == 1) return {std::min(7 * r, depth), std::min(7 * r + 5, depth)};
    if (kind == 2) return {0, std::min(r, depth)};
    return {a, rng.chance(0.8) ? a : std::max(a, b)};
  }
};

/// True if all numbers of two memories are the same.
template <class A>
bool same_numbers(const Matrix<A>& a, const Matrix<A>& b) {
  return std::equal(a.data(), a.data() + a.size(), b.data(), b.data() + b.size(), same_number<A>);
}

/// A case of up to 40 rows. A single row is often long; several rows seldom are. A few cases have
/// more rows, and a depth that may exceed what a panel is multiplied by at a time.
template <class A>
ProductCase<A> random_product(Random& rng) {
  const bool deep = rng.chance(0.06);
  const Index rows = deep ? rng.integer(0, 80) : rng.chance(0.2) ? 1 : rng.integer(0, 40);
  const Index depth = deep ? 2 * detail::kDepth<A> + 5 : 70;
  const bool wide = rows == 1 || rng.chance(0.1);
  return {rng, rows, rng.integer(0, wide ? 300 : 70), rng.integer(0, depth)};
}

/// Every element is its chain, and nothing else is read or written.
template <class A, class Multiply>
void expect_chains(const Multiply& multiply) {
  for (const std::uint64_t seed : seeds(1000)) {
    Random rng(seed);
    auto x = random_product<A>(rng);
    ASSERT_TRUE(same_numbers(x.after(multiply), x.chains())) << x.text() << ", seed " << seed;
  }
}

/// The same check for every small number of rows, and for columns around the lengths of packets.
template <class A, class Multiply>
void expect_chains_of_small_shapes(const Multiply& multiply) {
  Random rng(7);
  for (Index rows = 0; rows <= 14; ++rows) {
    for (Index cols = 0; cols <= 70; cols += cols % 8 == 1 && cols > 16 ? 6 : 1) {
      for (Index depth = 0; depth <= 3; ++depth) {
        ProductCase<A> x(rng, rows, cols, depth);
        ASSERT_TRUE(same_numbers(x.after(multiply), x.chains())) << x.text();
      }
    }
  }
}

/// Computes a product in calls for parts of its rows, its columns or its depth.
template <class A, class Multiply>
void multiply_parts(Random& rng, const Multiply& multiply, const detail::Product<A>& all) {
  detail::Product<A> first = all, second = all;
  std::vector<detail::ColumnSpan> spans[2];
  const Index kind = rng.integer(0, 6);
  if (kind == 0) {
    const Index cut = rng.integer(0, all.a.rows);
    first.a = all.a.middle_rows(0, cut);
    second.a = all.a.middle_rows(cut, all.a.rows - cut);
    second.out = all.out.below(cut);
    if (all.factors != nullptr) second.factors += cut;
    if (all.spans != nullptr) second.spans += cut;
  } else if (kind == 1) {
    first.cols = rng.integer(0, all.cols);
    second.cols -= first.cols;
    second.out = all.out.right_of(first.cols);
    second.b = all.b.right_of(first.cols);
  } else if (kind == 2) {
    const Index cut = rng.integer(0, all.a.cols);
    first.factors = nullptr;
    second.start = detail::Start::kTarget;
    if (all.spans == nullptr) {
      first.a.cols = cut;
      second.a = all.a.transposed().middle_rows(cut, all.a.cols - cut).transposed();
      second.b = all.b.below(cut);
    } else {
      for (Index r = 0; r < all.a.rows; ++r) {
        const auto [begin, end] = all.spans[r];
        spans[0].push_back({std::min(begin, cut), std::min(end, cut)});
        spans[1].push_back({std::max(begin, cut), std::max(end, cut)});
      }
      first.spans = spans[0].data();
      second.spans = spans[1].data();
    }
  } else {
    return multiply(all);
  }
  multiply_parts(rng, multiply, first);
  multiply_parts(rng, multiply, second);
}

/// A product split into calls has the bits of one call.
template <class A, class Multiply>
void expect_cuts_change_nothing(const Multiply& multiply) {
  for (const std::uint64_t seed : seeds(500)) {
    Random rng(seed);
    const auto x = random_product<A>(rng);
    Matrix<A> parts = x.before();
    multiply_parts(rng, multiply, x.into(parts));
    ASSERT_TRUE(same_numbers(parts, x.after(multiply))) << x.text() << ", seed " << seed;
  }
}

/// A NaN in A reaches its row of C. A NaN in B reaches its column, in the rows that have its row of
/// B.
template <class A, class Multiply>
void expect_nan_stays(const Multiply& multiply) {
  for (const std::uint64_t seed : seeds(200)) {
    Random rng(seed);
    ProductCase<A> x(rng, rng.integer(1, 20), rng.integer(1, 40), rng.integer(1, 20));
    const Matrix<A> clean = x.after(multiply);
    const Index row = rng.integer(0, x.rows - 1), col = rng.integer(0, x.cols - 1);
    const Index k = rng.integer(0, x.depth - 1);
    x.left(row, k) = x.right(k, col) = kNaN<A>;
    const Matrix<A> touched = x.after(multiply);
    Matrix<A> expected = clean;
    for (Index r = 0; r < x.rows; ++r) {
      const auto [begin, end] = x.spans[static_cast<std::size_t>(r)];
      for (Index j = 0; j < x.cols && k >= begin && k < end; ++j) {
        if (r == row || j == col) x.target(expected, r, j) = kNaN<A>;
      }
    }
    ASSERT_TRUE(same_numbers(touched, expected)) << x.text() << ", seed " << seed;
  }
}

/// Prefetched addresses, readable or not, change no bit.
template <class A, class Multiply>
void expect_prefetch_changes_nothing(const Multiply& multiply) {
  const std::vector<Index> tokens{3, 0, 1'000'000, 3};
  for (const std::uint64_t seed : seeds(100)) {
    Random rng(seed);
    const auto x = random_product<A>(rng);
    detail::Prefetch next(rng.integer(0, 9), tokens.data(), 0, MatrixView<const A>());
    for (Index count = rng.integer(0, 6); count > 0; --count) {
      const Index width = rng.integer(0, 200);
      const MatrixView<const A> rows(x.b_memory.data(), 4, width, rng.integer(-300, 300));
      next.add(tokens.data(), rng.integer(0, 4), rows);
    }
    Matrix<A> c = x.before();
    auto product = x.into(c);
    product.next = &next;
    multiply(product);
    ASSERT_TRUE(same_numbers(c, x.after(multiply))) << x.text() << ", seed " << seed;
  }
}

}  // namespace mhla::test
