#pragma once

/// \file
/// What decoding keeps in device memory from one token to the next, of every pair.
///
/// Inside block i the mixture of the blocks before it does not change, so it is kept as a matrix,
/// and that of block i + 1 grows beside it; the keys and values of block i are kept as they are,
/// and when the block is full its summary is added to those of the blocks before. In bytes, with 2
/// for T (Precision::kPair: 4 for summaries and mixtures), for each pair:
///
///     2 (M + 2) D E        S_b of blocks, S~ of the open one and the next, times summary_scale
///     4 (M + 2) D          z_b, and of z~ what kernel/streaming_mixture.cuh says
///     2 W (D + E)          phi(k) and v of the open block
///     8 slices             tokens seen, a counter for each thread block of a step
///
/// every part of the whole batch rounded up to 256. A stream begins with all counters 0; the rest
/// may hold anything. A step reads, beyond the token, S~, z~, what the open block holds so far and
/// its share of the summaries.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"

namespace mhla::cuda {

/// The parts of a state.
struct StreamingState {
  std::int64_t* positions;  ///< tokens seen [pairs, slices]
  SummaryArray mixture;     ///< of blocks of even and of odd places [pairs, 2, D, E]; [pairs, 2, D]
  SummaryArray summaries;   ///< of full blocks [pairs, M, D, E]; z [pairs, M, D]
  unsigned char* keys;      ///< phi(k) of the open block [pairs, W, D]
  unsigned char* values;    ///< its v [pairs, W, E]
};

/// Columns of values that one thread block of a step has.
constexpr int streaming_slice(int e) { return e == 72 ? 72 : 64; }

/// Where the parts begin, in bytes, each at a multiple of 256; the counters come first.
struct StreamingStateLayout {
  std::int64_t position_bytes;  ///< to clear before the first token
  std::int64_t mixture_high;
  std::int64_t mixture_low;
  std::int64_t mixture_key_sum;
  std::int64_t summary_high;
  std::int64_t summary_low;
  std::int64_t summary_key_sum;
  std::int64_t keys;
  std::int64_t values;
  std::int64_t bytes;  ///< of the whole state
  float scale;         ///< summary_scale

  /// The state in memory at a multiple of 256. Without Precision::kPair nothing uses `low`.
  StreamingState at(unsigned char* memory) const {
    const auto floats = [&](std::int64_t offset) {
      return static_cast<float*>(static_cast<void*>(memory + offset));
    };
    return {static_cast<std::int64_t*>(static_cast<void*>(memory)),
            {memory + mixture_high, memory + mixture_low, floats(mixture_key_sum), scale},
            {memory + summary_high, memory + summary_low, floats(summary_key_sum), scale},
            memory + keys,
            memory + values};
  }
};

/// The layout for so many pairs, blocks (M) and tokens of a block (W), which the caller has checked
/// to be such that the bytes fit into 63 bits.
constexpr StreamingStateLayout streaming_state_layout(std::int64_t pairs, std::int64_t blocks,
                                                      std::int64_t length, int d, int e,
                                                      Precision precision) {
  StreamingStateLayout layout{};
  std::int64_t end = 0;
  const auto take = [&end](std::int64_t bytes) {
    const std::int64_t begin = end;
    end = (end + bytes + 255) / 256 * 256;
    return begin;
  };
  const std::int64_t matrix = pairs * d * e * 2;
  const std::int64_t low = precision == Precision::kPair ? matrix : 0;
  layout.position_bytes = pairs * (e / streaming_slice(e)) * 8;
  take(layout.position_bytes);
  layout.mixture_high = take(2 * matrix);
  layout.mixture_low = take(2 * low);
  layout.mixture_key_sum = take(2 * pairs * d * 4);
  layout.summary_high = take(blocks * matrix);
  layout.summary_low = take(blocks * low);
  layout.summary_key_sum = take(blocks * pairs * d * 4);
  layout.keys = take(pairs * length * d * 2);
  layout.values = take(pairs * length * e * 2);
  layout.bytes = end;
  layout.scale = summary_scale(static_cast<std::int32_t>(length));
  return layout;
}

/// One token of every item of a batch: streaming_step_*.cuh.
struct StreamingStepParameters {
  ConstTokenTensor q;  ///< [B, 1, H, D]
  ConstTokenTensor k;
  ConstTokenTensor v;  ///< [B, 1, H, E]
  TokenTensor o;
  TokenBlocks blocks;  ///< M runs of W tokens: those a stream can take
  std::int32_t heads;
  FeatureMap query_map;
  FeatureMap key_map;
  Normalization normalization;  ///< kNone or kKeySum
  MixingArray mixing;
  StreamingState state;
  std::int32_t sequences;           ///< that the state is of
  const std::int32_t* sequence_of;  ///< the items [B], or null: item b is of sequence first + b
  std::int32_t first = 0;
};

/// Many tokens of sequences, when their summaries are there: streaming_prefill_*.cuh.
struct StreamingPrefillParameters {
  StreamingStepParameters stream;  ///< k, v of tokens [B, N, H, D], [B, N, H, E]
  std::int32_t begin;              ///< how many tokens were before those: whole blocks
  std::int32_t tokens;             ///< N and those before, at most M W
};

}  // namespace mhla::cuda
