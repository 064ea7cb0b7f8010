/// \file
/// Conformance: operator files made elsewhere, each checked as its own metadata says.
///
/// The files are the *.safetensors that lie directly in $MHLA_GOLDEN_DIR when the test runs;
/// without it in ../shared/golden beside the checkout, or else in tests/data. Each gives one line,
/// and one more where its kind has gradients, and is either checked or a failure.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "io/temporary_folder.hpp"
#include "support/golden_gradient.hpp"
#include "support/golden_operator.hpp"
#include "support/golden_stage.hpp"
#include "support/safetensors.hpp"

namespace mhla::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct Report {
  std::vector<std::string> lines;     // one or two a file
  std::vector<std::string> failures;  // none: every file was checked and is right
};

golden::Worst check(const Safetensors& file, const std::string& kind) {
  if (kind == "op") return golden::check_operator(file, false);
  if (kind == "causal_official") return golden::check_operator(file, true);
  if (kind == "mixing_init") return golden::check_mixing_init(file);
  if (kind == "feature_maps") return golden::check_feature_maps(file);
  file.fail("is of kind '" + kind + "', which is unknown");
}

bool has_gradients(const std::string& kind) {
  return kind == "op" || kind == "causal_official" || kind == "feature_maps";
}

golden::WorstGradient check_gradients(const Safetensors& file, const std::string& kind) {
  if (kind == "feature_maps") return golden::check_feature_map_gradients(file);
  return golden::check_operator_gradients(file, kind == "causal_official");
}

/// Adds a line for each check of a file, or for the exception that ended them.
void check_file(const fs::path& path, Report& report) {
  std::string kind = "?";
  const auto line = [&](const std::string& text, bool passed) {
    report.lines.push_back("golden  " + path.filename().string() + "  " + kind + "  " +
                           (passed ? "" : "FAILED: ") + text);
    if (!passed) report.failures.push_back(report.lines.back());
  };
  try {
    const Safetensors file(path);
    kind = file.text("kind");
    const golden::Worst forward = check(file, kind);
    char text[96];
    std::snprintf(text, sizeof text, "forward: double %.1e of 1e-9, float %.2f of bound",
                  forward.in_double, forward.in_float);
    line(text, forward.in_double <= 1e-9 && forward.in_float <= 1);
    if (!has_gradients(kind)) return;
    const golden::WorstGradient gradient = check_gradients(file, kind);
    std::snprintf(text, sizeof text, "gradient: double %.1e of 1e-7 (", gradient.error);
    line(text + gradient.tensor + ")", gradient.error <= 1e-7);
  } catch (const std::exception& e) {
    line(e.what(), false);
  }
}

/// Checks every *.safetensors that lies directly in a folder.
Report check_folder(const fs::path& folder) {
  Report report;
  std::vector<fs::path> files;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() == ".safetensors") files.push_back(entry->path());
  }
  if (error) report.failures.push_back(folder.string() + ": " + error.message());
  if (files.empty()) report.failures.push_back(folder.string() + ": holds no *.safetensors");
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) check_file(file, report);
  return report;
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

TEST(Golden, OperatorFilesMatch) {
  const Report report = check_folder(golden_folder());
  for (const std::string& line : report.lines) std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
}

/// The parts of a safetensors file, to be changed and written again.
struct Parts {
  Json header;
  std::string data;
  std::uint64_t beyond = 0;  // what the file says the header has beside its length

  explicit Parts(const std::string& file) {
    std::ifstream stream(kData / file, std::ios::binary);
    std::uint64_t length = 0;
    stream.read(reinterpret_cast<char*>(&length), sizeof length);
    std::string text(length, ' ');
    stream.read(text.data(), static_cast<std::streamsize>(length));
    header = Json::parse(text);
    data.assign(std::istreambuf_iterator<char>(stream), {});
  }
  void write(const fs::path& path) const {
    const std::string text = header.dump();
    const std::uint64_t length = text.size() + beyond;
    std::ofstream stream(path, std::ios::binary);
    stream.write(reinterpret_cast<const char*>(&length), sizeof length);
    stream << text << data;
  }
  Json& metadata() { return header["__metadata__"]; }
  /// Adds `change` to the first number of a tensor of doubles.
  void change(const std::string& tensor, double change) {
    char* const at = data.data() + header[tensor]["data_offsets"][0].get<std::size_t>();
    double value = 0;
    std::memcpy(&value, at, sizeof value);
    value += change;
    std::memcpy(at, &value, sizeof value);
  }
};

/// Expects that a file of tests/data, changed by `edit`, fails for `reason`; the unchanged file
/// beside it is still checked.
void expect_failure(const std::string& file, const std::string& reason,
                    const std::function<void(Parts&)>& edit) {
  SCOPED_TRACE(file + ": " + reason);
  const TemporaryFolder folder;
  Parts parts(file);
  parts.write(folder.path() / "kept.safetensors");
  edit(parts);
  parts.write(folder.path() / "changed.safetensors");
  const Report report = check_folder(folder.path());
  ASSERT_FALSE(report.failures.empty());
  std::string all;
  for (const std::string& failure : report.failures) {
    EXPECT_NE(failure.find("changed.safetensors"), std::string::npos) << failure;
    all += failure + "\n";
  }
  EXPECT_NE(all.find(reason), std::string::npos) << all;
  const auto lines_of = [&report](const char* name) {
    return std::count_if(report.lines.begin(), report.lines.end(),
                         [name](const auto& line) { return line.find(name) != std::string::npos; });
  };
  EXPECT_GE(lines_of("changed.safetensors"), 1);
  EXPECT_EQ(lines_of("kept.safetensors"), file == "mixing_init.safetensors" ? 1 : 2);
}

constexpr const char* kOperator = "op_06.safetensors";
constexpr const char* kOfficial = "causal_official_1.safetensors";
constexpr const char* kMaps = "feature_maps.safetensors";
constexpr const char* kMixing = "mixing_init.safetensors";

TEST(Golden, UnknownKindFails) {
  expect_failure(kOperator, "kind 'dit'", [](Parts& p) { p.metadata()["kind"] = "dit"; });
  expect_failure(kOperator, "'kind'", [](Parts& p) { p.metadata().erase("kind"); });
  expect_failure(kOperator, "'kind'", [](Parts& p) { p.header.erase("__metadata__"); });
}

TEST(Golden, EmptyFolderFails) {
  const TemporaryFolder folder;
  EXPECT_EQ(check_folder(folder.path()).failures.size(), 1u);
  fs::create_directories(folder.path() / "layers");
  Parts(kOperator).write(folder.path() / "layers" / "inside.safetensors");
  EXPECT_EQ(check_folder(folder.path()).failures.size(), 1u);
  EXPECT_FALSE(check_folder(folder.path() / "absent").failures.empty());
}

TEST(Golden, BrokenFileFails) {
  const auto edit = [](const char* reason, const std::function<void(Parts&)>& f) {
    expect_failure(kOperator, reason, f);
  };
  edit("of a file of", [](Parts& p) { p.beyond = p.data.size() + 1; });
  edit("expected valid UTF-8", [](Parts& p) { p.beyond = 8; });
  edit("of I64, expected a type whose numbers are exact in F64",
       [](Parts& p) { p.header["q"]["dtype"] = "I64"; });
  edit("bytes for F32[", [](Parts& p) { p.header["q"]["dtype"] = "F32"; });
  edit("bytes for F64[", [](Parts& p) { p.header["q"]["shape"][1] = 39; });
  edit("begin <= end", [](Parts& p) { p.header["q"]["data_offsets"][1] = p.data.size() + 8; });
  edit("side by side",
       [](Parts& p) { p.header["q"]["data_offsets"] = p.header["k"]["data_offsets"]; });
}

TEST(Golden, MissingPartFails) {
  const auto without = [](const char* file, const std::string& key) {
    expect_failure(file, "'" + key + "'", [&](Parts& p) { p.metadata().erase(key); });
  };
  for (const char* key : {"causal", "normalize", "block_sizes", "feature_map", "scale", "layout"}) {
    without(kOperator, key);
  }
  for (const char* key : {"chunk_size", "scale", "layout"}) without(kOfficial, key);
  without("op_00.safetensors", "feature_eps");
  without(kMixing, "local_thres");
  without(kMixing, "exp_sigma");
  without(kMaps, "dpfp_nu");

  const auto rename = [](const char* file, const std::string& from, const std::string& to) {
    expect_failure(file, "'" + from + "'", [&](Parts& p) {
      p.header[to] = p.header[from];
      p.header.erase(from);
    });
  };
  for (const char* name : {"q", "k", "v", "mixing", "out"}) rename(kOperator, name, "other");
  rename(kMaps, "x", "hedgehog.x");
  rename(kMaps, "t2r.y", "t2r.z");
  rename(kMaps, "hedgehog.param.layer.weight", "hedgehog.weight");
  for (const char* name : {"dout", "dq", "dk", "dv", "dmixing"}) {
    rename(kOperator, name, "other");
    rename(kOfficial, name, "other");
  }
  rename(kMaps, "t2r.dy", "t2r.dz");
  rename(kMaps, "dpfp.dx", "dpfp.dz");
  rename(kMaps, "hedgehog.grad.layer.bias", "hedgehog.grad.layer.b");
}

TEST(Golden, UnknownOptionFails) {
  const auto set = [](const char* file, const char* key, const char* value, const char* reason) {
    expect_failure(file, reason, [&](Parts& p) { p.metadata()[key] = value; });
  };
  set(kOperator, "feature_map", "cosine", "'cosine'");
  set(kOperator, "feature_map", "hedgehog", "layer.weight'");
  set(kOperator, "layout", "NBD", "'NBD'");
  set(kOperator, "causal", "maybe", "'maybe'");
  set(kOperator, "scale", "K**", "'K**'");
  set(kOperator, "block_sizes", "[8, 8, 8, 8]", "32 of 32");
  set(kOperator, "block_sizes", "[8, 8, 8, 8, 8.5]", "no whole number");
  set(kOperator, "block_sizes", "[8, 8, 8, 8, 4, 4]", "fewer rows or columns");
  set(kOfficial, "chunk_size", "0", "chunk_size 0");
  expect_failure(kMixing, "a name that is unknown", [](Parts& p) {
    p.header["2d_side16_group16_cubic"] = p.header["2d_side16_group16_cos"];
    p.header.erase("2d_side16_group16_cos");
  });
}

TEST(Golden, WrongNumberFails) {
  const auto change = [](const char* file, const char* tensor, double by) {
    expect_failure(file, "forward: double", [&](Parts& p) { p.change(tensor, by); });
  };
  for (const char* name : {"q", "k", "v", "mixing", "out"}) change(kOfficial, name, 1e-6);
  for (const char* name : {"k", "v", "out"}) change(kOperator, name, 1e-6);
  for (const char* name : {"v", "out"}) change("op_00.safetensors", name, 1e-6);
  const auto change_gradient = [](const char* file, const char* tensor, double by) {
    expect_failure(file, "gradient: double", [&](Parts& p) { p.change(tensor, by); });
  };
  for (const char* name : {"dout", "dq", "dk", "dv", "dmixing"}) {
    change_gradient(kOperator, name, 1e-3);
    change_gradient(kOfficial, name, 1e-3);
  }
  change_gradient(kMaps, "dpfp.dy", 1e-3);
  change_gradient(kMaps, "t2r.dx", 1e-3);
  change_gradient(kMaps, "elementwise_product.grad.layer2.bias", 1e-3);
  change(kMixing, "3d_2x3x4_exp", 1e-6);
  change(kMaps, "dpfp.y", 1e-6);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_failure(kOperator, "not finite", [&](Parts& p) { p.change("out", nan); });
}

}  // namespace
}  // namespace mhla::test
