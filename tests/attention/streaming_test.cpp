#include "mhla/attention/streaming.hpp"

#include <functional>
#include <vector>

#include "contract/forward.hpp"
#include "support/add_test.hpp"
#include "support/forward_forms.hpp"
#include "support/seeds.hpp"

namespace mhla::test {
namespace {

using forward::Arguments;
using forward::Streamed;
using forward::StreamedDecay;

TEST_FORM(Streaming, Streamed, float, double);
TEST_FORM(DecayStreaming, StreamedDecay, float, double);

/// Treatment of a state between two pieces of a stream.
enum class Between { kNothing, kSaveAndRestore, kCopy };

/// Feeds the problem in pieces of next_length() tokens.
template <class Form, class T>
Matrix<T> feed(const Problem<T>& p, const std::function<Index()>& next_length, Between between) {
  Matrix<T> out = unwritten<T>(p.q.rows(), p.v.cols());
  const auto stream = Form::stream(p.inputs(), Arguments<T>(p));
  auto state = stream.start();
  GuardedWorkspace workspace(stream.append_workspace_bytes());
  for (Index t = 0; t < p.q.rows();) {
    if (between == Between::kSaveAndRestore) {
      std::vector<std::byte> bytes(stream.state_bytes());
      state.save(bytes);
      state = stream.start();
      state.restore(bytes);
    } else if (between == Between::kCopy) {
      const auto copy = state;
      Matrix<T> other(1, p.v.cols());
      stream.append(state, detail::middle_tokens(p.inputs(), 0, 1), other);  // not the copy's way
      state = copy;
    }
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
std::function<Index()> mixed_lengths(std::uint64_t seed) {
  return [rng = Random(seed)]() mutable {
    constexpr Index kPieces[] = {0, 2, 5, 17, 64};
    return rng.chance(0.8) ? 1 : kPieces[rng.integer(0, 4)];
  };
}

/// Promises of streams for any division of the tokens.
template <class T>
struct Streams {
  const AnyForm<T>& form;
  decltype(AnyForm<T>::run) run_whole;  // in one call
  Matrix<T> (*feed)(const Problem<T>&, const std::function<Index()>&, Between);

  Problem<T> problem(std::uint64_t seed) const {
    auto p = seed % 4 == 0 ? large_problem<T>(seed, true) : random_problem<T>(seed, true);
    form.fit(p);
    return p;
  }

  void EqualsNaiveAttentionHoweverItIsSplit() const {
    Tally tally;
    for (const std::uint64_t seed : seeds(600)) {
      if (testing::Test::HasFatalFailure()) break;
      const auto p = problem(seed);
      compare(p, form.expected(p), feed(p, mixed_lengths(seed), Between::kNothing), "streaming",
              tally);
    }
    EXPECT_LT(tally.ill, tally.outputs / 20);
  }

  void SavedRestoredAndCopiedStatesGoOnBitwiseFromEveryPosition() const {
    for (const std::uint64_t seed : seeds(100)) {
      const auto p = problem(seed);
      const auto straight = feed(p, mixed_lengths(seed), Between::kNothing);
      EXPECT_TRUE(same_bits(straight, feed(p, mixed_lengths(seed), Between::kSaveAndRestore)))
          << p.text();
      EXPECT_TRUE(same_bits(straight, feed(p, mixed_lengths(seed), Between::kCopy))) << p.text();
    }
  }

  void ANaNReachesLaterTokensAndNoneFromAMaskedKey() const {
    for (const std::uint64_t seed : seeds(300)) {
      auto p = problem(seed);
      if (p.q.rows() == 0) continue;
      p.lower = p.upper = p.coefficients.rows();
      p.sparse = false;
      p.query_map = p.key_map = {EluPlusOne{}};  // a NaN at any input
      Random rng(seed);
      const Matrix<T> clean = feed(p, mixed_lengths(seed), Between::kNothing);
      const Index t = rng.integer(0, p.q.rows() - 1);
      Matrix<T>* const inputs[] = {&p.k, &p.v,
                                   p.has_separate_normalizer() ? &p.normalizer_k : &p.k};
      inputs[rng.integer(0, 2)]->row(t).setConstant(NAN);
      const Mask query_mask = p.inputs().query_mask;
      const Matrix<T> got = feed(p, mixed_lengths(seed), Between::kNothing);
      for (Index s = 0; s < got.rows(); ++s) {
        if (p.inputs().key_mask[t] && s >= t && query_mask[s]) {
          EXPECT_TRUE(got.row(s).array().isNaN().all()) << t << " to " << s << p.text();
        } else {
          EXPECT_TRUE(same_bits<T>(got.row(s), clean.row(s))) << t << " to " << s << p.text();
        }
      }
    }
  }

  void WholeBlocksAreBitwiseTheCausalFormEvenAfterSingleTokens() const {
    for (const std::uint64_t seed : seeds(500)) {
      const auto p = problem(seed);
      Matrix<T> causal = unwritten<T>(p.q.rows(), p.v.cols());
      run_whole(p.inputs(), Arguments<T>(p), causal, {});
      const Index w = largest_block(p.key_blocks), single = w * static_cast<Index>(seed % 3);
      Random rng(seed);
      const Matrix<T> out = feed(
          p, [&, fed = Index{0}]() mutable { return ++fed <= single ? 1 : w * rng.integer(1, 3); },
          Between::kNothing);
      const Index rest = std::max<Index>(0, p.q.rows() - single);
      EXPECT_TRUE(same_bits<T>(causal.bottomRows(rest), out.bottomRows(rest))) << p.text();
    }
  }
};

template <class Form, class T>
void add_streams(const std::string& suite) {
  const Streams<T> laws{kFormOn<Form, T>, &Form::Whole::run, &feed<Form, T>};
  MHLA_ADD_TEST(suite, laws, EqualsNaiveAttentionHoweverItIsSplit);
  MHLA_ADD_TEST(suite, laws, SavedRestoredAndCopiedStatesGoOnBitwiseFromEveryPosition);
  MHLA_ADD_TEST(suite, laws, ANaNReachesLaterTokensAndNoneFromAMaskedKey);
  MHLA_ADD_TEST(suite, laws, WholeBlocksAreBitwiseTheCausalFormEvenAfterSingleTokens);
}
[[maybe_unused]] const bool kStreams = [] {
  add_streams<Streamed, float>("Streaming/Streams/float");
  add_streams<Streamed, double>("Streaming/Streams/double");
  add_streams<StreamedDecay, float>("DecayStreaming/Streams/float");
  add_streams<StreamedDecay, double>("DecayStreaming/Streams/double");
  return true;
}();

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
