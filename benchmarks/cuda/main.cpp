// The benchmarks of the CUDA path: bash benchmarks/run.sh --cuda [arguments]

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/arguments.hpp"
#include "cuda/results.hpp"
#include "cuda/roofline.hpp"
#include "cuda/session.hpp"

namespace mhla::cuda_bench {
namespace {

std::string from_environment(const char* name, const std::string& otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

std::string version(int number) {  // 13000 is 13.0
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

Context context_of(Session& session) {
  int index = 0, driver = 0, runtime = 0;
  cudaDeviceProp properties{};
  expect_success(cudaGetDevice(&index), "cudaGetDevice");
  expect_success(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  expect_success(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  expect_success(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  return {.gpu = properties.name,
          .driver = from_environment("MHLA_GPU_DRIVER", "for CUDA " + version(driver)),
          .runtime = version(runtime),
          .compiler = MHLA_COMPILER,
          .kernels = session.device.arch == cuda::Arch::kSm90a ? "sm_90a" : "sm_80",
          .commit = from_environment("MHLA_COMMIT", "unknown"),
          .multiprocessors = session.device.multiprocessors,
          .cache_bytes = static_cast<double>(session.cache.cache_bytes()),
          .copy_bandwidth = copy_bandwidth(session)};
}

void save(const std::string& file, const Context& context, const std::vector<Result>& results) {
  if (file.empty()) return;
  const std::string part = file + ".part";  // who stops the program finds the earlier results
  std::ofstream out(part);
  write_json(out, context, results);
  out.close();
  if (!out) throw std::runtime_error("cannot write " + part);
  std::filesystem::rename(part, file);
}

/// Returns true if all results were right.
bool measure(const Arguments& arguments) {
  const auto chosen = [&](const Case& c) { return arguments.matches(c.label()); };
  const std::vector<Case> cases = all_cases();
  if (!arguments.roofline && std::none_of(cases.begin(), cases.end(), chosen)) {
    throw std::invalid_argument("--filter matches no case, expected some of --list");
  }
  Session session;
  session.runs = arguments.runs();
  session.op.overlaps_heads = arguments.overlap_heads;
  session.op.joins_stages = arguments.join_stages;
  session.op.slabs = arguments.slabs;
  const Context context = context_of(session);
  print_context(std::cout, context);
  if (arguments.roofline) {
    print_roofline(std::cout, session);
    return true;
  }
  std::vector<Result> results;
  bool right = true;
  print_head(std::cout);
  for (const Case& c : cases) {
    if (!chosen(c)) continue;
    results.push_back(c.form == Form::kStep ? measure_step(c, session) : measure_form(c, session));
    right = right && results.back().right();
    print_row(std::cout, results.back(), context);
    save(arguments.out, context, results);  // after each case: a later one may stop the program
  }
  return right;
}

int program(const std::vector<std::string>& texts) {
  const Arguments arguments = parse(texts);
  if (arguments.help) {
    std::cout << kUsage;
    return 0;
  }
  if (arguments.list) {
    for (const Case& c : all_cases()) {
      std::cout << c.label() << ": " << name(c.form) << ", " << c.shape.text() << "\n";
    }
    return 0;
  }
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver || devices == 0) {
    std::cout << "no CUDA device (" << cudaGetErrorString(status) << "): nothing is measured\n";
    return 0;
  }
  expect_success(status, "cudaGetDeviceCount");
  return measure(arguments) ? 0 : 1;
}

}  // namespace
}  // namespace mhla::cuda_bench

int main(int count, char** arguments) {
  try {
    return mhla::cuda_bench::program({arguments + 1, arguments + count});
  } catch (const std::invalid_argument& error) {
    std::cerr << error.what() << "\n" << mhla::cuda_bench::kUsage;
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "ERROR: " << error.what() << "\n";
    return 1;
  }
}
