#include "mhla/gradient/batched.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "mhla/policy/locality.hpp"
#include "support/gradient_batch.hpp"
#include "support/gradient_check.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

/// What a form over batches is called with.
template <class T>
struct BatchCall {
  BatchInputs<T> in;
  TensorView<const T> dout;
  BatchGradients<T> gradients;
  ParameterGradients<accumulator_t<T>> parameters;
};

/// Calls a form over a batch with an executor, in workspaces of exactly the stated bytes.
template <class Form, class T, class Op, class X>
void call_batch(const BatchCall<T>& c, ContiguousBlocks blocks,
                const MixingMatrix<accumulator_t<T>>& mixing, const Op& op, X& executor,
                bool keep) {
  const auto run = [&](std::size_t bytes, std::size_t kept_bytes, auto&& forward, auto&& backward) {
    GuardedWorkspace workspace(bytes), kept(keep ? kept_bytes : 0);
    if (keep) forward(kept.get());
    backward(workspace.get(), kept.get());
    EXPECT_TRUE(workspace.intact() && kept.intact());
  };
  std::vector<T> memory(
      static_cast<std::size_t>(c.in.q.batch() * c.in.q.tokens() * c.in.q.heads() * c.in.v.width()));
  const auto out =
      bnhd(memory.data(), c.in.q.batch(), c.in.q.tokens(), c.in.q.heads(), c.in.v.width());
  const auto nothing = [](Workspace) {};
  if constexpr (std::same_as<Form, BidirectionalForm>) {
    run(
        bidirectional_gradient_workspace_bytes(c.in, blocks, blocks, mixing, op, executor),
        bidirectional_kept_bytes(c.in, blocks, op),
        [&](Workspace kept) {
          bidirectional(c.in, blocks, blocks, mixing, op, out, {}, executor, kept);
        },
        [&](Workspace workspace, Workspace kept) {
          bidirectional_gradient(c.in, blocks, blocks, mixing, op, c.dout, c.gradients,
                                 c.parameters, workspace, executor, kept);
        });
  } else if constexpr (std::same_as<Form, CausalForm>) {
    run(
        causal_gradient_workspace_bytes(c.in, blocks, mixing, op, executor),
        causal_kept_bytes(c.in, blocks, op),
        [&](Workspace kept) { causal(c.in, blocks, mixing, op, out, {}, executor, kept); },
        [&](Workspace workspace, Workspace kept) {
          causal_gradient(c.in, blocks, mixing, op, c.dout, c.gradients, c.parameters, workspace,
                          executor, kept);
        });
  } else if constexpr (Form::kCausal) {
    run(linear_causal_gradient_workspace_bytes(c.in, op, executor), 0, nothing,
        [&](Workspace workspace, Workspace) {
          linear_causal_gradient(c.in, op, c.dout, c.gradients, c.parameters, workspace, executor);
        });
  } else {
    run(linear_bidirectional_gradient_workspace_bytes(c.in, op, executor), 0, nothing,
        [&](Workspace workspace, Workspace) {
          linear_bidirectional_gradient(c.in, op, c.dout, c.gradients, c.parameters, workspace,
                                        executor);
        });
  }
}

/// The gradients of a whole batch.
template <class T>
struct BatchResult {
  BatchTensors<T> tensors;
  GradientBuffers<T> parameters;  // without tensors
};

template <class T>
bool same_parameters(const GradientBuffers<T>& a, const GradientBuffers<T>& b) {
  return different_bits(a, b).empty();
}

template <class Form, class T, class X>
BatchResult<T> gradients_of_batch(RandomBatch<Form, T>& batch, X& executor, bool keep) {
  auto values = batch.values();
  auto dout = batch.dout_tensor();
  BatchResult<T> result{batch.tensors(), GradientBuffers<T>(batch.shared)};
  auto& g = result.tensors;
  for (StridedTensor<T>* t : {&g.q, &g.k, &g.v, &g.normalizer_q, &g.normalizer_k}) t->fill(T(0));
  auto parameters = result.parameters.parameters();
  if (!Form::kMixes) parameters.mixing = nullptr;
  with_operator_of<Form>(batch.shared, [&](const auto& op) {
    const BatchCall<T> call{batch.inputs(values), dout.view(), batch.gradients(g), parameters};
    call_batch<Form>(call, ContiguousBlocks{batch.block_length}, batch.shared.mixing(), op,
                     executor, keep && Form::kMixes);
  });
  return result;
}

/// Every pair as it is alone, bit by bit; shared parameters the sum over the pairs, the same bits
/// for any executor.
template <class Form>
void expect_batch_is_its_parts(std::uint64_t seeds) {
  using T = float;
  using S = TermsOf<T>;
  Sequential sequential;
  ThreadPool two(2), three(3), five(5), eight(8), many(70);
  double worst = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    RandomBatch<Form, T> batch(seed);
    const auto first = gradients_of_batch(batch, sequential, false);
    batch.for_each_pair([&](Index s, Index h) {
      const auto& p = batch.pair(s, h);
      const auto alone = gradients_of<Form>(p, batch.dout(s, h));
      const auto expect = [&](const Matrix<T>& m, const StridedTensor<T>& t, Index begin,
                              const char* name) {
        EXPECT_TRUE(same_bits(m, t.get(batch.item(s), h, begin, m.rows())))
            << name << " of sequence " << s << ", head " << h << " " << p.text();
      };
      const Index query = batch.first_query(s), key = batch.first_key(s);
      expect(alone.q, first.tensors.q, query, "q");
      expect(alone.k, first.tensors.k, key, "k");
      expect(alone.v, first.tensors.v, key, "v");
      if (!batch.own) return;
      expect(alone.normalizer_q, first.tensors.normalizer_q, query, "normalizer_q");
      expect(alone.normalizer_k, first.tensors.normalizer_k, key, "normalizer_k");
    });
    const auto expect_same = [&](const BatchResult<T>& other, const std::string& how) {
      EXPECT_TRUE(same_parameters(first.parameters, other.parameters)) << how << " seed " << seed;
      batch.for_each_pair([&](Index s, Index h) {
        const auto same = [&](const StridedTensor<T>& a, const StridedTensor<T>& b, Index begin,
                              Index count) {
          return same_bits(a.get(batch.item(s), h, begin, count),
                           b.get(batch.item(s), h, begin, count));
        };
        const auto &a = first.tensors, &b = other.tensors;
        const Index query = batch.first_query(s), key = batch.first_key(s);
        const Index nq = batch.queries(s), nk = batch.keys(s);
        EXPECT_TRUE(same(a.q, b.q, query, nq) && same(a.k, b.k, key, nk) &&
                    same(a.v, b.v, key, nk) && same(a.normalizer_q, b.normalizer_q, query, nq) &&
                    same(a.normalizer_k, b.normalizer_k, key, nk))
            << how << " seed " << seed;
      });
    };
    expect_same(gradients_of_batch(batch, sequential, true), "kept");
    for (ThreadPool* pool : {&two, &three, &five, &eight, &many}) {
      const std::string workers = std::to_string(pool->workers()) + " workers";
      expect_same(gradients_of_batch(batch, *pool, false), workers);
      expect_same(gradients_of_batch(batch, *pool, true), workers + ", kept");
    }
    // Parameters: the sum of the definition's, whose terms are those of all pairs.
    const auto sum = [&](auto&& part) {
      std::vector<S> total;
      Index chain = 0;
      batch.for_each_pair([&](Index s, Index h) {
        const auto& p = batch.pair(s, h);
        const auto terms = [](double a) { return S(a); };
        const auto g = dense_gradient(p, map_variables<S>(values_of(p), terms),
                                      map_elements<S>(batch.dout(s, h), terms));
        chain = std::max(chain, parameter_chain(p));
        part(p, g, total);
      });
      const double bound =
          gamma(chain + batch.sequences * batch.heads, static_cast<double>(kUnitRoundoff<T>)) *
          (1 + 1.0 / 16);
      for (S& t : total) t.size *= bound;
      return total;
    };
    const auto expect_sum = [&](const std::vector<S>& expected, const auto& got, const char* name) {
      ASSERT_EQ(expected.size(), static_cast<std::size_t>(got.size())) << name;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const double error = std::abs(static_cast<double>(got.data()[i]) - expected[i].value);
        if (error == 0) continue;
        worst = std::max(worst, error / expected[i].size);
        EXPECT_LE(error, expected[i].size) << name << "[" << i << "] seed " << seed;
      }
    };
    const auto got = first.parameters.values();
    if (Form::kMixes) {
      expect_sum(sum([&](const Problem<T>& p, const Variables<S>& g, std::vector<S>& total) {
                   total.resize(static_cast<std::size_t>(got.mixing.size()), S(0));
                   for (Index i = 0; i < g.mixing.rows(); ++i) {
                     for (Index b = 0; b < g.mixing.cols(); ++b) {
                       if (!in_band(p, i, b)) continue;
                       total[static_cast<std::size_t>(i * got.mixing.cols() + b)] += g.mixing(i, b);
                     }
                   }
                 }),
                 got.mixing, "mixing");
    }
    const auto weights = [&sum](std::vector<S> Variables<S>::*side) {
      return sum([side](const Problem<T>&, const Variables<S>& g, std::vector<S>& total) {
        total.resize((g.*side).size(), S(0));
        for (std::size_t i = 0; i < total.size(); ++i) total[i] += (g.*side)[i];
      });
    };
    expect_sum(weights(&Variables<S>::query_weights), got.query_weights, "query_weights");
    expect_sum(weights(&Variables<S>::key_weights), got.key_weights, "key_weights");
  }
  std::cout << Form::kName << " of batches: worst parameter " << worst << " of the bound\n";
}

TEST(BatchedGradient, BidirectionalIsEverySequenceAndHeadAlone) {
  expect_batch_is_its_parts<BidirectionalForm>(120);
}
TEST(BatchedGradient, CausalIsEverySequenceAndHeadAlone) {
  expect_batch_is_its_parts<CausalForm>(120);
}
TEST(BatchedGradient, LinearIsEverySequenceAndHeadAlone) {
  expect_batch_is_its_parts<LinearForm<false>>(60);
  expect_batch_is_its_parts<LinearForm<true>>(60);
}

TEST(BatchedGradient, AFixedPartitionServesAllSequences) {
  Random rng(1);
  const Grid blocks(GridShape(3, 4), GridShape(3, 2));
  const Operator op{Relu{}, Relu{}, CrossQuery{1e-3}};
  const MixingMatrix<float> mixing(rng.matrix<float>(2, 2, 0.1, 1));
  std::vector<float> data(2 * 12 * 3 * 4), dout(data), dq(data.size()), dk(dq), dv(dq);
  for (std::vector<float>* v : {&data, &dout}) {
    for (float& x : *v) x = static_cast<float>(rng.uniform(-1, 1));
  }
  const auto view = [](std::vector<float>& v) { return bnhd(v.data(), 2, 12, 3, 4); };
  const BatchInputs<float> in{.q = view(data), .k = view(data), .v = view(data)};
  auto dmixing = MixingMatrix<float>::banded(2, 2, 2, 2), alone_dmixing = dmixing;
  bidirectional_gradient(in, blocks, blocks, mixing, op, view(dout),
                         {.q = view(dq), .k = view(dk), .v = view(dv)}, {.mixing = &dmixing});
  Matrix<float> q = Matrix<float>::Zero(12, 4), k = q, v = q;
  const auto head = detail::head_inputs(in, 1, 2);
  bidirectional_gradient(head, blocks, blocks, mixing, op, view(dout).head(1, 2),
                         {.q = q, .k = k, .v = v}, {.mixing = &alone_dmixing});
  for (Index t = 0; t < 12; ++t) {
    for (Index c = 0; c < 4; ++c) {
      EXPECT_EQ(view(dq).head(1, 2)(t, c), q(t, c));
      EXPECT_EQ(view(dk).head(1, 2)(t, c), k(t, c));
      EXPECT_EQ(view(dv).head(1, 2)(t, c), v(t, c));
    }
  }
}

TEST(BatchedGradient, RejectsWhatDoesNotFitAndTouchesNothing) {
  std::vector<float> data(24, 1), result(48, 7);
  const auto view = bnhd<const float>(data.data(), 1, 12, 1, 2);
  const auto dq = bnhd(result.data(), 1, 12, 1, 2);
  const BatchInputs<float> in{.q = view, .k = view, .v = view};
  const ContiguousBlocks blocks{4};
  const auto mixing = locality<float>(3), small = locality<float>(2);
  auto other_band = MixingMatrix<float>::banded(3, 3, 1, 1);
  std::vector<float> weight(1, 7);
  std::byte one{};
  const auto wide = bnhd(result.data(), 1, 12, 1, 3);
  const auto long_view = bnhd(result.data(), 1, 13, 1, 2);
  const auto two_heads = bnhd(result.data(), 1, 12, 2, 2);
  struct Call {
    std::string argument;
    TensorView<const float> dout;
    BatchGradients<float> gradients{};
    ParameterGradients<float> parameters{};
    const MixingMatrix<float>* mixing = nullptr;  // null: the right one
    Workspace workspace{}, kept{};
  };
  const Call shape_errors[] = {
      {"dout", wide, {.q = dq}},
      {"dout", long_view, {.q = dq}},
      {"gradients.q", view, {.q = wide}},
      {"gradients.q", view, {.q = two_heads}},
      {"gradients.k", view, {.q = dq, .k = long_view}},
      {"gradients.v", view, {.q = dq, .v = wide}},
      {"gradients.normalizer_q", view, {.q = dq, .normalizer_q = dq}},
      {"mixing", view, {.q = dq}, {}, &small},
      {"parameters.mixing", view, {.q = dq}, {.mixing = &other_band}},
      {"parameters.query_map", view, {.q = dq}, {.query_map = weight}},
      {"parameters.key_map", view, {.q = dq}, {.key_map = weight}},
  };
  const Workspace too_small(&one, 1);
  const Call option_errors[] = {
      {"workspace", view, {.q = dq}, {}, nullptr, too_small},
      {"kept", view, {.q = dq}, {}, nullptr, {}, too_small},
  };
  const auto run = [&](const Call& c, bool is_causal) {
    const auto& m = c.mixing == nullptr ? mixing : *c.mixing;
    if (is_causal) {
      causal_gradient(in, blocks, m, Operator{}, c.dout, c.gradients, c.parameters, c.workspace,
                      Sequential{}, c.kept);
    } else {
      bidirectional_gradient(in, blocks, blocks, m, Operator{}, c.dout, c.gradients, c.parameters,
                             c.workspace, Sequential{}, c.kept);
    }
  };
  for (const bool is_causal : {false, true}) {
    const std::string name =
        is_causal ? "mhla::causal_gradient: " : "mhla::bidirectional_gradient: ";
    for (const Call& c : shape_errors) {
      const std::string message = message_of<shape_error>([&] { run(c, is_causal); });
      EXPECT_TRUE(message.starts_with(name + c.argument + " ")) << c.argument << ": " << message;
    }
    for (const Call& c : option_errors) {
      const std::string message = message_of<option_error>([&] { run(c, is_causal); });
      EXPECT_TRUE(message.starts_with(name + c.argument + " ")) << c.argument << ": " << message;
    }
  }
  for (const float x : result) EXPECT_EQ(x, 7);
  EXPECT_EQ(weight[0], 7);
}

}  // namespace
}  // namespace mhla::test
