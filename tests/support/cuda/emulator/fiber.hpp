#pragma once

/// \file
/// Fibers: functions with their own stack that yield control explicitly. On x86-64 a switch takes a
/// few instructions. Other processors use the slower ucontext.
///
/// A fiber that is not resumed again is dropped with the contents of its stack. Functions that
/// suspend must therefore keep nothing on the stack that owns memory.

#include <sys/mman.h>

#include <cstddef>
#include <memory>
#include <new>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulator {

/// Memory for a stack, above a guard page.
class Stack {
 public:
  static constexpr std::size_t kGuard = 16384, kBytes = kGuard + (std::size_t{1} << 17);

  Stack()
      : memory_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    mprotect(memory_, kGuard, PROT_NONE);
  }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  ~Stack() { munmap(memory_, kBytes); }

  std::byte* begin() const { return static_cast<std::byte*>(memory_) + kGuard; }
  std::byte* end() const { return static_cast<std::byte*>(memory_) + kBytes; }

  /// The i-th stack of this operating system thread, kept for all launches.
  static Stack& pooled(std::size_t i) {
    static thread_local std::vector<std::unique_ptr<Stack>> pool;
    while (pool.size() <= i) pool.push_back(std::make_unique<Stack>());
    return *pool[i];
  }

 private:
  void* memory_;
};

#if defined(__x86_64__)
/// Pushes the registers that a called function must preserve, stores the stack pointer, and
/// continues where the other fiber left off.
[[gnu::naked, gnu::noinline]] inline void switch_stacks(void** /*rdi: save*/, void* /*rsi: load*/) {
  asm volatile(
      "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
      "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
      "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n"
      "ret\n");
}
#endif

class Fiber {
 public:
  /// Sets body(argument) as what the first resume runs. The body must not return: it suspends one
  /// last time. It must not throw.
  void prepare(Stack& stack, void (*body)(void*), void* argument) {
    body_ = body;
    argument_ = argument;
#if defined(__x86_64__)
    // Six registers, the return address, and one word that aligns the stack as after a call.
    void** top = reinterpret_cast<void**>(stack.end()) - 8;
    for (int i = 0; i < 8; ++i) top[i] = nullptr;
    top[6] = reinterpret_cast<void*>(&begin);
    inside_ = top;
#else
    getcontext(&inside_);
    inside_.uc_stack.ss_sp = stack.begin();
    inside_.uc_stack.ss_size = static_cast<std::size_t>(stack.end() - stack.begin());
    inside_.uc_link = nullptr;
    makecontext(&inside_, &begin, 0);
#endif
  }

  /// Runs the fiber until it suspends.
  void resume() {
    starting() = this;
#if defined(__x86_64__)
    switch_stacks(&outside_, inside_);
#else
    swapcontext(&outside_, &inside_);
#endif
  }

  /// Returns to the caller of resume. Called inside the fiber.
  void suspend() {
#if defined(__x86_64__)
    switch_stacks(&inside_, outside_);
#else
    swapcontext(&inside_, &outside_);
#endif
  }

 private:
  static Fiber*& starting() {
    static thread_local Fiber* fiber = nullptr;
    return fiber;
  }
  static void begin() {
    Fiber* self = starting();
    self->body_(self->argument_);
    __builtin_trap();
  }

  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
#if defined(__x86_64__)
  void* inside_ = nullptr;
  void* outside_ = nullptr;
#else
  ucontext_t inside_, outside_;
#endif
};

}  // namespace emulator
