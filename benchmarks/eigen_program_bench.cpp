// The program that a user would write with Eigen alone, on the same data: the baseline of both
// forms of MHLA.

#include "support/eigen_causal_program.hpp"
#include "support/eigen_program.hpp"
#include "support/form.hpp"
#include "support/mixed.hpp"

namespace mhla::bench::eigen_program_bench {
namespace {

/// Times run(head, out) for one head after another, on one thread.
template <Scalar T, class Run, class MakeWeights>
void time_program(Session& session, const Shape& shape, const Cost& cost, const Run& run,
                  const MakeWeights& weights) {
  time_form<T>(
      session, shape, 1, cost, [](const auto&, const ExecutorRef&) { return std::size_t{0}; },
      [&](const BatchInputs<T>& in, TensorView<T> out, const Call&) {
        for (Index b = 0; b < shape.batch; ++b) {
          for (Index h = 0; h < shape.heads; ++h)
            run(detail::head_inputs(in, b, h), out.head(b, h));
        }
      },
      weights);
}

template <Scalar T>
void bidirectional_case(Session& session, const Shape& shape) {
  const auto mixing = initial_mixing<T>(shape);
  with_blocks(shape, [&](const auto& blocks) {
    EigenProgram program(blocks, mixing.dense(), shape.width, shape.values);
    time_program<T>(
        session, shape, bidirectional_cost<T>(shape, mixing),
        [&](const Inputs<T>& head, MatrixView<T> out) {
          program.run(head.q.data, head.k.data, head.v.data, out.data, head.q.row_stride);
        },
        [&] { return bidirectional_weights<T>(blocks, mixing); });
  });
}

void causal_case(Session& session, const Shape& shape) {
  const Contiguous blocks(shape.tokens(), shape.block_length());
  const auto mixing = uniform_causal<float>(blocks.blocks());
  EigenCausalProgram<float> program(mixing.dense(), shape.block_length(), shape.width, shape.values,
                                    static_cast<float>(language_operator(shape.width).scale));
  time_program<float>(
      session, shape, causal_cost<float>(shape),
      [&](const Inputs<float>& head, MatrixView<float> out) {
        program.run(head.q.data, head.k.data, head.v.data, out.data, head.q.row_stride,
                    out.row_stride);
      },
      [&] { return causal_weights<float>(blocks, mixing); });
}

template <Scalar T>
void register_bidirectional(const Shape& shape) {
  register_case("EigenProgram", kScalarName<T>, shape, 1,
                [=](Session& s) { bidirectional_case<T>(s, shape); });
}

const bool kRegistered = [] {
  const auto shapes = bidirectional_shapes();
  for (const Shape& shape : shapes) register_bidirectional<float>(shape);
  for (const char* name : {"dit_s_512", "wan_1300m"}) {
    register_bidirectional<double>(shape_named(shapes, name));
  }
  for (const Shape& shape : causal_shapes()) {
    register_case("EigenProgram", "float", shape, 1, [=](Session& s) { causal_case(s, shape); });
  }
  return true;
}();

}  // namespace
}  // namespace mhla::bench::eigen_program_bench
