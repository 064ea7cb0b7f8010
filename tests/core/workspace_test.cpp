#include "mhla/core/workspace.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/message_of.hpp"
#include "support/outputs.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using detail::Arena;
using detail::kBufferAlignment;
using detail::Scratch;
using detail::Workers;

std::uintptr_t address(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

/// Buffers of changing types and sizes, like the layouts of forms.
struct Layout {
  std::array<std::pair<const void*, Index>, 6> buffers;  // start, bytes
  Index count;

  Layout(Arena& arena, std::uint64_t seed) {
    test::Random rng(seed);
    count = rng.integer(1, 6);
    for (auto& buffer : all()) {
      const Index size = rng.integer(0, 100);
      switch (rng.integer(0, 2)) {
        case 0:
          buffer = {arena.take<float>("f", {size, 3}), 4 * 3 * size};
          break;
        case 1:
          buffer = {arena.take<double>("f", size), 8 * size};
          break;
        default:
          buffer = {arena.take<std::byte>("f", size), size};
      }
    }
  }

  std::span<std::pair<const void*, Index>> all() {
    return std::span(buffers).first(static_cast<std::size_t>(count));
  }
};

std::size_t layout_bytes(std::uint64_t seed) {
  return detail::counted_bytes([seed](Arena& arena) { return Layout(arena, seed); });
}

/// Expects that buffers of one layout are aligned, apart from each other and inside the lent
/// memory. Returns the end of the last buffer.
std::byte* expect_good_buffers(Layout layout, Workspace lent) {
  std::uintptr_t end = address(lent.data());
  for (const auto& [start, bytes] : layout.all()) {
    EXPECT_EQ(address(start) % kBufferAlignment, 0u);
    EXPECT_GE(address(start), end);
    end = address(start) + static_cast<std::uintptr_t>(bytes);
  }
  EXPECT_LE(end, address(lent.data()) + lent.size());
  return lent.data() + (end - address(lent.data()));
}

TEST(Workspace, RoundUpIsTheNextMultiple) {
  for (Index multiple = 1; multiple <= 20; ++multiple) {
    for (Index value = 0; value <= 50; ++value) {
      const Index up = detail::round_up(value, multiple);
      EXPECT_TRUE(up % multiple == 0 && up >= value && up < value + multiple) << value;
    }
  }
}

TEST(Workspace, SizesNearTheLargestIndexDoNotOverflow) {
  constexpr Index kLargest = std::numeric_limits<Index>::max();
  for (Index less = 0; less < 200; ++less) {
    const Index value = kLargest - less, multiples = detail::ceil_div(value, 64);
    EXPECT_EQ(multiples, (value - 1) / 64 + 1);
    EXPECT_EQ(detail::round_up(value, 64), less >= 63 ? multiples * 64 : kLargest);
    EXPECT_GE(detail::unaliased_stride<float>(value), value);
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
    const std::size_t bytes = layout_bytes(seed);
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

TEST(Arena, RejectsProductsAndSumsThatDoNotFit) {
  Arena arena;
  const Index count = std::numeric_limits<Index>::max() / 4;
  EXPECT_EQ(test::message_of<shape_error>([&] { arena.take<double>("causal", count); }),
            "mhla::causal: workspace has shape [" + std::to_string(count) +
                ", 8], expected a product that fits std::ptrdiff_t");
  EXPECT_EQ(arena.bytes(), 0u);
  EXPECT_THROW(arena.take<float>("f", {Index{1} << 31, 2, Index{1} << 31}), shape_error);
  EXPECT_THROW(arena.take<std::byte>("f", std::numeric_limits<Index>::max()), shape_error);
  arena.take<double>("f", Index{1} << 59);
  EXPECT_THROW(arena.take<double>("f", Index{1} << 59), shape_error);
}

TEST(Workers, HaveBuffersOfTheirOwnAndNoCacheLineInCommon) {
  std::vector<std::byte> memory(20000);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto make = [seed](Arena& arena) { return Layout(arena, seed); };
    for (const Index count : {0, 1, 2, 5}) {
      Arena counting;
      const Workers<Layout> counted("f", counting, count, make);
      for (const std::size_t offset : {0u, 1u, 40u, 63u}) {
        ASSERT_LE(offset + counting.bytes(), memory.size());
        Workspace left = Workspace(memory).subspan(offset, counting.bytes());
        Arena arena(left.data());
        const Workers<Layout> workers("f", arena, count, make);
        EXPECT_EQ(arena.bytes(), counting.bytes()) << "counting and handing out disagree";
        if (count == 0) continue;
        // Buffers begin at a cache line: they share no line with the workers themselves or with the
        // buffers of the previous worker.
        const std::uintptr_t taken = address(&workers[0] + count) - address(left.data());
        left = left.subspan(taken);
        for (Index w = 0; w < count; ++w) {
          ASSERT_EQ(workers[w].count, workers[0].count);
          std::byte* const end = expect_good_buffers(workers[w], left);
          left = left.subspan(static_cast<std::size_t>(end - left.data()));
        }
      }
    }
  }
}

TEST(Workers, RejectsMoreThanMemoryCouldHold) {
  using Worker = std::array<double*, 4>;
  const auto make = [](Arena& arena) { return Worker{arena.take<double>("f", 1000)}; };
  const Index limit = std::numeric_limits<Index>::max();
  // Too many workers, too many buffers, and a sum of both that is too large.
  for (const Index count : {limit / 4, limit / 32, Index{1} << 57, limit / 8080}) {
    Arena arena;
    EXPECT_THROW(Workers<Worker>("f", arena, count, make), shape_error) << count;
  }
  Arena arena;
  EXPECT_NO_THROW(Workers<Worker>("f", arena, limit / 8200, make));
}

TEST(Scratch, UsesWhatIsLentAndBringsItsOwnMemoryWhereNothingIs) {
  std::vector<std::byte> memory(10000);
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const std::size_t bytes = layout_bytes(seed);
    Scratch lent("f", memory, bytes), allocated("f", {}, bytes);
    EXPECT_EQ(lent.bytes().data(), memory.data());
    EXPECT_EQ(lent.bytes().size(), memory.size());
    EXPECT_EQ(allocated.bytes().size(), bytes);
    for (Scratch* const scratch : {&lent, &allocated}) {
      expect_good_buffers(Layout(scratch->arena(), seed), scratch->bytes());
    }
  }
  EXPECT_EQ(Scratch("f", {}, 0).bytes().data(), nullptr);
  EXPECT_EQ(
      test::message_of<option_error>([&] { Scratch("causal", memory, 10001); }),
      "mhla::causal: workspace has 10000 bytes, expected at least 10001 (see workspace_bytes)");
}

TEST(ExpectKept, TakesNothingOrEnough) {
  std::vector<std::byte> memory(100);
  const auto message = [&](std::size_t lent, std::size_t bytes) {
    return test::message_of<option_error>(
        [&] { detail::expect_kept("f", Workspace(memory).first(lent), bytes); });
  };
  for (const std::size_t bytes : {0u, 99u, 100u}) {
    EXPECT_EQ(message(0, bytes), "no exception");
    EXPECT_EQ(message(100, bytes), "no exception");
  }
  EXPECT_EQ(message(99, 100),
            "mhla::f: kept has 99 bytes, expected none or at least 100 (see kept_bytes)");
}

TEST(FindKept, FindsTheNumbersOfACopyThatBeginsElsewhereInALine) {
  constexpr std::size_t kCount = 50;
  const std::size_t bytes = detail::counted_bytes(
      [](Arena& arena) { return arena.take<int>("f", static_cast<Index>(kCount)); });
  const auto numbers = [&](Workspace kept) {
    return std::span(Arena(kept.data()).take<int>("f", static_cast<Index>(kCount)), kCount);
  };
  std::vector<int> expected(kCount);
  std::iota(expected.begin(), expected.end(), 1);
  std::vector<std::byte> memory(bytes + 64);
  for (const std::size_t from : {0u, 1u, 16u, 63u}) {
    for (const std::size_t further : {0u, 1u, 31u, 63u}) {
      const Workspace kept = Workspace(memory).subspan(from, bytes);
      std::ranges::copy(expected, numbers(kept).begin());
      detail::mark_kept(kept, bytes, detail::kept_mark(bytes, 1));
      test::MovedBytes copy(kept, further);
      for (int time = 0; time < 2; ++time) {
        detail::find_kept("f", copy.get(), bytes, detail::kept_mark(bytes, 1));
        EXPECT_TRUE(std::ranges::equal(numbers(copy.get()), expected)) << from << " " << further;
        EXPECT_TRUE(copy.intact());
      }
    }
  }
}

TEST(FindKept, RefusesWhatNoForwardPassOfTheseSizesHasWritten) {
  constexpr std::size_t kBytes = 256;
  std::vector<std::byte> memory(2 * kBytes);
  const auto message = [&](std::size_t from) {
    const std::vector<std::byte> before = memory;
    const Workspace kept = Workspace(memory).subspan(from);
    const std::string text = test::message_of<option_error>(
        [&] { detail::find_kept("f", kept, kBytes, detail::kept_mark(kBytes, 1)); });
    EXPECT_EQ(memory, before);
    return text;
  };
  const std::string refusal =
      "mhla::f: kept has not been written, expected what the forward pass kept";
  for (std::size_t from = 0; from < 64; ++from) {
    for (const int byte : {0, 1, 7, 8, 63, 64, 255}) {
      std::ranges::fill(memory, static_cast<std::byte>(byte));
      EXPECT_EQ(message(from), refusal) << from << " " << byte;
    }
    for (const std::size_t bytes : {kBytes - 64, kBytes + 64}) {
      std::ranges::fill(memory, std::byte{8});  // an offset that could be
      detail::mark_kept(Workspace(memory).subspan(from), bytes, detail::kept_mark(bytes, 1));
      EXPECT_EQ(message(from), refusal) << from << " " << bytes;
    }
    detail::mark_kept(Workspace(memory).subspan(from), kBytes, detail::kept_mark(kBytes, 2));
    EXPECT_EQ(message(from), refusal) << from;  // of another form
    detail::mark_kept(Workspace(memory).subspan(from), kBytes, detail::kept_mark(kBytes, 1));
    EXPECT_EQ(message(from), "no exception") << from;
    detail::begin_kept("f", Workspace(memory).subspan(from), kBytes);
    EXPECT_EQ(message(from), refusal) << from;
  }
}

}  // namespace
}  // namespace mhla
