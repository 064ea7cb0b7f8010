/// \file
/// Conformance of the operator and of its stages: files made elsewhere (support/golden_folder.hpp).

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mhla/io/safetensors_writer.hpp"
#include "support/golden_folder.hpp"
#include "support/golden_operator.hpp"
#include "support/golden_stage.hpp"
#include "support/golden_tangent.hpp"

namespace mhla::test {
namespace {

golden::Result check_operator_or_stage(const Safetensors& file, const std::string& kind) {
  if (kind == "mixing_init") return golden::check_mixing_init(file);
  if (kind == "feature_maps") return golden::check_feature_maps(file);
  if (kind == "op" || kind == "causal_official") return golden::check_operator(file);
  throw std::runtime_error("is of a kind that is unknown");
}

TEST(Golden, FilesMatch) {
  const auto failures = golden::check_folder(golden::golden_folder(), check_operator_or_stage);
  for (const std::string& failure : failures) ADD_FAILURE() << failure;
}

void expect_golden_failure(const char* file, const char* changed, const std::string& reason) {
  golden::expect_failure(file, changed, reason, check_operator_or_stage);
}

TEST(Golden, WrongNumbersAndUnknownKindsFail) {
  for (const char* name : {"q", "k", "v", "mixing", "out"}) {
    expect_golden_failure("causal_official_1.safetensors", name, ": out ");
  }
  for (const char* name : {"v", "out"}) expect_golden_failure("op_00.safetensors", name, ": out ");
  for (const char* name : {"dq", "dk", "dv", "dmixing"}) {
    expect_golden_failure("op_00.safetensors", name, std::string(" bound, ") + name + " ");
  }
  expect_golden_failure("feature_maps.safetensors", "dpfp.y", "dpfp.y ");
  for (const char* name :
       {"t2r.dx", "hedgehog.grad.layer.weight", "elementwise_product.grad.layer2.bias"}) {
    expect_golden_failure("feature_maps.safetensors", name, name);
  }
  expect_golden_failure("mixing_init.safetensors", "3d_2x3x4_exp", "3d_2x3x4_exp ");
  expect_golden_failure("op_06.safetensors", "kind", "'none': is of a kind that is unknown");
}

/// Returns the failures of an operator's file with one block and this gradient of the mixing
/// coefficient. The normaliser cancels the coefficient.
std::vector<std::string> failures_of_one_block(double gradient) {
  constexpr Index kTokens = 20, kWidth = 3;
  Random rng(1);
  const auto draw = [&rng] { return rng.matrix<double>(kTokens, kWidth); };
  const Matrix<double> q = draw(), k = draw(), v = draw(), dout = draw();
  const Contiguous blocks(kTokens, kTokens);
  const MixingMatrix<double> mixing(Matrix<double>::Constant(1, 1, 0.7));
  const Operator op{EluPlusOne{}, EluPlusOne{}, KeySum{0}};
  const Matrix<double> out = bidirectional(inputs(q, k, v), blocks, mixing, op);
  Matrix<double> dq = 0 * q, dk = 0 * k, dv = 0 * v;
  bidirectional_gradient(inputs(q, k, v), blocks, mixing, op, dout, {dq, dk, dv});
  SafetensorsWriter writer;
  for (const auto& [name, m] : {std::pair("q", &q),
                                {"k", &k},
                                {"v", &v},
                                {"out", &out},
                                {"dout", &dout},
                                {"dq", &dq},
                                {"dk", &dk},
                                {"dv", &dv}}) {
    writer.add(name, {1, kTokens, 1, kWidth},
               std::span<const double>(m->data(), static_cast<std::size_t>(m->size())));
  }
  writer.add("mixing", {1, 1}, std::span<const double>(mixing.storage()));
  writer.add("dmixing", {1, 1}, std::span<const double>(&gradient, 1));
  for (const auto& [key, text] : {std::pair("kind", "op"),
                                  {"layout", "BNHD"},
                                  {"block_sizes", "[20]"},
                                  {"causal", "false"},
                                  {"normalize", "true"},
                                  {"feature_map", "elu1"},
                                  {"scale", "1.0"}}) {
    writer.add_metadata(key, text);
  }
  const TemporaryFolder folder;
  writer.write(folder.path() / "one_block.safetensors");
  return golden::check_folder(folder.path(), check_operator_or_stage);
}

TEST(Golden, AMixingGradientThatIsZeroByAlgebraIsComparedWithItsTerms) {
  EXPECT_EQ(failures_of_one_block(1e-15).size(), 0u);
  const auto failures = failures_of_one_block(1e-6);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_NE(failures[0].find("dmixing"), std::string::npos) << failures[0];
}

TEST(Golden, FilesOfMatricesPerHeadMatch) {
  const auto failures =
      golden::check_folder(golden::golden_folder() / "per_head", check_operator_or_stage);
  for (const std::string& failure : failures) ADD_FAILURE() << failure;
}

TEST(Golden, WrongMatricesPerHeadFail) {
  for (const auto& [name, reason] :
       {std::pair("mixing", ": out "), {"out", ": out "}, {"dmixing", " bound, dmixing "}}) {
    expect_golden_failure("per_head/per_head_a.safetensors", name, reason);
  }
}

TEST(Golden, TangentFilesMatch) {
  const auto failures =
      golden::check_folder(golden::golden_folder() / "tangent", golden::check_tangent);
  for (const std::string& failure : failures) ADD_FAILURE() << failure;
}

TEST(Golden, WrongTangentsFail) {
  for (const auto& [name, reason] : {std::pair("tk", ": tout "),
                                     {"tv", ": tout "},
                                     {"tmixing", ": tout "},
                                     {"tout", ": tout "},
                                     {"out", ": out "}}) {
    golden::expect_failure("tangent/tangent_per_head_a.safetensors", name, reason,
                           golden::check_tangent);
  }
}

TEST(Golden, AFolderWithoutFilesFails) {
  const TemporaryFolder folder;
  EXPECT_EQ(golden::check_folder(folder.path(), check_operator_or_stage).size(), 1u);
}

}  // namespace
}  // namespace mhla::test
