#pragma once

/// \file
/// Bank conflicts. Shared memory has 32 banks of 4 bytes. An access of a warp is served in phases
/// of 32, 16 or 8 threads for 4, 8 or 16 bytes per thread. A phase takes as many passes as there
/// are different words in its busiest bank. The conflicts are that number less one.
///
/// Threads of a warp run one after another here. Their accesses are logged, and matched when the
/// warp synchronises: the i-th runs of the same call (its return address) belong together.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

namespace emulator {

/// Returns the passes beyond the first for a phase whose threads access `bytes` bytes at
/// `addresses`.
inline std::uint64_t phase_conflicts(const std::uint32_t* addresses, int count,
                                     std::uint32_t bytes) {
  std::uint32_t busy = 0;  // banks, each with one word
  bool once = true;
  for (int i = 0; i < count; ++i) {
    const std::uint32_t banks = ((1u << bytes / 4) - 1) << addresses[i] / 4 % 32;
    once = once && (busy & banks) == 0;
    busy |= banks;
  }
  if (once) return 0;
  std::array<std::array<std::uint32_t, 32>, 32> words;
  std::array<std::uint32_t, 32> used{};
  std::uint32_t most = 1;
  for (int i = 0; i < count; ++i) {
    for (std::uint32_t word = addresses[i] / 4; word < (addresses[i] + bytes) / 4; ++word) {
      auto& bank = words[word % 32];
      std::uint32_t& n = used[word % 32];
      if (std::find(bank.begin(), bank.begin() + n, word) != bank.begin() + n) continue;
      bank[n++] = word;
      most = std::max(most, n);
    }
  }
  return most - 1;
}

/// Accesses of a warp since it last synchronised.
class BankLog {
 public:
  void add(int lane, const void* call, std::uint32_t address, std::uint32_t bytes) {
    auto& log = lanes_[static_cast<std::size_t>(lane)];
    log.push_back({call, address, bytes, static_cast<std::uint32_t>(lane), 0});
    if (log.size() >= kLongest) flush();
  }

  /// Matches the logged accesses and clears the log.
  void flush() {
    if (!flush_alike()) flush_sorted();
    for (auto& log : lanes_) log.clear();
  }

  std::uint64_t conflicts() const { return conflicts_; }

 private:
  static constexpr std::size_t kLongest = 1 << 14;

  struct Entry {
    const void* call;
    std::uint32_t address, bytes, lane, run;  ///< run: earlier runs of the call in the lane
  };

  /// Counts an access of a warp, by threads in ascending order.
  void count(const Entry* const* entries, int threads) {
    const std::uint32_t bytes = entries[0]->bytes;
    const std::uint32_t lanes = bytes == 16 ? 8 : bytes == 8 ? 16 : 32;
    std::uint32_t addresses[32];
    for (int i = 0; i < threads;) {
      const std::uint32_t phase = entries[i]->lane / lanes;
      int n = 0;
      for (; i < threads && entries[i]->lane / lanes == phase; ++i) {
        addresses[n++] = entries[i]->address;
      }
      conflicts_ += phase_conflicts(addresses, n, bytes);
    }
  }

  /// Matches the accesses if all threads with accesses ran the same calls. Returns false otherwise.
  bool flush_alike() {
    const std::vector<Entry>* logs[32];
    int threads = 0;
    for (const auto& log : lanes_) {
      if (!log.empty()) logs[threads++] = &log;
    }
    for (int t = 1; t < threads; ++t) {
      const auto same = [](const Entry& a, const Entry& b) { return a.call == b.call; };
      if (!std::equal(logs[t]->begin(), logs[t]->end(), logs[0]->begin(), logs[0]->end(), same)) {
        return false;
      }
    }
    const Entry* entries[32];
    for (std::size_t i = 0; threads > 0 && i < logs[0]->size(); ++i) {
      for (int t = 0; t < threads; ++t) entries[t] = &(*logs[t])[i];
      count(entries, threads);
    }
    return true;
  }

  void flush_sorted() {
    const auto before = [](const Entry& a, const Entry& b) {
      return std::tie(a.call, a.run, a.lane) < std::tie(b.call, b.run, b.lane);
    };
    std::vector<Entry> all;
    for (auto& log : lanes_) {
      for (std::size_t i = 0; i < log.size(); ++i) log[i].run = static_cast<std::uint32_t>(i);
      std::sort(log.begin(), log.end(), before);
      for (std::size_t i = 0; i < log.size(); ++i) {
        const bool again = i > 0 && log[i].call == log[i - 1].call;
        log[i].run = again ? log[i - 1].run + 1 : 0;
      }
      all.insert(all.end(), log.begin(), log.end());
    }
    std::sort(all.begin(), all.end(), before);
    const Entry* entries[32];
    for (std::size_t i = 0; i < all.size();) {
      int threads = 0;
      const Entry& first = all[i];
      for (; i < all.size() && all[i].call == first.call && all[i].run == first.run; ++i) {
        entries[threads++] = &all[i];
      }
      count(entries, threads);
    }
  }

  std::array<std::vector<Entry>, 32> lanes_;
  std::uint64_t conflicts_ = 0;
};

}  // namespace emulator
