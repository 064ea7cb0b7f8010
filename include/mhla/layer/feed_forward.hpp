#pragma once

/// \file
/// The feed-forward parts of blocks (block_body.hpp) as bodies: the perceptron of mlp.hpp, with
/// parameters fc1 and fc2, and the gated one of gated_mlp.hpp, with gate_proj, up_proj and
/// down_proj without biases.

#include <algorithm>
#include <span>
#include <string>

#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/layer/activation.hpp"
#include "mhla/layer/body.hpp"
#include "mhla/layer/dense.hpp"
#include "mhla/layer/gate.hpp"
#include "mhla/layer/gated_mlp.hpp"
#include "mhla/layer/mlp.hpp"
#include "mhla/layer/parameters.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// The authors' names of the layers of a perceptron.
struct MlpNames {
  std::string first = "fc1", second = "fc2";
};

/// \tparam G  Gelu or ErfGelu
template <Accumulator T, class G>
class MlpBody {
  static constexpr const char* kName = "mlp";

 public:
  struct Tape {
    MatrixView<T> pre, hidden;  // [rows, H]
    Tape(Arena& arena, const MlpBody& body, LayerRows sizes)
        : pre(take_matrix<T>(kName, arena, sizes.rows, body.hidden_)),
          hidden(take_matrix<T>(kName, arena, sizes.rows, body.hidden_)) {}
  };
  struct ForwardScratch {
    Workspace rest;
    ForwardScratch(Arena& arena, const MlpBody& body, LayerRows, const ExecutorRef&)
        : rest(take_bytes(kName, arena,
                          std::max(dense_workspace_bytes<T>(body.channels_, body.hidden_),
                                   dense_workspace_bytes<T>(body.hidden_, body.channels_)))) {}
  };
  struct BackwardScratch {
    Workspace rest;
    BackwardScratch(Arena& arena, const MlpBody& body, LayerRows sizes, const ExecutorRef&)
        : rest(take_bytes(kName, arena,
                          mlp_adjoint_workspace_bytes<T>(sizes.rows, body.channels_, body.hidden_,
                                                         body.channels_))) {}
  };

  MlpBody(Index channels, Index hidden, const MlpNames& names = {})
      : channels_(channels), hidden_(hidden) {
    first_ = {table_, names.first, {hidden, channels}};
    second_ = {table_, names.second, {channels, hidden}};
  }
  const ParameterTable& table() const { return table_; }

  void record(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
              const ForwardScratch& scratch, const ExecutorRef& executor) const {
    dense(x, views(parameters).first, tape.pre, {.workspace = scratch.rest, .executor = executor});
    activate<G, T>(kName, tape.pre, tape.hidden, executor);
  }
  void write(std::span<const T> parameters, const Tape& tape, MatrixView<T> y,
             const ForwardScratch& scratch, const ExecutorRef& executor) const {
    dense(tape.hidden, views(parameters).second, y,
          {.workspace = scratch.rest, .executor = executor});
  }
  void backward(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
                MatrixView<const T> dy, MatrixView<T> dx, std::span<T> gradients,
                const BackwardScratch& scratch, const ExecutorRef& executor) const {
    mlp_adjoint<G>(x, views(parameters), tape.pre, tape.hidden, dy, dx, views(gradients),
                   {.workspace = scratch.rest, .executor = executor});
  }

 private:
  template <class U>
  MlpView<U> views(std::span<U> row) const {
    return {first_(row), second_(row)};
  }

  Index channels_, hidden_;
  ParameterTable table_;
  WeightSlices<DenseView> first_, second_;
};

template <Accumulator T>
class GatedMlpBody {
  static constexpr const char* kName = "gated_mlp";

 public:
  struct Tape {
    MatrixView<T> gate, up;  // [rows, H]
    Tape(Arena& arena, const GatedMlpBody& body, LayerRows sizes)
        : gate(take_matrix<T>(kName, arena, sizes.rows, body.hidden_)),
          up(take_matrix<T>(kName, arena, sizes.rows, body.hidden_)) {}
  };
  struct ForwardScratch {
    MatrixView<T> hidden;  // [rows, H]: from record to write
    Workspace rest;
    ForwardScratch(Arena& arena, const GatedMlpBody& body, LayerRows sizes, const ExecutorRef&)
        : hidden(take_matrix<T>(kName, arena, sizes.rows, body.hidden_)),
          rest(take_bytes(kName, arena,
                          std::max(dense_workspace_bytes<T>(body.channels_, body.hidden_),
                                   dense_workspace_bytes<T>(body.hidden_, body.channels_)))) {}
  };
  struct BackwardScratch {
    Workspace rest;
    BackwardScratch(Arena& arena, const GatedMlpBody& body, LayerRows sizes, const ExecutorRef&)
        : rest(take_bytes(kName, arena,
                          gated_mlp_adjoint_workspace_bytes<T>(sizes.rows, body.channels_,
                                                               body.hidden_, body.channels_))) {}
  };

  GatedMlpBody(Index channels, Index hidden) : channels_(channels), hidden_(hidden) {
    gate_ = {table_, "gate_proj", {hidden, channels}, false};
    up_ = {table_, "up_proj", {hidden, channels}, false};
    down_ = {table_, "down_proj", {channels, hidden}, false};
  }
  const ParameterTable& table() const { return table_; }
  template <class U>
  GatedMlpView<U> views(std::span<U> row) const {
    return {gate_(row), up_(row), down_(row)};
  }

  void record(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
              const ForwardScratch& scratch, const ExecutorRef& executor) const {
    const Call call{.workspace = scratch.rest, .executor = executor};
    const auto p = views(parameters);
    dense(x, p.gate, tape.gate, call);
    dense(x, p.up, tape.up, call);
    gate(tape.up, tape.gate, scratch.hidden, GateFunction::kSilu, executor);
  }
  void write(std::span<const T> parameters, const Tape&, MatrixView<T> y,
             const ForwardScratch& scratch, const ExecutorRef& executor) const {
    dense(scratch.hidden, views(parameters).down, y,
          {.workspace = scratch.rest, .executor = executor});
  }
  void backward(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
                MatrixView<const T> dy, MatrixView<T> dx, std::span<T> gradients,
                const BackwardScratch& scratch, const ExecutorRef& executor) const {
    gated_mlp_adjoint(x, views(parameters), tape.gate, tape.up, dy, dx, views(gradients),
                      {.workspace = scratch.rest, .executor = executor});
  }

 private:
  Index channels_, hidden_;
  ParameterTable table_;
  WeightSlices<DenseView> gate_, up_, down_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
