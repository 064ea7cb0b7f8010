#pragma once

/// \file
/// Choice of one of three forms for a problem, with its reason, workspace and traffic.
///
///     quadratic     weights of all pairs of tokens, block by block, without summaries: 4 Nq Nk
///                   flops per column take less time than moving the tensors while Nk is small
///     fused         all summaries of a (batch item, head) in shared memory of one thread block,
///                   half of them at a time in the causal form: one kernel moves each tensor once
///     three-stage   one kernel each for summaries, mixtures and outputs, through device memory;
///                   the only form of mixing matrices of decaying terms
///
/// The limits follow from a roofline (bytes over bandwidth, flops over the rate of the tensor
/// cores) and from the device's shared memory. On an H100 the chosen forms were 1.5 to 6 times as
/// fast as three stages in the benchmarks' shapes (benchmarks/cuda).

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/causal_read_out_sm80_config.cuh"
#include "mhla/cuda/kernel/causal_read_out_sm90.cuh"
#include "mhla/cuda/kernel/decay_mixing_sm80.cuh"
#include "mhla/cuda/kernel/fused_causal_sm90.cuh"
#include "mhla/cuda/kernel/fused_slabs.cuh"
#include "mhla/cuda/kernel/fused_sm80_config.cuh"
#include "mhla/cuda/kernel/fused_sm90.cuh"
#include "mhla/cuda/kernel/mixing_sm80_config.cuh"
#include "mhla/cuda/kernel/quadratic_sm80_config.cuh"
#include "mhla/cuda/kernel/quadratic_sm90.cuh"
#include "mhla/cuda/kernel/read_out_sm80_config.cuh"
#include "mhla/cuda/kernel/read_out_sm90.cuh"
#include "mhla/cuda/kernel/split_quadratic_sm80.cuh"
#include "mhla/cuda/kernel/summary_mma_sm90.cuh"
#include "mhla/cuda/kernel/summary_sm80.cuh"
#include "mhla/cuda/launch/form_bounds.cuh"
#include "mhla/cuda/launch/problem.cuh"
#include "mhla/cuda/launch/stages.cuh"
#include "mhla/cuda/launch/staging.cuh"
#include "mhla/cuda/launch/traffic.cuh"
#include "mhla/cuda/launch/workspace.cuh"

namespace mhla::cuda {

/// A kernel, and the bytes of shared memory per thread block that it needs.
struct KernelNeed {
  const char* kernel = nullptr;
  std::int32_t shared_bytes = 0;
};

/// Kernels of the quadratic form: quadratic_sm80.cuh, quadratic_sm90.cuh, split_quadratic_sm80.cuh.
enum class QuadraticKernel { kSm80, kSm90a, kSplit };

struct Plan {
  Form form;
  const char* reason;           ///< one line
  std::size_t workspace_bytes;  ///< a multiple of 256
  Traffic traffic;
  /// Kernel of the quadratic form. kSplit splits the keys of few items over warps, unless
  /// denominators are cross-query sums. Otherwise sm_90a takes kSm90a if the mixing matrix fits.
  /// Causal problems, and widths without such kernels, take kSm80.
  QuadraticKernel quadratic;
  /// Architecture of each stage's kernel. Kernels of sm_90a read by tensor copies and need blocks
  /// that are boxes of the tensors (tile/token_boxes.cuh). Widths without kernels of sm_90a for a
  /// stage (kernel/widths.cuh) take those of sm_80.
  Arch fused;
  Arch summary;
  Arch read_out;
  /// True if the fused kernel of sm_90a sums the next head while it reads out one.
  bool overlaps_heads = false;
  /// True if one kernel has all three stages.
  bool joins_stages = false;
  /// True if the fused kernel has thread blocks for slabs of columns.
  bool slabs = false;
  /// A kernel that does not fit into the device's shared memory, so that calls are refused. Devices
  /// with kLeastShared bytes have kernels that fit.
  KernelNeed missing{};
  /// True if no kernel has all columns of an output that is normalised, so that calls are refused.
  bool lacks_norm = false;
};

/// Maximum waves of 16-query thread blocks for the split-key kernel. With more waves the other
/// kernels of the quadratic form are predicted to be faster. On sm_90a the split-key kernel then
/// waits for L2, which delivers twice as many bytes if D is 128.
template <int D>
constexpr std::int32_t split_rounds(Arch arch) {
  return arch == Arch::kSm90a ? 128 / D : 4;
}

namespace detail {

/// Returns sm_90a if its kernel can compute a stage on this device.
template <class Kernel, class Stage>
constexpr Arch kernel_arch(const Stage& stage, const Problem& problem, const Device& device) {
  if (device.kernels() != Arch::kSm90a || problem.pairs() == 0) return Arch::kSm80;
  typename Kernel::Params p{};
  TensorBox boxes[std::extent_v<decltype(p.maps)>] = {};
  const bool fits = Kernel::prepare(stage, problem.pairs(), device.multiprocessors, p, boxes);
  return fits ? Arch::kSm90a : Arch::kSm80;
}

/// Returns true if denominators read other queries, so that a thread block of the quadratic form
/// has all queries of a pair.
constexpr bool crosses(const Problem& problem) {
  return problem.op.denominator == Denominator::kCrossQuery;
}

/// Returns true if there are few enough 16-query thread blocks to split keys over their warps.
template <int D>
constexpr bool splits_keys(const DirectParameters& stage, const Problem& problem,
                           const Device& device) {
  using Kernel = SplitQuadraticSm80<bfloat16, D>;
  static_assert(form_bounds<D, D>(Arch::kSm80).quadratic_keys <= Kernel::kMostKeys);
  static_assert(form_bounds<D, D>(Arch::kSm90a).quadratic_keys <= Kernel::kMostKeys);
  const std::int32_t at_once = device.multiprocessors * Kernel::kBlocksPerMultiprocessor;
  return Kernel::grid(Kernel::parameters(stage), problem.pairs()) <=
         static_cast<unsigned>(split_rounds<D>(device.kernels()) * at_once);
}

/// Chooses the kernel of the quadratic form.
template <int D, int E>
constexpr QuadraticKernel quadratic_kernel(const Problem& problem, const Device& device) {
  if (problem.causal || problem.pairs() == 0) return QuadraticKernel::kSm80;
  const DirectParameters stage = direct_stage(problem, {});
  if constexpr (Widths<D, E>::kSplitsKeys) {
    if (!crosses(problem) && splits_keys<D>(stage, problem, device)) {
      return QuadraticKernel::kSplit;
    }
  }
  if constexpr (Widths<D, E>::kWgmma) {
    const Arch arch = crosses(problem)
                          ? kernel_arch<QuadraticSm90<bfloat16, D, E, true>>(stage, problem, device)
                          : kernel_arch<QuadraticSm90<bfloat16, D, E>>(stage, problem, device);
    if (arch == Arch::kSm90a) return QuadraticKernel::kSm90a;
  }
  return QuadraticKernel::kSm80;
}

/// Architecture of the fused form's kernel. Only sm_90a has a causal one.
template <int D, int E>
constexpr Arch fused_arch(const Problem& problem, const Device& device) {
  constexpr std::int32_t kMost = form_bounds<D, E>(Arch::kSm90a).fused_blocks;
  if (problem.causal) {
    if constexpr (Widths<D, E>::kFusedCausal) {
      return kernel_arch<FusedCausalSm90<bfloat16, D, E>>(direct_stage(problem, {}), problem,
                                                          device);
    }
    return Arch::kSm80;
  }
  if constexpr (!Widths<D, E>::kTensorCopies) {
    return Arch::kSm80;
  } else if constexpr (kMost > 0) {
    return kernel_arch<FusedSm90<bfloat16, D, E, kMost>>(direct_stage(problem, {}), problem,
                                                         device);
  } else {
    return device.kernels();
  }
}

/// Returns true if the call wants slabs of columns, and their kernel takes it and has enough thread
/// blocks to keep the device busy.
template <int D, int E>
constexpr bool takes_slabs(const Problem& problem, const Device& device) {
  if constexpr (Widths<D, E>::kSlabs) {
    using Kernel = FusedSlabs<bfloat16, D, E>;
    return problem.op.slabs &&
           2 * problem.pairs() * FusedSlabsConfig<D, E>::kSlabs >= device.multiprocessors &&
           kernel_arch<Kernel>(direct_stage(problem, {}), problem, device) == Arch::kSm90a;
  }
  return false;
}

/// The plan of the fused form, by slabs of columns.
template <int D, int E>
constexpr Plan with_slabs(Plan plan, const Problem& problem) {
  if constexpr (Widths<D, E>::kSlabs) {
    plan.slabs = true;
    plan.overlaps_heads = false;
    plan.traffic = traffic<D, E>(problem, Form::kFused, FusedSlabsConfig<D, E>::kSlabs);
  }
  return plan;
}

/// Chooses the kernels of the three-stage form.
template <int D, int E, Precision P>
constexpr void choose_kernels(const Problem& problem, const Device& device, Plan& plan) {
  plan.summary = plan.read_out = Arch::kSm80;
  if (problem.floats) return;
  if constexpr (Widths<D, E>::kTensorCopies) {
    plan.summary =
        kernel_arch<CopyingSummary<bfloat16, D, E, P>>(summary_stage(problem, {}), problem, device);
    if (!problem.causal) {
      plan.read_out = kernel_arch<ReadOutSm90<bfloat16, D, E, P>>(read_out_stage(problem, {}, {}),
                                                                  problem, device);
    }
  }
  if constexpr (Widths<D, E>::kWgmma) {
    if (problem.causal) {
      plan.read_out = kernel_arch<CausalReadOutSm90<bfloat16, D, E, P>>(
          causal_read_out_stage<D, E>(problem, {}, {}), problem, device);
    }
  }
}

/// Bytes of summaries and mixtures that L2 keeps beside tensors that pass through it. An A100 has
/// 40 MB of L2, an H100 50 MB.
inline constexpr std::int64_t kJoinedBytes = 32 << 20;

/// Returns true if the operator joins stages and a kernel can. It fits into shared memory, and the
/// summaries and mixtures that are in use at a time fit into L2.
template <int D, int E, bool kCausal>
constexpr bool joins_stages(const Problem& problem, const Device& device) {
  if constexpr (Widths<D, E>::kJoinsStages) {
    using Kernel = JoinedStagesSm80<bfloat16, D, E, kCausal>;
    if (!problem.op.joins_stages || problem.op.summaries == Precision::kPair || problem.decays() ||
        problem.rotary || crosses(problem) || problem.pairs() == 0 ||
        device.shared_bytes < Kernel::kSharedBytes) {
      return false;
    }
    const auto p = joined_stages<bfloat16, D, E, kCausal>(problem, {}, {}, device.multiprocessors);
    const std::int64_t blocks = p.mixing.rows + p.mixing.columns;
    return (p.order.lag + 1) * blocks * (2 * D * E) <= kJoinedBytes;
  }
  return false;
}

/// Takes the kernel that joins three stages if there is one. Shares of a sequence and streams,
/// which keep summaries, have three kernels.
template <int D, int E>
constexpr void join_stages(const Problem& problem, const Device& device, Plan& plan) {
  plan.joins_stages = problem.causal ? joins_stages<D, E, true>(problem, device)
                                     : joins_stages<D, E, false>(problem, device);
  if (!plan.joins_stages) return;
  plan.summary = plan.read_out = Arch::kSm80;
  plan.traffic.summaries /= 2;  // written, and read from L2
}

/// The kernel of a plan of the quadratic form.
template <int D, int E>
constexpr KernelNeed quadratic_need(const Problem& problem, const Plan& plan) {
  if constexpr (Widths<D, E>::kSplitsKeys) {
    using Split = SplitQuadraticSm80<bfloat16, D>;
    if (plan.quadratic == QuadraticKernel::kSplit) return {"split_quadratic", Split::kSharedBytes};
  }
  return {"quadratic", crosses(problem) ? QuadraticConfig<D, E, false, true>::kBytes
                                        : QuadraticConfig<D, E, true>::kBytes};
}

/// The kernel of three stages that needs most shared memory, among the smallest of sm_80.
template <int D, int E, Precision P, class T = bfloat16>
constexpr KernelNeed largest_stage(const Problem& problem) {
  const KernelNeed outputs =
      problem.causal ? KernelNeed{"causal_read_out", CausalReadOutConfig<D, E, P, T>::kBytes}
                     : KernelNeed{"read_out", ReadOutConfig<D, E, P, kLeastShared, T>::kBytes};
  const KernelNeed mixing =
      problem.decays()
          ? KernelNeed{"decay_mixing", DecayMixingSm80<bfloat16, D, E, P>::kSharedBytes}
          : KernelNeed{"mixing", MixingConfig<D, E, P>::kSharedBytes};
  KernelNeed most{"summary", SummaryConfig<D, E, T>::kSharedBytes};
  for (const KernelNeed& need : {mixing, outputs}) {
    if (need.shared_bytes > most.shared_bytes) most = need;
  }
  return most;
}

/// The kernel of a plan that needs most shared memory, among the smallest kernels of sm_80.
template <int D, int E, Precision P>
constexpr KernelNeed largest_need(const Problem& problem, const Plan& plan) {
  if constexpr (Widths<D, E>::kQuadratic) {
    if (plan.form == Form::kQuadratic) return quadratic_need<D, E>(problem, plan);
  }
  constexpr std::int32_t kLeast = form_bounds<D, E>(Arch::kSm80, 0).fused_blocks;
  if constexpr (kLeast > 0) {
    constexpr std::int32_t kMost = form_bounds<D, E>(Arch::kSm80).fused_blocks;
    const bool few = problem.query_blocks.blocks() <= 4 && problem.key_blocks.blocks() <= 4;
    if (plan.form == Form::kFused) {
      return {"fused", few ? fused_bytes<D, E, 4, 4>() : fused_bytes<D, E, kMost, kLeast>()};
    }
  }
  if constexpr (Widths<D, E>::kFloats && !Widths<D, E>::kFloatHalves) {
    if (problem.floats) return largest_stage<D, E, Precision::kPair, float>(problem);
  }
  return largest_stage<D, E, P>(problem);
}

/// The kernel of largest_need() if it does not fit into the device's shared memory.
template <int D, int E>
constexpr KernelNeed missing_need(const Problem& problem, const Device& device, const Plan& plan) {
  if (device.shared_bytes >= kLeastShared) return {};  // every kernel has an alternative that fits
  const KernelNeed need = problem.op.summaries == Precision::kPair
                              ? largest_need<D, E, Precision::kPair>(problem, plan)
                              : largest_need<D, E, Precision::kSingle>(problem, plan);
  return need.shared_bytes > device.shared_bytes ? need : KernelNeed{};
}

/// \param fused  architecture of the fused form's kernel
template <int D, int E>
constexpr Plan planned(const Problem& problem, const Device& device, Form form, const char* reason,
                       Arch fused = Arch::kSm80) {
  Plan plan{.form = form,
            .reason = reason,
            .workspace_bytes = 0,
            .traffic = traffic<D, E>(problem, form),
            .quadratic = QuadraticKernel::kSm80,
            .fused = fused,
            .summary = device.kernels(),
            .read_out = device.kernels()};
  plan.overlaps_heads = problem.op.overlaps_heads && form == Form::kFused && !problem.causal &&
                        fused == Arch::kSm90a && D < 128;
  if (form == Form::kQuadratic) plan.quadratic = quadratic_kernel<D, E>(problem, device);
  if (form == Form::kThreeStage) {
    plan.workspace_bytes = workspace_parts<D, E>(problem, scratch_of<D, E>(problem, device)).bytes;
    if (problem.op.summaries == Precision::kPair) {
      choose_kernels<D, E, Precision::kPair>(problem, device, plan);
    } else {
      choose_kernels<D, E, Precision::kSingle>(problem, device, plan);
    }
  }
  plan.missing = missing_need<D, E>(problem, device, plan);
  plan.lacks_norm = problem.causal && problem.norm.normed &&
                    CausalReadOutConfig<D, E, Precision::kSingle>::kColumnParts > 1;
  return plan;
}

}  // namespace detail

/// Plans a problem on a device. Does not read the tensors.
template <int D, int E>
constexpr Plan plan(const Problem& problem, const Device& device) {
  if (problem.copies()) {
    const Staging<D, E> staging(problem, nullptr);
    Plan of_copies = plan<D, E>(staging.inner(), device);
    of_copies.workspace_bytes += staging.bytes();
    of_copies.traffic.tensors += staging.traffic();
    return of_copies;
  }
  if constexpr (Widths<D, E>::kFloatHalves) {
    if (problem.floats) {
      Plan halves = plan<D, kHalfWidth<E>>(half_of<E>(problem, 0), device);
      halves.traffic.tensors *= 2;
      halves.traffic.summaries *= 2;
      halves.lacks_norm = problem.norm.normed;
      return halves;
    }
  }
  const FormBounds bounds = form_bounds<D, E>(device.kernels(), device.shared_bytes);
  const std::int32_t keys = problem.key_blocks.tokens();
  const std::int32_t mq = problem.query_blocks.blocks(), mk = problem.key_blocks.blocks();
  const std::int32_t blocks = mq > mk ? mq : mk;
  Arch fused = Arch::kSm80;
  const auto planned = [&](Form form, const char* reason) {
    Plan chosen = detail::planned<D, E>(problem, device, form, reason, fused);
    if (form == Form::kThreeStage) detail::join_stages<D, E>(problem, device, chosen);
    return chosen;
  };
  if (problem.floats) {
    return planned(Form::kThreeStage, "float32 tensors have kernels of three stages alone");
  }
  if (problem.decays()) {
    return planned(Form::kThreeStage, "decaying terms are mixed by a recurrence over all blocks");
  }
  if (problem.rotary) {
    return planned(Form::kThreeStage, "features turn where summaries are made and read out");
  }
  if (problem.norm.normed) {
    return planned(Form::kThreeStage, "outputs are normalised where they are read out");
  }
  const bool crosses = detail::crosses(problem);
  const bool holds = problem.query_blocks.tokens() <= QuadraticConfig<D, E, false, true>::kQueries;
  if (keys <= bounds.quadratic_keys && (!crosses || holds)) {
    return planned(Form::kQuadratic, "so few keys that all weights cost less than summaries");
  }
  if (crosses) {
    return planned(Form::kThreeStage, "cross-query denominators need the key sums of all blocks");
  }
  if (problem.op.summaries == Precision::kPair) {
    return planned(Form::kThreeStage, "pairs of summaries do not fit into shared memory");
  }
  fused = detail::fused_arch<D, E>(problem, device);
  if (problem.causal && fused != Arch::kSm90a) {
    return planned(Form::kThreeStage, "causal, and no fused kernel takes its widths and blocks");
  }
  if (!problem.causal && blocks > form_bounds<D, E>(fused, device.shared_bytes).fused_blocks) {
    if (detail::takes_slabs<D, E>(problem, device)) {
      fused = Arch::kSm90a;
      return detail::with_slabs<D, E>(
          planned(Form::kFused, "summaries of 16 columns of a head fit into shared memory"),
          problem);
    }
    return planned(Form::kThreeStage, "the summaries do not fit into shared memory");
  }
  if (2 * problem.pairs() < device.multiprocessors) {
    return planned(Form::kThreeStage, "too few heads to keep the device busy");
  }
  return planned(Form::kFused, "all summaries of a head fit into shared memory");
}

}  // namespace mhla::cuda
