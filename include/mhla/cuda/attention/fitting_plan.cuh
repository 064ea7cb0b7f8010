#pragma once

/// \file
/// The check that a plan has kernels, and that they fit into a device's shared memory.

#include <string>

#include "mhla/core/error.hpp"
#include "mhla/cuda/launch/plan.cuh"
#include "mhla/cuda/launch/problem.cuh"

namespace mhla::cuda::detail {

/// Returns the plan of a call, a prefill or a rank if its kernels fit.
/// \throws option_error where a kernel does not fit into the device's shared memory, and for
///         normalised outputs of a form without such a kernel.
template <class AnyPlan>
AnyPlan fitting(const char* function, const AnyPlan& plan, const Device& device) {
  if (plan.missing.kernel != nullptr) {
    mhla::detail::fail_option(
        function, "device",
        "has " + std::to_string(device.shared_bytes) + " bytes of shared memory per thread block",
        "at least " + std::to_string(plan.missing.shared_bytes) + " for kernel " +
            plan.missing.kernel + " of the " + name(plan.form) + " form");
  }
  if (plan.lacks_norm) {
    mhla::detail::fail_option(function, "gain", "normalises outputs that no kernel has as a whole",
                              "no gain: each thread block has half the columns of an output");
  }
  return plan;
}

}  // namespace mhla::cuda::detail
