#pragma once

/// \file
/// Steps of planted kernels (emulator/planted.hpp): one instruction each, most of them on numbers
/// or slots of 16 bytes that the thread has for itself, or of the thread me() ^ x.

#include <cstdint>

#include "emulator/planted.hpp"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/copy_async.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/matrix.cuh"
#include "mhla/cuda/ptx/mbarrier.cuh"
#include "mhla/cuda/ptx/shared.cuh"

namespace emulator::planted {

namespace ptx = mhla::cuda::ptx;

// Barriers.
inline const Step barrier = [] { ptx::bar_sync(); };
inline const Step warp_barrier = [] { ptx::bar_warp_sync(); };
inline const Step shuffle = [] { ptx::shfl_bfly(0, 1); };  // no barrier, though all threads meet
inline Step meet(std::uint32_t id, std::uint32_t threads) {
  return [=] { ptx::bar_sync(id, threads); };
}

// Shared memory.
inline std::uint32_t word(std::uint32_t i) { return ptx::shared_begin() + 4 * i; }
inline Step store(std::uint32_t i) {
  return [=] { ptx::st_shared(word(i), 1); };
}
inline Step load(std::uint32_t i) {
  return [=] { ptx::ld_shared(word(i)); };
}
inline const Step write = [] { ptx::st_shared(word(me()), me()); };
inline Step read(std::uint32_t x) {
  return [=] { ptx::ld_shared(word(me() ^ x)); };
}
inline const Step write_slot = [] { ptx::st_shared_v4(word(4 * me()), {}); };
inline Step read_slot(std::uint32_t x) {
  return [=] { ptx::ld_shared_v4(word(4 * (me() ^ x))); };
}
inline Step read_matrices(std::uint32_t x) {
  return [=] { ptx::ldmatrix_x4(word(4 * (me() ^ x))); };
}

// Copies into the thread's slot.
inline Step copy(int from, std::uint32_t bytes = 16, std::uint32_t slot = 0) {
  return [=] { ptx::cp_async_16(word(4 * (slot + me())), in + from, bytes); };
}
inline const Step commit = [] { ptx::cp_async_commit_group(); };
inline const Step wait = [] { ptx::cp_async_wait_group<0>(); };

// Device memory.
inline Step load_in(int i) {
  return [=] { ptx::ld_global_nc_f32(in + i + static_cast<int>(me())); };
}
inline Step load_out(std::uint32_t x = 0) {
  return [=] { ptx::ld_global_f32(out + (me() ^ x)); };
}
inline const Step load_constant_out = [] { ptx::ld_global_nc_f32(out + me()); };
inline Step store_out(std::uint32_t x = 0) {
  return [=] { ptx::st_global_f32(out + (me() ^ x), 1); };
}
inline Step in_block(std::uint32_t block, Step s) {
  return [=, s = std::move(s)] {
    if (ptx::ctaid_x() == block) s();
  };
}

}  // namespace emulator::planted
