#pragma once

/// \file
/// Two measures of a set of drawn images by the classifier. The Frechet distance to the test images
/// uses its features. The share of recognised images counts its verdicts for the requested class.

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "classifier.hpp"
#include "frechet.hpp"
#include "training.hpp"

namespace draw_images {

/// Results of some sets.
struct Judgement {
  std::vector<double> distances;  ///< of each set
  Index recognised = 0, judged = 0;

  double share() const { return static_cast<double>(recognised) / static_cast<double>(judged); }
};

class Judge {
 public:
  /// Trains the classifier.
  Judge(const examples::Images& training, const examples::Images& test, Index epochs, Index seed,
        mhla::ThreadPool& pool)
      : pool_(pool), classifier_(seed) {
    classifier_.train(training, epochs, seed, pool);
    mhla::Matrix<float> images(test.count(), kImage);
    for (Index i = 0; i < test.count(); ++i) read_pixels(test, i, images.row(i).data());
    const auto verdicts = classifier_.judge(images, pool);
    for (std::size_t i = 0; i < test.labels.size(); ++i) {
      accuracy_ += (verdicts.classes[i] == test.labels[i]) / static_cast<double>(test.count());
    }
    test_.emplace(verdicts.features);
  }

  double accuracy() const { return accuracy_; }  ///< of the classifier on the test images

  /// Adds a set [images, kImage]; image i is of class i % 10.
  void look(const mhla::Matrix<float>& images, Judgement& to) {
    const auto verdicts = classifier_.judge(images, pool_);
    to.distances.push_back(frechet_distance(Normal(verdicts.features), *test_));
    for (Index i = 0; i < images.rows(); ++i, ++to.judged) {
      to.recognised += verdicts.classes[static_cast<std::size_t>(i)] == i % kClasses;
    }
  }

 private:
  mhla::ThreadPool& pool_;
  Classifier classifier_;
  double accuracy_ = 0;
  std::optional<Normal> test_;
};

/// Draws all sets and judges them. Returns the first set, or nothing after an interrupt.
inline std::optional<mhla::Matrix<float>> draw_sets(const std::string& name,
                                                    const Model<float>& model,
                                                    const Drawing& drawing, Workers<float>& workers,
                                                    Judge& judge, Judgement& judgement) {
  using Clock = std::chrono::steady_clock;
  examples::ProgressLine line(name);
  const auto begin = Clock::now();
  std::optional<mhla::Matrix<float>> first;
  for (Index set = 0; set < drawing.sets && !examples::interrupted(); ++set) {
    const mhla::Matrix<float> images = workers.draw(model, drawing, set);
    judge.look(images, judgement);
    if (set == 0) first = images;
    const std::chrono::duration<double> each = (Clock::now() - begin) / (set + 1);
    line(set + 1, drawing.sets, each.count() * static_cast<double>(drawing.sets - set - 1),
         [&] { return examples::text("sets of %td images drawn", drawing.images); });
  }
  if (examples::interrupted()) return std::nullopt;
  return first;
}

/// Random images of the data set in the order of drawn images: image i has class i % 10.
inline mhla::Matrix<float> real_images(const examples::Images& images, Index count, Index seed) {
  std::vector<std::vector<Index>> of_class(kClasses);
  for (Index i = 0; i < images.count(); ++i) {
    of_class[images.labels[static_cast<std::size_t>(i)]].push_back(i);
  }
  examples::Random random(static_cast<std::uint64_t>(seed));
  mhla::Matrix<float> real(count, kImage);
  for (Index i = 0; i < count; ++i) {
    const auto& some = of_class[static_cast<std::size_t>(i % kClasses)];
    const Index any = random.below(std::ssize(some));
    read_pixels(images, some[static_cast<std::size_t>(any)], real.row(i).data());
  }
  return real;
}

}  // namespace draw_images
