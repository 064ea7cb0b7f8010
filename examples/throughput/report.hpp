#pragma once

/// \file
/// The table, the crossing points and the JSON of the results.

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "block.hpp"

namespace throughput {

inline void print_header() {
  std::printf("%-10s %-10s %7s %2s  %-29s  %-21s  %s\n", "", "", "", "", "items a second",
              "MHLA over softmax", "MiB");
  std::printf("%-10s %-10s %7s %2s  %9s  %8s  %8s  %10s %10s  %7s %7s %7s\n", "model", "input", "N",
              "T", "softmax", "linear", "mhla", "measured", "predicted", "softmax", "linear",
              "mhla");
}

/// Prints the line of a result. A star marks softmax that was measured on some queries of a layer.
inline void print_row(const Result& r) {
  const bool sampled = r.attention[kSoftmax].queries < r.problem.tokens();
  const auto mebibytes = [&r](Attention a) { return r.bytes[a] / (1 << 20); };
  std::printf("%-10s %-10s %7td %2td  %9.4g%c %8.4g  %8.4g  %9.2fx %9.2fx  %7.0f %7.0f %7.0f\n",
              r.what.model.c_str(), r.what.input.c_str(), r.problem.tokens(), r.threads,
              r.rate(kSoftmax), sampled ? '*' : ' ', r.rate(kLinear), r.rate(kMhla),
              r.seconds(kSoftmax) / r.seconds(kMhla), r.flops[kSoftmax] / r.flops[kMhla],
              mebibytes(kSoftmax), mebibytes(kLinear), mebibytes(kMhla));
  std::fflush(stdout);
}

inline void print_notes() {
  std::printf(
      "A model is its ends and its depth times one block that was measured, with T threads.\n"
      "* softmax of some queries of a layer, times their share\n");
}

/// Prints, for each model and number of threads, the least measured N from which on MHLA is faster
/// than softmax.
inline void print_crossings(const std::vector<Result>& results) {
  struct Crossing {
    std::string model;
    Index threads, from;  // from is 0 if softmax is faster at the largest N
  };
  std::vector<Crossing> crossings;
  for (const Result& r : results) {  // N grows
    const auto same = [&r](const Crossing& c) {
      return c.model == r.what.model && c.threads == r.threads;
    };
    auto found = std::ranges::find_if(crossings, same);
    if (found == crossings.end()) {
      found = crossings.insert(found, {r.what.model, r.threads, 0});
    }
    const bool faster = r.seconds(kMhla) < r.seconds(kSoftmax);
    if (!faster) found->from = 0;
    if (faster && found->from == 0) found->from = r.problem.tokens();
  }
  for (const Crossing& c : crossings) {
    if (c.from > 0) {
      std::printf("%s, %td threads: MHLA is faster than softmax from N = %td on\n", c.model.c_str(),
                  c.threads, c.from);
    } else {
      std::printf("%s, %td threads: MHLA is not faster than softmax\n", c.model.c_str(), c.threads);
    }
  }
}

inline nlohmann::json to_json(const Result& r) {
  const auto of_each = [](const auto& of) {
    nlohmann::json values;
    for (int a = 0; a < kAttentions; ++a) values[kNames[static_cast<std::size_t>(a)]] = of(a);
    return values;
  };
  const auto at = [](int a) { return static_cast<std::size_t>(a); };
  const Problem& p = r.problem;
  const auto axes = [](const mhla::GridShape& g) { return std::vector{g[0], g[1], g[2]}; };
  return {{"model", r.what.model},
          {"input", r.what.input},
          {"unit", r.what.unit},
          {"items", r.what.items},
          {"depth", r.what.depth},
          {"threads", r.threads},
          {"batch", p.batch},
          {"tokens", p.tokens()},
          {"heads", p.heads},
          {"width", p.width},
          {"values", p.values},
          {"grid", axes(r.what.grid)},
          {"block", axes(r.what.block)},
          {"blocks", p.blocks()},
          {"rest_seconds", r.rest},
          {"ends_seconds", r.ends},
          {"softmax_queries", r.attention[kSoftmax].queries},
          {"attention_seconds", of_each([&](int a) { return r.attention[at(a)].seconds; })},
          {"seconds", of_each([&](int a) { return r.seconds(a); })},
          {"items_per_second", of_each([&](int a) { return r.rate(a); })},
          {"flops", of_each([&](int a) { return r.flops[at(a)]; })},
          {"bytes", of_each([&](int a) { return r.bytes[at(a)]; })}};
}

inline nlohmann::json to_json(const std::vector<Result>& results) {
  nlohmann::json json{{"instruction_set", mhla::kInstructionSet}};
  for (const Result& r : results) json["results"].push_back(to_json(r));
  return json;
}

}  // namespace throughput
