#pragma once

/// \file
/// The contents of a safetensors header, and the rule that its tensors tile the data.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/io/safetensors_format.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// The contents of a header. The bytes of a tensor are data[offsets.first, offsets.second).
struct SafetensorsHeader {
  using Range = std::pair<std::uint64_t, std::uint64_t>;
  struct Entry {
    Dtype dtype = Dtype::kF32;
    std::string unknown_dtype;  // as in StoredTensor
    std::vector<Index> shape;
    Range offsets;
  };
  std::map<std::string, Entry, std::less<>> tensors;
  SafetensorsMetadata metadata;
};

/// \throws safetensors_error unless every byte of the data, which begins at byte `data_begin` of
/// the file, belongs to exactly one tensor.
inline void expect_tiling(const SafetensorsHeader& header, std::uint64_t data_size,
                          std::uint64_t data_begin, const std::string& file) {
  std::vector<SafetensorsHeader::Range> ranges;
  ranges.reserve(header.tensors.size());
  for (const auto& [name, entry] : header.tensors) ranges.push_back(entry.offsets);
  std::sort(ranges.begin(), ranges.end());
  ranges.emplace_back(data_size, data_size);
  std::uint64_t reached = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin != reached) {
      const bool hole = begin > reached;
      const std::string got = hole ? "data in [" + std::to_string(reached) + ", " +
                                         std::to_string(begin) + ") that belongs to no tensor"
                                   : "a tensor that begins at " + std::to_string(begin) +
                                         " of the data, inside of another";
      fail_safetensors(file, hole ? SafetensorsFault::kHole : SafetensorsFault::kOverlap,
                       data_begin + std::min(begin, reached), got,
                       "tensors side by side to the end");
    }
    reached = end;
  }
}

/// Iterates over a text and reports its position.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla
