#pragma once

/// \file
/// A sum over ranks with the same bits for any number of ranks, as data-parallel training needs it
/// for its gradients. A row is the result of one micro-batch.

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "mhla/attention/overlap.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/overlap.hpp"
#include "mhla/distributed/agreement.hpp"
#include "mhla/distributed/communicator.hpp"
#include "mhla/distributed/plan.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace distributed {

/// Writes sum_j = 0 + rows_0j + rows_1j + ..., added in this order, on all ranks. Each rank adds
/// some columns. With R ranks it receives C / R numbers of every row of other ranks, and then the
/// sums of their columns from them. With one row per rank these are 2 * C * (R - 1) / R numbers. A
/// ring all-reduce receives as many, but its bits depend on R.
///
/// \param rows   [n,C], rows [first[r], first[r + 1]) of rank r; parts of other ranks' rows are
///     overwritten; the same row stride on all ranks
/// \param first  borders of all ranks, [R+1], as even_split has them, the same on all
/// \param sum    [C], apart from rows
/// \throws shape_error, option_error on all ranks, before anything is written, if the arguments of
///     any rank do not fit or differ; communication_error if a rank does not answer.
template <Communicator C, Accumulator A>
void ordered_sum(C& comm, const MatrixView<A>& rows, std::span<const Index> first,
                 std::span<A> sum);

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Agrees on the arguments.
template <Communicator C, class A>
void agree_on_rows(C& comm, const MatrixView<A>& rows, std::span<const Index> first,
                   std::span<A> sum) {
  static constexpr char kName[] = "distributed::ordered_sum";
  mhla::detail::agree(comm, kName, [&](mhla::detail::CallSignature& signature) {
    mhla::detail::expect_shape(kName, "rows", rows, -1, -1);
    if (rows.col_stride != 1 || rows.row_stride < rows.cols) {
      mhla::detail::fail_shape(
          kName, "rows",
          "has strides " + mhla::detail::shape_text({rows.row_stride, rows.col_stride}),
          mhla::detail::shape_text({rows.cols, 1}) + ", or more from row to row");
    }
    if (std::ssize(sum) != rows.cols) {
      mhla::detail::fail_shape(kName, "sum",
                               "has shape " + mhla::detail::shape_text({std::ssize(sum)}),
                               mhla::detail::shape_text({rows.cols}) + " as a row of rows");
    }
    if (mhla::detail::overlap(mhla::detail::as_batch(rows),
                              mhla::detail::places_of<A>(std::span<const A>(sum)))) {
      mhla::detail::fail_option(kName, "sum", "overlaps rows", "memory of its own");
    }
    if (!is_split(first, comm.size(), rows.rows)) {
      mhla::detail::fail_option(kName, "first",
                                "is no split of " + std::to_string(rows.rows) + " rows over " +
                                    std::to_string(comm.size()) + " ranks",
                                "one, as even_split has it");
    }
    signature.add("rows", "width", rows.cols);
    signature.add("rows", "numbers from row to row", rows.row_stride);
    signature.add("rows", "bytes a number", sizeof(A));
    signature.add_bits("first", "borders", mhla::detail::Fingerprint().add(first));
  });
}

}  // namespace detail

template <Communicator C, Accumulator A>
void ordered_sum(C& comm, const MatrixView<A>& rows, std::span<const Index> first,
                 std::span<A> sum) {
  detail::agree_on_rows(comm, rows, first, sum);
  const std::vector<Index> columns = even_split(rows.cols, comm.size());
  const auto at = [](Index i) { return static_cast<std::size_t>(i); };
  const Index rank = comm.rank(), begin = columns[at(rank)], end = columns[at(rank + 1)];
  std::vector<PeerRows> sends, receives;  // of numbers
  const auto add = [&](std::vector<PeerRows>& list, Index peer, Index of_rows, Index of_columns) {
    const Index from = columns[at(of_columns)], to = columns[at(of_columns + 1)];
    for (Index i = first[at(of_rows)]; i < first[at(of_rows + 1)] && from < to; ++i) {
      list.push_back({peer, i * rows.row_stride + from, i * rows.row_stride + to});
    }
  };
  for (Index peer = 0; peer < comm.size(); ++peer) {
    if (peer == rank) continue;
    add(sends, peer, rank, peer);
    add(receives, peer, peer, rank);
  }
  const SharedRows numbers{reinterpret_cast<std::byte*>(rows.data), sizeof(A)};
  comm.exchange({&numbers, 1}, sends, receives).wait();

  constexpr Index kPiece = 2048;  // columns, which stay in L1
  for (Index from = begin; from < end; from += kPiece) {
    const Index count = std::min(kPiece, end - from);
    A* const to = sum.data() + from;
    std::fill_n(to, count, A(0));
    for (Index i = 0; i < rows.rows; ++i) {
      const A* const row = rows.data + i * rows.row_stride + from;
      for (Index j = 0; j < count; ++j) to[j] += row[j];
    }
  }
  const SharedRows sums{reinterpret_cast<std::byte*>(sum.data()), sizeof(A)};
  comm.all_gather({&sums, 1}, columns).wait();
}

}  // namespace distributed
}  // namespace MHLA_TARGET
}  // namespace mhla
