// Tensors whose elements lie more than 2^31 and 2^32 elements apart, in address space that has no
// memory: outputs have the bits of dense tensors. Longer sequences, and files, of more
// than 2^31 tokens or 2^32 bytes.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "mhla/io/safetensors.hpp"
#include "mhla/mhla.hpp"
#include "support/outputs.hpp"
#include "support/random.hpp"
#include "support/temporary_folder.hpp"

namespace mhla::test {
namespace {

/// Zeros that take memory only where they are written.
class AddressSpace {
 public:
  explicit AddressSpace(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    madvise(data_, bytes, MADV_NOHUGEPAGE);
  }
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;
  ~AddressSpace() { munmap(data_, bytes_); }

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::span<std::byte> bytes() const { return {as<std::byte>(), bytes_}; }

 private:
  void* data_;
  std::size_t bytes_;
};

constexpr Shape kShape{2, 24, 2, 4};

/// A tensor in which neighbours along one axis lie `apart` elements apart, or a dense one.
struct Wide {
  std::unique_ptr<AddressSpace> memory;
  TensorView<float> view;

  Wide(std::size_t axis, Index apart) {
    Shape strides{kShape[1] * kShape[2] * kShape[3], kShape[2] * kShape[3], kShape[3], 1};
    if (apart > 0) strides[axis] = apart;
    Index last = 1;
    for (std::size_t i = 0; i < 4; ++i) last += (kShape[i] - 1) * strides[i];
    memory = std::make_unique<AddressSpace>(static_cast<std::size_t>(last) * sizeof(float));
    view = {memory->as<float>(), kShape, strides};
  }
  template <class F>
  void for_each(F&& f) const {
    for (Index b = 0; b < kShape[0]; ++b)
      for (Index t = 0; t < kShape[1]; ++t)
        for (Index h = 0; h < kShape[2]; ++h)
          for (Index j = 0; j < kShape[3]; ++j) f(view(b, t, h, j));
  }
  std::vector<float> values() const {
    std::vector<float> all;
    for_each([&all](float x) { all.push_back(x); });
    return all;
  }
};

/// q, k, v, dout, and the output, its tangent and gradients.
struct Tensors {
  std::vector<Wide> in, out;

  Tensors(std::size_t axis, Index apart) {
    Random rng(axis);
    for (int i = 0; i < 4; ++i) {
      in.emplace_back(axis, apart);
      in.back().for_each([&rng](float& x) { x = static_cast<float>(rng.uniform(-1, 1)); });
      out.emplace_back(axis, apart);
    }
  }
  BatchInputs<float> inputs() const { return {.q = in[0].view, .k = in[1].view, .v = in[2].view}; }
  TensorView<const float> dout() const { return in[3].view; }
  BatchGradients<float> gradients() const {
    return {.q = out[0].view, .k = out[1].view, .v = out[2].view};
  }
  WithTangent<TensorView<float>> tangent() const { return {out[0].view, out[1].view}; }
  BatchTangents<float> directions() const { return {.q = dout(), .k = dout(), .v = dout()}; }
};

struct NamedCall {
  const char* name;
  std::function<void(const Tensors&)> call;
};

std::vector<NamedCall> calls() {
  static const MixingMatrix<float> mixing = uniform_causal<float>(6);
  static const MixingMatrix<float> all = locality<float>(6);
  static const DecayMixing<float> decay{{1, 1}, {1, 0.5f}};
  static const ContiguousBlocks blocks{4};
  static const Operator op;
  return {
      {"bidirectional",
       [](const Tensors& x) { bidirectional(x.inputs(), blocks, all, op, x.out[0].view); }},
      {"block_causal",
       [](const Tensors& x) { block_causal(x.inputs(), blocks, mixing, 2, op, x.out[0].view); }},
      {"causal", [](const Tensors& x) { causal(x.inputs(), blocks, mixing, op, x.out[0].view); }},
      {"causal of a decay",
       [](const Tensors& x) { causal(x.inputs(), blocks, decay, op, x.out[0].view); }},
      {"linear_bidirectional",
       [](const Tensors& x) { linear_bidirectional(x.inputs(), op, x.out[0].view); }},
      {"linear_causal", [](const Tensors& x) { linear_causal(x.inputs(), op, x.out[0].view); }},
      {"softmax_bidirectional",
       [](const Tensors& x) { softmax_bidirectional(x.inputs(), x.out[0].view); }},
      {"softmax_causal", [](const Tensors& x) { softmax_causal(x.inputs(), x.out[0].view); }},
      {"append",
       [](const Tensors& x) {
         const Streaming<float> stream({.width = 4, .values = 4, .block_length = 4}, mixing);
         std::vector<StreamingState<float>> states(4, stream.start());
         append(stream, std::span(states), x.inputs(), x.out[0].view);
       }},
      {"bidirectional_gradient",
       [](const Tensors& x) {
         bidirectional_gradient(x.inputs(), blocks, all, op, x.dout(), x.gradients());
       }},
      {"causal_gradient",
       [](const Tensors& x) {
         causal_gradient(x.inputs(), blocks, mixing, op, x.dout(), x.gradients());
       }},
      {"linear_causal_gradient",
       [](const Tensors& x) { linear_causal_gradient(x.inputs(), op, x.dout(), x.gradients()); }},
      {"softmax_causal_gradient",
       [](const Tensors& x) { softmax_causal_gradient(x.inputs(), x.dout(), x.gradients()); }},
      {"bidirectional_tangent",
       [](const Tensors& x) {
         bidirectional_tangent(x.inputs(), blocks, all, op, x.directions(), x.tangent());
       }},
      {"causal_tangent",
       [](const Tensors& x) {
         causal_tangent(x.inputs(), blocks, mixing, op, x.directions(), x.tangent());
       }},
      {"softmax_causal_tangent",
       [](const Tensors& x) { softmax_causal_tangent(x.inputs(), x.directions(), x.tangent()); }},
  };
}

TEST(Size, ElementsFarApartHaveTheBitsOfDenseTensors) {
  int cases = 0;
  for (std::size_t axis = 0; axis < 4; ++axis) {
    for (const Index apart : {(Index{1} << 31) + 64, (Index{1} << 32) + 64}) {
      for (const NamedCall& each : calls()) {
        const Tensors wide(axis, apart), dense(axis, 0);
        each.call(wide);
        each.call(dense);
        for (std::size_t i = 0; i < dense.out.size(); ++i) {
          EXPECT_EQ(wide.out[i].values(), dense.out[i].values())
              << each.name << ", axis " << axis << ", " << apart << " elements apart";
        }
        ++cases;
      }
    }
  }
  std::cout << cases << " cases\n";
}

/// Keys that are all the same element. Their number is exact in double. Softmax attention would
/// pack them in 416 GiB.
TEST(Size, SequencesOfMoreThanTwoToThe31Keys) {
  constexpr Index kMany = (Index{1} << 31) + 5;
  const double one = 1;
  const Matrix<double> q = Matrix<double>::Ones(1, 1);
  const MatrixView<const double> keys(&one, kMany, 1, 0);
  const Operator plain{Identity{}, Identity{}, NoNormalizer{}};
  const Inputs<double> in{.q = q, .k = keys, .v = keys};
  const Matrix<double> out = linear_bidirectional(in, plain);
  EXPECT_EQ(out(0, 0), static_cast<double>(kMany));
  std::cout << "1 cases\n";
}

TEST(Size, FilesOfMoreThanTwoToThe32Bytes) {
  constexpr std::size_t kBytes = (std::size_t{1} << 32) + 40;
  const AddressSpace large(kBytes);
  large.bytes().back() = std::byte{7};
  const std::vector<float> small{1, 2, 3};
  SafetensorsWriter writer;
  writer.add("large", {Dtype::kU8, {static_cast<Index>(kBytes)}, large.bytes(), ""});
  writer.add("small", {3}, small);
  const TemporaryFolder folder;
  writer.write(folder.path() / "x");
  const auto file = Safetensors::read(folder.path() / "x");
  EXPECT_EQ(file.tensor("large").bytes.size(), kBytes);
  EXPECT_EQ(file.tensor("large").bytes.back(), std::byte{7});
  EXPECT_EQ(file.matrix<float>("small")(0, 2), 3);
  std::cout << "1 cases\n";
}

}  // namespace
}  // namespace mhla::test
