#pragma once

/// \file
/// Forms of tokens that are masked or packed, or have a prefix, and forms with feature maps of
/// one's own. Copies in the workspace replace the tensors: features of queries and keys, and
/// values, with rows of zeros for tokens that do not take part and for empty slots. Any form reads
/// the copies with the identity map.
///
/// A map of one's own copies features alone. The form then has the features of no token, 0, where a
/// block has empty slots, whatever phi(0) is.
///
/// A row of zeros adds 0 to every sum, whatever the caller's tensor holds there. A masked query
/// gets outputs of 0. Features are rounded as the forms round them, so that the other tokens have
/// the bits that they have without selection in the same form. Outputs of packed sequences and
/// after a prefix are written to a copy first. Each copy is read and written once more.

#include <cstddef>
#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/angle_rows_sm80.cuh"
#include "mhla/cuda/kernel/features_sm80.cuh"
#include "mhla/cuda/kernel/selected_rows_sm80.cuh"
#include "mhla/cuda/launch/problem.cuh"
#include "mhla/cuda/launch/workspace_cursor.cuh"

namespace mhla::cuda {

/// A problem with copies, and the problem of its copies.
template <int D, int E>
class Staging {
 public:
  /// Counts the workspace's bytes where `workspace` is null.
  constexpr Staging(const Problem& problem, unsigned char* workspace)
      : outer_(problem), inner_(problem), place_(workspace) {
    if (problem.copies_queries()) {
      q_ = take(true, query_tokens(), D);
      inner_.q = read_only(q_);
      inner_.op.query_map = FeatureMap::identity();
    }
    if (problem.copies_keys()) {
      k_ = take(true, key_tokens(), D);
      inner_.k = read_only(k_);
      inner_.op.key_map = FeatureMap::identity();
    }
    if (!problem.keys.all()) {
      v_ = take(true, key_tokens(), E);
      inner_.v = read_only(v_);
    }
    if (problem.queries.moves()) {
      o_ = take(true, query_tokens(), E);
      inner_.o = o_;
      if (problem.norm.gated) {
        gate_ = take(true, query_tokens(), E);
        inner_.norm.gate = read_only(gate_);
      }
    }
    query_angles_ = take_angles(problem.queries, query_tokens(), inner_.query_angles);
    key_angles_ = take_angles(problem.keys, key_tokens(), inner_.key_angles);
    inner_.own_query_map = inner_.own_key_map = false;
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
  /// \tparam kRotary  problem.rotary
  /// \param maps  the Operator or MappedOperator of the call
  template <class T, bool kRotary, class Stream, class Maps>
  void copy_inputs(const Stream& stream, const Maps& maps) const {
    copy<T, D>(outer_.q, q_, query_tokens(), maps.query_map, outer_.queries, stream);
    copy<T, D>(outer_.k, k_, key_tokens(), maps.key_map, outer_.keys, stream);
    copy<T, E>(outer_.v, v_, key_tokens(), FeatureMap::identity(), outer_.keys, stream);
    copy<T, E>(outer_.norm.gate, gate_, query_tokens(), FeatureMap::identity(), outer_.queries,
               stream);
    if constexpr (kRotary) {
      copy_angles(outer_.query_angles, query_angles_, query_tokens(), outer_.queries, stream);
      copy_angles(outer_.key_angles, key_angles_, key_tokens(), outer_.keys, stream);
    }
  }
  /// Writes the outputs of packed sequences and after a prefix. Otherwise it writes zeros for
  /// masked queries alone, whose outputs are NaN if a gate or a value that others read is.
  template <class T, class Stream>
  void write_outputs(const Stream& stream) const {
    if (outer_.queries.all()) return;
    write<T, E>(read_only(inner_.o), outer_.o, {}, query_tokens(), FeatureMap::identity(),
                outer_.queries, stream);
  }

  /// Copies features of the tokens that take part, unless there is no copy.
  template <class T, int kWidth, class Map, class Stream>
  void copy(const ConstTokenTensor& x, const TokenTensor& y, std::int32_t tokens, const Map& map,
            const Selection& selection, const Stream& stream) const {
    if (y.data == nullptr) return;
    stream.template run<FeaturesSm80<T, kWidth, Map>>(
        {x, y, tokens, outer_.heads, map, RotaryAngles{}, selection}, outer_.pairs());
  }
  /// Writes rows of the tokens that take part: x, or phi'(z) x.
  template <class T, int kWidth, class Map, class Stream>
  void write(const ConstTokenTensor& x, const TokenTensor& y, const ConstTokenTensor& z,
             std::int32_t tokens, const Map& map, const Selection& selection,
             const Stream& stream) const {
    stream.template run<SelectedRowsSm80<T, kWidth, Map>>(
        {x, y, z, tokens, outer_.heads, map, selection}, outer_.pairs());
  }

 private:
  /// Allocates the angles of a form with a prefix, and puts them in the place of the caller's.
  constexpr float* take_angles(const Selection& selection, std::int32_t tokens,
                               RotaryAngles& angles) {
    if (!outer_.rotary || selection.prefix == 0) return nullptr;
    float* const copies = place_.floats(true, std::int64_t{tokens} * D);
    angles = {copies, D};
    return copies;
  }
  template <class Stream>
  void copy_angles(const RotaryAngles& angles, float* copies, std::int32_t tokens,
                   const Selection& selection, const Stream& stream) const {
    if (copies == nullptr) return;
    stream.template run<AngleRowsSm80<D>>({angles, copies, tokens, 1, selection}, 1);
  }

  Problem outer_;
  Problem inner_;
  WorkspaceCursor place_;
  TokenTensor q_{}, k_{}, v_{}, o_{}, gate_{};
  float *query_angles_ = nullptr, *key_angles_ = nullptr;
};

}  // namespace mhla::cuda
