#pragma once

/// \file
/// Tensor copies (ptx/tensor_copy.cuh): operations that run beside the program.
///
/// A load poisons the bytes it will write when it is issued, and writes them, with the epoch of its
/// barrier's phase, when the schedule ends it. A store keeps its bytes from being written from its
/// issue until the wait that covers it; a thread that ends must have waited. What it writes nobody
/// may touch again in the launch: ptx/tensor_copy.cuh has no wait for that.
///
/// Device memory is checked at the issue, as an access of the issuing thread, in whole 4 bytes: of
/// a row with an odd end the last element is not.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
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
inline const Counter kTensorStores{"tensor stores"};

/// The tensor stores of a block.
class TensorStores {
 public:
  explicit TensorStores(Block& block);

  void start(const mhla::cuda::TensorMap& map, const mhla::cuda::BoxOrigin& at, std::uint32_t from);
  void commit();
  /// At most `pending` groups of the running thread still read.
  void wait_read(std::size_t pending);

 private:
  struct Store;
  struct Queue {
    std::vector<std::shared_ptr<Store>> open;                // in no group yet
    std::deque<std::vector<std::shared_ptr<Store>>> groups;  // that nobody has waited for
  };

  static void check_end(Block& block);
  Queue& queue() { return queues_[block_.who()]; }

  Block& block_;
  std::vector<Queue> queues_;  // of each thread
  Actor actor_;                // that writes device memory; nobody sees it
};

void load_box(std::uint32_t to, const mhla::cuda::TensorMap& map, const mhla::cuda::BoxOrigin& at,
              std::uint32_t barrier);

/// prefetch.tensormap: the map must be one.
void prefetch_map(const mhla::cuda::TensorMap& map);

// -------------------------------------------------------------------------------------------------

namespace detail {

/// A box in shared memory and its rows in device memory.
struct BoxCopy : Operation {
  mhla::cuda::TensorBox box;
  mhla::cuda::BoxOrigin at;
  std::uint32_t shared;

  /// Takes the map and checks it and the place in shared memory.
  BoxCopy(Block& block, const mhla::cuda::TensorMap& map, const mhla::cuda::BoxOrigin& origin,
          std::uint32_t address, const char* what)
      : at(origin), shared(address) {
    try {
      box = box_of(map);
    } catch (const std::invalid_argument& e) {
      block.fail(Kind::kOutside, std::string(what) + ": " + e.what());
    }
    block.shared.check(block.who(), shared, box.bytes(), 1024, what);
  }

  /// Calls visit(byte of device memory, bytes) for what of each row lies in the tensor.
  template <class Visit>
  void for_each_access(Visit visit) const {
    for_each_row(box, at, [&](const BoxRow& row) {
      if (row.first == row.last) return;
      std::byte* const begin = row.memory + reinterpret_cast<std::uintptr_t>(row.memory) % 4;
      const auto bytes = static_cast<std::size_t>(row.memory + 2 * (row.last - row.first) - begin);
      if (bytes >= 4) visit(begin, bytes / 4 * 4);
    });
  }

  /// Calls visit(byte of the box, element in device memory) for all elements in the tensor.
  template <class Visit>
  void for_each_element(Visit visit) const {
    for_each_row(box, at, [&](const BoxRow& row) {
      for (int i = row.first; i < row.last; ++i) {
        const std::uint32_t byte = row.index * 128 + 2 * static_cast<std::uint32_t>(i);
        visit(swizzled(shared + byte) - shared, row.memory + 2 * (i - row.first));
      }
    });
  }
};

struct BoxLoad final : BoxCopy {
  using BoxCopy::BoxCopy;
  CountingBarrier* barrier = nullptr;

  void end() override {
    Block& block = current();
    bool over = true;
    for (int t = 0; t < block.threads(); ++t) over = over && block.thread(t).ended;
    if (over) block.fail(Kind::kSlotInUse, "the block has ended before a tensor load");
    std::vector<std::byte> bytes(box.bytes());
    for_each_element([&](std::uint32_t byte, const std::byte* element) {
      std::memcpy(&bytes[byte], element, 2);
    });
    block.shared.end_write(barrier->epoch(), shared, box.bytes(), Proxy::kAsync, bytes.data());
    block.part<CountingBarriers>().complete(*barrier, box.bytes());
  }
};

}  // namespace detail

inline void load_box(std::uint32_t to, const mhla::cuda::TensorMap& map,
                     const mhla::cuda::BoxOrigin& at, std::uint32_t barrier) {
  constexpr const char* kWhat = "tensor load";
  Block& block = current();
  const auto load = std::make_shared<detail::BoxLoad>(block, map, at, to, kWhat);
  load->barrier = &block.part<CountingBarriers>().of_copy(barrier);
  block.shared.begin_write(block.who(), to, load->box.bytes(), Proxy::kAsync, kWhat);
  load->for_each_access([&](const std::byte* from, std::size_t bytes) {
    block.global.read(block.who(), from, bytes, 4, Read::kConstant, kWhat);
  });
  block.add(kTensorLoads);
  block.start(load);
}

inline void prefetch_map(const mhla::cuda::TensorMap& map) {
  try {
    static_cast<void>(box_of(map));
  } catch (const std::invalid_argument& e) {
    current().fail(Kind::kOutside, std::string("prefetch: ") + e.what());
  }
}

struct TensorStores::Store final : detail::BoxCopy {
  using BoxCopy::BoxCopy;

  void end() override {
    std::vector<std::byte> bytes(box.bytes());
    current().shared.peek(shared, box.bytes(), bytes.data());
    for_each_element(
        [&](std::uint32_t byte, std::byte* element) { std::memcpy(element, &bytes[byte], 2); });
  }
};

inline TensorStores::TensorStores(Block& block)
    : block_(block),
      queues_(static_cast<std::size_t>(block.threads())),
      actor_(block.clocks.add_actor()) {
  block.at_thread_end.push_back(&check_end);
}

inline void TensorStores::start(const mhla::cuda::TensorMap& map, const mhla::cuda::BoxOrigin& at,
                                std::uint32_t from) {
  constexpr const char* kWhat = "tensor store";
  const auto store = std::make_shared<Store>(block_, map, at, from, kWhat);
  block_.shared.begin_read(block_.who(), from, store->box.bytes(), kWhat);
  store->for_each_access([&](const std::byte* to, std::size_t bytes) {
    block_.global.write(block_.who(), {actor_, 1}, to, bytes, 4, kWhat);
  });
  block_.add(kTensorStores);
  queue().open.push_back(store);
  block_.start(store);
}

inline void TensorStores::commit() {
  queue().groups.emplace_back(std::move(queue().open));
  queue().open.clear();
}

inline void TensorStores::wait_read(std::size_t pending) {
  auto& groups = queue().groups;
  for (; groups.size() > pending; groups.pop_front()) {
    for (const auto& store : groups.front()) {
      block_.finish(*store);
      block_.shared.end_read(block_.clocks.now(block_.who()), store->shared, store->box.bytes());
    }
  }
}

inline void TensorStores::check_end(Block& block) {
  const Queue& mine = block.part<TensorStores>().queue();
  if (mine.open.empty() && mine.groups.empty()) return;
  block.fail(Kind::kSlotInUse, "ended before its tensor stores have read shared memory");
}

}  // namespace emulator
