#include "mhla/attention/streaming.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "mhla/policy/locality.hpp"
#include "support/message_of.hpp"
#include "support/reference.hpp"

namespace mhla::test {
namespace {

/// Longest chain of roundings: as causal, and the tokens of the open block on their way into R.
constexpr auto kChain = [](const auto& p) {
  return 3 * largest_block(p.key_blocks) + p.key_blocks.blocks() +
         p.query_map.features(std::max(p.q.cols(), p.normalizer_q.cols())) + 4;
};

/// A causal problem whose blocks have one length, as streams need.
template <class T>
Problem<T> streaming_problem(std::uint64_t seed) {
  auto p = random_problem<T>(seed, true);
  const Index blocks = p.coefficients.rows(), n = p.q.rows();
  const Index w = std::max<Index>(1, (n + blocks - 1) / blocks);
  p.query_blocks = p.key_blocks = AnyPartition::of(Contiguous(n, w));
  return p;
}

/// Longer causal problems with blocks from one token on and widths that fill no vector.
template <class T>
Problem<T> long_problem(std::uint64_t seed) {
  using A = accumulator_t<T>;
  constexpr Index kLengths[] = {1, 2, 3, 7, 64, 65}, kWidths[] = {1, 2, 3, 5, 16, 33};
  Random rng(seed);
  Problem<T> p;
  p.seed = seed;
  p.causal = true;
  const Index w = kLengths[rng.integer(0, 5)], n = rng.integer(w, 3 * w + 20);
  const Index d = kWidths[rng.integer(0, 5)], e = rng.integer(1, 70), m = (n + w - 1) / w;
  p.query_blocks = p.key_blocks = AnyPartition::of(Contiguous(n, w));
  p.query_map = p.key_map = {EluPlusOne{}};
  p.q = rng.matrix<T>(n, d);
  p.k = rng.matrix<T>(n, d);
  p.v = rng.matrix<T>(n, e);
  p.normalizer = rng.chance(0.3) ? NaiveNormalizer::kNone : NaiveNormalizer::kKeySum;
  if (p.normalizer == NaiveNormalizer::kKeySum && rng.chance(0.4)) {
    const Index own = rng.integer(1, 40);
    p.normalizer_q = rng.matrix<T>(n, own);
    p.normalizer_k = rng.matrix<T>(n, own);
  }
  p.coefficients = rng.matrix<A>(m, m, 0.1, 1);
  p.lower = p.upper = m;
  p.eps = 1e-3;
  p.scale = rng.chance(0.5) ? 1 : 0.37;
  for (Matrix<bool>* mask : {&p.query_mask, &p.key_mask}) {
    if (rng.chance(0.5)) continue;
    mask->resize(1, n);
    for (Index t = 0; t < n; ++t) (*mask)(0, t) = rng.chance(0.7);
  }
  return p;
}

template <class T, CausalOperator Op>
Streaming<T, Op> stream_of(const Problem<T>& p, const Op& op) {
  return {{.width = p.q.cols(),
           .values = p.v.cols(),
           .block_length = std::max<Index>(1, largest_block(p.query_blocks)),
           .normalizer_width = p.normalizer_q.cols()},
          p.mixing(),
          op};
}

constexpr auto kAsItIs = [](const auto& /*stream*/, auto& /*state*/) {};

/// Feeds the problem in pieces of next_length(tokens left) tokens, before each of which
/// between(stream, state) is called.
template <class T, class F, class G = decltype(kAsItIs)>
Matrix<T> feed(const Problem<T>& p, F&& next_length, const G& between = kAsItIs) {
  Matrix<T> out = unwritten<T>(p.q.rows(), p.v.cols());
  p.with_operator([&]<CausalOperator Op>(const Op& op) {
    const Streaming<T, Op> stream = stream_of(p, op);
    auto state = stream.start();
    GuardedWorkspace workspace(stream.append_workspace_bytes());
    for (Index t = 0; t < p.q.rows();) {
      between(stream, state);
      const Index count = std::clamp<Index>(next_length(p.q.rows() - t), 0, p.q.rows() - t);
      stream.append(state, detail::middle_tokens(p.inputs(), t, count),
                    MatrixView<T>(out).middle_rows(t, count), workspace.get());
      t += count;
      EXPECT_EQ(state.position(), t);
    }
    EXPECT_TRUE(workspace.intact()) << p.text();
  });
  return out;
}

/// All at once, one by one, or a few at a time.
auto any_lengths(std::uint64_t seed) {
  Random rng(seed);
  return [rng, kind = rng.uniform()](Index left) mutable {
    return kind < 0.3 ? 1 : kind < 0.4 ? left : rng.integer(0, std::min<Index>(left, 9));
  };
}

/// Mostly single tokens, longer pieces between them.
auto mixed_lengths(std::uint64_t seed) {
  return [rng = Random(seed)](Index) mutable {
    constexpr Index kPieces[] = {2, 5, 17, 64};
    return rng.chance(0.8) ? 1 : kPieces[rng.integer(0, 3)];
  };
}

template <class Make, class Lengths>
void expect_stream_equal_to_naive(Make&& make, Lengths&& lengths, std::uint64_t first_seed,
                                  Index problems) {
  Tally tally;
  for (Index i = 0; i < problems && !testing::Test::HasFatalFailure(); ++i) {
    const auto p = make(first_seed + static_cast<std::uint64_t>(i));
    compare(p, expected(p, kChain(p)), feed(p, lengths(p.seed)), "streaming", tally);
  }
  std::cout << "streaming: worst error " << tally.worst << " of the bound in " << tally.outputs
            << " outputs, " << tally.ill << " more without a bound\n";
  EXPECT_LT(tally.ill, tally.outputs / 20);
}

TEST(Streaming, FloatEqualsNaiveOnTwentyThousandShapesHoweverSplit) {
  expect_stream_equal_to_naive(streaming_problem<float>, any_lengths, 1'000'000, 20'000);
}
TEST(Streaming, DoubleEqualsNaiveOnTwentyThousandShapesHoweverSplit) {
  expect_stream_equal_to_naive(streaming_problem<double>, any_lengths, 2'000'000, 20'000);
}
TEST(Streaming, Bfloat16EqualsNaive) {
  expect_stream_equal_to_naive(streaming_problem<Eigen::bfloat16>, any_lengths, 3'000'000, 3'000);
}
TEST(Streaming, FloatEqualsNaiveWhenSingleTokensAndPiecesTakeTurns) {
  expect_stream_equal_to_naive(long_problem<float>, mixed_lengths, 4'000'000, 1'000);
}
TEST(Streaming, DoubleEqualsNaiveWhenSingleTokensAndPiecesTakeTurns) {
  expect_stream_equal_to_naive(long_problem<double>, mixed_lengths, 5'000'000, 500);
}
TEST(Streaming, HalfEqualsNaiveWhenSingleTokensAndPiecesTakeTurns) {
  expect_stream_equal_to_naive(long_problem<Eigen::half>, mixed_lengths, 6'000'000, 300);
}

TEST(Streaming, AnyKeysOfABlockMayBeMasked) {
  Tally tally;
  for (std::uint64_t seed = 0; seed < 40 && !testing::Test::HasFatalFailure(); ++seed) {
    auto p = long_problem<float>(seed);
    if (p.q.rows() > 41) continue;
    for (int keep = 0; keep < (1 << 7); ++keep) {  // each seven tokens of the sequence alike
      p.key_mask.resize(1, p.q.rows());
      for (Index t = 0; t < p.q.rows(); ++t) p.key_mask(0, t) = (keep >> t % 7) % 2 == 1;
      compare(p, expected(p, kChain(p)), feed(p, [](Index) { return 1; }), "streaming", tally);
    }
  }
}

TEST(Streaming, ANaNReachesLaterTokensAndNoneFromAMaskedKey) {
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    auto p = long_problem<float>(seed);
    Random rng(seed);
    const Matrix<float> clean = feed(p, mixed_lengths(seed));
    const Index t = rng.integer(0, p.q.rows() - 1);
    Matrix<float>* const inputs[] = {&p.k, &p.v, p.has_own_normalizer() ? &p.normalizer_k : &p.k};
    inputs[rng.integer(0, 2)]->row(t).setConstant(NAN);
    const bool kept = p.key_mask.size() == 0 || p.key_mask(0, t);
    const Matrix<float> got = feed(p, mixed_lengths(seed));
    for (Index s = 0; s < got.rows(); ++s) {
      if (kept && s >= t && (p.query_mask.size() == 0 || p.query_mask(0, s))) {
        EXPECT_TRUE(got.row(s).array().isNaN().all()) << t << " to " << s << p.text();
      } else {
        EXPECT_TRUE(same_bits<float>(got.row(s), clean.row(s))) << t << " to " << s << p.text();
      }
    }
  }
}

TEST(Streaming, WholeBlocksAreBitwiseTheCausalForm) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    for (const auto& p : {streaming_problem<float>(seed), long_problem<float>(seed)}) {
      const Index w = std::max<Index>(1, largest_block(p.key_blocks));
      Random rng(seed);
      Matrix<float> chunkwise = unwritten<float>(p.q.rows(), p.v.cols());
      p.with_operator([&]<CausalOperator Op>(const Op& op) {
        causal(p.inputs(), p.query_blocks, p.mixing(), op, chunkwise);
      });
      const auto whole_blocks = [&](Index) { return w * rng.integer(1, 3); };
      EXPECT_TRUE(same_bits(chunkwise, feed(p, whole_blocks))) << p.text();
    }
  }
}

TEST(Streaming, BlocksAfterSingleTokensAreBitwiseTheCausalForm) {
  Random rng(4);
  const Index n = 96, w = 16;
  const Matrix<float> q = rng.matrix<float>(n, 6), k = rng.matrix<float>(n, 6),
                      v = rng.matrix<float>(n, 5);
  const Operator op;
  const Streaming<float> stream({.width = 6, .values = 5, .block_length = w},
                                uniform_causal<float>(6), op);
  const Matrix<float> chunkwise = causal(q, k, v, Contiguous(n, w), uniform_causal<float>(6));
  auto state = stream.start();
  Matrix<float> out = unwritten<float>(n, 5);
  const Inputs<float> in{.q = q, .k = k, .v = v};
  const auto feed_one = [&](Index begin, Index count) {
    stream.append(state, detail::middle_tokens(in, begin, count),
                  MatrixView<float>(out).middle_rows(begin, count));
  };
  for (Index t = 0; t < 3 * w; ++t) feed_one(t, 1);
  feed_one(3 * w, n - 3 * w);
  EXPECT_TRUE(same_bits(Matrix<float>(chunkwise.bottomRows(n - 3 * w)),
                        Matrix<float>(out.bottomRows(n - 3 * w))));
}

TEST(Streaming, SavedRestoredAndCopiedStatesGoOnBitwiseFromEveryPosition) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto p = long_problem<double>(seed);
    const auto restored = [](const auto& stream, auto& state) {
      std::vector<std::byte> bytes(stream.state_bytes());
      state.save(bytes);
      state = stream.start();
      state.restore(bytes);
    };
    const auto copied = [&p](const auto& stream, auto& state) {
      const auto copy = state;
      Matrix<double> out(1, p.v.cols());
      stream.append(state, detail::middle_tokens(p.inputs(), 0, 1), out);  // not the copy's way
      state = copy;
    };
    const Matrix<double> straight = feed(p, mixed_lengths(seed));
    EXPECT_TRUE(same_bits(straight, feed(p, mixed_lengths(seed), restored))) << p.text();
    EXPECT_TRUE(same_bits(straight, feed(p, mixed_lengths(seed), copied))) << p.text();
  }
}

TEST(Streaming, TooManyTokensAreRefusedBeforeAnythingChanges) {
  const Streaming<float> stream({.width = 2, .values = 2, .block_length = 4},
                                uniform_causal<float>(3));
  EXPECT_EQ(stream.capacity(), 12);
  auto state = stream.start();
  const Matrix<float> x = Matrix<float>::Ones(13, 2);
  Matrix<float> out = unwritten<float>(13, 2);
  stream.append(state, {.q = x.topRows(5), .k = x.topRows(5), .v = x.topRows(5)}, out.topRows(5));
  std::vector<std::byte> before(stream.state_bytes()), after(stream.state_bytes());
  state.save(before);
  EXPECT_EQ(
      message_of<option_error>([&] {
        stream.append(state, {.q = x.topRows(8), .k = x.topRows(8), .v = x.topRows(8)},
                      out.bottomRows(8));
      }),
      "mhla::Streaming::append: in has 8 tokens after 5, expected at most 12 in all (3 rows of "
      "the mixing matrix times 4 tokens)");
  state.save(after);
  EXPECT_EQ(before, after);
  EXPECT_TRUE(out.bottomRows(8).array().isNaN().all());
  stream.append(state, {.q = x.topRows(7), .k = x.topRows(7), .v = x.topRows(7)}, out.topRows(7));
  EXPECT_EQ(state.position(), 12);
}

TEST(Streaming, RejectsWhatDoesNotFit) {
  const Streaming<float> stream({.width = 2, .values = 3, .block_length = 4},
                                uniform_causal<float>(3));
  auto state = stream.start();
  const Matrix<float> x = Matrix<float>::Ones(4, 2), wide = Matrix<float>::Ones(4, 3);
  Matrix<float> out(4, 3);
  EXPECT_EQ(message_of<shape_error>(
                [&] { stream.append(state, {.q = wide, .k = wide, .v = wide}, out); }),
            "mhla::Streaming::append: q has shape [4, 3], expected [any, 2]");
  EXPECT_EQ(message_of<shape_error>([&] {
              stream.append(state, {.q = x, .k = x, .v = x},
                            MatrixView<float>(out.data(), 4, 2, 3));
            }),
            "mhla::Streaming::append: v has shape [4, 2], expected [4, 3]");
  EXPECT_EQ(message_of<option_error>([] {
              Streaming<float>({.width = 2, .values = 3, .block_length = 0},
                               uniform_causal<float>(3));
            }),
            "mhla::Streaming: sizes are width 2, values 3, block_length 0, normalizer_width 0, "
            "expected widths >= 0 and block_length >= 1");
  EXPECT_EQ(message_of<shape_error>([] {
              Streaming<float>({.width = 2, .values = 3, .block_length = 2},
                               MixingMatrix<float>(Matrix<float>::Ones(2, 3)));
            }),
            "mhla::Streaming: mixing has shape [2, 3], expected [2, 2] (query blocks, key blocks)");
}

TEST(Streaming, StateBytesDoNotDependOnThePosition) {
  const Streaming<float> stream({.width = 8, .values = 4, .block_length = 16},
                                uniform_causal<float>(10));
  // M summaries of D x E and D, R, the open block's keys and values (rows of 16), and the header.
  const std::size_t numbers = 10 * (8 * 4 + 8) + (8 * 4 + 8) + 16 * (16 + 16);
  EXPECT_GE(stream.state_bytes(), numbers * sizeof(float));
  EXPECT_LE(stream.state_bytes(), numbers * sizeof(float) + 1024);
}

}  // namespace
}  // namespace mhla::test
