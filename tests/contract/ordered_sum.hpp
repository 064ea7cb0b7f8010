#pragma once

/// \file
/// Promises of the sum over ranks: the bits of one rank, the stated bytes, and an error on all
/// ranks for a fault on one rank. Ranks is as in ranks.hpp.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "mhla/distributed/ordered_sum.hpp"
#include "support/counted_rank.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"
#include "support/rank_problem.hpp"

namespace mhla::test {

/// Numbers whose sum depends on their order.
template <class A>
Matrix<A> rows_of_any_size(Index rows, Index columns, std::uint64_t seed) {
  Random rng(seed);
  Matrix<A> m(rows, columns);
  for (A& x : m.reshaped()) x = static_cast<A>(rng.uniform(-1, 1) * std::exp2(rng.integer(-9, 9)));
  return m;
}

/// \param padding  columns of the array after its rows
template <class A, class C>
void expect_sum_of_one_rank(C& comm, const std::vector<Index>& first, Index columns,
                            Index padding) {
  const Index n = first.back();
  const Matrix<A> all = rows_of_any_size<A>(n, columns, static_cast<std::uint64_t>(n + columns));
  Matrix<A> expected = Matrix<A>::Zero(1, columns);
  for (Index i = 0; i < n; ++i) expected += all.row(i);

  const auto r = static_cast<std::size_t>(comm.rank());
  Matrix<A> local = Matrix<A>::Constant(n, columns + padding, std::numeric_limits<A>::quiet_NaN());
  const Index count = first[r + 1] - first[r];
  local.block(first[r], 0, count, columns) = all.middleRows(first[r], count);
  Matrix<A> sum = Matrix<A>::Constant(1, columns, A(7));
  distributed::ordered_sum(comm, MatrixView<A>(local.data(), n, columns, columns + padding),
                           std::span(first), std::span<A>(sum.data(), sum.data() + columns));
  for (Index j = 0; j < columns; ++j) {
    ASSERT_EQ(sum(j), expected(j)) << "column " << j << " of " << n << " rows, rank " << r;
  }
}

template <class Ranks>
class OrderedSumContract : public testing::Test {};
TYPED_TEST_SUITE_P(OrderedSumContract);

TYPED_TEST_P(OrderedSumContract, HasTheBitsOfOneRankForAnySplit) {
  TypeParam::run([](auto& comm) {
    Random rng(1);
    for (const Index n : {0, 1, 2, 5, 13}) {
      for (const Index columns : {0, 1, 3, 10, 2500}) {
        const auto first = random_split(rng, n, comm.size());
        expect_sum_of_one_rank<float>(comm, first, columns, 0);
        expect_sum_of_one_rank<double>(comm, first, columns, 3);
      }
    }
  });
}

TYPED_TEST_P(OrderedSumContract, MovesWhatItSays) {
  TypeParam::run([](auto& comm) {
    const Index size = comm.size(), columns = 10 * size;
    CountedRank counted(comm);
    expect_sum_of_one_rank<float>(counted, distributed::even_split(size, size), columns, 0);
    const Index bytes = 2 * columns * (size - 1) / size * Index{sizeof(float)};
    EXPECT_EQ(counted.sent, bytes);
    EXPECT_EQ(counted.received, bytes);
  });
}

TYPED_TEST_P(OrderedSumContract, WhatOneRankHasWrongIsAnErrorOnAll) {
  TypeParam::run([](auto& comm) {
    const Index last = comm.size() - 1, n = comm.size();
    const std::string on = " on rank " + std::to_string(last);
    // The last rank calls with right arguments that change(rows, first, sum) has changed.
    const auto message = [&](auto&& change) {
      Matrix<float> memory = Matrix<float>::Ones(n + 1, 4), total(1, 4);
      total.setConstant(7);
      MatrixView<float> rows(memory.data(), n, 3, 4);
      std::vector<Index> first = distributed::even_split(n, comm.size());
      std::span<float> sum(total.data(), 3);
      if (comm.rank() == last) change(rows, first, sum);
      const std::string said = message_of<error>(
          [&] { distributed::ordered_sum(comm, rows, std::span<const Index>(first), sum); });
      EXPECT_TRUE((total.array() == 7).all()) << said;
      return said;
    };
    const std::string here = "mhla::distributed::ordered_sum: ";
    const auto expect_refused = [&](auto&& change, const std::string& why) {
      const std::string refusal = here + why;
      EXPECT_EQ(message(change), comm.rank() == last
                                     ? refusal
                                     : here + "arguments were refused" + on + " (" + refusal +
                                           "), expected what every rank takes");
    };
    using Rows = MatrixView<float>;
    using First = std::vector<Index>;
    using Sum = std::span<float>;
    expect_refused([](Rows& rows, First&, Sum&) { rows.row_stride = 2; },
                   "rows has strides [2, 1], expected [3, 1], or more from row to row");
    expect_refused([](Rows& rows, First&, Sum&) { rows.col_stride = 2; },
                   "rows has strides [4, 2], expected [3, 1], or more from row to row");
    expect_refused(
        [](Rows& rows, First&, Sum&) { rows.data = nullptr; },
        "rows is null with shape [" + std::to_string(n) + ", 3], expected a pointer to data");
    expect_refused([](Rows&, First&, Sum& sum) { sum = sum.first(2); },
                   "sum has shape [2], expected [3] as a row of rows");
    expect_refused([](Rows& rows, First&, Sum& sum) { sum = {rows.data, 3}; },
                   "sum overlaps rows, expected memory of its own");
    const std::string split = "first is no split of " + std::to_string(n) + " rows over " +
                              std::to_string(n) + " ranks, expected one, as even_split has it";
    expect_refused([](Rows&, First& first, Sum&) { first.pop_back(); }, split);
    expect_refused([](Rows&, First& first, Sum&) { first.front() = 1; }, split);
    expect_refused([](Rows&, First& first, Sum&) { ++first.back(); }, split);
    if (comm.size() == 1) return;
    expect_refused([](Rows&, First& first, Sum&) { first[1] = first.back() + 1; }, split);
    EXPECT_EQ(message([](Rows& rows, First&, Sum& sum) { sum = sum.first(rows.cols = 2); }),
              here + "rows has width 2" + on + ", expected 3 as on rank 0");
    EXPECT_EQ(message([](Rows& rows, First&, Sum&) { rows.row_stride = 3; }),
              here + "rows has numbers from row to row 3" + on + ", expected 4 as on rank 0");
    EXPECT_EQ(message([](Rows&, First& first, Sum&) { first[1] = 0; }),
              here + "first has other borders" + on + ", expected the same as on rank 0");
  });
}

REGISTER_TYPED_TEST_SUITE_P(OrderedSumContract, HasTheBitsOfOneRankForAnySplit, MovesWhatItSays,
                            WhatOneRankHasWrongIsAnErrorOnAll);

}  // namespace mhla::test
