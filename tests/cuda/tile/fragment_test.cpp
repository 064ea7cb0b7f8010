#include "mhla/cuda/tile/fragment.cuh"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace mhla::cuda {
namespace {

/// An element of a matrix.
struct Element {
  std::uint32_t row;
  std::uint32_t column;
  friend constexpr bool operator==(const Element&, const Element&) = default;
};
constexpr Element transposed(Element e) { return {e.column, e.row}; }

// ---- the manual's tables: PTX ISA, "Matrix Fragments for mma.m16n8k16" and "... mma.m16n8k8" ----

// i counts 16-bit elements of A and B, two to a register, and registers of C.
constexpr Element a_of_16(std::uint32_t lane, std::uint32_t i) {
  const std::uint32_t group = lane >> 2, thread = lane % 4;
  const bool upper = i < 2 || (4 <= i && i < 6);
  return {upper ? group : group + 8, thread * 2 + (i & 1) + (i < 4 ? 0 : 8)};
}
constexpr Element b_of_16(std::uint32_t lane, std::uint32_t i) {
  const std::uint32_t group = lane >> 2, thread = lane % 4;
  return {thread * 2 + (i & 1) + (i < 2 ? 0 : 8), group};
}
constexpr Element a_of_8(std::uint32_t lane, std::uint32_t i) {
  const std::uint32_t group = lane >> 2, thread = lane % 4;
  return {i < 2 ? group : group + 8, thread * 2 + (i & 1)};
}
constexpr Element b_of_8(std::uint32_t lane, std::uint32_t i) {
  const std::uint32_t group = lane >> 2, thread = lane % 4;
  return {thread * 2 + i, group};
}
constexpr Element c_of(std::uint32_t lane, std::uint32_t i) {
  const std::uint32_t group = lane >> 2, thread = lane % 4;
  return {i < 2 ? group : group + 8, thread * 2 + (i & 1)};
}

// ---- ldmatrix: PTX ISA, "Warp-level matrix load instruction: ldmatrix" --------------------------

/// Returns the element i (0 or 1) of one 8 x 8 matrix in a thread's word: thread l has row l / 4.
constexpr Element of_matrix(std::uint32_t lane, std::uint32_t i) {
  return {lane / 4, lane % 4 * 2 + i};
}

/// Returns the element of the tile that a thread has as element i (0 or 1) of word w after a load
/// of matrices. Thread 8 w + r gives the begin of row r of matrix w: `place`.
template <class Place>
constexpr Element loaded(Place place, bool trans, std::uint32_t lane, std::uint32_t w,
                         std::uint32_t i) {
  const Element e = trans ? transposed(of_matrix(lane, i)) : of_matrix(lane, i);
  const TileCoord at = place(8 * w + e.row);
  return {at.row, at.piece * 8 + e.column};
}

template <class Check>
constexpr bool for_all(std::uint32_t words, Check check) {
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    for (std::uint32_t w = 0; w < words; ++w) {
      for (std::uint32_t i = 0; i < 2; ++i) {
        if (!check(lane, w, i)) return false;
      }
    }
  }
  return true;
}

constexpr bool rows_are_operand_a() {
  return for_all(4, [](std::uint32_t lane, std::uint32_t w, std::uint32_t i) {
    return loaded(rows_coord, false, lane, w, i) == a_of_16(lane, 2 * w + i);
  });
}
static_assert(rows_are_operand_a());

constexpr bool transposed_rows_are_operand_a() {
  return for_all(4, [](std::uint32_t lane, std::uint32_t w, std::uint32_t i) {
    return transposed(loaded(transposed_rows_coord, true, lane, w, i)) == a_of_16(lane, 2 * w + i);
  });
}
static_assert(transposed_rows_are_operand_a());

/// Words 0 and 1 are B of the first 8 columns, words 2 and 3 of the next 8.
constexpr Element two_b(std::uint32_t lane, std::uint32_t w, std::uint32_t i) {
  const Element e = b_of_16(lane, 2 * (w % 2) + i);
  return {e.row, e.column + w / 2 * 8};
}

constexpr bool columns_are_operand_b() {
  return for_all(4, [](std::uint32_t lane, std::uint32_t w, std::uint32_t i) {
    return loaded(columns_coord, true, lane, w, i) == two_b(lane, w, i);
  });
}
static_assert(columns_are_operand_b());

constexpr bool transposed_columns_are_operand_b() {
  return for_all(4, [](std::uint32_t lane, std::uint32_t w, std::uint32_t i) {
    return transposed(loaded(transposed_columns_coord, false, lane, w, i)) == two_b(lane, w, i);
  });
}
static_assert(transposed_columns_are_operand_b());

// ---- the order of Fragment's words --------------------------------------------------------------

/// Returns element i (0 or 1) of a word, as the header defines it.
constexpr Element of_word(std::uint32_t lane, std::uint32_t word, std::uint32_t i) {
  const std::uint32_t g = lane / 4, p = 2 * (lane % 4);
  return {g + 8 * (word % 2), word / 2 * 8 + p + i};
}

/// Words 4 s to 4 s + 3 are A of columns 16 s to 16 s + 15. If 8 columns are left, the last two
/// words are A of the product with K = 8.
template <int kColumns>
constexpr bool words_are_operands() {
  return for_all(
      Fragment<kColumns>::kWords, [](std::uint32_t lane, std::uint32_t w, std::uint32_t i) {
        const std::uint32_t step = w / 4;
        const bool whole = 16 * step + 16 <= kColumns;
        const Element a = whole ? a_of_16(lane, 2 * (w % 4) + i) : a_of_8(lane, 2 * (w % 4) + i);
        return of_word(lane, w, i) == Element{a.row, a.column + 16 * step};
      });
}
static_assert(words_are_operands<8>() && words_are_operands<16>() && words_are_operands<64>());
static_assert(words_are_operands<72>() && words_are_operands<128>() && words_are_operands<256>());
static_assert(Fragment<72>::kWords == 18 && sizeof(Fragment<72>) == 72);

/// C of the columns from 8 j on is the next A: sums 0 and 1 are word 2 j, sums 2 and 3 word 2 j +
/// 1.
constexpr bool sums_are_words() {
  return for_all(2, [](std::uint32_t lane, std::uint32_t w, std::uint32_t i) {
    return c_of(lane, 2 * w + i) == of_word(lane, w, i);
  });
}
static_assert(sums_are_words());

/// The tails of products over 8 more columns read two matrices of one piece of 8 or of 16 rows.
constexpr bool tails_are_operands() {
  return for_all(2, [](std::uint32_t lane, std::uint32_t w, std::uint32_t i) {
    const auto rows_16 = [](std::uint32_t l) { return TileCoord{l % 16, 0}; };
    const auto pieces_2 = [](std::uint32_t l) { return TileCoord{l % 8, l / 8}; };
    const Element b = b_of_8(lane, i);
    return loaded(rows_16, false, lane, w, i) == a_of_8(lane, 2 * w + i) &&
           loaded(pieces_2, true, lane, w, i) == Element{b.row, b.column + 8 * w} &&
           transposed(loaded(rows_16, false, lane, w, i)) == Element{b.row, b.column + 8 * w};
  });
}
static_assert(tails_are_operands());

TEST(Fragment, PlacesMakeTheOperandsOfTheManual) {
  EXPECT_TRUE(rows_are_operand_a());
  EXPECT_TRUE(transposed_rows_are_operand_a());
  EXPECT_TRUE(columns_are_operand_b());
  EXPECT_TRUE(transposed_columns_are_operand_b());
  EXPECT_TRUE(tails_are_operands());
}

TEST(Fragment, WordsAreTheOperandsOfProducts) {
  EXPECT_TRUE(words_are_operands<64>());
  EXPECT_TRUE(words_are_operands<72>());
  EXPECT_TRUE(sums_are_words());
}

TEST(Fragment, EveryElementOfAnOperandIsInOneThread) {
  const auto expect_once = [](auto table, std::uint32_t count, std::uint32_t columns) {
    std::array<int, 256> found{};
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
      for (std::uint32_t i = 0; i < count; ++i) {
        const Element e = table(lane, i);
        ++found.at(e.row * columns + e.column);
      }
    }
    for (std::uint32_t i = 0; i < 32 * count; ++i) EXPECT_EQ(found.at(i), 1) << i;
  };
  expect_once(a_of_16, 8, 16);
  expect_once(b_of_16, 4, 8);
  expect_once(a_of_8, 4, 8);
  expect_once(b_of_8, 2, 8);
  expect_once(c_of, 4, 8);
}

}  // namespace
}  // namespace mhla::cuda
