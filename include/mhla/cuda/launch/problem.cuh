#pragma once

/// \file
/// Operator (the options of a form) and Problem (its tensors and blocks).

#include <cstdint>
#include <type_traits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/tile/rotary.cuh"
#include "mhla/cuda/tile/selection.cuh"
#include "mhla/cuda/tile/tokens.cuh"
#include "mhla/cuda/tile/width.cuh"

namespace mhla::cuda {

/// Options of a form: those of mhla::Operator, as numbers.
struct Operator {
  FeatureMap query_map = FeatureMap::relu();
  FeatureMap key_map = FeatureMap::relu();
  Denominator denominator = Denominator::kKeySum;
  float eps = 0;                             ///< added to the denominator
  float scale = 1;                           ///< multiplies phi(q), in numerator and denominator
  Precision summaries = Precision::kSingle;  ///< of 16-bit tensors: float32 has pairs
  float norm_eps = 1e-6f;                    ///< epsilon of the outputs' norm, if there is a gain
  Matrices matrices = Matrices::kShared;     ///< mixing matrices of a batch
  /// Terms R of decaying mixing matrices, m_ib = sum_r a_r lambda_r^(i-b) for b <= i, which are
  /// arrays [2, R] of a and lambda. 0 means matrices of coefficients.
  std::int32_t decay_terms = 0;
  /// The bidirectional fused form on sm_90a sums the next head while it reads out one, for D < 128.
  /// Outputs have the same bits.
  bool overlaps_heads = false;
  /// Three stages run in one kernel, so that summaries are read from L2, where Plan::joins_stages
  /// says so. Outputs have the bits of the kernels of sm_80.
  bool joins_stages = false;
  /// Bidirectional forms of (64, 64) with 17 to 64 blocks are fused on sm_90a, if tensor copies
  /// load blocks in multiples of 16 tokens. A thread block has 16 columns of a head's values.
  bool slabs = false;

  bool operator==(const Operator&) const = default;
};

/// Options of a form with feature maps of one's own: ElementwiseMaps, or a FeatureMap for one side.
///
///     const MappedOperator op(Operator{.eps = 1e-6f}, Softplus{2});
template <class Q, class K = Q>
struct MappedOperator {
  Operator options;
  Q query_map;
  K key_map;

  constexpr MappedOperator(const Operator& op, const Q& of_queries, const K& of_keys)
      : options(op), query_map(of_queries), key_map(of_keys) {
    if constexpr (std::is_same_v<Q, FeatureMap>) options.query_map = of_queries;
    if constexpr (std::is_same_v<K, FeatureMap>) options.key_map = of_keys;
  }
  constexpr MappedOperator(const Operator& op, const Q& map) : MappedOperator(op, map, map) {}

 private:
  template <class M>
  static constexpr bool kIsMap = std::is_same_v<M, FeatureMap> || ElementwiseMap<M>;
  static_assert(kIsMap<Q> && kIsMap<K>,
                "a feature map is trivially copyable and has float function(float) const");
};

/// Operator or MappedOperator.
template <class O>
concept AnyOperator = requires(const O& op) {
  op.query_map;
  op.key_map;
};

constexpr const Operator& options_of(const Operator& op) { return op; }
template <class Q, class K>
constexpr const Operator& options_of(const MappedOperator<Q, K>& op) {
  return op.options;
}

/// One call: the tensors of a batch, its blocks and its options. Tensors of packed sequences are
/// [1, ., H, .], and the blocks are those of the longest sequence. With a prefix, the blocks are
/// those of Selection::add_prefix().
struct Problem {
  ConstTokenTensor q;  ///< [B, Nq, H, D]
  ConstTokenTensor k;  ///< [B, Nk, H, D]
  ConstTokenTensor v;  ///< [B, Nk, H, E]
  TokenTensor o;       ///< [B, Nq, H, E]
  std::int32_t batch;
  std::int32_t heads;
  TokenBlocks query_blocks;
  TokenBlocks key_blocks;
  Operator op;
  bool own_query_map = false;  ///< a map of one's own takes the place of op.query_map
  bool own_key_map = false;
  OutputNorm norm{};
  bool rotary = false;  ///< phi(q) and phi(k) rotate, in numerators alone
  RotaryAngles query_angles{};
  RotaryAngles key_angles{};
  bool causal;          ///< the causal form: query_blocks equal key_blocks and are runs of tokens
  Selection queries{};  ///< that take part
  Selection keys{};
  bool floats = false;  ///< tensors are float32 (of_floats)
  bool later = false;   ///< decaying terms mix later blocks, not earlier ones

  /// Returns true if the mixing matrix is a sum of decaying terms.
  constexpr bool decays() const { return op.decay_terms > 0; }
  /// Returns true if copies replace a tensor (staging.cuh).
  constexpr bool copies_queries() const { return own_query_map || !queries.all(); }
  constexpr bool copies_keys() const { return own_key_map || !keys.all(); }
  constexpr bool copies() const { return copies_queries() || copies_keys(); }
  /// Blocks of the call's tokens, after a prefix.
  constexpr const TokenBlocks& callers_query_blocks() const {
    return queries.after_prefix(query_blocks);
  }
  constexpr const TokenBlocks& callers_key_blocks() const { return keys.after_prefix(key_blocks); }
  constexpr std::int32_t pairs() const { return batch * heads; }
  /// Number of mixing matrices. Matrix g is that of pairs g, g + matrices(), ...
  constexpr std::int32_t matrices() const {
    return op.matrices == Matrices::kShared    ? 1
           : op.matrices == Matrices::kPerHead ? heads
                                               : pairs();
  }
  constexpr Normalization normalization() const { return {op.denominator, op.scale, op.eps}; }
  /// Bytes of a number of the tensors.
  constexpr std::int32_t number_bytes() const { return floats ? 4 : 2; }
};

/// The problem with tensors of float32. Their summaries are pairs.
constexpr Problem of_floats(const Problem& problem) {
  Problem floats = problem;
  floats.floats = true;
  floats.op.summaries = Precision::kPair;
  return floats;
}

/// Value columns of a product that takes wide values in halves, of at most 128 columns each.
/// Products of dphi do, and forms of floats.
template <int E>
inline constexpr int kHalfWidth = Width<E>::kPart;
template <int E>
inline constexpr int kHalves = Width<E>::kParts;

/// Columns of half h of a tensor of values.
/// \param bytes  of a number
template <int E, class Byte>
constexpr BasicTokenTensor<Byte> half_of(BasicTokenTensor<Byte> x, int h, std::int32_t bytes) {
  if (x.data != nullptr) x.data += bytes * kHalfWidth<E> * h;
  return x;
}

/// The problem of half h of the values, without norm and gate.
template <int E>
constexpr Problem half_of(const Problem& problem, int h) {
  Problem half = problem;
  half.v = half_of<E>(problem.v, h, problem.number_bytes());
  half.o = half_of<E>(problem.o, h, problem.number_bytes());
  half.norm = {};
  return half;
}

/// A group of `heads` heads of `batch` batch items.
struct HeadGroup {
  std::int32_t batch;
  std::int32_t heads;
};

/// Part of a problem: `size` heads from `first` on, or as many as remain.
constexpr Problem part_of(const Problem& problem, BatchHead first, HeadGroup size) {
  const auto least = [](std::int32_t a, std::int32_t b) { return a < b ? a : b; };
  Problem part = problem;
  part.q.data = problem.q.head(first);
  part.k.data = problem.k.head(first);
  part.v.data = problem.v.head(first);
  part.o.data = problem.o.head(first);
  if (problem.norm.gated) part.norm.gate.data = problem.norm.gate.head(first);
  part.batch = least(size.batch, problem.batch - first.batch);
  part.heads = least(size.heads, problem.heads - first.head);
  return part;
}

/// The problem with `blocks` key blocks, of which only the number is used.
constexpr Problem with_key_blocks(const Problem& problem, std::int32_t blocks) {
  Problem other = problem;
  other.key_blocks = TokenBlocks(1, 1, blocks, 1, 1, 1);
  return other;
}

/// Calls visit(part) for all heads, in groups of `size`.
template <class Visit>
constexpr void for_parts(const Problem& problem, HeadGroup group, const Visit& visit) {
  for (std::int32_t batch = 0; batch < problem.batch; batch += group.batch) {
    for (std::int32_t head = 0; head < problem.heads; head += group.heads) {
      visit(part_of(problem, {batch, head}, group));
    }
  }
}

/// The device that a plan is for. device.cuh returns the current one.
struct Device {
  Arch arch;  ///< of the code that the program has for the device
  std::int32_t multiprocessors;
  /// Properties that change the bits of outputs. Ranks compare them; plans ignore them.
  std::int32_t capability = 0;  ///< compute capability, such as 90
  std::int32_t toolkit = 0;     ///< version of CUDA that compiled the kernels, such as 12080
  /// Shared memory per thread block, in bytes. Plans take kernels that fit.
  std::int32_t shared_bytes = shared_limit(arch);

  /// The instruction set of the kernels that calls take: sm_90a where its kernels fit.
  constexpr Arch kernels() const {
    return shared_bytes < shared_limit(Arch::kSm90a) ? Arch::kSm80 : arch;
  }
};

/// The device with kernels of another instruction set. Every device runs kernels of sm_80, so that
/// an H100 can test them. Calls for sm_90a are refused if the program has no such code.
constexpr Device with_arch(Device device, Arch arch) {
  device.arch = arch;
  return device;
}

/// The device with less shared memory per thread block. With kLeastShared, an A100 or H100 runs the
/// kernels of RTX devices.
constexpr Device with_shared_bytes(Device device, std::int32_t bytes) {
  device.shared_bytes = bytes;
  return device;
}

}  // namespace mhla::cuda
