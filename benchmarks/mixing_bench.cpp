// Cost of mixing over the number of blocks, for each kind of mixing matrix. Cases are the causal
// form of one head: with a whole lower triangle (cost grows with M^2), a band, lists of blocks,
// decaying terms, and without mixing (linear attention).

#include "mhla/attention/causal_decay.hpp"
#include "mhla/attention/linear.hpp"
#include "mhla/policy/mixing_constraints.hpp"
#include "support/form.hpp"
#include "support/mixed.hpp"

namespace mhla::bench::mixing_bench {
namespace {

constexpr Index kBand = 8;  // blocks that a block reads, its own included

Contiguous blocks_of(const Shape& shape) { return {shape.tokens(), shape.block_length()}; }

/// Case of a mixing matrix whose rows have equal coefficients.
void matrix_case(Session& session, const Shape& shape, const Pattern& pattern) {
  const Contiguous blocks = blocks_of(shape);
  MixingMatrix<float> mixing(pattern);
  mixing.view().for_each([](float& c) { c = 1; });
  normalize_rows(mixing);
  double mixed = 0;
  for (Index i = 0; i < pattern.rows(); ++i) {
    pattern.for_each_in_row(i, [&](Index b, Index) { mixed += b < i; });
  }
  const auto op = language_operator(shape.width);
  time_form<float>(
      session, shape, 1, causal_cost<float>(shape, mixed),
      [&](const auto& in, const ExecutorRef& pool) {
        return causal_workspace_bytes(in, blocks, op, pool);
      },
      [&](const auto& in, auto out, const Call& call) {
        causal(in, blocks, mixing, op, out, call);
      },
      [&] { return causal_weights<float>(blocks, mixing); });
}

void dense_case(Session& session, const Shape& shape) {
  const Index m = blocks_of(shape).blocks();
  matrix_case(session, shape, Pattern(m, m, m, 0));
}

void band_case(Session& session, const Shape& shape) {
  const Index m = blocks_of(shape).blocks();
  matrix_case(session, shape, Pattern(m, m, kBand - 1, 0));
}

/// Case of lists of the blocks at distances 0, 1, 2, 4, 8, ...
void sparse_case(Session& session, const Shape& shape) {
  std::vector<std::vector<Index>> lists;
  for (Index i = 0; i < blocks_of(shape).blocks(); ++i) {
    auto& list = lists.emplace_back(1, i);
    for (Index distance = 1; distance <= i; distance *= 2) list.insert(list.begin(), i - distance);
  }
  matrix_case(session, shape, Pattern(std::ssize(lists), lists));
}

/// Case of decaying terms. Folding and weighting a term takes two multiply-adds per block.
void decay_case(Session& session, const Shape& shape) {
  const Contiguous blocks = blocks_of(shape);
  const DecayMixing<float> mixing({0.5f, 0.25f, 0.01f, 0.001f}, {0.5f, 0.9f, 0.99f, 0.999f});
  const auto op = language_operator(shape.width);
  const Index steps = 2 * mixing.view().terms() * blocks.blocks();
  time_form<float>(
      session, shape, 1, causal_cost<float>(shape, number(steps)),
      [&](const auto& in, const ExecutorRef& pool) {
        return causal_workspace_bytes(in, blocks, mixing, op, pool);
      },
      [&](const auto& in, auto out, const Call& call) {
        causal(in, blocks, mixing, op, out, call);
      },
      [&] {
        return causal_weights<float>(
            blocks,
            [matrix = decay_matrix(mixing, blocks.blocks())](Index i, Index b) {
              return matrix(i, b);
            },
            steps);
      });
}

void linear_case(Session& session, const Shape& shape) {
  const auto op = language_operator(shape.width);
  time_form<float>(
      session, shape, 1, linear_cost<float>(shape),
      [&](const auto& in, const ExecutorRef& pool) {
        return linear_causal_workspace_bytes(in, op, pool);
      },
      [&](const auto& in, auto out, const Call& call) { linear_causal(in, op, out, call); },
      [&] {
        return causal_weights<float>(
            blocks_of(shape), [](Index, Index) { return 1; }, shape.tokens());
      });
}

const bool kRegistered = [] {
  struct Form {
    const char* name;
    void (*run)(Session&, const Shape&);
  };
  for (Index m = kFewestMixed; m <= kMostMixed; m *= 4) {
    const Shape shape = mixing_shape(m);
    for (const Form& form : {Form{"DenseMixing", dense_case}, Form{"BandMixing", band_case},
                             Form{"SparseMixing", sparse_case}, Form{"DecayMixing", decay_case},
                             Form{"NoMixing", linear_case}}) {
      register_case(form.name, "float", shape, 1, [=](Session& s) { form.run(s, shape); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace mhla::bench::mixing_bench
