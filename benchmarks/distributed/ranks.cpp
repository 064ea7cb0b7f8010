// Times attention over the ranks of mpirun, and prints a table with what the model says beside it:
//
//     mhla_distributed_ranks [REPETITIONS]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "instant_rank.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/distributed/bidirectional.hpp"
#include "mhla/distributed/causal.hpp"
#include "mhla/distributed/mpi.hpp"
#include "mhla/policy/locality.hpp"
#include "model.hpp"
#include "support/median.hpp"

namespace mhla::bench {
namespace {

using distributed::MpiRank;

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
void send_alone(MpiRank& rank, const RankWork& plan, Index heads) {
  const auto ranks = static_cast<std::size_t>(rank.size());
  for (const double sent : plan.sent) {
    const Index own = static_cast<Index>(sent) / std::max<Index>(1, 2 * (rank.size() - 1));
    std::vector<Index> first(ranks + 1);
    rank.agree(std::as_bytes(std::span(&own, 1)),
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
  double tokens, work, transfer, call, modelled, sent, received;
};

/// Times one form; returns the bytes that this rank sent in all.
double measure(MpiRank& rank, Share& share, const RankCase& c, bool gradient, int repetitions) {
  InstantRank alone(rank.rank(), rank.size());
  const RankWork plan = rank_work(c, rank.size(), rank.rank(), gradient);
  std::vector<double> work, transfer, call;
  for (int i = 0; i <= repetitions; ++i) {
    const double w = seconds_of(rank, [&] { share.run(alone, gradient); });
    const double t = seconds_of(rank, [&] { send_alone(rank, plan, c.heads); });
    const double all = seconds_of(rank, [&] { share.run(rank, gradient); });
    if (i == 0) continue;  // touches memory for the first time
    work.push_back(w), transfer.push_back(t), call.push_back(all);
  }
  const auto heads = static_cast<double>(c.heads);
  Line own{
      static_cast<double>(share.tokens()), median(work), median(transfer), median(call), 0, 0, 0};
  double cable = 0;  // bytes one way, of one transfer after another
  for (std::size_t s = 0; s < plan.sent.size(); ++s) {
    own.sent += heads * plan.sent[s];
    own.received += heads * plan.received[s];
    cable += heads * std::max(plan.sent[s], plan.received[s]);
  }
  own.modelled = modelled_seconds(plan, c.heads,
                                  {.flops = heads * plan.all_flops() / own.work,
                                   .bandwidth = cable / own.transfer,
                                   .latency = 0,
                                   .message = 0,
                                   .byte = kTcpByte});
  std::vector<Line> lines(static_cast<std::size_t>(rank.size()));
  rank.agree(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(lines)));
  for (std::size_t r = 0; r < lines.size() && rank.rank() == 0; ++r) {
    const Line& l = lines[r];
    std::printf(
        "| %s, %s | %d | %.0f | %.1f | %.1f | %.0f ms | %.0f ms | %.0f ms | %.0f ms | %.0f"
        " ms |\n",
        c.name.c_str(), gradient ? "gradient" : "forward", static_cast<int>(r), l.tokens,
        1e-6 * l.sent, 1e-6 * l.received, 1e3 * l.work, 1e3 * l.transfer,
        1e3 * (l.work + l.transfer), 1e3 * l.call, 1e3 * l.modelled);
    std::fflush(stdout);
  }
  return 2 * own.sent * (repetitions + 1);
}

void measure_all(MpiRank& rank, int repetitions) {
  if (rank.rank() == 0) {
    std::printf(
        "| form | rank | tokens | MB sent | MB received | work alone | transfers alone |"
        " sum of both | call | modelled |\n|---|---|---|---|---|---|---|---|---|---|\n");
  }
  double sent = 0;
  for (const RankCase& c : {video_case(), one_head_case(), causal_head_case(), band_case()}) {
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
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  {
    mhla::distributed::MpiRank rank(MPI_COMM_WORLD);
    mhla::bench::measure_all(rank, repetitions);
  }
  MPI_Finalize();
}
