#pragma once

/// \file
/// The report of ptxas -v on each entry function, with its complaints.

#include <istream>
#include <map>
#include <regex>
#include <string>
#include <vector>

namespace mhla::cuda::build {

struct Resources {
  int registers = -1;  // -1: not in the report
  int stack = -1;
  int spilled = -1;
  int shared = 0;  // static
};

struct PtxasReport {
  std::map<std::string, Resources> entries;
  std::vector<std::string> functions;   ///< other functions, which were not inlined
  std::vector<std::string> complaints;  ///< warnings, errors, and lines with a number C7xxx
};

inline PtxasReport read_report(std::istream& in) {
  static const std::regex entry_line("Compiling entry function '([^']+)'");
  static const std::regex function_line("Function properties for ([^ ]+)");
  static const std::regex stack_line(
      "([0-9]+) bytes stack frame, ([0-9]+) bytes spill stores, ([0-9]+) bytes spill loads");
  static const std::regex used_line("Used ([0-9]+) registers");
  static const std::regex shared_part("([0-9]+) bytes smem");
  static const std::regex complaint("C7[0-9]{3}|warning|error|fatal", std::regex::icase);
  // Names may contain any of those words.
  static const std::regex names("'[^']*'|Function properties for .*");
  PtxasReport report;
  std::string entry, function, line;
  std::smatch found;
  while (std::getline(in, line)) {
    const std::string text = std::regex_replace(line, names, "");
    if (std::regex_search(text, complaint)) report.complaints.push_back(line);
    if (std::regex_search(line, found, entry_line)) {
      entry = found[1];
      report.entries[entry];
    } else if (std::regex_search(line, found, function_line)) {
      function = found[1];
      if (!report.entries.contains(function)) report.functions.push_back(function);
    } else if (std::regex_search(line, found, stack_line)) {
      if (report.entries.contains(function)) {
        Resources& resources = report.entries[function];
        resources.stack = std::stoi(found[1]);
        resources.spilled = std::stoi(found[2]) + std::stoi(found[3]);
      }
    } else if (std::regex_search(line, found, used_line)) {
      Resources& resources = report.entries[entry];
      resources.registers = std::stoi(found[1]);
      if (std::regex_search(line, found, shared_part)) resources.shared = std::stoi(found[1]);
    }
  }
  return report;
}

}  // namespace mhla::cuda::build
