// Tests of calls in CUDA streams: equal bits from every run, graph and thread, concurrent streams,
// errors.

#include <future>
#include <string>
#include <vector>

#include "cuda/device/check.hpp"
#include "cuda/device/device_call.hpp"
#include "mhla/cuda/launch/error.cuh"

namespace {

using device_test::CallShape;
using device_test::DeviceCall;
using device_test::expect;
using device_test::expect_success;
using device_test::Stream;
using Bytes = std::vector<unsigned char>;

/// Shapes for every form, some with more blocks than a device runs at once.
std::vector<CallShape> shapes() {
  std::vector<CallShape> all{{.batch = 16, .heads = 6, .tokens = 256, .block = 16},
                             {.batch = 2, .heads = 6, .tokens = {1, 23, 16}, .block = {1, 24, 4}},
                             {.batch = 2, .heads = 3, .tokens = {14, 12, 15}, .block = {7, 6, 5}},
                             {.batch = 4, .heads = 4, .tokens = 2000, .block = 49}};
  CallShape causal{.batch = 4, .heads = 4, .tokens = 2048, .block = 64};
  causal.causal = true;
  all.push_back(causal);
  CallShape cross{.batch = 2, .heads = 4, .tokens = 7 * 70, .block = 70};
  cross.op.denominator = mhla::cuda::Denominator::kCrossQuery;
  all.push_back(cross);
  return all;
}

/// Calls f(call) for all widths and shapes, and all kernels that this device has.
template <class F>
void for_each_call(F&& f) {
  device_test::for_each_kind([&]<class T, int D, int E>() {
    for (const CallShape& shape : shapes()) {
      DeviceCall<T, D, E> call(shape, device_test::first_seed());
      for (const mhla::cuda::Device& device : device_test::targets(1)) {
        call.plan_for(device);
        f(call);
      }
    }
  });
}

void repeats_give_the_same_bits() {
  const Stream stream;
  for_each_call([&](auto& call) {
    call.run(stream);
    call.expect_right();
    const Bytes first = call.output();
    for (int i = 0; i < 100; ++i) {
      if (i % 10 == 0) call.poison();
      call.run(stream);
      if (call.output() != first) {
        expect(false, call.text() + ": other bits in repetition " + std::to_string(i));
        return;
      }
    }
  });
}

void graphs_give_the_same_bits() {
  const Stream stream;
  for_each_call([&](auto& call) {
    call.run(stream);
    const Bytes first = call.output();
    call.poison();

    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    expect_success(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                   "cudaStreamBeginCapture");
    call.run(stream);
    expect_success(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    expect_success(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    for (int replay = 0; replay < 3; ++replay) {
      call.poison();
      expect_success(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
      expect(call.output() == first, call.text() + ": a replayed graph gives other bits");
    }
    expect_success(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
    expect_success(cudaGraphDestroy(graph), "cudaGraphDestroy");
  });
}

/// Another thread, which has not called CUDA before, runs each call.
void any_thread_may_call() {
  const Stream stream;
  for_each_call([&](auto& call) {
    call.run(stream);
    const Bytes first = call.output();
    call.poison();
    std::async(std::launch::async, [&] { call.run(stream); }).get();
    expect(call.output() == first, call.text() + ": other bits from another thread");
  });
}

/// Runs two calls with separate memory concurrently, many times.
template <class T, int D, int E>
void two_streams(const CallShape& a, const CallShape& b) {
  const Stream one, other;
  DeviceCall<T, D, E> first(a, 1), second(b, 2);
  for (const mhla::cuda::Device& device : device_test::targets(1)) {
    first.plan_for(device);
    second.plan_for(device);
    first.run(one);
    const Bytes alone_first = first.output();
    second.run(other);
    const Bytes alone_second = second.output();
    for (int round = 0; round < 10; ++round) {
      first.poison();
      second.poison();
      for (int i = 0; i < 5; ++i) {
        first.run(one);
        second.run(other);
      }
      expect(first.output() == alone_first, first.text() + ": disturbed by another stream");
      expect(second.output() == alone_second, second.text() + ": disturbed by another stream");
    }
  }
}

void streams_do_not_disturb_each_other() {
  device_test::for_each_kind([]<class T, int D, int E>() {
    const std::vector<CallShape> all = shapes();
    for (std::size_t i = 0; i < all.size(); ++i) {
      two_streams<T, D, E>(all[i], all[(i + 1) % all.size()]);
    }
  });
}

/// A stream with a broken capture refuses kernels.
void refused_launches_are_errors_with_a_text() {
  const Stream stream;
  DeviceCall<mhla::cuda::bfloat16, 64, 64> call({.tokens = 64, .block = 16}, 1);
  call.plan_for(device_test::targets(1)[0]);
  call.run(stream);  // loads the kernel
  stream.wait();
  expect_success(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                 "cudaStreamBeginCapture");
  expect(cudaStreamSynchronize(stream) != cudaSuccess, "a capturing stream was waited for");
  cudaGetLastError();
  std::string message;
  try {
    call.run(stream);
  } catch (const mhla::cuda::cuda_error& error) {
    message = error.what();
  }
  expect(cudaPeekAtLastError() == cudaSuccess, "a refused launch left its error to others");
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream, &graph);  // also ends in an error
  cudaGetLastError();
  expect(message.rfind("mhla::cuda: cuda", 0) == 0 &&
             message.find(" failed: cudaErrorStreamCapture") != std::string::npos,
         "a refused launch said: \"" + message + "\"");
  call.poison();
  call.run(stream);  // the stream works again
  call.expect_right();
}

}  // namespace

int main(int count, char** arguments) {
  return device_test::run_tests(
      {{"Streams.RepeatsGiveTheSameBits", repeats_give_the_same_bits},
       {"Streams.GraphsGiveTheSameBits", graphs_give_the_same_bits},
       {"Streams.AnyThreadMayCall", any_thread_may_call},
       {"Streams.StreamsDoNotDisturbEachOther", streams_do_not_disturb_each_other},
       {"Streams.RefusedLaunchesAreErrorsWithAText", refused_launches_are_errors_with_a_text}},
      count, arguments);
}
