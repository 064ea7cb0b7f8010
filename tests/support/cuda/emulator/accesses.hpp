#pragma once

/// \file
/// Loads and stores of a thread. Counted by thread: "shared loads", "shared stores", "global
/// loads", "global stores".

#include <cstdint>
#include <cstring>

#include "emulator/block.hpp"

namespace emulator {

inline const Counter kSharedLoads{"shared loads"};
inline const Counter kSharedStores{"shared stores"};
inline const Counter kGlobalLoads{"global loads"};
inline const Counter kGlobalStores{"global stores"};

/// After a call that is to return here: the compiler cannot make it a jump.
[[gnu::always_inline]] inline void return_here() { asm volatile(""); }

/// The log of bank conflicts matches the accesses of a warp by where they return to, so these two
/// are functions that are called, each followed by return_here.
template <class T>
[[gnu::noinline]] T load_shared(std::uint32_t address) {
  Block& block = current();
  const Thread& t = block.self();
  T value;
  block.shared.check(t.index, address, sizeof(T), sizeof(T), "ld.shared");
  block.shared.read(t.index, address, sizeof(T), &value, "ld.shared");
  block.banks[static_cast<std::size_t>(t.warp)].add(t.lane, __builtin_return_address(0), address,
                                                    sizeof(T));
  block.add(kSharedLoads);
  return value;
}

template <class T>
[[gnu::noinline]] void store_shared(std::uint32_t address, T value) {
  Block& block = current();
  const Thread& t = block.self();
  block.shared.check(t.index, address, sizeof(T), sizeof(T), "st.shared");
  block.shared.write(t.index, address, sizeof(T), &value, "st.shared");
  block.banks[static_cast<std::size_t>(t.warp)].add(t.lane, __builtin_return_address(0), address,
                                                    sizeof(T));
  block.add(kSharedStores);
}

template <class T>
T load_global(const void* from, Read how) {
  Block& block = current();
  T value;
  block.global.read(block.who(), from, sizeof(T), sizeof(T), how, "ld.global");
  std::memcpy(&value, from, sizeof(T));
  block.add(kGlobalLoads);
  return value;
}

template <class T>
void store_global(void* to, T value) {
  Block& block = current();
  block.global.write(block.who(), to, sizeof(T), sizeof(T), "st.global");
  std::memcpy(to, &value, sizeof(T));
  block.add(kGlobalStores);
}

}  // namespace emulator
