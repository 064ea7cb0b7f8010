#pragma once

/// \file
/// Random batches, and a problem for wrong calls.

#include <utility>
#include <vector>

#include "support/forward_arguments.hpp"
#include "support/strided_tensor.hpp"

namespace mhla::test::forward {

/// A random batch, padded or packed, and every head of every sequence as dense matrices.
template <class T>
struct Batch {
  Random rng;
  bool packed, per_head, per_sequence;
  Index sequences, heads, d, e;
  std::vector<Index> offsets{0};
  Index batch, tokens;
  StridedTensor<T> q, k, v, normalizer_q, normalizer_k, out;
  Matrix<bool> query_mask, key_mask;  // [B, 2 N]: each entry is followed by its opposite
  Problem<T> problem;                 // parameters

  explicit Batch(std::uint64_t seed)
      : rng(seed),
        packed(rng.chance(0.5)),
        per_head(seed % 2 == 1),
        per_sequence(seed % 4 == 3),
        sequences(rng.integer(1, 4)),
        heads(rng.integer(1, 3)),
        d(rng.integer(1, 9)),
        e(rng.integer(1, 20)),
        batch(packed ? 1 : sequences),
        tokens(packed ? draw_offsets() : rng.integer(0, 30)),
        q(rng, {batch, tokens, heads, d}, true),
        k(rng, {batch, tokens, heads, d}, true),
        v(rng, {batch, tokens, heads, e}, true),
        normalizer_q(rng, {batch, tokens, heads, d}, true),
        normalizer_k(rng, {batch, tokens, heads, d}, true),
        out(rng, {batch, tokens, heads, e}),
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
    problem.normalizer = rng.chance(0.5) ? WeightSums::kToken : WeightSums::kNone;
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

  /// Blocks of 4 tokens for sequences of any length, with a mixing matrix for all heads, for
  /// each, or for each of every sequence, which streams do
  /// not take.
  Arguments<T> arguments(bool streams = false) const {
    Arguments<T> a(problem);
    a.blocks.queries.length = a.blocks.keys.length = 4;
    if (per_head) {
      Random numbers(problem.seed);
      a.mixing = MixingMatrix<accumulator_t<T>>(a.mixing.pattern(), heads,
                                                per_sequence && !streams ? sequences : 1);
      a.mixing.view().for_each(
          [&numbers](auto& c) { c = static_cast<accumulator_t<T>>(numbers.uniform()); });
    }
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

  /// Calls f(sequence, head, its inputs in dense memory, its output in the batch) for every head.
  template <class F>
  void for_each_head(F&& f) const {
    for (Index s = 0; s < sequences; ++s) {
      for (Index h = 0; h < heads; ++h) {
        Inputs<T> head = detail::head_inputs(inputs(), s, h);
        const Matrix<T> copies[] = {dense(head.q), dense(head.k), dense(head.v),
                                    dense(head.normalizer_q), dense(head.normalizer_k)};
        const auto queries = entries(query_mask, s, head.q.rows);
        const auto keys = entries(key_mask, s, head.k.rows);
        if (query_mask.size() > 0) head.query_mask = queries;
        if (key_mask.size() > 0) head.key_mask = keys;
        head.q = copies[0];
        head.k = copies[1];
        head.v = copies[2];
        if (!head.normalizer_q.absent()) {
          head.normalizer_q = copies[3];
          head.normalizer_k = copies[4];
        }
        f(s, h, head, dense(detail::head_output(inputs(), out.view(), s, h)));
      }
    }
  }
};

/// A problem of two blocks of four tokens, and the arguments that tests change.
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
