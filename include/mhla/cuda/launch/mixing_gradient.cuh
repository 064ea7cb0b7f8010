#pragma once

/// \file
/// Kernels of the mixing matrix's gradient. They multiply summaries or scores, and the
/// denominators' sums, in parts. A last kernel adds the parts in order. Decaying terms have kernels
/// of their own for the products of summaries and for the last sums.

#include <algorithm>
#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/decay_products_sm80.cuh"
#include "mhla/cuda/kernel/decay_sums.cuh"
#include "mhla/cuda/kernel/ordered_sums.cuh"
#include "mhla/cuda/kernel/score_products_sm80.cuh"
#include "mhla/cuda/kernel/sum_products_sm80.cuh"
#include "mhla/cuda/kernel/summary_products_sm80.cuh"
#include "mhla/cuda/launch/forms.cuh"
#include "mhla/cuda/launch/gradient_layout.cuh"

namespace mhla::cuda {

/// Launches the kernels into a stream.
template <class T, int D, int E, bool kCausal, bool kRotary>
class MixingGradientRun {
  using Layout = GradientLayout<D, E, kCausal, kRotary>;
  static constexpr int kHalfWidth = Layout::kHalfWidth;

 public:
  explicit MixingGradientRun(const Layout& layout) : l_(layout) {}

  /// Launches the summary stage of a product alone.
  template <class Stream>
  void summarise(const Problem& product, unsigned char* workspace, const Stream& stream) const {
    const Plan plan =
        detail::planned<kHalfWidth, D>(product, l_.device, Form::kThreeStage, "summaries alone");
    const SummaryParameters stage = summary_stage(product, arrays_of(product, workspace));
    if (l_.forward().op.summaries == Precision::kPair) {
      detail::run_summaries<T, kHalfWidth, D, Precision::kPair>(plan, stage, l_.pairs(), l_.device,
                                                                stream);
    } else if constexpr (!kIsFloat<T>) {
      detail::run_summaries<T, kHalfWidth, D, Precision::kSingle>(plan, stage, l_.pairs(),
                                                                  l_.device, stream);
    }
  }
  WorkspaceArrays arrays_of(const Problem& product, unsigned char* workspace) const {
    return workspace_arrays<kHalfWidth, D>(product, scratch_of<kHalfWidth, D>(product, l_.device),
                                           workspace);
  }

  template <class Stream>
  void multiply_summaries(int h, const Stream& stream) const {
    multiply(h, arrays_of(l_.query_product(h), l_.first).summaries,
             arrays_of(l_.key_product(h), l_.second).summaries, stream);
  }

  /// Multiplies the summaries of half h of the values, S, with their gradients, dS~.
  template <class Stream>
  void multiply(int h, const SummaryArray& columns, const SummaryArray& rows,
                const Stream& stream) const {
    const float factor = inverse_power(rows.scale) * inverse_power(columns.scale);
    if constexpr (kCausal) {
      if (l_.decays()) {
        multiply_decaying(h, columns, rows, factor, stream);
        return;
      }
    }
    SummaryProductParameters p = l_.summary_products();
    p.factor = factor;
    p.matrix_parts = l_.matrix_parts();
    const std::int64_t step = std::int64_t{p.chunks} * p.slices() * l_.mq() * l_.mk();
    p.parts += h * l_.half_parts() * (std::int64_t{l_.mq()} * l_.mk());
    const auto add = [&](const unsigned char* x, const unsigned char* y) {
      p.rows_data = x;
      p.columns_data = y;
      stream.template run<SummaryProductsSm80<factor_t<T>, kHalfWidth * D>>(p, l_.pairs());
      p.parts += step;
    };
    add(rows.high, columns.high);
    if (l_.forward().op.summaries == Precision::kPair) {
      add(rows.high, columns.low);
      add(rows.low, columns.high);
    }
  }

  template <class Stream>
  void sum(const Stream& stream) const {
    constexpr int kColumns = kIsFloat<T> ? kHalfWidth : E;
    const auto multiply = [&](ScoreProductParameters p, std::int64_t matrix_parts) {
      p.matrix_parts = matrix_parts;
      stream.template run<ScoreProductsSm80<T, D, kColumns>>(p, l_.pairs());
    };
    if (l_.plan.scores) multiply(l_.score_products(false), l_.matrix_parts());
    if constexpr (kCausal) {
      for (int h = 0; h < E / kColumns; ++h) {
        multiply(l_.intra_products(h), std::int64_t{l_.intra_parts()} * l_.mq());
      }
    }
    if (l_.adds_sums()) {
      SumProductParameters p = l_.sum_products();
      p.parts += l_.product_parts() * (std::int64_t{l_.mq()} * l_.mk());
      p.matrix_parts = l_.matrix_parts();
      stream.template run<SumProductsSm80>(p, l_.pairs());
    }
    add_parts(stream);
  }

  /// Adds all parts in order. Without heads there are no parts, and gradients are 0.
  template <class Stream>
  void add_parts(const Stream& stream) const {
    const bool any = l_.pairs() > 0;
    const std::uint32_t* const strips = l_.mixing.strips;
    if constexpr (kCausal) {
      if (l_.decays()) {
        stream.template run<DecaySumsSm80>(
            {.terms = l_.terms(),
             .parts = l_.arrays.mixing_parts,
             .count = any ? l_.mixing_parts() : 0,
             .intra_parts = l_.arrays.intra_parts,
             .intra_count = any ? std::int64_t{l_.intra_parts()} * l_.mq() : 0,
             .sums = l_.problem.dmixing.data,
             .stride = l_.problem.dmixing.stride,
             .item_stride = l_.problem.dmixing.item_stride,
             .head_stride = l_.problem.dmixing.head_stride},
            l_.pairs());
        return;
      }
    }
    stream.template run<OrderedSumsSm80>(
        {.parts = l_.arrays.mixing_parts,
         .count = any ? l_.mixing_parts() : 0,
         .rows = l_.mq(),
         .columns = l_.mk(),
         .lower = kCausal,
         .intra_parts = l_.arrays.intra_parts,
         .intra_count = any && kCausal ? l_.intra_parts() : 0,
         .sums = l_.problem.dmixing.data,
         .stride = l_.problem.dmixing.stride,
         .item_stride = l_.problem.dmixing.item_stride,
         .head_stride = l_.problem.dmixing.head_stride,
         .heads = Divisor(std::max(l_.forward().heads, 1)),
         .matrices = l_.matrices(),
         .pattern = strips != nullptr ? strips + l_.pattern().coefficients() : nullptr},
        l_.pairs());
  }

 private:
  /// Multiplies the summaries of half h of the values along the recurrence of decaying terms.
  template <class Stream>
  void multiply_decaying(int h, const SummaryArray& summaries, const SummaryArray& gradients,
                         float factor, const Stream& stream) const {
    DecayProductParameters p = l_.decay_products(h);
    const auto take = [](const SummaryArray& from, SummaryArray& to) {
      to.high = from.high, to.low = from.low, to.capacity = from.capacity;
    };
    take(summaries, p.summaries);
    take(gradients, p.gradients);
    p.factor = factor;
    if (l_.forward().op.summaries == Precision::kPair) {
      stream.template run<DecayProductsSm80<factor_t<T>, kHalfWidth * D, Precision::kPair>>(
          p, l_.pairs());
    } else {
      stream.template run<DecayProductsSm80<factor_t<T>, kHalfWidth * D, Precision::kSingle>>(
          p, l_.pairs());
    }
  }

  const Layout& l_;
};

}  // namespace mhla::cuda
