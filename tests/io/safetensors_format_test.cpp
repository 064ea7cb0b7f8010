#include "mhla/io/safetensors_format.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <string_view>

#include "support/message_of.hpp"

namespace mhla {
namespace {

using detail::stored_bytes;
using detail::valid_utf8;

template <Stored T>
void expect_type(const char* name) {
  EXPECT_EQ(dtype_name(dtype_of<T>()), name);
  EXPECT_EQ(dtype_of_name(name), dtype_of<T>());
  EXPECT_EQ(dtype_width(dtype_of<T>()), static_cast<Index>(sizeof(T)));
}

TEST(Dtype, OfEveryStoredType) {
  expect_type<bool>("BOOL");
  expect_type<std::uint8_t>("U8");
  expect_type<Eigen::half>("F16");
  expect_type<Eigen::bfloat16>("BF16");
  expect_type<std::int32_t>("I32");
  expect_type<float>("F32");
  expect_type<double>("F64");
  expect_type<std::int64_t>("I64");
  EXPECT_EQ(dtype_width(Dtype::kUnknown), 0);
  for (const char* name : {"", "F3", "F321", "f32", "U16"}) {
    EXPECT_FALSE(dtype_of_name(name)) << name;
  }
}

TEST(StoredBytes, IsTheProductOrNothing) {
  constexpr Index kMax = std::numeric_limits<Index>::max();
  EXPECT_EQ(stored_bytes({}, Dtype::kF64), 8u);
  EXPECT_EQ(stored_bytes({2, 3}, Dtype::kF32), 24u);
  EXPECT_EQ(stored_bytes({2, 0, 3}, Dtype::kF32), 0u);
  EXPECT_EQ(stored_bytes({kMax}, Dtype::kU8), static_cast<std::uint64_t>(kMax));
  EXPECT_EQ(stored_bytes({kMax / 8}, Dtype::kF64), static_cast<std::uint64_t>(kMax / 8 * 8));
  EXPECT_EQ(stored_bytes({kMax / 8 + 1}, Dtype::kF64), std::nullopt);
  EXPECT_EQ(stored_bytes({Index{1} << 32, Index{1} << 31}, Dtype::kU8), std::nullopt);
  EXPECT_EQ(stored_bytes({0, kMax, 2}, Dtype::kU8), std::nullopt);
  EXPECT_EQ(stored_bytes({kMax, 0}, Dtype::kU8), 0u);
  for (const Index elements : {0, 1, 7, 8, 9}) {
    EXPECT_EQ(stored_bytes({elements}, Dtype::kUnknown),
              static_cast<std::uint64_t>(elements + 7) / 8);
  }
  EXPECT_EQ(stored_bytes({kMax}, Dtype::kUnknown), static_cast<std::uint64_t>(kMax / 8 + 1));
  EXPECT_EQ(stored_bytes({kMax, 2}, Dtype::kUnknown), std::nullopt);
}

/// True if the bytes encode one character, by decoding: the definition of RFC 3629.
bool is_character(std::string_view s) {
  const auto at = [&](std::size_t i) {
    return static_cast<unsigned>(static_cast<unsigned char>(s[i]));
  };
  const unsigned lead = at(0);
  const std::size_t length = lead < 0x80       ? 1
                             : lead >> 5 == 6  ? 2
                             : lead >> 4 == 14 ? 3
                             : lead >> 3 == 30 ? 4
                                               : 0;
  if (length != s.size()) return false;
  unsigned code = length == 1 ? lead : lead & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if (at(i) >> 6 != 2) return false;
    code = code << 6 | (at(i) & 0x3F);
  }
  const unsigned smallest[] = {0, 0, 0x80, 0x800, 0x10000};
  return code >= smallest[length] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
}

TEST(ValidUtf8, AgreesWithDecodingOnAllSequencesOfItsBoundaries) {
  // All lead bytes, all second bytes, and the other bytes at and beyond the ends of their range.
  const unsigned char ends[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF};
  for (int a = 0; a < 256; ++a) {
    const std::string one(1, static_cast<char>(a));
    EXPECT_EQ(valid_utf8(one) == 1, is_character(one)) << a;
    for (int b = 0; b < 256; ++b) {
      const std::string two = one + static_cast<char>(b);
      const bool good = is_character(two) || (a < 0x80 && b < 0x80);
      EXPECT_EQ(valid_utf8(two) == 2, good) << a << " " << b;
      if (a < 0xE0) continue;
      for (const unsigned char c : ends) {
        const std::string three = two + static_cast<char>(c);
        EXPECT_EQ(valid_utf8(three) == 3, is_character(three)) << a << " " << b << " " << int{c};
        for (const unsigned char d : ends) {
          const std::string four = three + static_cast<char>(d);
          const bool fits = is_character(four) || (is_character(three) && d < 0x80);
          EXPECT_EQ(valid_utf8(four) == 4, fits) << a << " " << b << " " << int{c} << " " << int{d};
        }
      }
    }
  }
}

TEST(ValidUtf8, TellsWhereItEnds) {
  EXPECT_EQ(valid_utf8(""), 0u);
  EXPECT_EQ(valid_utf8("abc\xC3\xA9"), 5u);
  EXPECT_EQ(valid_utf8("abc\xC3"), 3u);
  EXPECT_EQ(valid_utf8("ab\xFFz"), 2u);
}

TEST(SafetensorsError, SaysWhereWhatAndWhatWasExpected) {
  const auto fail = [](std::optional<std::uint64_t> position) {
    return test::message_of<safetensors_error>([&] {
      detail::fail_safetensors("x.safetensors", SafetensorsFault::kRank, position, "1", "2");
    });
  };
  EXPECT_EQ(fail(12), "mhla::Safetensors: x.safetensors: byte 12: 1, expected 2");
  EXPECT_EQ(fail(std::nullopt), "mhla::Safetensors: x.safetensors: 1, expected 2");
}

}  // namespace
}  // namespace mhla
