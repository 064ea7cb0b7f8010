#include "mhla/attention/heads.hpp"

#include <gtest/gtest.h>

#include "support/message_of.hpp"

namespace mhla::test {
namespace {

using Offsets = std::vector<Index>;

BatchInputs<float> batch_of(const float* data, Index b, Index n, Index h, Index d) {
  return inputs(data, data, data, Shape{b, n, h, d});
}

std::string why_refused(const BatchInputs<float>& in, const TensorView<float>& out) {
  return message_of<error>([&] { detail::expect_batch("f", in, out, "out"); });
}

TEST(Heads, AreSlicesOfTheTensors) {
  std::vector<float> data(2 * 5 * 3 * 4);
  const auto in = batch_of(data.data(), 2, 5, 3, 4);
  const Inputs<float> head = detail::head_inputs(in, 1, 2);
  EXPECT_EQ(head.q.data, data.data() + 5 * 3 * 4 + 2 * 4);
  EXPECT_EQ(head.q.rows, 5);
  EXPECT_EQ(head.q.row_stride, 12);
  EXPECT_TRUE(head.normalizer_q.absent());
  EXPECT_TRUE(head.key_mask.all());
}

TEST(Heads, OfEmptyRowsWithoutMemoryHaveNoOffsets) {
  auto in = batch_of(nullptr, 2, 5, 3, 0);
  in.v.strides = {70, 14, 4, 1};
  const Inputs<float> head = detail::head_inputs(in, 1, 2);
  EXPECT_EQ(head.v.data, nullptr);
  EXPECT_EQ(head.v.rows, 5);
  EXPECT_EQ(head.v.row_stride, 0);
}

TEST(Heads, OffsetsCutOneItemIntoSequences) {
  std::vector<float> data(10 * 2 * 3);
  const bool keep[10] = {true, false};
  const Offsets offsets{0, 4, 4, 10};
  auto in = batch_of(data.data(), 1, 10, 2, 3);
  in.query_offsets = in.key_offsets = offsets;
  in.key_mask = {keep, 1, 10, 10};
  EXPECT_EQ(detail::sequences(in), 3);
  EXPECT_EQ(detail::head_inputs(in, 1, 0).q.rows, 0);
  const Inputs<float> last = detail::head_inputs(in, 2, 1);
  EXPECT_EQ(last.q.rows, 6);
  EXPECT_EQ(last.q.data, data.data() + 4 * 6 + 3);
  EXPECT_EQ(last.key_mask.size, 6);
  EXPECT_EQ(last.key_mask.keep, reinterpret_cast<const unsigned char*>(keep + 4));
  const bool apart[20] = {};
  in.key_mask = {apart, 1, 10, 20, 2};
  const Mask spread = detail::head_inputs(in, 2, 1).key_mask;
  EXPECT_EQ(spread.keep, reinterpret_cast<const unsigned char*>(apart + 8));
  EXPECT_EQ(spread.stride, 2);
}

TEST(Heads, RejectsOffsetsThatCannotBe) {
  std::vector<float> data(10);
  const auto with = [&](const Offsets& queries, const Offsets& keys, Index sequences = 1) {
    auto in = batch_of(data.data(), sequences, 10 / sequences, 1, 1);
    in.query_offsets = queries;
    in.key_offsets = keys;
    return why_refused(in, bnhd(data.data(), sequences, 10 / sequences, 1, 1));
  };
  EXPECT_EQ(with({0, 10}, {0, 10}), "no exception");
  EXPECT_EQ(with({0, 6, 5, 10}, {0, 5, 6, 10}),
            "mhla::f: query_offsets has 5 at 2, expected at least 6");
  EXPECT_EQ(with({0, 10}, {1, 10}), "mhla::f: key_offsets has 1 at 0, expected 0 at 0");
  for (const Index end : {9, 11}) {
    EXPECT_EQ(with({0, end}, {0, 10}), "mhla::f: query_offsets has " + std::to_string(end) +
                                           " at 1, expected 10, the number of tokens");
  }
  EXPECT_EQ(with({0}, {0}), "mhla::f: query_offsets has 0 at 0, expected 10, the number of tokens");
  EXPECT_EQ(with({0, 10}, {0, 5, 10}),
            "mhla::f: key_offsets has 3 entries, expected 2 (those of query_offsets)");
  EXPECT_EQ(with({0, 5}, {0, 5}, 2),
            "mhla::f: q has 2 batch items with offsets, expected 1, with the sequences one after "
            "another");
}

TEST(Heads, RejectsTensorsThatDoNotFit) {
  std::vector<float> data(120);
  const auto in = batch_of(data.data(), 2, 5, 3, 4);
  const auto out = bnhd(data.data(), 2, 5, 3, 4);
  EXPECT_EQ(why_refused(in, out), "no exception");
  EXPECT_EQ(why_refused(in, bnhd(data.data(), 2, 5, 4, 3)),
            "mhla::f: out has shape [2, 5, 4, 3], expected [2, 5, 3, any]");
  auto changed = in;
  changed.v = bnhd<const float>(data.data(), 2, 4, 3, 4);
  EXPECT_EQ(why_refused(changed, out),
            "mhla::f: v has shape [2, 4, 3, 4], expected [2, 5, 3, any]");
  for (const Shape& shape : {Shape{1, 5, 3, 4}, {2, 5, 2, 4}, {2, 4, 3, 4}}) {
    const auto other = bnhd<const float>(data.data(), shape);
    const std::string why = " has shape " + detail::shape_text({shape[0], shape[1], shape[2], 4}) +
                            ", expected [2, 5, 3, any]";
    changed = in, changed.v = other;
    EXPECT_EQ(why_refused(changed, out), "mhla::f: v" + why);
    if (shape[1] == 4) continue;  // the number of keys is that of k
    changed = in, changed.k = other;
    EXPECT_EQ(why_refused(changed, out), "mhla::f: k" + why);
    changed = in, changed.normalizer_k = other, changed.normalizer_q = in.q;
    EXPECT_EQ(why_refused(changed, out), "mhla::f: normalizer_k" + why);
    changed = in, changed.normalizer_q = other, changed.normalizer_k = in.k;
    EXPECT_EQ(why_refused(changed, out), "mhla::f: normalizer_q" + why);
  }
  changed = in;
  changed.k.data = nullptr;
  EXPECT_EQ(why_refused(changed, out),
            "mhla::f: k is null with 120 elements, expected a pointer to data");
  changed = in;
  const bool keep[6] = {};
  changed.key_mask = {keep, 2, 3, 3};
  EXPECT_EQ(why_refused(changed, out), "mhla::f: key_mask has shape [2, 3], expected [2, 5]");
  changed = in;
  changed.q.shape[3] = -1;
  EXPECT_EQ(why_refused(changed, out), "mhla::f: q has a negative size -1, expected sizes >= 0");
}

}  // namespace
}  // namespace mhla::test
