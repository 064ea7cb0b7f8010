#pragma once

/// \file
/// Residuals of fits with fewer and fewer blocks, to choose a number of blocks. They come from the
/// sums of one fit (MixingFit::coarser). Two blocks along every axis become one; an odd last block
/// stays.

#include <optional>
#include <type_traits>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/fit/mixing_fit.hpp"
#include "mhla/policy/grid_partition.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// A number of blocks, and the residual of the matrix fitted with it.
struct BlockCountResidual {
  GridShape queries, keys;  ///< blocks along each axis
  double residual;  ///< FitResidual::total of the fitted matrix, by the start's denominators
};

/// Returns the residuals of the fit itself, of half as many blocks along each axis, and so on. The
/// last has one block, which is linear attention. Where halving costs little, fewer blocks suffice.
/// \param queries, keys  blocks of the fit in raster order: Grid::block_grid(), GridShape(M)
/// \throws shape_error unless they are [Mq] and [Mk] blocks; as MixingFit::coarser and solve.
template <Accumulator A>
std::vector<BlockCountResidual> suggest_from_data(
    const MixingFit<A>& fit, GridShape queries, GridShape keys,
    const std::type_identity_t<FitOptions<A>>& options = {}, const ExecutorRef& executor = {});
template <Accumulator A>
std::vector<BlockCountResidual> suggest_from_data(
    const MixingFit<A>& fit, GridShape blocks,
    const std::type_identity_t<FitOptions<A>>& options = {}, const ExecutorRef& executor = {}) {
  return suggest_from_data(fit, blocks, blocks, options, executor);
}

// ------------------------------------------------------------------------------------------------

namespace detail {

inline GridShape halved(GridShape blocks) {
  for (Index& size : blocks.sizes) size = ceil_div(size, 2);
  return blocks;
}

/// Returns the block of the halved grid that each block becomes part of.
inline std::vector<Index> halving_groups(GridShape blocks) {
  const GridShape half = halved(blocks);
  std::vector<Index> groups;
  for (Index frame = 0; frame < blocks[0]; ++frame) {
    for (Index row = 0; row < blocks[1]; ++row) {
      for (Index column = 0; column < blocks[2]; ++column) {
        groups.push_back((frame / 2 * half[1] + row / 2) * half[2] + column / 2);
      }
    }
  }
  return groups;
}

}  // namespace detail

template <Accumulator A>
std::vector<BlockCountResidual> suggest_from_data(const MixingFit<A>& fit, GridShape queries,
                                                  GridShape keys,
                                                  const std::type_identity_t<FitOptions<A>>& of_fit,
                                                  const ExecutorRef& executor) {
  constexpr const char* kName = "suggest_from_data";
  const auto blocks_of = [](const char* argument, GridShape blocks) {
    detail::expect_grid(kName, argument, blocks);
    return detail::checked_product(kName, argument, {blocks[0], blocks[1], blocks[2]});
  };
  const Index mq = blocks_of("queries", queries), mk = blocks_of("keys", keys);
  detail::expect_mixing(kName, fit.start().view(), mq, mk, "fit");
  std::vector<BlockCountResidual> worth;
  FitOptions<A> options = of_fit;
  std::optional<MixingMatrix<A>> prior;
  const auto add = [&](const MixingFit<A>& any) {
    worth.push_back({queries, keys, any.residual(any.solve(options, executor)).total});
  };
  add(fit);
  std::optional<MixingFit<A>> coarse;
  while (queries != GridShape(1) || keys != GridShape(1)) {
    const std::vector<Index> of_queries = detail::halving_groups(queries),
                             of_keys = detail::halving_groups(keys);
    coarse = (coarse ? *coarse : fit).coarser(of_queries, of_keys);
    if (!options.prior.absent()) {
      prior = detail::mean_of_groups<A>(options.prior, of_queries, coarse->start().rows(), of_keys,
                                        coarse->start().cols(), fit.order() == Order::kCausal);
      options.prior = *prior;
    }
    queries = detail::halved(queries);
    keys = detail::halved(keys);
    add(*coarse);
  }
  return worth;
}

}  // namespace MHLA_TARGET
}  // namespace mhla
