#pragma once

/// \file
/// The parameters of a model in one flat buffer, and where in it each tensor lies.
///
/// Gradients and the moments of the optimiser are buffers of the same layout.

#include <cmath>
#include <mhla/core/matrix.hpp>
#include <mhla/layer/mlp.hpp>
#include <mhla/policy/locality.hpp>
#include <mhla/policy/mixing_matrix.hpp>
#include <span>
#include <string>
#include <vector>

#include "../support/random.hpp"
#include "settings.hpp"

namespace train_images {

/// A tensor [rows, cols] of the buffer; vectors have one row.
struct Slice {
  Index begin = 0;
  Index rows = 0;
  Index cols = 0;

  Index size() const { return rows * cols; }
  template <class T>
  mhla::MatrixView<T> matrix(std::span<T> buffer) const {
    return {buffer.data() + begin, rows, cols, cols};
  }
  /// The same as a mixing matrix, absent where there is none.
  template <class T>
  mhla::MixingView<T> mixing(std::span<T> buffer) const {
    if (size() == 0) return {};
    return {buffer.data() + begin, mhla::Band(rows, cols)};
  }
  template <class T>
  std::span<T> vector(std::span<T> buffer) const {
    return buffer.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size()));
  }
};

/// What an optimiser does with a tensor.
enum class Role {
  kWeight,  ///< of a product: decays
  kOther,   ///< biases, norms, position: does not decay
  kMixing,  ///< does not decay, stays in [0, 1], may be frozen
};

struct NamedSlice {
  std::string name;
  Slice slice;
  Role role;
};

struct Dense {
  Slice weight;  ///< [out, in]
  Slice bias;    ///< [out]

  template <class T>
  mhla::DenseView<T> view(std::span<T> buffer) const {
    return {weight.matrix(buffer), bias.vector(buffer)};
  }
};
struct Mlp {
  Dense first;   ///< [2C,C]
  Dense second;  ///< [C,2C]

  template <class T>
  mhla::MlpView<T> view(std::span<T> buffer) const {
    return {first.view(buffer), second.view(buffer)};
  }
};
struct Norm {
  Slice gain;   ///< [C]
  Slice shift;  ///< [C]
};

/// Tensors of a layer: x += out(attention(qkv(norm1(x)))), x += mlp(norm2(x)).
struct LayerSlices {
  Norm norm1;
  Dense qkv;     ///< [3C,C]
  Slice mixing;  ///< [M,M], MHLA only, otherwise empty
  Dense out;     ///< [C,C]
  Norm norm2;
  Mlp mlp;
};

class Layout {
 public:
  explicit Layout(const Settings& settings) {
    const Index c = settings.dim;
    patch = dense("patch", c, kPatchPixels);
    position = add("position", kTokens, c, Role::kOther);
    for (Index l = 0; l < settings.depth; ++l) {
      const std::string name = "layers." + std::to_string(l) + ".";
      LayerSlices layer;
      layer.norm1 = norm(name + "norm1", c);
      layer.qkv = dense(name + "qkv", 3 * c, c);
      if (settings.attention == Attention::kMhla) {
        layer.mixing = add(name + "mixing", settings.blocks, settings.blocks, Role::kMixing);
      }
      layer.out = dense(name + "out", c, c);
      layer.norm2 = norm(name + "norm2", c);
      layer.mlp.first = dense(name + "mlp.first", settings.hidden(), c);
      layer.mlp.second = dense(name + "mlp.second", c, settings.hidden());
      layers.push_back(layer);
    }
    last_norm = norm("norm", c);
    head = dense("head", kClasses, c);
  }

  Dense patch;     ///< [C,4]
  Slice position;  ///< [N,C]
  std::vector<LayerSlices> layers;
  Norm last_norm;
  Dense head;  ///< [10,C]

  const std::vector<NamedSlice>& tensors() const { return tensors_; }  ///< all, in order
  Index size() const { return size_; }                                 ///< of the buffer

 private:
  Slice add(const std::string& name, Index rows, Index cols, Role role) {
    const Slice slice{size_, rows, cols};
    tensors_.push_back({name, slice, role});
    size_ += slice.size();
    return slice;
  }
  Dense dense(const std::string& name, Index out, Index in) {
    const Slice weight = add(name + ".weight", out, in, Role::kWeight);
    return {weight, add(name + ".bias", 1, out, Role::kOther)};
  }
  Norm norm(const std::string& name, Index width) {
    const Slice gain = add(name + ".gain", 1, width, Role::kOther);
    return {gain, add(name + ".shift", 1, width, Role::kOther)};
  }

  std::vector<NamedSlice> tensors_;
  Index size_ = 0;
};

/// Parameters of a model that has not been trained. Tensors that two kinds of attention share are
/// the same for the same seed, as nothing random goes into a mixing matrix.
template <class T>
std::vector<T> initial_parameters(const Layout& layout, const Settings& settings) {
  examples::Random random(static_cast<std::uint64_t>(settings.seed));
  std::vector<T> parameters(static_cast<std::size_t>(layout.size()), T(0));
  const auto fill = [&](const Slice& slice, auto&& value) {
    for (T& p : slice.vector(std::span<T>(parameters))) p = static_cast<T>(value());
  };
  const auto locality = mhla::locality<T>(token_blocks(settings.blocks).block_grid());
  for (const NamedSlice& tensor : layout.tensors()) {
    const Slice& slice = tensor.slice;
    if (tensor.role == Role::kWeight) {
      const double deviation = 1 / std::sqrt(static_cast<double>(slice.cols));
      fill(slice, [&] { return deviation * random.normal(); });
    } else if (tensor.role == Role::kMixing) {
      Index i = 0;
      fill(slice, [&] {
        const Index row = i / slice.cols, column = i++ % slice.cols;
        return settings.mixing_start == MixingStart::kLocality ? locality(row, column)
                                                               : T(1) / static_cast<T>(slice.cols);
      });
    } else if (tensor.name == "position") {
      fill(slice, [&] { return 0.02 * random.normal(); });
    } else if (tensor.name.ends_with(".gain")) {
      fill(slice, [] { return 1; });
    }
  }
  return parameters;
}

}  // namespace train_images
