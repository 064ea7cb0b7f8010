#include "mhla/layer/short_convolution.hpp"

#include <cstring>
#include <utility>

#include "contract/layer.hpp"
#include "support/activations.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

/// x [batch * n,c], weight [c,taps], bias [c] -> y [batch * n,c].
template <class A, int Batch, bool kSilu>
struct ShortConvolutionLayer {
  using Scalar = A;
  static constexpr ShortConvolutionOptions kOptions{.batch = Batch, .silu = kSilu};

  static std::vector<Sizes> sizes() {  // n, c, taps
    return {{0, 3, 4},   {3, 0, 4},   {1, 1, 1},          {2, 5, 4},
            {67, 43, 4}, {70, 2, 67}, {600 / Batch, 9, 3}};
  }
  static std::vector<std::string> names() {
    return {"short_convolution", "x", "-weight", "bias", "y"};
  }
  static Shapes inputs(const Sizes& s) {
    return {{Batch * s[0], s[1]}, {s[1], s[2]}, row_of(s[1])};
  }
  static Shapes outputs(const Sizes& s) { return {{Batch * s[0], s[1]}}; }
  static void forward(const Views<const A>& in, const Views<A>& out, const Call& call) {
    short_convolution(in[0], {in[1], span_of(in[2])}, kOptions, out[0], {}, call);
  }
  static void adjoint(const Views<const A>& in, const Views<const A>&, MatrixView<const A> dy,
                      const Views<A>& din, const Call& call) {
    short_convolution_adjoint(in[0], {in[1], span_of(in[2])}, kOptions, dy, din[0],
                              {din[1], span_of(din[2])}, call);
  }
  static std::vector<Matrix<Dual<A>>> definition(const std::vector<Matrix<Dual<A>>>& in) {
    const Index n = in[0].rows() / Batch, taps = in[1].cols();
    Matrix<Dual<A>> y(in[0].rows(), in[0].cols());
    y.rowwise() = in[2].row(0);
    for (Index r = 0; r < y.rows(); ++r) {
      for (Index j = std::max<Index>(0, taps - 1 - r % n); j < taps; ++j) {
        y.row(r) += in[1].col(j).transpose().cwiseProduct(in[0].row(r - (taps - 1) + j));
      }
    }
    if (kSilu) y = y.unaryExpr(&silu_definition<A>).eval();
    return {y};
  }
  /// Sums of K taps in forward and backward and of all rows, of rounded products, and roundings of
  /// silu.
  static Index roundings(const Sizes& s) {
    return Batch * s[0] + (kSilu ? 2 : 1) * (s[2] + 2) + (kSilu ? 32 : 2);
  }
  static std::size_t forward_bytes(const Sizes& s) {
    return short_convolution_workspace_bytes<A>(s[1], s[2]);
  }
  static std::size_t adjoint_bytes(const Sizes& s) {
    return short_convolution_adjoint_workspace_bytes<A>(Batch * s[0], s[1], s[2], kOptions);
  }
};

using ShortConvolutions =
    testing::Types<ShortConvolutionLayer<float, 1, true>, ShortConvolutionLayer<double, 1, true>,
                   ShortConvolutionLayer<float, 3, false>, ShortConvolutionLayer<double, 3, false>>;
TEST_LAYERS(ShortConvolution, ShortConvolutions);

template <class A>
class ShortConvolutionState : public testing::Test {};
using StateNumbers = testing::Types<float, double>;
TYPED_TEST_SUITE(ShortConvolutionState, StateNumbers);

/// Decodes two sequences in parts, with their state.
template <class A>
struct Decoding {
  static constexpr Index kTokens = 83;
  Matrix<A> x, weight, bias, state;
  bool silu;

  Decoding(Index channels, Index taps, bool silu_) : silu(silu_) {
    Random rng(static_cast<std::uint64_t>(taps));
    x = rng.matrix<A>(2 * kTokens, channels), weight = rng.matrix<A>(channels, taps);
    bias = Matrix<A>::Constant(1, channels, A(-0.0));
    state = Matrix<A>::Zero(2 * (taps - 1), channels);
  }
  ConvolutionView<const A> parameters() const {
    return {weight, {bias.data(), static_cast<std::size_t>(bias.size())}};
  }
  /// Returns tokens [begin, end) of both sequences.
  static Matrix<A> part(const Matrix<A>& both, Index begin, Index end) {
    Matrix<A> m(2 * (end - begin), both.cols());
    m << both.middleRows(begin, end - begin), both.middleRows(kTokens + begin, end - begin);
    return m;
  }
  Matrix<A> run(Index begin, Index end, MatrixView<A> kept) const {
    const Matrix<A> from = part(x, begin, end);
    Matrix<A> y(from.rows(), from.cols());
    short_convolution(from, parameters(), {.batch = 2, .silu = silu}, y, kept);
    return y;
  }
};

template <class A>
bool same_bits(const Matrix<A>& a, const Matrix<A>& b) {
  const auto count = static_cast<std::size_t>(a.size()) * sizeof(A);
  return a.rows() == b.rows() && (count == 0 || std::memcmp(a.data(), b.data(), count) == 0);
}

TYPED_TEST(ShortConvolutionState, ASequenceInPartsHasTheBitsOfOneCall) {
  using A = TypeParam;
  using D = Decoding<A>;
  for (const auto& [channels, taps] : {std::pair<Index, Index>{1, 4}, {43, 4}, {19, 1}, {3, 90}}) {
    for (const Index prefill : {0, 1, 2, 3, 4, 7, 64, 80}) {
      D d(channels, taps, prefill % 2 == 0);
      const Matrix<A> whole = d.run(0, d.kTokens, {});
      EXPECT_TRUE(same_bits(d.run(0, prefill, d.state), d.part(whole, 0, prefill))) << prefill;
      for (Index t = prefill; t < d.kTokens; ++t) {
        EXPECT_TRUE(same_bits(d.run(t, t + 1, d.state), d.part(whole, t, t + 1))) << t;
      }
      const Index old = std::max<Index>(0, taps - 1 - d.kTokens);  // zeros that are left
      for (Index b = 0; b < 2; ++b) {
        const Matrix<A> kept = d.state.middleRows(b * (taps - 1), taps - 1);
        EXPECT_TRUE((kept.topRows(old).array() == 0).all());
        EXPECT_EQ(kept.bottomRows(taps - 1 - old),
                  d.x.middleRows(b * d.kTokens, d.kTokens).bottomRows(taps - 1 - old));
      }
    }
  }
}

TEST(ShortConvolutionErrors, NameTheFunctionTheArgumentAndWhatWasExpected) {
  const Matrix<float> x = Matrix<float>::Ones(6, 5), weight = Matrix<float>::Ones(5, 4),
                      few = Matrix<float>::Ones(4, 4), none(5, 0);
  const std::vector<float> five(5);
  Matrix<float> y = Matrix<float>::Constant(6, 5, 7), small = Matrix<float>::Constant(5, 5, 7);
  const auto forward = [&](ConvolutionView<const float> parameters, Index batch,
                           MatrixView<float> to, MatrixView<float> state) {
    return message_of<error>(
        [&] { short_convolution(x, parameters, {.batch = batch}, to, state); });
  };
  EXPECT_EQ(forward({weight, five}, 0, y, y),
            "mhla::short_convolution: batch is 0, expected at least 1");
  EXPECT_EQ(forward({weight, five}, 4, y, y),
            "mhla::short_convolution: x has 6 rows, expected a multiple of 4 (the batch)");
  EXPECT_EQ(forward({few, five}, 2, y, y),
            "mhla::short_convolution: weight has shape [4, 4], expected [5, any]");
  EXPECT_EQ(forward({none, five}, 2, y, y),
            "mhla::short_convolution: weight has no taps, expected at least one");
  EXPECT_EQ(forward({weight, five}, 2, y, small),
            "mhla::short_convolution: state has shape [5, 5], expected [6, 5]");
  EXPECT_TRUE((y.array() == 7).all());
}

}  // namespace
}  // namespace mhla::test
