#pragma once

/// \file
/// A training in a safetensors file. It has every trained tensor NAME of floats, the optimiser's
/// means adamw.m.NAME and adamw.v.NAME, average.NAME if the run averages its parameters, and the
/// losses of all steps so far. Metadata under the name of the program is a JSON of the settings,
/// schedule and data of the run. A resumed training takes the same steps, to the last bit, as a
/// training without interrupt.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <mhla/io/safetensors.hpp>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "optimizer.hpp"

namespace examples {

/// The state of a training; the number of losses is the number of steps.
template <class T>
struct TrainingState {
  std::span<T> parameters;
  Optimizer<T> optimizer;
  std::vector<double> losses{};
  std::span<T> average{};  ///< of the parameters over the steps, or empty

  mhla::Index step() const { return std::ssize(losses); }
};

/// Writes the whole file, or throws and writes nothing.
/// \param program  key of the metadata
/// \param run      settings, schedule and data
template <class T>
void save_checkpoint(const std::filesystem::path& path, const std::string& program,
                     const nlohmann::json& run, const TrainingState<T>& state);

/// Settings, schedule and data of the run of a checkpoint.
/// \throws std::runtime_error, mhla::safetensors_error naming the file unless the program wrote it.
nlohmann::json run_of_checkpoint(const std::filesystem::path& path, const std::string& program);

/// Sets the state to that of the file.
/// \param steps  largest number of steps of the run
/// \throws std::runtime_error, mhla::safetensors_error naming the file unless it is a checkpoint of
/// this run.
template <class T>
void load_checkpoint(const std::filesystem::path& path, const std::string& program,
                     const nlohmann::json& run, mhla::Index steps, TrainingState<T>& state);

// ------------------------------------------------------------------------------------------------

namespace detail {

constexpr char kLosses[] = "losses";

/// Settings, schedule and data of the file's run, or a discarded JSON if they cannot be read.
inline nlohmann::json stored_run(const mhla::Safetensors& file, const std::string& path,
                                 const std::string& program) {
  const auto entry = file.metadata().find(program);
  if (entry == file.metadata().end()) {
    throw std::runtime_error(path + " has no metadata \"" + program +
                             "\", expected a checkpoint of " + program);
  }
  return nlohmann::json::parse(entry->second, nullptr, /*allow_exceptions=*/false);
}

/// Throws unless the file was written by this program for this run.
inline void expect_run(const mhla::Safetensors& file, const std::string& path,
                       const std::string& program, const nlohmann::json& run) {
  const auto stored = stored_run(file, path, program);
  const auto differences = nlohmann::json::diff(run, stored);
  if (differences.empty()) return;
  const std::string place = differences[0].at("path");
  const auto value = [&place](const nlohmann::json& json) {
    const nlohmann::json::json_pointer pointer(place);
    return json.contains(pointer) ? json.at(pointer).dump() : std::string("nothing");
  };
  throw std::runtime_error(path + " is of another run: it has " + value(stored) + " for \"" +
                           place + "\", expected " + value(run));
}

/// Copies a tensor, whose numbers have to be finite.
template <class U>
void read_tensor(const mhla::Safetensors& file, const std::string& path, const std::string& name,
                 const std::vector<mhla::Index>& shape, std::span<U> to) {
  const auto& stored = file.tensor(name);
  if (stored.dtype != mhla::dtype_of<U>() || stored.shape != shape) {
    throw std::runtime_error(
        path + " has tensor \"" + name + "\" of another type or shape, expected " +
        (sizeof(U) == sizeof(float) ? "float " : "double ") + nlohmann::json(shape).dump());
  }
  file.copy_to<U>(name, to);
  if (!std::all_of(to.begin(), to.end(), [](U x) { return std::isfinite(x); })) {
    throw std::runtime_error(path + " has tensor \"" + name +
                             "\" with an infinity or NaN, expected finite numbers");
  }
}

}  // namespace detail

template <class T>
void save_checkpoint(const std::filesystem::path& path, const std::string& program,
                     const nlohmann::json& run, const TrainingState<T>& state) {
  mhla::SafetensorsWriter writer;
  auto means = state.optimizer.states().begin();
  for (const TrainedTensor& tensor : state.optimizer.tensors()) {
    writer.add(tensor.name, tensor.shape, tensor.of(state.parameters));
    writer.add("adamw.m." + tensor.name, tensor.shape, means->m);
    writer.add("adamw.v." + tensor.name, tensor.shape, means++->v);
    if (!state.average.empty()) {
      writer.add("average." + tensor.name, tensor.shape, tensor.of(state.average));
    }
  }
  writer.add(detail::kLosses, {state.step()}, state.losses);
  writer.add_metadata(program, run.dump());
  writer.write(path);
}

inline nlohmann::json run_of_checkpoint(const std::filesystem::path& path,
                                        const std::string& program) {
  return detail::stored_run(mhla::Safetensors::read(path), path.string(), program);
}

template <class T>
void load_checkpoint(const std::filesystem::path& path, const std::string& program,
                     const nlohmann::json& run, mhla::Index steps, TrainingState<T>& state) {
  const mhla::Safetensors file = mhla::Safetensors::read(path);
  detail::expect_run(file, path.string(), program, run);
  const auto& tensors = state.optimizer.tensors();
  const std::size_t rows = state.average.empty() ? 3 : 4;
  if (const auto expected = rows * tensors.size() + 1; file.tensors().size() != expected) {
    throw std::runtime_error(path.string() + " has " + std::to_string(file.tensors().size()) +
                             " tensors, expected " + std::to_string(expected));
  }
  const auto& shape = file.tensor(detail::kLosses).shape;
  if (shape.size() != 1 || shape[0] > steps) {
    throw std::runtime_error(path.string() + " has losses " + nlohmann::json(shape).dump() +
                             ", expected one for each of at most " + std::to_string(steps) +
                             " steps");
  }
  state.losses.resize(static_cast<std::size_t>(shape[0]));
  detail::read_tensor(file, path.string(), detail::kLosses, shape, std::span(state.losses));
  auto means = state.optimizer.states().begin();
  for (const TrainedTensor& tensor : tensors) {
    const auto read = [&](const std::string& name, std::span<T> to) {
      detail::read_tensor(file, path.string(), name, tensor.shape, to);
    };
    read(tensor.name, tensor.of(state.parameters));
    read("adamw.m." + tensor.name, means->m);
    read("adamw.v." + tensor.name, means->v);
    if (!state.average.empty()) read("average." + tensor.name, tensor.of(state.average));
    means++->steps = state.step();
  }
}

}  // namespace examples
