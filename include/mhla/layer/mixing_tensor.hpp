#pragma once

/// \file
/// The mixing matrix of a layer in its row of parameters: a tensor of coefficients, or a table of
/// coefficients by offset between blocks (distance_mixing.hpp). A table has no size that depends on
/// the number of tokens, so layers for any grid take the same parameters. Each pass computes the
/// matrices of its table in workspace.
///
/// Cost of a table: a few operations per coefficient, H*M^2 numbers of workspace, twice as many in
/// the backward, where H is 1 if all heads share the table. M counts the blocks of a pass.

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/layer/body.hpp"
#include "mhla/layer/graph.hpp"
#include "mhla/layer/initial.hpp"
#include "mhla/layer/parameters.hpp"
#include "mhla/layer/step.hpp"
#include "mhla/policy/distance_derivatives.hpp"
#include "mhla/policy/distance_mixing.hpp"
#include "mhla/policy/grid_partition.hpp"
#include "mhla/policy/mixing_matrix.hpp"
#include "mhla/policy/mixing_view.hpp"
#include "mhla/policy/pattern.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// The place of the mixing matrices of m blocks, or of their table, in a row of parameters.
struct MixingTensor {
  ParameterSlice place{};  ///< absent for softmax attention
  GridShape blocks{0};     ///< grid of blocks that a table serves, or the most blocks of a sequence
  GridShape offsets{0};    ///< sizes of a table (DistanceView); 0 for coefficients
  bool causal = false;     ///< rows of a table sum to 1 over their own and earlier blocks

  MixingTensor() = default;
  MixingTensor(const ParameterSlice& coefficients) : place(coefficients) {}  // NOLINT
  /// Coefficients, or with offsets a table.
  MixingTensor(const ParameterSlice& at, GridShape of, GridShape sizes, bool is_causal = false)
      : place(at), blocks(of), offsets(sizes), causal(is_causal) {}

  bool absent() const { return place.rows == 0; }
  bool is_table() const { return !(offsets == GridShape(0)); }
  /// Number of matrices, or of tables: 1, or one per head.
  Index matrices(Index m) const {
    return is_table() ? place.rows : place.rows * place.cols / (m * m);
  }
  /// Grid of m blocks. A sequence may have fewer blocks than a layer allows.
  GridShape grid(Index m) const { return blocks[0] * blocks[1] == 1 ? GridShape(m) : blocks; }
  Pattern pattern(Index m) const {
    return is_table() && causal ? Pattern(m, m, m, 0) : Pattern(m, m);
  }
  /// The table in a row of parameters, or in their gradient.
  template <class T>
  DistanceView<T> table(std::span<T> row) const {
    const std::span<T> numbers = place.numbers(row);
    return numbers.empty() ? DistanceView<T>()
                           : DistanceView<T>(numbers.data(), offsets, place.rows);
  }
};

namespace detail {

/// Throws unless a layer's table may have these offsets, or the layer has none.
inline void expect_layer_offsets(const char* layer, const GridShape& offsets) {
  if (offsets == GridShape(0)) return;
  for (const Index size : offsets.sizes) {
    if (size < 1 || size % 2 == 0) {
      fail_option(layer, "offsets", "is " + grid_text(offsets),
                  "odd sizes, as many offsets before as after, or 0 for a mixing matrix");
    }
  }
}

/// Shape of a table in a checkpoint.
/// \param heads  with a table each; 0 for a table that all heads share
inline std::vector<Index> table_shape(const GridShape& offsets, Index heads) {
  return {std::max<Index>(heads, 1), offsets[0], offsets[1], offsets[2]};
}

/// Name of a table in errors.
inline constexpr const char* kTable = "table of offsets";

/// Returns the matrices of m blocks.
/// \param name  of the layer, in errors
/// \throws option_error as MixingOfPass
template <class T>
MixingMatrix<T> mixing_matrix(const char* name, const MixingTensor& tensor, Index m,
                              std::span<const T> row) {
  if (!tensor.is_table()) return MixingMatrix<T>(mixing_at(tensor.place, row, m));
  MixingMatrix<T> made(tensor.pattern(m), tensor.matrices(m));
  write_distance_matrix(name, kTable, tensor.table(row), tensor.grid(m), made.view());
  return made;
}

/// The mixing matrices of a pass. Matrices of a table, and their gradient, lie in its workspace.
template <class T>
class MixingOfPass {
 public:
  /// \param name     of the layer, in errors
  /// \param m        blocks
  /// \param adjoint  true if an adjoint adds to the gradient. A forward has none, also in backward.
  /// \throws option_error if a row of a matrix should sum to 1, and the table's sum is 0.
  MixingOfPass(const char* name, const MixingTensor& tensor, Index m, const Pass<T>& p,
               bool adjoint)
      : name_(name), tensor_(tensor), pass_(p), rest_(p.rest) {
    if (!tensor.is_table()) {
      matrices_ = mixing_at(tensor.place, p.parameters, m);
      if (adjoint) gradient_ = mixing_at(tensor.place, p.gradients, m);
      return;
    }
    Arena arena(p.rest.data());
    const Memory memory(arena, tensor, m, adjoint);
    rest_ = p.rest.subspan(bytes(tensor, m, adjoint));
    const auto view = [&](T* data) {
      std::fill_n(data, tensor.matrices(m) * m * m, T(0));
      return MixingView<T>(data, tensor.pattern(m), tensor.matrices(m), m * m);
    };
    const MixingView<T> made = view(memory.matrices);
    write_distance_matrix(name, kTable, tensor.table(p.parameters), tensor.grid(m), made);
    matrices_ = made;
    if (adjoint && !p.gradients.empty()) gradient_ = view(memory.gradient), sums_ = memory.sums;
  }

  const MixingView<const T>& matrices() const { return matrices_; }
  const MixingView<T>& gradient() const { return gradient_; }
  /// The pass's workspace after these matrices.
  Workspace rest() const { return rest_; }
  Call call() const { return {rest_, pass_.executor, pass_.kept}; }
  /// Adds the gradient of a table for that of its matrices.
  void add_gradient() const {
    if (!tensor_.is_table() || gradient_.absent()) return;
    add_distance_gradient(name_, kTable, tensor_.table(pass_.parameters),
                          tensor_.grid(gradient_.rows()), MixingView<const T>(gradient_),
                          tensor_.table(pass_.gradients), sums_);
  }

  /// Bytes of a pass's workspace.
  static std::size_t bytes(const MixingTensor& tensor, Index m, bool adjoint) {
    if (!tensor.is_table()) return 0;
    return counted_bytes([&](Arena& arena) { return Memory(arena, tensor, m, adjoint); });
  }

 private:
  struct Memory {
    T *matrices, *gradient = nullptr;
    std::span<double> sums{};

    Memory(Arena& arena, const MixingTensor& tensor, Index m, bool adjoint)
        : matrices(arena.take<T>("", {tensor.matrices(m), m, m})) {
      if (!adjoint) return;
      gradient = arena.take<T>("", {tensor.matrices(m), m, m});
      const Index numbers = tensor.place.rows * tensor.place.cols;
      double* const data = arena.take<double>("", numbers);
      if (data != nullptr) sums = {data, static_cast<std::size_t>(numbers)};
    }
  };

  const char* name_;
  const MixingTensor& tensor_;
  const Pass<T>& pass_;
  Workspace rest_;
  MixingView<const T> matrices_;
  MixingView<T> gradient_;
  std::span<double> sums_{};
};

}  // namespace detail

/// Adds the mixing matrix NAME.conv.weight of the authors' vision and video layers, or the table
/// NAME.offsets.
/// \param heads  that have a matrix or table each; 0 for one that all share
template <class T>
MixingTensor mixing_tensor(Graph<T>& g, const std::string& name, const GridShape& blocks,
                           const GridShape& offsets, Index heads, bool softmax) {
  const bool table = MixingTensor({}, blocks, offsets).is_table();
  const Index m = blocks[0] * blocks[1] * blocks[2];
  const ParameterSlice matrix = g.tensor(
      name + ".conv.weight", detail::mixing_shape(m, 4, heads > 0, heads),
      Initial::locality(blocks), {!softmax && !table, table ? "offsets = 0" : "softmax = false"});
  const ParameterSlice by_offset =
      g.tensor(name + ".offsets", detail::table_shape(offsets, heads),
               Initial::distance_locality(offsets), {!softmax && table, "offsets"});
  return {table ? by_offset : matrix, blocks, offsets};
}

}  // namespace MHLA_TARGET
}  // namespace mhla
