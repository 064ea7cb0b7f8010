#pragma once

/// \file
/// Promises of every layer that decodes (layer/decoding_layer.hpp). The next tokens give what the
/// whole sequence gives. Sequences of a batch run as they do alone. States are values that can be
/// saved, and a refused call changes none. A call with a workspace allocates nothing.
///
/// A layer is tested through the types of contract/attention_layer.hpp, in double.

#include <gtest/gtest.h>

#include <cstddef>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "contract/attention_layer.hpp"
#include "support/add_test.hpp"
#include "support/allocations.hpp"

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

/// Rows packed one part after another.
inline Matrix<double> packed(const std::vector<Matrix<double>>& parts) {
  Matrix<double> all(0, parts.front().cols());
  for (const Matrix<double>& part : parts) {
    all.conservativeResize(all.rows() + part.rows(), all.cols());
    all.bottomRows(part.rows()) = part;
  }
  return all;
}

/// Sequences of a layer that decodes, each with prompts of lengths of its own.
template <class Layer>
struct DecodingRun : LayerRunOf<Layer> {
  using State = decltype(std::declval<Layer>().start());

  explicit DecodingRun(const LayerRunOf<Layer>& run) : LayerRunOf<Layer>(run) {}
  /// Tokens of sequence b in the first and in the second call.
  static Index tokens(Index call, Index b) { return call == 0 ? 3 + b : b == 1 ? 0 : 2 + b; }

  Matrix<double> part(Index b, Index begin, Index count) const {
    return this->x.middleRows(b * this->rows_of_item + begin, count);
  }
  Matrix<double> append(State& state, const Matrix<double>& from, const std::vector<Index>& offsets,
                        const LayerCall& call = {}) const {
    Matrix<double> y(from.rows(), from.cols());
    this->layer.append(state, from, offsets, y, call);
    return y;
  }
  /// Outputs of both calls of prompts for sequences `order` of x.
  std::vector<Matrix<double>> prompts(State& state, const std::vector<Index>& order,
                                      const LayerCall& call = {}) const {
    std::vector<Matrix<double>> outputs;
    for (const Index i : {0, 1}) {
      std::vector<Matrix<double>> parts;
      std::vector<Index> offsets{0};
      for (const Index b : order) {
        parts.push_back(part(b, i == 0 ? 0 : tokens(0, b), tokens(i, b)));
        offsets.push_back(offsets.back() + tokens(i, b));
      }
      outputs.push_back(append(state, packed(parts), offsets, call));
    }
    return outputs;
  }
  /// Outputs of a token for each sequence of a state, the same for all.
  Matrix<double> next(State& state) const {
    const Matrix<double> from = part(0, 0, 1).replicate(state.batch(), 1);
    Matrix<double> y(from.rows(), from.cols());
    this->layer.append(state, from, y);
    return y;
  }
  std::vector<Index> all() const {
    std::vector<Index> order(static_cast<std::size_t>(this->batch));
    std::iota(order.begin(), order.end(), Index{0});
    return order;
  }
};

template <class Layer>
struct DecodingContract {
  DecodingRun<Layer> (*make)();

  void APromptAndThenTokensGiveTheWholeSequence() const {
    const auto run = make();
    const auto whole = run.forward();
    const double largest = whole.cwiseAbs().maxCoeff();
    for (const Index prompt : {0, 1, 3, 4, 6, 8}) {
      auto state = run.layer.start(run.batch);
      Index begin = 0;
      while (begin < run.rows_of_item) {
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

  void CallsThatBeginWithABlockHaveTheBitsOfTheWholeSequence() const {
    const auto run = make();
    const auto whole = run.forward();
    auto state = run.layer.start(run.batch);
    const Index chunk = chunk_of(run.layer.options());
    const auto expect_bits = [&](auto& to, Index begin, Index count) {
      const Matrix<double> x = tokens_of(run.x, run.batch, begin, count);
      Matrix<double> y(x.rows(), x.cols());
      run.layer.append(to, x, y);
      EXPECT_EQ(y, tokens_of(whole, run.batch, begin, count)) << begin;
    };
    for (Index begin = 0; begin + chunk <= run.rows_of_item; begin += chunk) {
      auto copy = state;
      expect_bits(copy, begin, chunk - 1);
      expect_bits(state, begin, chunk);
    }
  }

  void CopiesOfAStateGoTheirOwnWaysAndErrorsLeaveItAsItWas() const {
    const auto run = make();
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

  void PromptsOfUnequalLengthHaveTheBitsThatTheyHaveAlone() const {
    const auto run = make();
    auto together = run.layer.start(run.batch);
    ThreadPool pool(2);
    const auto outputs = run.prompts(together, run.all(), {.executor = pool});
    const Matrix<double> last = run.next(together);
    Index rows[] = {0, 0};
    for (Index b = 0; b < run.batch; ++b) {
      auto alone = run.layer.start();
      const auto expected = run.prompts(alone, {b});
      for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(outputs[i].middleRows(rows[i], expected[i].rows()), expected[i]) << b;
        rows[i] += expected[i].rows();
      }
      EXPECT_EQ(last.row(b), run.next(alone).row(0)) << b;
      EXPECT_EQ(together.position(b), run.tokens(0, b) + run.tokens(1, b) + 1);
    }
    EXPECT_EQ(together.position(), together.position(run.batch == 2 ? 0 : run.batch - 1));
  }

  void ARestoredStateGoesOnWithTheSameBits() const {
    const auto run = make();
    auto state = run.layer.start(run.batch);
    run.prompts(state, run.all());
    std::vector<std::byte> bytes(state.bytes()), again(state.bytes());
    state.save(bytes);
    auto restored = run.layer.start(run.batch);
    run.next(restored);
    restored.restore(bytes);
    restored.save(again);
    EXPECT_EQ(again, bytes);
    for (Index i = 0; i < 2; ++i) EXPECT_EQ(run.next(restored), run.next(state));
  }

  void SelectedSequencesRunAsIfTheyHadBegunInThatOrder() const {
    const auto run = make();
    auto state = run.layer.start(run.batch);
    run.prompts(state, run.all());
    const std::vector<Index> order{run.batch - 1, 0, run.batch - 1};
    auto selected = state.select(order);
    auto begun = run.layer.start(3);
    run.prompts(begun, order);
    for (Index i = 0; i < 2; ++i) EXPECT_EQ(run.next(selected), run.next(begun));
    EXPECT_EQ(state.select(std::vector<Index>{}).batch(), 0);
  }

  void ATokenWithAWorkspaceAllocatesNothing() const {
#ifdef MHLA_TEST_COUNTS_MALLOC
    const auto run = make();
    auto state = run.layer.start(run.batch);
    const Matrix<double> x = tokens_of(run.x, run.batch, 0, 1);
    Matrix<double> y = x;
    std::vector<std::byte> memory(run.layer.append_workspace_bytes(state, run.batch));
    std::vector<Index> offsets(static_cast<std::size_t>(run.batch), 0);  // the last has all tokens
    offsets.push_back(run.batch);
    EXPECT_EQ(allocations([&] {
                run.layer.append(state, x, y, {.workspace = memory});
                run.layer.append(state, x, offsets, y, {.workspace = memory});
              }),
              0);
#endif
  }
};

template <class L>
void add_decoding_tests(const std::string& suite) {
  const DecodingContract<typename L::Layer> laws{
      [] { return DecodingRun<typename L::Layer>(AttentionLayerRun<L>()); }};
  MHLA_ADD_TEST(suite, laws, APromptAndThenTokensGiveTheWholeSequence);
  MHLA_ADD_TEST(suite, laws, CallsThatBeginWithABlockHaveTheBitsOfTheWholeSequence);
  MHLA_ADD_TEST(suite, laws, CopiesOfAStateGoTheirOwnWaysAndErrorsLeaveItAsItWas);
  MHLA_ADD_TEST(suite, laws, PromptsOfUnequalLengthHaveTheBitsThatTheyHaveAlone);
  MHLA_ADD_TEST(suite, laws, ARestoredStateGoesOnWithTheSameBits);
  MHLA_ADD_TEST(suite, laws, SelectedSequencesRunAsIfTheyHadBegunInThatOrder);
  MHLA_ADD_TEST(suite, laws, ATokenWithAWorkspaceAllocatesNothing);
}
template <class... L>
bool test_decoding_layers(const std::string& prefix, testing::Types<L...>) {
  int number = 0;
  (add_decoding_tests<L>(prefix + "/DecodingContract/" + std::to_string(number++)), ...);
  return true;
}

/// Adds the tests of a list of layers.
#define TEST_DECODING_LAYERS(prefix, ...) \
  [[maybe_unused]] const bool kDecodes##prefix = test_decoding_layers(#prefix, __VA_ARGS__())

}  // namespace mhla::test
