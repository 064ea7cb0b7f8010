#pragma once

/// \file
/// What every backward form must do beside being right: add, leave out, give the same bits for any
/// executor and any memory, never read masked tokens.

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "support/gradient_check.hpp"
#include "support/message_of.hpp"

namespace mhla::test {

/// Gradients are added to what is there. What was there counts as one more term.
template <class Form, class T>
void expect_gradients_are_added(std::uint64_t first_seed, Index problems) {
  GradientTally tally;
  for (Index i = 0; i < problems && !testing::Test::HasFatalFailure(); ++i) {
    const std::uint64_t seed = first_seed + static_cast<std::uint64_t>(i);
    auto p = Form::template problem<T>(seed);
    if (!count_problem(p, tally)) continue;
    Random rng(seed);
    GradientBuffers<T> g(p, [&rng] { return rng.uniform(-2, 2); });
    const auto start = g.values();
    const Matrix<T> dout = random_dout(p);
    add_gradients<Form>(p, dout, g, Sequential{});
    compare_elements<Form>(p, g, dout, tally, &start);
  }
  finish(Form::kName, "the bound, added", tally);
}

/// Leaves out one of the eight outputs of a call, counted in the order of different_bits.
template <class T>
void leave_out(GradientCall<T>& call, int which) {
  if (which == 0) call.gradients.q = {};
  if (which == 1) call.gradients.k = {};
  if (which == 2) call.gradients.v = {};
  if (which == 3) call.gradients.normalizer_q = {};
  if (which == 4) call.gradients.normalizer_k = {};
  if (which == 5) call.parameters.mixing = nullptr;
  if (which == 6) call.parameters.query_map = {};
  if (which == 7) call.parameters.key_map = {};
}

/// Every output left out, every output alone, none at all: what is asked for has the same bits,
/// what is not is left as it is.
template <class Form>
void expect_outputs_do_not_depend_on_each_other(std::uint64_t first_seed, Index problems) {
  for (Index i = 0; i < problems; ++i) {
    const auto p = Form::template problem<float>(first_seed + static_cast<std::uint64_t>(i));
    const Matrix<float> dout = random_dout(p);
    const auto all = gradients_of<Form>(p, dout);
    const auto expect = [&](const std::function<bool(int)>& wanted, const std::string& what) {
      GradientBuffers<float> g(p), expected(p);
      const auto pick = [&](int which, const auto& from, auto& to) {
        if (wanted(which)) to = from;
      };
      pick(0, all.q, expected.q);
      pick(1, all.k, expected.k);
      pick(2, all.v, expected.v);
      pick(3, all.normalizer_q, expected.normalizer_q);
      pick(4, all.normalizer_k, expected.normalizer_k);
      pick(5, all.mixing, expected.mixing);
      pick(6, all.query_weights, expected.query_weights);
      pick(7, all.key_weights, expected.key_weights);
      with_operator_of<Form>(p, [&](const auto& op) {
        GradientCall<float> call{
            .dout = dout, .gradients = g.views(), .parameters = g.parameters()};
        for (int which = 0; which < 8; ++which) {
          if (!wanted(which)) leave_out(call, which);
        }
        Sequential executor;
        Form::backward(p, op, call, executor);
      });
      EXPECT_EQ(different_bits(g, expected), "") << what << " " << p.text();
    };
    for (int which = 0; which < 8; ++which) {
      expect([which](int other) { return other != which; }, "without " + std::to_string(which));
      expect([which](int other) { return other == which; }, "only " + std::to_string(which));
    }
    expect([](int) { return false; }, "nothing");
  }
}

/// A random problem of a form, a large one now and then.
template <class Form, class T>
Problem<T> any_problem(std::uint64_t seed) {
  if (seed % 16 != 0) return Form::template problem<T>(seed);
  auto p = large_problem<T>(seed / 16, Form::kCausal);
  Form::fit(p);
  return p;
}

/// A problem of wide tokens in many blocks, of which more are mixed together the fewer workers
/// there are, with weights in both maps.
template <class Form, class T>
Problem<T> wide_problem(std::uint64_t seed) {
  auto p = large_problem<T>(seed, Form::kCausal);
  Random rng(seed);
  constexpr Index kTokens = 120, kWidth = 8, kValues = 600;
  p.query_blocks = p.key_blocks = AnyPartition::of(Contiguous(kTokens, 2));
  p.query_map = p.key_map = random_map<accumulator_t<T>>(rng, kSameWidthMaps, kWidth);
  for (Matrix<T>* m : {&p.q, &p.k}) *m = rng.matrix<T>(kTokens, kWidth);
  p.v = rng.matrix<T>(kTokens, kValues);
  p.normalizer_q = p.normalizer_k = {};
  p.query_mask = p.key_mask = {};
  p.coefficients = rng.matrix<accumulator_t<T>>(kTokens / 2, kTokens / 2, 0.1, 1);
  return p;
}

/// Any executor, summaries kept or computed once more, any content of the workspace.
template <class Form, class T>
void expect_same_bits_however_computed(std::uint64_t first_seed, Index problems) {
  ThreadPool one(1), two(2), three(3), five(5), eight(8);
  const auto expect = [&](const Problem<T>& p) {
    const Matrix<T> dout = random_dout(p);
    const auto alone = gradients_of<Form>(p, dout);
    with_operator_of<Form>(p, [&](const auto& op) {  // a workspace of zeros
      GradientBuffers<T> g(p);
      Sequential executor;
      std::vector<std::byte> zeros(Form::bytes(p, op, executor));
      const GradientCall<T> call{
          .dout = dout, .gradients = g.views(), .parameters = g.parameters(), .workspace = zeros};
      Form::backward(p, op, call, executor);
      EXPECT_EQ(different_bits(alone, g), "") << "zeros in the workspace " << p.text();
    });
    if (!Form::kMixes) return;
    EXPECT_EQ(different_bits(alone, gradients_of<Form>(p, dout, Sequential{}, true)), "")
        << "kept " << p.text();
    for (ThreadPool* pool : {&one, &two, &three, &five, &eight}) {
      EXPECT_EQ(different_bits(alone, gradients_of<Form>(p, dout, *pool)), "")
          << pool->workers() << " workers " << p.text();
      EXPECT_EQ(different_bits(alone, gradients_of<Form>(p, dout, *pool, true)), "")
          << pool->workers() << " workers, kept " << p.text();
    }
  };
  for (Index i = 0; i < problems; ++i) {
    expect(any_problem<Form, T>(first_seed + static_cast<std::uint64_t>(i)));
  }
  for (std::uint64_t seed = 0; seed < 3 && Form::kMixes; ++seed) {
    expect(wide_problem<Form, T>(seed));
  }
}

/// Inputs, dout and gradients by columns, with gaps, at odd places.
template <class Form>
void expect_same_bits_for_any_strides(std::uint64_t first_seed, Index problems) {
  for (Index i = 0; i < problems; ++i) {
    const auto p = any_problem<Form, float>(first_seed + static_cast<std::uint64_t>(i));
    const Matrix<float> dout = random_dout(p);
    const auto expected = gradients_of<Form>(p, dout);
    for (const Index gap : {0, 1, 3}) {
      GradientBuffers<float> g(p);
      const Eigen::MatrixXf by_columns = dout;
      // A view with rows far apart (gap > 0) or by columns (gap 0) over its own memory.
      std::vector<std::vector<float>> memory;
      std::vector<std::function<void()>> copies_back;
      const auto displaced = [&](Matrix<float>& m) -> MatrixView<float> {
        const Index rows = m.rows(), cols = m.cols();
        memory.emplace_back(static_cast<std::size_t>(rows * (cols + gap) + gap + 1), NAN);
        const MatrixView<float> view(memory.back().data() + gap, rows, cols,
                                     gap == 0 ? 1 : cols + gap, gap == 0 ? rows : 1);
        for (Index r = 0; r < rows; ++r) {
          for (Index c = 0; c < cols; ++c) view(r, c) = m(r, c);
        }
        copies_back.push_back([view, &m] {
          for (Index r = 0; r < m.rows(); ++r) {
            for (Index c = 0; c < m.cols(); ++c) m(r, c) = view(r, c);
          }
        });
        return view;
      };
      Gradients<float> views{.q = displaced(g.q), .k = displaced(g.k), .v = displaced(g.v)};
      if (p.has_own_normalizer()) {
        views.normalizer_q = displaced(g.normalizer_q);
        views.normalizer_k = displaced(g.normalizer_k);
      }
      with_operator_of<Form>(p, [&](const auto& op) {
        GradientCall<float> call{
            .dout = by_columns, .gradients = views, .parameters = g.parameters()};
        Sequential executor;
        Form::backward(p, op, call, executor);
      });
      for (const auto& copy_back : copies_back) copy_back();
      EXPECT_EQ(different_bits(expected, g), "") << gap << " " << p.text();
    }
  }
}

/// Numbers of masked tokens, NaN among them, reach nothing; their gradients are left alone.
template <class Form, class T>
void expect_masked_tokens_reach_nothing(std::uint64_t first_seed, Index problems) {
  Index used = 0;
  const T nan = static_cast<T>(std::numeric_limits<float>::quiet_NaN());
  for (Index i = 0; i < problems; ++i) {
    auto p = any_problem<Form, T>(first_seed + static_cast<std::uint64_t>(i));
    if (p.key_mask.size() == 0 && p.query_mask.size() == 0) continue;
    ++used;
    Matrix<T> dout = random_dout(p);
    const auto clean = gradients_of<Form>(p, dout);
    const auto expect_zero = [&](const Matrix<T>& m, Index t) {
      for (Index c = 0; c < m.cols(); ++c) EXPECT_TRUE(m(t, c) == T(0)) << p.text();
    };
    for (Index t = 0; t < p.key_mask.cols(); ++t) {
      if (p.key_mask(0, t)) continue;
      expect_zero(clean.k, t);
      expect_zero(clean.v, t);
      p.k.row(t).setConstant(nan);
      p.v.row(t).setConstant(nan);
      if (p.has_own_normalizer()) {
        expect_zero(clean.normalizer_k, t);
        p.normalizer_k.row(t).setConstant(nan);
      }
    }
    for (Index t = 0; t < p.query_mask.cols(); ++t) {
      if (p.query_mask(0, t)) continue;
      expect_zero(clean.q, t);
      p.q.row(t).setConstant(nan);
      dout.row(t).setConstant(nan);
      if (p.has_own_normalizer()) {
        expect_zero(clean.normalizer_q, t);
        p.normalizer_q.row(t).setConstant(nan);
      }
    }
    EXPECT_EQ(different_bits(clean, gradients_of<Form>(p, dout)), "") << p.text();
    EXPECT_EQ(different_bits(clean, gradients_of<Form>(p, dout, Sequential{}, Form::kMixes)), "")
        << "kept " << p.text();
    // Rows of masked tokens are not touched: NaN there stays, and comes from nowhere else.
    GradientBuffers<T> g(p);
    const auto poison = [nan](const Matrix<bool>& mask, Matrix<T>& m) {
      for (Index t = 0; t < mask.cols() && m.rows() > 0; ++t) {
        if (!mask(0, t)) m.row(t).setConstant(nan);
      }
    };
    auto expected = clean;
    for (GradientBuffers<T>* b : {&g, &expected}) {
      for (Matrix<T>* m : {&b->q, &b->normalizer_q}) poison(p.query_mask, *m);
      for (Matrix<T>* m : {&b->k, &b->v, &b->normalizer_k}) poison(p.key_mask, *m);
    }
    add_gradients<Form>(p, dout, g, Sequential{});
    EXPECT_EQ(different_bits(expected, g), "") << "untouched rows " << p.text();
  }
  EXPECT_GT(used, problems / 10);
}

/// Calls that do not fit: the error's type, and that its message names the function and the
/// argument; nothing is written.
template <class Form, class Error>
void expect_rejected(const Problem<float>& p, const std::string& argument,
                     const std::function<void(GradientCall<float>&)>& spoil) {
  const Matrix<float> dout = random_dout(p);
  GradientBuffers<float> g(p, [] { return 7; });
  const GradientBuffers<float> before = g;
  with_operator_of<Form>(p, [&](const auto& op) {
    GradientCall<float> call{.dout = dout, .gradients = g.views(), .parameters = g.parameters()};
    spoil(call);
    Sequential executor;
    const std::string message = message_of<Error>([&] { Form::backward(p, op, call, executor); });
    const std::string start = std::string("mhla::") + Form::kName + ": " + argument + " ";
    EXPECT_TRUE(message.starts_with(start)) << start << "...: " << message;
    EXPECT_NE(message.find(", expected "), std::string::npos) << message;
  });
  EXPECT_EQ(different_bits(before, g), "") << argument;
}

/// A small problem that has everything: weights in both maps, a denominator of its own, a band.
inline Problem<float> complete_problem(bool causal) {
  Random rng(1);
  Problem<float> p;
  p.causal = causal;
  const Index n = 6, d = 3, e = 2;
  p.query_blocks = p.key_blocks = AnyPartition::of(Contiguous(n, 2));
  const auto dense = [&] {
    return DenseWeights<float>{rng.matrix<float>(d, d, 0, 1), rng.matrix<float>(d, 1, 0, 1)};
  };
  p.query_map = {ElementwiseProduct<float>(dense(), dense())};
  p.key_map = {ElementwiseProduct<float>(dense(), dense())};
  for (Matrix<float>* m : {&p.q, &p.k, &p.normalizer_q, &p.normalizer_k}) {
    *m = rng.matrix<float>(n, d, 0, 1);
  }
  p.v = rng.matrix<float>(n, e);
  p.coefficients = rng.matrix<float>(3, 3, 0.1, 1);
  p.lower = p.upper = 1;
  return p;
}

/// The wrong calls of all forms.
template <class Form>
void expect_wrong_calls_are_rejected() {
  auto p = complete_problem(Form::kCausal);
  Form::fit(p);
  const auto rejected = [&p](const char* argument, const auto& spoil) {
    expect_rejected<Form, shape_error>(p, argument, spoil);
  };
  using Call = GradientCall<float>;
  Matrix<float> more_rows(p.q.rows() + 1, p.q.cols()), more_cols(p.q.rows(), p.q.cols() + 1);
  Matrix<float> wide_dout(p.q.rows(), p.v.cols() + 1), long_dout(p.q.rows() + 1, p.v.cols());
  rejected("dout", [&](Call& c) { c.dout = wide_dout; });
  rejected("dout", [&](Call& c) { c.dout = long_dout; });
  rejected("dout", [&](Call& c) { c.dout = {}; });
  for (Matrix<float>* wrong : {&more_rows, &more_cols}) {
    rejected("gradients.q", [&](Call& c) { c.gradients.q = *wrong; });
    rejected("gradients.k", [&](Call& c) { c.gradients.k = *wrong; });
    rejected("gradients.normalizer_q", [&](Call& c) { c.gradients.normalizer_q = *wrong; });
    rejected("gradients.normalizer_k", [&](Call& c) { c.gradients.normalizer_k = *wrong; });
  }
  rejected("gradients.v", [&](Call& c) { c.gradients.v = more_rows; });
  expect_rejected<Form, option_error>(p, "gradients.q",
                                      [](Call& c) { c.gradients.q.data = nullptr; });
  std::vector<float> few(3), many(1000);
  rejected("parameters.query_map", [&](Call& c) { c.parameters.query_map = few; });
  rejected("parameters.query_map", [&](Call& c) { c.parameters.query_map = many; });
  rejected("parameters.key_map", [&](Call& c) { c.parameters.key_map = few; });
  if (Form::kMixes) {
    const Index rows = p.coefficients.rows(), cols = p.coefficients.cols();
    auto larger = MixingMatrix<float>::banded(rows + 1, cols, p.lower, p.upper);
    auto wider = MixingMatrix<float>::banded(rows, cols + 1, p.lower, p.upper);
    auto other_band = MixingMatrix<float>::banded(rows, cols, p.lower + 1, p.upper);
    auto shifted = MixingMatrix<float>::banded(rows, cols, p.lower + 1, p.upper - 1);
    for (MixingMatrix<float>* wrong : {&larger, &wider, &other_band, &shifted}) {
      rejected("parameters.mixing", [&](Call& c) { c.parameters.mixing = wrong; });
    }
  }
  std::size_t bytes = 0, kept_bytes = 0;
  with_operator_of<Form>(p, [&](const auto& op) {
    bytes = Form::bytes(p, op, Sequential{});
    if constexpr (Form::kMixes) kept_bytes = Form::kept_bytes(p, op);
  });
  std::vector<std::byte> short_workspace(bytes - 1),
      short_kept(kept_bytes > 0 ? kept_bytes - 1 : 0);
  expect_rejected<Form, option_error>(p, "workspace",
                                      [&](Call& c) { c.workspace = short_workspace; });
  if (Form::kMixes) {
    expect_rejected<Form, option_error>(p, "kept", [&](Call& c) { c.kept = short_kept; });
  }
}

/// No tokens, no values, blocks without tokens: nothing to add.
template <class Form>
void expect_nothing_where_nothing_is() {
  auto p = complete_problem(Form::kCausal);
  Form::fit(p);
  const auto expect_unchanged = [](const Problem<float>& q, const char* what) {
    GradientBuffers<float> g(q, [] { return 3; });
    const GradientBuffers<float> before = g;
    add_gradients<Form>(q, random_dout(q), g, Sequential{});
    EXPECT_EQ(different_bits(before, g), "") << what;
  };
  Problem<float> no_values = p;
  no_values.v.resize(p.v.rows(), 0);
  expect_unchanged(no_values, "no values");
  const auto cut = [](Problem<float> q, bool queries, bool keys) {
    const auto none = [&q](Matrix<float>& m) { m.resize(0, q.q.cols()); };
    if (queries) {
      q.query_blocks = AnyPartition::of(BlockSizes({0, 0, 0}));
      for (Matrix<float>* m : {&q.q, &q.normalizer_q}) none(*m);
    }
    if (keys) {
      q.key_blocks = AnyPartition::of(BlockSizes({0, 0, 0}));
      for (Matrix<float>* m : {&q.k, &q.normalizer_k}) none(*m);
      q.v.resize(0, q.v.cols());
    }
    q.eps = 1;
    Form::fit(q);
    return q;
  };
  expect_unchanged(cut(p, true, true), "no tokens");
  if (!Form::kCausal) {
    expect_unchanged(cut(p, true, false), "no queries");
    expect_unchanged(cut(p, false, true), "no keys");
  }
}

/// Tensors of the denominator where nothing is divided: they are not read, their gradient is 0.
template <class Form>
void expect_unused_tensors_change_nothing(Index problems) {
  for (Index i = 0; i < problems; ++i) {
    auto p = any_problem<Form, float>(static_cast<std::uint64_t>(i));
    p.normalizer = NaiveNormalizer::kNone;
    p.normalizer_q = p.normalizer_k = {};
    const Matrix<float> dout = random_dout(p);
    auto expected = gradients_of<Form>(p, dout);
    p.normalizer_q = unwritten<float>(p.q.rows(), p.q.cols());
    p.normalizer_k = unwritten<float>(p.k.rows(), p.k.cols());
    expected.normalizer_q = Matrix<float>::Zero(p.q.rows(), p.q.cols());
    expected.normalizer_k = Matrix<float>::Zero(p.k.rows(), p.k.cols());
    EXPECT_EQ(different_bits(expected, gradients_of<Form>(p, dout)), "") << p.text();
  }
}

}  // namespace mhla::test
