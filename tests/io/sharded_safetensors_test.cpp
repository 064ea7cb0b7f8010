#include "mhla/io/sharded_safetensors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mhla/core/tensor_file.hpp"
#include "mhla/layer/vision_layer.hpp"
#include "mhla/policy/mixing_matrix.hpp"
#include "support/message_of.hpp"
#include "support/raw_file.hpp"
#include "support/temporary_folder.hpp"

namespace mhla::test {
namespace {

using F = SafetensorsFault;
static_assert(TensorFile<ShardedSafetensors, float> && TensorFile<ShardedSafetensors, double>);

/// A folder with shards "one" (a [2,3], b [1]) and "two" (c [2], and f8 [4] of an unknown type).
struct Checkpoint {
  TemporaryFolder folder;
  std::vector<float> a{0, 1, 2, 3, 4, 5}, b{6};
  std::vector<Eigen::half> c{Eigen::half(7), Eigen::half(8)};
  std::array<std::byte, 4> f8{};

  Checkpoint() {
    SafetensorsWriter one, two;
    one.add("a", {2, 3}, a);
    one.add("b", {1}, b);
    one.write(path("one"));
    two.add("c", {2}, c);
    two.add("f8", {Dtype::kUnknown, {4}, f8, "F8_E4M3"});
    two.write(path("two"));
  }
  std::filesystem::path path(const std::string& name) const { return folder.path() / name; }

  /// Reads the checkpoint with this text as its index.
  ShardedSafetensors read(const std::string& text, const SafetensorsOptions& options = {}) const {
    std::ofstream(path("index.json"), std::ios::binary) << text;
    return ShardedSafetensors::read(path("index.json"), options);
  }
  /// Reads the checkpoint with this text as its weight_map.
  ShardedSafetensors read_map(const std::string& map) const {
    return read("{\"weight_map\":" + map + "}");
  }
  ShardedSafetensors whole() const {
    return read(R"({"metadata":{"total_size":36,"weight_map":[{"a":null}],"more":[-1,2.5,true]},)"
                R"("weight_map":{"c":"two","a":"one","f8":"two","b":"one"},"other":null})");
  }
};

std::vector<double> numbers_of(const ShardedSafetensors& file, const std::string& name,
                               std::size_t count) {
  std::vector<double> out(count, -1);
  file.copy_to<double>(name, out);
  return out;
}

TEST(ShardedSafetensors, FindsEachTensorInItsShard) {
  const Checkpoint checkpoint;
  const ShardedSafetensors file = checkpoint.whole();
  std::string names;
  for (const auto& [name, tensor] : file.tensors()) {
    names += name + " " + detail::shape_text(tensor.shape) + " " + tensor.shard + ";";
  }
  EXPECT_EQ(names, "a [2, 3] one;b [1] one;c [2] two;f8 [4] two;");
  EXPECT_EQ(numbers_of(file, "a", 6), (std::vector<double>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(numbers_of(file, "b", 1), (std::vector<double>{6}));
  EXPECT_EQ(numbers_of(file, "c", 2), (std::vector<double>{7, 8}));
  EXPECT_EQ(file.tensors().find("c")->second.dtype, Dtype::kF16);
  EXPECT_EQ(file.tensors().find("f8")->second.unknown_dtype, "F8_E4M3");
  EXPECT_EQ(fault_of([&] { numbers_of(file, "f8", 4); }), F::kUnknownDtype);
  EXPECT_EQ(fault_of([&] { numbers_of(file, "d", 4); }), F::kNoTensor);
  EXPECT_THROW(numbers_of(file, "a", 5), shape_error);
  EXPECT_EQ(load_mixing(file, "a")(1, 2), 5);
}

TEST(ShardedSafetensors, TheIndexDecidesWhichTensorsThereAre) {
  const Checkpoint checkpoint;
  EXPECT_EQ(checkpoint.read_map(R"({"b":"one"})").tensors().size(), 1u);
  EXPECT_TRUE(checkpoint.read_map("{}").tensors().empty());
}

TEST(ShardedSafetensors, ShardsMayLieInFoldersBelow) {
  const Checkpoint checkpoint;
  std::filesystem::create_directory(checkpoint.path("sub"));
  std::filesystem::rename(checkpoint.path("one"), checkpoint.path("sub") / "o..ne");
  EXPECT_EQ(numbers_of(checkpoint.read_map(R"({"b":"sub/o..ne"})"), "b", 1)[0], 6);
}

TEST(ShardedSafetensors, ReadsAShardWhenItIsFirstCopiedFromAndKeepsIt) {
  const Checkpoint checkpoint;
  const ShardedSafetensors file = checkpoint.whole();
  std::filesystem::remove(checkpoint.path("two"));
  EXPECT_EQ(numbers_of(file, "b", 1)[0], 6);
  EXPECT_EQ(fault_of([&] { numbers_of(file, "c", 2); }), F::kFile);
  std::filesystem::remove(checkpoint.path("one"));
  EXPECT_EQ(numbers_of(file, "a", 6)[5], 5);
}

TEST(ShardedSafetensors, RefusesAShardThatHasChanged) {
  const Checkpoint checkpoint;
  const ShardedSafetensors file = checkpoint.whole();
  SafetensorsWriter other;
  other.add("a", {3, 2}, checkpoint.a);
  other.write(checkpoint.path("one"));
  EXPECT_EQ(message_of<safetensors_error>([&] { numbers_of(file, "a", 6); }),
            "mhla::Safetensors: " + checkpoint.path("index.json").string() +
                ": shard 'one' that has changed, expected the file that was there when the index "
                "was read");
  EXPECT_EQ(fault_of([&] { numbers_of(file, "b", 1); }), F::kNoTensor);
}

TEST(ShardedSafetensors, RefusesAShardWhoseTypeHasChanged) {
  const Checkpoint checkpoint;
  const ShardedSafetensors file = checkpoint.whole();
  const std::vector<double> wider(6);
  SafetensorsWriter other;
  other.add("a", {2, 3}, wider);
  other.write(checkpoint.path("one"));
  EXPECT_EQ(fault_of([&] { numbers_of(file, "a", 6); }), F::kFile);
}

TEST(ShardedSafetensors, MayBeCopiedFromByManyThreads) {
  const Checkpoint checkpoint;
  const ShardedSafetensors file = checkpoint.whole();
  std::array<double, 8> sums{};
  std::vector<std::thread> threads;
  for (double& sum : sums) {
    threads.emplace_back([&] {
      const std::vector<double> a = numbers_of(file, "a", 6), c = numbers_of(file, "c", 2);
      sum = std::accumulate(a.begin(), a.end(), 0.0) + c[0] + c[1];
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const double sum : sums) EXPECT_EQ(sum, 30);
}

TEST(ShardedSafetensors, RefusesShardsOutsideItsFolder) {
  const Checkpoint checkpoint;
  const std::string outside = checkpoint.path("one").string();
  const std::string folder = checkpoint.folder.path().filename().string();
  for (const std::string& shard :
       {std::string(), outside, std::string("../one"), "../" + folder + "/one", std::string(".."),
        std::string("sub/../one"), std::string("/one"), std::string("one\\u0000")}) {
    EXPECT_EQ(fault_of([&] { checkpoint.read_map("{\"b\":\"" + shard + "\"}"); }), F::kShardPath)
        << shard;
  }
  EXPECT_EQ(message_of<safetensors_error>([&] { checkpoint.read_map(R"({"b":"../one"})"); }),
            "mhla::Safetensors: " + checkpoint.path("index.json").string() +
                ": byte 27: tensor 'b' in shard '../one', expected a file in the folder of the "
                "index or below");
}

TEST(ShardedSafetensors, RefusesShardsThatAreMissingOrLackATensor) {
  const Checkpoint checkpoint;
  EXPECT_EQ(fault_of([&] { ShardedSafetensors::read(checkpoint.path("none")); }), F::kFile);
  for (const char* shard : {"three", ".", "one/"}) {
    const std::string map = std::string("{\"b\":\"") + shard + "\"}";
    const std::string text = message_of<safetensors_error>([&] { checkpoint.read_map(map); });
    EXPECT_NE(text.find(checkpoint.path(shard).string() + ": no file"), std::string::npos) << text;
  }
  EXPECT_EQ(message_of<safetensors_error>([&] { checkpoint.read_map(R"({"c":"one"})"); }),
            "mhla::Safetensors: " + checkpoint.path("index.json").string() +
                ": shard 'one' without tensor 'c', expected the tensors of the index");
  std::ofstream(checkpoint.path("two"), std::ios::binary | std::ios::app) << 'x';
  EXPECT_EQ(fault_of([&] { checkpoint.whole(); }), F::kHole);  // before any data is read
}

TEST(ShardedSafetensors, RefusesAnIndexThatBreaksARule) {
  const Checkpoint checkpoint;
  const auto expect_fault = [&](F fault, const std::string& text) {
    EXPECT_EQ(fault_of([&] { checkpoint.read(text); }), fault) << text.substr(0, 100);
  };
  const std::string map = R"("weight_map":{"b":"one"})";
  for (const char* text : {"", "x", "{", "{\"weight_map\":{}", "{\"weight_map\":{}}x", "{} {}",
                           "{\"a\":\"\xFF\"}", "{\"a\":1e999}", "{\"weight_map\":{\"b\"}}"}) {
    expect_fault(F::kJson, text);
  }
  expect_fault(F::kJson, "{" + map + "}" + std::string(1, '\0') + "x");
  for (const char* text : {"{}", "{\"metadata\":{\"weight_map\":{}}}"}) {
    expect_fault(F::kMissingKey, text);
  }
  for (const char* text : {"[]", "1", "\"x\"", "null"}) expect_fault(F::kWrongType, text);
  for (const char* value : {"[]", "1", "-1", "1.5", "\"x\"", "null", "true"}) {
    expect_fault(F::kWrongType, std::string("{\"weight_map\":") + value + "}");
  }
  for (const char* value : {"[]", "{}", "1", "-1", "1.5", "null", "true", "[\"one\"]"}) {
    expect_fault(F::kWrongType, std::string("{\"weight_map\":{\"b\":") + value + "}}");
  }
  expect_fault(F::kDuplicateKey, "{" + map + "," + map + "}");
  expect_fault(F::kDuplicateKey, "{\"metadata\":{},\"metadata\":{}," + map + "}");
  expect_fault(F::kDuplicateKey, R"({"weight_map":{"b":"one","\u0062":"one"}})");
  expect_fault(F::kNameTooLong, "{\"weight_map\":{\"" + std::string(1025, 'n') + "\":\"one\"}}");
  expect_fault(F::kJson, "{\"metadata\":" + std::string(100000, '['));
}

TEST(ShardedSafetensors, LimitsTheIndexAsItDoesHeaders) {
  const Checkpoint checkpoint;
  const std::string text = R"({"weight_map":{"b":"one"}})" + std::string(500, ' ');
  EXPECT_EQ(checkpoint.read(text, {.header_limit = text.size()}).tensors().size(), 1u);
  EXPECT_EQ(fault_of([&] { checkpoint.read(text, {.header_limit = text.size() - 1}); }),
            F::kHeaderTooLong);
  EXPECT_EQ(
      fault_of([&] { checkpoint.read(R"({"weight_map":{"b":"one"}})", {.header_limit = 26}); }),
      F::kHeaderTooLong);
  EXPECT_THROW(checkpoint.read(text, {.header_limit = 100'000'001}), option_error);
  const std::string two = R"({"weight_map":{"b":"one","a":"one"}})";
  EXPECT_EQ(checkpoint.read(two, {.tensor_limit = 2}).tensors().size(), 2u);
  EXPECT_EQ(message_of<safetensors_error>([&] { checkpoint.read(two, {.tensor_limit = 1}); }),
            "mhla::Safetensors: " + checkpoint.path("index.json").string() +
                ": byte 28: 2 tensors, expected at most 1 (tensor_limit)");
  const std::string one = R"({"weight_map":{"b":"one"}})";
  EXPECT_EQ(fault_of([&] { checkpoint.read(one, {.tensor_limit = 1}); }),
            F::kTooMany);  // for a shard
}

TEST(ShardedSafetensors, ALayerIsLoadedFromTwoShards) {
  const VisionOptions options{
      .heads = 2, .tokens = {4, 4}, .block = {2, 2}, .order = TokenOrder::kBlocks, .channels = 6};
  VisionLayer<float> layer(options);
  std::iota(layer.parameters().begin(), layer.parameters().end(), 1.0f);
  SafetensorsWriter writers[2];
  std::string map;
  int place = 0;
  for (const Parameter& p : layer.table().all()) {
    const int shard = place++ % 2;
    const std::string name = "blocks.0." + p.name;
    writers[shard].add(name, p.shape, layer.table().numbers(layer.parameters(), p.name));
    map += (map.empty() ? "{\"" : ",\"") + name + "\":\"" + std::to_string(shard) + "\"";
  }
  const Checkpoint checkpoint;
  for (int shard = 0; shard < 2; ++shard) {
    writers[shard].write(checkpoint.path(std::to_string(shard)));
  }
  VisionOptions unsized = options;
  unsized.channels = 0;
  const VisionLayer<float> loaded(checkpoint.read_map(map + ",\"a\":\"one\"}"), "blocks.0.",
                                  unsized);
  EXPECT_TRUE(std::ranges::equal(loaded.parameters(), std::as_const(layer).parameters()));
  EXPECT_THROW(VisionLayer<float>(checkpoint.read_map(map + "}"), "blocks.1.", options),
               shape_error);
}

}  // namespace
}  // namespace mhla::test
