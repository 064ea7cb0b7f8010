// A phase of a barrier in shared memory, as the PTX manual has it: arrivals and bytes.

#include <gtest/gtest.h>

#include "emulator/async_phase.hpp"

namespace emulator {
namespace {

TEST(AsyncPhase, EndsWithItsArrivalsAndBytes) {
  Phase p(2);
  EXPECT_TRUE(p.passes(1));
  EXPECT_FALSE(p.passes(0));
  EXPECT_EQ(p.expect(64), "");
  EXPECT_EQ(p.arrive(), "");
  EXPECT_EQ(p.complete(64), "");
  EXPECT_FALSE(p.passes(0)) << "an arrival is missing";
  EXPECT_EQ(p.arrive(), "");
  EXPECT_TRUE(p.passes(0));
  EXPECT_FALSE(p.passes(1));
  EXPECT_EQ(p.arrive(), "");
  EXPECT_EQ(p.complete(32), "") << "completed before expected";
  EXPECT_EQ(p.expect(32), "");
  EXPECT_EQ(p.expect(16), "");
  EXPECT_EQ(p.arrive(), "");
  EXPECT_FALSE(p.passes(1)) << "bytes are missing";
  EXPECT_NE(p.arrive(), "") << "a third arrival";
  EXPECT_EQ(p.complete(16), "");
  EXPECT_TRUE(p.passes(1));
  EXPECT_EQ(p.ended(), 2U);
}

TEST(AsyncPhase, RefusesBytesThatNobodyExpects) {
  Phase p(1);
  EXPECT_EQ(p.complete(32), "");
  EXPECT_NE(p.arrive(), "");
  Phase q(1);
  EXPECT_EQ(q.expect(16), "");
  EXPECT_EQ(q.arrive(), "");
  EXPECT_NE(q.complete(32), "");
  Phase r(1);
  EXPECT_NE(r.expect(1 << 20), "");
}

}  // namespace
}  // namespace emulator
