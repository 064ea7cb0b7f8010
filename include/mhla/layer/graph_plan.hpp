#pragma once

/// \file
/// The plan of a graph (graph.hpp): what its steps read and write, without numbers, and where
/// values lie. Values that an adjoint reads are on the tape, or are computed again. Other values
/// and all gradients are in scratch, where two share memory if no step needs both.

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/layer/body.hpp"
#include "mhla/layer/step.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Memory that values share if no step needs both.
class SharedMemory {
 public:
  /// Adds a value, with the times of its uses.
  /// \param before   set by place(): the numbers of a row before it
  /// \param numbers  of a row in memory
  void add(Index& before, Index numbers, bool per_item, std::size_t first_use,
           std::size_t last_use) {
    uses_.push_back({&before, 0, numbers, per_item, first_use, last_use});
  }
  /// Places the values, each before as few as possible.
  void place();
  /// Numbers of a row of all values with a row per token.
  Index numbers() const { return rows_; }
  /// Numbers of a row up to the last that a use at this time needs.
  Index numbers_at(std::size_t time) const;
  /// Takes memory for all values, or only for those with a row per item.
  template <class T>
  Buffers<T> take(const char* function, Arena& arena, LayerRows sizes, bool rows = true) const {
    Buffers<T> taken;
    if (rows) taken.rows = arena.take<T>(function, {sizes.rows, rows_});
    taken.items = arena.take<T>(function, {sizes.batch, items_});
    return taken;
  }

 private:
  struct Use {
    Index* to;
    Index before, numbers;
    bool per_item;
    std::size_t first, last;

    bool meets(const Use& other) const {
      return per_item == other.per_item && first <= other.last && other.first <= last;
    }
  };
  std::vector<Use> uses_;
  Index rows_ = 0, items_ = 0;  // numbers of all
};

/// A graph without the functions of its steps.
struct GraphPlan {
  struct Node {
    StepValues values;
    std::vector<std::size_t> remakes{}, clears{};     // before the adjoint: steps, gradients
    Index forward_numbers = 0, backward_numbers = 0;  // of a row of scratch before its own
    bool has_adjoint = true;                          // false if no later step reads its output
  };

  std::vector<Place> places;
  std::vector<Node> nodes;
  std::size_t output = 0, condition = Value::kAbsent;
  std::size_t recorded = 0;  // steps that write what backward reads
  SharedMemory tape, forward, backward;

  Value value(Index cols, Index stride, bool per_item) {
    const Value v{places.size(), 0, cols};
    places.push_back({cols, stride, per_item, v});
    return v;
  }
  void add(const StepValues& values) {
    if (!values.output.absent()) places[values.output.at].writer = nodes.size();
    nodes.push_back({values});
  }
  /// Lets the gradient of v be that of these columns.
  void share_gradient(Value v, Value columns) {
    const std::size_t from = places[v.at].gradient.at;
    const Value to = places[columns.at].gradient;
    for (Place& p : places) {
      if (p.gradient.at != from) continue;
      p.gradient = {to.at, to.first + columns.first + p.gradient.first, p.cols};
    }
  }
  /// Places the values, when all steps are there.
  /// \throws option_error as Graph::plan does.
  void place(const char* name, Value out);

 private:
  /// Steps of the backward at which a value is there.
  struct Times {
    std::size_t first = Value::kAbsent, last = 0;
  };

  bool given(Value v) const { return v.absent() || v.at == 0 || v.at == condition; }
  static bool has(const StepValues::Values& values, std::size_t at) {
    return std::any_of(values.begin(), values.end(), [at](Value v) { return v.at == at; });
  }
  /// Throws if a step reads the output, adds to a value that an adjoint before it reads, or shares
  /// the gradient of a value that another step reads.
  void expect_sums(const char* name) const;
  /// Lets a value be there at an adjoint: on the tape, or computed again.
  void need(Value v, std::size_t step, std::vector<Times>& again);
  /// Places gradients and the values that backward computes again.
  void place_backward();
};

// ------------------------------------------------------------------------------------------------

inline void SharedMemory::place() {
  std::vector<const Use*> placed;  // in the order of memory
  for (Use& use : uses_) {
    auto next = placed.begin();
    for (const Use* other : placed) {
      if (!use.meets(*other)) continue;
      if (use.before + use.numbers <= other->before) break;
      use.before = std::max(use.before, other->before + other->numbers);
    }
    while (next != placed.end() && (*next)->before <= use.before) ++next;
    placed.insert(next, &use);
    Index& all = use.per_item ? items_ : rows_;
    all = std::max(all, use.before + use.numbers);
    *use.to = use.before;
  }
}

inline Index SharedMemory::numbers_at(std::size_t time) const {
  Index end = 0;
  for (const Use& use : uses_) {
    const bool needed = !use.per_item && use.first <= time && time <= use.last;
    if (needed) end = std::max(end, use.before + use.numbers);
  }
  return end;
}

inline void GraphPlan::need(Value v, std::size_t step, std::vector<Times>& again) {
  if (given(v)) return;
  Place& place = places[v.at];
  place.kept = !place.remade;
  if (place.kept) return;
  Times& times = again[v.at];
  times.last = step;
  if (times.first != Value::kAbsent) return;
  const StepValues& from = nodes[place.writer].values;
  for (const Value input : from.inputs) need(input, step, again);
  for (const Value input : from.unsloped) need(input, step, again);
  times.first = step;
  nodes[step].remakes.push_back(place.writer);
}

inline void GraphPlan::place_backward() {
  struct Use {
    Index* before;
    std::size_t at, first, last;
  };
  std::vector<Use> uses;
  std::vector<Times> again(places.size());
  std::vector<bool> summed(places.size());
  const std::size_t steps = nodes.size();
  summed[output] = true;
  for (std::size_t s = steps; s-- > 0;) {
    const StepValues& values = nodes[s].values;
    const Value written = values.output.absent() ? values.sum : values.output;
    nodes[s].has_adjoint = summed[places[written.at].gradient.at];
    if (!nodes[s].has_adjoint) continue;
    for (const Value v : values.read) need(v, s, again);
    for (const Value v : values.inputs) {
      if (v.absent()) continue;
      const std::size_t at = places[v.at].gradient.at;
      if (given({at, 0, 0}) || summed[at]) continue;
      summed[at] = true;
      nodes[s].clears.push_back(at);
      std::size_t last = s;
      for (const Place& p : places) last = p.gradient.at == at ? std::min(last, p.writer) : last;
      uses.push_back({&places[at].slope, at, s, last});
    }
  }
  for (std::size_t at = 0; at < places.size(); ++at) {
    if (again[at].first == Value::kAbsent) continue;
    uses.push_back({&places[at].again, at, again[at].first, again[at].last});
  }
  std::stable_sort(uses.begin(), uses.end(),
                   [](const Use& a, const Use& b) { return a.first > b.first; });
  for (const Use& use : uses) {
    const Place& p = places[use.at];
    backward.add(*use.before, p.stride, p.per_item, steps - use.first, steps - use.last);
  }
  backward.place();
  for (std::size_t s = 0; s < steps; ++s) {
    nodes[s].backward_numbers = backward.numbers_at(steps - s);
  }
}

inline void GraphPlan::expect_sums(const char* name) const {
  const auto takes = [](const StepValues& v, std::size_t at) {
    return has(v.inputs, at) || has(v.unsloped, at);
  };
  for (std::size_t s = 0; s < nodes.size(); ++s) {
    const StepValues& v = nodes[s].values;
    bool wrong = !given({output, 0, 0}) && takes(v, output);
    if (!v.sum.absent()) {
      wrong = wrong || given(v.sum) || places[v.sum.at].remade;
      for (const Value in : v.inputs) {  // of which one may have the gradient of the sum
        if (in.absent() || places[in.at].gradient.at != places[v.sum.at].gradient.at) continue;
        for (std::size_t t = 0; t < nodes.size(); ++t) {
          wrong = wrong || (t != s && takes(nodes[t].values, in.at));
        }
      }
      for (std::size_t t = 0; t < s; ++t) {
        const StepValues& before = nodes[t].values;
        const bool again = !before.output.absent() && places[before.output.at].remade;
        wrong = wrong || has(before.read, v.sum.at) || (again && takes(before, v.sum.at));
      }
    }
    if (wrong) {
      fail_option(name, "graph",
                  "has step " + std::to_string(s) +
                      ", which reads the output, adds to a value that a step before it reads, or "
                      "adds one that another step reads",
                  "sums into an output that no step has read, of a value that no other step reads");
    }
  }
}

inline void GraphPlan::place(const char* name, Value out) {
  output = out.at;
  expect_sums(name);
  place_backward();
  for (std::size_t at = 1; at < places.size(); ++at) {
    Place& place = places[at];
    if (at == output || at == condition) continue;
    std::size_t last = place.writer;
    for (std::size_t s = last; s < nodes.size(); ++s) {
      const StepValues& v = nodes[s].values;
      if (v.sum.at == at && place.kept) recorded = std::max(recorded, s + 1);
      if (v.sum.at == at || has(v.inputs, at) || has(v.unsloped, at)) last = s;
    }
    if (place.kept) {
      recorded = std::max(recorded, place.writer + 1);
      last = nodes.size();
    }
    (place.kept ? tape : forward)
        .add(place.value, place.stride, place.per_item, place.writer, last);
  }
  tape.place(), forward.place();
  for (std::size_t s = 0; s < nodes.size(); ++s) {
    if (nodes[s].values.keeps) recorded = std::max(recorded, s + 1);
    nodes[s].forward_numbers = forward.numbers_at(s);
  }
  const bool whole = !given(out) && places[output].cols == out.cols;
  if (!whole || out.cols != places[0].cols) {
    fail_option(name, "graph",
                "ends with " +
                    (given(out) ? std::string("its input") : std::to_string(out.cols) + " columns"),
                "a step's value of " + std::to_string(places[0].cols) + " columns");
  }
  if (places[output].kept || places[output].writer < recorded) {
    fail_option(name, "graph", "has a last value that backward reads",
                "one more step, such as dense_step");
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
