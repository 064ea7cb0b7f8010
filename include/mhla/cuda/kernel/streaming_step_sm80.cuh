#pragma once

/// \file
/// Decoding step: one token of every (batch item, head), in block i of its stream.
///
///     o_t = (phi(q)^T S~ + sum_j m_ii (phi(q) . phi(k_j)) v_j) / den
///     den =  phi(q)^T z~ + sum_j m_ii (phi(q) . phi(k_j))          j <= t in block i
///
/// with S~ = sum_(b < i) m_ib S_b. A step also computes its part of the next block's S~
/// (kernel/streaming_mixture.cuh). The last step of a block computes S_i and z_i, with the order of
/// sums and the roundings of kernel/summary_sm80.cuh.
///
/// The grid's x is pair * slices + slice, with kColumns columns of values per slice. Thread blocks
/// of a step do not communicate. Each has its own counter of tokens, so that sequences may be at
/// different positions and a captured graph can be replayed. Slice 0 alone writes phi(k), z and
/// z~'. The other slices read them in later steps only. A step is one launch, and steps of a stream
/// are ordered.
///
/// A thread has a piece of eight columns. It sums the products of its group's rows of S~ and of its
/// group's keys (kernel/streaming_block.cuh). Then the groups' sums are added. All sums are float,
/// and their order depends on sizes and the position alone.
///
/// Device memory per pair, in bytes: a step reads 2 D E of S~ and 2 D E i / W of the summaries. It
/// reads 2 (D slices + E) per token of the open block, and writes 2 D E / W of the next S~. The
/// first step of a block also reads 2 D E of S_(i-1). The next kRowPairs - 1 steps, at most seven,
/// read decreasing parts of S_(i-1). Together these steps write 2 D E of S~. The last step of a
/// block writes 2 D E of S_i. If the block has more than 64 tokens, that step reads all of them
/// again for each 64 rows of S_i.
///
/// With decaying terms, a step reads and writes 4 R D E / W of sums in place of the summaries. Such
/// a stream has no last token (kernel/earlier_terms.cuh).
///
/// After the last of a stream's M W tokens, outputs are NaN and the state does not change. The same
/// holds for items without a sequence. The host is not notified: it must count, too.

#include <cstdint>
#include <type_traits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/earlier_blocks.cuh"
#include "mhla/cuda/kernel/earlier_terms.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/streaming_block.cuh"
#include "mhla/cuda/kernel/streaming_mixture.cuh"
#include "mhla/cuda/kernel/streaming_slice.cuh"
#include "mhla/cuda/kernel/streaming_state.cuh"
#include "mhla/cuda/kernel/widths.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/copy_async.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/pieces.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

/// \tparam Step     StreamingStepParameters or MappedStepParameters
/// \tparam kDecays  the mixing matrix is a sum of decaying terms
template <class T, int D, int E, Precision P, class Step = StreamingStepParameters,
          bool kDecays = false>
class StreamingStepSm80 {
  static_assert(has_kernels(D, E));
  using Place = StreamingSlice<D, E>;
  using Earlier = std::conditional_t<kDecays, EarlierTerms<T, D, E, P>, EarlierBlocks<T, D, E, P>>;
  using Mixture = StreamingMixture<T, D, E, P, Earlier>;
  using Block = StreamingBlock<T, D, E, P>;

 public:
  using Params = Step;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = Place::kThreads;
  /// Registers per thread that hold rows of S~.
  static constexpr int kHeldRegisters = Place::kRowPairs * 2 * 4 * (P == Precision::kPair ? 2 : 1);
  /// True if not all threads have a piece, so that addresses take more registers.
  static constexpr bool kRagged = kThreads % Place::kPieces != 0;
  static constexpr int kBlocksPerMultiprocessor = kHeldRegisters > 64    ? 2
                                                  : kRagged              ? 3
                                                  : kHeldRegisters <= 16 ? 6
                                                  : kHeldRegisters <= 32 ? 5
                                                                         : 3;

 private:
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kColumns = Place::kColumns;
  static constexpr int kSlices = Place::kSlices;
  static constexpr int kPieces = Place::kPieces;
  static constexpr int kKeyPieces = Block::kKeyPieces;
  static constexpr int kNumbers = (D - 1) / kThreads + 1;  // numbers of phi(q) per thread

  // Layout of shared memory, in bytes.
  static constexpr int kScores = Block::kSharedBytes;        // per warp, for the denominator
  static constexpr int kSums = kScores + kWarps * 4;         // per group: columns 0 to 3 of pieces
  static constexpr int kSums4 = kSums + kThreads * 16 + 64;  // columns 4 to 7, 16 banks further on
  static_assert(kSums % 16 == 0, "pieces begin at multiples of 16 bytes");
  // At the end: sums, and then the summary of a full block.
  static constexpr int kSumBytes = kSums4 + kThreads * 16 - kSums;
  static constexpr int kLast = Block::kOutBytes > kSumBytes ? Block::kOutBytes : kSumBytes;

 public:
  static constexpr int kSharedBytes = kSums + kLast;
  static_assert(Mixture::kTeamBytes <= kSharedBytes - kSums, "a share of S~ passes where sums do");

  static unsigned grid(const Params&, int pairs) { return static_cast<unsigned>(pairs) * kSlices; }
  MHLA_DEVICE void operator()(const Params& p) const {
    const std::uint32_t item = ptx::ctaid_x();
    const BatchHead pair = batch_head(static_cast<std::int32_t>(item / kSlices), p.heads);
    const std::int64_t sequence = p.sequence_of == nullptr
                                      ? p.first + pair.batch
                                      : ptx::ld_global_nc_s32(p.sequence_of + pair.batch);
    const Place at =
        Place::of(sequence, p.heads, pair.head, static_cast<std::int32_t>(item % kSlices));
    const bool exists = sequence >= 0 && sequence < p.sequences;
    const StreamPosition now = exists ? position(p, at) : StreamPosition{p.blocks.blocks(), 0};
    if (now.block == p.blocks.blocks()) {
      write_nan(p, at, pair);
      return;
    }
    const Block block(at, ptx::shared_begin());
    block.copy_chunk(p, now, 0);
    const auto mixture = Mixture::load(p, at, now);
    map_token(p, at, pair, block);
    const bool normalized = p.normalization.denominator == Denominator::kKeySum;
    float z[kNumbers];
    MHLA_CUDA_UNROLL
    for (std::uint32_t n = 0; n < kNumbers; ++n) {
      const std::uint32_t d = n * kThreads + at.thread;
      z[n] = normalized && d < D ? Mixture::load_key_sum(p, at, now, d) : 0;
    }
    const float m = Earlier::coefficient(p, at, now.block, now.block);
    ptx::bar_sync();  // phi(q) is stored, and all have read the position

    float sums[8] = {};
    add_mixture(sums, at, mixture, block.query(), inverse_power(p.state.mixture.scale));
    float score;
    MHLA_CUDA_UNROLL
    for (std::uint32_t n = 0; n < kNumbers; ++n) {
      const std::uint32_t d = n * kThreads + at.thread;
      const float product = normalized && d < D ? query_number(d, block.query()) * z[n] : 0;
      score = n == 0 ? product : score + product;
    }
    const bool last = now.slot + 1 == p.blocks.slots() && now.block + 1 < p.blocks.blocks();
    MHLA_CUDA_LOOP
    for (std::int32_t first = 0;;) {
      block.put_token(now.slot - first);
      ptx::cp_async_wait_group<0>();
      ptx::bar_sync();                                 // the chunk has arrived
      score += block.weigh_keys(now.slot - first, m);  // part of the denominator
      ptx::bar_sync();                                 // all weights are stored
      block.add_values(now.slot - first, sums);
      first += Block::kKeys;
      if (first > now.slot) break;
      ptx::bar_sync();  // the chunk has been read
      block.copy_chunk(p, now, first);
    }
    write(p, at, pair, sums, score);
    keep(p, at, now, block);
    if (last) block.template write_summary<Earlier>(p, now, ptx::shared_begin() + kSums);
    Mixture::prepare(p, at, now, ptx::shared_begin() + kSums);
  }

 private:
  static MHLA_DEVICE StreamPosition position(const Params& p, const Place& at) {
    const std::int64_t token = ptx::ld_global_s64(p.state.positions + at.pair * kSlices + at.slice);
    if (token >= p.blocks.tokens()) return {p.blocks.blocks(), 0};
    const std::int32_t block = p.blocks.block_of(static_cast<std::int32_t>(token));
    return {block, static_cast<std::int32_t>(token) - block * p.blocks.slots()};
  }

  /// Stores phi(q), phi(k) and v in shared memory, one warp each.
  static MHLA_DEVICE void map_token(const Params& p, const Place& at, BatchHead pair,
                                    const Block& block) {
    const std::uint32_t lane = at.thread % 32, warp = at.thread / 32;
    if (warp == 0 && lane < kPieces) {
      ptx::st_shared_v4(block.value() + lane * 16,
                        ptx::ld_global_nc_v4(p.v.head(pair) + at.offset(0, lane)));
    } else if (warp == 1 && lane < kKeyPieces) {
      ptx::st_shared_v4(block.key() + lane * 16,
                        apply<T>(p.key_map, ptx::ld_global_nc_v4(p.k.head(pair) + lane * 16)));
    } else if (warp == 2 && lane < kKeyPieces) {
      ptx::st_shared_v4(block.query() + lane * 16,
                        apply<T>(p.query_map, ptx::ld_global_nc_v4(p.q.head(pair) + lane * 16)));
    }
  }

  /// Returns number d of phi(q).
  static MHLA_DEVICE float query_number(std::uint32_t d, std::uint32_t query) {
    const std::uint32_t q = ptx::ld_shared(query + d / 2 * 4);
    return d % 2 == 0 ? ptx::low<T>(q) : ptx::high<T>(q);
  }

  static MHLA_DEVICE void add_mixture(float (&sums)[8], const Place& at,
                                      const typename Mixture::Rows& mixture, std::uint32_t query,
                                      float unit) {
    MHLA_CUDA_UNROLL
    for (int r = 0; r < Place::kRowPairs; ++r) {
      if (!at.has(r)) break;
      const std::uint32_t q = ptx::ld_shared(query + at.row_pair(r) * 4);
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float factor = (i == 0 ? ptx::low<T>(q) : ptx::high<T>(q)) * unit;
        add_scaled<T>(sums, factor, mixture.x[r][i].high);
        if constexpr (P == Precision::kPair) add_scaled<T>(sums, factor, mixture.x[r][i].low);
      }
    }
  }

  static MHLA_DEVICE void write(const Params& p, const Place& at, BatchHead pair,
                                const float (&sums)[8], float score) {
    const std::uint32_t shared = ptx::shared_begin();
    ptx::st_shared_v4(shared + kSums + at.thread * 16, four_floats(sums));
    ptx::st_shared_v4(shared + kSums4 + at.thread * 16, four_floats(sums + 4));
    MHLA_CUDA_UNROLL
    for (std::uint32_t mask = 16; mask > 0; mask /= 2) score += ptx::shfl_bfly(score, mask);
    if (at.thread % 32 == 0) ptx::st_shared_f32(shared + kScores + at.thread / 8, score);
    ptx::bar_sync();
    if (at.thread >= kColumns / 2) return;
    float denominator = 0;
    MHLA_CUDA_UNROLL
    for (int w = 0; w < kWarps; ++w) denominator += ptx::ld_shared_f32(shared + kScores + w * 4);
    const std::uint32_t piece = at.thread / 4, column = at.thread % 4 * 2;  // two columns
    const std::uint32_t from = shared + (column < 4 ? kSums : kSums4) + piece * 16 + column % 4 * 4;
    float x = 0, y = 0;
    MHLA_CUDA_UNROLL
    for (int g = 0; g < Place::kGroups; ++g) {
      const ptx::Words2 two = ptx::ld_shared_v2(from + g * (kPieces * 16));
      x += as_float(two.x[0]);
      y += as_float(two.x[1]);
    }
    const float factor = p.normalization.factor(denominator);
    ptx::st_global(
        p.o.head(pair) + at.slice * (kColumns * 2) + at.thread * 4,
        ptx::pack<T>(Normalization::output(x, factor), Normalization::output(y, factor)));
  }

  static MHLA_DEVICE void write_nan(const Params& p, const Place& at, BatchHead pair) {
    constexpr std::uint32_t kNan = 0x7FFF7FFF;  // two NaNs of either type
    if (at.thread >= kColumns / 2) return;
    ptx::st_global(p.o.head(pair) + at.slice * (kColumns * 2) + at.thread * 4, kNan);
  }

  /// Stores the token's own key and value in the open block, and advances the position.
  static MHLA_DEVICE void keep(const Params& p, const Place& at, StreamPosition now,
                               const Block& block) {
    const std::uint32_t lane = at.thread % 32, warp = at.thread / 32;
    const std::int64_t row = at.pair * p.blocks.slots() + now.slot;
    if (warp == 0 && lane < kPieces) {
      ptx::st_global_v4(p.state.values + (row * E + at.slice * kColumns) * 2 + lane * 16,
                        ptx::ld_shared_v4(block.value() + lane * 16));
    }
    if (warp == 1 && lane < kKeyPieces && at.slice == 0) {
      ptx::st_global_v4(p.state.keys + row * (D * 2) + lane * 16,
                        ptx::ld_shared_v4(block.key() + lane * 16));
    }
    if (at.thread == 0) {
      ptx::st_global_s64(p.state.positions + at.pair * kSlices + at.slice,
                         Earlier::counter(p, now.block * p.blocks.slots() + now.slot + 1));
    }
  }
};

}  // namespace mhla::cuda
