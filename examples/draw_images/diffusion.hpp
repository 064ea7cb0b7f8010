#pragma once

/// \file
/// Diffusion from images to noise, and back. At time t in [0, 1], with standard normal e,
///
///     x_t = a x_0 + s e,   v = a e - s x_0,   a = cos(pi t / 2), s = sin(pi t / 2)
///
/// A model predicts v, which gives x_0 = a x_t - s v. DDIM goes from x_1 = e to x_0 without new
/// noise: each step keeps the e of the predicted x_0. Sources: Salimans and Ho,
/// arXiv:2202.00512 (v); Song, Meng and Ermon, arXiv:2010.02502 (DDIM); Ho and Salimans,
/// arXiv:2207.12598 (guidance).

#include <cmath>
#include <mhla/core/scalar.hpp>
#include <numbers>
#include <span>

namespace draw_images {

using mhla::Index;

/// Factors a and s at a time.
struct Mixture {
  double image, noise;

  explicit Mixture(double t)
      : image(std::cos(std::numbers::pi / 2 * t)), noise(std::sin(std::numbers::pi / 2 * t)) {}
};

/// Turns noise into samples in place.
/// \param steps  number of steps, of equal length in t
/// \param clean  clean(x, t, x0) writes the prediction of x_0
template <class T, class Clean>
void ddim(std::span<T> x, std::span<T> x0, Index steps, Clean&& clean) {
  for (Index step = 0; step < steps; ++step) {
    const double length = 1 / static_cast<double>(steps),
                 t = 1 - static_cast<double>(step) * length;
    const Mixture from(t), to(step + 1 == steps ? 0 : t - length);
    clean(x, t, x0);
    const T keep = static_cast<T>(to.noise / from.noise);
    const T add = static_cast<T>(to.image - to.noise / from.noise * from.image);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = add * x0[i] + keep * x[i];
  }
}

}  // namespace draw_images
