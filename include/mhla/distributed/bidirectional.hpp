#pragma once

/// \file
/// Bidirectional attention (attention/bidirectional.hpp, gradient/bidirectional.hpp) over a
/// sequence whose blocks are split over ranks. Every rank calls with its tokens and a partition of
/// these. The sequence has the blocks of rank 0, then those of rank 1, and so on. Any split into
/// whole blocks is allowed, also ranks without tokens. A grid is split along its first axis, and
/// each rank has a Grid of its part. In cross-attention, queries and keys have separate splits.
///
/// One row per block is sent: S_b and z_b, D*(E+1) numbers for any length of the block, to the
/// ranks whose queries read block b. Gradients send as many numbers in the reverse direction too.
/// Outputs and gradients have the bits of one machine without AMX, for any number of ranks and any
/// split.

#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/distributed/call.hpp"
#include "mhla/distributed/communicator.hpp"
#include "mhla/distributed/driver.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace distributed {

/// Writes the outputs of this rank's queries.
/// \param blocks  blocks of this rank's tokens: a partition, CrossBlocks, or functions of their
///     number
/// \param mixing  [M,M] of all blocks, or [Mq,Mk], or several as in
///     bidirectional, the same on all ranks
/// \param call    executor; workspace and kept stay empty
/// \throws shape_error, option_error on all ranks, before `out` is touched, if the arguments of any
///     rank do not fit or differ; communication_error if a rank does not answer.
template <Communicator C, AttentionInputs In, AttentionBlocks Blocks,
          OperatorOn<mhla::detail::scalar_of<In>> Op>
void bidirectional(C& comm, const In& in, const Blocks& blocks,
                   const mhla::detail::mixing_of<In>& mixing, const Op& op,
                   const std::type_identity_t<mhla::detail::output_of<In>>& out,
                   const Call& call = {}) {
  using Form = mhla::detail::RankForm<mhla::detail::BidirectionalHeads, mhla::detail::sum_of<In>,
                                      Blocks, Op>;
  mhla::detail::run_ranks(comm, Form{"distributed::bidirectional", blocks, mixing, op}, in, out,
                          call);
}

/// Adds the gradients of this rank's tokens to `gradients`. Adds the same to `parameters` on all
/// ranks, which must start equal.
/// \throws as above; option_error if the gradient of mixing is wanted and sequences are split
///     differently.
template <Communicator C, AttentionInputs In, AttentionBlocks Blocks,
          DifferentiableOperatorOn<mhla::detail::scalar_of<In>> Op>
void bidirectional_gradient(C& comm, const In& in, const Blocks& blocks,
                            const mhla::detail::mixing_of<In>& mixing, const Op& op,
                            const std::type_identity_t<mhla::detail::dout_of<In>>& dout,
                            const mhla::detail::gradients_of<In>& gradients,
                            const mhla::detail::parameters_of<In>& parameters = {},
                            const Call& call = {}) {
  using Form = mhla::detail::RankForm<mhla::detail::BidirectionalHeads, mhla::detail::sum_of<In>,
                                      Blocks, Op>;
  mhla::detail::run_ranks_gradient(comm,
                                   Form{"distributed::bidirectional_gradient", blocks, mixing, op},
                                   in, dout, gradients, parameters, call);
}

}  // namespace distributed
}  // namespace MHLA_TARGET
}  // namespace mhla
