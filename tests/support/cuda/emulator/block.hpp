#pragma once

/// \file
/// A running block of threads: its fibers, their waits, its memory and clocks.
///
/// Instructions are functions that get the block and its thread from current(). They also use:
///     block.suspend("what it waits for", number)   until another thread or an operation calls
///     block.resume(thread)                         for it; WaitList does both for a condition
///     block.start(operation)                       an asynchronous operation: `end` is called at
///     block.finish(operation)                      a time the schedule chooses, or by finish
///     block.part<T>()                              state of an extension, T(Block&) at first use
///     block.fail(kind, text)                       ends the launch
/// Functions that suspend keep nothing on their stack that owns memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "emulator/banks.hpp"
#include "emulator/clocks.hpp"
#include "emulator/counters.hpp"
#include "emulator/fault.hpp"
#include "emulator/fiber.hpp"
#include "emulator/global_memory.hpp"
#include "emulator/schedule.hpp"
#include "emulator/shared_memory.hpp"

namespace emulator {

class Block;

/// The block that runs on this thread of the operating system.
inline constinit thread_local Block* current_block = nullptr;
inline Block& current() { return *current_block; }

/// An asynchronous operation.
struct Operation {
  virtual ~Operation() = default;
  /// Performs the operation: moves the bytes, and wakes waiting threads. Called once.
  virtual void end() = 0;

  int thread = 0;  ///< the thread that started it
  bool ended = false;
};

struct Thread {
  Actor index = 0;
  int warp = 0, lane = 0;
  bool ended = false;
  bool waits = false;
  const char* waits_for = "";
  std::uint64_t number = 0;
  Fiber fiber;
};

/// Threads that call some instructions together: a warp, or four warps.
struct Group {
  const char* instruction = nullptr;  ///< that some of the threads have called
  std::uint64_t parameter = 0;
  int arrived = 0, ended = 0;
  void* arguments[128] = {};
};

class Block {
 public:
  /// \param at  index of the block among the grid's `blocks`
  Block(int threads, std::uint32_t shared_bytes, std::uint32_t blocks, std::uint32_t at,
        Schedule& order, GlobalMemory& device, Report& report)
      : place{at},
        grid(blocks),
        clocks(threads),
        shared(shared_bytes, clocks, place),
        global(device),
        schedule(order),
        warps(static_cast<std::size_t>(threads / 32)),
        quads(static_cast<std::size_t>((threads + 127) / 128)),
        banks(warps.size()),
        threads_(static_cast<std::size_t>(threads)),
        report_(report) {
    global.begin_block(clocks, place);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  /// Runs body(argument) in every thread.
  /// \throws Fault, and any exception of the body.
  void run(void (*body)(const void*), const void* argument);

  int threads() const { return static_cast<int>(threads_.size()); }
  bool has_ended() const {
    return std::all_of(threads_.begin(), threads_.end(), [](const Thread& t) { return t.ended; });
  }
  Thread& thread(int i) { return threads_[static_cast<std::size_t>(i)]; }
  /// The running thread, or the thread whose operation ends.
  Thread& self() { return *self_; }
  Actor who() const { return self_->index; }

  [[noreturn]] void fail(Kind kind, const std::string& text) const {
    place.fail(kind, self_->index, text);
  }
  void add(const Counter& counter) {
    if (report_.counts.size() <= counter.index()) report_.counts.resize(counter.index() + 1);
    ++report_.counts[counter.index()];
  }

  /// Stops the running thread until resume is called for it.
  void suspend(const char* waits_for, std::uint64_t number = 0) {
    Thread& t = *self_;
    t.waits = true;
    t.waits_for = waits_for;
    t.number = number;
    t.fiber.suspend();
  }
  void resume(int i) {
    thread(i).waits = false;
    schedule.add(i);
  }
  /// Lets other threads run first if the schedule chooses so.
  void pause() {
    if (!schedule.once_in(4)) return;
    resume(self_->index);
    self_->fiber.suspend();
  }

  /// Starts an operation on behalf of the running thread.
  void start(std::shared_ptr<Operation> operation) {
    operation->thread = self_->index;
    operations_.push_back(std::move(operation));
  }
  /// Ends the operation now, unless it has ended.
  void finish(Operation& operation) {
    if (operation.ended) return;
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      if (operations_[i].get() == &operation) return end_operation(i);
    }
  }

  /// Returns the block's object of type T.
  template <class T>
  T& part() {
    const std::size_t i = part_index<T>();
    if (parts_.size() <= i) parts_.resize(i + 1);
    if (parts_[i] == nullptr) parts_[i] = std::make_shared<T>(*this);
    return *static_cast<T*>(parts_[i].get());
  }

  Place place;
  std::uint32_t grid;  // blocks of the grid
  Clocks clocks;
  SharedMemory shared;
  GlobalMemory& global;
  Schedule& schedule;
  std::vector<Group> warps;
  std::vector<Group> quads;                     ///< groups of four warps
  std::vector<BankLog> banks;                   ///< per warp
  std::vector<void (*)(Block&)> at_thread_end;  ///< checks of parts when a thread ends
  std::uint64_t conflicts = 0;                  ///< bank conflicts of unmatched accesses

 private:
  static inline std::size_t part_count = 0;
  template <class T>
  static std::size_t part_index() {
    static const std::size_t index = part_count++;
    return index;
  }

  static void enter(void* block);
  void end_thread();
  void end_operation(std::size_t i);
  [[noreturn]] void fail_deadlock();

  std::vector<Thread> threads_;
  Thread* self_ = nullptr;
  std::vector<std::shared_ptr<Operation>> operations_;
  std::vector<std::shared_ptr<void>> parts_;
  Report& report_;
  void (*body_)(const void*) = nullptr;
  const void* argument_ = nullptr;
  std::exception_ptr exception_;
};

/// Threads that wait for a condition. Code that may have changed the condition calls wake.
class WaitList {
 public:
  template <class Condition>
  void wait(Block& block, const Condition& met, const char* waits_for, std::uint64_t number = 0) {
    while (!met()) {
      waiting_.push_back(block.self().index);
      block.suspend(waits_for, number);
    }
  }
  void wake(Block& block) {
    for (const int t : waiting_) block.resume(t);
    waiting_.clear();
  }

 private:
  std::vector<int> waiting_;
};

// -------------------------------------------------------------------------------------------------

inline void Block::run(void (*body)(const void*), const void* argument) {
  body_ = body;
  argument_ = argument;
  schedule.begin(threads() / 32);
  for (int i = 0; i < threads(); ++i) {
    Thread& t = thread(i);
    t.index = static_cast<Actor>(i);
    t.warp = i / 32;
    t.lane = i % 32;
    t.fiber.prepare(Stack::pooled(static_cast<std::size_t>(i)), &enter, this);
    schedule.add(i);
  }
  struct Restore {
    Block* before;
    ~Restore() { current_block = before; }
  } const restore{current_block};
  current_block = this;
  for (;;) {
    if (!operations_.empty() && (!schedule.any() || schedule.end_operation())) {
      end_operation(schedule.below(operations_.size()));
      continue;
    }
    if (!schedule.any()) break;
    self_ = &thread(schedule.take());
    self_->fiber.resume();
    if (exception_ != nullptr) std::rethrow_exception(exception_);
  }
  for (const Thread& t : threads_) {
    if (!t.ended) fail_deadlock();
  }
  for (BankLog& log : banks) {
    log.flush();
    conflicts += log.conflicts();
  }
  report_.bank_conflicts += conflicts;
}

inline void Block::enter(void* block) {
  Block& b = *static_cast<Block*>(block);
  try {
    b.body_(b.argument_);
    b.end_thread();
  } catch (...) {
    b.exception_ = std::current_exception();
  }
  b.self_->fiber.suspend();
}

inline void Block::end_thread() {
  self_->ended = true;
  for (void (*const check)(Block&) : at_thread_end) check(*this);
  for (Group* group : {&warps[static_cast<std::size_t>(self_->warp)],
                       &quads[static_cast<std::size_t>(self_->warp / 4)]}) {
    ++group->ended;
    if (group->instruction == nullptr) continue;
    fail(Kind::kDivergent,
         std::string("ended while other threads of its group wait in ") + group->instruction);
  }
}

inline void Block::end_operation(std::size_t i) {
  const std::shared_ptr<Operation> operation = operations_[i];
  operations_.erase(operations_.begin() + static_cast<std::ptrdiff_t>(i));
  operation->ended = true;
  Thread* const before = self_;
  self_ = &thread(operation->thread);
  operation->end();
  self_ = before;
}

inline void Block::fail_deadlock() {
  std::string text = "all threads wait:";
  const auto alike = [](const Thread& a, const Thread& b) {
    return a.ended == b.ended && a.waits_for == b.waits_for && a.number == b.number;
  };
  for (int first = 0; first < threads();) {
    int last = first;
    while (last + 1 < threads() && alike(thread(first), thread(last + 1))) ++last;
    text += (first == 0 ? " " : "; ") + std::to_string(first);
    if (last != first) text += " to " + std::to_string(last);
    const Thread& t = thread(first);
    if (t.ended) {
      text += " ended";
    } else {
      text += std::string(" in ") + t.waits_for + " " + std::to_string(t.number);
    }
    first = last + 1;
  }
  fail(Kind::kDeadlock, text);
}

}  // namespace emulator
