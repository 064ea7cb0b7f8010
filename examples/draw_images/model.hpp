#pragma once

/// \file
/// The parameters of a diffusion transformer, DiT, made of blocks of the library.
///
///     x = patches(image) W + position                             [N,C]
///     c = mlp(frequencies of t) + class                           [C]
///     x = block(x, c)                                             in each block
///     v = patches(norm(x) * (1 + scale) + shift) W^-1,  shift and scale from silu(c)
///
/// Linear attention is MHLA with a single block of all tokens; its mixing coefficient stays 1.
/// Source: Peebles and Xie, arXiv:2212.09748.

#include <algorithm>
#include <cmath>
#include <mhla/layer/mlp.hpp>
#include <mhla/layer/position_embedding.hpp>
#include <mhla/layer/vision_block.hpp>
#include <mhla/policy/locality.hpp>
#include <span>
#include <string>
#include <vector>

#include "../support/block_model.hpp"
#include "../support/random.hpp"
#include "pixels.hpp"
#include "settings.hpp"

namespace draw_images {

constexpr Index kPatch = 2;                      // pixels along a side of a patch
constexpr Index kSide = kEdge / kPatch;          // patches along a side
constexpr Index kTokens = kSide * kSide;         // N
constexpr Index kPatchPixels = kPatch * kPatch;  // width of a token before the embedding
constexpr Index kBlockSide = 4;                  // tokens along a side of a block of MHLA, M = 16
constexpr Index kNoClass = kClasses;             // an image without its class

inline mhla::DitOptions block_options(const Settings& s) {
  const bool linear = s.attention == Attention::kLinear;
  const mhla::GridShape all{kSide, kSide}, block{kBlockSide, kBlockSide};
  return {.attention = {.heads = s.heads,
                        .tokens = all,
                        .block = linear ? all : block,
                        .order = mhla::TokenOrder::kRaster,
                        .layer_norm = false,  // the block has one
                        .normalizer = mhla::KeySum{1e-6},
                        .softmax = s.attention == Attention::kSoftmax},
          .channels = s.dim};
}

/// Settings and parameters.
template <class T>
class Model : public examples::BlockModel<mhla::DitBlock<T>> {
 public:
  /// Makes a model with initial parameters.
  explicit Model(const Settings& settings);

  const Settings& settings() const { return settings_; }
  const mhla::Matrix<T>& position() const { return position_; }  ///< [N,C]
  template <class U>
  mhla::MlpView<U> time_mlp(std::span<U> row) const {
    return {this->dense(row, "time.0"), this->dense(row, "time.1")};
  }

 private:
  std::vector<T> initial_parameters() const;

  Settings settings_;
  mhla::Matrix<T> position_;
};

/// The trained tensors: all but the mixing coefficient of linear attention.
template <class T>
std::vector<examples::TrainedTensor> trained_tensors(const Model<T>& model) {
  return examples::trained_tensors(model.table(), model.settings().attention == Attention::kLinear);
}

// ------------------------------------------------------------------------------------------------

template <class T>
Model<T>::Model(const Settings& settings)
    : settings_(settings), position_(mhla::sincos_2d<T>(kSide, kSide, settings.dim)) {
  const Index c = settings.dim;
  this->add_dense("patch", c, kPatchPixels);
  this->add_dense("time.0", c, c);
  this->add_dense("time.1", c, c);
  this->add("class.weight", {kClasses + 1, c});
  this->add_blocks(settings.depth, block_options(settings));
  this->add_dense("last.modulation", 2 * c, c);
  this->add_dense("last", kPatchPixels, c);
  this->set_parameters(initial_parameters());
}

/// Initial parameters, equal for all attentions except the mixing matrix, which is not random.
/// Modulations and the last layer are 0: every block begins as the identity, as in DiT.
template <class T>
std::vector<T> Model<T>::initial_parameters() const {
  examples::Random random(static_cast<std::uint64_t>(settings_.seed));
  std::vector<T> row(static_cast<std::size_t>(this->table().size()), T(0));
  for (const mhla::Parameter& p : this->table().all()) {
    const std::span<T> numbers = p.place().numbers(std::span<T>(row));
    if (examples::is_mixing(p.name)) {
      const Index side = settings_.attention == Attention::kLinear ? 1 : kSide / kBlockSide;
      const mhla::Matrix<T> start = mhla::locality<T>({side, side}).dense();
      std::copy_n(start.data(), start.size(), numbers.begin());
    } else if (p.shape.size() > 1 && p.name.find("odulation") == std::string::npos &&
               p.name != "last.weight") {
      const double deviation = 1 / std::sqrt(static_cast<double>(p.place().cols));
      for (T& number : numbers) number = static_cast<T>(deviation * random.normal());
    }
  }
  return row;
}

}  // namespace draw_images
