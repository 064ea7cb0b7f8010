#pragma once

/// \file
/// Operators of streams on a device: mhla::stream_prefill, mhla::stream_step and
/// mhla::stream_parts. The state is one tensor of bytes, which they change in place. Its zeros are
/// the state of sequences without tokens.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mhla/cuda/kernel/streaming_state.cuh>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "../arguments.hpp"
#include "choices.hpp"
#include "streams.hpp"

namespace mhla_torch {

/// Tokens of sequences of a state, [n,N,H,.].
template <class Place>
class Decoding {
 public:
  Decoding(const char* function, Arguments& from)
      : function_(function),
        state_(from.take<Tensor>()),
        q_(from.take<Tensor>()),
        k_(from.take<Tensor>()),
        v_(from.take<Tensor>()),
        mixing_(from.take<Tensor>()),
        block_(from.take<std::int64_t>()),
        sequences_(from.take<std::int64_t>()) {}

  /// Takes the options, which are the last arguments, and checks types and devices.
  void take_options(Arguments& from, const std::optional<Tensor>& sequence_of = {}) {
    const auto map = from.take<std::string>(), sums = from.take<std::string>();
    const auto eps = from.take<double>(), scale = from.take<double>();
    const FeatureMap features = feature_map(function_, map, from.take<double>());
    expect_type(function_, "mixing", mixing_, ScalarType::Float, 2);
    const Index terms = from.take<bool>() ? decay_terms(function_, mixing_) : 0;
    op_ = {.query_map = features,
           .key_map = features,
           .denominator = denominator(function_, sums),
           .eps = static_cast<float>(eps),
           .scale = static_cast<float>(scale),
           .decay_terms = static_cast<std::int32_t>(terms)};
    (void)expect_types(function_, q_, k_, v_, false);
    expect_type(function_, "state", state_, ScalarType::Byte, 1);
    expect_one_device<Place>(function_, q_,
                             {{"k", k_},
                              {"v", v_},
                              {"mixing", mixing_},
                              {"state", state_},
                              {"sequence_of", sequence_of}});
    if (!state_.is_contiguous()) {
      fail<mhla::option_error>(function_, "state", "is strided", "bytes side by side");
    }
  }

  /// Calls work.operator()<S>(call, place) for the streams S of the tensors' type and widths.
  template <class Work>
  Tensor run(const Work& work) const {
    return with_widths<false>(function_, q_, v_, [&]<class T, int D, int E>() {
      Place place(q_);
      const std::array<Index, 4> sizes{q_.size(0), q_.size(1), q_.size(2), v_.size(3)};
      const Tensor out = torch::stable::new_empty(
          q_, torch::headeronly::IntHeaderOnlyArrayRef(sizes.data(), sizes.size()));
      const Tensor mixing = mixing_.size(1) < 2 || mixing_.stride(1) == 1
                                ? mixing_
                                : torch::stable::contiguous(mixing_);
      const StreamCall call{.q = view<const std::byte>(q_),
                            .k = view<const std::byte>(k_),
                            .v = view<const std::byte>(v_),
                            .out = view<std::byte>(out),
                            .sequences = sequences_,
                            .block = block_,
                            .mixing = {static_cast<const float*>(mixing.const_data_ptr()),
                                       mixing.size(0), mixing.size(1), mixing.stride(0)},
                            .op = op_,
                            .state = {static_cast<std::byte*>(state_.mutable_data_ptr()),
                                      static_cast<std::size_t>(state_.numel())}};
      work.template operator()<Streams<T, D, E>>(call, place);
      return out;
    });
  }

  Index items() const { return q_.size(0); }

 private:
  template <class Byte>
  static mhla::TensorView<Byte> view(const Tensor& t) {
    Byte* data;
    if constexpr (std::is_const_v<Byte>) {
      data = static_cast<Byte*>(t.const_data_ptr());
    } else {
      data = static_cast<Byte*>(t.mutable_data_ptr());
    }
    return {data,
            {t.size(0), t.size(1), t.size(2), t.size(3)},
            {t.stride(0), t.stride(1), t.stride(2), t.stride(3)}};
  }

  const char* function_;
  Tensor state_, q_, k_, v_, mixing_;
  Index block_, sequences_;
  mhla::cuda::Operator op_;
};

/// (state, q, k, v, mixing, block, sequences, first, seen, options) -> out
template <class Place>
void stream_prefill(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Arguments from(stack);
  Decoding<Place> tokens("stream_prefill", from);
  const auto first = from.take<std::int64_t>(), seen = from.take<std::int64_t>();
  tokens.take_options(from);
  stack[0] =
      torch::stable::detail::from(tokens.run([&]<class S>(const StreamCall& call, Place& place) {
        S::prefill(
            call, first, seen, [&](std::size_t bytes) { return place.workspace(bytes); },
            place.stream());
      }));
}

/// (state, q, k, v, mixing, block, sequences, sequence_of, options) -> out
template <class Place>
void stream_step(StableIValue* stack, std::uint64_t, std::uint64_t) {
  constexpr const char* kName = "stream_step";
  Arguments from(stack);
  Decoding<Place> tokens(kName, from);
  const auto sequence_of = from.take<std::optional<Tensor>>();
  tokens.take_options(from, sequence_of);
  const auto numbers = offsets_view<std::int32_t>(kName, "sequence_of", sequence_of);
  if (sequence_of && sequence_of->size(0) != tokens.items()) {
    fail<mhla::shape_error>(kName, "sequence_of",
                            "has " + std::to_string(sequence_of->size(0)) + " numbers",
                            std::to_string(tokens.items()) + " as q");
  }
  stack[0] =
      torch::stable::detail::from(tokens.run([&]<class S>(const StreamCall& call, Place& place) {
        S::step(call, sequence_of ? numbers.data() : nullptr, place.stream());
      }));
}

/// (like, sequences, heads, features, values, blocks, block, terms) -> first byte, and bytes per
/// sequence, of each part of a state; bytes of the state. With decaying terms `blocks` is not read.
inline void stream_parts(StableIValue* stack, std::uint64_t, std::uint64_t) {
  Arguments from(stack);
  (void)from.take<Tensor>();
  std::array<Index, 6> sizes;
  for (Index& size : sizes) size = from.take<std::int64_t>();
  const auto terms = from.take<std::int64_t>();
  if (terms < 0 || terms > mhla::cuda::DecayArray::kMost)
    fail_terms("stream_parts", "terms", terms);
  if (terms > 0) sizes[4] = 2;  // blocks whose summaries are kept
  const auto [sequences, heads, d, e, blocks, block] = sizes;
  constexpr Index kMany = 256;  // sequences of which no part is rounded up
  for (const Index& size : sizes) {
    const Index least = &size == sizes.data() ? 0 : 1;  // a state may have no sequences
    if (size >= least && size < (Index{1} << 31)) continue;
    fail<mhla::option_error>("stream_parts", "sizes", "have " + std::to_string(size),
                             "at least " + std::to_string(least) + " and below 2^31");
  }
  expect_widths("stream_parts", "(features, values)", d, e);
  mhla::detail::checked_product("stream_parts", "state",
                                {sequences + kMany, heads, blocks + 2 + terms, d * e * 4});
  mhla::detail::checked_product("stream_parts", "state",
                                {sequences + kMany, heads, block, (d + e) * 2});
  const auto begins = [&](Index count) {
    const auto layout = mhla::cuda::streaming_state_layout(count * heads, blocks, block,
                                                           static_cast<int>(d), static_cast<int>(e),
                                                           mhla::cuda::Precision::kSingle, terms);
    return std::array{std::int64_t{0},        layout.mixture_high,  layout.mixture_low,
                      layout.mixture_key_sum, layout.summary_high,  layout.summary_low,
                      layout.summary_key_sum, layout.keys,          layout.values,
                      layout.terms,           layout.term_key_sums, layout.bytes};
  };
  const auto places = begins(sequences), of_many = begins(kMany);
  std::vector<std::int64_t> parts;
  for (std::size_t i = 0; i + 1 < places.size(); ++i) {
    parts.push_back(places[i]);
    parts.push_back((of_many[i + 1] - of_many[i]) / kMany);
  }
  parts.push_back(places.back());
  stack[0] = torch::stable::detail::from(parts);
}

template <class Place>
void implement_streams(torch::stable::detail::StableLibrary& library) {
  library.impl("stream_prefill", &stream_prefill<Place>);
  library.impl("stream_step", &stream_step<Place>);
  library.impl("stream_parts", &stream_parts);
}

}  // namespace mhla_torch
