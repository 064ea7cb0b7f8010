#pragma once

/// \file
/// The heads of a batch and the checks of its tensors. One head counts as a batch of one sequence
/// with one head, so that forms and their driver are written once.

#include <algorithm>
#include <span>
#include <string>
#include <type_traits>

#include "mhla/attention/batch.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/tensor.hpp"
#include "mhla/policy/mixing_matrix.hpp"
#include "mhla/policy/partition.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Types that belong to the inputs of one head, and of a batch.
template <class In>
struct InputTraits;
template <Scalar T>
struct InputTraits<Inputs<T>> {
  using Scalar = T;
  template <class U>
  using View = MatrixView<U>;
  using Owner = Matrix<T>;
};
template <Scalar T>
struct InputTraits<BatchInputs<T>> {
  using Scalar = T;
  template <class U>
  using View = TensorView<U>;
  using Owner = Tensor<T>;
};

template <class In>
using scalar_of = typename InputTraits<In>::Scalar;
template <class In>
using sum_of = accumulator_t<scalar_of<In>>;
/// Outputs, and gradients of outputs.
template <class In>
using output_of = typename InputTraits<In>::template View<scalar_of<In>>;
template <class In>
using dout_of = typename InputTraits<In>::template View<const scalar_of<In>>;
template <class In>
using mixing_of = std::type_identity_t<MixingView<const sum_of<In>>>;

template <class B>
const auto& query_blocks(const B& blocks) {
  if constexpr (kIsCross<B>) {
    return blocks.queries;
  } else {
    return blocks;
  }
}
template <class B>
const auto& key_blocks(const B& blocks) {
  if constexpr (kIsCross<B>) {
    return blocks.keys;
  } else {
    return blocks;
  }
}

/// The partition of a sequence of n tokens.
template <BlocksOf P>
decltype(auto) blocks_of(const P& blocks, Index n) {
  if constexpr (Partition<P>) {
    return (blocks);
  } else {
    return blocks(n);
  }
}

/// The partitions of one sequence: references where a call has partitions, else values.
template <class Q, class K>
struct SequenceBlocks {
  Q queries;
  K keys;
};
template <AttentionBlocks B, Scalar T>
auto sequence_blocks(const B& blocks, const Inputs<T>& in) {
  const auto& queries = query_blocks(blocks);
  const auto& keys = key_blocks(blocks);
  return SequenceBlocks<decltype(blocks_of(queries, Index{})), decltype(blocks_of(keys, Index{}))>{
      blocks_of(queries, in.q.rows), blocks_of(keys, in.k.rows)};
}

// --- the heads of a batch ---

/// Tokens of one sequence: [begin, begin + length) of batch item `item`.
struct Span {
  Index item;
  Run tokens;
};

inline Span sequence_span(Index s, Index tokens, std::span<const Index> offsets) {
  if (offsets.empty()) return {s, {0, tokens}};
  const auto i = static_cast<std::size_t>(s);
  return {0, {offsets[i], offsets[i + 1] - offsets[i]}};
}

template <class T>
MatrixView<T> head_of(const TensorView<T>& t, const Span& span, Index h) {
  if (t.absent()) return {};
  // A null pointer of empty rows takes no offset.
  if (t.data == nullptr && t.width() == 0) return {nullptr, span.tokens.length, 0, 0};
  return t.head(span.item, h, span.tokens.begin, span.tokens.length);
}

inline Mask mask_of(const BatchMask& mask, const Span& span) {
  if (mask.keep == nullptr) return {};
  return {mask.keep + span.item * mask.row_stride + span.tokens.begin * mask.col_stride,
          span.tokens.length, mask.col_stride};
}

template <Scalar T>
Index sequences(const BatchInputs<T>& in) {
  return in.query_offsets.empty() ? in.q.batch() : static_cast<Index>(in.query_offsets.size()) - 1;
}
template <Scalar T>
Index heads(const BatchInputs<T>& in) {
  return in.q.heads();
}
template <Scalar T>
Span query_span(const BatchInputs<T>& in, Index s) {
  return sequence_span(s, in.q.tokens(), in.query_offsets);
}
template <Scalar T>
Span key_span(const BatchInputs<T>& in, Index s) {
  return sequence_span(s, in.k.tokens(), in.key_offsets);
}

template <Scalar T>
Inputs<T> head_inputs(const BatchInputs<T>& in, Index s, Index h) {
  const Span queries = query_span(in, s), keys = key_span(in, s);
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
  return head_of(out, query_span(in, s), h);
}

template <Scalar T>
Index sequences(const Inputs<T>& /*in*/) {
  return 1;
}
template <Scalar T>
Index heads(const Inputs<T>& /*in*/) {
  return 1;
}
template <Scalar T>
Inputs<T> head_inputs(const Inputs<T>& in, Index /*s*/, Index /*h*/) {
  return in;
}
template <Scalar T, class O>
MatrixView<O> head_output(const Inputs<T>& /*in*/, const MatrixView<O>& out, Index, Index) {
  return out;
}

/// Sequences that may differ in length: of a padded batch none does.
template <Scalar T>
Index lengths(const BatchInputs<T>& in) {
  return in.query_offsets.empty() ? std::min<Index>(in.q.batch(), 1) : sequences(in);
}
template <Scalar T>
Index lengths(const Inputs<T>& /*in*/) {
  return 1;
}

/// Pairs of a sequence and a head.
/// \throws shape_error when their number does not fit Index.
template <class In>
Index pairs(const char* function, const In& in) {
  return checked_product(function, "q", {sequences(in), heads(in)});
}

// --- what must agree ---

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

inline void expect_batch_mask(const char* function, const char* argument, const BatchMask& mask,
                              Index batch, Index tokens) {
  if (mask.absent()) return;
  expect_shape(function, argument,
               MatrixView<const unsigned char>(mask.keep, mask.rows, mask.cols, mask.row_stride,
                                               mask.col_stride),
               batch, tokens);
}

/// Throws unless the tensors of a batch agree in batch, tokens and heads, and the offsets fit.
/// Widths are checked head by head by the form.
/// \param argument  the name of `out`, which may be the gradient of an output
template <Scalar T>
void expect_batch(const char* function, const BatchInputs<T>& in,
                  const std::type_identity_t<TensorView<const T>>& out, const char* argument) {
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

/// The form checks a single head.
template <Scalar T>
void expect_batch(const char*, const Inputs<T>&, const std::type_identity_t<MatrixView<const T>>&,
                  const char*) {}

/// Throws unless a mixing matrix has [mq, mk] blocks; at least as many where they are a function.
template <class QueryBlocks, class KeyBlocks, class A>
void expect_mixing_of(const char* function, const MixingView<A>& mixing, const QueryBlocks&,
                      const KeyBlocks&, Index mq, Index mk) {
  constexpr bool kRows = Partition<QueryBlocks>, kColumns = Partition<KeyBlocks>;
  if constexpr (kRows && kColumns) return expect_mixing(function, mixing, mq, mk);
  if ((kRows && mixing.rows() != mq) || (kColumns && mixing.cols() != mk)) {
    fail_shape(function, "mixing", "has shape " + shape_text({mixing.rows(), mixing.cols()}),
               shape_text({kRows ? mq : -1, kColumns ? mk : -1}) + " (query blocks, key blocks)");
  }
  expect_leading_mixing(function, mixing, mq, mk);
}

/// The output of a call, for overloads that return it.
template <Scalar T>
Matrix<T> make_output(const Inputs<T>& in) {
  return Matrix<T>(in.q.rows, in.v.cols);
}
template <Scalar T>
Tensor<T> make_output(const BatchInputs<T>& in) {
  return Tensor<T>({in.q.batch(), in.q.tokens(), in.q.heads(), in.v.width()});
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
