#pragma once

/// \file
/// The parameters of a model in one row of numbers, the place of each tensor, and initial values.

#include <cmath>
#include <mhla/layer/parameters.hpp>
#include <mhla/policy/locality.hpp>
#include <mhla/policy/mixing_matrix.hpp>
#include <span>
#include <string>
#include <vector>

#include "../support/optimizer.hpp"
#include "../support/random.hpp"
#include "settings.hpp"

namespace write_text {

using mhla::ParameterSlice;

/// Tensors of a layer: x += out(norm(attention(lead(norm(x)))) * silu(gate)), x += mlp(norm(x)).
struct LayerPlaces {
  ParameterSlice norm;       ///< [C]
  ParameterSlice lead;       ///< [4C,C]: queries, keys, values, gates
  ParameterSlice mixing;     ///< [M,M], MHLA only
  ParameterSlice head_norm;  ///< [D]
  ParameterSlice out;        ///< [C,C]
  ParameterSlice mlp_norm;   ///< [C]
  ParameterSlice gate, up;   ///< [F,C]
  ParameterSlice down;       ///< [C,F]
};

class Layout {
 public:
  explicit Layout(const Settings& s) {
    const Index c = s.dim, f = s.hidden();
    const auto add = [this](const std::string& name, std::vector<Index> shape) {
      return table_.add(name, std::move(shape)).place();
    };
    embedding = add("embedding", {kBytes, c});
    for (Index l = 0; l < s.depth; ++l) {
      const std::string name = "layers." + std::to_string(l) + ".";
      LayerPlaces layer;
      layer.norm = add(name + "norm", {c});
      layer.lead = add(name + "lead", {4 * c, c});
      if (s.attention == Attention::kMhla) {
        layer.mixing = add(name + "mixing", {s.blocks(), s.blocks()});
      }
      layer.head_norm = add(name + "head_norm", {s.width()});
      layer.out = add(name + "out", {c, c});
      layer.mlp_norm = add(name + "mlp_norm", {c});
      layer.gate = add(name + "mlp.gate", {f, c});
      layer.up = add(name + "mlp.up", {f, c});
      layer.down = add(name + "mlp.down", {c, f});
      layers.push_back(layer);
    }
    norm = add("norm", {c});
    head = add("head", {kBytes, c});
  }

  ParameterSlice embedding;  ///< [256,C]
  std::vector<LayerPlaces> layers;
  ParameterSlice norm;  ///< [C]
  ParameterSlice head;  ///< [256,C]

  const mhla::ParameterTable& table() const { return table_; }

 private:
  mhla::ParameterTable table_;
};

template <class T>
mhla::MixingView<T> mixing_at(const ParameterSlice& place, std::span<T> row) {
  if (place.rows == 0) return {};
  return {row.data() + place.begin, mhla::Pattern(place.rows, place.cols)};
}

inline bool is_mixing(const mhla::Parameter& p) { return p.name.ends_with(".mixing"); }

inline std::vector<examples::TrainedTensor> trained_tensors(const Layout& layout,
                                                            const Settings& settings) {
  std::vector<examples::TrainedTensor> tensors;
  for (const mhla::Parameter& p : layout.table().all()) {
    if (is_mixing(p) && settings.freeze_mixing) continue;
    tensors.push_back({p.name, p.shape, p.begin, p.size, p.shape.size() == 2 && !is_mixing(p)});
  }
  return tensors;
}

/// The constraint of mixing matrices of the released language layer: coefficients in [1e-5, 1], 0
/// above the diagonal.
template <class T>
void constrain(const Layout& layout, std::span<T> row) {
  for (const LayerPlaces& layer : layout.layers) {
    if (layer.mixing.rows == 0) continue;
    mhla::clamp_to_lower_triangle(mixing_at(layer.mixing, row), T(1e-5), T(1));
  }
}

/// Initial parameters. Tensors that two kinds of attention share are equal for the same seed,
/// because mixing matrices are not random. Weights of residual branches are smaller, the more
/// layers there are.
template <class T>
std::vector<T> initial_parameters(const Layout& layout, const Settings& settings) {
  examples::Random random(static_cast<std::uint64_t>(settings.seed));
  std::vector<T> row(static_cast<std::size_t>(layout.table().size()), T(1));  // gains stay 1
  for (const mhla::Parameter& p : layout.table().all()) {
    const std::span<T> numbers = p.place().numbers(std::span<T>(row));
    if (is_mixing(p)) {
      const mhla::Matrix<T> start = settings.init == MixingStart::kLocality
                                        ? mhla::locality<T>(p.shape[0]).dense()
                                        : mhla::uniform_causal<T>(p.shape[0]).dense();
      std::copy_n(start.data(), start.size(), numbers.begin());
    } else if (p.shape.size() == 2) {
      const bool adds = p.name.ends_with(".out") || p.name.ends_with(".down");
      const double terms = static_cast<double>(p.shape[1] * (adds ? 2 * settings.depth : 1));
      for (T& number : numbers) number = static_cast<T>(random.normal() / std::sqrt(terms));
    }
  }
  constrain(layout, std::span<T>(row));
  return row;
}

}  // namespace write_text
