// Times attention over the ranks of mpirun, and prints a table:
//
//     mhla_distributed_ranks [REPETITIONS]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "instant_rank.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/distributed/bidirectional.hpp"
#include "mhla/distributed/causal.hpp"
#include "mhla/distributed/mpi.hpp"
#include "mhla/distributed/plan.hpp"
#include "mhla/policy/locality.hpp"
#include "mhla/policy/pattern.hpp"
#include "support/median.hpp"

namespace mhla::bench {
namespace {

using distributed::MpiRank;

/// A call over ranks. Blocks are of consecutive tokens, so that any number of ranks has an even
/// split.
struct RankCase {
  std::string name;
  Index blocks;        ///< M
  Index block_length;  ///< W
  Index heads;
  Index band = 0;       ///< blocks that a block reads to each side; 0: all
  bool causal = false;  ///< reads earlier blocks alone

  static constexpr Index kWidth = 128;  ///< D = E
  Pattern pattern() const {
    return band > 0 ? Pattern(blocks, blocks, band, band) : Pattern(blocks, blocks);
  }
};

/// The video is the 21 x 30 x 50 tokens of wan_1300m (../support/shapes.hpp) in blocks of 7 x 6
/// x 5. A call of one head has no other head whose work could hide its transfers.
const RankCase kCases[] = {{"video", 150, 210, 12},
                           {"one head", 150, 210, 1},
                           {"one causal head", 150, 210, 1, 0, true},
                           {"band", 600, 210, 4, 8}};

/// Bytes that a rank sends and receives for one head at once.
struct Transfer {
  Index sent, received;
};

/// The planned transfers of one head: of summaries, and in a gradient of mixtures after these.
std::vector<Transfer> planned(const RankCase& c, const MpiRank& rank, bool gradient) {
  const auto split = distributed::even_split(c.blocks, rank.size());
  const distributed::HeadWidths head{.features = c.kWidth, .values = c.kWidth};
  const distributed::Plan plan =
      c.causal
          ? distributed::causal_plan<float>(c.pattern(), split, rank.rank(), head)
          : distributed::bidirectional_plan<float>(c.pattern(), split, split, rank.rank(), head);
  std::vector<Transfer> transfers{{plan.bytes_sent(1), plan.bytes_received(1)}};
  if (gradient) {
    transfers.push_back(
        {plan.gradients_sent * plan.block_bytes, plan.gradients_received * plan.block_bytes});
  }
  return transfers;
}

/// One rank's tokens of a case.
class Share {
 public:
  Share(const RankCase& c, Index rank, Index ranks)
      : causal_(c.causal),
        blocks_{c.block_length},
        mixing_(mixing_of(c)),
        tokens_(tokens_of(c, rank, ranks)) {
    for (Tensor<float>* t : {&q_, &k_, &v_, &dout_, &out_, &dq_, &dk_, &dv_}) {
      *t = Tensor<float>({1, tokens_, c.heads, c.kWidth});
    }
    for (std::size_t i = 0; i < q_.data().size(); ++i) {
      q_.data()[i] = static_cast<float>(i % 61) / 64;
      k_.data()[i] = static_cast<float>(i % 67) / 64;
      v_.data()[i] = dout_.data()[i] = static_cast<float>(i % 71) / 64 - 0.5F;
    }
  }
  Index tokens() const { return tokens_; }

  template <class C>
  void run(C& comm, bool gradient) {
    const auto in = inputs(q_, k_, v_);
    const BatchGradients<float> to{.q = dq_, .k = dk_, .v = dv_};
    const Operator<> op;
    if (causal_ && gradient) {
      distributed::causal_gradient(comm, in, blocks_, mixing_, op, dout_, to);
    } else if (causal_) {
      distributed::causal(comm, in, blocks_, mixing_, op, out_.view());
    } else if (gradient) {
      distributed::bidirectional_gradient(comm, in, blocks_, mixing_, op, dout_, to);
    } else {
      distributed::bidirectional(comm, in, blocks_, mixing_, op, out_.view());
    }
  }

 private:
  static MixingMatrix<float> mixing_of(const RankCase& c) {
    if (c.band == 0) return locality<float>({3, 5, 10});
    MixingMatrix<float> m(c.pattern());
    std::ranges::fill(m.storage(), 1.0F / static_cast<float>(2 * c.band + 1));
    return m;
  }
  static Index tokens_of(const RankCase& c, Index rank, Index ranks) {
    const auto split = distributed::even_split(c.blocks, ranks);
    const auto r = static_cast<std::size_t>(rank);
    return (split[r + 1] - split[r]) * c.block_length;
  }

  bool causal_;
  ContiguousBlocks blocks_;
  MixingMatrix<float> mixing_;
  Index tokens_;
  Tensor<float> q_, k_, v_, dout_, out_, dq_, dk_, dv_;
};

double seconds_of(MpiRank& rank, const std::function<void()>& f) {
  rank.agree({}, {});  // all begin together
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Sends as many bytes as a call of these heads, each in one piece, and does nothing else.
void send_alone(MpiRank& rank, const std::vector<Transfer>& transfers, Index heads) {
  const auto ranks = static_cast<std::size_t>(rank.size());
  for (const Transfer& transfer : transfers) {
    const Index sent = transfer.sent / std::max<Index>(1, 2 * (rank.size() - 1));
    std::vector<Index> first(ranks + 1);
    rank.agree(std::as_bytes(std::span(&sent, 1)),
               std::as_writable_bytes(std::span(first).subspan(1)));
    std::partial_sum(first.begin(), first.end(), first.begin());
    const auto bytes = static_cast<std::size_t>(first.back());
    std::vector<std::byte> memory(2 * bytes);
    // Two arrays, as S and z: Open MPI sends what lies together in another way, here slower.
    const distributed::SharedRows arrays[] = {{memory.data(), 1}, {memory.data() + bytes, 1}};
    auto before = rank.all_gather(arrays, first);
    for (Index h = 1; h < heads; ++h) {  // two under way, as in a call
      auto next = rank.all_gather(arrays, first);
      before.wait();
      before = std::move(next);
    }
    before.wait();
  }
}

struct Line {
  double tokens, work, transfer, call, sent, received;
};

/// Times one form; returns the bytes that this rank sent in all.
double measure(MpiRank& rank, Share& share, const RankCase& c, bool gradient, int repetitions) {
  InstantRank alone(rank.rank(), rank.size());
  const std::vector<Transfer> transfers = planned(c, rank, gradient);
  std::vector<double> work, transfer, call;
  for (int i = 0; i <= repetitions; ++i) {
    const double w = seconds_of(rank, [&] { share.run(alone, gradient); });
    const double t = seconds_of(rank, [&] { send_alone(rank, transfers, c.heads); });
    const double all = seconds_of(rank, [&] { share.run(rank, gradient); });
    if (i == 0) continue;  // touches memory for the first time
    work.push_back(w), transfer.push_back(t), call.push_back(all);
  }
  Line line{
      static_cast<double>(share.tokens()), median(work), median(transfer), median(call), 0, 0};
  for (const Transfer& t : transfers) {
    line.sent += static_cast<double>(c.heads * t.sent);
    line.received += static_cast<double>(c.heads * t.received);
  }
  std::vector<Line> lines(static_cast<std::size_t>(rank.size()));
  rank.agree(std::as_bytes(std::span(&line, 1)), std::as_writable_bytes(std::span(lines)));
  for (std::size_t r = 0; r < lines.size() && rank.rank() == 0; ++r) {
    const Line& l = lines[r];
    std::printf("| %s, %s | %d | %.0f | %.1f | %.1f | %.0f ms | %.0f ms | %.0f ms | %.0f ms |\n",
                c.name.c_str(), gradient ? "gradient" : "forward", static_cast<int>(r), l.tokens,
                1e-6 * l.sent, 1e-6 * l.received, 1e3 * l.work, 1e3 * l.transfer,
                1e3 * (l.work + l.transfer), 1e3 * l.call);
    std::fflush(stdout);
  }
  return 2 * line.sent * (repetitions + 1);
}

void measure_all(MpiRank& rank, int repetitions) {
  if (rank.rank() == 0) {
    std::printf(
        "| form | rank | tokens | MB sent | MB received | work alone | transfers alone |"
        " sum of both | call |\n|---|---|---|---|---|---|---|---|---|\n");
  }
  double sent = 0;
  for (const RankCase& c : kCases) {
    Share share(c, rank.rank(), rank.size());
    for (const bool gradient : {false, true}) {
      sent += measure(rank, share, c, gradient, repetitions);
    }
  }
  if (rank.size() == 2) {  // what two_hosts.sh compares with the cable
    std::printf("rank %d to rank %d: %.0f bytes\n", static_cast<int>(rank.rank()),
                static_cast<int>(1 - rank.rank()), sent);
  }
}

}  // namespace
}  // namespace mhla::bench

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 3;
  if (repetitions < 1) {
    std::fprintf(stderr, "REPETITIONS is %s, expected a number from 1\n", argv[1]);
    return 2;
  }
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  {
    mhla::distributed::MpiRank rank(MPI_COMM_WORLD);
    mhla::bench::measure_all(rank, repetitions);
  }
  MPI_Finalize();
}
