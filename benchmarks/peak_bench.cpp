// The yardsticks: multiply-adds on registers, and reading a stream's state from L2.

#include "support/form.hpp"

namespace mhla::bench::peak_bench {
namespace {

Shape yardstick(std::string name, std::string source) {
  return sequence(std::move(name), {1, 1, 1, 1, 1, 1}, std::move(source));
}

template <Accumulator A>
void registers_case(Session& session, Index threads) {
  ThreadPool pool(threads);
  constexpr double kCalls = 100;
  const double peak = measure_peak<A>(pool);
  const Cost cost{.flops = static_cast<double>(threads) * kCalls * kPeakFlops<A>};
  session.time(
      cost, peak,
      [&pool] {
        pool.for_each(pool.workers(), [](Index, Index) {
          volatile A sink = 0;
          for (int i = 0; i < kCalls; ++i) sink = run_peak<A>();
          static_cast<void>(sink);
        });
      },
      [] { return run_peak<A>() > 0 ? 0.0 : 2.0; });
}

/// The state of one layer of the 340M language model: H*D*E floats.
constexpr Index kStateNumbers = 4 * 128 * 256;

void read_case(Session& session) {
  const std::vector<float> data(static_cast<std::size_t>(kStateNumbers), 1.0f);
  ThreadPool pool(1);
  volatile float sum = 0;
  session.time(
      {.flops = static_cast<double>(kStateNumbers), .bytes = kStateNumbers * sizeof(float)},
      measure_peak<float>(pool), [&] { sum = read_all(data.data(), kStateNumbers); },
      [&sum] { return sum == static_cast<float>(kStateNumbers) ? 0.0 : 2.0; });
}

const bool kRegistered = [] {
  const Shape registers = yardstick("registers", "multiply-adds on registers");
  for (const Index threads : {1, 2}) {
    register_case("Peak", "float", registers, threads,
                  [=](Session& s) { registers_case<float>(s, threads); });
    register_case("Peak", "double", registers, threads,
                  [=](Session& s) { registers_case<double>(s, threads); });
  }
  register_case("Peak", "float", yardstick("read_512kib", "reading 512 KiB, in the second cache"),
                1, read_case);
  return true;
}();

}  // namespace
}  // namespace mhla::bench::peak_bench
