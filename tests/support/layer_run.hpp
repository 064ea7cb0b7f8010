#pragma once

/// \file
/// Tensors of a layer under test (contract/layer.hpp), and what the layer makes of them.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "mhla/core/call.hpp"
#include "support/dual.hpp"
#include "support/random.hpp"

namespace mhla::test {

using Wide = long double;

template <class A>
Dual<A> sqrt(const Dual<A>& a) {
  const Wide root = std::sqrt(a.value), relative = a.size / a.value;
  const Wide tangent = a.tangent / (2 * root);
  return {root, tangent, root * relative,
          a.tangent_size / (2 * root) + std::abs(tangent) * relative};
}
template <class A>
Dual<A> log(const Dual<A>& a) {
  const Wide y = std::log(a.value), relative = a.size / a.value;
  return {y, a.tangent / a.value, std::abs(y) + relative, a.tangent_size * relative / a.value};
}
template <class A>
Dual<A> tanh(const Dual<A>& a) {
  const Wide t = std::tanh(a.value), slope = 1 - t * t;
  return {t, slope * a.tangent, 1 + slope * a.size, (1 + a.size) * a.tangent_size};
}

using Sizes = std::array<Index, 4>;

/// Shape of a matrix, or of a row of parameters, which is contiguous.
struct TensorShape {
  Index rows, cols;
  bool is_row = false;
};
using Shapes = std::vector<TensorShape>;
inline TensorShape row_of(Index cols) { return {1, cols, true}; }

template <class A>
using Views = std::vector<MatrixView<A>>;

/// A row of parameters, empty where it is absent.
template <class A>
std::span<A> span_of(const MatrixView<A>& row) {
  return {row.data, static_cast<std::size_t>(row.cols)};
}

/// Tensors in memory with room around the rows of matrices.
template <class A>
class Tensors {
 public:
  /// \param gap   columns on either side of a matrix
  /// \param fill  what is there and inside
  Tensors(const Shapes& shapes, Index gap, A fill) : fill_(fill) {
    for (const TensorShape& s : shapes) {
      gaps_.push_back(s.is_row ? 0 : gap);
      memory_.push_back(Matrix<A>::Constant(s.rows, s.cols + 2 * gaps_.back(), fill));
    }
  }
  static Tensors random(Random& rng, const Shapes& shapes) {
    Tensors all(shapes, 0, A(0));
    for (Matrix<A>& m : all.memory_) m = rng.matrix<A>(m.rows(), m.cols());
    return all;
  }
  /// The same numbers with room around them.
  Tensors spread(const Shapes& shapes, Index gap, A fill) const {
    Tensors wide(shapes, gap, fill);
    for (std::size_t i = 0; i < memory_.size(); ++i)
      wide.memory_[i].middleCols(wide.gaps_[i], copy(i).cols()) = copy(i);
    return wide;
  }

  std::size_t count() const { return memory_.size(); }
  MatrixView<A> inside(std::size_t i) { return cut(MatrixView<A>(memory_[i]), gaps_[i]); }
  MatrixView<const A> inside(std::size_t i) const {
    return cut(MatrixView<const A>(memory_[i]), gaps_[i]);
  }
  Matrix<A> copy(std::size_t i) const {
    return memory_[i].middleCols(gaps_[i], memory_[i].cols() - 2 * gaps_[i]);
  }
  Views<A> views() { return list<A>(*this); }
  Views<const A> views() const { return list<const A>(*this); }
  std::vector<Matrix<Dual<A>>> duals() const {
    std::vector<Matrix<Dual<A>>> all;
    for (std::size_t i = 0; i < count(); ++i) {
      all.push_back(copy(i).unaryExpr([](A x) { return Dual<A>(x); }));
    }
    return all;
  }
  friend bool operator==(const Tensors& a, const Tensors& b) {
    for (std::size_t i = 0; i < a.count(); ++i) {
      if (a.copy(i) != b.copy(i)) return false;
    }
    return true;
  }
  /// True if the memory around the rows is unchanged.
  bool kept_to_itself() const {
    for (std::size_t i = 0; i < count(); ++i) {
      const Matrix<A>& m = memory_[i];
      if ((m.leftCols(gaps_[i]).array() != fill_).any()) return false;
      if ((m.rightCols(gaps_[i]).array() != fill_).any()) return false;
    }
    return true;
  }

 private:
  template <class T>
  static MatrixView<T> cut(MatrixView<T> m, Index gap) {
    return {m.data + gap, m.rows, m.cols - 2 * gap, m.row_stride};
  }
  template <class T, class Self>
  static Views<T> list(Self& all) {
    Views<T> views;
    for (std::size_t i = 0; i < all.count(); ++i) views.push_back(all.inside(i));
    return views;
  }

  A fill_;
  std::vector<Index> gaps_;
  std::vector<Matrix<A>> memory_;
};

/// A layer of contract/layer.hpp in numbers of type A. It may lack the last four.
template <class A>
struct AnyLayer {
  using In = Views<const A>;
  using Duals = std::vector<Matrix<Dual<A>>>;

  std::vector<Sizes> (*sizes)();
  Shapes (*inputs)(const Sizes&);
  Shapes (*outputs)(const Sizes&);
  void (*forward)(const In& in, const Views<A>& out, const Call&);
  Duals (*definition)(const Duals& in);
  Index (*roundings)(const Sizes&);
  bool is_loss = false;
  void (*adjoint)(const In& in, const In& out, MatrixView<const A> dy, const Views<A>& din,
                  const Call&) = nullptr;
  std::vector<std::string> (*names)() = nullptr;
  std::size_t (*forward_bytes)(const Sizes&) = nullptr;
  std::size_t (*adjoint_bytes)(const Sizes&) = nullptr;
};

/// Numbers of a layer, and what it makes of them.
template <class A>
struct LayerRun {
  const AnyLayer<A>* layer;
  Sizes sizes;
  Tensors<A> in, before, out, din;
  Tensors<A> dy;

  LayerRun(const AnyLayer<A>& l, Random& rng, const Sizes& s)
      : layer(&l),
        sizes(s),
        in(Tensors<A>::random(rng, l.inputs(s))),
        before(Tensors<A>::random(rng, l.inputs(s))),
        out(l.outputs(s), 0, std::numeric_limits<A>::quiet_NaN()),
        din(before),
        dy(Tensors<A>::random(rng, {l.outputs(s).back()})) {
    if (l.is_loss) dy = Tensors<A>({l.outputs(s).back()}, 0, A(1));
  }

  void forward(const Call& call = {}) { layer->forward(views_of(in), out.views(), call); }
  void adjoint(const Call& call = {}) { adjoint_into(din.views(), call); }
  void adjoint_into(const Views<A>& gradients, const Call& call = {}) const {
    layer->adjoint(views_of(in), views_of(out), views_of(dy)[0], gradients, call);
  }
  static Views<const A> views_of(const Tensors<A>& tensors) { return tensors.views(); }
  /// Bound of the error of a sum of that size.
  Wide bound(Wide size) const {
    const Wide mu =
        static_cast<Wide>(layer->roundings(sizes)) * std::numeric_limits<A>::epsilon() / 2;
    return mu / (1 - mu) * size;
  }
  /// Room around all tensors: not a number beside what is read, 7 beside what is written.
  LayerRun spread() const {
    constexpr A kNone = std::numeric_limits<A>::quiet_NaN();
    LayerRun wide = *this;
    wide.in = in.spread(layer->inputs(sizes), 3, kNone);
    wide.dy = dy.spread({layer->outputs(sizes).back()}, 2, kNone);
    wide.out = out.spread(layer->outputs(sizes), 1, 7);  // pre and hidden of a perceptron are read
    wide.din = before.spread(layer->inputs(sizes), 4, 7);
    return wide;
  }
};

}  // namespace mhla::test
