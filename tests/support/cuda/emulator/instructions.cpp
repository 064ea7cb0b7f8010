// The emulated instructions (mhla/cuda/ptx beside this folder), compiled once for all kernels.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "emulator/accesses.hpp"
#include "emulator/async_barrier.hpp"
#include "emulator/async_products.hpp"
#include "emulator/async_registers.hpp"
#include "emulator/async_tensor_copy.hpp"
#include "emulator/barriers.hpp"
#include "emulator/block.hpp"
#include "emulator/copies.hpp"
#include "emulator/matrices.hpp"
#include "emulator/numbers.hpp"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/copy_async.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/matrix.cuh"
#include "mhla/cuda/ptx/mbarrier.cuh"
#include "mhla/cuda/ptx/mma.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/ptx/wgmma.cuh"

namespace emulator {

// Counted by thread.
inline const Counter kSharedLoads{"shared loads"};
inline const Counter kSharedStores{"shared stores"};
inline const Counter kGlobalLoads{"global loads"};
inline const Counter kGlobalStores{"global stores"};

namespace {

/// Logs an access of shared memory that returns to `call`.
void log_access(Block& block, const void* call, std::uint32_t address, std::uint32_t bytes) {
  const Thread& t = block.self();
  block.banks[static_cast<std::size_t>(t.warp)].add(t.lane, call, address, bytes);
}

template <class X>
X load_global(const void* from, Read how) {
  Block& block = current();
  X value;
  block.global.read(block.who(), from, sizeof(X), sizeof(X), how, "ld.global");
  std::memcpy(&value, from, sizeof(X));
  block.add(kGlobalLoads);
  return value;
}

template <class X>
void store_global(void* to, X value) {
  Block& block = current();
  block.global.write(block.who(), to, sizeof(X), sizeof(X), "st.global");
  std::memcpy(to, &value, sizeof(X));
  block.add(kGlobalStores);
}

/// An instruction of the whole warp that does `act(products)` once.
template <class Act>
void call_products(const char* instruction, std::uint64_t parameter, const Act& act) {
  struct {
  } none;
  call_together<32>(instruction, parameter, none, [&](auto&) { act(current().part<Products>()); });
}

}  // namespace

template <class X>
[[gnu::noinline]] X load_shared(std::uint32_t address) {
  Block& block = current();
  X value;
  block.shared.check(block.who(), address, sizeof(X), sizeof(X), "ld.shared");
  block.shared.read(block.who(), address, sizeof(X), &value, "ld.shared");
  log_access(block, __builtin_return_address(0), address, sizeof(X));
  block.add(kSharedLoads);
  return value;
}
template std::uint32_t load_shared(std::uint32_t);
template float load_shared(std::uint32_t);
template mhla::cuda::ptx::Words2 load_shared(std::uint32_t);
template mhla::cuda::ptx::Words4 load_shared(std::uint32_t);

template <class X>
[[gnu::noinline]] void store_shared(std::uint32_t address, X value) {
  Block& block = current();
  block.shared.check(block.who(), address, sizeof(X), sizeof(X), "st.shared");
  block.shared.write(block.who(), address, sizeof(X), &value, "st.shared");
  log_access(block, __builtin_return_address(0), address, sizeof(X));
  block.add(kSharedStores);
}
template void store_shared(std::uint32_t, std::uint32_t);
template void store_shared(std::uint32_t, float);
template void store_shared(std::uint32_t, mhla::cuda::ptx::Words4);

[[gnu::noinline]] void copy_16(std::uint32_t to, const void* from, std::uint32_t bytes) {
  Block& block = current();
  block.part<Copies>().start(to, from, bytes);
  log_access(block, __builtin_return_address(0), to, 16);
}
void wait_copies(int pending) { current().part<Copies>().wait(static_cast<std::size_t>(pending)); }

void group_wait(int pending) {
  const auto count = static_cast<std::size_t>(pending);
  call_products("wgmma.wait_group", count, [&](Products& products) { products.wait(count); });
}
void set_registers(int count, bool take) { current().part<RegisterPool>().set(count, take); }

void keep_order(const void* begin, int count) {
  Block& block = current();
  block.part<Products>().keep_order(block.who(), begin, static_cast<std::size_t>(count));
}

template <class T>
void group_multiply_add(float* c, int count, const std::uint32_t* a, std::uint64_t b,
                        bool transposed) {
  ProductCall mine{
      c, a, b, 2 * count, transposed, &mhla::cuda::ptx::low<T>, &mhla::cuda::ptx::high<T>};
  call_together<32>("wgmma", b, mine, [](ProductCall* const(&calls)[32]) {
    current().part<Products>().issue(calls);
  });
}
template void group_multiply_add<mhla::cuda::bfloat16>(float*, int, const std::uint32_t*,
                                                       std::uint64_t, bool);
template void group_multiply_add<mhla::cuda::half>(float*, int, const std::uint32_t*, std::uint64_t,
                                                   bool);

}  // namespace emulator

namespace mhla::cuda::ptx {

using emulator::current;

// ---- barrier
// -------------------------------------------------------------------------------------

void meet_block() { emulator::meet_block(); }
void meet(std::uint32_t id, std::uint32_t threads) { emulator::meet(id, threads); }
void meet_warp() { emulator::meet_warp(); }
std::uint32_t shuffle(std::uint32_t x, std::uint32_t lane) { return emulator::shuffle(x, lane); }
float shuffle_xor(float x, std::uint32_t mask) { return emulator::shuffle_xor(x, mask); }
bool any_of_warp(bool x) { return emulator::any_of_warp(x); }

// ---- convert
// -------------------------------------------------------------------------------------

template <>
std::uint32_t pack<bfloat16>(float low, float high) {
  return emulator::to_bfloat16(low) | std::uint32_t{emulator::to_bfloat16(high)} << 16;
}
template <>
std::uint32_t pack<half>(float low, float high) {
  return emulator::to_half(low) | std::uint32_t{emulator::to_half(high)} << 16;
}
template <>
float low<bfloat16>(std::uint32_t pair) {
  return emulator::from_bfloat16(static_cast<std::uint16_t>(pair));
}
template <>
float low<half>(std::uint32_t pair) {
  return emulator::from_half(static_cast<std::uint16_t>(pair));
}
template <>
float high<bfloat16>(std::uint32_t pair) {
  return low<bfloat16>(pair >> 16);
}
template <>
float high<half>(std::uint32_t pair) {
  return low<half>(pair >> 16);
}
float max_or_nan(float x, float y) { return emulator::max_or_nan(x, y); }
float exp2(float x) { return static_cast<float>(std::exp2(static_cast<double>(x))); }

// ---- copies, global memory, index
// ----------------------------------------------------------------

void commit_copies() { current().part<emulator::Copies>().commit(); }

using emulator::load_global, emulator::store_global, emulator::Read;
Words4 load_global_4(const void* from) { return load_global<Words4>(from, Read::kConstant); }
float load_global_float(const float* from) { return load_global<float>(from, Read::kConstant); }
Words4 reload_global_4(const void* from) { return load_global<Words4>(from, Read::kCoherent); }
float reload_global_float(const float* from) { return load_global<float>(from, Read::kCoherent); }
std::int64_t reload_global_counter(const std::int64_t* from) {
  return load_global<std::int64_t>(from, Read::kCoherent);
}
void store_global_4(void* to, Words4 w) { store_global<Words4>(to, w); }
void store_global(void* to, std::uint32_t value) { store_global<std::uint32_t>(to, value); }
void store_global_float(float* to, float value) { store_global<float>(to, value); }
void store_global_counter(std::int64_t* to, std::int64_t value) {
  store_global<std::int64_t>(to, value);
}

std::uint32_t thread_index() { return current().who(); }
std::uint32_t block_index_x() { return current().place.block; }
std::uint32_t block_count_x() { return current().grid; }
std::uint32_t shared_begin() { return emulator::SharedMemory::kBegin; }

// ---- matrices
// ------------------------------------------------------------------------------------

Words4 load_matrices_4(std::uint32_t row) { return emulator::load_matrices<Words4>(row, false); }
Words4 load_matrices_4_transposed(std::uint32_t row) {
  return emulator::load_matrices<Words4>(row, true);
}
Words2 load_matrices_2(std::uint32_t row) { return emulator::load_matrices<Words2>(row, false); }
Words2 load_matrices_2_transposed(std::uint32_t row) {
  return emulator::load_matrices<Words2>(row, true);
}

template <>
void multiply_add_16<bfloat16>(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                               std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  emulator::multiply_add<16, &emulator::from_bfloat16>(c, {a0, a1, a2, a3}, {b0, b1}, 0);
}
template <>
void multiply_add_16<half>(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                           std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  emulator::multiply_add<16, &emulator::from_half>(c, {a0, a1, a2, a3}, {b0, b1}, 1);
}
template <>
void multiply_add_8<bfloat16>(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b0) {
  emulator::multiply_add<8, &emulator::from_bfloat16>(c, {a0, a1}, {b0}, 0);
}
template <>
void multiply_add_8<half>(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b0) {
  emulator::multiply_add<8, &emulator::from_half>(c, {a0, a1}, {b0}, 1);
}

// ---- asynchronous
// --------------------------------------------------------------------------------

using emulator::CountingBarriers, emulator::Products;
void make_barrier(std::uint32_t barrier, std::uint32_t arrivals) {
  current().part<CountingBarriers>().make(barrier, arrivals);
}
void publish_barriers() { current().part<CountingBarriers>().publish(); }
void arrive(std::uint32_t barrier) { arrive_and_expect(barrier, 0); }
void arrive_and_expect(std::uint32_t barrier, std::uint32_t bytes) {
  current().part<CountingBarriers>().arrive(barrier, bytes, "mbarrier arrival");
}
void wait_for(std::uint32_t barrier, std::uint32_t parity) {
  current().part<CountingBarriers>().wait(barrier, parity);
}

void load_box(std::uint32_t to, const TensorMap& map, const BoxOrigin& at, std::uint32_t barrier) {
  emulator::load_box(to, map, at, barrier);
}
void fence_async() { current().clocks.fence(current().who()); }

void group_begin() {
  emulator::call_products("wgmma.fence", 0, [](Products& products) { products.begin(); });
}
void group_commit() {
  emulator::call_products("wgmma.commit_group", 0, [](Products& products) { products.commit(); });
}

}  // namespace mhla::cuda::ptx
