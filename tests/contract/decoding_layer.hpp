#pragma once

/// \file
/// What every layer that decodes promises (layer/decoding_layer.hpp): the next tokens give what the
/// whole sequence gives, states are values, and what is refused changes none.
///
/// A layer is tested through the types of contract/attention_layer.hpp, in double.

#include <gtest/gtest.h>

#include <type_traits>
#include <vector>

#include "contract/attention_layer.hpp"

namespace mhla::test {

/// The tokens [begin, begin + count) of each sequence.
inline Matrix<double> tokens_of(const Matrix<double>& x, Index batch, Index begin, Index count) {
  const Index n = x.rows() / batch;
  Matrix<double> some(batch * count, x.cols());
  for (Index b = 0; b < batch; ++b) {
    some.middleRows(b * count, count) = x.middleRows(b * n + begin, count);
  }
  return some;
}

/// Tokens of a block.
template <class Options>
Index chunk_of(const Options& options) {
  if constexpr (requires { options.chunk; }) {
    return options.chunk;
  } else {
    return options.attention.chunk;
  }
}

/// Most blocks of a sequence.
template <class Options>
Index& chunks_of(Options& options) {
  if constexpr (requires { options.chunks; }) {
    return options.chunks;
  } else {
    return options.attention.chunks;
  }
}

template <class L>
class DecodingContract : public testing::Test {};
TYPED_TEST_SUITE_P(DecodingContract);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DecodingContract);

TYPED_TEST_P(DecodingContract, APromptAndThenTokensGiveTheWholeSequence) {
  const AttentionLayerRun<TypeParam> run;
  const auto whole = run.forward();
  const double largest = whole.cwiseAbs().maxCoeff();
  for (const Index prompt : {0, 1, 3, 4, 6, 8}) {
    auto state = run.layer.start(run.batch);
    Index begin = 0;
    while (begin < TypeParam::kRows) {
      const Index count = begin == 0 && prompt > 0 ? prompt : begin == 5 ? 3 : 1;
      const Matrix<double> x = tokens_of(run.x, run.batch, begin, count);
      Matrix<double> y(x.rows(), x.cols());
      ThreadPool pool(2);
      run.layer.append(state, x, y, {.executor = pool});
      const auto expected = tokens_of(whole, run.batch, begin, count);
      EXPECT_LE((y - expected).cwiseAbs().maxCoeff(), 1e-13 * largest) << begin;
      begin += count;
      EXPECT_EQ(state.position(), begin);
    }
  }
}

TYPED_TEST_P(DecodingContract, CallsThatBeginWithABlockHaveTheBitsOfTheWholeSequence) {
  const AttentionLayerRun<TypeParam> run;
  const auto whole = run.forward();
  auto state = run.layer.start(run.batch);
  const Index chunk = chunk_of(run.layer.options());
  const auto expect_bits = [&](auto& to, Index begin, Index count) {
    const Matrix<double> x = tokens_of(run.x, run.batch, begin, count);
    Matrix<double> y(x.rows(), x.cols());
    run.layer.append(to, x, y);
    EXPECT_EQ(y, tokens_of(whole, run.batch, begin, count)) << begin;
  };
  for (Index begin = 0; begin + chunk <= TypeParam::kRows; begin += chunk) {
    auto copy = state;
    expect_bits(copy, begin, chunk - 1);
    expect_bits(state, begin, chunk);
  }
}

TYPED_TEST_P(DecodingContract, CopiesOfAStateGoTheirOwnWaysAndErrorsLeaveItAsItWas) {
  const AttentionLayerRun<TypeParam> run;
  auto state = run.layer.start(run.batch);
  const auto append = [&](auto& to, Index begin, Index count) {
    const Matrix<double> x = tokens_of(run.x, run.batch, begin, count);
    Matrix<double> y(x.rows(), x.cols());
    run.layer.append(to, x, y);
    return y;
  };
  append(state, 0, 3);
  auto copy = state;
  append(copy, 5, 2);
  Matrix<double> x = run.x, few(run.batch, x.cols()), narrow(run.batch, x.cols() - 1);
  EXPECT_THROW(run.layer.append(state, few, narrow), shape_error);
  EXPECT_THROW(run.layer.append(state, narrow, few), shape_error);
  const MatrixView<double> one_row(few.data(), run.batch, x.cols(), 0);
  EXPECT_THROW(run.layer.append(state, few, one_row), option_error);
  EXPECT_THROW(run.layer.append(state, few, few, {.batch = run.batch + 1}), option_error);
  std::vector<std::byte> memory(run.layer.append_workspace_bytes(state, run.batch) - 1);
  EXPECT_THROW(run.layer.append(state, few, few, {.workspace = memory}), option_error);
  const Index room = state.capacity() - state.position();
  Matrix<double> many = Matrix<double>::Zero(run.batch * (room + 1), x.cols());
  EXPECT_THROW(run.layer.append(state, many, many), option_error);
  auto options = run.layer.options();
  ++chunks_of(options);
  const std::decay_t<decltype(run.layer)> other(options);
  EXPECT_THROW(other.append(state, few, few), option_error);
  auto again = run.layer.start(run.batch);
  append(again, 0, 3);
  EXPECT_EQ(append(state, 3, 2), append(again, 3, 2));
}

REGISTER_TYPED_TEST_SUITE_P(DecodingContract, APromptAndThenTokensGiveTheWholeSequence,
                            CallsThatBeginWithABlockHaveTheBitsOfTheWholeSequence,
                            CopiesOfAStateGoTheirOwnWaysAndErrorsLeaveItAsItWas);

}  // namespace mhla::test
