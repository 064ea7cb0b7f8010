#include "mhla/cuda/launch/plan.cuh"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>

#include "mhla/cuda/kernel/fused_sm80_config.cuh"
#include "mhla/cuda/kernel/fused_sm90_config.cuh"
#include "mhla/cuda/launch/form_bounds.cuh"
#include "mhla/cuda/launch/traffic.cuh"

namespace {

using mhla::cuda::Arch;
using mhla::cuda::Denominator;
using mhla::cuda::Device;
using mhla::cuda::Form;
using mhla::cuda::Plan;
using mhla::cuda::plan;
using mhla::cuda::Precision;
using mhla::cuda::Problem;
using mhla::cuda::QuadraticKernel;
using mhla::cuda::TokenBlocks;

constexpr Device kHopper{Arch::kSm90a, 132};
constexpr Device kAmpere{Arch::kSm80, 108};

constexpr Problem self_attention(int batch, int heads, const TokenBlocks& blocks,
                                 bool causal = false) {
  Problem problem{};
  problem.batch = batch;
  problem.heads = heads;
  problem.query_blocks = problem.key_blocks = blocks;
  const std::int64_t row = 256 * 2, token = heads * row;  // [B,N,H,D], with room for all widths
  problem.q = problem.k = problem.v = {nullptr, blocks.tokens() * token, row, token};
  problem.o = {nullptr, blocks.tokens() * token, row, token};
  problem.causal = causal;
  problem.op.denominator = Denominator::kNone;
  return problem;
}

constexpr TokenBlocks sequence(int tokens, int block) { return {1, 1, tokens, 1, 1, block}; }

constexpr Problem kVideo = self_attention(1, 12, TokenBlocks(21, 30, 50, 7, 6, 5));
constexpr Problem kDit256 = self_attention(256, 6, TokenBlocks(1, 16, 16, 1, 4, 4));
constexpr Problem kDit512 = self_attention(64, 6, TokenBlocks(1, 32, 32, 1, 8, 8));
constexpr Problem kLanguage = self_attention(16, 4, sequence(2048, 64), true);

TEST(Plan, VideoIsThreeStagesWithTheBytesOfTheRoofline) {
  constexpr Plan p = plan<128, 128>(kVideo, kHopper);
  static_assert(p.form == Form::kThreeStage);
  EXPECT_EQ(p.traffic.tensors, 4u * 31500 * 12 * 128 * 2);  // 387 MB
  EXPECT_EQ(p.traffic.summaries, 4u * 12 * 150 * 128 * 128 * 2);
  EXPECT_EQ(p.workspace_bytes, 2u * 12 * 150 * 128 * 128 * 2);
}

TEST(Plan, ShortSequencesAreQuadraticAndNeedNoWorkspace) {
  constexpr Plan p = plan<64, 64>(kDit256, kHopper);
  static_assert(p.form == Form::kQuadratic);
  EXPECT_EQ(p.workspace_bytes, 0u);
  EXPECT_EQ(p.traffic.total(), 4u * 256 * 6 * 256 * 64 * 2);
  EXPECT_EQ((plan<64, 64>(self_attention(1, 1, sequence(256, 16)), kHopper).form),
            Form::kQuadratic);
  EXPECT_EQ((plan<64, 64>(self_attention(1, 1, sequence(257, 16)), kHopper).form),
            Form::kThreeStage);
}

// A matrix of as many blocks would have 2^40 coefficients.
TEST(Plan, DecayingTermsTakeThreeStagesForAnyNumberOfBlocks) {
  for (const Device& device : {kHopper, kAmpere}) {
    for (const int blocks : {1, 16, 1 << 20}) {
      Problem problem = self_attention(1, 1, sequence(16 * blocks, 16), true);
      problem.op.decay_terms = 4;
      const Plan p = plan<64, 64>(problem, device);
      EXPECT_EQ(p.form, Form::kThreeStage);
      EXPECT_EQ(std::string(p.reason), "decaying terms are mixed by a recurrence over all blocks");
      const std::size_t summaries = std::size_t{2} * static_cast<std::size_t>(blocks) * 64 * 64 * 2;
      EXPECT_EQ(p.workspace_bytes, summaries + 256);
    }
  }
}

TEST(Plan, CausalSequencesOfFewShortBlocksAreFusedOnSm90a) {
  const auto form = []<int D, int E>(int heads, int tokens, int block, const Device& device) {
    return plan<D, E>(self_attention(1, heads, sequence(tokens, block), true), device).form;
  };
  EXPECT_EQ((form.template operator()<64, 64>(66, 2048, 64, kHopper)), Form::kFused);
  EXPECT_EQ((form.template operator()<64, 64>(66, 257, 16, kHopper)), Form::kFused);
  EXPECT_EQ((form.template operator()<64, 64>(65, 2048, 64, kHopper)), Form::kThreeStage);
  EXPECT_EQ((form.template operator()<64, 64>(66, 2049, 64, kHopper)), Form::kThreeStage);
  EXPECT_EQ((form.template operator()<64, 64>(66, 2048, 65, kHopper)), Form::kThreeStage);
  EXPECT_EQ((form.template operator()<64, 64>(66, 2048, 64, kAmpere)), Form::kThreeStage);
  EXPECT_EQ((form.template operator()<72, 72>(66, 2048, 64, kHopper)), Form::kThreeStage);
  EXPECT_EQ((form.template operator()<128, 128>(66, 2048, 64, kHopper)), Form::kThreeStage);
  Problem problem = self_attention(16, 16, sequence(2048, 64), true);
  const Plan fused = plan<64, 64>(problem, kHopper);
  EXPECT_EQ(fused.fused, Arch::kSm90a);
  EXPECT_EQ(fused.workspace_bytes, 0u);
  EXPECT_EQ(fused.traffic.total(), 4u * 256 * 2048 * 64 * 2);
  problem.op.summaries = Precision::kPair;
  EXPECT_EQ((plan<64, 64>(problem, kHopper).form), Form::kThreeStage);
}

TEST(Plan, FewBlocksAreFusedWhereTheirSummariesFit) {
  EXPECT_EQ((plan<64, 64>(kDit512, kHopper).form), Form::kFused);
  EXPECT_EQ((plan<64, 64>(kDit512, kAmpere).form), Form::kFused);
  EXPECT_EQ((plan<72, 72>(kDit512, kHopper).form), Form::kFused);
  EXPECT_EQ((plan<72, 72>(kDit512, kAmpere).form), Form::kThreeStage);
  EXPECT_EQ((plan<128, 128>(kDit512, kHopper).form), Form::kThreeStage);
  EXPECT_EQ((plan<64, 64>(self_attention(96, 1, sequence(17 * 64, 64)), kHopper).form),
            Form::kThreeStage);
}

/// True if the table of bounds agrees with the shared memory of the fused kernel.
template <int D, int E, Arch arch>
constexpr bool table_is_right() {
  constexpr int kBlocks = mhla::cuda::form_bounds<D, E>(arch).fused_blocks;
  if constexpr (D != E) {
    return kBlocks == 0;
  } else {
    using mhla::cuda::FusedSm80Config, mhla::cuda::FusedSm90Config;
    constexpr bool kSm90 = arch == Arch::kSm90a;
    constexpr bool kMany =
        kSm90 ? FusedSm90Config<D, E, 16>::kFits : FusedSm80Config<D, E, 16>::kFits;
    constexpr bool kFew = kSm90 ? FusedSm90Config<D, E, 4>::kFits : FusedSm80Config<D, E, 4>::kFits;
    return kBlocks == (kMany ? 16 : kFew ? 4 : 0);
  }
}

TEST(FormBounds, FusedBlocksAreWhatFitsIntoSharedMemory) {
  static_assert(table_is_right<64, 64, Arch::kSm80>() && table_is_right<64, 64, Arch::kSm90a>());
  static_assert(table_is_right<72, 72, Arch::kSm80>() && table_is_right<72, 72, Arch::kSm90a>());
  static_assert(table_is_right<128, 128, Arch::kSm80>());
  static_assert(table_is_right<128, 128, Arch::kSm90a>());
  static_assert(table_is_right<128, 256, Arch::kSm80>());
  static_assert(table_is_right<128, 256, Arch::kSm90a>());
}

/// The bounds on devices with 99, 163 and 227 KB.
template <int D, int E>
constexpr bool bounds_are(std::array<int, 3> fused, std::array<int, 3> quadratic) {
  constexpr Arch kArchs[] = {Arch::kSm80, Arch::kSm80, Arch::kSm90a};
  constexpr int kBytes[] = {mhla::cuda::kLeastShared, 166912, 232448};
  for (std::size_t i = 0; i < 3; ++i) {
    const auto bounds = mhla::cuda::form_bounds<D, E>(kArchs[i], kBytes[i]);
    if (bounds.fused_blocks != fused[i] || bounds.quadratic_keys != quadratic[i]) return false;
  }
  return true;
}

TEST(FormBounds, AreThoseOfThePage) {
  constexpr std::array kAll = {256, 256, 256};
  static_assert(bounds_are<32, 32>({8, 16, 16}, kAll) && bounds_are<48, 48>({8, 16, 16}, kAll));
  static_assert(bounds_are<48, 96>({0, 0, 0}, kAll) && bounds_are<96, 48>({0, 0, 0}, kAll));
  static_assert(bounds_are<64, 64>({8, 16, 16}, kAll) && bounds_are<72, 72>({4, 4, 16}, kAll));
  static_assert(bounds_are<96, 96>({4, 4, 4}, kAll) && bounds_are<128, 128>({0, 4, 4}, kAll));
  static_assert(bounds_are<128, 256>({0, 0, 0}, {0, 256, 256}));
  static_assert(bounds_are<256, 256>({0, 0, 0}, {0, 0, 0}));
}

TEST(Plan, TheCopyEngineFeedsTheFusedFormWhereBlocksAreBoxes) {
  EXPECT_EQ((plan<72, 72>(kDit512, kHopper).fused), Arch::kSm90a);
  EXPECT_EQ((plan<64, 64>(kDit512, kAmpere).fused), Arch::kSm80);
  Problem problem = kDit512;
  problem.query_blocks = problem.key_blocks = TokenBlocks(1, 1, 1024, 1, 1, 67);
  EXPECT_EQ((plan<64, 64>(problem, kHopper).form), Form::kFused);
  EXPECT_EQ((plan<64, 64>(problem, kHopper).fused), Arch::kSm80);  // a prime above 64
  EXPECT_EQ((plan<72, 72>(problem, kHopper).form), Form::kThreeStage);
}

TEST(Plan, SlabsOfColumnsAreFusedWhereTheyAreWantedAndFit) {
  Problem problem = self_attention(8, 12, sequence(4096, 64));
  EXPECT_EQ((plan<64, 64>(problem, kHopper).form), Form::kThreeStage);
  problem.op.slabs = problem.op.overlaps_heads = true;
  const Plan slabs = plan<64, 64>(problem, kHopper);
  EXPECT_TRUE(slabs.slabs && !slabs.overlaps_heads);
  EXPECT_EQ(slabs.workspace_bytes, 0u);
  EXPECT_EQ(slabs.traffic.total(), (4u + 1u) * 2 * 96 * 4096 * 64 * 2);  // Q and K four times
  EXPECT_EQ((plan<64, 64>(problem, kAmpere).form), Form::kThreeStage);
  EXPECT_EQ((plan<128, 128>(problem, kHopper).form), Form::kThreeStage);
  const auto form = [](int heads, const TokenBlocks& blocks) {
    Problem wanted = self_attention(1, heads, blocks);
    wanted.op.slabs = true;
    return plan<64, 64>(wanted, kHopper).form;
  };
  EXPECT_EQ(form(17, sequence(4096, 64)), Form::kFused);
  EXPECT_EQ(form(16, sequence(4096, 64)), Form::kThreeStage);  // 64 thread blocks
  EXPECT_EQ(form(96, sequence(4097, 64)), Form::kThreeStage);  // 65 blocks
  EXPECT_EQ(form(96, sequence(64 * 24, 24)), Form::kThreeStage);
  EXPECT_EQ(form(96, TokenBlocks(1, 64, 64, 1, 8, 8)), Form::kFused);
}

TEST(Plan, FewHeadsAreNotFused) {
  Problem problem = kDit512;
  problem.batch = 9;  // 54 heads for 108 multiprocessors
  EXPECT_EQ((plan<64, 64>(problem, kAmpere).form), Form::kFused);
  problem.batch = 8;
  EXPECT_EQ((plan<64, 64>(problem, kAmpere).form), Form::kThreeStage);
  problem.batch = 11;  // 66 for 132
  EXPECT_EQ((plan<64, 64>(problem, kHopper).form), Form::kFused);
  problem.batch = 10;
  EXPECT_EQ((plan<64, 64>(problem, kHopper).form), Form::kThreeStage);
}

TEST(Plan, PairsOfSummariesTakeTwiceTheSpace) {
  Problem image = kDit512, video = kVideo;
  image.op.summaries = Precision::kPair;
  EXPECT_EQ((plan<64, 64>(image, kHopper).form), Form::kThreeStage);
  video.heads = 3;
  const std::size_t single = plan<128, 128>(video, kHopper).workspace_bytes;
  video.op.summaries = Precision::kPair;
  EXPECT_EQ((plan<128, 128>(video, kHopper).workspace_bytes), 2 * single);
}

TEST(Plan, CrossQueryDenominatorsOfAThreadBlockAreQuadratic) {
  const auto kernel = []<int D, int E>(const TokenBlocks& blocks, const Device& device) {
    Problem problem = self_attention(1, 2, blocks, false);
    problem.op.denominator = Denominator::kCrossQuery;
    const Plan p = plan<D, E>(problem, device);
    EXPECT_EQ(p.workspace_bytes == 0, p.form == Form::kQuadratic);
    return std::pair(p.form, p.quadratic);
  };
  constexpr TokenBlocks kImage(1, 16, 16, 1, 4, 4), kHalf(1, 8, 16, 1, 4, 4);
  const std::pair sm90a(Form::kQuadratic, QuadraticKernel::kSm90a);
  const std::pair sm80(Form::kQuadratic, QuadraticKernel::kSm80);
  const Device least = with_shared_bytes(kAmpere, mhla::cuda::kLeastShared);
  EXPECT_EQ((kernel.template operator()<64, 64>(kImage, kHopper)), sm90a);
  EXPECT_EQ((kernel.template operator()<64, 64>(sequence(256, 1), kHopper)), sm80);  // large m
  EXPECT_EQ((kernel.template operator()<64, 64>(kImage, kAmpere)), sm80);
  EXPECT_EQ((kernel.template operator()<64, 64>(kImage, least)), sm80);
  EXPECT_EQ((kernel.template operator()<72, 72>(kImage, kHopper)), sm80);
  EXPECT_EQ((kernel.template operator()<72, 72>(kImage, least)), sm80);
  EXPECT_EQ((kernel.template operator()<128, 128>(kHalf, kHopper)), sm90a);
  EXPECT_EQ((kernel.template operator()<128, 128>(kHalf, least)), sm80);
  EXPECT_EQ((kernel.template operator()<128, 256>(kHalf, kHopper)), sm90a);
  EXPECT_EQ((kernel.template operator()<128, 256>(kHalf, kAmpere)), sm80);
  // A thread block has at most 256 queries, and 128 if D is 128.
  EXPECT_EQ((kernel.template operator()<64, 64>(sequence(258, 129), kHopper).first),
            Form::kThreeStage);
  EXPECT_EQ((kernel.template operator()<128, 128>(kImage, kHopper).first), Form::kThreeStage);
  EXPECT_EQ((kernel.template operator()<128, 256>(kHalf, least).first), Form::kThreeStage);
}

TEST(Plan, CrossQueryDenominatorsOfThreeStagesReadQueriesTwice) {
  Problem problem = kDit512;
  problem.op.denominator = Denominator::kCrossQuery;
  const Plan p = plan<64, 64>(problem, kHopper);
  EXPECT_EQ(p.form, Form::kThreeStage);
  const std::uint64_t heads = 64u * 6;
  EXPECT_EQ(p.traffic.tensors, 5 * heads * 1024 * 64 * 2);
  EXPECT_EQ(p.traffic.summaries,
            4 * heads * 16 * 64 * 64 * 2 + 2 * heads * 16 * 64 * 4 + 2 * heads * 1024 * 4);
}

TEST(Plan, TheCausalFormReadsKeysAndValuesTwice) {
  const Plan p = plan<128, 256>(kLanguage, kHopper);
  EXPECT_EQ(p.form, Form::kThreeStage);
  const std::uint64_t tokens = 16u * 4 * 2048;
  EXPECT_EQ(p.traffic.tensors, 3 * tokens * (128 + 256) * 2);
  EXPECT_EQ(p.traffic.summaries, 4u * 64 * 32 * 128 * 256 * 2);
}

TEST(Plan, OutputsAreNormalisedByThreeStages) {
  Problem problem = kDit256;
  problem.norm.normed = true;
  const Plan normed = plan<64, 64>(problem, kHopper);
  EXPECT_EQ(normed.form, Form::kThreeStage);
  EXPECT_EQ(normed.traffic.tensors, 4u * 256 * 6 * 256 * 64 * 2);
  problem.norm.gated = true;
  EXPECT_EQ((plan<64, 64>(problem, kHopper).traffic.tensors), 5u * 256 * 6 * 256 * 64 * 2);
}

TEST(Plan, TheCopyEngineIsUsedWhereBlocksAreBoxes) {
  Problem problem = kVideo;
  const Plan boxes = plan<128, 128>(problem, kHopper);
  EXPECT_EQ(boxes.summary, Arch::kSm90a);
  EXPECT_EQ(boxes.read_out, Arch::kSm90a);
  const Plan ampere = plan<128, 128>(problem, kAmpere);
  EXPECT_EQ(ampere.summary, Arch::kSm80);
  EXPECT_EQ(ampere.read_out, Arch::kSm80);

  problem.query_blocks = problem.key_blocks = sequence(31500, 210);
  problem.causal = true;
  EXPECT_EQ((plan<128, 128>(problem, kHopper).read_out), Arch::kSm90a);
  problem.causal = false;
  problem.query_blocks = problem.key_blocks = sequence(31500, 257);  // a prime above 256
  const Plan prime = plan<128, 128>(problem, kHopper);
  EXPECT_EQ(prime.summary, Arch::kSm80);
  EXPECT_EQ(prime.read_out, Arch::kSm80);

  problem.query_blocks = problem.key_blocks = sequence(31500, 210);
  EXPECT_EQ((plan<72, 72>(problem, kHopper).summary), Arch::kSm90a);
  EXPECT_EQ((plan<72, 72>(problem, kHopper).read_out), Arch::kSm90a);
  problem.causal = true;  // no kernel of sm_90a has this width
  EXPECT_EQ((plan<72, 72>(problem, kHopper).read_out), Arch::kSm80);
}

TEST(Plan, TheQuadraticFormHasAKernelOfSm90aWhereTheMixingMatrixFits) {
  Problem problem = kDit256;
  const std::int64_t row = 64 * 2, token = 6 * row;  // [B,N,H,D]
  problem.heads = 6;
  problem.q = problem.k = problem.v = {nullptr, 256 * token, row, token};
  EXPECT_EQ((plan<64, 64>(problem, kHopper).quadratic), QuadraticKernel::kSm90a);
  EXPECT_EQ((plan<64, 64>(problem, kAmpere).quadratic), QuadraticKernel::kSm80);
  EXPECT_EQ((plan<72, 72>(problem, kHopper).quadratic), QuadraticKernel::kSm80);
  problem.query_blocks = problem.key_blocks = sequence(256, 4);
  EXPECT_EQ((plan<64, 64>(problem, kHopper).quadratic), QuadraticKernel::kSm90a);
  problem.causal = true;
  EXPECT_EQ((plan<64, 64>(problem, kHopper).quadratic), QuadraticKernel::kSm80);
  problem.causal = false;
  problem.query_blocks = problem.key_blocks = sequence(256, 1);
  EXPECT_EQ((plan<64, 64>(problem, kHopper).quadratic), QuadraticKernel::kSm80);
}

TEST(Plan, TheQuadraticFormSplitsKeysWhereStripsOfQueriesAreFew) {
  const auto kernel = []<int D, int E>(int heads, const TokenBlocks& blocks, const Device& device,
                                       bool causal = false) {
    const Plan p = plan<D, E>(self_attention(1, heads, blocks, causal), device);
    EXPECT_EQ(p.form, Form::kQuadratic);
    return p.quadratic;
  };
  constexpr TokenBlocks kImage(1, 16, 16, 1, 4, 4);  // 16 strips
  constexpr auto kSplit = QuadraticKernel::kSplit;
  EXPECT_EQ((kernel.template operator()<64, 64>(16, kImage, kHopper)), kSplit);  // up to 264 strips
  EXPECT_EQ((kernel.template operator()<64, 64>(17, kImage, kHopper)), QuadraticKernel::kSm90a);
  EXPECT_EQ((kernel.template operator()<64, 64>(264, sequence(16, 4), kHopper)), kSplit);
  EXPECT_NE((kernel.template operator()<64, 64>(265, sequence(16, 4), kHopper)), kSplit);
  EXPECT_NE((kernel.template operator()<64, 64>(133, sequence(17, 4), kHopper)), kSplit);
  EXPECT_EQ((kernel.template operator()<64, 64>(27, kImage, kAmpere)), kSplit);  // up to 432
  EXPECT_EQ((kernel.template operator()<64, 64>(28, kImage, kAmpere)), QuadraticKernel::kSm80);
  EXPECT_EQ((kernel.template operator()<128, 128>(8, kImage, kHopper)), kSplit);  // up to 132
  EXPECT_EQ((kernel.template operator()<128, 128>(9, kImage, kHopper)), QuadraticKernel::kSm90a);
  EXPECT_EQ((kernel.template operator()<128, 128>(27, kImage, kAmpere)), kSplit);
  EXPECT_EQ((kernel.template operator()<128, 256>(1, kImage, kHopper)), QuadraticKernel::kSm90a);
  EXPECT_EQ((kernel.template operator()<72, 72>(1, kImage, kHopper)), QuadraticKernel::kSm80);
  EXPECT_EQ((kernel.template operator()<64, 64>(1, sequence(256, 16), kHopper, true)),
            QuadraticKernel::kSm80);
}

TEST(Plan, NoHeadsAtAllCanBePlanned) {
  Problem problem = kLanguage;
  problem.heads = 0;
  const Plan p = plan<128, 128>(problem, kHopper);
  EXPECT_EQ(p.workspace_bytes, 0u);
  EXPECT_EQ(p.traffic.total(), 0u);
}

/// Returns a row of the table in include/mhla/cuda/README.md: forms, bytes moved, and bytes divided
/// by the bandwidth of a copy, for key sums.
template <int D, int E>
std::string page_row(const std::string& name, Problem problem) {
  problem.op.denominator = Denominator::kKeySum;
  std::string row = "| " + name + " |";
  const auto add = [&](const Device& device, double bytes_a_second) {
    const Plan p = plan<D, E>(problem, device);
    const auto bytes = static_cast<double>(p.traffic.total());
    row += " " + std::string(mhla::cuda::name(p.form)) + " | " +
           std::to_string(std::llround(bytes / 1e6)) + " MB | " +
           std::to_string(std::llround(bytes / bytes_a_second * 1e6)) + " µs |";
  };
  add(kHopper, 4.3e12);
  add(kAmpere, 2.0e12);
  return row + "\n";
}

TEST(Plan, MovesWhatThePageSays) {
  std::ifstream file(MHLA_SOURCE_DIR "/include/mhla/cuda/README.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  const auto causal = [](int batch, int heads, int tokens, int block) {
    return self_attention(batch, heads, sequence(tokens, block), true);
  };
  for (const std::string& row :
       {page_row<128, 128>("wan_1300m", kVideo), page_row<64, 64>("dit_s_256_b256", kDit256),
        page_row<64, 64>("dit_s_512_b64", kDit512),
        page_row<72, 72>("dit_xl_512_b32", self_attention(32, 16, sequence(1024, 64))),
        page_row<64, 64>("n4096_m64_b8", self_attention(8, 12, sequence(4096, 64))),
        page_row<64, 64>("t2048_h16_d64_b16, causal", causal(16, 16, 2048, 64)),
        page_row<128, 256>("t2048_h4_e256_b16, causal", kLanguage),
        page_row<128, 128>("t8192_h16_w256, causal", causal(1, 16, 8192, 256))}) {
    EXPECT_NE(page.find(row), std::string::npos) << row;
  }
}

TEST(Plan, EveryFormHasANameAndEveryPlanAReason) {
  EXPECT_EQ(std::string(mhla::cuda::name(Form::kQuadratic)), "quadratic");
  EXPECT_EQ(std::string(mhla::cuda::name(Form::kFused)), "fused");
  EXPECT_EQ(std::string(mhla::cuda::name(Form::kThreeStage)), "three-stage");
  EXPECT_NE(std::string(plan<64, 64>(kDit256, kHopper).reason),
            std::string(plan<64, 64>(kDit512, kHopper).reason));
}

}  // namespace
