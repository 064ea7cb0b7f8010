// Preloaded into a process: an allocation of one library fails on request. An allocation in
// libstdc++ is that of the function that called it.

#include <unwind.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
}

namespace {

/// Addresses of code.
struct Code {
  std::uintptr_t begin, end;
  bool has(std::uintptr_t address) const { return begin <= address && address < end; }
};
/// Code of this file, of libstdc++ and of the library.
Code own, standard, library;
std::atomic<bool> armed{false};
std::atomic<long> left{0};
thread_local bool looking = false;  // the search for a caller may allocate

/// True if the first function that is neither of this file nor of libstdc++ is of the library.
bool is_of_library() {
  bool found = false;
  _Unwind_Backtrace(
      [](_Unwind_Context* context, void* result) {
        const std::uintptr_t address = _Unwind_GetIP(context);
        if (own.has(address) || standard.has(address)) return _URC_NO_REASON;
        *static_cast<bool*>(result) = library.has(address);
        return _URC_END_OF_STACK;
      },
      &found);
  return found;
}

bool fails() {
  if (!armed || looking) return false;
  looking = true;
  const bool mine = is_of_library();
  looking = false;
  return mine && left-- == 0;
}

}  // namespace

extern "C" {
/// Lets allocation number `which` of a library fail.
/// \param code  begins and ends of the code of this file, of libstdc++ and of the library
void fail_allocation(const std::uintptr_t* code, long which) {
  own = {code[0], code[1]};
  standard = {code[2], code[3]};
  library = {code[4], code[5]};
  left = which;
  armed = true;
}
/// True if an allocation failed since then. None fails any more.
bool has_failed() {
  armed = false;
  return left < 0;
}

void* malloc(std::size_t bytes) { return fails() ? nullptr : __libc_malloc(bytes); }
void* calloc(std::size_t count, std::size_t bytes) {
  return fails() ? nullptr : __libc_calloc(count, bytes);
}
void* realloc(void* old, std::size_t bytes) {
  return fails() ? nullptr : __libc_realloc(old, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return fails() ? nullptr : __libc_memalign(alignment, bytes);
}
int posix_memalign(void** to, std::size_t alignment, std::size_t bytes) {
  void* const memory = aligned_alloc(alignment, bytes);
  if (memory == nullptr) return ENOMEM;
  *to = memory;
  return 0;
}
}
