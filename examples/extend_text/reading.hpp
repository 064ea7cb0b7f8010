#pragma once

/// \file
/// Reading of sequences that are longer than a model's training: piece by piece, by streams whose
/// mixing matrices come from outside the model.

#include <algorithm>
#include <cstring>
#include <deque>
#include <mhla/core/executor.hpp>
#include <mhla/layer/cross_entropy.hpp>
#include <numbers>
#include <span>
#include <vector>

#include "../write_text/decoder.hpp"

namespace extend_text {

using mhla::Index;
using write_text::Activations;
using write_text::Bytes;
using write_text::LayerActivations;
using write_text::Model;
using write_text::Settings;
using Decay = mhla::DecayMixing<float>;
using Matrix = mhla::MixingMatrix<float>;

/// A model for longer sequences with the same parameters, without mixing matrices. Its layout is
/// that of linear attention, which has the same feature map.
inline Model<float> longer(const Model<float>& model, Index context) {
  Settings settings = model.settings();
  settings.attention = write_text::Attention::kLinear;
  settings.context = context;
  Model<float> copy(settings);
  for (const mhla::Parameter& p : copy.layout().table().all()) {
    std::ranges::copy(model.layout().table().numbers(model.parameters(), p.name),
                      p.place().numbers(copy.parameters()).begin());
  }
  return copy;
}

/// Reads a sequence piece by piece.
/// \tparam Mixing  MixingMatrix or DecayMixing
template <class Mixing>
class Reader {
 public:
  /// \param model   a model without mixing matrices
  /// \param mixing  mixing of each layer
  /// \param a       activations of a piece
  Reader(const Model<float>& model, const std::vector<Mixing>& mixing, Activations<float>& a)
      : model_(model), a_(a) {
    for (const Mixing& m : mixing) layers_.emplace_back(model.settings(), m);
  }

  /// Returns the logits after each of the next bytes [n,256].
  /// \param first  position of the first byte, for the rotary embedding
  mhla::MatrixView<float> append(Bytes bytes, Index first) {
    forward(model_, write_text::Products<float>{model_, {.workspace = a_.workspace}}, bytes, first,
            a_, [this](std::size_t layer, auto qk, auto v, auto out) {
              layers_[layer].append(qk, v, out);
            });
    return a_.logits.rows(std::ssize(bytes));
  }
  /// Bytes of the states of all layers.
  std::size_t state_bytes() const {
    std::size_t sum = 0;
    for (const auto& layer : layers_) sum += layer.bytes();
    return sum;
  }

 private:
  const Model<float>& model_;
  Activations<float>& a_;
  std::vector<write_text::MhlaStates<float, Mixing>> layers_;
};

/// Windows of a sequence; each is read with empty states and from position 0.
struct Windows {
  Index size;                     ///< bytes
  Index overlap = 0;              ///< first bytes of a window, read for the states alone
  bool positions_return = false;  ///< positions restart with each piece
};

/// Memory and threads for a model without mixing matrices.
class Evaluation {
 public:
  /// \param piece  bytes per call
  Evaluation(const Model<float>& model, Index piece, Index threads)
      : model_(model), piece_(piece), pool_(threads) {
    for (Index w = 0; w < pool_.workers(); ++w) memory_.emplace_back(model.settings(), piece);
  }

  /// Bits per byte by position, the mean over the sequences.
  template <class Mixing>
  std::vector<double> bits(const std::vector<Mixing>& mixing, const Windows& windows,
                           const std::vector<Bytes>& sequences) {
    const auto length = static_cast<std::size_t>(model_.settings().context);
    std::vector<std::vector<double>> all(sequences.size(), std::vector<double>(length));
    pool_.for_each(std::ssize(sequences), [&](Index s, Index w) {
      const auto i = static_cast<std::size_t>(s);
      read(mixing, windows, sequences[i], memory_[static_cast<std::size_t>(w)], all[i]);
    });
    std::vector<double> mean(length);
    for (const auto& one : all) {
      for (std::size_t t = 0; t < length; ++t) mean[t] += one[t] / static_cast<double>(all.size());
    }
    return mean;
  }

 private:
  template <class Mixing>
  void read(const std::vector<Mixing>& mixing, const Windows& windows, Bytes sequence,
            Activations<float>& a, std::span<double> bits) const {
    const Index length = std::ssize(bits), stride = windows.size - windows.overlap;
    for (Index begin = 0; begin + windows.overlap < length; begin += stride) {
      Reader<Mixing> reader(model_, mixing, a);
      const Index end = std::min(begin + windows.size, length);
      for (Index t = begin; t < end; t += piece_) {
        const auto at = static_cast<std::size_t>(t),
                   n = static_cast<std::size_t>(std::min(piece_, end - t));
        const auto logits =
            reader.append(sequence.subspan(at, n), windows.positions_return ? 0 : t - begin);
        for (Index j = 0; j < logits.rows; ++j) {
          if (begin > 0 && t + j < begin + windows.overlap) continue;
          const auto place = static_cast<std::size_t>(t + j);
          bits[place] =
              mhla::cross_entropy(logits.middle_rows(j, 1), sequence.subspan(place + 1, 1)).loss /
              std::numbers::ln2;
        }
      }
    }
  }

  const Model<float>& model_;
  Index piece_;
  mhla::ThreadPool pool_;
  std::deque<Activations<float>> memory_;
};

/// True if the streams of all layers, which read a sequence piece by piece, give the bits of the
/// causal form over the whole sequence.
inline bool streams_are_causal(const Model<float>& model, const std::vector<Decay>& mixing,
                               Bytes bytes, Index piece) {
  const Settings& s = model.settings();
  const Index n = std::ssize(bytes), c = s.dim;
  Activations<float> a(s, piece);
  Reader<Decay> reader(model, mixing, a);
  std::vector<examples::Buffer<float>> seen(mixing.size(), {n, 4 * c});  // q, k, v, outputs
  for (Index t = 0; t < n; t += piece) {
    const Index count = std::min(piece, n - t);
    reader.append(bytes.subspan(static_cast<std::size_t>(t), static_cast<std::size_t>(count)), t);
    for (std::size_t l = 0; l < seen.size(); ++l) {
      for (Index j = 0; j < count; ++j) {
        float* const row = seen[l].rows(n).row(t + j);
        std::copy_n(a.layers[l].turned.rows(count).row(j), 2 * c, row);
        std::copy_n(a.layers[l].lead.rows(count).row(j) + 2 * c, c, row + 2 * c);
        std::copy_n(a.layers[l].attended.rows(count).row(j), c, row + 3 * c);
      }
    }
  }
  bool same = true;
  examples::Buffer<float> memory(n, c);
  const auto whole = memory.rows(n);
  for (std::size_t l = 0; l < seen.size(); ++l) {
    const auto all = seen[l].rows(n);
    mhla::causal(write_text::head_inputs(all.middle_cols(0, 2 * c), all.middle_cols(2 * c, c), s),
                 mhla::ContiguousBlocks{s.block}, mixing[l], write_text::causal_operator(s),
                 write_text::split_heads(whole, s));
    for (Index t = 0; t < n; ++t) {
      same = same && std::memcmp(whole.row(t), all.row(t) + 3 * c,
                                 static_cast<std::size_t>(c) * sizeof(float)) == 0;
    }
  }
  return same;
}

}  // namespace extend_text
