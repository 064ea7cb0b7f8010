// Bidirectional MHLA, all heads of a batch, on the shapes of released models. The cases BlockCausal
// run it in steps: blocks of an image, and frames of a video.

#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/block_causal.hpp"
#include "support/form.hpp"
#include "support/mixed.hpp"

namespace mhla::bench::bidirectional_bench {
namespace {

template <Scalar T>
void bidirectional_case(Session& session, const Shape& shape, Index threads) {
  const auto mixing = initial_mixing<accumulator_t<T>>(shape);
  const Operator op;
  with_blocks(shape, [&](const auto& blocks) {
    time_form<T>(
        session, shape, threads, bidirectional_cost<T>(shape, mixing),
        [&](const auto& in, const ExecutorRef& pool) {
          return bidirectional_workspace_bytes(in, blocks, op, pool);
        },
        [&](const auto& in, auto out, const Call& call) {
          bidirectional(in, blocks, mixing, op, out, call);
        },
        [&] { return bidirectional_weights<T>(blocks, mixing); });
  });
}

void block_causal_case(Session& session, const Shape& shape, Index threads) {
  with_blocks(shape, [&](const auto& blocks) {
    const GridShape grid = Grid(shape.grid, shape.block).block_grid();
    const Index step = grid[0] > 1 ? grid[1] * grid[2] : 1;
    const MixingMatrix<float> mixing(
        MixingView<const float>(initial_mixing<float>(shape).view().block_causal(step)));
    const Operator op;
    time_form<float>(
        session, shape, threads, bidirectional_cost<float>(shape, mixing),
        [&](const auto& in, const ExecutorRef& pool) {
          return bidirectional_workspace_bytes(in, blocks, op, pool);
        },
        [&](const auto& in, auto out, const Call& call) {
          block_causal(in, blocks, mixing, step, op, out, call);
        },
        [&] { return bidirectional_weights<float>(blocks, mixing); });
  });
}

template <Scalar T>
void register_shape(const Shape& shape) {
  for_each_thread_count(shape, [&](Index threads) {
    register_case("Bidirectional", kScalarName<T>, shape, threads,
                  [=](Session& s) { bidirectional_case<T>(s, shape, threads); });
  });
}

const bool kRegistered = [] {
  const auto shapes = bidirectional_shapes();
  for (const Shape& shape : shapes) register_shape<float>(shape);
  for (const char* name : {"dit_s_512", "wan_1300m"}) {
    register_shape<double>(shape_named(shapes, name));
    register_shape<Eigen::bfloat16>(shape_named(shapes, name));
    register_case("BlockCausal", "float", shape_named(shapes, name), 1, [=](Session& s) {
      block_causal_case(s, shape_named(bidirectional_shapes(), name), 1);
    });
  }
  return true;
}();

}  // namespace
}  // namespace mhla::bench::bidirectional_bench
