// Bank conflicts by the rule of the hardware: 32 banks of 4 bytes, phases of 32, 16 or 8 threads.

#include <gtest/gtest.h>

#include <cstdint>

#include "cuda/emulator/steps.hpp"

namespace emulator::planted {
namespace {

std::uint32_t at(std::uint32_t byte) { return ptx::shared_begin() + byte % 4096; }
/// Writes all of the memory, without conflicts.
const Step fill = [] {
  for (std::uint32_t i = me() % 32; i < 256; i += 32) ptx::st_shared_v4(at(16 * i), {});
  ptx::bar_warp_sync();
};

/// The conflicts of a kernel, the same under all schedules.
std::uint64_t conflicts(const Kernel& kernel, int threads = 32) {
  const Outcome first = run_planted(kernel, false, {threads});
  EXPECT_EQ(first.fault, "");
  for (std::uint64_t seed = 1; seed < 5; ++seed) {
    EXPECT_EQ(run_planted(kernel, false, {threads}, seed).report.bank_conflicts,
              first.report.bank_conflicts);
  }
  return first.report.bank_conflicts;
}

TEST(EmulatedBanks, ConflictByStride) {
  using Access = void (*)(std::uint32_t address);
  const Access store_4 = [](std::uint32_t a) { ptx::st_shared(a, 0); };
  const Access store_16 = [](std::uint32_t a) { ptx::st_shared_v4(a, {}); };
  const Access load_4 = [](std::uint32_t a) { ptx::ld_shared_f32(a); };
  const Access load_8 = [](std::uint32_t a) { ptx::ld_shared_v2(a); };
  const Access copy_16 = [](std::uint32_t a) { ptx::cp_async_16(a, in + 4 * me(), 16); };
  const Access matrices = [](std::uint32_t a) {
    ptx::ldmatrix_x4(a);
    ptx::ldmatrix_x2_trans(a);
  };
  const struct {
    const char* name;
    Access access;
    std::uint32_t stride;
    std::uint64_t conflicts;
  } rows[] = {{"words", store_4, 4, 0},
              {"every second word", store_4, 8, 1},
              {"one bank", store_4, 128, 31},
              {"the next bank of the next row", store_4, 132, 0},
              {"slots", store_16, 16, 0},
              {"two passes for each of four quarters", store_16, 32, 4},
              {"eight passes", store_16, 128, 28},
              {"one word for all", load_4, 0, 0},
              {"loads of one bank", load_4, 128, 31},
              {"loads of 8 bytes", load_8, 8, 0},
              {"two passes for each half", load_8, 16, 2},
              {"sixteen passes", load_8, 128, 30},
              {"matrices", matrices, 16, 0},
              {"rows of matrices in four banks", matrices, 128, 6 * 7},
              {"two rows a pass", matrices, 64, 6 * 3},
              {"padded rows of matrices", matrices, 144, 0},
              {"copies", copy_16, 16, 0},
              {"copies to four banks", copy_16, 128, 28}};
  for (const auto& row : rows) {
    const Step row_step = [&] { row.access(at(row.stride * me())); };
    EXPECT_EQ(conflicts({fill, row_step}), row.conflicts) << row.name;
  }
  const Step swizzled = [] { ptx::ldmatrix_x4(at(128 * me() + 16 * (3 ^ me() % 8))); };
  EXPECT_EQ(conflicts({fill, swizzled}), 0u);
}

TEST(EmulatedBanks, MatchThreadsOfAWarp) {
  const Kernel skipped = {[] {
    if (me() % 2 == 0) ptx::st_shared(at(4 * me()), 0);
    ptx::st_shared(at(256 + 4 * me()), 0);
    for (std::uint32_t i = me(); i < 40; i += 32) ptx::st_shared(at(512 + 4 * i), 0);
    ptx::st_shared(at(1024 + 8 * me()), 0);  // one conflict
  }};
  const Kernel branches = {[] {  // two accesses of half a warp each, to the same banks
    if (me() % 2 == 0) {
      ptx::st_shared(at(4 * me()), 0);
    } else {
      ptx::st_shared_f32(at(128 + 4 * (me() - 1)), 0);
    }
  }};
  const Kernel two_warps = {[] { ptx::st_shared(at(8 * me()), 0); }, barrier, write};
  EXPECT_EQ(conflicts(skipped), 1u);
  EXPECT_EQ(conflicts(branches), 0u);
  EXPECT_EQ(conflicts(two_warps, 64), 2u);
}

}  // namespace
}  // namespace emulator::planted
