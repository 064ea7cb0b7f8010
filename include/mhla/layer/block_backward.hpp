#pragma once

/// \file
/// The backward part of a block (block_body.hpp).

#include <algorithm>
#include <span>

#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/layer/block_body.hpp"
#include "mhla/layer/body.hpp"
#include "mhla/layer/modulate.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

template <class F>
BlockBody<F>::BackwardScratch::BackwardScratch(Arena& arena, const BlockBody& body, LayerRows sizes,
                                               const ExecutorRef& executor)
    : condition(arena, *body.condition_, {sizes.batch, sizes.batch}, executor),
      input(arena, body, sizes),
      bodies(arena, *body.attention_, *body.feed_forward_, sizes, executor) {
  const Index c = body.options_.channels;
  dmodulated = dnormed = body.take(arena, sizes);
  if (kModulated) {
    dmodulation = take_matrix<T>(kName, arena, sizes.batch, 6 * c);
    doutput = body.take(arena, sizes);
    dnormed = body.take(arena, sizes);
  }
  dmiddle = body.take(arena, sizes);
  std::size_t bytes = F::Norm::adjoint_bytes(sizes.rows, c);
  if (body.convolution_) {
    dedge = body.take(arena, sizes);
    bytes = std::max(bytes, ConvolutionPart<T>::adjoint_bytes(sizes.rows, c));
  }
  rest = take_bytes(kName, arena, bytes);
}

/// Adds to dx and to the gradients of the branch's parameters and of its modulation.
template <class F>
template <class B>
void BlockBody<F>::branch_adjoint(const B& branch, std::span<const T> parameters,
                                  MatrixView<const T> x, const Tape& tape, MatrixView<const T> dy,
                                  MatrixView<T> dx, std::span<T> gradients,
                                  const BackwardScratch& scratch,
                                  const ExecutorRef& executor) const {
  const int i = branch.index;
  const auto& [index, body, body_tape, body_scratch] = branch;
  const MatrixView<const T> read = branch_input(i, parameters, x, tape, scratch.input, executor);
  MatrixView<const T> doutput = dy;
  if constexpr (kModulated) {
    clear(scratch.doutput, executor);
    add_gated_adjoint(row_of(tape.condition.modulation, i, kGate), tape.outputs[i], dy, dx,
                      row_of(scratch.dmodulation, i, kGate), scratch.doutput, executor);
    doutput = scratch.doutput;
  } else if (!dx.absent()) {
    add(dy, dx, executor);
  }
  clear(scratch.dmodulated, executor);
  body->backward(body.of(parameters), read, body_tape, doutput, scratch.dmodulated,
                 body.of(gradients), body_scratch, executor);
  if constexpr (kModulated) {
    clear(scratch.dnormed, executor);
    modulate_adjoint(scratch.input.normed, row_of(tape.condition.modulation, i, kScale),
                     scratch.dmodulated, scratch.dnormed, row_of(scratch.dmodulation, i, kScale),
                     row_of(scratch.dmodulation, i, kShift), executor);
  }
  const auto& norm = norms_[i];
  norm->adjoint(norm.of(parameters), x, scratch.dnormed, dx, norm.of(gradients),
                {.workspace = scratch.rest, .executor = executor});
}

template <class F>
void BlockBody<F>::backward(std::span<const T> parameters, MatrixView<const T> x,
                            MatrixView<const T> c, const Tape& tape, MatrixView<const T> dy,
                            MatrixView<T> dx, MatrixView<T> dc, std::span<T> gradients,
                            const BackwardScratch& scratch, const ExecutorRef& executor) const {
  const auto convolution_adjoint = [&](MatrixView<const T> from, MatrixView<const T> dto,
                                       MatrixView<T> dfrom) {
    (*convolution_)
        ->adjoint(convolution_->of(parameters), from, dto, dfrom, convolution_->of(gradients),
                  {.workspace = scratch.rest, .executor = executor});
  };
  if (kModulated) clear(scratch.dmodulation, executor);
  if (convolution_) clear(scratch.dedge, executor);
  if (convolves(BlockConvolution::kLast)) {
    convolution_adjoint(tape.edge, dy, scratch.dedge);
    dy = scratch.dedge;
  }
  clear(scratch.dmiddle, executor);
  branch_adjoint(feed_forward_branch(tape, scratch), parameters, tape.middle, tape, dy,
                 scratch.dmiddle, gradients, scratch, executor);
  const auto attention = attention_branch(tape, scratch);
  if (convolves(BlockConvolution::kFirst)) {
    branch_adjoint(attention, parameters, tape.edge, tape, scratch.dmiddle, scratch.dedge,
                   gradients, scratch, executor);
    if (!dx.absent()) add<T>(scratch.dedge, dx, executor);
    convolution_adjoint(x, scratch.dedge, dx);
  } else {
    branch_adjoint(attention, parameters, x, tape, scratch.dmiddle, dx, gradients, scratch,
                   executor);
  }
  if constexpr (kModulated) {
    condition_->backward(condition_.of(parameters), c, tape.condition, scratch.dmodulation, dc,
                         condition_.of(gradients), scratch.condition, executor);
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
