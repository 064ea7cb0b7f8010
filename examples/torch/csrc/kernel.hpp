#pragma once

/// \file
/// Dispatcher kernels of an operator and of its gradient, for a form of the library with:
///
///     static constexpr const char* kName                  the operator, with kName_backward
///     static constexpr const char* kSchema                arguments between v and the options
///     explicit Form(Arguments&)                           takes these arguments
///     void check(q, k) const                              throws if the blocks do not fit
///     std::optional<Tensor> mixing                        absent if the form has none
///     void forward(in, op, out, call) const
///     void backward(in, op, dout, gradients, parameters, call) const
///     Index key_blocks(keys) const                        if it keeps summaries for the gradient

#include <algorithm>
#include <array>
#include <cstddef>
#include <mhla/core/call.hpp>
#include <string>
#include <utility>

#include "arguments.hpp"
#include "feature_maps.hpp"
#include "summaries.hpp"
#include "threads.hpp"

namespace mhla_torch {

/// Arguments of the forward kernel.
template <class Form>
struct Problem {
  explicit Problem(Arguments& from)
      : q(from.take<Tensor>()),
        k(from.take<Tensor>()),
        v(from.take<Tensor>()),
        form(from),
        options(from) {
    if (form.mixing) form.mixing = dense(*form.mixing);
    for (const auto& [argument, tensor] : {std::pair{"query_angles", &options.query_angles},
                                           {"key_angles", &options.key_angles},
                                           {"gain", &options.gain},
                                           {"gate", &options.gate}}) {
      if (*tensor) fail<mhla::option_error>(Form::kName, argument, "is given", "none on the CPU");
    }
  }

  /// New output or gradient with the tokens and heads of `t`: [B,N,H,width] in memory.
  template <class New>
  Tensor like(const Tensor& t, Index width, New&& make) const {
    const bool heads_first = options.heads_first();
    const std::array<Index, 4> sizes{t.size(0), t.size(heads_first ? 2 : 1),
                                     t.size(heads_first ? 1 : 2), width};
    const Tensor dense = make(t, torch::headeronly::IntHeaderOnlyArrayRef(sizes.data(), 4));
    return heads_first ? torch::stable::transpose(dense, 1, 2) : dense;
  }
  /// Multiply-adds of the larger product: of keys and values, or of queries and summaries.
  Index multiply_adds() const { return std::max(q.numel(), k.numel()) * v.size(3); }
  Tensor zeros_like(const Tensor& t) const {
    return like(t, t.size(3),
                [](const Tensor& of, auto sizes) { return torch::stable::new_zeros(of, sizes); });
  }

  Tensor q, k, v;
  Form form;
  Options options;
};

/// \throws option_error for a pattern of the mixing matrix, whose zeros the CPU's kernels read.
inline void refuse_pattern(const char* function, const std::optional<Tensor>& pattern) {
  if (pattern) fail<mhla::option_error>(function, "pattern", "is given", "none on the CPU");
}

template <class Form>
concept KeepsSummaries = requires(const Form& form) {
  form.key_blocks(Index{});
};

/// Computes the output [B,Nq,H,E], or [B,H,Nq,E].
/// \param keep  is called with inputs and operator; returns the memory for summaries, empty for
///              none
template <class Form, class Keep>
Tensor output(const Problem<Form>& p, Keep&& keep) {
  return with_scalar(Form::kName, p.q.scalar_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    const auto in = inputs<T>(Form::kName, p.q, p.k, p.v, p.options);
    const Tensor result = p.like(p.q, p.v.size(3), [](const Tensor& of, auto sizes) {
      return torch::stable::new_empty(of, sizes);
    });
    const TorchThreads threads(p.multiply_adds());
    with_operator<mhla::accumulator_t<T>>(
        Form::kName, p.options, in.q.width(), [&](const auto& op) {
          p.form.forward(in, op, view<T>(Form::kName, "out", result, p.options),
                         mhla::Call{.executor = threads, .kept = keep(in, op)});
        });
    return result;
  });
}

/// (q, k, v, ..., options) -> out
template <class Form>
void forward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Arguments from(stack);
  const Problem<Form> p(from);
  stack[0] =
      torch::stable::detail::from(output(p, [](const auto&...) { return mhla::Workspace(); }));
}

/// (q, k, v, ..., options) -> (out, summaries)
template <KeepsSummaries Form>
void forward_kept(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Arguments from(stack);
  const Problem<Form> p(from);
  std::optional<Tensor> kept;
  const Tensor out = output(p, [&](const auto& in, const auto& op) {
    kept = new_summaries(p.q, in, op, p.form.key_blocks(in.k.tokens()));
    return bytes_of(*kept);
  });
  stack[0] = torch::stable::detail::from(out);
  stack[1] = torch::stable::detail::from(*kept);
}

/// Elements of a dense tensor.
template <class A>
std::span<A> numbers(const Tensor& t) {
  return {static_cast<A*>(t.mutable_data_ptr()), static_cast<std::size_t>(t.numel())};
}

/// (dout, q, k, v, ..., options, summaries, out, unwanted) -> gradients
template <class Form>
void backward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Arguments from(stack);
  const Tensor dout = from.take<Tensor>();
  const Problem<Form> p(from);
  std::optional<Tensor> kept;
  if constexpr (KeepsSummaries<Form>) kept = from.take<std::optional<Tensor>>();
  (void)from.take<std::optional<Tensor>>();  // the output, which only CUDA's gradients read
  const auto unwanted = from.take<std::int64_t>();
  static const std::string name = std::string(Form::kName) + "_gradient";
  const char* const function = name.c_str();
  std::array<Tensor, kGradients> gradients;
  with_scalar(function, p.q.scalar_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    using A = mhla::accumulator_t<T>;
    const auto in = inputs<T>(function, p.q, p.k, p.v, p.options);
    const auto d = view<const T>(function, "dout", dout, p.options);
    const std::array<std::optional<Tensor>, kGradients> arguments{p.q,
                                                                  p.k,
                                                                  p.v,
                                                                  p.form.mixing,
                                                                  p.options.normalizer_q,
                                                                  p.options.normalizer_k,
                                                                  p.options.query_map,
                                                                  p.options.key_map,
                                                                  p.options.gain,
                                                                  p.options.gate};
    const auto wants = [&](std::size_t i) { return arguments[i] && (unwanted >> i & 1) == 0; };
    for (std::size_t i = 0; i < kGradients; ++i) {
      const bool of_tokens = i < 3 || i == 4 || i == 5;
      gradients[i] = !wants(i)   ? torch::stable::new_zeros(p.q, {0})
                     : of_tokens ? p.zeros_like(*arguments[i])
                                 : torch::stable::new_zeros(*arguments[i], arguments[i]->sizes());
    }
    mhla::ParameterGradients<A> parameters;
    if (wants(3)) parameters.mixing = mixing_view<A>(function, gradients[3]);
    const auto writable = [&](std::size_t i) {
      return wants(i) ? view<T>(function, "gradients", gradients[i], p.options)
                      : mhla::TensorView<T>{};
    };
    if (kept) {
      expect_tensor(function, "kept", *kept, ScalarType::Byte, 4);
      kept = at_cache_line(*kept);
    }
    const mhla::BatchGradients<T> wanted{writable(0), writable(1), writable(2), writable(4),
                                         writable(5)};
    const TorchThreads threads(p.multiply_adds());
    const mhla::Call call{.executor = threads, .kept = kept ? bytes_of(*kept) : mhla::Workspace()};
    with_operator<A>(function, p.options, in.q.width(), [&](const auto& op) {
      parameters.query_map = numbers<A>(gradients[6]);
      parameters.key_map = numbers<A>(gradients[7]);
      p.form.backward(in, op, d, wanted, parameters, call);
    });
  });
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    stack[i] = torch::stable::detail::from(gradients[i]);
  }
}

/// Registers the operator, the operator that keeps summaries, the gradient of both, and the name of
/// the form that CUDA would take.
template <class Form>
void define(torch::stable::detail::StableLibrary& library) {
  const std::string arguments =
      std::string("Tensor q, Tensor k, Tensor v, ") + Form::kSchema + ", " + Options::kSchema;
  const std::string name = Form::kName;
  library.def((name + "(" + arguments + ") -> Tensor").c_str());
  library.def((name + "_form(" + arguments + ") -> str").c_str());
  if (KeepsSummaries<Form>) {
    library.def((name + "_kept(" + arguments + ") -> (Tensor, Tensor)").c_str());
  }
  library.def((name + "_backward(Tensor dout, " + arguments +
               (KeepsSummaries<Form> ? ", Tensor? kept=None" : "") +
               ", Tensor? out=None, int unwanted=0" +
               ") -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, "
               "Tensor)")
                  .c_str());
}

template <class Form>
void implement(torch::stable::detail::StableLibrary& library) {
  const std::string name = Form::kName;
  library.impl(name.c_str(), &forward<Form>);
  if constexpr (KeepsSummaries<Form>) {
    library.impl((name + "_kept").c_str(), &forward_kept<Form>);
  }
  library.impl((name + "_backward").c_str(), &backward<Form>);
}

}  // namespace mhla_torch
