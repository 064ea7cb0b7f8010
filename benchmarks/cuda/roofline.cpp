#include "cuda/roofline.hpp"

#include <cublas_v2.h>

#include <iomanip>
#include <stdexcept>
#include <string>

namespace mhla::cuda_bench {
namespace {

constexpr std::int64_t kLarge = std::int64_t{2} << 30;
constexpr int kRuns = 15;

/// Returns random words.
DeviceArray<unsigned char> words(std::int64_t bytes, std::uint64_t seed, Session& session) {
  DeviceArray<unsigned char> data(bytes);
  write(data.data(), data.bytes(), seed, session.stream);
  return data;
}

double seconds_of(Session& session, const Enqueue& run) {
  return time_calls(run, kRuns, session.cache, session.stream).median;
}

void line(std::ostream& out, const std::string& what, double value, const char* unit) {
  out << "  " << std::left << std::setw(44) << what << std::right << std::fixed
      << std::setprecision(2) << std::setw(10) << value << " " << unit << std::endl;
}

void memory(std::ostream& out, Session& session) {
  DeviceArray<unsigned char> from = words(kLarge, 1, session), to = words(kLarge, 2, session);
  DeviceArray<unsigned> sink(1);
  const double bytes = static_cast<double>(kLarge);
  std::uint64_t seed = 3;
  line(out, "copy by a kernel, 2 GiB, read and written",
       2e-12 * bytes /
           seconds_of(session,
                      [&](cudaStream_t s) { copy(from.data(), to.data(), from.bytes(), s); }),
       "TB/s");
  line(out, "read, 2 GiB",
       1e-12 * bytes /
           seconds_of(session,
                      [&](cudaStream_t s) { read(from.data(), from.bytes(), 1, sink.data(), s); }),
       "TB/s");
  line(out, "write, 2 GiB",
       1e-12 * bytes /
           seconds_of(session, [&](cudaStream_t s) { write(to.data(), to.bytes(), seed++, s); }),
       "TB/s");
  for (const int megabytes : {5, 10, 20, 40}) {
    constexpr int kPasses = 20;
    const auto size = static_cast<std::size_t>(megabytes) * 1000000 / 16 * 16;
    const auto passes = [&](int count) {
      return seconds_of(session,
                        [&](cudaStream_t s) { read(from.data(), size, count, sink.data(), s); });
    };
    // Both times include the first pass, from memory, and the launch.
    const double seconds = (passes(1 + kPasses) - passes(1)) / kPasses;
    line(out, "read again, " + std::to_string(megabytes) + " MB",
         1e-12 * static_cast<double>(size) / seconds, "TB/s");
  }
}

void launches(std::ostream& out, Session& session) {
  constexpr int kLaunches = 20;  // enqueued before the device reaches them
  const auto many = [](bool early) {
    return [early](cudaStream_t s) {
      for (int i = 0; i < kLaunches; ++i) nothing(early, s);
    };
  };
  line(out, "empty kernel, one after another in a stream",
       1e6 * seconds_of(session, many(false)) / kLaunches, "us");
  line(out, "empty kernel, as a node of a graph",
       1e6 * time_replays(many(false), 10, session.stream) / kLaunches, "us");
  if (session.device.arch == cuda::Arch::kSm90a) {
    line(out, "the same, launched early in a stream",
         1e6 * seconds_of(session, many(true)) / kLaunches, "us");
    line(out, "the same, launched early in a graph",
         1e6 * time_replays(many(true), 10, session.stream) / kLaunches, "us");
  }
  line(out, "graph of one empty kernel",
       1e6 * time_replays([](cudaStream_t s) { nothing(false, s); }, 100, session.stream), "us");
}

void expect_cublas(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) throw std::runtime_error(cublasGetStatusName(status));
}

void product(std::ostream& out, Session& session) {
  constexpr int kSize = 8192;
  constexpr std::int64_t kNumbers = std::int64_t{kSize} * kSize;
  DeviceArray<Bits> a(kNumbers), b(kNumbers), c(kNumbers);
  draw(a.data(), kNumbers, 1, session.stream);
  draw(b.data(), kNumbers, 2, session.stream);
  cublasHandle_t handle = nullptr;
  expect_cublas(cublasCreate(&handle));
  const float one = 1, zero = 0;
  const double seconds = seconds_of(session, [&](cudaStream_t s) {
    expect_cublas(cublasSetStream(handle, s));
    expect_cublas(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, kSize, kSize, kSize, &one,
                               a.data(), CUDA_R_16BF, kSize, b.data(), CUDA_R_16BF, kSize, &zero,
                               c.data(), CUDA_R_16BF, kSize, CUBLAS_COMPUTE_32F,
                               CUBLAS_GEMM_DEFAULT));
  });
  cublasDestroy(handle);
  line(out, "bfloat16 product 8192^3 by cuBLAS, random data",
       2e-12 * kSize * kSize * static_cast<double>(kSize) / seconds, "TFLOP/s");
}

}  // namespace

double copy_bandwidth(Session& session) {
  DeviceArray<unsigned char> from = words(kLarge, 1, session), to(kLarge);
  const double seconds = seconds_of(session, [&](cudaStream_t s) {
    expect_success(
        cudaMemcpyAsync(to.data(), from.data(), from.bytes(), cudaMemcpyDeviceToDevice, s),
        "cudaMemcpyAsync");
  });
  return 2 * static_cast<double>(kLarge) / seconds;
}

void print_roofline(std::ostream& out, Session& session) {
  memory(out, session);
  launches(out, session);
  product(out, session);
}

}  // namespace mhla::cuda_bench
