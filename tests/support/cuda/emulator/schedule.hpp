#pragma once

/// \file
/// Who goes next. A seed fixes one legal order of threads and of the ends of asynchronous
/// operations; tests try several.
///
///     seed 0            threads in turn; operations end as late as they may, in order
///     1, 4, 7, ...      any thread; operations end at any time, in any order
///     2, 5, 8, ...      warps by random rank, the first as long as it can; operations end late
///     3, 6, 9, ...      warps by random rank; operations end early

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace emulator {

class Schedule {
 public:
  explicit Schedule(std::uint64_t seed) : seed_(seed), state_(seed * 0x9E3779B97F4A7C15u) {}

  /// The mixing function of splitmix64 over a counter.
  std::uint64_t random() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  /// In [0, count). For seed 0 always 0.
  std::size_t below(std::size_t count) {
    return seed_ == 0 ? 0 : static_cast<std::size_t>(random() % count);
  }
  /// Yes once in `of` times, never for seed 0.
  bool once_in(std::uint64_t of) { return seed_ != 0 && random() % of == 0; }

  /// New ranks for the warps of a block; no thread is ready.
  void begin(int warps) {
    ready_.clear();
    head_ = 0;
    ranks_.clear();
    for (int w = 0; w < warps; ++w) ranks_.push_back(static_cast<int>(random() >> 40));
  }
  void add(int thread) { ready_.push_back(thread); }
  bool any() const { return head_ < ready_.size(); }
  std::size_t ready() const { return ready_.size() - head_; }

  /// Takes a ready thread.
  int take() {
    std::size_t at = head_;
    if (by_rank()) {
      for (std::size_t i = head_ + 1; i < ready_.size(); ++i) {
        if (rank(ready_[i]) < rank(ready_[at])) at = i;
      }
    } else {
      at += below(ready());
    }
    const int thread = ready_[at];
    ready_[at] = ready_[head_++];
    if (head_ == ready_.size()) ready_.clear(), head_ = 0;
    if (head_ > 4096) {
      ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(head_));
      head_ = 0;
    }
    return thread;
  }

  /// Whether an asynchronous operation ends while threads could run.
  bool end_operation() {
    if (seed_ == 0 || seed_ % 3 == 2) return false;
    return random() % (seed_ % 3 == 1 ? 64 : 2) == 0;
  }

 private:
  bool by_rank() const { return seed_ != 0 && seed_ % 3 != 1; }
  int rank(int thread) const { return ranks_[static_cast<std::size_t>(thread / 32)]; }

  std::uint64_t seed_, state_;
  std::vector<int> ready_, ranks_;
  std::size_t head_ = 0;
};

}  // namespace emulator
