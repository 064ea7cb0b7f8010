#include "mhla/attention/streaming.hpp"

#include <gtest/gtest.h>

#include "mhla/stage/locality.hpp"
#include "support/message_of.hpp"
#include "support/reference.hpp"

namespace mhla::test {
namespace {

/// Longest chain of roundings: as causal, and the tokens of the open block on their way into R.
constexpr auto kChain = [](const auto& p) {
  return 3 * largest_block(p.key_blocks) + p.key_blocks.blocks() +
         p.query_map.features(p.q.cols()) + 4;
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

template <class T, CausalOperator Op>
Streaming<T, Op> stream_of(const Problem<T>& p, const Op& op) {
  const Index n = p.q.rows(), blocks = p.coefficients.rows();
  return {{.width = p.q.cols(),
           .values = p.v.cols(),
           .block_length = std::max<Index>(1, (n + blocks - 1) / blocks),
           .normalizer_width = p.normalizer_q.cols()},
          p.mixing(),
          op};
}

/// Feeds the problem in pieces of next_length(tokens left) tokens.
template <class T, class F>
Matrix<T> feed(const Problem<T>& p, F&& next_length) {
  Matrix<T> out = unwritten<T>(p.q.rows(), p.v.cols());
  p.with_operator([&]<CausalOperator Op>(const Op& op) {
    const Streaming<T, Op> stream = stream_of(p, op);
    auto state = stream.start();
    GuardedWorkspace workspace(stream.append_workspace_bytes());
    for (Index t = 0; t < p.q.rows();) {
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

template <class T>
void expect_stream_equal_to_naive(std::uint64_t first_seed, Index problems) {
  Tally tally;
  for (Index i = 0; i < problems && !testing::Test::HasFatalFailure(); ++i) {
    const auto p = streaming_problem<T>(first_seed + static_cast<std::uint64_t>(i));
    Random rng(p.seed);
    const double kind = rng.uniform();
    const auto out = feed(p, [&](Index left) {
      return kind < 0.3 ? 1 : kind < 0.4 ? left : rng.integer(0, std::min<Index>(left, 9));
    });
    compare(p, expected(p, kChain(p)), out, "streaming", tally);
  }
  std::cout << "streaming: worst error " << tally.worst << " of the bound in " << tally.outputs
            << " outputs, " << tally.ill << " more without a bound\n";
  EXPECT_LT(tally.ill, tally.outputs / 20);
}

TEST(Streaming, FloatEqualsNaiveOnTwentyThousandShapesHoweverSplit) {
  expect_stream_equal_to_naive<float>(1'000'000, 20'000);
}
TEST(Streaming, DoubleEqualsNaiveOnTwentyThousandShapesHoweverSplit) {
  expect_stream_equal_to_naive<double>(2'000'000, 20'000);
}
TEST(Streaming, Bfloat16EqualsNaive) {
  expect_stream_equal_to_naive<Eigen::bfloat16>(3'000'000, 3'000);
}

TEST(Streaming, WholeBlocksAreBitwiseTheCausalForm) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    const auto p = streaming_problem<float>(seed);
    const Index w = std::max<Index>(1, largest_block(p.key_blocks));
    Random rng(seed);
    Matrix<float> chunkwise = unwritten<float>(p.q.rows(), p.v.cols());
    p.with_operator([&]<CausalOperator Op>(const Op& op) {
      causal(p.inputs(), p.query_blocks, p.mixing(), op, chunkwise);
    });
    EXPECT_TRUE(same_bits(chunkwise, feed(p, [&](Index) { return w * rng.integer(1, 3); })))
        << p.text();
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

TEST(Streaming, SavedRestoredAndCopiedStatesGoOnBitwise) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const auto p = streaming_problem<double>(seed);
    const Index n = p.q.rows();
    p.with_operator([&]<CausalOperator Op>(const Op& op) {
      const Streaming<double, Op> stream = stream_of(p, op);
      auto state = stream.start();
      const Index stop = n / 2;
      Matrix<double> first(stop, p.v.cols());
      stream.append(state, detail::middle_tokens(p.inputs(), 0, stop), first);
      std::vector<std::byte> bytes(stream.state_bytes());
      state.save(bytes);
      auto copy = state;
      auto restored = stream.start();
      restored.restore(bytes);
      EXPECT_EQ(restored.position(), stop);
      const auto rest = [&](StreamingState<double>& s) {
        Matrix<double> out = unwritten<double>(n - stop, p.v.cols());
        for (Index t = stop; t < n; ++t) {
          stream.append(s, detail::middle_tokens(p.inputs(), t, 1),
                        MatrixView<double>(out).middle_rows(t - stop, 1));
        }
        return out;
      };
      const Matrix<double> straight = rest(state);
      EXPECT_TRUE(same_bits(straight, rest(copy))) << p.text();
      EXPECT_TRUE(same_bits(straight, rest(restored))) << p.text();
    });
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
