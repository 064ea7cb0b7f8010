#pragma once

/// \file
/// The classifier that judges drawn images, a small network that is trained first. Its last hidden
/// layer has the features of the Frechet distance.
///
///     parts    = mlp of every patch of 4 x 4 pixels     [64, 16]
///     hidden   = gelu(W parts + b)                      [64], the features
///     logits   = W' hidden + b'                         [10]

#include <algorithm>
#include <cmath>
#include <mhla/core/executor.hpp>
#include <mhla/layer/adamw.hpp>
#include <mhla/layer/cross_entropy.hpp>
#include <mhla/layer/mlp.hpp>
#include <mhla/layer/parameters.hpp>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "../support/buffer.hpp"
#include "../support/optimizer.hpp"
#include "../support/random.hpp"
#include "pixels.hpp"

namespace draw_images {

class Classifier {
 public:
  /// Results for images [n, kImage].
  struct Verdicts {
    Eigen::MatrixXd features;  ///< [n, 64]
    std::vector<Index> classes;
  };

  explicit Classifier(Index seed) {
    for (const auto& [name, outputs, inputs] : {std::tuple{"part.0", kPartHidden, kPart * kPart},
                                                {"part.1", kPartNumbers, kPartHidden},
                                                {"whole.0", kFeatures, kParts * kPartNumbers},
                                                {"whole.1", kClasses, kFeatures}}) {
      table_.add(std::string(name) + ".weight", {outputs, inputs});
      table_.add(std::string(name) + ".bias", {outputs});
    }
    examples::Random random(static_cast<std::uint64_t>(seed));
    parameters_.resize(static_cast<std::size_t>(table_.size()));
    for (const mhla::Parameter& p : table_.all()) {
      if (p.shape.size() == 1) continue;
      const double deviation = 1 / std::sqrt(static_cast<double>(p.shape[1]));
      for (float& number : p.place().numbers(std::span(parameters_))) {
        number = static_cast<float>(deviation * random.normal());
      }
    }
  }

  /// Trains by AdamW over shuffled batches; the rate falls to 0 in the last epochs.
  void train(const examples::Images& images, Index epochs, Index seed, mhla::ThreadPool& pool) {
    const Index batches = images.count() / kBatch, steps = epochs * batches;
    std::vector<examples::TrainedTensor> tensors;
    for (const mhla::Parameter& p : table_.all()) {
      tensors.push_back({p.name, p.shape, p.begin, p.size, p.shape.size() > 1});
    }
    examples::Optimizer<float> optimizer(tensors);
    examples::Random random(~static_cast<std::uint64_t>(seed));
    std::vector<float> gradient(parameters_.size());
    std::vector<Index> order;
    for (Index step = 0; step < steps; ++step) {
      if (step % batches == 0) order = random.permutation(images.count());
      std::vector<std::uint8_t> labels;
      for (Index i = 0; i < kBatch; ++i) {
        const Index number = order[static_cast<std::size_t>(step % batches * kBatch + i)];
        read_pixels(images, number, memory_.pixels.rows(kBatch).row(i));
        labels.push_back(images.labels[static_cast<std::size_t>(number)]);
      }
      forward(kBatch, pool);
      const auto dlogits = memory_.dlogits.zero_rows(kBatch);
      mhla::cross_entropy(memory_.logits.rows(kBatch), labels, dlogits);
      std::fill(gradient.begin(), gradient.end(), 0.0f);
      backward(gradient, pool);
      optimizer.step(parameters_, gradient, 2e-3 * mhla::warmup_cosine(step, steps / 20, steps),
                     0.05);
    }
  }

  Verdicts judge(mhla::MatrixView<const float> images, mhla::ThreadPool& pool) {
    Verdicts verdicts{Eigen::MatrixXd(images.rows, kFeatures), {}};
    for (Index begin = 0; begin < images.rows; begin += kBatch) {
      const Index count = std::min(kBatch, images.rows - begin);
      std::copy_n(images.row(begin), count * kImage, memory_.pixels.rows(count).data);
      forward(count, pool);
      const auto features = memory_.hidden.rows(count), logits = memory_.logits.rows(count);
      for (Index i = 0; i < count; ++i) {
        for (Index j = 0; j < kFeatures; ++j) {
          verdicts.features(begin + i, j) = static_cast<double>(features(i, j));
        }
        verdicts.classes.push_back(
            mhla::argmax(std::span(logits.row(i), static_cast<std::size_t>(kClasses))));
      }
    }
    return verdicts;
  }

 private:
  static constexpr Index kBatch = 100, kPart = 4, kParts = kImage / (kPart * kPart);
  static constexpr Index kPartHidden = 64, kPartNumbers = 16, kFeatures = 64;

  struct Memory {
    using Buffer = examples::Buffer<float>;
    Buffer pixels{kBatch, kImage}, patches{kBatch * kParts, kPart*kPart};
    Buffer part_pre{kBatch * kParts, kPartHidden}, part_hidden{kBatch * kParts, kPartHidden};
    Buffer parts{kBatch, kParts*kPartNumbers}, dparts{kBatch, kParts*kPartNumbers};
    Buffer pre{kBatch, kFeatures}, hidden{kBatch, kFeatures};
    Buffer logits{kBatch, kClasses}, dlogits{kBatch, kClasses};
  };

  template <class U>
  mhla::MlpView<U> mlp_of(std::span<U> row, const std::string& name) const {
    const auto dense = [&](const std::string& layer) {
      return mhla::DenseView<U>{table_.matrix(row, name + layer + ".weight"),
                                table_.numbers(row, name + layer + ".bias")};
    };
    return {dense(".0"), dense(".1")};
  }
  /// Views the parts of images as separate rows.
  static mhla::MatrixView<float> rows_of(mhla::MatrixView<float> parts) {
    return {parts.data, parts.rows * kParts, kPartNumbers, kPartNumbers};
  }
  void forward(Index count, mhla::ThreadPool& pool) {
    Memory& m = memory_;
    const std::span<const float> p(parameters_);
    const mhla::Call call{.executor = pool};
    const auto patches = m.patches.rows(count * kParts);
    mhla::patches(edges(m.pixels.rows(count)), patch_grid(count, kPart), patches, pool);
    mhla::mlp(patches, mlp_of(p, "part"), m.part_pre.rows(count * kParts),
              m.part_hidden.rows(count * kParts), rows_of(m.parts.rows(count)), call);
    mhla::mlp(m.parts.rows(count), mlp_of(p, "whole"), m.pre.rows(count), m.hidden.rows(count),
              m.logits.rows(count), call);
  }
  /// Adds the gradients of a whole batch.
  void backward(std::span<float> gradient, mhla::ThreadPool& pool) {
    Memory& m = memory_;
    const std::span<const float> p(parameters_);
    const mhla::Call call{.executor = pool};
    const auto dparts = m.dparts.zero_rows(kBatch);
    mhla::mlp_adjoint(m.parts.rows(kBatch), mlp_of(p, "whole"), m.pre.rows(kBatch),
                      m.hidden.rows(kBatch), m.dlogits.rows(kBatch), dparts,
                      mlp_of(gradient, "whole"), call);
    const Index rows = kBatch * kParts;
    mhla::mlp_adjoint(m.patches.rows(rows), mlp_of(p, "part"), m.part_pre.rows(rows),
                      m.part_hidden.rows(rows), rows_of(dparts), {}, mlp_of(gradient, "part"),
                      call);
  }

  mhla::ParameterTable table_;
  std::vector<float> parameters_;
  Memory memory_;
};

}  // namespace draw_images
