#pragma once

/// \file
/// Requirements of every tangent form for a batch: every (sequence, head) pair has the output and
/// the tangent that it has alone, in any surroundings, layout and number of threads.
///
///     INSTANTIATE_TYPED_TEST_SUITE_P(AllForms, BatchTangent, TangentForms);

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "support/crowd.hpp"
#include "support/gradient_batch.hpp"
#include "support/message_of.hpp"
#include "support/seeds.hpp"
#include "support/tangent_forms.hpp"

namespace mhla::test {

template <class Form>
struct BatchTangent : testing::Test {};
TYPED_TEST_SUITE_P(BatchTangent);

/// Directions of a random batch, each in a layout of its own.
template <class T>
struct BatchDirections {
  std::vector<StridedTensor<T>> tensors;
  Directions<T> parameters;  // without tensors

  BatchDirections(const RandomBatch& batch, std::uint64_t seed)
      : parameters(random_directions(batch.shared(), seed)) {
    Random rng(seed);
    const BatchInputs<T>& in = batch.inputs();
    for (const auto& t : {in.q, in.k, in.v, in.normalizer_q, in.normalizer_k}) {
      tensors.emplace_back(rng, t.shape, true);
    }
  }
  TensorView<const T> view(Part part) const {
    const TensorView<T> all = tensors[part].view();
    return all.width() == 0 && part != kV ? TensorView<T>() : all;
  }
  BatchTangents<T> views() const {
    return {view(kQ), view(kK), view(kV), view(kNormalizerQ), view(kNormalizerK)};
  }
  ParameterTangents<accumulator_t<T>> parameter_views() {
    const auto views = parameters.parameter_views();
    return {views.mixing, views.query_map, views.key_map};
  }
  ParameterTangents<accumulator_t<T>> parameters_of_pair(Index s, Index h) {
    auto views = parameter_views();
    views.mixing = views.mixing.of_sequence(s).of_head(h);
    return views;
  }
};

TYPED_TEST_P(BatchTangent, IsThatOfEverySequenceAndHeadAloneInAnyLayoutWithAnyThreads) {
  using T = double;
  ThreadPool two(2), many(70);
  for (const std::uint64_t seed : seeds(32)) {
    const RandomBatch batch(kBatchGradientOn<typename TypeParam::Backward>, seed);
    const BatchInputs<T>& in = batch.inputs();
    BatchDirections<T> x(batch, seed);
    for (const ExecutorRef& executor : {ExecutorRef(), ExecutorRef(two), ExecutorRef(many)}) {
      Random rng(seed);
      const Shape shape{in.q.batch(), in.q.tokens(), in.q.heads(), in.v.width()};
      const StridedTensor<T> out(rng, shape), tangent(rng, shape);
      write_tangents<TypeParam>(
          TangentArguments<BatchInputs<T>>{
              in, x.views(), x.parameter_views(), {out.view(), tangent.view()}},
          batch.shared(), batch.blocks(), executor);
      EXPECT_TRUE(out.nothing_beside() && tangent.nothing_beside()) << "seed " << seed;
      for (Index s = 0; s < batch.sequences(); ++s) {
        for (Index h = 0; h < batch.heads(); ++h) {
          const Inputs<T> head = detail::head_inputs(in, s, h);
          const auto fresh = [&] { return unwritten<T>(head.q.rows, head.v.cols); };
          WithTangent<Matrix<T>> alone{fresh(), fresh()};
          write_tangents<TypeParam>(
              TangentArguments<Inputs<T>>{head,
                                          detail::head_tangents(in, x.views(), s, h),
                                          x.parameters_of_pair(s, h),
                                          {alone.value, alone.tangent}},
              batch.of_pair(s, h), batch.blocks());
          EXPECT_TRUE(
              same_bits(alone.value, dense(detail::head_output(in, out.view(), s, h))) &&
              same_bits(alone.tangent, dense(detail::head_output(in, tangent.view(), s, h))))
              << "sequence " << s << ", head " << h << ", " << executor.workers() << " workers, "
              << batch.shared().text();
        }
      }
    }
  }
}

TYPED_TEST_P(BatchTangent, ErrorsNameTheArgumentBeforeAnythingIsWritten) {
  GradientProblem<double> p;
  Random rng(1);
  p.op.query_map = p.op.key_map = {Relu{}};
  p.set_mixing(TypeParam().mixes ? Pattern(3, 3) : Pattern(1, 1), rng, 0.1);
  const CrossBlocks blocks{ContiguousBlocks{4}, ContiguousBlocks{4}};
  std::vector<double> data(2 * 12 * 2 * 3, 1), result(2 * data.size(), 7);
  const auto in = [&](Index tokens, Index heads, Index width) {
    return bnhd<const double>(data.data(), 2, tokens, heads, width);
  };
  const BatchInputs<double> inputs{.q = in(12, 1, 2), .k = in(12, 1, 2), .v = in(12, 1, 2)};
  using Arguments = TangentArguments<BatchInputs<double>>;
  const auto rejected = [&](const std::string& text, const std::function<void(Arguments&)>& spoil) {
    const auto to = [&](std::size_t first) {
      return bnhd(result.data() + first, 2, Index{12}, Index{1}, Index{2});
    };
    Arguments a{inputs, {.q = in(12, 1, 2)}, {}, {to(0), to(data.size())}};
    spoil(a);
    const std::string start = std::string("mhla::") + TypeParam::kName + ": " + text;
    const std::string message = message_of<error>([&] { TypeParam::write(a, p, blocks, {}); });
    EXPECT_TRUE(message.starts_with(start)) << start << "...: " << message;
    EXPECT_NE(message.find(", expected "), std::string::npos) << message;
  };
  const auto wide = [&](std::size_t first) {
    return bnhd(result.data() + first, 2, Index{12}, Index{2}, Index{2});
  };
  rejected("out has shape [2, 12, 2, 2], expected [2, 12, 1, any]",
           [&](Arguments& a) { a.out.value = wide(0); });
  rejected("tangent has shape [2, 12, 2, 2], expected [2, 12, 1, any]",
           [&](Arguments& a) { a.out.tangent = wide(data.size()); });
  rejected("tangents.q has shape [2, 11, 1, 2], expected [2, 12, 1, any]",
           [&](Arguments& a) { a.tangents.q = in(11, 1, 2); });
  rejected("tangents.k has shape [12, 3], expected [12, 2]",
           [&](Arguments& a) { a.tangents.k = in(12, 1, 3); });
  rejected("tangents.v has shape [2, 12, 2, 2], expected [2, 12, 1, any]",
           [&](Arguments& a) { a.tangents.v = in(12, 2, 2); });
  rejected("tangents.normalizer_q has shape ",
           [&](Arguments& a) { a.tangents.normalizer_q = in(12, 1, 2); });
  if (TypeParam().mixes) {
    rejected("parameters.mixing has 2 matrices, expected 1, as many as mixing", [&](Arguments& a) {
      a.parameters.mixing = {data.data(), Pattern(3, 3), 2, 9};
    });
    p.set_mixing(Pattern(3, 3), rng, 0.1, 3);
    rejected("mixing has 3 matrices, expected 1, for one head", [](Arguments&) {});
  }
  for (const double x : result) EXPECT_EQ(x, 7);
}

TYPED_TEST_P(BatchTangent, MoreBytesThanFitIndexAreRefused) {
  GradientProblem<double> p;
  p.op.query_map = p.op.key_map = {Relu{}};
  const CrossBlocks blocks{ContiguousBlocks{4}, ContiguousBlocks{4}};
  constexpr Index kMany = Index{1} << 44, kWide = Index{1} << 27;
  const auto bytes_of = [&](Index sequences, Index heads, Index width, Index workers) {
    const TensorView<const double> x(nullptr, {sequences, 8, heads, width}, {0, 0, 0, 1});
    return TypeParam::bytes(BatchInputs<double>{.q = x, .k = x, .v = x}, p, blocks, Crowd{workers});
  };
  EXPECT_GT(bytes_of(1, kMany, 4, 1), 0u);
  EXPECT_THROW(bytes_of(1, kMany, kWide, kMany), shape_error);
  EXPECT_THROW(bytes_of(kMany, kMany, 4, 1), shape_error);
}

REGISTER_TYPED_TEST_SUITE_P(BatchTangent,
                            IsThatOfEverySequenceAndHeadAloneInAnyLayoutWithAnyThreads,
                            ErrorsNameTheArgumentBeforeAnythingIsWritten,
                            MoreBytesThanFitIndexAreRefused);

}  // namespace mhla::test
