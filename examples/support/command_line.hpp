#pragma once

/// \file
/// The main function of an example with options.

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <initializer_list>
#include <map>
#include <mhla/core/scalar.hpp>
#include <string>

namespace examples {

/// Refuses NaN and infinity, which ranges of CLI11 let pass.
inline CLI::Validator finite() {
  return {[](const std::string& word) {
            const bool right = std::isfinite(std::strtod(word.c_str(), nullptr));
            return right ? std::string() : "is " + word + ", expected a finite number";
          },
          "FINITE"};
}

/// Adds an option whose words are `names`.
template <class E>
void add_choice(CLI::App& app, const char* option, E& value, const std::map<std::string, E>& names,
                const char* description) {
  std::string start;
  for (const auto& [name, named] : names) start = named == value ? name : start;
  app.add_option_function<std::string>(
         option, [&](const std::string& name) { value = names.at(name); }, description)
      ->check(CLI::IsMember(names))
      ->default_str(start);
}

/// An option and its value with --quick.
struct QuickValue {
  const char* option;
  mhla::Index& value;
  mhla::Index quick;
};

/// Sets the quick values of options that the parsed command line leaves out.
inline void set_quick_values(const CLI::App& app, std::initializer_list<QuickValue> all) {
  for (const auto& [option, value, quick] : all) {
    if (app.count(option) == 0) value = quick;
  }
}

/// Returns body(app), the status of the program. Prints errors, and returns 2 for an error in the
/// command line, 1 for any other error.
template <class Body>
int with_command_line(const char* program, const char* description, Body&& body) {
  CLI::App app(description);
  app.option_defaults()->always_capture_default();
  try {
    return body(app);
  } catch (const CLI::Success& request) {  // --help
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "%s: %s (see --help)\n", program, error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return 1;
  }
}

}  // namespace examples
