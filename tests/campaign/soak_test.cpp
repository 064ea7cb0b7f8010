// Hours of streams and of training: memory stays, and bits are those of the first minute. Calls of
// many threads that share a pool, a stream and a layer have the bits of one thread.
//
// MHLA_SECONDS is the time of a test, 20 by default.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <thread>
#include <vector>

#include "mhla/layer/adamw.hpp"
#include "mhla/layer/language_layer.hpp"
#include "mhla/mhla.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

using Clock = std::chrono::steady_clock;

/// Resident memory in bytes, 0 where the system does not say.
std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t size = 0, pages = 0;
  return file >> size >> pages ? pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) : 0;
}

/// Calls f, which returns numbers, for the time of a test. The numbers stay, and so does memory
/// after the first tenth of the time.
void expect_steady(const std::function<std::vector<float>()>& f) {
  const char* const text = std::getenv("MHLA_SECONDS");
  const std::chrono::duration<double> time(text == nullptr ? 20 : std::atof(text));
  const auto begin = Clock::now();
  const std::vector<float> first = f();
  std::size_t early = 0;
  long cases = 0;
  for (; Clock::now() - begin < time && !testing::Test::HasFailure(); ++cases) {
    EXPECT_EQ(f(), first) << "after " << cases << " runs";
    if (early == 0 && Clock::now() - begin > time / 10) early = resident_bytes();
  }
  const std::size_t late = resident_bytes();
  EXPECT_LE(late, early + (std::size_t{1} << 20));
  std::cout << "memory grew from " << early << " to " << late << " bytes\n" << cases << " cases\n";
}

constexpr Index kWidth = 24;
const Matrix<float>& tokens() {
  static const Matrix<float> all = Random(1).matrix<float>(96, kWidth);
  return all;
}

TEST(Soak, EightStreams) {
  const Streaming<float> stream({.width = kWidth, .values = kWidth, .block_length = 16},
                                uniform_causal<float>(6));
  expect_steady([&] {
    std::vector<float> all(8 * 96 * kWidth);
    std::vector<std::thread> threads;
    for (Index i = 0; i < 8; ++i) {
      threads.emplace_back([&, i] {
        auto state = stream.start();
        const MatrixView<float> out(all.data() + i * 96 * kWidth, 96, kWidth, kWidth);
        const Inputs<float> in = inputs(tokens(), tokens(), tokens());
        for (Index t = 0; t < 96; t += i + 1) {
          const Index count = std::min<Index>(i + 1, 96 - t);
          stream.append(state, detail::middle_tokens(in, t, count), out.middle_rows(t, count));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return all;
  });
}

TEST(Soak, Training) {
  ThreadPool pool(2);
  expect_steady([&] {
    LanguageLayer<float> layer({.heads = 2, .channels = kWidth, .chunk = 16, .chunks = 6});
    Random rng(2);
    for (float& p : layer.parameters()) p = static_cast<float>(rng.uniform(-0.1, 0.1));
    AdamWState<float> state(std::ssize(layer.parameters()));
    std::vector<float> gradients(layer.parameters().size());
    Matrix<float> y(96, kWidth), dx(96, kWidth);
    const LayerCall call{.batch = 1, .executor = pool};
    for (int step = 0; step < 20; ++step) {
      layer(tokens(), y, call);
      std::fill(gradients.begin(), gradients.end(), 0.0f);
      layer.backward(tokens(), y, dx, gradients, call);
      adamw<float>(layer.parameters(), gradients, state, 1e-3);
      layer.project();
    }
    const auto trained = layer.parameters();
    return std::vector<float>(trained.begin(), trained.end());
  });
}

/// Each of eight threads calls shared objects, 1,250 times in all calls.
TEST(Concurrent, CallsHaveTheBitsOfOneThread) {
  const char* const text = std::getenv("MHLA_CALLS");
  const int calls = text == nullptr ? 1250 : std::atoi(text);
  ThreadPool pool(3);
  const Streaming<float> stream({.width = kWidth, .values = kWidth, .block_length = 16},
                                uniform_causal<float>(6));
  LanguageLayer<float> layer({.heads = 2, .channels = kWidth, .chunk = 16, .chunks = 6});
  Random rng(2);
  for (float& p : layer.parameters()) p = static_cast<float>(rng.uniform(-0.1, 0.1));
  const Inputs<float> in = inputs(tokens(), tokens(), tokens());
  const ContiguousBlocks blocks{16};
  const auto mixing = uniform_causal<float>(6);
  const auto run = [&](int which, const ExecutorRef& executor) {
    Matrix<float> out = Matrix<float>::Zero(96, kWidth);
    const Call call{.executor = executor};
    if (which == 0) causal(in, blocks, mixing, Operator<>(), out, call);
    if (which == 1) softmax_bidirectional(in, out, {}, call);
    if (which == 2) {
      auto state = stream.start();
      stream.append(state, in, out);
    }
    if (which == 3) layer(tokens(), out, {.batch = 1, .executor = executor});
    if (which == 4)
      causal_gradient(in, blocks, mixing, Operator<>(), tokens(), {.v = out}, {}, call);
    return out;
  };
  std::vector<Matrix<float>> alone;
  for (int which = 0; which < 5; ++which) alone.push_back(run(which, {}));
  std::atomic<int> different{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < calls; ++i) {
        const int which = (i + thread) % 5;
        if (run(which, pool) != alone[static_cast<std::size_t>(which)]) ++different;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(different, 0);
  std::cout << 8 * calls << " cases\n";
}

}  // namespace
}  // namespace mhla::test
