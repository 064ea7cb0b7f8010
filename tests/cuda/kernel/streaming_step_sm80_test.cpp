// Decoding token by token: outputs of whole sequences against the causal form in double, what a
// step reads and writes, what it leaves alone.
//
// Bound. Let u be the unit roundoff of T and eta its least normal number: rounding moves x by at
// most u (|x| + eta). phi(q) and phi(k) are rounded. S_b, S~' and S~ are too, by u_s |x| + u eta,
// where u_s is u, or u^2 as a pair. exp2 and the additions of feature maps cost 2^-20; sums of a
// chain of n floats are off by gamma_n. 2^-s S is what is rounded. With plus for magnitudes, eta
// added to what is rounded to T,
//
//     e    = (1 + u)^2 (1 + 2^-20)^2 (1 + gamma_n) - 1     e_s = (1 + e) (1 + u_s)^3 - 1
//     dN   = phi(q)+ . (sum_b |m| (e_s S_b+ + 2^s 2 u eta) + 2^s 4 u eta)
//            + e |m_ii| sum_j (phi(q)+ . phi(k_j)+) |v_j|
//     dZ   = e phi(q)+ . (sum_b |m| z_b+ + |m_ii| sum_j phi(k_j)+)
//
// Outputs then: output_bound.hpp.

#include "mhla/cuda/kernel/streaming_step_sm80.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "emulator/device.hpp"
#include "mhla/cuda/kernel/streaming_slice.cuh"
#include "mhla/cuda/kernel/streaming_state.cuh"
#include "support/cuda/exact_phi.hpp"
#include "support/cuda/mixing_memory.hpp"
#include "support/cuda/output_bound.hpp"
#include "support/cuda/problem.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

struct Case {
  int blocks, length, tokens;  ///< M, W, and how many of the M W come
  FeatureMap map;
  Denominator denominator;
  int batch = 1, heads = 1, layout = 0;
  unsigned seed = 1;

  Normalization normalization() const { return {denominator, 0.75f, 2.0f}; }
};

/// A batch of streams in the emulator.
template <class T, int D, int E, Precision P>
struct Streams {
  using Kernel = StreamingStepSm80<T, D, E, P>;
  Case c;
  Tensor<T> q, k, v, o;  ///< [B, N, H, D], of which steps see one token
  MixingMemory mixing;
  StreamingStateLayout layout;
  Array<unsigned char> state;
  emulator::Device device;
  emulator::Report report;  ///< of the latest step

  Streams(const Case& which, unsigned schedule)
      : c(which),
        q(tensor(D, c.layout)),
        k(tensor(D, (c.layout + 1) % 3)),
        v(tensor(E, c.layout)),
        o(tensor(E, (c.layout + 2) % 3)),
        mixing(c.blocks, c.blocks),
        layout(streaming_state_layout(c.batch * c.heads, c.blocks, c.length, D, E, P)),
        state(layout.bytes),
        device(schedule) {
    Random random(c.seed);
    for (Tensor<T>* x : {&q, &k, &v}) x->fill([&] { return random.normal(); });
    mixing.fill(random, c.denominator == Denominator::kNone, true);
    std::memset(state.data(), 0, static_cast<std::size_t>(layout.position_bytes));
    using emulator::Access;
    device.track("q", q.raw(), q.bytes(), Access::kRead);
    device.track("k", k.raw(), k.bytes(), Access::kRead);
    device.track("v", v.raw(), v.bytes(), Access::kRead);
    device.track("o", o.raw(), o.bytes(), Access::kWrite);
    mixing.track(device);
    const std::int64_t pairs = c.batch * c.heads, low_bytes = P == Precision::kPair ? 1 : 0;
    track("positions", 0, layout.position_bytes);
    track("mixtures", layout.mixture_high, pairs * 2 * D * E * 2);
    track("mixtures low", layout.mixture_low, pairs * 2 * D * E * 2 * low_bytes);
    track("mixed key sums", layout.mixture_key_sum, pairs * 2 * D * 4);
    track("summaries", layout.summary_high, pairs * c.blocks * D * E * 2);
    track("summaries low", layout.summary_low, pairs * c.blocks * D * E * 2 * low_bytes);
    track("key sums", layout.summary_key_sum, pairs * c.blocks * D * 4);
    track("keys", layout.keys, pairs * c.length * D * 2);
    track("values", layout.values, pairs * c.length * E * 2);
  }

  Tensor<T> tensor(int width, int kind) const {
    return {c.batch, c.tokens, c.heads, width, Layout::any(kind, c.tokens, c.heads, width)};
  }
  void track(const char* name, std::int64_t begin, std::int64_t bytes) {
    if (bytes == 0) return;
    ASSERT_LE(begin + bytes, layout.bytes);
    device.track(name, state.data() + begin, static_cast<std::size_t>(bytes),
                 emulator::Access::kReadWrite);
  }

  void step(int t) {
    const auto token = [t](auto tensor) {
      tensor.data += t * tensor.token_stride;
      return tensor;
    };
    const StreamingStepParameters p{token(q.input()),
                                    token(k.input()),
                                    token(v.input()),
                                    token(o.output()),
                                    {1, 1, c.blocks * c.length, 1, 1, c.length},
                                    c.heads,
                                    c.map,
                                    c.map,
                                    c.normalization(),
                                    mixing.array(),
                                    layout.at(state.data())};
    const unsigned blocks = Kernel::grid(p, c.batch * c.heads);
    report = device.template launch<Kernel>(blocks, p);
  }
};

/// Compares the outputs of a pair with the causal form.
template <class T, int D, int E, Precision P>
void compare(Comparison& comparison, const Streams<T, D, E, P>& x, int batch, int head) {
  const double u = kRoundoff<T>, eta = std::ldexp(1.0, Format<T>::kLowest);
  const double u_s = P == Precision::kPair ? u * u : u;
  const double chain =
      (1 + 0x1p-20) * (1 + 0x1p-20) * (1 + gamma(2.0 * x.c.length + 2 * D + 2 * x.c.blocks + 60));
  const double e = std::pow(1 + u, 2) * chain - 1, e_s = (1 + e) * std::pow(1 + u_s, 3) - 1;
  constexpr std::size_t kD = D, kE = E;
  using Vector = std::vector<double>;
  std::vector<Vector> s, s_plus, z, z_plus;  // of blocks
  Vector mixed(kD * kE), off(kD * kE), mixed_z(kD), off_z(kD);
  for (int t = 0; t < x.c.tokens; ++t) {
    const int i = t / x.c.length;
    if (t % x.c.length == 0) {
      s.emplace_back(kD * kE);
      s_plus.emplace_back(kD * kE);
      z.emplace_back(kD);
      z_plus.emplace_back(kD);
      const auto mix = [&](Vector& to, const std::vector<Vector>& from, double start, bool plus,
                           double factor) {
        for (std::size_t n = 0; n < to.size(); ++n) {
          to[n] = 2 * start;  // S~ is rounded twice
          for (int b = 0; b < i; ++b) {
            const double m = plus ? std::abs(x.mixing.value(i, b)) : x.mixing.value(i, b);
            to[n] += m * (factor * from[static_cast<std::size_t>(b)][n] + start);
          }
        }
      };
      mix(mixed, s, 0, false, 1);
      mix(off, s_plus, 2 * u * eta / x.layout.scale, true, e_s);
      mix(mixed_z, z, 0, false, 1);
      mix(off_z, z_plus, 0, true, e);
    }
    const double m = x.mixing.value(i, i);
    const auto own = static_cast<std::size_t>(i);
    Vector n(kE), dn(kE);
    double den = 0, dz = 0;
    for (std::size_t d = 0; d < kD; ++d) {
      const int column = static_cast<int>(d);
      const double key = exact_phi(x.c.map, x.k.value(batch, t, head, column));
      const double query = exact_phi(x.c.map, x.q.value(batch, t, head, column));
      const double plus = std::abs(query) + eta;
      z[own][d] += key;
      z_plus[own][d] += std::abs(key) + eta;
      den += query * (mixed_z[d] + m * z[own][d]);
      dz += plus * (off_z[d] + e * std::abs(m) * z_plus[own][d]);
      for (std::size_t c = 0; c < kE; ++c) {
        const double value = x.v.value(batch, t, head, static_cast<int>(c));
        s[own][d * kE + c] += key * value;
        s_plus[own][d * kE + c] += (std::abs(key) + eta) * std::abs(value);
        n[c] += query * (mixed[d * kE + c] + m * s[own][d * kE + c]);
        dn[c] += plus * (off[d * kE + c] + e * std::abs(m) * s_plus[own][d * kE + c]);
      }
    }
    for (std::size_t c = 0; c < kE; ++c) {
      const int column = static_cast<int>(c);
      comparison.compare(x.o.value(batch, t, head, column),
                         output<T>({n[c], dn[c]}, {den, dz}, x.c.normalization()), batch, t, head,
                         column);
    }
  }
}

/// Bytes of the matrices of a pair that a step moves.
struct Moved {
  std::uint64_t mixtures_read, mixtures_written, summaries_read, summaries_written;
};

/// \param t  the token
template <int D, int E>
Moved moved(const Case& c, int t) {
  using Slice = StreamingSlice<D, E>;
  const int block = t / c.length, slot = t % c.length;
  const bool last = slot == c.length - 1, next = block + 1 < c.blocks;
  const auto row_bytes = [](int rows) { return static_cast<std::uint64_t>(rows * E * 2); };
  Moved moved{};
  if (next) {  // a share of what the next block reads, from all before this one
    const int pieces = D * Slice::kPieces, each = (pieces + c.length - 1) / c.length;
    const int share = std::clamp(pieces - slot * each, 0, each);
    moved.mixtures_written = static_cast<std::uint64_t>(share * 16 * Slice::kSlices);
    moved.summaries_read = moved.mixtures_written * static_cast<std::uint64_t>(block);
    if (last) moved.summaries_written = row_bytes(D);
  }
  if (block > 0) {  // rows that have not had their turn get the part of the block before
    const auto rows_from = [](int turn) { return std::max(0, D - 2 * Slice::kGroups * turn); };
    moved.mixtures_read = row_bytes(D);
    moved.summaries_read += row_bytes(rows_from(slot));
    moved.mixtures_written += row_bytes(rows_from(slot) - (last ? 0 : rows_from(slot + 1)));
  }
  return moved;
}

/// Runs whole sequences and checks everything.
template <class T, int D, int E, Precision P>
void check(const Case& c) {
  SCOPED_TRACE(std::string(Format<T>::kName) + " D " + std::to_string(D) + " E " +
               std::to_string(E) + " W " + std::to_string(c.length));
  Streams<T, D, E, P> x(c, c.seed);
  const auto pairs = static_cast<std::uint64_t>(c.batch * c.heads);
  for (int t = 0; t < c.tokens; ++t) {
    x.step(t);
    const auto slot = static_cast<std::uint64_t>(t % c.length);
    const auto slices = static_cast<std::uint64_t>(E / streaming_slice(E));
    const Moved expected = moved<D, E>(c, t);
    ASSERT_EQ(x.report.bank_conflicts, 0u) << t;
    for (const char* part : {"", " low"}) {
      if (P == Precision::kSingle && part[0] != 0) continue;
      const std::string mixtures = std::string("mixtures") + part;
      const std::string summaries = std::string("summaries") + part;
      ASSERT_EQ(x.report.bytes_read(mixtures), pairs * expected.mixtures_read) << t;
      ASSERT_EQ(x.report.bytes_written(mixtures), pairs * expected.mixtures_written) << t;
      ASSERT_EQ(x.report.bytes_read(summaries), pairs * expected.summaries_read) << t;
      ASSERT_EQ(x.report.bytes_written(summaries), pairs * expected.summaries_written) << t;
    }
    ASSERT_EQ(x.report.bytes_written("keys"), pairs * D * 2);
    ASSERT_EQ(x.report.bytes_written("values"), pairs * E * 2);
    ASSERT_EQ(x.report.bytes_written("o"), pairs * E * 2);
    ASSERT_EQ(x.report.bytes_read("keys"), pairs * slices * slot * D * 2);
    ASSERT_EQ(x.report.bytes_read("values"), pairs * slot * E * 2);
  }
  EXPECT_TRUE(x.o.padding_is_untouched());
  Comparison comparison("W " + std::to_string(c.length));
  for (int b = 0; b < c.batch; ++b) {
    for (int h = 0; h < c.heads; ++h) compare(comparison, x, b, h);
  }
  EXPECT_GT(comparison.worst(), 0);
}

constexpr auto kSingle = Precision::kSingle;
constexpr auto kPair = Precision::kPair;

TEST(StreamingStepSm80, EveryTokenMayBeABlock) {
  check<bfloat16, 64, 64, kSingle>({40, 1, 40, kElu, kKeySum, 1, 2, 0, 1});
  check<half, 72, 72, kPair>({7, 1, 7, kIdentity, kNone, 1, 1, 1, 2});
  check<bfloat16, 128, 256, kSingle>({4, 1, 4, kRelu, kKeySum, 1, 1, 2, 3});
}

TEST(StreamingStepSm80, ShortBlocks) {
  check<bfloat16, 64, 64, kPair>({5, 5, 23, kRelu, kKeySum, 2, 2, 1, 1});
  check<half, 64, 64, kSingle>({6, 16, 96, kIdentity, kNone, 1, 1, 2, 2});
  check<bfloat16, 72, 72, kSingle>({4, 5, 20, kElu, kKeySum, 2, 1, 0, 3});
  check<half, 128, 128, kPair>({5, 5, 25, kElu, kKeySum, 1, 2, 1, 4});
}

TEST(StreamingStepSm80, WideValuesAreSlicedAmongBlocks) {
  check<bfloat16, 128, 256, kPair>({3, 16, 37, kElu, kKeySum, 1, 2, 0, 1});
  check<half, 128, 256, kSingle>({3, 5, 15, kIdentity, kNone, 2, 1, 1, 2});
  check<bfloat16, 128, 128, kSingle>({3, 16, 48, kRelu, kKeySum, 1, 1, 2, 3});
}

TEST(StreamingStepSm80, BlocksAsLongAsAChunkAndLonger) {
  check<bfloat16, 64, 64, kSingle>({3, 64, 140, kElu, kKeySum, 1, 1, 0, 1});
  check<half, 72, 72, kSingle>({2, 70, 75, kRelu, kKeySum, 1, 1, 1, 2});
  check<half, 128, 128, kSingle>({2, 64, 66, kIdentity, kNone, 1, 1, 2, 3});
  check<bfloat16, 64, 64, kPair>({2, 150, 152, kRelu, kKeySum, 1, 1, 0, 4});
}

TEST(StreamingStepSm80, BytesOfAStepAreFlat) {
  const Case c{26, 16, 25 * 16, kRelu, kKeySum};
  Streams<bfloat16, 64, 64, kSingle> x(c, 1);
  std::uint64_t least = ~0ull, most = 0;
  for (int t = 0; t < c.tokens; ++t) {
    x.step(t);
    if (t < 24 * c.length) continue;
    std::uint64_t bytes = 0;
    for (const auto& [name, traffic] : x.report.traffic) bytes += traffic.read + traffic.written;
    least = std::min(least, bytes);
    most = std::max(most, bytes);
  }
  EXPECT_LT(most, 2 * least);              // of any step of block 24,
  EXPECT_LT(most, 24u * 64 * 64 * 2 / 3);  // which reads 24 summaries in all
}

TEST(StreamingStepSm80, AfterTheLastTokenOutputsAreNanAndTheStateStays) {
  const Case c{2, 3, 7, kRelu, kKeySum, 1, 2, 0, 1};
  Streams<bfloat16, 128, 128, kSingle> x(c, 1);
  for (int t = 0; t < 6; ++t) x.step(t);
  const std::vector<unsigned char> before(x.state.data(), x.state.data() + x.state.size());
  x.step(6);
  for (int h = 0; h < 2; ++h) {
    for (int e = 0; e < 128; ++e) {
      EXPECT_FALSE(std::isnan(x.o.value(0, 5, h, e)));
      EXPECT_TRUE(std::isnan(x.o.value(0, 6, h, e)));
    }
  }
  EXPECT_EQ(x.report.bytes_written("o"), 2u * 128 * 2);
  EXPECT_EQ(std::memcmp(before.data(), x.state.data(), before.size()), 0);
}

TEST(StreamingStepSm80, SchedulesChangeNoBit) {
  const Case c{3, 6, 14, kElu, kKeySum, 1, 2, 0, 5};
  Streams<half, 128, 128, kPair> first(c, 0);
  for (int t = 0; t < c.tokens; ++t) first.step(t);
  for (unsigned schedule = 1; schedule < 4; ++schedule) {
    Streams<half, 128, 128, kPair> again(c, schedule);
    for (int t = 0; t < c.tokens; ++t) again.step(t);
    EXPECT_EQ(std::memcmp(first.o.raw(), again.o.raw(), first.o.bytes()), 0);
    EXPECT_EQ(std::memcmp(first.state.data(), again.state.data(), first.state.bytes()), 0);
  }
}

TEST(StreamingStepSm80, PairsKeepTheDigitsOfTheMixture) {
  const Case c{3, 1, 3, kIdentity, kNone};
  Streams<bfloat16, 64, 64, kPair> x(c, 1);
  for (Tensor<bfloat16>* tensor : {&x.q, &x.k, &x.v}) tensor->fill([] { return 1; });
  for (int i = 0; i < 3; ++i) {
    for (int b = 0; b < 3; ++b) x.mixing.at(i, b) = 0;
  }
  x.mixing.at(2, 0) = 1 + 0x1p-10f;  // S~_2 = S_0 (1 + 2^-10), which bfloat16 rounds to S_0;
  x.mixing.at(2, 2) = -1;            // the own block takes S_0 away again
  for (int t = 0; t < 3; ++t) x.step(t);
  for (int e = 0; e < 64; ++e) EXPECT_EQ(x.o.value(0, 2, 0, e), 0.75 * 64 * 0x1p-10);
}

TEST(StreamingStepSm80, LargeSumsStayInRange) {
  const Case c{2, 64, 66, kRelu, kKeySum};
  Streams<half, 64, 64, kSingle> x(c, 1);
  for (Tensor<half>* tensor : {&x.k, &x.v}) tensor->fill([] { return 50; });  // S is 160000
  for (int t = 0; t < c.tokens; ++t) x.step(t);
  Comparison comparison("large sums");
  compare(comparison, x, 0, 0);
}

TEST(StreamingStepSm80, AStateIsAsLargeAsItsPartsSay) {
  const auto single = streaming_state_layout(3, 10, 64, 128, 256, kSingle);
  EXPECT_EQ(single.position_bytes, 3 * 4 * 8);
  EXPECT_EQ(single.mixture_high, 256);
  EXPECT_EQ(single.bytes, 256 + 3 * (2 * 12 * 128 * 256 + 4 * 12 * 128 + 2 * 64 * (128 + 256)));
  const auto pair = streaming_state_layout(3, 10, 64, 128, 256, kPair);
  EXPECT_EQ(pair.bytes - single.bytes, 3 * 2 * 12 * 128 * 256);
  const auto odd = streaming_state_layout(1, 1, 1, 72, 72, kSingle);
  for (const std::int64_t begin : {odd.mixture_key_sum, odd.summary_high, odd.keys, odd.values}) {
    EXPECT_EQ(begin % 256, 0);
  }
}

}  // namespace
}  // namespace cuda_test
