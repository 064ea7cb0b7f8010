#pragma once

/// \file
/// Converts a model with softmax or linear attention to MHLA. All parameters are kept, and each
/// block's mixing matrix is fitted to the outputs of the replaced attention.

#include <algorithm>
#include <mhla/attention/linear.hpp>
#include <mhla/attention/softmax.hpp>
#include <mhla/fit/mixing_fit.hpp>
#include <mhla/layer/dense.hpp>
#include <mhla/layer/layer_norm.hpp>
#include <mhla/layer/split_qkv.hpp>
#include <mhla/policy/by_name.hpp>
#include <mhla/policy/locality.hpp>
#include <mhla/policy/mixing_constraints.hpp>
#include <span>
#include <string>
#include <vector>

#include "../train_images/model.hpp"
#include "../train_images/tokens.hpp"

namespace convert {

using mhla::Index;
using train_images::Activations;
using train_images::Attention;
using train_images::Images;
using train_images::kTokens;
using train_images::Model;
using train_images::Settings;

/// A model with MHLA that copies the teacher's parameters, with mixing matrices of `settings`.
inline Model<float> with_parameters_of(const Model<float>& teacher, const Settings& settings) {
  Model<float> model(settings);
  std::vector<float> row(model.parameters().begin(), model.parameters().end());
  for (const mhla::Parameter& p : teacher.table().all()) {
    if (examples::is_mixing(p.name)) continue;
    std::ranges::copy(teacher.table().numbers(teacher.parameters(), p.name),
                      model.table().numbers(std::span<float>(row), p.name).begin());
  }
  model.set_parameters(row);
  return model;
}

/// Sets the mixing matrix of a block.
inline void set_mixing(Model<float>& model, std::size_t block,
                       const mhla::MixingMatrix<float>& mixing) {
  std::vector<float> row(model.parameters().begin(), model.parameters().end());
  const mhla::Matrix<float> dense = mixing.dense();
  std::copy_n(dense.data(), dense.size(),
              model.table()
                  .numbers(std::span<float>(row),
                           "blocks." + std::to_string(block) + ".attn.piece_attn.conv.weight")
                  .begin());
  model.set_parameters(row);
}

/// Inputs of a block's attention, and outputs of its heads.
struct AttentionExample {
  mhla::Matrix<float> qkv;  // [B*N, 3C]
  mhla::Tensor<float> out;  // [B,N,H,D]

  mhla::BatchInputs<float> inputs(const Settings& s) const {
    const mhla::MatrixView<const float> view(qkv);
    const auto [q, k, v] = mhla::split_qkv(
        view, {.batch = qkv.rows() / kTokens, .heads = s.heads, .width = s.dim / s.heads});
    return mhla::inputs(q, k, v);
  }
};

/// The paper's operator with the options of the blocks.
inline auto operator_of(const Model<float>& model) {
  const mhla::VisionOptions& o = model.blocks().front().options().attention;
  return mhla::Operator<mhla::Relu, mhla::Relu, mhla::AnyNormalizer>{
      {o.feature_eps}, {o.feature_eps}, o.normalizer};
}

/// A forward pass of a model over some images.
class Pass {
 public:
  static constexpr Index kImages = 32;

  explicit Pass(const Model<float>& model) : model_(model), activations_(model, kImages) {}

  /// Runs the model on images [first, first + count).
  void run(const Images& images, Index first, Index count) {
    count_ = count;
    const auto tokens = activations_.tokens.rows(count * kTokens);
    for (Index i = 0; i < count; ++i) {
      train_images::read_tokens(images, first + i, tokens.middle_rows(i * kTokens, kTokens));
    }
    train_images::forward(model_, count, activations_);
  }

  /// Inputs and outputs of a block's attention.
  AttentionExample attention(std::size_t block) {
    const Settings& s = model_.settings();
    const auto p = model_.parameters();
    const std::string prefix = "blocks." + std::to_string(block) + ".";
    AttentionExample example{.qkv = mhla::Matrix<float>(count_ * kTokens, 3 * s.dim), .out = {}};
    mhla::Matrix<float> normed(count_ * kTokens, s.dim);
    mhla::layer_norm(activations_.pass.input_of(block, count_),
                     model_.table().numbers(p, prefix + "norm1.weight"),
                     model_.table().numbers(p, prefix + "norm1.bias"),
                     model_.blocks()[block].options().norm_eps, mhla::MatrixView<float>(normed));
    mhla::dense(normed, model_.dense(p, prefix + "attn.to_qkv"),
                mhla::MatrixView<float>(example.qkv));
    const auto in = example.inputs(s);
    if (s.attention == Attention::kSoftmax) example.out = mhla::softmax_bidirectional(in);
    if (s.attention == Attention::kLinear) {
      example.out = mhla::linear_bidirectional(in, operator_of(model_));
    }
    return example;
  }

 private:
  const Model<float>& model_;
  Activations<float> activations_;
  Index count_ = 0;
};

/// Residuals of a block's heads against the teacher's: FitResidual::total.
struct BlockFit {
  double locality, fitted;
};

/// Fits the mixing matrices of a student, block by block, on the first `count` images. MHLA of the
/// student's queries, keys and values is fitted to the outputs of the teacher's attention.
inline std::vector<BlockFit> fit_mixing_of(const Model<float>& teacher, Model<float>& student,
                                           const Images& images, Index count, Index threads) {
  constexpr int kRounds = 2;
  mhla::ThreadPool pool(threads);
  Pass of_teacher(teacher), of_student(student);
  const Settings& s = student.settings();
  const mhla::Grid blocks({train_images::kSide, train_images::kSide},
                          train_images::token_block(s.blocks));
  std::vector<BlockFit> fits;
  for (std::size_t block = 0; block < student.blocks().size(); ++block) {
    const auto sums_from = [&](const mhla::MixingMatrix<float>& start) {
      mhla::MixingFit<float> fit(start);
      for (Index first = 0; first < count; first += Pass::kImages) {
        const Index some = std::min(Pass::kImages, count - first);
        of_teacher.run(images, first, some);
        of_student.run(images, first, some);
        fit.add(of_student.attention(block).inputs(s), blocks, operator_of(student),
                of_teacher.attention(block).out, pool);
      }
      return fit;
    };
    mhla::MixingMatrix<float> m = mhla::locality(blocks);
    mhla::MixingFit<float> fit = sums_from(m);
    BlockFit residuals{.locality = fit.residual(m).total, .fitted = 0};
    for (int round = 0; round < kRounds; ++round) {
      m = fit.solve({}, pool);
      mhla::normalize_rows(m);
      fit = sums_from(m);
    }
    residuals.fitted = fit.residual(m).total;
    fits.push_back(residuals);
    set_mixing(student, block, m);
  }
  return fits;
}

}  // namespace convert
