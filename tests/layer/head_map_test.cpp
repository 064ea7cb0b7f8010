#include "mhla/layer/head_map.hpp"

#include "contract/layer.hpp"
#include "mhla/policy/learned_feature_map.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

/// x [n,2*d] -> elu(x) + 1 of two heads.
template <class A>
struct EluHeads {
  using Scalar = A;
  static constexpr Index kHeads = 2;

  static std::vector<Sizes> sizes() { return {{0, 3}, {1, 1}, {3, 7}, {65, 19}, {700, 3}}; }
  static Shapes inputs(const Sizes& s) { return {{s[0], kHeads * s[1]}}; }
  static Shapes outputs(const Sizes& s) { return {{s[0], kHeads * s[1]}}; }
  static void forward(const Views<const A>& in, const Views<A>& out, const Call& call) {
    map_heads(in[0], EluPlusOne{}, kHeads, out[0], call.executor);
  }
  static void adjoint(const Views<const A>& in, const Views<const A>& out, MatrixView<const A> dy,
                      const Views<A>& din, const Call& call) {
    map_heads_adjoint(in[0], EluPlusOne{}, kHeads, out[0], dy, din[0], {}, call);
  }
  static std::vector<Matrix<Dual<A>>> definition(const std::vector<Matrix<Dual<A>>>& in) {
    return {in[0].unaryExpr([](const Dual<A>& x) { return x > Dual<A>(0) ? x + 1 : exp(x); })};
  }
  static Index roundings(const Sizes&) { return 16; }
  static std::size_t forward_bytes(const Sizes&) { return 0; }
  static std::size_t adjoint_bytes(const Sizes& s) {
    return map_heads_adjoint_workspace_bytes<A>(s[0], s[1], 0);
  }
};

/// x [n,2*d], W1 [d,d], b1 [d], W2 [d,d], b2 [d] -> (W1 x + b1) * (W2 x + b2) of two heads.
template <class A>
struct ProductHeads {
  using Scalar = A;
  static constexpr Index kHeads = 2;

  static std::vector<Sizes> sizes() { return {{0, 3}, {1, 1}, {3, 7}, {65, 19}, {700, 3}}; }
  static Shapes inputs(const Sizes& s) {
    return {{s[0], kHeads * s[1]}, {s[1], s[1]}, row_of(s[1]), {s[1], s[1]}, row_of(s[1])};
  }
  static Shapes outputs(const Sizes& s) { return {{s[0], kHeads * s[1]}}; }
  static Matrix<A> dense(const MatrixView<const A>& m) {
    Matrix<A> copy(m.rows, m.cols);
    for (Index r = 0; r < m.rows; ++r) std::copy_n(m.row(r), m.cols, copy.row(r).data());
    return copy;
  }
  static ElementwiseProduct<A> map(const Views<const A>& in) {
    return {{dense(in[1]), dense(in[2])}, {dense(in[3]), dense(in[4])}};
  }
  static void forward(const Views<const A>& in, const Views<A>& out, const Call& call) {
    map_heads(in[0], map(in), kHeads, out[0], call.executor);
  }
  /// The library writes the gradients of the weights into one row, and the test has four tensors.
  static void adjoint(const Views<const A>& in, const Views<const A>& out, MatrixView<const A> dy,
                      const Views<A>& din, const Call& call) {
    const auto phi = map(in);
    std::vector<A> row;
    for (std::size_t i = 1; i < din.size(); ++i) {
      const MatrixView<A>& d = din[i];
      if (!d.absent()) detail::expect_distinct("adjoint", "din", d);  // written below
      for (Index r = 0; r < in[i].rows; ++r) {
        for (Index c = 0; c < in[i].cols; ++c) row.push_back(d.absent() ? A(0) : d(r, c));
      }
    }
    map_heads_adjoint(in[0], phi, kHeads, out[0], dy, din[0], row, call);
    auto next = row.begin();
    for (std::size_t i = 1; i < din.size(); ++i) {
      for (Index r = 0; r < in[i].rows; ++r) {
        for (Index c = 0; c < in[i].cols; ++c, ++next) {
          if (!din[i].absent()) din[i](r, c) = *next;
        }
      }
    }
  }
  static std::vector<Matrix<Dual<A>>> definition(const std::vector<Matrix<Dual<A>>>& in) {
    Matrix<Dual<A>> y = in[0];
    const Index d = in[1].rows();
    for (Index h = 0; h < kHeads; ++h) {
      const Matrix<Dual<A>> x = in[0].middleCols(h * d, d);
      Matrix<Dual<A>> first = x * in[1].transpose(), second = x * in[3].transpose();
      first.rowwise() += in[2].row(0);
      second.rowwise() += in[4].row(0);
      y.middleCols(h * d, d) = first.cwiseProduct(second);
    }
    return {y};
  }
  static Index roundings(const Sizes& s) { return 2 * kHeads * s[0] + 4 * s[1] + 8; }
  static std::size_t forward_bytes(const Sizes&) { return 0; }
  static std::size_t adjoint_bytes(const Sizes& s) {
    return map_heads_adjoint_workspace_bytes<A>(s[0], s[1], 2 * s[1] * (s[1] + 1));
  }
};

using HeadMaps =
    testing::Types<EluHeads<float>, EluHeads<double>, ProductHeads<float>, ProductHeads<double>>;
TEST_LAYERS(HeadMap, HeadMaps);

TEST(HeadMapErrors, NameTheFunctionTheArgumentAndWhatWasExpected) {
  const Matrix<float> x = Matrix<float>::Ones(4, 6);
  Matrix<float> y(4, 6), narrow(4, 5);
  for (const Index heads : {4, 0, -1}) {
    EXPECT_EQ(message_of<error>([&] { map_heads(x, Relu{}, heads, y); }),
              "mhla::map_heads: heads is " + std::to_string(heads) +
                  ", expected a divisor of the 6 channels");
  }
  EXPECT_EQ(message_of<error>([&] { map_heads(x, Dpfp{1}, 2, y); }),
            "mhla::map_heads: y has shape [4, 6], expected [4, 12]");
  EXPECT_EQ(message_of<error>([&] { map_heads_adjoint(x, Relu{}, 2, y, narrow, y, {}); }),
            "mhla::map_heads_adjoint: dy has shape [4, 5], expected [4, 6]");
  EXPECT_EQ(message_of<error>([&] { map_heads_adjoint(x, Relu{}, 2, y, y, narrow, {}); }),
            "mhla::map_heads_adjoint: dx has shape [4, 5], expected [4, 6]");
}

}  // namespace
}  // namespace mhla::test
