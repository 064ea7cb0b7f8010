#pragma once

/// \file
/// Walks through the tokens of a block by strips of up to 64 kept tokens. Rows of a strip are
/// gathered into contiguous scratch that stays in L1 (gather.hpp).

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/policy/partition.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Tokens per strip. They are enough to pay for loading and storing a summary's tile. They are so
/// few that phi(K) and V of a strip fit a 32 to 48 KB cache at D = E = 64.
inline constexpr Index kStripTokens = 64;

/// Up to kStripTokens kept tokens of one block, in the block's order.
struct Strip {
  Index block = 0;
  Index count = 0;
  Index tokens[kStripTokens];  ///< [count] positions in the sequence
  Index places[kStripTokens];  ///< [count] positions in the block
};

/// Reads up to 64 kept tokens of slots [from, to) of a block of consecutive tokens.
/// \return the slot after the last slot read
template <Partition P>
MHLA_NOINLINE Index read_slots(const P& blocks, Index block, Mask mask, Index from, Index to,
                               Strip& strip) {
  const Index begin = blocks.run(block, 0).begin;
  strip.block = block;
  strip.count = 0;
  for (; from < to && strip.count < kStripTokens; ++from) {
    if (!mask[begin + from]) continue;
    strip.tokens[strip.count] = begin + from;
    strip.places[strip.count++] = from;
  }
  return from;
}

/// Copies the tokens of a strip for which keep(token, place) holds; `to` may be the strip itself.
template <class Keep>
void select_tokens(const Strip& from, const Keep& keep, Strip& to) {
  Index kept = 0;
  for (Index s = 0; s < from.count; ++s) {
    if (!keep(from.tokens[s], from.places[s])) continue;
    to.tokens[kept] = from.tokens[s];
    to.places[kept++] = from.places[s];
  }
  to.count = kept;
}

/// The kept tokens of one block, strip by strip. Reads one strip ahead, so that its rows can be
/// prefetched. At the end of the block this is the first strip of the next block.
template <Partition P>
class StripCursor {
 public:
  StripCursor(const P& blocks, Index block, Mask mask)
      : blocks_(blocks), mask_(mask), block_(block), runs_(blocks.runs(block)), only_(block) {
    read(strips_[1]);
  }

  /// Moves to the next strip and returns its number of tokens, 0 at the end.
  Index next() {
    if (!more()) {
      strips_[now_].count = 0;
      return 0;
    }
    now_ = 1 - now_;
    read(strips_[1 - now_]);
    return count();
  }
  Index count() const { return strips_[now_].count; }
  const Index* tokens() const { return strips_[now_].tokens; }
  const Index* places() const { return strips_[now_].places; }
  /// True if the block has another strip.
  bool more() const { return ahead().count > 0 && ahead().block == only_; }
  const Strip& now() const { return strips_[now_]; }
  const Strip& ahead() const { return strips_[1 - now_]; }  ///< may be empty unless more()

 private:
  /// Reads the next strip of the block, or at its end the first strip of the next block.
  void read(Strip& strip) {
    read_block(strip);
    if (strip.count == 0 && block_ + 1 < blocks_.blocks()) {
      ++block_;
      run_ = offset_ = slot_ = 0;
      runs_ = blocks_.runs(block_);
      read_block(strip);
    }
  }
  MHLA_NOINLINE void read_block(Strip& strip) {
    strip.block = block_;
    strip.count = 0;
    for (; run_ < runs_; ++run_, offset_ = 0) {
      const Run run = blocks_.run(block_, run_);
      while (offset_ < run.length) {
        if (strip.count == kStripTokens) return;
        const Index many =
            mask_.all() ? std::min(run.length - offset_, kStripTokens - strip.count) : 1;
        if (mask_[run.begin + offset_]) {
          for (Index i = 0; i < many; ++i) {
            strip.tokens[strip.count + i] = run.begin + offset_ + i;
            strip.places[strip.count + i] = slot_ + i;
          }
          strip.count += many;
        }
        offset_ += many;
        slot_ += many;
      }
    }
  }

  const P& blocks_;
  Mask mask_;
  Index block_;  // being read
  Index runs_;
  Index run_ = 0;
  Index offset_ = 0;
  Index slot_ = 0;
  Index only_;  // block whose strips are handed out
  int now_ = 0;
  Strip strips_[2];
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
