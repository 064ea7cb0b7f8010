#pragma once

/// \file
/// Summaries that a forward keeps for its gradient (save="summaries").

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <cstdint>
#include <mhla/attention/bidirectional.hpp>

namespace mhla_torch {

using mhla::Index;
using torch::stable::Tensor;

/// Bytes per block for a summary with key sums of `sums` features. M blocks take at most M times as
/// many, since the library rounds up only once.
template <class A>
Index summary_bytes(Index features, Index values, Index sums) {
  static constexpr A kAny = 0;  // not read
  const auto row = [](Index width) { return mhla::MatrixView<const A>(&kAny, 1, width, width); };
  const mhla::Inputs<A> token{.q = row(features),
                              .k = row(features),
                              .v = row(values),
                              .normalizer_q = row(sums),
                              .normalizer_k = row(sums)};
  return static_cast<Index>(mhla::bidirectional_kept_bytes(token, mhla::Contiguous(1, 1)));
}

/// Memory for the summaries of `blocks` blocks per head: uint8 [B,H,M,bytes].
template <class T, class Op>
Tensor new_summaries(const Tensor& like, const mhla::BatchInputs<T>& in, const Op& op,
                     Index blocks) {
  const auto features = [&](const auto& k) { return op.key_map.features(k.width()); };
  const Index sums = features(in.normalizer_k.absent() ? in.k : in.normalizer_k);
  const Index bytes = summary_bytes<mhla::accumulator_t<T>>(features(in.k), in.v.width(), sums);
  const std::array<Index, 4> sizes{in.q.batch(), in.q.heads(), blocks, bytes};
  return torch::stable::new_empty(like, torch::headeronly::IntHeaderOnlyArrayRef(sizes.data(), 4),
                                  torch::headeronly::ScalarType::Byte);
}

inline mhla::Workspace bytes_of(const Tensor& summaries) {
  return {static_cast<std::byte*>(summaries.mutable_data_ptr()),
          static_cast<std::size_t>(summaries.numel())};
}

/// Returns the same bytes at the start of a cache line, where the forward call wrote them. A tensor
/// that was loaded or copied in between may start anywhere. The library would move its bytes in
/// place, but another backward may read them at the same time.
inline Tensor at_cache_line(const Tensor& summaries) {
  const auto place = reinterpret_cast<std::uintptr_t>(summaries.const_data_ptr());
  if (place % 64 == 0 && summaries.is_contiguous()) return summaries;
  return torch::stable::clone(torch::stable::contiguous(summaries));
}

}  // namespace mhla_torch
