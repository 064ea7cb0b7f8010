#pragma once

/// \file
/// How stages walk through the tokens of a block: a strip of up to 64 kept tokens at a time, whose
/// rows are brought into contiguous scratch that stays in the first cache (gather.hpp).

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/stage/partition.hpp"

namespace mhla::inline MHLA_TARGET::detail {

/// Tokens of a strip: long enough to pay for loading and storing a summary's tile, short enough
/// that phi(K) and V of a strip fit a 32 to 48 KB cache at D = E = 64.
inline constexpr Index kStripTokens = 64;

/// Rows of scratch start at multiples of this many elements.
inline constexpr Index kRowAlignment = 16;

/// Scratch rows [rows, cols], each starting on its own cache line.
template <class A>
struct Rows {
  A* data = nullptr;
  Index stride = 0;

  Rows() = default;
  Rows(A* data_, Index stride_) : data(data_), stride(stride_) {}
  Rows(const char* function, Arena& arena, Index rows, Index cols)
      : stride(round_up(cols, kRowAlignment)) {
    data = arena.take<A>(function, {rows, stride});
  }
  A* row(Index r) const { return data + r * stride; }
  Rows below(Index rows) const { return {row(rows), stride}; }
  Rows right_of(Index cols) const { return {data + cols, stride}; }
};

/// Up to kStripTokens kept tokens of one block, in the block's order.
struct Strip {
  Index block = 0;
  Index count = 0;
  Index tokens[kStripTokens];  ///< [count] positions in the sequence
  Index slots[kStripTokens];   ///< [count] positions in the block
};

/// The tokens of one block that a mask keeps, strip by strip. Knows one strip ahead, which at the
/// end of the block is the first of the next one, so that its rows can be asked for early.
template <Partition P>
class StripCursor {
 public:
  StripCursor(const P& blocks, Index block, Mask mask)
      : blocks_(blocks), mask_(mask), block_(block), runs_(blocks.runs(block)), own_(block) {
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
  const Index* slots() const { return strips_[now_].slots; }
  /// Whether the block has another strip.
  bool more() const { return ahead().count > 0 && ahead().block == own_; }
  const Strip& ahead() const { return strips_[1 - now_]; }  ///< may be empty where more() is false

 private:
  /// Reads on in the block, or at its end from the start of the one behind it.
  void read(Strip& strip) {
    read_block(strip);
    if (strip.count == 0 && block_ + 1 < blocks_.blocks()) {
      ++block_;
      run_ = offset_ = slot_ = 0;
      runs_ = blocks_.runs(block_);
      read_block(strip);
    }
  }
  void read_block(Strip& strip) {
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
            strip.slots[strip.count + i] = slot_ + i;
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
  Index own_;  // whose strips are handed out
  int now_ = 0;
  Strip strips_[2];
};

}  // namespace mhla::inline MHLA_TARGET::detail
