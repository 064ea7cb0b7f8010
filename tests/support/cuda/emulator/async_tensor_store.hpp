#pragma once

/// \file
/// Tensor stores (ptx/tensor_copy.cuh): asynchronous operations that read shared memory.
///
/// From the issue to the thread's wait for the group, no thread may write the bytes. Device memory
/// is written earlier, when the schedule chooses. No thread of the launch may read it, since
/// wait_group.read only waits for the reads of shared memory.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "emulator/async_tensor_copy.hpp"
#include "emulator/block.hpp"

namespace emulator {

inline const Counter kTensorStores{"tensor stores"};

namespace detail {

struct BoxStore final : BoxCopy {
  using BoxCopy::BoxCopy;

  void end() override {
    const Block& block = current();
    for_each_element([&](std::uint32_t byte, std::byte* element) {
      block.shared.peek(shared + byte, 2, element);
    });
  }
};

}  // namespace detail

/// Stores of a block, in groups per thread.
class TensorStores {
 public:
  explicit TensorStores(Block& block)
      : block_(block),
        unseen_(block.clocks.add_actor()),
        threads_(static_cast<std::size_t>(block.threads())) {
    block.at_thread_end.push_back([](Block& b) { b.part<TensorStores>().check_end(); });
  }

  void start(const mhla::cuda::TensorMap& map, const mhla::cuda::BoxOrigin& at,
             std::uint32_t from) {
    constexpr const char* kWhat = "tensor store";
    const auto store = std::make_shared<detail::BoxStore>(block_, map, at, from, kWhat);
    block_.shared.begin_read(block_.who(), from, store->box.bytes(), kWhat);
    store->for_each_access([&](const std::byte* to, std::size_t bytes) {
      block_.global.write(block_.who(), {unseen_, 1}, to, bytes, 4, kWhat);
    });
    Stores& stores = threads_[block_.who()];
    if (stores.actor == 0) stores.actor = block_.clocks.add_actor();
    stores.open.push_back(store);
    block_.add(kTensorStores);
    block_.start(store);
  }

  void commit() {
    Stores& stores = threads_[block_.who()];
    stores.groups.push_back(std::move(stores.open));
    stores.open.clear();
    block_.pause();
  }

  void wait(std::size_t pending) {
    Stores& stores = threads_[block_.who()];
    for (; stores.groups.size() > pending; stores.groups.pop_front()) {
      ++stores.read;
      for (const auto& store : stores.groups.front()) {
        block_.finish(*store);
        block_.shared.end_read({stores.actor, stores.read}, store->shared, store->box.bytes());
      }
    }
    if (stores.read == 0) return;
    Vector read = block_.clocks.nothing();
    read[stores.actor] = stores.read;
    block_.clocks.acquire(block_.who(), read);
  }

 private:
  using Group = std::vector<std::shared_ptr<detail::BoxStore>>;
  struct Stores {
    Actor actor = 0;  ///< the reader; 0 before the first store
    Clock read = 0;   ///< number of groups
    Group open;
    std::deque<Group> groups;
  };

  void check_end() {
    const Stores& stores = threads_[block_.who()];
    if (!stores.open.empty())
      block_.fail(Kind::kSlotInUse, "ended before commit_group of its stores");
    for (const Group& group : stores.groups) {
      if (group.empty()) continue;
      block_.fail(Kind::kSlotInUse, "ended before wait_group.read for its tensor stores");
    }
  }

  Block& block_;
  Actor unseen_;  ///< writer of device memory, for which no thread waits
  std::vector<Stores> threads_;
};

}  // namespace emulator
