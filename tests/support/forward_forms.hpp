#pragma once

/// \file
/// The forms under the contract of forward.hpp.
///
///     kName                         function name in errors
///     kCausal                       true if the form reads no later token
///     kKeeps                        true if the form can keep summaries
///     kOperator, kMixes             takes an Operator; takes blocks and a mixing matrix
///     fit(p)                        turns a random problem into one of this form
///     chain(p)                      roundings on the longest way to an output, or
///     expect(p)                     expected outputs and their bounds
///     bytes, kept_bytes, run        calls for heads and for batches

#include <algorithm>
#include <cmath>
#include <concepts>
#include <span>
#include <type_traits>
#include <vector>

#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/block_causal.hpp"
#include "mhla/attention/causal.hpp"
#include "mhla/attention/causal_decay.hpp"
#include "mhla/attention/linear.hpp"
#include "mhla/attention/streaming.hpp"
#include "support/forward_arguments.hpp"
#include "support/reference.hpp"

namespace mhla::test::forward {

template <class T>
inline constexpr bool kIsHead = false;
template <class T>
inline constexpr bool kIsHead<Inputs<T>> = true;

template <class In>
using ArgumentsOf = Arguments<detail::scalar_of<In>>;
template <class In>
using OutputOf = detail::output_of<In>;

/// The larger number of features of the numerator and the denominator.
template <class T>
Index most_features(const Problem<T>& p) {
  return p.query_map.features(std::max(p.q.cols(), p.normalizer_q.cols()));
}

struct Bidirectional {
  static constexpr const char* kName = "bidirectional";
  static constexpr bool kCausal = false, kOperator = true, kMixes = true;
  static constexpr bool kKeeps = true;

  template <class T>
  static void fit(Problem<T>&) {}
  /// Longest chain of roundings: the tokens of a block, the blocks, the features, eps.
  template <class T>
  static Index chain(const Problem<T>& p) {
    return largest_block(p.key_blocks) + p.key_blocks.blocks() + most_features(p) + 1;
  }
  template <class In>
  static std::size_t bytes(const In& in, const ArgumentsOf<In>& a, const ExecutorRef& executor) {
    return bidirectional_workspace_bytes(in, a.blocks, a.op, executor);
  }
  template <class In>
  static std::size_t kept_bytes(const In& in, const ArgumentsOf<In>& a) {
    return bidirectional_kept_bytes(in, a.blocks, a.op);
  }
  template <class In>
  static void run(const In& in, const ArgumentsOf<In>& a, const OutputOf<In>& out,
                  const Call& call) {
    bidirectional(in, a.blocks, a.mixing, a.op, out, call);
  }
};

/// Replaces CrossQuery by a normaliser of the token's own weights.
template <class T>
void make_separate(Problem<T>& p) {
  if (p.normalizer == WeightSums::kCrossQuery) p.normalizer = WeightSums::kToken;
}

struct BlockCausal : Bidirectional {
  static constexpr const char* kName = "block_causal";
  static constexpr bool kMixes = false;
  static constexpr Index kStep = 2;  // blocks

  /// Makes keys of the queries' blocks, and zeros of the coefficients that are not read.
  template <class T>
  static void fit(Problem<T>& p) {
    make_separate(p);
    Random rng(p.seed);
    const Index n = p.q.rows(), blocks = std::max<Index>(1, p.query_blocks.blocks());
    p.key_blocks = p.query_blocks;
    if (p.k.rows() != n) {
      p.k = rng.matrix<T>(n, p.k.cols());
      p.v = rng.matrix<T>(n, p.v.cols());
      p.normalizer_k = rng.matrix<T>(p.has_separate_normalizer() ? n : 0, p.normalizer_k.cols());
      p.key_mask.resize(0, 0);
    }
    p.coefficients = rng.matrix<accumulator_t<T>>(blocks, blocks, 0, 1);
    for (Index i = 0; i < blocks; ++i) {
      for (Index b = (i / kStep + 1) * kStep; b < blocks; ++b) p.coefficients(i, b) = 0;
    }
  }
  template <class In>
  static void run(const In& in, const ArgumentsOf<In>& a, const OutputOf<In>& out,
                  const Call& call) {
    block_causal(in, a.blocks.queries, a.mixing, kStep, a.op, out, call);
  }
};

struct Causal {
  static constexpr const char* kName = "causal";
  static constexpr bool kCausal = true, kOperator = true, kMixes = true;
  static constexpr bool kKeeps = true;

  template <class T>
  static void fit(Problem<T>&) {}
  /// The chain above, then the weight and tokens of the query's block, and its sum.
  template <class T>
  static Index chain(const Problem<T>& p) {
    return 2 * largest_block(p.key_blocks) + p.key_blocks.blocks() + most_features(p) + 3;
  }
  template <class In>
  static std::size_t bytes(const In& in, const ArgumentsOf<In>& a, const ExecutorRef& executor) {
    return causal_workspace_bytes(in, a.blocks.queries, a.op, executor);
  }
  template <class In>
  static std::size_t kept_bytes(const In& in, const ArgumentsOf<In>& a) {
    return causal_kept_bytes(in, a.blocks.queries, a.op);
  }
  template <class In>
  static void run(const In& in, const ArgumentsOf<In>& a, const OutputOf<In>& out,
                  const Call& call) {
    causal(in, a.blocks.queries, a.mixing, a.op, out, call);
  }
};

struct CausalDecay : Causal {
  static constexpr bool kMixes = false;

  template <class T>
  static void fit(Problem<T>& p) {
    p.lower = p.upper = std::max<Index>(1, p.query_blocks.blocks());
    p.coefficients = decay_matrix(random_decay<accumulator_t<T>>(p.seed), p.lower).dense();
    p.sparse = false;
  }
  /// The chain of causal, two roundings per block in a state, the terms, and those of the
  /// coefficient.
  template <class T>
  static Index chain(const Problem<T>& p) {
    return Causal::chain(p) + p.key_blocks.blocks() + 6;
  }
  template <class In>
  static std::size_t bytes(const In& in, const ArgumentsOf<In>& a, const ExecutorRef& executor) {
    return causal_workspace_bytes(in, a.blocks.queries, a.decay, a.op, executor);
  }
  template <class In>
  static void run(const In& in, const ArgumentsOf<In>& a, const OutputOf<In>& out,
                  const Call& call) {
    causal(in, a.blocks.queries, a.decay, a.op, out, call);
  }
};

/// Streams that get all their tokens in one append.
/// \tparam F  the form of a whole sequence
template <class F>
struct StreamOf {
  using Whole = F;
  static constexpr bool kDecays = std::same_as<Whole, CausalDecay>;
  static constexpr const char* kName = "Streaming::append";
  static constexpr bool kCausal = true, kOperator = true, kMixes = false, kKeeps = false;

  /// Makes blocks of equal length, as streams need.
  template <class T>
  static void fit(Problem<T>& p) {
    const Index blocks = p.coefficients.rows(), n = p.q.rows();
    const Index length = std::max<Index>(1, (n + blocks - 1) / blocks);
    p.query_blocks = p.key_blocks = AnyPartition::of(Contiguous(n, length));
    Whole::fit(p);
  }
  /// The chain of the whole form, and the tokens of the open block in the running matrix.
  template <class T>
  static Index chain(const Problem<T>& p) {
    return Whole::chain(p) + largest_block(p.key_blocks) + 1;
  }
  template <class In>
  static auto stream(const In& in, const ArgumentsOf<In>& a) {
    using T = detail::scalar_of<In>;
    const AnyBlocks& blocks = a.blocks.queries;
    StreamingSizes sizes{.width = 0, .values = 0, .block_length = blocks.length};
    if (blocks.length == 0) sizes.block_length = std::max<Index>(1, largest_block(blocks.fixed));
    const Inputs<T> head = detail::head_inputs(in, 0, 0);
    sizes.width = head.q.cols;
    sizes.values = head.v.cols;
    sizes.normalizer_width = head.normalizer_q.cols;
    if constexpr (kDecays) {
      return Streaming<T, decltype(a.op), decltype(a.decay)>(sizes, a.decay, a.op);
    } else {
      return Streaming<T, decltype(a.op)>(sizes, a.mixing, a.op);
    }
  }
  template <class In>
  static std::size_t bytes(const In& in, const ArgumentsOf<In>& a, const ExecutorRef& executor) {
    if constexpr (kIsHead<In>) return stream(in, a).append_workspace_bytes();
    return append_workspace_bytes(stream(in, a), executor);
  }
  template <class In>
  static void run(const In& in, const ArgumentsOf<In>& a, const OutputOf<In>& out,
                  const Call& call) {
    const auto s = stream(in, a);
    std::vector<StreamingState<detail::sum_of<In>>> states;
    for (Index pair = 0; pair < detail::sequences(in) * detail::heads(in); ++pair) {
      states.push_back(s.start(pair % detail::heads(in)));
    }
    if constexpr (kIsHead<In>) {
      s.append(states[0], in, out, call);
    } else {
      append(s, std::span(states), in, out, call);
    }
  }
};

using Streamed = StreamOf<Causal>;
using StreamedDecay = StreamOf<CausalDecay>;

/// Turns a problem into one with a single block, where MHLA is linear attention.
template <class T>
void make_linear(Problem<T>& p) {
  const auto one_block = [](Index n) {
    return AnyPartition::of(Contiguous(n, std::max<Index>(1, n)));
  };
  p.query_blocks = one_block(p.q.rows());
  p.key_blocks = one_block(p.k.rows());
  p.coefficients = Matrix<accumulator_t<T>>::Ones(1, 1);
  p.lower = p.upper = 0;
  p.sparse = false;
}

struct LinearBidirectional {
  static constexpr const char* kName = "linear_bidirectional";
  static constexpr bool kCausal = false, kOperator = true, kMixes = false;
  static constexpr bool kKeeps = true;

  template <class T>
  static void fit(Problem<T>& p) {
    make_linear(p);
  }
  /// Roundings of all keys, the features, sums and eps.
  template <class T>
  static Index chain(const Problem<T>& p) {
    return p.k.rows() + most_features(p) + 5;
  }
  template <class In>
  static std::size_t bytes(const In& in, const ArgumentsOf<In>& a, const ExecutorRef& executor) {
    return linear_bidirectional_workspace_bytes(in, a.op, executor);
  }
  template <class In>
  static std::size_t kept_bytes(const In& in, const ArgumentsOf<In>& a) {
    return bidirectional_kept_bytes(in, ContiguousBlocks{Index{1} << 30}, a.op);
  }
  template <class In>
  static void run(const In& in, const ArgumentsOf<In>& a, const OutputOf<In>& out,
                  const Call& call) {
    linear_bidirectional(in, a.op, out, call);
  }
};

struct LinearCausal {
  static constexpr const char* kName = "linear_causal";
  static constexpr bool kCausal = true, kOperator = true, kMixes = false;
  static constexpr bool kKeeps = false;

  template <class T>
  static void fit(Problem<T>& p) {
    make_linear(p);
    make_separate(p);
  }
  template <class T>
  static Index chain(const Problem<T>& p) {
    return p.k.rows() + most_features(p) + 5;
  }
  template <class In>
  static std::size_t bytes(const In& in, const ArgumentsOf<In>& a, const ExecutorRef& executor) {
    return linear_causal_workspace_bytes(in, a.op, executor);
  }
  template <class In>
  static void run(const In& in, const ArgumentsOf<In>& a, const OutputOf<In>& out,
                  const Call& call) {
    linear_causal(in, a.op, out, call);
  }
};

}  // namespace mhla::test::forward
