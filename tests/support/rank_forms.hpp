#pragma once

/// \file
/// The two forms over ranks, and a check that a rank's part of a random problem has the bits of one
/// machine.

#include <gtest/gtest.h>

#include <string>

#include "mhla/core/executor.hpp"
#include "mhla/distributed/bidirectional.hpp"
#include "mhla/distributed/causal.hpp"
#include "support/gradient_forms.hpp"
#include "support/gradient_random.hpp"
#include "support/rank_problem.hpp"

namespace mhla::test {

/// The two forms, on one machine and over ranks.
struct BidirectionalOverRanks {
  using Alone = BidirectionalForm;

  template <class In, class P, class Blocks>
  static auto run_alone(const In& in, const P& p, const Blocks& blocks) {
    return bidirectional(in, blocks, p.mixing(), p.op);
  }
  template <class C, class In, class P, class Blocks>
  static void run(C& comm, const In& in, const P& p, const Blocks& blocks,
                  const detail::output_of<In>& out, const Call& call = {}) {
    distributed::bidirectional(comm, in, blocks, p.mixing(), p.op, out, call);
  }
  template <class C, class In, class P, class Blocks>
  static void add(C& comm, const GradientArguments<In>& a, const P& p, const Blocks& blocks,
                  const Call& call = {}) {
    distributed::bidirectional_gradient(comm, a.in, blocks, p.mixing(), p.op, a.dout, a.gradients,
                                        a.parameters, call);
  }
};
struct CausalOverRanks {
  using Alone = CausalForm;

  template <class In, class P, class Blocks>
  static auto run_alone(const In& in, const P& p, const Blocks& blocks) {
    return causal(in, blocks.queries, p.mixing(), p.op);
  }
  template <class C, class In, class P, class Blocks>
  static void run(C& comm, const In& in, const P& p, const Blocks& blocks,
                  const detail::output_of<In>& out, const Call& call = {}) {
    distributed::causal(comm, in, blocks.queries, p.mixing(), p.op, out, call);
  }
  template <class C, class In, class P, class Blocks>
  static void add(C& comm, const GradientArguments<In>& a, const P& p, const Blocks& blocks,
                  const Call& call = {}) {
    distributed::causal_gradient(comm, a.in, blocks.queries, p.mixing(), p.op, a.dout, a.gradients,
                                 a.parameters, call);
  }
};

template <class M>
std::string bits_of(const M& m) {
  return {reinterpret_cast<const char*>(m.data()),
          static_cast<std::size_t>(m.size()) * sizeof(*m.data())};
}

/// Expects a rank to have the outputs and gradients of one machine.
template <class Form, class T, class C>
void expect_bits_of_one_machine(C& comm, const GradientProblem<T>& p) {
  const RankProblem<T> rank(p, comm.rank(), comm.size());
  const std::string where = " on rank " + std::to_string(comm.rank()) + ", " + p.text();
  ThreadPool pool(1 + static_cast<Index>(p.seed) % 3);
  const Call call{.executor = pool};

  const Matrix<T> expected = rank.queries.rows_of(Form::run_alone(p.inputs(), p, p.blocks));
  Matrix<T> out = Matrix<T>::Constant(expected.rows(), expected.cols(), T(7));
  Form::run(comm, rank.local.inputs(), rank.local, rank.local.blocks, out, call);
  EXPECT_EQ(bits_of(out), bits_of(expected)) << "outputs" << where;

  Random start(p.seed);
  const GradientBuffers<T> begin(p, [&] { return start.uniform(-1, 1); });
  GradientBuffers<T> all = begin, part = rank.part_of(begin);
  add_gradients(typename Form::Alone(), p, all);
  Form::add(comm,
            GradientArguments<Inputs<T>>{rank.local.inputs(), rank.local.dout, part.views(),
                                         part.parameter_views()},
            rank.local, rank.local.blocks, call);
  EXPECT_EQ(different_bits(part, rank.part_of(all)), "") << "gradients" << where;
}

}  // namespace mhla::test
