#pragma once

/// \file
/// Reads untrusted checkpoints of several safetensors files.
///
///     const auto file = mhla::ShardedSafetensors::read("model.safetensors.index.json");
///     const mhla::VisionLayer<float> layer(file, "blocks.0.attn.", {.heads = 6, ...});
///
/// The index is a JSON file next to the files (shards). It names the shard of each tensor:
///
///     {"metadata": {...}, "weight_map": {"to_q.weight": "model-00001-of-00003.safetensors", ...}}
///
/// read() takes the headers of all shards, so names, shapes and types are known, and every rule of
/// safetensors.hpp is checked. The data of a shard is read when one of its tensors is first copied,
/// and kept. Memory: that of Safetensors per shard that was copied from.
/// Requires nlohmann_json (CMake: mhla::io, find_package(mhla COMPONENTS io)).

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/io/safetensors.hpp"
#include "mhla/io/safetensors_file.hpp"
#include "mhla/io/safetensors_format.hpp"
#include "mhla/io/safetensors_index.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Description of a tensor without its data.
struct ShardedTensor {
  Dtype dtype = Dtype::kF32;
  std::vector<Index> shape;
  std::string unknown_dtype;  ///< the name of the type if dtype is kUnknown
  std::string shard;          ///< the file that has it, relative to the index
};

/// The tensors of an index. Const functions may run concurrently.
class ShardedSafetensors {
 public:
  /// Reads an index and the headers of its shards.
  /// \param options  the limits hold for the index and for each shard
  /// \throws safetensors_error: kShardPath for a shard outside the folder of the index, kNoTensor
  ///     for a tensor that its shard lacks, and any fault of the index or a shard.
  static ShardedSafetensors read(const std::filesystem::path& index,
                                 const SafetensorsOptions& options = {});

  /// The tensors that the index names, sorted by name.
  const std::map<std::string, ShardedTensor, std::less<>>& tensors() const { return tensors_; }

  /// Copies the elements of a tensor to `out`, as Safetensors::copy_to does.
  /// \throws as Safetensors::copy_to; safetensors_error if the shard has changed.
  template <Stored T>
  void copy_to(std::string_view name, std::span<T> out) const;

 private:
  /// A shard, read once.
  class Shard {
   public:
    Shard(std::filesystem::path path, const SafetensorsOptions& options)
        : path_(std::move(path)), options_(options) {}
    const Safetensors& file() {
      const std::lock_guard lock(mutex_);
      if (!file_) file_ = Safetensors::read(path_, options_);
      return *file_;
    }

   private:
    std::filesystem::path path_;
    SafetensorsOptions options_;
    std::mutex mutex_;
    std::optional<Safetensors> file_;
  };

  explicit ShardedSafetensors(std::string index) : index_(std::move(index)) {}
  [[noreturn]] void fail(SafetensorsFault fault, const std::string& got,
                         const std::string& expected) const {
    detail::fail_safetensors(index_, fault, std::nullopt, got, expected);
  }

  std::string index_;
  std::map<std::string, ShardedTensor, std::less<>> tensors_;
  std::map<std::string, std::unique_ptr<Shard>, std::less<>> shards_;
};

// ------------------------------------------------------------------------------------------------

inline ShardedSafetensors ShardedSafetensors::read(const std::filesystem::path& index,
                                                   const SafetensorsOptions& options) {
  detail::expect_header_limit("ShardedSafetensors::read", options);
  ShardedSafetensors result(detail::path_text(index));
  std::map<std::string, detail::SafetensorsHeader> headers;
  for (auto& [name, shard] : detail::read_safetensors_index(index, options)) {
    auto header = headers.find(shard);
    if (header == headers.end()) {
      const std::filesystem::path path = index.parent_path() / detail::path_of(shard);
      detail::InputFile file(path);
      header = headers.emplace(shard, detail::read_safetensors_header(file, options)).first;
      result.shards_.emplace(shard, std::make_unique<Shard>(path, options));
    }
    const auto found = header->second.tensors.find(name);
    if (found == header->second.tensors.end()) {
      result.fail(
          SafetensorsFault::kNoTensor,
          "shard " + detail::printable(shard) + " without tensor " + detail::printable(name),
          "the tensors of the index");
    }
    auto& entry = found->second;
    result.tensors_.emplace_hint(result.tensors_.end(), name,
                                 ShardedTensor{entry.dtype, std::move(entry.shape),
                                               std::move(entry.unknown_dtype), std::move(shard)});
  }
  return result;
}

template <Stored T>
void ShardedSafetensors::copy_to(std::string_view name, std::span<T> out) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    fail(SafetensorsFault::kNoTensor, "no tensor " + detail::printable(name),
         "one of that name among " + std::to_string(tensors_.size()));
  }
  const ShardedTensor& tensor = found->second;
  const Safetensors& file = shards_.find(tensor.shard)->second->file();
  const StoredTensor& stored = file.tensor(name);
  if (stored.dtype != tensor.dtype || stored.shape != tensor.shape) {
    fail(SafetensorsFault::kFile, "shard " + detail::printable(tensor.shard) + " that has changed",
         "the file that was there when the index was read");
  }
  file.copy_to(name, out);
}

}  // namespace MHLA_TARGET
}  // namespace mhla
