#pragma once

/// \file
/// The driver of the tangent of any form (attention/form.hpp) over heads, batches and threads. A
/// (sequence, head) pair reads and writes its own tensors, so pairs run in any order.

#include <cstddef>
#include <span>

#include "mhla/attention/batch.hpp"
#include "mhla/attention/form.hpp"
#include "mhla/attention/heads.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/attention/overlap.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/gradient/driver.hpp"
#include "mhla/tangent/tangents.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

template <class In>
struct TangentTraits;
template <Scalar T>
struct TangentTraits<Inputs<T>> {
  using Tangents = mhla::Tangents<T>;
};
template <Scalar T>
struct TangentTraits<BatchInputs<T>> {
  using Tangents = BatchTangents<T>;
};
template <class In>
using tangents_of = typename TangentTraits<In>::Tangents;
template <class In>
using parameter_tangents_of = std::type_identity_t<ParameterTangents<sum_of<In>>>;
/// Where an output and its tangent go, and what a call returns.
template <class In>
using tangent_output_of = std::type_identity_t<WithTangent<output_of<In>>>;
template <class In>
using tangent_owner_of = WithTangent<typename InputTraits<In>::Owner>;

template <Scalar T>
Tangents<T> head_tangents(const BatchInputs<T>& in, const BatchTangents<T>& tangents, Index s,
                          Index h) {
  return head_tensors<Tangents<T>>(in, tangents, s, h);
}
template <Scalar T>
Tangents<T> head_tangents(const Inputs<T>&, const Tangents<T>& tangents, Index, Index) {
  return tangents;
}

/// Throws unless the tangents of a batch are absent or agree with it in batch, tokens and heads.
template <Scalar T>
void expect_batch_tangents(const char* function, const BatchInputs<T>& in,
                           const BatchTangents<T>& tangents, const TensorView<T>& tangent) {
  const auto expect = [&](const char* argument, const auto& t, Index tokens) {
    if (!t.absent()) expect_tensor(function, argument, t, in.q.batch(), tokens, in.q.heads());
  };
  expect("tangents.q", tangents.q, in.q.tokens());
  expect("tangents.k", tangents.k, in.k.tokens());
  expect("tangents.v", tangents.v, in.k.tokens());
  expect("tangents.normalizer_q", tangents.normalizer_q, in.q.tokens());
  expect("tangents.normalizer_k", tangents.normalizer_k, in.k.tokens());
  expect_tensor(function, "tangent", tangent, in.q.batch(), in.q.tokens(), in.q.heads());
}
template <Scalar T>
void expect_batch_tangents(const char*, const Inputs<T>&, const Tangents<T>&,
                           const MatrixView<T>&) {}

/// Throws unless the tangents of one head are absent or shaped as its inputs, and that of the
/// output as the output.
template <Scalar T>
void expect_tangents(const char* function, const Inputs<T>& in, const Tangents<T>& tangents,
                     const MatrixView<T>& tangent) {
  const auto expect = [&](const char* argument, const auto& t, const auto& of) {
    if (!t.absent()) expect_shape(function, argument, t, of.rows, of.cols);
  };
  expect("tangents.q", tangents.q, in.q);
  expect("tangents.k", tangents.k, in.k);
  expect("tangents.v", tangents.v, in.v);
  expect("tangents.normalizer_q", tangents.normalizer_q, in.normalizer_q);
  expect("tangents.normalizer_k", tangents.normalizer_k, in.normalizer_k);
  expect_shape(function, "tangent", tangent, in.q.rows, in.v.cols);
}

/// Throws if the output or its tangent has two indices for one element, or shares an element with
/// the other or with what the call reads.
/// \param mixing  its numbers (mixing_places)
template <class In, class A>
void expect_separate_tangents(const char* function, const In& in, const tangents_of<In>& tangents,
                              const ParameterTangents<A>& parameters,
                              const tangent_output_of<In>& out,
                              const TensorView<const scalar_of<In>>& mixing) {
  using T = scalar_of<In>;
  expect_distinct(function, "out", out.value);
  expect_distinct(function, "tangent", out.tangent);
  const NamedTensor<T> all[] = {{"out", as_batch(out.value)},
                                {"tangent", as_batch(out.tangent)},
                                {"q", as_batch(in.q)},
                                {"k", as_batch(in.k)},
                                {"v", as_batch(in.v)},
                                {"normalizer_q", as_batch(in.normalizer_q)},
                                {"normalizer_k", as_batch(in.normalizer_k)},
                                {"tangents.q", as_batch(tangents.q)},
                                {"tangents.k", as_batch(tangents.k)},
                                {"tangents.v", as_batch(tangents.v)},
                                {"tangents.normalizer_q", as_batch(tangents.normalizer_q)},
                                {"tangents.normalizer_k", as_batch(tangents.normalizer_k)},
                                {"mixing", mixing},
                                {"parameters.mixing", places_of<T>(parameters.mixing)},
                                {"parameters.query_map", places_of<T, A>(parameters.query_map)},
                                {"parameters.key_map", places_of<T, A>(parameters.key_map)}};
  expect_separate<T>(function, all, 2);
}

template <class Form, class In>
std::size_t form_tangent_bytes(const Form& form, const In& in, const ExecutorRef& executor) {
  return pairs_bytes(form.name, in, executor, [&](const auto& head, Index workers) {
    return tangent_bytes(form, head, workers);
  });
}

/// Writes outputs and tangents of all heads. Nothing is written before everything has been checked.
template <class Form, class In>
void run_tangent(const Form& form, const In& in, const tangents_of<In>& tangents,
                 const parameter_tangents_of<In>& parameters, const tangent_output_of<In>& out,
                 const Call& call) {
  expect_batch_of(form, in, out.value, "out");
  expect_batch_tangents(form.name, in, tangents, out.tangent);
  for (Index s = 0; s < sequences(in) && heads(in) > 0; ++s) {
    const auto head = head_inputs(in, s, 0);
    form.check(head, head_output(in, out.value, s, 0), "out");
    expect_tangents(form.name, head, head_tangents(in, tangents, s, 0),
                    head_output(in, out.tangent, s, 0));
  }
  expect_separate_tangents(form.name, in, tangents, parameters, out,
                           mixing_places<scalar_of<In>>(form));
  if (!call.kept.empty()) {
    fail_option(form.name, "kept", "is set", "none: a tangent keeps nothing");
  }
  const std::size_t bytes = form_tangent_bytes(form, in, call.executor);
  const Scratch scratch(form.name, call.workspace, bytes);
  for_each_pair(in, call.executor, scratch.bytes().data(), bytes,
                [&](Index s, Index h, std::byte* memory, const ExecutorRef& executor) {
                  Arena arena(memory);
                  ParameterTangents<sum_of<In>> of = parameters;
                  of.mixing = parameters.mixing.of_sequence(s).of_head(h);
                  write_tangent(
                      of_pair(form, s, h), arena, head_inputs(in, s, h),
                      head_tangents(in, tangents, s, h), of,
                      WithTangent<MatrixView<scalar_of<In>>>{head_output(in, out.value, s, h),
                                                             head_output(in, out.tangent, s, h)},
                      executor);
                });
}
/// The same; returns the output and its tangent.
template <class Form, class In>
tangent_owner_of<In> run_tangent(const Form& form, const In& in, const tangents_of<In>& tangents,
                                 const parameter_tangents_of<In>& parameters, const Call& call) {
  tangent_owner_of<In> out{make_output(in), make_output(in)};
  run_tangent(form, in, tangents, parameters, {out.value, out.tangent}, call);
  return out;
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
