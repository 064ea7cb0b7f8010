/// \file
/// An endless stream: ten million tokens, one at a time, with a state that does not grow.
///
///     m_ib = sum_r a_r lambda_r^(i-b)        coefficient of block b <= i for block i = t / W
///     o_t  = sum_j w_tj v_j / sum_j w_tj     w_tj = m_{i(t),b(j)} phi(q_t) . phi(k_j), j <= t
///
/// A stream keeps one running state per decaying term, for any number of blocks. The terms here
/// forget in 2, in 100 and in 10,000 blocks, and never, so the last token still reads the first
/// tokens. Ten numbers of each value mark its tenth of the stream. The same numbers of an output
/// are the weights of the tenths.
///
/// Tokens are functions of their position, so none is kept. The program checks eight rows against
/// the definition, in double over all earlier tokens, and the memory. It checks that a stream which
/// was saved in the middle and restored gives the same bits to the end.
///
/// Run:       build/examples/endless_stream [tokens, 10000000]
/// Expected:  (times depend on the processor)
///
///     10000000 tokens in blocks of 64; a state of 178880 bytes
///       tokens    median ns   slowest block   weight in the last output
///     to   10000000      935         2480              70.8 %
///            row     error   allowed
///        9999999   1.7e-07   5.8e-03

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <mhla/mhla.hpp>
#include <string>
#include <vector>

#include "endless_stream/definition.hpp"
#include "support/fingerprint.hpp"
#include "support/number.hpp"

namespace {

using namespace endless_stream;
using Stream = mhla::Streaming<float, mhla::Operator<>, mhla::DecayMixing<float>>;
using State = mhla::StreamingState<float>;

/// Appends tokens to a stream up to token `end` of `all`, one at a time. Calls
/// visit(first token, outputs, nanoseconds) after each block, or part of a block.
template <class Visit>
void stream_to(Index end, Index all, const Stream& stream, State& state, const Visit& visit) {
  std::vector<std::byte> workspace(stream.append_workspace_bytes());  // appends allocate nothing
  while (state.position() < end) {
    const Index first = state.position();
    const Index count = std::min(kBlock - first % kBlock, end - first);
    const Tokens in(first, all);
    Rows out;
    const auto start = std::chrono::steady_clock::now();
    for (Index t = 0; t < count; ++t) {
      stream.append(
          state, mhla::inputs(in.q.middleRows(t, 1), in.k.middleRows(t, 1), in.v.middleRows(t, 1)),
          out.middleRows(t, 1), {.workspace = workspace});
    }
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    visit(first, out.topRows(count), time.count());
  }
}

/// MiB of the process's resident memory, or 0 if the system does not report it.
double resident() {
  std::ifstream status("/proc/self/status");
  for (std::string name; status >> name;) {
    double kib = 0;
    if (name == "VmRSS:" && status >> kib) return kib / 1024;
  }
  return 0;
}

int fail(const std::string& why) {
  std::fprintf(stderr, "FAILED: %s\n", why.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) try {
  const Index all = argc > 1 ? examples::number_of(argv[1], 10'000, 100'000'000'000) : 10'000'000;
  const Stream stream({.width = kWidth, .values = kWidth, .block_length = kBlock},
                      {kWeights, kDecays});
  const Index middle = all / 2 + 21, last_block = (all - 1) / kBlock * kBlock;
  const Positions rows = {3, 63, 64, all / 100, middle, last_block - 1, last_block, all - 1};
  Exact sampled(rows.size(), kWidth);                                 // their outputs
  std::vector<double> times(static_cast<std::size_t>(all / kBlock));  // ns per token, by block
  std::uint64_t bits = 0;                                             // a hash of outputs
  double resident_early = 0;

  const auto hash = [](std::uint64_t h, const auto& out) {
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(out.data());
    return examples::fnv1a({bytes, static_cast<std::size_t>(out.size()) * sizeof(float)}, h);
  };
  const auto seen = [&](Index first, const auto& out, double ns) {
    if (out.rows() == kBlock) times[static_cast<std::size_t>(first / kBlock)] = ns / kBlock;
    for (Index s = 0; s < rows.size(); ++s) {
      const Index t = rows[s] - first;
      if (t >= 0 && t < out.rows()) sampled.row(s) = out.row(t).template cast<double>();
    }
    if (first >= middle) bits = hash(bits, out);
    if (first <= all / 100) resident_early = resident();
  };
  State state = stream.start();
  stream_to(middle, all, stream, state, seen);
  std::vector<std::byte> saved(stream.state_bytes());
  state.save(saved);
  stream_to(all, all, stream, state, seen);
  const double resident_late = resident();

  State restored = stream.start();
  restored.restore(saved);
  std::uint64_t bits_again = 0;
  stream_to(all, all, stream, restored,
            [&](Index, const auto& out, double) { bits_again = hash(bits_again, out); });

  std::printf("%td tokens in blocks of %td; a state of %zu bytes\n", all, kBlock, saved.size());
  if (resident_late > 0) {
    std::printf("resident: %.1f MiB after 1 %%, %.1f MiB at the end\n", resident_early,
                resident_late);
  }
  std::printf("\n  tokens    median ns   slowest block   weight in the last output\n");
  for (Index tenth = 0; tenth < kTenths; ++tenth) {
    const auto at = [&](Index i) { return times.begin() + std::ssize(times) * i / kTenths; };
    const auto begin = at(tenth), end = at(tenth + 1), median = begin + (end - begin) / 2;
    std::nth_element(begin, median, end);
    std::printf("to %10td %8.0f %12.0f %17.1f %%\n", all * (tenth + 1) / kTenths, *median,
                *std::max_element(median, end), 100 * sampled(rows.size() - 1, tenth));
  }

  const Definition definition(rows, all);
  const Exact difference = (sampled - definition.out).cwiseAbs();
  bool right = true;
  std::printf("\n       row     error   allowed\n");
  for (Index s = 0; s < rows.size(); ++s) {
    const double error = difference.row(s).maxCoeff<Eigen::PropagateNaN>();
    std::printf("%10td   %.1e   %.1e\n", rows[s], error, definition.bound(s));
    right &= error <= definition.bound(s);
  }
  if (!right) return fail("a row is not that of the definition");
  if (bits != bits_again) return fail("a restored stream has other bits");
  if (resident_late > resident_early + 4) return fail("memory has grown by more than 4 MiB");
  std::printf("ok\n");
  return 0;
} catch (const std::exception& error) {
  return fail(error.what());
}
