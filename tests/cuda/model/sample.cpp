// Of one (D, E): MHLA_WIDTH and MHLA_VALUE_WIDTH.

#include "cuda/model/sample.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "emulator/async_box.hpp"
#include "emulator/device.hpp"
#include "mhla/cuda/kernel/streaming_step_sm80.cuh"
#include "mhla/cuda/launch/forms.cuh"

namespace mhla::cuda::model {
namespace {

using emulator::Access;

/// Zeros at a multiple of 256, which no page is spent on before it is touched.
class Zeros {
 public:
  explicit Zeros(std::size_t bytes)
      : bytes_(bytes), memory_(static_cast<unsigned char*>(std::calloc(bytes + 256, 1))) {}
  unsigned char* data() const {
    return memory_.get() + (256 - reinterpret_cast<std::uintptr_t>(memory_.get()) % 256);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::size_t bytes_;
  std::unique_ptr<unsigned char, Free> memory_;
};

template <class T>
std::string type_name() {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(typeid(T).name(), nullptr, nullptr, &status), &std::free);
  return text.get();
}

/// Takes kernels as cuda::Stream does, and notes how many blocks each has, by its type.
struct Grids {
  template <class Kernel>
  void run(const typename Kernel::Params& parameters, std::int32_t pairs,
           Start = Start::kInOrder) const {
    blocks[type_name<Kernel>()] = Kernel::grid(parameters, pairs);
  }
  TensorMap tensor_map(const TensorBox&) const { return {}; }

  mutable std::map<std::string, std::uint32_t> blocks;
};

/// Runs some blocks of each.
class Samples {
 public:
  Samples(emulator::Device& device, std::map<std::string, std::uint32_t> items)
      : device_(device), items_(std::move(items)) {}

  template <class Kernel>
  void run(const typename Kernel::Params& parameters, std::int32_t pairs,
           Start start = Start::kInOrder) const {
    const bool early = start == Start::kEarly;
    const std::string name = type_name<Kernel>();
    const std::uint32_t grid = Kernel::grid(parameters, pairs), items = items_.at(name);
    Launch launch{name, early, Kernel::kThreads, Kernel::kBlocksPerMultiprocessor,
                  static_cast<double>(items)};
    const std::vector<std::uint32_t> blocks = chosen(grid);
    device_.run_only(blocks);
    launch.report = device_.launch<Kernel>(grid, parameters, early);
    launch.sampled_blocks = static_cast<double>(blocks.size());
    for (const std::uint32_t block : blocks) launch.sampled_items += (items - block - 1) / grid + 1;
    launches.push_back(std::move(launch));
  }
  TensorMap tensor_map(const TensorBox& box) const { return emulator::tensor_map(box); }

  mutable std::vector<Launch> launches;

 private:
  /// Of a larger grid so many blocks, in steps of the golden ratio, which fall evenly on rows and
  /// columns of tiles.
  static std::vector<std::uint32_t> chosen(std::uint32_t grid) {
    constexpr std::uint32_t kMost = 8;
    std::vector<std::uint32_t> blocks;
    for (std::uint32_t i = 0; i < std::min(grid, kMost); ++i) {
      const double place = std::fmod(0.5 + 0.6180339887498949 * i, 1.0);
      blocks.push_back(grid <= kMost ? i : static_cast<std::uint32_t>(place * grid));
    }
    return blocks;
  }

  emulator::Device& device_;
  std::map<std::string, std::uint32_t> items_;
};

/// One sequence of kPairs heads, [B, N, H, .].
struct Tensors {
  Zeros q, k, v, o, mixing;

  Tensors(std::int64_t tokens, std::int64_t blocks, int d, int e)
      : q(bytes(tokens, d)),
        k(bytes(tokens, d)),
        v(bytes(tokens, e)),
        o(bytes(tokens, e)),
        mixing(static_cast<std::size_t>(blocks * blocks) * 4) {}

  void track(emulator::Device& device) const {
    device.track("q", q.data(), q.bytes(), Access::kRead);
    device.track("k", k.data(), k.bytes(), Access::kRead);
    device.track("v", v.data(), v.bytes(), Access::kRead);
    device.track("o", o.data(), o.bytes(), Access::kWrite);
    device.track("mixing", mixing.data(), mixing.bytes(), Access::kRead);
  }
  template <class Byte>
  static BasicTokenTensor<Byte> view(const Zeros& x, int width) {
    return {x.data(), 0, 2 * width, 2 * width * std::int64_t{kPairs}};
  }
  void add_to(std::map<std::string, double>& arrays, double scale) const {
    for (const auto& [name, x] :
         {std::pair<const char*, const Zeros*>{"q", &q}, {"k", &k}, {"v", &v}, {"o", &o}}) {
      arrays[name] = scale * static_cast<double>(x->bytes());
    }
    arrays["mixing"] = static_cast<double>(mixing.bytes());
  }

 private:
  static std::size_t bytes(std::int64_t tokens, int width) {
    return static_cast<std::size_t>(tokens * kPairs * width * 2);
  }
};

/// The parts of a workspace as tracked ranges.
template <int D, int E>
void track_workspace(const Problem& problem, const Rooms& rooms, unsigned char* begin,
                     emulator::Device& device, std::map<std::string, double>& arrays,
                     double scale) {
  const WorkspaceParts parts = workspace_parts<D, E>(problem, rooms);
  const auto part = [&](const char* name, std::size_t from, std::size_t to) {
    if (from == to) return;
    device.track(name, begin + from, to - from, Access::kReadWrite);
    arrays[name] = scale * static_cast<double>(to - from);
  };
  part("summaries", parts.summaries, parts.key_sums);
  part("key sums", parts.key_sums, parts.mixtures);
  part("mixtures", parts.mixtures, parts.mixed_key_sums);
  part("mixed key sums", parts.mixed_key_sums, parts.rounded);
  if (parts.rounded < parts.bytes) {
    device.track("rounded", begin + parts.rounded, parts.bytes - parts.rounded, Access::kReadWrite);
    arrays["rounded"] = static_cast<double>(parts.bytes - parts.rounded);  // of all pairs
  }
}

}  // namespace

template <int D, int E>
Call sample(const Sizes& sizes, const Device& device) {
  const Tensors x(sizes.blocks.tokens(), sizes.blocks.blocks(), D, E);
  Problem problem{.q = Tensors::view<const unsigned char>(x.q, D),
                  .k = Tensors::view<const unsigned char>(x.k, D),
                  .v = Tensors::view<const unsigned char>(x.v, E),
                  .o = Tensors::view<unsigned char>(x.o, E),
                  .batch = sizes.batch,
                  .heads = sizes.heads,
                  .query_blocks = sizes.blocks,
                  .key_blocks = sizes.blocks,
                  .op = {},
                  .causal = sizes.causal};
  Call call{plan<D, E>(problem, device), {}, {}};
  problem.batch = 1;
  problem.heads = kPairs;
  const double scale = static_cast<double>(sizes.pairs()) / kPairs;
  const Rooms rooms = rooms_of<D, E>(problem, {device.arch, 1});  // which keeps the least of m
  const Zeros workspace(workspace_parts<D, E>(problem, rooms).bytes);
  const MixingArray mixing{reinterpret_cast<const float*>(x.mixing.data()), sizes.blocks.blocks()};
  const auto run_on = [&](std::int32_t multiprocessors, const auto& stream) {
    const Device target{device.arch, multiprocessors};
    if (sizes.causal) {
      run<bfloat16, D, E, true>(call.plan, problem, mixing, workspace.data(), target, stream);
    } else {
      run<bfloat16, D, E, false>(call.plan, problem, mixing, workspace.data(), target, stream);
    }
  };
  const Grids most, least;
  run_on(1 << 20, most);
  run_on(1, least);
  // So that blocks of persistent kernels have as many items as on the device, which read once for
  // all of them what they keep; but about 32 at most.
  auto multiprocessors =
      static_cast<std::uint32_t>(std::max(1.0, std::round(device.multiprocessors / scale)));
  for (const auto& [name, blocks] : most.blocks) {
    const std::uint32_t one = least.blocks.at(name);
    if (blocks != one) multiprocessors = std::max(multiprocessors, blocks / one / 32);
  }
  emulator::Device emulated;
  x.track(emulated);
  x.add_to(call.arrays, scale);
  if (call.plan.workspace_bytes > 0) {
    track_workspace<D, E>(problem, rooms, workspace.data(), emulated, call.arrays, scale);
  }
  const Samples samples(emulated, most.blocks);
  run_on(static_cast<std::int32_t>(multiprocessors), samples);
  call.launches = samples.launches;
  for (Launch& launch : call.launches) {
    const bool of_all_pairs = launch.kernel.find("::RoundedMixing") != std::string::npos;
    if (!of_all_pairs) launch.items *= scale;
  }
  return call;
}

template <int D, int E>
Call sample_steps(const Sizes& sizes) {
  const std::int64_t length = sizes.blocks.slots(), begin = sizes.blocks.tokens() / 2;
  const Tensors x(1, sizes.blocks.blocks(), D, E);
  const StreamingStateLayout layout =
      streaming_state_layout(kPairs, sizes.blocks.blocks(), length, D, E, Precision::kSingle);
  const Zeros memory(static_cast<std::size_t>(layout.bytes));
  const StreamingState state = layout.at(memory.data());
  const StreamingStepParameters parameters{
      .q = Tensors::view<const unsigned char>(x.q, D),
      .k = Tensors::view<const unsigned char>(x.k, D),
      .v = Tensors::view<const unsigned char>(x.v, E),
      .o = Tensors::view<unsigned char>(x.o, E),
      .blocks = sizes.blocks,
      .heads = kPairs,
      .query_map = FeatureMap::relu(),
      .key_map = FeatureMap::relu(),
      .normalization = {Denominator::kKeySum, 1, 0},
      .mixing = {reinterpret_cast<const float*>(x.mixing.data()), sizes.blocks.blocks()},
      .state = state,
      .sequences = 1,
      .sequence_of = nullptr};
  using Kernel = StreamingStepSm80<bfloat16, D, E, Precision::kSingle>;
  const double scale = static_cast<double>(sizes.pairs()) / kPairs;
  const auto share = 1 / static_cast<double>(length);
  Call call{};
  for (const auto& [token, part] : {std::pair<std::int64_t, double>{begin, share},
                                    {begin + length / 2, 1 - 2 * share},
                                    {begin + length - 1, share}}) {
    for (std::int64_t i = 0; i < layout.position_bytes / 8; ++i) state.positions[i] = token;
    emulator::Device emulated;
    x.track(emulated);
    emulated.track("state", memory.data(), memory.bytes(), Access::kReadWrite);
    const Samples samples(emulated, {{type_name<Kernel>(), Kernel::grid(parameters, kPairs)}});
    samples.run<Kernel>(parameters, kPairs);
    call.launches.push_back(samples.launches[0]);
    call.launches.back().items *= scale;
    call.launches.back().share = part;
  }
  x.add_to(call.arrays, scale);
  call.arrays["state"] = scale * static_cast<double>(memory.bytes());
  return call;
}

template Call sample<MHLA_WIDTH, MHLA_VALUE_WIDTH>(const Sizes&, const Device&);
template Call sample_steps<MHLA_WIDTH, MHLA_VALUE_WIDTH>(const Sizes&);

}  // namespace mhla::cuda::model
