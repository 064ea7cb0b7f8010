/// \file
/// Conformance: files made elsewhere, each checked as its own metadata says.
///
/// The files are the *.safetensors that lie directly in $MHLA_GOLDEN_DIR when the test runs;
/// without it in ../shared/golden beside the checkout, or else in tests/data. Each is either
/// checked or a failure. Tolerance in double: 1e-9 of a tensor's largest magnitude, 1e-7 for
/// gradients.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "io/temporary_folder.hpp"
#include "support/golden_operator.hpp"
#include "support/golden_stage.hpp"

namespace mhla::test {
namespace {

namespace fs = std::filesystem;

/// Checks a file and prints a line.
/// \return what is wrong with it; nothing if it is right
std::string check_file(const fs::path& path) {
  std::string what, kind = "?";
  try {
    const auto file = Safetensors::read(path);
    kind = golden::value<std::string>(file, "kind");
    if (kind != "op" && kind != "causal_official" && kind != "mixing_init" &&
        kind != "feature_maps") {
      throw std::runtime_error("is of a kind that is unknown");
    }
    const golden::Result result = kind == "mixing_init"    ? golden::check_mixing_init(file)
                                  : kind == "feature_maps" ? golden::check_feature_maps(file)
                                                           : golden::check_operator(file);
    const auto [output, error] = golden::Result::worst(result.outputs);
    const auto [gradient, gradient_error] = golden::Result::worst(result.gradients);
    char text[200];
    std::snprintf(text, sizeof text, "%s %.1e of 1e-9, in float %.2f of bound, %s %.1e of 1e-7",
                  output.c_str(), error, result.in_float, gradient.c_str(), gradient_error);
    what = text;
    if (!result.outputs.empty() && error <= 1e-9 && result.in_float <= 1 &&
        gradient_error <= 1e-7) {
      std::printf("golden  %s  %s  %s\n", path.filename().c_str(), kind.c_str(), text);
      return "";
    }
  } catch (const std::exception& e) {
    what = e.what();
  }
  return path.string() + " of kind '" + kind + "': " + what;
}

/// Checks every *.safetensors that lies directly in a folder.
/// \return a text for each that is wrong
std::vector<std::string> check_folder(const fs::path& folder) {
  std::set<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") files.insert(entry.path());
  }
  std::vector<std::string> failures;
  for (const fs::path& file : files) {
    if (const std::string what = check_file(file); !what.empty()) failures.push_back(what);
  }
  if (files.empty()) failures.push_back(folder.string() + ": holds no *.safetensors");
  return failures;
}

const fs::path kSource = MHLA_SOURCE_DIR;
const fs::path kData = kSource / "tests" / "data";

fs::path golden_folder() {
  if (const char* chosen = std::getenv("MHLA_GOLDEN_DIR"); chosen != nullptr && *chosen != '\0') {
    return chosen;
  }
  const fs::path beside = kSource / ".." / "shared" / "golden";
  std::error_code error;
  return fs::is_directory(beside, error) ? beside.lexically_normal() : kData;
}

TEST(Golden, FilesMatch) {
  for (const std::string& failure : check_folder(golden_folder())) ADD_FAILURE() << failure;
}

/// Expects that a file of tests/data is refused for `reason` with 1e-3 added to the first number of
/// a tensor, or with another kind.
void expect_failure(const std::string& name, const std::string& changed,
                    const std::string& reason) {
  const TemporaryFolder folder;
  const auto file = Safetensors::read(kData / name);
  SafetensorsWriter writer;
  std::vector<double> values;
  for (const auto& [tensor, stored] : file.tensors()) {
    if (tensor != changed) {
      writer.add(tensor, stored);
      continue;
    }
    values.resize(static_cast<std::size_t>(stored.size()));
    file.copy_to<double>(tensor, values);
    values[0] += 1e-3;
    writer.add(tensor, stored.shape, values);
  }
  for (const auto& [key, text] : file.metadata()) {
    writer.add_metadata(key, key == "kind" && changed == "kind" ? "dit" : text);
  }
  writer.write(folder.path() / "changed.safetensors");
  fs::copy_file(kData / name, folder.path() / "right.safetensors");
  const auto failures = check_folder(folder.path());
  ASSERT_EQ(failures.size(), 1u) << name << ", " << changed;
  EXPECT_NE(failures[0].find("changed.safetensors"), std::string::npos) << failures[0];
  EXPECT_NE(failures[0].find(reason), std::string::npos) << failures[0];
}

TEST(Golden, WrongNumbersAndUnknownKindsFail) {
  for (const char* name : {"q", "k", "v", "mixing", "out"}) {
    expect_failure("causal_official_1.safetensors", name, ": out ");
  }
  for (const char* name : {"v", "out"}) expect_failure("op_00.safetensors", name, ": out ");
  for (const char* name : {"dq", "dk", "dv", "dmixing"}) {
    expect_failure("op_00.safetensors", name, std::string(" bound, ") + name + " ");
  }
  expect_failure("feature_maps.safetensors", "dpfp.y", "dpfp.y ");
  for (const char* name :
       {"t2r.dx", "hedgehog.grad.layer.weight", "elementwise_product.grad.layer2.bias"}) {
    expect_failure("feature_maps.safetensors", name, name);
  }
  expect_failure("mixing_init.safetensors", "3d_2x3x4_exp", "3d_2x3x4_exp ");
  expect_failure("op_06.safetensors", "kind", "'dit': is of a kind that is unknown");
}

TEST(Golden, AFolderWithoutFilesFails) {
  const TemporaryFolder folder;
  EXPECT_EQ(check_folder(folder.path()).size(), 1u);
}

}  // namespace
}  // namespace mhla::test
