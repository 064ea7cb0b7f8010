// The causal form token by token, all heads of one sequence. Cases time steps inside a block, early
// and late in the sequence. A boundary case times the last step of a block and the first step of
// the next. A step reads its state, so its yardstick is the time of reading H*D*E numbers once from
// L2. Late steps also mix more blocks for the next block.

#include <chrono>

#include "mhla/attention/streaming.hpp"
#include "support/form.hpp"
#include "support/mixed.hpp"

namespace mhla::bench::streaming_bench {
namespace {

using Clock = std::chrono::steady_clock;
using LanguageStream = Streaming<float, decltype(language_operator(0))>;

constexpr Index kSweepBlocks = 4;  // blocks between two restarts; restarts are not timed
constexpr Index kWarmSteps = 8;    // first steps of a block, which bring the state into the cache

/// A stream of one sequence, with a restart at its first timed token.
class Stream {
 public:
  Stream(const Shape& shape, Index first_token, Index threads)
      : work_(shape),
        pool_(threads),
        mixing_(uniform_causal<float>(shape.tokens() / shape.block_length())),
        stream_({shape.width, shape.values, shape.block_length()}, mixing_,
                language_operator(shape.width)),
        memory_(append_workspace_bytes(stream_, pool_)),
        start_(static_cast<std::size_t>(shape.heads), stream_.start()) {
    states_ = start_;
    append(first_token);
    start_ = states_;
    begin_ = position_;
  }

  void restart() {
    states_ = start_;
    position_ = begin_;
  }

  /// Appends the next `count` tokens of all heads in one call.
  void append(Index count) {
    const BatchInputs<float> all = work_.inputs();
    const auto next = [&](auto tensor) {
      tensor.data += position_ * tensor.strides[1];
      tensor.shape[1] = count;
      return tensor;
    };
    const BatchInputs<float> in{.q = next(all.q), .k = next(all.k), .v = next(all.v)};
    mhla::append(stream_, states_, in, next(work_.out()),
                 {.workspace = memory_, .executor = pool_});
    benchmark::ClobberMemory();
    position_ += count;
  }

  /// Appends `count` tokens, one per call.
  void step(Index count) {
    for (Index i = 0; i < count; ++i) append(1);
  }

  ThreadPool& pool() { return pool_; }
  /// Error over bound of sampled outputs since the last restart.
  double worst() {
    return worst_of_samples(
        work_, begin_, position_,
        causal_weights<float>(Contiguous(work_.shape().tokens(), work_.shape().block_length()),
                              mixing_));
  }

 private:
  Workload<float> work_;
  ThreadPool pool_;
  MixingMatrix<float> mixing_;
  LanguageStream stream_;
  std::vector<std::byte> memory_;
  std::vector<StreamingState<float>> start_, states_;  // [H]
  Index begin_ = 0, position_ = 0;
};

/// Steps of a round: only the middle `timed` steps are timed. The sum is a block's length.
struct Round {
  Index before, timed, after;
};

/// Returns the seconds of all timed steps.
/// \param calls  iterations that Google Benchmark counts per round
double time_rounds(Session& session, Stream& stream, const Round& round, Index calls) {
  double seconds = 0;
  const auto sweep = [&](const auto& time) {
    stream.restart();
    for (Index b = 0; b < kSweepBlocks; ++b) {
      stream.step(round.before);
      time();
      stream.step(round.after);
    }
  };
  sweep([&] { stream.step(round.timed); });
  if (!session.accept([&stream] { return stream.worst(); })) return 0;
  benchmark::State& state = session.state();
  while (state.KeepRunningBatch(kSweepBlocks * calls)) {
    state.PauseTiming();
    sweep([&] {
      state.ResumeTiming();
      const auto start = Clock::now();
      stream.step(round.timed);
      seconds += std::chrono::duration<double>(Clock::now() - start).count();
      state.PauseTiming();
    });
    state.ResumeTiming();
  }
  return seconds;
}

/// Flops and bytes of one step of all heads, which reads the state for the output and updates it.
Cost step_cost(const Shape& s) {
  const double de = number(s.width * s.values), heads = number(s.heads);
  return {heads * 4 * de, heads * (2 * de + 2 * number(s.width + s.values)) * sizeof(float), 1};
}

void inside_case(Session& session, const Shape& shape, Index first_block, Index threads) {
  Stream stream(shape, first_block * shape.block_length(), threads);
  const Round round{kWarmSteps, shape.block_length() - kWarmSteps - 1, 1};
  const double peak = measure_peak<float>(stream.pool());
  const double read = measure_read(shape.heads * shape.width * shape.values) / number(threads);
  const double seconds = time_rounds(session, stream, round, round.timed);
  if (seconds == 0) return;
  const double steps = static_cast<double>(session.state().iterations());
  session.report(step_cost(shape), peak, seconds, steps);
  session.counter("of_l2_read", seconds / steps / read);
}

/// Case of the two steps at a block boundary. The new block mixes all earlier blocks: 2*D*E flops
/// and D*E numbers per block.
void boundary_case(Session& session, const Shape& shape, Index first_block, Index threads) {
  Stream stream(shape, first_block * shape.block_length() + 1, threads);
  const double peak = measure_peak<float>(stream.pool());
  const double seconds = time_rounds(session, stream, {shape.block_length() - 2, 2, 0}, 1);
  if (seconds == 0) return;
  const double mixed = number(shape.heads * shape.width * shape.values) *
                       (number(first_block) + number(kSweepBlocks + 1) / 2);
  Cost cost = step_cost(shape);
  cost = {2 * cost.flops + 2 * mixed, 2 * cost.bytes + sizeof(float) * mixed, 2};
  session.report(cost, peak, seconds, static_cast<double>(session.state().iterations()));
}

template <class Case>
void register_steps(const char* name, const char* suffix, Index first_block, const Case& run) {
  Shape shape = shape_named(causal_shapes(), name);
  shape.name += suffix;
  for_each_thread_count(shape, [&](Index threads) {
    register_case("Streaming", "float", shape, threads,
                  [=](Session& s) { run(s, shape, first_block, threads); });
  });
}

const bool kRegistered = [] {
  register_steps("nlp_340m", "", 1, inside_case);
  register_steps("nlp_340m", "_late", 27, inside_case);
  register_steps("nlp_340m", "_boundary", 14, boundary_case);
  register_steps("long_causal", "", 1, inside_case);
  register_steps("long_causal", "_late", 480, inside_case);
  return true;
}();

}  // namespace
}  // namespace mhla::bench::streaming_bench
