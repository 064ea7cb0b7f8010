#include "contract/gradient_batch.hpp"
#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/causal.hpp"
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

TEST(GradientOfABatch, OfEqualMatricesPerHeadAddsUpToThatOfTheSharedMatrix) {
  constexpr Index kHeads = 3, kBlocks = 4;
  Random rng(2);
  Tensor<double> x({2, 12, kHeads, 4}), dout = x;
  for (Tensor<double>* t : {&x, &dout}) {
    for (double& number : t->data()) number = rng.uniform(-1, 1);
  }
  const MixingMatrix<double> shared(rng.matrix<double>(kBlocks, kBlocks, 0.1, 1));
  const auto equal = per_head(shared, kHeads);
  const Operator op{EluPlusOne{}, EluPlusOne{}, KeySum{}};
  const Contiguous blocks(12, 3);
  const auto in = inputs(x, x, x);
  const auto expect = [&](auto&& add, auto&& bytes) {
    auto sum = zeros_like(shared), each = zeros_like(equal);
    auto dq = Tensor<double>(x.view().shape), dk = dq, dv = dq, q = dq, k = dq, v = dq;
    add(shared, BatchGradients<double>{.q = dq, .k = dk, .v = dv}, sum);
    add(equal, BatchGradients<double>{.q = q, .k = k, .v = v}, each);
    EXPECT_EQ(dq.data(), q.data());
    EXPECT_EQ(dk.data(), k.data());
    EXPECT_EQ(dv.data(), v.data());
    EXPECT_EQ(bytes(shared), bytes(equal));  // up to 64 pairs, each with sums of its own
    Matrix<double> total = Matrix<double>::Zero(kBlocks, kBlocks);
    for (Index h = 0; h < kHeads; ++h) total += each.of_head(h).dense();
    EXPECT_LE((total - sum.dense()).cwiseAbs().maxCoeff(), 1e-13 * total.cwiseAbs().maxCoeff());
    EXPECT_GT((each.of_head(0).dense() - each.of_head(1).dense()).cwiseAbs().maxCoeff(), 1e-3);
  };
  expect(
      [&](const auto& m, const BatchGradients<double>& to, MixingView<double> dm) {
        bidirectional_gradient(in, blocks, m, op, dout, to, {.mixing = dm});
      },
      [&](const auto& m) { return bidirectional_gradient_workspace_bytes(in, blocks, m, op); });
  expect(
      [&](const auto& m, const BatchGradients<double>& to, MixingView<double> dm) {
        causal_gradient(in, blocks, m, op, dout, to, {.mixing = dm});
      },
      [&](const auto& m) { return causal_gradient_workspace_bytes(in, blocks, m, op); });
}

/// Gradients of separate heads may lie in a larger array.
TEST(GradientOfABatch, OfMatricesPerHeadLeavesTheNumbersBetweenThem) {
  constexpr Index kStride = 9 + 4;
  Random rng(3);
  Tensor<double> x({3, 12, 2, 4});
  for (double& number : x.data()) number = rng.uniform(-1, 1);
  const auto mixing = per_head(locality<double>(3), 2);
  const Operator op{Relu{}, Relu{}, KeySum{0.1}};
  std::vector<double> wide(2 * kStride, 7);
  auto dense = zeros_like(mixing);
  for (Index h = 0; h < 2; ++h) std::fill_n(wide.data() + h * kStride, 9, 0);
  const auto add_to = [&](MixingView<double> dm) {
    bidirectional_gradient(inputs(x, x, x), Contiguous(12, 4), mixing, op, x, {}, {.mixing = dm});
  };
  add_to(dense);
  add_to({wide.data(), Pattern(3, 3), 2, kStride});
  for (Index h = 0; h < 2; ++h) {
    for (Index i = 0; i < kStride; ++i) {
      EXPECT_EQ(wide[static_cast<std::size_t>(h * kStride + i)],
                i < 9 ? dense.of_head(h).storage()[static_cast<std::size_t>(i)] : 7);
    }
  }
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
