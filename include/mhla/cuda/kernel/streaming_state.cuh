#pragma once

/// \file
/// State of a stream in device memory, for every pair.
///
/// Within block i the mixture of earlier blocks does not change, and is stored as a matrix. The
/// mixture for block i + 1 grows beside it. Keys and values of block i are stored. When the block
/// is full, its summary is added to the stored summaries. Bytes per pair, with 2 for T (for
/// Precision::kPair 4 in summaries and mixtures):
///
///     2 (M + 2) D E        S_b of blocks, S~ of the open one and the next, times summary_scale
///     4 (M + 2) D          z_b, and z~ or z~' (kernel/streaming_mixture.cuh)
///     2 W (D + E)          phi(k) and v of the open block
///     8 slices             tokens seen, a counter for each thread block of a step
///
/// With R decaying terms M is 2, for a stream of any length (kernel/earlier_terms.cuh), and the
/// state also has
///
///     4 R D (E + 1)        U_r of each term, and the same of key sums, in float
///
/// Every part of the whole batch is rounded up to 256 bytes. A new stream has all counters 0, and
/// its other memory may hold anything. A step reads S~, z~, the tokens of the open block and a part
/// of the summaries.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/tile/tensor_box.cuh"

namespace mhla::cuda {

/// Parts of a state.
struct StreamingState {
  std::int64_t* positions;  ///< tokens seen [pairs, slices]
  SummaryArray mixture;     ///< of even and of odd blocks [pairs, 2, D, E]; z~' [pairs, 2, D]
  SummaryArray summaries;   ///< of full blocks [pairs, M, D, E]; z [pairs, M, D]; M of terms: 2
  unsigned char* keys;      ///< phi(k) of the open block [pairs, W, D]
  unsigned char* values;    ///< its v [pairs, W, E]
  float* terms;             ///< U of decaying terms [pairs, R, D, E]
  float* term_key_sums;     ///< the same of z [pairs, R, D]
};

/// Columns of values per thread block of a step.
constexpr int streaming_slice(int e) { return box_columns(e); }

/// Offsets of the parts in bytes, each a multiple of 256. The counters come first.
struct StreamingStateLayout {
  std::int64_t position_bytes;  ///< bytes to clear before the first token
  std::int64_t mixture_high;
  std::int64_t mixture_low;
  std::int64_t mixture_key_sum;
  std::int64_t summary_high;
  std::int64_t summary_low;
  std::int64_t summary_key_sum;
  std::int64_t keys;
  std::int64_t values;
  std::int64_t terms;
  std::int64_t term_key_sums;
  std::int64_t bytes;  ///< bytes of the whole state
  float scale;         ///< summary_scale

  /// The state at `memory`, a multiple of 256. Without Precision::kPair nothing uses `low`.
  StreamingState at(unsigned char* memory) const {
    const auto floats = [&](std::int64_t offset) {
      return static_cast<float*>(static_cast<void*>(memory + offset));
    };
    return {static_cast<std::int64_t*>(static_cast<void*>(memory)),
            {memory + mixture_high, memory + mixture_low, floats(mixture_key_sum), scale},
            {memory + summary_high, memory + summary_low, floats(summary_key_sum), scale},
            memory + keys,
            memory + values,
            floats(terms),
            floats(term_key_sums)};
  }
};

/// Layout for `pairs` pairs, `blocks` blocks (M) and `length` tokens per block (W). With `terms`
/// decaying terms, M is 2. The caller has checked that the bytes fit into 63 bits.
constexpr StreamingStateLayout streaming_state_layout(std::int64_t pairs, std::int64_t blocks,
                                                      std::int64_t length, int d, int e,
                                                      Precision precision, std::int64_t terms = 0) {
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
  layout.terms = take(terms * pairs * d * e * 4);
  layout.term_key_sums = take(terms * pairs * d * 4);
  layout.bytes = end;
  layout.scale = summary_scale(static_cast<std::int32_t>(length));
  return layout;
}

/// Counter of a stream by decaying terms with blocks of `slots` tokens, or of the tokens that it
/// has seen. From 2 W on, positions that are 2 W apart count alike.
template <class Count>
MHLA_HOST_DEVICE constexpr Count endless_counter(Count tokens, Count slots) {
  return tokens < 4 * slots ? tokens : 2 * slots + tokens % (2 * slots);
}

/// Parameters of streaming_step_*.cuh: one token of every item of a batch.
struct StreamingStepParameters {
  ConstTokenTensor q;  ///< [B, 1, H, D]
  ConstTokenTensor k;
  ConstTokenTensor v;  ///< [B, 1, H, E]
  TokenTensor o;
  TokenBlocks blocks;  ///< M runs of W tokens, the capacity of a stream; of terms, at least 5 W
  std::int32_t heads;
  FeatureMap query_map;
  FeatureMap key_map;
  Normalization normalization;  ///< kNone or kKeySum
  MixingArray mixing;
  StreamingState state;
  std::int32_t sequences;           ///< number of sequences of the state
  const std::int32_t* sequence_of;  ///< sequence of each item [B]; null means first + b
  std::int32_t first = 0;
  std::int32_t terms = 0;  ///< R of decaying terms, which `mixing` then has; 0: coefficients

  /// The matrix of a head, or its decaying terms.
  MHLA_HOST_DEVICE constexpr MixingArray matrix(std::int32_t head) const {
    return mixing.of({0, head});
  }
};

/// The same with feature maps of one's own. They hide the members of the base by the same names.
template <class Q, class K>
struct MappedStepParameters : StreamingStepParameters {
  constexpr MappedStepParameters(const StreamingStepParameters& step, const Q& of_query,
                                 const K& of_key)
      : StreamingStepParameters(step), query_map(of_query), key_map(of_key) {}

  Q query_map;
  K key_map;
};

/// Parameters of streaming_prefill_*.cuh: many tokens of sequences whose summaries are stored.
struct StreamingPrefillParameters {
  StreamingStepParameters stream;  ///< k, v of tokens [B, N, H, D], [B, N, H, E]
  std::int32_t begin;              ///< tokens seen before, whole blocks
  std::int32_t tokens;             ///< N and the tokens seen before, at most M W
  SummaryArray written{};          ///< of decaying terms: S of the N tokens, not in the state
};

}  // namespace mhla::cuda
