#pragma once

/// \file
/// Golden files of a folder, each checked according to its metadata.
///
/// The folder is $MHLA_GOLDEN_DIR when the test runs. Without it, the folder is ../shared/golden
/// next to the checkout, or otherwise tests/data. Every *.safetensors directly in the folder is
/// either checked or a failure. Tolerances in double are in golden.hpp.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "support/golden.hpp"
#include "support/temporary_folder.hpp"

namespace mhla::test::golden {

namespace fs = std::filesystem;

inline const fs::path kSource = MHLA_SOURCE_DIR;
inline const fs::path kData = kSource / "tests" / "data";

inline fs::path golden_folder() {
  if (const char* chosen = std::getenv("MHLA_GOLDEN_DIR"); chosen != nullptr && *chosen != '\0') {
    return chosen;
  }
  const fs::path beside = kSource / ".." / "shared" / "golden";
  std::error_code error;
  return fs::is_directory(beside, error) ? beside.lexically_normal() : kData;
}

/// Compares a file of some kind; throws std::runtime_error if the kind is unknown.
using Check = Result (*)(const Safetensors& file, const std::string& kind);

/// Checks a file and prints a line.
/// \return the error; empty if the file is right
inline std::string check_file(const fs::path& path, Check check) {
  std::string what, kind = "?";
  try {
    const auto file = Safetensors::read(path);
    kind = value<std::string>(file, "kind");
    const Result result = check(file, kind);
    const auto [output, error] = Result::worst(result.outputs);
    const auto [gradient, gradient_error] = Result::worst(result.gradients);
    char text[200];
    std::snprintf(text, sizeof text, "%s %.1e of %.0e, in float %.2f of bound, %s %.1e of %.0e",
                  output.c_str(), error, kOutputTolerance, result.in_float, gradient.c_str(),
                  gradient_error, kGradientTolerance);
    what = text;
    if (!result.outputs.empty() && error <= kOutputTolerance && result.in_float <= 1 &&
        gradient_error <= kGradientTolerance) {
      std::printf("golden  %s  %s  %s\n", path.filename().c_str(), kind.c_str(), text);
      return "";
    }
  } catch (const std::exception& e) {
    what = e.what();
  }
  return path.string() + " of kind '" + kind + "': " + what;
}

/// Checks every *.safetensors directly in a folder.
/// \return a text per wrong file
inline std::vector<std::string> check_folder(const fs::path& folder, Check check) {
  std::set<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") files.insert(entry.path());
  }
  std::vector<std::string> failures;
  for (const fs::path& file : files) {
    if (const std::string what = check_file(file, check); !what.empty()) failures.push_back(what);
  }
  if (files.empty()) failures.push_back(folder.string() + ": holds no *.safetensors");
  return failures;
}

/// Expects that a file of tests/data is refused for `reason` after a change: 1e-3 added to the
/// first number of a tensor, or "none" for a key of the metadata.
inline void expect_failure(const std::string& name, const std::string& changed,
                           const std::string& reason, Check check) {
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
    writer.add_metadata(key, key == changed ? "none" : text);
  }
  writer.write(folder.path() / "changed.safetensors");
  fs::copy_file(kData / name, folder.path() / "right.safetensors");
  const auto failures = check_folder(folder.path(), check);
  ASSERT_EQ(failures.size(), 1u) << name << ", " << changed;
  EXPECT_NE(failures[0].find("changed.safetensors"), std::string::npos) << failures[0];
  EXPECT_NE(failures[0].find(reason), std::string::npos) << failures[0];
}

}  // namespace mhla::test::golden
