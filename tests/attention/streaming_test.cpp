#include "mhla/attention/streaming.hpp"

#include "contract/forward.hpp"

namespace mhla::test {
namespace {

using forward::Arguments;
using forward::Streamed;

INSTANTIATE_TYPED_TEST_SUITE_P(Streaming, Forward, WideScalars<Streamed>, ScalarNames);
INSTANTIATE_TYPED_TEST_SUITE_P(Streaming, CausalForward, WideScalars<Streamed>, ScalarNames);

template <class T>
Problem<T> any_problem(std::uint64_t seed) {
  auto p = seed % 4 == 0 ? large_problem<T>(seed, true) : random_problem<T>(seed, true);
  Streamed::fit(p);
  return p;
}

constexpr auto kAsItIs = [](const auto& /*stream*/, auto& /*state*/) {};

/// Feeds the problem in pieces of next_length() tokens, before each of which between(stream, state)
/// is called.
template <class T, class F, class G = decltype(kAsItIs)>
Matrix<T> feed(const Problem<T>& p, F&& next_length, const G& between = kAsItIs) {
  Matrix<T> out = unwritten<T>(p.q.rows(), p.v.cols());
  const auto stream = Streamed::stream(p.inputs(), Arguments<T>(p));
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

/// Mostly single tokens, longer pieces between them, and none.
auto mixed_lengths(std::uint64_t seed) {
  return [rng = Random(seed)]() mutable {
    constexpr Index kPieces[] = {0, 2, 5, 17, 64};
    return rng.chance(0.8) ? 1 : kPieces[rng.integer(0, 4)];
  };
}

template <class T>
class AnyStream : public testing::Test {};
using WideTypes = testing::Types<float, double>;
TYPED_TEST_SUITE(AnyStream, WideTypes);

TYPED_TEST(AnyStream, EqualsNaiveAttentionHoweverItIsSplit) {
  Tally tally;
  for (std::uint64_t seed = 0; seed < 600 && !this->HasFatalFailure(); ++seed) {
    const auto p = any_problem<TypeParam>(seed);
    compare(p, Streamed::expect(p), feed(p, mixed_lengths(seed)), "streaming", tally);
  }
  EXPECT_LT(tally.ill, tally.outputs / 20);
}

TYPED_TEST(AnyStream, SavedRestoredAndCopiedStatesGoOnBitwiseFromEveryPosition) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const auto p = any_problem<TypeParam>(seed);
    const auto restored = [](const auto& stream, auto& state) {
      std::vector<std::byte> bytes(stream.state_bytes());
      state.save(bytes);
      state = stream.start();
      state.restore(bytes);
    };
    const auto copied = [&p](const auto& stream, auto& state) {
      const auto copy = state;
      Matrix<TypeParam> out(1, p.v.cols());
      stream.append(state, detail::middle_tokens(p.inputs(), 0, 1), out);  // not the copy's way
      state = copy;
    };
    const auto straight = feed(p, mixed_lengths(seed));
    EXPECT_TRUE(same_bits(straight, feed(p, mixed_lengths(seed), restored))) << p.text();
    EXPECT_TRUE(same_bits(straight, feed(p, mixed_lengths(seed), copied))) << p.text();
  }
}

TEST(Streaming, ANaNReachesLaterTokensAndNoneFromAMaskedKey) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    auto p = any_problem<float>(seed);
    if (p.q.rows() == 0) continue;
    p.lower = p.upper = p.coefficients.rows();
    p.query_map = p.key_map = {EluPlusOne{}};  // a NaN at any input
    Random rng(seed);
    const Matrix<float> clean = feed(p, mixed_lengths(seed));
    const Index t = rng.integer(0, p.q.rows() - 1);
    Matrix<float>* const inputs[] = {&p.k, &p.v, p.has_own_normalizer() ? &p.normalizer_k : &p.k};
    inputs[rng.integer(0, 2)]->row(t).setConstant(NAN);
    const Mask query_mask = p.inputs().query_mask;
    const Matrix<float> got = feed(p, mixed_lengths(seed));
    for (Index s = 0; s < got.rows(); ++s) {
      if (p.inputs().key_mask[t] && s >= t && query_mask[s]) {
        EXPECT_TRUE(got.row(s).array().isNaN().all()) << t << " to " << s << p.text();
      } else {
        EXPECT_TRUE(same_bits<float>(got.row(s), clean.row(s))) << t << " to " << s << p.text();
      }
    }
  }
}

TEST(Streaming, WholeBlocksAreBitwiseTheCausalFormEvenAfterSingleTokens) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const auto p = any_problem<float>(seed);
    const Matrix<float> causal = mhla::causal(p.inputs(), p.query_blocks, p.mixing(), p.op());
    const Index w = largest_block(p.key_blocks), single = w * (seed % 3);
    Random rng(seed);
    const Matrix<float> out = feed(
        p, [&, fed = Index{0}]() mutable { return ++fed <= single ? 1 : w * rng.integer(1, 3); });
    const Index rest = std::max<Index>(0, p.q.rows() - single);
    EXPECT_TRUE(same_bits<float>(causal.bottomRows(rest), out.bottomRows(rest))) << p.text();
  }
}

TEST(Streaming, AStateTakesTheMemoryOfItsPartsAndAQuarterAtMost) {
  const Streaming<float> stream({.width = 64, .values = 64, .block_length = 64},
                                uniform_causal<float>(10));
  // M summaries of D x E and D, two R and one z of it, and the open block's keys and values.
  const std::size_t numbers = 10 * (64 * 64 + 64) + (2 * 64 * 64 + 64) + 64 * (64 + 64);
  EXPECT_GE(stream.state_bytes(), numbers * sizeof(float));
  EXPECT_LE(stream.state_bytes(), numbers * sizeof(float) * 5 / 4);
}

}  // namespace
}  // namespace mhla::test
