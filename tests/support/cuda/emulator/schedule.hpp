#pragma once

/// \file
/// Order of execution. A seed fixes one legal order of threads and of the ends of asynchronous
/// operations. Tests try several seeds.
///
///     seed 0            threads in turn; operations end as late as they may, in order
///     1, 4, 7, ...      any thread; operations end at any time, in any order
///     2, 5, 8, ...      warps by random rank, the first as long as it can; operations end late
///     3, 6, 9, ...      warps by random rank; operations end early

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace emulator {

class Schedule {
 public:
  explicit Schedule(std::uint64_t seed) : seed_(seed), state_(seed * 0x9E3779B97F4A7C15u) {}

  /// Returns the mixing function of splitmix64 over a counter.
  std::uint64_t random() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  /// Returns a number in [0, count). For seed 0 it is always 0.
  std::size_t below(std::size_t count) {
    return seed_ == 0 ? 0 : static_cast<std::size_t>(random() % count);
  }
  /// Returns true once in `of` times, never for seed 0.
  bool once_in(std::uint64_t of) { return seed_ != 0 && random() % of == 0; }

  /// Draws new ranks for the warps of a block. No thread is ready then.
  void begin(int warps) {
    ready_.clear();
    head_ = 0;
    count_ = 0;
    lanes_.assign(static_cast<std::size_t>(warps), 0);
    ranked_.resize(lanes_.size());
    std::iota(ranked_.begin(), ranked_.end(), std::size_t{0});
    for (std::size_t w = 0; w < ranked_.size(); ++w) {
      std::swap(ranked_[w], ranked_[w + below(ranked_.size() - w)]);
    }
  }
  void add(int thread) {
    ++count_;
    if (by_rank()) {
      lanes_[static_cast<std::size_t>(thread / 32)] |= 1u << thread % 32;
    } else {
      ready_.push_back(thread);
    }
  }
  bool any() const { return count_ > 0; }

  /// Takes a ready thread.
  int take() {
    --count_;
    if (by_rank()) {
      const auto warp = std::find_if(ranked_.begin(), ranked_.end(),
                                     [this](std::size_t w) { return lanes_[w] != 0; });
      const int lane = std::countr_zero(lanes_[*warp]);
      lanes_[*warp] &= lanes_[*warp] - 1;
      return static_cast<int>(*warp) * 32 + lane;
    }
    std::swap(ready_[head_], ready_[head_ + below(ready_.size() - head_)]);
    const int thread = ready_[head_++];
    if (head_ == ready_.size() || head_ > 4096) {
      ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(head_));
      head_ = 0;
    }
    return thread;
  }

  /// Returns true if an asynchronous operation ends although threads could run.
  bool end_operation() {
    if (seed_ == 0 || seed_ % 3 == 2) return false;
    return random() % (seed_ % 3 == 1 ? 64 : 2) == 0;
  }

 private:
  bool by_rank() const { return seed_ != 0 && seed_ % 3 != 1; }

  std::uint64_t seed_, state_;
  std::size_t count_ = 0;   ///< of ready threads
  std::vector<int> ready_;  ///< from head_ on, unless by rank
  std::size_t head_ = 0;
  std::vector<std::uint32_t> lanes_;  ///< ready lanes of each warp, if by rank
  std::vector<std::size_t> ranked_;   ///< warps, the first one first
};

}  // namespace emulator
