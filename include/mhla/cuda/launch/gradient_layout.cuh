#pragma once

/// \file
/// Layout of a gradient: its plan, its products, their workspaces, and the parts of its sums.
///
/// With F(a, b, c; m) the form without feature maps and denominators,
/// y_t = sum_j m_(block of t)(block of j) (a_t . b_j) c_j,
///
///     dphi(Q) = F(dN, V, phi(K); m)       dphi(K) = F(V, dN, phi(Q); m^T)
///     dV      = F(phi(K), phi(Q), dN; m^T)
///     dm_ib   = sum over the matrix's pairs of <dS~_i, S_b>, or of scores where tokens are few
///
/// so that each product runs in the form that is planned for it. A causal form mixes by the
/// strictly lower triangle, and further kernels add the token's own block. For few tokens one
/// kernel computes all gradients (quadratic_gradient_sm80.cuh), and for few blocks another one
/// (fused_gradient_sm80.cuh). Two kernels for more blocks read S~ or dS (block_gradient.cuh).
///
/// With decaying terms, products by m^T are the recurrence from the last block on, and gradients of
/// the terms come from one over S and dS~ (decay_products_sm80.cuh). No array has M^2 numbers.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/decay_products_sm80.cuh"
#include "mhla/cuda/kernel/fused_gradient_sm80_config.cuh"
#include "mhla/cuda/kernel/intra_weights.cuh"
#include "mhla/cuda/kernel/pattern_bits.cuh"
#include "mhla/cuda/kernel/quadratic_gradient_sm80_config.cuh"
#include "mhla/cuda/kernel/score_products_sm80.cuh"
#include "mhla/cuda/kernel/sum_products_sm80.cuh"
#include "mhla/cuda/kernel/summary_products_sm80.cuh"
#include "mhla/cuda/launch/gradient_plan.cuh"
#include "mhla/cuda/launch/gradient_problem.cuh"
#include "mhla/cuda/launch/gradient_workspace.cuh"
#include "mhla/cuda/launch/plan.cuh"
#include "mhla/cuda/launch/stages.cuh"
#include "mhla/cuda/launch/workspace.cuh"

namespace mhla::cuda {

/// Arrays and products of a gradient.
/// \tparam kRotary  problem.forward.rotary
template <int D, int E, bool kCausal, bool kRotary>
struct GradientLayout {
  static constexpr int kHalfWidth = cuda::kHalfWidth<E>;
  static constexpr int kHalves = cuda::kHalves<E>;
  static constexpr int kSlabs = SummaryProductsSm80<bfloat16, kHalfWidth * D>::kSlabs;
  using DecayProducts = DecayProductsSm80<bfloat16, kHalfWidth * D, Precision::kSingle>;

  /// Counts the workspace's bytes where `workspace` is null.
  /// \param made  the plan of a problem of the same layout, or null to make it
  GradientLayout(const GradientProblem& of, MixingArray coefficients, unsigned char* workspace,
                 const Device& target, const GradientPlan* made = nullptr)
      : problem(of), mixing(coefficients), device(target), place_(workspace) {
    plan = made != nullptr ? *made : detail::kernels_of<D, E, kRotary>(forward(), device);
    if (made == nullptr) plan.blocks = plan.staged || products_take_blocks();
    one_kernel() ? place_one_kernel() : place_arrays();
    if (made == nullptr) plan_products();
    place_products();
  }

  GradientProblem problem;
  MixingArray mixing;
  Device device;
  GradientArrays arrays{};
  GradientPlan plan{};
  unsigned char *first = nullptr, *second = nullptr;  ///< workspaces of products

  const Problem& forward() const { return problem.forward; }
  std::int32_t pairs() const { return forward().pairs(); }
  std::int32_t matrices() const { return forward().matrices(); }
  std::int32_t pairs_of_matrix() const { return matrices() > 0 ? pairs() / matrices() : 0; }
  std::int32_t mq() const { return forward().query_blocks.blocks(); }
  std::int32_t mk() const { return forward().key_blocks.blocks(); }
  bool key_sums() const { return forward().op.denominator == Denominator::kKeySum; }
  bool cross() const { return forward().op.denominator == Denominator::kCrossQuery; }
  bool wants_mixing() const { return problem.wants.mixing; }
  /// Returns true if one kernel computes all gradients.
  bool one_kernel() const { return plan.quadratic || plan.fused; }
  /// Most thread blocks of that kernel.
  std::int32_t thread_blocks() const { return matrices() > 1 ? pairs() : device.multiprocessors; }
  /// Returns true if the outputs of the forward call are computed again.
  bool computes_outputs() const {
    return !plan.fused && !plan.staged && problem.computes_outputs();
  }
  /// Returns true if the mixing matrix is a sum of decaying terms.
  bool decays() const { return kCausal && forward().decays(); }
  /// Returns true if the features are the tensor itself.
  bool is_plain(const FeatureMap& map) const { return map == FeatureMap::identity() && !kRotary; }
  /// Returns true if the mixing matrix's gradient reads the summaries of products.
  bool keeps_summaries() const { return wants_mixing() && !plan.scores; }

  // ---- products ----

  ConstTokenTensor query_features() const {
    return is_plain(forward().op.query_map) ? forward().q : read_only(arrays.query_features);
  }
  ConstTokenTensor key_features() const {
    return is_plain(forward().op.key_map) ? forward().k : read_only(arrays.key_features);
  }
  Problem query_product(int h) const {
    return detail::product_of(forward(), values_half(read_only(arrays.dn), h),
                              values_half(forward().v, h), key_features(),
                              arrays.dquery_features[h], false);
  }
  Problem key_product(int h) const {
    return detail::product_of(forward(), values_half(forward().v, h),
                              values_half(read_only(arrays.dn), h), query_features(),
                              arrays.dkey_features[h], true);
  }
  Problem value_product() const {
    return detail::product_of(forward(), key_features(), query_features(), read_only(arrays.dn),
                              problem.dv, true);
  }
  /// Coefficients by which blocks of queries read blocks of keys.
  MixingArray mixed() const {
    return kCausal && !decays() ? copies(arrays.strict, mk(), 0) : mixing;
  }
  MixingArray transposed() const {
    return decays() ? mixing : copies(arrays.transposed, mq(), pattern().transposed());
  }
  /// Layout of the matrices' pattern.
  PatternBits pattern() const { return {mq(), mk()}; }
  /// Coefficients by which blocks of a causal form read themselves.
  MixingArray intra() const {
    return decays() ? intra_mixing(arrays.intra_weights, forward().op.matrices, forward().heads)
                    : mixing;
  }
  DecayArray terms() const { return decay_array(forward(), mixing); }

  /// The problem whose summaries are S and S~ of plan.blocks, and the one of dS~ and dS.
  Problem stages() const {
    if (plan.staged) return forward();
    return detail::product_of(forward(), query_features(), key_features(), forward().v, {}, false);
  }
  Problem backward() const { return detail::exchanged(stages()); }
  WorkspaceArrays stage_arrays() const { return arrays_of(stages(), first); }
  WorkspaceArrays gradient_arrays() const { return arrays_of(backward(), second); }

  // ---- parts of sums ----

  SummaryProductParameters summary_products() const {
    SummaryProductParameters p{.rows_data = nullptr,
                               .columns_data = nullptr,
                               .rows = mq(),
                               .columns = mk(),
                               .slabs = pairs_of_matrix() * kSlabs,
                               .chunks = 1,
                               .lower = kCausal,
                               .factor = 1,
                               .parts = arrays.mixing_parts,
                               .matrices = matrices(),
                               .strips = mixing.strips};
    p.chunks = detail::chunks_of(p.slabs, p.tiles() * matrices());
    return p;
  }
  SumProductParameters sum_products() const {
    SumProductParameters p{.x = key_sums() ? arrays.query_sums : arrays.weights,
                           .y = key_sums() ? arrays.key_sums : arrays.scores,
                           .rows = mq(),
                           .columns = mk(),
                           .width = key_sums() ? D : forward().query_blocks.slots(),
                           .pairs = pairs_of_matrix(),
                           .chunks = 1,
                           .parts = arrays.mixing_parts,
                           .matrices = matrices()};
    p.chunks = detail::chunks_of(p.pairs, std::int64_t{SumProductsSm80::tiles(p)} * matrices());
    return p;
  }
  ScoreProductParameters score_products(bool intra) const {
    ScoreProductParameters p{.q = query_features(),
                             .k = key_features(),
                             .v = forward().v,
                             .dn = read_only(arrays.dn),
                             .weights = key_sums() ? arrays.weights : nullptr,
                             .query_blocks = forward().query_blocks,
                             .key_blocks = forward().key_blocks,
                             .heads = forward().heads,
                             .pairs = pairs_of_matrix(),
                             .chunks = 1,
                             .intra = intra,
                             .parts = intra ? arrays.intra_parts : arrays.mixing_parts,
                             .matrices = matrices()};
    p.chunks = detail::chunks_of(p.pairs, ((p.items() - 1) / 8 + std::int64_t{1}) * matrices());
    return p;
  }
  /// Products of half h of the values of floats, the first of which adds the weights, or of all.
  ScoreProductParameters intra_products(int h) const {
    ScoreProductParameters p = score_products(true);
    if (h == 0) return p;
    p.v = values_half(p.v, h), p.dn = values_half(p.dn, h);
    p.weights = nullptr;
    p.parts += h * std::int64_t{p.chunks} * p.row_parts() * mq();
    return p;
  }

  /// Products of half h of the values, and with the first half those of key sums.
  DecayProductParameters decay_products(int h) const {
    DecayProductParameters p{.summaries = {},
                             .gradients = {},
                             .width = D,
                             .terms = terms(),
                             .blocks = mk(),
                             .factor = 1,
                             .parts = arrays.mixing_parts + h * half_parts() * numbers(),
                             .matrix_parts = matrix_parts()};
    if (h == 0 && key_sums()) {
      p.summaries.key_sum = arrays.key_sums;
      p.gradients.key_sum = arrays.query_sums;
    }
    return p;
  }

  /// Number of parts of the products of one half of the values.
  std::int32_t half_parts() const {
    if (decays()) return decay_parts(1);
    const SummaryProductParameters p = summary_products();
    const std::int32_t products = forward().op.summaries == Precision::kPair ? 3 : 1;
    return products * p.chunks * p.slices();
  }
  std::int32_t product_parts() const {
    if (decays()) return decay_parts(kHalves);
    if (!plan.scores) return kHalves * half_parts();
    const ScoreProductParameters p = score_products(false);
    return p.chunks * p.row_parts();
  }
  /// Returns true if denominators add parts to the mixing matrix's gradient. Parts of scores and of
  /// decaying terms already include key sums.
  bool adds_sums() const { return cross() || (key_sums() && !plan.scores && !decays()); }
  /// Number of parts of a matrix's gradient.
  std::int32_t mixing_parts() const {
    if (one_kernel()) {
      return QuadraticGradientParameters::parts_of(pairs_of_matrix(), thread_blocks());
    }
    return product_parts() + (adds_sums() ? sum_products().chunks : 0);
  }
  /// Numbers of a part of a matrix's gradient.
  std::int64_t numbers() const {
    return decays() ? std::int64_t{2} * forward().op.decay_terms : std::int64_t{mq()} * mk();
  }
  /// Numbers of all parts of a matrix's gradient.
  std::int64_t matrix_parts() const { return mixing_parts() * numbers(); }
  /// Number of parts that a causal form's own blocks add to a matrix's gradient.
  std::int32_t intra_parts() const {
    const ScoreProductParameters p = intra_products(0);
    return (forward().floats ? kHalves : 1) * p.chunks * p.row_parts();
  }
  std::int32_t items() const { return pairs() * mq(); }
  std::int32_t gain_chunks() const { return detail::chunks_of(items(), 2); }

 private:
  ConstTokenTensor values_half(const ConstTokenTensor& x, int h) const {
    return half_of<E>(x, h, forward().number_bytes());
  }
  /// Number of parts of decaying terms, of some halves of the values.
  std::int32_t decay_parts(std::int32_t halves) const {
    constexpr auto kTiles = static_cast<std::int32_t>(DecayProducts::kSummaryTiles);
    return pairs_of_matrix() * (halves * kTiles + (key_sums() ? 1 : 0));
  }
  /// Copies of all matrices, with rows of `columns` numbers.
  /// \param strips  place of their strips in the pattern
  MixingArray copies(const float* data, std::int32_t columns, std::int64_t strips) const {
    MixingArray array{data, columns};
    if (mixing.strips != nullptr) array.strips = mixing.strips + strips;
    const std::int64_t size = std::int64_t{mq()} * mk();
    if (forward().op.matrices != Matrices::kShared) array.head_stride = size;
    if (forward().op.matrices == Matrices::kPerItemAndHead) {
      array.item_stride = forward().heads * size;
    }
    return array;
  }

  void place_one_kernel() {
    const std::int64_t nq = forward().query_blocks.tokens();
    arrays.out = place_.tensor(computes_outputs(), forward(), nq, E);
    arrays.mixing_parts = place_.floats(wants_mixing(), matrices() * matrix_parts());
    if (!plan.fused || !wants_mixing()) return;
    arrays.kept =
        place_.bytes(kept_bytes(FusedGradientParameters::parts_of(pairs(), thread_blocks())));
  }

  /// Bytes of S of so many pairs, as the kernel of plan.fused keeps it.
  std::int64_t kept_bytes(std::int32_t of_pairs) const {
    return std::int64_t{of_pairs} * (detail::fused_gradient_blocks<D, E>(device) > 8 ? 32 : 16) *
           D * D;
  }

  std::size_t stage_bytes(const Problem& of) const {
    return workspace_parts<D, E>(of, scratch_of<D, E>(of, device)).bytes;
  }
  WorkspaceArrays arrays_of(const Problem& of, unsigned char* workspace) const {
    return workspace_arrays<D, E>(of, scratch_of<D, E>(of, device), workspace);
  }

  void place_arrays() {
    arrays.transposed = place_.floats(!decays(), std::int64_t{matrices()} * mq() * mk());
    arrays.mixing_parts = place_.floats(wants_mixing(), matrices() * matrix_parts());
    if (plan.staged) return;
    const std::int64_t nq = forward().query_blocks.tokens(), nk = forward().key_blocks.tokens();
    const std::int64_t p = pairs(), wq = forward().query_blocks.slots();
    const bool denominators = key_sums() || cross();
    arrays.out = place_.tensor(problem.computes_outputs(), forward(), nq, E);
    arrays.query_features = place_.tensor(!is_plain(forward().op.query_map), forward(), nq, D);
    arrays.key_features = place_.tensor(!is_plain(forward().op.key_map), forward(), nk, D);
    arrays.dn = place_.tensor(true, forward(), nq, E);
    for (int h = 0; h < kHalves; ++h) {
      arrays.dquery_features[h] = place_.tensor(problem.wants.q, forward(), nq, D);
      arrays.dkey_features[h] = place_.tensor(problem.wants.k, forward(), nk, D);
    }
    arrays.strict = place_.floats(kCausal && !decays(), std::int64_t{matrices()} * mq() * mk());
    arrays.intra_weights = place_.floats(decays(), matrices());
    arrays.key_sums = place_.floats(denominators, p * mk() * D);
    arrays.mixed_key_sums = place_.floats(key_sums(), p * mq() * D);
    arrays.intra_sums = place_.floats(key_sums() && kCausal, p * mq() * wq);
    arrays.scores = place_.floats(cross(), p * mq() * wq);
    arrays.mixed_scores = place_.floats(cross(), p * mq() * wq);
    arrays.weights = place_.floats(denominators, p * mq() * wq);
    arrays.query_sums = place_.floats(denominators, p * mq() * D);
    arrays.mixed_query_sums = place_.floats(key_sums(), p * mk() * D);
    arrays.mixed_weights = place_.floats(cross(), p * mk() * wq);
    arrays.inverse_norms = place_.floats(forward().norm.normed, p * mq() * wq);
    arrays.gain_parts = place_.floats(problem.wants.gain, std::int64_t{gain_chunks()} * E);
    arrays.intra_parts =
        place_.floats(wants_mixing() && kCausal, std::int64_t{matrices()} * intra_parts() * mq());
  }

  /// Returns true if products in three stages run in kernels of one block.
  bool products_take_blocks() const {
    return !one_kernel() && detail::takes_blocks<D, E>(forward(), device) &&
           cuda::plan<kHalfWidth, D>(query_product(0), device).form == Form::kThreeStage;
  }

  /// Plans the products, and the forward whose outputs gradients need.
  void plan_products() {
    const auto tokens =
        static_cast<std::uint64_t>(pairs()) * static_cast<std::uint64_t>(forward().number_bytes());
    const auto nq = tokens * static_cast<std::uint64_t>(forward().query_blocks.tokens());
    const auto nk = tokens * static_cast<std::uint64_t>(forward().key_blocks.tokens());
    if (computes_outputs()) {
      plan.outputs = cuda::plan<D, E>(detail::outputs_of(problem, arrays.out), device);
      plan.traffic += plan.outputs.traffic;
    }
    if (plan.quadratic) {
      plan.traffic.tensors += 4 * D * (nq + nk);
      return;
    }
    if (plan.fused || plan.blocks) plan.traffic.tensors += D * (3 * nq + 6 * nk);
    if (plan.fused && wants_mixing()) {
      plan.traffic.summaries += 2 * static_cast<std::uint64_t>(kept_bytes(pairs()));
    }
    if (plan.blocks) {
      const std::uint64_t all = detail::traffic<D, E>(stages(), Form::kThreeStage).summaries;
      plan.traffic.summaries += 2 * all + (wants_mixing() ? all / 2 : 0);
    }
    if (plan.fused || plan.staged) return;
    plan.traffic.tensors += nq * (5 * D + 3 * E) + nk * (6 * D);
    if (plan.blocks) return;
    plan.queries = cuda::plan<kHalfWidth, D>(query_product(0), device);
    plan.keys = cuda::plan<kHalfWidth, D>(key_product(0), device);
    plan.values = cuda::plan<D, E>(value_product(), device);
    for (int h = 0; h < kHalves; ++h) {
      plan.traffic += plan.queries.traffic;
      plan.traffic += plan.keys.traffic;
    }
    plan.traffic += plan.values.traffic;
  }

  /// Workspaces of the planned products.
  void place_products() {
    std::size_t first_bytes = plan.outputs.workspace_bytes, second_bytes = 0;
    if (plan.blocks) {
      first_bytes = std::max(first_bytes, stage_bytes(stages()));
      second_bytes = stage_bytes(backward());
    } else if (!one_kernel()) {
      first_bytes = std::max(
          {first_bytes, bytes_of(query_product(0), plan.queries), plan.values.workspace_bytes});
      second_bytes = bytes_of(key_product(0), plan.keys);
    }
    first = place_.bytes(static_cast<std::int64_t>(first_bytes));
    second = place_.bytes(static_cast<std::int64_t>(second_bytes));
    plan.workspace_bytes = place_.used();
    if (!plan.staged || first == nullptr) return;
    arrays.key_sums = stage_arrays().summaries.key_sum;
    arrays.query_sums = gradient_arrays().summaries.key_sum;
  }

  /// Bytes of a product's workspace, including its summaries if the mixing matrix's gradient reads
  /// them.
  std::size_t bytes_of(const Problem& product, const Plan& of) const {
    if (!keeps_summaries() || of.form == Form::kThreeStage) return of.workspace_bytes;
    return workspace_parts<kHalfWidth, D>(product, scratch_of<kHalfWidth, D>(product, device))
        .bytes;
  }

  WorkspaceCursor place_;
};

}  // namespace mhla::cuda
