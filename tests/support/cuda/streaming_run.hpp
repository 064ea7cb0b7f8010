#pragma once

/// \file
/// Streams in the emulator, with outputs compared to the causal form in double.
///
/// Bound. Let u be the unit roundoff of T and eta its least normal number: rounding changes x by at
/// most u (|x| + eta). phi(q) and phi(k) are rounded. S_b, S~' and S~ are rounded by u_s |x| + u
/// eta, where u_s is u, or u^2 as a pair. exp2 and the additions of feature maps cost 2^-20. A
/// chain of n float additions has an error of gamma_n. The number that is rounded is 2^-s S. With
/// plus for magnitudes, to which eta is added where numbers are rounded to T,
///
///     e    = (1 + u)^2 (1 + 2^-20)^2 (1 + gamma_n) - 1     e_s = (1 + e) (1 + u_s)^3 - 1
///     dN   = phi(q)+ . (sum_b |m| (e_s S_b+ + 2^s 2 u eta) + 2^s 4 u eta)
///            + e |m_ii| sum_j (phi(q)+ . phi(k_j)+) |v_j|
///     dZ   = e phi(q)+ . (sum_b |m| z_b+ + |m_ii| sum_j phi(k_j)+)
///
/// With decaying terms |m| is sum_r |a_r| lambda_r^(i-b). A summary then passes at most two float
/// operations per block, and n has those of the terms, too. output_bound.hpp derives the errors of
/// outputs from these.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "emulator/device.hpp"
#include "mhla/cuda/kernel/streaming_state.cuh"
#include "mhla/cuda/kernel/streaming_step_sm80.cuh"
#include "support/cuda/exact_phi.hpp"
#include "support/cuda/mixing_memory.hpp"
#include "support/cuda/output_bound.hpp"
#include "support/cuda/problem.hpp"

namespace cuda_test {

using namespace mhla::cuda;  // NOLINT

struct StreamCase {
  int blocks, length, tokens;  ///< M, W, and the number of tokens taken, at most M W
  FeatureMap map;
  Denominator denominator;
  int batch = 1, heads = 1, layout = 0;
  unsigned seed = 1;
  float eps = 2;
  bool per_head = false;  ///< each head has a mixing matrix
  int terms = 0;          ///< R of decaying terms, for streams that may have more than M blocks

  Normalization normalization() const { return {denominator, 0.75f, eps}; }
};

/// A batch of streams in the emulator.
/// \tparam Map  FeatureMap, of the case, or a default-constructible map of one's own
template <class T, int D, int E, Precision P, class Map = FeatureMap>
struct Streams {
  static constexpr bool kOwnMap = !std::is_same_v<Map, FeatureMap>;
  using Step = std::conditional_t<kOwnMap, MappedStepParameters<Map, Map>, StreamingStepParameters>;
  using Kernel = StreamingStepSm80<T, D, E, P, Step>;
  using EndlessKernel = StreamingStepSm80<T, D, E, P, Step, true>;
  StreamCase c;
  Tensor<T> q, k, v, o;  ///< [B, N, H, D]; a step reads one token
  MixingMemory mixing;
  StreamingStateLayout layout;
  Array<unsigned char> state;
  Array<std::int32_t> sequence_of;  ///< of the two items of a batch
  emulator::Device device;
  emulator::Report report;  ///< of the latest step

  Streams(const StreamCase& which, unsigned schedule)
      : c(which),
        q(tensor(D, c.layout)),
        k(tensor(D, (c.layout + 1) % 3)),
        v(tensor(E, c.layout)),
        o(tensor(E, (c.layout + 2) % 3)),
        mixing(c.terms > 0 ? 2 : c.blocks, c.terms > 0 ? c.terms : c.blocks,
               c.per_head ? c.heads : 1),
        layout(streaming_state_layout(c.batch * c.heads, kept(), c.length, D, E, P, c.terms)),
        state(layout.bytes),
        sequence_of(2),
        device(schedule) {
    Random random(c.seed);
    for (Tensor<T>* x : {&q, &k, &v}) x->fill([&] { return random.normal(); });
    if (c.terms > 0) {
      mixing.fill_terms(random, c.denominator == Denominator::kNone);
    } else {
      mixing.fill(random, c.denominator == Denominator::kNone, true);
    }
    std::memset(state.data(), 0, static_cast<std::size_t>(layout.position_bytes));
    using emulator::Access;
    device.track("q", q.raw(), q.bytes(), Access::kRead);
    device.track("k", k.raw(), k.bytes(), Access::kRead);
    device.track("v", v.raw(), v.bytes(), Access::kRead);
    device.track("o", o.raw(), o.bytes(), Access::kWrite);
    device.track("sequence_of", sequence_of.raw(), sequence_of.bytes(), Access::kRead);
    mixing.track(device);
    const std::int64_t pairs = c.batch * c.heads, low_bytes = P == Precision::kPair ? 1 : 0;
    track("positions", 0, layout.position_bytes);
    track("mixtures", layout.mixture_high, pairs * 2 * D * E * 2);
    track("mixtures low", layout.mixture_low, pairs * 2 * D * E * 2 * low_bytes);
    track("mixed key sums", layout.mixture_key_sum, pairs * 2 * D * 4);
    track("summaries", layout.summary_high, pairs * kept() * D * E * 2);
    track("summaries low", layout.summary_low, pairs * kept() * D * E * 2 * low_bytes);
    track("key sums", layout.summary_key_sum, pairs * kept() * D * 4);
    track("keys", layout.keys, pairs * c.length * D * 2);
    track("values", layout.values, pairs * c.length * E * 2);
    track("terms", layout.terms, pairs * c.terms * D * E * 4);
    track("term key sums", layout.term_key_sums, pairs * c.terms * D * 4);
  }

  /// Blocks whose summaries a state has.
  std::int64_t kept() const { return c.terms > 0 ? 2 : c.blocks; }
  /// m_ib of a head, and its bound as a sum of magnitudes.
  double coefficient(int i, int b, int head) const {
    return c.terms > 0 ? mixing.decay(i - b, head, false) : mixing.value(i, b, head);
  }
  double magnitude(int i, int b, int head) const {
    return c.terms > 0 ? mixing.decay(i - b, head, true) : std::abs(mixing.value(i, b, head));
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

  /// phi in double.
  double phi(double x) const {
    if constexpr (kOwnMap) {
      return Map{}.function(x);
    } else {
      return exact_phi<T>(c.map, x);
    }
  }

  /// Takes token t of all sequences.
  void step(int t) {
    launch(c.batch, nullptr, [t](auto tensor) {
      tensor.data += t * tensor.token_stride;
      return tensor;
    });
  }

  /// A token of one sequence.
  struct Token {
    int sequence, t;
    bool known = true;  ///< false: an item without a sequence
  };
  /// Takes tokens of two sequences, which may be at different positions.
  void step(Token x, Token y) {
    sequence_of[0] = x.known ? x.sequence : -1;
    sequence_of[1] = y.known ? y.sequence : c.batch;
    launch(2, sequence_of.data(), [&](auto tensor) {
      const auto place = [&](Token token) {
        return token.sequence * tensor.batch_stride + token.t * tensor.token_stride;
      };
      tensor.data += place(x);
      tensor.batch_stride = place(y) - place(x);
      return tensor;
    });
  }

  /// Resets one sequence.
  void start(int sequence) {
    const auto bytes = static_cast<std::size_t>(layout.position_bytes / c.batch);
    std::memset(state.data() + static_cast<std::size_t>(sequence) * bytes, 0, bytes);
  }

  /// Parameters of kernels for the tensors of items().
  template <class Items>
  StreamingStepParameters parameters(const Items& items) {
    return {items(q.input()),
            items(k.input()),
            items(v.input()),
            items(o.output()),
            {1, 1, (c.terms > 0 ? 1 << 20 : c.blocks) * c.length, 1, 1, c.length},
            c.heads,
            c.map,
            c.map,
            c.normalization(),
            mixing.array(),
            layout.at(state.data()),
            c.batch,
            nullptr,
            0,
            c.terms};
  }

  template <class Items>
  void launch(int batch, const std::int32_t* sequences, const Items& items) {
    StreamingStepParameters token = parameters(items);
    token.sequence_of = sequences;
    const Step p = [&] {
      if constexpr (kOwnMap) {
        return Step(token, {}, {});
      } else {
        return token;
      }
    }();
    const unsigned grid = Kernel::grid(p, batch * c.heads);
    report = c.terms > 0 ? device.template launch<EndlessKernel>(grid, p)
                         : device.template launch<Kernel>(grid, p);
  }
};

/// Compares the outputs of a pair with the causal form.
/// \param roundings  of products in the open block: of phi(q), of phi(k), and in a prefill of the
///                   weight
template <class T, int D, int E, Precision P, class Map>
void compare(Comparison& comparison, const Streams<T, D, E, P, Map>& x, int batch, int head,
             int roundings = 2) {
  const double u = kRoundoff<T>, eta = std::ldexp(1.0, Format<T>::kLowest);
  const double u_s = P == Precision::kPair ? u * u : u;
  const double chain = (1 + 0x1p-20) * (1 + 0x1p-20) *
                       (1 + gamma(2.0 * x.c.length + 2 * D + 2 * x.c.blocks + 2 * x.c.terms + 60));
  const double e = std::pow(1 + u, roundings) * chain - 1, e_s = (1 + e) * std::pow(1 + u_s, 3) - 1;
  constexpr std::size_t kD = D, kE = E;
  using Vector = std::vector<double>;
  std::vector<Vector> s, s_plus, z, z_plus;  // per block
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
            const double m = plus ? x.magnitude(i, b, head) : x.coefficient(i, b, head);
            to[n] += m * (factor * from[static_cast<std::size_t>(b)][n] + start);
          }
        }
      };
      mix(mixed, s, 0, false, 1);
      mix(off, s_plus, 2 * u * eta / x.layout.scale, true, e_s);
      mix(mixed_z, z, 0, false, 1);
      mix(off_z, z_plus, 0, true, e);
    }
    const double m = x.coefficient(i, i, head), size = x.magnitude(i, i, head);
    const auto block = static_cast<std::size_t>(i);
    Vector n(kE), dn(kE);
    double den = 0, dz = 0;
    for (std::size_t d = 0; d < kD; ++d) {
      const int column = static_cast<int>(d);
      const double key = x.phi(x.k.value(batch, t, head, column));
      const double query = x.phi(x.q.value(batch, t, head, column));
      const double plus = std::abs(query) + eta;
      z[block][d] += key;
      z_plus[block][d] += std::abs(key) + eta;
      den += query * (mixed_z[d] + m * z[block][d]);
      dz += plus * (off_z[d] + e * size * z_plus[block][d]);
      for (std::size_t c = 0; c < kE; ++c) {
        const double value = x.v.value(batch, t, head, static_cast<int>(c));
        s[block][d * kE + c] += key * value;
        s_plus[block][d * kE + c] += (std::abs(key) + eta) * std::abs(value);
        n[c] += query * (mixed[d * kE + c] + m * s[block][d * kE + c]);
        dn[c] += plus * (off[d * kE + c] + e * size * s_plus[block][d * kE + c]);
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

}  // namespace cuda_test
