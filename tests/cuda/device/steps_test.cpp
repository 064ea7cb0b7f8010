// Tests of streaming steps on a device against the CPU's causal form in double: every token of a
// stream, by steps and by replays of one captured step.

#include <string>
#include <vector>

#include "cuda/device/check.hpp"
#include "cuda/device/device_call.hpp"

namespace {

using cuda_test::Call;
using cuda_test::CallShape;
using device_test::DeviceBytes;
using device_test::expect;
using device_test::expect_success;
using device_test::Stream;
using mhla::cuda::Denominator;
using mhla::cuda::Precision;

/// Streams of some sequences, with buffers for the next token.
template <class T, int D, int E>
class Steps {
 public:
  Steps(const CallShape& shape, std::uint64_t seed)
      : shape_(shape),
        host_(cuda_test::random_call<T, D, E>(shape, seed)),
        q_(rows() * D * 2),
        k_(rows() * D * 2),
        v_(rows() * E * 2),
        o_(rows() * E * 2),
        mixing_(host_.mixing.raw(), host_.mixing.bytes()),
        call_(make_call()),
        state_(device_test::Forms<T, D, E>::state_bytes(call_)) {
    call_.state = state_.data();
    call_.state_bytes = state_.size();
  }

  void start() {
    state_.poison();
    device_test::Forms<T, D, E>::start(call_, stream_);
    stream_.wait();
  }

  /// Restarts one sequence.
  void start(int sequence) {
    device_test::Forms<T, D, E>::start(call_, sequence, stream_);
    stream_.wait();
  }

  /// Assigns these sequences to the items of later steps, one per item.
  void exchange(const std::vector<std::int32_t>& sequence_of) {
    sequence_of_ = DeviceBytes(sequence_of.data(), sequence_of.size() * 4);
    call_.sequence_of = reinterpret_cast<const std::int32_t*>(sequence_of_.data());
  }

  void step() { device_test::Forms<T, D, E>::step(call_, stream_); }

  /// Takes token t by run(), after poisoning the output.
  template <class Run>
  std::vector<T> take(int t, Run&& run) {
    load(t);
    o_.poison();
    run();
    stream_.wait();
    std::vector<T> out(rows() * E);
    o_.download(out.data());
    return out;
  }

  /// Takes all tokens. Returns outputs [tokens][B * H * E].
  template <class Run>
  std::vector<std::vector<T>> take_all(Run&& run) {
    std::vector<std::vector<T>> outputs;
    for (int t = 0; t < host_.q.tokens(); ++t) outputs.push_back(take(t, run));
    return outputs;
  }

  /// Prefills `count` tokens from `seen` on, and appends their outputs to `outputs`.
  void prefill(int seen, int count, std::vector<std::vector<T>>& outputs) {
    DeviceBytes q(host_.q.raw(), host_.q.bytes()), k(host_.k.raw(), host_.k.bytes());
    DeviceBytes v(host_.v.raw(), host_.v.bytes()), o(host_.o.bytes());
    const auto at = [seen](auto tensor, DeviceBytes& bytes) {
      tensor.data = bytes.data() + seen * tensor.token_stride;
      return tensor;
    };
    device_test::StreamCall call = call_;
    call.q = at(host_.q.input(), q);
    call.k = at(host_.k.input(), k);
    call.v = at(host_.v.input(), v);
    call.o = at(host_.o.output(), o);
    DeviceBytes workspace(device_test::Forms<T, D, E>::prefill_bytes(call, seen, count));
    device_test::Forms<T, D, E>::prefill(call, seen, count, workspace.data(), workspace.size(),
                                         stream_);
    stream_.wait();
    o.download(host_.o.raw());
    expect(o.guards_are_untouched() && workspace.guards_are_untouched(),
           text() + ": a prefill wrote outside of a buffer");
    outputs.resize(static_cast<std::size_t>(seen + count));
    host_.o.each([&](int b, int t, int h, int e) {
      if (t < seen || t >= seen + count) return;
      outputs[static_cast<std::size_t>(t)].push_back(host_.o.at(b, t, h, e));
    });
  }

  void expect_right(const std::vector<std::vector<T>>& outputs) {
    for (int b = 0; b < shape_.batch; ++b) {
      for (int h = 0; h < shape_.heads; ++h) {
        const double of_terms = ends() ? 0 : 2.0 * (tokens() + shape_.op.decay_terms);
        const double chain = 2.0 * std::max({tokens(), D, E}) + 64 + of_terms;
        const cuda_test::Expected exact = cuda_test::expected(host_, b, h, chain);
        const auto output = [&](int t, int e) {
          const auto place = static_cast<std::size_t>((b * shape_.heads + h) * E + e);
          return cuda_test::to_double(outputs[static_cast<std::size_t>(t)][place]);
        };
        if (!device_test::head_is_right(text(), b, h, exact, output)) return;
      }
    }
    for (DeviceBytes* bytes : {&q_, &k_, &v_, &o_, &mixing_, &state_}) {
      expect(bytes->guards_are_untouched(), text() + ": wrote outside of a buffer");
    }
  }

  const Stream& stream() const { return stream_; }
  int tokens() const { return host_.q.tokens(); }
  /// False for decaying terms, whose streams have no largest number of tokens.
  bool ends() const { return shape_.op.decay_terms == 0; }
  std::string text() const {
    return device_test::text(shape_, "steps", mhla::cuda::Arch::kSm80) + " D " + std::to_string(D) +
           " E " + std::to_string(E);
  }

 private:
  std::size_t rows() const {
    return static_cast<std::size_t>(shape_.batch) * static_cast<std::size_t>(shape_.heads);
  }

  device_test::StreamCall make_call() {
    const auto dense = [&](DeviceBytes& bytes, std::int64_t width) {  // [B, 1, H, width]
      return mhla::cuda::TokenTensor{bytes.data(), shape_.heads * width * 2, width * 2,
                                     shape_.heads * width * 2};
    };
    const auto input = [&](DeviceBytes& bytes, std::int64_t width) {
      const mhla::cuda::TokenTensor x = dense(bytes, width);
      return mhla::cuda::ConstTokenTensor{x.data, x.batch_stride, x.head_stride, x.token_stride};
    };
    const std::int64_t blocks = mhla::Grid(shape_.tokens, shape_.block).blocks();
    return {shape_.batch,    shape_.heads,
            shape_.block[2], blocks,
            shape_.op,       input(q_, D),
            input(k_, D),    input(v_, E),
            dense(o_, E),    reinterpret_cast<const float*>(mixing_.data()),
            nullptr,         0,
            nullptr,         shape_.own_maps};
  }

  /// Loads token t of every sequence into the buffers, or the last token if t is after the end.
  void load(int t) {
    const int token = std::min(t, tokens() - 1);
    const auto copy = [&](const cuda_test::Tensor<T>& from, DeviceBytes& to, int width) {
      std::vector<T> numbers;
      for (int b = 0; b < shape_.batch; ++b) {
        for (int h = 0; h < shape_.heads; ++h) {
          for (int d = 0; d < width; ++d) numbers.push_back(from.at(b, token, h, d));
        }
      }
      to.upload(numbers.data());
    };
    copy(host_.q, q_, D);
    copy(host_.k, k_, D);
    copy(host_.v, v_, E);
  }

  CallShape shape_;
  Call<T> host_;
  Stream stream_;
  DeviceBytes q_, k_, v_, o_, mixing_, sequence_of_{4};
  device_test::StreamCall call_;
  DeviceBytes state_;
};

/// Tokens, block lengths and decaying terms. With a matrix, tokens are whole blocks, because a
/// stream's capacity is. With terms, a stream has more than the four blocks that kernels tell
/// apart.
struct Size {
  int tokens, block, terms = 0;
};
const Size kSizes[] = {{1, 1},       {5, 1},     {3 * 16, 16}, {3 * 49, 49},
                       {4 * 64, 64}, {30, 3, 1}, {150, 16, 5}, {307, 49, 32}};

template <class F>
void for_each_stream(F&& f) {
  device_test::for_each_kind([&]<class T, int D, int E>() {
    for (const auto& [tokens, block, terms] : kSizes) {
      for (const Precision summaries : {Precision::kSingle, Precision::kPair}) {
        CallShape shape{.batch = 2, .heads = 3, .tokens = tokens, .block = block};
        shape.causal = true;
        shape.op.summaries = summaries;
        shape.op.denominator = tokens % 2 == 0 ? Denominator::kKeySum : Denominator::kNone;
        shape.op.decay_terms = terms;
        shape.own_maps = block == 16;
        Steps<T, D, E> steps(shape, device_test::first_seed());
        f(steps);
      }
    }
  });
}

bool all_are_nan(const auto& numbers) {
  return std::all_of(numbers.begin(), numbers.end(),
                     [](auto x) { return std::isnan(cuda_test::to_double(x)); });
}

void steps_are_the_causal_form() {
  for_each_stream([](auto& steps) {
    const auto step = [&] { steps.step(); };
    steps.start();
    steps.expect_right(steps.take_all(step));
    if (steps.ends()) {
      expect(all_are_nan(steps.take(steps.tokens(), step)),
             steps.text() + ": an output after the last token is a number");
    }
    steps.start();  // restarts in the same memory
    steps.expect_right(steps.take_all(step));
  });
}

void steps_go_on_after_a_prefill() {
  for_each_stream([](auto& steps) {
    for (const int count : {1, steps.tokens() * 2 / 3, steps.tokens()}) {
      if (count < 1) continue;
      steps.start();
      decltype(steps.take_all([] {})) outputs;
      if (count > 1) steps.prefill(0, count / 2, outputs);
      steps.prefill(count / 2, count - count / 2, outputs);
      for (int t = count; t < steps.tokens(); ++t) {
        outputs.push_back(steps.take(t, [&] { steps.step(); }));
      }
      steps.expect_right(outputs);
    }
  });
}

bool same_bits(const auto& x, const auto& y, std::size_t count) {
  return std::memcmp(x.data(), y.data(), count * sizeof(x[0])) == 0;
}

void sequences_stand_where_they_will() {
  for_each_stream([](auto& steps) {
    const auto step = [&] { steps.step(); };
    steps.start();
    const auto together = steps.take_all(step);
    steps.exchange({1, 0});
    steps.start();
    const auto exchanged = steps.take_all(step);
    bool same = true;
    for (std::size_t t = 0; t < together.size(); ++t) {
      same = same && same_bits(together[t], exchanged[t], together[t].size());
    }
    expect(same, steps.text() + ": other sequences give other bits");
    steps.start(1);  // the first item; the other sequence is at its end
    const auto first = steps.take(0, step);
    expect(same_bits(first, together[0], first.size() / 2),
           steps.text() + ": a new sequence gives other bits");
    expect(!steps.ends() || all_are_nan(std::vector(first.begin() + first.size() / 2, first.end())),
           steps.text() + ": a new sequence disturbs another");
  });
}

void a_captured_step_is_every_step() {
  for_each_stream([](auto& steps) {
    steps.start();
    const auto by_steps = steps.take_all([&] { steps.step(); });

    const Stream& stream = steps.stream();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    expect_success(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                   "cudaStreamBeginCapture");
    steps.step();
    expect_success(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    expect_success(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    steps.start();
    const auto by_replays = steps.take_all(
        [&] { expect_success(cudaGraphLaunch(executable, stream), "cudaGraphLaunch"); });
    bool same = true;
    for (std::size_t t = 0; t < by_steps.size(); ++t) {
      same = same && same_bits(by_steps[t], by_replays[t], by_steps[t].size());
    }
    expect(same, steps.text() + ": replays of a captured step give other bits");
    expect_success(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
    expect_success(cudaGraphDestroy(graph), "cudaGraphDestroy");
  });
}

}  // namespace

int main(int count, char** arguments) {
  return device_test::run_tests(
      {{"Steps.AreTheCausalForm", steps_are_the_causal_form},
       {"Steps.GoOnAfterAPrefill", steps_go_on_after_a_prefill},
       {"Steps.SequencesStandWhereTheyWill", sequences_stand_where_they_will},
       {"Steps.ACapturedStepIsEveryStep", a_captured_step_is_every_step}},
      count, arguments);
}
