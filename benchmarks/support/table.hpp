#pragma once

/// \file
/// The table of results after all runs: a line per case, medians over its repetitions, in the order
/// of registration.

#include <benchmark/benchmark.h>

#include <map>
#include <vector>

namespace mhla::bench {

class TableReporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;
  void Finalize() override;

 private:
  int name_width_ = 0;
  std::map<std::int64_t, std::vector<Run>> runs_;  // by case: its repetitions and aggregates
};

}  // namespace mhla::bench
