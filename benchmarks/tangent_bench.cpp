// The tangents of both forms of MHLA along directions of q, k, v and the mixing matrix, on the
// shapes of the forward cases. Each timed call follows a call of the forward, whose time gives
// of_forward.

#include <cmath>

#include "mhla/tangent/bidirectional.hpp"
#include "mhla/tangent/causal.hpp"
#include "mhla/tangent/naive.hpp"
#include "support/form.hpp"
#include "support/mixed.hpp"

namespace mhla::bench::tangent_bench {
namespace {

/// The tangent of one query, with its bound: the roundings of a term times the size of the terms.
/// \param chain  roundings of a term
template <Scalar T, class Blocks, class Op>
ExactRow exact_tangent(const Inputs<T>& in, const Tangents<T>& x, const Blocks& blocks,
                       const MixingMatrix<accumulator_t<T>>& mixing, const Op& op, Index t,
                       Index block, bool causal, double chain) {
  using M = Matrix<double>;
  Inputs<T> query = in;
  Tangents<T> along = x;
  query.q = in.q.middle_rows(t, 1);
  along.q = x.q.middle_rows(t, 1);
  std::vector<unsigned char> seen(static_cast<std::size_t>(in.k.rows), 1);
  if (causal) std::fill(seen.begin() + t + 1, seen.end(), 0);
  query.key_mask = seen;
  auto p = naive_problem<double>(query, CrossBlocks{Contiguous(1, 1), blocks}, mixing, op);
  p.query_block = {block};
  auto d = naive_direction<double>(query, op, along, {.mixing = mixing});
  const M tangent = naive_tangent(p, d);
  const double den = naive_denominators(p)(0, 0);
  NaiveProblem<double, NoNormalizer> sizes{
      p.q, p.k, p.v, p.mixing, p.query_block, p.key_block, p.query_slot,
      {},  {},  {},  {},       p.key_kept,    p.order};
  for (M* m : {&sizes.q, &sizes.k, &sizes.v, &sizes.mixing, &d.q, &d.k, &d.v, &d.mixing}) {
    *m = m->cwiseAbs();
  }
  const M outputs = naive_attention(sizes), numerators = naive_tangent(sizes, d);
  sizes.v.setOnes();
  d.v.setZero();
  const double divides = op.normalizer.sums() == WeightSums::kNone ? 0 : 1;
  const M sums = naive_tangent(sizes, d);
  ExactRow row{std::vector<double>(static_cast<std::size_t>(tangent.cols())), {}};
  row.bound = row.value;
  for (Index e = 0; e < tangent.cols(); ++e) {
    const auto i = static_cast<std::size_t>(e);
    const double size = (numerators(0, e) + divides * outputs(0, e) / den * sums(0, e)) / den;
    row.value[i] = tangent(0, e);
    row.bound[i] =
        rounding_bound(chain, kUnitRoundoff<T>) * (size + divides * std::abs(tangent(0, e))) +
        kStorageRoundoff<T> * std::abs(tangent(0, e));
  }
  return row;
}

/// Checks and times a tangent.
/// \param forward  (in, out, call)     \param run  (in, tangents, out, call)
template <Scalar T, class Blocks, class Op, class Bytes, class Forward, class Run>
void time_tangent(Session& session, const Shape& shape, Index threads, const Cost& forward_cost,
                  const Blocks& blocks, const MixingMatrix<accumulator_t<T>>& mixing, const Op& op,
                  bool causal, const Bytes& bytes, const Forward& forward, const Run& run) {
  Workload<T> work(shape);
  const Tensor<T> dq = draw<T>(shape, shape.width, 4), dk = draw<T>(shape, shape.width, 5);
  const Tensor<T> dv = draw<T>(shape, shape.values, 6);
  Tensor<T> tangent = zeros<T>(shape, shape.values);
  const BatchInputs<T> in = work.inputs();
  const BatchTangents<T> x{.q = dq, .k = dk, .v = dv};
  ThreadPool pool(threads);
  std::vector<std::byte, Allocator<std::byte>> memory(bytes(in, pool));
  Cost cost = forward_cost;
  cost.flops *= 3;
  const auto worst = [&] {
    const auto block_of = blocks_of_tokens(blocks);
    const Index w = shape.block_length(), l = (causal ? 2 * w : w) + mixing.cols() + shape.width;
    double worst_of_rows = 0;
    std::uint64_t counter = 0;
    const auto below = [&counter](Index bound) {
      return static_cast<Index>(splitmix64(++counter) % static_cast<std::uint64_t>(bound));
    };
    for (int sample = 0; sample < kSampledRows; ++sample) {
      const Index b = below(shape.batch), h = below(shape.heads), t = below(shape.tokens());
      const ExactRow row = exact_tangent<T>(
          detail::head_inputs(in, b, h), detail::head_tangents(in, x, b, h), blocks, mixing, op, t,
          block_of[static_cast<std::size_t>(t)], causal, number(3 * l + 16));
      worst_of_rows =
          std::max(worst_of_rows, error_over_bound(row, &tangent.view().head(b, h)(t, 0)));
    }
    return worst_of_rows;
  };
  const Call call{.workspace = memory, .executor = pool};
  session.time_gradient(
      cost, measure_peak<accumulator_t<T>>(pool),
      [&] {
        forward(in, work.out(), call);
        benchmark::ClobberMemory();
      },
      [&] {
        run(in, x, WithTangent<TensorView<T>>{work.out(), tangent}, call);
        benchmark::ClobberMemory();
      },
      worst);
}

template <Scalar T>
void bidirectional_case(Session& session, const Shape& shape, Index threads) {
  const auto m = initial_mixing<accumulator_t<T>>(shape);
  const Operator<> op;
  with_blocks(shape, [&](const auto& blocks) {
    time_tangent<T>(
        session, shape, threads, bidirectional_cost<T>(shape, m), blocks, m, op, false,
        [&](const auto& in, const ExecutorRef& pool) {
          return bidirectional_tangent_workspace_bytes(in, blocks, op, pool);
        },
        [&](const auto& in, TensorView<T> out, const Call& call) {
          bidirectional(in, blocks, m, op, out, call);
        },
        [&](const auto& in, const auto& x, const auto& out, const Call& call) {
          bidirectional_tangent(in, blocks, m, op, x, out, {.mixing = m}, call);
        });
  });
}

void causal_case(Session& session, const Shape& shape, Index threads) {
  const Contiguous blocks(shape.tokens(), shape.block_length());
  const auto m = uniform_causal<float>(blocks.blocks());
  const auto op = language_operator(shape.width);
  time_tangent<float>(
      session, shape, threads, causal_cost<float>(shape), blocks, m, op, true,
      [&](const auto& in, const ExecutorRef& pool) {
        return causal_tangent_workspace_bytes(in, blocks, op, pool);
      },
      [&](const auto& in, TensorView<float> out, const Call& call) {
        causal(in, blocks, m, op, out, call);
      },
      [&](const auto& in, const auto& x, const auto& out, const Call& call) {
        causal_tangent(in, blocks, m, op, x, out, {.mixing = m}, call);
      });
}

void register_shape(std::string_view scalar, const Shape& shape, auto run) {
  for_each_thread_count(shape, [&](Index threads) {
    register_case("Tangent", scalar, shape, threads, [=](Session& s) { run(s, shape, threads); });
  });
}

const bool kRegistered = [] {
  const auto shapes = bidirectional_shapes();
  for (const Shape& s : shapes) register_shape("float", s, bidirectional_case<float>);
  const Shape shape = shape_named(shapes, "dit_s_512");
  register_shape("double", shape, bidirectional_case<double>);
  register_shape("bfloat16", shape, bidirectional_case<Eigen::bfloat16>);
  for (const Shape& s : causal_shapes()) register_shape("float", s, causal_case);
  return true;
}();

}  // namespace
}  // namespace mhla::bench::tangent_bench
