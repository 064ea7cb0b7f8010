#pragma once

/// \file
/// Errors of every tangent form for wrong calls.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "support/message_of.hpp"
#include "support/tangent_forms.hpp"

namespace mhla::test {

template <class Form, class T>
struct TangentErrors {
  using A = accumulator_t<T>;
  using Arguments = TangentArguments<Inputs<T>>;

  /// A wrong call, and its message after the name of the function.
  struct Wrong {
    std::string message;
    std::function<void(Arguments&, Call&)> spoil;
  };

  /// Expects `Error` with this message, and nothing written.
  template <class Error>
  static void expect_rejected(const GradientProblem<T>& p, const std::vector<Wrong>& calls) {
    auto x = random_directions(p, 1);
    WithTangent<Matrix<T>> out{Matrix<T>::Constant(p.queries(), p.tensors[kV].cols(), T(7)), {}};
    out.tangent = out.value;
    const Matrix<T> before = out.value;
    for (const Wrong& wrong : calls) {
      Arguments a = tangent_arguments(p, x, out);
      Call call;
      wrong.spoil(a, call);
      const std::string message = message_of<Error>([&] { Form::write(a, p, p.blocks, call); });
      const std::string start = std::string("mhla::") + Form::kName + ": " + wrong.message;
      EXPECT_TRUE(message.starts_with(start)) << start << "...: " << message;
      EXPECT_NE(message.find(", expected "), std::string::npos) << message;
      EXPECT_TRUE(same_bits(before, out.value) && same_bits(before, out.tangent)) << message;
    }
  }

  static void wrong_calls_are_rejected() {
    const GradientProblem<T> p = complete_problem<T>(Form());
    Matrix<T> rows(7, 3), cols(6, 4), wide(6, 3);
    expect_rejected<shape_error>(
        p, {{"out has shape [6, 3], expected [6, 2]", [&](auto& a, auto&) { a.out.value = wide; }},
            {"tangent has shape [6, 3], expected [6, 2]",
             [&](auto& a, auto&) { a.out.tangent = wide; }},
            {"tangent has shape [0, 0], expected [6, 2]",
             [](auto& a, auto&) { a.out.tangent = {}; }}});
    for (Matrix<T>* m : {&rows, &cols}) {
      expect_rejected<shape_error>(
          p, {{"tangents.q has shape ", [m](auto& a, auto&) { a.tangents.q = *m; }},
              {"tangents.k has shape ", [m](auto& a, auto&) { a.tangents.k = *m; }},
              {"tangents.v has shape ", [m](auto& a, auto&) { a.tangents.v = *m; }},
              {"tangents.normalizer_q has shape ",
               [m](auto& a, auto&) { a.tangents.normalizer_q = *m; }},
              {"tangents.normalizer_k has shape ",
               [m](auto& a, auto&) { a.tangents.normalizer_k = *m; }}});
    }
    std::vector<std::byte> few(Form::bytes(p.inputs(), p, p.blocks, {}) - 1);
    expect_rejected<option_error>(
        p, {{"tangents.q is null ", [](auto& a, auto&) { a.tangents.q.data = nullptr; }},
            {"workspace has ", [&](auto&, auto& call) { call.workspace = few; }},
            {"kept is set, expected none: a tangent keeps nothing",
             [&](auto&, auto& call) { call.kept = std::span(few).first(1); }}});
    overlaps_are_rejected(p);
    if (p.op.query_map.weights() > 0) wrong_parameters_are_rejected(p);
  }

  static void overlaps_are_rejected(const GradientProblem<T>& p) {
    const auto at = [](auto& to, const auto& other) {
      to.data = const_cast<T*>(static_cast<const T*>(other.data));
    };
    const std::string alone = ", expected memory of its own";
    const std::string all = " has strides [0, 1], and elements that overlap, expected strides of ";
    expect_rejected<option_error>(
        p,
        {{"out" + all, [](auto& a, auto&) { a.out.value.row_stride = 0; }},
         {"tangent" + all, [](auto& a, auto&) { a.out.tangent.row_stride = 0; }},
         {"out overlaps tangent" + alone, [&](auto& a, auto&) { at(a.out.tangent, a.out.value); }},
         {"out overlaps q" + alone, [&](auto& a, auto&) { at(a.out.value, a.in.q); }},
         {"tangent overlaps v" + alone, [&](auto& a, auto&) { at(a.out.tangent, a.in.v); }},
         {"out overlaps tangents.k" + alone,
          [&](auto& a, auto&) { at(a.out.value, a.tangents.k); }},
         {"tangent overlaps tangents.v" + alone,
          [&](auto& a, auto&) { at(a.out.tangent, a.tangents.v); }}});
    if (p.op.query_map.weights() == 0) return;
    expect_rejected<option_error>(
        p, {{"tangent overlaps parameters.key_map" + alone, [&](auto& a, auto&) {
               a.out.tangent.data = const_cast<A*>(a.parameters.key_map.data());
             }}});
    if (!Form().mixes) return;
    expect_rejected<option_error>(
        p, {{"out overlaps mixing" + alone,
             [&](auto& a, auto&) { a.out.value.data = const_cast<A*>(p.coefficients.data()); }},
            {"out overlaps parameters.mixing" + alone, [&](auto& a, auto&) {
               a.out.value.data = const_cast<A*>(a.parameters.mixing.storage().data());
             }}});
  }

  static void wrong_parameters_are_rejected(const GradientProblem<T>& p) {
    std::vector<A> numbers(9);
    const std::span<const A> three = std::span(numbers).first(3);
    expect_rejected<shape_error>(p, {{"parameters.query_map has 3 elements",
                                      [&](auto& a, auto&) { a.parameters.query_map = three; }},
                                     {"parameters.key_map has 3 elements",
                                      [&](auto& a, auto&) { a.parameters.key_map = three; }}});
    const auto wrong = [&](auto& a, auto&) {
      a.parameters.mixing = {numbers.data(), Pattern(3, 2, 1, 1)};
    };
    if (Form().mixes) {
      expect_rejected<shape_error>(p, {{"parameters.mixing has shape ", wrong}});
    } else {
      expect_rejected<option_error>(
          p, {{"parameters.mixing is set, expected absent: there is no mixing matrix", wrong}});
    }
  }
};

}  // namespace mhla::test
