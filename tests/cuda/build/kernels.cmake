# The kernels that nvcc compiles, by pairs of widths. It defines `all`, the pairs.

# Adds the kernels of a header as entry functions, for all `types` and each of the `variants`, to the
# units of these pairs of widths. `kernel` is made of T, D, E and V; for needs and fences: entry.cuh.
# A header comes again with a suffix. Suffixes that end with _sm80 or _sm90 are for that architecture
# alone, as are headers that end with _sm90. A unit has one 16-bit type. Kernels of one unit alone
# have both.
function(add_kernels header kernel variants needs fences widths)
  set(architectures 80 90a)
  if("${header};${ARGN}" MATCHES "_sm90(;|$)")
    set(architectures 90a)
  elseif("${ARGN}" MATCHES "_sm80$")
    set(architectures 80)
  endif()
  foreach(pair IN LISTS widths)
    foreach(architecture IN LISTS architectures)
      set(types_of_unit ${types})
      set(type "${type_of_${pair}}${type_of_${pair}_${architecture}}")
      if(type IN_LIST types AND NOT "${widths};${architectures}" STREQUAL "64x64;90a")
        set(types_of_unit ${type})
      endif()
      set(i 0)
      set(entries "")
      foreach(type IN LISTS types_of_unit)
        foreach(variant IN LISTS variants)
          math(EXPR i "${i} + 1")
          string(APPEND entries "inline constexpr auto* kFunction${i} ="
                 " Entry<Kernel<${type}, ${variant}>, ${needs}, ${fences}>::kFunction;\n")
        endforeach()
      endforeach()
      string(CONFIGURE [[
#include "mhla/cuda/kernel/@header@.cuh"
namespace mhla::cuda::build::@header@@ARGN@ {
template <class T, auto V>
using Kernel = @kernel@;
@entries@
}  // namespace mhla::cuda::build::@header@@ARGN@
]] text @ONLY)
      set_property(DIRECTORY APPEND_STRING PROPERTY kernels_${pair}_${architecture} "${text}")
    endforeach()
  endforeach()
endfunction()

# Pairs of widths: those of kernel/widths.cuh, with kernels of wgmma, with tensor copies, of features
# that turn, of the fused form, and with sums that fit into registers.
set(all 32x32 48x48 48x96 64x64 72x72 96x48 96x96 128x128 128x256 256x256)
set(boxes 64x64 128x128 128x256)
set(copied ${boxes} 72x72)
set(turned ${all})
list(REMOVE_ITEM turned 72x72)
set(fused 32x32 48x48 64x64 72x72 96x96 128x128)
set(held ${all})
list(REMOVE_ITEM held 256x256)
set(narrow 72x72)
# Kernels that see a summary as a row of numbers have the same code for all widths of a kind: powers
# of two, 72, and other multiples of 16. Other kernels have D alone, or no width.
set(kinds 64x64 72x72 96x96)
set(of_d ${all})
list(REMOVE_ITEM of_d 48x96 96x48 128x256)
set(turned_d ${of_d})
list(REMOVE_ITEM turned_d 72x72)
set(any 64x64)
set(types bfloat16 half)
set(both Precision::kSingle Precision::kPair)
set(most "form_bounds<D, E>")
set(regions 4 "${most}(Arch::kSm80).fused_blocks")  # for few blocks, for the most that fit
set(sm80 "kMma | kMatrices | kCopies")
set(sm90 "kMma | kWgmma | kMatrices | kTensorLoads | kHints | kWaits | kLaunches")
add_kernels(summary_sm80 "SummarySm80<T, D, E, V>" "${both}" "${sm80} | kLaunches" 0 "${all}")
add_kernels(summary_sm90 "SummarySm90<T, D, E, V>" "${both}" "${sm90}" 1 "${boxes}")
add_kernels(summary_sm80 "SummarySm80<T, D, E, V, true>" "${both}" "${sm80} | kLaunches" 0
            "${turned}" _rotary)
add_kernels(read_out_sm80 "ReadOutSm80<T, D, E, V, true>" "${both}" "${sm80} | kWaits" 0 "${turned}"
            _rotary)
# For devices with the least shared memory, where the others need more. These run code of sm_80.
foreach(rotary false true)
  add_kernels(read_out_sm80 "ReadOutSm80<T, D, E, V, ${rotary}, kLeastShared>" Precision::kPair
              "${sm80} | kWaits" 0 "96x96;128x128;128x256;256x256" _least_pair_${rotary}_sm80)
  add_kernels(read_out_sm80 "ReadOutSm80<T, D, E, V, ${rotary}, kLeastShared>" Precision::kSingle
              "${sm80} | kWaits" 0 "128x256;256x256" _least_${rotary}_sm80)
endforeach()
add_kernels(fused_sm80 "FusedSm80<T, D, E, V, kLeastShared>"
            "${most}(Arch::kSm80, kLeastShared).fused_blocks" "${sm80}" 0 "48x48;64x64;96x96"
            _least_sm80)
add_kernels(causal_read_out_sm80 "CausalReadOutSm80<T, D, E, V, true>" "${both}"
            "${sm80} | kWaits" 0 "${turned}" _rotary)
add_kernels(summary_sm90 "SummarySm90<T, D, E, V, true>" "${both}" "${sm90}" 1 "${boxes}" _rotary)
add_kernels(read_out_sm90 "ReadOutSm90<T, D, E, V, true>" "${both}"
            "kWgmma | kMatrices | kTensorLoads | kTensorStores | kHints | kWaits | kLaunches" 1
            "${boxes}" _rotary)
add_kernels(summary_mma_sm90 "SummaryMmaSm90<T, D, E, V>" "${both}"
            "kMma | kMatrices | kTensorLoads | kWaits | kLaunches" 0 "${narrow}")
add_kernels(mixing_sm80 "MixingSm80<T, D, E, V>" "${both}" "${sm80} | kWaits | kLaunches" 0
            "${kinds}")
add_kernels(mixing_sm80 "MixingSm80<T, D, E, V, true>" "${both}" "${sm80} | kWaits | kLaunches" 0
            "${kinds}" _skips)
add_kernels(rounded_mixing "RoundedMixingSm80<T, V>" "${both}" "kWaits | kLaunches" 0 "${boxes}")
add_kernels(mixing_sm90 "MixingSm90<T, D, E, V>" "${both}" "${sm90} | kCopies | kTensorStores" 1
            "${boxes}")
add_kernels(decay_mixing_sm80 "DecayMixingSm80<T, D, E, V>" "${both}" "kWaits | kLaunches" 0
            "${kinds}")
add_kernels(decay_mixing_sm80 "DecayMixingSm80<T, D, E, V, true>" "${both}" "kWaits | kLaunches" 0
            "${kinds}" _continued)
add_kernels(intra_weights "IntraWeightsSm80" 0 0 0 ${any})
add_kernels(scores_sm80 "ScoresSm80<T, D>" 0 "kWaits | kLaunches" 0 "${of_d}")
add_kernels(read_out_sm80 "ReadOutSm80<T, D, E, V>" "${both}" "${sm80} | kWaits" 0 "${all}")
add_kernels(read_out_sm90 "ReadOutSm90<T, D, E, V>" "${both}"
            "(D == 72 ? kMma : kWgmma) | kMatrices | kTensorLoads | kTensorStores | kHints | kWaits | kLaunches"
            1 "${copied}")
add_kernels(causal_read_out_sm80 "CausalReadOutSm80<T, D, E, V>" "${both}" "${sm80} | kWaits" 0
            "${all}")
add_kernels(causal_read_out_sm90 "CausalReadOutSm90<T, D, E, V>" "${both}" "${sm90} | kTensorStores" 2
            "${boxes}")
add_kernels(causal_read_out_sm90 "CausalReadOutSm90<T, D, E, V, true>" "${both}"
            "${sm90} | kTensorStores" 2 "${boxes}" _rotary)
add_kernels(quadratic_sm80 "QuadraticSm80<T, D, E, V>" "false;true" "${sm80}" 0 "${held}")
add_kernels(quadratic_sm80 "QuadraticSm80<T, D, E, false, true>" 0 "${sm80}" 0 "${held}" _cross)
add_kernels(quadratic_sm90 "QuadraticSm90<T, D, E>" 0
            "kMma | kWgmma | kMatrices | kTensorLoads | kWaits | kLaunches" 1 "${boxes}")
add_kernels(quadratic_sm90 "QuadraticSm90<T, D, E, true>" 0
            "kWgmma | kMatrices | kTensorLoads | kWaits | kLaunches" 1 "${boxes}" _cross)
add_kernels(split_quadratic_sm80 "SplitQuadraticSm80<T, D>" 0 kMma 0 "64x64;128x128")
add_kernels(fused_sm80 "FusedSm80<T, D, E, V>" "${regions}" "${sm80}" 0 "${fused}")
add_kernels(fused_sm90 "FusedSm90<T, D, E, V>" "${most}(Arch::kSm90a).fused_blocks"
            "kMma | kMatrices | kTensorLoads | kWaits | kLaunches" 2 "64x64;72x72;128x128")
add_kernels(fused_overlapping_sm90 "FusedOverlappingSm90<T, D, E, V>"
            "${most}(Arch::kSm90a).fused_blocks"
            "kMma | kMatrices | kTensorLoads | kWaits | kLaunches" 2 "64x64;72x72")
add_kernels(fused_causal_sm90 "FusedCausalSm90<T, D, E>" 0 "${sm90} | kTensorStores" 3 64x64)
add_kernels(joined_stages_sm80 "JoinedStagesSm80<T, D, E, V>" "false;true" "${sm80} | kWaits" 0
            "64x64;128x128")
add_kernels(stage_counters ZeroCountersSm80 0 kLaunches 0 "64x64;128x128")
add_kernels(fused_slabs "FusedSlabs<T, D, E>" 0 "kMma | kMatrices | kTensorLoads" 0 64x64 _sm90)
# Kernels of masked and packed tokens, and of a prefix.
add_kernels(angle_rows_sm80 "AngleRowsSm80<D>" 0 0 0 "${turned_d}")
add_kernels(selected_rows_sm80 "SelectedRowsSm80<T, D>" 0 0 0 "${of_d}")
add_kernels(selected_rows_sm80 "SelectedRowsSm80<T, E>" 0 0 0 "128x256" _values)
add_kernels(features_sm80 "FeaturesSm80<T, E>" 0 0 0 "128x256" _values)
# Kernels of gradients.
add_kernels(transposed_mixing "TransposedMixingSm80" 0 0 0 ${any})
add_kernels(features_sm80 "FeaturesSm80<T, D>" 0 0 0 "${of_d}")
add_kernels(token_sums_sm80 "TokenSumsSm80<T, D>" 0 0 0 "${of_d}")
add_kernels(mixed_sums_sm80 "MixedSumsSm80" 0 0 0 ${any})
add_kernels(intra_block_sums_sm80 "IntraBlockSumsSm80<T, D>" 0 kMma 0 "${of_d}")
add_kernels(output_gradients_sm80 "OutputGradientsSm80<T, D, E>" 0 0 0 "${all}")
add_kernels(intra_block_sm80 "IntraBlockSm80<T, E, D, V>" "false;true" "${sm80}" 0 "${held}")
add_kernels(intra_block_sm80 "IntraBlockSm80<T, D, E, true>" 0 "${sm80}" 0 "128x256" _values)
set(one_kernel 32x32 48x48 64x64)
add_kernels(quadratic_gradient_sm80 "QuadraticGradientSm80<T, D>" 0 "${sm80}" 0 "${one_kernel}")
add_kernels(quadratic_gradient_sm80 "QuadraticGradientSm80<T, D>" 0 "${sm80}" 0 "${narrow}" _sm90)
add_kernels(quadratic_gradient_sm80 "QuadraticGradientSm80<T, D, true>" 0 "${sm80}" 0
            "${one_kernel}" _cross)
add_kernels(quadratic_gradient_sm80 "QuadraticGradientSm80<T, D, true>" 0 "${sm80}" 0 "${narrow}"
            _cross_sm90)
# For each amount of shared memory that makes a difference, on the devices that have it.
add_kernels(fused_gradient_sm80 "FusedGradientSm80<T, D, V>" kLeastShared "${sm80}" 0
            "32x32;48x48;64x64;72x72" _least_sm80)
add_kernels(fused_gradient_sm80 "FusedGradientSm80<T, D, V>" "shared_limit(Arch::kSm80)" "${sm80}" 0
            "48x48;64x64;72x72;96x96" _sm80)
add_kernels(fused_gradient_sm80 "FusedGradientSm80<T, D, V>"
            "kFusedGradientLimit<D, shared_limit(Arch::kSm90a)>" "${sm80}" 0
            "32x32;48x48;64x64;72x72;96x96" _sm90)
add_kernels(block_gradient_sm80 "BlockGradientSm80<T, D, V>" "false;true" "${sm80} | kWaits" 0
            "${fused}")
add_kernels(score_products_sm80 "ScoreProductsSm80<T, D, E>" 0 kMma 0 "${all}")
add_kernels(summary_products_sm80 "SummaryProductsSm80<T, D * (E > 128 ? 128 : E)>" 0 kMma 0
            "${kinds}")
add_kernels(sum_products_sm80 "SumProductsSm80" 0 0 0 ${any})
add_kernels(decay_products_sm80 "DecayProductsSm80<T, D * (E > 128 ? 128 : E), V>" "${both}" 0 0
            "${kinds}")
add_kernels(decay_sums "DecaySumsSm80" 0 0 0 ${any})
add_kernels(ordered_sums "OrderedSumsSm80" 0 0 0 ${any})
add_kernels(gain_sums_sm80 "GainSumsSm80<T, E>" 0 0 0 "${of_d}")
add_kernels(input_gradients_sm80 "InputGradientsSm80<T, D>" 0 0 0 "${of_d}")
# Kernels of tangents, which share others with gradients.
add_kernels(feature_tangents_sm80 "FeatureTangentsSm80<T, D>" 0 0 0 "${of_d}")
add_kernels(output_tangents_sm80 "OutputTangentsSm80<T, D, E>" 0 0 0 "${all}")
add_kernels(streaming_prefill_sm80 "StreamingPrefillSm80<T, D, E, V>" "${both}" 0 0 "${all}")
add_kernels(streaming_prefill_sm80 "StreamingPrefillSm80<T, D, E, V, true>" "${both}" 0 0 "${all}"
            _terms)
add_kernels(streaming_step_sm80 "StreamingStepSm80<T, D, E, V>" "${both}" "${sm80}" 0 "${all}")
add_kernels(streaming_step_sm80 "StreamingStepSm80<T, D, E, V, StreamingStepParameters, true>"
            "${both}" "${sm80}" 0 "${all}" _terms)

# Kernels of float32 tensors.
set(types float)
set(floats ${all})
list(REMOVE_ITEM floats 128x256 256x256)
set(floats_of_d ${of_d})
list(REMOVE_ITEM floats_of_d 256x256)
add_kernels(summary_sm80 "SummarySm80<T, D, E, V>" Precision::kPair "${sm80} | kLaunches" 0
            "${floats}" _floats)
add_kernels(scores_sm80 "ScoresSm80<T, D>" 0 "kWaits | kLaunches" 0 "${floats_of_d}" _floats)
add_kernels(read_out_sm80 "ReadOutSm80<T, D, E, V>" Precision::kPair "${sm80} | kWaits" 0
            "${floats}" _floats)
add_kernels(read_out_sm80 "ReadOutSm80<T, D, E, V, false, kLeastShared>" Precision::kPair
            "${sm80} | kWaits" 0 "96x96;128x128" _least_floats_sm80)
add_kernels(causal_read_out_sm80 "CausalReadOutSm80<T, D, E, V>" Precision::kPair
            "${sm80} | kWaits" 0 "${floats}" _floats)
add_kernels(selected_rows_sm80 "SelectedRowsSm80<T, D>" 0 0 0 "${floats_of_d}" _floats)
add_kernels(selected_rows_sm80 "SelectedRowsSm80<T, E>" 0 0 0 128x256 _floats)
add_kernels(features_sm80 "FeaturesSm80<T, D>" 0 0 0 "${floats_of_d}" _floats)
add_kernels(features_sm80 "FeaturesSm80<T, E>" 0 0 0 128x256 _floats)
add_kernels(token_sums_sm80 "TokenSumsSm80<T, D>" 0 0 0 "${floats_of_d}" _floats)
add_kernels(intra_block_sums_sm80 "IntraBlockSumsSm80<T, D>" 0 kMma 0 "${floats_of_d}" _floats)
add_kernels(output_gradients_sm80 "OutputGradientsSm80<T, D, E>" 0 0 0 "${floats};128x256" _floats)
list(REMOVE_ITEM floats 128x128)
add_kernels(intra_block_sm80 "IntraBlockSm80<T, E, D, V>" "false;true" "${sm80}" 0 "${floats}"
            _floats)
list(APPEND floats 128x128)
add_kernels(intra_block_sm80 "IntraBlockSm80<T, E, D / 2, V>" "false;true" "${sm80}" 0 128x128
            _float_halves)
add_kernels(score_products_sm80 "ScoreProductsSm80<T, D, E>" 0 kMma 0 "${floats}" _floats)
add_kernels(gain_sums_sm80 "GainSumsSm80<T, E>" 0 0 0 "${floats_of_d};128x256" _floats)
add_kernels(input_gradients_sm80 "InputGradientsSm80<T, D>" 0 0 0 "${floats_of_d}" _floats)
add_kernels(feature_tangents_sm80 "FeatureTangentsSm80<T, D>" 0 0 0 "${floats_of_d}" _floats)
add_kernels(output_tangents_sm80 "OutputTangentsSm80<T, D, E>" 0 0 0 "${floats};128x256" _floats)
