#pragma once

/// \file
/// Random batches in the layouts that users have, and a problem to spoil.

#include <utility>
#include <vector>

#include "contract/forward_forms.hpp"
#include "mhla/core/tensor.hpp"

namespace mhla::test::forward {

/// A [B,N,H,D] tensor in one of many layouts, in memory that is NaN elsewhere.
template <class T>
class StridedTensor {
 public:
  /// \param shared  whether all heads may be one and the same
  StridedTensor(Random& rng, Index b, Index n, Index h, Index d, bool shared = false) {
    const Index pad = rng.integer(0, 3), row = d + pad;  // unused numbers behind every row
    const Index kind = rng.integer(0, shared ? 4 : 3);
    const Shape strides = kind == 0   ? Shape{n * h * row, h * row, row, 1}    // token-major
                          : kind == 1 ? Shape{h * n * row, row, n * row, 1}    // head-major
                          : kind == 2 ? Shape{n * 3 * h * d, 3 * h * d, d, 1}  // of a packed qkv
                          : kind == 3 ? Shape{1, b, n * b, h * n * b}          // tokens innermost
                                      : Shape{n * row, row, 0, 1};             // one head for all
    const Index total = kind == 3 ? d * strides[3] : b * strides[0], offset = rng.integer(0, 17);
    memory_ = unwritten<T>(1, total + offset + 16);
    view_ = {memory_.data() + offset, {b, n, h, d}, strides};
    for (Index i = 0; i < b * n * h * d; ++i) {
      element(i) = static_cast<T>(static_cast<accumulator_t<T>>(rng.uniform(-1, 1)));
    }
  }
  TensorView<T> view() const { return view_; }
  /// True if the memory beside the tensor is as it was.
  bool nothing_beside() const {
    StridedTensor copy = *this;
    copy.view_.data = copy.memory_.data() + (view_.data - memory_.data());
    const T nan = unwritten<T>(1, 1)(0, 0);
    for (Index i = 0; i < view_.batch() * view_.tokens() * view_.heads() * view_.width(); ++i) {
      copy.element(i) = nan;
    }
    return same_bits(copy.memory_, unwritten<T>(1, memory_.size()));
  }

 private:
  T& element(Index i) const {
    const Index d = i % view_.width(), h = i / view_.width() % view_.heads();
    const Index row = i / view_.width() / view_.heads();
    return view_(row / view_.tokens(), row % view_.tokens(), h, d);
  }

  Matrix<T> memory_;
  TensorView<T> view_;
};

template <class T>
Matrix<T> copy(const MatrixView<const T>& m) {
  Matrix<T> c(m.rows, m.cols);
  for (Index r = 0; r < m.rows; ++r) {
    for (Index j = 0; j < m.cols; ++j) c(r, j) = m(r, j);
  }
  return c;
}

/// A random batch, padded or packed, and every head of every sequence as dense matrices.
template <class T>
struct Batch {
  Random rng;
  bool packed;
  Index sequences, heads, d, e;
  std::vector<Index> offsets{0};
  Index batch, tokens;
  StridedTensor<T> q, k, v, normalizer_q, normalizer_k, out;
  Matrix<bool> query_mask, key_mask;  // [B, 2 N]: behind every entry its contrary
  Problem<T> problem;                 // the parameters

  explicit Batch(std::uint64_t seed)
      : rng(seed),
        packed(rng.chance(0.5)),
        sequences(rng.integer(1, 4)),
        heads(rng.integer(1, 3)),
        d(rng.integer(1, 9)),
        e(rng.integer(1, 20)),
        batch(packed ? 1 : sequences),
        tokens(packed ? draw_offsets() : rng.integer(0, 30)),
        q(rng, batch, tokens, heads, d, true),
        k(rng, batch, tokens, heads, d, true),
        v(rng, batch, tokens, heads, e, true),
        normalizer_q(rng, batch, tokens, heads, d, true),
        normalizer_k(rng, batch, tokens, heads, d, true),
        out(rng, batch, tokens, heads, e),
        query_mask(batch, rng.chance(0.5) ? 2 * tokens : 0),
        key_mask(batch, rng.chance(0.5) ? 2 * tokens : 0) {
    for (Matrix<bool>* mask : {&query_mask, &key_mask}) {
      for (Index i = 0; i < mask->size(); i += 2) {
        mask->data()[i] = rng.chance(0.8);
        mask->data()[i + 1] = !mask->data()[i];
      }
    }
    problem.query_map = problem.key_map =
        random_map<accumulator_t<T>>(rng, rng.integer(0, kSameWidthMaps + 1), d);
    problem.normalizer = rng.chance(0.5) ? WeightSums::kOwn : WeightSums::kNone;
    constexpr Index kMostBlocks = 40;
    problem.coefficients = rng.matrix<accumulator_t<T>>(kMostBlocks, kMostBlocks, 0, 1);
    problem.lower = problem.upper = rng.chance(0.5) ? kMostBlocks : 3;
  }

  Index draw_offsets() {
    constexpr Index kLengths[] = {0, 1, 3, 4, 5, 7, 8, 9, 30};
    for (Index s = 0; s < sequences; ++s) {
      offsets.push_back(offsets.back() + kLengths[rng.integer(0, 8)]);
    }
    return offsets.back();
  }

  /// Blocks of 4 tokens for sequences of any length.
  Arguments<T> arguments() const {
    Arguments<T> a(problem);
    a.blocks.queries.length = a.blocks.keys.length = 4;
    return a;
  }

  BatchInputs<T> inputs() const {
    BatchInputs<T> in{.q = q.view(), .k = k.view(), .v = v.view()};
    if (heads == 2) {
      in.normalizer_q = normalizer_q.view();
      in.normalizer_k = normalizer_k.view();
    }
    for (auto [mask, to] : {std::pair(&query_mask, &in.query_mask), {&key_mask, &in.key_mask}}) {
      if (mask->size() > 0) *to = {mask->data(), batch, tokens, 2 * tokens, 2};
    }
    if (packed) in.query_offsets = in.key_offsets = offsets;
    return in;
  }

  /// The entries of a mask for sequence s, side by side.
  std::vector<unsigned char> entries(const Matrix<bool>& mask, Index s, Index count) const {
    std::vector<unsigned char> all;
    const Index begin = packed ? offsets[static_cast<std::size_t>(s)] : 0;
    for (Index t = 0; t < count && mask.size() > 0; ++t) {
      all.push_back(mask(packed ? 0 : s, 2 * (begin + t)) ? 1 : 0);
    }
    return all;
  }

  /// Calls f(inputs of one head of one sequence in dense memory, its output in the batch).
  template <class F>
  void for_each_head(F&& f) const {
    for (Index s = 0; s < sequences; ++s) {
      for (Index h = 0; h < heads; ++h) {
        Inputs<T> head = detail::head_inputs(inputs(), s, h);
        const Matrix<T> dense[] = {copy(head.q), copy(head.k), copy(head.v),
                                   copy(head.normalizer_q), copy(head.normalizer_k)};
        const auto queries = entries(query_mask, s, head.q.rows);
        const auto keys = entries(key_mask, s, head.k.rows);
        if (query_mask.size() > 0) head.query_mask = queries;
        if (key_mask.size() > 0) head.key_mask = keys;
        head.q = dense[0];
        head.k = dense[1];
        head.v = dense[2];
        if (!head.normalizer_q.absent()) {
          head.normalizer_q = dense[3];
          head.normalizer_k = dense[4];
        }
        f(head, copy<T>(detail::head_output(inputs(), out.view(), s, h)));
      }
    }
  }
};

/// Two blocks of four tokens, and what may be changed about them.
template <class T>
struct SmallProblem : Problem<T> {
  Inputs<T> in;
  Index rows = 8;  // of the output

  SmallProblem() {
    this->q = this->k = Matrix<T>::Constant(9, 5, T(1));
    this->v = Matrix<T>::Constant(9, 3, T(1));
    this->query_blocks = this->key_blocks = AnyPartition::of(Contiguous(8, 4));
    this->coefficients = Matrix<accumulator_t<T>>::Ones(2, 2);
    this->lower = this->upper = 2;
    in = {.q = leading(this->q, 8, 4), .k = leading(this->k, 8, 4), .v = leading(this->v, 8, 3)};
  }
  static MatrixView<const T> leading(const Matrix<T>& m, Index rows, Index cols) {
    return {m.data(), rows, cols, m.cols()};
  }
};

}  // namespace mhla::test::forward
