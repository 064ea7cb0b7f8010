#pragma once

/// \file
/// Arguments of the program.

#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

namespace mhla::cuda_bench {

struct Arguments {
  std::regex filter{""};  ///< cases to run, by name; at first all
  std::string out;        ///< file for the results as JSON; none if empty
  bool quick = false;     ///< fewer runs
  bool list = false;      ///< print the names of cases only
  bool once = false;      ///< run each case once, untimed
  bool roofline = false;  ///< measure the device's ceilings only
  bool overlap_heads = false;
  bool join_stages = false;
  bool slabs = false;
  bool help = false;

  int runs() const { return once ? 0 : quick ? 9 : 51; }
  bool matches(const std::string& name) const { return std::regex_search(name, filter); }
};

inline constexpr char kUsage[] =
    "usage: bash benchmarks/run.sh --cuda [arguments]\n"
    "  --filter=REGEX  cases whose names have a match\n"
    "  --out=FILE      results as JSON\n"
    "  --quick         9 runs of a case instead of 51\n"
    "  --once          each case once, untimed and checked, with the profiler on for it alone:\n"
    "                  ncu --profile-from-start off mhla_cuda_bench --once\n"
    "  --overlap-heads forms with Operator::overlaps_heads\n"
    "  --join-stages   forms with Operator::joins_stages\n"
    "  --slabs         forms with Operator::slabs\n"
    "  --list          the cases and where they come from\n"
    "  --roofline      what the device can do: bandwidths, launches, products\n";

/// \throws std::invalid_argument for an unknown argument or an invalid regular expression
inline Arguments parse(const std::vector<std::string>& arguments) {
  Arguments parsed;
  for (const std::string& argument : arguments) {
    const auto value_of = [&argument](const std::string& option) {
      return argument.rfind(option, 0) == 0 ? argument.substr(option.size()) : std::string();
    };
    if (const std::string pattern = value_of("--filter="); !pattern.empty()) {
      try {
        parsed.filter = std::regex(pattern);
      } catch (const std::regex_error& error) {
        throw std::invalid_argument(argument + ": " + error.what());
      }
    } else if (const std::string file = value_of("--out="); !file.empty()) {
      parsed.out = file;
    } else if (argument == "--quick") {
      parsed.quick = true;
    } else if (argument == "--once") {
      parsed.once = true;
    } else if (argument == "--list") {
      parsed.list = true;
    } else if (argument == "--overlap-heads") {
      parsed.overlap_heads = true;
    } else if (argument == "--join-stages") {
      parsed.join_stages = true;
    } else if (argument == "--slabs") {
      parsed.slabs = true;
    } else if (argument == "--roofline") {
      parsed.roofline = true;
    } else if (argument == "--help" || argument == "-h") {
      parsed.help = true;
    } else {
      throw std::invalid_argument("unknown argument " + argument);
    }
  }
  return parsed;
}

}  // namespace mhla::cuda_bench
