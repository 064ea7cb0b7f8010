#pragma once

/// \file
/// Random batches whose (sequence, head) pairs are separate problems.

#include <algorithm>
#include <array>
#include <vector>

#include "support/any_gradient.hpp"
#include "support/gradient_random.hpp"
#include "support/strided_tensor.hpp"

namespace mhla::test {

using BatchBlocks = CrossBlocks<ContiguousBlocks, ContiguousBlocks>;

/// A form for batches in double.
struct AnyBatchGradient : GradientCalls<BatchInputs<double>, BatchBlocks> {
  GradientCalls<Inputs<double>, BatchBlocks> head;  // of one head in the same blocks
  const char* name;
  bool causal;
  void (*fit)(GradientProblem<double>& p);
};
template <class Form>
inline constexpr AnyBatchGradient kBatchGradientOn{
    gradient_calls_of<Form, BatchInputs<double>, BatchBlocks>(),
    gradient_calls_of<Form, Inputs<double>, BatchBlocks>(), Form().name, Form().causal, &Form::fit};

/// A random batch: B sequences of one length, or sequences of any length packed in one item, with
/// random numbers in every layout.
class RandomBatch {
 public:
  using T = double;
  using Buffers = GradientBuffers<T>;

  RandomBatch(const AnyBatchGradient& form, std::uint64_t seed)
      : form_(form), rng_(seed), packed_(rng_.chance(0.5)) {
    const bool many = seed % 8 == 5;     // more pairs than are summed one by one
    const bool longer = seed % 16 == 5;  // also of a head
    sequences_ = longer ? 70 : many ? 9 : rng_.integer(1, 4);
    heads_ = longer ? 2 : many ? 8 : rng_.integer(1, 3);
    shared_ = random_gradient<T>(form, seed, many ? Size::kSmall : Size::kAny);
    const bool equal = shared_.op.normalizer.sums() == WeightSums::kCrossQuery;
    if (equal) packed_ = false;
    draw_lengths(equal);
    blocks_ = {{rng_.integer(3, 8)}, {rng_.integer(3, 8)}};
    if (equal) blocks_ = {{lengths_[kQ][0] / 2}, {lengths_[kK][0] / 2}};
    if (form.causal) blocks_.keys = blocks_.queries;
    const bool per_head = form.mixes && seed % 2 == 1;
    const bool per_sequence = form.mixes && (seed % 4 == 3 || seed % 16 == 13);
    shared_.set_mixing(form.mixes ? Pattern(12, 12, 12, rng_.integer(0, 12)) : Pattern(1, 1), rng_,
                       0.1, per_head ? heads_ : 1, per_sequence ? sequences_ : 1);
    draw_tensors();
  }

  Index sequences() const { return sequences_; }
  Index heads() const { return heads_; }
  const GradientProblem<T>& shared() const { return shared_; }
  /// The parameters of head h of sequence s.
  GradientProblem<T> of_pair(Index s, Index h) const { return shared_.of_pair(s, h); }
  const BatchBlocks& blocks() const { return blocks_; }
  const BatchInputs<T>& inputs() const { return in_; }
  TensorView<const T> dout() const { return values_.back().view(); }

  /// Gradients that start from zeros, each in a separate layout.
  struct Result {
    std::vector<StridedTensor<T>> tensors;
    Buffers parameters;  // without tensors

    BatchGradients<T> views() const {
      return {view(kQ), view(kK), view(kV), view(kNormalizerQ), view(kNormalizerK)};
    }
    TensorView<T> view(Part part) const {
      const TensorView<T> all = tensors[part].view();
      return all.width() == 0 && part != kV ? TensorView<T>() : all;
    }
  };
  Result gradients(std::uint64_t seed, const ExecutorRef& executor = {}, bool keep = false) const {
    Random rng(seed);
    Result result{{}, Buffers(shared_)};
    for (std::size_t part = 0; part < kMixing; ++part) {
      result.tensors.emplace_back(rng, values_[part].view().shape);
      result.tensors.back().for_each([](T& x) { x = T(0); });
    }
    add_gradients(form_,
                  GradientArguments<BatchInputs<T>>{in_, dout(), result.views(),
                                                    result.parameters.parameter_views()},
                  shared_, blocks_, executor, keep);
    return result;
  }
  /// Gradients of one head alone, in separate tensors.
  Buffers gradients_alone(Index s, Index h) const {
    const Inputs<T> head = detail::head_inputs(in_, s, h);
    const auto dout_head = detail::head_output(in_, dout(), s, h);
    GradientProblem<T> p = of_pair(s, h);
    for (const Part part : {kQ, kK, kV, kNormalizerQ, kNormalizerK})
      p.tensors[part] = get(part, s, h, values_);
    Buffers g(p);
    add_gradients(form_.head,
                  GradientArguments<Inputs<T>>{head, dout_head, g.views(), g.parameter_views()}, p,
                  blocks_);
    return g;
  }
  /// Returns a part of one head.
  Matrix<T> get(Part part, Index s, Index h, const std::vector<StridedTensor<T>>& tensors) const {
    const bool query = part == kQ || part == kNormalizerQ;
    const auto span = query ? detail::query_span(in_, s) : detail::key_span(in_, s);
    if (tensors[part].view().width() == 0 && part != kV) return {};
    return dense(detail::head_of(tensors[part].view(), span, h));
  }

 private:
  void draw_lengths(bool equal) {
    constexpr Index kLengths[] = {0, 1, 3, 4, 5, 7, 8, 9, 30};
    const bool cross = !form_.causal && rng_.chance(0.5);
    for (Index s = 0; s < (packed_ ? sequences_ : 1); ++s) {
      const Index n = equal ? 2 * rng_.integer(1, 6) : kLengths[rng_.integer(0, 8)];
      const Index other = equal ? 2 * rng_.integer(1, 6) : kLengths[rng_.integer(0, 8)];
      lengths_[kQ].push_back(n);
      lengths_[kK].push_back(cross ? other : n);
    }
  }

  void draw_tensors() {
    const auto total = [&](Part part) {
      offsets_[part] = {0};
      for (const Index n : lengths_[part]) offsets_[part].push_back(offsets_[part].back() + n);
      return offsets_[part].back();
    };
    const Index nq = total(kQ), nk = total(kK), items = packed_ ? 1 : sequences_;
    const auto add = [&](Index tokens, Index width) {
      values_.emplace_back(rng_, Shape{items, tokens, heads_, width});
      return values_.back().view();
    };
    const auto width = [&](Part part) { return shared_.tensors[part].cols(); };
    in_ = {.q = add(nq, width(kQ)), .k = add(nk, width(kK)), .v = add(nk, width(kV))};
    const auto denominator_q = add(nq, width(kNormalizerQ)),
               denominator_k = add(nk, width(kNormalizerK));
    if (width(kNormalizerQ) > 0) in_.normalizer_q = denominator_q, in_.normalizer_k = denominator_k;
    add(nq, width(kV));  // dout
    const auto mask = [&](Matrix<bool>& m, Index tokens) -> BatchMask {
      if (rng_.chance(0.6)) return {};
      m.resize(items, tokens);
      for (bool& keep : m.reshaped()) keep = rng_.chance(0.8);
      return m;
    };
    in_.query_mask = mask(query_mask_, nq);
    in_.key_mask = mask(key_mask_, nk);
    if (packed_) in_.query_offsets = offsets_[kQ], in_.key_offsets = offsets_[kK];
  }

  const AnyBatchGradient& form_;
  Random rng_;
  bool packed_;
  Index sequences_ = 0, heads_ = 0;
  GradientProblem<T> shared_;  // operator and mixing matrices
  BatchBlocks blocks_{};
  std::array<std::vector<Index>, 2> lengths_, offsets_;  // of queries and keys
  std::vector<StridedTensor<T>> values_;  // q, k, v, normalizer_q, normalizer_k, dout
  Matrix<bool> query_mask_, key_mask_;
  BatchInputs<T> in_;
};

}  // namespace mhla::test
