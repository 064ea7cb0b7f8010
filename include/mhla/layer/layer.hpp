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
/// A family of layers builds a graph of steps (graph.hpp). Its header has the formula:
/// vision_layer.hpp, vision_block.hpp. The guide has a family of one's own.

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/tensor_file.hpp"
#include "mhla/layer/graph.hpp"
#include "mhla/layer/graph_layer.hpp"
#include "mhla/layer/parameters.hpp"
#include "mhla/layer/rows.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

namespace detail {

/// Returns the first axis of the tensor prefix + output, which is the layer's channels.
template <class F>
Index channels_of(const char* function, const F& file, std::string_view prefix,
                  const std::string& output) {
  constexpr const char* kWanted = "the tensors of the layer below this prefix";
  const std::string below = "below \"" + std::string(prefix) + "\"";
  const auto& tensors = file.tensors();
  const auto found = tensors.find(std::string(prefix) + output);
  if (found != tensors.end()) {
    const auto& shape = found->second.shape;
    if (!shape.empty() && std::count(shape.begin(), shape.end(), 0) == 0) return shape.front();
    fail_shape(function, "file", "has " + output + " of shape " + shape_text(shape) + " " + below,
               kWanted);
  }
  for (const auto& [name, tensor] : tensors) {
    const std::string other = name.substr(0, name.size() - std::min(name.size(), output.size()));
    if (other + output != name || (!other.empty() && other.back() != '.')) continue;
    fail_shape(function, "file",
               "has a layer below " + printable(other) + ", but no " + output + " " + below,
               kWanted);
  }
  fail_shape(function, "file", "has no " + output + ", " + below + " or elsewhere", kWanted);
}

/// A family of layers that also read a condition, one row per item.
template <class F>
concept Conditioned = requires {
  requires F::kConditioned;
};

}  // namespace detail

/// \tparam F  family of the layer, with the types Scalar and Options, which has `channels`, and:
///
///     kName                     of errors
///     kOutput                   a tensor of C rows, from which a file's C is taken
///     tokens(options)           of an item; 0 for any number
///     build(graph, x, options)  adds the steps, and returns the value that is the output
///
/// It may have checked(options), which returns them after checks, and most_tokens(options). It may
/// have kConditioned, and kOthers: prefixes of tensors of a file that are not the layer's.
template <class F>
class Layer : public detail::GraphLayer<typename F::Scalar> {
  using Base = detail::GraphLayer<typename F::Scalar>;

 public:
  using A = typename F::Scalar;
  using Options = typename F::Options;

  /// Makes a layer whose parameters are all 0. initialize() sets them to their initial values.
  /// \throws option_error, shape_error for options that do not fit each other.
  explicit Layer(const Options& options) : Layer(Checked(), checked(options)) { this->make(); }
  /// Loads the tensors `prefix` + name of a file. options.channels = 0 takes the channels of the
  /// file.
  /// \param recomputed  last parts of names, such as "rotary.scale", of tensors to ignore besides
  ///                    those of kRecomputed (parameters.hpp)
  /// \throws option_error, shape_error for options that do not fit each other; shape_error that
  ///         names all tensors that are missing, superfluous, or of another shape or type.
  template <TensorFile<A> File>
  Layer(const File& file, std::string_view prefix, const Options& options,
        const std::vector<std::string_view>& recomputed = {})
      : Layer(Checked(), checked(with_channels(file, prefix, options))) {
    std::span<const std::string_view> others;
    if constexpr (requires { F::kOthers; }) others = F::kOthers;
    this->load(file, prefix, others, recomputed);
  }

  const Options& options() const { return options_; }

  /// Writes y for x, both [rows, channels].
  /// \throws shape_error, option_error for anything that does not fit, before y is touched.
  template <LayerInput X>
  void operator()(const X& x, const detail::output_t<X>& y, const LayerCall& call = {}) const
      requires(!detail::Conditioned<F>) {
    this->forward(x, {}, y, call);
  }
  /// Writes y for x with a condition c.
  /// \param c  one row per item, with the columns that the block's header gives
  template <LayerInput X>
  void operator()(const X& x, const detail::input_t<X>& c, const detail::output_t<X>& y,
                  const LayerCall& call = {}) const requires detail::Conditioned<F> {
    this->forward(x, c, y, call);
  }
  /// Returns y.
  template <LayerInput X>
  Matrix<A> operator()(const X& x, const LayerCall& call = {}) const
      requires(!detail::Conditioned<F>) {
    return this->output(x, {}, call);
  }
  template <LayerInput X>
  Matrix<A> operator()(const X& x, const detail::input_t<X>& c,
                       const LayerCall& call = {}) const requires detail::Conditioned<F> {
    return this->output(x, c, call);
  }

  /// Adds the gradient of x and those of the parameters for the gradient dy of y.
  /// \param dx         [rows, channels] or absent
  /// \param gradients  as parameters(), or empty
  /// \throws shape_error, option_error for anything that does not fit, before anything is touched.
  template <LayerInput X>
  void backward(const X& x, const detail::input_t<X>& dy, const detail::output_t<X>& dx,
                std::span<A> gradients, const LayerCall& call = {}) const
      requires(!detail::Conditioned<F>) {
    this->adjoint(x, {}, dy, dx, {}, gradients, call);
  }
  /// Adds the gradients of a block with a condition, including dc.
  /// \param dc  as c, or absent
  template <LayerInput X>
  void backward(const X& x, const detail::input_t<X>& c, const detail::input_t<X>& dy,
                const detail::output_t<X>& dx, const detail::output_t<X>& dc,
                std::span<A> gradients,
                const LayerCall& call = {}) const requires detail::Conditioned<F> {
    this->adjoint(x, c, dy, dx, dc, gradients, call);
  }

 private:
  struct Checked {};
  static Options checked(const Options& o) {
    if constexpr (requires { F::checked(o); }) return F::checked(o);
    return o;
  }
  Layer(Checked, const Options& o) : Base(graph_of(o)), options_(o) {}

  static MHLA_COLD Graph<A> graph_of(const Options& o) {
    Index most = 0;
    if constexpr (requires { F::most_tokens(o); }) most = F::most_tokens(o);
    Graph<A> graph(F::kName, o.channels, F::tokens(o), most);
    graph.plan(F::build(graph, graph.input(), o));
    return graph;
  }
  template <class File>
  static Options with_channels(const File& file, std::string_view prefix, Options options) {
    if (options.channels != 0) return options;
    options.channels = detail::channels_of(F::kName, file, prefix, F::kOutput);
    return options;
  }

  Options options_;
};

}  // namespace MHLA_TARGET
}  // namespace mhla
