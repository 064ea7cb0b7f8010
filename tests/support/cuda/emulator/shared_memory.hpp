#pragma once

/// \file
/// Shared memory of a block: its bytes, and for each 4 bytes the clocks of their writers and
/// readers.
///
/// Threads read and write through the generic proxy with read and write. Asynchronous operations
/// use two steps. After begin_write the bytes are in flight and poisoned, and no other access is
/// allowed until end_write. After begin_read no write is allowed until end_read. A write in flight
/// becomes an ordinary write with the epoch that end_write names, a read likewise. Between the
/// steps `peek` returns the current bytes.
///
/// The clocks must order accesses; fault.hpp lists the kinds of faults. Accesses through the
/// asynchronous proxy must follow a fence of the thread that wrote the bytes through the generic
/// proxy.
///
/// To extend: new instructions are combinations of these calls; `what` goes into messages.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "emulator/clocks.hpp"
#include "emulator/fault.hpp"

namespace emulator {

enum class Proxy { kGeneric, kAsync };

class SharedMemory {
 public:
  /// Address of the first byte; a multiple of 1024.
  static constexpr std::uint32_t kBegin = 1024;

  SharedMemory(std::uint32_t bytes, const Clocks& clocks, const Place& place)
      : bytes_((bytes + 3) / 4 * 4, 0xFF),
        granules_(bytes_.size() / 4),
        clocks_(clocks),
        place_(place) {}

  /// Checks that `bytes` bytes, aligned to `alignment`, are inside shared memory.
  void check(Actor who, std::uint32_t address, std::uint32_t bytes, std::uint32_t alignment,
             const char* what) const {
    if (address >= kBegin && std::size_t{address - kBegin} + bytes <= bytes_.size() &&
        address % alignment == 0) {
      return;
    }
    fail_outside(who, address, bytes, alignment, what);
  }

  /// A thread reads multiples of 4 bytes, aligned to 4.
  void read(Actor who, std::uint32_t address, std::uint32_t bytes, void* to, const char* what) {
    for_each(locate(who, address, bytes, what), bytes, [&](Granule& g) {
      check_read(who, g, what);
      note_read(clocks_.now(who), g);
    });
    std::memcpy(to, at(address), bytes);
  }

  /// A thread writes.
  void write(Actor who, std::uint32_t address, std::uint32_t bytes, const void* from,
             const char* what) {
    for_each(locate(who, address, bytes, what), bytes, [&](Granule& g) {
      check_write(who, g, false, what);
      forget_readers(g);
      note_write(clocks_.now(who), kWritten, g);
    });
    std::memcpy(at(address), from, bytes);
  }

  /// Begins a write of an operation that thread `who` starts.
  void begin_write(Actor who, std::uint32_t address, std::uint32_t bytes, Proxy proxy,
                   const char* what) {
    for_each(locate(who, address, bytes, what), bytes, [&](Granule& g) {
      check_write(who, g, true, what);
      if (proxy == Proxy::kAsync) check_proxy(who, g, what);
      forget_readers(g);
      note_write({who, 0}, kWriteInFlight, g);
    });
    std::memset(at(address), 0xFF, bytes);
  }

  /// Ends a write of an operation. Threads that see the epoch can read the bytes.
  void end_write(Epoch as, std::uint32_t address, std::uint32_t bytes, Proxy proxy,
                 const void* from) {
    const unsigned flags =
        kWritten | kCopied | (proxy == Proxy::kAsync ? unsigned{kThroughAsync} : 0);
    for_each(&granule(address), bytes, [&](Granule& g) { note_write(as, flags, g); });
    std::memcpy(at(address), from, bytes);
  }

  /// Begins a read of an operation that thread `who` starts, through the asynchronous proxy.
  void begin_read(Actor who, std::uint32_t address, std::uint32_t bytes, const char* what) {
    for_each(locate(who, address, bytes, what), bytes, [&](Granule& g) {
      check_read(who, g, what);
      check_proxy(who, g, what);
      ++g.readers;
    });
  }

  /// Ends a read of an operation. Threads that see the epoch, of any actor, can overwrite the
  /// bytes.
  void end_read(Epoch as, std::uint32_t address, std::uint32_t bytes) {
    for_each(&granule(address), bytes, [&](Granule& g) {
      --g.readers;
      note_operation(as, g);
    });
  }

  /// Returns the current bytes, unchecked.
  void peek(std::uint32_t address, std::uint32_t bytes, void* to) const {
    std::memcpy(to, &bytes_[address - kBegin], bytes);
  }

 private:
  static constexpr Actor kNobody = 0xFFFF, kSeveral = 0xFFFE;
  enum Flags : unsigned char {
    kWritten = 1,        ///< has been written
    kWriteInFlight = 2,  ///< an operation will write
    kCopied = 4,         ///< written by an asynchronous operation
    kThroughAsync = 8    ///< written through the asynchronous proxy
  };

  /// State of 4 bytes.
  struct Granule {
    Clock write_clock = 0;
    Clock read_clock = 0;  ///< with kSeveral readers: index in reads_ of the latest
    Actor writer = kNobody, reader = kNobody;
    std::uint32_t operations = 0;  ///< index in reads_ of the latest read by an operation
    std::uint16_t readers = 0;     ///< number of operations that read
    unsigned char flags = 0;

    bool operator==(const Granule&) const = default;
  };

  /// A read. `before` is the index of one before it since the bytes were written, or 0. Granules
  /// share reads.
  struct Read {
    Epoch as;
    std::uint32_t before;
  };
  /// The reads that follow when another one follows `before`.
  struct Step {
    Read read;
    std::uint32_t after;  ///< 0: the thread sees all reads before its own
  };

  unsigned char* at(std::uint32_t address) { return &bytes_[address - kBegin]; }
  Granule& granule(std::uint32_t address) { return granules_[(address - kBegin) / 4]; }
  Granule* locate(Actor who, std::uint32_t address, std::uint32_t bytes, const char* what) {
    check(who, address, bytes, 4, what);
    return &granule(address);
  }

  /// Calls visit(granule) for `bytes` bytes from `first` on. The next granules in the same state
  /// get its new state without a visit.
  template <class Visit>
  static void for_each(Granule* first, std::uint32_t bytes, const Visit& visit) {
    Granule* const end = first + bytes / 4;
    for (Granule* g = first; g != end;) {
      const Granule before = *g;
      visit(*g);
      const Granule& after = *g++;
      for (; g != end && *g == before; ++g) *g = after;
    }
  }

  void check_read(Actor who, const Granule& g, const char* what) const {
    const bool complete = (g.flags & (kWritten | kWriteInFlight)) == kWritten;
    if (complete && clocks_.sees(who, {g.writer, g.write_clock})) return;
    fail_read(who, g, what);
  }

  void check_write(Actor who, const Granule& g, bool asynchronous, const char* what) const {
    const bool idle = (g.flags & kWriteInFlight) == 0 && g.readers == 0;
    if (idle && (g.writer == kNobody || clocks_.sees(who, {g.writer, g.write_clock})) &&
        unseen_reader(who, g) == kNobody && unseen(who, g.operations) == kNobody) {
      return;
    }
    fail_write(who, g, asynchronous, what);
  }

  void check_proxy(Actor who, const Granule& g, const char* what) const {
    if (g.writer == kNobody || (g.flags & kThroughAsync) != 0) return;
    if (clocks_.fenced(who, {g.writer, g.write_clock})) return;
    fail(Kind::kProxy, who, g, what,
         "of bytes written through the generic proxy by thread " + std::to_string(g.writer) +
             ", which has not called fence_proxy_async since and before the barrier");
  }

  void note_write(Epoch as, unsigned flags, Granule& g) {
    g.writer = as.actor;
    g.write_clock = as.clock;
    g.flags = static_cast<unsigned char>(flags);
  }

  void note_read(Epoch as, Granule& g) {
    if (g.reader == kSeveral) {
      g.read_clock = reads_with(as, g.read_clock);
    } else if (g.reader != kNobody && !clocks_.sees(as.actor, {g.reader, g.read_clock})) {
      g.read_clock = reads_with(as, reads_with({g.reader, g.read_clock}, 0));
      g.reader = kSeveral;
    }
    if (g.reader != kSeveral || g.read_clock == 0) {
      g.reader = as.actor;
      g.read_clock = as.clock;
    }
  }

  /// Adds a read to the reads at `before`, unless they have it. Returns the index of the latest. It
  /// is 0 if the thread sees them all: whoever sees the new read then sees them too.
  std::uint32_t reads_with(Epoch as, std::uint32_t before) {
    Step& known = steps_[(before * 31 + as.actor + as.clock * 7) % steps_.size()];
    if (known.read.as == as && known.read.before == before) return known.after;
    bool sees_all = before != 0, noted = false;
    for (std::uint32_t i = before; i != 0; i = reads_[i].before) {
      sees_all = sees_all && clocks_.sees(as.actor, reads_[i].as);
      noted = noted || reads_[i].as == as;
    }
    std::uint32_t after = sees_all ? 0 : before;
    if (!sees_all && !noted) {
      reads_.push_back({as, before});
      after = static_cast<std::uint32_t>(reads_.size() - 1);
    }
    known = {{as, before}, after};
    return after;
  }

  void note_operation(Epoch as, Granule& g) {
    std::uint32_t before = g.operations;
    if (reads_[before].as.actor == as.actor) before = reads_[before].before;
    const Read& last = reads_.back();
    if (last.as != as || last.before != before) reads_.push_back({as, before});
    g.operations = static_cast<std::uint32_t>(reads_.size() - 1);
  }

  void forget_readers(Granule& g) {
    g.reader = kNobody;
    g.operations = 0;
  }

  /// Returns the actor of a read that `who` does not see, of the reads at `last`.
  Actor unseen(Actor who, std::uint32_t last) const {
    while (last != 0 && clocks_.sees(who, reads_[last].as)) last = reads_[last].before;
    return reads_[last].as.actor;
  }
  Actor unseen_reader(Actor who, const Granule& g) const {
    if (g.reader == kSeveral) return unseen(who, g.read_clock);
    return g.reader == kNobody || clocks_.sees(who, {g.reader, g.read_clock}) ? kNobody : g.reader;
  }

  [[noreturn]] void fail(Kind kind, Actor who, const Granule& g, const char* what,
                         const std::string& text) const {
    const auto offset = 4 * (&g - granules_.data());
    place_.fail(kind, who,
                std::string(what) + " at shared address " + std::to_string(kBegin + offset) +
                    " (byte " + std::to_string(offset) + ") " + text);
  }
  [[noreturn]] void fail_outside(Actor who, std::uint32_t address, std::uint32_t bytes,
                                 std::uint32_t alignment, const char* what) const;
  [[noreturn]] void fail_read(Actor who, const Granule& g, const char* what) const;
  [[noreturn]] void fail_write(Actor who, const Granule& g, bool asynchronous,
                               const char* what) const;

  std::vector<unsigned char> bytes_;
  std::vector<Granule> granules_;
  std::vector<Read> reads_{{{kNobody, 0}, 0}};
  std::vector<Step> steps_ = std::vector<Step>(1024);  ///< the latest, by a hash
  const Clocks& clocks_;
  const Place& place_;
};

// -------------------------------------------------------------------------------------------------

inline void SharedMemory::fail_outside(Actor who, std::uint32_t address, std::uint32_t bytes,
                                       std::uint32_t alignment, const char* what) const {
  place_.fail(Kind::kOutside, who,
              std::string(what) + " of " + std::to_string(bytes) + " bytes at shared address " +
                  std::to_string(address) + ", expected a multiple of " +
                  std::to_string(alignment) + " in [" + std::to_string(kBegin) + ", " +
                  std::to_string(kBegin + bytes_.size()) + ")");
}

inline void SharedMemory::fail_read(Actor who, const Granule& g, const char* what) const {
  const std::string writer = std::to_string(g.writer);
  if ((g.flags & kWriteInFlight) != 0) {
    fail(Kind::kEarlyRead, who, g, what,
         "of bytes that a copy of thread " + writer + " will write");
  }
  if ((g.flags & kWritten) == 0) fail(Kind::kUninitialized, who, g, what, "of unwritten bytes");
  if ((g.flags & kCopied) != 0) {
    fail(Kind::kEarlyRead, who, g, what, "not ordered after the copy (actor " + writer + ")");
  }
  fail(Kind::kRace, who, g, what, "not ordered after the write of thread " + writer);
}

inline void SharedMemory::fail_write(Actor who, const Granule& g, bool asynchronous,
                                     const char* what) const {
  const std::string writer = std::to_string(g.writer);
  if ((g.flags & kWriteInFlight) != 0) {
    fail(Kind::kSlotInUse, who, g, what,
         "of bytes that a copy of thread " + writer + " will write");
  }
  if (g.readers != 0) {
    fail(Kind::kSlotInUse, who, g, what, "of bytes that an asynchronous operation reads");
  }
  if (unseen(who, g.operations) != kNobody) {
    fail(Kind::kSlotInUse, who, g, what, "not ordered after the read of an asynchronous operation");
  }
  const Actor reader = unseen_reader(who, g);
  const bool copied = reader == kNobody && (g.flags & kCopied) != 0;
  fail(asynchronous || copied ? Kind::kSlotInUse : Kind::kRace, who, g, what,
       reader == kNobody ? "not ordered after the write of actor " + writer
                         : "not ordered after the read of thread " + std::to_string(reader));
}

}  // namespace emulator
