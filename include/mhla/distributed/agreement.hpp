#pragma once

/// \file
/// Agreement of ranks before data moves. A call that one rank refuses, or that differs between
/// ranks, is an error on all ranks. No rank waits in a transfer for a missing rank.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/version.hpp"
#include "mhla/distributed/communicator.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// FNV-1a over words of 8 bytes. High bits are mixed into the low bits, since products never move
/// them there, and signs are the highest bits.
class Fingerprint {
 public:
  template <class T>
  Fingerprint& add(std::span<const T> numbers) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto bytes = std::as_bytes(numbers);
    for (std::size_t i = 0; i < bytes.size(); i += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data() + i, std::min(sizeof(word), bytes.size() - i));
      hash_ = (hash_ ^ word) * 0x100000001b3;
      hash_ ^= hash_ >> 32;
    }
    return *this;
  }
  template <class T>
  Fingerprint& add(const T& number) {
    return add(std::span<const T>(&number, 1));
  }
  Index value() const { return static_cast<Index>(hash_); }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325;
};

/// Values that must be the same on all ranks.
class CallSignature {
 public:
  /// A number that a message can show: "q has width 32 on rank 1, expected 64 as on rank 0".
  void add(const char* argument, const char* what, Index value) {
    values_.push_back({argument, what, value, true});
  }
  /// A fingerprint: "mixing has other coefficients on rank 1, expected those of rank 0".
  void add_bits(const char* argument, const char* what, const Fingerprint& bits) {
    values_.push_back({argument, what, bits.value(), false});
  }

 private:
  struct Value {
    const char* argument;
    const char* what;
    Index value;
    bool shown;
  };
  static constexpr std::size_t kMost = 24;

  /// Data that a rank sends.
  struct Record {
    std::array<Index, kMost> values;
    std::array<char, 64> function;
    std::array<char, 64> build;     // version and instruction set
    std::array<char, 512> mistake;  // error of the rank's arguments, empty for none
  };

  template <std::size_t n>
  static void copy_text(const std::string& text, std::array<char, n>& to) {
    to.fill('\0');
    std::copy_n(text.begin(), std::min(text.size(), n - 1), to.begin());
  }
  static std::string on_rank(std::size_t r) { return " on rank " + std::to_string(r); }

  void expect_alike(const char* function, std::span<const Record> records) const;

  std::vector<Value> values_;

  template <distributed::Communicator C, class Check>
  friend void agree(C& comm, const char* function, Check&& check);
};

/// Calls check(signature), which throws this rank's errors and adds the values of the call.
/// \throws the error of `check`, on that rank; option_error or shape_error on all ranks if any rank
///     was refused or has other values; communication_error.
template <distributed::Communicator C, class Check>
void agree(C& comm, const char* function, Check&& check) {
  CallSignature signature;
  CallSignature::Record record{};
  std::exception_ptr mistake;
  CallSignature::copy_text(function, record.function);
  CallSignature::copy_text(std::string(kVersion) + " for " + kInstructionSet, record.build);
  try {
    check(signature);
    for (std::size_t f = 0; f < signature.values_.size(); ++f)
      record.values.at(f) = signature.values_[f].value;
  } catch (const std::exception& e) {
    mistake = std::current_exception();
    CallSignature::copy_text(e.what()[0] == '\0' ? "?" : e.what(), record.mistake);
  }
  std::vector<CallSignature::Record> records(static_cast<std::size_t>(comm.size()));
  comm.agree(std::as_bytes(std::span(&record, 1)), std::as_writable_bytes(std::span(records)));
  if (mistake) std::rethrow_exception(mistake);
  signature.expect_alike(function, records);
}

inline void CallSignature::expect_alike(const char* function,
                                        std::span<const Record> records) const {
  const Record& first = records.front();
  for (std::size_t r = 0; r < records.size(); ++r) {
    if (records[r].function != first.function) {
      fail_option(function, "ranks", "call " + std::string(records[r].function.data()) + on_rank(r),
                  std::string(first.function.data()) + " as on rank 0");
    }
    if (records[r].build != first.build) {
      fail_option(function, "ranks",
                  "have version " + std::string(records[r].build.data()) + on_rank(r),
                  std::string(first.build.data()) + " as on rank 0");
    }
  }
  for (std::size_t r = 0; r < records.size(); ++r) {
    if (records[r].mistake[0] != '\0') {
      fail_option(function, "arguments",
                  "were refused" + on_rank(r) + " (" + records[r].mistake.data() + ")",
                  "what every rank takes");
    }
  }
  for (std::size_t f = 0; f < values_.size(); ++f) {
    const Index expected = first.values[f];
    for (std::size_t r = 1; r < records.size(); ++r) {
      const Index value = records[r].values[f];
      if (value == expected) continue;
      const std::string what = values_[f].what;
      if (values_[f].shown) {
        fail_shape(function, values_[f].argument,
                   "has " + what + " " + std::to_string(value) + on_rank(r),
                   std::to_string(expected) + " as on rank 0");
      }
      fail_option(function, values_[f].argument, "has other " + what + on_rank(r),
                  "the same as on rank 0");
    }
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
