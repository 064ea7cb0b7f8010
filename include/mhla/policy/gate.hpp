#pragma once

/// \file
/// Stage 4 of 5: factors of mixing coefficients that depend on the data, such as those that a model
/// computes per sequence and head. The product is a mixing matrix that forms take:
///
///     c_ib = m_ib g_ib              a factor per coefficient: g has the pattern of m, [B,H,Mq,Mk]
///     c_ib = m_ib g_i               a factor per row: g is [B,H,Mq,1]
///     dm_ib += sum of dc_ib g_ib    over the sequences and heads that share m
///     dg_ib += dc_ib m_ib           per row: dg_i += sum_b dc_ib m_ib
///
/// A factor per row scales the outputs of a block under NoNormalizer. Under KeySum it cancels, up
/// to eps, which it divides: a model that divides by key sums needs factors per coefficient.
/// Causal forms read c_ii too, for the keys of the block itself. The tangent along dm and dg is
/// gate_mixing(dm, g) + gate_mixing(m, dg).
///
/// Outputs overlap nothing else. Cost: a multiplication per coefficient, sequence and head, 1 / (2
/// D (E + 1)) of the form's mixing. The adjoint takes twice as much for each of its gradients.
/// Without a gate, forms take m itself.

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/policy/mixing_matrix.hpp"
#include "mhla/policy/mixing_view.hpp"
#include "mhla/policy/pattern.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

namespace detail {

/// The number type of a MixingMatrix or a MixingView.
template <class M>
using coefficient_t = std::remove_cvref_t<decltype(std::declval<const M&>().storage().front())>;
template <class M>
using coefficients_of = std::type_identity_t<MixingView<const coefficient_t<M>>>;

}  // namespace detail

/// Gradients of a gated mixing matrix's parts. Absent ones are skipped.
template <Accumulator A>
struct GateGradients {
  MixingView<A> mixing{};  ///< as many matrices as m has, of its pattern
  MixingView<A> gate{};    ///< as many as g has, of its pattern
};

/// Writes the gated matrices, as many as m or g has along each of B and H.
/// \param m      one matrix, one per head, or one per sequence and head
/// \param g      factors in the pattern of m, or [Mq,1]. Along B and along H, m and g have equally
///     many matrices, or either has one.
/// \param gated  in the pattern of m
/// \throws shape_error, option_error for anything that does not fit, before `gated` is touched.
template <class M>
void gate_mixing(const M& m, const detail::coefficients_of<M>& g,
                 const std::type_identity_t<MixingView<detail::coefficient_t<M>>>& gated);
/// Returns the gated matrices.
template <class M>
MixingMatrix<detail::coefficient_t<M>> gate_mixing(const M& m, const detail::coefficients_of<M>& g);

/// Adds the gradients of m and g for the gradient dgated of the gated matrices.
/// \param gradients  each is summed from zero, sequence after sequence, and added once
/// \throws shape_error, option_error for anything that does not fit, before anything is touched.
template <class M>
void gate_mixing_adjoint(const M& m, const detail::coefficients_of<M>& g,
                         const detail::coefficients_of<M>& dgated,
                         const GateGradients<detail::coefficient_t<M>>& gradients);

// ------------------------------------------------------------------------------------------------

namespace detail {

/// The checked arguments of a gate. Numbers are addressed by matrix (s, h) and place in storage.
template <class A>
class Gate {
 public:
  Gate(const char* function, const MixingView<const A>& m, const MixingView<const A>& g)
      : function_(function),
        m_(m),
        g_(g),
        sequences_(std::max(m.sequences(), g.sequences())),
        heads_(std::max(m.heads(), g.heads())) {
    expect_present(function, "m", m);
    expect_present(function, "g", g);
    const Pattern rows(m.rows(), 1);
    if (g.pattern() != m.pattern() && g.pattern() != rows) {
      fail_shape(function, "g", "has shape " + shape_text({g.rows(), g.cols()}),
                 "the shape and the pattern of m, " + shape_text({m.rows(), m.cols()}) + ", or " +
                     shape_text({m.rows(), 1}));
    }
    const auto fits = [](Index of_m, Index of_g) { return of_m == of_g || of_m == 1 || of_g == 1; };
    if (!fits(m.sequences(), g.sequences()) || !fits(m.heads(), g.heads())) {
      fail_shape(function, "g", "has " + matrices_text(g) + " matrices",
                 "as many as m, which has " + matrices_text(m) + ", or one along an axis");
    }
  }

  MixingMatrix<A> zeros() const { return MixingMatrix<A>(m_.pattern(), heads_, sequences_); }
  /// Throws unless a view has the pattern and the number of the gated matrices.
  template <class N>
  void expect_gated(const char* argument, const MixingView<N>& gated) const {
    expect_like(argument, gated, m_.pattern(), sequences_, heads_);
  }
  /// Throws unless a gradient is absent, or shaped as its matrices.
  void expect_gradient(const char* argument, const MixingView<A>& d,
                       const MixingView<const A>& of) const {
    if (!d.absent()) expect_like(argument, d, of.pattern(), of.sequences(), of.heads());
  }

  void write(const MixingView<A>& gated) const {
    for (Index s = 0; s < sequences_; ++s) {
      for (Index h = 0; h < heads_; ++h) {
        A* const to = at(gated, s, h);
        const A* const m = at(m_, s, h);
        const A* const g = at(g_, s, h);
        for_each_place([&](Index i, Index place) { to[place] = m[place] * g[factor(i, place)]; });
      }
    }
  }
  void add_to_mixing(const MixingView<const A>& dgated, const MixingView<A>& dm) const {
    add_sums(dm, [&](Index s, Index h, Index i, Index place) {
      return at(dgated, s, h)[place] * at(g_, s, h)[factor(i, place)];
    });
  }
  void add_to_gate(const MixingView<const A>& dgated, const MixingView<A>& dg) const {
    add_sums(dg, [&](Index s, Index h, Index, Index place) {
      return at(dgated, s, h)[place] * at(m_, s, h)[place];
    });
  }

 private:
  template <class N>
  void expect_like(const char* argument, const MixingView<N>& d, const Pattern& pattern,
                   Index sequences, Index heads) const {
    if (d.pattern() != pattern || d.sequences() != sequences || d.heads() != heads) {
      fail_shape(
          function_, argument,
          "has shape " + shape_text({d.sequences(), d.heads(), d.rows(), d.cols()}),
          shape_text({sequences, heads, pattern.rows(), pattern.cols()}) + " and the same pattern");
    }
    expect_present(function_, argument, d);
  }

  /// The numbers of a view for head h of sequence s.
  template <class N>
  static N* at(const MixingView<N>& m, Index s, Index h) {
    return m.storage().data() + s * m.sequence_stride() + h * m.head_stride();
  }
  /// Storage index of the factor of a coefficient of row i.
  Index factor(Index i, Index place) const { return per_row_ ? i : place; }
  /// Calls f(i, place) for every coefficient of the pattern of m.
  template <class F>
  void for_each_place(F&& f) const {
    for (Index i = 0; i < m_.rows(); ++i) {
      m_.pattern().for_each_in_row(i, [&](Index, Index place) { f(i, place); });
    }
  }

  /// Adds to every number of `to` its products, summed over the matrices that share it and, for a
  /// factor per row, over the row.
  template <class F>
  void add_sums(const MixingView<A>& to, const F& product) const {
    if (to.absent()) return;
    const bool rows = to.pattern() != m_.pattern();
    for (Index first_s = 0; first_s < to.sequences(); ++first_s) {
      for (Index first_h = 0; first_h < to.heads(); ++first_h) {
        A* const sums = at(to, first_s, first_h);
        for (Index i = 0; i < m_.rows(); ++i) {
          A row = 0;
          m_.pattern().for_each_in_row(i, [&](Index, Index place) {
            A sum = 0;
            for (Index s = first_s; s < sequences_; s += to.sequences()) {
              for (Index h = first_h; h < heads_; h += to.heads()) sum += product(s, h, i, place);
            }
            if (rows) {
              row += sum;
            } else {
              sums[place] += sum;
            }
          });
          if (rows) sums[i] += row;
        }
      }
    }
  }

  const char* function_;
  MixingView<const A> m_, g_;
  Index sequences_, heads_;  // of the gated matrices
  bool per_row_ = g_.pattern() != m_.pattern();
};

}  // namespace detail

template <class M>
void gate_mixing(const M& m, const detail::coefficients_of<M>& g,
                 const std::type_identity_t<MixingView<detail::coefficient_t<M>>>& gated) {
  const detail::Gate<detail::coefficient_t<M>> gate("gate_mixing", m, g);
  gate.expect_gated("gated", gated);
  gate.write(gated);
}

template <class M>
MixingMatrix<detail::coefficient_t<M>> gate_mixing(const M& m,
                                                   const detail::coefficients_of<M>& g) {
  const detail::Gate<detail::coefficient_t<M>> gate("gate_mixing", m, g);
  MixingMatrix<detail::coefficient_t<M>> gated = gate.zeros();
  gate.write(gated);
  return gated;
}

template <class M>
void gate_mixing_adjoint(const M& m, const detail::coefficients_of<M>& g,
                         const detail::coefficients_of<M>& dgated,
                         const GateGradients<detail::coefficient_t<M>>& gradients) {
  const detail::coefficients_of<M> view = m;
  const detail::Gate<detail::coefficient_t<M>> gate("gate_mixing_adjoint", view, g);
  gate.expect_gated("dgated", dgated);
  gate.expect_gradient("gradients.mixing", gradients.mixing, view);
  gate.expect_gradient("gradients.gate", gradients.gate, g);
  gate.add_to_mixing(dgated, gradients.mixing);
  gate.add_to_gate(dgated, gradients.gate);
}

}  // namespace MHLA_TARGET
}  // namespace mhla
