// Descriptors, fragments, boxes and phases of sm_90a, as manuals and CUTLASS have them.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include "emulator/async_box.hpp"
#include "emulator/async_descriptor.hpp"
#include "emulator/async_phase.hpp"

namespace emulator {
namespace {

using mhla::cuda::BoxOrigin;
using mhla::cuda::TensorBox;
using mhla::cuda::TensorMap;

/// A layout as CUTLASS writes it, shape : stride, both from the fastest mode on.
struct Layout {
  std::vector<int> shape;
  std::vector<int> stride;

  int operator()(int index) const {
    int offset = 0;
    for (std::size_t m = 0; m < shape.size(); ++m) {
      offset += index % shape[m] * stride[m];
      index /= shape[m];
    }
    return offset;
  }
};

/// Swizzle<3, 4, 3> of byte addresses, as CUTLASS defines it.
std::uint32_t swizzle_343(std::uint32_t address) {
  const std::uint32_t source = 0x7U << 7;
  return address ^ ((address & source) >> 3);
}

std::uint64_t descriptor(std::uint32_t start, std::uint32_t leading, std::uint32_t stride) {
  return (std::uint64_t{1} << 62) | (std::uint64_t{stride >> 4} << 32) |
         (std::uint64_t{leading >> 4} << 16) | (start >> 4);
}

/// Element (k, n) of B lies at the swizzled place that the modes of n and k say.
void expect_layout(const Descriptor& d, bool transposed, std::uint32_t begin, const Layout& n_mode,
                   const Layout& k_mode) {
  ASSERT_EQ(complaint(d, transposed, 128), "");
  for (int n = 0; n < 128; ++n) {
    for (int k = 0; k < 16; ++k) {
      const auto place = static_cast<std::uint32_t>(2 * (n_mode(n) + k_mode(k)));
      ASSERT_EQ(d.address(transposed, static_cast<std::uint32_t>(k), static_cast<std::uint32_t>(n)),
                swizzle_343(begin + place));
    }
  }
}

TEST(AsyncDescriptor, FactorsAreCanonicalLayouts) {
  for (const int rows : {1024, 3072, 4096}) {
    const auto stride = static_cast<std::uint32_t>(rows);
    // By rows of n: ((8,m),(T,2)) : ((8T,SBO),(1,T)) of numbers of two bytes, T = 8.
    for (const std::uint32_t begin : {3072U, 3104U, 3136U, 3168U}) {
      expect_layout(Descriptor(descriptor(begin, 16, stride)), false, begin,
                    {{8, 16}, {64, rows / 2}}, {{8, 2}, {1, 8}});
    }
    // By rows of k: ((T,8,m),(8,k)) : ((1,T,LBO),(8T,SBO)).
    for (const int panel : {2048, 8192}) {
      expect_layout(Descriptor(descriptor(2048, static_cast<std::uint32_t>(panel), stride)), true,
                    2048, {{8, 8, 2}, {1, 8, panel / 2}}, {{8, 2}, {64, rows / 2}});
    }
  }
}

TEST(AsyncDescriptor, RefusesWhatHasNoDocumentedMeaning) {
  const std::uint64_t good = descriptor(1024, 8192, 1024);
  const std::uint64_t swizzle = std::uint64_t{3} << 62;
  const struct {
    const char* name;
    bool refused;
    std::uint64_t word;
    bool transposed;
    int n;
  } rows[] = {{"by rows of n", false, good, false, 128},
              {"by rows of k", false, good, true, 128},
              {"one panel needs no offset", false, descriptor(1024, 16, 1024), true, 64},
              {"an offset that is not used", false, descriptor(1024, 16, 1024), false, 128},
              {"swizzle of 64 bytes", true, good ^ swizzle, false, 64},
              {"no swizzle", true, good & ~swizzle, false, 64},
              {"another row of an atom", true, descriptor(1152, 8192, 1024), false, 64},
              {"half a step of k", true, descriptor(1040, 8192, 1024), false, 64},
              {"a step along a row of n", true, descriptor(1056, 8192, 1024), true, 64},
              {"half an atom", true, descriptor(1024, 8192, 512), false, 64},
              {"panels of odd rows", true, descriptor(1024, 8320, 1024), true, 128}};
  for (const auto& row : rows) {
    EXPECT_EQ(!complaint(Descriptor(row.word), row.transposed, row.n).empty(), row.refused)
        << row.name;
  }
  for (const int bit : {14, 15, 30, 31, 46, 47, 48, 49, 50, 51, 52, 61}) {
    EXPECT_NE(complaint(Descriptor(good | std::uint64_t{1} << bit), false, 64), "") << bit;
  }
}

TEST(AsyncFragments, AreThoseOfCutlass) {
  // Thread and value to m + 64 n. C: CLayout_64xN, A: ALayout_64x16.
  const Layout thread{{4, 8, 4}, {128, 1, 16}};
  for (const int n : {64, 128}) {
    const Layout value{{2, 2, n / 8}, {64, 8, 512}};
    for (int t = 0; t < 128; ++t) {
      for (int i = 0; i < n / 2; ++i) {
        const int place = thread(t) + value(i);
        ASSERT_EQ(accumulator_row(t, i), place % 64) << t << " " << i;
        ASSERT_EQ(accumulator_column(t, i), place / 64) << t << " " << i;
      }
    }
  }
  const Layout value{{2, 2, 2}, {64, 8, 512}};
  for (int t = 0; t < 128; ++t) {
    for (int i = 0; i < 4; ++i) {
      for (int half = 0; half < 2; ++half) {
        const int place = thread(t) + value(2 * i + half);
        ASSERT_EQ(factor_row(t, i), place % 64) << t << " " << i;
        ASSERT_EQ(factor_column(t, i) + half, place / 64) << t << " " << i;
      }
    }
  }
}

/// A tensor [W, H, rows of 64 or more] in memory of its own, with padding.
struct Tensor {
  explicit Tensor(std::array<std::uint64_t, 5> extent) : numbers(1 << 16) {
    std::iota(numbers.begin(), numbers.end(), std::uint16_t{0});
    box.base = numbers.data();
    std::uint64_t stride = (extent[0] * 2 + 15) / 16 * 16 + 16;
    for (std::size_t d = 0; d < 5; ++d) {
      box.extent[d] = extent[d];
      box.box[d] = 1;
      if (d == 4) continue;
      box.stride[d] = stride;
      stride *= extent[d + 1];
    }
    box.box[0] = 64;
  }

  std::uint16_t at(std::array<std::int64_t, 5> x) const {
    std::int64_t offset = x[0];
    for (std::size_t d = 0; d < 5; ++d) {
      if (x[d] < 0 || x[d] >= static_cast<std::int64_t>(box.extent[d])) return 0;
      if (d > 0) offset += x[d] * static_cast<std::int64_t>(box.stride[d - 1]) / 2;
    }
    return numbers[static_cast<std::size_t>(offset)];
  }

  alignas(16) std::vector<std::uint16_t> numbers;
  TensorBox box{};
};

TEST(AsyncBox, RowsAreClippedByTheTensor) {
  Tensor tensor({72, 5, 3, 2, 2});
  tensor.box.box[1] = 3;
  tensor.box.box[2] = 2;
  tensor.box.box[3] = 2;
  ASSERT_EQ(complaint(tensor.box), "");
  const BoxOrigin origins[] = {{{0, 0, 0, 0, 0}},
                               {{64, 3, 2, 1, 1}},
                               {{-8, -1, -1, -1, 0}},
                               {{72, 0, 0, 0, 0}},
                               {{9, 0, 0, 0, -1}},
                               {{-64, 0, 0, 0, 0}},
                               {{-63, 4, 1, 0, 1}},
                               {{65, 0, 0, 0, 2}},
                               {{std::numeric_limits<std::int32_t>::max(), 0, 0, 0, 0}},
                               {{std::numeric_limits<std::int32_t>::min(), 0, 0, 0, 0}}};
  for (const BoxOrigin& at : origins) {
    std::uint32_t rows = 0;
    for_each_row(tensor.box, at, [&](const BoxRow& row) {
      ASSERT_EQ(row.index, rows++);
      ASSERT_LE(row.first, row.last);
      const std::int64_t y = at.x[1] + std::int64_t{row.index % 3};
      const std::int64_t z = at.x[2] + std::int64_t{row.index / 3 % 2};
      const std::int64_t u = at.x[3] + std::int64_t{row.index / 6};
      for (int i = 0; i < 64; ++i) {
        std::uint16_t number = 0;
        if (i >= row.first && i < row.last) {
          std::memcpy(&number, row.memory + 2 * (i - row.first), 2);
          // Element 0 of the tensor is a zero too.
          ASSERT_TRUE(number != 0 || row.memory == static_cast<void*>(tensor.box.base));
        }
        ASSERT_EQ(number, tensor.at({at.x[0] + std::int64_t{i}, y, z, u, at.x[4]}))
            << row.index << " " << i;
      }
    });
    EXPECT_EQ(rows, 12U);
  }
}

TEST(AsyncBox, LoadedRowsLieWhereTheDescriptorsLook) {
  // Row r, piece j of a box at a multiple of 1024 lies in place j ^ (r % 8).
  for (std::uint32_t r = 0; r < 64; ++r) {
    for (std::uint32_t j = 0; j < 8; ++j) {
      EXPECT_EQ(swizzled(4096 + r * 128 + j * 16), 4096 + r * 128 + (j ^ (r % 8)) * 16);
    }
  }
  const Descriptor by_n(descriptor(4096 + 32, 16, 1024));
  const Descriptor by_k(descriptor(4096 + 2048, 16, 1024));
  for (std::uint32_t k = 0; k < 16; ++k) {
    for (std::uint32_t n = 0; n < 64; ++n) {
      EXPECT_EQ(by_n.address(false, k, n), swizzled(4096 + n * 128 + (16 + k) * 2));
      EXPECT_EQ(by_k.address(true, k, n), swizzled(4096 + (16 + k) * 128 + n * 2));
    }
  }
}

TEST(AsyncBox, MapsAreThoseTheEncoderTakes) {
  const Tensor tensor({72, 5, 3, 2, 2});
  const TensorMap map = tensor_map(tensor.box);
  EXPECT_EQ(box_of(map).extent[1], 5U);
  EXPECT_EQ(box_of(map).base, tensor.box.base);
  EXPECT_THROW(static_cast<void>(box_of(TensorMap{})), std::invalid_argument);

  const struct {
    bool refused;
    void (*change)(TensorBox&);
  } rows[] = {{true, [](TensorBox& b) { b.base = static_cast<char*>(b.base) + 8; }},
              {true, [](TensorBox& b) { b.base = nullptr; }},
              {true, [](TensorBox& b) { b.stride[1] += 8; }},
              {true, [](TensorBox& b) { b.stride[3] = std::uint64_t{1} << 40; }},
              {false, [](TensorBox& b) { b.stride[3] = (std::uint64_t{1} << 40) - 16; }},
              {true, [](TensorBox& b) { b.stride[2] = 0; }},
              {false, [](TensorBox& b) { std::swap(b.stride[1], b.stride[2]); }},
              {true, [](TensorBox& b) { b.extent[4] = 0; }},
              {false, [](TensorBox& b) { b.extent[4] = std::uint64_t{1} << 32; }},
              {true, [](TensorBox& b) { b.extent[4] = (std::uint64_t{1} << 32) + 1; }},
              {false, [](TensorBox& b) { b.box[1] = 256; }},
              {true, [](TensorBox& b) { b.box[1] = 257; }},
              {true, [](TensorBox& b) { b.box[1] = 0; }},
              {false, [](TensorBox& b) { b.box[0] = 72; }},
              {true, [](TensorBox& b) { b.box[0] = 36; }}};
  for (const auto& row : rows) {
    TensorBox box = tensor.box;
    row.change(box);
    EXPECT_EQ(!complaint(box).empty(), row.refused) << "row " << &row - rows;
    if (row.refused) {
      EXPECT_THROW(static_cast<void>(tensor_map(box)), std::invalid_argument);
    } else {
      tensor_map(box);
    }
  }
}

// ---- phases of a barrier in shared memory ------------------------------------------------------

/// Phases that have ended after some calls, or -1 if one is refused: n expects bytes, -n completes
/// them, and 0 arrives.
int ended(int arrivals, std::initializer_list<int> calls) {
  Phase p(arrivals);
  for (const int call : calls) {
    const int bytes = std::abs(call);
    if (!(call > 0 ? p.expect(bytes) : call < 0 ? p.complete(bytes) : p.arrive()).empty())
      return -1;
    EXPECT_EQ(p.passes(0), p.ended() % 2 == 1);
    EXPECT_EQ(p.passes(1), p.ended() % 2 == 0);
  }
  return static_cast<int>(p.ended());
}

TEST(AsyncPhase, EndsWithItsArrivalsAndBytes) {
  EXPECT_EQ(ended(2, {64, 0, -64}), 0) << "an arrival is missing";
  EXPECT_EQ(ended(2, {64, 0, -64, 0}), 1);
  EXPECT_EQ(ended(2, {0, 0, 0, -32, 32, 16, 0}), 1) << "bytes are missing, some came early";
  EXPECT_EQ(ended(2, {0, 0, 0, -32, 32, 16, 0, -16}), 2);
  EXPECT_EQ(ended(2, {0, 0, 0, -32, 32, 16, 0, 0}), -1) << "a third arrival";
  EXPECT_EQ(ended(1, {-32, 0}), -1) << "bytes that nobody expects";
  EXPECT_EQ(ended(1, {16, 0, -32}), -1) << "more bytes than expected";
  EXPECT_EQ(ended(1, {1 << 20}), -1) << "more bytes than a barrier counts";
}

}  // namespace
}  // namespace emulator
