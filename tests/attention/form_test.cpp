// A user's form, run by the driver of all forms, and a user's normaliser.

#include "mhla/attention/form.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/causal.hpp"
#include "mhla/attention/naive.hpp"
#include "mhla/policy/locality.hpp"
#include "support/message_of.hpp"
#include "support/outputs.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

/// out_t = the mean of all v, computed by one worker after another; sums are kept on request.
struct MeanForm {
  static constexpr unsigned kKeeps = 1;
  const char* name = "mean";

  template <class T>
  void check(const Inputs<T>& in, std::type_identity_t<MatrixView<const T>> out,
             const char* argument) const {
    detail::expect_tokens(name, in, out, argument);
  }
  template <class T>
  std::size_t bytes(const Inputs<T>& in, Index workers) const {
    return detail::counted_bytes([&](detail::Arena& arena) {
      return arena.take<T>(name, {workers, in.v.cols});
    });
  }
  template <class T>
  std::size_t kept_bytes(const Inputs<T>& in) const {
    return bytes(in, 1);
  }
  template <class T>
  void run(detail::Arena& arena, detail::Arena* kept, const Inputs<T>& in, MatrixView<T> out,
           const ExecutorRef& executor) const {
    T* const all = arena.take<T>(name, {executor.workers(), in.v.cols});
    T* const keep = kept == nullptr ? nullptr : kept->take<T>(name, in.v.cols);
    executor.for_each(in.q.rows, [&](Index t, Index w) {
      T* const sum = all + w * in.v.cols;
      for (Index e = 0; e < in.v.cols; ++e) {
        sum[e] = 0;
        for (Index j = 0; j < in.v.rows; ++j) sum[e] += in.v(j, e);
        out(t, e) = sum[e] / static_cast<T>(in.v.rows);
        if (keep != nullptr && t == 0) keep[e] = sum[e];
      }
    });
  }
};
static_assert(detail::Form<MeanForm, float> && detail::Form<MeanForm, double>);
struct Nameless {};
static_assert(!detail::Form<Nameless, float>);

/// Heads of 6 tokens. All v of head h of sequence s are 10 s + h.
BatchInputs<double> batch_of(std::vector<double>& data, Index sequences, Index heads) {
  data.resize(static_cast<std::size_t>(sequences * 6 * heads * 2));
  const auto v = bnhd(data.data(), sequences, 6, heads, 2);
  for (Index s = 0; s < sequences; ++s) {
    for (Index t = 0; t < 6; ++t) {
      for (Index h = 0; h < heads; ++h) v(s, t, h, 0) = v(s, t, h, 1) = double(10 * s + h);
    }
  }
  return {.q = v, .k = v, .v = v};
}

TEST(Form, AUsersOwnFormRunsOverHeadsBatchesAndThreads) {
  std::vector<double> data;
  ThreadPool pool(4), one(1);
  for (const Index sequences : {1, 2, 3}) {  // fewer pairs than workers, and more
    const auto in = batch_of(data, sequences, 2);
    for (const ExecutorRef& executor : {ExecutorRef(), ExecutorRef(pool), ExecutorRef(one)}) {
      GuardedWorkspace memory(detail::form_bytes(MeanForm{}, in, executor));
      const auto out =
          detail::run_form(MeanForm{}, in, Call{.workspace = memory.get(), .executor = executor});
      EXPECT_TRUE(memory.intact());
      for (Index s = 0; s < sequences; ++s) {
        for (Index h = 0; h < 2; ++h) EXPECT_EQ(out(s, 5, h, 1), double(10 * s + h));
      }
    }
  }
  const Matrix<float> v = Matrix<float>::Constant(4, 3, 2);
  EXPECT_EQ(detail::run_form(MeanForm{}, inputs(v, v, v), {}), v);
}

TEST(Form, MemoryThatIsKeptIsSharedOutAmongThePairs) {
  std::vector<double> data;
  const auto in = batch_of(data, 2, 3);
  const std::size_t bytes = detail::form_kept_bytes(MeanForm{}, in);
  GuardedWorkspace kept(bytes);
  detail::run_form(MeanForm{}, in, Call{.kept = kept.get()});
  EXPECT_TRUE(kept.intact());
  const detail::KeptMemory memory(MeanForm{}, in, kept.get(), detail::Kept::kRead);
  for (Index pair = 0; pair < 6; ++pair) {
    std::optional<detail::Arena> arena = memory.arena(pair / 3, pair % 3);
    ASSERT_TRUE(arena);
    EXPECT_EQ(arena->take<double>("mean", 2)[0], 6.0 * double(10 * (pair / 3) + pair % 3));
  }
  const auto without = [&] {
    detail::run_form(MeanForm{}, in, Call{.kept = kept.get().first(bytes - 1)});
  };
  EXPECT_NE(message_of<option_error>(without).find("mhla::mean: kept has "), std::string::npos);
}

TEST(Form, FewPairsLeaveTheBlocksToTheWorkers) {
  ThreadPool pool(3), one(1);
  EXPECT_FALSE(detail::over_pairs(3, ExecutorRef()));
  EXPECT_TRUE(detail::over_pairs(1, one));
  EXPECT_TRUE(detail::over_pairs(3, pool));
  EXPECT_FALSE(detail::over_pairs(2, pool));
}

/// Three heads of two sequences of 24 tokens, and a mixing matrix [6,6] per head.
struct PerHead {
  static constexpr Index kHeads = 3, kBlocks = 6;
  Tensor<double> q, k, v;
  MixingMatrix<double> mixing{Pattern(kBlocks, kBlocks), kHeads};
  Contiguous blocks{24, 4};

  PerHead() : q({2, 24, kHeads, 4}), k(q), v({2, 24, kHeads, 5}) {
    Random rng(3);
    for (Tensor<double>* t : {&q, &k, &v}) {
      for (double& x : t->data()) x = rng.uniform(-1, 1);
    }
    mixing.view().for_each([&rng](double& c) { c = rng.uniform(0.1, 1); });
  }
  BatchInputs<double> in() const { return inputs(q, k, v); }
};

TEST(Form, EqualMatricesOfAllHeadsHaveTheBitsOfTheMatrixThatTheyShare) {
  const PerHead p;
  const MixingMatrix<double> shared(p.mixing.of_head(1)), equal = per_head(shared, p.kHeads);
  ThreadPool two(2), many(20);
  const auto expect = [&](const auto& op) {
    const auto whole = bidirectional(p.in(), p.blocks, shared, op);
    for (const ExecutorRef& executor : {ExecutorRef(), ExecutorRef(two), ExecutorRef(many)}) {
      const Call call{.executor = executor};
      EXPECT_EQ(bidirectional(p.in(), p.blocks, equal, op, call).data(), whole.data());
      if constexpr (CausalOperator<decltype(op)>) {
        EXPECT_EQ(causal(p.in(), p.blocks, equal, op, call).data(),
                  causal(p.in(), p.blocks, shared, op).data());
      }
    }
  };
  expect(Operator{Relu{}, Relu{}, KeySum{}});
  expect(Operator{EluPlusOne{}, EluPlusOne{}, KeySum{0.5}});
  expect(Operator{Identity{}, Identity{}, NoNormalizer{}});
  expect(Operator{Relu{1e-6}, Relu{1e-6}, CrossQuery{1e-6}});
}

TEST(Form, AMatrixOfAHeadOrOfItsSequenceIsThatOfTheDefinition) {
  const PerHead p;
  const Operator op{Relu{}, Relu{}, KeySum{0.1}};
  MixingMatrix<double> each(p.mixing.pattern(), p.kHeads, 2);
  Random rng(5);
  each.view().for_each([&rng](double& c) { c = rng.uniform(0.1, 1); });
  const MixingMatrix<double>* const matrices[] = {&p.mixing, &each};
  for (const auto* mixing : matrices) {
    for (const Order order : {Order::kBidirectional, Order::kCausal}) {
      const auto all = naive_attention(p.in(), p.blocks, *mixing, op, order);
      const Tensor<double> out = order == Order::kCausal
                                     ? causal(p.in(), p.blocks, *mixing, op)
                                     : bidirectional(p.in(), p.blocks, *mixing, op);
      for (std::size_t i = 0; i < out.data().size(); ++i) {
        EXPECT_NEAR(out.data()[i], all.data()[i], 1e-12);
      }
      for (Index h = 0; h < p.kHeads; ++h) {
        const Matrix<double> head = naive_attention(detail::head_inputs(p.in(), 1, h), p.blocks,
                                                    mixing->of_sequence(1).of_head(h), op, order);
        for (Index t = 0; t < 24; ++t) EXPECT_EQ(all(1, t, h, 2), head(t, 2));
      }
    }
  }
}

TEST(Form, MatricesPerHeadMayLieAtAnyStride) {
  const PerHead p;
  std::vector<double> numbers(200);
  Random rng(4);
  for (double& x : numbers) x = rng.uniform(0.1, 1);
  const Pattern pattern(p.kBlocks, p.kBlocks);
  for (const Index stride : {0, 1, 36, 50}) {
    const MixingView<const double> mixing(numbers.data(), pattern, p.kHeads, stride);
    const auto out = bidirectional(p.in(), p.blocks, mixing);
    const auto later = causal(p.in(), p.blocks, mixing);
    for (Index h = 0; h < p.kHeads; ++h) {
      const MixingView<const double> of(numbers.data() + h * stride, pattern);
      const auto in = detail::head_inputs(p.in(), 1, h);
      const Matrix<double> alone = bidirectional(in, p.blocks, of), sees = causal(in, p.blocks, of);
      for (Index t = 0; t < 24; ++t) {
        EXPECT_EQ(out(1, t, h, 2), alone(t, 2)) << stride;
        EXPECT_EQ(later(1, t, h, 2), sees(t, 2)) << stride;
      }
    }
  }
}

TEST(Form, AnyOtherNumberOfMatricesIsRefusedBeforeAnythingIsWritten) {
  const PerHead p;
  const MixingMatrix<double> two = per_head(MixingMatrix<double>(p.mixing.of_head(0)), 2);
  Tensor<double> out({2, 24, p.kHeads, 5});
  for (double& x : out.data()) x = 7;
  const std::string rest =
      ": mixing has 2 matrices, expected 1, or 3, one per head of q, or 2 x 3, one "
      "per sequence and head of q";
  EXPECT_EQ(message_of<shape_error>([&] { bidirectional(p.in(), p.blocks, two, out); }),
            "mhla::bidirectional" + rest);
  EXPECT_EQ(message_of<shape_error>([&] { causal(p.in(), p.blocks, two, out); }),
            "mhla::causal" + rest);
  EXPECT_EQ(message_of<shape_error>([&] { naive_attention(p.in(), p.blocks, two); }),
            "mhla::naive_attention" + rest);
  for (const double x : out.data()) EXPECT_EQ(x, 7);
}

/// den = max(r, least), of sums chosen at run time.
struct AtLeast {
  WeightSums which = WeightSums::kToken;
  double least = 1;

  WeightSums sums() const { return which; }
  template <class A>
  void denominators(const A* r, Index count, A* den) const {
    for (Index t = 0; t < count; ++t) den[t] = std::max(r[t], static_cast<A>(least));
  }
};

TEST(Form, AUsersOwnNormalizerDividesInEveryForm) {
  Random rng(1);
  const auto q = rng.matrix<double>(20, 4), k = rng.matrix<double>(20, 4),
             v = rng.matrix<double>(20, 3);
  const auto in = inputs(q, k, v);
  const Contiguous blocks(20, 5);
  const auto mixing = locality<double>(4);
  for (const double least : {1e-3, 2., 1e3}) {  // below all sums, among them, above all
    const Operator op{Relu{}, Relu{}, AtLeast{WeightSums::kToken, least}};
    const auto near = [&](const Matrix<double>& o, Order order) {
      return (o - naive_attention<double>(in, blocks, mixing, op, order)).cwiseAbs().maxCoeff();
    };
    EXPECT_LE(near(bidirectional(in, blocks, mixing, op), Order::kBidirectional), 1e-12);
    EXPECT_LE(near(causal(in, blocks, mixing, op), Order::kCausal), 1e-12);
  }
  // Without sums, nothing divides.
  const Operator none{Relu{}, Relu{}, AtLeast{WeightSums::kNone, 7}};
  const Operator plain{Relu{}, Relu{}, NoNormalizer{}};
  EXPECT_EQ(bidirectional(in, blocks, mixing, none), bidirectional(in, blocks, mixing, plain));
  EXPECT_EQ(causal(in, blocks, mixing, none), causal(in, blocks, mixing, plain));
  EXPECT_EQ(naive_attention(in, blocks, mixing, none), naive_attention(in, blocks, mixing, plain));
  const Operator crossing{Relu{}, Relu{}, AtLeast{WeightSums::kCrossQuery}};
  EXPECT_EQ(message_of<option_error>([&] { causal(in, blocks, mixing, crossing); }),
            "mhla::causal: normalizer is CrossQuery, which reads later queries, expected a "
            "normaliser of the token's own weights, or none");
}

}  // namespace
}  // namespace mhla::test
