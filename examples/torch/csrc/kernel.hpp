#pragma once

/// \file
/// The kernels of an operator and of its gradient, from a form of the library:
///
///     static constexpr const char* kName                  the operator, with kName_backward
///     static constexpr const char* kSchema                of what stands between v and the options
///     explicit Form(Arguments&)                           takes that
///     void check(q, k) const                              throws where the blocks do not fit
///     std::optional<Tensor> mixing                        absent where it has none
///     void forward(in, op, out, call) const
///     void backward(in, op, dout, gradients, parameters, call) const

#include <array>
#include <cstddef>
#include <mhla/core/call.hpp>
#include <string>

#include "arguments.hpp"
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
    if (form.mixing) form.mixing = torch::stable::contiguous(*form.mixing);
  }

  /// An output or a gradient with the tokens and heads of `like`: [B,N,H,width] in memory.
  template <class New>
  Tensor like(const Tensor& t, Index width, New&& make) const {
    const bool heads_first = options.heads_first();
    const std::array<Index, 4> sizes{t.size(0), t.size(heads_first ? 2 : 1),
                                     t.size(heads_first ? 1 : 2), width};
    const Tensor dense = make(t, torch::headeronly::IntHeaderOnlyArrayRef(sizes.data(), 4));
    return heads_first ? torch::stable::transpose(dense, 1, 2) : dense;
  }
  Tensor zeros_like(const Tensor& t) const {
    return like(t, t.size(3),
                [](const Tensor& of, auto sizes) { return torch::stable::new_zeros(of, sizes); });
  }
  /// [0] where there is none.
  Tensor zeros_like(const std::optional<Tensor>& t) const {
    return t ? zeros_like(*t) : torch::stable::new_zeros(q, {0});
  }

  Tensor q, k, v;
  Form form;
  Options options;
};

/// (q, k, v, ..., options) -> out [B,Nq,H,E], or [B,H,Nq,E]
template <class Form>
void forward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Arguments from(stack);
  const Problem<Form> p(from);
  const Tensor out = with_scalar(Form::kName, p.q.scalar_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    const auto in = inputs<T>(Form::kName, p.q, p.k, p.v, p.options);
    const Tensor result = p.like(p.q, p.v.size(3), [](const Tensor& of, auto sizes) {
      return torch::stable::new_empty(of, sizes);
    });
    TorchThreads threads;
    p.form.forward(in, p.options.op(), view<T>(Form::kName, "out", result, p.options),
                   mhla::Call{.executor = threads});
    return result;
  });
  stack[0] = torch::stable::detail::from(out);
}

/// (dout, q, k, v, ..., options) -> gradients of q, k, v, mixing, normalizer_q and normalizer_k,
/// [0] for those that are absent
template <class Form>
void backward(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Arguments from(stack);
  const Tensor dout = from.take<Tensor>();
  const Problem<Form> p(from);
  static const std::string name = std::string(Form::kName) + "_gradient";
  const char* const function = name.c_str();
  std::array<Tensor, 6> gradients;
  with_scalar(function, p.q.scalar_type(), [&](auto type) {
    using T = typename decltype(type)::type;
    using A = mhla::accumulator_t<T>;
    const auto in = inputs<T>(function, p.q, p.k, p.v, p.options);
    const auto d = view<const T>(function, "dout", dout, p.options);
    mhla::ParameterGradients<A> parameters;
    gradients = {p.zeros_like(p.q),
                 p.zeros_like(p.k),
                 p.zeros_like(p.v),
                 p.form.mixing ? torch::stable::new_zeros(*p.form.mixing, p.form.mixing->sizes())
                               : torch::stable::new_zeros(p.q, {0}),
                 p.zeros_like(p.options.normalizer_q),
                 p.zeros_like(p.options.normalizer_k)};
    if (p.form.mixing) parameters.mixing = mixing_view<A>(function, gradients[3]);
    const auto writable = [&](std::size_t i, bool there) {
      return there ? view<T>(function, "gradients", gradients[i], p.options)
                   : mhla::TensorView<T>{};
    };
    TorchThreads threads;
    p.form.backward(in, p.options.op(), d,
                    mhla::BatchGradients<T>{writable(0, true), writable(1, true), writable(2, true),
                                            writable(4, p.options.normalizer_q.has_value()),
                                            writable(5, p.options.normalizer_k.has_value())},
                    parameters, mhla::Call{.executor = threads});
  });
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    stack[i] = torch::stable::detail::from(gradients[i]);
  }
}

/// Defines the operator and its gradient.
template <class Form>
void define(torch::stable::detail::StableLibrary& library) {
  const std::string arguments =
      std::string("Tensor q, Tensor k, Tensor v, ") + Form::kSchema + ", " + Options::kSchema;
  const std::string name = Form::kName;
  library.def((name + "(" + arguments + ") -> Tensor").c_str());
  library.def((name + "_backward(Tensor dout, " + arguments +
               ") -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")
                  .c_str());
}

template <class Form>
void implement(torch::stable::detail::StableLibrary& library) {
  const std::string name = Form::kName;
  library.impl(name.c_str(), &forward<Form>);
  library.impl((name + "_backward").c_str(), &backward<Form>);
}

}  // namespace mhla_torch
