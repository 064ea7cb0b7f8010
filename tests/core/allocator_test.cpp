#include "mhla/core/allocator.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "mhla/core/tensor.hpp"
#include "mhla/core/workspace.hpp"

namespace mhla {
namespace {

using detail::kLargePage;

/// True if Linux has marked the memory at p for large pages.
bool has_asked(const void* p) {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  std::ifstream maps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    if (std::istringstream range(line); range >> std::hex >> begin >> dash >> end && dash == '-') {
      here = begin <= address && address < end;
    }
    if (here && line.starts_with("VmFlags:")) return line.find(" hg") != std::string::npos;
  }
  return false;
}

template <class T>
std::uintptr_t place(const std::vector<T, Allocator<T>>& x) {
  return reinterpret_cast<std::uintptr_t>(x.data());
}

TEST(Allocator, MemoryBeginsWithALineAndMuchOfItWithALargePage) {
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{100}, kLargePage - 1, kLargePage, 3 * kLargePage + 1}) {
    const std::vector<char, Allocator<char>> memory(bytes, 'x');
    const std::size_t multiple =
        bytes < kLargePage ? std::size_t{detail::kBufferAlignment} : kLargePage;
    EXPECT_EQ(place(memory) % multiple, 0u) << bytes;
    EXPECT_EQ(memory.back(), 'x');
  }
  std::vector<double, Allocator<double>> grows;
  for (int i = 0; i < 1 << 20; ++i) grows.push_back(i);  // grows from small memory to large
  EXPECT_EQ(grows[12345], 12345);
  EXPECT_EQ(place(grows) % kLargePage, 0u);
  const std::size_t most = std::numeric_limits<std::size_t>::max();
  EXPECT_THROW(Allocator<double>().allocate(most / 4), std::bad_array_new_length);
}

TEST(Allocator, LargeMemoryAsksForLargePages) {
  if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage/enabled") ||
      !std::filesystem::exists("/proc/self/smaps")) {
    GTEST_SKIP() << "no Linux with large pages";
  }
  const std::vector<float, Allocator<float>> memory(4 * kLargePage / sizeof(float));
  EXPECT_TRUE(has_asked(memory.data()));
  const Tensor<float> tensor({1, 1024, 16, 128});
  EXPECT_TRUE(has_asked(tensor.data().data()));
  detail::Scratch scratch("f", {}, 3 * kLargePage);
  EXPECT_TRUE(has_asked(scratch.bytes().data()));
}

}  // namespace
}  // namespace mhla
