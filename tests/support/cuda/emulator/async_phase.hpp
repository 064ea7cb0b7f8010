#pragma once

/// \file
/// Counts of a barrier in shared memory. PTX ISA, "mbarrier": a phase ends when its arrivals have
/// come and as many bytes are completed as were expected. Bytes may be completed before they are
/// expected, as long as an arrival is missing.

#include <cstdint>
#include <string>

namespace emulator {

class Phase {
 public:
  /// Most arrivals, or bytes, that a barrier can count.
  static constexpr std::int64_t kLimit = (std::int64_t{1} << 20) - 1;

  explicit Phase(std::int64_t arrivals) : arrivals_(arrivals), missing_(arrivals) {}

  /// Each of these returns an error text, or an empty one. ended() grows when the phase ends.
  std::string expect(std::int64_t bytes) { return add(bytes, 0); }
  std::string complete(std::int64_t bytes) { return add(-bytes, 0); }
  std::string arrive() { return add(0, 1); }

  /// Number of phases that have ended.
  std::uint64_t ended() const { return ended_; }

  /// Returns true if a wait for that parity passes: the current phase has the other parity.
  bool passes(std::uint32_t parity) const { return (ended_ & 1) != parity; }

  std::string describe() const {
    return "phase " + std::to_string(ended_) + ", " + std::to_string(missing_) + " of " +
           std::to_string(arrivals_) + " arrivals and " + std::to_string(bytes_) + " bytes to come";
  }

 private:
  std::string add(std::int64_t bytes, std::int64_t arrivals) {
    if (missing_ < arrivals) return "an arrival beyond the count (" + describe() + ")";
    bytes_ += bytes;
    missing_ -= arrivals;
    if (bytes_ > kLimit || bytes_ < -kLimit) return "more bytes than can be counted";
    if (missing_ > 0) return {};
    if (bytes_ < 0) return "more bytes completed than expected (" + describe() + ")";
    if (bytes_ == 0) {
      ++ended_;
      missing_ = arrivals_;
    }
    return {};
  }

  std::int64_t arrivals_;
  std::int64_t missing_;    // arrivals of the current phase
  std::int64_t bytes_ = 0;  // expected and not yet completed
  std::uint64_t ended_ = 0;
};

}  // namespace emulator
