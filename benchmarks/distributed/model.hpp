#pragma once

/// \file
/// A model of a form over ranks: the flops and the plan's bytes of the slowest rank, and how the
/// driver overlaps them.

#include <algorithm>
#include <vector>

#include "cases.hpp"
#include "mhla/distributed/driver.hpp"
#include "mhla/distributed/plan.hpp"

namespace mhla::bench {

/// Seconds of a core for each byte that passes through TCP: what mhla_distributed_ranks measures
/// where the core, not the cable, is the limit (96 ms for 59.7 MB sent and as many received).
inline constexpr double kTcpByte = 0.8e-9;

/// What one rank computes with, and what joins it to the others.
struct RankMachine {
  double flops;      ///< a second
  double bandwidth;  ///< bytes a second, one way
  double latency;    ///< seconds from one rank to another
  double message;    ///< seconds of work for each message
  double byte;       ///< seconds of work for each byte that is sent, and that is received
};

/// Work and transfers of one head on one rank. The forward has two steps and a transfer between
/// them, the gradient three and two.
struct RankWork {
  std::vector<double> flops;     // of each step
  std::vector<double> sent;      // bytes after each step but the last
  std::vector<double> received;  // bytes
  double peers;                  // that it sends to, at most
  Index parts;                   // of a transfer: each starts once its blocks are written

  double all_flops() const {
    double sum = 0;
    for (const double f : flops) sum += f;
    return sum;
  }
};

inline RankWork rank_work(const RankCase& c, Index ranks, Index rank, bool gradient) {
  const Pattern pattern = c.pattern();
  const auto split = distributed::even_split(c.blocks, ranks);
  const auto r = static_cast<std::size_t>(rank);
  const distributed::HeadWidths head{.features = c.kWidth, .values = c.kWidth};
  const distributed::Plan plan =
      c.causal ? distributed::causal_plan<float>(pattern, split, rank, head)
               : distributed::bidirectional_plan<float>(pattern, split, split, rank, head);
  double reads = 0;
  for (Index i = split[r]; i < split[r + 1]; ++i) {
    reads += static_cast<double>((c.causal ? i : pattern.last(i)) - pattern.first(i));
  }
  const double of_summary = 2.0 * c.kWidth * (c.kWidth + 1);  // D (E + 1) multiply-adds
  const double tokens = static_cast<double>((split[r + 1] - split[r]) * c.block_length);
  const double product = of_summary * tokens, mix = of_summary * reads;
  const double inside =
      c.causal ? 2.0 * c.kWidth * tokens * static_cast<double>(c.block_length) : 0;
  const double bytes = static_cast<double>(plan.block_bytes);
  RankWork work;
  work.sent = {bytes * static_cast<double>(plan.sent)};
  work.received = {bytes * static_cast<double>(plan.received)};
  work.peers = static_cast<double>(std::min(plan.sent, ranks - 1));
  work.parts = mhla::detail::parts_of(split[1], plan.block_bytes);  // rank 0 has most blocks
  if (!gradient) {
    work.flops = {product, mix + product + inside};
  } else {  // S | S~, its product with dO for dQ, dS~ | dS, dK, dV
    work.flops = {product, mix + 2 * product + 2.5 * inside, mix + 2 * product};
    work.sent.push_back(bytes * static_cast<double>(plan.gradients_sent));
    work.received.push_back(bytes * static_cast<double>(plan.gradients_received));
  }
  return work;
}

/// Seconds of a head's transfer: of the cable, and of the core, which it may spend while it waits.
struct HeadTransfer {
  double cable, core;
};

/// Seconds of `pairs` heads that go through these steps of work, each in its order, and between two
/// steps of a head through a transfer, whose parts start as the first of them goes on, while the
/// rank works on others: as driver.hpp does it. That slabs of the last part are mixed while others
/// travel is left out.
inline double overlapped_seconds(Index pairs, const std::vector<double>& work,
                                 const std::vector<HeadTransfer>& transfers, Index parts,
                                 double latency) {
  double clock = 0, cable = 0;
  const Index steps = static_cast<Index>(work.size());
  std::vector<double> arrival(static_cast<std::size_t>(pairs), 0);  // of a head's latest rows
  mhla::detail::for_each_step(pairs, steps, [&](Index step, Index pair) {
    const auto s = static_cast<std::size_t>(step), p = static_cast<std::size_t>(pair);
    const double core = step > 0 ? transfers[s - 1].core : 0;
    const double begin = std::max(clock + core, arrival[p]);
    clock = begin + work[s];
    if (step + 1 == steps) return;
    const auto count = static_cast<double>(parts);
    for (Index part = 1; part <= parts; ++part) {
      const double written = begin + work[s] * static_cast<double>(part) / count;
      cable = std::max(cable, written) + transfers[s].cable / count;
    }
    arrival[p] = cable + latency;
  });
  return clock;
}

/// Seconds of a call on a rank of this work.
inline double modelled_seconds(const RankWork& work, Index heads, const RankMachine& machine) {
  std::vector<double> steps;
  std::vector<HeadTransfer> transfers;
  for (const double f : work.flops) steps.push_back(f / machine.flops);
  for (std::size_t s = 0; s < work.sent.size(); ++s) {
    steps[s] += static_cast<double>(work.parts) * work.peers * machine.message;
    transfers.push_back({std::max(work.sent[s], work.received[s]) / machine.bandwidth,
                         machine.byte * (work.sent[s] + work.received[s])});
  }
  const double agreed = 2 * (machine.latency + work.peers * machine.message);
  return agreed + overlapped_seconds(heads, steps, transfers, work.parts, machine.latency);
}

}  // namespace mhla::bench
