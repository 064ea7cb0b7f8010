#pragma once

/// \file
/// A layer (layer.hpp) as a graph of steps between values. A value is rows of all tokens, or a row
/// per item. A step has a forward, an adjoint and the bytes of both (step.hpp, steps.hpp):
///
///     const auto gain = g.tensor("norm.weight", {c}, Initial::ones());
///     Value n = layer_norm_step(g, x, gain, {}, 1e-6);
///     Value h = dense_step(g, n, g.dense("up", {hidden, c}));
///     return dense_step(g, h, g.dense("down", {c, hidden}));
///
/// The forward runs the steps in order. The backward runs their adjoints in reverse, and each adds
/// to the gradients of its inputs. The graph decides where values lie. Values that an adjoint reads
/// are on the tape. Other values and all gradients are in scratch, where two share memory if no
/// step needs both. The steps after the first that writes the output may only add to it.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/rows.hpp"
#include "mhla/layer/body.hpp"
#include "mhla/layer/graph_plan.hpp"
#include "mhla/layer/initial.hpp"
#include "mhla/layer/packed_dense.hpp"
#include "mhla/layer/parameters.hpp"
#include "mhla/layer/step.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// A tensor that only some layers have: {o.gate, "gate"}. A plain false is never there.
struct Optional {
  bool there = true;
  const char* option = "";

  constexpr Optional() = default;
  constexpr Optional(bool is_there, const char* of = "")  // NOLINT(google-explicit-constructor)
      : there(is_there), option(of) {}
};

template <class T>
class Graph {
 public:
  using Tape = typename Pass<T>::Tape;
  using Scratch = typename Pass<T>::Scratch;

  /// \param name         of the layer, in errors
  /// \param tokens       of an item; 0 for any number
  /// \param most_tokens  of an item; 0 without a limit
  Graph(const char* name, Index channels, Index tokens, Index most_tokens = 0)
      : name_(name), tokens_(tokens), most_tokens_(most_tokens) {
    value(channels);
  }

  const char* name() const { return name_; }
  const ParameterTable& table() const { return table_; }
  Index tokens() const { return tokens_; }
  Index most_tokens() const { return most_tokens_; }
  /// Columns of the condition, or 0.
  Index condition() const {
    return plan_.condition == Value::kAbsent ? 0 : plan_.places[plan_.condition].cols;
  }
  const std::vector<detail::WeightSlices<DenseView>>& dense_layers() const { return dense_layers_; }

  Value input() const { return {0, 0, plan_.places.front().cols}; }
  /// Returns the condition, one row per item.
  Value condition(Index cols) {
    const Value c = value(cols, true);
    plan_.condition = c.at;
    return c;
  }
  /// Adds a tensor to the table if it exists.
  ParameterSlice tensor(const std::string& name, std::vector<Index> shape, const Initial& initial,
                        Optional is = {}) {
    if (is.there) return table_.add(prefix_ + name, std::move(shape), initial, is.option).place();
    if (*is.option != 0) table_.leave_out(prefix_ + name, is.option);
    return {};
  }
  /// Adds NAME.weight in this shape, and NAME.bias.
  /// \param initial  of the weight. If it is uniform, the bias has the same bounds. Otherwise the
  ///                 bias is 0.
  template <template <class> class View>
  detail::WeightSlices<View> weights(const std::string& name, const std::vector<Index>& shape,
                                     Optional bias = {}, Optional both = {},
                                     const Initial& initial = Initial::uniform()) {
    const ParameterSlice weight = tensor(name + ".weight", shape, initial, both);
    if (!bias.there && *bias.option == 0) return {weight, {}};
    if (!both.there || *bias.option == 0) bias = {both.there && bias.there, both.option};
    const bool uniform = initial.rule == Initial::Rule::kUniform;
    return {weight, tensor(name + ".bias", {shape.front()},
                           uniform ? Initial::uniform(weight.cols) : Initial::zeros(), bias)};
  }
  /// Adds the weights of a dense layer.
  /// \param shape  begins with its outputs and inputs
  detail::WeightSlices<DenseView> dense(const std::string& name, const std::vector<Index>& shape,
                                        Optional bias = {}, Optional both = {},
                                        const Initial& initial = Initial::uniform()) {
    const auto w = weights<DenseView>(name, shape, bias, both, initial);
    if (both.there) dense_layers_.push_back(w);
    return w;
  }
  /// Adds the tensors that `add` adds, below a prefix. Returns its result.
  template <class Add>
  auto below(const std::string& prefix, const Add& add) {
    const std::size_t length = prefix_.size();
    prefix_ += prefix;
    auto result = add();
    prefix_.resize(length);
    return result;
  }

  /// Returns a new value. The next step writes it.
  Value value(Index cols, bool per_item = false) {
    const Index stride = detail::unaliased_stride<T>(detail::round_up(cols, detail::kRowAlignment));
    return plan_.value(cols, stride, per_item);
  }
  bool per_item(Value v) const { return plan_.places[v.at].per_item; }
  /// Adds a step of functions of a Pass. Returns its output.
  template <class Forward, class Adjoint>
  Value add(const StepValues& values, const Forward& forward, const Adjoint& adjoint) {
    return add(values, std::unique_ptr<const Step<T>>(
                           new detail::StepOf<T, Forward, Adjoint>(forward, adjoint)));
  }
  Value add(const StepValues& values, std::unique_ptr<const Step<T>> step) {
    plan_.add(values);
    steps_.push_back(std::move(step));
    return values.output;
  }
  /// Lets the gradient of v be that of these columns. No other adjoint may read it.
  void share_gradient(Value v, Value columns) { plan_.share_gradient(v, columns); }
  /// Lets backward compute a value again instead of keeping it.
  Value remade(Value v) {
    plan_.places[v.at].remade = true;
    return v;
  }
  /// Runs `f` once the parameters fit their file: a file may claim more channels than it has.
  void when_prepared(std::function<void()> f) { prepare_.push_back(std::move(f)); }

  /// Decides where values lie, when all steps are there.
  /// \throws option_error unless steps write `output`, of the input's columns, and backward needs
  ///         nothing that is computed after it.
  void plan(Value output) { plan_.place(name_, output); }
  void prepare() {
    for (const auto& f : prepare_) f();
  }

  /// \param steps_keep  also takes the bytes that steps keep
  Tape take_tape(detail::Arena& arena, detail::LayerRows sizes, bool steps_keep = true) const;
  /// Returns the bytes of scratch of a pass.
  std::size_t scratch_bytes(const Pass<T>& pass) const;
  /// \param bytes  scratch_bytes(pass)
  Scratch take_scratch(detail::Arena& arena, const Pass<T>& pass, std::size_t bytes) const {
    const detail::SharedMemory& plan = pass.backward ? plan_.backward : plan_.forward;
    Scratch scratch{plan.template take<T>(name_, arena, pass.sizes, false),
                    detail::take_bytes(name_, arena, bytes)};
    scratch.values.rows = reinterpret_cast<T*>(scratch.memory.data());
    return scratch;
  }
  Pass<T> pass(detail::LayerRows sizes, const ExecutorRef& executor, bool backward = false) const {
    return {.sizes = sizes,
            .places = plan_.places,
            .output = plan_.output,
            .condition = plan_.condition,
            .executor = executor,
            .backward = backward};
  }
  /// Runs the steps, or, if y is absent, those that write what backward reads.
  void forward(Pass<T> pass) const;
  void backward(Pass<T> pass) const;

 private:
  using Node = detail::GraphPlan::Node;

  static Index numbers(const Node& node, const Pass<T>& pass) {
    return pass.backward ? node.backward_numbers : node.forward_numbers;
  }
  /// Sets the memory of a step.
  void prepare_step(const Node& node, Pass<T>& pass) const;
  std::size_t kept_bytes(std::size_t step, const Pass<T>& pass) const {
    std::size_t bytes = 0;
    Pass<T> counting = pass;
    counting.counted_kept = &bytes;
    steps_[step]->forward(counting);
    return bytes;
  }

  const char* name_;
  Index tokens_, most_tokens_;
  std::string prefix_;
  ParameterTable table_;
  std::vector<detail::WeightSlices<DenseView>> dense_layers_;
  detail::GraphPlan plan_;
  std::vector<std::shared_ptr<const Step<T>>> steps_;
  std::vector<std::function<void()>> prepare_;
};

// ------------------------------------------------------------------------------------------------

template <class T>
typename Graph<T>::Tape Graph<T>::take_tape(detail::Arena& arena, detail::LayerRows sizes,
                                            bool steps_keep) const {
  Tape tape{plan_.tape.template take<T>(name_, arena, sizes), {}};
  std::size_t kept = 0;
  for (std::size_t s = 0; s < steps_.size(); ++s) {
    if (steps_keep && plan_.nodes[s].values.keeps) kept += kept_bytes(s, pass(sizes, {}));
  }
  tape.bytes = detail::take_bytes(name_, arena, kept);
  return tape;
}

template <class T>
std::size_t Graph<T>::scratch_bytes(const Pass<T>& pass) const {
  std::size_t bytes = 0, noted = 0, most = 0;  // of a step, of a step before, and with values
  Index noted_numbers = 0;
  Pass<T> counting = pass;
  counting.counted = &bytes;
  const auto note = [&](Index numbers) {
    if (bytes <= noted && numbers <= noted_numbers) return;
    noted = bytes, noted_numbers = numbers;
    detail::Arena all;
    all.take<T>(name_, {pass.sizes.rows, numbers});
    all.take<std::byte>(name_, static_cast<Index>(bytes));
    most = std::max(most, all.bytes());  // and a line to align
  };
  note((pass.backward ? plan_.backward : plan_.forward).numbers());
  for (std::size_t s = 0; s < steps_.size(); ++s) {
    const Node& node = plan_.nodes[s];
    bytes = 0;
    if (!pass.backward) steps_[s]->forward(counting);
    if (pass.backward && node.has_adjoint) steps_[s]->adjoint(counting);
    for (const std::size_t again : node.remakes) {
      if (pass.backward) steps_[again]->forward(counting);
    }
    if (bytes > 0) note(numbers(node, pass));
  }
  return most - std::min<std::size_t>(most, detail::kBufferAlignment);
}

template <class T>
void Graph<T>::prepare_step(const Node& node, Pass<T>& p) const {
  const Index before = p.sizes.rows * numbers(node, p) * static_cast<Index>(sizeof(T));
  p.rest = p.scratch.memory.subspan(static_cast<std::size_t>(before));
  p.kept = {};
}

template <class T>
void Graph<T>::forward(Pass<T> p) const {
  Workspace kept = p.tape.bytes;
  const std::size_t steps = p.y.absent() ? plan_.recorded : steps_.size();
  for (std::size_t s = 0; s < steps; ++s) {
    const Node& node = plan_.nodes[s];
    prepare_step(node, p);
    if (node.values.keeps && !kept.empty()) {
      p.kept = kept.first(kept_bytes(s, p));
      kept = kept.subspan(p.kept.size());
    }
    steps_[s]->forward(p);
  }
}

template <class T>
void Graph<T>::backward(Pass<T> p) const {
  Workspace kept = p.tape.bytes;
  for (std::size_t s = steps_.size(); s-- > 0;) {
    const Node& node = plan_.nodes[s];
    prepare_step(node, p);
    for (const std::size_t again : node.remakes) steps_[again]->forward(p);
    for (const std::size_t at : node.clears) {
      detail::clear(p.din({at, 0, plan_.places[at].cols}), p.executor);
    }
    if (node.values.keeps) {
      p.kept = kept.last(kept_bytes(s, p));
      kept = kept.first(kept.size() - p.kept.size());
    }
    if (node.has_adjoint) steps_[s]->adjoint(p);
  }
}

}  // namespace MHLA_TARGET
}  // namespace mhla
