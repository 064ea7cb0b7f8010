#pragma once

/// \file
/// Tensor loads (ptx/tensor_copy.cuh), and the parts that they share with tensor stores. Both are
/// asynchronous operations.
///
/// A load poisons the bytes of its box when it is issued. It writes them when the schedule ends it,
/// with the epoch of its barrier's phase.
///
/// Accesses of device memory are checked at the issue, as accesses of the issuing thread, in whole
/// 4 bytes. If a row ends at an odd element, that element is not checked.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "emulator/async_barrier.hpp"
#include "emulator/async_box.hpp"
#include "emulator/async_descriptor.hpp"
#include "emulator/block.hpp"

namespace emulator {

inline const Counter kTensorLoads{"tensor loads"};

/// Result of createpolicy. Only a device interprets its bits.
inline constexpr std::uint64_t kEvictFirst = 0x6d686c61'65766963U;

/// Checks a copy's cache policy.
inline void use_policy(std::uint64_t policy, const char* what);

void cp_async_bulk_tensor(std::uint32_t to, const mhla::cuda::TensorMap& map,
                          const mhla::cuda::BoxOrigin& at, std::uint32_t barrier);

// -------------------------------------------------------------------------------------------------

namespace detail {

/// Returns the box of a map.
inline mhla::cuda::TensorBox checked_box(Block& block, const mhla::cuda::TensorMap& map,
                                         const char* what) {
  try {
    return box_of(map);
  } catch (const std::invalid_argument& e) {
    block.fail(Kind::kOutside, std::string(what) + ": " + e.what());
  }
}

/// A box in shared memory and its rows in device memory.
struct BoxCopy : Operation {
  mhla::cuda::TensorBox box;
  mhla::cuda::BoxOrigin at;
  std::uint32_t shared;

  /// Takes the map, and checks the map and the address in shared memory.
  BoxCopy(Block& block, const mhla::cuda::TensorMap& map, const mhla::cuda::BoxOrigin& origin,
          std::uint32_t address, const char* what)
      : box(checked_box(block, map, what)), at(origin), shared(address) {
    block.shared.check(block.who(), shared, box.bytes(), box.swizzled() ? 1024 : 128, what);
  }

  /// Calls visit(byte of device memory, bytes) for the part of each row inside the tensor.
  template <class Visit>
  void for_each_access(Visit visit) const {
    for_each_row(box, at, [&](const BoxRow& row) {
      if (row.first == row.last) return;
      std::byte* const begin = row.memory + reinterpret_cast<std::uintptr_t>(row.memory) % 4;
      const auto bytes = static_cast<std::size_t>(row.memory + 2 * (row.last - row.first) - begin);
      if (bytes >= 4) visit(begin, bytes / 4 * 4);
    });
  }

  /// Calls visit(byte of the box, element in device memory) for all elements inside the tensor.
  template <class Visit>
  void for_each_element(Visit visit) const {
    for_each_row(box, at, [&](const BoxRow& row) {
      for (int i = row.first; i < row.last; ++i) {
        const std::uint32_t byte = 2 * (row.index * box.box[0] + static_cast<std::uint32_t>(i));
        visit(box.swizzled() ? swizzled(shared + byte) - shared : byte,
              row.memory + 2 * (i - row.first));
      }
    });
  }
};

struct BoxLoad final : BoxCopy {
  using BoxCopy::BoxCopy;
  CountingBarrier* barrier = nullptr;

  void end() override {
    Block& block = current();
    if (block.has_ended()) {
      block.fail(Kind::kSlotInUse, "the block has ended before a tensor load");
    }
    std::vector<std::byte> bytes(box.bytes());
    for_each_element([&](std::uint32_t byte, const std::byte* element) {
      std::memcpy(&bytes[byte], element, 2);
    });
    block.shared.end_write(barrier->epoch(), shared, box.bytes(), Proxy::kAsync, bytes.data());
    block.part<CountingBarriers>().complete(*barrier, box.bytes());
  }
};

}  // namespace detail

inline void use_policy(std::uint64_t policy, const char* what) {
  if (policy != kEvictFirst) {
    current().fail(Kind::kOutside, std::string(what) + " with a policy that createpolicy gave not");
  }
}

inline void cp_async_bulk_tensor(std::uint32_t to, const mhla::cuda::TensorMap& map,
                                 const mhla::cuda::BoxOrigin& at, std::uint32_t barrier) {
  constexpr const char* kWhat = "tensor load";
  Block& block = current();
  const auto load = std::make_shared<detail::BoxLoad>(block, map, at, to, kWhat);
  block.shared.check(block.who(), barrier, 8, 8, kWhat);
  load->for_each_access([&](const std::byte* from, std::size_t bytes) {
    block.global.read(block.who(), from, bytes, 4, Read::kTensor, kWhat);
  });
  block.add(kTensorLoads);
  load->barrier = &block.part<CountingBarriers>().of_copy(barrier);
  block.shared.begin_write(block.who(), to, load->box.bytes(), Proxy::kAsync, kWhat);
  block.start(load);
}

}  // namespace emulator
