// The calls of the README: arguments that a call may omit or replace.

#include <gtest/gtest.h>

#include <vector>

#include "mhla/mhla.hpp"
#include "support/message_of.hpp"
#include "support/outputs.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

/// One head of 12 tokens in blocks of 4.
class Calls : public testing::Test {
 protected:
  Random rng{1};
  const Matrix<float> q = rng.matrix<float>(12, 6), k = rng.matrix<float>(12, 6),
                      v = rng.matrix<float>(12, 5);
  const Contiguous blocks{12, 4};
  const MixingMatrix<float> mixing = locality<float>(3);
  const Inputs<float> in = inputs(q, k, v);
  const Matrix<float> expected = bidirectional(in, blocks, mixing, Operator{});
};

TEST_F(Calls, AnOutputIsReturnedOrWrittenAndTheOperatorMayBeLeftOut) {
  EXPECT_TRUE(same_bits(bidirectional(q, k, v, blocks, mixing), expected));
  EXPECT_TRUE(same_bits(bidirectional(in, blocks, mixing), expected));
  Matrix<float> with = unwritten<float>(12, 5), without = with;
  bidirectional(in, blocks, mixing, Operator{}, with);
  bidirectional(in, blocks, mixing, without);
  EXPECT_TRUE(same_bits(with, expected));
  EXPECT_TRUE(same_bits(without, expected));

  const auto causal_output = causal(q, k, v, blocks, mixing);
  EXPECT_TRUE(same_bits(causal(in, blocks, mixing), causal_output));
  causal(in, blocks, mixing, with);
  causal(in, blocks, mixing, Operator{}, without);
  EXPECT_TRUE(same_bits(with, causal_output));
  EXPECT_TRUE(same_bits(without, causal_output));

  linear_causal(in, Operator{}, with);
  EXPECT_TRUE(same_bits(linear_causal(in), with));
  linear_bidirectional(in, Operator{}, with);
  EXPECT_TRUE(same_bits(linear_bidirectional(in), with));
  softmax_causal(in, with);
  EXPECT_TRUE(same_bits(softmax_causal(in), with));
  softmax_bidirectional(in, with, {.scale = 0.5});
  EXPECT_TRUE(same_bits(softmax_bidirectional(in, {.scale = 0.5}), with));
}

TEST_F(Calls, MatricesTakeWhatInputsTake) {
  ThreadPool pool(2);
  const Operator op{EluPlusOne{}};
  const auto expect_all = [&](const auto& of_inputs, const auto& of_matrices) {
    Matrix<float> with = unwritten<float>(12, 5), without = with, pooled = with;
    const Matrix<float> paper = of_inputs(), elu = of_inputs(op);
    EXPECT_TRUE(same_bits(of_inputs(Call{.executor = pool}), paper));
    EXPECT_TRUE(same_bits(of_matrices(), paper));
    EXPECT_TRUE(same_bits(of_matrices(Call{.executor = pool}), paper));
    EXPECT_TRUE(same_bits(of_matrices(op), elu));
    EXPECT_TRUE(same_bits(of_matrices(op, Call{.executor = pool}), elu));
    of_matrices(op, with);
    of_matrices(without);
    of_matrices(pooled, Call{.executor = pool});
    EXPECT_TRUE(same_bits(with, elu));
    EXPECT_TRUE(same_bits(without, paper));
    EXPECT_TRUE(same_bits(pooled, paper));
    of_matrices(op, pooled, Call{.executor = pool});
    EXPECT_TRUE(same_bits(pooled, elu));
    of_inputs(without, Call{.executor = pool});
    EXPECT_TRUE(same_bits(without, paper));
  };
  expect_all([&](auto&&... o) { return bidirectional(in, blocks, mixing, o...); },
             [&](auto&&... o) { return bidirectional(q, k, v, blocks, mixing, o...); });
  expect_all([&](auto&&... o) { return causal(in, blocks, mixing, o...); },
             [&](auto&&... o) { return causal(q, k, v, blocks, mixing, o...); });
  const DecayMixing<float> decay{{1, 0.5f}, {0.5f, 0.25f}};
  expect_all([&](auto&&... o) { return causal(in, blocks, decay, o...); },
             [&](auto&&... o) { return causal(q, k, v, blocks, decay, o...); });
  expect_all([&](auto&&... o) { return linear_bidirectional(in, o...); },
             [&](auto&&... o) { return linear_bidirectional(q, k, v, o...); });
  expect_all([&](auto&&... o) { return linear_causal(in, o...); },
             [&](auto&&... o) { return linear_causal(q, k, v, o...); });
}

TEST_F(Calls, OptionsOfMatricesAreGivenByName) {
  ThreadPool pool(2);
  Matrix<float> out = unwritten<float>(12, 5);
  EXPECT_TRUE(same_bits(bidirectional(q, k, v, blocks, mixing, {.executor = pool}), expected));
  bidirectional(q, k, v, blocks, mixing, out, {.executor = pool});
  EXPECT_TRUE(same_bits(out, expected));
  EXPECT_TRUE(
      same_bits(causal(q, k, v, blocks, mixing, {.executor = pool}), causal(in, blocks, mixing)));
  EXPECT_TRUE(same_bits(linear_causal(q, k, v, {.executor = pool}), linear_causal(in)));
  EXPECT_TRUE(
      same_bits(linear_bidirectional(q, k, v, {.executor = pool}), linear_bidirectional(in)));
  const Matrix<float> soft = softmax_bidirectional(in), soft_causal = softmax_causal(in);
  EXPECT_TRUE(same_bits(softmax_bidirectional(q, k, v), soft));
  EXPECT_TRUE(same_bits(softmax_bidirectional(q, k, v, {.executor = pool}), soft));
  EXPECT_TRUE(same_bits(softmax_bidirectional(in, {.executor = pool}), soft));
  EXPECT_TRUE(same_bits(softmax_bidirectional(q, k, v, {.scale = 0.5}),
                        softmax_bidirectional(in, {.scale = 0.5})));
  softmax_bidirectional(q, k, v, out);
  EXPECT_TRUE(same_bits(out, soft));
  EXPECT_TRUE(same_bits(softmax_causal(q, k, v), soft_causal));
  EXPECT_TRUE(same_bits(softmax_causal(q, k, v, {.executor = pool}), soft_causal));
  EXPECT_TRUE(same_bits(softmax_causal(in, {.executor = pool}), soft_causal));
  softmax_causal(q, k, v, out, {}, {.executor = pool});
  EXPECT_TRUE(same_bits(out, soft_causal));
}

TEST_F(Calls, TensorsAreEigenObjectsOfAnyOrderTensorsViewsOrPointers) {
  const Eigen::MatrixXf by_columns = q;
  EXPECT_TRUE(same_bits(bidirectional(by_columns, k, v, blocks, mixing), expected));
  const Eigen::ArrayXXf array = v.array();
  EXPECT_TRUE(same_bits(bidirectional(q, k, array, blocks, mixing), expected));

  const Shape shape{1, 12, 1, 6};
  Tensor<float> tq(shape), tk(shape), tv({1, 12, 1, 5});
  std::copy_n(q.data(), q.size(), tq.data().data());
  std::copy_n(k.data(), k.size(), tk.data().data());
  std::copy_n(v.data(), v.size(), tv.data().data());
  const auto is_expected = [this](const Tensor<float>& out) {
    return out.shape() == Shape{1, 12, 1, 5} &&
           std::equal(out.data().begin(), out.data().end(), expected.data());
  };
  EXPECT_TRUE(is_expected(bidirectional(inputs(tq, tk, tv), blocks, mixing)));
  EXPECT_TRUE(is_expected(bidirectional(inputs(tq.view(), tk.view(), tv.view()), blocks, mixing)));
  EXPECT_TRUE(
      is_expected(bidirectional(inputs(q.data(), k.data(), v.data(), shape, 5), blocks, mixing)));
  Tensor<float> out({1, 12, 1, 5});
  bidirectional(inputs(tq, tk, tv), ContiguousBlocks{4}, mixing, out);
  EXPECT_TRUE(is_expected(out));
}

TEST_F(Calls, OneTokenMayStandForAll) {
  const MatrixView<const float> broadcast(q.data(), 12, 6, 0);
  const Inputs<float> one{.q = broadcast, .k = in.k, .v = in.v};
  const Matrix<float> copies = q.row(0).replicate(12, 1);
  EXPECT_TRUE(
      same_bits(bidirectional(one, blocks, mixing), bidirectional(copies, k, v, blocks, mixing)));
}

TEST_F(Calls, MasksAndOffsetsComeFromVectors) {
  std::vector<unsigned char> keep(12, 1);
  keep[3] = keep[7] = 0;
  Inputs<float> masked = in;
  masked.query_mask = masked.key_mask = keep;
  const Matrix<float> alone = causal(masked, blocks, mixing);
  EXPECT_TRUE(alone.row(3).isZero(0));

  // A packed batch of two sequences gives the same result.
  const std::vector<Index> offsets{0, 12, 24};
  const Matrix<float> q2 = q.replicate(2, 1), k2 = k.replicate(2, 1), v2 = v.replicate(2, 1);
  auto packed = inputs(q2.data(), k2.data(), v2.data(), {1, 24, 1, 6}, 5);
  std::vector<unsigned char> both(24, 1);
  std::copy_n(keep.begin(), 12, both.begin() + 12);
  packed.query_mask = packed.key_mask = BatchMask(both, 1);
  packed.query_offsets = packed.key_offsets = offsets;
  const auto out = causal(packed, ContiguousBlocks{4}, mixing);
  EXPECT_TRUE(std::equal(alone.data(), alone.data() + alone.size(), out.data().begin() + 60));
}

// Blocks of a function serve sequences of any length, which take the leading columns.
TEST_F(Calls, BlocksOfKeysMayBeAFunctionWhereThoseOfQueriesAreNot) {
  const std::vector<Index> of_queries{0, 6, 12}, of_keys{0, 4, 12};
  auto packed = inputs(q.data(), k.data(), v.data(), {1, 12, 1, 6}, 5);
  packed.query_offsets = of_queries, packed.key_offsets = of_keys;
  const MixingMatrix<float> m(rng.matrix<float>(6, 2).cwiseAbs());
  const auto out = bidirectional(packed, CrossBlocks{Contiguous(6, 1), ContiguousBlocks{4}}, m);
  const Inputs<float> second{.q = MatrixView<const float>(q.data() + 36, 6, 6, 6),
                             .k = MatrixView<const float>(k.data() + 24, 8, 6, 6),
                             .v = MatrixView<const float>(v.data() + 20, 8, 5, 5)};
  const Matrix<float> alone =
      bidirectional(second, CrossBlocks{Contiguous(6, 1), Contiguous(8, 4)}, m);
  EXPECT_TRUE(std::equal(alone.data(), alone.data() + alone.size(), out.data().begin() + 30));
  EXPECT_EQ(message_of<shape_error>([&] {
              bidirectional(in, CrossBlocks{ContiguousBlocks{1}, Contiguous(12, 4)},
                            MixingMatrix<float>(Pattern(12, 4)));
            }),
            "mhla::bidirectional: mixing has shape [12, 4], expected [any, 3] (query blocks, key "
            "blocks)");
}

TEST_F(Calls, ACallIsGivenItsWorkspaceAndExecutorByName) {
  ThreadPool pool(3);
  std::vector<std::byte> memory(bidirectional_workspace_bytes(in, blocks, Operator{}, pool));
  Matrix<float> out = unwritten<float>(12, 5);
  bidirectional(in, blocks, mixing, Operator{}, out, {.workspace = memory, .executor = pool});
  EXPECT_TRUE(same_bits(out, expected));
  EXPECT_TRUE(
      same_bits(bidirectional(in, blocks, mixing, Operator{}, {.executor = pool}), expected));
  memory.resize(bidirectional_workspace_bytes(in, blocks));
  bidirectional(in, blocks, mixing, out, {.workspace = memory});
  EXPECT_TRUE(same_bits(out, expected));
}

TEST_F(Calls, TheMixingMatrixMayLieInAFlatRowOfParameters) {
  std::vector<float> parameters(100, 7);
  const auto stored = mixing.storage();
  std::copy(stored.begin(), stored.end(), parameters.begin() + 20);
  const MixingView<const float> view(parameters.data() + 20, Pattern(3, 3));
  EXPECT_TRUE(same_bits(bidirectional(q, k, v, blocks, view), expected));
}

TEST_F(Calls, ADecayingMatrixIsGivenAsAnyOther) {
  const DecayMixing<float> decay{{1, 0.5f}, {0.5f, 0.25f}};
  const Matrix<float> output = causal(q, k, v, blocks, decay);
  EXPECT_TRUE(same_bits(causal(q, k, v, blocks, decay, Operator{}), output));
  EXPECT_TRUE(same_bits(causal(in, blocks, decay, Call{}), output));
  EXPECT_TRUE(same_bits(causal(in, blocks, decay, {}, Call{}), output));
  Matrix<float> with = unwritten<float>(12, 5), without = with;
  causal(in, blocks, decay, Operator{}, with);
  causal(in, blocks, decay, without);
  EXPECT_TRUE(same_bits(with, output));
  EXPECT_TRUE(same_bits(without, output));
}

TEST_F(Calls, ALearnedMapOfAnotherWidthIsRefusedBeforeTheOutputIsTouched) {
  std::vector<unsigned char> keep(12, 0);
  Inputs<float> masked = in;
  masked.query_mask = keep;
  Matrix<float> out = unwritten<float>(12, 5);
  const Operator wide{T2R<float>(Matrix<float>::Identity(7, 7))};
  EXPECT_THROW(bidirectional(masked, blocks, mixing, wide, out), shape_error);
  EXPECT_TRUE(out.array().isNaN().all());
}

TEST_F(Calls, AMixingMatrixWithoutCoefficientsIsRefused) {
  const MixingView<const float> null(nullptr, Pattern(3, 3));
  EXPECT_EQ(message_of<option_error>([&] { bidirectional(in, blocks, null); }),
            "mhla::bidirectional: mixing is null with shape [3, 3], expected a pointer to "
            "coefficients");
  EXPECT_THROW(causal(in, blocks, null), option_error);
}

TEST_F(Calls, QueriesAndKeysOfCrossAttentionHaveTheirOwnBlocks) {
  const auto few = rng.matrix<float>(6, 6);
  const MixingMatrix<float> cross(rng.matrix<float>(2, 3, 0, 1));
  const CrossBlocks both{Contiguous(6, 3), blocks};
  const Matrix<float> out = bidirectional(few, k, v, both, cross);
  EXPECT_LE(
      (out.cast<double>() - naive_attention(inputs(few, k, v), both, cross)).cwiseAbs().maxCoeff(),
      1e-5);
}

}  // namespace
}  // namespace mhla::test
