#include "mhla/tangent/bidirectional.hpp"

#include "contract/tangent.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(BidirectionalFloat, Tangent, InFloat<BidirectionalTangentForm>);
INSTANTIATE_TYPED_TEST_SUITE_P(BidirectionalFloat, FullTangent, InFloat<BidirectionalTangentForm>);

TEST(BidirectionalTangent, ReturnsWhatItWrites) {
  const auto p = complete_problem<double>(BidirectionalTangentForm());
  auto x = random_directions(p, 1);
  const auto written = tangent_of<BidirectionalTangentForm>(p, x);
  const auto views = x.views();
  const auto parameters = x.parameter_views();
  const auto [out, tangent] =
      bidirectional_tangent(p.inputs(), p.blocks, p.mixing(), p.op,
                            {views.q, views.k, views.v, views.normalizer_q, views.normalizer_k},
                            {.mixing = parameters.mixing,
                             .query_map = parameters.query_map,
                             .key_map = parameters.key_map});
  EXPECT_TRUE(same_bits(out, written.value) && same_bits(tangent, written.tangent));
}

}  // namespace mhla::test
