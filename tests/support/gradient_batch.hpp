#pragma once

/// \file
/// Random batches whose pairs are problems of their own.

#include <array>
#include <cmath>
#include <vector>

#include "mhla/attention/batch.hpp"
#include "support/gradient_forms.hpp"

namespace mhla::test {

/// A [B,N,H,D] tensor in one of the layouts users have, in memory that is NaN elsewhere.
template <class T>
class StridedTensor {
 public:
  StridedTensor(Random& rng, Index b, Index n, Index h, Index d) {
    const Index pad = rng.integer(0, 3);  // unused numbers behind every row
    std::array<Index, 4> strides{};
    switch (rng.integer(0, 3)) {
      case 0:  // token-major
        strides = {n * h * (d + pad), h * (d + pad), d + pad, 1};
        break;
      case 1:  // head-major
        strides = {h * n * (d + pad), d + pad, n * (d + pad), 1};
        break;
      case 2:  // a slice of a packed qkv
        strides = {n * 3 * h * d, 3 * h * d, d, 1};
        break;
      default:  // features outermost, tokens innermost
        strides = {1, b, n * b, h * n * b};
        break;
    }
    const Index offset = rng.integer(0, 17), total = 3 * b * n * h * (d + pad) + offset + 16;
    memory_.assign(static_cast<std::size_t>(total), static_cast<T>(NAN));
    view_ = {memory_.data() + offset, {b, n, h, d}, strides};
  }
  TensorView<T> view() const { return view_; }
  /// Every element becomes x.
  void fill(T x) {
    for (Index i = 0; i < view_.batch(); ++i) {
      for (Index h = 0; h < view_.heads(); ++h) {
        set(i, h, 0, Matrix<T>::Constant(view_.tokens(), view_.width(), x));
      }
    }
  }
  /// Tokens [begin, begin + rows) of a head become m.
  void set(Index item, Index h, Index begin, const Matrix<T>& m) {
    const auto head = view_.head(item, h, begin, m.rows());
    for (Index t = 0; t < m.rows(); ++t) {
      for (Index c = 0; c < m.cols(); ++c) head(t, c) = m(t, c);
    }
  }
  Matrix<T> get(Index item, Index h, Index begin, Index count) const {
    const auto head = view_.head(item, h, begin, count);
    Matrix<T> m(count, view_.width());
    for (Index t = 0; t < count; ++t) {
      for (Index c = 0; c < m.cols(); ++c) m(t, c) = head(t, c);
    }
    return m;
  }

 private:
  std::vector<T> memory_;
  TensorView<T> view_;
};

/// The tensors of a batch, or their gradients.
template <class T>
struct BatchTensors {
  StridedTensor<T> q, k, v, normalizer_q, normalizer_k;
};

/// A random batch: B sequences of one length, or sequences of any length packed in one item; every
/// (sequence, head) pair is a problem of its own.
template <class Form, class T>
struct RandomBatch {
  using A = accumulator_t<T>;
  static constexpr Index kMostBlocks = 12;

  Random rng;
  bool packed, own;
  Index sequences, heads, d, e, block_length;
  bool crosses_queries;
  std::vector<Index> query_offsets{0}, key_offsets{0};  // also of sequences that are not packed
  Matrix<bool> query_mask, key_mask;                    // [B,N] or empty
  std::vector<Problem<T>> pairs;                        // [sequences * heads]
  std::vector<Matrix<T>> douts;                         // the same
  Problem<T> shared;  // what all pairs have in common; its mixing matrix is the largest

  explicit RandomBatch(std::uint64_t seed)
      : rng(seed),
        packed(rng.chance(0.5)),
        own(rng.chance(0.3)),
        sequences(rng.integer(1, 4)),
        heads(rng.integer(1, 3)),
        d(rng.integer(1, 4)),
        e(rng.integer(1, 20)),
        block_length(rng.integer(3, 8)),
        crosses_queries(Form::kMixes && !Form::kCausal && !packed && rng.chance(0.4)) {
    if (seed % 12 == 0) {  // more pairs than are summed one by one
      sequences = 9;
      heads = 8;
      e = 2;
    }
    draw_lengths();
    draw_shared(seed);
    for (Index s = 0; s < sequences; ++s) {
      for (Index h = 0; h < heads; ++h) draw_pair(s);
    }
  }

  Index items() const { return packed ? 1 : sequences; }
  Index item(Index s) const { return packed ? 0 : s; }
  Index queries(Index s) const { return length(query_offsets, s); }
  Index keys(Index s) const { return length(key_offsets, s); }
  Index first_query(Index s) const { return packed ? at(query_offsets, s) : 0; }
  Index first_key(Index s) const { return packed ? at(key_offsets, s) : 0; }
  const Problem<T>& pair(Index s, Index h) const {
    return pairs[static_cast<std::size_t>(s * heads + h)];
  }
  const Matrix<T>& dout(Index s, Index h) const {
    return douts[static_cast<std::size_t>(s * heads + h)];
  }

  /// Tensors of the batch's shapes, each in a layout of its own.
  BatchTensors<T> tensors() {
    const Index nq = packed ? query_offsets.back() : queries(0);
    const Index nk = packed ? key_offsets.back() : keys(0);
    const auto make = [&](Index n, Index width) {
      return StridedTensor<T>(rng, items(), n, heads, width);
    };
    return {make(nq, d), make(nk, d), make(nk, e), make(nq, d), make(nk, d)};
  }
  StridedTensor<T> dout_tensor() {
    StridedTensor<T> t(rng, items(), packed ? query_offsets.back() : queries(0), heads, e);
    for_each_pair([&](Index s, Index h) { t.set(item(s), h, first_query(s), dout(s, h)); });
    return t;
  }
  BatchTensors<T> values() {
    auto t = tensors();
    for_each_pair([&](Index s, Index h) {
      const auto& p = pair(s, h);
      t.q.set(item(s), h, first_query(s), p.q);
      t.k.set(item(s), h, first_key(s), p.k);
      t.v.set(item(s), h, first_key(s), p.v);
      if (!own) return;
      t.normalizer_q.set(item(s), h, first_query(s), p.normalizer_q);
      t.normalizer_k.set(item(s), h, first_key(s), p.normalizer_k);
    });
    return t;
  }
  BatchInputs<T> inputs(const BatchTensors<T>& t) const {
    BatchInputs<T> in{.q = t.q.view(), .k = t.k.view(), .v = t.v.view()};
    if (own) {
      in.normalizer_q = t.normalizer_q.view();
      in.normalizer_k = t.normalizer_k.view();
    }
    if (query_mask.size() > 0) in.query_mask = query_mask;
    if (key_mask.size() > 0) in.key_mask = key_mask;
    if (packed) {
      in.query_offsets = query_offsets;
      in.key_offsets = key_offsets;
    }
    return in;
  }
  BatchGradients<T> gradients(const BatchTensors<T>& t) const {
    BatchGradients<T> g{.q = t.q.view(), .k = t.k.view(), .v = t.v.view()};
    if (own) {
      g.normalizer_q = t.normalizer_q.view();
      g.normalizer_k = t.normalizer_k.view();
    }
    return g;
  }
  template <class F>
  void for_each_pair(F&& f) const {
    for (Index s = 0; s < sequences; ++s) {
      for (Index h = 0; h < heads; ++h) f(s, h);
    }
  }

 private:
  static Index at(const std::vector<Index>& v, Index i) { return v[static_cast<std::size_t>(i)]; }
  static Index length(const std::vector<Index>& offsets, Index s) {
    return at(offsets, s + 1) - at(offsets, s);
  }

  void draw_lengths() {
    constexpr Index kLengths[] = {0, 1, 3, 4, 5, 7, 8, 9, 30};
    Index n = crosses_queries ? block_length * rng.integer(1, 4) : rng.integer(0, 30);
    const bool cross = !Form::kCausal && !crosses_queries && rng.chance(0.5);
    Index other = cross ? rng.integer(0, 30) : n;
    for (Index s = 0; s < sequences; ++s) {
      if (packed) {
        n = kLengths[rng.integer(0, 8)];
        other = cross ? kLengths[rng.integer(0, 8)] : n;
      }
      query_offsets.push_back(query_offsets.back() + n);
      key_offsets.push_back(key_offsets.back() + other);
    }
    const auto random_mask = [this](Index tokens) {
      Matrix<bool> m(items(), tokens);
      for (Index i = 0; i < m.size(); ++i) m.data()[i] = rng.chance(0.8);
      return m;
    };
    if (rng.chance(0.4)) query_mask = random_mask(packed ? query_offsets.back() : n);
    if (rng.chance(0.4)) key_mask = random_mask(packed ? key_offsets.back() : other);
  }

  void draw_shared(std::uint64_t seed) {
    const Index kind = rng.chance(0.5) ? 1 : kSameWidthMaps;  // elu or hedgehog: positive
    shared.query_map = random_map<A>(rng, kind, d);
    shared.key_map = random_map<A>(rng, kind, d);
    shared.seed = seed;
    shared.causal = Form::kCausal;
    shared.normalizer = crosses_queries   ? NaiveNormalizer::kCrossQuery
                        : rng.chance(0.3) ? NaiveNormalizer::kNone
                                          : NaiveNormalizer::kKeySum;
    if (shared.normalizer == NaiveNormalizer::kNone) own = false;
    shared.eps = 1e-2;
    shared.scale = rng.chance(0.5) ? 1 : 0.3;
    shared.coefficients = rng.matrix<A>(kMostBlocks, kMostBlocks, 0.1, 1);
    shared.lower = rng.chance(0.3) ? rng.integer(0, 3) : kMostBlocks;
    shared.upper = rng.chance(0.3) ? rng.integer(0, 3) : kMostBlocks;
  }

  void draw_pair(Index s) {
    Problem<T> p = shared;
    p.query_blocks = AnyPartition::of(Contiguous(queries(s), block_length));
    p.key_blocks = AnyPartition::of(Contiguous(keys(s), block_length));
    p.q = rng.matrix<T>(queries(s), d);
    p.k = rng.matrix<T>(keys(s), d);
    p.v = rng.matrix<T>(keys(s), e);
    if (own) {
      p.normalizer_q = rng.matrix<T>(queries(s), d);
      p.normalizer_k = rng.matrix<T>(keys(s), d);
    }
    p.coefficients = shared.coefficients
                         .topLeftCorner(std::max<Index>(1, p.query_blocks.blocks()),
                                        std::max<Index>(1, p.key_blocks.blocks()))
                         .eval();
    const auto cut = [&](const Matrix<bool>& mask, Index begin, Index count) {
      return mask.size() == 0 ? Matrix<bool>() : Matrix<bool>(mask.block(item(s), begin, 1, count));
    };
    p.query_mask = cut(query_mask, first_query(s), queries(s));
    p.key_mask = cut(key_mask, first_key(s), keys(s));
    Form::fit(p);
    pairs.push_back(p);
    douts.push_back(rng.matrix<T>(queries(s), e));
  }
};

}  // namespace mhla::test
