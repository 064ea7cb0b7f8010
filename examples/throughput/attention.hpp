#pragma once

/// \file
/// The three attentions without the rest of a block: time, memory and operation counts of softmax,
/// linear attention and MHLA on the same queries, keys and values.

#include <array>
#include <cmath>
#include <cstddef>
#include <mhla/mhla.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "../support/clock.hpp"

namespace throughput {

using examples::seconds_of;
using mhla::Index;
using Tokens = mhla::Matrix<float>;

enum Attention { kSoftmax, kLinear, kMhla, kAttentions };
inline constexpr std::array<const char*, kAttentions> kNames{"softmax", "linear", "mhla"};

/// Sizes: B x N tokens, H heads of D features and E values.
struct Problem {
  Index batch, heads, width, values;
  mhla::GridShape grid, block;  ///< of tokens as they lie: MHLA's blocks
  bool causal = false;

  Index tokens() const { return grid[0] * grid[1] * grid[2]; }
  Index block_length() const { return block[0] * block[1] * block[2]; }
  Index blocks() const { return tokens() / block_length(); }
};

/// Flops of the multiply-adds of an attention; exponentials and feature maps are not counted.
inline double flops_of(Attention attention, const Problem& p) {
  const auto n = static_cast<double>(p.tokens()), m = static_cast<double>(p.blocks());
  const auto d = static_cast<double>(p.width), e = static_cast<double>(p.values);
  const auto items = static_cast<double>(p.batch * p.heads);
  switch (attention) {
    case kSoftmax:
      return items * (p.causal ? 1 : 2) * n * n * (d + e);
    case kLinear:
      return items * 4 * n * d * e;
    default:
      return items * (p.causal ? (4 * n + m * m) * d * e +
                                     n * static_cast<double>(p.block_length()) * (d + e)
                               : (4 * n + 2 * m * m) * d * e);
  }
}

/// Time of an attention. A long softmax is measured on a sample of queries.
struct Timed {
  double seconds = 0;
  Index queries = 0;
};

/// \tparam Op  the operator of linear attention and MHLA
template <class Op, bool kCausal>
class AttentionRun {
  static constexpr Index kPadding = 16;   // floats between rows, so that rows differ in cache sets
  static constexpr Index kSample = 8192;  // queries

 public:
  AttentionRun(const Problem& p, const Op& op, mhla::ThreadPool& pool)
      : p_(p),
        op_(op),
        pool_(pool),
        q_(random(p.width)),
        k_(random(p.width)),
        v_(random(p.values)),
        out_(Tokens::Zero(v_.rows(), v_.cols())),
        mixing_(Tokens::Constant(p.blocks(), p.blocks(), 1 / static_cast<float>(p.blocks()))) {}

  std::size_t bytes(Attention attention) const {
    switch (attention) {
      case kSoftmax:
        return mhla::softmax_workspace_bytes(inputs(), pool_);
      case kLinear:
        if constexpr (kCausal)
          return mhla::linear_causal_workspace_bytes(inputs(), op_, pool_);
        else
          return mhla::linear_bidirectional_workspace_bytes(inputs(), op_, pool_);
      default:
        if constexpr (kCausal)
          return mhla::causal_workspace_bytes(inputs(), blocks(), op_, pool_);
        else
          return mhla::bidirectional_workspace_bytes(inputs(), blocks(), op_, pool_);
    }
  }
  /// \throws std::runtime_error if an output is not a finite number
  /// \param longest  seconds of a softmax call from which on queries are sampled
  Timed time(Attention attention, double budget, double longest) {
    std::vector<std::byte> memory(bytes(attention));
    const mhla::Call call{.workspace = memory, .executor = pool_};
    Timed timed{0, p_.tokens()};
    if (attention == kSoftmax && p_.tokens() > kSample) timed = sample(longest, call);
    if (timed.seconds == 0) {
      timed.seconds = seconds_of(budget, [&] { run(attention, call); });
    }
    expect_finite(attention);
    return timed;
  }

 private:
  Tokens random(Index width) const {
    return Tokens::Random(p_.batch * p_.tokens(), p_.heads * width + kPadding);
  }
  template <class Rows>
  auto heads(Rows& rows, Index width) const {
    const Index n = p_.tokens(), stride = rows.cols();
    return mhla::TensorView<std::remove_pointer_t<decltype(rows.data())>>{
        rows.data(), {p_.batch, n, p_.heads, width}, {n * stride, stride, width, 1}};
  }
  mhla::BatchInputs<float> inputs() const {
    return {.q = heads(q_, p_.width), .k = heads(k_, p_.width), .v = heads(v_, p_.values)};
  }
  auto blocks() const {
    if constexpr (kCausal)
      return mhla::Contiguous(p_.tokens(), p_.block_length());
    else
      return mhla::Grid(p_.grid, p_.block);
  }
  void run(Attention attention, const mhla::Call& call) {
    const mhla::BatchInputs<float> in = inputs();
    const mhla::TensorView<float> out = heads(out_, p_.values);
    if constexpr (kCausal) {
      if (attention == kSoftmax) mhla::softmax_causal(in, out, {}, call);
      if (attention == kLinear) mhla::linear_causal(in, op_, out, call);
      if (attention == kMhla) mhla::causal(in, blocks(), mixing_, op_, out, call);
    } else {
      if (attention == kSoftmax) mhla::softmax_bidirectional(in, out, {}, call);
      if (attention == kLinear) mhla::linear_bidirectional(in, op_, out, call);
      if (attention == kMhla) mhla::bidirectional(in, blocks(), mixing_, op_, out, call);
    }
  }
  /// Time of softmax of some queries, scaled to all queries. They read all keys or, if causal, half
  /// of the keys, the mean over queries. Zero seconds if all queries take less than `longest`.
  Timed sample(double longest, const mhla::Call& call) {
    mhla::BatchInputs<float> in = inputs();
    mhla::TensorView<float> out = heads(out_, p_.values);
    in.q.shape[1] = out.shape[1] = kSample;
    if (kCausal) in.k.shape[1] = in.v.shape[1] = p_.tokens() / 2;
    const double seconds = seconds_of(0, [&] { mhla::softmax_bidirectional(in, out, {}, call); }) *
                           static_cast<double>(p_.tokens()) / kSample;
    return seconds > longest ? Timed{seconds, kSample} : Timed{0, p_.tokens()};
  }
  void expect_finite(Attention attention) const {
    if (!out_.allFinite()) {
      throw std::runtime_error(std::string("FAILED: ") + kNames[attention] +
                               " has outputs that are no finite numbers");
    }
  }

  Problem p_;
  Op op_;
  mhla::ThreadPool& pool_;
  Tokens q_, k_, v_, out_;  // [B*N, H*width + padding]
  mhla::MixingMatrix<float> mixing_;
};

}  // namespace throughput
