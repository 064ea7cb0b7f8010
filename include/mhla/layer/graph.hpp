#pragma once

/// \file
/// The body of a layer (layer.hpp) as a graph of steps between values. A value is rows of all
/// tokens. A step has a forward, an adjoint and the bytes of both (steps.hpp):
///
///     const WeightSlices<DenseView> up(g.table(), "up", {hidden, channels});
///     const WeightSlices<DenseView> down(g.table(), "down", {channels, hidden});
///     dense_step(g, dense_step(g, g.input(), up), down);
///
/// The last step writes the layer's output. The forward runs the steps in order. The backward runs
/// their adjoints in reverse, and each adds to the gradients of its inputs. The graph decides where
/// values lie. Values that an adjoint reads are on the tape. Other values and all gradients are in
/// scratch, where two share a buffer if no step needs both.

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/layer/body.hpp"
#include "mhla/layer/parameters.hpp"
#include "mhla/layer/step.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

template <class T>
class Graph {
 public:
  struct Tape : Pass<T>::Tape {
    Tape(Arena& arena, const Graph& graph, LayerRows sizes);
  };
  struct ForwardScratch : Pass<T>::Scratch {
    ForwardScratch(Arena& arena, const Graph& graph, LayerRows sizes, const ExecutorRef& executor);
  };
  struct BackwardScratch : Pass<T>::Scratch {
    BackwardScratch(Arena& arena, const Graph& graph, LayerRows sizes, const ExecutorRef& executor);
  };

  /// \param name    of the layer, in errors
  /// \param tokens  of an item
  Graph(const char* name, Index channels, Index tokens) : name_(name), tokens_(tokens) {
    value(channels);
  }

  ParameterTable& table() { return table_; }
  const ParameterTable& table() const { return table_; }
  Index tokens() const { return tokens_; }
  Value input() const { return {0, 0, places_.front().cols}; }
  /// Adds a tensor to the table if it exists.
  ParameterSlice tensor(const char* name, std::vector<Index> shape, bool exists = true) {
    return exists ? table_.add(name, std::move(shape)).place() : ParameterSlice();
  }
  /// Returns a new value. The next step writes it.
  Value value(Index cols);
  /// Adds a step of functions of a Pass. Returns its output.
  template <class Forward, class Adjoint, class ForwardBytes = NoBytes,
            class AdjointBytes = NoBytes, class Kept = NoBytes>
  Value add(const StepValues& values, const Forward& forward, const Adjoint& adjoint,
            const ForwardBytes& forward_bytes = {}, const AdjointBytes& adjoint_bytes = {},
            const Kept& kept = {}) {
    using Made = StepOf<T, Forward, Adjoint, ForwardBytes, AdjointBytes, Kept>;
    return add(values, std::unique_ptr<const Step<T>>(
                           new Made(forward, adjoint, forward_bytes, adjoint_bytes, kept)));
  }
  Value add(const StepValues& values, std::unique_ptr<const Step<T>> step) {
    if (!values.output.absent()) places_[values.output.at].writer = nodes_.size();
    nodes_.push_back({values, std::move(step), {}, {}});
    return values.output;
  }
  /// Lets the gradient of `sum` be that of v too.
  void share_gradient(Value sum, Value v) {
    const std::size_t from = places_[v.at].gradient, to = places_[sum.at].gradient;
    for (Place& p : places_) p.gradient = p.gradient == from ? to : p.gradient;
  }
  /// Lets backward compute a value again instead of keeping it.
  Value remade(Value v) {
    places_[v.at].remade = true;
    return v;
  }
  /// Runs `f` once the parameters fit their file: a file may claim more channels than it has.
  void when_prepared(std::function<void()> f) { prepare_ = std::move(f); }

  /// Decides where values lie, when all steps are there.
  MHLA_COLD void plan();
  void prepare() {
    if (prepare_) prepare_();
  }

  /// Computes everything that backward reads.
  void record(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
              const ForwardScratch& scratch, const ExecutorRef& executor) const;
  void write(std::span<const T> parameters, const Tape& tape, MatrixView<T> y,
             const ForwardScratch& scratch, const ExecutorRef& executor) const;
  void backward(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
                MatrixView<const T> dy, MatrixView<T> dx, std::span<T> gradients,
                const BackwardScratch& scratch, const ExecutorRef& executor) const;

 private:
  struct Place {
    Index cols;
    std::size_t gradient;    // the value that has the same gradient
    std::size_t writer = 0;  // a step
    bool kept = false, remade = false;
  };
  struct Node {
    StepValues values;
    std::shared_ptr<const Step<T>> step;
    std::vector<std::size_t> remakes, clears;  // before the adjoint: steps, gradients
  };
  void keep(Value v);
  std::size_t output() const { return nodes_.back().values.output.at; }
  Pass<T> pass(Index rows, const typename Pass<T>::Tape& tape,
               const typename Pass<T>::Scratch& scratch, const ExecutorRef& executor,
               std::span<const T> parameters) const {
    return {{rows, rows / tokens_}, output(), tape, scratch, executor, parameters};
  }

  const char* name_;
  Index tokens_;
  ParameterTable table_;
  std::vector<Place> places_;
  std::vector<Node> nodes_;
  std::function<void()> prepare_;
  SharedBuffers<T> forward_, remade_, gradients_;
};

/// The body of a layer whose family F has its options and builds its graph.
template <class F>
class GraphBody : public Graph<typename F::Scalar> {
  using Base = Graph<typename F::Scalar>;

 public:
  using Scalar = typename F::Scalar;
  using Options = typename F::Options;
  static constexpr const char* kName = F::kName;
  static constexpr const char* kBackwardName = F::kBackwardName;
  static constexpr const char* kOutput = F::kOutput;

  explicit GraphBody(const Options& options) : GraphBody(Checked(), F::checked(options)) {}
  const Options& options() const { return options_; }

 private:
  struct Checked {};
  GraphBody(Checked, const Options& o) : Base(F::build(o)), options_(o) { this->plan(); }

  Options options_;
};

// ------------------------------------------------------------------------------------------------

template <class T>
Value Graph<T>::value(Index cols) {
  const std::size_t at = places_.size();
  if (at == kMostValues) {
    fail_option(name_, "graph", "has more values", "at most " + std::to_string(kMostValues));
  }
  places_.push_back({cols, at});
  return {at, 0, cols};
}

template <class T>
void Graph<T>::keep(Value v) {
  if (v.absent() || v.at == 0) return;
  Place& place = places_[v.at];
  place.kept = !place.remade;
  if (!place.remade) return;
  for (const Value input : nodes_[place.writer].values.inputs) keep(input);
}

template <class T>
void Graph<T>::plan() {
  const std::size_t steps = nodes_.size();
  const auto has = [](const std::array<Value, 5>& values, std::size_t at) {
    return std::any_of(values.begin(), values.end(), [at](Value v) { return v.at == at; });
  };
  for (const Node& node : nodes_) {
    for (const Value v : node.values.read) keep(v);
  }
  for (std::size_t at = 1; at < places_.size(); ++at) {
    std::size_t last = places_[at].writer;
    for (std::size_t s = last; s < steps; ++s) last = has(nodes_[s].values.inputs, at) ? s : last;
    if (places_[at].kept || at == output()) continue;
    forward_.add(at, places_[at].cols, places_[at].writer, last);
  }
  std::vector<bool> summed(places_.size()), made(places_.size());
  summed[0] = summed[output()] = true;
  for (std::size_t s = steps; s-- > 0;) {
    for (const Value v : nodes_[s].values.inputs) {
      const std::size_t at = v.absent() ? 0 : places_[v.at].gradient;
      if (summed[at]) continue;
      summed[at] = true;
      nodes_[s].clears.push_back(at);
      std::size_t last = s;
      for (const Place& p : places_) last = p.gradient == at ? std::min(last, p.writer) : last;
      gradients_.add(at, places_[at].cols, steps - s, steps - last);
    }
    for (const Value v : nodes_[s].values.read) {
      if (v.absent() || !places_[v.at].remade || made[v.at]) continue;
      made[v.at] = true;
      nodes_[s].remakes.push_back(places_[v.at].writer);
      std::size_t last = s;
      for (std::size_t i = s; i-- > 0;) last = has(nodes_[i].values.read, v.at) ? i : last;
      remade_.add(v.at, places_[v.at].cols, steps - s, steps - last);
    }
  }
}

template <class T>
Graph<T>::Tape::Tape(Arena& arena, const Graph& g, LayerRows sizes) {
  for (std::size_t at = 1; at < g.places_.size(); ++at) {
    const Place& place = g.places_[at];
    if (place.kept) this->rows[at] = take_matrix<T>(g.name_, arena, sizes.rows, place.cols);
  }
  static constexpr typename Pass<T>::Scratch kNone{};
  const Pass<T> pass = g.pass(sizes.rows, *this, kNone, {}, {});
  for (const Node& node : g.nodes_) {
    const std::size_t kept = node.step->kept_bytes(pass);
    if (kept > 0) this->bytes[node.values.output.at] = take_bytes(g.name_, arena, kept);
  }
}

template <class T>
Graph<T>::ForwardScratch::ForwardScratch(Arena& arena, const Graph& g, LayerRows sizes,
                                         const ExecutorRef& executor) {
  g.forward_.take(g.name_, arena, sizes.rows, this->rows);
  Arena counting;
  const Tape tape(counting, g, sizes);
  const Pass<T> pass = g.pass(sizes.rows, tape, *this, executor, {});
  std::size_t most = 0;
  for (const Node& node : g.nodes_) most = std::max(most, node.step->forward_bytes(pass));
  this->rest = take_bytes(g.name_, arena, most);
}

template <class T>
Graph<T>::BackwardScratch::BackwardScratch(Arena& arena, const Graph& g, LayerRows sizes,
                                           const ExecutorRef& executor) {
  g.remade_.take(g.name_, arena, sizes.rows, this->rows);
  g.gradients_.take(g.name_, arena, sizes.rows, this->gradients);
  for (std::size_t at = 0; at < g.places_.size(); ++at) {
    this->gradients[at] = this->gradients[g.places_[at].gradient];
  }
  Arena counting;
  const Tape tape(counting, g, sizes);
  const Pass<T> pass = g.pass(sizes.rows, tape, *this, executor, {});
  std::size_t most = 0;
  for (const Node& node : g.nodes_) {
    most = std::max(most, node.step->adjoint_bytes(pass));
    for (const std::size_t again : node.remakes) {
      most = std::max(most, g.nodes_[again].step->forward_bytes(pass));
    }
  }
  this->rest = take_bytes(g.name_, arena, most);
}

template <class T>
void Graph<T>::record(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
                      const ForwardScratch& scratch, const ExecutorRef& executor) const {
  Pass<T> p = pass(x.rows, tape, scratch, executor, parameters);
  p.x = x;
  for (std::size_t s = 0; s + 1 < nodes_.size(); ++s) nodes_[s].step->forward(p);
}

template <class T>
void Graph<T>::write(std::span<const T> parameters, const Tape& tape, MatrixView<T> y,
                     const ForwardScratch& scratch, const ExecutorRef& executor) const {
  Pass<T> p = pass(y.rows, tape, scratch, executor, parameters);
  p.y = y;
  nodes_.back().step->forward(p);
}

template <class T>
void Graph<T>::backward(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
                        MatrixView<const T> dy, MatrixView<T> dx, std::span<T> gradients,
                        const BackwardScratch& scratch, const ExecutorRef& executor) const {
  Pass<T> p = pass(x.rows, tape, scratch, executor, parameters);
  p.x = x, p.dy = dy, p.dx = dx, p.gradients = gradients;
  for (std::size_t s = nodes_.size(); s-- > 0;) {
    for (const std::size_t again : nodes_[s].remakes) nodes_[again].step->forward(p);
    for (const std::size_t at : nodes_[s].clears) clear(scratch.gradients[at], executor);
    nodes_[s].step->adjoint(p);
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
