#pragma once

/// \file
/// Bidirectional attention (attention/bidirectional.hpp, gradient/bidirectional.hpp) over a
/// sequence whose blocks are split over ranks. Every rank calls with its own tokens and a partition
/// of these; the blocks of the sequence are those of rank 0, then those of rank 1, and so on. Any
/// split into whole blocks will do, ranks without tokens too; a grid is split along its first axis,
/// each rank having a Grid of its part. Queries and keys of cross-attention have a split each.
///
/// One row a block travels: S_b and z_b to the ranks whose queries read block b, D*(E+1) numbers,
/// whatever the length of the block; for gradients as many, the reverse way, besides. Outputs and
/// gradients have the bits of one machine that has no AMX, for any number of ranks and any split.

#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/distributed/call.hpp"
#include "mhla/distributed/communicator.hpp"
#include "mhla/distributed/driver.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace distributed {

/// Writes the outputs of this rank's queries.
/// \param blocks  of this rank's tokens: a partition, CrossBlocks, or functions of their number
/// \param mixing  [M,M] of all blocks, or [Mq,Mk], the same on all ranks
/// \param call    executor; workspace and kept stay empty
/// \throws shape_error, option_error on all ranks, before `out` is touched, if the arguments of any
///     do not fit or differ; communication_error if a rank does not answer.
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

/// Adds the gradients of this rank's tokens to `gradients`, and on all ranks the same to
/// `parameters`, which start alike on all.
/// \throws as above; option_error if the gradient of mixing is asked for and sequences are split
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
