/// \file
/// A sequence that arrives token by token, as in language models: prefill, decode, save, restore.
///
///     R   = sum_{b<i} m_ib S_b + m_ii sum_{j<=t, j in i} phi(k_j) v_j^T     [D,E]
///     o_t = phi(q_t)^T R / den_t                                            [E]
///
/// N = 300 tokens in blocks of W = 32. causal() reads all tokens at once, and gives the expected
/// outputs. Then the same tokens arrive as two streams:
///
///     1. a prefill of 100 tokens, then one token at a time; after token 200 the state is saved,
///        thrown away, restored from its bytes, and the stream goes on
///     2. block by block
///
/// Outputs of the first stream equal those of causal() within rounding, outputs of the second
/// bitwise. The size of a state is known beforehand and does not grow.
///
/// Run:       build/examples/streaming
/// Expected:  (sizes and difference depend on the processor)
///
///     300 tokens in 10 blocks, room for 320
///     state: 36960 bytes, workspace: 70976 bytes
///     token by token, largest difference from causal(): 1.0e-07
///     block by block, bitwise equal to causal(): yes
///     ok

#include <cstddef>
#include <cstdio>
#include <mhla/mhla.hpp>
#include <vector>

namespace {

constexpr mhla::Index kTokens = 300;  // N
constexpr mhla::Index kBlock = 32;    // W
constexpr mhla::Index kWidth = 16;    // D
constexpr mhla::Index kValues = 24;   // E

using Tokens = mhla::Matrix<float>;
using Stream = mhla::Streaming<float>;

/// Inputs of a stream, a row per token.
struct Sequence {
  Tokens q = Tokens::Random(kTokens, kWidth);
  Tokens k = Tokens::Random(kTokens, kWidth);
  Tokens v = Tokens::Random(kTokens, kValues);

  /// Tokens [begin, begin + count).
  mhla::Inputs<float> piece(mhla::Index begin, mhla::Index count) const {
    return mhla::inputs(q.middleRows(begin, count), k.middleRows(begin, count),
                        v.middleRows(begin, count));
  }
};

/// A state written to bytes and read again, as for a later session or another process.
mhla::StreamingState<float> save_and_restore(const Stream& stream,
                                             const mhla::StreamingState<float>& state) {
  std::vector<std::byte> bytes(stream.state_bytes());
  state.save(bytes);
  auto restored = stream.start();
  restored.restore(bytes);
  return restored;
}

}  // namespace

int main() {
  const Sequence sequence;
  const mhla::Contiguous blocks(kTokens, kBlock);
  // Only the lower triangle is read: a block mixes itself and earlier blocks.
  const auto mixing = mhla::locality<float>(blocks.blocks());  // [M,M]

  const Tokens expected =
      mhla::causal(sequence.q, sequence.k, sequence.v, blocks, mixing);  // [N,E]

  const Stream stream({.width = kWidth, .values = kValues, .block_length = kBlock}, mixing);
  std::vector<std::byte> workspace(stream.append_workspace_bytes());  // appends allocate nothing
  Tokens decoded(kTokens, kValues);
  const auto append = [&](auto& state, Tokens& out, mhla::Index count) {
    const mhla::Index begin = state.position();
    stream.append(state, sequence.piece(begin, count), out.middleRows(begin, count),
                  {.workspace = workspace});
  };

  auto state = stream.start();
  append(state, decoded, 100);
  while (state.position() < 200) append(state, decoded, 1);
  auto resumed = save_and_restore(stream, state);
  while (resumed.position() < kTokens) append(resumed, decoded, 1);

  Tokens by_blocks(kTokens, kValues);
  auto block_state = stream.start();
  for (mhla::Index b = 0; b < blocks.blocks(); ++b) {
    append(block_state, by_blocks, blocks.block_size(b));
  }

  const double difference = (decoded - expected).cwiseAbs().maxCoeff();
  const bool bitwise = by_blocks == expected;
  std::printf("%td tokens in %td blocks, room for %td\n", kTokens, blocks.blocks(),
              stream.capacity());
  std::printf("state: %zu bytes, workspace: %zu bytes\n", stream.state_bytes(), workspace.size());
  std::printf("token by token, largest difference from causal(): %.1e\n", difference);
  std::printf("block by block, bitwise equal to causal(): %s\n", bitwise ? "yes" : "no");

  // |v| <= 1 and weights are nonnegative, so numerator and denominator of each form have at most
  // N + M + D roundings of 2^-24, relative to the denominator.
  const double bound = 4 * static_cast<double>(kTokens + blocks.blocks() + kWidth) * 0x1p-24;
  if (!(difference <= bound)) {
    std::fprintf(stderr, "FAILED: token by token differs by %g, allowed %g\n", difference, bound);
    return 1;
  }
  if (!bitwise) {
    std::fprintf(stderr, "FAILED: blocks fed whole differ from causal()\n");
    return 1;
  }
  std::printf("ok\n");
  return 0;
}
