#pragma once

/// \file
/// Permissions and faults of kernels. A fault ends the launch with an exception that names the
/// broken rule, the thread and block, and the place. To extend: add a kind and its name; throw
/// through Block::fail or Place::fail.

#include <cstdint>
#include <stdexcept>
#include <string>

namespace emulator {

/// Permitted accesses of kernels to a range.
enum class Access { kRead = 1, kWrite = 2, kReadWrite = 3 };

enum class Kind {
  kUninitialized,  ///< a read of shared memory that was never written
  kRace,           ///< two accesses of shared memory, one a write, that no barrier orders
  kEarlyRead,      ///< a read of bytes that an asynchronous copy may still be about to write
  kSlotInUse,      ///< a write of bytes that an asynchronous operation or earlier readers still use
  kProxy,          ///< accesses through different proxies without a fence between them
  kDeadlock,       ///< no thread can go on and no asynchronous operation is left
  kOutside,        ///< an address outside of what may be touched, or misaligned
  kRaceGlobal,     ///< two accesses of device memory, one a write, that nothing orders
  kRegisters,      ///< registers of an asynchronous product touched before its end
  kDivergent,      ///< threads that must call together do not
  kBytes,          ///< a barrier got more bytes or arrivals than it expects
};

constexpr const char* name(Kind kind) {
  switch (kind) {
    case Kind::kUninitialized:
      return "uninitialized";
    case Kind::kRace:
      return "race";
    case Kind::kEarlyRead:
      return "early read";
    case Kind::kSlotInUse:
      return "slot in use";
    case Kind::kProxy:
      return "proxy";
    case Kind::kDeadlock:
      return "deadlock";
    case Kind::kOutside:
      return "outside";
    case Kind::kRaceGlobal:
      return "race in device memory";
    case Kind::kRegisters:
      return "registers";
    case Kind::kDivergent:
      return "divergent";
    case Kind::kBytes:
      return "bytes";
  }
  return "unknown";
}

class Fault : public std::runtime_error {
 public:
  Fault(Kind k, const std::string& text)
      : std::runtime_error(std::string(name(k)) + ": " + text), kind(k) {}

  Kind kind;
};

/// The running block.
struct Place {
  std::uint32_t block;

  [[noreturn]] void fail(Kind kind, int thread, const std::string& text) const {
    throw Fault(kind, "block " + std::to_string(block) + ", thread " + std::to_string(thread) +
                          ": " + text);
  }
};

}  // namespace emulator
