#pragma once

/// \file
/// Device memory: the ranges that kernels may access, and for each 4 bytes of them the writers and
/// readers in the launch.
///
/// Blocks of a grid are ordered by counters alone (releases.hpp). Otherwise no block may access
/// what another writes. Threads of a block may exchange device memory through barriers, with
/// coherent reads. Memory that is read as constant must not be written in the launch.
///
/// If a launch begins early, the previous launch may still run. Only threads that are ordered after
/// a wait of their block (griddepcontrol.wait) may read what that launch wrote, or write what it
/// accessed. They must not read it as constant. Each block waits before it lets the next launch
/// begin, and before it ends. Earlier launches have therefore ended before the next launch begins.
///
/// To extend: read and write check and count; the caller moves the bytes.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "emulator/clocks.hpp"
#include "emulator/counters.hpp"
#include "emulator/fault.hpp"
#include "emulator/releases.hpp"

namespace emulator {

/// Relation of a read to writes. kConstant: ld.global.nc. kTensor: a tensor copy, which does not
/// see writes of the launch. kCoherent: sees earlier writes.
enum class Read { kConstant, kTensor, kCoherent };

class GlobalMemory {
 public:
  /// Lets kernels access a range: multiples of 4 bytes, aligned to 4.
  void track(const std::string& name, const void* pointer, std::size_t bytes, Access access);

  /// \param early  the launch starts before the previous one has ended
  void begin_launch(bool early) {
    early_ = early;
    running_begin_ = early ? launch_begin_ : serial_ + 1;
    launch_begin_ = serial_ + 1;
    for (Range& r : ranges_) r.traffic = {};
    releases_.begin_launch();
  }
  void begin_block(const Clocks& clocks, const Place& place) {
    ++serial_;
    clocks_ = &clocks;
    place_ = &place;
    lists_.clear();
    waits_.clear();
    waited_.assign(static_cast<std::size_t>(clocks.threads()), false);
    releases_.begin_block();
  }
  void end_block() const {
    if (early_ && waits_.empty()) {
      place_->fail(Kind::kRaceGlobal, 0, "the block ends without griddepcontrol.wait");
    }
  }

  /// Thread `who` waits until the previous launch has ended.
  void wait_for_kernels(Actor who) { waits_.push_back(clocks_->now(who)); }
  /// Thread `who` lets the next launch begin.
  void launch_dependents(Actor who) const {
    if (early_ && !waited(who)) {
      place_->fail(Kind::kRaceGlobal, who,
                   "griddepcontrol.launch_dependents is not ordered after griddepcontrol.wait");
    }
  }

  /// Thread `who` reads. The read counts as traffic.
  void read(Actor who, const void* from, std::size_t bytes, std::size_t alignment, Read how,
            const char* what);
  /// Checks the end of a coherent read that takes time. It is not counted again.
  void read_again(Actor who, const void* from, std::size_t bytes, const char* what);
  /// Thread `who` writes.
  void write(Actor who, const void* to, std::size_t bytes, std::size_t alignment,
             const char* what) {
    write(who, clocks_->now(who), to, bytes, alignment, what);
  }
  /// An operation of thread `who` writes. Threads that see the epoch can read it in the launch.
  void write(Actor who, Epoch as, const void* to, std::size_t bytes, std::size_t alignment,
             const char* what);

  /// Thread `who` adds to a counter or reads it. It then releases what `seen` has, or acquires.
  void count(Actor who, const void* counter, const char* what);
  void release(const void* counter, Vector seen) {
    releases_.release(counter, serial_, std::move(seen));
  }
  void acquire(Actor who, const void* counter, std::uint32_t count) {
    releases_.acquire(counter, count, clocks_->now(who));
  }

  void report(Report& report) const {
    for (const Range& r : ranges_) {
      report.traffic[r.name].read += r.traffic.read;
      report.traffic[r.name].written += r.traffic.written;
    }
  }

 private:
  static constexpr Actor kSeveral = 0xFFFE;

  /// State of 4 bytes. Serial numbers count blocks over all launches.
  struct Granule {
    std::uint32_t write_serial = 0, read_serial = 0, constant_serial = 0;
    Clock write_clock = 0, read_clock = 0;
    Actor writer = 0, reader = 0;
  };
  /// Zeros. A launch touches few pages of long ranges, and only those take memory.
  struct Free {
    void operator()(Granule* granules) const { std::free(granules); }
  };
  using Granules = std::unique_ptr<Granule[], Free>;
  static Granules granules_of(std::size_t bytes) {
    void* const zeros = std::calloc(bytes / 4, sizeof(Granule));
    if (zeros == nullptr && bytes > 0) throw std::bad_alloc();
    return Granules(static_cast<Granule*>(zeros));
  }
  struct Range {
    std::string name;
    std::uintptr_t begin, end;
    Access access;
    Traffic traffic;
    Granules granules;
  };

  Granule* locate(Actor who, const void* pointer, std::size_t bytes, std::size_t alignment,
                  Access access, const char* what);
  bool now(std::uint32_t serial) const { return serial >= launch_begin_; }
  bool ordered(Actor who, std::uint32_t serial, Epoch e) const {
    return serial == serial_ ? clocks_->sees(who, e) : releases_.ordered(*clocks_, who, serial, e);
  }
  /// Returns true if an access of the previous launch may still be in flight.
  bool running(std::uint32_t serial) const { return serial >= running_begin_ && !now(serial); }
  /// Returns true if the thread is ordered after a wait of its block. It then stays so.
  bool waited(Actor who) const {
    const auto seen = [&](const Epoch& wait) { return clocks_->sees(who, wait); };
    if (!waited_[who]) waited_[who] = std::any_of(waits_.begin(), waits_.end(), seen);
    return waited_[who];
  }
  bool readers_ordered(Actor who, const Granule& g) const;
  void note_read(Actor who, Granule& g);
  [[noreturn]] void fail(Kind kind, Actor who, const void* pointer, const char* what,
                         const std::string& text) const;

  std::vector<Range> ranges_;  ///< sorted by address
  std::size_t latest_ = 0;
  std::uint32_t serial_ = 0, launch_begin_ = 1;
  std::uint32_t running_begin_ = 1;  ///< of the previous launch, if it may still run
  bool early_ = false;
  std::vector<Epoch> waits_;          ///< the block's waits for the previous launch
  mutable std::vector<bool> waited_;  ///< by thread, true if it is known to be ordered after a wait
  std::unordered_map<const Granule*, Vector> lists_;  ///< reads of this block by several threads
  Releases releases_;
  const Clocks* clocks_ = nullptr;
  const Place* place_ = nullptr;
};

// -------------------------------------------------------------------------------------------------

inline void GlobalMemory::track(const std::string& name, const void* pointer, std::size_t bytes,
                                Access access) {
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
  if (begin % 4 != 0 || bytes % 4 != 0) {
    throw std::invalid_argument("emulator: range " + name + " is not of whole 4 bytes");
  }
  for (const Range& r : ranges_) {
    if (begin < r.end && r.begin < begin + bytes) {
      throw std::invalid_argument("emulator: range " + name + " overlaps " + r.name);
    }
  }
  ranges_.push_back({name, begin, begin + bytes, access, {}, granules_of(bytes)});
  std::sort(ranges_.begin(), ranges_.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
}

inline GlobalMemory::Granule* GlobalMemory::locate(Actor who, const void* pointer,
                                                   std::size_t bytes, std::size_t alignment,
                                                   Access access, const char* what) {
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
  const auto inside = [&](const Range& r) { return begin >= r.begin && begin + bytes <= r.end; };
  if (begin % alignment != 0) {
    fail(Kind::kOutside, who, pointer, what,
         "is not at a multiple of " + std::to_string(alignment));
  }
  if (latest_ >= ranges_.size() || !inside(ranges_[latest_])) {
    const auto after =
        std::upper_bound(ranges_.begin(), ranges_.end(), begin,
                         [](std::uintptr_t a, const Range& r) { return a < r.begin; });
    if (after == ranges_.begin() || !inside(*(after - 1))) {
      fail(Kind::kOutside, who, pointer, what,
           "of " + std::to_string(bytes) + " bytes is not inside a tracked range");
    }
    latest_ = static_cast<std::size_t>(after - 1 - ranges_.begin());
  }
  Range& r = ranges_[latest_];
  if ((static_cast<int>(r.access) & static_cast<int>(access)) == 0) {
    fail(Kind::kOutside, who, pointer, what, "is not allowed there");
  }
  (access == Access::kRead ? r.traffic.read : r.traffic.written) += bytes;
  return &r.granules[(begin - r.begin) / 4];
}

inline void GlobalMemory::read(Actor who, const void* from, std::size_t bytes,
                               std::size_t alignment, Read how, const char* what) {
  Granule* g = locate(who, from, bytes, alignment, Access::kRead, what);
  for (Granule* const end = g + bytes / 4; g != end; ++g) {
    const bool written = now(g->write_serial);
    if (running(g->write_serial) && (how == Read::kConstant || !waited(who))) {
      fail(Kind::kRaceGlobal, who, from, what,
           how == Read::kConstant
               ? "as constant of what a kernel wrote that may run with this one"
               : "of what the kernel before wrote is not ordered after griddepcontrol.wait");
    }
    if (how != Read::kCoherent) {
      if (written) {
        fail(Kind::kRaceGlobal, who, from, what,
             "as constant of what thread " + std::to_string(g->writer) + " of " +
                 (g->write_serial == serial_ ? "this" : "another") + " block wrote");
      }
      g->constant_serial = serial_;
    } else {
      if (written && !ordered(who, g->write_serial, {g->writer, g->write_clock})) {
        fail(Kind::kRaceGlobal, who, from, what,
             "is not ordered after the write of thread " + std::to_string(g->writer));
      }
      note_read(who, *g);
    }
  }
}

inline void GlobalMemory::read_again(Actor who, const void* from, std::size_t bytes,
                                     const char* what) {
  read(who, from, bytes, 4, Read::kCoherent, what);
  ranges_[latest_].traffic.read -= bytes;
}

inline void GlobalMemory::write(Actor who, Epoch as, const void* to, std::size_t bytes,
                                std::size_t alignment, const char* what) {
  Granule* g = locate(who, to, bytes, alignment, Access::kWrite, what);
  for (Granule* const end = g + bytes / 4; g != end; ++g) {
    if ((running(g->write_serial) || running(g->read_serial) || running(g->constant_serial)) &&
        !waited(who)) {
      fail(Kind::kRaceGlobal, who, to, what,
           "of what the kernel before uses is not ordered after griddepcontrol.wait");
    }
    if (now(g->constant_serial)) {
      fail(Kind::kRaceGlobal, who, to, what, "of what was read as constant in the launch");
    }
    if (now(g->write_serial) && !ordered(who, g->write_serial, {g->writer, g->write_clock})) {
      fail(Kind::kRaceGlobal, who, to, what,
           "is not ordered after the write of thread " + std::to_string(g->writer) + " of " +
               (g->write_serial == serial_ ? "this" : "another") + " block");
    }
    if (now(g->read_serial) && !readers_ordered(who, *g)) {
      fail(Kind::kRaceGlobal, who, to, what, "is not ordered after a read");
    }
    g->write_serial = serial_;
    g->writer = as.actor;
    g->write_clock = as.clock;
    g->read_serial = 0;
  }
}

inline void GlobalMemory::count(Actor who, const void* counter, const char* what) {
  const Granule* g = locate(who, counter, 4, 4, Access::kWrite, what);
  if (now(g->write_serial) || now(g->read_serial) || now(g->constant_serial) ||
      (running(g->write_serial) && !waited(who))) {
    fail(Kind::kRaceGlobal, who, counter, what, "of what other instructions access meanwhile");
  }
}

inline bool GlobalMemory::readers_ordered(Actor who, const Granule& g) const {
  if (g.reader != kSeveral) return ordered(who, g.read_serial, {g.reader, g.read_clock});
  const auto list = lists_.find(&g);
  if (list == lists_.end()) return false;  // reads of an earlier block
  return clocks_->sees_all(who, list->second) && g.read_serial == serial_;
}

inline void GlobalMemory::note_read(Actor who, Granule& g) {
  const Epoch e = clocks_->now(who);
  if (!now(g.read_serial) || (g.reader != kSeveral && g.read_serial == serial_ &&
                              clocks_->sees(who, {g.reader, g.read_clock}))) {
    g.read_serial = serial_;
    g.reader = who;
    g.read_clock = e.clock;
    return;
  }
  if (g.read_serial != serial_) {  // several blocks: no write is ordered after them
    g.reader = kSeveral;
    return;
  }
  Vector& list = lists_[&g];
  list.resize(static_cast<std::size_t>(clocks_->threads()));
  if (g.reader != kSeveral) list[g.reader] = g.read_clock;
  list[who] = e.clock;
  g.reader = kSeveral;
}

inline void GlobalMemory::fail(Kind kind, Actor who, const void* pointer, const char* what,
                               const std::string& text) const {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  std::ostringstream place;
  for (const Range& r : ranges_) {
    if (address + 256 < r.begin || address > r.end + 256) continue;
    place << " [" << r.name << " + " << static_cast<std::intptr_t>(address - r.begin) << " of "
          << r.end - r.begin << " bytes]";
  }
  place_->fail(kind, who, std::string(what) + " at device address " + place.str() + " " + text);
}

}  // namespace emulator
