#pragma once

/// \file
/// What the user sees: a line of progress, a table, a JSON of all results and a picture of them.

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "training.hpp"
#include "weights.hpp"

namespace train_images {

/// The outcome of one training.
struct Result {
  Settings settings;
  Index parameters = 0;
  double test_accuracy = 0;
  Course course;
  std::vector<mhla::Matrix<float>> initial_mixing;  ///< [M,M] of each block; MHLA only
  std::vector<mhla::Matrix<float>> learned_mixing;
};

/// Prints where a training is to stderr: on a terminal one line, several times a second, otherwise
/// a new line every few seconds.
class ProgressLine {
 public:
  explicit ProgressLine(std::string attention)
      : attention_(std::move(attention)), terminal_(isatty(STDERR_FILENO) == 1) {}

  void operator()(const Progress& p) {
    const auto now = std::chrono::steady_clock::now();
    const bool last = p.step == p.steps;
    const std::chrono::duration<double> pause(terminal_ ? 0.2 : 5);
    if (!last && now - printed_ < pause) return;
    printed_ = now;
    std::fprintf(
        stderr,
        "%s%-7s  step %*td/%td  loss %.4f  accuracy %5.2f %%  %5.0f images/s  %3.0f s left%s",
        terminal_ ? "\r" : "", attention_.c_str(), static_cast<int>(std::to_string(p.steps).size()),
        p.step, p.steps, p.loss, 100 * p.accuracy, p.images_per_second, p.seconds_left,
        terminal_ && !last ? "\033[K" : "\n");
  }

 private:
  std::string attention_;
  bool terminal_;
  std::chrono::steady_clock::time_point printed_ = std::chrono::steady_clock::now();
};

inline void print_table(const std::vector<Result>& results) {
  std::printf("attention  parameters  test accuracy  training loss  images/s\n");
  for (const Result& r : results) {
    std::printf("%-9s  %10td  %11.2f %%  %13.4f  %8.0f\n",
                name_of(kAttentions, r.settings.attention).c_str(), r.parameters,
                100 * r.test_accuracy, r.course.final_loss, r.course.images_per_second);
  }
}

inline nlohmann::json to_json(const Schedule& s) {
  return {{"epochs", s.epochs},
          {"batch", s.batch},
          {"rate", s.rate},
          {"warm_up", s.warm_up},
          {"weight_decay", s.weight_decay},
          {"gradient_norm", s.gradient_norm}};
}

/// Writes the whole file or, with an exception, nothing.
inline void write_json(const std::filesystem::path& path, const Schedule& schedule, Index images,
                       const std::vector<Result>& results) {
  const auto rows = [](const std::vector<mhla::Matrix<float>>& matrices) {
    nlohmann::json list = nlohmann::json::array();
    for (const auto& m : matrices) {
      nlohmann::json matrix = nlohmann::json::array();
      for (Index i = 0; i < m.rows(); ++i) {
        matrix.push_back(std::vector<float>(m.row(i).begin(), m.row(i).end()));
      }
      list.push_back(matrix);
    }
    return list;
  };
  nlohmann::json json{{"schedule", to_json(schedule)}, {"images", images}};
  for (const Result& r : results) {
    json["results"].push_back({{"settings", to_json(r.settings)},
                               {"parameters", r.parameters},
                               {"test_accuracy", r.test_accuracy},
                               {"training_loss", r.course.final_loss},
                               {"images_per_second", r.course.images_per_second},
                               {"losses", r.course.losses},
                               {"initial_mixing", rows(r.initial_mixing)},
                               {"learned_mixing", rows(r.learned_mixing)}});
  }
  std::filesystem::path part = path;
  part += ".part";
  std::ofstream stream(part);
  stream << json << '\n';
  stream.close();
  std::error_code error;
  if (stream) std::filesystem::rename(part, path, error);
  if (!stream || error) {
    std::filesystem::remove(part, error);
    throw std::runtime_error(path.string() + " cannot be written");
  }
}

/// Runs chart.py, which draws `json` into `picture`.
/// \returns whether there is a picture; if not, a line on stderr says why.
inline bool draw(const std::filesystem::path& json, const std::filesystem::path& picture) {
  for (const char* const python :
       {"python3", "/usr/bin/python3"}) {  // another one, with matplotlib
    std::string words[] = {python, TRAIN_IMAGES_CHART, json.string(), picture.string()};
    char* const arguments[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(),
                               nullptr};
    pid_t process = 0;
    int status = 0;
    if (posix_spawnp(&process, python, nullptr, nullptr, arguments, environ) != 0 ||
        waitpid(process, &status, 0) != process) {
      continue;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 3) continue;
    std::fprintf(stderr, "no picture: %s failed\n", TRAIN_IMAGES_CHART);
    return false;
  }
  std::fprintf(stderr, "no picture: no Python with matplotlib (Debian: python3-matplotlib)\n");
  return false;
}

}  // namespace train_images
