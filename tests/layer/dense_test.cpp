#include "mhla/layer/dense.hpp"

#include "contract/layer.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

/// x [n,in], weight [out,in], bias [out] -> y [n,out].
template <class A>
struct DenseLayer {
  using Scalar = A;

  static std::vector<Sizes> sizes() {  // n, in, out
    return {{0, 3, 2},  {1, 1, 1},   {3, 0, 2},    {3, 2, 0},    {5, 7, 3},
            {64, 8, 9}, {65, 19, 5}, {200, 5, 17}, {700, 9, 33}, {1100, 3, 300}};
  }
  static std::vector<std::string> names() { return {"dense", "x", "weight", "bias", "y"}; }
  static Shapes inputs(const Sizes& s) { return {{s[0], s[1]}, {s[2], s[1]}, row_of(s[2])}; }
  static Shapes outputs(const Sizes& s) { return {{s[0], s[2]}}; }
  template <class T>
  static DenseView<T> parameters(const Views<T>& in) {
    return {in[1], span_of(in[2])};
  }
  static void forward(const Views<const A>& in, const Views<A>& out, const Call& call) {
    dense(in[0], parameters(in), out[0], call);
  }
  static void adjoint(const Views<const A>& in, const Views<const A>&, MatrixView<const A> dy,
                      const Views<A>& din, const Call& call) {
    dense_adjoint(in[0], parameters(in), dy, din[0], parameters(din), call);
  }
  static std::vector<Matrix<Dual<A>>> definition(const std::vector<Matrix<Dual<A>>>& in) {
    Matrix<Dual<A>> y = Matrix<Dual<A>>::Zero(in[0].rows(), in[1].rows());
    for (Index r = 0; r < y.rows(); ++r) {
      for (Index o = 0; o < y.cols(); ++o) {
        y(r, o) = in[2](0, o);
        for (Index i = 0; i < in[0].cols(); ++i) y(r, o) += in[0](r, i) * in[1](o, i);
      }
    }
    return {y};
  }
  static Index roundings(const Sizes& s) { return 2 * std::max({s[0], s[1], s[2]}) + 1; }
  static std::size_t forward_bytes(const Sizes& s) { return dense_workspace_bytes<A>(s[1], s[2]); }
  static std::size_t adjoint_bytes(const Sizes& s) {
    return dense_adjoint_workspace_bytes<A>(s[0], s[1], s[2]);
  }
};

using Dense = testing::Types<DenseLayer<float>, DenseLayer<double>>;
TEST_LAYERS(Dense, Dense);

TEST(DenseErrors, NameColumnsThatAreApart) {
  const Matrix<float> x = Matrix<float>::Ones(4, 3), weight = Matrix<float>::Ones(2, 3);
  Matrix<float> y = Matrix<float>::Constant(4, 2, 7);
  const MatrixView<const float> apart(x.data(), 4, 3, 1, 4);
  EXPECT_EQ(message_of<error>([&] {
              dense(apart, DenseView<const float>{weight, {}}, y);
            }),
            "mhla::dense: x has column stride 4, expected 1");
  EXPECT_TRUE((y.array() == 7).all());
}

}  // namespace
}  // namespace mhla::test
