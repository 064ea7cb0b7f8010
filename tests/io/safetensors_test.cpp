#include "mhla/io/safetensors.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <bit>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mhla/io/sharded_safetensors.hpp"
#include "support/message_of.hpp"
#include "support/outputs.hpp"
#include "support/random.hpp"
#include "support/raw_file.hpp"
#include "support/temporary_folder.hpp"

// Receives every call of fopen in this program.
namespace {
std::function<void()> after_open;  // runs once
}  // namespace
extern "C" std::FILE* fopen(const char* path, const char* mode) {
  static const auto real = reinterpret_cast<decltype(&fopen)>(dlsym(RTLD_NEXT, "fopen"));
  std::FILE* const file = real(path, mode);
  if (after_open) std::exchange(after_open, nullptr)();
  return file;
}

namespace mhla::test {
namespace {

namespace fs = std::filesystem;
using F = SafetensorsFault;
using File = mhla::Safetensors;

void write_bytes(const fs::path& path, const Bytes& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

/// Random bytes as tensors of every type and of several shapes.
struct Sample {
  std::map<std::string, Bytes> bytes;
  StoredTensors tensors;
  SafetensorsMetadata metadata{
      {"", ""}, {"format", "pt"}, {"text", std::string("\0 {\"a\": 1}\x7F é €", 19)}};
  SafetensorsWriter writer;

  explicit Sample(std::uint64_t seed) {
    Random rng(seed);
    const std::vector<std::vector<Index>> shapes = {
        {}, {1}, {7}, {0}, {3, 5}, {0, 4}, {4, 0, 2}, {2, 3, 4, 5}, {1, 1, 1, 1, 1, 1, 1, 2}};
    for (int type = 0; type < 8; ++type) {
      for (const std::vector<Index>& shape : shapes) {
        const auto dtype = static_cast<Dtype>(type);
        const std::string name =
            std::string(dtype_name(dtype)) + " é\n\"" + detail::shape_text(shape);
        Bytes& values = bytes[name];
        values.resize(static_cast<std::size_t>(*detail::stored_bytes(shape, dtype)));
        for (std::byte& byte : values) byte = static_cast<std::byte>(rng.bits());
        tensors[name] = {dtype, shape, values};
        writer.add(name, tensors[name]);
      }
    }
    for (const auto& [key, text] : metadata) writer.add_metadata(key, text);
  }

  void expect_same(const File& file) const {
    EXPECT_TRUE(same_tensors(file.tensors(), tensors));
    EXPECT_EQ(file.metadata(), metadata);
  }
};

TEST(Safetensors, WhatIsWrittenReadsBackBitwise) {
  const TemporaryFolder folder;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Sample sample(seed);
    const Bytes bytes = sample.writer.to_bytes();
    sample.expect_same(File::parse(bytes));
    sample.writer.write(folder.path() / "x");
    const File first = File::read(folder.path() / "x");
    sample.expect_same(first);
    EXPECT_EQ(rewritten(first), bytes);
  }
}

TEST(Safetensors, WorksAtAnyAddressAndMoves) {
  const Sample sample(3);
  const Bytes bytes = sample.writer.to_bytes();
  Bytes room(bytes.size() + 16);
  for (std::size_t shift = 0; shift < 16; ++shift) {
    std::copy(bytes.begin(), bytes.end(), room.begin() + static_cast<std::ptrdiff_t>(shift));
    sample.expect_same(File::parse(std::span(room).subspan(shift, bytes.size())));
  }
  const TemporaryFolder folder;
  sample.writer.write(folder.path() / "x");
  File file = File::read(folder.path() / "x");
  const std::byte* const where = file.tensors().begin()->second.bytes.data();
  const auto moved = std::make_unique<File>(std::move(file));
  EXPECT_EQ(moved->tensors().begin()->second.bytes.data(), where);
  sample.expect_same(*moved);
}

/// Expects a tensor's numbers to be those of From's conversion.
template <class To, class From>
void expect_read(const File& file, const char* name, const std::vector<From>& numbers) {
  Matrix<To> got(1, std::ssize(numbers)), expected = got;
  file.copy_to<To>(name, std::span(got.data(), numbers.size()));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if constexpr (std::is_same_v<To, From>) {
      expected.data()[i] = numbers[i];
    } else {
      expected.data()[i] = static_cast<To>(static_cast<float>(numbers[i]));
    }
  }
  EXPECT_TRUE(same_bits(got, expected)) << name;
}

TEST(Safetensors, ValuesKeepTheirBitsAndWidenExactly) {
  // All 65,536 numbers of each half type, and floats with every exponent.
  std::vector<Eigen::half> halves(65536);
  std::vector<Eigen::bfloat16> brains(65536);
  std::vector<float> floats(65536);
  for (unsigned i = 0; i < 65536; ++i) {
    halves[i] = Eigen::numext::bit_cast<Eigen::half>(static_cast<std::uint16_t>(i));
    brains[i] = Eigen::numext::bit_cast<Eigen::bfloat16>(static_cast<std::uint16_t>(i));
    floats[i] = std::bit_cast<float>(i << 16 | (i * 40503u & 0xFFFFu));
  }
  SafetensorsWriter writer;
  writer.add("half", {65536}, halves);
  writer.add("bf16", {65536}, brains);
  writer.add("float", {65536}, floats);
  Bytes bytes = writer.to_bytes();
  bytes.insert(bytes.begin(), std::byte{});  // moves all data to odd addresses
  const File file = File::parse(std::span(bytes).subspan(1));
  expect_read<Eigen::half>(file, "half", halves);
  expect_read<Eigen::bfloat16>(file, "bf16", brains);
  expect_read<float>(file, "half", halves);
  expect_read<float>(file, "bf16", brains);
  expect_read<float>(file, "float", floats);
  expect_read<double>(file, "half", halves);
  expect_read<double>(file, "bf16", brains);
  expect_read<double>(file, "float", floats);
}

TEST(Safetensors, EveryByteOfABoolOtherThanZeroIsTrue) {
  const Bytes bytes = raw_file(one_tensor("\"BOOL\"", "[256]", "[0,256]"), 256);
  bool values[256];
  File::parse(bytes).copy_to<bool>("t", values);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(values[i], i != 0);
}

template <Stored T>
void expect_conversions(const File& file, const std::string& exact) {
  for (const char* name : {"BOOL", "U8", "F16", "BF16", "I32", "F32", "F64", "I64"}) {
    auto out = std::make_unique<T[]>(1);
    const auto fault = fault_of([&] { file.copy_to<T>(name, std::span<T>(out.get(), 1)); });
    const bool fits = exact.find(" " + std::string(name) + " ") != std::string::npos;
    EXPECT_EQ(fault, fits ? std::nullopt : std::optional(F::kConversion)) << name;
  }
}

TEST(Safetensors, RefusesConversionsThatLose) {
  SafetensorsWriter writer;
  const Bytes eight(8);
  for (int type = 0; type < 8; ++type) {
    const auto dtype = static_cast<Dtype>(type);
    writer.add(dtype_name(dtype),
               {dtype, {1}, std::span(eight).first(static_cast<std::size_t>(dtype_width(dtype)))});
  }
  const Bytes bytes = writer.to_bytes();
  const File file = File::parse(bytes);
  expect_conversions<bool>(file, " BOOL ");
  expect_conversions<std::uint8_t>(file, " U8 ");
  expect_conversions<Eigen::half>(file, " F16 ");
  expect_conversions<Eigen::bfloat16>(file, " BF16 ");
  expect_conversions<std::int32_t>(file, " I32 ");
  expect_conversions<float>(file, " F16 BF16 F32 ");
  expect_conversions<double>(file, " F16 BF16 F32 F64 ");
  expect_conversions<std::int64_t>(file, " I64 ");
  EXPECT_EQ(
      message_of<safetensors_error>([&] { file.matrix<float>("F64"); }),
      "mhla::Safetensors: bytes: tensor 'F64' of F64, expected a type whose numbers are exact "
      "in F32");
}

TEST(Safetensors, ATensorOfAnUnknownTypeIsRefusedWhereItIsCopiedAlone) {
  const Bytes bytes = raw_file(R"({"f8":{"dtype":"F8_E4M3","shape":[2,3],"data_offsets":[4,10]},)"
                               R"("f32":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                               R"("f4":{"dtype":"a\nF4","shape":[3],"data_offsets":[10,12]}})",
                               12);
  const File file = File::parse(bytes);
  EXPECT_EQ(file.matrix<float>("f32").size(), 1);
  const StoredTensor& f8 = file.tensor("f8");
  EXPECT_EQ(f8.dtype, Dtype::kUnknown);
  EXPECT_EQ(f8.unknown_dtype, "F8_E4M3");
  EXPECT_EQ(f8.size(), 6);
  EXPECT_EQ(f8.bytes.size(), 6u);
  EXPECT_EQ(f8.bytes[0], std::byte{4});
  EXPECT_TRUE(file.tensor("f32").unknown_dtype.empty());
  std::vector<std::uint8_t> out(6, 77);
  EXPECT_EQ(message_of<safetensors_error>([&] { file.copy_to<std::uint8_t>("f8", out); }),
            "mhla::Safetensors: bytes: tensor 'f8' of 'F8_E4M3', expected a type that is known: "
            "F64, F32, "
            "F16, BF16, I64, I32, U8 or BOOL");
  EXPECT_EQ(out, std::vector<std::uint8_t>(6, 77));
  for (const char* name : {"f8", "f4"}) {
    EXPECT_EQ(fault_of([&] { file.matrix<float>(name); }), F::kUnknownDtype);
  }
  const Bytes again = rewritten(file);
  EXPECT_TRUE(same_tensors(File::parse(again).tensors(), file.tensors()));
  EXPECT_EQ(rewritten(File::parse(again)), again);
}

TEST(Safetensors, RefusesAnOutputOfAnotherSize) {
  const Bytes bytes = raw_file(one_tensor("\"F32\"", "[2,3]", "[0,24]"), 24);
  const File file = File::parse(bytes);
  std::vector<float> out(7, -1.0f);
  for (const std::size_t size : {0u, 5u, 7u}) {
    EXPECT_THROW(file.copy_to<float>("t", std::span(out).first(size)), shape_error);
  }
  EXPECT_EQ(out, std::vector<float>(7, -1.0f));
}

TEST(Safetensors, MatricesHaveOneOrTwoAxes) {
  Random rng(5);
  const Matrix<float> a = rng.matrix<float>(3, 5);
  const Matrix<Eigen::bfloat16> b = rng.matrix<Eigen::bfloat16>(4, 2);
  const Matrix<double> none(0, 3);
  SafetensorsWriter writer;
  writer.add("a", a);
  writer.add("b", b);
  writer.add("none", none);
  writer.add("row", {15}, std::span<const float>(a.data(), 15));
  writer.add("one", {}, std::span<const float>(a.data(), 1));
  writer.add("cube", {3, 5, 1}, std::span<const float>(a.data(), 15));
  const Bytes bytes = writer.to_bytes();
  const File file = File::parse(bytes);
  EXPECT_EQ(file.matrix<float>("a"), a);
  EXPECT_EQ(file.matrix<double>("a"), Matrix<double>(a.cast<double>()));
  EXPECT_EQ(file.matrix<Eigen::bfloat16>("b"), b);
  EXPECT_EQ(file.matrix<float>("b"), Matrix<float>(b.cast<float>()));
  EXPECT_EQ(file.matrix<double>("none").cols(), 3);
  EXPECT_EQ(file.matrix<double>("none").rows(), 0);
  EXPECT_EQ(file.matrix<float>("row").rows(), 1);
  EXPECT_EQ(file.matrix<float>("row").cols(), 15);
  EXPECT_EQ(fault_of([&] { file.matrix<float>("one"); }), F::kRank);
  EXPECT_EQ(fault_of([&] { file.matrix<float>("cube"); }), F::kRank);
  EXPECT_EQ(fault_of([&] { file.matrix<float>("absent"); }), F::kNoTensor);
  EXPECT_FALSE(file.contains("absent"));
}

TEST(Safetensors, LimitOfTheHeader) {
  const TemporaryFolder folder;
  const auto header = [&](std::size_t size) {
    return raw_file("{}" + std::string(size - 2, ' '), 0);
  };
  for (const std::uint64_t limit : {2u, 3u, 1000u}) {
    const SafetensorsOptions options{.header_limit = limit};
    const Bytes fits = header(limit), exceeds = header(limit + 1);
    EXPECT_FALSE(refusal(fits, options).has_value());
    EXPECT_EQ(refusal(exceeds, options)->fault, F::kHeaderTooLong);
    write_bytes(folder.path() / "fits", fits);
    write_bytes(folder.path() / "exceeds", exceeds);
    EXPECT_TRUE(File::read(folder.path() / "fits", options).tensors().empty());
    EXPECT_EQ(fault_of([&] { File::read(folder.path() / "exceeds", options); }), F::kHeaderTooLong);
  }
  const Bytes large = header((std::size_t{16} << 20) + 1);
  EXPECT_EQ(refusal(large)->fault, F::kHeaderTooLong);
  EXPECT_FALSE(refusal(large, {.header_limit = 100'000'000}).has_value());
  EXPECT_THROW(File::parse(large, {.header_limit = 100'000'001}), option_error);
  EXPECT_THROW(File::read("absent", {.header_limit = 100'000'001}), option_error);
}

TEST(Safetensors, RefusesWhatIsNoFile) {
  const TemporaryFolder folder;
  mkfifo((folder.path() / "pipe").c_str(), 0600);
  for (const fs::path& path : {folder.path(), folder.path() / "absent", folder.path() / "pipe",
                               fs::path("/dev/zero"), fs::path()}) {
    EXPECT_EQ(fault_of([&] { File::read(path); }), F::kFile) << path;
  }
  const std::string text =
      message_of<safetensors_error>([&] { File::read(folder.path() / "absent"); });
  EXPECT_NE(text.find((folder.path() / "absent").string()), std::string::npos) << text;
}

TEST(Safetensors, FilesThatChangeWhileTheyAreReadAreRefused) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "file", index = folder.path() / "index";
  const std::string header = one_tensor("\"U8\"", "[100]", "[0,100]");
  const std::uintmax_t size = 8 + header.size() + 100;
  const std::string map = R"({"weight_map":{"t":"file"}})";
  const auto expect = [&](const fs::path& changed, std::uintmax_t to, const char* what) {
    write_bytes(file, raw_file(header, 100));
    std::ofstream(index) << map;
    after_open = [&] { fs::resize_file(changed, to); };
    const std::string text = message_of<safetensors_error>(
        [&] { changed == file ? void(File::read(file)) : void(ShardedSafetensors::read(index)); });
    EXPECT_NE(text.find(changed.string() + ": "), std::string::npos) << text;
    EXPECT_NE(text.find("became " + std::string(what)), std::string::npos) << to << ": " << text;
  };
  for (const std::uintmax_t to :
       {size - 1, size - 100, size - 101, std::uintmax_t{4}, std::uintmax_t{0}}) {
    expect(file, to, "shorter");
  }
  for (const std::uintmax_t to : {size + 1, size + 5000}) expect(file, to, "longer");
  for (const std::size_t to : {map.size() - 1, std::size_t{0}}) expect(index, to, "shorter");
  expect(index, map.size() + 1, "longer");
}

TEST(Safetensors, FilesOfOtherFormatsAreNamed) {
  const TemporaryFolder folder;
  const std::string more(100, 'x');
  const std::pair<std::string, const char*> files[] = {
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "a Git LFS pointer"},
      {std::string("PK\3\4\0\0\10\10\0\0", 10) + more, "a zip archive (.pt)"},
      {std::string("PK\3\4\0\0\0\0\0\0", 10) + more, "a zip archive (.pt)"},
      {"\x80\2\x8a\nl\xfc\x9c\x46\xf9" + more, "a pickle (old .pt)"},
      {"<!DOCTYPE html><html>" + more, "an HTML page"},
      {"\xEF\xBB\xBF\r\n <!doctype html>" + more, "an HTML page"},
      {"<HTML><head>", "an HTML page"},
      {"<!-- a comment --><html>", "an HTML page"},
      {"<?xml version=\"1.0\"?><Error/>", "an XML page"},
      {std::string("GGUF\3\0\0\0\1", 9) + more, "a GGUF file"}};
  for (const auto& [text, name] : files) {
    const fs::path path = folder.path() / "x";
    std::ofstream(path, std::ios::binary) << text;
    const auto expect = [&, &named = name](auto&& call, const char* expected) {
      EXPECT_EQ(fault_of(call), F::kOtherFormat) << named;
      const std::string message = message_of<safetensors_error>(call);
      EXPECT_NE(message.find(named), std::string::npos) << message;
      EXPECT_NE(message.find(std::string(", expected ") + expected), std::string::npos) << message;
    };
    expect([&] { File::read(path); }, "a safetensors file");
    expect([&] { File::read(path, {.header_limit = 100'000'000}); }, "a safetensors file");
    expect([&, &bytes = text] { File::parse(std::as_bytes(std::span(bytes))); },
           "a safetensors file");
    expect([&] { ShardedSafetensors::read(path); }, "the index of a checkpoint");
  }
  // A safetensors file may begin like this: its header has "PK\3\4" bytes.
  const std::string header = "{}" + std::string(0x04034B50 - 2, ' ');
  EXPECT_FALSE(refusal(raw_file(header, 0), {.header_limit = 100'000'000}).has_value());
}

TEST(Safetensors, FilesAreRefusedAsBytesAre) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "x";
  const std::string good = one_tensor("\"U8\"", "[3]", "[0,3]");
  for (const Bytes& bytes :
       {raw_file(good, 4), raw_file(good, 2), raw_file("[]", 0), raw_file(good, 3, 1u << 20),
        raw_file(good, 3, ~std::uint64_t{0}), raw_file("", 1), Bytes()}) {
    write_bytes(path, bytes);
    const auto expected = refusal(bytes);
    ASSERT_TRUE(expected.has_value());
    try {
      File::read(path);
      ADD_FAILURE() << "accepted";
    } catch (const safetensors_error& e) {
      EXPECT_EQ(e.fault(), expected->fault) << e.what();
      EXPECT_EQ(e.position(), expected->position);
      EXPECT_NE(std::string(e.what()).find(path.string()), std::string::npos);
    }
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Safetensors, LittleMemoryIsEnoughToRefuse) {
  // Files with a hole of 1 TiB, in a process that may use 256 MiB more.
  const TemporaryFolder folder;
  const std::string size = std::to_string(std::uint64_t{1} << 40);
  const std::string good = one_tensor("\"U8\"", "[" + size + "]", "[0," + size + "]");
  const std::string wrong = one_tensor("\"U8\"", "[3]", "[0,3]");
  for (const auto& [name, header] : {std::pair("good", good), std::pair("wrong", wrong)}) {
    write_bytes(folder.path() / name, raw_file(header, 0));
    std::error_code error;
    fs::resize_file(folder.path() / name, 8 + header.size() + (std::uint64_t{1} << 40), error);
    if (error) GTEST_SKIP() << "no sparse files here";
  }
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  if (pages == 0) GTEST_SKIP() << "no /proc here";
  struct rlimit usual;
  ASSERT_EQ(getrlimit(RLIMIT_AS, &usual), 0);
  const struct rlimit small = {pages * 4096 + (rlim_t{256} << 20), usual.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &small), 0);
  EXPECT_EQ(fault_of([&] { File::read(folder.path() / "good"); }), F::kMemory);
  EXPECT_EQ(fault_of([&] { File::read(folder.path() / "wrong"); }), F::kHole);
  setrlimit(RLIMIT_AS, &usual);
}
#endif

}  // namespace
}  // namespace mhla::test
