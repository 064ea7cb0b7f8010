#pragma once

/// \file
/// The three attentions that examples compare, the starts of mixing matrices, and the names of
/// choices on the command line and in files.

#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace examples {

enum class Attention { kSoftmax, kLinear, kMhla };

inline const std::map<std::string, Attention> kAttentions{
    {"softmax", Attention::kSoftmax}, {"linear", Attention::kLinear}, {"mhla", Attention::kMhla}};

/// Initial coefficients: equal for all blocks that a block may read, or larger for near blocks.
enum class MixingStart { kUniform, kLocality };

inline const std::map<std::string, MixingStart> kMixingStarts{{"uniform", MixingStart::kUniform},
                                                              {"locality", MixingStart::kLocality}};

template <class E>
std::string name_of(const std::map<std::string, E>& names, E value) {
  for (const auto& [name, named] : names) {
    if (named == value) return name;
  }
  throw std::logic_error("a value without a name");
}

/// \throws std::runtime_error unless `name` is one of the names.
template <class E>
E named(const std::map<std::string, E>& names, const std::string& name) {
  const auto found = names.find(name);
  if (found != names.end()) return found->second;
  std::string all;
  for (const auto& [known, value] : names) all += (all.empty() ? "" : ", ") + known;
  throw std::runtime_error("\"" + name + "\", expected one of " + all);
}

// Their names in JSON.
inline void to_json(nlohmann::json& json, Attention a) { json = name_of(kAttentions, a); }
inline void to_json(nlohmann::json& json, MixingStart start) {
  json = name_of(kMixingStarts, start);
}
inline void from_json(const nlohmann::json& json, Attention& a) {
  a = named(kAttentions, json.get<std::string>());
}
inline void from_json(const nlohmann::json& json, MixingStart& start) {
  start = named(kMixingStarts, json.get<std::string>());
}

}  // namespace examples
