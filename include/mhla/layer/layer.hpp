#pragma once

/// \file
/// A layer that has parameters: loaded from a file, run forwards and backwards.
///
///     const VisionLayer<float> attention(file, "blocks.0.attn.", {.heads = 6, ...});
///     attention(x, y, {.executor = pool, .kept = record});
///     attention.backward(x, dy, dx, gradients, {.executor = pool, .kept = record});
///
/// `gradients` has the layout of parameters(), so one call of adamw serves the layer. `record` has
/// kept_bytes(rows). Without a record, backward computes the kept values again, with the same bits.
/// Rows of x, y and their gradients are tokens, one item of a batch after another. Rows are
/// contiguous (column stride 1) at any row stride. Const functions may run concurrently.
///
/// A block of a model may have a condition c, one row per item, which follows x:
///
///     block(x, c, y);
///     block.backward(x, c, dy, dx, dc, gradients);
///
/// The header of a layer's body has its formula: vision_layer.hpp, vision_block.hpp.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/tensor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/layer/body.hpp"
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

/// \tparam Body  computation of the layer
template <class Body>
class Layer {
 public:
  using A = typename Body::Scalar;
  using Options = typename Body::Options;

  /// Makes a layer whose parameters are all 0.
  /// \throws option_error, shape_error for options that do not fit each other.
  explicit Layer(const Options& options)
      : body_(options), parameters_(static_cast<std::size_t>(body_.table().size())) {
    prepare();
  }
  /// Loads the tensors `prefix` + name of a file. options.channels = 0 takes the channels of the
  /// file.
  /// \param recomputed  last parts of names, such as "rotary.scale", of tensors to ignore besides
  ///                    those of kRecomputed (parameters.hpp)
  /// \throws option_error, shape_error for options that do not fit each other; shape_error that
  ///         names all tensors that are missing, superfluous, or of another shape or type.
  template <TensorFile<A> F>
  Layer(const F& file, std::string_view prefix, const Options& options,
        const std::vector<std::string_view>& recomputed = {})
      : body_(with_channels(file, prefix, options)),
        parameters_(numbers_in(file, prefix, recomputed)) {
    prepare();
    load_parameters(Body::kName, file, prefix, table(), parameters(), others(), recomputed);
  }

  const Options& options() const { return body_.options(); }
  /// Names, shapes and places of the parameters.
  const ParameterTable& table() const { return body_.table(); }
  std::span<A> parameters() { return parameters_; }
  std::span<const A> parameters() const { return parameters_; }

  /// Writes y for x, both [rows, channels].
  /// \throws shape_error, option_error for anything that does not fit, before y is touched.
  template <LayerInput X>
  void operator()(const X& x, const detail::output_t<X>& y, const LayerCall& call = {}) const
      requires(!detail::Conditioned<Body>) {
    forward(x, {}, y, call);
  }
  /// Writes y for x with a condition c.
  /// \param c  one row per item, with the columns that the block's header gives
  template <LayerInput X>
  void operator()(const X& x, const detail::input_t<X>& c, const detail::output_t<X>& y,
                  const LayerCall& call = {}) const requires detail::Conditioned<Body> {
    forward(x, c, y, call);
  }
  /// Returns y.
  template <LayerInput X>
  Matrix<A> operator()(const X& x, const LayerCall& call = {}) const
      requires(!detail::Conditioned<Body>) {
    return output(x, {}, call);
  }
  template <LayerInput X>
  Matrix<A> operator()(const X& x, const detail::input_t<X>& c,
                       const LayerCall& call = {}) const requires detail::Conditioned<Body> {
    return output(x, c, call);
  }

  /// Adds the gradient of x and those of the parameters for the gradient dy of y.
  /// \param dx         [rows, channels] or absent
  /// \param gradients  as parameters(), or empty
  /// \throws shape_error, option_error for anything that does not fit, before anything is touched.
  template <LayerInput X>
  void backward(const X& x, const detail::input_t<X>& dy, const detail::output_t<X>& dx,
                std::span<A> gradients, const LayerCall& call = {}) const
      requires(!detail::Conditioned<Body>) {
    adjoint(x, {}, dy, dx, {}, gradients, call);
  }
  /// Adds the gradients of a block with a condition, including dc.
  /// \param dc  as c, or absent
  template <LayerInput X>
  void backward(const X& x, const detail::input_t<X>& c, const detail::input_t<X>& dy,
                const detail::output_t<X>& dx, const detail::output_t<X>& dc,
                std::span<A> gradients,
                const LayerCall& call = {}) const requires detail::Conditioned<Body> {
    adjoint(x, c, dy, dx, dc, gradients, call);
  }

  /// Returns the bytes of workspace for x of that many rows. It reads only batch and executor of
  /// `call`.
  std::size_t workspace_bytes(Index rows, const LayerCall& call = {}) const {
    const Index batch = batch_of(Body::kName, rows, call.batch);
    return detail::counted_bytes([&](detail::Arena& arena) {
      return Forward(arena, body_, {rows, batch}, call.executor);
    });
  }
  std::size_t backward_workspace_bytes(Index rows, const LayerCall& call = {}) const {
    const Index batch = batch_of(Body::kName, rows, call.batch);
    return detail::counted_bytes([&](detail::Arena& arena) {
      return Backward(arena, body_, {rows, batch}, call.executor);
    });
  }
  std::size_t kept_bytes(Index rows, Index batch = 0) const {
    const detail::LayerRows sizes{rows, batch_of(Body::kName, rows, batch)};
    return detail::counted_bytes([&](detail::Arena& arena) { return Tape(arena, body_, sizes); });
  }

 protected:
  const Body& body() const { return body_; }
  /// The number of items in the rows.
  Index batch_of(const char* function, Index rows, Index batch) const {
    const Index item_tokens = body_.tokens();
    if (batch < 0)
      detail::fail_option(function, "batch", "is " + std::to_string(batch), "0 or more");
    if (item_tokens > 0) {
      if (rows % item_tokens == 0 && (batch == 0 || batch == rows / item_tokens))
        return rows / item_tokens;
      detail::fail_shape(function, "x", "has " + std::to_string(rows) + " rows",
                         std::to_string(item_tokens) + " tokens an item");
    }
    if (batch == 0) batch = 1;
    detail::expect_whole_items(function, "x", rows, batch, "the batch");
    if constexpr (requires { body_.most_tokens(); }) {
      if (rows / batch > body_.most_tokens()) {
        detail::fail_shape(function, "x", "has " + std::to_string(rows / batch) + " tokens an item",
                           "at most " + std::to_string(body_.most_tokens()));
      }
    }
    return batch;
  }

 private:
  using Tape = typename Body::Tape;
  using In = MatrixView<const A>;
  using Out = MatrixView<A>;

  /// Memory of a forward pass. Its own tape is not used if the caller keeps the tape.
  struct Forward {
    Tape tape;
    typename Body::ForwardScratch scratch;
    Forward(detail::Arena& arena, const Body& body, detail::LayerRows rows,
            const ExecutorRef& executor)
        : tape(arena, body, rows), scratch(arena, body, rows, executor) {}
  };
  /// Memory of a backward pass, which may have to run the forward first.
  struct Backward {
    Tape tape;
    detail::SharedScratch<typename Body::ForwardScratch, typename Body::BackwardScratch> scratch;
    Backward(detail::Arena& arena, const Body& body, detail::LayerRows rows,
             const ExecutorRef& executor)
        : tape(arena, body, rows), scratch(arena, body, body, rows, executor) {}
  };

  void prepare() {
    if constexpr (detail::Prepared<Body>) body_.prepare();
  }
  /// Prefixes of tensors of a file that are not the layer's.
  static std::span<const std::string_view> others() {
    if constexpr (requires { Body::kOthers; }) {
      return Body::kOthers;
    } else {
      return {};
    }
  }
  /// The numbers of all parameters. A file may claim channels that it does not have. So its shapes
  /// are compared before memory for parameters and for the body's data is allocated.
  template <class F>
  std::size_t numbers_in(const F& file, std::string_view prefix,
                         std::span<const std::string_view> recomputed) const {
    detail::expect_parameters(Body::kName, file, prefix, body_.table(), others(), recomputed);
    return static_cast<std::size_t>(body_.table().size());
  }
  template <class F>
  static Options with_channels(const F& file, std::string_view prefix, Options options) {
    if (options.channels != 0) return options;
    options.channels = detail::channels_of(Body::kName, file, prefix, Body::kOutput);
    return options;
  }
  void forward(const In& x, const In& c, const Out& y, const LayerCall& call) const;
  Matrix<A> output(const In& x, const In& c, const LayerCall& call) const {
    expect(Body::kName, x, c, call.batch);
    Matrix<A> y(x.rows, x.cols);
    forward(x, c, y, call);
    return y;
  }
  void adjoint(const In& x, const In& c, const In& dy, const Out& dx, const Out& dc,
               std::span<A> gradients, const LayerCall& call) const;

  detail::LayerRows expect(const char* function, const In& x, const In& c, Index batch) const {
    detail::expect_rows(function, "x", x, -1, options().channels);
    const detail::LayerRows rows{x.rows, batch_of(function, x.rows, batch)};
    if constexpr (detail::Conditioned<Body>) {
      detail::expect_rows(function, "c", c, rows.batch, body_.condition());
    }
    return rows;
  }
  void record(const In& x, const In& c, const Tape& tape,
              const typename Body::ForwardScratch& scratch, const ExecutorRef& executor) const {
    if constexpr (detail::Conditioned<Body>) {
      body_.record(parameters(), x, c, tape, scratch, executor);
    } else {
      body_.record(parameters(), x, tape, scratch, executor);
    }
  }
  /// Returns the kept values, in `kept` or in `tape`.
  /// \param settle  mark_kept before a forward, find_kept before a backward pass
  template <class Settle>
  Tape tape_of(const char* function, Workspace kept, detail::LayerRows rows, const Tape& tape,
               const Settle& settle) const {
    settle(function, kept, kept_bytes(rows.rows, rows.batch));
    if (kept.empty()) return tape;
    detail::Arena arena(kept.data());
    return Tape(arena, body_, rows);
  }

  Body body_;
  std::vector<A> parameters_;
};

// ------------------------------------------------------------------------------------------------

template <class Body>
void Layer<Body>::forward(const In& x, const In& c, const Out& y, const LayerCall& call) const {
  const detail::LayerRows rows = expect(Body::kName, x, c, call.batch);
  detail::expect_rows(Body::kName, "y", y, x.rows, x.cols);
  detail::Scratch scratch(Body::kName, call.workspace, workspace_bytes(x.rows, call));
  const Forward memory(scratch.arena(), body_, rows, call.executor);
  const Tape tape = tape_of(Body::kName, call.kept, rows, memory.tape, detail::mark_kept);
  record(x, c, tape, memory.scratch, call.executor);
  body_.write(parameters(), tape, y, memory.scratch, call.executor);
}

template <class Body>
void Layer<Body>::adjoint(const In& x, const In& c, const In& dy, const Out& dx, const Out& dc,
                          std::span<A> gradients, const LayerCall& call) const {
  constexpr const char* kName = Body::kBackwardName;
  const detail::LayerRows rows = expect(kName, x, c, call.batch);
  detail::expect_rows(kName, "dy", dy, x.rows, x.cols);
  detail::expect_rows_or_none(kName, "dx", dx, x.rows, x.cols);
  detail::expect_rows_or_none(kName, "dc", dc, c.rows, c.cols);
  detail::expect_elements_or_none(kName, "gradients", gradients.size(), table().size());
  detail::Scratch scratch(kName, call.workspace, backward_workspace_bytes(x.rows, call));
  const Backward memory(scratch.arena(), body_, rows, call.executor);
  const Tape tape = tape_of(kName, call.kept, rows, memory.tape, detail::find_kept);
  if (call.kept.empty()) record(x, c, tape, memory.scratch.one, call.executor);
  if constexpr (detail::Conditioned<Body>) {
    body_.backward(parameters(), x, c, tape, dy, dx, dc, gradients, memory.scratch.other,
                   call.executor);
  } else {
    body_.backward(parameters(), x, tape, dy, dx, gradients, memory.scratch.other, call.executor);
  }
}

}  // namespace MHLA_TARGET
}  // namespace mhla
