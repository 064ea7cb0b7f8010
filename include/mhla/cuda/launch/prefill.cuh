#pragma once

/// \file
/// Prefill of streams: many tokens at once. Steps take the tokens that still fit into the open
/// block. From the next block on, the causal form takes the others in three stages and makes its
/// summaries in the state. A last kernel writes the rest of the state:
///
///     streaming_step ..., summary -> mixing -> causal_read_out -> streaming_prefill
///
/// With decaying terms the summaries are in the workspace, and decay_mixing continues the sums of
/// the state.
///
/// With feature maps of one's own, all of these read features that precede them (staging.cuh).

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/decay_mixing_sm80.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/streaming_prefill_sm80.cuh"
#include "mhla/cuda/kernel/streaming_state.cuh"
#include "mhla/cuda/kernel/streaming_step_sm80.cuh"
#include "mhla/cuda/launch/forms.cuh"
#include "mhla/cuda/launch/plan.cuh"
#include "mhla/cuda/launch/problem.cuh"
#include "mhla/cuda/launch/stages.cuh"
#include "mhla/cuda/launch/staging.cuh"
#include "mhla/cuda/launch/traffic.cuh"
#include "mhla/cuda/launch/workspace.cuh"

namespace mhla::cuda {

/// Advances q, k, v and o by `tokens` tokens.
template <class Tensors>
constexpr void skip_tokens(Tensors& x, std::int32_t count) {
  const auto skip = [count](auto& tensor) { tensor.data += count * tensor.token_stride; };
  skip(x.q), skip(x.k), skip(x.v), skip(x.o);
}

/// Splits the tokens of a prefill into steps and a causal problem.
struct PrefillParts {
  std::int32_t steps;  ///< number of first tokens that steps take
  std::int32_t block;  ///< block of the stream where the causal problem begins
  bool has_causal;     ///< tokens remain after the steps
  Problem causal;      ///< the tokens after the steps

  /// \param problem  all tokens
  /// \param seen     tokens that each of the sequences has seen
  /// \param length   W
  constexpr PrefillParts(const Problem& problem, std::int32_t seen, std::int32_t length)
      : causal(problem) {
    const std::int32_t tokens = problem.key_blocks.tokens();
    const std::int32_t free_slots = (length - seen % length) % length;
    steps = free_slots < tokens ? free_slots : tokens;
    block = (seen + free_slots) / length;
    has_causal = steps < tokens;
    if (!has_causal) return;
    const std::int32_t left = tokens - steps;
    skip_tokens(causal, steps);
    causal.query_blocks = TokenBlocks(1, 1, left, 1, 1, left < length ? left : length);
    causal.key_blocks = causal.query_blocks;
  }

  /// The problem of the mixing stage: all blocks of the stream up to the end of the causal problem.
  constexpr Problem mixed() const {
    return with_key_blocks(causal, block + causal.key_blocks.blocks());
  }
  /// Scratch sizes: no summaries, and mixtures of all rows of a tile. Decaying terms need summaries
  /// and mixtures of the causal problem alone.
  template <int D, int E>
  constexpr StageScratch scratch(const Device& device) const {
    if (causal.decays()) return scratch_of<D, E>(causal, device);
    const std::int32_t rows = rows_ahead(causal, block) + causal.query_blocks.blocks();
    const std::int32_t columns = block + causal.key_blocks.blocks();
    return {0, rows, rounded_coefficients<D, E>(rows, columns, causal, device)};
  }
};

namespace detail {

/// Bytes of a stream's state that the recurrence of decaying terms continues from.
template <int D, int E>
constexpr std::uint64_t continued_bytes(const Problem& problem) {
  const std::uint64_t terms = 4 * static_cast<std::uint64_t>(problem.op.decay_terms);
  const std::uint64_t summary = problem.op.summaries == Precision::kPair ? 4 : 2;
  const std::uint64_t key_sum = problem.op.denominator == Denominator::kNone ? 0 : D;
  return static_cast<std::uint64_t>(problem.pairs()) *
         ((terms + summary) * D * E + (terms + 4) * key_sum);
}

}  // namespace detail

/// Plans a prefill of sequences that have seen `seen` tokens. The traffic does not include steps.
template <int D, int E>
constexpr Plan prefill_plan(const Problem& problem, std::int32_t seen, std::int32_t length,
                            const Device& device) {
  if (problem.copies()) {
    const Staging<D, E> staging(problem, nullptr);
    Plan of_copies = prefill_plan<D, E>(staging.inner(), seen, length, device);
    of_copies.workspace_bytes += staging.bytes();
    of_copies.traffic.tensors += staging.traffic();
    return of_copies;
  }
  const PrefillParts parts(problem, seen, length);
  const char* const reason = problem.decays() ? "a stream keeps the sums of its decaying terms"
                                              : "a stream keeps the summaries";
  Plan plan = detail::planned<D, E>(parts.causal, device, Form::kThreeStage, reason);
  plan.workspace_bytes = 0;
  plan.traffic = {};
  if (!parts.has_causal) return plan;
  const StageScratch scratch = parts.template scratch<D, E>(device);
  plan.workspace_bytes = workspace_parts<D, E>(parts.causal, scratch).bytes;
  plan.traffic = detail::traffic<D, E>(parts.causal, Form::kThreeStage);
  if (problem.decays()) {
    if (parts.block > 0) plan.traffic.summaries += detail::continued_bytes<D, E>(problem);
    return plan;
  }
  plan.traffic.summaries =
      detail::mixed_bytes<D, E>(parts.causal, parts.mixed().key_blocks.blocks(), scratch.mixtures);
  return plan;
}

namespace detail {

/// Summaries of the sequences, which are in the state.
template <int D, int E>
constexpr SummaryArray kept_summaries(const StreamingStepParameters& tokens) {
  SummaryArray all = tokens.state.summaries;
  all.capacity = tokens.blocks.blocks();
  if (tokens.normalization.denominator == Denominator::kNone) all.key_sum = nullptr;
  return all.template from<D, E>(std::int64_t{tokens.first} * tokens.heads * all.capacity);
}

/// Launches the last kernel of a prefill.
/// \param written  summaries of the causal problem, if they are not in the state
template <class Kernel, class Stream>
void run_rest(const PrefillParts& parts, const StreamingStepParameters& tokens,
              const SummaryArray& written, const Stream& stream) {
  const Problem& problem = parts.causal;
  StreamingPrefillParameters rest{tokens, parts.block * tokens.blocks.slots(), 0, written};
  rest.tokens = rest.begin + problem.key_blocks.tokens();
  rest.stream.k = problem.k;
  rest.stream.v = problem.v;
  stream.template run<Kernel>(rest, problem.pairs(), Start::kInOrder);
}

/// Launches the causal form for streams whose next token begins a block.
template <class T, int D, int E, Precision P, class Stream>
void run_causal_prefill(const Plan& plan, const PrefillParts& parts,
                        const StreamingStepParameters& tokens, unsigned char* workspace,
                        const Device& device, const Stream& stream) {
  const Problem& problem = parts.causal;
  WorkspaceArrays arrays =
      workspace_arrays<D, E>(problem, parts.template scratch<D, E>(device), workspace);
  arrays.summaries = kept_summaries<D, E>(tokens);
  arrays.mixtures.scale = arrays.summaries.scale;
  WorkspaceArrays part_arrays = arrays;
  part_arrays.summaries = arrays.summaries.template from<D, E>(parts.block);
  MixingArray mixing = tokens.mixing.from(parts.block);
  mixing.before = parts.block;
  run_summaries<T, D, E, P>(plan, summary_stage(problem, part_arrays), problem.pairs(), device,
                            stream);
  run_outputs<T, D, E, P, true>(plan, parts.mixed(), mixing, arrays, device, stream, Start::kEarly);
  run_rest<StreamingPrefillSm80<T, D, E, P>>(parts, tokens, {}, stream);
}

/// The same with decaying terms.
template <class T, int D, int E, Precision P, class Stream>
void run_decaying_prefill(const Plan& plan, const PrefillParts& parts,
                          const StreamingStepParameters& tokens, unsigned char* workspace,
                          const Device& device, const Stream& stream) {
  const Problem& problem = parts.causal;
  WorkspaceArrays arrays =
      workspace_arrays<D, E>(problem, parts.template scratch<D, E>(device), workspace);
  arrays.summaries.scale = arrays.mixtures.scale = tokens.state.summaries.scale;
  if (parts.block == 0) {
    run_three_stages<T, D, E, P, true, false>(plan, problem, tokens.mixing, arrays, device, stream);
  } else {
    run_intra_weights(problem, tokens.mixing, arrays, stream);
    run_summaries<T, D, E, P>(plan, summary_stage(problem, arrays), problem.pairs(), device,
                              stream);
    const std::int64_t first = std::int64_t{tokens.first} * tokens.heads;
    SummaryArray latest = tokens.state.summaries;
    latest.capacity = 2;
    const ContinuedMixingParameters mixed{
        decay_mixing_stage(problem, arrays, tokens.mixing),
        tokens.state.terms + first * tokens.terms * (D * E),
        tokens.state.term_key_sums + first * tokens.terms * D,
        latest.template from<D, E>(2 * first + (parts.block - 1) % 2)};
    stream.template run<DecayMixingSm80<T, D, E, P, true>>(mixed, problem.pairs(), Start::kEarly);
    MixingArray mixing = tokens.mixing;
    mixing.before = parts.block;
    run_causal_read_out<T, D, E, P>(plan, problem, mixing, arrays, device, stream);
  }
  run_rest<StreamingPrefillSm80<T, D, E, P, true>>(parts, tokens, arrays.summaries, stream);
}

/// Calls run.operator()<P, kDecays>() for the kernels of a stream.
template <class Run>
void with_stream_kernels(const Operator& op, const Run& run) {
  const auto with_precision = [&]<bool kDecays>() {
    if (op.summaries == Precision::kPair) {
      run.template operator()<Precision::kPair, kDecays>();
    } else {
      run.template operator()<Precision::kSingle, kDecays>();
    }
  };
  if (op.decay_terms > 0) {
    with_precision.template operator()<true>();
  } else {
    with_precision.template operator()<false>();
  }
}

}  // namespace detail

/// Launches the kernels of a planned prefill into a stream, as run() launches those of a form.
/// \param plan     `prefill_plan(problem, seen, tokens.blocks.slots(), device)`.
/// \param tokens   All tokens of the problem, [B, N, ...], of the B sequences from tokens.first on.
/// \param seen     tokens that each of these sequences has seen, or their endless_counter()
template <class T, int D, int E, class Stream>
void run_prefill(const Plan& plan, const Problem& problem, const StreamingStepParameters& tokens,
                 std::int32_t seen, unsigned char* workspace, const Device& device,
                 const Stream& stream) {
  if (problem.pairs() == 0) return;
  const PrefillParts parts(problem, seen, tokens.blocks.slots());
  const auto run_all = [&]<Precision P, bool kDecays>() {
    using Step = StreamingStepSm80<T, D, E, P, StreamingStepParameters, kDecays>;
    StreamingStepParameters token = tokens;
    for (std::int32_t t = 0; t < parts.steps; ++t) {
      stream.template run<Step>(token, problem.pairs(), Start::kInOrder);
      skip_tokens(token, 1);
    }
    if (!parts.has_causal) return;
    if constexpr (kDecays) {
      detail::run_decaying_prefill<T, D, E, P>(plan, parts, tokens, workspace, device, stream);
    } else {
      detail::run_causal_prefill<T, D, E, P>(plan, parts, tokens, workspace, device, stream);
    }
  };
  detail::with_stream_kernels(problem.op, run_all);
}

/// The same with the feature maps of a MappedOperator.
template <class T, int D, int E, class Stream, AnyOperator Maps>
void run_prefill(const Plan& plan, const Problem& problem, StreamingStepParameters tokens,
                 std::int32_t seen, unsigned char* workspace, const Device& device,
                 const Stream& stream, const Maps& maps) {
  const Staging<D, E> staging(problem, workspace);
  if (problem.pairs() > 0) staging.template copy_inputs<T, false>(stream, maps);
  const Problem& inner = staging.inner();
  tokens.q = inner.q;
  tokens.k = inner.k;
  tokens.query_map = inner.op.query_map;
  tokens.key_map = inner.op.key_map;
  run_prefill<T, D, E>(plan, inner, tokens, seen, workspace + staging.bytes(), device, stream);
}

}  // namespace mhla::cuda
