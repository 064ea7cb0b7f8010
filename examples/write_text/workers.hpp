#pragma once

/// \file
/// The loss of sequences and its gradient. Sequences go to whichever thread is free, and results do
/// not depend on threads (sharded_gradient.hpp).

#include <deque>
#include <mhla/core/executor.hpp>
#include <mhla/layer/cross_entropy.hpp>
#include <numbers>
#include <span>
#include <vector>

#include "../support/sharded_gradient.hpp"
#include "model.hpp"

namespace write_text {

/// Memory and threads for models with the given settings.
template <class T>
class Workers {
  struct Worker {
    CausalAttention<T> attention;
    Activations<T> activations;
    ActivationGradients<T> gradients;

    explicit Worker(const Settings& s)
        : attention(s), activations(s, s.context), gradients(s, s.context) {}
  };

 public:
  Workers(const Settings& settings, Index threads) : pool_(threads) {
    for (Index w = 0; w < pool_.workers(); ++w) workers_.emplace_back(settings);
  }

  /// The mean loss of the bytes behind each byte of the sequences, in bits.
  double evaluate(const Model<T>& model, const std::vector<Bytes>& sequences) {
    losses_.assign(sequences.size(), 0);
    pool_.for_each(std::ssize(sequences), [&](Index s, Index w) {
      const auto i = static_cast<std::size_t>(s);
      losses_[i] = read_and_forward(model, sequences[i], worker(w), {});
    });
    return mean_loss();
  }

  /// The same, and writes the gradient of the mean loss in nats.
  double learn(const Model<T>& model, const std::vector<Bytes>& sequences, std::span<T> gradient) {
    losses_.assign(sequences.size(), 0);
    sum_(pool_, std::ssize(sequences), gradient, [&](Index s, Index w, std::span<T> own) {
      const auto i = static_cast<std::size_t>(s);
      const Bytes bytes = sequences[i].first(sequences[i].size() - 1);
      Worker& memory = worker(w);
      const auto dlogits = memory.gradients.logits.zero_rows(std::ssize(bytes));
      losses_[i] = read_and_forward(model, sequences[i], memory, dlogits);
      backward(model, bytes, memory.attention, memory.activations, memory.gradients, own);
    });
    for (T& g : gradient) g /= static_cast<T>(sequences.size());
    return mean_loss();
  }

 private:
  Worker& worker(Index w) { return workers_[static_cast<std::size_t>(w)]; }
  double mean_loss() const {
    double sum = 0;
    for (const double loss : losses_) sum += loss;
    return sum / static_cast<double>(losses_.size());
  }
  /// \param dlogits  receives the gradient of the sequence's mean loss, or absent
  static double read_and_forward(const Model<T>& model, Bytes sequence, Worker& memory,
                                 mhla::MatrixView<T> dlogits) {
    const Bytes bytes = sequence.first(sequence.size() - 1);
    forward(model, bytes, memory.attention, memory.activations);
    const auto loss = mhla::cross_entropy(memory.activations.logits.rows(std::ssize(bytes)),
                                          sequence.subspan(1), dlogits);
    return loss.loss / std::numbers::ln2;
  }

  mhla::ThreadPool pool_;
  std::deque<Worker> workers_;
  examples::ShardedGradient<T> sum_;
  std::vector<double> losses_;  // of each sequence, in bits
};

}  // namespace write_text
