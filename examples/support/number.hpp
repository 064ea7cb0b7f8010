#pragma once

/// \file
/// A number in a command line without options.

#include <charconv>
#include <mhla/core/scalar.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace examples {

/// The number in a word.
/// \throws std::runtime_error naming the word and what was expected.
inline mhla::Index number_of(std::string_view word, mhla::Index least, mhla::Index most) {
  mhla::Index number = 0;
  const char* const end = word.data() + word.size();
  const auto [behind, error] = std::from_chars(word.data(), end, number);
  if (error == std::errc() && behind == end && least <= number && number <= most) return number;
  throw std::runtime_error("\"" + std::string(word) + "\", expected a number from " +
                           std::to_string(least) + " to " + std::to_string(most));
}

}  // namespace examples
