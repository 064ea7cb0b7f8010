#pragma once

/// \file
/// Counts of instructions in machine code, per kernel and unit, stored in instructions.txt:
///
///     release 13.0, V13.0.88     the CUDA release whose nvcc made the code
///     kernel      64x64_sm80 ... the units
///     FusedSm80        10848 ... instructions of all entry functions of the template, - for none
///
/// The counts hold for that release alone.

#include <cmath>
#include <iomanip>
#include <map>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace mhla::cuda::build {

/// Name of the kernel's template -> instructions.
using InstructionCounts = std::map<std::string, int>;

struct InstructionTable {
  std::string release;
  std::map<std::string, InstructionCounts> units;
};

/// A count may differ by this share of the stored one.
inline constexpr double kCountTolerance = 0.01;

inline InstructionTable read_instructions(std::istream& text) {
  InstructionTable table;
  std::getline(text, table.release);
  std::string line, word;
  std::getline(text, line);
  std::istringstream head(line);
  std::vector<std::string> units;
  for (head >> word; head >> word;) units.push_back(word);
  while (std::getline(text, line)) {
    std::istringstream row(line);
    std::string kernel;
    row >> kernel;
    for (const std::string& unit : units) {
      if (row >> word && word != "-") table.units[unit][kernel] = std::stoi(word);
    }
  }
  return table;
}

inline void write_instructions(const InstructionTable& table, std::ostream& text) {
  InstructionCounts kernels;
  for (const auto& [unit, counts] : table.units) kernels.insert(counts.begin(), counts.end());
  text << table.release << "\n" << std::left << std::setw(24) << "kernel" << std::right;
  for (const auto& [unit, counts] : table.units) text << std::setw(15) << unit;
  for (const auto& [kernel, unused] : kernels) {
    text << "\n" << std::left << std::setw(24) << kernel << std::right;
    for (const auto& [unit, counts] : table.units) {
      const auto found = counts.find(kernel);
      text << std::setw(15) << (found == counts.end() ? "-" : std::to_string(found->second));
    }
  }
  text << "\n";
}

/// Kernels of a unit whose count is not the stored one, and kernels without one or the other.
inline std::vector<std::string> differences(const InstructionCounts& stored,
                                            const InstructionCounts& found) {
  std::vector<std::string> all;
  for (const auto& [kernel, count] : found) {
    const auto row = stored.find(kernel);
    if (row == stored.end()) {
      all.push_back(kernel + " has no count in instructions.txt");
    } else if (std::abs(count - row->second) > kCountTolerance * row->second) {
      all.push_back(kernel + " has " + std::to_string(count) +
                    " instructions, instructions.txt has " + std::to_string(row->second));
    }
  }
  for (const auto& [kernel, count] : stored) {
    if (!found.contains(kernel)) all.push_back(kernel + " is in instructions.txt, not in the unit");
  }
  return all;
}

}  // namespace mhla::cuda::build
