#pragma once

/// \file
/// Mixing matrices without training: rows m_i >= 0 by least squares, such that MHLA reproduces the
/// outputs of another attention. This teacher may be softmax, linear, or MHLA with another matrix:
///
///     minimise  sum_t |den_t (o_t - target_t)|^2 / d_t^2  +  ridge |m_i - prior_i|^2
///
/// over the queries t of block i, of any number of examples. d_t are their denominators with the
/// start matrix. Without a normaliser, and at the start, this is the error of the output itself.
/// Otherwise a second fit, from the result of the first, comes closer to it.
///
/// Where a normaliser divides, a common factor of a row cancels. The factor is chosen to keep the
/// mean of the denominators: otherwise small denominators would look good. FitOptions::sum_to_one
/// divides the rows of the result by their sums.
///
///     mhla::MixingFit<float> fit(mhla::locality(blocks));  // or a banded or sparse start
///     for (const auto& example : examples) fit.add(example.in, blocks, op, example.target);
///     const auto m = fit.solve();  // fit.residual(m).total
///
/// The same sums serve coarser blocks, few nonzeros and any prior. Heads have a MixingFit each.
/// Cost per head, with M coefficients per row: 2 N M D E + N M^2 E flops in double, and memory of
/// (M + 1)^2 numbers for each of M rows, twice as many while an example is added. Cost of solve:
/// nonnegative.hpp.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mhla/attention/naive.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/fit/check.hpp"
#include "mhla/fit/fit_options.hpp"
#include "mhla/fit/nonnegative.hpp"
#include "mhla/fit/residual_rows.hpp"
#include "mhla/policy/mixing_matrix.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Sums over examples, from which a mixing matrix is solved.
template <Accumulator A>
class MixingFit {
 public:
  /// \param start  the matrix whose denominators weigh the tokens. Coefficients of its pattern are
  ///     fitted; for the causal form, on and below the diagonal. Rows without a query stay.
  /// \throws option_error for a coefficient that is not finite.
  explicit MixingFit(const MixingMatrix<A>& start, Order order = Order::kBidirectional);

  /// Adds the heads of an example: the inputs of the form, and the output that it should give.
  /// \param target  [N,E], of a batch [B,N,H,E]; not read for masked queries
  /// \throws as the form does; option_error if a number of the example is not finite. Nothing is
  ///     added then.
  template <AttentionInputs In, AttentionBlocks Blocks, OperatorOn<detail::scalar_of<In>> Op>
  requires std::same_as<detail::sum_of<In>, A> && DifferentiableNormalizer<detail::normalizer_t<Op>>
  void add(const In& in, const Blocks& blocks, const Op& op,
           const std::type_identity_t<detail::dout_of<In>>& target,
           const ExecutorRef& executor = {});

  /// Returns the matrix that fits best, in the pattern of the start. Rows are solved in parallel.
  /// \throws shape_error if the prior has another shape than the start; option_error for an option
  ///     or a prior that is not finite, a negative option, or if the denominators of a block's
  ///     queries sum to 0 or less, or to no number.
  MixingMatrix<A> solve(const FitOptions<A>& options = {}, const ExecutorRef& executor = {}) const;

  /// Returns the residual of any matrix in the pattern, from the sums above. It is exact for the
  /// start, and for any matrix if no normaliser divides.
  /// \throws shape_error if m has another shape than the start; option_error if it has a
  ///     coefficient outside the pattern.
  FitResidual residual(const MixingView<const A>& m) const;

  /// Returns the fit of coarser blocks, from the same sums. Query block i becomes part of block
  /// queries[i], key block b part of keys[b]. All parts of a block share its coefficients, and
  /// start from their mean.
  /// \throws shape_error unless there is a group for each block; option_error if a group is empty,
  ///     if groups of the causal form are not ascending and the same for both, or after CrossQuery,
  ///     whose slots another partition would change.
  MixingFit coarser(std::span<const Index> queries, std::span<const Index> keys) const;
  MixingFit coarser(std::span<const Index> blocks) const { return coarser(blocks, blocks); }

  /// Returns the problem of `count` coefficients x that all rows share: fitted coefficients are
  /// m_ib = sum_l x_l basis(l, i, b). Cost: M^3 count.
  /// \throws option_error if the denominators of all queries sum to 0 or less, or to no number.
  template <class Basis>
  NormalEquations normal_equations(Index count, Basis&& basis) const;

  const MixingMatrix<A>& start() const { return start_; }
  Order order() const { return order_; }
  /// Fitted columns of row i.
  std::span<const Index> columns(Index i) const { return columns_[static_cast<std::size_t>(i)]; }
  const detail::BlockSums& sums(Index i) const { return sums_[static_cast<std::size_t>(i)]; }

 private:
  void solve_row(Index i, const FitOptions<A>& options, MixingMatrix<A>& m) const;

  MixingMatrix<A> start_;
  Order order_;
  std::vector<std::vector<Index>> columns_;  // [Mq]
  std::vector<detail::BlockSums> sums_;      // [Mq]
  bool divides_ = false;                     // an example had a normaliser that divides
  bool cross_query_ = false;
};

// ------------------------------------------------------------------------------------------------

template <Accumulator A>
MixingFit<A>::MixingFit(const MixingMatrix<A>& start, Order order) : start_(start), order_(order) {
  detail::expect_finite("MixingFit", "start", start.view(), order);
  for (Index i = 0; i < start.rows(); ++i) {
    std::vector<Index>& row = columns_.emplace_back();
    start.pattern().for_each_in_row(i, [&](Index b, Index) {
      if (order == Order::kBidirectional || b <= i) row.push_back(b);
    });
    sums_.emplace_back(std::ssize(row));
  }
}

template <Accumulator A>
template <AttentionInputs In, AttentionBlocks Blocks, OperatorOn<detail::scalar_of<In>> Op>
requires std::same_as<detail::sum_of<In>, A> && DifferentiableNormalizer<detail::normalizer_t<Op>>
void MixingFit<A>::add(const In& in, const Blocks& blocks, const Op& op,
                       const std::type_identity_t<detail::dout_of<In>>& target,
                       const ExecutorRef& executor) {
  constexpr const char* kName = "MixingFit::add";
  const MixingView<const A> mixing = start_;
  detail::expect_batch(kName, in, target, "target");
  std::vector<detail::BlockSums> sums = sums_;
  for (Index s = 0; s < detail::sequences(in); ++s) {
    for (Index h = 0; h < detail::heads(in); ++h) {
      const auto head = detail::head_inputs(in, s, h);
      const auto out = detail::head_output(in, target, s, h);
      detail::expect_example(kName, head, blocks, mixing, op, order_, out, "target");
      const Index mq = detail::blocks_of(detail::query_blocks(blocks), head.q.rows).blocks();
      const Index mk = detail::blocks_of(detail::key_blocks(blocks), head.k.rows).blocks();
      const auto problem = naive_problem<double>(head, blocks, mixing, op, order_);
      const detail::ResidualRows rows(problem, mq, mk);
      executor.for_each(mq, [&](Index i, Index) {
        const std::span<const Index> all = columns(i);
        const auto there = std::lower_bound(all.begin(), all.end(), mk) - all.begin();
        rows.add(i, all.first(static_cast<std::size_t>(there)), out,
                 sums[static_cast<std::size_t>(i)]);
      });
    }
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (sums[i].finite()) continue;
    detail::fail_option(kName, "example",
                        "gives numbers that are not finite, in query block " + std::to_string(i),
                        "finite inputs and targets");
  }
  sums_ = std::move(sums);
  divides_ = divides_ || op.normalizer.sums() != WeightSums::kNone;
  cross_query_ = cross_query_ || op.normalizer.sums() == WeightSums::kCrossQuery;
}

template <Accumulator A>
void MixingFit<A>::solve_row(Index i, const FitOptions<A>& options, MixingMatrix<A>& m) const {
  const detail::BlockSums& sums = this->sums(i);
  const std::span<const Index> blocks = columns(i);
  const Index n = sums.columns();
  if (n == 0 || sums.queries == 0) return;
  std::vector<double> weights, right(static_cast<std::size_t>(n));
  if (divides_) {
    detail::expect_denominators("MixingFit::solve", sums.sum,
                                " in query block " + std::to_string(i));
    for (Index r = 0; r < n; ++r) weights.push_back(sums.sums(0, r) / sums.sum);
  } else if (options.sum_to_one) {
    weights.assign(right.size(), 1.0);
  }
  std::vector<double> prior(right.size());
  for (std::size_t r = 0; r < prior.size() && !options.prior.absent(); ++r) {
    prior[r] = double{options.prior(i, blocks[r])};
  }
  const bool scales = divides_ && options.sum_to_one;
  const double of_prior = std::inner_product(weights.begin(), weights.end(), prior.begin(), 0.0);
  Matrix<double> gram = sums.symmetric();
  const double ridge = options.ridge * sums.mean_diagonal();
  for (Index r = 0; r < n; ++r) {
    const std::size_t at = static_cast<std::size_t>(r);
    gram(r, r) += ridge;
    right[at] = sums.right(r) + ridge * prior[at] / (scales && of_prior > 0 ? of_prior : 1);
  }
  std::vector<double> row =
      nonnegative_least_squares(gram, right, {.weights = weights, .nonzeros = options.nonzeros});
  const double sum = std::accumulate(row.begin(), row.end(), 0.0);
  for (double& x : row) x /= scales ? sum : 1;
  for (std::size_t r = 0; r < row.size(); ++r) m.at(i, blocks[r]) = static_cast<A>(row[r]);
}

template <Accumulator A>
MixingMatrix<A> MixingFit<A>::solve(const FitOptions<A>& options,
                                    const ExecutorRef& executor) const {
  constexpr const char* kName = "MixingFit::solve";
  if (!(options.ridge >= 0 && std::isfinite(options.ridge)) || options.nonzeros < 0) {
    detail::fail_option(kName, "options",
                        "have a ridge of " + std::to_string(options.ridge) + " and nonzeros " +
                            std::to_string(options.nonzeros),
                        "finite numbers >= 0");
  }
  if (!options.prior.absent()) {
    detail::expect_mixing(kName, options.prior, start_.rows(), start_.cols(), "prior");
    detail::expect_finite(kName, "prior", options.prior, order_);
  }
  MixingMatrix<A> m = start_;
  executor.for_each(start_.rows(), [&](Index i, Index) { solve_row(i, options, m); });
  return m;
}

template <Accumulator A>
FitResidual MixingFit<A>::residual(const MixingView<const A>& m) const {
  constexpr const char* kName = "MixingFit::residual";
  detail::expect_mixing(kName, m, start_.rows(), start_.cols(), "m");
  detail::expect_within(kName, m, start_.pattern(), order_);
  const auto relative = [](double squares, double targets) {
    return targets > 0   ? std::sqrt(squares / targets)
           : squares > 0 ? std::numeric_limits<double>::infinity()
                         : 0;
  };
  FitResidual residual;
  double squares = 0, targets = 0;
  for (Index i = 0; i < start_.rows(); ++i) {
    const detail::BlockSums& sums = sums_[static_cast<std::size_t>(i)];
    const double block_squares =
        sums.residual([&](Index r) { return m(i, columns(i)[static_cast<std::size_t>(r)]); });
    residual.of_block.push_back(relative(block_squares, sums.targets));
    residual.left_out += sums.left_out;
    squares += block_squares;
    targets += sums.targets;
  }
  residual.total = relative(squares, targets);
  return residual;
}

template <Accumulator A>
template <class Basis>
NormalEquations MixingFit<A>::normal_equations(Index count, Basis&& basis) const {
  const std::size_t size = static_cast<std::size_t>(count);
  NormalEquations all{Matrix<double>::Zero(count, count), std::vector<double>(size),
                      std::vector<double>(divides_ ? size : 0)};
  double sum = 0;
  for (Index i = 0; i < start_.rows(); ++i) {
    const detail::BlockSums& sums = sums_[static_cast<std::size_t>(i)];
    Matrix<double> row(sums.columns(), count);
    for (Index r = 0; r < row.rows(); ++r) {
      const Index b = columns(i)[static_cast<std::size_t>(r)];
      for (Index l = 0; l < count; ++l) row(r, l) = basis(l, i, b);
    }
    const Matrix<double> product = sums.symmetric().lazyProduct(row);
    all.gram += row.transpose().lazyProduct(product);
    for (Index l = 0; l < count; ++l) {
      for (Index r = 0; r < row.rows(); ++r) {
        all.right[static_cast<std::size_t>(l)] += row(r, l) * sums.right(r);
        if (divides_) all.weights[static_cast<std::size_t>(l)] += row(r, l) * sums.sums(0, r);
      }
    }
    sum += sums.sum;
  }
  if (divides_) detail::expect_denominators("MixingFit::normal_equations", sum, "");
  for (double& weight : all.weights) weight /= sum;
  return all;
}

template <Accumulator A>
MixingFit<A> MixingFit<A>::coarser(std::span<const Index> queries,
                                   std::span<const Index> keys) const {
  constexpr const char* kName = "MixingFit::coarser";
  const Index mq = detail::expect_groups(kName, "queries", queries, start_.rows());
  const Index mk = detail::expect_groups(kName, "keys", keys, start_.cols());
  const bool causal = order_ == Order::kCausal;
  if (causal && (!std::is_sorted(keys.begin(), keys.end()) ||
                 !std::equal(queries.begin(), queries.end(), keys.begin(), keys.end()))) {
    detail::fail_option(kName, "groups", "are not ascending, or not the same of queries and keys",
                        "blocks of consecutive tokens, as causality requires");
  }
  if (cross_query_) {
    detail::fail_option(kName, "fit", "has examples with CrossQuery", "another normaliser");
  }
  const auto group = [](std::span<const Index> groups, Index b) {
    return groups[static_cast<std::size_t>(b)];
  };
  for (Index i = 0; i < start_.rows(); ++i) {
    if (std::ssize(columns(i)) == (causal ? i + 1 : start_.cols())) continue;
    detail::fail_option(kName, "fit", "starts from a band or lists of blocks", "all coefficients");
  }
  MixingFit coarse(detail::mean_of_groups<A>(start_.view(), queries, mq, keys, mk, causal), order_);
  for (Index i = 0; i < start_.rows(); ++i) {
    coarse.sums_[static_cast<std::size_t>(group(queries, i))].add(
        sums_[static_cast<std::size_t>(i)], [&](Index b) { return group(keys, b); });
  }
  coarse.divides_ = divides_;
  return coarse;
}

}  // namespace MHLA_TARGET
}  // namespace mhla
