#pragma once

/// \file
/// The loss of a batch and its gradient: the mean squared error of hidden pixels, from -1 to 1.
/// Free threads take the next clip; results do not depend on threads (sharded_gradient.hpp).

#include <deque>
#include <mhla/core/executor.hpp>
#include <span>
#include <vector>

#include "../support/sharded_gradient.hpp"
#include "model.hpp"

namespace restore_video {

template <class T>
class Workers {
 public:
  Workers(const Model<T>& model, Index threads) : model_(model), pool_(threads) {
    for (Index w = 0; w < pool_.workers(); ++w) memory_.emplace_back(model);
  }

  /// The mean loss of the clips; writes its gradient.
  double learn(const std::vector<Clip<T>>& clips, std::span<T> gradient) {
    std::vector<double> losses(clips.size());
    sum_(pool_, std::ssize(clips), gradient, [&](Index i, Index w, std::span<T> shard) {
      const Clip<T>& clip = clips[static_cast<std::size_t>(i)];
      Activations<T>& a = memory(w);
      forward(model_, clip, a);
      losses[static_cast<std::size_t>(i)] = loss(clip, a);
      backward(model_, clip, a, shard);
    });
    for (T& g : gradient) g /= static_cast<T>(clips.size());
    double sum = 0;
    for (const double l : losses) sum += l;
    return sum / static_cast<double>(clips.size());
  }

  /// The restored patches of every clip, [N, 3*patch*patch].
  std::vector<mhla::Matrix<T>> restore(const std::vector<Clip<T>>& clips) {
    std::vector<mhla::Matrix<T>> restored(clips.size());
    pool_.for_each(std::ssize(clips), [&](Index i, Index w) {
      const auto c = static_cast<std::size_t>(i);
      forward(model_, clips[c], memory(w));
      const auto output = memory(w).output.rows(clips[c].patches.rows());
      restored[c] = clips[c].patches;
      for (Index t = 0; t < output.rows; ++t) {
        if (!clips[c].hidden(t)) continue;
        std::copy_n(output.row(t), output.cols, &restored[c](t, 0));
      }
    });
    return restored;
  }

 private:
  Activations<T>& memory(Index w) { return memory_[static_cast<std::size_t>(w)]; }

  /// The loss of a.output; writes its gradient to a.doutput.
  static double loss(const Clip<T>& clip, Activations<T>& a) {
    const Index n = clip.patches.rows(), features = clip.patches.cols();
    const auto output = a.output.rows(n), doutput = a.doutput.zero_rows(n);
    const auto hidden = std::count(clip.mask.begin(), clip.mask.end(), char(1));
    const auto count = static_cast<double>(hidden * features);
    double sum = 0;
    for (Index t = 0; t < n; ++t) {
      if (!clip.hidden(t)) continue;
      for (Index j = 0; j < features; ++j) {
        const T error = output(t, j) - clip.patches(t, j);
        sum += static_cast<double>(error * error);
        doutput(t, j) = static_cast<T>(2 / count) * error;
      }
    }
    return sum / count;
  }

  const Model<T>& model_;
  mhla::ThreadPool pool_;
  std::deque<Activations<T>> memory_;
  examples::ShardedGradient<T> sum_;
};

}  // namespace restore_video
