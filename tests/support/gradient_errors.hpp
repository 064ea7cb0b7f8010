#pragma once

/// \file
/// Errors of every backward form for wrong calls.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "support/any_gradient.hpp"
#include "support/gradient_random.hpp"
#include "support/message_of.hpp"
#include "support/stopping_executor.hpp"

namespace mhla::test {

template <class T>
struct GradientErrors {
  const AnyGradient<T>& form;

  using A = accumulator_t<T>;
  using Problem = GradientProblem<T>;
  using Buffers = GradientBuffers<T>;
  using Arguments = GradientArguments<Inputs<T>>;

  /// A wrong call, and its message after the name of the function.
  struct Wrong {
    std::string message;
    std::function<void(Arguments&, Call&)> spoil;
  };

  /// Expects `Error` with this message, and nothing written.
  template <class Error>
  void expect_rejected(const Problem& p, const std::vector<Wrong>& calls) const {
    Buffers g(p, [] { return 7; });
    const Buffers before = g;
    for (const Wrong& wrong : calls) {
      Arguments a{p.inputs(), p.dout, g.views(), g.parameter_views()};
      Call call;
      wrong.spoil(a, call);
      const std::string message = message_of<Error>([&] { form.add(a, p, p.blocks, call); });
      const std::string start = std::string("mhla::") + form.name + ": " + wrong.message;
      EXPECT_TRUE(message.starts_with(start)) << start << "...: " << message;
      EXPECT_NE(message.find(", expected "), std::string::npos) << message;
      expect_same(before, g, p, wrong.message);
    }
  }

  void ErrorsNameTheArgumentBeforeAnythingIsWritten() const {
    const Problem p = complete_problem<T>(form);
    Matrix<T> rows(7, 3), cols(6, 4), wide(6, 3), tall(7, 2);
    expect_rejected<shape_error>(
        p, {{"dout has shape [6, 3], expected [6, 2]", [&](auto& a, auto&) { a.dout = wide; }},
            {"dout has shape [7, 2], expected [6, 2]", [&](auto& a, auto&) { a.dout = tall; }},
            {"dout has shape [0, 0], expected [6, 2]", [](auto& a, auto&) { a.dout = {}; }}});
    for (Matrix<T>* m : {&rows, &cols}) {
      expect_rejected<shape_error>(
          p, {{"gradients.q has shape ", [m](auto& a, auto&) { a.gradients.q = *m; }},
              {"gradients.k has shape ", [m](auto& a, auto&) { a.gradients.k = *m; }},
              {"gradients.v has shape ", [m](auto& a, auto&) { a.gradients.v = *m; }},
              {"gradients.normalizer_q has shape ",
               [m](auto& a, auto&) { a.gradients.normalizer_q = *m; }},
              {"gradients.normalizer_k has shape ",
               [m](auto& a, auto&) { a.gradients.normalizer_k = *m; }}});
    }
    std::vector<std::byte> few(form.bytes(p.inputs(), p, p.blocks, {}) - 1);
    expect_rejected<option_error>(
        p, {{"gradients.q is null ", [](auto& a, auto&) { a.gradients.q.data = nullptr; }},
            {"workspace has ", [&](auto&, auto& call) { call.workspace = few; }},
            {"kept ", [&](auto&, auto& call) { call.kept = std::span(few).first(1); }}});
    if (form.mixes) {
      std::vector<std::byte> zeros(form.kept_bytes(p.inputs(), p, p.blocks));
      expect_rejected<option_error>(p, {{"kept has not been written, expected what the forward",
                                         [&](auto&, auto& call) { call.kept = zeros; }}});
      form.forward(p.inputs(), p, p.blocks, {.kept = zeros});
      StoppingExecutor stops{0};
      EXPECT_THROW(form.forward(p.inputs(), p, p.blocks, {.executor = stops, .kept = zeros}),
                   std::runtime_error);
      expect_rejected<option_error>(
          p, {{"kept has not been written", [&](auto&, auto& call) { call.kept = zeros; }}});
    }
    overlaps_are_rejected(p);
    repeated_elements_are_rejected(p);
    if (p.op.query_map.weights() > 0) wrong_parameters_are_rejected(p);
  }
  /// Gradients with overlapping elements.
  void repeated_elements_are_rejected(const Problem& p) const {
    const std::string all =
        " has strides [0, 1], and elements that overlap, expected strides of "
        "distinct elements";
    expect_rejected<option_error>(
        p, {{"gradients.q" + all, [](auto& a, auto&) { a.gradients.q.row_stride = 0; }},
            {"gradients.k" + all, [](auto& a, auto&) { a.gradients.k.row_stride = 0; }},
            {"gradients.v" + all, [](auto& a, auto&) { a.gradients.v.row_stride = 0; }}});
    if (p.inputs().normalizer_q.absent()) return;
    expect_rejected<option_error>(
        p, {{"gradients.normalizer_q" + all,
             [](auto& a, auto&) { a.gradients.normalizer_q.row_stride = 0; }},
            {"gradients.normalizer_k" + all,
             [](auto& a, auto&) { a.gradients.normalizer_k.row_stride = 0; }}});
  }
  /// Arguments that begin at the memory of another argument, which is not smaller. The memory after
  /// that may belong to a third argument.
  void overlaps_are_rejected(const Problem& p) const {
    const auto at = [](auto& to, const auto& other) {
      to.data = const_cast<T*>(static_cast<const T*>(other.data));
    };
    const std::string alone = ", expected memory of its own";
    expect_rejected<option_error>(
        p,
        {{"gradients.q overlaps gradients.k" + alone,
          [&](auto& a, auto&) { at(a.gradients.k, a.gradients.q); }},
         {"gradients.k overlaps gradients.v" + alone,
          [&](auto& a, auto&) { at(a.gradients.v, a.gradients.k); }},
         {"gradients.q overlaps q" + alone, [&](auto& a, auto&) { at(a.gradients.q, a.in.q); }},
         {"gradients.q overlaps dout" + alone, [&](auto& a, auto&) { at(a.dout, a.gradients.q); }},
         {"gradients.k overlaps v" + alone, [&](auto& a, auto&) { at(a.in.v, a.gradients.k); }},
         {"gradients.v overlaps k" + alone, [&](auto& a, auto&) { at(a.gradients.v, a.in.k); }}});
    if (p.inputs().normalizer_q.absent()) return;
    expect_rejected<option_error>(
        p, {{"gradients.k overlaps gradients.normalizer_k" + alone,
             [&](auto& a, auto&) { at(a.gradients.normalizer_k, a.gradients.k); }},
            {"gradients.normalizer_q overlaps normalizer_k" + alone,
             [&](auto& a, auto&) { at(a.gradients.normalizer_q, a.in.normalizer_k); }},
            {"gradients.k overlaps parameters.query_map" + alone,
             [&](auto& a, auto&) { a.gradients.k.data = a.parameters.query_map.data(); }}});
    if (!form.mixes) return;
    expect_rejected<option_error>(
        p, {{"parameters.mixing overlaps q" + alone,
             [&](auto& a, auto&) {
               a.parameters.mixing = {const_cast<T*>(a.in.q.data), p.pattern};
             }},
            {"parameters.mixing overlaps parameters.key_map" + alone,
             [&](auto& a, auto&) {
               a.parameters.mixing = {a.parameters.key_map.data(), p.pattern};
             }},
            {"parameters.mixing overlaps mixing" + alone, [&](auto& a, auto&) {
               a.parameters.mixing = {const_cast<A*>(p.coefficients.data()), p.pattern};
             }}});
  }
  void wrong_parameters_are_rejected(const Problem& p) const {
    std::vector<A> numbers(9);
    const std::span<A> three = std::span(numbers).first(3);
    expect_rejected<shape_error>(p, {{"parameters.query_map has 3 elements",
                                      [&](auto& a, auto&) { a.parameters.query_map = three; }},
                                     {"parameters.key_map has 3 elements",
                                      [&](auto& a, auto&) { a.parameters.key_map = three; }}});
    for (const Pattern& band :
         {Pattern(3, 2, 1, 1), Pattern(2, 3, 1, 1), Pattern(3, 3, 2, 1), Pattern(3, 3, 2, 0)}) {
      const auto wrong = [&](auto& a, auto&) { a.parameters.mixing = {numbers.data(), band}; };
      if (form.mixes) {
        expect_rejected<shape_error>(p, {{"parameters.mixing has shape ", wrong}});
      } else {
        expect_rejected<option_error>(
            p, {{"parameters.mixing is set, expected absent: there is no mixing matrix", wrong}});
      }
    }
  }
};

}  // namespace mhla::test
