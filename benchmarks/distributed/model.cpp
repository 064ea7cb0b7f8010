// Predicts attention over many ranks, and prints what it moves beside ring attention:
//
//     mhla_distributed_model [GFLOP/S OF A CORE]
//
// A rank is a core, with the rate that mhla_distributed_ranks measured on a host of two ranks, or
// an H200, whose rate is a prediction itself: the flops of wan_1300m over 151 us
// (include/mhla/cuda/README.md).

#include "model.hpp"

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace mhla::bench {
namespace {

constexpr double kCore = 95e9;  // flops a second
constexpr double kH200 = 33.9e9 / 151e-6;
constexpr double kBitsOfGigabit = 1e9 / 8;

struct Link {
  const char* name;
  double bandwidth, latency, message, byte;  // as in RankMachine; assumed, but the last
};
constexpr Link kLinks[] = {{"10 Gb/s, TCP", 10 * kBitsOfGigabit, 50e-6, 5e-6, kTcpByte},
                           {"100 Gb/s, RDMA", 100 * kBitsOfGigabit, 5e-6, 1e-6, 0},
                           {"NVLink, 450 GB/s", 450e9, 5e-6, 1e-6, 0}};

/// Of the slowest rank: the first has most blocks, one in the middle has neighbours on both sides.
double seconds_of(const RankCase& c, Index ranks, const RankMachine& machine) {
  return std::max(modelled_seconds(rank_work(c, ranks, 0, false), c.heads, machine),
                  modelled_seconds(rank_work(c, ranks, ranks / 2, false), c.heads, machine));
}

/// Keys and values of the other ranks, two bytes a number.
double ring_bytes(const RankCase& c, Index ranks) {
  const auto tokens = static_cast<double>(c.tokens() - c.tokens() / ranks);
  return tokens * static_cast<double>(c.heads) * 2 * c.kWidth * 2;
}

void predict(const RankCase& c, double core) {
  const double rates[] = {core, kH200};
  const char* const names[] = {"core", "H200"};
  std::printf("\n%s: %lld tokens, %lld blocks of %lld, %lld heads, D = E = %lld\n", c.name.c_str(),
              static_cast<long long>(c.tokens()), static_cast<long long>(c.blocks),
              static_cast<long long>(c.block_length), static_cast<long long>(c.heads),
              static_cast<long long>(c.kWidth));
  std::printf("| ranks | MB received | ring attention |");
  for (const char* name : names) {
    for (const Link& link : kLinks) std::printf(" %s, %s |", name, link.name);
  }
  std::printf("\n|---|---|---|---|---|---|---|---|---|\n");
  double one[2];
  Index most[6] = {1, 1, 1, 1, 1, 1};  // ranks at half of their rate or more
  for (std::size_t m = 0; m < 2; ++m) one[m] = seconds_of(c, 1, {rates[m], 1, 0, 0, 0});
  for (Index ranks = 2; ranks <= 1024; ranks *= 2) {
    const double received = std::max(rank_work(c, ranks, 0, false).received[0],
                                     rank_work(c, ranks, ranks / 2, false).received[0]);
    std::printf("| %d | %.4g | %.4g |", static_cast<int>(ranks),
                1e-6 * received * static_cast<double>(c.heads), 1e-6 * ring_bytes(c, ranks));
    for (std::size_t m = 0; m < 2; ++m) {
      for (std::size_t l = 0; l < 3; ++l) {
        const Link& k = kLinks[l];
        const double t = seconds_of(
            c, ranks, {rates[m], k.bandwidth, k.latency, k.message, m == 0 ? k.byte : 0});
        const double part = one[m] / (t * static_cast<double>(ranks));
        if (part >= 0.5 && most[3 * m + l] == ranks / 2) most[3 * m + l] = ranks;
        std::printf(" %.3g ms, %.2f |", 1e3 * t, part);
      }
    }
    std::printf("\n");
  }
  std::printf("| at half | | |");
  for (const Index ranks : most) std::printf(" %d ranks |", static_cast<int>(ranks));
  std::printf("\n");
}

}  // namespace
}  // namespace mhla::bench

int main(int argc, char** argv) {
  using mhla::bench::RankCase;
  const double core = argc > 1 ? 1e9 * std::atof(argv[1]) : mhla::bench::kCore;
  std::printf(
      "Predicted forward: time, and part of P times one rank's speed; a core has %.0f "
      "GFLOP/s, an H200 %.0f TFLOP/s (predicted)\n",
      1e-9 * core, 1e-12 * mhla::bench::kH200);
  for (const RankCase& c : {mhla::bench::video_case(), RankCase{"1 M, dense", 1000, 1000, 12, 0},
                            RankCase{"1 M, band of 8 blocks to each side", 4000, 250, 12, 8},
                            RankCase{"100 M, dense", 10000, 10000, 12, 0},
                            RankCase{"100 M, band of 8 blocks to each side", 400000, 250, 12, 8}}) {
    mhla::bench::predict(c, core);
  }
}
