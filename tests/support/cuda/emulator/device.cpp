#include "emulator/device.hpp"

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "emulator/block.hpp"
#include "emulator/global_memory.hpp"
#include "emulator/schedule.hpp"
#include "mhla/cuda/arch.cuh"

namespace emulator {

struct Device::State {
  Schedule schedule;
  GlobalMemory memory;
};

Device::Device(std::uint64_t seed) : state_(new State{Schedule(seed), {}}) {}
Device::~Device() = default;

void Device::track(const std::string& name, const void* pointer, std::size_t bytes, Access access) {
  state_->memory.track(name, pointer, bytes, access);
}

Report Device::run(std::uint32_t blocks, int threads, std::int64_t shared_bytes,
                   void (*body)(const void*), const void* argument, bool early) {
  if (shared_bytes < 0 || shared_bytes > mhla::cuda::shared_limit(mhla::cuda::Arch::kSm90a)) {
    throw Fault(Kind::kOutside, std::to_string(shared_bytes) + " bytes of shared memory");
  }
  auto& [schedule, memory] = *state_;
  std::vector<std::uint32_t> order(blocks);
  std::iota(order.begin(), order.end(), 0u);
  Report report;
  memory.begin_launch(early);
  for (std::size_t i = 0; i < order.size(); ++i) {
    std::swap(order[i], order[i + schedule.below(order.size() - i)]);
    Block block(threads, static_cast<std::uint32_t>(shared_bytes), blocks, order[i], schedule,
                memory, report);
    block.run(body, argument);
    memory.end_block();
  }
  memory.report(report);
  return report;
}

}  // namespace emulator
