#pragma once

/// \file
/// Modulation of the two branches of a block (block_body.hpp) by a condition c of an item. It has
/// six rows of C numbers: shift, scale and gate of the attention, then of the feed-forward part.
///
///     adaptive:  m = silu(c) W^T + b        c [B,C], W [6C,C], m [B,6C]
///     table:     m = c + w                  c [B,6C], w [6C] of the block, m [B,6C]
///
/// Sources: Peebles and Xie, arXiv:2212.09748; for the table, PixArt, arXiv:2310.00426.

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/layer/activation.hpp"
#include "mhla/layer/body.hpp"
#include "mhla/layer/dense.hpp"
#include "mhla/layer/parameters.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// A block without a condition.
struct NoCondition {
  struct Tape {
    Tape(Arena&, const NoCondition&, LayerRows) {}
  };
  using ForwardScratch = NoRoom;
  using BackwardScratch = NoRoom;
  const ParameterTable& table() const { return table_; }

 private:
  ParameterTable table_;
};

/// A dense layer of silu(c), with parameters weight and bias.
template <Accumulator T>
class AdaptiveCondition {
  static constexpr const char* kName = "adaptive condition";

 public:
  struct Tape {
    MatrixView<T> activated;   // silu(c) [B,C]
    MatrixView<T> modulation;  // [B,6C]
    Tape(Arena& arena, const AdaptiveCondition& body, LayerRows items)
        : activated(take_matrix<T>(kName, arena, items.rows, body.channels_)),
          modulation(take_matrix<T>(kName, arena, items.rows, 6 * body.channels_)) {}
  };
  struct ForwardScratch {
    Workspace rest;
    ForwardScratch(Arena& arena, const AdaptiveCondition& body, LayerRows, const ExecutorRef&)
        : rest(take_bytes(kName, arena,
                          dense_workspace_bytes<T>(body.channels_, 6 * body.channels_))) {}
  };
  struct BackwardScratch {
    MatrixView<T> dactivated;  // [B,C]
    Workspace rest;
    BackwardScratch(Arena& arena, const AdaptiveCondition& body, LayerRows items,
                    const ExecutorRef&)
        : dactivated(take_matrix<T>(kName, arena, items.rows, body.channels_)),
          rest(take_bytes(
              kName, arena,
              dense_adjoint_workspace_bytes<T>(items.rows, body.channels_, 6 * body.channels_))) {}
  };

  explicit AdaptiveCondition(Index channels) : channels_(channels) {
    table_.add("weight", {6 * channels, channels});
    table_.add("bias", {6 * channels});
  }
  const ParameterTable& table() const { return table_; }
  Index columns() const { return channels_; }  ///< of c

  void record(std::span<const T> parameters, MatrixView<const T> c, const Tape& tape,
              const ForwardScratch& scratch, const ExecutorRef& executor) const {
    silu(c, tape.activated, executor);
    dense(tape.activated, views(parameters), tape.modulation,
          {.workspace = scratch.rest, .executor = executor});
  }
  void backward(std::span<const T> parameters, MatrixView<const T> c, const Tape& tape,
                MatrixView<const T> dmodulation, MatrixView<T> dc, std::span<T> gradients,
                const BackwardScratch& scratch, const ExecutorRef& executor) const {
    clear(scratch.dactivated, executor);
    dense_adjoint(tape.activated, views(parameters), dmodulation, scratch.dactivated,
                  views(gradients), {.workspace = scratch.rest, .executor = executor});
    if (!dc.absent()) silu_adjoint(c, scratch.dactivated, dc, executor);
  }

 private:
  template <class U>
  DenseView<U> views(std::span<U> row) const {
    return {table_.matrix(row, "weight"), table_.numbers(row, "bias")};
  }

  Index channels_;
  ParameterTable table_;
};

/// The condition plus a row of the block's parameters.
template <Accumulator T>
class TableCondition {
  static constexpr const char* kName = "condition table";

 public:
  struct Tape {
    MatrixView<T> modulation;  // [B,6C]
    Tape(Arena& arena, const TableCondition& body, LayerRows items)
        : modulation(take_matrix<T>(kName, arena, items.rows, body.columns())) {}
  };
  using ForwardScratch = NoRoom;
  using BackwardScratch = NoRoom;

  /// \param shape  in a checkpoint: 6C numbers
  TableCondition(std::string name, std::vector<Index> shape) {
    table_.add(std::move(name), std::move(shape));
  }
  const ParameterTable& table() const { return table_; }
  Index columns() const { return table_.size(); }  ///< of c

  void record(std::span<const T> parameters, MatrixView<const T> c, const Tape& tape,
              const ForwardScratch&, const ExecutorRef& executor) const {
    for_each_layer_strip(c.rows, executor, [&](Index begin, Index count) {
      for (Index b = begin; b < begin + count; ++b) {
        std::copy_n(c.row(b), c.cols, tape.modulation.row(b));
        add_to(parameters.data(), tape.modulation.row(b), c.cols);
      }
    });
  }
  void backward(std::span<const T>, MatrixView<const T>, const Tape&,
                MatrixView<const T> dmodulation, MatrixView<T> dc, std::span<T> gradients,
                const BackwardScratch&, const ExecutorRef& executor) const {
    if (!dc.absent()) add(dmodulation, dc, executor);
    if (gradients.empty()) return;
    add_rows_to(dmodulation.data, dmodulation.row_stride, dmodulation.rows, gradients.data(),
                dmodulation.cols);
  }

 private:
  ParameterTable table_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
