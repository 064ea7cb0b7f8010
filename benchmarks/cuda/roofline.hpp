#pragma once

/// \file
/// Ceilings of a device, which results are compared with.

#include <ostream>

#include "cuda/session.hpp"

namespace mhla::cuda_bench {

/// Bytes per second that a large copy reads and writes on the device.
double copy_bandwidth(Session& session);

/// Measures and prints bandwidths, launches and the rate of a large product.
void print_roofline(std::ostream& out, Session& session);

}  // namespace mhla::cuda_bench
