#pragma once

/// \file
/// Requirements of files of named tensors, for readers and writers of any format.

#include <concepts>
#include <span>
#include <string>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// A file to read, such as Safetensors. Names are sorted in tensors(), a map to values with a
/// `shape`. The numbers of a tensor are copied by copy_to(name, span), which throws an mhla::error
/// if the file has none of that type.
template <class F, class A>
concept TensorFile = Accumulator<A> &&
    requires(const F& file, const std::string& name, std::span<A> to) {
  { file.tensors().find(name)->second.shape } -> std::convertible_to<const std::vector<Index>&>;
  file.copy_to(name, to);
};

/// A file to write, such as SafetensorsWriter: add(name, shape, span) adds a tensor, or throws.
template <class W, class A>
concept TensorWriter = Accumulator<A> &&
    requires(W& writer, const std::string& name, const std::vector<Index>& shape,
             std::span<const A> numbers) {
  writer.add(name, shape, numbers);
};

}  // namespace MHLA_TARGET
}  // namespace mhla
