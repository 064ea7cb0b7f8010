#pragma once

/// \file
/// A call of a form over ranks: checks per rank, agreement of all ranks, and rows to send.

#include <array>
#include <span>
#include <string>
#include <vector>

#include "mhla/attention/bidirectional_head.hpp"
#include "mhla/attention/causal.hpp"
#include "mhla/attention/form.hpp"
#include "mhla/attention/heads.hpp"
#include "mhla/attention/overlap.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/error.hpp"
#include "mhla/distributed/agreement.hpp"
#include "mhla/distributed/communicator.hpp"
#include "mhla/distributed/route.hpp"
#include "mhla/gradient/bidirectional_head.hpp"
#include "mhla/gradient/causal.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// The two forms: their heads, and which summaries a row may read.
struct BidirectionalHeads {
  static constexpr auto kReach = Reach::kAll;
  template <Scalar T, class SequenceBlocks, class Op>
  static auto forward(const char* name, Arena& arena, const Inputs<T>& in,
                      const SequenceBlocks& sequence, const Op& op, Index workers,
                      const CrossShares& shares) {
    return BidirectionalHead(vector_unit{}, name, arena, nullptr, in, sequence.queries,
                             sequence.keys, op, workers, shares);
  }
  template <Scalar T, class SequenceBlocks, class Op>
  static auto gradient(const char* name, Arena& arena, const Inputs<T>& in,
                       const SequenceBlocks& sequence, const Op& op, Index workers,
                       const CrossShares& shares) {
    return BidirectionalGradient(name, arena, nullptr, in, sequence.queries, sequence.keys, op,
                                 workers, shares);
  }
};
struct CausalHeads {
  static constexpr auto kReach = Reach::kEarlier;
  template <Scalar T, class SequenceBlocks, class Op>
  static auto forward(const char* name, Arena& arena, const Inputs<T>& in,
                      const SequenceBlocks& sequence, const Op& op, Index workers,
                      const CrossShares& shares) {
    return CausalHead(name, arena, nullptr, in, sequence.queries, op, workers, shares.keys);
  }
  template <Scalar T, class SequenceBlocks, class Op>
  static auto gradient(const char* name, Arena& arena, const Inputs<T>& in,
                       const SequenceBlocks& sequence, const Op& op, Index workers,
                       const CrossShares& shares) {
    return CausalGradient(name, arena, nullptr, in, sequence.queries, op, workers, shares.keys);
  }
};

/// Split of the blocks of one sequence, and the routes of its rows.
struct Split {
  Borders queries{}, keys{};
  CrossShares shares{};  // of this rank
  Route summaries{}, mixtures{}, query_parts{}, key_parts{};
};

/// Throws unless all sequences are split alike.
inline void expect_one_split(const char* function, std::span<const Split> splits) {
  for (const Split& split : splits) {
    if (split.queries == splits.front().queries) continue;
    fail_option(function, "parameters.mixing", "is set for sequences that are split differently",
                "no gradient of the mixing matrix, or one split");
  }
}

/// A form and its arguments, but the tensors.
template <class Heads, class A, AttentionBlocks Blocks, class Op>
struct RankForm {
  static constexpr bool kCausal = Heads::kReach == Reach::kEarlier;

  const char* name;
  const Blocks& blocks;
  MixingView<const A> mixing;
  const Op& op;

  template <Scalar T, class SequenceBlocks>
  auto forward(Arena& arena, const Inputs<T>& in, const SequenceBlocks& sequence, Index workers,
               const CrossShares& shares) const {
    return Heads::forward(name, arena, in, sequence, op, workers, shares);
  }
  template <Scalar T, class SequenceBlocks>
  auto gradient(Arena& arena, const Inputs<T>& in, const SequenceBlocks& sequence, Index workers,
                const CrossShares& shares) const {
    return Heads::gradient(name, arena, in, sequence, op, workers, shares);
  }

  /// Throws unless this rank's part of a head fits.
  template <Scalar T>
  void check(const Inputs<T>& in, std::type_identity_t<MatrixView<const T>> out,
             const char* argument) const {
    expect_inputs(name, in, op, out, argument);
    if constexpr (kCausal) {
      expect_causal_normalizer(name, op);
      expect_shape(name, "k", in.k, in.q.rows, -1);
    }
    const auto& [queries, keys] = sequence_blocks(blocks, in);
    expect_partition(name, kIsCross<Blocks> ? "query_blocks" : "blocks", queries, in.q.rows);
    expect_partition(name, kIsCross<Blocks> ? "key_blocks" : "blocks", keys, in.k.rows);
    if constexpr (kCausal) expect_ordered(name, "blocks", queries);
    if (op.normalizer.sums() == WeightSums::kCrossQuery) {
      expect_cross_query(name, queries, keys.blocks());
    }
  }

  /// States the values that must be equal on all ranks.
  template <class In>
  void state(CallSignature& signature, const In& in) const {
    signature.add("q", "sequences", sequences(in));
    signature.add("q", "heads", heads(in));
    signature.add("q", "bytes a number", sizeof(scalar_of<In>));
    signature.add("mixing", "matrices", mixing.matrices());
    signature.add("mixing", "rows", mixing.rows());
    signature.add("mixing", "columns", mixing.cols());
    signature.add_bits("mixing", "coefficients", mixing_bits());
    using QueryBlocks = std::remove_cvref_t<decltype(query_blocks(blocks))>;
    signature.add("blocks", "partitions, not functions,", Partition<QueryBlocks>);
    signature.add_bits("op", "normalizer or scale", normalizer_bits());
    if (sequences(in) == 0 || heads(in) == 0) return;
    const auto head = head_inputs(in, 0, 0);
    signature.add("q", "width", head.q.cols);
    signature.add("k", "width", head.k.cols);
    signature.add("v", "width", head.v.cols);
    signature.add("normalizer_q", "width", head.normalizer_q.cols);
    signature.add("normalizer_k", "width", head.normalizer_k.cols);
    signature.add_bits("op", "query map", map_bits(op.query_map, head.q.cols));
    signature.add_bits("op", "key map", map_bits(op.key_map, head.k.cols));
  }

  /// Blocks of queries and of keys of a sequence on this rank, and the tokens per block if all
  /// blocks must be equally long.
  template <Scalar T>
  std::array<Index, 3> counts(const Inputs<T>& in) const {
    const auto& [queries, keys] = sequence_blocks(blocks, in);
    const bool alike = op.normalizer.sums() == WeightSums::kCrossQuery;
    return {queries.blocks(), keys.blocks(), alike ? largest_block(queries) : 0};
  }

 private:
  static constexpr Index kProbes = 5;

  Fingerprint mixing_bits() const {
    const Pattern& pattern = mixing.pattern();
    Fingerprint bits;
    for (Index n = 0; n < mixing.matrices(); ++n) bits.add(mixing.matrix(n).storage());
    for (Index i = 0; i < mixing.rows(); ++i) {
      if (pattern.sparse()) {
        const auto list = pattern.row(i);
        bits.add(std::span(list.blocks, static_cast<std::size_t>(list.count)));
      } else {
        bits.add(pattern.first(i)).add(pattern.last(i));
      }
    }
    return bits;
  }

  /// Fingerprint of a map, from its features of one row.
  template <class Map>
  static Fingerprint map_bits(const Map& map, Index width) {
    std::vector<A> x(static_cast<std::size_t>(width)),
        y(static_cast<std::size_t>(map.features(width)));
    for (Index j = 0; j < width; ++j) {
      x[static_cast<std::size_t>(j)] = static_cast<A>(j * 37 % 61 - 30) / A(16);
    }
    if (width > 0) map(x.data(), y.data(), width);
    return Fingerprint().add(std::span<const A>(y));
  }
  Fingerprint normalizer_bits() const {
    const std::array<A, kProbes> r{A(0.25), A(1.5), A(-2), A(1e-3), A(0)};
    std::array<A, kProbes> y{};
    write_denominators(op.normalizer, r.data(), kProbes, y.data());
    return Fingerprint().add(std::span<const A>(y)).add(op.scale).add(op.normalizer.sums());
  }
};

/// Gives all ranks the rows of mixing matrices that each rank has written.
template <distributed::Communicator C, class A>
void gather_rows(C& comm, const MixingView<A>& m, const Borders& rows) {
  const Pattern& pattern = m.pattern();
  Borders first;
  for (const Index i : rows) {
    first.push_back(!pattern.sparse() ? i * pattern.width()
                    : i < m.rows()    ? pattern.row(i).first
                                      : pattern.size());
  }
  std::vector<distributed::SharedRows> numbers;
  for (Index n = 0; n < m.matrices(); ++n) {
    numbers.push_back({reinterpret_cast<std::byte*>(m.matrix(n).storage().data()), sizeof(A)});
  }
  comm.all_gather(numbers, first).wait();
}

/// Checks a call on this rank and with other ranks; returns the split of each sequence.
/// \param out    outputs or their gradients, called `argument`
/// \param check  check(signature): further checks of the call
template <distributed::Communicator C, class Heads, class A, class Blocks, class Op, class In,
          class Check>
std::vector<Split> agree_on(C& comm, const RankForm<Heads, A, Blocks, Op>& form, const In& in,
                            const dout_of<In>& out, const char* argument, const Call& call,
                            Check&& check) {
  const Index sequence_count = sequences(in);
  agree(comm, form.name, [&](CallSignature& signature) {
    expect_batch_of(form, in, out, argument);
    for (Index s = 0; s < sequence_count && heads(in) > 0; ++s) {
      form.check(head_inputs(in, s, 0), head_output(in, out, s, 0), argument);
    }
    if (!call.workspace.empty()) {
      fail_option(form.name, "workspace", "is set", "none: a call over ranks allocates");
    }
    if (!call.kept.empty()) {
      fail_option(form.name, "kept", "is set", "none: a call over ranks keeps nothing");
    }
    check(signature);
    form.state(signature, in);
  });

  using Counts = std::array<Index, 3>;
  std::vector<Counts> counts, all;  // [sequences], [ranks, sequences]
  for (Index s = 0; s < sequence_count; ++s) {
    counts.push_back(heads(in) > 0 ? form.counts(head_inputs(in, s, 0)) : Counts{});
  }
  all.resize(counts.size() * static_cast<std::size_t>(comm.size()));
  if (sequence_count > 0) {
    comm.agree(std::as_bytes(std::span(counts)), std::as_writable_bytes(std::span(all)));
  }

  std::vector<Split> splits(counts.size());
  for (std::size_t s = 0; s < counts.size(); ++s) {
    Split& split = splits[s];
    split.queries = split.keys = {0};
    Index tokens = 0;  // of a block, where all are as long
    for (Index r = 0; r < comm.size(); ++r) {
      const Counts& rank = all[static_cast<std::size_t>(r) * counts.size() + s];
      split.queries.push_back(split.queries.back() + rank[0]);
      split.keys.push_back(split.keys.back() + rank[1]);
      if (rank[2] == 0) continue;
      if (tokens == 0) tokens = rank[2];
      if (rank[2] != tokens) {
        fail_option(form.name, "normalizer",
                    "is CrossQuery with blocks of " + std::to_string(tokens) + " and, on rank " +
                        std::to_string(r) + ", " + std::to_string(rank[2]) + " tokens",
                    "query blocks of one size");
      }
    }
    const Index mq = split.queries.back(), mk = split.keys.back();
    if (form.kCausal) {
      expect_leading_mixing(form.name, form.mixing, mq, mk);
    } else {
      expect_mixing_of(form.name, form.mixing, query_blocks(form.blocks), key_blocks(form.blocks),
                       mq, mk);
    }
    split.shares = {share_of(split.queries, comm.rank()), share_of(split.keys, comm.rank()),
                    tokens};
    const Pattern& pattern = form.mixing.pattern();
    split.summaries = summary_route(pattern, Heads::kReach, split.queries, split.keys, comm.rank());
    split.mixtures = mixture_route(pattern, Heads::kReach, split.queries, split.keys, comm.rank());
    split.query_parts = Route(split.queries);
    split.key_parts = Route(split.keys);
  }
  return splits;
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
