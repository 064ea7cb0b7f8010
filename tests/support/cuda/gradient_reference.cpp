#include "support/cuda/gradient_reference.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/causal.hpp"
#include "support/cuda/head_numbers.hpp"

namespace cuda_test {
namespace {

/// Blocks and slots of tokens.
struct Places {
  std::vector<int> block, slot;
  int blocks = 0, slots = 0;

  explicit Places(const PrefixedGrid& grid) {
    block.resize(static_cast<std::size_t>(grid.tokens()));
    slot.resize(block.size());
    blocks = static_cast<int>(grid.blocks());
    for (int i = 0; i < blocks; ++i) {
      int place = 0;
      for (mhla::Index r = 0; r < grid.runs(i); ++r) {
        const mhla::Run run = grid.run(i, r);
        for (mhla::Index t = run.begin; t < run.begin + run.length; ++t) {
          block[static_cast<std::size_t>(t)] = i;
          slot[static_cast<std::size_t>(t)] = place++;
        }
      }
      slots = std::max(slots, place);
    }
  }
  int of(Eigen::Index t) const { return block[static_cast<std::size_t>(t)]; }
  int place(Eigen::Index t) const { return slot[static_cast<std::size_t>(t)]; }
};

/// Rotates rows back.
Numbers turned_back(const Numbers& x, const Array<float>& angles) {
  if (angles.size() == 0) return x;
  Numbers y = x;
  for (Eigen::Index i = 0; i < x.size(); i += 2) {
    const double cos = angles.value(i), sin = angles.value(i + 1);
    y.data()[i] = x.data()[i] * cos + x.data()[i + 1] * sin;
    y.data()[i + 1] = x.data()[i + 1] * cos - x.data()[i] * sin;
  }
  return y;
}

double derivative(const mhla::cuda::FeatureMap& map, const ExactMap& own, double x) {
  if (own) return own.derivative(x);
  if (map.exponential) return x > 0 ? 1 : std::exp(x);
  return x > static_cast<double>(map.floor) ? 1 : 0;
}

/// Gradients of the decaying terms of a head, from those of its matrix. Sums magnitudes of their
/// factors if `plus`.  // [2,R]
template <class T>
Numbers of_terms(const Call<T>& call, int b, int h, const Numbers& dm, bool plus) {
  const std::int64_t first = call.matrix_of(b, h);
  Numbers terms = Numbers::Zero(2, call.columns());
  for (Eigen::Index r = 0; r < terms.cols(); ++r) {
    const double weight = call.mixing.value(first + r);
    const double decay = call.mixing.value(first + terms.cols() + r);
    for (Eigen::Index i = 0; i < dm.rows(); ++i) {
      for (Eigen::Index k = 0; k <= i; ++k) {
        const auto distance = static_cast<double>(i - k);
        terms(0, r) += std::pow(decay, distance) * dm(i, k);
        if (k == i) continue;
        terms(1, r) += (plus ? std::abs(weight) : weight) * distance *
                       std::pow(decay, distance - 1) * dm(i, k);
      }
    }
  }
  return terms;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// Outputs before a norm, and the gradients through the norm and the gate.
struct Normed {
  Numbers dout, dgate, gain;  // gradients of o, of the gate, and of the gain per token [N,E]

  /// \param dy  gradient of the final outputs
  /// \param o   outputs before the norm
  Normed(const Numbers& dy, const Numbers& o, const Numbers& gains, const Numbers* gate, double eps)
      : dout(dy),
        dgate(Numbers::Zero(dy.rows(), dy.cols())),
        gain(Numbers::Zero(dy.rows(), dy.cols())) {
    const auto width = static_cast<double>(o.cols());
    for (Eigen::Index t = 0; t < o.rows(); ++t) {
      const double inverse = 1 / std::sqrt(o.row(t).squaredNorm() / width + eps);
      double along = 0;
      for (Eigen::Index e = 0; e < o.cols(); ++e) {
        const double n = o(t, e) * inverse;
        double open = 1;
        if (gate != nullptr) {
          const double g = (*gate)(t, e), s = sigmoid(g);
          open = g * s;
          dgate(t, e) = dy(t, e) * n * gains(0, e) * s * (1 + g * (1 - s));
        }
        gain(t, e) = dy(t, e) * open * n;
        dout(t, e) = dy(t, e) * open * gains(0, e);
        along += dout(t, e) * o(t, e);
      }
      along *= inverse * inverse / width;
      for (Eigen::Index e = 0; e < o.cols(); ++e) {
        dout(t, e) = inverse * (dout(t, e) - o(t, e) * along);
      }
    }
  }
};

}  // namespace

template <class T>
ExpectedGradient expected_gradient(const GradientCall<T>& call, int b, int h, double chain) {
  const mhla::cuda::Operator& op = call.op;
  const Rounding<T> rounding;
  const double u = rounding.u, eta = rounding.eta;
  const double scale = static_cast<double>(op.scale), eps = static_cast<double>(op.eps);
  const double growth = gamma(chain);
  const auto query_map = feature<T>(op.query_map, call.own_query_map);
  const auto key_map = feature<T>(op.key_map, call.own_key_map);
  const auto same = [](double x) { return x; };
  const mhla::Mask query_mask = call.query_mask(b), key_mask = call.key_mask(b);
  const Numbers q = without_masked(head(call.q, b, h, query_map), query_mask);
  const Numbers k = without_masked(head(call.k, b, h, key_map), key_mask);
  const Numbers v = without_masked(head(call.v, b, h, same), key_mask);
  const Numbers dy = without_masked(head(call.dout, b, h, same), query_mask);
  const Numbers tq = turned(q, call.query_angles), tk = turned(k, call.angles_of_keys());
  const Eigen::Index nq = q.rows(), nk = k.rows();
  const Places queries(call.queries()), keys(call.keys());
  const Numbers mixing = mixing_matrix(call, b, h);

  // Outputs before a norm, and their bound.
  const Call<T>& forward = call;
  const Expected outputs = expected(forward, b, h, chain, Outputs::kBeforeNorm);
  Numbers dout = dy, dout_error = Numbers::Zero(nq, v.cols());
  ExpectedGradient r;
  if (call.normed()) {
    Numbers gains(1, v.cols());
    for (Eigen::Index e = 0; e < v.cols(); ++e) gains(0, e) = call.gain.value(e);
    const Numbers gate = call.gated() ? head(call.gate, b, h, same) : Numbers();
    const Numbers* const g = call.gated() ? &gate : nullptr;
    const double norm_eps = static_cast<double>(op.norm_eps);
    const Normed exact(dy, outputs.o, gains, g, norm_eps);
    dout = exact.dout;
    r.gate = exact.dgate;
    r.gain = exact.gain.colwise().sum();
    r.gate_bound = Numbers::Zero(nq, v.cols());
    r.gain_bound = Numbers::Zero(1, v.cols());
    // Change one output at a time by its bound. Twice the first differences cover the others.
    for (Eigen::Index e = 0; e < v.cols(); ++e) {
      Numbers moved = outputs.o;
      moved.col(e) += outputs.bound.col(e);
      const Normed other(dy, moved, gains, g, norm_eps);
      dout_error += 2 * (other.dout - exact.dout).cwiseAbs();
      r.gate_bound += 2 * (other.dgate - exact.dgate).cwiseAbs();
      r.gain_bound += 2 * (other.gain - exact.gain).cwiseAbs().colwise().sum();
    }
    const double small = growth + 0x1p-18;  // approximations of roots and exponentials
    dout_error +=
        small * (4 * dout.cwiseAbs() + Numbers::Constant(nq, v.cols(), dout.cwiseAbs().maxCoeff()));
    r.gate_bound += (u + small) * r.gate.cwiseAbs() + Numbers::Constant(nq, v.cols(), u * eta);
    const Normed sizes(dy.cwiseAbs(), outputs.o.cwiseAbs(), gains.cwiseAbs(), nullptr, norm_eps);
    r.gain_bound += small * 4 * sizes.gain.colwise().sum();
  }

  // Gradients in double, of rotated features and of the unrotated features in denominators.
  mhla::Inputs<double> in{.q = tq, .k = tk, .v = v};
  in.query_mask = query_mask, in.key_mask = key_mask;
  if (call.rotary()) in.normalizer_q = q, in.normalizer_k = k;
  Numbers dq = Numbers::Zero(nq, q.cols()), dk = Numbers::Zero(nk, k.cols());
  Numbers dnq = dq, dnk = dk, dv = Numbers::Zero(nk, v.cols());
  Numbers dm = Numbers::Zero(mixing.rows(), mixing.cols());
  mhla::Gradients<double> gradients{.q = dq, .k = dk, .v = dv};
  if (call.rotary()) gradients.normalizer_q = dnq, gradients.normalizer_k = dnk;
  const mhla::ParameterGradients<double> parameters{.mixing = mhla::MixingView<double>(dm)};
  const mhla::MixingMatrix<double> matrix(mixing);
  const auto run = [&](auto normalizer) {
    const mhla::Operator exact{mhla::Identity{}, mhla::Identity{}, normalizer, scale};
    if constexpr (!std::is_same_v<decltype(normalizer), mhla::CrossQuery>) {
      if (call.causal) {
        mhla::causal_gradient(in, call.queries(), matrix, exact, dout, gradients, parameters);
        return;
      }
    }
    const mhla::CrossBlocks blocks{call.queries(), call.keys()};
    mhla::bidirectional_gradient(in, blocks, matrix, exact, dout, gradients, parameters);
  };
  switch (op.denominator) {
    case mhla::cuda::Denominator::kKeySum:
      run(mhla::KeySum{eps});
      break;
    case mhla::cuda::Denominator::kCrossQuery:
      run(mhla::CrossQuery{eps});
      break;
    default:
      run(mhla::NoNormalizer{});
  }
  dq = turned_back(dq, call.query_angles) + dnq;
  dk = turned_back(dk, call.angles_of_keys()) + dnk;

  // Magnitudes: m of every pair of tokens, features, denominators.
  Numbers m(nq, nk);
  for (Eigen::Index t = 0; t < nq; ++t) {
    for (Eigen::Index j = 0; j < nk; ++j) {
      m(t, j) = call.causal && j > t ? 0 : std::abs(mixing(queries.of(t), keys.of(j)));
    }
  }
  const Numbers q_plus = turned_magnitudes(q, call.query_angles, eta);
  const Numbers k_plus = turned_magnitudes(k, call.angles_of_keys(), eta);
  const Numbers q_still = magnitudes(q, eta), k_still = magnitudes(k, eta);
  const Numbers v_plus = v.cwiseAbs();
  const double e_d = std::pow(1 + u, rounding.denominator) * (1 + growth) - 1;
  const double e = std::pow(1 + u, rounding.gradient + (call.rotary() ? 2 : 0)) * (1 + growth) - 1;

  // den, its magnitude, and the weights of cross queries.
  Numbers den = Numbers::Ones(nq, 1), z_plus = Numbers::Zero(nq, 1);
  const bool cross = op.denominator == mhla::cuda::Denominator::kCrossQuery;
  const bool key_sum = op.denominator == mhla::cuda::Denominator::kKeySum;
  Numbers intra_sums, block_sums_plus;  // z of every block
  if (key_sum) {
    Numbers signs(nq, nk);
    for (Eigen::Index t = 0; t < nq; ++t) {
      for (Eigen::Index j = 0; j < nk; ++j) {
        signs(t, j) = call.causal && j > t ? 0 : mixing(queries.of(t), keys.of(j));
      }
    }
    den = (scale * (signs.array() * (q * k.transpose()).array()).rowwise().sum() + eps).matrix();
    z_plus = (m.array() * (q_still * k_still.transpose()).array()).rowwise().sum().matrix();
  } else if (cross) {
    intra_sums = block_sums_plus = Numbers::Zero(keys.blocks, k.cols());
    for (Eigen::Index j = 0; j < nk; ++j) {
      intra_sums.row(keys.of(j)) += k.row(j);
      block_sums_plus.row(keys.of(j)) += k_still.row(j);
    }
    for (Eigen::Index t = 0; t < nq; ++t) {
      double d = 0, plus = 0;
      for (Eigen::Index s = 0; s < nq; ++s) {
        if (queries.place(s) != queries.place(t)) continue;
        const double coefficient = mixing(queries.of(t), queries.of(s));
        d += coefficient * q.row(s).dot(intra_sums.row(queries.of(s)));
        plus += std::abs(coefficient) * q_still.row(s).dot(block_sums_plus.row(queries.of(s)));
      }
      den(t, 0) = scale * d + eps;
      z_plus(t, 0) = plus;
    }
  }

  // dN and c, and their errors.
  Numbers dn(nq, v.cols()), dn_error(nq, v.cols()), c = Numbers::Zero(nq, 1),
                                                    c_error = Numbers::Zero(nq, 1);
  for (Eigen::Index t = 0; t < nq; ++t) {
    const double off = scale * e_d * z_plus(t, 0) / std::abs(den(t, 0));
    const double eps_t =
        off < 1 ? (1 + u) * (1 + growth) / (1 - off) - 1 : std::numeric_limits<double>::infinity();
    const bool any = dy.row(t).cwiseAbs().maxCoeff() > 0;
    for (Eigen::Index i = 0; i < v.cols(); ++i) {
      const double size = std::abs(scale / den(t, 0) * dout(t, i));
      const double moved = std::abs(scale / den(t, 0)) * dout_error(t, i) * (1 + eps_t);
      dn(t, i) = any ? size : 0;
      dn_error(t, i) = any ? eps_t * size + moved + u * eta : 0;
      if (!any || (!key_sum && !cross)) continue;
      // o is rounded when it is stored.
      const double o = std::abs(outputs.o(t, i)), o_error = outputs.bound(t, i);
      c(t, 0) += dn(t, i) * o;
      c_error(t, 0) += dn(t, i) * o_error + dn_error(t, i) * (o + o_error) + growth * dn(t, i) * o;
    }
  }

  // Gradients of features.
  const Numbers dn_plus = (dn + dn_error).array() + eta;
  const Numbers p_plus = q_plus * k_plus.transpose();
  const Numbers p_still = q_still * k_still.transpose();
  const Numbers g_plus = dn_plus * v_plus.transpose(), g_error = dn_error * v_plus.transpose();
  const double unit =
      eta /
      static_cast<double>(mhla::cuda::summary_scale(std::max(call.slots(), call.key_slots())));
  const double m_most = 1 + std::max(mixing.cwiseAbs().rowwise().sum().maxCoeff(),
                                     mixing.cwiseAbs().colwise().sum().maxCoeff());
  // Part of the bounds that eta adds to summaries, mixtures and weights.
  const auto underflow = [&](const Numbers& left, const Numbers& right) {
    return ((unit * m_most) * left.rowwise().sum() +
            Numbers::Constant(left.rows(), 1, eta * m_most * right.sum()));
  };
  const auto product = [](const Numbers& a, const Numbers& x) {
    return Numbers((a.array() * x.array()).matrix());
  };
  Numbers q_bound = e * (product(m, g_plus) * k_plus) + product(m, g_error) * k_plus;
  q_bound.colwise() += Eigen::VectorXd(u * underflow(dn_plus, k_plus).col(0));
  Numbers k_bound =
      e * (product(m, g_plus).transpose() * q_plus) + product(m, g_error).transpose() * q_plus;
  k_bound.colwise() += Eigen::VectorXd(u * underflow(v_plus, q_plus).col(0)) * 1.0;
  Numbers v_bound =
      e * (product(m, p_plus).transpose() * dn_plus) + product(m, p_plus).transpose() * dn_error;
  v_bound.colwise() += Eigen::VectorXd(u * underflow(k_plus, dn_plus).col(0));
  if (call.rotary()) {
    q_bound = 2 * q_bound;  // rotating back adds both numbers' errors
    k_bound = 2 * k_bound;
    for (Numbers* x : {&q_bound, &k_bound}) {
      for (Eigen::Index i = 0; i < x->size(); i += 2) {
        const double both = std::max(x->data()[i], x->data()[i + 1]);
        x->data()[i] = x->data()[i + 1] = both;
      }
    }
  }
  // Part that denominators add.
  Numbers cp = product(m, g_plus), sums_m(queries.blocks, keys.blocks);
  Numbers m_bound = Numbers::Zero(mixing.rows(), mixing.cols());
  const Numbers pg_plus = product(p_plus, g_plus), pg_error = product(p_plus, g_error);
  for (Eigen::Index t = 0; t < nq; ++t) {
    for (Eigen::Index j = 0; j < nk; ++j) {
      if (call.causal && j > t) continue;
      double bound = e * pg_plus(t, j) + pg_error(t, j);
      if (key_sum) bound += (e * (c(t, 0) + c_error(t, 0)) + c_error(t, 0)) * p_still(t, j);
      m_bound(queries.of(t), keys.of(j)) += bound;
    }
  }
  if (key_sum) {
    for (Eigen::Index t = 0; t < nq; ++t) {
      const double ec = e * (c(t, 0) + c_error(t, 0)) + c_error(t, 0);
      for (Eigen::Index j = 0; j < nk; ++j) {
        q_bound.row(t) += m(t, j) * ec * k_still.row(j);
        k_bound.row(j) += m(t, j) * ec * q_still.row(t);
      }
    }
  } else if (cross) {
    Numbers sums = Numbers::Zero(keys.blocks, k.cols());
    for (Eigen::Index s = 0; s < nq; ++s) {
      double ds = 0;
      for (Eigen::Index t = 0; t < nq; ++t) {
        if (queries.place(s) != queries.place(t)) continue;
        const double ec = e * (c(t, 0) + c_error(t, 0)) + c_error(t, 0);
        ds += std::abs(mixing(queries.of(t), queries.of(s))) * ec;
        m_bound(queries.of(t), queries.of(s)) +=
            ec * q_still.row(s).dot(block_sums_plus.row(queries.of(s)));
      }
      q_bound.row(s) += ds * block_sums_plus.row(queries.of(s));
      sums.row(queries.of(s)) += ds * q_still.row(s);
    }
    for (Eigen::Index j = 0; j < nk; ++j) k_bound.row(j) += sums.row(keys.of(j));
  }
  m_bound.array() += u * unit * m_most * static_cast<double>(q.cols() * v.cols()) *
                     (q_plus.maxCoeff() + k_plus.maxCoeff()) *
                     (dn_plus.maxCoeff() + v_plus.maxCoeff()) * static_cast<double>(nq + nk);

  // Through the feature maps, rounded.
  const auto through = [&](const Tensor<T>& x, const mhla::Mask& mask,
                           const mhla::cuda::FeatureMap& map, const ExactMap& own, Numbers& d,
                           Numbers& bound) {
    d = without_masked(d, mask), bound = without_masked(bound, mask);
    for (Eigen::Index t = 0; t < d.rows(); ++t) {
      if (!mask[t]) continue;
      for (Eigen::Index i = 0; i < d.cols(); ++i) {
        const double slope =
            derivative(map, own, x.value(b, static_cast<int>(t), h, static_cast<int>(i)));
        const double l = std::abs(slope), size = l * (std::abs(d(t, i)) + bound(t, i));
        const double twice = own || map.exponential ? u : 0;
        const double off = l * (bound(t, i) + twice * eta) + (0x1p-20 + twice) * size;
        d(t, i) *= slope;
        bound(t, i) = off + u * (std::abs(d(t, i)) + off) + u * eta;
      }
    }
  };
  through(call.q, query_mask, op.query_map, call.own_query_map, dq, q_bound);
  through(call.k, key_mask, op.key_map, call.own_key_map, dk, k_bound);
  v_bound = without_masked(v_bound, key_mask);
  v_bound += u * dv.cwiseAbs() + u * v_bound;
  v_bound.array() += u * eta;
  r.q = dq, r.k = dk, r.v = dv, r.mixing = dm;
  r.q_bound = q_bound, r.k_bound = k_bound, r.v_bound = v_bound, r.mixing_bound = m_bound;
  for (Eigen::Index i = 0; i < mixing.rows(); ++i) {
    for (Eigen::Index j = 0; j < mixing.cols(); ++j) {
      if (!call.has(i, j)) r.mixing(i, j) = r.mixing_bound(i, j) = 0;
    }
  }
  if (call.decays()) {
    r.mixing = of_terms(forward, b, h, dm, false);
    r.mixing_bound = of_terms(forward, b, h, m_bound, true);
  }
  return r;
}

template ExpectedGradient expected_gradient(const GradientCall<bfloat16>&, int, int, double);
template ExpectedGradient expected_gradient(const GradientCall<half>&, int, int, double);
template ExpectedGradient expected_gradient(const GradientCall<float>&, int, int, double);

}  // namespace cuda_test
