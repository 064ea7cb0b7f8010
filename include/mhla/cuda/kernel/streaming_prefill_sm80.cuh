#pragma once

/// \file
/// Completes a stream's state after the causal form has stored the summaries of its tokens. It
/// writes phi(k) and v of the open block, both mixtures as steps leave them
/// (kernel/streaming_mixture.cuh), and the position. With the same summaries, the next step has the
/// bits that it has after steps alone.
///
/// With decaying terms the summaries are in the workspace. The kernel walks them once per term that
/// a thread has, and keeps the last one (kernel/earlier_terms.cuh).
///
/// The grid's x is (pair * slices + slice) * kParts + part. Parts alternate between rows of keys
/// and values, and have contiguous ranges of the mixtures' pieces.
///
/// Device memory per pair: all summaries but the open block's once per mixture, the mixtures once,
/// keys and values of the open block read and written once.

#include <cstdint>
#include <type_traits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/earlier_blocks.cuh"
#include "mhla/cuda/kernel/earlier_terms.cuh"
#include "mhla/cuda/kernel/streaming_mixture.cuh"
#include "mhla/cuda/kernel/streaming_slice.cuh"
#include "mhla/cuda/kernel/streaming_state.cuh"
#include "mhla/cuda/kernel/widths.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/pieces.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

/// \tparam kDecays  the mixing matrix is a sum of decaying terms
template <class T, int D, int E, Precision P, bool kDecays = false>
class StreamingPrefillSm80 {
  static_assert(has_kernels(D, E));
  using Place = StreamingSlice<D, E>;
  using Earlier =
      std::conditional_t<kDecays, EarlierTerms<T, D, E, P, 4>, EarlierBlocks<T, D, E, P>>;
  using Mixture = StreamingMixture<T, D, E, P, Earlier>;

 public:
  using Params = StreamingPrefillParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = Place::kThreads;
  static constexpr int kBlocksPerMultiprocessor = 4;
  static constexpr int kSharedBytes = Mixture::kTeamBytes;

  static unsigned grid(const Params&, int pairs) {
    return static_cast<unsigned>(pairs) * Place::kSlices * Mixture::kParts;
  }
  MHLA_DEVICE void operator()(const Params& p) const {
    const StreamingStepParameters& stream = p.stream;
    const std::uint32_t item = ptx::ctaid_x() / Mixture::kParts;
    const auto part = static_cast<std::int32_t>(ptx::ctaid_x() % Mixture::kParts);
    const BatchHead pair =
        batch_head(static_cast<std::int32_t>(item / Place::kSlices), stream.heads);
    const Place at = Place::of(stream.first + pair.batch, stream.heads, pair.head,
                               static_cast<std::int32_t>(item % Place::kSlices));
    const std::int32_t slots = stream.blocks.slots();
    const std::int32_t block = p.tokens / slots;
    const StreamPosition now{block, p.tokens - block * slots};
    keep_open_block(p, at, pair, now, part);
    Mixture::restore(earlier(p, at, pair), now, part, ptx::shared_begin());
    if (part == 0 && at.thread == 0) {
      ptx::st_global_s64(stream.state.positions + at.pair * Place::kSlices + at.slice,
                         Earlier::counter(stream, p.tokens));
    }
  }

 private:
  static MHLA_DEVICE Earlier earlier(const Params& p, const Place& at, BatchHead pair) {
    if constexpr (kDecays) {
      return {p.stream, at, p.written, std::int64_t{pair.batch} * p.stream.heads + pair.head,
              p.begin / p.stream.blocks.slots()};
    } else {
      return {p.stream, at};
    }
  }

  static MHLA_DEVICE void keep_open_block(const Params& prefill, const Place& at, BatchHead pair,
                                          StreamPosition now, std::int32_t part) {
    const StreamingStepParameters& p = prefill.stream;
    const std::int64_t row = at.pair * p.blocks.slots();
    const std::int64_t token = now.block * p.blocks.slots() - prefill.begin;
    MHLA_CUDA_LOOP
    for (std::int64_t j = part; j < now.slot; j += Mixture::kParts) {
      const std::uint32_t lane = at.thread % 32, warp = at.thread / 32;
      if (warp == 0 && lane < Place::kPieces) {
        const unsigned char* const v = p.v.head(pair) + (token + j) * p.v.token_stride;
        ptx::st_global_v4(p.state.values + (row + j) * (2 * E) + at.offset(0, lane),
                          ptx::ld_global_nc_v4(v + at.offset(0, lane)));
      }
      if (warp == 1 && lane < D / 8 && at.slice == 0) {
        const unsigned char* const k = p.k.head(pair) + (token + j) * p.k.token_stride;
        ptx::st_global_v4(p.state.keys + (row + j) * (2 * D) + lane * 16,
                          apply<T>(p.key_map, ptx::ld_global_nc_v4(k + lane * 16)));
      }
    }
  }
};

}  // namespace mhla::cuda
