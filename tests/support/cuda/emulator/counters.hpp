#pragma once

/// \file
/// Counts of a launch.
/// To extend: define `inline const Counter kName{"name"};` and call Block::add(kName).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace emulator {

/// A counter of instructions, known by its name.
class Counter {
 public:
  explicit Counter(const std::string& name) : index_(add(name)) {}
  std::size_t index() const { return index_; }

  static std::vector<std::string>& names() {
    static std::vector<std::string> all;
    return all;
  }
  /// \throws std::invalid_argument for an unknown name.
  static std::size_t index_of(const std::string& name) {
    const auto found = std::find(names().begin(), names().end(), name);
    if (found == names().end()) throw std::invalid_argument("emulator: no counter " + name);
    return static_cast<std::size_t>(found - names().begin());
  }

 private:
  static std::size_t add(const std::string& name) {
    names().push_back(name);
    return names().size() - 1;
  }
  std::size_t index_;
};

/// Bytes that the instructions of a launch requested in a tracked range.
struct Traffic {
  std::uint64_t read = 0, written = 0;
};

struct Report {
  std::map<std::string, Traffic> traffic;  ///< by the name of the range
  std::vector<std::uint64_t> counts;       ///< by Counter::index
  std::uint64_t bank_conflicts = 0;        ///< passes over shared memory beyond the fewest possible

  std::uint64_t bytes_read(const std::string& range) const { return traffic.at(range).read; }
  std::uint64_t bytes_written(const std::string& range) const { return traffic.at(range).written; }

  /// Returns how often the instruction ran.
  /// \throws std::invalid_argument for an unknown name.
  std::uint64_t count(const std::string& name) const {
    const std::size_t index = Counter::index_of(name);
    return index < counts.size() ? counts[index] : 0;
  }
};

}  // namespace emulator
