#include "mhla/layer/mixing_tensor.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "mhla/policy/distance_derivatives.hpp"
#include "mhla/policy/distance_mixing.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

using A = float;
constexpr GridShape kBlocks{2, 3}, kOffsets{3, 5};
constexpr Index kM = 6, kBefore = 4;  // blocks, and other parameters before the table

/// A pass over a row of parameters that has tables, with workspace of any content.
struct TablePass {
  Index tables;
  bool causal;
  Graph<A> graph{"AnyLayer", 4, kM};
  std::vector<A> row, gradients;
  std::vector<std::byte> memory;

  TablePass(Index heads, bool is_causal) : tables(heads), causal(is_causal) {
    Random rng(3);
    row.resize(static_cast<std::size_t>(kBefore + tables * 15));
    for (A& x : row) x = static_cast<A>(rng.uniform(0.25, 2));
    gradients = row;
    memory.resize(detail::MixingOfPass<A>::bytes(tensor(), kM, true) + 100);
  }
  MixingTensor tensor() const { return {{kBefore, tables, 15}, kBlocks, kOffsets, causal}; }
  DistanceView<const A> table() const { return {row.data() + kBefore, kOffsets, tables}; }
  Pattern pattern() const { return causal ? Pattern(kM, kM, kM, 0) : Pattern(kM, kM); }
  Pass<A> pass(bool backward) {
    const A nan = std::nanf("");
    for (std::size_t n = 0; n + sizeof(A) <= memory.size(); n += sizeof(A)) {
      std::memcpy(memory.data() + n, &nan, sizeof(A));
    }
    Pass<A> p = graph.pass({kM, 1}, {}, backward);
    p.parameters = row;
    p.rest = memory;
    if (backward) p.gradients = gradients;
    return p;
  }
};

template <class F>
void for_passes(const F& f) {
  for (const Index tables : {1, 3}) {
    for (const bool causal : {false, true}) {
      TablePass pass(tables, causal);
      f(pass);
    }
  }
}

void expect_equal(const MixingView<const A>& got, const MixingMatrix<A>& expected) {
  ASSERT_EQ(got.heads(), expected.heads());
  EXPECT_EQ(got.pattern(), expected.pattern());
  for (Index h = 0; h < got.heads(); ++h) {
    EXPECT_EQ(got.of_head(h).dense(), expected.of_head(h).dense());
  }
}

TEST(MixingTensor, TablesGiveTheMatricesOfTheirBlocks) {
  for_passes([](TablePass& t) {
    const auto expected = distance_matrix(t.table(), kBlocks, t.pattern());
    const MixingTensor tensor = t.tensor();
    EXPECT_EQ(tensor.matrices(kM), t.tables);
    for (const bool backward : {false, true}) {
      const Pass<A> p = t.pass(backward);
      const detail::MixingOfPass<A> mixing("AnyLayer", tensor, kM, p, backward);
      expect_equal(mixing.matrices(), expected);
      EXPECT_EQ(mixing.gradient().absent(), !backward);
    }
    expect_equal(detail::mixing_matrix("AnyLayer", tensor, kM, std::span<const A>(t.row)).view(),
                 expected);
  });
}

TEST(MixingTensor, AddsTheGradientOfTables) {
  for_passes([](TablePass& t) {
    const std::vector<A> before = t.gradients;
    DistanceMixing<A> expected(kOffsets, t.tables);
    std::copy_n(before.begin() + kBefore, expected.storage().size(), expected.storage().begin());
    const MixingTensor tensor = t.tensor();
    const Pass<A> p = t.pass(true);
    const detail::MixingOfPass<A> mixing("AnyLayer", tensor, kM, p, true);
    Random rng(4);
    MixingMatrix<A> dm(t.pattern(), t.tables);
    for (Index h = 0; h < t.tables; ++h) {
      for (Index i = 0; i < kM; ++i) {
        mixing.gradient().of_head(h).for_each_in_row(i, [&](Index b, A& d) {
          EXPECT_EQ(d, 0);  // a form adds to it
          d = dm.of_head(h).at(i, b) = static_cast<A>(rng.uniform(-1, 1));
        });
      }
    }
    mixing.add_gradient();
    distance_matrix_adjoint(t.table(), kBlocks, dm.view(), expected.view());
    for (std::size_t n = 0; n < before.size(); ++n) {
      EXPECT_EQ(t.gradients[n], n < kBefore ? before[n] : expected.storage()[n - kBefore]) << n;
    }
  });
}

TEST(MixingTensor, LeavesTheRestOfTheWorkspace) {
  for_passes([](TablePass& t) {
    const MixingTensor tensor = t.tensor();
    for (const bool backward : {false, true}) {
      const Pass<A> p = t.pass(backward);
      const detail::MixingOfPass<A> mixing("AnyLayer", tensor, kM, p, backward);
      const auto end = [](const auto& numbers) {
        return reinterpret_cast<const std::byte*>(numbers.data() + numbers.size());
      };
      EXPECT_GE(mixing.rest().data(), end(mixing.matrices().storage()));
      if (backward) {
        EXPECT_GE(mixing.rest().data(), end(mixing.gradient().storage()));
      }
      EXPECT_EQ(mixing.rest().size(),
                p.rest.size() - detail::MixingOfPass<A>::bytes(tensor, kM, backward));
    }
    const std::size_t numbers = static_cast<std::size_t>(t.tables) * kM * kM;
    EXPECT_GE(detail::MixingOfPass<A>::bytes(tensor, kM, true),
              2 * numbers * sizeof(A) + static_cast<std::size_t>(t.tables) * 15 * sizeof(double));
  });
}

/// Backward runs a forward again in the bytes that it counted, and without a gradient.
TEST(MixingTensor, AForwardInBackwardTakesTheWorkspaceOfAForward) {
  for_passes([](TablePass& t) {
    const MixingTensor tensor = t.tensor();
    const auto expected = distance_matrix(t.table(), kBlocks, t.pattern());
    t.memory.resize(detail::MixingOfPass<A>::bytes(tensor, kM, false));
    const Pass<A> p = t.pass(true);
    const detail::MixingOfPass<A> mixing("AnyLayer", tensor, kM, p, false);
    expect_equal(mixing.matrices(), expected);
    EXPECT_TRUE(mixing.gradient().absent());
    EXPECT_EQ(mixing.rest().size(), 0u);
  });
}

TEST(MixingTensor, CoefficientsAreThoseOfTheParameters) {
  for (const Index heads : {0, 3}) {
    std::vector<A> row(heads == 0 ? 36 : 108, 2), gradients(row.size());
    const MixingTensor tensor(ParameterSlice{0, heads == 0 ? kM : heads, heads == 0 ? kM : 36});
    EXPECT_EQ(tensor.matrices(kM), std::max<Index>(heads, 1));
    EXPECT_EQ(detail::MixingOfPass<A>::bytes(tensor, kM, true), 0u);
    std::vector<std::byte> memory(10);
    Graph<A> graph("AnyLayer", 4, kM);
    Pass<A> p = graph.pass({kM, 1}, {}, true);
    p.parameters = row, p.gradients = gradients, p.rest = memory;
    const detail::MixingOfPass<A> mixing("AnyLayer", tensor, kM, p, true);
    EXPECT_EQ(mixing.matrices().storage().data(), row.data());
    EXPECT_EQ(mixing.gradient().storage().data(), gradients.data());
    EXPECT_EQ(mixing.matrices().heads(), std::max<Index>(heads, 1));
    EXPECT_EQ(mixing.rest().data(), memory.data());
    mixing.add_gradient();
    EXPECT_EQ(gradients, std::vector<A>(row.size()));
  }
  EXPECT_TRUE(MixingTensor().absent());
}

TEST(MixingTensor, HasItsTensorOfALayer) {
  const auto described = [](GridShape offsets, Index heads, bool softmax) {
    Graph<A> g("AnyLayer", 4, kM);
    const MixingTensor tensor = mixing_tensor(g, "any", kBlocks, offsets, heads, softmax);
    EXPECT_EQ(tensor.absent(), softmax);
    return g.table().describe();
  };
  EXPECT_EQ(described({0}, 0, false),
            "any.conv.weight [6, 6, 1, 1], locality, with softmax = false\n"
            "any.offsets left out, with offsets\n");
  EXPECT_EQ(described({3, 5}, 0, false),
            "any.offsets [1, 1, 3, 5], distance_locality, with offsets\n"
            "any.conv.weight left out, with offsets = 0\n");
  EXPECT_EQ(described({3, 5}, 4, false),
            "any.offsets [4, 1, 3, 5], distance_locality, with offsets\n"
            "any.conv.weight left out, with offsets = 0\n");
  EXPECT_EQ(described({0}, 4, true),
            "any.conv.weight left out, with softmax = false\nany.offsets left out, with offsets\n");
}

TEST(MixingTensor, RefusesTablesThatGiveNoMatrix) {
  TablePass t(3, false);
  std::fill_n(t.row.begin() + kBefore + 15, 15, A(0));
  const MixingTensor tensor = t.tensor();
  const Pass<A> p = t.pass(false);
  EXPECT_EQ(
      message_of<option_error>([&] { detail::MixingOfPass<A>("AnyLayer", tensor, kM, p, false); }),
      "mhla::AnyLayer: table of offsets has row 0 of matrix 1 with sum 0.000000, expected "
      "rows with a finite sum other than 0");
  const auto refused = [](GridShape offsets) {
    return message_of<option_error>([&] { detail::expect_layer_offsets("AnyLayer", offsets); });
  };
  detail::expect_layer_offsets("AnyLayer", {0});
  detail::expect_layer_offsets("AnyLayer", {1, 3, 5});
  EXPECT_EQ(refused({3, 4}),
            "mhla::AnyLayer: offsets is [1, 3, 4], expected odd sizes, as many offsets before as "
            "after, or 0 for a mixing matrix");
  EXPECT_FALSE(refused({0, 3}).empty());
  EXPECT_FALSE(refused({-1, 3}).empty());
}

}  // namespace
}  // namespace mhla::test
