// Bidirectional attention against the obvious Eigen program, one thread, [B, N, H, D] layout.
// Names: <form>/cpu/<scalar>/<shape>/threads:<n>. Every case is checked against the definition
// before it is timed; `of_peak` is its flop rate over that of multiply-adds on registers, measured
// just before.

#include <benchmark/benchmark.h>

#include <string>

#include "support/eigen_program.hpp"
#include "support/peak.hpp"
#include "support/workload.hpp"

namespace mhla::bench {
namespace {

void report(benchmark::State& state, const Shape& shape, double flops, double bytes, double peak) {
  using benchmark::Counter;
  state.counters["flops"] = Counter(flops, Counter::kIsIterationInvariantRate);
  state.counters["bytes"] = Counter(bytes, Counter::kIsIterationInvariantRate);
  state.counters["of_peak"] = Counter(flops / peak, Counter::kIsIterationInvariantRate);
  state.counters["tokens"] = Counter(static_cast<double>(shape.batch * shape.tokens()),
                                     Counter::kIsIterationInvariantRate);
}

/// Times `run` on a workload, after the outputs of a first call have been checked.
template <class T, Partition P, class Run>
void time_checked(benchmark::State& state, Workload<T>& work, const P& blocks,
                  const MixingMatrix<accumulator_t<T>>& mixing, Run&& run) {
  run();
  const double worst = worst_error_over_bound<T>(work, work.out(), blocks, mixing, 8);
  if (!(worst <= 1)) {
    state.SkipWithError(("wrong result: error " + std::to_string(worst) + " of the bound").c_str());
    return;
  }
  const double peak = measure_peak<accumulator_t<T>>();
  for (auto _ : state) run();
  report(state, work.shape(), bidirectional_flops(work.shape(), blocks.blocks()),
         io_bytes<T>(work.shape()), peak);
}

template <class T, Partition P>
void bidirectional_case(benchmark::State& state, const Shape& shape, const P& blocks,
                        const MixingMatrix<T>& mixing) {
  Workload<T> work(shape);
  const Operator op;
  std::vector<std::byte> memory(bidirectional_workspace_bytes(work.inputs(), blocks, blocks, op));
  time_checked(state, work, blocks, mixing, [&] {
    bidirectional(work.inputs(), blocks, blocks, mixing, op, work.out(), memory);
    benchmark::ClobberMemory();
  });
}

template <class T, Partition P>
void eigen_program_case(benchmark::State& state, const Shape& shape, const P& blocks,
                        const MixingMatrix<T>& mixing) {
  Workload<T> work(shape);
  EigenProgram<T, P> program(blocks, mixing.dense(), shape.width, shape.values);
  time_checked(state, work, blocks, mixing, [&] {
    for (Index b = 0; b < shape.batch; ++b) {
      for (Index h = 0; h < shape.heads; ++h) {
        const Inputs<T> head = detail::head_inputs(work.inputs(), b, h);
        program.run(head.q.data, head.k.data, head.v.data, work.out().head(b, h).data,
                    head.q.row_stride);
      }
    }
    benchmark::ClobberMemory();
  });
}

/// Calls f(blocks, mixing) with the partition of a shape and its initial mixing matrix.
template <class F>
void with_blocks(const Shape& shape, F&& f) {
  const Grid grid(shape.grid, shape.block);
  const auto mixing = locality<float>(grid.block_grid());
  if (shape.contiguous()) {
    f(Contiguous(shape.tokens(), shape.block[2]), mixing);
  } else {
    f(grid, mixing);
  }
}

void register_shape(const Shape& shape) {
  const auto name = [&shape](const char* form) {
    return std::string(form) + "/cpu/float/" + std::string(shape.name) + "/threads:1";
  };
  benchmark::RegisterBenchmark(name("Bidirectional").c_str(), [shape](benchmark::State& state) {
    with_blocks(shape, [&](const auto& blocks, const auto& mixing) {
      bidirectional_case<float>(state, shape, blocks, mixing);
    });
  })->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark(name("EigenProgram").c_str(), [shape](benchmark::State& state) {
    with_blocks(shape, [&](const auto& blocks, const auto& mixing) {
      eigen_program_case<float>(state, shape, blocks, mixing);
    });
  })->Unit(benchmark::kMillisecond);
}

const bool kRegistered = [] {
  for (const Shape& shape : kBidirectionalShapes) register_shape(shape);
  return true;
}();

}  // namespace
}  // namespace mhla::bench
