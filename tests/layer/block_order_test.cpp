#include "mhla/layer/block_order.hpp"

#include "contract/layer.hpp"
#include "contract/partition.hpp"
#include "support/any_partition.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

struct ToBlocks {
  static void copy(const auto& x, auto order, auto y, const ExecutorRef& e) {
    to_blocks(x, order, y, e);
  }
  static void copy_back(const auto& x, auto order, auto y, const ExecutorRef& e) {
    from_blocks(x, order, y, e);
  }
  static constexpr bool kForth = true;
};
struct FromBlocks {
  static void copy(const auto& x, auto order, auto y, const ExecutorRef& e) {
    from_blocks(x, order, y, e);
  }
  static void copy_back(const auto& x, auto order, auto y, const ExecutorRef& e) {
    to_blocks(x, order, y, e);
  }
  static constexpr bool kForth = false;
};

/// x [n,c] -> y [n,c] of a batch of two where n is even.
template <class A, class D>
struct BlockOrderLayer {
  using Direction = D;
  using Scalar = A;

  static std::vector<Sizes> sizes() {
    return {{0, 3}, {1, 1}, {3, 0}, {14, 7}, {700, 5}, {201, 9}};
  }
  static AnyPartition blocks(Index rows) {
    Random rng(static_cast<std::uint64_t>(rows));
    const Index tokens = rows % 2 == 0 ? rows / 2 : rows;
    if (tokens == 350) return AnyPartition::of(Grid(GridShape(2, 7, 25), GridShape(2, 3, 4)));
    AnyPartition dealt;
    dealt.resize(5);
    for (Index t = 0; t < tokens; ++t) dealt.add(rng.integer(0, 4), {t, 1});
    return dealt;
  }
  static Shapes inputs(const Sizes& s) { return {{s[0], s[1]}}; }
  static Shapes outputs(const Sizes& s) { return {{s[0], s[1]}}; }
  static void forward(const Views<const A>& in, const Views<A>& out, const Call& call) {
    const std::vector<Index> order = block_order(blocks(in[0].rows));
    Direction::copy(in[0], std::span<const Index>(order), out[0], call.executor);
  }
  /// Adds the copy in the other direction.
  static void adjoint(const Views<const A>&, const Views<const A>&, MatrixView<const A> dy,
                      const Views<A>& din, const Call& call) {
    const std::vector<Index> order = block_order(blocks(dy.rows));
    detail::expect_distinct("adjoint", "din", din[0]);  // copies have no adjoint of their own
    Matrix<A> gradient(dy.rows, dy.cols);
    Direction::copy_back(dy, std::span<const Index>(order), MatrixView<A>(gradient), call.executor);
    for (Index r = 0; r < dy.rows; ++r) {
      for (Index c = 0; c < dy.cols; ++c) din[0](r, c) += gradient(r, c);
    }
  }
  static std::vector<Matrix<Dual<A>>> definition(const std::vector<Matrix<Dual<A>>>& in) {
    Matrix<Dual<A>> y = in[0];
    const AnyPartition of = blocks(y.rows());
    for (Index item = 0; item < y.rows(); item += of.tokens()) {
      Index place = item;
      for (Index b = 0; b < of.blocks(); ++b) {
        for (const Index token : tokens_of(of, b)) {
          const Index here = Direction::kForth ? place : item + token;
          y.row(here) = in[0].row(Direction::kForth ? item + token : place);
          ++place;
        }
      }
    }
    return {y};
  }
  /// One for the sum of a gradient. Copies have no rounding.
  static Index roundings(const Sizes&) { return 1; }
};

using BlockOrders =
    testing::Types<BlockOrderLayer<float, ToBlocks>, BlockOrderLayer<double, ToBlocks>,
                   BlockOrderLayer<float, FromBlocks>, BlockOrderLayer<double, FromBlocks>>;
TEST_LAYERS(BlockOrder, BlockOrders);

TEST(BlockOrder, IsTheTokensOfTheBlocksOneAfterAnother) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Random rng(seed);
    const AnyPartition blocks = random_partition(rng, rng.integer(0, 90));
    std::vector<Index> tokens;
    for (Index b = 0; b < blocks.blocks(); ++b) {
      for (const Index token : tokens_of(blocks, b)) tokens.push_back(token);
    }
    EXPECT_EQ(block_order(blocks), tokens) << "seed " << seed;
  }
  EXPECT_EQ(block_order(Grid(GridShape(2, 4), GridShape(2, 2))),
            (std::vector<Index>{0, 1, 4, 5, 2, 3, 6, 7}));
}

TEST(BlockOrder, ThereAndBackIsWhatItWas) {
  Random rng(1);
  const std::vector<Index> order = block_order(Grid(GridShape(2, 7, 25), GridShape(2, 3, 4)));
  const Matrix<float> x = rng.matrix<float>(1050, 3);
  Matrix<float> there(1050, 3), back(1050, 3);
  to_blocks(x, order, there);
  from_blocks(there, order, back);
  EXPECT_EQ(back, x);
}

TEST(BlockOrderErrors, NameTheFunctionTheArgumentAndWhatWasExpected) {
  const Matrix<float> x = Matrix<float>::Ones(6, 2);
  Matrix<float> y = Matrix<float>::Constant(6, 2, 7), narrow = Matrix<float>::Constant(6, 1, 7);
  const auto there = [&](std::vector<Index> order, MatrixView<float> to) {
    return message_of<error>([&] { to_blocks(x, order, to); });
  };
  const auto back = [&](std::vector<Index> order, MatrixView<float> to) {
    return message_of<error>([&] { from_blocks(x, order, to); });
  };
  EXPECT_EQ(there({3, 0, 2, 1}, y),
            "mhla::to_blocks: x has 6 rows, expected a multiple of 4 (the tokens of the order)");
  EXPECT_EQ(there({}, y),
            "mhla::to_blocks: x has 6 rows, expected a multiple of 0 (the tokens of the order)");
  EXPECT_EQ(there({1, 3, 0}, y),
            "mhla::to_blocks: order has 3 at place 1, expected tokens of [0, 3)");
  EXPECT_EQ(back({1, 0, -1}, y),
            "mhla::from_blocks: order has -1 at place 2, expected tokens of [0, 3)");
  EXPECT_EQ(back({1, 0, 2}, narrow), "mhla::from_blocks: y has shape [6, 1], expected [6, 2]");
  EXPECT_TRUE((y.array() == 7).all() && (narrow.array() == 7).all());
  struct Lost : Contiguous {
    using Contiguous::Contiguous;
    Index blocks() const { return Contiguous::blocks() - 1; }
  };
  EXPECT_EQ(message_of<shape_error>([] { block_order(Lost(10, 3)); }),
            "mhla::block_order: blocks covers 9 of its 10 tokens, expected 10 tokens: one per row, "
            "or along axis 1 of [B, N, H, D]");
}

}  // namespace
}  // namespace mhla::test
