#include "mhla/attention/streaming.hpp"

#include "contract/forward.hpp"

namespace mhla::test {
namespace {

using forward::Arguments;
using forward::Streamed;
using forward::StreamedDecay;

INSTANTIATE_TYPED_TEST_SUITE_P(Streaming, Forward, WideScalars<Streamed>, ScalarNames);
INSTANTIATE_TYPED_TEST_SUITE_P(Streaming, CausalForward, WideScalars<Streamed>, ScalarNames);
INSTANTIATE_TYPED_TEST_SUITE_P(DecayStreaming, Forward, WideScalars<StreamedDecay>, ScalarNames);
INSTANTIATE_TYPED_TEST_SUITE_P(DecayStreaming, CausalForward, WideScalars<StreamedDecay>,
                               ScalarNames);

constexpr auto kAsItIs = [](const auto& /*stream*/, auto& /*state*/) {};

/// Feeds the problem in pieces of next_length() tokens. Calls between(stream, state) before each
/// piece.
template <class Form, class T, class F, class G = decltype(kAsItIs)>
Matrix<T> feed(const Problem<T>& p, F&& next_length, const G& between = kAsItIs) {
  Matrix<T> out = unwritten<T>(p.q.rows(), p.v.cols());
  const auto stream = Form::stream(p.inputs(), Arguments<T>(p));
  auto state = stream.start();
  GuardedWorkspace workspace(stream.append_workspace_bytes());
  for (Index t = 0; t < p.q.rows();) {
    between(stream, state);
    const Index count = std::min<Index>(next_length(), p.q.rows() - t);
    stream.append(state, detail::middle_tokens(p.inputs(), t, count),
                  MatrixView<T>(out).middle_rows(t, count), {.workspace = workspace.get()});
    t += count;
    EXPECT_EQ(state.position(), t);
  }
  EXPECT_TRUE(workspace.intact()) << p.text();
  return out;
}

/// Mostly single tokens, with longer and empty pieces between them.
auto mixed_lengths(std::uint64_t seed) {
  return [rng = Random(seed)]() mutable {
    constexpr Index kPieces[] = {0, 2, 5, 17, 64};
    return rng.chance(0.8) ? 1 : kPieces[rng.integer(0, 4)];
  };
}

/// Promises of streams for any division of the tokens.
template <class Case>
class Streams : public testing::Test {
 protected:
  static auto problem(std::uint64_t seed) {
    using T = typename Case::Scalar;
    auto p = seed % 4 == 0 ? large_problem<T>(seed, true) : random_problem<T>(seed, true);
    Case::Form::fit(p);
    return p;
  }
};
TYPED_TEST_SUITE_P(Streams);

TYPED_TEST_P(Streams, EqualsNaiveAttentionHoweverItIsSplit) {
  using F = typename TypeParam::Form;
  Tally tally;
  for (std::uint64_t seed = 0; seed < 600 && !this->HasFatalFailure(); ++seed) {
    const auto p = this->problem(seed);
    compare(p, expected_of<F>(p), feed<F>(p, mixed_lengths(seed)), "streaming", tally);
  }
  EXPECT_LT(tally.ill, tally.outputs / 20);
}

TYPED_TEST_P(Streams, SavedRestoredAndCopiedStatesGoOnBitwiseFromEveryPosition) {
  using F = typename TypeParam::Form;
  using S = typename TypeParam::Scalar;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const auto p = this->problem(seed);
    const auto restored = [](const auto& stream, auto& state) {
      std::vector<std::byte> bytes(stream.state_bytes());
      state.save(bytes);
      state = stream.start();
      state.restore(bytes);
    };
    const auto copied = [&p](const auto& stream, auto& state) {
      const auto copy = state;
      Matrix<S> out(1, p.v.cols());
      stream.append(state, detail::middle_tokens(p.inputs(), 0, 1), out);  // not the copy's way
      state = copy;
    };
    const auto straight = feed<F>(p, mixed_lengths(seed));
    EXPECT_TRUE(same_bits(straight, feed<F>(p, mixed_lengths(seed), restored))) << p.text();
    EXPECT_TRUE(same_bits(straight, feed<F>(p, mixed_lengths(seed), copied))) << p.text();
  }
}

TYPED_TEST_P(Streams, ANaNReachesLaterTokensAndNoneFromAMaskedKey) {
  using F = typename TypeParam::Form;
  using S = typename TypeParam::Scalar;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    auto p = this->problem(seed);
    if (p.q.rows() == 0) continue;
    p.lower = p.upper = p.coefficients.rows();
    p.sparse = false;
    p.query_map = p.key_map = {EluPlusOne{}};  // a NaN at any input
    Random rng(seed);
    const Matrix<S> clean = feed<F>(p, mixed_lengths(seed));
    const Index t = rng.integer(0, p.q.rows() - 1);
    Matrix<S>* const inputs[] = {&p.k, &p.v, p.has_separate_normalizer() ? &p.normalizer_k : &p.k};
    inputs[rng.integer(0, 2)]->row(t).setConstant(NAN);
    const Mask query_mask = p.inputs().query_mask;
    const Matrix<S> got = feed<F>(p, mixed_lengths(seed));
    for (Index s = 0; s < got.rows(); ++s) {
      if (p.inputs().key_mask[t] && s >= t && query_mask[s]) {
        EXPECT_TRUE(got.row(s).array().isNaN().all()) << t << " to " << s << p.text();
      } else {
        EXPECT_TRUE(same_bits<S>(got.row(s), clean.row(s))) << t << " to " << s << p.text();
      }
    }
  }
}

TYPED_TEST_P(Streams, WholeBlocksAreBitwiseTheCausalFormEvenAfterSingleTokens) {
  using F = typename TypeParam::Form;
  using S = typename TypeParam::Scalar;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const auto p = this->problem(seed);
    Matrix<S> causal = unwritten<S>(p.q.rows(), p.v.cols());
    F::Whole::run(p.inputs(), Arguments<S>(p), MatrixView<S>(causal), {});
    const Index w = largest_block(p.key_blocks), single = w * (seed % 3);
    Random rng(seed);
    const Matrix<S> out = feed<F>(
        p, [&, fed = Index{0}]() mutable { return ++fed <= single ? 1 : w * rng.integer(1, 3); });
    const Index rest = std::max<Index>(0, p.q.rows() - single);
    EXPECT_TRUE(same_bits<S>(causal.bottomRows(rest), out.bottomRows(rest))) << p.text();
  }
}

REGISTER_TYPED_TEST_SUITE_P(Streams, EqualsNaiveAttentionHoweverItIsSplit,
                            SavedRestoredAndCopiedStatesGoOnBitwiseFromEveryPosition,
                            ANaNReachesLaterTokensAndNoneFromAMaskedKey,
                            WholeBlocksAreBitwiseTheCausalFormEvenAfterSingleTokens);
INSTANTIATE_TYPED_TEST_SUITE_P(Streaming, Streams, WideScalars<Streamed>, ScalarNames);
INSTANTIATE_TYPED_TEST_SUITE_P(DecayStreaming, Streams, WideScalars<StreamedDecay>, ScalarNames);

/// R of blocks is mixed in groups whose size grows with the number of blocks.
TEST(Streaming, FirstTokensOfManyBlocksHaveTheBitsOfTheCausalForm) {
  constexpr Index kWidth = 9;
  for (const Index blocks : {1, 6, 7, 24, 25, 96, 97, 400}) {
    for (const Index w : {1, 3}) {
      for (const bool banded : {false, true}) {
        const Index n = blocks * w, lower = banded ? 20 : blocks;
        Random rng(static_cast<std::uint64_t>(n));
        const auto q = rng.matrix<float>(n, kWidth), k = rng.matrix<float>(n, kWidth),
                   v = rng.matrix<float>(n, kWidth);
        const MixingMatrix<float> mixing =
            banded ? MixingMatrix<float>::banded(uniform_causal<float>(blocks).dense(), lower, 0)
                   : uniform_causal<float>(blocks);
        Matrix<float> whole = unwritten<float>(n, kWidth), out = unwritten<float>(n, kWidth);
        const Inputs<float> in{.q = q, .k = k, .v = v};
        causal(in, Contiguous(n, w), mixing, Operator<>(), MatrixView<float>(whole));
        const Streaming<float> stream({.width = kWidth, .values = kWidth, .block_length = w},
                                      mixing);
        auto state = stream.start();
        for (Index t = 0; t < n; ++t) {
          stream.append(state, detail::middle_tokens(in, t, 1),
                        MatrixView<float>(out).middle_rows(t, 1));
          if (t % w > 0) continue;
          EXPECT_TRUE(same_bits<float>(whole.row(t), out.row(t)))
              << "token " << t << " of " << n << (banded ? ", band" : "");
        }
      }
    }
  }
}

TEST(Streaming, AStateTakesTheMemoryOfItsPartsAndAQuarterAtMost) {
  const Streaming<float> stream({.width = 64, .values = 64, .block_length = 64},
                                uniform_causal<float>(10));
  // M summaries of D x E and D, four R, two z, and the open block's keys and values.
  const std::size_t numbers = 10 * (64 * 64 + 64) + 4 * 64 * 64 + 2 * 64 + 64 * (64 + 64);
  EXPECT_GE(stream.state_bytes(), numbers * sizeof(float));
  EXPECT_LE(stream.state_bytes(), numbers * sizeof(float) * 5 / 4);
}

TEST(DecayStreaming, AStateTakesTheMemoryOfItsTermsForAnyNumberOfTokens) {
  const Streaming<float, Operator<>, DecayMixing<float>> stream(
      {.width = 64, .values = 64, .block_length = 64}, {{1, 1, 1}, {1, 0.9F, 0.5F}});
  EXPECT_EQ(stream.capacity(), std::numeric_limits<Index>::max());
  // Two summaries and three states of D x E and D, besides the memory of every stream.
  const std::size_t numbers = 5 * (64 * 64 + 64) + 2 * (64 * 64 + 64) + 64 * (64 + 64);
  EXPECT_GE(stream.state_bytes(), numbers * sizeof(float));
  EXPECT_LE(stream.state_bytes(), numbers * sizeof(float) * 5 / 4);
}

}  // namespace
}  // namespace mhla::test
