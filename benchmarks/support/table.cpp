#include "support/table.hpp"

#include <algorithm>
#include <cstdio>

#include "mhla/core/arch.hpp"
#include "support/median.hpp"
#include "support/progress.hpp"

namespace mhla::bench {
namespace {

using Run = benchmark::BenchmarkReporter::Run;

/// The repetitions, or their median if only aggregates are reported.
std::vector<Run> repetitions(const std::vector<Run>& runs) {
  std::vector<Run> found;
  for (const auto type : {Run::RT_Iteration, Run::RT_Aggregate}) {
    for (const Run& run : runs) {
      if (run.run_type != type) continue;
      if (type == Run::RT_Iteration || run.aggregate_name == "median") found.push_back(run);
    }
    if (!found.empty()) break;
  }
  return found;
}

/// Text of a time with a fitting unit.
std::string time_text(double seconds) {
  char text[32];
  if (seconds < 1e-3) {
    std::snprintf(text, sizeof(text), "%.2f us", seconds * 1e6);
  } else if (seconds < 1) {
    std::snprintf(text, sizeof(text), "%.2f ms", seconds * 1e3);
  } else {
    std::snprintf(text, sizeof(text), "%.2f s ", seconds);
  }
  return text;
}

/// Prints the line of one case.
void print_row(const std::vector<Run>& reps, int name_width) {
  std::printf("%-*s %-8s ", name_width, reps.front().run_name.str().c_str(), kInstructionSet);
  for (const Run& run : reps) {
    if (!run.error_occurred) continue;
    std::printf("ERROR: %s\n", run.error_message.c_str());
    return;
  }
  std::vector<double> seconds;
  for (const Run& run : reps) {
    seconds.push_back(run.GetAdjustedRealTime() / benchmark::GetTimeUnitMultiplier(run.time_unit));
  }
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  const double time = median(seconds);
  char spread[16] = "";
  if (reps.size() > 1) {
    std::snprintf(spread, sizeof(spread), "%.1f%%", 100 * (*most - *least) / time);
  }
  std::printf("%12s %8s", time_text(time).c_str(), spread);
  const auto column = [&](const char* counter, int width, const char* format, double unit) {
    std::vector<double> values;
    for (const Run& run : reps) {
      const auto found = run.counters.find(counter);
      if (found != run.counters.end()) values.push_back(found->second.value / unit);
    }
    char text[32] = "";
    if (!values.empty()) std::snprintf(text, sizeof(text), format, median(values));
    std::printf(" %*s", width, text);
  };
  column("flops", 9, "%.2f", 1e9);
  column("of_peak", 8, "%.3f", 1);
  column("bytes", 8, "%.2f", 1e9);
  column("tokens", 10, "%.3f", 1e6);
  column("of_forward", 10, "%.2f", 1);
  column("of_l2_read", 11, "%.2f", 1);
  std::printf("\n");
}

}  // namespace

bool TableReporter::ReportContext(const Context& context) {
  PrintBasicContext(&GetErrorStream(), context);
  name_width_ = static_cast<int>(context.name_field_width);
  return true;
}

void TableReporter::ReportRuns(const std::vector<Run>& runs) {
  if (runs.empty()) return;
  std::vector<Run>& of_case = runs_[runs.front().family_index];
  of_case.insert(of_case.end(), runs.begin(), runs.end());
}

void TableReporter::Finalize() {
  progress().finish();
  std::printf("%-*s %-8s %12s %8s %9s %8s %8s %10s %10s %11s\n", name_width_, "case", "set", "time",
              "spread", "GFLOP/s", "of peak", "GB/s", "Mtokens/s", "x forward", "of L2 read");
  for (const auto& [index, runs] : runs_) {
    const std::vector<Run> reps = repetitions(runs);
    if (!reps.empty()) print_row(reps, name_width_);
  }
  std::fflush(stdout);
}

}  // namespace mhla::bench
