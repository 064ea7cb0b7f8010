#include "mhla/cuda/attention/gradient_inputs.cuh"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>

#include "mhla/cuda/attention/same_layout.cuh"
#include "support/message_of.hpp"

namespace {

using mhla::Index;
using mhla::TensorView;
using mhla::cuda::GradientProblem;
using mhla::test::message_of;
using T = Eigen::bfloat16;

constexpr mhla::option_error* kGradientOption = nullptr;
constexpr mhla::shape_error* kGradientShape = nullptr;

/// A call that asks for all gradients: 2 sequences of 112 queries and 100 keys, 3 heads, 7 blocks,
/// a gain and a gate. No data is read, so tensors share memory.
struct GradientArguments {
  alignas(256) std::byte memory[512] = {};
  T* data = reinterpret_cast<T*>(memory);
  float* floats = reinterpret_cast<float*>(memory);
  mhla::cuda::Inputs<T> in{mhla::bnhd<const T>(data, 2, 112, 3, 64),
                           mhla::bnhd<const T>(data, 2, 100, 3, 64),
                           mhla::bnhd<const T>(data, 2, 100, 3, 64),
                           {floats, 64},
                           mhla::bnhd<const T>(data, 2, 112, 3, 64)};
  TensorView<const T> dout = mhla::bhnd<const T>(data, 2, 3, 112, 64);
  mhla::cuda::Gradients<T> gradients{mhla::bnhd(data, 2, 112, 3, 64),
                                     mhla::bnhd(data, 2, 100, 3, 64),
                                     mhla::bhnd(data, 2, 3, 100, 64),
                                     {floats, 7, 7, 7},
                                     {floats, 64},
                                     mhla::bnhd(data, 2, 112, 3, 64)};
  mhla::cuda::Kept<T> kept{mhla::bnhd<const T>(data, 2, 112, 3, 64)};
  mhla::cuda::TokenBlocks query_blocks = mhla::cuda::contiguous(112, 16);
  mhla::cuda::TokenBlocks key_blocks = mhla::cuda::contiguous(100, 16);
  mhla::cuda::Operator op{};
  bool causal = false;

  GradientProblem problem() const {
    return mhla::cuda::detail::make_gradient<64, 64>("cuda::f", in, query_blocks, key_blocks,
                                                     causal, op, dout, gradients, kept);
  }
  void expect_data() const {
    mhla::cuda::detail::expect_gradient_data("cuda::f", in, dout, gradients, kept);
  }
};

/// Returns the error of preparing changed arguments.
template <class Error, class Change>
std::string made_of(Error*, const Change& change) {
  GradientArguments a;
  change(a);
  return message_of<Error>([&] { a.problem(); });
}

/// Returns the error of a run with changed arguments after a preparation with unchanged ones.
template <class Error = mhla::option_error, class Change>
std::string run_of(const Change& change) {
  GradientArguments a;
  const GradientProblem prepared = a.problem();
  change(a);
  return message_of<Error>(
      [&] { mhla::cuda::detail::expect_same_gradient("cuda::f", a.problem(), prepared); });
}

/// Returns the error of a call whose arguments lack some data.
template <class Change>
std::string data_of(const Change& change) {
  GradientArguments a;
  change(a);
  EXPECT_NO_THROW(a.problem());  // plans need no data
  return message_of<mhla::option_error>([&] { a.expect_data(); });
}

TEST(CudaGradientInputs, TensorsAndWantsAreTakenOver) {
  const GradientArguments a;
  const GradientProblem p = a.problem();
  a.expect_data();
  EXPECT_EQ(p.wants, (mhla::cuda::GradientWants{true, true, true, true, true, true}));
  EXPECT_EQ(p.forward.o.data, nullptr);
  EXPECT_EQ(p.dout.token_stride, 64 * 2);
  EXPECT_EQ(p.dout.head_stride, 112 * 64 * 2);
  EXPECT_EQ(p.dk.token_stride, 3 * 64 * 2);
  EXPECT_EQ(p.dv.head_stride, 100 * 64 * 2);
  EXPECT_EQ(p.dv.batch_stride, 3 * 100 * 64 * 2);
  const auto* const begin = reinterpret_cast<const unsigned char*>(a.data);
  for (const unsigned char* x : {p.dq.data, p.dk.data, p.dv.data, p.dgate.data}) {
    EXPECT_EQ(x, begin);
  }
  EXPECT_EQ(p.out.data, begin);
  EXPECT_EQ(p.dmixing.data, a.floats);
  EXPECT_EQ(p.dmixing.stride, 7);
  EXPECT_EQ(p.dgain, a.floats);
}

TEST(CudaGradientInputs, AbsentGradientsAreNotWanted) {
  GradientArguments a;
  a.gradients = {};
  a.kept = {};
  const GradientProblem p = a.problem();
  EXPECT_EQ(p.wants, mhla::cuda::GradientWants{});
  EXPECT_NO_THROW(a.expect_data());
  for (const unsigned char* x : {p.dq.data, p.dk.data, p.dv.data, p.dgate.data}) {
    EXPECT_EQ(x, nullptr);
  }
  a.gradients.k = GradientArguments{}.gradients.k;
  EXPECT_EQ(a.problem().wants,
            (mhla::cuda::GradientWants{false, true, false, false, false, false}));
}

TEST(CudaGradientInputs, ShapesThatDoNotFitAreNamed) {
  const std::string queries = "expected [2, 112, 3, 64]", keys = "expected [2, 100, 3, 64]";
  const auto shape = [](auto change) { return made_of(kGradientShape, change); };
  EXPECT_EQ(shape([](auto& a) { a.dout.shape[1] = 111; }),
            "mhla::cuda::f: dout has shape [2, 111, 3, 64], " + queries);
  EXPECT_EQ(shape([](auto& a) { a.gradients.q.shape[1] = 100; }),
            "mhla::cuda::f: gradients.q has shape [2, 100, 3, 64], " + queries);
  EXPECT_EQ(shape([](auto& a) { a.gradients.k.shape[1] = 112; }),
            "mhla::cuda::f: gradients.k has shape [2, 112, 3, 64], " + keys);
  EXPECT_EQ(shape([](auto& a) { a.gradients.v.shape[3] = 128; }),
            "mhla::cuda::f: gradients.v has shape [2, 100, 3, 128], " + keys);
  EXPECT_EQ(shape([](auto& a) { a.gradients.gate.shape[2] = 2; }),
            "mhla::cuda::f: gradients.gate has shape [2, 112, 2, 64], " + queries);
  EXPECT_EQ(shape([](auto& a) { a.kept.out.shape[0] = 1; }),
            "mhla::cuda::f: kept.out has shape [1, 112, 3, 64], " + queries);
  EXPECT_EQ(shape([](auto& a) { a.in.v.shape[1] = 99; }),
            "mhla::cuda::f: v has shape [2, 99, 3, 64], " + keys);
  EXPECT_EQ(shape([](auto& a) {
              a.gradients.gain = {a.floats, 63};
            }),
            "mhla::cuda::f: gradients.gain has 63 elements, expected 64");
}

TEST(CudaGradientInputs, APrefixIsOneMoreBlock) {
  const auto with_prefix = [](auto& a) {
    a.in.query_prefix = a.in.key_prefix = 4;
    a.query_blocks = mhla::cuda::contiguous(108, 16);
    a.key_blocks = mhla::cuda::contiguous(96, 16);
  };
  EXPECT_EQ(made_of(kGradientShape, with_prefix),
            "mhla::cuda::f: gradients.mixing has shape [7, 7], expected [8, 7]");
  GradientArguments a;
  with_prefix(a);
  a.gradients.mixing = {a.floats, 8, 7, 7};
  EXPECT_EQ(a.problem().forward.callers_query_blocks(), a.query_blocks);
}

TEST(CudaGradientInputs, ValuesMayBeWiderThanKeys) {
  alignas(16) static T memory[8] = {};
  const mhla::cuda::Inputs<T> in{mhla::bnhd<const T>(memory, 1, 32, 1, 128),
                                 mhla::bnhd<const T>(memory, 1, 32, 1, 128),
                                 mhla::bnhd<const T>(memory, 1, 32, 1, 256)};
  const TensorView<const T> dout = mhla::bnhd<const T>(memory, 1, 32, 1, 256);
  const auto blocks = mhla::cuda::contiguous(32, 16);
  const auto said = [&](Index width) {
    mhla::cuda::Gradients<T> gradients{};
    gradients.v = mhla::bnhd(memory, 1, 32, 1, width);
    return message_of<mhla::shape_error>([&] {
      mhla::cuda::detail::make_gradient<128, 256, T>("cuda::f", in, blocks, blocks, false, {}, dout,
                                                     gradients, {});
    });
  };
  EXPECT_EQ(said(256), "no exception");
  EXPECT_EQ(said(128),
            "mhla::cuda::f: gradients.v has shape [1, 32, 1, 128], expected [1, 32, 1, 256]");
}

TEST(CudaGradientInputs, RowsMustBeDenseAndAligned) {
  const auto option = [](auto change) { return made_of(kGradientOption, change); };
  const std::string rows = "expected dense rows that begin at multiples of 16 bytes";
  EXPECT_EQ(option([](auto& a) { a.dout.data += 1; }),
            "mhla::cuda::f: dout has strides [21504, 64, 7168, 1] and begins 2 bytes after a "
            "multiple of 16, " +
                rows);
  EXPECT_EQ(option([](auto& a) { a.gradients.q.strides[1] = 196; }),
            "mhla::cuda::f: gradients.q has strides [21504, 196, 64, 1] and begins 0 bytes after a "
            "multiple of 16, " +
                rows);
  EXPECT_EQ(option([](auto& a) { a.gradients.k.strides[3] = 2; }),
            "mhla::cuda::f: gradients.k has strides [19200, 192, 64, 2] and begins 0 bytes after a "
            "multiple of 16, " +
                rows);
  EXPECT_NE(option([](auto& a) { a.gradients.v.data += 4; }).find("gradients.v has strides"),
            std::string::npos);
  EXPECT_NE(option([](auto& a) { a.gradients.gate.data += 4; }).find("gradients.gate has strides"),
            std::string::npos);
  EXPECT_NE(option([](auto& a) { a.kept.out.data += 4; }).find("kept.out has strides"),
            std::string::npos);
}

TEST(CudaGradientInputs, ElementsThatAreWrittenAreDistinct) {
  const auto option = [](auto change) { return made_of(kGradientOption, change); };
  const std::string distinct = ", and elements that overlap, expected strides of distinct elements";
  EXPECT_EQ(option([](auto& a) { a.gradients.q.strides[0] = 0; }),
            "mhla::cuda::f: gradients.q has strides [0, 192, 64, 1]" + distinct);
  EXPECT_EQ(option([](auto& a) { a.gradients.k.strides[2] = 56; }),
            "mhla::cuda::f: gradients.k has strides [19200, 192, 56, 1]" + distinct);
  EXPECT_EQ(option([](auto& a) { a.gradients.v.strides[0] -= 8; }),
            "mhla::cuda::f: gradients.v has strides [19192, 64, 6400, 1]" + distinct);
  EXPECT_EQ(option([](auto& a) { a.gradients.gate.strides[1] = 184; }),
            "mhla::cuda::f: gradients.gate has strides [21504, 184, 64, 1]" + distinct);
  EXPECT_NE(option([](auto& a) { a.gradients.q.strides[1] = -184; }), "no exception");
  EXPECT_EQ(option([](auto& a) { a.gradients.mixing.row_stride = 6; }),
            "mhla::cuda::f: gradients.mixing has strides [0, 0, 6, 1]" + distinct);
  // Inputs may have strides of 0.
  EXPECT_EQ(
      option([](auto& a) { a.dout.strides[0] = a.kept.out.strides[1] = a.in.gate.strides[2] = 0; }),
      "no exception");
  // Strides may be negative or have gaps, and those of axes of one element do not count.
  EXPECT_EQ(option([](auto& a) {
              a.gradients.q.strides = {64 * 112 * 5, -64 * 5, 64, 1};
              a.gradients.mixing.row_stride = -8;
            }),
            "no exception");
  EXPECT_NO_THROW(mhla::cuda::detail::expect_distinct("cuda::f", "x", {1, 5, 1, 8}, {3, 8, 0, 1}));
  EXPECT_NO_THROW(mhla::cuda::detail::expect_distinct("cuda::f", "x", {0, 5, 2, 8}, {0, 8, 0, 1}));
}

TEST(CudaGradientInputs, MixingGradientsMustFitTheBlocks) {
  const auto mixing = [](bool causal, mhla::MatrixView<float> m) {
    return [causal, m](auto& a) {
      a.causal = causal;
      a.gradients.mixing = m;
    };
  };
  float m = 0;
  EXPECT_EQ(made_of(kGradientShape, mixing(false, {&m, 8, 7, 7})),
            "mhla::cuda::f: gradients.mixing has shape [8, 7], expected [7, 7]");
  EXPECT_EQ(made_of(kGradientShape, mixing(true, {&m, 9, 9, 9})), "no exception");
  EXPECT_EQ(made_of(kGradientShape, mixing(true, {&m, 7, 6, 7})),
            "mhla::cuda::f: gradients.mixing has shape [7, 6], expected at least [7, 7]");
  EXPECT_EQ(made_of(kGradientOption, mixing(false, {&m, 7, 7, 14, 2})),
            "mhla::cuda::f: gradients.mixing has column stride 2, expected 1");
  // Only rows of the leading part are written.
  EXPECT_EQ(made_of(kGradientOption, mixing(true, {&m, 9, 9, 7})), "no exception");
  const auto terms = [&m, &mixing](mhla::Index rows, mhla::Index columns) {
    return [&m, rows, columns, &mixing](auto& a) {
      mixing(true, {&m, rows, columns, columns})(a);
      a.op.decay_terms = 3;
    };
  };
  EXPECT_EQ(made_of(kGradientShape, terms(2, 3)), "no exception");
  EXPECT_EQ(made_of(kGradientShape, terms(7, 7)),
            "mhla::cuda::f: gradients.mixing has shape [7, 7], expected [2, 3]");
}

TEST(CudaGradientInputs, GradientsOfMatricesAreDistinct) {
  const auto strides = [](mhla::cuda::Matrices matrices, Index per_head, Index per_item) {
    return made_of(kGradientOption, [=](GradientArguments& a) {
      a.op.matrices = matrices;
      a.gradients.mixing.head_stride = per_head, a.gradients.mixing.item_stride = per_item;
    });
  };
  const std::string begin = "mhla::cuda::f: gradients.mixing has ";
  const std::string distinct = ", and elements that overlap, expected strides of distinct elements";
  using mhla::cuda::Matrices;
  EXPECT_EQ(strides(Matrices::kPerHead, 49, 0), "no exception");
  EXPECT_EQ(strides(Matrices::kPerHead, 48, 0), begin + "strides [0, 48, 7, 1]" + distinct);
  EXPECT_EQ(strides(Matrices::kPerItemAndHead, 49, 147), "no exception");
  EXPECT_EQ(strides(Matrices::kPerItemAndHead, 49, 146),
            begin + "strides [146, 49, 7, 1]" + distinct);
  EXPECT_EQ(strides(Matrices::kShared, 49, 0),
            begin +
                "head stride 49, and op.matrices is kShared, expected a stride of 0, or other "
                "op.matrices");
}

TEST(CudaGradientInputs, GradientsOfGainsAndGatesThatAreNotThereAreRefused) {
  const auto option = [](auto change) { return made_of(kGradientOption, change); };
  EXPECT_EQ(option([](auto& a) {
              a.in.gain = {};
              a.in.gate = {};
            }),
            "mhla::cuda::f: gradients.gain is given without a gain, expected none");
  EXPECT_EQ(option([](auto& a) { a.in.gate = {}; }),
            "mhla::cuda::f: gradients.gate is given without a gate, expected none");
  EXPECT_EQ(option([](auto& a) {
              a.in.gate = {};
              a.gradients.gate = {};
            }),
            "no exception");
}

TEST(CudaGradientInputs, RunsNeedData) {
  const std::string tail = " is null, expected a pointer to data";
  EXPECT_EQ(data_of([](auto&) {}), "no exception");
  EXPECT_EQ(data_of([](auto& a) { a.gradients.q.data = nullptr; }),
            "mhla::cuda::f: gradients.q" + tail);
  EXPECT_EQ(data_of([](auto& a) { a.gradients.k.data = nullptr; }),
            "mhla::cuda::f: gradients.k" + tail);
  EXPECT_EQ(data_of([](auto& a) { a.gradients.v.data = nullptr; }),
            "mhla::cuda::f: gradients.v" + tail);
  EXPECT_EQ(data_of([](auto& a) { a.gradients.gate.data = nullptr; }),
            "mhla::cuda::f: gradients.gate" + tail);
  EXPECT_EQ(data_of([](auto& a) { a.kept.out.data = nullptr; }), "mhla::cuda::f: kept.out" + tail);
  EXPECT_EQ(data_of([](auto& a) { a.gradients.mixing.data = nullptr; }),
            "mhla::cuda::f: gradients.mixing" + tail);
  EXPECT_EQ(data_of([](auto& a) {
              a.gradients.gain = {static_cast<float*>(nullptr), 64};
            }),
            "mhla::cuda::f: gradients.gain" + tail);
  EXPECT_EQ(data_of([](auto& a) { a.in.v.data = nullptr; }),
            "mhla::cuda::f: v is null with shape [2, 100, 3, 64], expected a pointer to data");
  EXPECT_EQ(data_of([](auto& a) { a.dout.data = nullptr; }),
            "mhla::cuda::f: dout is null with shape [2, 112, 3, 64], expected a pointer to data");
}

TEST(CudaGradientInputs, RunsHaveTheLayoutThatWasPrepared) {
  EXPECT_EQ(run_of([](auto&) {}), "no exception");
  EXPECT_EQ(run_of([](auto& a) {
              a.in.q.data += 8;
              a.dout.data += 8;
              a.gradients.k.data += 8;
              a.gradients.mixing.row_stride = 9;
            }),
            "no exception");
  const std::string strides =
      "mhla::cuda::f: dout, gradients and kept have other strides, expected those that it was "
      "prepared for";
  EXPECT_EQ(run_of([](auto& a) { a.dout.strides[0] *= 2; }), strides);
  EXPECT_EQ(run_of([](auto& a) { a.kept.out.strides[1] *= 2; }), strides);
  EXPECT_EQ(run_of([](auto& a) { a.gradients.q.strides[0] *= 2; }), strides);
  EXPECT_EQ(run_of([](auto& a) { a.gradients.k.strides[0] += 8; }), strides);
  EXPECT_EQ(run_of([](auto& a) { a.gradients.v.strides[0] *= 2; }), strides);
  EXPECT_EQ(run_of([](auto& a) { a.gradients.gate.strides[0] *= 2; }), strides);
  EXPECT_EQ(run_of([](auto& a) { a.gradients.gate = {}; }), strides);
  EXPECT_EQ(run_of([](auto& a) { a.in.k.strides[0] *= 2; }),
            "mhla::cuda::f: q, k, v and out have other strides, expected those that it was "
            "prepared for");
  const std::string wants =
      "mhla::cuda::f: gradients and kept are others, expected those that it was prepared for";
  EXPECT_EQ(run_of([](auto& a) { a.gradients.mixing = {}; }), wants);
  EXPECT_EQ(run_of([](auto& a) { a.gradients.gain = {}; }), wants);
  EXPECT_EQ(run_of<mhla::shape_error>([](auto& a) {
              for (auto* x : {&a.in.q, &a.in.k, &a.in.v, &a.in.gate, &a.dout, &a.kept.out}) {
                x->shape[0] = 1;
              }
              a.gradients = {};
            }),
            "mhla::cuda::f: q has [1, 3] heads, expected [2, 3] as prepared");
}

}  // namespace
