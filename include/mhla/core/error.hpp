#pragma once

/// \file
/// Errors of the public functions. A message names the function, the argument, what it has and what
/// was expected. All errors are thrown before anything is written, except by load_parameters.
///
/// The types are outside the target namespace, so one `catch` serves a program whose parts are
/// built for different instruction sets.

#include <cstddef>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>

#include "mhla/core/arch.hpp"

namespace mhla {

/// Base of all errors of the library.
struct error : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// Sizes that do not fit each other, or that do not fit in memory.
struct shape_error : error {
  using error::error;
};

/// A value, a policy or a workspace that the function cannot work with.
struct option_error : error {
  using error::error;
};

}  // namespace mhla

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Returns "mhla::causal: v has shape [12, 8], expected [16, any]".
MHLA_COLD inline std::string message(const char* function, const char* argument,
                                     const std::string& got, const std::string& expected) {
  return std::string("mhla::") + function + ": " + argument + " " + got + ", expected " + expected;
}

[[noreturn]] MHLA_COLD inline void fail_shape(const char* function, const char* argument,
                                              const std::string& got, const std::string& expected) {
  throw shape_error(message(function, argument, got, expected));
}

[[noreturn]] MHLA_COLD inline void fail_option(const char* function, const char* argument,
                                               const std::string& got,
                                               const std::string& expected) {
  throw option_error(message(function, argument, got, expected));
}

/// Returns 'text' for a message: printable, and cut after 64 bytes.
MHLA_COLD inline std::string printable(std::string_view text) {
  constexpr std::size_t kLongest = 64;
  constexpr char digits[] = "0123456789abcdef";
  std::string result = "'";
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      result += c;
    } else {
      result += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
    }
  }
  return result + (text.size() > kLongest ? "...'" : "'");
}

/// Returns "[3, 4]"; a negative size is written as "any".
template <class Sizes = std::initializer_list<std::ptrdiff_t>>
MHLA_COLD std::string shape_text(const Sizes& sizes) {
  std::string text = "[";
  for (const std::ptrdiff_t size : sizes) {
    if (text.size() > 1) text += ", ";
    text += size < 0 ? "any" : std::to_string(size);
  }
  return text + "]";
}

/// Returns the product of nonnegative sizes.
/// \throws shape_error if the product does not fit std::ptrdiff_t.
inline std::ptrdiff_t checked_product(const char* function, const char* argument,
                                      std::initializer_list<std::ptrdiff_t> sizes) {
  std::ptrdiff_t product = 1;
  for (const std::ptrdiff_t size : sizes) {
    if (size < 0) {
      fail_shape(function, argument, "has a negative size " + std::to_string(size), "sizes >= 0");
    }
    // Only sizes near the limit need a division.
    const bool quick = ((product | size) >> (std::numeric_limits<std::ptrdiff_t>::digits / 2)) == 0;
    if (!quick && size != 0 && product > std::numeric_limits<std::ptrdiff_t>::max() / size) {
      fail_shape(function, argument, "has shape " + shape_text(sizes),
                 "a product that fits std::ptrdiff_t");
    }
    product *= size;
  }
  return product;
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
