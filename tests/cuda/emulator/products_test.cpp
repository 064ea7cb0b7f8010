// Products of four warps: all shapes, types and layouts against plain sums, two groups in flight,
// and planted bugs of factors, registers, fences and tensor loads.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>

#include "cuda/emulator/steps.hpp"
#include "emulator/whole_numbers.hpp"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/ptx/wgmma.cuh"

namespace emulator::planted {
namespace {

using mhla::cuda::bfloat16;
using mhla::cuda::half;

/// C += A B for two C [64,n], each by two products. Threads write B[32,n] to shared memory, by rows
/// of n, or transposed of k.
template <class T, int kColumns, int kTransposed>
struct TwoProducts {
  static constexpr std::uint32_t kPanels = kTransposed != 0 ? kColumns / 64 : 1;
  static constexpr std::uint32_t kRows = kTransposed != 0 ? 32 : kColumns;  // of 128 bytes
  static constexpr int kTiles = kColumns / 8;
  using Sums = float[kTiles][4];

  std::function<float(int, int)> a = [](int i, int k) { return static_cast<float>(number(i, k)); };
  std::function<float(int, int)> b = [](int k, int n) {
    return static_cast<float>(number(k + 11, n));
  };
  std::function<float(int, int, int)> initial = [](int i, int row, int n) {
    return static_cast<float>(((i * 64 + row) * kColumns + n) % 91);
  };
  Sums c[2][128];  // registers of each thread
  std::uint32_t factor[128][8];
  float kept[2][64][kColumns];  // numbers that the threads read from them

  static int row(int j) {
    return static_cast<int>(me() / 32 * 16 + me() % 32 / 4) + (j % 4 >= 2 ? 8 : 0);
  }
  static int column(int j) { return j / 4 * 8 + j % 2 + static_cast<int>(me() % 4) * 2; }

  /// Writes B, piece j of row r of a panel in place j ^ (r % 8).
  Step write_b(std::uint32_t rows = kRows) {
    return [=, this] {
      constexpr std::uint32_t kPieces =
          kTransposed != 0 ? 8 : 4;  // 16 bytes of a row, with numbers
      for (std::uint32_t i = me(); i < kPanels * kRows * kPieces; i += 128) {
        const std::uint32_t panel = i / (kRows * kPieces), r = i / kPieces % kRows, j = i % kPieces;
        if (r >= rows) continue;
        const auto at = [&](std::uint32_t x) {
          const auto first = static_cast<int>(r), second = static_cast<int>(panel * 64 + j * 8 + x);
          return kTransposed != 0 ? b(first, second) : b(second, first);
        };
        ptx::Words4 words;
        for (std::uint32_t w = 0; w < 4; ++w) words.x[w] = ptx::pack<T>(at(2 * w), at(2 * w + 1));
        ptx::st_shared_v4(ptx::shared_begin() + panel * kRows * 128 + r * 128 + (j ^ r % 8) * 16,
                          words);
      }
    };
  }
  Step load() {
    return [this] {
      for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < 4 * kTiles; ++j)
          c[i][me()][j / 4][j % 4] = initial(i, row(j), column(j));
      }
      for (int i = 0; i < 8; ++i) {
        const int r = row(i % 2 * 2),
                  k = 2 * (i / 4 * 8 + static_cast<int>(me() % 4) + i % 4 / 2 * 4);
        factor[me()][i] = ptx::pack<T>(a(r, k), a(r, k + 1));
      }
    };
  }
  static std::uint64_t descriptor(int step) {
    const std::uint64_t start =
        ptx::shared_begin() + static_cast<std::uint32_t>(step) * (kTransposed != 0 ? 2048U : 32U);
    const std::uint64_t leading = kTransposed != 0 ? kRows * 128 : 16;
    return std::uint64_t{1} << 62 | std::uint64_t{1024 >> 4} << 32 | leading >> 4 << 16 |
           start >> 4;
  }
  /// Product `step` of sums i. Threads in [begin, end) differ in the bits `other` of B.
  template <int kOfK = kTransposed, int kAdds = 1>
  Step multiply(int i, int step, std::uint64_t other = 0, std::uint32_t begin = 0,
                std::uint32_t end = 128) {
    return [=, this] {
      const std::uint64_t changed = descriptor(step) ^ (me() >= begin && me() < end ? other : 0);
      ptx::wgmma_m64k16<kOfK, kAdds>(c[i][me()], factor[me()] + 4 * step, changed, T{});
    };
  }
  Step order(int i) {
    return [=, this] { ptx::fence_registers(c[i][me()]); };
  }
  Step order_a() {
    return [this] { ptx::fence_registers(factor[me()]); };
  }
  Step keep(int i) {
    return [=, this] {
      for (int j = 0; j < 4 * kTiles; ++j) kept[i][row(j)][column(j)] = c[i][me()][j / 4][j % 4];
    };
  }

  Kernel kernel() {
    const Step commit_group = [] { ptx::wgmma_commit_group(); };
    return {{"write", write_b()},
            {"fence", [] { ptx::fence_proxy_async(); }},
            {"meet", barrier},
            {"load", load()},
            {"order c", order(0)},
            {"", order(1)},
            {"order a", order_a()},
            {"", [] { ptx::wgmma_fence(); }},
            {"first", multiply(0, 0)},
            {"", multiply(0, 1)},
            {"", commit_group},
            {"second", multiply(1, 0)},
            {"last", multiply(1, 1)},
            {"", commit_group},
            {"first wait", [] { ptx::wgmma_wait_group<1>(); }},
            {"", order(0)},
            {"", keep(0)},
            {"wait", [] { ptx::wgmma_wait_group<0>(); }},
            {"", order(1)},
            {"keep", keep(1)},
            {"end", barrier},
            {"", by(64, store(0))}};
  }
  /// The kernel, or with the bug one whose first products replace sums.
  Kernel replacing() {
    return changed(changed(kernel(), "first", multiply<kTransposed, 0>(0, 0)), "second",
                   multiply<kTransposed, 0>(1, 0));
  }
  static constexpr int kSharedBytes = kPanels * kRows * 128;
  Outcome run(const Kernel& k, bool bug, std::uint64_t seed = 0) {
    return run_planted(k, bug, {128, 1, kSharedBytes}, seed);
  }

  /// The sums of the first rows, of 64 for each C, are right.
  bool is_right(bool replaced, int rows = 128) const {
    for (int i = 0; i < rows; ++i) {
      for (int n = 0; n < kColumns; ++n) {
        float sum = replaced ? 0 : initial(i / 64, i % 64, n);
        for (int k = 0; k < 32; ++k) sum += a(i % 64, k) * b(k, n);
        if (kept[i / 64][i % 64][n] != sum) return false;
      }
    }
    return true;
  }
};

template <class K>
class Product : public testing::Test {
 protected:
  K product;
};
using Kernels = testing::Types<TwoProducts<bfloat16, 64, 0>, TwoProducts<bfloat16, 64, 1>,
                               TwoProducts<bfloat16, 128, 0>, TwoProducts<bfloat16, 128, 1>,
                               TwoProducts<half, 64, 0>, TwoProducts<half, 64, 1>,
                               TwoProducts<half, 128, 0>, TwoProducts<half, 128, 1>>;
TYPED_TEST_SUITE(Product, Kernels);

TYPED_TEST(Product, AddsToSumsOrReplacesThem) {
  TypeParam& p = this->product;
  const auto given = p.initial;
  for (std::uint64_t seed = 0; seed < kSchedules; ++seed) {
    p.initial = given;
    const Outcome adds = p.run(p.replacing(), false, seed);
    EXPECT_EQ(adds.fault, "");
    EXPECT_EQ(adds.report.count("wgmma"), 4u);
    EXPECT_TRUE(p.is_right(false));
    p.initial = [](int, int, int) { return std::numeric_limits<float>::quiet_NaN(); };
    EXPECT_EQ(p.run(p.replacing(), true, seed).fault, "");
    EXPECT_TRUE(p.is_right(true));
  }
}

TYPED_TEST(Product, GivesNoNumbersBeforeTheWait) {
  TypeParam& p = this->product;
  const Kernel early = changed(inserted(p.kernel(), "wait", p.keep(1)), "keep");
  EXPECT_EQ(p.run(early, true).fault, "");
  for (const auto& row : p.kept[1]) {
    for (const float x : row) EXPECT_TRUE(std::isnan(x));
  }
}

TYPED_TEST(Product, HasBugsThatAreFound) {
  TypeParam& p = this->product;
  constexpr int kTransposed = TypeParam::kPanels == 1 && TypeParam::kRows != 32 ? 0 : 1;
  const Kernel k = p.kernel();
  const auto first = [&](const Step& wrong) { return changed(k, "first", wrong); };
  const auto of_5 = [](Step other, Step rest) -> Step {
    return [=] { (me() == 5 ? other : rest)(); };
  };
  const auto of_others = [](Step s) -> Step {
    return [=] {
      if (me() / 32 != 1) s();
    };
  };
  const Step right = p.multiply(0, 0), replaces = p.template multiply<kTransposed, 0>(0, 0);
  const Step of_other_layout = p.template multiply<1 - kTransposed>(0, 0);
  const Step overwrite = by(64, store(0));
  const Step add_to_c = by(40, [&] { p.c[0][40][0][3] += 1; });
  const Step change_a = by(40, [&] { p.factor[40][2] ^= 1; });
  const Step zero_c = [&] { p.c[1][me()][1][3] = 0; };
  const Step multiply_again = [&] {
    right();
    ptx::wgmma_commit_group();
  };
  const std::uint64_t next = p.descriptor(0) ^ p.descriptor(1), offset = std::uint64_t{1} << 49;
  const Step fewer_rows = p.write_b(TypeParam::kRows - 1);
  const Bug bugs[] = {
      {"no fence", "proxy", changed(k, "fence")},
      {"no barrier", "race|uninitialized", changed(k, "meet")},
      {"row of B not written", "uninitialized", changed(k, "write", fewer_rows)},
      {"B written before the wait", "slot in use|race", inserted(k, "first wait", overwrite)},
      {"B written after an own wait", "slot in use|race", inserted(k, "end", overwrite)},
      {"C written before the wait", "registers", inserted(k, "first wait", zero_c)},
      {"C not in order", "registers", changed(k, "order c", not_by(40, p.order(0)))},
      {"A not in order", "registers", changed(k, "order a", not_by(40, p.order_a()))},
      {"C written after the begin", "registers", inserted(k, "first", add_to_c)},
      {"A written after the begin", "registers", inserted(k, "first", change_a)},
      {"no second begin", "registers", inserted(k, "wait", multiply_again)},
      {"other descriptor of a thread", "divergent", first(p.multiply(0, 0, 2, 5, 6))},
      {"other layout of a thread", "divergent", first(of_5(of_other_layout, right))},
      {"one adds, others replace", "divergent", first(of_5(right, replaces))},
      {"other descriptor of a warp", "divergent", first(p.multiply(0, 0, next, 64, 96))},
      {"a thread does not come", "divergent", inserted(k, "order c", by(77, end_thread))},
      {"a warp does not come", "divergent", inserted(k, "order c", in_warp(3, end_thread))},
      {"product of three warps", "divergent", changed(k, "last", of_others(p.multiply(1, 1)))},
      {"descriptor of another row", "outside", first(p.multiply(0, 0, 8))},
      {"base offset", "outside", first(p.multiply(0, 0, offset))},
      {"sums of two products overlap", "registers",
       changed(k, "second", of_5(right, p.multiply(1, 0)))},
      {"no wait", "registers", inserted(k, "first wait", end_thread)}};
  expect_found(bugs, {128, 1, TypeParam::kSharedBytes});
}

TEST(ProductSums, AreFloatInOrderOfK) {
  TwoProducts<bfloat16, 64, 0> p;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kFar = std::numeric_limits<float>::infinity();
  // 2^12 and 2^-12 alternate in A, so that the order of sums shows; B is one.
  const auto factor = [](int k) {
    return std::ldexp(k % 4 == 2 ? -1.0F : 1.0F, k % 2 == 0 ? 12 : -12);
  };
  p.a = [=](int i, int k) { return i == 0 ? factor(k) : static_cast<float>(number(i, k)); };
  p.b = [](int, int) { return 1.0F; };
  p.initial = [](int, int, int) { return 0.3F; };
  EXPECT_EQ(p.run(p.kernel(), false, 1).fault, "");
  float sum = 0.3F;
  for (int k = 0; k < 32; ++k) sum += factor(k);
  EXPECT_EQ(p.kept[0][0][5], sum);

  p.a = [=](int i, int k) {
    return i == 0 && k == 3 ? kNan : i == 1 && k == 0 ? kFar : static_cast<float>(number(i, k));
  };
  p.run(p.kernel(), false, 1);
  EXPECT_TRUE(std::isnan(p.kept[0][0][5]));
  EXPECT_EQ(p.kept[0][1][5], kFar);
}

// ---- products of a slot that tensor loads fill -------------------------------------------------

/// Thread 128 loads B [64][64] into one slot, three times, for products of threads 0 to 127.
struct Stream : TwoProducts<bfloat16, 64, 0> {
  static constexpr std::uint32_t kBytes = 64 * 64 * 2;
  static std::uint32_t full() { return ptx::shared_begin() + kBytes; }
  static std::uint32_t empty() { return full() + 8; }
  static Step consumers(Step s) { return of_threads(0, 128, std::move(s)); }

  Numbers numbers{64 * 64};
  mhla::cuda::TensorMap map = tensor_map(matrix_box(numbers, 64, 64));
  Shape shape{256, 1, kBytes + 16, [this](Device& device) {
                device.track("b", numbers.data(), numbers.bytes(), Access::kRead);
              }};

  Stream() {
    for (int n = 0; n < 64; ++n) {
      for (int k = 0; k < 64; ++k) {
        numbers[static_cast<std::size_t>(n * 64 + k)] = bits(number(k + 11, n));
      }
    }
  }
  static Step expect(std::uint32_t bytes) {
    return by(128, [=] { ptx::mbarrier_arrive_expect_tx(full(), bytes); });
  }
  Step load_box(std::uint32_t offset) {
    return by(128, [=, this] {
      ptx::cp_async_bulk_tensor(ptx::shared_begin() + offset, map, {{0, 0, 0, 0, 0}}, full());
    });
  }
  static Step pass_full(std::uint32_t parity) {
    return consumers([=] { ptx::mbarrier_wait(full(), parity); });
  }
  static Step release(std::uint32_t threads) {
    return of_threads(0, threads, [] {
      if (me() % 32 == 0) ptx::mbarrier_arrive(empty());
    });
  }
  /// Sums 0 are those of the last box.
  Step multiply_box(int second_step) {
    return consumers([first = multiply<0, 0>(0, 0), second = multiply(0, second_step)] {
      first();
      second();
    });
  }
  Kernel kernel() {
    const Step init = by(0, [] {
      ptx::mbarrier_init(full(), 1);
      ptx::mbarrier_init(empty(), 4);
    });
    Kernel k = {{"", init},
                {"publish", by(0, [] { ptx::fence_mbarrier_init(); })},
                {"", barrier},
                {"", consumers(load())}};
    for (const std::uint32_t parity : {0u, 1u, 0u}) {
      for (const Line& line :
           Kernel{{"empty", by(128, [=] { ptx::mbarrier_wait(empty(), parity ^ 1); })},
                  {"expect", expect(kBytes)},
                  {"load", load_box(0)},
                  {"full", pass_full(parity)},
                  {"", consumers(order(0))},
                  {"", consumers(order_a())},
                  {"begin", consumers([] { ptx::wgmma_fence(); })},
                  {"multiply", multiply_box(1)},
                  {"", consumers([] { ptx::wgmma_commit_group(); })},
                  {"wait", consumers([] { ptx::wgmma_wait_group<0>(); })},
                  {"", consumers(order(0))},
                  {"", consumers(keep(0))},
                  {"release", release(128)}}) {
        k.push_back(line);
      }
    }
    return k;
  }
};

TEST(EmulatedTensorLoad, FeedsProducts) {
  Stream s;
  const Kernel same_columns = changed(s.kernel(), "multiply", s.multiply_box(0));
  for (std::uint64_t seed = 0; seed < kSchedules; ++seed) {
    const Outcome o = run_planted(s.kernel(), false, s.shape, seed);
    ASSERT_EQ(o.fault, "");
    EXPECT_TRUE(s.is_right(true, 64));
    EXPECT_EQ(o.report.bytes_read("b"), 3 * s.numbers.bytes());
    EXPECT_EQ(o.report.count("tensor loads"), 3u);
    EXPECT_EQ(o.report.count("wgmma"), 2u * 3);
    EXPECT_EQ(run_planted(same_columns, true, s.shape, seed).fault, "");
    EXPECT_FALSE(s.is_right(true, 64)) << "columns of a wrong descriptor";
  }
}

// A bug that lets threads run on shows in the first of its consequences.
TEST(PlantedBugs, OfTensorLoads) {
  Stream s;
  const Kernel k = s.kernel();
  const auto both = [](Step first, Step second) -> Step {
    return [=] {
      first();
      second();
    };
  };
  const auto parity = [](int i) { return static_cast<std::uint32_t>(i % 2); };
  const auto pass_old = [&](int i) { return s.pass_full(parity(i + 1)); };
  const auto pass_and_release = [&](int i) { return both(s.pass_full(parity(i)), s.release(128)); };
  const Step no_bytes = by(128, [] { ptx::mbarrier_arrive(Stream::full()); });
  const Step one_more = by(1, [] { ptx::mbarrier_arrive(Stream::empty()); });
  const Step write_c = s.consumers([&] { s.c[0][me()][1][1] += 1; });
  const Bug bugs[] = {
      {"no wait for bytes", "early read|uninitialized", changed(k, "full")},
      {"phase before", "early read|uninitialized|deadlock", changed(k, "full", pass_old)},
      {"no wait for the slot", "slot in use|bytes|deadlock", changed(k, "empty")},
      {"slot given back before its products", "slot in use|early read|deadlock",
       changed(changed(k, "full", pass_and_release), "release")},
      {"too few bytes", "bytes", changed(k, "expect", s.expect(s.kBytes - 128))},
      {"too many bytes", "deadlock", changed(k, "expect", s.expect(s.kBytes + 128))},
      {"no bytes", "bytes|early read|uninitialized", changed(k, "expect", no_bytes)},
      {"an arrival too few", "deadlock", changed(k, "release", s.release(96))},
      {"an arrival too many", "bytes|slot in use|early read|deadlock",
       changed(k, "release", both(s.release(128), one_more))},
      {"barriers not published", "race", changed(k, "publish")},
      {"no begin of the group", "registers", changed(k, "begin")},
      {"C written during products", "registers", inserted(k, "wait", write_c)},
      {"no wait for products", "registers|slot in use", changed(k, "wait")},
      {"box 128 bytes further on", "outside", changed(k, "load", s.load_box(128))},
      {"box beyond the memory", "outside", changed(k, "load", s.load_box(8192))}};
  expect_found(bugs, s.shape);
}

}  // namespace
}  // namespace emulator::planted
