#pragma once

/// \file
/// Promises of every form. A form's test file adds their tests:
///
///     TEST_FORM(Causal, forward::Causal, float, double);
///
/// adds Causal/Forward/float.* and others. The tests are in forward.cpp. They call a form through
/// AnyForm, so they are compiled once per type of numbers. Forms are in support/forward_forms.hpp.

#include <gtest/gtest.h>

#include "mhla/core/call.hpp"
#include "support/crowd.hpp"
#include "support/forward_arguments.hpp"
#include "support/message_of.hpp"
#include "support/outputs.hpp"
#include "support/reference.hpp"

namespace mhla::test {

// Compiled with forward.cpp.
extern template Expected<float> expected(const Problem<float>&, Index);
extern template Expected<double> expected(const Problem<double>&, Index);
extern template Expected<Eigen::half> expected(const Problem<Eigen::half>&, Index);
extern template Expected<Eigen::bfloat16> expected(const Problem<Eigen::bfloat16>&, Index);

/// Calls of a form for one head or for a batch.
template <class In>
struct FormCalls {
  using T = detail::scalar_of<In>;
  using Arguments = forward::Arguments<T>;

  std::size_t (*bytes)(const In&, const Arguments&, const ExecutorRef&);
  void (*run)(const In&, const Arguments&, const detail::output_of<In>&, const Call&);
  std::size_t (*kept_bytes)(const In&, const Arguments&) = nullptr;  // of forms that keep summaries
};
template <class F, class In>
constexpr FormCalls<In> calls_of() {
  FormCalls<In> calls{&F::bytes, &F::run};
  if constexpr (F::kKeeps) calls.kept_bytes = &F::kept_bytes;
  return calls;
}

/// A form in numbers of type T: the members of forward_forms.hpp.
template <class T>
struct AnyForm : FormCalls<Inputs<T>> {
  FormCalls<BatchInputs<T>> batch;
  const char* name;
  bool causal, has_operator, mixes, streams;
  void (*fit)(Problem<T>&);
  Expected<T> (*expected)(const Problem<T>&);
};
template <class F>
concept StreamForm = requires {
  typename F::Whole;
};
template <class F, class T>
inline constexpr AnyForm<T> kFormOn{calls_of<F, Inputs<T>>(),
                                    calls_of<F, BatchInputs<T>>(),
                                    F::kName,
                                    F::kCausal,
                                    F::kOperator,
                                    F::kMixes,
                                    StreamForm<F>,
                                    &F::fit,
                                    &expected_of<F>};

/// Adds tests whose names begin with `prefix`.
template <class T>
void add_form_tests(const std::string& prefix, const AnyForm<T>& form);
template <class F, class... T>
bool test_form(const std::string& prefix) {
  (add_form_tests<T>(prefix, kFormOn<F, T>), ...);
  return true;
}

/// Adds the tests of a form in some types of numbers.
#define TEST_FORM(prefix, ...) \
  [[maybe_unused]] const bool kTested##prefix = test_form<__VA_ARGS__>(#prefix)

}  // namespace mhla::test
