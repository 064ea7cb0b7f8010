/// \file
/// Forward mode: the output of attention and its derivative along a direction of all arguments,
/// from one call, as MeanFlow and consistency models need it for du/dt.
///
/// Steps of h along the direction are compared with output + h * tangent. The difference is of
/// second order: it falls fourfold when h halves.
///
/// Run:       build/examples/tangent
/// Expected:  (the last number depends on the processor)
///
///     step 0.01: 8.51142e-05
///     step 0.005: 2.11853e-05
///     step 0.0025: 5.28481e-06
///     second order, in 2.413 forwards

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <mhla/mhla.hpp>
#include <vector>

using Tokens = mhla::Tensor<double>;

Tokens drawn(unsigned seed) {
  Tokens x({2, 256, 4, 16});  // [B,N,H,D]
  for (double& a : x.data()) a = ((seed = seed * 1664525 + 1013904223) >> 8) * 0x1p-23 - 1;
  return x;
}

Tokens moved(const Tokens& x, double h, const Tokens& along) {
  Tokens y = x;
  for (std::size_t i = 0; i < y.data().size(); ++i) y.data()[i] += h * along.data()[i];
  return y;
}

double seconds_of(const auto& f) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int main() {
  const Tokens q = drawn(1), k = drawn(2), v = drawn(3), dq = drawn(4), dk = drawn(5),
               dv = drawn(6);
  const mhla::Contiguous blocks(256, 32);
  const auto m = mhla::locality<double>(8);
  const mhla::MixingMatrix<double> dm(mhla::Matrix<double>::Random(8, 8));
  const mhla::Operator op{mhla::EluPlusOne{}, mhla::EluPlusOne{}, mhla::KeySum{1e-6}};
  const auto in = mhla::inputs(q, k, v);

  const auto tangent = [&] {
    return mhla::bidirectional_tangent(in, blocks, m, op, {.q = dq, .k = dk, .v = dv},
                                       {.mixing = dm});
  };
  const auto [o, t] = tangent();
  std::vector<double> differences;
  for (const double h : {1e-2, 5e-3, 2.5e-3}) {
    auto mixing = m;
    for (mhla::Index i = 0; i < 8; ++i) {
      for (mhla::Index b = 0; b < 8; ++b) mixing.at(i, b) += h * dm(i, b);
    }
    const Tokens a = moved(q, h, dq), b = moved(k, h, dk), c = moved(v, h, dv);
    const Tokens exact = mhla::bidirectional(mhla::inputs(a, b, c), blocks, mixing, op);
    const Tokens expected = moved(o, h, t);
    double largest = 0;
    for (std::size_t i = 0; i < exact.data().size(); ++i) {
      largest = std::max(largest, std::abs(exact.data()[i] - expected.data()[i]));
    }
    std::cout << "step " << h << ": " << largest << "\n";
    differences.push_back(largest);
  }
  bool right = true;
  for (const std::size_t i : {0u, 1u}) {
    right = right && std::abs(differences[i] / differences[i + 1] - 4) < 0.2;
  }
  std::cout << (right ? "second order" : "WRONG") << ", in "
            << seconds_of(tangent) / seconds_of([&] { mhla::bidirectional(in, blocks, m, op); })
            << " forwards\n";
  return right ? 0 : 1;
}
