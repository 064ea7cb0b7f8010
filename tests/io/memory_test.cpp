// Every allocation of readers and writers fails.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "mhla/io/safetensors.hpp"
#include "mhla/io/sharded_safetensors.hpp"
#include "support/failing_memory.hpp"
#include "support/temporary_folder.hpp"

namespace mhla::test {
namespace {

#ifdef MHLA_TEST_FAILS_MALLOC

using Bytes = std::vector<std::byte>;

/// The names and contents of all files in a folder.
std::string contents_of_folder(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files[entry.path().string()] = contents(entry.path());
  }
  std::string all;
  for (const auto& [name, text] : files) all += name + "\n" + text + "\n";
  return all;
}

TEST(FailingMemory, LeavesFilesAndWritersAsTheyWere) {
  const TemporaryFolder folder;
  const std::vector<float> values(3000, 1.5f);
  SafetensorsWriter writer;
  writer.add("a.weight", {1000, 3}, values);
  writer.add("b", {3000}, values);
  writer.add_metadata("key", std::string(100, 'x'));
  const std::filesystem::path path = folder.path() / "x.safetensors";
  const auto reset = [&] { std::ofstream(path) << "old"; };
  expect_safe("write", {[&] { writer.write(path); }, reset,
                        [&] { return contents_of_folder(folder.path()); }});
  expect_safe("to_bytes", {[&] { writer.to_bytes(); }});
  SafetensorsWriter other;
  const auto bytes = [&] {
    const Bytes all = other.to_bytes();
    return std::string(reinterpret_cast<const char*>(all.data()), all.size());
  };
  const auto fresh = [&] { other = SafetensorsWriter(); };
  expect_safe("add", {[&] { other.add(std::string(60, 'n'), {3000}, values); }, fresh, bytes});
  expect_safe(
      "add_metadata",
      {[&] { other.add_metadata(std::string(60, 'k'), std::string(60, 'v')); }, fresh, bytes});
  writer.write(path);
  expect_safe("read", {[&] { Safetensors::read(path); }});
  const Bytes all = writer.to_bytes();
  expect_safe("parse", {[&] { Safetensors::parse(all); }});
  const auto file = Safetensors::read(path);
  expect_safe("matrix", {[&] { file.matrix<double>("a.weight"); }});
  const std::filesystem::path index = folder.path() / "x.safetensors.index.json";
  std::ofstream(index) << R"({"weight_map":{"a.weight":"x.safetensors","b":"x.safetensors"}})";
  expect_safe("read of shards", {[&] { ShardedSafetensors::read(index); }});
  std::vector<float> numbers(3000);
  expect_safe("copy_to of a shard",
              {[&] { ShardedSafetensors::read(index).copy_to("b", std::span(numbers)); }});
}

#endif

}  // namespace
}  // namespace mhla::test
