#include "mhla/io/safetensors_header.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "io/raw_file.hpp"

namespace mhla::test {
namespace {

using F = SafetensorsFault;

/// Expects that each file is refused for its reason, with a message of bounded length that names
/// its source, at a position inside of the file.
class Refusals {
 public:
  void expect(const Bytes& bytes, F fault, const std::string& what) {
    SCOPED_TRACE(what.substr(0, 200));
    distinct_.insert(bytes);
    const auto came = refusal(bytes);
    ASSERT_TRUE(came.has_value()) << "accepted";
    EXPECT_EQ(came->fault, fault) << came->message;
    EXPECT_EQ(came->message.rfind("mhla::Safetensors: bytes: ", 0), 0u) << came->message;
    EXPECT_NE(came->message.find(", expected "), std::string::npos) << came->message;
    EXPECT_LT(came->message.size(), 1000u);
    EXPECT_LE(came->position.value_or(0), bytes.size());
  }
  void expect(const std::string& header, std::size_t data, F fault) {
    expect(raw_file(header, data), fault, header);
  }
  std::size_t distinct() const { return distinct_.size(); }

 private:
  std::set<Bytes> distinct_;
};

std::string repeated(const std::string& text, std::size_t count) {
  std::string result;
  for (std::size_t i = 0; i < count; ++i) result += text;
  return result;
}

const std::string kPair =
    R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
    R"("b":{"dtype":"U8","shape":[3,1],"data_offsets":[8,11]}})";

TEST(SafetensorsHeader, AcceptsWhatFollowsTheRules) {
  const auto accepts = [](const std::string& header, std::size_t data) {
    const auto came = refusal(raw_file(header, data));
    EXPECT_FALSE(came.has_value()) << header.substr(0, 200) << ": " << came->message;
  };
  accepts("{}", 0);
  accepts("{}      ", 0);
  accepts(kPair, 11);
  accepts(R"({ "__metadata__" : { } })", 0);
  accepts("{\n\t\"t\" : {\"shape\":[], \"data_offsets\":[0,4],\r\n\"dtype\":\"F32\"}}", 4);
  accepts(one_tensor("\"F64\"", "[1,1,1,1,1,1,1,1]", "[0,8]"), 8);
  accepts(one_tensor("\"BOOL\"", "[0,9223372036854775807]", "[0,0]"), 0);
  accepts(R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1);
  accepts(
      "{\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\":" + one_tensor("\"U8\"", "[0]", "[0,0]").substr(5),
      0);
  accepts("{\"" + std::string(1024, 'n') + "\":" + one_tensor("\"U8\"", "[0]", "[0,0]").substr(5),
          0);
  accepts(R"({"__metadata__":{"long":")" + std::string(100000, 'x') + "\"}}", 0);
  // Empty tensors at both ends and between others, in any order of the header.
  accepts(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},)"
          R"("e":{"dtype":"I64","shape":[0],"data_offsets":[3,3]},)"
          R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
          R"("d":{"dtype":"F32","shape":[5,0],"data_offsets":[1,1]},)"
          R"("c":{"dtype":"F16","shape":[0],"data_offsets":[0,0]}})",
          3);
}

TEST(SafetensorsHeader, RefusesMalformedFiles) {
  Refusals refusals;
  const auto header = [&](const std::string& text, std::size_t data, F fault) {
    refusals.expect(text, data, fault);
  };
  const auto tensor = [&](const std::string& dtype, const std::string& shape,
                          const std::string& offsets, std::size_t data, F fault) {
    refusals.expect(one_tensor(dtype, shape, offsets), data, fault);
  };
  const std::string f32 = "\"F32\"";

  // The length of the header.
  for (const std::uint64_t length : {3u, 4u, 100u, 16u << 20}) {
    refusals.expect(raw_file("{}", 0, length), F::kHeaderBeyondEnd, std::to_string(length));
  }
  for (const std::uint64_t length :
       {(std::uint64_t{16} << 20) + 1, std::uint64_t{100'000'000}, std::uint64_t{1} << 32,
        std::uint64_t{1} << 63, ~std::uint64_t{0} - 8, ~std::uint64_t{0} - 7, ~std::uint64_t{0}}) {
    refusals.expect(raw_file("{}", 0, length), F::kHeaderTooLong, std::to_string(length));
  }
  refusals.expect(raw_file("{}", 0, 0), F::kHeaderStart, "length 0");
  refusals.expect(raw_file("{}", 0, 1), F::kJson, "length 1");

  // Where it starts and ends.
  for (const char* text :
       {"[]", "\"\"", "12", "  {}", "\n{}", "\xEF\xBB\xBF{}", "null", "}{", "\1{}"}) {
    header(text, 0, F::kHeaderStart);
  }
  for (const std::string end :
       {"}", "{}", "\n", "\t", "  x", " \n ", ",", "\r", "/**/", "//", "a", "]"}) {
    header("{}" + end, 0, F::kAfterHeader);
  }
  header(std::string("{}\0", 3), 0, F::kAfterHeader);
  header(std::string("{}  \0 ", 6), 0, F::kAfterHeader);

  // JSON.
  for (const std::string text : {"{ ",
                                 "{,}",
                                 "{\"a\"}",
                                 "{\"a\":}",
                                 "{\"a\":,}",
                                 "{a:1}",
                                 "{'a':1}",
                                 "{\"a\" {}}",
                                 "{]",
                                 "{{}}",
                                 "{\"\\x\":{}}",
                                 "{\"\\ud800\":{}}",
                                 "{\"\\udc00x\":{}}",
                                 "{\"a\n\":{}}",
                                 "{\"a",
                                 "{1:{}}",
                                 "{null:{}}",
                                 "{/* */}",
                                 "{\"__metadata__\":{\"a\":\"b\",}}",
                                 "{\"__metadata__\":{\"a\":nul}}",
                                 "{\"__metadata__\":{\"a\":\"b\"",
                                 "{\"__metadata__\":{} \"t\":{}}",
                                 "{\"\\u12\":{}}"}) {
    header(text, 0, F::kJson);
  }
  header(std::string("{\0}", 3), 0, F::kJson);
  tensor(f32, "[1,]", "[0,4]", 4, F::kJson);
  tensor(f32, "[,1]", "[0,4]", 4, F::kJson);
  tensor(f32, "[01]", "[0,4]", 4, F::kJson);
  tensor(f32, "[+1]", "[0,4]", 4, F::kJson);
  tensor(f32, "[0x1]", "[0,4]", 4, F::kJson);
  tensor(f32, "[1 1]", "[0,4]", 4, F::kJson);
  tensor(f32, "[NaN]", "[0,4]", 4, F::kJson);
  tensor(f32, "[1}", "[0,4]", 4, F::kJson);

  // UTF-8: stray and missing continuation, overlong forms, surrogates, above U+10FFFF.
  for (const std::string bad :
       {"\x80", "\xBF", "\xC3", "\xC3(", "\xC0\x80", "\xC1\xBF", "\xE2\x82", "\xE0\x9F\xBF",
        "\xED\xA0\x80", "\xED\xBF\xBF", "\xF0\x9F\x98", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80",
        "\xF5\x80\x80\x80", "\xFE", "\xFF"}) {
    header("{\"" + bad + "\":{}}", 0, F::kUtf8);
    header("{\"__metadata__\":{\"k\":\"" + bad + "\"}}", 0, F::kUtf8);
    header("{}" + bad, 0, F::kUtf8);
  }

  // Values of the wrong kind, wherever a value stands.
  const std::vector<std::string> not_text = {"1",    "-1", "1.5", "true", "false",
                                             "null", "[]", "{}",  "1e999"};
  for (const std::string& value : not_text) {
    header("{\"__metadata__\":{\"k\":" + value + "}}", 0, F::kWrongType);
    tensor(value, "[1]", "[0,4]", 4, F::kWrongType);
    if (value == "{}") continue;
    header("{\"__metadata__\":" + value + "}", 0, F::kWrongType);
    header("{\"t\":" + value + "}", 0, F::kWrongType);
  }
  header("{\"__metadata__\":\"text\"}", 0, F::kWrongType);
  header("{\"t\":\"text\"}", 0, F::kWrongType);
  for (const std::string value : {"1", "-1", "1.5", "true", "null", "\"[1]\"", "{}", "1e999"}) {
    tensor(f32, value, "[0,4]", 4, F::kWrongType);
    tensor(f32, "[1]", value, 4, F::kWrongType);
  }

  // Numbers that are not whole, not positive, or too large; and what is no number.
  for (const std::string value :
       {"-1", "-0", "1.0", "0.5", "1e0", "1E2", "1e999", "-1e999", "true", "false", "null", "\"1\"",
        "\"\"", "9223372036854775808", "18446744073709551615", "18446744073709551616",
        "-9223372036854775808", "-9223372036854775809",
        "100000000000000000000000000000000000000000"}) {
    tensor(f32, "[" + value + "]", "[0,4]", 4, F::kNotAnInteger);
    tensor(f32, "[1," + value + "]", "[0,4]", 4, F::kNotAnInteger);
    tensor(f32, "[1]", "[" + value + ",4]", 4, F::kNotAnInteger);
    tensor(f32, "[1]", "[0," + value + "]", 4, F::kNotAnInteger);
  }

  // Depth.
  for (const std::string value : {"[]", "{}", "[1]", "[[[[1]]]]", "{\"a\":1}"}) {
    tensor(f32, "[" + value + "]", "[0,4]", 4, F::kDepth);
    tensor(f32, "[1]", "[0," + value + "]", 4, F::kDepth);
  }
  tensor(f32, repeated("[", 100000) + repeated("]", 100000), "[0,4]", 4, F::kDepth);
  header(repeated("{\"a\":", 100000) + "1" + repeated("}", 100000), 0, F::kUnknownKey);
  header("{\"__metadata__\":" + repeated("{\"a\":", 100000), 0, F::kWrongType);
  header("{\"a\":" + repeated("[", 100000), 0, F::kWrongType);

  // Keys.
  header(R"({"t":{}})", 0, F::kMissingKey);
  header(R"({"t":{"shape":[0],"data_offsets":[0,0]}})", 0, F::kMissingKey);
  header(R"({"t":{"dtype":"F32","data_offsets":[0,4]}})", 4, F::kMissingKey);
  header(R"({"t":{"dtype":"F32","shape":[1]}})", 4, F::kMissingKey);
  for (const std::string key :
       {"", "Dtype", "dtype ", "shapes", "offset", "__metadata__", "t", "strides"}) {
    header(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4],")" + key + "\":1}}", 4,
           F::kUnknownKey);
    header("{\"t\":{\"" + key + "\":{}}}", 4, F::kUnknownKey);
  }
  for (const std::string again :
       {R"("dtype":"F32")", R"("shape":[1])", R"("data_offsets":[0,4])"}) {
    header(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4],)" + again + "}}", 4,
           F::kDuplicateKey);
    header("{\"t\":{" + again + "," + again + "}}", 4, F::kDuplicateKey);
  }
  header(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"sh\u0061pe":[1]}})", 4,
         F::kDuplicateKey);
  const std::string entry = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  header("{\"t\":" + entry + ",\"t\":" + entry + "}", 0, F::kDuplicateKey);
  header("{\"t\":" + entry + ",\"u\":" + entry + ",\"\\u0074\":" + entry + "}", 0,
         F::kDuplicateKey);
  header(R"({"__metadata__":{},"__metadata__":{}})", 0, F::kDuplicateKey);
  header(R"({"__metadata__":{"k":"1","l":"2","k":"1"}})", 0, F::kDuplicateKey);
  header(R"({"__metadata__":{"k":"1","\u006b":"2"}})", 0, F::kDuplicateKey);
  for (const std::string& name :
       {std::string(1025, 'n'), std::string(100000, 'n'), repeated("\xC3\xA9", 513)}) {
    header("{\"" + name + "\":" + entry + "}", 0, F::kNameTooLong);
    header("{\"__metadata__\":{\"" + name + "\":\"\"}}", 0, F::kNameTooLong);
    header("{\"t\":{\"" + name + "\":1}}", 0, F::kNameTooLong);
  }

  // Types, axes, offsets.
  for (const char* dtype : {"", "f32", "F32 ", "F8_E4M3", "F8_E5M2", "I8", "I16", "U16", "U32",
                            "U64", "C64", "float32", "bool", "F128"}) {
    tensor("\"" + std::string(dtype) + "\"", "[1]", "[0,4]", 4, F::kUnknownDtype);
  }
  tensor("\"" + std::string(100000, 'F') + "\"", "[1]", "[0,4]", 4, F::kUnknownDtype);
  tensor(f32, "[1,1,1,1,1,1,1,1,1]", "[0,4]", 4, F::kRank);
  tensor(f32, "[0" + repeated(",0", 100000) + "]", "[0,0]", 0, F::kRank);
  for (const char* offsets : {"[]", "[0]", "[4]", "[0,4,4]", "[0,0,0,0]", "[0,4,8,12]"}) {
    tensor(f32, "[1]", offsets, 4, F::kOffsetCount);
  }

  // Products.
  for (const char* shape :
       {"[4294967296,4294967296]", "[4294967296,4294967296,0]", "[0,4294967296,4294967296]",
        "[9223372036854775807]", "[2305843009213693952]", "[3037000500,3037000500]",
        "[65536,65536,65536,65536]", "[2147483648,2147483648,4]",
        "[256,256,256,256,256,256,256,256]", "[9223372036854775807,9223372036854775807]",
        "[6148914691236517206,6]"}) {
    tensor(f32, shape, "[0,4]", 4, F::kOverflow);
    tensor(f32, shape, "[0,0]", 0, F::kOverflow);
  }
  tensor("\"F64\"", "[1152921504606846976]", "[0,0]", 0, F::kOverflow);
  tensor("\"U8\"", "[1152921504606846976,8]", "[0,0]", 0, F::kOverflow);

  // Ranges.
  for (const char* offsets :
       {"[0,5]", "[4,8]", "[8,4]", "[4,0]", "[5,4]", "[0,9223372036854775807]",
        "[9223372036854775807,0]", "[9223372036854775804,9223372036854775807]", "[5,5]",
        "[4294967296,4294967300]"}) {
    tensor(f32, "[1]", offsets, 4, F::kRange);
  }
  for (const char* shape :
       {"[2]", "[0]", "[1,2]", "[1,0]", "[2305843009213693951]", "[1000000000]"}) {
    tensor(f32, shape, "[0,4]", 4, F::kSize);
  }
  for (const char* dtype : {"F64", "F16", "BF16", "I64", "U8", "BOOL"}) {
    tensor("\"" + std::string(dtype) + "\"", "[1]", "[0,4]", 4, F::kSize);
  }
  tensor(f32, "[]", "[0,0]", 4, F::kSize);
  tensor(f32, "[1]", "[0,3]", 4, F::kSize);

  // Tiling: what each pair of ranges in 8 bytes leaves or shares.
  header("{}", 1, F::kHole);
  header(R"({"__metadata__":{}})", 8, F::kHole);
  for (int a = 0; a <= 8; ++a) {
    for (int b = a; b <= 8; ++b) {
      for (int c = 0; c <= 8; c += 2) {
        const auto range = [](int begin, int end) {
          return R"({"dtype":"U8","shape":[)" + std::to_string(end - begin) +
                 R"(],"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(end) + "]}";
        };
        const std::string text = "{\"t\":" + range(a, b) + ",\"u\":" + range(c, 8) + "}";
        // By definition: every byte in one range exactly, and empty ranges inside of none.
        std::vector<int> owners(8);
        for (int i = a; i < b; ++i) ++owners[static_cast<std::size_t>(i)];
        for (int i = c; i < 8; ++i) ++owners[static_cast<std::size_t>(i)];
        bool overlap = a == b && a > c && a < 8;  // an empty one inside of the other
        bool hole = false;
        for (const int count : owners) {
          overlap = overlap || count > 1;
          hole = hole || count == 0;
        }
        const auto came = refusal(raw_file(text, 8));
        EXPECT_EQ(came.has_value(), hole || overlap) << text;
        // Both at once: the first one counts.
        if (hole && !overlap) refusals.expect(text, 8, F::kHole);
        if (!hole && overlap) refusals.expect(text, 8, F::kOverlap);
      }
    }
  }

  EXPECT_GE(refusals.distinct(), 400u);
  std::printf("%zu distinct malformed files\n", refusals.distinct());
}

TEST(SafetensorsHeader, RefusesEveryTruncationAndEveryExtraByte) {
  const Bytes whole = raw_file(kPair, 11);
  ASSERT_FALSE(refusal(whole).has_value());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    // In memory of that very size, so that a sanitizer sees a byte read too many.
    const Bytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    const F expected = size < 10                 ? F::kTooShort
                       : size < 8 + kPair.size() ? F::kHeaderBeyondEnd
                                                 : F::kRange;
    const auto came = refusal(part);
    ASSERT_TRUE(came.has_value()) << size;
    EXPECT_EQ(came->fault, expected) << came->message;
    // The same with a length that fits: the header itself ends too early.
    if (size < 10 || size >= 8 + kPair.size()) continue;
    const auto cut = refusal(raw_file(kPair.substr(0, size - 8), 0));
    ASSERT_TRUE(cut.has_value()) << size;
    EXPECT_TRUE(cut->fault == F::kJson || cut->fault == F::kRange) << cut->message;
  }
  Bytes more = whole;
  more.emplace_back();
  EXPECT_EQ(refusal(more)->fault, F::kHole);
}

TEST(SafetensorsHeader, EveryChangeOfOneByteIsRefusedOrHarmless) {
  const Bytes whole = raw_file(kPair, 11);
  int refused = 0;
  for (std::size_t at = 0; at < 8 + kPair.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      Bytes changed = whole;
      changed[at] = static_cast<std::byte>(value);
      refused += refusal(changed).has_value() ? 1 : 0;
    }
  }
  // Names, the text and types of the same width may change; little else.
  EXPECT_GT(refused, static_cast<int>(kPair.size()) * 240);
}

TEST(SafetensorsHeader, CountsTensorsAndMetadata) {
  const auto many = [](const std::string& before, const std::string& value, std::size_t count,
                       const std::string& after) {
    std::string text = before;
    for (std::size_t i = 0; i < count; ++i) {
      text += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":" + value;
    }
    return raw_file(text + after, 0);
  };
  const std::string entry = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_FALSE(refusal(many("{", entry, 65536, "}")).has_value());
  EXPECT_EQ(refusal(many("{", entry, 65537, "}"))->fault, F::kTooMany);
  EXPECT_FALSE(refusal(many("{\"__metadata__\":{", "\"\"", 65536, "}}")).has_value());
  EXPECT_EQ(refusal(many("{\"__metadata__\":{", "\"\"", 65537, "}}"))->fault, F::kTooMany);
}

TEST(SafetensorsHeader, PositionIsWhereTheReaderStopped) {
  const auto position = [](const std::string& header, std::size_t data) {
    return refusal(raw_file(header, data))->position;
  };
  EXPECT_EQ(position("{\"a\":1}", 0), 8u + 7u);  // a number ends with the character behind it
  EXPECT_EQ(position("{\"a\":\"x\"}", 0), 8u + 8u);
  EXPECT_EQ(position("{\"a\":null}", 0), 8u + 9u);
  EXPECT_EQ(position("{\"\xFF\":1}", 0), 8u + 2u);
  EXPECT_EQ(position("{}   x", 0), 8u + 5u);
  EXPECT_EQ(position("{}", 7), 8u + 2u);
  const std::string header = one_tensor("\"U8\"", "[2]", "[0,2]");
  EXPECT_EQ(position(header, 5), 8u + header.size() + 2u);
  EXPECT_FALSE(refusal(raw_file("{}", 0, 99))->position.has_value());
}

TEST(SafetensorsHeader, MessagesAreShortAndPrintable) {
  const auto came = refusal(raw_file("{\"" + repeated("\\u001b[2J\xE2\x80\xAE", 100) + "\":1}", 0));
  ASSERT_TRUE(came.has_value());
  EXPECT_LT(came->message.size(), 400u);
  for (const char c : came->message) EXPECT_TRUE(c >= 0x20 && c < 0x7F) << came->message;
  EXPECT_EQ(refusal(raw_file(one_tensor("\"F8\"", "[1]", "[0,1]"), 1))->message,
            "mhla::Safetensors: bytes: byte 26: tensor 't' has dtype 'F8', expected F64, F32, F16, "
            "BF16, I64, I32, U8 or BOOL");
}

}  // namespace
}  // namespace mhla::test
