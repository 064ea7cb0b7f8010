#pragma once

/// \file
/// The attention layers at a shape: options, parameters, data, cost, calls and their check. Rows of
/// the forward are compared with the definition, gradients with central differences.

#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/cost.hpp"
#include "support/form.hpp"
#include "support/layer_definition.hpp"  // of the tests
#include "support/mixed.hpp"

namespace mhla::bench {

/// A family of layers: the layer, and its options at a shape.
struct VisionFamily {
  template <class A>
  using Layer = VisionLayer<A>;
  static constexpr const char* kMixing = "piece_attn.conv.weight";
  static VisionOptions options(const Shape& s) {
    VisionOptions o{.heads = s.heads,
                    .tokens = s.grid,
                    .block = s.block,
                    .order = TokenOrder::kBlocks,
                    .channels = s.heads * s.values};
    if (s.name == "vision_deit_s") o.qk_norm = true, o.qkv_bias = false, o.lepe = 5;
    return o;
  }
  static MixingMatrix<float> mixing(const Shape& s) { return initial_mixing<float>(s); }
  static Cost attention_cost(const Shape& s) { return bidirectional_cost<float>(s, mixing(s)); }
};

struct VideoFamily {
  template <class A>
  using Layer = VideoLayer<A>;
  static constexpr const char* kMixing = "block_attn.conv.weight";
  static VideoOptions options(const Shape& s) {
    return {.heads = s.heads,
            .grid = s.grid,
            .layout = Grid(s.grid, s.block).block_grid(),
            .channels = s.heads * s.values,
            .gate = true};
  }
  static MixingMatrix<float> mixing(const Shape& s) { return initial_mixing<float>(s); }
  static Cost attention_cost(const Shape& s) { return bidirectional_cost<float>(s, mixing(s)); }
};

struct LanguageFamily {
  template <class A>
  using Layer = LanguageLayer<A>;
  static constexpr const char* kMixing = "mixing_matrix";
  static LanguageOptions options(const Shape& s) {
    return {.heads = s.heads,
            .channels = s.heads * s.values,
            .chunk = s.block_length(),
            .chunks = s.tokens() / s.block_length()};
  }
  static MixingMatrix<float> mixing(const Shape& s) {
    return uniform_causal<float>(s.tokens() / s.block_length());
  }
  static Cost attention_cost(const Shape& s) { return causal_cost<float>(s); }
};

inline constexpr std::uint64_t kInput = 5, kParameters = 6;  // tensors of element()

/// Input of a shape, drawn as `tensor` of element().   // [B*N,C]
inline Matrix<float> drawn(const Shape& s, std::uint64_t tensor) {
  Matrix<float> x(s.batch * s.tokens(), s.heads * s.values);
  for (Index i = 0; i < x.size(); ++i) {
    x.data()[i] = element(tensor, static_cast<std::uint64_t>(i));
  }
  return x;
}

/// A layer with drawn parameters: weights that preserve the size of their input, gains around 1,
/// biases around 0, and the initial mixing matrix.
template <class Family>
auto drawn_layer(const Shape& s) {
  typename Family::template Layer<float> layer(Family::options(s));
  for (const Parameter& p : layer.table().all()) {
    const bool gain = p.shape.size() == 1 && !p.name.ends_with(".bias");
    const double scale =
        p.shape.size() == 1 ? 0.1 : std::sqrt(3 * number(p.shape[0]) / number(p.size));
    for (Index i = p.begin; i < p.begin + p.size; ++i) {
      layer.parameters()[static_cast<std::size_t>(i)] =
          (gain ? 1.0f : 0.0f) +
          static_cast<float>(scale) * element(kParameters, static_cast<std::uint64_t>(i));
    }
  }
  const MatrixView<float> to = layer.table().matrix(layer.parameters(), Family::kMixing);
  const MixingMatrix<float> mixing = Family::mixing(s);
  for (Index i = 0; i < to.rows; ++i) {
    for (Index b = 0; b < to.cols; ++b) to(i, b) = mixing(i, b);
  }
  return layer;
}

/// Number of weights of projections and convolutions: a multiply-add per weight and row.
template <class Family>
double weights_of(const ParameterTable& table) {
  double count = 0;
  for (const Parameter& p : table.all()) {
    if (p.shape.size() > 1 && p.name != Family::kMixing) count += number(p.size);
  }
  return count;
}

/// Cost of the forward: x and parameters are read once, y is written once.
template <class Family>
Cost forward_cost(const Shape& s, const ParameterTable& table) {
  const double rows = number(s.batch * s.tokens()), c = number(s.heads * s.values);
  return {Family::attention_cost(s).flops + 2 * rows * weights_of<Family>(table),
          (2 * rows * c + number(table.size())) * sizeof(float), rows};
}
/// Cost of the backward: two products for each product of the forward, as in gradient_cost. Tensors
/// x and dy and the parameters are read once; dx and the gradients of parameters are written once.
template <class Family>
Cost backward_cost(const Shape& s, const ParameterTable& table) {
  const Cost forward = forward_cost<Family>(s, table);
  const double c = number(s.heads * s.values);
  return {2 * forward.flops, (3 * forward.tokens * c + 2 * number(table.size())) * sizeof(float),
          forward.tokens};
}

/// Allowed error of outputs relative to the largest output, at least seven times the rounding
/// errors on these shapes.
inline constexpr double kOutputError = 1e-5;

/// Rows `tokens` of an item by the definition, in double.
template <class Layer, class Item>
Matrix<double> exact_rows(const Layer& layer, const std::vector<double>& parameters, const Item& x,
                          const std::vector<Index>& tokens) {
  return test::exact_rows(layer, std::span<const double>(parameters), Matrix<double>(x), tokens);
}

inline double error_of_rows(const Matrix<double>& exact, const Matrix<double>& computed) {
  const double error = (computed - exact).cwiseAbs().maxCoeff<Eigen::PropagateNaN>();
  return fraction(error, kOutputError * exact.cwiseAbs().maxCoeff());
}

/// The same numbers in double.
template <class Numbers>
std::vector<double> in_double(const Numbers& x) {
  return {x.begin(), x.end()};
}

/// One layer, its data, and its calls.
template <class Family>
class LayerRun {
 public:
  LayerRun(const Shape& shape, Index threads, bool backward, bool keep)
      : shape_(shape),
        layer_(drawn_layer<Family>(shape)),
        pool_(threads),
        x_(drawn(shape, kInput)) {
    y_.setConstant(x_.rows(), x_.cols(), std::numeric_limits<float>::quiet_NaN());
    memory_.resize(layer_.workspace_bytes(x_.rows(), call()));
    if (!backward) return;
    dy_ = drawn(shape, 4);
    dx_.setZero(x_.rows(), x_.cols());
    gradients_.resize(layer_.parameters().size());
    backward_memory_.resize(layer_.backward_workspace_bytes(x_.rows(), call()));
    if (keep) kept_.resize(layer_.kept_bytes(x_.rows(), shape.batch));
  }

  ThreadPool& pool() { return pool_; }
  const ParameterTable& table() const { return layer_.table(); }
  void forward() {
    layer_(x_, y_, call(memory_));
    benchmark::ClobberMemory();
  }
  /// Adds the gradients of all rows to dx_ and gradients_.
  void backward() {
    layer_.backward(x_, dy_, dx_, gradients_, call(backward_memory_));
    benchmark::ClobberMemory();
  }

  /// Error over allowed error of sampled rows of each item.
  double worst_of_rows() const {
    const std::vector<double> parameters = in_double(layer_.parameters());
    const auto [x, tokens] = std::pair(x_.template cast<double>().eval(), sampled_tokens());
    double worst = 0;
    for (Index b = 0; b < shape_.batch; ++b) {
      const Matrix<double> y = of_item(y_, b)(tokens, Eigen::all).template cast<double>();
      worst =
          std::max(worst, error_of_rows(exact_rows(layer_, parameters, of_item(x, b), tokens), y));
    }
    return worst;
  }

  /// Error over allowed error of the gradients of s, the sum of dy * y over sampled rows. For each
  /// tensor (x and the parameters) with gradient g, the derivative of s along g / |g|^2 is 1.
  double worst_of_gradients() {
    const std::vector<Index> tokens = sampled_tokens();
    Matrix<float> dy = Matrix<float>::Zero(x_.rows(), x_.cols());
    for (Index b = 0; b < shape_.batch; ++b) {
      for (const Index t : tokens) of_item(dy, b).row(t) = of_item(dy_, b).row(t);
    }
    Matrix<float> dx = Matrix<float>::Zero(x_.rows(), x_.cols());
    std::vector<float> gradients(gradients_.size());
    layer_.backward(x_, dy, dx, gradients, call(backward_memory_));
    Matrix<double> along_x = dx.template cast<double>();
    std::vector<double> along = in_double(gradients);
    const auto scale = [](double* g, Index size) {
      Eigen::Map<Eigen::VectorXd> v(g, size);
      v /= v.squaredNorm();
    };
    scale(along_x.data(), along_x.size());
    for (const Parameter& p : table().all()) scale(along.data() + p.begin, p.size);
    const auto sum_at = [&](double step) {
      std::vector<double> parameters = in_double(layer_.parameters());
      for (std::size_t i = 0; i < along.size(); ++i) parameters[i] += step * along[i];
      const Matrix<double> x = x_.template cast<double>() + step * along_x;
      double sum = 0;
      for (Index b = 0; b < shape_.batch; ++b) {
        const Matrix<double> y = exact_rows(layer_, parameters, of_item(x, b), tokens);
        sum += y.cwiseProduct(of_item(dy_, b)(tokens, Eigen::all).template cast<double>()).sum();
      }
      return sum;
    };
    constexpr double kStep = 1e-4;
    const double derivative = (sum_at(kStep) - sum_at(-kStep)) / (2 * kStep);
    return fraction(std::abs(derivative - number(std::ssize(table().all()) + 1)), kDerivativeError);
  }

 private:
  LayerCall call(Workspace memory = {}) {
    return {.batch = shape_.batch, .workspace = memory, .executor = pool_, .kept = kept_};
  }
  template <class M>
  auto of_item(M& all, Index b) const {
    return all.middleRows(b * shape_.tokens(), shape_.tokens());
  }
  std::vector<Index> sampled_tokens() const {
    std::vector<Index> tokens;
    for (std::uint64_t i = 1; i <= kSampledRows; ++i) {
      tokens.push_back(
          static_cast<Index>(splitmix64(i) % static_cast<std::uint64_t>(shape_.tokens())));
    }
    return tokens;
  }

  Shape shape_;
  typename Family::template Layer<float> layer_;
  ThreadPool pool_;
  Matrix<float> x_, y_, dy_, dx_;
  std::vector<float> gradients_;
  std::vector<std::byte> memory_, backward_memory_, kept_;
};

}  // namespace mhla::bench
