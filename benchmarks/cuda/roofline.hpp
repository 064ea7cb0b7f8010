#pragma once

/// \file
/// What a device can do: the ceilings that results are compared with.

#include <ostream>

#include "cuda/session.hpp"

namespace mhla::cuda_bench {

/// Bytes a second that a large copy reads and writes on the device.
double copy_bandwidth(Session& session);

/// Prints bandwidths, launches and the rate of a large product, each measured here.
void print_roofline(std::ostream& out, Session& session);

}  // namespace mhla::cuda_bench
