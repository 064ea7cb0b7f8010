#pragma once

/// \file
/// Parts of the decoding of language layers (decoding_layer.hpp): data that the states of a layer
/// share, and calls that append tokens.

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "mhla/attention/streaming.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/layer/body.hpp"
#include "mhla/layer/graph.hpp"
#include "mhla/layer/language_maps.hpp"
#include "mhla/layer/language_parameters.hpp"
#include "mhla/layer/parameters.hpp"
#include "mhla/policy/mixing_matrix.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Parts of a layer that all its states share, copied when the first state started.
template <Accumulator A>
struct LanguageDecoding {
  using Op = Operator<Identity, Identity, NoNormalizer>;

  LanguageOptions options;
  LanguageSizes sizes;
  Index parameters;  // of the layer
  PackedWeights<A> packed;
  std::array<std::vector<A>, 2> map_numbers;  // weights and scratch of the maps
  std::array<LanguageMap<A>, 2> maps;         // of queries and of keys
  Streaming<A, Op> stream;

  /// \param prefix  of the language layer in the graph
  LanguageDecoding(const Graph<A>& g, const std::string& prefix, const LanguageOptions& o,
                   std::span<const A> row)
      : options(o),
        sizes(o),
        parameters(g.table().size()),
        packed(g.dense_layers(), row),
        maps{map_of(0, g.table(), prefix + "feature_map_q.layer", row),
             map_of(1, g.table(), prefix + "feature_map_k.layer", row)},
        stream({.width = language_features(o.feature_map, sizes.width),
                .values = sizes.values,
                .block_length = o.chunk},
               mixing_matrix(g.name(),
                             language_mixing(g.table().place(prefix + language_mixing_name(o)), o),
                             o.chunks, row),
               language_operator(o)) {}

  /// Rows that the short convolutions keep of a sequence.
  Index kept() const { return options.short_convolution ? options.convolution_taps - 1 : 0; }

 private:
  LanguageMap<A> map_of(std::size_t i, const ParameterTable& table, const std::string& name,
                        std::span<const A> row) {
    const std::span<const A> weights = language_map_slice(table, name, options).numbers(row);
    std::vector<A>& numbers = map_numbers[i];
    numbers.assign(weights.begin(), weights.end());
    numbers.resize(weights.size() + static_cast<std::size_t>(
                                        language_map_scratch(options.feature_map, sizes.width)));
    return language_map<A>(options.feature_map, sizes.width,
                           std::span<const A>(numbers).first(weights.size()),
                           numbers.data() + weights.size());
  }
};

/// Consecutive sequences of one length whose first tokens have the same position.
struct SequenceRun {
  Index begin, count;  // sequences
  Index row;           // of the first token of the first sequence
  Index tokens;        // of each sequence
  Index position;

  template <class T>
  MatrixView<T> of(const MatrixView<T>& x) const {
    return x.middle_rows(row, count * tokens);
  }
};

/// A call that appends tokens to a state.
template <class T>
struct Decoding {
  const LanguageDecoding<T>& shared;
  std::span<StreamingState<T>> heads{};  // [groups, B, Hk]
  std::array<MatrixView<T>, 3> tails{};
  std::span<const Index> offsets{};  // [B+1]

  /// Calls f for each run of sequences that have tokens.
  template <class F>
  void for_each_run(const F& f) const {
    const Index batch = std::ssize(offsets) - 1;
    const auto at = [&](Index b) { return offsets[static_cast<std::size_t>(b)]; };
    const auto position = [&](Index b) {
      return heads[static_cast<std::size_t>(b * shared.sizes.key_heads)].position();
    };
    for (Index b = 0, end = 0; b < batch; b = end) {
      const Index tokens = at(b + 1) - at(b), seen = position(b);
      end = b + 1;
      while (end < batch && at(end + 1) - at(end) == tokens && position(end) == seen) ++end;
      if (tokens > 0) f(SequenceRun{b, end - b, at(b), tokens, seen});
    }
  }
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
