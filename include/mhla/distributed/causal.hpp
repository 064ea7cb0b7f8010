#pragma once

/// \file
/// Causal attention (attention/causal.hpp, gradient/causal.hpp) over a sequence whose blocks are
/// split over ranks, as in bidirectional.hpp. Rank 0 has the first tokens, rank 1 the next, and so
/// on. A rank receives S_b and z_b of the earlier blocks that its blocks read, and for gradients
/// dS~_i and dz~_i of later blocks. Work inside a block, N*W*(D+E) flops, needs no other rank.

#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/distributed/call.hpp"
#include "mhla/distributed/communicator.hpp"
#include "mhla/distributed/driver.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace distributed {

/// Writes the outputs of this rank's tokens.
/// \param blocks  blocks of this rank's tokens: a partition, or a function of their number
/// \param mixing  at least [M,M] of all blocks, or several as in causal, the same on all ranks
/// \param call    executor; workspace and kept stay empty
/// \throws shape_error, option_error on all ranks, before `out` is touched, if the arguments of any
///     rank do not fit or differ; communication_error if a rank does not answer.
template <Communicator C, AttentionInputs In, BlocksOf Blocks,
          CausalOperatorOn<mhla::detail::scalar_of<In>> Op>
void causal(C& comm, const In& in, const Blocks& blocks, const mhla::detail::mixing_of<In>& mixing,
            const Op& op, const std::type_identity_t<mhla::detail::output_of<In>>& out,
            const Call& call = {}) {
  using Form =
      mhla::detail::RankForm<mhla::detail::CausalHeads, mhla::detail::sum_of<In>, Blocks, Op>;
  mhla::detail::run_ranks(comm, Form{"distributed::causal", blocks, mixing, op}, in, out, call);
}

/// Adds the gradients of this rank's tokens to `gradients`. Adds the same to `parameters` on all
/// ranks, which must start equal.
/// \throws as above; option_error if the gradient of mixing is wanted and sequences are split
///     differently.
template <Communicator C, AttentionInputs In, BlocksOf Blocks,
          DifferentiableOperatorOn<mhla::detail::scalar_of<In>> Op>
requires CausalOperator<Op>
void causal_gradient(C& comm, const In& in, const Blocks& blocks,
                     const mhla::detail::mixing_of<In>& mixing, const Op& op,
                     const std::type_identity_t<mhla::detail::dout_of<In>>& dout,
                     const mhla::detail::gradients_of<In>& gradients,
                     const mhla::detail::parameters_of<In>& parameters = {},
                     const Call& call = {}) {
  using Form =
      mhla::detail::RankForm<mhla::detail::CausalHeads, mhla::detail::sum_of<In>, Blocks, Op>;
  mhla::detail::run_ranks_gradient(comm, Form{"distributed::causal_gradient", blocks, mixing, op},
                                   in, dout, gradients, parameters, call);
}

}  // namespace distributed
}  // namespace MHLA_TARGET
}  // namespace mhla
