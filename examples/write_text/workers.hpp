#pragma once

/// \file
/// The loss of sequences and its gradient. Sequences are split over ranks; free threads of a rank
/// take the next sequence. Each sequence has its own gradient, and gradients are added in order, so
/// results do not depend on ranks or threads.

#include <algorithm>
#include <cstddef>
#include <deque>
#include <mhla/core/executor.hpp>
#include <mhla/distributed/ordered_sum.hpp>
#include <mhla/layer/cross_entropy.hpp>
#include <numbers>
#include <span>
#include <vector>

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

  /// The mean loss of the next bytes in the sequences, in bits.
  double evaluate(const Model<T>& model, const std::vector<Bytes>& sequences) {
    losses_.assign(sequences.size(), 0);
    pool_.for_each(std::ssize(sequences), [&](Index s, Index w) {
      const auto i = static_cast<std::size_t>(s);
      losses_[i] = read_and_forward(model, sequences[i], worker(w), {});
    });
    return mean_loss();
  }

  /// The mean loss; writes the gradient of the mean loss in nats. All ranks call it with the same
  /// sequences, and each rank reads some of them.
  template <mhla::distributed::Communicator C>
  double learn(C& comm, const Model<T>& model, const std::vector<Bytes>& sequences,
               std::span<T> gradient) {
    const auto size = gradient.size();
    losses_.assign(sequences.size(), 0);
    rows_.resize(sequences.size() * size);
    const auto split = mhla::distributed::even_split(std::ssize(sequences), comm.size());
    const auto rank = static_cast<std::size_t>(comm.rank());
    pool_.for_each(split[rank + 1] - split[rank], [&](Index s, Index w) {
      const auto i = static_cast<std::size_t>(split[rank] + s);
      const std::span<T> row = std::span(rows_).subspan(i * size, size);
      std::ranges::fill(row, T(0));
      const Bytes bytes = sequences[i].first(sequences[i].size() - 1);
      Worker& memory = worker(w);
      const auto dlogits = memory.gradients.logits.zero_rows(std::ssize(bytes));
      losses_[i] = read_and_forward(model, sequences[i], memory, dlogits);
      backward(model, bytes, memory.attention, memory.activations, memory.gradients, row);
    });
    const auto width = static_cast<Index>(size);
    mhla::distributed::ordered_sum(
        comm, mhla::MatrixView<T>(rows_.data(), std::ssize(sequences), width, width), split,
        gradient);
    const mhla::distributed::SharedRows losses{reinterpret_cast<std::byte*>(losses_.data()),
                                               sizeof(double)};
    comm.all_gather({&losses, 1}, split).wait();
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
  std::vector<T> rows_;         // [sequences, parameters], gradient of each sequence
  std::vector<double> losses_;  // of each sequence, in bits
};

}  // namespace write_text
