#include "mhla/layer/modulate.hpp"

#include "contract/layer.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

/// Items, rows per item, columns. 500 rows of an item are several strips, 150 columns are several
/// pieces.
std::vector<Sizes> modulation_sizes() {
  return {{0, 0, 3}, {2, 0, 3},   {3, 2, 0},   {1, 1, 1},
          {3, 2, 7}, {3, 70, 19}, {2, 500, 3}, {2, 33, 150}};
}

/// x [b*n,c], scale, shift [b,c] -> y [b*n,c].
template <class A>
struct ModulateLayer {
  using Scalar = A;

  static std::vector<Sizes> sizes() { return modulation_sizes(); }
  static std::vector<std::string> names() { return {"modulate", "x", "scale", "shift", "y"}; }
  static Shapes inputs(const Sizes& s) { return {{s[0] * s[1], s[2]}, {s[0], s[2]}, {s[0], s[2]}}; }
  static Shapes outputs(const Sizes& s) { return {{s[0] * s[1], s[2]}}; }
  static void forward(const Views<const A>& in, const Views<A>& out, const Call& call) {
    modulate(in[0], in[1], in[2], out[0], call.executor);
  }
  static void adjoint(const Views<const A>& in, const Views<const A>&, MatrixView<const A> dy,
                      const Views<A>& din, const Call& call) {
    modulate_adjoint(in[0], in[1], dy, din[0], din[1], din[2], call.executor);
  }
  static std::vector<Matrix<Dual<A>>> definition(const std::vector<Matrix<Dual<A>>>& in) {
    Matrix<Dual<A>> y = in[0];
    for (Index r = 0; r < y.rows(); ++r) {
      const Index item = r * in[1].rows() / y.rows();
      for (Index c = 0; c < y.cols(); ++c) {
        y(r, c) = y(r, c) * (1 + in[1](item, c)) + in[2](item, c);
      }
    }
    return {y};
  }
  /// A sum over the rows of an item, a product and two sums.
  static Index roundings(const Sizes& s) { return s[1] + 3; }
};

/// x [b*n,c], gate [b,c], h [b*n,c] -> y [b*n,c].
template <class A>
struct AddGatedLayer {
  using Scalar = A;

  static std::vector<Sizes> sizes() { return modulation_sizes(); }
  static std::vector<std::string> names() { return {"add_gated", "x", "gate", "h", "y"}; }
  static Shapes inputs(const Sizes& s) {
    return {{s[0] * s[1], s[2]}, {s[0], s[2]}, {s[0] * s[1], s[2]}};
  }
  static Shapes outputs(const Sizes& s) { return {{s[0] * s[1], s[2]}}; }
  static void forward(const Views<const A>& in, const Views<A>& out, const Call& call) {
    add_gated(in[0], in[1], in[2], out[0], call.executor);
  }
  static void adjoint(const Views<const A>& in, const Views<const A>&, MatrixView<const A> dy,
                      const Views<A>& din, const Call& call) {
    add_gated_adjoint(in[1], in[2], dy, din[0], din[1], din[2], call.executor);
  }
  static std::vector<Matrix<Dual<A>>> definition(const std::vector<Matrix<Dual<A>>>& in) {
    Matrix<Dual<A>> y = in[0];
    for (Index r = 0; r < y.rows(); ++r) {
      y.row(r) += in[1].row(r * in[1].rows() / y.rows()).cwiseProduct(in[2].row(r));
    }
    return {y};
  }
  /// A sum over the rows of an item, a product and a sum.
  static Index roundings(const Sizes& s) { return s[1] + 2; }
};

using Modulations = testing::Types<ModulateLayer<float>, ModulateLayer<double>,
                                   AddGatedLayer<float>, AddGatedLayer<double>>;
TEST_LAYERS(Modulate, Modulations);

TEST(ModulateErrors, NameRowsThatAreNotThoseOfTheItems) {
  const Matrix<float> x = Matrix<float>::Ones(6, 5), items = Matrix<float>::Ones(2, 5);
  const Matrix<float> four = Matrix<float>::Ones(4, 5), narrow(2, 3), none(0, 5);
  Matrix<float> y = Matrix<float>::Constant(6, 5, 7), d = Matrix<float>::Constant(2, 5, 7);
  const auto message = [](auto call) { return message_of<error>(call); };
  EXPECT_EQ(message([&] { modulate(x, four, four, y); }),
            "mhla::modulate: x has 6 rows, expected a multiple of 4 (the rows of scale)");
  EXPECT_EQ(message([&] { modulate(x, none, none, y); }),
            "mhla::modulate: x has 6 rows, expected a multiple of 0 (the rows of scale)");
  EXPECT_EQ(message([&] { modulate(x, items, four, y); }),
            "mhla::modulate: shift has shape [4, 5], expected [2, 5]");
  EXPECT_EQ(message([&] { modulate_adjoint(x, four, y, y, d, d); }),
            "mhla::modulate_adjoint: x has 6 rows, expected a multiple of 4 (the rows of scale)");
  EXPECT_EQ(message([&] { add_gated(x, four, x, y); }),
            "mhla::add_gated: x has 6 rows, expected a multiple of 4 (the rows of gate)");
  EXPECT_EQ(message([&] { add_gated(x, items, four, y); }),
            "mhla::add_gated: h has shape [4, 5], expected [6, 5]");
  EXPECT_EQ(message([&] { add_gated_adjoint(narrow, x, y, y, d, y); }),
            "mhla::add_gated_adjoint: h has shape [6, 5], expected [any, 3]");
  EXPECT_EQ(message([&] { add_gated_adjoint(four, x, y, y, d, y); }),
            "mhla::add_gated_adjoint: h has 6 rows, expected a multiple of 4 (the rows of gate)");
  EXPECT_TRUE((y.array() == 7).all() && (d.array() == 7).all());
}

}  // namespace
}  // namespace mhla::test
