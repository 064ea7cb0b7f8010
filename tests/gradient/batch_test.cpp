#include "contract/gradient_batch.hpp"
#include "mhla/gradient/bidirectional.hpp"
#include "mhla/policy/learned_feature_map.hpp"
#include "mhla/policy/locality.hpp"
#include "support/gradient_forms.hpp"

namespace mhla::test {
namespace {

TEST(GradientOfABatch, OfParametersIsSummedFromZeroAndThenAdded) {
  Random rng(1);
  Tensor<float> x({2, 12, 3, 4}), dout = x;
  for (Tensor<float>* t : {&x, &dout}) {
    for (float& number : t->data()) number = static_cast<float>(rng.uniform(-1, 1));
  }
  const auto mixing = locality<float>(3);
  const T2R<float> map(rng.matrix<float>(4, 4));
  const Operator op{map, map, KeySum{}};
  const auto add_to = [&](std::vector<float>& dm, std::vector<float>& dmap) {
    bidirectional_gradient(inputs(x, x, x), Contiguous(12, 4), mixing, op, dout, {},
                           {.mixing = {dm.data(), mixing.pattern()}, .query_map = dmap});
  };
  std::vector<float> dm(9), dmap(static_cast<std::size_t>(map.weights()));
  add_to(dm, dmap);
  std::vector<float> more_dm = dm, more_dmap = dmap;
  for (std::vector<float>* sums : {&more_dm, &more_dmap}) {
    for (float& sum : *sums) sum = static_cast<float>(rng.uniform(-9, 9));
  }
  std::vector<float> expected_dm = more_dm, expected_dmap = more_dmap;
  for (std::size_t i = 0; i < dm.size(); ++i) expected_dm[i] += dm[i];
  for (std::size_t i = 0; i < dmap.size(); ++i) expected_dmap[i] += dmap[i];
  add_to(more_dm, more_dmap);
  EXPECT_EQ(more_dm, expected_dm);
  EXPECT_EQ(more_dmap, expected_dmap);
}

[[maybe_unused]] const bool kBatchGradients = [] {
  add_batch_gradient_tests<BidirectionalForm>("Bidirectional");
  add_batch_gradient_tests<CausalForm>("Causal");
  add_batch_gradient_tests<Linear>("Linear");
  add_batch_gradient_tests<LinearCausal>("LinearCausal");
  add_batch_gradient_tests<Softmax>("Softmax");
  add_batch_gradient_tests<SoftmaxCausal>("SoftmaxCausal");
  return true;
}();

}  // namespace
}  // namespace mhla::test
