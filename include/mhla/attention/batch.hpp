#pragma once

/// \file
/// Batches: what they hold, what must agree, and how their work is shared out.
///
/// A batch is a list of sequences, each with H heads. Either there are B of them, each of N tokens,
/// or (`offsets`) they are packed one after another in a single item: sequence s is tokens
/// [offsets[s], offsets[s + 1]). The forms over batches are in batched.hpp.

#include <algorithm>
#include <span>
#include <string>

#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/tensor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/stage/partition.hpp"

namespace mhla::inline MHLA_TARGET {

/// The tensors of a batch; meanings as in Inputs, every tensor with a batch and a head axis.
template <Scalar T>
struct BatchInputs {
  TensorView<const T> q;  ///< [B, Nq, H, width]
  TensorView<const T> k;  ///< [B, Nk, H, width]
  TensorView<const T> v;  ///< [B, Nk, H, E]
  TensorView<const T> normalizer_q{};
  TensorView<const T> normalizer_k{};
  MatrixView<const bool> query_mask{};  ///< [B, Nq], absent: all
  MatrixView<const bool> key_mask{};    ///< [B, Nk], absent: all
  /// Where packed sequences begin and, last, where they end: S + 1 numbers from 0 to the number of
  /// tokens, none smaller than the one before; B is 1 then. Both or none.
  std::span<const Index> query_offsets{};
  std::span<const Index> key_offsets{};
};

/// Blocks of W consecutive tokens for a sequence of any length.
struct ContiguousBlocks {
  Index block_length;
  Contiguous operator()(Index tokens) const { return {tokens, block_length}; }
};

/// A partition, or a function from a number of tokens to a partition.
template <class P>
concept BlocksOf = Partition<P> || requires(const P& p, Index tokens) {
  { p(tokens) } -> Partition;
};

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Tokens of one sequence: [begin, begin + length) of batch item `item`.
struct Span {
  Index item;
  Run tokens;
};

inline Index sequence_count(Index batch, std::span<const Index> offsets) {
  return offsets.empty() ? batch : static_cast<Index>(offsets.size()) - 1;
}

inline Span sequence_span(Index s, Index tokens, std::span<const Index> offsets) {
  if (offsets.empty()) return {s, {0, tokens}};
  const auto i = static_cast<std::size_t>(s);
  return {0, {offsets[i], offsets[i + 1] - offsets[i]}};
}

inline void expect_offsets(const char* function, const char* argument,
                           std::span<const Index> offsets, Index tokens) {
  const auto fail = [&](std::size_t i, const std::string& expected) {
    fail_option(function, argument,
                "has " + std::to_string(offsets[i]) + " at " + std::to_string(i), expected);
  };
  if (offsets.front() != 0) fail(0, "0 at 0");
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] < offsets[i - 1]) fail(i, "at least " + std::to_string(offsets[i - 1]));
  }
  if (offsets.back() != tokens) {
    fail(offsets.size() - 1, std::to_string(tokens) + ", the number of tokens");
  }
}

template <class T>
void expect_tensor(const char* function, const char* argument, const TensorView<T>& t, Index batch,
                   Index tokens, Index heads) {
  for (const Index size : t.shape) {
    if (size < 0) {
      fail_shape(function, argument, "has a negative size " + std::to_string(size), "sizes >= 0");
    }
  }
  if (t.batch() != batch || t.tokens() != tokens || t.heads() != heads) {
    fail_shape(function, argument,
               "has shape " + shape_text({t.batch(), t.tokens(), t.heads(), t.width()}),
               shape_text({batch, tokens, heads, -1}));
  }
  const Index size = checked_product(function, argument, {batch, tokens, heads, t.width()});
  if (t.data == nullptr && size > 0) {
    fail_option(function, argument, "is null with " + std::to_string(size) + " elements",
                "a pointer to data");
  }
}

inline void expect_batch_mask(const char* function, const char* argument,
                              const MatrixView<const bool>& mask, Index batch, Index tokens) {
  if (!mask.absent()) expect_shape(function, argument, mask, batch, tokens);
}

/// Throws unless the tensors of a batch agree in batch, tokens and heads, and the offsets fit.
/// Widths are checked head by head by the form.
/// \param argument  the name of `out`, which may be the gradient of an output
template <Scalar T>
void expect_batch(const char* function, const BatchInputs<T>& in,
                  const std::type_identity_t<TensorView<const T>>& out,
                  const char* argument = "out") {
  const Index batch = in.q.batch(), heads = in.q.heads();
  const Index nq = in.q.tokens(), nk = in.k.tokens();
  expect_tensor(function, "q", in.q, batch, nq, heads);
  expect_tensor(function, "k", in.k, batch, nk, heads);
  expect_tensor(function, "v", in.v, batch, nk, heads);
  expect_tensor(function, argument, out, batch, nq, heads);
  if (!in.normalizer_q.absent()) {
    expect_tensor(function, "normalizer_q", in.normalizer_q, batch, nq, heads);
  }
  if (!in.normalizer_k.absent()) {
    expect_tensor(function, "normalizer_k", in.normalizer_k, batch, nk, heads);
  }
  expect_batch_mask(function, "query_mask", in.query_mask, batch, nq);
  expect_batch_mask(function, "key_mask", in.key_mask, batch, nk);
  if (in.query_offsets.size() != in.key_offsets.size()) {
    fail_shape(function, "key_offsets", "has " + std::to_string(in.key_offsets.size()) + " entries",
               std::to_string(in.query_offsets.size()) + " (those of query_offsets)");
  }
  if (in.query_offsets.empty()) return;
  if (batch != 1) {
    fail_shape(function, "q", "has " + std::to_string(batch) + " batch items with offsets",
               "1, with the sequences one after another");
  }
  expect_offsets(function, "query_offsets", in.query_offsets, nq);
  expect_offsets(function, "key_offsets", in.key_offsets, nk);
}

template <Scalar T>
Index sequences(const BatchInputs<T>& in) {
  return sequence_count(in.q.batch(), in.query_offsets);
}

template <class T>
MatrixView<T> head_of(const TensorView<T>& t, const Span& span, Index h) {
  if (t.absent()) return {};
  return t.head(span.item, h, span.tokens.begin, span.tokens.length);
}

inline Mask mask_of(const MatrixView<const bool>& mask, const Span& span) {
  if (mask.absent() || mask.data == nullptr) return {};
  return {mask.data + span.item * mask.row_stride + span.tokens.begin * mask.col_stride,
          span.tokens.length, mask.col_stride};
}

/// Head h of sequence s.
template <Scalar T>
Inputs<T> head_inputs(const BatchInputs<T>& in, Index s, Index h) {
  const Span queries = sequence_span(s, in.q.tokens(), in.query_offsets);
  const Span keys = sequence_span(s, in.k.tokens(), in.key_offsets);
  return {.q = head_of(in.q, queries, h),
          .k = head_of(in.k, keys, h),
          .v = head_of(in.v, keys, h),
          .normalizer_q = head_of(in.normalizer_q, queries, h),
          .normalizer_k = head_of(in.normalizer_k, keys, h),
          .query_mask = mask_of(in.query_mask, queries),
          .key_mask = mask_of(in.key_mask, keys)};
}

/// Head h of sequence s of an output or of its gradient.
template <Scalar T, class O>
MatrixView<O> head_output(const BatchInputs<T>& in, const TensorView<O>& out, Index s, Index h) {
  return head_of(out, sequence_span(s, in.q.tokens(), in.query_offsets), h);
}

/// The partition of a sequence of n tokens.
template <BlocksOf P>
auto blocks_of(const P& blocks, Index n) {
  if constexpr (Partition<P>) {
    return blocks;
  } else {
    return blocks(n);
  }
}

/// True where the pairs of a batch are spread over the workers, rather than the blocks of a pair.
template <class X>
bool over_pairs(Index pairs, const X& executor) {
  return pairs >= static_cast<Index>(executor.workers());
}

/// The largest bytes(head) over head 0 of every sequence.
template <Scalar T, class Bytes>
std::size_t most_bytes(const BatchInputs<T>& in, Bytes&& bytes) {
  std::size_t most = 0;
  for (Index s = 0; s < sequences(in); ++s) most = std::max(most, bytes(head_inputs(in, s, 0)));
  return most;
}

/// The same of bytes(head, executor), where either heads are spread over the workers or the blocks
/// of one head.
template <Scalar T, class X, class Bytes>
std::size_t most_bytes(const BatchInputs<T>& in, bool spread, const X& executor, Bytes&& bytes) {
  return most_bytes(in, [&](const Inputs<T>& head) {
    return spread ? bytes(head, Sequential{}) : bytes(head, executor);
  });
}

/// Bytes for a batch, bytes(head, executor) being those of head 0 of a sequence.
template <Scalar T, class X, class Bytes>
std::size_t batch_bytes(const char* function, const BatchInputs<T>& in, const X& executor,
                        Bytes&& bytes) {
  const bool spread = over_pairs(sequences(in) * in.q.heads(), executor);
  const std::size_t most = most_bytes(in, spread, executor, bytes);
  if (!spread) return most;
  return static_cast<std::size_t>(checked_product(
      function, "workspace", {static_cast<Index>(executor.workers()), static_cast<Index>(most)}));
}

/// Bytes that a batch keeps from the forward form for the backward one, as many for every pair;
/// bytes(head) are those of head 0 of a sequence.
template <Scalar T, class Bytes>
std::size_t batch_kept_bytes(const char* function, const BatchInputs<T>& in, Bytes&& bytes) {
  const auto most = static_cast<Index>(most_bytes(in, bytes));
  return static_cast<std::size_t>(
      checked_product(function, "kept", {sequences(in), in.q.heads(), most}));
}

/// The part of `kept`, of which `bytes` bytes are used, that belongs to a pair.
template <Scalar T>
Workspace kept_of_pair(const BatchInputs<T>& in, Workspace kept, std::size_t bytes, Index s,
                       Index h) {
  if (kept.empty()) return {};
  const std::size_t share = bytes / static_cast<std::size_t>(sequences(in) * in.q.heads());
  return kept.subspan(static_cast<std::size_t>(s * in.q.heads() + h) * share, share);
}

/// Throws unless the batch fits together and check(inputs, output) accepts every sequence; heads
/// differ in data alone, so one of them stands for all.
template <Scalar T, class Check>
void check_sequences(const char* function, const BatchInputs<T>& in, const TensorView<T>& out,
                     Check&& check) {
  expect_batch(function, in, out);
  for (Index s = 0; s < sequences(in) && in.q.heads() > 0; ++s) {
    check(head_inputs(in, s, 0), head_output(in, out, s, 0));
  }
}

/// Calls run(inputs, output, workspace, executor, kept) for every sequence and head, each with its
/// share of `bytes` bytes of workspace and of `kept_bytes` bytes of kept memory.
template <Scalar T, class X, class Run>
void for_each_pair(const char* function, const BatchInputs<T>& in, const TensorView<T>& out,
                   Workspace workspace, X& executor, std::size_t bytes, Run&& run,
                   Workspace kept = {}, std::size_t kept_bytes = 0) {
  const Scratch scratch(function, workspace, bytes);
  const Index heads = in.q.heads(), pairs = sequences(in) * heads;
  const auto run_pair = [&](Index pair, Workspace share, auto& x) {
    const Index s = pair / heads, h = pair % heads;
    run(head_inputs(in, s, h), head_output(in, out, s, h), share, x,
        kept_of_pair(in, kept, kept_bytes, s, h));
  };
  if (over_pairs(pairs, executor)) {
    const std::size_t share = bytes / static_cast<std::size_t>(executor.workers());
    executor.for_each(pairs, [&](Index pair, Index w) {
      Sequential alone;
      run_pair(pair, scratch.bytes().subspan(static_cast<std::size_t>(w) * share, share), alone);
    });
  } else {
    for (Index pair = 0; pair < pairs; ++pair) run_pair(pair, scratch.bytes(), executor);
  }
}

}  // namespace detail
}  // namespace mhla::inline MHLA_TARGET
