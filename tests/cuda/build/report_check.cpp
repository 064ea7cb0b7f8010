// Checks the code of a unit of kernels against the plans in their names (entry.cuh):
//
//     report_check ARCH REPORT PTX CUBIN [TABLE UNIT]
//
// ARCH is 80 or 90. ARCH may be 86, 89, 100 or 120 with code of sm_80, or with code made of its
// PTX. Then only the needs of a thread block are checked, for the kernels that calls take there
// (launch/plan.cuh).
// TABLE has the number of instructions of each kernel of UNIT (instruction_table.hpp). With
// MHLA_WRITE_INSTRUCTIONS in the environment the numbers are written there instead.
//
// Prints a line for each kernel and for each breach. The exit status is 1 after a breach.

#include <cxxabi.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuda/build/cubin.hpp"
#include "cuda/build/instruction_table.hpp"
#include "cuda/build/plan.hpp"
#include "cuda/build/ptx_text.hpp"
#include "cuda/build/ptxas_report.hpp"

namespace mhla::cuda::build {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + ": cannot be read");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Returns the name in the source, without the parameters.
std::string readable(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  if (status != 0) return name;
  return std::regex_replace(std::string(text.get()), std::regex("mhla::cuda::(build::)?|^void "),
                            "");
}

Plan plan_of(const std::string& name) {
  static const std::regex arguments(R"(entry<.*, (\d+), (\d+), (\d+), (\d+), (\d+), (\d+)>\()");
  const std::string text = readable(name);
  std::smatch found;
  if (!std::regex_search(text, found, arguments)) {
    throw std::runtime_error(text + ": has no plan in its name");
  }
  const auto at = [&](std::size_t i) { return std::stoi(found[i]); };
  return {at(1), at(2), at(3), at(4), at(5), at(6)};
}

class Check {
 public:
  Check(int arch, std::string kernel) : arch_(arch), kernel_(std::move(kernel)) {}

  int breaches() const { return breaches_; }

  void resources(const Plan& plan, const Resources& used) {
    expect(used.registers >= 0 && used.stack >= 0, "is not in the report of ptxas");
    expect(used.spilled == 0, "spills registers");
    expect(used.stack == 0, "has a stack frame of " + std::to_string(used.stack) + " bytes");
    expect(plan.registers <= register_limit(plan.threads, plan.blocks),
           "plans with more registers than its blocks may have");
    expect(used.registers <= plan.registers, "has " + std::to_string(used.registers) +
                                                 " registers, planned " +
                                                 std::to_string(plan.registers));
    const int shared = plan.shared_bytes + used.shared;
    const SharedMemory limit = shared_memory(arch_);
    expect(shared <= limit.block, "has " + std::to_string(shared) +
                                      " bytes of shared memory, a block may have " +
                                      std::to_string(limit.block));
    expect(plan.blocks * (shared + 1024) <= limit.multiprocessor,
           "leaves no shared memory for " + std::to_string(plan.blocks) + " blocks");
    expect(plan.threads % 32 == 0 && plan.threads * plan.blocks <= 2048,
           "has more threads than a multiprocessor");
  }

  /// On a newer architecture than the plan is for.
  void resources_of_newer(const Plan& plan, const Resources& used) {
    expect(used.registers >= 0 && used.stack >= 0, "is not in the report of ptxas");
    expect(used.stack == 0, "has a stack frame of " + std::to_string(used.stack) + " bytes");
    expect(used.registers <= register_limit(plan.threads, 1), "has more registers than a block");
    expect(plan.threads <= 1024, "has more threads than a block");
  }

  void ptx(const Plan& plan, const std::string& body) {
    const auto both = [&](int need, std::initializer_list<const char*> instructions) {
      for (const char* const instruction : instructions) {
        present(plan, need, count(body, instruction), instruction);
      }
    };
    both(kMma, {"mma.sync.aligned"});
    both(kWgmma, {"wgmma.mma_async.sync.aligned", "wgmma.fence.sync.aligned",
                  "wgmma.commit_group.sync.aligned", "wgmma.wait_group.sync.aligned"});
    both(kMatrices, {"ldmatrix.sync.aligned"});
    both(kCopies, {"cp.async.cg.shared.global", "cp.async.commit_group", "cp.async.wait_group"});
    both(kTensorLoads, {"cp.async.bulk.tensor.5d.shared::cluster.global", "mbarrier.init",
                        "mbarrier.arrive.expect_tx", "mbarrier.try_wait", "fence.mbarrier_init"});
    both(kTensorStores, {"cp.async.bulk.tensor.5d.global.shared::cta", "cp.async.bulk.commit_group",
                         "cp.async.bulk.wait_group.read"});
    both(kHints, {"createpolicy.fractional.L2::evict_first", ".L2::cache_hint"});
    both(kWaits, {"griddepcontrol.wait"});
    both(kLaunches, {"griddepcontrol.launch_dependents"});
    const int fences = count(body, "fence.proxy.async");
    expect(fences >= plan.fences, "has " + std::to_string(fences) +
                                      " fence.proxy.async in its PTX, planned at least " +
                                      std::to_string(plan.fences));
    expect(count(body, "wgmma.fence") >= count(body, "wgmma.commit_group"),
           "begins fewer groups of wgmma than it ends");
    expect(count(body, ".local") == 0 && count(body, "__local_depot") == 0,
           "has local memory in its PTX");
  }

  void instructions(const Plan& plan, const Histogram& code) {
    present(plan, kMma, count(code, Opcode::kMma), "HMMA");
    present(plan, kWgmma, count(code, Opcode::kWgmma), "HGMMA");
    present(plan, kMatrices, count(code, Opcode::kMatrices), "LDSM");
    present(plan, kCopies, count(code, Opcode::kCopy), "LDGSTS");
    present(plan, kTensorLoads, count(code, Opcode::kTensorLoad), "UTMALDG");
    present(plan, kTensorStores, count(code, Opcode::kTensorStore), "UTMASTG");
    present(plan, kWaits, count(code, Opcode::kWait), "ACQBULK");
    present(plan, kLaunches, count(code, Opcode::kLaunch), "PREEXIT");
    expect(plan.fences == 0 || count(code, Opcode::kFence) > 0, "has no FENCE in its code");
    expect(count(code, Opcode::kLocalLoad) + count(code, Opcode::kLocalStore) == 0,
           "has local memory in its code");
  }

 private:
  void expect(bool holds, const std::string& breach) {
    if (holds) return;
    std::cout << "breach: " << kernel_ << " " << breach << "\n";
    ++breaches_;
  }

  void present(const Plan& plan, int need, int found, const std::string& what) {
    const bool exists = arch_ >= 90 || (need & (kWaits | kLaunches)) == 0;
    if (exists && (plan.needs & need) != 0) {
      expect(found > 0, "has no " + what);
    } else {
      expect(found == 0, "has " + std::to_string(found) + " " + what + ", planned none");
    }
  }

  int arch_;
  std::string kernel_;
  int breaches_ = 0;
};

/// Compares the instructions of all kernels with the table, and returns the number of breaches.
int check_table(const std::string& path, const std::string& unit, const std::string& ptx,
                const std::map<std::string, Histogram>& code) {
  InstructionCounts counts;
  for (const auto& [name, histogram] : code) {
    const std::string text = readable(name);
    const std::size_t begin = text.find("entry<") + 6;
    int& sum = counts[text.substr(begin, text.find_first_of("<,", begin) - begin)];
    for (const auto& [opcode, times] : histogram) sum += times;
  }
  std::smatch release;
  if (!std::regex_search(ptx, release, std::regex("release [^\\n]*"))) {
    throw std::runtime_error("the PTX names no CUDA release");
  }
  std::istringstream text(contents(path));
  InstructionTable table = read_instructions(text);
  if (std::getenv("MHLA_WRITE_INSTRUCTIONS") != nullptr) {
    table.release = release.str();
    table.units[unit] = counts;
    std::ofstream file(path);
    write_instructions(table, file);
    return 0;
  }
  if (table.release != release.str()) {
    std::cout << "instructions not compared: the table is of " << table.release << ", this is "
              << release.str() << "\n";
    return 0;
  }
  const std::vector<std::string> all = differences(table.units[unit], counts);
  for (const std::string& one : all) std::cout << "breach: " << one << "\n";
  return static_cast<int>(all.size());
}

int check(int arch, const std::string& report_path, const std::string& ptx_path,
          const std::string& cubin_path) {
  std::istringstream lines(contents(report_path));
  const PtxasReport report = read_report(lines);
  const auto bodies = entries_of(contents(ptx_path));
  const auto code = instructions_of(contents(cubin_path));
  int breaches = 0;
  for (const std::string& complaint : report.complaints) {
    std::cout << "breach: ptxas says: " << complaint << "\n";
    ++breaches;
  }
  for (const std::string& function : report.functions) {
    std::cout << "breach: " << readable(function) << " is not inlined\n";
    ++breaches;
  }
  if (bodies.empty() || bodies.size() != code.size()) {
    std::cout << "breach: the PTX has " << bodies.size() << " kernels, the cubin " << code.size()
              << "\n";
    ++breaches;
  }
  std::size_t taken = 0;
  for (const auto& [name, body] : bodies) {
    const Plan plan = plan_of(name);
    const auto used = report.entries.find(name);
    const auto histogram = code.find(name);
    const Resources resources = used == report.entries.end() ? Resources{} : used->second;
    const Histogram instructions = histogram == code.end() ? Histogram{} : histogram->second;
    const std::string text = readable(name);
    const std::string kernel = text.substr(0, text.find(">(") + 1);
    Check one(arch, kernel);
    if (arch == 80 || arch == 90) {
      one.resources(plan, resources);
      one.ptx(plan, body);
      one.instructions(plan, instructions);
    } else if (plan.shared_bytes + resources.shared <= shared_memory(arch).block) {
      one.resources_of_newer(plan, resources);
      ++taken;
    }
    breaches += one.breaches();
    std::cout << kernel << ": " << resources.registers << " registers of " << plan.registers << ", "
              << plan.shared_bytes << " bytes, " << count(instructions, Opcode::kMma) << " HMMA, "
              << count(instructions, Opcode::kWgmma) << " HGMMA\n";
  }
  if (taken > 0) {
    std::cout << taken << " of " << bodies.size() << " kernels fit into "
              << shared_memory(arch).block << " bytes\n";
  }
  return breaches == 0 ? 0 : 1;
}

}  // namespace
}  // namespace mhla::cuda::build

int main(int argc, char** argv) try {
  using namespace mhla::cuda::build;
  if (argc != 5 && argc != 7) {
    throw std::runtime_error("usage: report_check ARCH REPORT PTX CUBIN [TABLE UNIT]");
  }
  int breaches = check(std::stoi(argv[1]), argv[2], argv[3], argv[4]);
  if (argc == 7) {
    breaches +=
        check_table(argv[5], argv[6], contents(argv[3]), instructions_of(contents(argv[4])));
  }
  return breaches == 0 ? 0 : 1;
} catch (const std::exception& error) {
  std::cout << error.what() << "\n";
  return 1;
}
