// Attention in steps, on shapes of the forward cases: chunks of an image's tokens, frames of a
// video. BlockCausal and BlockCausalBackward multiply fewer coefficients than the plain form.
// BlockStreaming appends all steps, one after another. Each timed call follows one of the plain
// form, whose time gives of_forward: bidirectional, its gradient, and for streams block_causal.

#include <algorithm>
#include <cmath>

#include "mhla/attention/block_streaming.hpp"
#include "mhla/gradient/block_causal.hpp"
#include "support/gradient_form.hpp"
#include "support/mixed.hpp"

namespace mhla::bench::block_causal_bench {
namespace {

/// Blocks of a step: those of a frame of blocks, and one of an image or a sequence.
Index step_of(const Shape& shape) {
  const GridShape grid = Grid(shape.grid, shape.block).block_grid();
  return grid[0] > 1 ? grid[1] * grid[2] : 1;
}

/// Calls f(blocks) with the partition of the tokens of one step.
template <class F>
void with_step(const Shape& shape, F&& f) {
  Shape step = shape;
  const int axis = shape.contiguous() ? 2 : 0;
  step.grid.sizes[static_cast<std::size_t>(axis)] = shape.block[axis];
  with_blocks(step, f);
}

/// The coefficients of a matrix that a shape's steps read.
template <Accumulator A>
MixingMatrix<A> read_by_steps(const Shape& shape, const MixingMatrix<A>& mixing) {
  return MixingMatrix<A>(MixingView<const A>(mixing.view().block_causal(step_of(shape))));
}

void forward_case(Session& session, const Shape& shape, Index threads) {
  const auto mixing = initial_mixing<float>(shape), read = read_by_steps(shape, mixing);
  const Operator<> op;
  with_blocks(shape, [&](const auto& blocks) {
    Workload<float> work(shape);
    ThreadPool pool(threads);
    const BatchInputs<float> in = work.inputs();
    std::vector<std::byte, Allocator<std::byte>> memory(
        bidirectional_workspace_bytes(in, blocks, op, pool));
    const Call call{.workspace = memory, .executor = pool};
    session.time_gradient(
        bidirectional_cost<float>(shape, read), measure_peak<float>(pool),
        [&] {
          bidirectional(in, blocks, mixing, op, work.out(), call);
          benchmark::ClobberMemory();
        },
        [&] {
          block_causal(in, blocks, mixing, step_of(shape), op, work.out(), call);
          benchmark::ClobberMemory();
        },
        [&] {
          return worst_of_samples(work, 0, shape.tokens(),
                                  bidirectional_weights<float>(blocks, read));
        });
  });
}

/// The form of time_gradient, whose forward is the plain gradient.
template <Partition P>
class Gradients {
 public:
  Gradients(const Shape& shape, const P& blocks)
      : step_(step_of(shape)),
        blocks_(blocks),
        mixing_(initial_mixing<float>(shape)),
        dmixing_(mixing_.pattern()),
        plain_dmixing_(mixing_.pattern()),
        dout_(draw<float>(shape, shape.values, 4)),
        dq_(zeros<float>(shape, shape.width)),
        dk_(dq_),
        dv_(zeros<float>(shape, shape.values)) {}

  std::size_t forward_bytes(const BatchInputs<float>& in, const ExecutorRef& pool) const {
    return backward_bytes(in, pool);
  }
  std::size_t backward_bytes(const BatchInputs<float>& in, const ExecutorRef& pool) const {
    return bidirectional_gradient_workspace_bytes(in, blocks_, mixing_, op_, pool);
  }
  std::size_t kept_bytes(const BatchInputs<float>& /*in*/) const { return 0; }
  void forward(const BatchInputs<float>& in, TensorView<float> /*out*/, const Call& call) {
    bidirectional_gradient(in, blocks_, mixing_, op_, dout_, {.q = dq_, .k = dk_, .v = dv_},
                           {.mixing = plain_dmixing_}, call);
  }
  void backward(const BatchInputs<float>& in, TensorView<const float> dout,
                const BatchGradients<float>& gradients, const Call& call) {
    block_causal_gradient(in, blocks_, mixing_, step_, op_, dout, gradients, {.mixing = dmixing_},
                          call);
  }
  auto weights(double step) const {
    const auto m = moved(mixing_, step, dmixing_);
    return [this, m = MixingMatrix<double>(MixingView<const double>(m.view().block_causal(step_)))](
               const Inputs<double>& head, Index t) {
      return bidirectional_weights<double>(blocks_, m)(head, t);
    };
  }
  MixingMatrix<float>* dmixing() { return &dmixing_; }

 private:
  Index step_;
  P blocks_;
  MixingMatrix<float> mixing_, dmixing_, plain_dmixing_;
  Tensor<float> dout_, dq_, dk_, dv_;
  Operator<> op_;
};

void gradient_case(Session& session, const Shape& shape, Index threads) {
  const auto read = read_by_steps(shape, initial_mixing<float>(shape));
  with_blocks(shape, [&]<class P>(const P& blocks) {
    time_gradient<float>(session, shape, threads, bidirectional_cost<float>(shape, read),
                         Gradients<P>(shape, blocks));
  });
}

/// Appends all steps to streams of all sequences and heads. Taking the steps back costs nothing.
void stream_case(Session& session, const Shape& shape, Index threads) {
  const auto mixing = initial_mixing<float>(shape), read = read_by_steps(shape, mixing);
  const Operator<> op;
  with_step(shape, [&]<class P>(const P& step) {
    Workload<float> work(shape);
    ThreadPool pool(threads);
    const BatchInputs<float> in = work.inputs();
    const BlockStreaming<float, P> stream({.width = shape.width, .values = shape.values}, step,
                                          mixing);
    std::vector<StreamingState<float>> states(static_cast<std::size_t>(shape.batch * shape.heads),
                                              stream.start());
    const Index steps = shape.tokens() / step.tokens();
    with_blocks(shape, [&](const auto& blocks) {
      std::vector<std::byte, Allocator<std::byte>> memory(
          std::max(bidirectional_workspace_bytes(in, blocks, op, pool),
                   append_workspace_bytes(stream, pool)));
      const Call call{.workspace = memory, .executor = pool};
      session.time_gradient(
          bidirectional_cost<float>(shape, read), measure_peak<float>(pool),
          [&] {
            block_causal(in, blocks, mixing, step.blocks(), op, work.out(), call);
            benchmark::ClobberMemory();
          },
          [&] {
            for (Index s = 0; s < steps; ++s) {
              const auto tokens = [&](auto tensor) {
                tensor.data += s * step.tokens() * tensor.strides[1];
                tensor.shape[1] = step.tokens();
                return tensor;
              };
              append(stream, states, {.q = tokens(in.q), .k = tokens(in.k), .v = tokens(in.v)},
                     tokens(work.out()), call);
            }
            for (auto& state : states) {
              for (Index s = 0; s < steps; ++s) stream.roll_back(state);
            }
            benchmark::ClobberMemory();
          },
          [&] {
            return worst_of_samples(work, 0, shape.tokens(),
                                    bidirectional_weights<float>(blocks, read));
          });
    });
  });
}

const bool kRegistered = [] {
  for (const char* name : {"deit_s", "dit_s_512", "n4096_m64", "wan_1300m"}) {
    const Shape shape = shape_named(bidirectional_shapes(), name);
    for_each_thread_count(shape, [&](Index threads) {
      const auto add = [&](const char* form, auto run) {
        register_case(form, "float", shape, threads, [=](Session& s) { run(s, shape, threads); });
      };
      add("BlockCausal", forward_case);
      add("BlockCausalBackward", gradient_case);
      add("BlockStreaming", stream_case);
    });
  }
  return true;
}();

}  // namespace
}  // namespace mhla::bench::block_causal_bench
