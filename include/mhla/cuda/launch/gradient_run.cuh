#pragma once

/// \file
/// Kernels of a planned gradient (gradient_layout.cuh), in launch order:
///
///     (forward) -> quadratic_gradient -> ordered_sums                     few tokens, or
///     fused_gradient -> ordered_sums                                      few blocks, or
///     transposed_mixing -> kernels of block_gradient.cuh
///       -> (sum_products) -> ordered_sums                                 more blocks, or
///
///     transposed_mixing, or intra_weights -> (forward) -> features
///       -> token_sums, mixed_sums, or decay_mixing, (intra_block_sums, scores)
///       -> output_gradients -> products and summary_products, or kernels of block_gradient.cuh,
///       decay_products or score_products
///       -> ordered_sums, or decay_sums
///       -> (intra_block) -> input_gradients -> (gain_sums)
///
/// The order of every sum depends on sizes and the device alone, so that bits are the same in every
/// run.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/decay_mixing_sm80.cuh"
#include "mhla/cuda/kernel/features_sm80.cuh"
#include "mhla/cuda/kernel/gain_sums_sm80.cuh"
#include "mhla/cuda/kernel/input_gradients_sm80.cuh"
#include "mhla/cuda/kernel/intra_block_sm80.cuh"
#include "mhla/cuda/kernel/intra_block_sums_sm80.cuh"
#include "mhla/cuda/kernel/intra_weights.cuh"
#include "mhla/cuda/kernel/mixed_sums_sm80.cuh"
#include "mhla/cuda/kernel/ordered_sums.cuh"
#include "mhla/cuda/kernel/output_gradients_sm80.cuh"
#include "mhla/cuda/kernel/scores_sm80.cuh"
#include "mhla/cuda/kernel/token_sums_sm80.cuh"
#include "mhla/cuda/kernel/transposed_mixing.cuh"
#include "mhla/cuda/launch/block_gradient.cuh"
#include "mhla/cuda/launch/forms.cuh"
#include "mhla/cuda/launch/gradient_layout.cuh"
#include "mhla/cuda/launch/mixing_gradient.cuh"
#include "mhla/cuda/launch/one_kernel_gradient.cuh"

namespace mhla::cuda {

/// Launches the kernels of a gradient that selects no tokens.
template <class T, int D, int E, bool kCausal, bool kRotary>
class GradientRun {
  using Layout = GradientLayout<D, E, kCausal, kRotary>;
  static constexpr int kHalfWidth = Layout::kHalfWidth;
  static constexpr int kHalves = Layout::kHalves;

 public:
  explicit GradientRun(const Layout& layout) : l_(layout), mixing_(layout) {}

  template <class Stream>
  void operator()(const Stream& stream) const {
    if (l_.pairs() == 0) {
      if (l_.wants_mixing()) mixing_.add_parts(stream);
      if (l_.problem.wants.gain) add_gain_parts(stream);
      return;
    }
    if (l_.one_kernel()) {
      compute_outputs(stream);
      OneKernelGradientRun<T, D, E, kCausal, kRotary>{l_}(stream);
      if (l_.wants_mixing()) mixing_.add_parts(stream);
      return;
    }
    prepare_mixing(stream);
    if (!l_.plan.staged) {
      compute_outputs(stream);
      make_features(stream);
      make_denominators(stream);
      make_output_gradients(stream);
      mix_weights(stream);
    }
    if (l_.plan.blocks) {
      BlockGradientRun<T, D, E, kCausal, kRotary>{l_}(stream);
    } else {
      for (int h = 0; h < kHalves; ++h) multiply_half(h, stream);
    }
    if (l_.wants_mixing()) mixing_.sum(stream);
    if (l_.plan.staged) return;
    if (l_.problem.wants.v && !l_.plan.blocks) {
      run<T, D, E, false>(l_.plan.values, l_.value_product(), l_.transposed(), l_.first, l_.device,
                          stream);
    }
    if constexpr (kCausal) add_intra_blocks(stream);
    finish_inputs(stream);
    if (l_.problem.wants.gain) sum_gain(stream);
  }

 private:
  template <class Stream>
  void prepare_mixing(const Stream& stream) const {
    if constexpr (kCausal) {
      if (l_.decays()) {
        stream.template run<IntraWeightsSm80>({l_.terms(), l_.arrays.intra_weights}, l_.pairs());
        return;
      }
    }
    stream.template run<TransposedMixingSm80>(
        {l_.mixing, l_.mq(), l_.mk(), kCausal, l_.arrays.strict, l_.arrays.transposed,
         l_.forward().heads, l_.matrices()},
        l_.pairs());
  }

  /// Computes the outputs again if gradients need them and the caller has not kept them.
  template <class Stream>
  void compute_outputs(const Stream& stream) const {
    if (!l_.computes_outputs()) return;
    run<T, D, E, kCausal, kRotary>(l_.plan.outputs, detail::outputs_of(l_.problem, l_.arrays.out),
                                   l_.mixing, l_.first, l_.device, stream);
  }

  template <class Stream>
  void make_features(const Stream& stream) const {
    const auto make = [&](const ConstTokenTensor& x, const TokenTensor& features,
                          const TokenBlocks& blocks, const FeatureMap& map,
                          const RotaryAngles& angles) {
      if (features.data == nullptr) return;
      stream.template run<FeaturesSm80<T, D>>({x, features, blocks.tokens(), l_.forward().heads,
                                               map, kRotary ? angles : RotaryAngles{}},
                                              l_.pairs());
    };
    make(l_.forward().q, l_.arrays.query_features, l_.forward().query_blocks,
         l_.forward().op.query_map, l_.forward().query_angles);
    make(l_.forward().k, l_.arrays.key_features, l_.forward().key_blocks, l_.forward().op.key_map,
         l_.forward().key_angles);
  }

  /// Computes the sums that denominators read.
  template <class Stream>
  void make_denominators(const Stream& stream) const {
    if (!l_.key_sums() && !l_.cross()) return;
    stream.template run<TokenSumsSm80<T, D>>(
        {l_.forward().k, l_.forward().key_blocks, l_.forward().heads, l_.forward().op.key_map,
         nullptr, l_.arrays.key_sums},
        l_.pairs());
    if (l_.cross()) {
      stream.template run<ScoresSm80<T, D>>(
          {l_.forward().q, l_.forward().query_blocks, l_.forward().heads, l_.forward().op.query_map,
           l_.arrays.key_sums, l_.arrays.scores},
          l_.pairs());
      mix(l_.arrays.scores, l_.arrays.mixed_scores, l_.mixed(), l_.mq(), l_.mk(),
          l_.forward().query_blocks.slots(), stream);
      return;
    }
    mix_key_sums(false, l_.arrays.key_sums, l_.arrays.mixed_key_sums, stream);
    if constexpr (kCausal && !kRotary) {
      stream.template run<IntraBlockSumsSm80<T, D>>(
          {l_.query_features(), l_.key_features(), l_.forward().query_blocks, l_.forward().heads,
           l_.intra(), l_.arrays.intra_sums},
          l_.pairs());
    }
  }

  /// Mixes key sums, or sums of queries by the transposed matrix.
  template <class Stream>
  void mix_key_sums(bool transposed, float* x, float* y, const Stream& stream) const {
    if constexpr (kCausal) {
      if (l_.decays()) {
        stream.template run<DecayMixingSm80<factor_t<T>, D, E, Precision::kSingle>>(
            {.in = {nullptr, nullptr, x},
             .out = {nullptr, nullptr, y},
             .terms = l_.terms(),
             .blocks = l_.mk(),
             .later = transposed},
            l_.pairs());
        return;
      }
    }
    const std::int32_t rows = transposed ? l_.mk() : l_.mq(),
                       columns = transposed ? l_.mq() : l_.mk();
    mix(x, y, transposed ? l_.transposed() : l_.mixed(), rows, columns, D, stream);
  }

  template <class Stream>
  void mix(const float* x, float* y, const MixingArray& mixing, std::int32_t rows,
           std::int32_t columns, std::int32_t width, const Stream& stream) const {
    stream.template run<MixedSumsSm80>({x, y, mixing, rows, columns, width, l_.forward().heads},
                                       l_.pairs());
  }

  template <class Stream>
  void make_output_gradients(const Stream& stream) const {
    const bool computed = l_.problem.computes_outputs();
    stream.template run<OutputGradientsSm80<T, D, E>>(
        {.q = l_.forward().q,
         .dout = l_.problem.dout,
         .out = computed ? read_only(l_.arrays.out) : l_.problem.out,
         .dn = l_.arrays.dn,
         .weights = l_.arrays.weights,
         .blocks = l_.forward().query_blocks,
         .heads = l_.forward().heads,
         .map = l_.forward().op.query_map,
         .normalization = l_.forward().normalization(),
         .key_sums = l_.arrays.mixed_key_sums,
         .intra_sums = l_.arrays.intra_sums,
         .scores = l_.arrays.mixed_scores,
         .norm = l_.forward().norm,
         .dgate = l_.problem.dgate,
         .inverse_norms = l_.arrays.inverse_norms},
        l_.pairs());
  }

  /// Computes the denominators' part of the keys' gradients.
  template <class Stream>
  void mix_weights(const Stream& stream) const {
    if (!l_.key_sums() && !l_.cross()) return;
    if (l_.cross()) {
      mix(l_.arrays.weights, l_.arrays.mixed_weights, l_.transposed(), l_.mk(), l_.mq(),
          l_.forward().query_blocks.slots(), stream);
    }
    stream.template run<TokenSumsSm80<T, D>>(
        {l_.forward().q, l_.forward().query_blocks, l_.forward().heads, l_.forward().op.query_map,
         l_.cross() ? l_.arrays.mixed_weights : l_.arrays.weights, l_.arrays.query_sums},
        l_.pairs());
    if (l_.key_sums()) {
      mix_key_sums(true, l_.arrays.query_sums, l_.arrays.mixed_query_sums, stream);
    }
  }

  /// Computes dphi(Q) and dphi(K) of half h of the values, and that half's part of dm.
  template <class Stream>
  void multiply_half(int h, const Stream& stream) const {
    const auto multiply = [&](bool wanted, const Plan& plan, const Problem& product,
                              const MixingArray& mixing, unsigned char* workspace) {
      if (wanted) run<T, kHalfWidth, D, false>(plan, product, mixing, workspace, l_.device, stream);
      if (l_.keeps_summaries() && !(wanted && plan.form == Form::kThreeStage)) {
        mixing_.summarise(product, workspace, stream);
      }
    };
    multiply(l_.problem.wants.q, l_.plan.queries, l_.query_product(h), l_.mixed(), l_.first);
    multiply(l_.problem.wants.k, l_.plan.keys, l_.key_product(h), l_.transposed(), l_.second);
    if (l_.keeps_summaries()) mixing_.multiply_summaries(h, stream);
  }

  /// Adds the gradients that come from the token's own block.
  template <class Stream>
  void add_intra_blocks(const Stream& stream) const {
    const auto intra = [&](ConstTokenTensor a, ConstTokenTensor b, ConstTokenTensor c,
                           const TokenTensor& y) -> IntraBlockParameters {
      return {a, b, c, y, l_.forward().query_blocks, l_.forward().heads, l_.intra()};
    };
    const ConstTokenTensor dn = read_only(l_.arrays.dn);
    const float* const weights = l_.key_sums() ? l_.arrays.weights : nullptr;
    if (l_.problem.wants.q) {
      IntraBlockParameters p =
          intra(dn, l_.forward().v, l_.key_features(), l_.arrays.dquery_features[0]);
      p.row_weights = weights;
      run_intra_block<E, D, false>(p, stream);
    }
    if (l_.problem.wants.k) {
      IntraBlockParameters p =
          intra(l_.forward().v, dn, l_.query_features(), l_.arrays.dkey_features[0]);
      p.column_weights = weights;
      run_intra_block<E, D, true>(p, stream);
    }
    if (l_.problem.wants.v) {
      run_intra_block<D, E, true>(intra(l_.key_features(), l_.query_features(), dn, l_.problem.dv),
                                  stream);
    }
  }

  /// Launches the kernel for c, or for parts of its columns. Wide floats are multiplied in halves
  /// of a and b, the first of which adds the weights.
  template <int K, int C, bool kLater, class Stream>
  void run_intra_block(IntraBlockParameters p, const Stream& stream) const {
    constexpr int kHalf = kIsFloat<T> ? cuda::kHalfWidth<K> : K;
    constexpr int kParts = kIntraBlockParts<T, kHalf, C>;
    const std::int32_t bytes = l_.forward().number_bytes();
    for (int half = 0; half < K / kHalf; ++half) {
      IntraBlockParameters of_part = p;
      for (int part = 0; part < kParts; ++part) {
        stream.template run<IntraBlockSm80<T, kHalf, C / kParts, kLater>>(of_part, l_.pairs());
        of_part.c.data += bytes * C / kParts, of_part.y.data += bytes * C / kParts;
      }
      p.a.data += bytes * kHalf, p.b.data += bytes * kHalf;
      p.row_weights = p.column_weights = nullptr;
    }
  }

  template <class Stream>
  void finish_inputs(const Stream& stream) const {
    const auto finish = [&](const ConstTokenTensor& x, const TokenTensor(&parts)[2],
                            const TokenTensor& dx, const TokenBlocks& blocks, const FeatureMap& map,
                            const RotaryAngles& angles, const float* weights,
                            const float* vectors) {
      if (dx.data == nullptr) return;
      stream.template run<InputGradientsSm80<T, D>>(
          {.x = x,
           .dfeatures = read_only(parts[0]),
           .dfeatures_added = kHalves > 1 ? read_only(parts[1]) : ConstTokenTensor{},
           .dx = dx,
           .blocks = blocks,
           .heads = l_.forward().heads,
           .map = map,
           .angles = kRotary ? angles : RotaryAngles{},
           .weights = weights,
           .vectors = vectors},
          l_.pairs());
    };
    finish(l_.forward().q, l_.arrays.dquery_features, l_.problem.dq, l_.forward().query_blocks,
           l_.forward().op.query_map, l_.forward().query_angles,
           l_.cross() ? l_.arrays.mixed_weights : l_.arrays.weights,
           l_.cross() ? l_.arrays.key_sums : l_.arrays.mixed_key_sums);
    finish(l_.forward().k, l_.arrays.dkey_features, l_.problem.dk, l_.forward().key_blocks,
           l_.forward().op.key_map, l_.forward().key_angles, nullptr,
           l_.cross() ? l_.arrays.query_sums : l_.arrays.mixed_query_sums);
  }

  template <class Stream>
  void sum_gain(const Stream& stream) const {
    stream.template run<GainSumsSm80<T, E>>({.dout = l_.problem.dout,
                                             .out = read_only(l_.arrays.out),
                                             .inverse_norms = l_.arrays.inverse_norms,
                                             .blocks = l_.forward().query_blocks,
                                             .heads = l_.forward().heads,
                                             .norm = l_.forward().norm,
                                             .items = l_.items(),
                                             .chunks = l_.gain_chunks(),
                                             .parts = l_.arrays.gain_parts},
                                            l_.pairs());
    add_gain_parts(stream);
  }

  template <class Stream>
  void add_gain_parts(const Stream& stream) const {
    stream.template run<OrderedSumsSm80>({.parts = l_.arrays.gain_parts,
                                          .count = l_.pairs() > 0 ? l_.gain_chunks() : 0,
                                          .rows = 1,
                                          .columns = E,
                                          .lower = false,
                                          .intra_parts = nullptr,
                                          .intra_count = 0,
                                          .sums = l_.problem.dgain,
                                          .stride = E},
                                         l_.pairs());
  }

  const Layout& l_;
  MixingGradientRun<T, D, E, kCausal, kRotary> mixing_;
};

}  // namespace mhla::cuda
