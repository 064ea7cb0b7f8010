// Predicts attention over many ranks, and prints what it moves beside ring attention:
//
//     mhla_distributed_model [GFLOP/S OF A CORE]
//
// A rank is a core, with the rate that mhla_distributed_ranks measured on a host of two ranks, or
// an H200, whose rate is a prediction itself: the flops of wan_1300m over 151 us
// (include/mhla/cuda/README.md).

#include "model.hpp"

#include <algorithm>
#include <cstdint>
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
double core_seconds(const RankCase& c, Index ranks, const RankMachine& machine) {
  return std::max(modelled_seconds(rank_work(c, ranks, 0, false), c.heads, machine),
                  modelled_seconds(rank_work(c, ranks, ranks / 2, false), c.heads, machine));
}
double core_bytes(const RankCase& c, Index ranks) {
  return static_cast<double>(c.heads) * std::max(rank_work(c, ranks, 0, false).received[0],
                                                 rank_work(c, ranks, ranks / 2, false).received[0]);
}

/// Ranks that are GPUs gather summaries in bfloat16 with key sums in float: every block, whatever
/// the mixing matrix.
double gpu_bytes(const RankCase& c, Index blocks) {
  return static_cast<double>(blocks * c.heads * (2 * c.kWidth * c.kWidth + 4 * c.kWidth));
}
Index received_blocks(const RankCase& c, Index ranks) {
  return c.blocks - distributed::even_split(c.blocks, ranks)[1];
}
/// They do so for groups of heads one behind the other, while they summarise the next ones and read
/// out those before.
double gpu_seconds(const RankCase& c, Index ranks, const Link& link) {
  const RankWork work = rank_work(c, ranks, 0, false);
  const auto groups = static_cast<double>(detail::transfers_of(
      static_cast<std::uint64_t>(gpu_bytes(c, c.blocks)), static_cast<std::uint64_t>(ranks)));
  const double heads = static_cast<double>(c.heads) / groups;
  const double transfer = static_cast<double>(ranks - 1) * link.message +
                          gpu_bytes(c, received_blocks(c, ranks)) / groups / link.bandwidth;
  double clock = 0, cable = 0;
  std::vector<double> arrivals;
  for (double group = 0; group < groups; ++group) {
    clock += heads * work.flops[0] / kH200;
    cable = std::max(cable, clock) + transfer;
    arrivals.push_back(cable + link.latency);
  }
  for (const double arrival : arrivals) {
    clock = std::max(clock, arrival) + heads * work.flops[1] / kH200;
  }
  return clock;
}

/// Of ring attention: keys and values of the other ranks, two bytes a number.
double ring_bytes(const RankCase& c, Index ranks) {
  const auto tokens = static_cast<double>(c.tokens() - c.tokens() / ranks);
  return tokens * static_cast<double>(c.heads) * 2 * c.kWidth * 2;
}

/// Prints a time and its part of what `ranks` times the speed of one would make.
/// \param most  ranks, grows while the part is at least a half
void print_time(double one, double t, Index ranks, Index& most) {
  const double part = one / (t * static_cast<double>(ranks));
  if (part >= 0.5 && most == ranks / 2) most = ranks;
  const bool seconds = t >= 1;
  std::printf(" %.3g %s, %.2f |", seconds ? t : 1e3 * t, seconds ? "s" : "ms", part);
}

void predict(const RankCase& c, double core) {
  const bool gpus = c.band == 0;
  std::printf("\n%s: %lld tokens, %lld blocks of %lld, %lld heads, D = E = %lld\n\n",
              c.name.c_str(), static_cast<long long>(c.tokens()), static_cast<long long>(c.blocks),
              static_cast<long long>(c.block_length), static_cast<long long>(c.heads),
              static_cast<long long>(c.kWidth));
  std::printf("| ranks | ring attention, MB | cores, MB |");
  for (const Link& link : kLinks) std::printf(" %s |", link.name);
  if (gpus) std::printf(" H200, MB |");
  for (std::size_t l = 0; gpus && l < 3; ++l) std::printf(" %s |", kLinks[l].name);
  std::printf("\n|---|---|---|---|---|---|%s\n", gpus ? "---|---|---|---|" : "");
  const double one_core = core_seconds(c, 1, {core, 1, 0, 0, 0});
  const double one_gpu = gpu_seconds(c, 1, {"", 1, 0, 0, 0});
  std::vector<Index> cores(3, 1), devices(3, 1);  // at half of their speed or more
  for (Index ranks = 2; ranks <= 1024; ranks *= 2) {
    std::printf("| %d | %.4g | %.4g |", static_cast<int>(ranks), 1e-6 * ring_bytes(c, ranks),
                1e-6 * core_bytes(c, ranks));
    for (std::size_t l = 0; l < 3; ++l) {
      const Link& k = kLinks[l];
      const RankMachine machine{core, k.bandwidth, k.latency, k.message, k.byte};
      print_time(one_core, core_seconds(c, ranks, machine), ranks, cores[l]);
    }
    if (gpus) std::printf(" %.4g |", 1e-6 * gpu_bytes(c, received_blocks(c, ranks)));
    for (std::size_t l = 0; gpus && l < 3; ++l) {
      print_time(one_gpu, gpu_seconds(c, ranks, kLinks[l]), ranks, devices[l]);
    }
    std::printf("\n");
  }
  std::printf("\nHalf of the speed or more: up to");
  for (const Index ranks : cores) std::printf(" %d", static_cast<int>(ranks));
  std::printf(" cores");
  for (std::size_t l = 0; gpus && l < 3; ++l) {
    std::printf("%s %d", l == 0 ? "," : "", static_cast<int>(devices[l]));
  }
  std::printf(gpus ? " H200\n" : "\n");
}

}  // namespace
}  // namespace mhla::bench

int main(int argc, char** argv) {
  using mhla::bench::RankCase;
  const double core = argc > 1 ? 1e9 * std::atof(argv[1]) : mhla::bench::kCore;
  std::printf(
      "Predicted forward: bytes that a rank receives, its time, and what part of P times the speed "
      "of "
      "one this is; a core has %.0f GFLOP/s, an H200 %.0f TFLOP/s (predicted)\n",
      1e-9 * core, 1e-12 * mhla::bench::kH200);
  for (const RankCase& c : {mhla::bench::video_case(), RankCase{"1 M, dense", 1000, 1000, 12, 0},
                            RankCase{"1 M, band of 8 blocks to each side", 4000, 250, 12, 8},
                            RankCase{"100 M, dense", 10000, 10000, 12, 0},
                            RankCase{"100 M, band of 8 blocks to each side", 400000, 250, 12, 8}}) {
    mhla::bench::predict(c, core);
  }
}
