#pragma once

/// \file
/// Files of a run: a JSON of its results, and a picture that a Python script draws from it.

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <mhla/io/replacement_file.hpp>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace examples {

/// \throws std::runtime_error naming the option unless a file can be put beside the given one.
inline void expect_folder(const char* option, const std::filesystem::path& file) {
  const auto folder = std::filesystem::absolute(file).parent_path();
  if (!std::filesystem::is_directory(folder)) {
    throw std::runtime_error(std::string(option) + " is " + file.string() + ", expected " +
                             folder.string() + " to be a folder");
  }
}

/// Writes the whole file or, with an exception, nothing. Follows symbolic links.
/// \param indent  spaces per level, or -1 for a single line
inline void write_results(const std::filesystem::path& path, const nlohmann::json& json,
                          int indent = -1) {
  // JSON is UTF-8; names of files may not be.
  const std::string text =
      json.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
  mhla::detail::ReplacementFile file(path);
  file.append(text.data(), text.size());
  file.replace_target();
}

/// Runs a Python script that draws `json` into `picture`. The script's status 3 means that this
/// Python has no matplotlib.
/// \returns true if there is a picture; otherwise prints the reason on stderr.
inline bool draw(const std::string& script, const std::filesystem::path& json,
                 const std::filesystem::path& picture) {
  for (const char* const python :
       {"python3", "/usr/bin/python3"}) {  // another one, with matplotlib
    std::string words[] = {python, script, json.string(), picture.string()};
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
    std::fprintf(stderr, "no picture: %s failed\n", script.c_str());
    return false;
  }
  std::fprintf(stderr, "no picture: no Python with matplotlib (Debian: python3-matplotlib)\n");
  return false;
}

/// Writes PREFIX.json, draws it into PREFIX.png, and prints the names of the written files.
inline void write_and_draw(const std::string& prefix, const nlohmann::json& json,
                           const std::string& script) {
  const std::string results = prefix + ".json", picture = prefix + ".png";
  write_results(results, json);
  std::printf("%s\n", results.c_str());
  std::fflush(stdout);
  if (draw(script, results, picture)) std::printf("%s\n", picture.c_str());
}

}  // namespace examples
