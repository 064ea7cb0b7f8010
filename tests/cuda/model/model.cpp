// Predicted times of the CUDA path, kernel by kernel:
//
//     cuda_model FOLDER [--filter=REGEX] [--twice-the-instructions]
//
// FOLDER has the cubins of CudaBuild.kernels_*. For each machine and each case of the benchmarks it
// prints what the launches move and issue, and the predicted times. Ends with 1 where a kernel
// issues more instructions than targets.hpp allows, or far fewer, and where machine code and
// emulation do not agree. The option is a fault on purpose.

#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <regex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "cuda/cases.hpp"
#include "cuda/model/prediction.hpp"
#include "cuda/model/targets.hpp"

namespace mhla::cuda::model {
namespace {

using cuda_bench::Case;

using Code = std::map<std::string, std::vector<Instruction>>;  // by what entry<...> says

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? text.get() : name;
}

Code read_code(const std::string& folder, int width, int values, Arch arch) {
  const std::string path = folder + "/kernels_" + std::to_string(width) + "x" +
                           std::to_string(values) + (arch == Arch::kSm80 ? "_sm80" : "_sm90a") +
                           ".cubin";
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + ": cannot be read");
  Code code;
  const std::string cubin(std::istreambuf_iterator<char>(file), {});
  for (auto& [name, instructions] : build::code_of(cubin)) {
    code[demangled(name)] = std::move(instructions);
  }
  return code;
}

const std::vector<Instruction>& code_of(const Code& code, const std::string& kernel) {
  for (const auto& [name, instructions] : code) {
    if (name.find("entry<" + kernel + ",") != std::string::npos) return instructions;
  }
  throw std::runtime_error(kernel + ": has no machine code");
}

/// Without its namespace and arguments.
std::string short_name(const std::string& kernel) {
  const std::size_t end = kernel.find('<'), begin = kernel.rfind("::", end) + 2;
  return kernel.substr(begin, end - begin);
}

Call sample_case(const Case& c, const Machine& m) {
  const bench::Shape& s = c.shape;
  const Sizes sizes{static_cast<std::int32_t>(s.batch), static_cast<std::int32_t>(s.heads),
                    static_cast<int>(s.width),          static_cast<int>(s.values),
                    cuda_bench::token_blocks(s),        c.form == cuda_bench::Form::kCausal};
  const auto take = [&]<int D, int E>() {
    if (c.form == cuda_bench::Form::kStep) return sample_steps<D, E>(sizes);
    return sample<D, E>(sizes, {m.arch, m.multiprocessors});
  };
  if (s.width == 64) return take.template operator()<64, 64>();
  if (s.width == 72) return take.template operator()<72, 72>();
  if (s.values == 128) return take.template operator()<128, 128>();
  return take.template operator()<128, 256>();
}

/// Prints predictions and breaches of the rules.
class Table {
 public:
  Table(std::string folder, std::string filter, double factor)
      : folder_(std::move(folder)), filter_(filter), all_(filter.empty()), factor_(factor) {}

  int breaches() const { return breaches_; }

  void print(const Machine& m) {
    std::printf("\n%s (%s)\n%-18s %-18s %8s %8s %8s %7s | %7s %7s %7s %7s %7s | %9s\n", m.name,
                name(m.arch), "case", "kernel", "items", "DRAM MB", "L2 MB", "slots", "memory",
                "cache", "issue", "tensor", "chain", "predicted");
    for (const Case& c : cuda_bench::all_cases()) {
      if (std::regex_search(c.label(), filter_)) print(m, c);
    }
  }

  /// After all machines.
  void check_limits() {
    std::printf("\nissue over memory, at most:\n");
    for (const auto& [kernel, most] : most_) {
      std::printf("  %-18s %-6s %.2f in %s\n", kernel.first.c_str(), name(kernel.second),
                  most.ratio, most.place.c_str());
    }
    for (const auto& [kernel, most] : most_) {
      const Limit limit = limit_of(kernel.first, kernel.second);
      const bool known = !limit.kernel.empty();
      if (most.ratio > limit.most) {
        breach("%s (%s) issues for %.2f of its memory time in %s, at most %.2f",
               kernel.first.c_str(), name(kernel.second), most.ratio, most.place.c_str(),
               limit.most);
      } else if (all_ && known && most.ratio < kSlack * limit.most) {
        breach("%s (%s) issues for %.2f of its memory time at most: %.2f allows more than it needs",
               kernel.first.c_str(), name(kernel.second), most.ratio, limit.most);
      }
      if (limit.most > 1 && *limit.why == '\0') breach("%s: why?", kernel.first.c_str());
    }
    for (const Limit& limit : kLimits) {
      if (all_ && !most_.contains({std::string(limit.kernel), limit.arch})) {
        breach("%s (%s) is not launched", std::string(limit.kernel).c_str(), name(limit.arch));
      }
    }
  }

 private:
  struct Most {
    double ratio = 0;
    std::string place;
  };

  static const char* name(Arch arch) { return arch == Arch::kSm80 ? "sm_80" : "sm_90a"; }
  static Limit limit_of(const std::string& kernel, Arch arch) {
    for (const Limit& limit : kLimits) {
      if (limit.kernel == kernel && limit.arch == arch) return limit;
    }
    return {"", arch, 1};
  }

  template <class... Values>
  void breach(const char* format, const Values&... values) {
    std::printf("breach: ");
    std::printf(format, values...);
    std::printf("\n");
    ++breaches_;
  }

  /// Machines of one architecture share what does not depend on them.
  const Call& call_of(const Case& c, const Machine& m) {
    const auto key = std::make_pair(c.label(), m.arch);
    if (!calls_.contains(key)) calls_[key] = sample_case(c, m);
    return calls_.at(key);
  }
  const Code& code_of(const Case& c, Arch arch) {
    const auto key = std::make_tuple(c.shape.width, c.shape.values, arch);
    if (!codes_.contains(key)) {
      codes_[key] = read_code(folder_, static_cast<int>(c.shape.width),
                              static_cast<int>(c.shape.values), arch);
    }
    return codes_.at(key);
  }
  const Work& work_of(const Case& c, const Launch& launch, Arch arch) {
    if (!works_.contains(&launch)) {
      Work work = model::work_of(launch, model::code_of(code_of(c, arch), launch.kernel),
                                 arch == Arch::kSm80 ? 80 : 90);
      work.slots *= factor_;
      if (work.explained < 0.99) {
        breach("%s in %s: the machine code explains %.0f %% of what was counted",
               launch.kernel.c_str(), c.label().c_str(), 100 * work.explained);
      }
      works_[&launch] = work;
    }
    return works_.at(&launch);
  }

  void print(const Machine& m, const Case& c) {
    const Call& call = call_of(c, m);
    double total = 0;
    const Launch* before = nullptr;
    for (const Launch& launch : call.launches) {
      const Work& work = work_of(c, launch, m.arch);
      const Prediction p = predict(launch, work, call, before, m);
      const std::string kernel = short_name(launch.kernel);
      std::printf("%-18s %-18s %8.0f %8.1f %8.1f %7.0f | %7.1f %7.1f %7.1f %7.1f %7.1f | %7.1f %s",
                  &launch == call.launches.data() ? c.label().c_str() : "", kernel.c_str(),
                  launch.items, p.memory_bytes / 1e6, p.cache_bytes / 1e6, work.slots,
                  p.memory * 1e6, p.cache * 1e6, p.issue * 1e6, p.tensor * 1e6, p.chain * 1e6,
                  p.time() * 1e6, p.bound());
      if (launch.share < 1) std::printf(" (%.3g of calls)", launch.share);
      std::printf("\n");
      const double ratio = p.issue / std::max({p.memory, p.cache, m.launch});
      Most& most = most_[{kernel, m.arch}];
      if (ratio > most.ratio) most = {ratio, c.label() + " on " + m.name};
      total += launch.share * (p.time() + p.gap);
      if (launch.share == 1) before = &launch;
    }
    print_total(m, c, call, total);
  }

  static void print_total(const Machine& m, const Case& c, const Call& call, double total) {
    const bench::Cost cost = cuda_bench::whole_cost(c);
    const double rate = 2 * std::max(m.wgmma, m.mma) * m.multiprocessors * m.clock;
    const bool step = c.form == cuda_bench::Form::kStep;
    std::printf("%-18s %-18s predicted %.1f us with launches", "",
                step ? "mean" : cuda::name(call.plan.form), total * 1e6);
    std::printf("; floor %.1f", 1e6 * std::max(cost.bytes / m.peak_bandwidth, cost.flops / rate));
    for (const Target& t : kTargets) {
      if (t.machine == m.name && t.label == c.label()) {
        std::printf(", good %.4g, ambitious %.4g", t.good, t.ambitious);
      }
    }
    std::printf("\n");
  }

  std::string folder_;
  std::regex filter_;
  bool all_;       ///< cases
  double factor_;  ///< of all instructions
  int breaches_ = 0;
  std::map<std::tuple<Index, Index, Arch>, Code> codes_;
  std::map<std::pair<std::string, Arch>, Call> calls_;
  std::map<const Launch*, Work> works_;
  std::map<std::pair<std::string, Arch>, Most> most_;
};

}  // namespace
}  // namespace mhla::cuda::model

int main(int count, char** arguments) {
  using namespace mhla::cuda::model;
  try {
    std::string folder, filter;
    double factor = 1;
    for (int i = 1; i < count; ++i) {
      const std::string argument = arguments[i];
      if (argument == "--twice-the-instructions") {
        factor = 2;
      } else if (argument.rfind("--filter=", 0) == 0) {
        filter = argument.substr(9);
      } else if (folder.empty() && argument[0] != '-') {
        folder = argument;
      } else {
        throw std::invalid_argument("what is " + argument + "?");
      }
    }
    if (folder.empty()) throw std::invalid_argument("expected a folder of cubins");
    std::printf("Predictions from machine code and emulation, not measurements; in us.\n");
    Table table(folder, filter, factor);
    for (const Machine& m : kMachines) table.print(m);
    table.check_limits();
    return table.breaches() == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "ERROR: " << error.what() << "\n";
    return 1;
  }
}
