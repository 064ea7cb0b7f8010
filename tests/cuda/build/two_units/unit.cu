// The launch code of one unit of a program, compiled twice (check_code.py).

#include <string>
#include <typeinfo>

#include "cuda/build/two_units/unit.hpp"
#include "mhla/cuda/launch/device.cuh"
#include "mhla/cuda/launch/stream.cuh"

namespace two_units {

using mhla::cuda::Arch;

struct Kernel {
  struct Params {
    int* data;
  };
  static constexpr Arch kArchitecture = Arch::kSm90a;
  static constexpr int kThreads = 32, kBlocksPerMultiprocessor = 1, kSharedBytes = 0;
  static unsigned grid(const Params&, int) { return 1; }
  MHLA_DEVICE void operator()(const Params& p) const { *p.data = 1; }
};

template <>
Unit unit<UNIT>() {
  return {reinterpret_cast<const void*>(&mhla::cuda::current_device),
          reinterpret_cast<const void*>(&mhla::cuda::detail::compiled_arch),
          typeid(mhla::cuda::Stream).name(), [](bool sm90a) -> std::string {
            try {
              mhla::cuda::LaunchCache cache;
              const mhla::cuda::Stream stream(nullptr, sm90a ? Arch::kSm90a : Arch::kSm80, cache);
              stream.run<Kernel>({}, 1);
            } catch (const mhla::cuda::cuda_error& error) {
              return error.what();
            }
            return "";
          }};
}

}  // namespace two_units
