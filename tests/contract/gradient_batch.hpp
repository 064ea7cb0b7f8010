#pragma once

/// \file
/// Requirements of every backward form for a batch: every (sequence, head) pair has the gradients
/// that it has alone, in any surroundings and layout.
///
///     add_batch_gradient_tests<CausalForm>("Causal");

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "support/add_test.hpp"
#include "support/crowd.hpp"
#include "support/gradient_batch.hpp"
#include "support/gradient_forms.hpp"
#include "support/message_of.hpp"
#include "support/seeds.hpp"

namespace mhla::test {

inline constexpr Part kTensors[] = {kQ, kK, kV, kNormalizerQ, kNormalizerK};
inline constexpr std::uint64_t kBatches = 48;

struct BatchGradient {
  const AnyBatchGradient& form;

  /// Compares bit by bit. Gradients of parameters are sums over the pairs that share them.
  void IsThatOfEverySequenceAndHeadAloneInAnyLayout() const {
    for (const std::uint64_t seed : seeds(kBatches)) {
      const RandomBatch batch(form, seed);
      auto all = batch.gradients(seed);
      for (const auto& tensor : all.tensors)
        EXPECT_TRUE(tensor.nothing_beside()) << "seed " << seed;
      auto sums = all.parameters.values<double>(), sizes = sums;
      for (auto* v : {&sums, &sizes}) {
        for (Matrix<double>& m : *v) m.setZero();
      }
      for (Index s = 0; s < batch.sequences(); ++s) {
        for (Index h = 0; h < batch.heads(); ++h) {
          auto alone = batch.gradients_alone(s, h);
          for (const Part part : kTensors) {
            EXPECT_TRUE(same_bits(alone.tensors[part], batch.get(part, s, h, all.tensors)))
                << kPartNames[part] << " of sequence " << s << ", head " << h << ", "
                << batch.shared().text();
          }
          const auto values = alone.values<double>();
          for (const Part part : {kMixing, kQueryMap, kKeyMap}) {
            const Index row = part == kMixing ? batch.shared().row_of(s, h) : 0;
            sums[part].row(row) += values[part];
            sizes[part].row(row) += values[part].cwiseAbs();
          }
        }
      }
      const auto got = all.parameters.values<double>();
      for (const Part part : {kMixing, kQueryMap, kKeyMap}) {
        if (got[part].size() == 0) continue;
        const double error = (got[part] - sums[part]).cwiseAbs().maxCoeff();
        EXPECT_LE(error, 1e-13 * sizes[part].maxCoeff()) << kPartNames[part] << " seed " << seed;
      }
    }
  }

  void BitsDoNotDependOnThreadsNorOnKeptSummaries() const {
    ThreadPool two(2), five(5), many(70);
    for (const std::uint64_t seed : seeds(kBatches)) {
      const RandomBatch batch(form, seed);
      const auto first = batch.gradients(seed);
      const auto expect = [&](const ExecutorRef& executor, bool keep) {
        const auto other = batch.gradients(seed + 1, executor, keep);
        EXPECT_EQ(different_bits(first.parameters, other.parameters), "")
            << executor.workers() << " workers, seed " << seed;
        for (Index s = 0; s < batch.sequences(); ++s) {
          for (Index h = 0; h < batch.heads(); ++h) {
            for (const Part part : kTensors) {
              EXPECT_TRUE(same_bits(batch.get(part, s, h, first.tensors),
                                    batch.get(part, s, h, other.tensors)))
                  << kPartNames[part] << " " << executor.workers() << " workers, seed " << seed;
            }
          }
        }
      };
      if (form.mixes) expect({}, true);
      for (ThreadPool* pool : {&two, &five, &many}) expect(*pool, seed % 2 == 1);
    }
  }

  void ErrorsNameTheArgumentBeforeAnythingIsWritten() const {
    GradientProblem<double> p;
    Random rng(1);
    p.op.query_map = p.op.key_map = {Relu{}};
    p.set_mixing(form.mixes ? Pattern(3, 3) : Pattern(1, 1), rng, 0.1);
    const CrossBlocks blocks{ContiguousBlocks{4}, ContiguousBlocks{4}};
    std::vector<double> data(2 * 12 * 2 * 3, 1), result(data.size(), 7);
    const auto in = [&](Index tokens, Index heads, Index width) {
      return bnhd<const double>(data.data(), 2, tokens, heads, width);
    };
    const auto to = [&](Index tokens, Index heads, Index width) {
      return bnhd(result.data(), 2, tokens, heads, width);
    };
    const BatchInputs<double> inputs{.q = in(12, 1, 2), .k = in(12, 1, 2), .v = in(12, 1, 2)};
    using Arguments = GradientArguments<BatchInputs<double>>;
    const auto rejected = [&](const std::string& text,
                              const std::function<void(Arguments&, Call&)>& spoil) {
      Arguments a{inputs, in(12, 1, 2), {.q = to(12, 1, 2)}, {}};
      Call call;
      spoil(a, call);
      const std::string start = std::string("mhla::") + form.name + ": " + text;
      const std::string message = message_of<error>([&] { form.add(a, p, blocks, call); });
      EXPECT_TRUE(message.starts_with(start)) << start << "...: " << message;
      EXPECT_NE(message.find(", expected "), std::string::npos) << message;
    };
    rejected("dout has shape [2, 12, 2, 2], expected [2, 12, 1, any]",
             [&](Arguments& a, Call&) { a.dout = in(12, 2, 2); });
    rejected("dout has shape [12, 3], expected [12, 2]",
             [&](Arguments& a, Call&) { a.dout = in(12, 1, 3); });
    rejected("gradients.q has shape [2, 11, 1, 2], expected [2, 12, 1, any]",
             [&](Arguments& a, Call&) { a.gradients.q = to(11, 1, 2); });
    rejected("gradients.k has shape [12, 3], expected [12, 2]",
             [&](Arguments& a, Call&) { a.gradients.k = to(12, 1, 3); });
    rejected("gradients.v has shape [2, 12, 2, 2], expected [2, 12, 1, any]",
             [&](Arguments& a, Call&) { a.gradients.v = to(12, 2, 2); });
    rejected("gradients.normalizer_q has shape ",
             [&](Arguments& a, Call&) { a.gradients.normalizer_q = to(12, 1, 2); });
    std::byte one{};
    if (form.mixes) {
      std::vector<double> numbers(4 * 9, 7);
      rejected("parameters.mixing has 2 matrices, expected 1, as many as mixing",
               [&](Arguments& a, Call&) {
                 a.parameters.mixing = {numbers.data(), Pattern(3, 3), 2, 9};
               });
      rejected("parameters.mixing has 2 x 1 matrices, expected 1, as many as mixing",
               [&](Arguments& a, Call&) {
                 a.parameters.mixing = {numbers.data(), Pattern(3, 3), 1, 0, 2, 9};
               });
      const GradientProblem<double> shared = p;
      p.set_mixing(Pattern(3, 3), rng, 0.1, 3);
      rejected("mixing has 3 matrices, expected 1, for one head", [](Arguments&, Call&) {});
      p.set_mixing(Pattern(3, 3), rng, 0.1, 2);
      const auto for_two_heads = [&](Arguments& a) {
        a.in = {.q = in(12, 2, 2), .k = in(12, 2, 2), .v = in(12, 2, 2)};
        a.dout = in(12, 2, 2);
        a.gradients = {};
      };
      const auto refused = [&](Index stride, Index sequence_stride) {
        rejected("parameters.mixing has strides [" + std::to_string(sequence_stride) + ", 0, " +
                     std::to_string(stride) + ", 1], and elements that overlap, expected strides",
                 [&](Arguments& a, Call&) {
                   for_two_heads(a);
                   const Index sequences = sequence_stride > 0 ? 2 : 1;
                   a.parameters.mixing = {numbers.data(), Pattern(3, 3), 2,
                                          stride,         sequences,     sequence_stride};
                 });
      };
      refused(8, 0);
      refused(0, 0);
      p.set_mixing(Pattern(3, 3), rng, 0.1, 2, 2);
      refused(9, 9);
      refused(9, 17);
      refused(8, 18);
      for (const double x : numbers) EXPECT_EQ(x, 7);
      p = shared;
    }
    rejected("workspace has 1 bytes", [&](Arguments&, Call& c) { c.workspace = {&one, 1}; });
    rejected("kept ", [&](Arguments&, Call& c) { c.kept = {&one, 1}; });
    for (const double x : result) EXPECT_EQ(x, 7);
  }

  void MoreBytesThanFitIndexAreRefused() const {
    GradientProblem<double> p;
    Random rng(1);
    p.op.query_map = p.op.key_map = {Relu{}};
    p.set_mixing(form.mixes ? Pattern(2, 2) : Pattern(1, 1), rng, 0.1);
    const CrossBlocks blocks{ContiguousBlocks{4}, ContiguousBlocks{4}};
    constexpr Index kMany = Index{1} << 44, kWide = Index{1} << 27;
    const auto bytes_of = [&](Index sequences, Index heads, Index width, Index workers) {
      const TensorView<const double> x(nullptr, {sequences, 8, heads, width}, {0, 0, 0, 1});
      return form.bytes(BatchInputs<double>{.q = x, .k = x, .v = x}, p, blocks, Crowd{workers});
    };
    EXPECT_GT(bytes_of(1, kMany, 4, 1), 0u);
    // With more workers than groups of heads, a worker of causal linear attention holds a whole
    // head.
    const bool holds_heads = form.name == std::string(LinearCausal().name);
    const Index workers = holds_heads ? detail::kPairGroups : kMany;
    EXPECT_THROW(bytes_of(1, kMany, kWide, workers), shape_error);
    EXPECT_THROW(bytes_of(kMany, kMany, 4, 1), shape_error);
  }
};

template <class Form>
void add_batch_gradient_tests(const std::string& prefix) {
  const BatchGradient laws{kBatchGradientOn<Form>};
  const std::string suite = prefix + "/BatchGradient/double";
  MHLA_ADD_TEST(suite, laws, IsThatOfEverySequenceAndHeadAloneInAnyLayout);
  MHLA_ADD_TEST(suite, laws, BitsDoNotDependOnThreadsNorOnKeptSummaries);
  MHLA_ADD_TEST(suite, laws, ErrorsNameTheArgumentBeforeAnythingIsWritten);
  MHLA_ADD_TEST(suite, laws, MoreBytesThanFitIndexAreRefused);
}

}  // namespace mhla::test
