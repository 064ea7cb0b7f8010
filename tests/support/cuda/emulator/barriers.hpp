#pragma once

/// \file
/// Barriers of the block, by number, and of the warp. Counted by warp: "warp barriers", "shuffles".

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "emulator/block.hpp"
#include "emulator/group.hpp"

namespace emulator {

inline const Counter kWarpBarriers{"warp barriers"};
inline const Counter kShuffles{"shuffles"};

/// The 16 barriers of the block. A barrier ends when the expected number of threads has arrived.
class Barriers {
 public:
  explicit Barriers(Block& block) : block_(block) {}

  void meet(std::uint32_t id, std::uint32_t threads) {
    Barrier& b = begin(id, threads);
    b.met.push_back(block_.who());
    if (!end(b)) block_.suspend("barrier", id);
  }

 private:
  struct Barrier {
    std::uint32_t expected = 0;
    std::vector<Actor> met;
  };

  Barrier& begin(std::uint32_t id, std::uint32_t threads) {
    const auto all = static_cast<std::uint32_t>(block_.threads());
    if (id >= kCount || threads == 0 || threads % 32 != 0 || threads > all) {
      block_.fail(Kind::kOutside, "barrier " + std::to_string(id) + " of " +
                                      std::to_string(threads) + " threads in a block of " +
                                      std::to_string(all));
    }
    Barrier& b = barriers_[id];
    if (b.expected == 0) b.expected = threads;
    if (b.expected != threads) {
      block_.fail(Kind::kDivergent, "comes to barrier " + std::to_string(id) + " of " +
                                        std::to_string(threads) + " threads, others to one of " +
                                        std::to_string(b.expected));
    }
    return b;
  }

  bool end(Barrier& b) {
    if (b.met.size() < b.expected) return false;
    block_.clocks.join(b.met);
    for (const Actor t : b.met) {
      if (t != block_.who()) block_.resume(t);
    }
    b = {};
    return true;
  }

  static constexpr std::uint32_t kCount = 16;

  Block& block_;
  std::array<Barrier, kCount> barriers_;
};

inline void meet(std::uint32_t id, std::uint32_t threads) {
  if (id == 0) current().fail(Kind::kOutside, "barrier 0 is bar_sync's");
  current().part<Barriers>().meet(id, threads);
}
inline void bar_sync() {
  current().part<Barriers>().meet(0, static_cast<std::uint32_t>(current().threads()));
}

inline void bar_warp_sync() {
  Actor mine = current().who();
  call_together<32>("bar.warp.sync", 0, mine, [](Actor* const(&all)[32]) {
    std::array<Actor, 32> lanes;
    for (std::size_t i = 0; i < 32; ++i) lanes[i] = *all[i];
    current().clocks.join(lanes);
    current().add(kWarpBarriers);
  });
}

/// Exchanges x, without ordering memory.
inline float shfl_bfly(float x, std::uint32_t mask) {
  if (mask >= 32) current().fail(Kind::kOutside, "shuffle by " + std::to_string(mask));
  struct Arguments {
    float given, got;
  } mine{x, 0};
  call_together<32>("shfl.sync.bfly", mask, mine, [mask](Arguments* const(&all)[32]) {
    for (std::uint32_t i = 0; i < 32; ++i) all[i]->got = all[i ^ mask]->given;
    current().add(kShuffles);
  });
  return mine.got;
}

/// Returns the x of a lane, without ordering memory.
inline std::uint32_t shuffle(std::uint32_t x, std::uint32_t lane) {
  if (lane >= 32) current().fail(Kind::kOutside, "shuffle from " + std::to_string(lane));
  struct Arguments {
    std::uint32_t given, lane, got;
  } mine{x, lane, 0};
  call_together<32>("shfl.sync.idx", 0, mine, [](Arguments* const(&all)[32]) {
    for (Arguments* arguments : all) arguments->got = all[arguments->lane]->given;
    current().add(kShuffles);
  });
  return mine.got;
}

/// Votes, without ordering memory.
inline bool vote_any(bool x) {
  bool mine = x;
  call_together<32>("vote.sync.any", 0, mine, [](bool* const(&all)[32]) {
    bool any = false;
    for (const bool* flag : all) any = any || *flag;
    for (bool* flag : all) *flag = any;
  });
  return mine;
}

}  // namespace emulator
