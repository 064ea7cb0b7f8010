// Bidirectional MHLA, all heads of a batch, on the shapes of released models.

#include "mhla/attention/bidirectional.hpp"
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
  }
  return true;
}();

}  // namespace
}  // namespace mhla::bench::bidirectional_bench
