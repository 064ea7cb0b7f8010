#include "mhla/layer/rows.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "support/message_of.hpp"

namespace mhla {
namespace {

TEST(LayerStrips, CoverEveryRowOnce) {
  for (const Index rows : {0, 1, 63, 64, 65, 200}) {
    std::vector<int> seen(static_cast<std::size_t>(rows));
    Sequential executor;
    detail::for_each_layer_strip(rows, executor, [&](Index begin, Index count) {
      EXPECT_TRUE(count > 0 && count <= detail::kLayerStrip);
      for (Index r = begin; r < begin + count; ++r) ++seen[static_cast<std::size_t>(r)];
    });
    EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
  }
}

TEST(RowChunks, AreWholeStripsThatCoverEveryRowOnce) {
  for (const Index rows : {0, 1, 63, 64, 65, 255, 256, 257, 1000, 5000}) {
    for (const Index most : {1, 2, 16}) {
      for (const Index least : {1, 64, 100, 256}) {
        const detail::RowChunks chunks(rows, most, least);
        EXPECT_LE(chunks.count(), most);
        Index next = 0;
        for (Index c = 0; c < chunks.count(); ++c) {
          EXPECT_EQ(chunks.begin(c), next);
          next = chunks.end(c);
          if (c + 1 == chunks.count()) continue;
          EXPECT_GE(next - chunks.begin(c), least);
          EXPECT_EQ((next - chunks.begin(c)) % detail::kLayerStrip, 0);
        }
        EXPECT_EQ(next, rows);
      }
    }
  }
}

TEST(LayerChecks, SayWhatWasExpected) {
  const float x[6] = {};
  const auto text = [](auto&& call) { return test::message_of<error>(call); };
  const MatrixView<const float> column_major(x, 2, 3, 1, 2), column(x, 2, 1, 1, 2), absent;
  EXPECT_EQ(text([&] { detail::expect_rows("f", "x", column_major, 2, 3); }),
            "mhla::f: x has column stride 2, expected 1");
  EXPECT_EQ(text([&] { detail::expect_rows("f", "x", column_major, 3, 3); }),
            "mhla::f: x has shape [2, 3], expected [3, 3]");
  EXPECT_EQ(text([&] { detail::expect_rows("f", "x", absent, 2, 3); }),
            "mhla::f: x has shape [0, 0], expected [2, 3]");
  EXPECT_NO_THROW(detail::expect_rows("f", "x", column, 2, 1));
  EXPECT_NO_THROW(detail::expect_rows_or_none("f", "x", absent, 2, 3));
  EXPECT_NO_THROW(detail::expect_whole_items("f", "x", 6, 3, "the batch"));
  EXPECT_NO_THROW(detail::expect_whole_items("f", "x", 0, 0, "the batch"));
  EXPECT_EQ(text([&] { detail::expect_whole_items("f", "x", 6, 4, "the batch"); }),
            "mhla::f: x has 6 rows, expected a multiple of 4 (the batch)");
  EXPECT_EQ(text([&] { detail::expect_whole_items("f", "x", 6, 0, "the batch"); }),
            "mhla::f: x has 6 rows, expected a multiple of 0 (the batch)");
  EXPECT_EQ(text([&] { detail::expect_elements("f", "b", 0, 3); }),
            "mhla::f: b has 0 elements, expected 3");
  EXPECT_EQ(text([&] { detail::expect_elements_or_none("f", "b", 2, 3); }),
            "mhla::f: b has 2 elements, expected 3 or none");
  EXPECT_NO_THROW(detail::expect_elements_or_none("f", "b", 0, 3));
  EXPECT_NO_THROW(detail::expect_not_negative("f", "rate", 0));
  EXPECT_EQ(text([&] { detail::expect_not_negative("f", "rate", -0.5); }),
            "mhla::f: rate is -0.500000, expected 0 or more");
}

}  // namespace
}  // namespace mhla
