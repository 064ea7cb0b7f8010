#include "mhla/attention/batched.hpp"

#include <gtest/gtest.h>

#include "mhla/policy/locality.hpp"
#include "support/message_of.hpp"
#include "support/reference.hpp"

namespace mhla::test {
namespace {

/// A [B,N,H,D] tensor in one of the layouts users have, in memory that is NaN elsewhere.
class StridedTensor {
 public:
  StridedTensor(Random& rng, Index b, Index n, Index h, Index d) {
    const Index pad = rng.integer(0, 3);  // unused numbers behind every row
    std::array<Index, 4> strides{};
    Index total = 0;
    switch (rng.integer(0, 3)) {
      case 0:  // token-major
        strides = {n * h * (d + pad), h * (d + pad), d + pad, 1};
        total = b * strides[0];
        break;
      case 1:  // head-major
        strides = {h * n * (d + pad), d + pad, n * (d + pad), 1};
        total = b * strides[0];
        break;
      case 2:  // a slice of a packed qkv
        strides = {n * 3 * h * d, 3 * h * d, d, 1};
        total = b * strides[0];
        break;
      default:  // features outermost, tokens innermost
        strides = {1, b, n * b, h * n * b};
        total = d * strides[3];
        break;
    }
    const Index offset = rng.integer(0, 17);
    memory_.assign(static_cast<std::size_t>(total + offset + 16), NAN);
    view_ = {memory_.data() + offset, {b, n, h, d}, strides};
    for (Index i = 0; i < b; ++i) {
      for (Index j = 0; j < h; ++j) {
        const auto head = view_.head(i, j);
        for (Index t = 0; t < n; ++t) {
          for (Index c = 0; c < d; ++c) head(t, c) = static_cast<float>(rng.uniform(-1, 1));
        }
      }
    }
  }
  TensorView<float> view() const { return view_; }

 private:
  std::vector<float> memory_;
  TensorView<float> view_;
};

Matrix<float> copy(const MatrixView<const float>& m) {
  Matrix<float> c(m.rows, m.cols);
  for (Index r = 0; r < m.rows; ++r) {
    for (Index j = 0; j < m.cols; ++j) c(r, j) = m(r, j);
  }
  return c;
}

/// A random batch, and every sequence and head of it as dense matrices of its own.
struct Batch {
  static constexpr Index kMostBlocks = 40;

  Random rng;
  bool packed;
  Index sequences, heads, d, e;
  std::vector<Index> offsets{0};
  Index batch, tokens;
  StridedTensor q, k, v, out;
  Matrix<bool> mask;

  explicit Batch(std::uint64_t seed)
      : rng(seed),
        packed(rng.chance(0.5)),
        sequences(rng.integer(1, 4)),
        heads(rng.integer(1, 3)),
        d(rng.integer(1, 9)),
        e(rng.integer(1, 20)),
        batch(packed ? 1 : sequences),
        tokens(packed ? draw_offsets() : rng.integer(0, 30)),
        q(rng, batch, tokens, heads, d),
        k(rng, batch, tokens, heads, d),
        v(rng, batch, tokens, heads, e),
        out(rng, batch, tokens, heads, e),
        mask(batch, rng.chance(0.5) ? tokens : 0) {
    for (Index i = 0; i < mask.size(); ++i) mask.data()[i] = rng.chance(0.8);
  }

  Index draw_offsets() {
    constexpr Index kLengths[] = {0, 1, 3, 4, 5, 7, 8, 9, 30};
    for (Index s = 0; s < sequences; ++s) {
      offsets.push_back(offsets.back() + kLengths[rng.integer(0, 8)]);
    }
    return offsets.back();
  }

  BatchInputs<float> inputs() const {
    BatchInputs<float> in{.q = q.view(), .k = k.view(), .v = v.view()};
    if (mask.size() > 0) in.query_mask = in.key_mask = mask;
    if (packed) in.query_offsets = in.key_offsets = offsets;
    return in;
  }

  /// Calls f(inputs of one sequence and head in dense memory, its output in the batch).
  template <class F>
  void for_each(F&& f) const {
    for (Index s = 0; s < sequences; ++s) {
      for (Index h = 0; h < heads; ++h) {
        const Inputs<float> head = detail::head_inputs(inputs(), s, h);
        const Matrix<float> qs = copy(head.q), ks = copy(head.k), vs = copy(head.v);
        const Inputs<float> dense{
            .q = qs, .k = ks, .v = vs, .query_mask = head.query_mask, .key_mask = head.key_mask};
        f(dense, detail::head_output(inputs(), out.view(), s, h));
      }
    }
  }
};

/// Runs a form over batches with several executors; every sequence and head must be bitwise what
/// it is alone in dense memory.
template <class Together, class Alone>
void expect_batch_is_its_parts(Together&& together, Alone&& alone) {
  Sequential sequential;
  ThreadPool two(2), seven(7), many(16);
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Batch batch(seed);
    const auto check = [&](auto& executor) {
      together(batch, executor);
      batch.for_each([&](const Inputs<float>& in, MatrixView<float> out) {
        Matrix<float> o = unwritten<float>(in.q.rows, in.v.cols);
        alone(in, o);
        EXPECT_TRUE(same_bits(o, copy(out))) << seed << ", workers " << executor.workers();
      });
    };
    check(sequential);
    check(two);
    check(seven);
    check(many);
  }
}

TEST(Batched, BidirectionalIsEverySequenceAndHeadAlone) {
  const auto mixing = locality<float>(Batch::kMostBlocks);
  const ContiguousBlocks blocks{4};
  expect_batch_is_its_parts(
      [&](const Batch& b, auto& x) {
        GuardedWorkspace memory(
            bidirectional_workspace_bytes(b.inputs(), blocks, blocks, Operator{}, x));
        bidirectional(b.inputs(), blocks, blocks, mixing, Operator{}, b.out.view(), memory.get(),
                      x);
        EXPECT_TRUE(memory.intact());
      },
      [&](const Inputs<float>& in, MatrixView<float> out) {
        const Contiguous own = blocks(in.q.rows);
        const Index m = std::max<Index>(1, own.blocks());
        const MixingMatrix<float> leading(Matrix<float>(mixing.dense().topLeftCorner(m, m)));
        bidirectional(in, own, own, leading, Operator{}, out);
      });
}

TEST(Batched, CausalIsEverySequenceAndHeadAlone) {
  const auto mixing = uniform_causal<float>(Batch::kMostBlocks);
  const ContiguousBlocks blocks{4};
  expect_batch_is_its_parts(
      [&](const Batch& b, auto& x) {
        GuardedWorkspace memory(causal_workspace_bytes(b.inputs(), blocks, Operator{}, x));
        causal(b.inputs(), blocks, mixing, Operator{}, b.out.view(), memory.get(), x);
        EXPECT_TRUE(memory.intact());
      },
      [&](const Inputs<float>& in, MatrixView<float> out) {
        causal(in, blocks(in.q.rows), mixing, Operator{}, out);
      });
}

TEST(Batched, LinearIsEverySequenceAndHeadAlone) {
  expect_batch_is_its_parts(
      [](const Batch& b, auto& x) {
        GuardedWorkspace memory(linear_bidirectional_workspace_bytes(b.inputs(), Operator{}, x));
        linear_bidirectional(b.inputs(), Operator{}, b.out.view(), memory.get(), x);
        EXPECT_TRUE(memory.intact());
      },
      [](const Inputs<float>& in, MatrixView<float> out) {
        linear_bidirectional(in, Operator{}, out);
      });
  expect_batch_is_its_parts(
      [](const Batch& b, auto& x) {
        GuardedWorkspace memory(linear_causal_workspace_bytes(b.inputs(), Operator{}, x));
        linear_causal(b.inputs(), Operator{}, b.out.view(), memory.get(), x);
        EXPECT_TRUE(memory.intact());
      },
      [](const Inputs<float>& in, MatrixView<float> out) { linear_causal(in, Operator{}, out); });
}

TEST(Batched, SoftmaxIsEverySequenceAndHeadAlone) {
  expect_batch_is_its_parts(
      [](const Batch& b, auto& x) {
        GuardedWorkspace memory(softmax_workspace_bytes(b.inputs(), x));
        softmax_bidirectional(b.inputs(), b.out.view(), {}, memory.get(), x);
        EXPECT_TRUE(memory.intact());
      },
      [](const Inputs<float>& in, MatrixView<float> out) { softmax_bidirectional(in, out); });
  expect_batch_is_its_parts(
      [](const Batch& b, auto& x) { softmax_causal(b.inputs(), b.out.view(), {}, {}, x); },
      [](const Inputs<float>& in, MatrixView<float> out) { softmax_causal(in, out); });
}

TEST(Batched, AppendIsEverySequenceAndHeadAlone) {
  expect_batch_is_its_parts(
      [](const Batch& b, auto& x) {
        const Streaming<float> stream({.width = b.d, .values = b.e, .block_length = 4},
                                      uniform_causal<float>(Batch::kMostBlocks));
        std::vector<StreamingState<float>> states(static_cast<std::size_t>(b.sequences * b.heads),
                                                  stream.start());
        GuardedWorkspace memory(append_workspace_bytes(stream, x));
        append(stream, std::span(states), b.inputs(), b.out.view(), memory.get(), x);
        EXPECT_TRUE(memory.intact());
      },
      [](const Inputs<float>& in, MatrixView<float> out) {
        causal(in, Contiguous(in.q.rows, 4), uniform_causal<float>(Batch::kMostBlocks), Operator{},
               out);
      });
}

TEST(Batched, AFixedPartitionServesAllSequences) {
  Random rng(1);
  const StridedTensor q(rng, 2, 12, 3, 4), out(rng, 2, 12, 3, 4);
  const Grid blocks(GridShape(3, 4), GridShape(3, 2));
  const auto mixing = locality<float>(blocks.block_grid());
  const BatchInputs<float> in{.q = q.view(), .k = q.view(), .v = q.view()};
  bidirectional(in, blocks, blocks, mixing, Operator{Relu{}, Relu{}, CrossQuery{}}, out.view());
  const Matrix<float> one = copy(q.view().head(1, 2));
  EXPECT_TRUE(same_bits(
      bidirectional(one, one, one, blocks, mixing, Operator{Relu{}, Relu{}, CrossQuery{}}),
      copy(out.view().head(1, 2))));
}

TEST(Batched, RejectsWhatDoesNotFitAndTouchesNothing) {
  std::vector<float> data(24, 1), result(24, NAN);
  const BatchInputs<float> in{.q = bnhd<const float>(data.data(), 1, 12, 1, 2),
                              .k = bnhd<const float>(data.data(), 1, 12, 1, 2),
                              .v = bnhd<const float>(data.data(), 1, 12, 1, 2)};
  const auto out = bnhd(result.data(), 1, 12, 1, 2);
  EXPECT_EQ(message_of<shape_error>([&] {
              bidirectional(in, ContiguousBlocks{4}, ContiguousBlocks{4}, locality<float>(2),
                            Operator{}, out);
            }),
            "mhla::bidirectional: mixing has shape [2, 2], expected at least [3, 3] for the blocks "
            "of the sequence");
  EXPECT_EQ(message_of<shape_error>([&] {
              bidirectional(in, Contiguous(12, 4), Contiguous(12, 4), locality<float>(4),
                            Operator{}, out);
            }),
            "mhla::bidirectional: mixing has shape [4, 4], expected [3, 3] (query blocks, key "
            "blocks)");
  const Streaming<float> stream({.width = 2, .values = 2, .block_length = 4},
                                uniform_causal<float>(2));
  std::vector<StreamingState<float>> states(1, stream.start()), two(2, stream.start());
  EXPECT_EQ(message_of<shape_error>([&] { append(stream, std::span(two), in, out); }),
            "mhla::append: states has 2 entries, expected 1 (sequences times heads)");
  EXPECT_THROW(append(stream, std::span(states), in, out), option_error);  // 12 tokens, room for 8
  EXPECT_EQ(states[0].position(), 0);
  for (const float x : result) EXPECT_TRUE(std::isnan(x));
}

}  // namespace
}  // namespace mhla::test
