#pragma once

/// \file
/// Messages of errors.

#include <exception>
#include <string>

namespace mhla::test {

/// The message of the Error that `call` throws, or a text with the actual outcome.
template <class Error, class F>
std::string message_of(F&& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  } catch (const std::exception& e) {
    return std::string("another exception: ") + e.what();
  }
  return "no exception";
}

}  // namespace mhla::test
