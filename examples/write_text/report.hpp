#pragma once

/// \file
/// The output: tables, paragraphs, and a JSON of all results.

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "../support/comparison.hpp"
#include "stream_proof.hpp"
#include "writing.hpp"

namespace write_text {

/// The outcome of one training; its losses are bits per byte.
struct Result : examples::Outcome<Settings> {
  double held_out_bits = 0;  ///< a byte
  double bytes_per_second = 0;
  std::string paragraph{};
  std::vector<TokenCost> costs{};
  std::optional<StreamProof> proof{};  ///< of MHLA
};

/// Text for a terminal: bytes except printable ASCII and new lines become question marks.
inline std::string printable(std::string bytes) {
  for (char& byte : bytes) {
    if (byte != '\n' && (byte < ' ' || byte > '~')) byte = '?';
  }
  return bytes;
}

inline void print_paragraphs(const std::vector<Result>& results) {
  for (const Result& r : results) {
    std::printf("\n== %s writes\n%s\n", r.name().c_str(), printable(r.paragraph).c_str());
  }
}

/// Prints the proofs of streaming.
/// \returns true if token by token equals the whole sequence
inline bool print_proofs(const std::vector<Result>& results) {
  bool ok = true;
  for (const Result& r : results) {
    if (!r.proof) continue;
    const StreamProof& p = *r.proof;
    std::printf(
        "mhla read in whole blocks: logits %s the whole sequence\n"
        "mhla token by token: attention within %.3f of the derived bound, logits within %.1e\n",
        p.same_bits ? "have the bits of" : "DIFFER from those of", p.of_bound, p.logits_error);
    ok = ok && p.same_bits && p.of_bound <= 1;
  }
  if (!ok) std::fprintf(stderr, "FAILED: expected the same bits, and at most 1 of the bound\n");
  return ok;
}

inline void print_tables(const std::vector<Result>& results) {
  std::printf("attention  parameters  bits a byte, held out  in training  bytes/s\n");
  for (const Result& r : results) {
    std::printf("%-9s  %10td  %21.4f  %11.4f  %7.0f\n", r.name().c_str(), r.parameters,
                r.held_out_bits, r.training_loss(), r.bytes_per_second);
  }
  std::printf("\na token at position, and what the model then keeps");
  for (const Result& r : results) std::printf("  %18s", r.name().c_str());
  for (std::size_t i = 0; i < results.front().costs.size(); ++i) {
    std::printf("\n%50td", results.front().costs[i].position);
    for (const Result& r : results) {
      std::printf("  %7.0f us %4zu KiB", r.costs[i].microseconds, r.costs[i].state_bytes / 1024);
    }
  }
  std::printf("\n");
}

inline void to_json(nlohmann::json& json, const Result& r) {
  json = {{"settings", r.settings},
          {"parameters", r.parameters},
          {"held_out_bits", r.held_out_bits},
          {"training_bits", r.training_loss()},
          {"bytes_per_second", r.bytes_per_second},
          {"losses", r.losses},
          {"paragraph", printable(r.paragraph)}};
  if (r.proof) {
    json["proof"] = {{"same_bits", r.proof->same_bits},
                     {"of_bound", r.proof->of_bound},
                     {"logits_error", r.proof->logits_error}};
  }
  for (const TokenCost& cost : r.costs) {
    json["tokens"].push_back({{"position", cost.position},
                              {"microseconds", cost.microseconds},
                              {"state_bytes", cost.state_bytes}});
  }
}

}  // namespace write_text
