// Emulated instructions (mhla/cuda/ptx beside this folder), compiled once for all kernels.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "emulator/accesses.hpp"
#include "emulator/async_barrier.hpp"
#include "emulator/async_products.hpp"
#include "emulator/async_registers.hpp"
#include "emulator/async_tensor_copy.hpp"
#include "emulator/async_tensor_store.hpp"
#include "emulator/barriers.hpp"
#include "emulator/block.hpp"
#include "emulator/copies.hpp"
#include "emulator/device_counters.hpp"
#include "emulator/matrices.hpp"
#include "emulator/numbers.hpp"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/copy_async.cuh"
#include "mhla/cuda/ptx/counter.cuh"
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
inline const Counter kSharedStores{"shared stores"};
inline const Counter kGlobalStores{"global stores"};

namespace {

/// Logs an access of shared memory with the return address `call`.
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
  return value;
}

template <class X>
void store_global(void* to, X value) {
  Block& block = current();
  block.global.write(block.who(), to, sizeof(X), sizeof(X), "st.global");
  std::memcpy(to, &value, sizeof(X));
  block.add(kGlobalStores);
}

/// An instruction of the whole warp that runs `act(products)` once.
template <class Act>
void call_products(const char* instruction, std::uint64_t parameter, const Act& act) {
  struct {
  } none;
  call_together<32>(instruction, parameter, none, [&](auto&) { act(current().part<Products>()); });
}

}  // namespace

template <class X>
[[gnu::noinline]] X ld_shared(std::uint32_t address) {
  Block& block = current();
  X value;
  block.shared.check(block.who(), address, sizeof(X), sizeof(X), "ld.shared");
  block.shared.read(block.who(), address, sizeof(X), &value, "ld.shared");
  log_access(block, __builtin_return_address(0), address, sizeof(X));
  return value;
}
template std::uint32_t ld_shared(std::uint32_t);
template float ld_shared(std::uint32_t);
template mhla::cuda::ptx::Words2 ld_shared(std::uint32_t);
template mhla::cuda::ptx::Words4 ld_shared(std::uint32_t);

template <class X>
[[gnu::noinline]] void st_shared(std::uint32_t address, X value) {
  Block& block = current();
  block.shared.check(block.who(), address, sizeof(X), sizeof(X), "st.shared");
  block.shared.write(block.who(), address, sizeof(X), &value, "st.shared");
  log_access(block, __builtin_return_address(0), address, sizeof(X));
  block.add(kSharedStores);
}
template void st_shared(std::uint32_t, std::uint32_t);
template void st_shared(std::uint32_t, float);
template void st_shared(std::uint32_t, mhla::cuda::ptx::Words4);

[[gnu::noinline]] void cp_async_16(std::uint32_t to, const void* from, std::uint32_t bytes) {
  Block& block = current();
  block.part<Copies>().start(to, from, bytes);
  log_access(block, __builtin_return_address(0), to, 16);
}
void cp_async_wait_group(int pending) {
  current().part<Copies>().wait(static_cast<std::size_t>(pending));
}

void cp_async_bulk_wait_group_read(int pending) {
  current().part<TensorStores>().wait(static_cast<std::size_t>(pending));
}

void wgmma_wait_group(int pending) {
  const auto count = static_cast<std::size_t>(pending);
  call_products("wgmma.wait_group", count, [&](Products& products) { products.wait(count); });
}
void set_registers(int count, bool take) { current().part<RegisterPool>().set(count, take); }

void fence_registers(const void* begin, int count) {
  Block& block = current();
  block.part<Products>().fence_registers(block.who(), begin, static_cast<std::size_t>(count));
}

template <class T>
void wgmma_m64k16(float* c, int count, const std::uint32_t* a, std::uint64_t b, bool transposed,
                  bool adds) {
  ProductCall mine{
      c, a, b, 2 * count, transposed, adds, &mhla::cuda::ptx::low<T>, &mhla::cuda::ptx::high<T>};
  call_together<32>("wgmma", b, mine, [](ProductCall* const(&calls)[32]) {
    current().part<Products>().issue(calls);
  });
}
template void wgmma_m64k16<mhla::cuda::bfloat16>(float*, int, const std::uint32_t*, std::uint64_t,
                                                 bool, bool);
template void wgmma_m64k16<mhla::cuda::half>(float*, int, const std::uint32_t*, std::uint64_t, bool,
                                             bool);

}  // namespace emulator

namespace mhla::cuda::ptx {

using emulator::current;

// ---- barrier ----

void bar_sync() { emulator::bar_sync(); }
void bar_sync(std::uint32_t id, std::uint32_t threads) { emulator::meet(id, threads); }
void bar_warp_sync() { emulator::bar_warp_sync(); }
std::uint32_t shfl_idx(std::uint32_t x, std::uint32_t lane) { return emulator::shuffle(x, lane); }
float shfl_bfly(float x, std::uint32_t mask) { return emulator::shfl_bfly(x, mask); }
bool vote_any(bool x) { return emulator::vote_any(x); }
void griddepcontrol_wait() { current().global.wait_for_kernels(current().who()); }
void griddepcontrol_launch_dependents() { current().global.launch_dependents(current().who()); }

// ---- convert ----

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
template <class T>
std::uint32_t max_nan_x2(std::uint32_t x, std::uint32_t y) {
  return pack<T>(emulator::max_nan(low<T>(x), low<T>(y)),
                 emulator::max_nan(high<T>(x), high<T>(y)));
}
template std::uint32_t max_nan_x2<bfloat16>(std::uint32_t, std::uint32_t);
template std::uint32_t max_nan_x2<half>(std::uint32_t, std::uint32_t);
/// Rounding the sum to float first changes nothing: float has at least 2 p + 2 digits for p of T.
template <class T>
std::uint32_t add_x2(std::uint32_t x, std::uint32_t y) {
  return pack<T>(low<T>(x) + low<T>(y), high<T>(x) + high<T>(y));
}
template std::uint32_t add_x2<bfloat16>(std::uint32_t, std::uint32_t);
template std::uint32_t add_x2<half>(std::uint32_t, std::uint32_t);
template <class T>
std::uint32_t add_zero_times_x2(std::uint32_t x, std::uint32_t y) {
  return pack<T>(low<T>(x) + 0 * low<T>(y), high<T>(x) + 0 * high<T>(y));
}
template std::uint32_t add_zero_times_x2<bfloat16>(std::uint32_t, std::uint32_t);
template std::uint32_t add_zero_times_x2<half>(std::uint32_t, std::uint32_t);
float rcp_approx(float x) { return 1 / x; }
float rsqrt_approx(float x) { return static_cast<float>(1 / std::sqrt(static_cast<double>(x))); }
float ex2_approx(float x) { return static_cast<float>(std::exp2(static_cast<double>(x))); }

// ---- copies, counters, global memory, index ----

void cp_async_commit_group() { current().part<emulator::Copies>().commit(); }

using emulator::DeviceCounters;
std::uint32_t atom_add(std::uint32_t* counter) {
  return current().part<DeviceCounters>().add(counter, false);
}
void red_add_release(std::uint32_t* counter) {
  current().part<DeviceCounters>().add(counter, true);
}
void wait_acquire(const std::uint32_t* counter, std::uint32_t count) {
  current().part<DeviceCounters>().wait(counter, count);
}

using emulator::load_global, emulator::store_global, emulator::Read;
Words4 ld_global_nc_v4(const void* from) { return load_global<Words4>(from, Read::kConstant); }
Words4 ld_global_nc_kept_v4(const void* from) { return ld_global_nc_v4(from); }
std::uint32_t ld_global_nc(const void* from) {
  return load_global<std::uint32_t>(from, Read::kConstant);
}
Words2 ld_global_nc_v2(const void* from) { return load_global<Words2>(from, Read::kConstant); }
float ld_global_nc_f32(const float* from) { return load_global<float>(from, Read::kConstant); }
std::int32_t ld_global_nc_s32(const std::int32_t* from) {
  return load_global<std::int32_t>(from, Read::kConstant);
}
std::uint32_t ld_global_nc_u8(const unsigned char* from) {
  return load_global<unsigned char>(from, Read::kConstant);
}
Words4 ld_global_v4(const void* from) { return load_global<Words4>(from, Read::kCoherent); }
std::uint32_t ld_global(const void* from) {
  return load_global<std::uint32_t>(from, Read::kCoherent);
}
float ld_global_f32(const float* from) { return load_global<float>(from, Read::kCoherent); }
std::int64_t ld_global_s64(const std::int64_t* from) {
  return load_global<std::int64_t>(from, Read::kCoherent);
}
void st_global_v4(void* to, Words4 w) { store_global<Words4>(to, w); }
void st_global_v2(void* to, Words2 w) { store_global<Words2>(to, w); }
void st_global(void* to, std::uint32_t value) { store_global<std::uint32_t>(to, value); }
void st_global_f32(float* to, float value) { store_global<float>(to, value); }
void st_global_s64(std::int64_t* to, std::int64_t value) { store_global<std::int64_t>(to, value); }

std::uint32_t tid_x() { return current().who(); }
std::uint32_t ctaid_x() { return current().place.block; }
std::uint32_t nctaid_x() { return current().grid; }
std::uint32_t shared_begin() { return emulator::SharedMemory::kBegin; }

// ---- matrices ----

Words4 ldmatrix_x4(std::uint32_t row) { return emulator::load_matrices<Words4>(row, false); }
Words4 ldmatrix_x4_trans(std::uint32_t row) { return emulator::load_matrices<Words4>(row, true); }
Words2 ldmatrix_x2(std::uint32_t row) { return emulator::load_matrices<Words2>(row, false); }
Words2 ldmatrix_x2_trans(std::uint32_t row) { return emulator::load_matrices<Words2>(row, true); }

template <>
void mma_m16n8k16<bfloat16>(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                            std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  emulator::multiply_add<16, &emulator::from_bfloat16>(c, {a0, a1, a2, a3}, {b0, b1}, 0);
}
template <>
void mma_m16n8k16<half>(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                        std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  emulator::multiply_add<16, &emulator::from_half>(c, {a0, a1, a2, a3}, {b0, b1}, 1);
}
template <>
void mma_m16n8k8<bfloat16>(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b0) {
  emulator::multiply_add<8, &emulator::from_bfloat16>(c, {a0, a1}, {b0}, 0);
}
template <>
void mma_m16n8k8<half>(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b0) {
  emulator::multiply_add<8, &emulator::from_half>(c, {a0, a1}, {b0}, 1);
}

// ---- asynchronous ----

using emulator::CountingBarriers, emulator::Products;
void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  current().part<CountingBarriers>().make(barrier, arrivals);
}
void fence_mbarrier_init() { current().part<CountingBarriers>().publish(); }
void mbarrier_arrive(std::uint32_t barrier) { mbarrier_arrive_expect_tx(barrier, 0); }
void mbarrier_arrive_expect_tx(std::uint32_t barrier, std::uint32_t bytes) {
  current().part<CountingBarriers>().arrive(barrier, bytes, "mbarrier arrival");
}
void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  current().part<CountingBarriers>().wait(barrier, parity);
}

std::uint64_t createpolicy_evict_first() { return emulator::kEvictFirst; }
void cp_async_bulk_tensor(std::uint32_t to, const TensorMap& map, const BoxOrigin& at,
                          std::uint32_t barrier) {
  emulator::cp_async_bulk_tensor(to, map, at, barrier);
}
void cp_async_bulk_tensor(std::uint32_t to, const TensorMap& map, const BoxOrigin& at,
                          std::uint32_t barrier, std::uint64_t policy) {
  emulator::use_policy(policy, "tensor load");
  emulator::cp_async_bulk_tensor(to, map, at, barrier);
}
void cp_async_bulk_tensor_store(const TensorMap& map, const BoxOrigin& at, std::uint32_t from,
                                std::uint64_t policy) {
  emulator::use_policy(policy, "tensor store");
  current().part<emulator::TensorStores>().start(map, at, from);
}
void cp_async_bulk_tensor_store(const TensorMap& map, const BoxOrigin& at, std::uint32_t from) {
  current().part<emulator::TensorStores>().start(map, at, from);
}
void cp_async_bulk_commit_group() { current().part<emulator::TensorStores>().commit(); }
void prefetch_tensormap(const TensorMap& map) {
  emulator::detail::checked_box(current(), map, "prefetch.tensormap");
}
void fence_proxy_async() { current().clocks.fence(current().who()); }

void wgmma_fence() {
  emulator::call_products("wgmma.fence", 0, [](Products& products) { products.begin(); });
}
void wgmma_commit_group() {
  emulator::call_products("wgmma.commit_group", 0, [](Products& products) { products.commit(); });
}

}  // namespace mhla::cuda::ptx
