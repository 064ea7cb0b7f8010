#include "contract/forward.hpp"

#include <algorithm>
#include <cfenv>
#include <functional>
#include <iostream>
#include <limits>
#include <string>

#include "mhla/core/executor.hpp"
#include "support/add_test.hpp"
#include "support/environment.hpp"
#include "support/form_specials.hpp"
#include "support/forward_batch.hpp"
#include "support/page_matrix.hpp"
#include "support/seeds.hpp"
#include "support/special_values.hpp"

namespace mhla::test {
namespace {

template <class T>
struct Forward : FormRuns<T> {
  using FormRuns<T>::form, FormRuns<T>::problem, FormRuns<T>::any_problem, FormRuns<T>::run,
      FormRuns<T>::poison_key, FormRuns<T>::poison_query;

  /// Problems with special values are computed in every rounding mode.
  void EqualsNaiveAttentionWithinTheDerivedBound() const {
    Tally ordinary, special;
    const Seeds all = seeds(1000);
    for (const std::uint64_t seed : all) {
      if (testing::Test::HasFatalFailure()) break;
      const auto p = any_problem(seed, false);
      const int mode = is_special(seed) ? kRoundingModes[seed / 10 % 4] : FE_TONEAREST;
      const Environment environment(mode, false);
      compare(p, form.expected(p), run(p), form.name, is_special(seed) ? special : ordinary);
    }
    std::cout << form.name << ": worst error " << std::max(ordinary.worst, special.worst)
              << " of the bound in " << ordinary.outputs + special.outputs << " outputs, of which "
              << ordinary.ill + special.ill << " have no bound\n";
    // Otherwise the test could check nothing. One problem may have no bound at all.
    if (all.count > 1) {
      EXPECT_LT(ordinary.ill, ordinary.outputs / 20);
    }
  }

  void OfOrdinaryNumbersRaisesNoFlag() const {
    for (const std::uint64_t seed : seeds(300)) {
      const auto p = problem(seed);
      std::feclearexcept(FE_ALL_EXCEPT);
      const auto out = run(p);
      const int flags = std::fetestexcept(FE_DIVBYZERO | FE_INVALID);
      EXPECT_TRUE(flags == 0 || !out.template cast<double>().allFinite()) << p.text();
    }
  }

  /// Keys alternate between 1 and -1, so an even number of keys has denominators of 0. Numerators
  /// are 0 in even columns and negative in odd columns.
  void OutputsOverZeroAreZeroOrInfinite() const {
    if (!form.has_operator) return;
    Problem<T> p;
    constexpr Index kTokens = 260, kWidth = 3;
    p.q = Matrix<T>::Ones(kTokens, kWidth);
    p.k = p.q;
    p.v = Matrix<T>::Ones(kTokens, 5);
    for (Index t = 1; t < kTokens; t += 2) {
      p.k.row(t).setConstant(T(-1));
      for (Index e = 1; e < 5; e += 2) p.v(t, e) = T(2);
    }
    p.query_blocks = p.key_blocks = AnyPartition::of(Contiguous(kTokens, 130));
    p.coefficients = Matrix<accumulator_t<T>>::Ones(2, 2);
    p.lower = p.upper = 2;
    p.causal = form.causal;
    form.fit(p);
    const Matrix<T> out = run(p);
    for (Index t = form.causal ? 1 : 0; t < kTokens; t += form.causal ? 2 : 1) {
      for (Index e = 0; e < 5; ++e) {
        ASSERT_EQ(static_cast<double>(out(t, e)), e % 2 == 0 ? 0 : -INFINITY) << t << " " << e;
      }
    }
  }

  void MaskedTokensReachNoOutput() const {
    for (const std::uint64_t seed : seeds(300)) {
      auto p = any_problem(seed);
      const auto clean = run(p);
      const float values[] = {NAN, INFINITY};
      for (Index t = 0; t < p.key_mask.cols(); ++t) {
        if (!p.key_mask(0, t)) poison_key(p, t, values[t % 2]);
      }
      for (Index t = 0; t < p.query_mask.cols(); ++t) {
        if (!p.query_mask(0, t)) poison_query(p, t, values[t % 2]);
      }
      EXPECT_TRUE(same_bits(clean, run(p))) << p.text();
    }
  }

  void NothingBesideTheInputsAndTheOutputIsTouched() const {
    for (const std::uint64_t seed : seeds(100)) {
      const auto p = any_problem(seed);
      const auto expected = run(p);
      for (const PageSide side : {PageSide::kBegin, PageSide::kEnd}) {
        Inputs<T> in = p.inputs();
        const PageMatrix<T> q(in.q, side), k(in.k, side), v(in.v, side),
            denominator_q(in.normalizer_q, side), denominator_k(in.normalizer_k, side),
            out(expected, side);
        in.q = q.view(), in.k = k.view(), in.v = v.view();
        if (!in.normalizer_q.absent())
          in.normalizer_q = denominator_q.view(), in.normalizer_k = denominator_k.view();
        const PageMatrix<bool> queries(p.query_mask, side), keys(p.key_mask, side);
        if (!in.query_mask.all()) in.query_mask = {queries.data(), p.query_mask.cols()};
        if (!in.key_mask.all()) in.key_mask = {keys.data(), p.key_mask.cols()};
        form.run(in, forward::Arguments<T>(p), out.view(), {});
        EXPECT_TRUE(same_bits(expected, dense(out.view()))) << p.text();
      }
    }
  }

  void BitsDoNotDependOnTheNumberOfThreads() const {
    ThreadPool two(2), five(5);
    for (const std::uint64_t seed : seeds(100)) {
      const auto p = any_problem(seed);
      std::fesetround(seed % 4 == 3 ? FE_UPWARD : FE_TONEAREST);  // also the mode of workers
      const auto alone = run(p);
      for (ThreadPool* pool : {&two, &five, &five}) {
        EXPECT_TRUE(same_bits(alone, run(p, {.executor = *pool})))
            << pool->workers() << " " << p.text();
      }
      std::fesetround(FE_TONEAREST);
    }
  }

  void EveryHeadOfABatchHasTheBitsItHasAloneInDenseMemory() const {
    Sequential one;
    ThreadPool two(2), seven(7);
    for (const std::uint64_t seed : seeds(200)) {
      const forward::Batch<T> batch(seed);
      const auto arguments = batch.arguments(form.streams);
      for (const ExecutorRef& executor : {ExecutorRef(one), ExecutorRef(two), ExecutorRef(seven)}) {
        batch.out.for_each([nan = unwritten<T>(1, 1)(0, 0)](T& x) { x = nan; });
        GuardedWorkspace workspace(form.batch.bytes(batch.inputs(), arguments, executor));
        form.batch.run(batch.inputs(), arguments, batch.out.view(),
                       Call{.workspace = workspace.get(), .executor = executor});
        EXPECT_TRUE(workspace.intact() && batch.out.nothing_beside()) << seed;
        batch.for_each_head([&](Index s, Index h, const Inputs<T>& in, const Matrix<T>& out) {
          EXPECT_TRUE(same_bits(run(in, arguments.of_pair(s, h)), out))
              << seed << ", workers " << executor.workers();
        });
      }
    }
  }

  void ScalingValuesByAPowerOfTwoScalesOutputs() const {
    Index compared = 0;
    for (const std::uint64_t seed : seeds(100)) {
      auto p = problem(seed);
      const auto before = run(p);
      p.v *= T(8);
      const auto after = run(p);
      for (Index i = 0; i < before.size(); ++i) {
        const double x = static_cast<double>(before.data()[i]);
        const double y = static_cast<double>(after.data()[i]);
        // Storage rounds smaller and larger numbers differently.
        if (!(std::abs(x) >= static_cast<double>(std::numeric_limits<T>::min()))) continue;
        if (!std::isfinite(y)) continue;
        ++compared;
        ASSERT_EQ(8 * x, y) << p.text();
      }
    }
    EXPECT_GT(compared, 5000);
  }

  void WhatDoesNotFitIsNamedBeforeAnythingIsWritten() const {
    using Small = forward::SmallProblem<T>;
    static const bool keep[5] = {};
    const auto text = [&](const Small& p, std::size_t missing = 0) {
      Matrix<T> out = unwritten<T>(p.rows, 3);
      const forward::Arguments<T> a(p);
      const std::string message = message_of<error>([&] {
        GuardedWorkspace memory(missing == 0 ? 0 : form.bytes(p.in, a, {}) - missing);
        form.run(p.in, a, out, Call{.workspace = memory.get()});
      });
      EXPECT_EQ(same_bits(out, unwritten<T>(p.rows, 3)), message != "no exception");
      return message;
    };
    const std::string name = std::string("mhla::") + form.name + ": ";
    const auto expect = [&](const std::string& message, const std::function<void(Small&)>& change) {
      Small p;
      change(p);
      EXPECT_EQ(text(p), name + message);
    };
    EXPECT_EQ(text(Small()), "no exception");
    const std::size_t bytes = form.bytes(Small().in, forward::Arguments<T>(Small()), {});
    EXPECT_EQ(text(Small(), 1), name + "workspace has " + std::to_string(bytes - 1) +
                                    " bytes, expected at least " + std::to_string(bytes) +
                                    " (see workspace_bytes)");
    expect("v has shape [7, 3], expected [8, any] (a row for each of k)",
           [](Small& p) { p.in.v.rows = 7; });
    expect("out has shape [7, 3], expected [8, 3]", [](Small& p) { p.rows = 7; });
    expect("q is null with shape [8, 4], expected a pointer to data",
           [](Small& p) { p.in.q.data = nullptr; });
    expect("query_mask has 5 entries, expected 8 (one for each token)", [](Small& p) {
      p.in.query_mask = {keep, 5};
    });
    expect("key_mask has 5 entries, expected 8 (one for each token)", [](Small& p) {
      p.in.key_mask = {keep, 5};
    });
    if (form.causal) {
      Small p;
      p.in.k.rows = p.in.v.rows = 9;
      EXPECT_EQ(text(p).find(name + "k has shape [9, 4], expected [8, "), 0u) << text(p);
    }
    if (form.has_operator) {
      expect("k has width 5, 5 after the feature map, expected 4 features (those of q [8, 4])",
             [](Small& p) { p.in.k.cols = 5; });
      expect("normalizer_k is absent, expected both normalizer_q and normalizer_k, or none",
             [](Small& p) { p.in.normalizer_q = p.in.q; });
      expect("normalizer_k has shape [9, 4], expected [8, any]", [](Small& p) {
        p.in.normalizer_q = p.in.normalizer_k = p.in.q;
        p.in.normalizer_k.rows = 9;
      });
      expect(
          "normalizer_q has shape [8, 0], expected at least 1 feature, or none of normalizer_q and "
          "normalizer_k",
          [](Small& p) {
            p.in.normalizer_q = p.in.normalizer_k = p.in.q;
            p.in.normalizer_q.cols = p.in.normalizer_k.cols = 0;
          });
    }
    if (form.mixes) {
      expect("mixing has shape [1, 1], expected at least [2, 2] for the blocks of the sequence",
             [](Small& p) { p.coefficients.resize(1, 1); });
      const std::string blocks = form.causal ? "blocks" : "query_blocks";
      expect(
          blocks +
              " covers 4 tokens, expected 8 tokens: one per row, or along axis 1 of [B, N, H, D]",
          [](Small& p) { p.query_blocks = AnyPartition::of(Contiguous(4, 4)); });
      expect("mixing has 2 matrices, expected 1, for one head", [](Small& p) { p.heads = 2; });
    }
  }

  void MoreBytesThanFitIndexAreRefused() const {
    forward::Arguments<T> arguments{forward::SmallProblem<T>()};
    arguments.blocks.queries.length = arguments.blocks.keys.length = 4;
    constexpr Index kMany = Index{1} << 44, kWide = Index{1} << 20;
    const auto batch_of = [](Index sequences, Index heads, Index width) {
      const TensorView<const T> x(nullptr, {sequences, 8, heads, width}, {0, 0, 0, 1});
      return BatchInputs<T>{.q = x, .k = x, .v = x};
    };
    const auto bytes_of = [&](const BatchInputs<T>& in, Index workers) {
      return form.batch.bytes(in, arguments, Crowd{workers});
    };
    EXPECT_GT(bytes_of(batch_of(1, kMany, 4), 1), 0u);
    EXPECT_THROW(bytes_of(batch_of(1, kMany, kWide), kMany), shape_error);
    if (!form.streams) {  // which have no bytes per sequence here
      EXPECT_THROW(bytes_of(batch_of(kMany, kMany, 4), 1), shape_error);
    }
    if (form.kept_bytes) {
      EXPECT_THROW(form.batch.kept_bytes(batch_of(1, kMany, kWide), arguments), shape_error);
      EXPECT_THROW(form.batch.kept_bytes(batch_of(kMany, kMany, 4), arguments), shape_error);
    }
  }

  void LieInTheBytesAskedForAndChangeNoBitOrAreRefused() const {
    for (const std::uint64_t seed : seeds(40)) {
      const auto p = any_problem(seed);
      const auto text = [&](Workspace kept) {
        return message_of<option_error>([&] { run(p, {.kept = kept}); });
      };
      std::string name = "mhla::";
      name.append(form.name).append(": kept ");
      if (form.kept_bytes) {
        const std::size_t bytes = form.kept_bytes(p.inputs(), forward::Arguments<T>(p));
        GuardedWorkspace kept(bytes);
        EXPECT_TRUE(same_bits(run(p), run(p, {.kept = kept.get()}))) << p.text();
        EXPECT_TRUE(kept.intact());
        if (bytes < 2) continue;
        EXPECT_EQ(text(kept.get().first(bytes - 1)),
                  name + "has " + std::to_string(bytes - 1) + " bytes, expected none or at least " +
                      std::to_string(bytes) + " (see kept_bytes)");
      } else {
        std::byte memory[1];
        EXPECT_EQ(text(memory), name + "is set, expected none: this form keeps nothing");
      }
    }
  }

  void LaterTokensReachNoOutput() const {
    for (const std::uint64_t seed : seeds(200)) {
      const auto p = any_problem(seed);
      const Index n = p.q.rows();
      if (n < 2) continue;
      const Matrix<T> before = run(p);
      const Index first = Random(seed).integer(1, n - 1);
      for (const float poison : {NAN, INFINITY, 1e30f}) {
        auto late = p;
        for (Index t = first; t < n; ++t) {
          poison_key(late, t, poison);
          poison_query(late, t, poison);
        }
        EXPECT_TRUE(same_bits<T>(before.topRows(first), run(late).topRows(first)))
            << first << " " << p.text();
      }
    }
  }
};

}  // namespace

template <class T>
void add_form_tests(const std::string& prefix, const AnyForm<T>& form) {
  const Forward<T> laws{{form}};
  const FormSpecials<T> specials{{form}};
  const auto suite = [&](const char* name) { return prefix + "/" + name + "/" + name_of<T>(); };
  MHLA_ADD_TEST(suite("Forward"), laws, EqualsNaiveAttentionWithinTheDerivedBound);
  MHLA_ADD_TEST(suite("Forward"), laws, OfOrdinaryNumbersRaisesNoFlag);
  MHLA_ADD_TEST(suite("Forward"), laws, OutputsOverZeroAreZeroOrInfinite);
  MHLA_ADD_TEST(suite("Forward"), laws, MaskedTokensReachNoOutput);
  MHLA_ADD_TEST(suite("Forward"), laws, NothingBesideTheInputsAndTheOutputIsTouched);
  MHLA_ADD_TEST(suite("Forward"), laws, BitsDoNotDependOnTheNumberOfThreads);
  MHLA_ADD_TEST(suite("Forward"), laws, EveryHeadOfABatchHasTheBitsItHasAloneInDenseMemory);
  MHLA_ADD_TEST(suite("Forward"), laws, ScalingValuesByAPowerOfTwoScalesOutputs);
  MHLA_ADD_TEST(suite("Forward"), specials, BoundsHoldForTinyNumbersInEveryEnvironment);
  MHLA_ADD_TEST(suite("Forward"), specials, ANaNReachesWhatReadsIt);
  MHLA_ADD_TEST(suite("Forward"), laws, WhatDoesNotFitIsNamedBeforeAnythingIsWritten);
  MHLA_ADD_TEST(suite("Forward"), laws, MoreBytesThanFitIndexAreRefused);
  if (!form.streams)
    MHLA_ADD_TEST(suite("KeptSummaries"), laws, LieInTheBytesAskedForAndChangeNoBitOrAreRefused);
  if (form.causal) MHLA_ADD_TEST(suite("CausalForward"), laws, LaterTokensReachNoOutput);
}
template Expected<float> expected(const Problem<float>&, Index);
template Expected<double> expected(const Problem<double>&, Index);
template Expected<Eigen::half> expected(const Problem<Eigen::half>&, Index);
template Expected<Eigen::bfloat16> expected(const Problem<Eigen::bfloat16>&, Index);

template void add_form_tests(const std::string&, const AnyForm<float>&);
template void add_form_tests(const std::string&, const AnyForm<double>&);
template void add_form_tests(const std::string&, const AnyForm<Eigen::half>&);
template void add_form_tests(const std::string&, const AnyForm<Eigen::bfloat16>&);

}  // namespace mhla::test
