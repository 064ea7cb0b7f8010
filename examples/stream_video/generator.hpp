#pragma once

/// \file
/// Generates a video frame by frame: streams of a trained denoiser (model.hpp).

#include <mhla/mhla.hpp>
#include <span>
#include <vector>

#include "clips.hpp"
#include "model.hpp"

namespace stream_video {

/// A video that grows at its end. Its memory does not grow.
class Generator {
 public:
  using Rows = mhla::Matrix<float>;

  /// \param capacity  frames that the video can have
  Generator(const Denoiser<float>& trained, Index capacity) : model_(trained) {
    const Options<float>& o = model_.options();
    for (Index b = 0; b < o.depth; ++b) {
      const auto table = model_.table().matrix(std::span<const float>(model_.parameters()),
                                               "blocks." + std::to_string(b) + ".mixing");
      const Index d = o.width / o.heads;
      Stream<float> stream{{{.width = d, .values = d},
                            mhla::Contiguous(o.patches(), o.patches()),
                            by_distance(table, capacity)},
                           {}};
      for (Index h = 0; h < o.heads; ++h) stream.heads.push_back(stream.form.start(h));
      streams_.push_back(std::move(stream));
    }
    with_streams([&] { workspace_.resize(model_.workspace_bytes(o.patches())); });
  }

  /// Appends a frame with noise of level s. Returns the pixels that the model takes for true.
  Rows append(const Rows& frame, double s) {
    Rows level(1, kLevels), y(frame.rows(), frame.cols());
    write_level(s, level.data());
    with_streams([&] { model_(frame, level, y, {.workspace = workspace_}); });
    return y;
  }
  /// The same, but the video stays as it was.
  Rows visit(const Rows& frame, double s) {
    Rows pixels = append(frame, s);
    for (Stream<float>& stream : streams_) {
      for (auto& head : stream.heads) stream.form.roll_back(head);
    }
    return pixels;
  }
  /// Appends a frame without noise: the next frames read it.
  void commit(const Rows& frame) { append(frame, 0); }
  /// Draws the next frame from noise in a number of visits, and appends it.
  Rows draw(Index visits, examples::Random& random) {
    const Options<float>& o = model_.options();
    Rows frame = draw_noise<float>(o.patches(), o.channels, random);
    for (Index i = 0; i < visits; ++i) {
      const auto level = [&](Index n) {
        return 1 - static_cast<double>(n) / static_cast<double>(visits);
      };
      const float next = static_cast<float>(level(i + 1) / level(i));
      frame = next * frame + (1 - next) * visit(frame, level(i));
    }
    commit(frame);
    return frame;
  }

  /// Bytes of all states.
  std::size_t state_bytes() const {
    std::size_t bytes = 0;
    for (const Stream<float>& stream : streams_) {
      for (const auto& head : stream.heads) bytes += head.bytes();
    }
    return bytes;
  }

 private:
  /// Calls f while the model reads the streams of this video.
  template <class F>
  void with_streams(F&& f) {
    model_.options().streams->swap(streams_);
    f();
    model_.options().streams->swap(streams_);
  }

  const Denoiser<float>& model_;
  Streams<float> streams_;
  std::vector<std::byte> workspace_;
};

}  // namespace stream_video
