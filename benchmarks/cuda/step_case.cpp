// Cases of a token of every stream.

#include <algorithm>

#include "cuda/session.hpp"
#include "cuda/step_form.hpp"
#include "cuda/workload.hpp"

namespace mhla::cuda_bench {
namespace {

/// Number of blocks with checked tokens: the first token, both sides of a boundary, others.
constexpr Index kCheckedBlocks = 3;

/// State and tokens of the streams of a case.
struct Workload {
  Index tokens;  // number of different tokens
  std::vector<float> mixing;
  DeviceArray<float> device_mixing;
  DeviceArray<Bits> q, k, v, o;
  DeviceArray<unsigned char> state;
  Streams streams;

  Workload(const Case& c, Session& session)
      : tokens(kCheckedBlocks * c.shape.block_length()),
        mixing(random_mixing(c.blocks())),
        device_mixing(mixing),
        q(random_tensor(c.pairs() * tokens * kStepWidth, 1, session)),
        k(random_tensor(c.pairs() * tokens * kStepWidth, 2, session)),
        v(random_tensor(c.pairs() * tokens * kStepWidth, 3, session)),
        o(c.pairs() * kStepWidth) {
    streams = {c.shape.batch,          c.shape.heads, tokens,   c.blocks(),
               c.shape.block_length(), q.data(),      k.data(), v.data(),
               device_mixing.data(),   o.data(),      nullptr,  0};
    state = DeviceArray<unsigned char>(static_cast<std::int64_t>(state_bytes(streams)));
    streams.state = state.data();
    streams.state_bytes = state.bytes();
    start(streams, session.stream);
  }
};

/// Compares the rows of some heads at a token with the definition on the checked blocks.
void compare_step(const Case& c, const Workload& w, std::int64_t token, Deviation& deviation) {
  const Index all = c.blocks();
  std::vector<float> mixing;
  for (Index i = 0; i < kCheckedBlocks * kCheckedBlocks; ++i) {
    const Index place = i / kCheckedBlocks * all + i % kCheckedBlocks;
    mixing.push_back(w.mixing[static_cast<std::size_t>(place)]);
  }
  const auto length = static_cast<std::int32_t>(c.shape.block_length());
  const Call call{c.shape.batch,
                  c.shape.heads,
                  kStepWidth,
                  kStepWidth,
                  {1, 1, static_cast<std::int32_t>(w.tokens), 1, 1, length},
                  true,
                  {},
                  w.q.data(),
                  w.k.data(),
                  w.v.data(),
                  nullptr,
                  nullptr,
                  nullptr,
                  0};
  const std::vector<Row> rows{{c.shape.batch - 1, c.shape.heads - 1, token},
                              {0, c.shape.heads / 2, token},
                              {c.shape.batch / 2, 0, token}};
  const std::vector<ExactRow> exact = exact_rows(c, call, mixing, rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t place = (rows[i].batch * c.shape.heads + rows[i].head) * kStepWidth;
    compare(exact[i], fetch(w.o.data() + place, kStepWidth), deviation);
  }
}

}  // namespace

Result measure_step(const Case& c, Session& session) {
  Workload w(c, session);
  Result result{.subject = c,
                .form = "step",
                .reason = "one token of every stream",
                .kernels = "sm_80",
                .workspace_bytes = static_cast<double>(w.streams.state_bytes),
                .cost = whole_cost(c)};
  std::int64_t position = 0;
  const auto next = [&](cudaStream_t stream) {
    step(w.streams, position % w.tokens, stream);
    ++position;
  };
  const std::int64_t length = c.shape.block_length();
  while (position < w.tokens) {
    const std::int64_t token = position;
    const bool checked = token % length == 0 || token % length == length - 1 || token == 100;
    if (!checked) {
      next(session.stream);
      continue;
    }
    result.deviation.not_finite += run_on_poison(w.o, next, session);
    compare_step(c, w, token, result.deviation);
  }
  // Time steps in the middle of the sequence, around the middle of a block: 54 steps of 64.
  while (position < c.blocks() / 2 * length + 5) next(session.stream);
  session.stream.wait();
  time_right(session, next, result);
  return result;
}

}  // namespace mhla::cuda_bench
