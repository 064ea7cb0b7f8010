// Products of four warps: all shapes, types and layouts against plain sums, several groups under
// way, and planted bugs of factors, registers and fences.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "emulator/async_trial.hpp"
#include "emulator/device.hpp"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/ptx/wgmma.cuh"

namespace emulator {
namespace {

namespace ptx = mhla::cuda::ptx;
using mhla::cuda::bfloat16;
using mhla::cuda::half;

enum class ProductBug {
  kNone,
  kNoFence,
  kNoBarrier,
  kUnwritten,          // the last row of B
  kWriteBeforeWait,    // of B, by a thread of another warp
  kWriteAfterOwnWait,  // of B, other warps may still read
  kReadBeforeWait,     // of C: the wait leaves the second group under way
  kWrittenBeforeWait,  // C of the second group
  kNotInOrder,         // C: the compiler may zero it after wgmma_fence
  kFactorNotInOrder,   // A
  kWrittenAfterBegin,  // C
  kFactorWrittenAfterBegin,
  kSecondBeginMissing,  // after a wgmma_wait_group
  kOtherLane,           // gives another descriptor
  kOtherLayout,         // of one lane
  kOtherSum,            // one lane adds, the others replace
  kOtherWarp,           // gives another descriptor
  kMissingLane,
  kMissingWarp,
  kMissingProduct,  // of one warp
  kRowOfAtom,       // the descriptor begins in another row
  kBaseOffset,
  kSharedRegisters,  // one product in C[1..], another in C[0..]
  kNoWait,
};

/// C += A B twice, for two C, with B[32,n] that the threads write: by rows of n, or transposed of
/// k.
template <class T, int kColumns, int kTransposed>
struct TwoProducts {
  struct Params {
    const std::uint32_t* a;  // [64][16] pairs
    const std::uint32_t* b;  // [n][16] pairs, transposed [32][n / 2]
    float* c;                // [2][64][n], added to
    ProductBug bug;
    bool replaces;  // c, in place of adding
  };
  static constexpr int kThreads = 128;
  static constexpr std::uint32_t kPanels = kTransposed != 0 ? kColumns / 64 : 1;
  static constexpr std::uint32_t kRows = kTransposed != 0 ? 32 : kColumns;  // of 128 bytes
  static constexpr int kSharedBytes = kPanels * kRows * 128;
  static constexpr int kTiles = kColumns / 8, kCount = 4 * kTiles;

  static std::uint64_t descriptor(int step) {
    const std::uint64_t start =
        ptx::shared_begin() + static_cast<std::uint32_t>(step) * (kTransposed != 0 ? 2048U : 32U);
    const std::uint64_t leading = kTransposed != 0 ? kRows * 128 : 16;
    return std::uint64_t{1} << 62 | std::uint64_t{1024 >> 4} << 32 | leading >> 4 << 16 |
           start >> 4;
  }

  static std::uint32_t row() { return ptx::tid_x() / 32 * 16 + ptx::tid_x() % 32 / 4; }

  /// Writes B, piece j of row r of a panel in place j ^ (r % 8).
  static void write(const Params& p) {
    constexpr std::uint32_t kPieces = kTransposed != 0 ? 8 : 4;  // 16 bytes of a row that are used
    for (std::uint32_t i = ptx::tid_x(); i < kPanels * kRows * kPieces; i += kThreads) {
      const std::uint32_t panel = i / (kRows * kPieces), r = i / kPieces % kRows, j = i % kPieces;
      if (p.bug == ProductBug::kUnwritten && r == kRows - 1) continue;
      const std::uint32_t from = kTransposed != 0 ? r * (kColumns / 2) + panel * 32 + j * 4  //
                                                  : r * 16 + j * 4;
      ptx::st_shared_v4(ptx::shared_begin() + panel * kRows * 128 + r * 128 + ((j ^ r % 8) * 16),
                        ptx::ld_global_nc_v4(p.b + from));
    }
  }

  /// The operands of both steps.
  struct Factor {
    std::uint32_t x[8];
  };
  static Factor load(const Params& p) {
    Factor a;
    for (std::uint32_t i = 0; i < 8; ++i) {
      a.x[i] = trial::load_word(p.a + (row() + i % 2 * 8) * 16 + i / 4 * 8 + ptx::tid_x() % 4 +
                                i % 4 / 2 * 4);
    }
    return a;
  }

  static void add(const Params& p, const Factor& factor, float (&c)[kTiles][4], int step) {
    const std::uint32_t thread = ptx::tid_x();
    const std::uint32_t* const a = factor.x + 4 * step;
    std::uint64_t b = descriptor(step);
    if (p.bug == ProductBug::kOtherLane && thread == 5) b ^= 2;
    if (p.bug == ProductBug::kOtherWarp && thread / 32 == 2) b = descriptor(1 - step);
    if (p.bug == ProductBug::kRowOfAtom) b += 8;
    if (p.bug == ProductBug::kBaseOffset) b |= std::uint64_t{1} << 49;
    if (p.bug == ProductBug::kOtherLayout && thread == 5) {
      ptx::wgmma_m64k16<1 - kTransposed>(c, a, b, T{});
    } else if (step == 0 && p.replaces && !(p.bug == ProductBug::kOtherSum && thread == 5)) {
      ptx::wgmma_m64k16<kTransposed, 0>(c, a, b, T{});
    } else {
      ptx::wgmma_m64k16<kTransposed>(c, a, b, T{});
    }
  }

  void operator()(const Params& p) const {
    const std::uint32_t thread = ptx::tid_x();
    write(p);
    if (p.bug != ProductBug::kNoFence) ptx::fence_proxy_async();
    if (p.bug != ProductBug::kNoBarrier) ptx::bar_sync();
    if (p.bug == ProductBug::kMissingLane && thread == 77) return;
    if (p.bug == ProductBug::kMissingWarp && thread / 32 == 3) return;

    float c[2][kTiles][4];
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < kCount; ++j) c[i][j / 4][j % 4] = ptx::ld_global_f32(place(p, i, j));
    }
    Factor a = load(p);
    if (p.bug != ProductBug::kNotInOrder || thread != 40) ptx::fence_registers(c[0]);
    ptx::fence_registers(c[1]);
    if (p.bug != ProductBug::kFactorNotInOrder || thread != 40) ptx::fence_registers(a.x);
    ptx::wgmma_fence();
    if (p.bug == ProductBug::kWrittenAfterBegin && thread == 40) c[0][0][3] += 1;
    if (p.bug == ProductBug::kFactorWrittenAfterBegin && thread == 40) a.x[2] ^= 1;
    add(p, a, c[0], 0);
    add(p, a, c[0], 1);
    ptx::wgmma_commit_group();
    if (p.bug == ProductBug::kSharedRegisters) {
      // As if registers 1.. of the first were 0.. of the second for one thread.
      add(p, a, thread == 9 ? c[0] : c[1], 0);
    } else {
      add(p, a, c[1], 0);
    }
    if (p.bug != ProductBug::kMissingProduct || thread / 32 != 1) add(p, a, c[1], 1);
    ptx::wgmma_commit_group();
    if (p.bug == ProductBug::kWriteBeforeWait && thread == 64)
      ptx::st_shared(ptx::shared_begin(), 0);
    if (p.bug == ProductBug::kWrittenBeforeWait) c[1][1][3] = 0;
    if (p.bug == ProductBug::kNoWait) return;
    ptx::wgmma_wait_group<1>();
    ptx::fence_registers(c[0]);
    store(p, 0, c[0]);
    if (p.bug == ProductBug::kReadBeforeWait) store(p, 1, c[1]);
    if (p.bug == ProductBug::kSecondBeginMissing) {
      add(p, a, c[0], 0);
      ptx::wgmma_commit_group();
    }
    ptx::wgmma_wait_group<0>();
    ptx::fence_registers(c[1]);
    if (p.bug == ProductBug::kWriteAfterOwnWait && thread == 64)
      ptx::st_shared(ptx::shared_begin(), 0);
    if (p.bug != ProductBug::kReadBeforeWait) store(p, 1, c[1]);
    if (p.bug == ProductBug::kMissingWarp) return;
    ptx::bar_sync();
    if (thread == 64) ptx::st_shared(ptx::shared_begin(), 0);
  }

  static float* place(const Params& p, int i, int j) {
    const auto column = static_cast<std::uint32_t>(j / 4 * 8 + j % 2) + ptx::tid_x() % 4 * 2;
    const std::uint32_t r = row() + (j % 4 >= 2 ? 8 : 0);
    return p.c + (static_cast<std::uint32_t>(i) * 64 + r) * kColumns + column;
  }
  static void store(const Params& p, int i, const float (&c)[kTiles][4]) {
    for (int j = 0; j < kCount; ++j) ptx::st_global_f32(place(p, i, j), c[j / 4][j % 4]);
  }
};

/// The 16 bits of a whole number.
template <class T>
std::uint16_t bits_of(int x) {
  return static_cast<std::uint16_t>(ptx::pack<T>(static_cast<float>(x), 0));
}

template <class K>
struct ProductTrial;
template <class T, int kColumns, int kTransposed>
struct ProductTrial<TwoProducts<T, kColumns, kTransposed>> {
  using K = TwoProducts<T, kColumns, kTransposed>;

  ProductTrial(std::uint64_t seed, ProductBug bug)
      : a(64 * 32), b(32 * kColumns), c(2 * 64 * kColumns) {
    for (int i = 0; i < 64; ++i) {
      for (int k = 0; k < 32; ++k) a[at(i * 32 + k)] = bits_of<T>(trial::number(i, k));
    }
    for (int k = 0; k < 32; ++k) {
      for (int n = 0; n < kColumns; ++n) {
        const int place = kTransposed != 0 ? k * kColumns + n : n * 32 + k;
        b[at(place)] = bits_of<T>(trial::number(k + 11, n));
      }
    }
    for (std::size_t i = 0; i < c.size(); ++i) c[i] = static_cast<float>(i % 91);
    run(seed, bug);
  }

  void run(std::uint64_t seed, ProductBug bug, bool replaces = false) {
    Device device(seed);
    device.track("a", a.data(), a.bytes(), Access::kRead);
    device.track("b", b.data(), b.bytes(), Access::kRead);
    device.track("c", c.data(), c.size() * sizeof(float), Access::kReadWrite);
    fault.reset();
    message.clear();
    try {
      const Report report =
          device.launch<K>(1, {reinterpret_cast<const std::uint32_t*>(a.data()),
                               reinterpret_cast<const std::uint32_t*>(b.data()), c.data(), bug,
                               replaces || bug == ProductBug::kOtherSum});
      EXPECT_EQ(report.count("wgmma"), 4U);
    } catch (const Fault& found) {
      fault = found.kind;
      message = found.what();
    }
  }

  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  /// c is as it was given and the products, or those alone.
  bool is_right(bool replaced = false) const {
    for (int i = 0; i < 128; ++i) {
      for (int n = 0; n < kColumns; ++n) {
        int sum = replaced ? 0 : (i * kColumns + n) % 91;
        for (int k = 0; k < 32; ++k) sum += trial::number(i % 64, k) * trial::number(k + 11, n);
        if (c[at(i * kColumns + n)] != static_cast<float>(sum)) return false;
      }
    }
    return true;
  }

  trial::Numbers a, b;
  std::vector<float> c;
  std::optional<Kind> fault;
  std::string message;
};

template <class K>
class AsyncProduct : public testing::Test {};
using Kernels = testing::Types<TwoProducts<bfloat16, 64, 0>, TwoProducts<bfloat16, 64, 1>,
                               TwoProducts<bfloat16, 128, 0>, TwoProducts<bfloat16, 128, 1>,
                               TwoProducts<half, 64, 0>, TwoProducts<half, 64, 1>,
                               TwoProducts<half, 128, 0>, TwoProducts<half, 128, 1>>;
TYPED_TEST_SUITE(AsyncProduct, Kernels);

TYPED_TEST(AsyncProduct, AddsToBothSums) {
  for (const std::uint64_t seed : trial::kSeeds) {
    const ProductTrial<TypeParam> run(seed, ProductBug::kNone);
    EXPECT_EQ(run.message, "") << seed;
    EXPECT_TRUE(run.is_right()) << seed;
  }
}

TYPED_TEST(AsyncProduct, ReplacesSumsWhateverTheyAre) {
  for (const std::uint64_t seed : trial::kSeeds) {
    ProductTrial<TypeParam> run(seed, ProductBug::kNone);
    std::fill(run.c.begin(), run.c.end(), std::numeric_limits<float>::quiet_NaN());
    run.run(seed, ProductBug::kNone, true);
    EXPECT_EQ(run.message, "") << seed;
    EXPECT_TRUE(run.is_right(true)) << seed;
  }
}

TYPED_TEST(AsyncProduct, FindsPlantedBugs) {
  trial::expect_found<ProductTrial<TypeParam>, ProductBug>(
      {{ProductBug::kNoFence, {Kind::kProxy}},
       {ProductBug::kNoBarrier, {Kind::kRace, Kind::kUninitialized}},
       {ProductBug::kUnwritten, {Kind::kUninitialized}},
       {ProductBug::kWriteBeforeWait, {Kind::kSlotInUse, Kind::kRace}},
       {ProductBug::kWriteAfterOwnWait, {Kind::kSlotInUse, Kind::kRace}},
       {ProductBug::kWrittenBeforeWait, {Kind::kRegisters}},
       {ProductBug::kNotInOrder, {Kind::kRegisters}},
       {ProductBug::kFactorNotInOrder, {Kind::kRegisters}},
       {ProductBug::kWrittenAfterBegin, {Kind::kRegisters}},
       {ProductBug::kFactorWrittenAfterBegin, {Kind::kRegisters}},
       {ProductBug::kSecondBeginMissing, {Kind::kRegisters}},
       {ProductBug::kOtherLane, {Kind::kDivergent}},
       {ProductBug::kOtherLayout, {Kind::kDivergent}},
       {ProductBug::kOtherSum, {Kind::kDivergent}},
       {ProductBug::kOtherWarp, {Kind::kDivergent}},
       {ProductBug::kMissingLane, {Kind::kDivergent}},
       {ProductBug::kMissingWarp, {Kind::kDivergent}},
       {ProductBug::kMissingProduct, {Kind::kDivergent}},
       {ProductBug::kRowOfAtom, {Kind::kOutside}},
       {ProductBug::kBaseOffset, {Kind::kOutside}},
       {ProductBug::kSharedRegisters, {Kind::kRegisters}},
       {ProductBug::kNoWait, {Kind::kRegisters}}});
}

TYPED_TEST(AsyncProduct, GivesNoNumbersBeforeTheWait) {
  const ProductTrial<TypeParam> run(0, ProductBug::kReadBeforeWait);
  EXPECT_EQ(run.message, "");
  const auto second = run.c.begin() + static_cast<std::ptrdiff_t>(run.c.size() / 2);
  EXPECT_TRUE(std::all_of(second, run.c.end(), [](float x) { return std::isnan(x); }));
}

TEST(AsyncProductSums, AreFloatInOrderOfK) {
  using K = TwoProducts<bfloat16, 64, 0>;
  ProductTrial<K> run(0, ProductBug::kNone);
  for (int k = 0; k < 32; ++k) {
    // 2^12 and 2^-12 alternate in A, so that the order of sums shows; B is one.
    run.a[ProductTrial<K>::at(k)] = static_cast<std::uint16_t>(
        ptx::pack<bfloat16>(std::ldexp(k % 4 == 2 ? -1.0F : 1.0F, k % 2 == 0 ? 12 : -12), 0));
    for (int n = 0; n < 64; ++n) run.b[ProductTrial<K>::at(n * 32 + k)] = bits_of<bfloat16>(1);
  }
  for (int n = 0; n < 64; ++n) run.c[ProductTrial<K>::at(n)] = 0.3F;
  run.run(1, ProductBug::kNone);
  float sum = 0.3F;
  for (int k = 0; k < 32; ++k) sum += std::ldexp(k % 4 == 2 ? -1.0F : 1.0F, k % 2 == 0 ? 12 : -12);
  EXPECT_EQ(run.c[5], sum);

  run.a[3] =
      static_cast<std::uint16_t>(ptx::pack<bfloat16>(std::numeric_limits<float>::quiet_NaN(), 0));
  run.a[32] =
      static_cast<std::uint16_t>(ptx::pack<bfloat16>(std::numeric_limits<float>::infinity(), 0));
  run.run(1, ProductBug::kNone);
  EXPECT_TRUE(std::isnan(run.c[5]));
  EXPECT_EQ(run.c[64 + 5], std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace emulator
