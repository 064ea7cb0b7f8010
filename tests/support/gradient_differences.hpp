#pragma once

/// \file
/// Gradients against central differences: every element of every input and parameter, for every
/// feature map and normaliser, on small shapes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include "support/gradient_oracle.hpp"
#include "support/gradient_run.hpp"

namespace mhla::test {

/// Every element of the gradients in double against central differences, to 1e-9 of the largest
/// magnitude of its tensor.
template <class Form>
void expect_central_differences(const Problem<double>& p, double& worst) {
  const Matrix<double> dout = random_dout(p);
  const auto got = gradients_of<Form>(p, dout).values();
  auto expected = central_differences(p, dout, 0x1p-20L);
  if (!Form::kMixes) expected.mixing.setZero();
  for_each_tensor(
      [&](const char* name, const auto& a, const auto& b) {
        double largest = 0;
        for (Index i = 0; i < static_cast<Index>(b.size()); ++i) {
          largest = std::max(largest, std::abs(b.data()[i]));
        }
        for (Index i = 0; i < static_cast<Index>(b.size()); ++i) {
          const double error = std::abs(a.data()[i] - b.data()[i]);
          if (error > 0) worst = std::max(worst, error / largest);
          ASSERT_LE(error, 1e-9 * largest) << Form::kName << ": d" << name << "[" << i << "] is "
                                           << a.data()[i] << ", expected " << b.data()[i] << "\n"
                                           << p.text();
        }
      },
      got, expected);
}

/// A small problem of given maps and normaliser for central differences, far from the kinks of
/// max(x, 0) and with denominators above 1/2.
/// \param cross  other keys than queries, in other blocks
inline Problem<double> small_problem(Random& rng, Index map, NaiveNormalizer normalizer, bool own,
                                     bool causal, bool cross) {
  Problem<double> p;
  p.normalizer = normalizer;
  p.causal = causal;
  const bool equal = normalizer == NaiveNormalizer::kCrossQuery;
  const Index nq = 6, nk = cross ? 7 : 6, d = 3, e = 2;
  p.query_blocks = AnyPartition::of(Contiguous(nq, 2));
  p.key_blocks =
      cross ? AnyPartition::of(equal ? BlockSizes({3, 1, 3}) : BlockSizes({4, 3})) : p.query_blocks;
  p.query_map = random_map<double>(rng, map, d);
  // Another map of as many features where there is one.
  p.key_map = map < kSameWidthMaps
                  ? random_map<double>(rng, (map + 1) % kSameWidthMaps, d)
                  : (map == kSameWidthMaps ? random_map<double>(rng, map, d) : p.query_map);
  const auto away_from_zero = [&rng](Index rows, Index cols) {
    return map_elements<double>(Matrix<double>(rows, cols), [&rng](double) {
      return (rng.chance(0.7) ? 1 : -1) * rng.uniform(0.1, 1);
    });
  };
  p.q = away_from_zero(nq, d);
  p.k = away_from_zero(nk, d);
  p.v = away_from_zero(nk, e);
  if (own) {
    p.normalizer_q = away_from_zero(nq, d);
    p.normalizer_k = away_from_zero(nk, d);
  }
  p.coefficients = rng.matrix<double>(p.query_blocks.blocks(), p.key_blocks.blocks(), 0.2, 1);
  p.lower = p.upper = 1;
  p.eps = 0.5;
  p.scale = 0.7;
  const Matrix<double> den = naive_denominators(naive_at(p, values_of(p)));
  if (den.cwiseAbs().minCoeff() < 0.5) {
    return small_problem(rng, map, normalizer, own, causal, cross);  // signed features
  }
  return p;
}

/// Central differences for every map and normaliser that the form has.
template <class Form>
void expect_central_differences_of_all() {
  double worst = 0;
  Random rng(1);
  for (Index map = 0; map <= kSameWidthMaps + 1; ++map) {
    for (const auto normalizer :
         {NaiveNormalizer::kNone, NaiveNormalizer::kKeySum, NaiveNormalizer::kCrossQuery}) {
      const bool crosses_queries = normalizer == NaiveNormalizer::kCrossQuery;
      if (crosses_queries && (Form::kCausal || !Form::kMixes)) continue;
      for (const bool own : {false, true}) {
        if (own && normalizer == NaiveNormalizer::kNone) continue;
        for (const bool cross : {false, true}) {
          if (cross && Form::kCausal) continue;
          auto p = small_problem(rng, map, normalizer, own, Form::kCausal, cross);
          Form::fit(p);
          expect_central_differences<Form>(p, worst);
        }
      }
    }
  }
  std::cout << Form::kName << ": central differences, worst error " << worst << " of 1e-9\n";
}

}  // namespace mhla::test
