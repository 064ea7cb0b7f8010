#pragma once

/// \file
/// A model as a safetensors file: its tensors, and its settings as metadata.

#include <filesystem>
#include <mhla/io/safetensors.hpp>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "model.hpp"

namespace train_images {

/// The metadata key of the settings, a JSON object.
constexpr char kSettingsKey[] = "train_images";

inline nlohmann::json to_json(const Settings& s) {
  return {{"attention", name_of(kAttentions, s.attention)},
          {"dim", s.dim},
          {"depth", s.depth},
          {"heads", s.heads},
          {"blocks", s.blocks},
          {"init", name_of(kMixingStarts, s.mixing_start)},
          {"freeze_mixing", s.freeze_mixing},
          {"seed", s.seed}};
}

/// Writes the whole file or, with an exception, nothing.
inline void save_model(const Model<float>& model, const std::filesystem::path& path) {
  mhla::SafetensorsWriter writer;
  for (const NamedSlice& tensor : model.layout().tensors()) {
    writer.add(tensor.name, {tensor.slice.rows, tensor.slice.cols},
               tensor.slice.vector(model.parameters()));
  }
  writer.add_metadata(kSettingsKey, to_json(model.settings()).dump());
  writer.write(path);
}

/// The settings in a file's metadata.
/// \throws std::runtime_error unless all are there and valid.
inline Settings read_settings(const mhla::Safetensors& file, const std::string& path) {
  const auto entry = file.metadata().find(kSettingsKey);
  if (entry == file.metadata().end()) {
    throw std::runtime_error(path + " has no metadata \"" + kSettingsKey +
                             "\", expected a file written by --save");
  }
  try {
    const auto json = nlohmann::json::parse(entry->second);
    const Settings settings{
        .attention = named(kAttentions, json.at("attention").get<std::string>()),
        .dim = json.at("dim").get<Index>(),
        .depth = json.at("depth").get<Index>(),
        .heads = json.at("heads").get<Index>(),
        .blocks = json.at("blocks").get<Index>(),
        .mixing_start = named(kMixingStarts, json.at("init").get<std::string>()),
        .freeze_mixing = json.at("freeze_mixing").get<bool>(),
        .seed = json.at("seed").get<Index>()};
    expect_valid(settings);
    return settings;
  } catch (const std::exception& error) {
    throw std::runtime_error(path + " has metadata \"" + kSettingsKey +
                             "\" that does not describe a model: " + error.what());
  }
}

/// \throws std::runtime_error, mhla::safetensors_error naming the file and what is wrong with it.
inline Model<float> load_model(const std::filesystem::path& path) {
  const mhla::Safetensors file = mhla::Safetensors::read(path);
  const Settings settings = read_settings(file, path.string());
  const Layout layout(settings);
  // All tensors first: then the model is no larger than the file.
  for (const NamedSlice& tensor : layout.tensors()) {
    const auto& stored = file.tensor(tensor.name);
    const std::vector<Index> expected{tensor.slice.rows, tensor.slice.cols};
    if (stored.dtype != mhla::Dtype::kF32 || stored.shape != expected) {
      throw std::runtime_error(path.string() + " has tensor \"" + tensor.name +
                               "\" of another type or shape, expected float " +
                               mhla::detail::shape_text({expected[0], expected[1]}));
    }
  }
  if (file.tensors().size() != layout.tensors().size()) {
    throw std::runtime_error(path.string() + " has " + std::to_string(file.tensors().size()) +
                             " tensors, expected " + std::to_string(layout.tensors().size()));
  }
  Model<float> model(settings);
  for (const NamedSlice& tensor : layout.tensors()) {
    file.copy_to<float>(tensor.name, tensor.slice.vector(model.parameters()));
  }
  return model;
}

}  // namespace train_images
