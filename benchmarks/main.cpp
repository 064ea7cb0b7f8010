// Runs the benchmarks: Google Benchmark with a context that names compiler and machine, a table of
// medians, a progress line, and a nonzero exit status if results are wrong.

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <regex>
#include <string>

#include "mhla/core/arch.hpp"
#include "support/progress.hpp"
#include "support/session.hpp"
#include "support/table.hpp"

namespace {

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

void add_context() {
  const char* const commit = std::getenv("MHLA_COMMIT");
  benchmark::AddCustomContext("compiler", MHLA_COMPILER);
  benchmark::AddCustomContext("flags", MHLA_FLAGS);
  benchmark::AddCustomContext("class", MHLA_CLASS);
  benchmark::AddCustomContext("cpu_model", cpu_model());
  benchmark::AddCustomContext("instruction_set", mhla::kInstructionSet);
  benchmark::AddCustomContext("commit", commit == nullptr ? "unknown" : commit);
}

/// The value of --name=value, or nothing. Google Benchmark has no access to its own flags.
std::string argument(int argc, char** argv, const std::string& name) {
  std::string value;
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    if (text.rfind(name + "=", 0) == 0) value = text.substr(name.size() + 1);
  }
  return value;
}

/// Number of cases that match a filter of Google Benchmark; a leading '-' negates the filter.
long matching_cases(const std::string& filter) {
  const bool others = !filter.empty() && filter.front() == '-';
  const std::string wanted = others ? filter.substr(1) : filter;
  const bool all = wanted.empty() || wanted == "all";
  const std::regex pattern(all ? "." : wanted, std::regex::extended);
  long count = 0;
  for (const std::string& name : mhla::bench::case_names()) {
    count += std::regex_search(name, pattern) != others;
  }
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string repetitions = argument(argc, argv, "--benchmark_repetitions");
  const bool table_wanted = argument(argc, argv, "--benchmark_format").empty();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  add_context();
  const std::string filter = benchmark::GetBenchmarkFilter();
  try {
    mhla::bench::progress().expect(matching_cases(filter) *
                                   (repetitions.empty() ? 1 : std::stol(repetitions)));
  } catch (const std::regex_error& error) {
    std::cerr << "--benchmark_filter is " << filter
              << ", expected a regular expression: " << error.what() << "\n";
    return EXIT_FAILURE;
  }
  mhla::bench::TableReporter table;
  const std::size_t cases = benchmark::RunSpecifiedBenchmarks(table_wanted ? &table : nullptr);
  benchmark::Shutdown();
  mhla::bench::progress().finish();
  return cases == 0 || mhla::bench::failures() > 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
