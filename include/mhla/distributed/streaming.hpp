#pragma once

/// \file
/// Decoding with a state that is split over ranks. Every rank keeps the states of its heads, or of
/// its values of every head, D*E/size numbers each. It computes its part of the outputs, which all
/// ranks receive. Nothing else is sent. Outputs have the bits of one machine.

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mhla/attention/heads.hpp"
#include "mhla/attention/overlap.hpp"
#include "mhla/attention/streaming.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/overlap.hpp"
#include "mhla/core/tensor.hpp"
#include "mhla/distributed/agreement.hpp"
#include "mhla/distributed/communicator.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace distributed {

/// Streaming's append of a batch, where rank r has heads [heads[r], heads[r + 1]).
/// \param heads   borders, as from even_split
/// \param states  [B * own heads], the heads of a sequence side by side; start(h) of head h of all
/// \param in      [B,n,own heads,...]
/// \param out     [B,n,H,E] of all heads, whose rows [H,E] are contiguous
/// \throws shape_error, option_error on all ranks, before any state has changed, if the arguments
///     of any rank do not fit or differ; communication_error.
template <Communicator C, Scalar T, class Op, class Mixing>
void append_heads(C& comm, std::span<const Index> heads, const Streaming<T, Op, Mixing>& stream,
                  std::span<StreamingState<accumulator_t<T>>> states, const BatchInputs<T>& in,
                  const std::type_identity_t<TensorView<T>>& out, const Call& call = {});

/// Appends as above, where rank r has values [values[r], values[r + 1]) of every head. Its stream
/// and its `v` have that many values. Queries and keys are the same on all ranks.
/// \param states  [B * H]
/// \param out     [B,n,H,E] of all values, whose rows [E] are contiguous
template <Communicator C, Scalar T, class Op, class Mixing>
void append_values(C& comm, std::span<const Index> values, const Streaming<T, Op, Mixing>& stream,
                   std::span<StreamingState<accumulator_t<T>>> states, const BatchInputs<T>& in,
                   const std::type_identity_t<TensorView<T>>& out, const Call& call = {});

// ------------------------------------------------------------------------------------------------

}  // namespace distributed

namespace detail {

/// Entries [begin, begin + count) along an axis.
template <class T>
TensorView<T> part_of_axis(TensorView<T> t, std::size_t axis, Index begin, Index count) {
  t.data += begin * t.strides[axis];
  t.shape[axis] = count;
  return t;
}

/// Throws unless `borders` are a split of `all` over the ranks, with `own` on this one.
inline void expect_split(const char* function, const char* argument, std::span<const Index> borders,
                         Index rank, Index size, Index all, Index share) {
  if (!distributed::is_split(borders, size, all)) {
    fail_shape(function, argument, "has " + std::to_string(borders.size()) + " borders",
               std::to_string(size + 1) + " that ascend from 0 to " + std::to_string(all));
  }
  const auto r = static_cast<std::size_t>(rank);
  if (borders[r + 1] - borders[r] != share) {
    fail_shape(function, argument, "gives this rank " + std::to_string(borders[r + 1] - borders[r]),
               std::to_string(share) + ", as many as it came with");
  }
}

/// Appends this rank's part, entries [first[r], first[r + 1]) of `axis` of out, and gathers all.
/// \param own  entries that the inputs have
template <distributed::Communicator C, Scalar T, class Op, class Mixing>
void append_part(C& comm, const char* function, const char* argument, std::size_t axis, Index share,
                 std::span<const Index> first, const Streaming<T, Op, Mixing>& stream,
                 std::span<StreamingState<accumulator_t<T>>> states, const BatchInputs<T>& in,
                 const TensorView<T>& out, const Call& call) {
  const auto r = static_cast<std::size_t>(comm.rank());
  const auto part = [&] { return part_of_axis(out, axis, first[r], first[r + 1] - first[r]); };
  agree(comm, function, [&](CallSignature& signature) {
    expect_split(function, argument, first, comm.rank(), comm.size(), out.shape[axis], share);
    if (out.strides[3] != 1 || (axis == 2 && out.strides[2] != out.width())) {
      fail_option(function, "out", "has strides " + shape_text(out.strides), "contiguous rows");
    }
    expect_distinct(function, "out", out);
    check_append(stream, {states.data(), states.size()}, in, part(), call);
    for (const auto& [begin, end] : {std::pair<Index, Index>{0, first[r]},
                                     {first[r + 1], out.shape[axis]}}) {  // of other ranks
      expect_separate(function, in,
                      TensorView<const T>(part_of_axis(out, axis, begin, end - begin)));
    }
    const Index head = axis == 2 ? first[r] : 0;
    if (stream.heads() > 1 && !states.empty() && states[0].head() != head) {
      fail_option(function, "states", "begins with head " + std::to_string(states[0].head()),
                  "head " + std::to_string(head) + ", the first of this rank");
    }
    for (const Index size : out.shape) signature.add("out", "size", size);
    signature.add("out", "bytes a number", sizeof(T));
    signature.add_bits(argument, "borders", Fingerprint().add(first));
  });
  append(stream, states, in, part(), call);

  std::vector<distributed::SharedRows> rows;
  const Index row_heads = axis == 2 ? 1 : out.heads();
  const std::size_t bytes = sizeof(T) * static_cast<std::size_t>(axis == 2 ? out.width() : 1);
  for (Index b = 0; b < out.batch(); ++b) {
    for (Index n = 0; n < out.tokens(); ++n) {
      for (Index h = 0; h < row_heads; ++h) {
        rows.push_back({reinterpret_cast<std::byte*>(&out(b, n, h, 0)), bytes});
      }
    }
  }
  comm.all_gather(rows, first).wait();
}

}  // namespace detail

namespace distributed {

template <Communicator C, Scalar T, class Op, class Mixing>
void append_heads(C& comm, std::span<const Index> heads, const Streaming<T, Op, Mixing>& stream,
                  std::span<StreamingState<accumulator_t<T>>> states, const BatchInputs<T>& in,
                  const std::type_identity_t<TensorView<T>>& out, const Call& call) {
  mhla::detail::append_part(comm, "distributed::append_heads", "heads", 2, in.q.heads(), heads,
                            stream, states, in, out, call);
}

template <Communicator C, Scalar T, class Op, class Mixing>
void append_values(C& comm, std::span<const Index> values, const Streaming<T, Op, Mixing>& stream,
                   std::span<StreamingState<accumulator_t<T>>> states, const BatchInputs<T>& in,
                   const std::type_identity_t<TensorView<T>>& out, const Call& call) {
  mhla::detail::append_part(comm, "distributed::append_values", "values", 3, in.v.width(), values,
                            stream, states, in, out, call);
}

}  // namespace distributed
}  // namespace MHLA_TARGET
}  // namespace mhla
