#pragma once

/// \file
/// The part of a layer (layer.hpp) that depends on its scalar alone, not on its family. So programs
/// compile it once for all layers.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/layer/body.hpp"
#include "mhla/layer/graph.hpp"
#include "mhla/layer/parameters.hpp"
#include "mhla/layer/rows.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// The options of a layer's call, by name: {.batch = 2, .executor = pool}.
struct LayerCall {
  /// Items of the batch, of rows / batch rows each. 0 derives it from the layer's number of tokens,
  /// and means 1 for layers without one.
  Index batch = 0;
  LentMemory workspace{};  ///< at least workspace_bytes(rows, call); empty to allocate
  ExecutorRef executor{};  ///< runs the independent parts of the work
  /// Forward: memory of kept_bytes(rows, batch) for the values that backward reads, or empty.
  /// Backward: the memory that the forward wrote for the same x, or a copy, which backward may
  /// move; or empty.
  LentMemory kept{};
};

namespace detail {

/// The part of a layer that depends on its scalar alone, not on its family.
template <Accumulator T>
class GraphLayer {
 public:
  /// Names, shapes and places of the parameters.
  const ParameterTable& table() const { return graph_.table(); }
  /// Returns a line for each tensor, as ParameterTable does.
  std::string describe() const { return table().describe(); }
  std::span<T> parameters() { return parameters_; }
  std::span<const T> parameters() const { return parameters_; }
  /// Sets the parameters to the initial values of their tensors, for training.
  void initialize(std::uint64_t seed) {
    initialize_parameters(table(), std::span<T>(parameters_), seed);
  }

  /// Returns the bytes of workspace for x of that many rows. It reads only batch and executor of
  /// `call`.
  std::size_t workspace_bytes(Index rows, const LayerCall& call = {}) const;
  std::size_t backward_workspace_bytes(Index rows, const LayerCall& call = {}) const;
  std::size_t kept_bytes(Index rows, Index batch = 0) const;

 protected:
  using In = MatrixView<const T>;
  using Out = MatrixView<T>;

  explicit GraphLayer(Graph<T> graph)
      : graph_(std::move(graph)), backward_name_(std::string(graph_.name()) + "::backward") {}

  const Graph<T>& graph() const { return graph_; }
  /// Makes parameters of 0.
  void make() {
    parameters_.resize(static_cast<std::size_t>(table().size()));
    graph_.prepare();
  }
  /// Loads the parameters of a file. A file may claim channels that it does not have. So its shapes
  /// are compared before memory for parameters and for the steps' data is allocated.
  template <class F>
  void load(const F& file, std::string_view prefix, std::span<const std::string_view> others,
            std::span<const std::string_view> recomputed) {
    expect_parameters(graph_.name(), file, prefix, table(), others, recomputed);
    make();
    load_parameters(graph_.name(), file, prefix, table(), parameters(), others, recomputed);
  }
  void forward(const In& x, const In& c, const Out& y, const LayerCall& call) const;
  Matrix<T> output(const In& x, const In& c, const LayerCall& call) const {
    expect(graph_.name(), x, c, call.batch);
    Matrix<T> y(x.rows, x.cols);
    forward(x, c, y, call);
    return y;
  }
  void adjoint(const In& x, const In& c, const In& dy, const Out& dx, const Out& dc,
               std::span<T> gradients, const LayerCall& call) const;

 private:
  using Tape = typename Pass<T>::Tape;

  /// The number of items in the rows.
  Index batch_of(const char* function, Index rows, Index batch) const;
  LayerRows expect(const char* function, const In& x, const In& c, Index batch) const {
    expect_rows(function, "x", x, -1, graph_.input().cols);
    const LayerRows rows{x.rows, batch_of(function, x.rows, batch)};
    if (graph_.condition() > 0) expect_rows(function, "c", c, rows.batch, graph_.condition());
    return rows;
  }
  Pass<T> pass(LayerRows sizes, const In& x, const In& c, const LayerCall& call,
               bool backward) const {
    Pass<T> p = graph_.pass(sizes, call.executor, backward);
    p.parameters = parameters(), p.x = x, p.c = c;
    return p;
  }
  /// Takes memory of a forward pass.
  /// \param bytes  of scratch
  void take(Arena& arena, Pass<T>& p, std::size_t bytes) const {
    p.tape = graph_.take_tape(arena, p.sizes);
    p.scratch = graph_.take_scratch(arena, p, bytes);
  }
  /// Takes memory of a forward and of a backward pass, one after the other: scratch is shared.
  void take(Arena& arena, Pass<T>& forward, Pass<T>& backward, std::size_t forward_bytes,
            std::size_t backward_bytes) const {
    forward.tape = backward.tape = graph_.take_tape(arena, forward.sizes);
    Arena again = arena;
    forward.scratch = graph_.take_scratch(arena, forward, forward_bytes);
    backward.scratch = graph_.take_scratch(again, backward, backward_bytes);
    if (again.bytes() > arena.bytes()) arena = again;
  }
  /// Returns the values that backward reads, in `kept` or in `tape`.
  Tape tape_of(Workspace kept, LayerRows rows, const Tape& tape) const {
    if (kept.empty()) return tape;
    Arena arena(kept.data());
    return graph_.take_tape(arena, rows);
  }

  Graph<T> graph_;
  std::string backward_name_;
  std::vector<T> parameters_;
};

// ------------------------------------------------------------------------------------------------

template <Accumulator T>
Index GraphLayer<T>::batch_of(const char* function, Index rows, Index batch) const {
  const Index item_tokens = graph_.tokens(), most = graph_.most_tokens();
  if (batch < 0) fail_option(function, "batch", "is " + std::to_string(batch), "0 or more");
  if (item_tokens > 0) {
    if (rows % item_tokens != 0) {
      fail_shape(function, "x", "has " + std::to_string(rows) + " rows",
                 std::to_string(item_tokens) + " tokens an item");
    }
    const Index items = rows / item_tokens;
    if (batch == 0 || batch == items) return items;
    fail_shape(function, "batch", "is " + std::to_string(batch),
               "0 or " + std::to_string(items) + ", the items of x");
  }
  if (batch == 0) batch = 1;
  expect_whole_items(function, "x", rows, batch, "the batch");
  if (most > 0 && rows / batch > most) {
    fail_shape(function, "x", "has " + std::to_string(rows / batch) + " tokens an item",
               "at most " + std::to_string(most));
  }
  return batch;
}

template <Accumulator T>
std::size_t GraphLayer<T>::workspace_bytes(Index rows, const LayerCall& call) const {
  Pass<T> p = graph_.pass({rows, batch_of(graph_.name(), rows, call.batch)}, call.executor);
  Arena counting;
  take(counting, p, graph_.scratch_bytes(p));
  return counting.bytes();
}

template <Accumulator T>
std::size_t GraphLayer<T>::backward_workspace_bytes(Index rows, const LayerCall& call) const {
  const LayerRows sizes{rows, batch_of(graph_.name(), rows, call.batch)};
  Pass<T> first = graph_.pass(sizes, call.executor), p = graph_.pass(sizes, call.executor, true);
  Arena counting;
  take(counting, first, p, graph_.scratch_bytes(first), graph_.scratch_bytes(p));
  return counting.bytes();
}

template <Accumulator T>
std::size_t GraphLayer<T>::kept_bytes(Index rows, Index batch) const {
  const LayerRows sizes{rows, batch_of(graph_.name(), rows, batch)};
  Arena counting;
  graph_.take_tape(counting, sizes);
  return counting.bytes();
}

template <Accumulator T>
void GraphLayer<T>::forward(const In& x, const In& c, const Out& y, const LayerCall& call) const {
  const char* const name = graph_.name();
  const LayerRows rows = expect(name, x, c, call.batch);
  expect_rows(name, "y", y, x.rows, x.cols);
  Pass<T> p = pass(rows, x, c, call, false);
  const std::size_t bytes = graph_.scratch_bytes(p);
  Arena counting;
  take(counting, p, bytes);
  Scratch scratch(name, call.workspace, counting.bytes());
  take(scratch.arena(), p, bytes);
  const std::size_t kept = kept_bytes(rows.rows, rows.batch);
  begin_kept(name, call.kept, kept);
  p.tape = tape_of(call.kept, rows, p.tape);
  p.y = y;
  graph_.forward(p);
  mark_kept(call.kept, kept, kept_mark(kept, 0));
}

template <Accumulator T>
void GraphLayer<T>::adjoint(const In& x, const In& c, const In& dy, const Out& dx, const Out& dc,
                            std::span<T> gradients, const LayerCall& call) const {
  const char* const name = backward_name_.c_str();
  const LayerRows rows = expect(name, x, c, call.batch);
  expect_rows(name, "dy", dy, x.rows, x.cols);
  expect_rows_or_none(name, "dx", dx, x.rows, x.cols);
  expect_rows_or_none(name, "dc", dc, c.rows, c.cols);
  expect_elements_or_none(name, "gradients", gradients.size(), table().size());
  Pass<T> first = pass(rows, x, c, call, false), p = pass(rows, x, c, call, true);
  const std::size_t first_bytes = graph_.scratch_bytes(first), bytes = graph_.scratch_bytes(p);
  Arena counting;
  take(counting, first, p, first_bytes, bytes);
  Scratch scratch(name, call.workspace, counting.bytes());
  take(scratch.arena(), first, p, first_bytes, bytes);
  const std::size_t kept = kept_bytes(rows.rows, rows.batch);
  find_kept(name, call.kept, kept, kept_mark(kept, 0));
  first.tape = p.tape = tape_of(call.kept, rows, p.tape);
  if (call.kept.empty()) graph_.forward(first);
  p.dy = dy, p.dx = dx, p.dc = dc, p.gradients = gradients;
  graph_.backward(p);
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
