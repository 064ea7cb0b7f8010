#pragma once

/// \file
/// Options of the command line, the training of a teacher, and the conversions of one.

#include <algorithm>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../support/fashion_mnist.hpp"
#include "../support/training_loop.hpp"
#include "../train_images/checkpoint.hpp"
#include "../train_images/training.hpp"
#include "report.hpp"

namespace convert {

struct Options {
  std::vector<std::string> checkpoints;
  std::string data = "/usr/share/datasets/fashion-mnist";
  std::string output = "convert";
  Index blocks = 16;
  Index fit_images = 256;
  Index images = 20000;
  Index test_images = 10000;
  Index threads = std::max<Index>(std::thread::hardware_concurrency(), 1);
  bool quick = false;
  examples::Schedule schedule{.batch = 64, .rate = 1e-3};
};

/// Trains a model with softmax attention, five epochs, or resumes from its checkpoint.
inline void train_teacher(const std::string& path, const Options& o) {
  constexpr Index kEpochs = 5;
  Settings settings;
  settings.attention = Attention::kSoftmax;
  const Images images = read_images(o.data, examples::Part::kTraining, o.images);
  examples::Schedule schedule = o.schedule;
  schedule.rate = 2e-3;
  schedule.steps *= kEpochs;
  Model<float> model(settings);
  train_images::Workers<float> workers(model, o.threads);
  const examples::TrainingRun run{
      .name = "softmax",
      .checkpoint = path,
      .program = train_images::kProgram,
      .depends = {{"settings", settings}, {"schedule", schedule}, {"images", images.to_json()}},
      .resume = true};
  train_images::train(run, schedule, model, workers, images, images.count());
}

/// The model of a checkpoint.
/// \throws std::runtime_error naming the file unless it has an attention to convert.
inline Model<float> teacher_of(const std::string& path) {
  Model<float> model = train_images::model_of(path);
  if (model.settings().attention != Attention::kMhla) return model;
  throw std::runtime_error(path + " has MHLA attention, expected softmax or linear");
}

/// Prefix of the files of a checkpoint's conversions; has the checkpoint's name if there are
/// several.
inline std::string prefix_of(const std::string& checkpoint, const Options& o) {
  if (o.checkpoints.size() == 1) return o.output;
  return o.output + "." + std::filesystem::path(checkpoint).stem().string();
}

/// Name and file of an epoch of training from a start.
inline examples::TrainingRun run_of(Start start, const std::string& checkpoint,
                                    const Settings& settings, const Options& o) {
  const std::string name = name_of(start);
  return {.name = name,
          .checkpoint = prefix_of(checkpoint, o) + "." + name + ".safetensors",
          .program = train_images::kProgram,
          .depends = {{"settings", settings}, {"schedule", o.schedule}, {"images", o.images}},
          .resumable = false};
}

/// Converts the teacher from each start, and trains each conversion for an epoch.
/// \returns nothing if there was an interrupt
inline std::optional<Conversion> convert_one(const std::string& path, const Model<float>& teacher,
                                             const Options& o, const Images& images,
                                             const Images& test) {
  using train_images::Workers;
  Conversion result{.checkpoint = path, .teacher = teacher.settings()};
  Workers<float> of_teacher(teacher, o.threads);
  result.accuracy = accuracy_of(teacher, test, of_teacher);
  for (const Start start : kStarts) {
    Settings settings = teacher.settings();
    settings.attention = Attention::kMhla;
    settings.freeze_mixing = false;
    settings.blocks = o.blocks;
    settings.init = start == Start::kUniform ? train_images::MixingStart::kUniform
                                             : train_images::MixingStart::kLocality;
    Model<float> student = with_parameters_of(teacher, settings);
    if (start == Start::kFitted) {
      result.fits = fit_mixing_of(teacher, student, images, o.fit_images, o.threads);
      result.mixing = student.mixing();
    }
    StartResult& of_start = result.of_starts.emplace_back();
    Workers<float> workers(student, o.threads);
    of_start.converted = accuracy_of(student, test, workers);
    train_images::train(run_of(start, path, settings, o), o.schedule, student, workers, images,
                        o.images);
    if (examples::interrupted()) return std::nullopt;
    of_start.trained = accuracy_of(student, test, workers);
  }
  print(result);
  return result;
}

}  // namespace convert
