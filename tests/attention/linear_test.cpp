#include "mhla/attention/linear.hpp"

#include "contract/forward.hpp"
#include "support/forward_forms.hpp"

namespace mhla::test {
namespace {

TEST_FORM(LinearCausal, forward::LinearCausal, float, double);

/// Heads that take turns where they lie side by side, or (`inner` = false) apart.
Index together(Index sequences, Index heads, Index d, Index e, Index workers, bool inner = true) {
  const auto view = [&](Index width) {
    const Index token = inner ? heads * width : width, head = inner ? width : 8 * width;
    return TensorView<const float>(nullptr, {sequences, 8, heads, width},
                                   {8 * heads * width, token, head, 1});
  };
  const BatchInputs<float> in{.q = view(d), .k = view(d), .v = view(e)};
  return detail::heads_together("test", in, Operator{}, workers);
}

TEST(LinearCausal, HeadsTakeTurnsWhereTheyLieSideBySideAndKeepWorkersBusyAlike) {
  EXPECT_EQ(together(1, 4, 64, 64, 1), 4);
  EXPECT_EQ(together(1, 4, 64, 64, 2), 2);
  EXPECT_EQ(together(1, 4, 64, 64, 7), 1);
  EXPECT_EQ(together(8, 6, 64, 64, 2), 6);
  EXPECT_EQ(together(3, 6, 64, 64, 2), 3);  // 9 heads a worker; 6 together would make it 12
  EXPECT_EQ(together(1, 6, 64, 64, 2), 3);
  EXPECT_EQ(together(1, 4, 64, 64, 1, false), 1);
  EXPECT_EQ(together(1, 1, 64, 64, 1), 1);
  EXPECT_EQ(together(0, 4, 64, 64, 1), 1);
  // 256 KB of S.
  EXPECT_EQ(together(1, 32, 64, 64, 1), 16);
  EXPECT_EQ(together(1, 4, 128, 256, 1), 2);
  EXPECT_EQ(together(1, 4, 256, 512, 1), 1);
}

}  // namespace
}  // namespace mhla::test
