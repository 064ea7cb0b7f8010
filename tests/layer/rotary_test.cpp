#include "mhla/layer/rotary.hpp"

#include "contract/layer.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

/// x [n,h*d] -> y [n,h*d] of a batch of two where n is even.
template <class A, RotaryPairs kPairs>
struct RotaryLayer {
  using Scalar = A;

  static std::vector<Sizes> sizes() {  // n, h, d, r
    return {{0, 3, 4, 4}, {1, 1, 2, 2},     {3, 2, 7, 4},     {5, 1, 3, 0},
            {4, 3, 0, 0}, {130, 2, 37, 34}, {201, 3, 24, 24}, {66, 1, 100, 66}};
  }
  static RotaryTable<A> table(const Sizes& s) {
    return RotaryTable<A>::sequence(s[0] % 2 == 0 ? s[0] / 2 : s[0], s[3],
                                    {.base = 100, .first = 2, .pairs = kPairs});
  }
  static Shapes inputs(const Sizes& s) { return {{s[0], s[1] * s[2]}}; }
  static Shapes outputs(const Sizes& s) { return {{s[0], s[1] * s[2]}}; }
  /// The sizes that have a view of this shape.
  static Sizes sizes_of(const auto& x) {
    for (const Sizes& s : sizes()) {
      if (x.rows == s[0] && x.cols == s[1] * s[2]) return s;
    }
    ADD_FAILURE() << "no such sizes";
    return {};
  }
  static void forward(const Views<const A>& in, const Views<A>& out, const Call& call) {
    const Sizes s = sizes_of(in[0]);
    rotary(in[0], table(s), s[1], out[0], call.executor);
  }
  static void adjoint(const Views<const A>&, const Views<const A>&, MatrixView<const A> dy,
                      const Views<A>& din, const Call& call) {
    const Sizes s = sizes_of(dy);
    rotary_adjoint(dy, table(s), s[1], din[0], call.executor);
  }
  static std::vector<Matrix<Dual<A>>> definition(const std::vector<Matrix<Dual<A>>>& in) {
    Matrix<Dual<A>> y = in[0];
    const Sizes s = sizes_of(MatrixView<const Dual<A>>(y));
    const RotaryTable<A> angles = table(s);
    for (Index i = 0; i < s[0] * s[1] * (s[3] / 2); ++i) {
      const Index pair = i % (s[3] / 2), head = i / (s[3] / 2) % s[1], row = i / (s[3] / 2) / s[1];
      const bool halves = kPairs == RotaryPairs::kHalves;
      const Index a = head * s[2] + (halves ? pair : 2 * pair);
      const Index b = a + (halves ? s[3] / 2 : 1);
      const Dual<A> cos = angles.cos(row % angles.positions(), pair);
      const Dual<A> sin = angles.sin(row % angles.positions(), pair);
      y(row, a) = in[0](row, a) * cos - in[0](row, b) * sin;
      y(row, b) = in[0](row, b) * cos + in[0](row, a) * sin;
    }
    return {y};
  }
  /// A product and two sums.
  static Index roundings(const Sizes&) { return 3; }
};

using Rotations = testing::Types<
    RotaryLayer<float, RotaryPairs::kHalves>, RotaryLayer<float, RotaryPairs::kInterleaved>,
    RotaryLayer<double, RotaryPairs::kHalves>, RotaryLayer<double, RotaryPairs::kInterleaved>>;
TEST_LAYERS(Rotary, Rotations);

TEST(RotaryErrors, NameTheFunctionTheArgumentAndWhatWasExpected) {
  using Table = RotaryTable<float>;
  const Matrix<float> x = Matrix<float>::Ones(4, 12);
  Matrix<float> y = Matrix<float>::Constant(4, 12, 7), narrow = Matrix<float>::Constant(4, 6, 7);
  const Table table = Table::sequence(2, 6);
  const auto forward = [&](MatrixView<const float> from, const Table& angles, Index heads,
                           MatrixView<float> to) {
    return message_of<error>([&] { rotary(from, angles, heads, to); });
  };
  EXPECT_EQ(forward(x, table, 0, y), "mhla::rotary: heads is 0, expected at least 1");
  EXPECT_EQ(forward(x, table, 5, y),
            "mhla::rotary: x has shape [4, 12], expected columns for 5 heads");
  EXPECT_EQ(forward(x, table, 3, y),
            "mhla::rotary: table has 6 features, expected at most 4 (the width of a head)");
  EXPECT_EQ(forward(x, Table::sequence(3, 6), 2, y),
            "mhla::rotary: x has 4 rows, expected a multiple of 3 (the table's positions)");
  EXPECT_EQ(forward(x, Table::sequence(0, 6), 2, y),
            "mhla::rotary: x has 4 rows, expected a multiple of 0 (the table's positions)");
  EXPECT_EQ(forward(x, table, 2, narrow), "mhla::rotary: y has shape [4, 6], expected [4, 12]");
  const auto adjoint = [&](Index heads, MatrixView<float> to) {
    return message_of<error>([&] { rotary_adjoint(x, table, heads, to); });
  };
  EXPECT_EQ(adjoint(5, y),
            "mhla::rotary_adjoint: dy has shape [4, 12], expected columns for 5 heads");
  EXPECT_EQ(adjoint(2, narrow), "mhla::rotary_adjoint: dx has shape [4, 6], expected [4, 12]");
  EXPECT_TRUE((y.array() == 7).all() && (narrow.array() == 7).all());
}

}  // namespace
}  // namespace mhla::test
