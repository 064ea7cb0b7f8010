/// \file
/// Conformance of the operator and of its stages: files made elsewhere (support/golden_folder.hpp).

#include "support/golden_folder.hpp"
#include "support/golden_operator.hpp"
#include "support/golden_stage.hpp"

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

TEST(Golden, AFolderWithoutFilesFails) {
  const TemporaryFolder folder;
  EXPECT_EQ(golden::check_folder(folder.path(), check_operator_or_stage).size(), 1u);
}

}  // namespace
}  // namespace mhla::test
