// Arbitrary bytes through the reader of safetensors files, with libFuzzer and sanitizers.
//
// A refusal must be a safetensors_error of bounded length. An accepted file must be read,
// converted, written and read again without a difference.
//
// The mutator knows the format. It writes files of random tensors, changes tokens of a header, and
// keeps the length before the header right most of the time. So every rule is reached without a
// corpus.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "mhla/io/safetensors.hpp"
#include "support/raw_file.hpp"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace {

using mhla::Dtype;
using mhla::Index;
using mhla::Safetensors;
using mhla::SafetensorsWriter;
using mhla::test::rewritten;
using mhla::test::same_tensors;
using Random = std::minstd_rand;

void expect(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "safetensors_fuzz: not true: %s\n", what);
  std::abort();
}

/// Reads all elements as T unless the reader refuses; the result depends on every element.
template <class T>
std::size_t convert(const Safetensors& file, std::string_view name) {
  const auto count = static_cast<std::size_t>(file.tensor(name).size());
  const auto values = std::make_unique<T[]>(count);
  try {
    file.copy_to<T>(name, {values.get(), count});
  } catch (const mhla::safetensors_error& e) {
    const bool unknown = file.tensor(name).dtype == Dtype::kUnknown;
    expect(e.fault() == (unknown ? mhla::SafetensorsFault::kUnknownDtype
                                 : mhla::SafetensorsFault::kConversion),
           "only a type refuses a conversion");
    return 0;
  }
  std::size_t truths = 0;
  for (std::size_t i = 0; i < count; ++i) truths += values[i] == values[i] ? 1 : 0;
  return truths;
}

void touch(const Safetensors& file) {
  std::size_t sum = 0;
  for (const auto& [name, tensor] : file.tensors()) {
    for (const std::byte byte : tensor.bytes) sum += static_cast<std::size_t>(byte);
    Index elements = 1;
    for (const Index size : tensor.shape) elements *= size;
    expect(elements == tensor.size(), "the shape has as many elements as the tensor");
    sum += convert<bool>(file, name) + convert<std::uint8_t>(file, name) +
           convert<Eigen::half>(file, name) + convert<Eigen::bfloat16>(file, name) +
           convert<std::int32_t>(file, name) + convert<float>(file, name) +
           convert<double>(file, name) + convert<std::int64_t>(file, name);
  }
  volatile std::size_t kept = sum;
  static_cast<void>(kept);
}

void check(std::span<const std::byte> bytes) {
  try {
    const Safetensors file = Safetensors::parse(bytes);
    touch(file);
    const std::vector<std::byte> again = rewritten(file);
    const Safetensors copy = Safetensors::parse(again);
    expect(file.metadata() == copy.metadata(), "metadata survives");
    expect(same_tensors(file.tensors(), copy.tensors()), "tensors survive");
    expect(rewritten(copy) == again, "what is written is canonical");
  } catch (const mhla::safetensors_error& e) {
    expect(std::strlen(e.what()) < 2000, "messages are short");
    expect(e.position().value_or(0) <= bytes.size(), "positions lie in the file");
  }
}

// ---- mutations ---------------------------------------------------------------------------------

std::size_t below(Random& random, std::size_t count) { return random() % count; }

/// A file of up to 4 tensors, as the writer writes it.
std::string fresh_file(Random& random) {
  std::vector<std::vector<std::byte>> values(below(random, 5));
  SafetensorsWriter writer;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto dtype = static_cast<Dtype>(static_cast<int>(below(random, 9)) - 1);
    std::vector<Index> shape(below(random, 4));
    for (Index& size : shape) size = static_cast<Index>(below(random, 4));
    values[i].resize(*mhla::detail::stored_bytes(shape, dtype));
    for (std::byte& byte : values[i]) byte = static_cast<std::byte>(random() >> 8);
    writer.add(std::string(below(random, 3), 'n') + std::to_string(i),
               {dtype, shape, values[i], dtype == Dtype::kUnknown ? "F8_E4M3" : ""});
  }
  for (std::size_t i = below(random, 3); i > 0; --i) {
    writer.add_metadata(std::to_string(i), std::string(below(random, 20), '"'));
  }
  const std::vector<std::byte> bytes = writer.to_bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void mutate_text(Random& random, std::string& text) {
  static const std::vector<std::string> tokens = [] {
    std::istringstream text(
        "{ } [ ] , : \" \\u0 \xC3\xA9 \xED\xA0\x80 - 0 1 8 1e9 true null \"F64\" \"F32\" \"F16\" "
        "\"BF16\" \"I64\" \"I32\" \"U8\" \"BOOL\" \"F4\" \"dtype\": \"shape\": \"data_offsets\": "
        "\"__metadata__\":{ 9223372036854775807 18446744073709551615 4294967296 [0,0] \"n0\":{");
    std::vector<std::string> all(std::istream_iterator<std::string>(text), {});
    all.push_back(" ");
    return all;
  }();
  const std::size_t at = below(random, text.size() + 1);
  switch (below(random, 6)) {
    case 0:  // one more token
      text.insert(at, tokens[below(random, tokens.size())]);
      break;
    case 1: {  // a token replaces some bytes
      const std::string& token = tokens[below(random, tokens.size())];
      text.replace(at, std::min(text.size() - at, token.size()), token);
      break;
    }
    case 2:  // removes a part
      text.erase(at, 1 + below(random, 8));
      break;
    case 3: {  // another digit
      const std::size_t digit = text.find_first_of("0123456789", at);
      if (digit != std::string::npos) text[digit] = static_cast<char>('0' + below(random, 10));
      break;
    }
    case 4: {  // repeats a part
      const std::string part = text.substr(at, below(random, 64));
      text.insert(below(random, text.size() + 1), part);
      break;
    }
    default:
      text.resize(std::max<std::size_t>(text.size(), 1) + 16);
      text.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(text.data()), text.size() - 16,
                                   text.size()));
  }
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  Random random(seed);
  if (below(random, 16) == 0) return LLVMFuzzerMutate(data, size, max_size);
  std::string file(reinterpret_cast<const char*>(data), size);
  std::uint64_t length = 0;
  if (file.size() >= 8) std::memcpy(&length, file.data(), 8);
  if (file.size() < 10 || length > file.size() - 8 || below(random, 16) == 0) {
    file = fresh_file(random);
    std::memcpy(&length, file.data(), 8);
  }
  std::string header = file.substr(8, length), rest = file.substr(8 + length);
  for (std::size_t changes = below(random, 4); changes > 0; --changes) mutate_text(random, header);
  if (below(random, 8) == 0) rest.resize(below(random, 2 * rest.size() + 9), 'x');
  length = header.size();
  if (below(random, 32) == 0) length = std::uint64_t{1} << below(random, 64);
  file = std::string(reinterpret_cast<const char*>(&length), 8) + header + rest;
  const std::size_t result = std::min(file.size(), max_size);
  std::memcpy(data, file.data(), result);
  return result;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  check({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
