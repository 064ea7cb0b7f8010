#include "mhla/core/workspace.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using detail::Arena;
using detail::kBufferAlignment;
using detail::Scratch;

std::uintptr_t address(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

/// Some buffers of changing types and sizes, as forms lay out theirs.
struct Layout {
  std::vector<std::pair<const void*, Index>> buffers;  // start, bytes

  Layout(Arena& arena, std::uint64_t seed) {
    test::Random rng(seed);
    const Index count = rng.integer(1, 6);
    for (Index i = 0; i < count; ++i) {
      const Index size = rng.integer(0, 100);
      switch (rng.integer(0, 2)) {
        case 0:
          add(arena.take<float>("f", size), size);
          break;
        case 1:
          add(arena.take<double>("f", size), size);
          break;
        default:
          add(arena.take<Index>("f", size), size);
      }
    }
  }

  template <class A>
  void add(A* start, Index size) {
    buffers.emplace_back(start, size * static_cast<Index>(sizeof(A)));
  }
};

/// Buffers of one layout are aligned, apart from each other and inside what was lent.
void expect_good_buffers(const Layout& layout, Workspace lent) {
  std::uintptr_t end = address(lent.data());
  for (const auto& [start, bytes] : layout.buffers) {
    EXPECT_EQ(address(start) % kBufferAlignment, 0u);
    EXPECT_GE(address(start), end);
    end = address(start) + static_cast<std::uintptr_t>(bytes);
  }
  EXPECT_LE(end, address(lent.data()) + lent.size());
}

TEST(Workspace, RoundUpIsTheNextMultiple) {
  for (Index multiple = 1; multiple <= 20; ++multiple) {
    for (Index value = 0; value <= 50; ++value) {
      Index expected = 0;
      while (expected < value) expected += multiple;
      EXPECT_EQ(detail::round_up(value, multiple), expected);
    }
  }
}

template <class A>
void expect_unaliased_strides() {
  for (Index count = 0; count <= 300; ++count) {
    const Index bytes = detail::unaliased_stride<A>(count) * static_cast<Index>(sizeof(A));
    EXPECT_EQ(bytes % (2 * kBufferAlignment), kBufferAlignment) << "not an odd number of lines";
    EXPECT_GE(bytes, count * static_cast<Index>(sizeof(A)));
    EXPECT_LE(bytes, count * static_cast<Index>(sizeof(A)) + 2 * kBufferAlignment);
  }
}

TEST(Workspace, UnaliasedStridesAreAnOddNumberOfCacheLinesAndNoMoreThanNeeded) {
  expect_unaliased_strides<float>();
  expect_unaliased_strides<double>();
}

TEST(Arena, WhatItCountsIsEnoughForAnyAlignmentOfTheBase) {
  std::vector<std::byte> memory(10000);
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const std::size_t bytes = detail::bytes_of<Layout>(seed);
    ASSERT_LE(bytes + kBufferAlignment, memory.size());
    for (std::size_t offset = 0; offset < kBufferAlignment; ++offset) {
      const Workspace lent(memory.data() + offset, bytes);
      Arena arena(lent.data());
      const Layout layout(arena, seed);
      expect_good_buffers(layout, lent);
      EXPECT_EQ(arena.bytes(), bytes) << "counting and handing out disagree";
    }
  }
}

TEST(Arena, WithoutABaseHandsOutNullAndCounts) {
  Arena arena;
  EXPECT_EQ(arena.bytes(), 0u);
  EXPECT_EQ(arena.take<float>("f", 0), nullptr);
  EXPECT_EQ(arena.bytes(), 0u);
  EXPECT_EQ(arena.take<float>("f", 1), nullptr);
  EXPECT_EQ(arena.bytes(), 2u * kBufferAlignment);
  EXPECT_EQ(arena.take<double>("f", 9), nullptr);
  EXPECT_EQ(arena.bytes(), 4u * kBufferAlignment);
}

TEST(Arena, RejectsABufferThatNoMemoryCouldHold) {
  Arena arena;
  const Index count = std::numeric_limits<Index>::max() / 4;
  EXPECT_EQ(test::message_of<shape_error>([&] { arena.take<double>("causal", count); }),
            "mhla::causal: workspace has shape [" + std::to_string(count) +
                ", 8], expected a product that fits std::ptrdiff_t");
  EXPECT_EQ(arena.bytes(), 0u);
}

TEST(Shares, GiveEveryWorkerRoomForItsBuffers) {
  const auto make_for = [](std::uint64_t seed) {
    return [seed](Arena& arena) { return Layout(arena, seed); };
  };
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (const Index workers : {1, 2, 5}) {
      Arena counting;
      const detail::Shares counted("f", counting, workers, make_for(seed));
      std::vector<std::byte> memory(counting.bytes());
      Arena arena(memory.data());
      const detail::Shares shares("f", arena, workers, make_for(seed));
      EXPECT_EQ(arena.bytes(), counting.bytes());
      for (Index w = 0; w < workers; ++w) {
        const std::byte* const end =
            w + 1 < workers ? shares.share(w + 1) : memory.data() + memory.size();
        Arena own(shares.share(w));
        expect_good_buffers(Layout(own, seed), {shares.share(w), end});
      }
    }
  }
}

TEST(Shares, RejectMoreWorkersThanMemoryCouldHold) {
  Arena arena;
  const auto make = [](Arena& own) { return own.take<double>("f", 1000); };
  const Index workers = std::numeric_limits<Index>::max() / 4;
  EXPECT_THROW(detail::Shares("f", arena, workers, make), shape_error);
}

TEST(Scratch, UsesWhatIsLentWhereItIsEnough) {
  std::vector<std::byte> memory(1000);
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const std::size_t bytes = detail::bytes_of<Layout>(seed);
    std::vector<std::byte> exact(bytes);
    for (std::vector<std::byte>* const from : {&exact, &memory}) {
      if (from->size() < bytes || from->empty()) continue;
      Scratch scratch("f", *from, bytes);
      EXPECT_EQ(scratch.bytes().data(), from->data());
      EXPECT_EQ(scratch.bytes().size(), from->size());
      expect_good_buffers(Layout(scratch.arena(), seed), *from);
    }
  }
}

TEST(Scratch, BringsItsOwnMemoryWhereNothingIsLent) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const std::size_t bytes = detail::bytes_of<Layout>(seed);
    Scratch scratch("f", {}, bytes);
    EXPECT_EQ(scratch.bytes().size(), bytes);
    expect_good_buffers(Layout(scratch.arena(), seed), scratch.bytes());
  }
}

TEST(Scratch, OfNothingAllocatesNothing) {
  const Scratch scratch("f", {}, 0);
  EXPECT_TRUE(scratch.bytes().empty());
  EXPECT_EQ(scratch.bytes().data(), nullptr);
}

TEST(Scratch, TakesALoanThatIsNotNeeded) {
  std::byte one{};
  const Scratch scratch("f", {&one, 1}, 0);
  EXPECT_EQ(scratch.bytes().data(), &one);
}

TEST(Scratch, RejectsALoanThatIsTooSmallWithBothNumbers) {
  std::vector<std::byte> memory(99);
  EXPECT_EQ(test::message_of<option_error>([&] { Scratch("causal", memory, 100); }),
            "mhla::causal: workspace has 99 bytes, expected at least 100 (see workspace_bytes)");
  EXPECT_EQ(test::message_of<option_error>([&] { detail::expect_workspace("f", {}, 1); }),
            "mhla::f: workspace has 0 bytes, expected at least 1 (see workspace_bytes)");
  EXPECT_NO_THROW(detail::expect_workspace("f", memory, 99));
}

TEST(Arena, RefusesSumsThatDoNotFit) {
  detail::Arena counting;
  counting.take<double>("f", Index{1} << 59);
  EXPECT_THROW(counting.take<double>("f", Index{1} << 59), shape_error);
  EXPECT_THROW(detail::Arena().take<std::byte>("f", std::numeric_limits<Index>::max()),
               shape_error);
}

}  // namespace
}  // namespace mhla
