#pragma once

/// \file
/// Forms of tokens that are masked or packed. Copies in the workspace replace the tensors: features
/// of queries and keys, and values, with rows of zeros for tokens that do not take part. Any form
/// reads the copies with the identity map.
///
/// A row of zeros adds 0 to every sum, whatever the caller's tensor holds there, and a query of
/// zeros gets outputs of 0. Features are rounded as the forms round them, so that the other tokens
/// have the bits that they have without selection in the same form. Outputs of packed sequences
/// are written to a copy first. Each copy is read and written once more.

#include <cstddef>
#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/features_sm80.cuh"
#include "mhla/cuda/kernel/selected_rows_sm80.cuh"
#include "mhla/cuda/launch/problem.cuh"
#include "mhla/cuda/launch/workspace_cursor.cuh"

namespace mhla::cuda {

/// A problem that selects tokens, and the problem of its copies.
template <int D, int E>
class Staging {
 public:
  /// Counts the workspace's bytes where `workspace` is null.
  constexpr Staging(const Problem& problem, unsigned char* workspace)
      : outer_(problem), inner_(problem), place_(workspace) {
    const bool packed = problem.queries.packed;
    if (!problem.queries.all()) {
      q_ = take(true, query_tokens(), D);
      inner_.q = read_only(q_);
      inner_.op.query_map = FeatureMap::identity();
    }
    if (!problem.keys.all()) {
      k_ = take(true, key_tokens(), D);
      v_ = take(true, key_tokens(), E);
      inner_.k = read_only(k_);
      inner_.v = read_only(v_);
      inner_.op.key_map = FeatureMap::identity();
    }
    if (packed) {
      o_ = take(true, query_tokens(), E);
      inner_.o = o_;
      if (problem.norm.gated) {
        gate_ = take(true, query_tokens(), E);
        inner_.norm.gate = read_only(gate_);
      }
    }
    inner_.queries = inner_.keys = {};
  }

  /// The problem of the copies.
  constexpr const Problem& inner() const { return inner_; }
  /// Bytes of the copies, a multiple of 256.
  constexpr std::size_t bytes() const { return place_.used(); }
  /// Bytes that are read and written to make the copies, and to write outputs.
  constexpr std::uint64_t traffic() const { return 2 * bytes(); }

  /// Allocates a further copy [B, tokens, H, width], or none unless wanted.
  constexpr TokenTensor take(bool wanted, std::int32_t tokens, std::int32_t width) {
    return place_.tensor(wanted, outer_, tokens, width);
  }
  constexpr std::int32_t query_tokens() const { return outer_.query_blocks.tokens(); }
  constexpr std::int32_t key_tokens() const { return outer_.key_blocks.tokens(); }

  /// Makes the copies.
  template <class T, class Stream>
  void copy_inputs(const Stream& stream) const {
    copy<T, D>(outer_.q, q_, query_tokens(), outer_.op.query_map, outer_.queries, stream);
    copy<T, D>(outer_.k, k_, key_tokens(), outer_.op.key_map, outer_.keys, stream);
    copy<T, E>(outer_.v, v_, key_tokens(), FeatureMap::identity(), outer_.keys, stream);
    copy<T, E>(outer_.norm.gate, gate_, query_tokens(), FeatureMap::identity(), outer_.queries,
               stream);
  }
  /// Writes the outputs of packed sequences.
  template <class T, class Stream>
  void write_outputs(const Stream& stream) const {
    if (o_.data == nullptr) return;
    write<T, E>(read_only(o_), outer_.o, {}, query_tokens(), FeatureMap::identity(), outer_.queries,
                stream);
  }

  /// Copies features of the tokens that take part, unless there is no copy.
  template <class T, int kWidth, class Stream>
  void copy(const ConstTokenTensor& x, const TokenTensor& y, std::int32_t tokens,
            const FeatureMap& map, const Selection& selection, const Stream& stream) const {
    if (y.data == nullptr) return;
    stream.template run<FeaturesSm80<T, kWidth>>(
        {x, y, tokens, outer_.heads, map, RotaryAngles{}, selection}, outer_.pairs());
  }
  /// Writes rows of the tokens that take part: x, or phi'(z) x.
  template <class T, int kWidth, class Stream>
  void write(const ConstTokenTensor& x, const TokenTensor& y, const ConstTokenTensor& z,
             std::int32_t tokens, const FeatureMap& map, const Selection& selection,
             const Stream& stream) const {
    stream.template run<SelectedRowsSm80<T, kWidth>>(
        {x, y, z, tokens, outer_.heads, map, selection}, outer_.pairs());
  }

 private:
  Problem outer_;
  Problem inner_;
  WorkspaceCursor place_;
  TokenTensor q_{}, k_{}, v_{}, o_{}, gate_{};
};

}  // namespace mhla::cuda
