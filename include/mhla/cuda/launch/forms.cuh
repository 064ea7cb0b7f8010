#pragma once

/// \file
/// Kernels of a planned problem, in launch order.
///
///     quadratic     quadratic
///     fused         fused
///     three-stage   summary -> (rounded_mixing) -> mixing -> (scores) -> read_out, or
///                   causal_read_out
///     three-stage   zero_counters -> joined_stages, where the plan joins the stages
///     three-stage   (intra_weights) -> summary -> decay_mixing -> read_out, or causal_read_out,
///                   where the mixing matrix is a sum of decaying terms
///
/// If tokens are masked or packed, have a prefix, or feature maps are one's own, features ->
/// (angle_rows) -> form -> (selected_rows) (staging.cuh). Floats with values of more than 128
/// columns take a form for each half of the columns.
///
/// The first kernel of a call begins after earlier work in the stream. In the three-stage form, the
/// kernels after `summary` begin early (Start), and each waits for the previous one, which has
/// waited for those before it. All others begin in order: kernels that begin early read what they
/// wrote, such as intra weights, without waiting.
///
/// Each call site instantiates the kernels of one direction. They are launched into a Stream
/// (stream.cuh) or any class with its two functions: run<Kernel>(parameters, pairs, start) and
/// tensor_map(box). A pair is a head of a batch item.

#include <cstdint>
#include <type_traits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/causal_read_out_sm80.cuh"
#include "mhla/cuda/kernel/causal_read_out_sm90.cuh"
#include "mhla/cuda/kernel/decay_mixing_sm80.cuh"
#include "mhla/cuda/kernel/fused_causal_sm90.cuh"
#include "mhla/cuda/kernel/fused_overlapping_sm90.cuh"
#include "mhla/cuda/kernel/fused_slabs.cuh"
#include "mhla/cuda/kernel/fused_sm80.cuh"
#include "mhla/cuda/kernel/fused_sm90.cuh"
#include "mhla/cuda/kernel/intra_weights.cuh"
#include "mhla/cuda/kernel/joined_stages_sm80.cuh"
#include "mhla/cuda/kernel/mixing_sm80.cuh"
#include "mhla/cuda/kernel/mixing_sm90.cuh"
#include "mhla/cuda/kernel/quadratic_sm80.cuh"
#include "mhla/cuda/kernel/quadratic_sm90.cuh"
#include "mhla/cuda/kernel/read_out_sm80.cuh"
#include "mhla/cuda/kernel/read_out_sm90.cuh"
#include "mhla/cuda/kernel/rounded_mixing.cuh"
#include "mhla/cuda/kernel/scores_sm80.cuh"
#include "mhla/cuda/kernel/split_quadratic_sm80.cuh"
#include "mhla/cuda/kernel/stage_counters.cuh"
#include "mhla/cuda/kernel/summary_mma_sm90.cuh"
#include "mhla/cuda/kernel/summary_sm80.cuh"
#include "mhla/cuda/kernel/widths.cuh"
#include "mhla/cuda/launch/plan.cuh"
#include "mhla/cuda/launch/problem.cuh"
#include "mhla/cuda/launch/stages.cuh"
#include "mhla/cuda/launch/staging.cuh"
#include "mhla/cuda/launch/workspace.cuh"
#include "mhla/cuda/tile/factors.cuh"

namespace mhla::cuda {

/// Launches the kernels of a planned problem into a stream.
/// \tparam kCausal   problem.causal
/// \tparam kRotary   problem.rotary
/// \param workspace  the plan's workspace_bytes, aligned to 256 bytes
template <class T, int D, int E, bool kCausal, bool kRotary = false, class Stream>
void run(const Plan& plan, const Problem& problem, MixingArray mixing, unsigned char* workspace,
         const Device& device, const Stream& stream);

/// The same with the feature maps of a MappedOperator.
template <class T, int D, int E, bool kCausal, bool kRotary = false, class Stream, AnyOperator Maps>
void run(const Plan& plan, const Problem& problem, MixingArray mixing, unsigned char* workspace,
         const Device& device, const Stream& stream, const Maps& maps);

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Launches a kernel that reads its inputs through tensor maps.
template <class Kernel, class Stage, class Stream>
void run_copying(const Stage& stage, std::int32_t pairs, const Device& device, const Stream& stream,
                 Start start) {
  typename Kernel::Params p{};
  TensorBox boxes[std::extent_v<decltype(p.maps)>] = {};
  Kernel::prepare(stage, pairs, device.multiprocessors, p, boxes);
  for (std::size_t i = 0; i < std::extent_v<decltype(p.maps)>; ++i) {
    if (boxes[i].base != nullptr) p.maps[i] = stream.tensor_map(boxes[i]);
  }
  stream.template run<Kernel>(p, pairs, start);
}

/// Launches the kernel of `arch` for a stage.
template <class Sm80, class Sm90a, class Stage, class Stream>
void run_stage(Arch arch, const Stage& stage, std::int32_t pairs, const Device& device,
               const Stream& stream, Start start) {
  if constexpr (!std::is_same_v<Sm80, Sm90a>) {
    if (arch == Arch::kSm90a) {
      run_copying<Sm90a>(stage, pairs, device, stream, start);
      return;
    }
  }
  stream.template run<Sm80>(stage, pairs, start);
}

/// Launches a kernel, or a smaller one if the first does not fit into the device's shared memory.
template <class Kernel, class Smaller, class Stream>
void run_fitting(const typename Kernel::Params& stage, std::int32_t pairs, const Device& device,
                 const Stream& stream, Start start = Start::kInOrder) {
  if constexpr (Kernel::kSharedBytes > kLeastShared) {
    if (device.shared_bytes < Kernel::kSharedBytes) {
      stream.template run<Smaller>(stage, pairs, start);
      return;
    }
  }
  stream.template run<Kernel>(stage, pairs, start);
}

/// Launches the first of three stages.
template <class T, int D, int E, Precision P, bool kRotary = false, class Stream>
void run_summaries(const Plan& plan, const SummaryParameters& stage, std::int32_t pairs,
                   const Device& device, const Stream& stream) {
  using Sm80 = SummarySm80<T, D, E, P, kRotary>;
  using Sm90a = std::conditional_t<Widths<D, E>::kTensorCopies && !kIsFloat<T>,
                                   CopyingSummary<T, D, E, P, kRotary>, Sm80>;
  run_stage<Sm80, Sm90a>(plan.summary, stage, pairs, device, stream, Start::kInOrder);
}

/// Launches the last of three stages.
template <class T, int D, int E, Precision P, bool kRotary, class Stream>
void run_read_out(const Plan& plan, const ReadOutParameters& stage, std::int32_t pairs,
                  const Device& device, const Stream& stream) {
  if constexpr (Widths<D, E>::kTensorCopies && !kIsFloat<T>) {
    if (plan.read_out == Arch::kSm90a) {
      run_copying<ReadOutSm90<T, D, E, P, kRotary>>(stage, pairs, device, stream, Start::kEarly);
      return;
    }
  }
  run_fitting<ReadOutSm80<T, D, E, P, kRotary>, ReadOutSm80<T, D, E, P, kRotary, kLeastShared>>(
      stage, pairs, device, stream, Start::kEarly);
}

/// Launches the mixing stage. Summaries of floats are mixed as pairs of bfloat16.
/// \param start  start of the first kernel
template <class T, int D, int E, Precision P, class Stream>
void run_mixing(const Problem& problem, MixingArray mixing, const WorkspaceArrays& arrays,
                const Device& device, const Stream& stream, Start start) {
  const std::int32_t pairs = problem.pairs();
  if (problem.decays()) {
    stream.template run<DecayMixingSm80<factor_t<T>, D, E, P>>(
        decay_mixing_stage(problem, arrays, mixing), pairs, start);
    return;
  }
  const MixingParameters mixed = mixing_stage(problem, arrays, mixing);
  if (mixing.strips != nullptr) {
    stream.template run<MixingSm80<factor_t<T>, D, E, P, true>>(mixed, pairs, start);
    return;
  }
  if constexpr (Widths<D, E>::kWgmma) {
    if (mixed.rounded.high != nullptr) {
      stream.template run<RoundedMixingSm80<factor_t<T>, P>>(mixed, pairs, start);
      start = Start::kEarly;
    }
  }
  using Mixing80 = MixingSm80<factor_t<T>, D, E, P>;
  using Mixing90 =
      std::conditional_t<Widths<D, E>::kWgmma, MixingSm90<factor_t<T>, D, E, P>, Mixing80>;
  run_stage<Mixing80, Mixing90>(device.kernels(), mixed, pairs, device, stream, start);
}

/// Launches the last of three stages of the causal form.
template <class T, int D, int E, Precision P, bool kRotary = false, class Stream>
void run_causal_read_out(const Plan& plan, const Problem& problem, MixingArray mixing,
                         const WorkspaceArrays& arrays, const Device& device,
                         const Stream& stream) {
  if (problem.decays()) {
    mixing = intra_mixing(arrays.intra_weights, problem.op.matrices, problem.heads, mixing.before);
  }
  using Sm80 = CausalReadOutSm80<T, D, E, P, kRotary>;
  using Sm90a = std::conditional_t<Widths<D, E>::kWgmma && !kIsFloat<T>,
                                   CausalReadOutSm90<T, D, E, P, kRotary>, Sm80>;
  run_stage<Sm80, Sm90a>(plan.read_out, causal_read_out_stage<D, E>(problem, arrays, mixing),
                         problem.pairs(), device, stream, Start::kEarly);
}

/// Launches the second and third stage.
/// \param start  start of the first kernel
template <class T, int D, int E, Precision P, bool kCausal, bool kRotary = false, class Stream>
void run_outputs(const Plan& plan, const Problem& problem, MixingArray mixing,
                 const WorkspaceArrays& arrays, const Device& device, const Stream& stream,
                 Start start) {
  const std::int32_t pairs = problem.pairs();
  run_mixing<T, D, E, P>(problem, mixing, arrays, device, stream, start);
  if constexpr (kCausal) {
    run_causal_read_out<T, D, E, P, kRotary>(plan, problem, mixing, arrays, device, stream);
  } else {
    if (problem.op.denominator == Denominator::kCrossQuery) {
      stream.template run<ScoresSm80<T, D>>(score_stage(problem, arrays), pairs, Start::kEarly);
    }
    run_read_out<T, D, E, P, kRotary>(plan, read_out_stage(problem, arrays, mixing), pairs, device,
                                      stream);
  }
}

/// Launches the kernel that precedes those of decaying terms. The last one reads its numbers
/// without waiting.
template <class Stream>
void run_intra_weights(const Problem& problem, MixingArray terms, const WorkspaceArrays& arrays,
                       const Stream& stream) {
  stream.template run<IntraWeightsSm80>({decay_array(problem, terms), arrays.intra_weights},
                                        problem.pairs());
}

/// Launches the kernel that joins three stages, and before it the one that zeroes its counters.
template <class T, int D, int E, bool kCausal, class Stream>
void run_joined_stages(const Problem& problem, MixingArray mixing, const WorkspaceArrays& arrays,
                       const Device& device, const Stream& stream) {
  stream.template run<ZeroCountersSm80>(arrays.counters, problem.pairs());
  stream.template run<JoinedStagesSm80<T, D, E, kCausal>>(
      joined_stages<T, D, E, kCausal>(problem, arrays, mixing, device.multiprocessors),
      problem.pairs(), Start::kEarly);
}

/// Launches the kernels of three stages. With a pattern no kernel joins them.
template <class T, int D, int E, Precision P, bool kCausal, bool kRotary, class Stream>
void run_three_stages(const Plan& plan, const Problem& problem, MixingArray mixing,
                      const WorkspaceArrays& arrays, const Device& device, const Stream& stream) {
  if constexpr (Widths<D, E>::kJoinsStages && P == Precision::kSingle && !kRotary) {
    if (plan.joins_stages && mixing.strips == nullptr) {
      run_joined_stages<T, D, E, kCausal>(problem, mixing, arrays, device, stream);
      return;
    }
  }
  if constexpr (kCausal) {
    if (problem.decays()) run_intra_weights(problem, mixing, arrays, stream);
  }
  run_summaries<T, D, E, P, kRotary>(plan, summary_stage(problem, arrays), problem.pairs(), device,
                                     stream);
  run_outputs<T, D, E, P, kCausal, kRotary>(plan, problem, mixing, arrays, device, stream,
                                            Start::kEarly);
}

/// Launches the quadratic kernel of a plan.
template <class T, int D, int E, bool kCausal, bool kCrossQuery, class Stream>
void run_quadratic(const Plan& plan, const DirectParameters& stage, std::int32_t pairs,
                   const Device& device, const Stream& stream) {
  if constexpr (!kCausal && Widths<D, E>::kSplitsKeys) {
    if constexpr (!kCrossQuery) {
      if (plan.quadratic == QuadraticKernel::kSplit) {
        using Kernel = SplitQuadraticSm80<T, D>;
        stream.template run<Kernel>(Kernel::parameters(stage), pairs);
        return;
      }
    }
  }
  if constexpr (!kCausal && Widths<D, E>::kWgmma) {
    if (plan.quadratic == QuadraticKernel::kSm90a) {
      run_copying<QuadraticSm90<T, D, E, kCrossQuery>>(stage, pairs, device, stream,
                                                       Start::kInOrder);
      return;
    }
  }
  if constexpr (Widths<D, E>::kQuadratic) {
    stream.template run<QuadraticSm80<T, D, E, kCausal, kCrossQuery>>(stage, pairs);
  }
}

/// Launches the fused kernel of a plan. sm_80 takes the one with the fewest regions that hold all
/// blocks.
template <class T, int D, int E, class Stream>
void run_fused(const Plan& plan, const DirectParameters& stage, std::int32_t pairs,
               const Device& device, const Stream& stream) {
  if constexpr (Widths<D, E>::kSlabs) {
    if (plan.slabs) {
      run_copying<FusedSlabs<T, D, E>>(stage, pairs, device, stream, Start::kInOrder);
      return;
    }
  }
  constexpr std::int32_t kMost90 = form_bounds<D, E>(Arch::kSm90a).fused_blocks;
  constexpr std::int32_t kMost80 = form_bounds<D, E>(Arch::kSm80).fused_blocks;
  if constexpr (Widths<D, E>::kTensorCopies && kMost90 > 0) {
    if (plan.fused == Arch::kSm90a) {
      if constexpr (D < 128) {
        if (plan.overlaps_heads) {
          run_copying<FusedOverlappingSm90<T, D, E, kMost90>>(stage, pairs, device, stream,
                                                              Start::kInOrder);
          return;
        }
      }
      run_copying<FusedSm90<T, D, E, kMost90>>(stage, pairs, device, stream, Start::kInOrder);
      return;
    }
  }
  constexpr std::int32_t kLeast = form_bounds<D, E>(Arch::kSm80, kLeastShared).fused_blocks;
  if constexpr (kMost80 > 4) {
    if (stage.query_blocks.blocks() > 4 || stage.key_blocks.blocks() > 4) {
      run_fitting<FusedSm80<T, D, E, kMost80>, FusedSm80<T, D, E, kLeast, kLeastShared>>(
          stage, pairs, device, stream);
      return;
    }
  }
  if constexpr (kLeast >= 4) {
    run_fitting<FusedSm80<T, D, E, 4>, FusedSm80<T, D, E, 4, kLeastShared>>(stage, pairs, device,
                                                                            stream);
  } else if constexpr (kMost80 >= 4) {
    stream.template run<FusedSm80<T, D, E, 4>>(stage, pairs);
  }
}

/// Launches the kernels of a problem that copies no tensor.
template <class T, int D, int E, bool kCausal, bool kRotary, class Stream>
void run_form(const Plan& plan, const Problem& problem, MixingArray mixing,
              unsigned char* workspace, const Device& device, const Stream& stream) {
  constexpr bool kOneKernel = !kRotary && !kIsFloat<T>;  // forms of one kernel
  const std::int32_t pairs = problem.pairs();
  const DirectParameters direct = direct_stage(problem, mixing);
  switch (plan.form) {
    case Form::kQuadratic:
      if constexpr (!kCausal && kOneKernel) {
        if (crosses(problem)) {
          run_quadratic<T, D, E, false, true>(plan, direct, pairs, device, stream);
          return;
        }
      }
      if constexpr (kOneKernel) {
        run_quadratic<T, D, E, kCausal, false>(plan, direct, pairs, device, stream);
      }
      return;
    case Form::kFused:
      if constexpr (kCausal && Widths<D, E>::kFusedCausal && kOneKernel) {
        run_copying<FusedCausalSm90<T, D, E>>(direct, pairs, device, stream, Start::kInOrder);
      } else if constexpr (!kCausal && kOneKernel) {
        run_fused<T, D, E>(plan, direct, pairs, device, stream);
      }
      return;
    case Form::kThreeStage: {
      const WorkspaceArrays arrays =
          workspace_arrays<D, E>(problem, scratch_of<D, E>(problem, device), workspace);
      if (problem.op.summaries == Precision::kPair) {
        run_three_stages<T, D, E, Precision::kPair, kCausal, kRotary>(plan, problem, mixing, arrays,
                                                                      device, stream);
      } else if constexpr (!kIsFloat<T>) {
        run_three_stages<T, D, E, Precision::kSingle, kCausal, kRotary>(plan, problem, mixing,
                                                                        arrays, device, stream);
      }
      return;
    }
  }
}

}  // namespace detail

template <class T, int D, int E, bool kCausal, bool kRotary, class Stream>
void run(const Plan& plan, const Problem& problem, MixingArray mixing, unsigned char* workspace,
         const Device& device, const Stream& stream) {
  if (problem.pairs() == 0) return;
  if (problem.copies()) {
    run<T, D, E, kCausal, kRotary>(plan, problem, mixing, workspace, device, stream, problem.op);
  } else if constexpr (kIsFloat<T> && Widths<D, E>::kFloatHalves) {
    for (int h = 0; h < kHalves<E>; ++h) {
      detail::run_form<T, D, kHalfWidth<E>, kCausal, kRotary>(plan, half_of<E>(problem, h), mixing,
                                                              workspace, device, stream);
    }
  } else {
    detail::run_form<T, D, E, kCausal, kRotary>(plan, problem, mixing, workspace, device, stream);
  }
}

template <class T, int D, int E, bool kCausal, bool kRotary, class Stream, AnyOperator Maps>
void run(const Plan& plan, const Problem& problem, MixingArray mixing, unsigned char* workspace,
         const Device& device, const Stream& stream, const Maps& maps) {
  if (problem.pairs() == 0 || !problem.copies()) {
    run<T, D, E, kCausal, kRotary>(plan, problem, mixing, workspace, device, stream);
    return;
  }
  const Staging<D, E> staging(problem, workspace);
  staging.template copy_inputs<T, kRotary>(stream, maps);
  run<T, D, E, kCausal, kRotary>(plan, staging.inner(), mixing, workspace + staging.bytes(), device,
                                 stream);
  staging.template write_outputs<T>(stream);
}

}  // namespace mhla::cuda
