#include "mhla/io/safetensors_header.hpp"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "support/raw_file.hpp"

namespace mhla::test {
namespace {

using F = SafetensorsFault;
using Texts = std::vector<std::string>;

/// Headers that break one rule, and the number of bytes of data after them.
struct Case {
  F fault;
  Texts headers;
  std::size_t data = 4;
};

/// Words of a text, separated by spaces.
Texts words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}
/// Returns the pattern with each of the texts in place of its $.
Texts each(const std::string& pattern, const Texts& texts) {
  const std::size_t at = pattern.find('$');
  Texts all;
  for (const std::string& text : texts) all.push_back(std::string(pattern).replace(at, 1, text));
  return all;
}
Texts each(const std::string& pattern, const std::string& text) {
  return each(pattern, words(text));
}
std::string repeated(const std::string& text, std::size_t count) {
  std::string result;
  for (std::size_t i = 0; i < count; ++i) result += text;
  return result;
}

const std::string kMetadata = R"({"__metadata__":$})", kText = R"({"__metadata__":{"k":$}})";
const std::string kDtype = one_tensor("$", "[1]", "[0,4]");
const std::string kShape = one_tensor("\"F32\"", "$", "[0,4]");
const std::string kOffsets = one_tensor("\"F32\"", "[1]", "$");
const std::string kMore =
    R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4],$}})";  // one more key
const std::string kEmpty = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
const std::string kPair =
    R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
    R"("b":{"dtype":"U8","shape":[3,1],"data_offsets":[8,11]}})";

/// Expects a refusal for the given reason, at a position inside the file. Its message has bounded
/// length and names the source.
void expect_refused(const Bytes& bytes, F fault, const std::string& what) {
  SCOPED_TRACE(what.substr(0, 200));
  const auto came = refusal(bytes);
  ASSERT_TRUE(came.has_value()) << "accepted";
  EXPECT_EQ(came->fault, fault) << came->message;
  EXPECT_TRUE(came->message.starts_with("mhla::Safetensors: bytes: ")) << came->message;
  EXPECT_NE(came->message.find(", expected "), std::string::npos) << came->message;
  EXPECT_LT(came->message.size(), 1000u);
  EXPECT_LE(came->position.value_or(0), bytes.size());
}
void expect_refused(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    for (const std::string& header : c.headers) {
      expect_refused(raw_file(header, c.data), c.fault, header);
    }
  }
}

TEST(SafetensorsHeader, AcceptsWhatFollowsTheRules) {
  const Case accepted[] = {
      {{}, {"{}", "{}      ", R"({ "__metadata__" : { } })", R"({"__metadata__":null})"}, 0},
      {{},
       {R"({"__metadata__":null,"t":)" + kEmpty + "}",
        "{\"t\":" + kEmpty + R"(,"__metadata__":null})"},
       0},
      {{}, each(kText, '"' + std::string(100000, 'x') + '"'), 0},
      {{}, each("{\"$\":" + kEmpty + "}", "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"), 0},
      {{}, {"{\"\":" + kEmpty + "}", "{\"" + std::string(1024, 'n') + "\":" + kEmpty + "}"}, 0},
      {{}, {one_tensor("\"BOOL\"", "[0,9223372036854775807]", "[0,0]")}, 0},
      {{}, {"{\n\t\"t\" : {\"shape\":[], \"data_offsets\":[0,4],\r\n\"dtype\":\"F32\"}}"}, 4},
      {{}, {one_tensor("\"F64\"", "[1,1,1,1,1,1,1,1]", "[0,8]")}, 8},
      {{}, {kPair}, 11},
      // Empty tensors at both ends and between other tensors, in any order of the header.
      {{},
       {R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},)"
        R"("e":{"dtype":"I64","shape":[0],"data_offsets":[3,3]},)"
        R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
        R"("d":{"dtype":"F32","shape":[5,0],"data_offsets":[1,1]},)"
        R"("c":{"dtype":"F16","shape":[0],"data_offsets":[0,0]}})"},
       3}};
  for (const Case& c : accepted) {
    for (const std::string& header : c.headers) {
      const auto came = refusal(raw_file(header, c.data));
      EXPECT_FALSE(came.has_value()) << header.substr(0, 200) << ": " << came->message;
    }
  }
}

TEST(SafetensorsHeader, RefusesLengthsThatCannotBe) {
  const std::uint64_t limit = 16u << 20, most = ~std::uint64_t{0};
  for (const std::uint64_t length : {std::uint64_t{3}, std::uint64_t{4}, limit}) {
    expect_refused(raw_file("{}", 0, length), F::kHeaderBeyondEnd, std::to_string(length));
  }
  for (const std::uint64_t length :
       {limit + 1, std::uint64_t{1} << 32, std::uint64_t{1} << 63, most - 8, most - 7, most}) {
    expect_refused(raw_file("{}", 0, length), F::kHeaderTooLong, std::to_string(length));
  }
  expect_refused(raw_file("{}", 0, 0), F::kHeaderStart, "length 0");
  expect_refused(raw_file("{}", 0, 1), F::kJson, "length 1");
}

TEST(SafetensorsHeader, RefusesTextThatIsNoJson) {
  expect_refused({
      {F::kHeaderStart, each("$", "[] \"\" 12 null }{ \xEF\xBB\xBF{} \1{}")},
      {F::kHeaderStart, {"  {}", "\n{}"}},
      {F::kAfterHeader, each("{}$", "} {} , /**/ // a ]")},
      {F::kAfterHeader, {"{}\n", "{}\t", "{}  x", "{} \n ", "{}\r", {"{}\0", 3}, {"{}  \0 ", 6}}},
      {F::kJson, each("$", R"({,} {"a"} {"a":} {"a":,} {a:1} {'a':1} {] {{}} {"a {1:{}} {null:{}})"
                           R"( {"\x":{}} {"\u12":{}} {"\ud800":{}} {"\udc00x":{}})")},
      {F::kJson, {"{ ", "{\"a\" {}}", "{/* */}", "{\"a\n\":{}}", {"{\0}", 3}}},
      {F::kJson, each(kMetadata, R"({"a":"b",} {"a":nul} {"a":"b")")},
      {F::kJson, {R"({"__metadata__":{} "t":{}})", each(kShape, Texts{"[1 1]"})[0]}},
      {F::kJson, each(kShape, "[1,] [,1] [01] [+1] [0x1] [NaN] [1}")},
  });
  // Stray and missing continuation, overlong forms, surrogates, above U+10FFFF.
  const std::string bad =
      "\x80 \xBF \xC3 \xC3( \xC0\x80 \xC1\xBF \xE2\x82 \xE0\x9F\xBF \xED\xA0\x80 \xED\xBF\xBF "
      "\xF0\x9F\x98 \xF0\x8F\xBF\xBF \xF4\x90\x80\x80 \xF5\x80\x80\x80 \xFE \xFF";
  for (const char* pattern : {R"({"$":{}})", R"({"__metadata__":{"k":"$"}})", "{}$"}) {
    expect_refused({{F::kUtf8, each(pattern, bad)}});
  }
}

TEST(SafetensorsHeader, RefusesValuesOfAnotherKind) {
  const std::string deep = repeated("[", 100000), open = repeated("{\"a\":", 100000);
  const std::string no_text_or_null = "1 -1 1.5 true false [] 1e999",
                    no_text = no_text_or_null + " null";
  const std::string no_list = R"(1 -1 1.5 true null "[1]" {} 1e999)";
  expect_refused({{F::kWrongType, each(kText, no_text + " {}")},
                  {F::kWrongType, each(kDtype, no_text + " {}")},
                  {F::kWrongType, each(kMetadata, no_text_or_null + " \"text\"")},
                  {F::kWrongType, each("{\"t\":$}", no_text + " \"text\"")},
                  {F::kWrongType, each(kShape, no_list)},
                  {F::kWrongType, each(kOffsets, no_list)},
                  {F::kDepth, each(kShape, deep + repeated("]", 100000))},
                  {F::kUnknownKey, {open + "1" + repeated("}", 100000)}},
                  {F::kWrongType, {"{\"__metadata__\":" + open, "{\"a\":" + deep}}});
  const std::string numbers =
      "-1 -0 1.0 0.5 1e0 1E2 1e999 -1e999 true false null \"1\" \"\" 9223372036854775808 "
      "18446744073709551615 18446744073709551616 -9223372036854775808 -9223372036854775809 "
      "100000000000000000000000000000000000000000";
  const std::string nested = R"([] {} [1] [[[[1]]]] {"a":1})";
  for (const auto& [fault, texts] : {std::pair(F::kNotAnInteger, numbers), {F::kDepth, nested}}) {
    expect_refused({{fault, each(kShape, each("[$]", texts))},
                    {fault, each(kShape, each("[1,$]", texts))},
                    {fault, each(kOffsets, each("[$,4]", texts))},
                    {fault, each(kOffsets, each("[0,$]", texts))}});
  }
}

TEST(SafetensorsHeader, RefusesKeysThatAreMissingUnknownRepeatedOrLong) {
  const Texts keys = {"", "Dtype", "dtype ", "shapes", "offset", "__metadata__", "t", "strides"};
  const std::string all = R"("dtype":"F32" "shape":[1] "data_offsets":[0,4])";
  const Texts names = {std::string(1025, 'n'), std::string(100000, 'n'), repeated("\xC3\xA9", 513)};
  expect_refused({
      {F::kMissingKey, each("{\"t\":{$}}", all)},
      {F::kMissingKey,
       {R"({"t":{}})", R"({"t":{"dtype":"F32","shape":[1]}})",
        R"({"t":{"shape":[0],"data_offsets":[0,0]}})",
        R"({"t":{"dtype":"F32","data_offsets":[0,4]}})"}},
      {F::kUnknownKey, each(kMore, each("\"$\":1", keys))},
      {F::kUnknownKey, each("{\"t\":{\"$\":{}}}", keys)},
      {F::kDuplicateKey, each(kMore, all + R"( "sh\u0061pe":[1])")},
      {F::kDuplicateKey, {R"({"t":{"dtype":"F32","dtype":"F32"}})"}},
      {F::kDuplicateKey,
       each("{\"t\":" + kEmpty + ",\"u\":" + kEmpty + ",\"$\":" + kEmpty + "}", R"(t u \u0074)")},
      {F::kDuplicateKey, each(R"({"__metadata__":$,"__metadata__":{}})", "{} null")},
      {F::kDuplicateKey, each(R"({"__metadata__":{"k":"1","l":"2","$":"1"}})", R"(k l \u006b)")},
      {F::kNameTooLong, each("{\"$\":" + kEmpty + "}", names)},
      {F::kNameTooLong, each("{\"__metadata__\":{\"$\":\"\"}}", names)},
      {F::kNameTooLong, each("{\"t\":{\"$\":1}}", names)},
  });
}

TEST(SafetensorsHeader, RefusesSizesAndRangesThatCannotBe) {
  const std::string large =
      "[4294967296,4294967296] [4294967296,4294967296,0] [0,4294967296,4294967296] "
      "[9223372036854775807] [2305843009213693952] [3037000500,3037000500] "
      "[65536,65536,65536,65536] [2147483648,2147483648,4] [256,256,256,256,256,256,256,256] "
      "[9223372036854775807,9223372036854775807] [6148914691236517206,6]";
  expect_refused({
      {F::kUnknownDtype, each(kDtype, "\"\"")},
      {F::kNameTooLong, each(kDtype, Texts{'"' + std::string(1025, 'F') + '"'})},
      {F::kRank, each(kShape, "[1,1,1,1,1,1,1,1,1] [0" + repeated(",0", 100000) + "]")},
      {F::kOffsetCount, each(kOffsets, "[] [0] [4] [0,4,4] [0,0,0,0] [0,4,8,12]")},
      {F::kOverflow, each(kShape, large)},
      {F::kOverflow,
       {one_tensor("\"F64\"", "[1152921504606846976]", "[0,0]"),
        one_tensor("\"U8\"", "[1152921504606846976,8]", "[0,0]")}},
      {F::kRange, each(kOffsets,
                       "[0,5] [4,8] [8,4] [4,0] [5,4] [0,9223372036854775807] [5,5] "
                       "[9223372036854775807,0] [4294967296,4294967300] "
                       "[9223372036854775804,9223372036854775807]")},
      {F::kSize, each(kShape, "[2] [0] [1,2] [1,0] [2305843009213693951] [1000000000]")},
      {F::kSize, each(kDtype, R"("F64" "F16" "BF16" "I64" "U8" "BOOL")")},
      {F::kSize, each(kOffsets, "[0,3] [0,0] [4,4]")},
      {F::kHole, {"{}", R"({"__metadata__":{}})"}, 1},
  });
}

TEST(SafetensorsHeader, AcceptsTypesThatItDoesNotKnow) {
  const Texts names = words(
      R"("F8_E4M3" "F8_E5M2" "F6_E2M3" "F4" "I8" "I16" "U16" "U32" "U64" "C64" "f32" "bool")");
  for (const std::string& header : each(kDtype, names)) {
    const auto came = refusal(raw_file(header, 4));
    EXPECT_FALSE(came.has_value()) << header << ": " << came->message;
  }
  // Sizes are checked as far as possible: at least one bit per element, and no bytes without
  // elements.
  const auto other = [](const char* shape, const char* offsets) {
    return Texts{one_tensor("\"F4\"", shape, offsets)};
  };
  for (const char* shape : {"[]", "[1]", "[32]", "[2,3]"}) {
    EXPECT_FALSE(refusal(raw_file(other(shape, "[0,4]")[0], 4)).has_value()) << shape;
  }
  for (const char* shape : {"[0]", "[5,0]"}) {
    EXPECT_FALSE(refusal(raw_file(other(shape, "[0,0]")[0], 0)).has_value()) << shape;
  }
  expect_refused({{F::kSize, other("[33]", "[0,4]")},
                  {F::kSize, other("[9223372036854775807]", "[0,4]")},
                  {F::kSize, other("[0]", "[0,4]")},
                  {F::kSize, other("[]", "[4,4]")},
                  {F::kOverflow, other("[9223372036854775807,2]", "[0,4]")},
                  {F::kOverflow, other("[4294967296,0,4294967296]", "[0,0]")},
                  {F::kRange, other("[4]", "[0,5]")},
                  {F::kRange, other("[4]", "[4,0]")},
                  {F::kHole, other("[4]", "[0,3]")},
                  {F::kOverlap,
                   {R"({"t":{"dtype":"F4","shape":[4],"data_offsets":[0,2]},)"
                    R"("u":{"dtype":"F8","shape":[3],"data_offsets":[1,4]}})"}}});
}

/// Holes and overlaps of each pair of ranges in 8 bytes. By definition every byte is in exactly one
/// range, and an empty range is inside none. If both rules are broken, either may be reported.
TEST(SafetensorsHeader, RefusesHolesAndOverlaps) {
  const auto range = [](int begin, int end) {
    return R"({"dtype":"U8","shape":[)" + std::to_string(end - begin) + R"(],"data_offsets":[)" +
           std::to_string(begin) + "," + std::to_string(end) + "]}";
  };
  for (int a = 0; a <= 8; ++a) {
    for (int b = a; b <= 8; ++b) {
      for (const auto& [c, d] : {std::pair{0, 8}, {2, 8}, {4, 8}, {6, 8}, {8, 8}, {0, 7}, {4, 7}}) {
        bool overlap = a == b && a > c && a < d, hole = false;
        for (int i = 0; i < 8; ++i) {
          const int owners = (i >= a && i < b) + (i >= c && i < d);
          overlap = overlap || owners > 1;
          hole = hole || owners == 0;
        }
        const std::string text = "{\"t\":" + range(a, b) + ",\"u\":" + range(c, d) + "}";
        const auto came = refusal(raw_file(text, 8));
        ASSERT_EQ(came.has_value(), hole || overlap) << text;
        if (hole != overlap) {
          EXPECT_EQ(came->fault, hole ? F::kHole : F::kOverlap) << text;
        }
      }
    }
  }
}

TEST(SafetensorsHeader, RefusesEveryTruncationAndAnExtraByte) {
  const Bytes whole = raw_file(kPair, 11);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    // Memory of exactly this size, so that a sanitizer detects one byte read too many.
    const Bytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    expect_refused(part,
                   size < 10                 ? F::kTooShort
                   : size < 8 + kPair.size() ? F::kHeaderBeyondEnd
                                             : F::kRange,
                   std::to_string(size));
  }
  for (std::size_t size = 2; size < kPair.size(); ++size) {  // with a correct length
    EXPECT_TRUE(refusal(raw_file(kPair.substr(0, size), 11)).has_value()) << size;
  }
  expect_refused(raw_file(kPair, 12), F::kHole, "a byte more");
}

TEST(SafetensorsHeader, CountsTensorsAndMetadata) {
  EXPECT_EQ(SafetensorsOptions{}.tensor_limit, 1'000'000u);
  const auto many = [](const std::string& pattern, const std::string& value, std::size_t count) {
    std::string text = "\"0\":" + value;
    for (std::size_t i = 1; i < count; ++i) text += ",\"" + std::to_string(i) + "\":" + value;
    return raw_file(each(pattern, Texts{text})[0], 0);
  };
  for (const auto& [pattern, value] :
       {std::pair("{$}", kEmpty), {R"({"__metadata__":{$}})", "\"\""}}) {
    for (const std::size_t limit : {1u, 2u, 100u}) {
      const SafetensorsOptions options{.tensor_limit = limit};
      EXPECT_FALSE(refusal(many(pattern, value, limit), options).has_value());
      const auto came = refusal(many(pattern, value, limit + 1), options);
      ASSERT_TRUE(came.has_value());
      EXPECT_EQ(came->fault, F::kTooMany);
      EXPECT_NE(came->message.find(std::to_string(limit) + " of each (tensor_limit)"),
                std::string::npos)
          << came->message;
    }
    EXPECT_FALSE(refusal(many(pattern, value, 65537)).has_value());
  }
}

TEST(SafetensorsHeader, PositionIsWhereTheReaderStopped) {
  const auto position = [](const std::string& header, std::size_t data) {
    return refusal(raw_file(header, data))->position;
  };
  EXPECT_EQ(position("{\"a\":1}", 0), 8u + 7u);  // a number ends with the next character
  EXPECT_EQ(position("{\"a\":null}", 0), 8u + 9u);
  EXPECT_EQ(position("{\"\xFF\":1}", 0), 8u + 2u);
  EXPECT_EQ(position("{}   x", 0), 8u + 5u);
  EXPECT_EQ(position(kPair, 13), 8u + kPair.size() + 11u);
  EXPECT_FALSE(refusal(raw_file("{}", 0, 99))->position.has_value());
}

TEST(SafetensorsHeader, MessagesAreShortAndPrintable) {
  const auto came = refusal(raw_file("{\"" + repeated("\\u001b[2J\xE2\x80\xAE", 100) + "\":1}", 0));
  ASSERT_TRUE(came.has_value());
  EXPECT_LT(came->message.size(), 400u);
  for (const char c : came->message) EXPECT_TRUE(c >= 0x20 && c < 0x7F) << came->message;
  EXPECT_EQ(refusal(raw_file(one_tensor("\"F8\"", "[1]", "[1,1]"), 1))->message,
            "mhla::Safetensors: bytes: byte 60: tensor 't' at [1, 1) of the data, expected at "
            "least 1 bytes for 'F8'[1]");
}

}  // namespace
}  // namespace mhla::test
