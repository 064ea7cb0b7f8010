#pragma once

/// \file
/// Printed tables: residuals of fits, bits per byte by position, and sizes of streams' states.

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "fitting.hpp"

namespace extend_text {

/// Prints a line per fit.
/// \returns true if the bounds hold
inline bool print_fits(const Model<float>& model, const std::vector<Fit>& fits, Bytes held_out,
                       mhla::ThreadPool& pool, nlohmann::json& all) {
  write_text::CausalAttention<float> attention(model.settings());
  Activations<float> a(model.settings(), model.settings().context);
  forward(model, held_out.first(static_cast<std::size_t>(model.settings().context)), attention, a);
  std::printf(
      "                residual of outputs      bound of change      change of outputs\n"
      "layer  terms    fit  to coefficients    largest   median    largest   median\n");
  bool ok = true;
  for (const Fit& fit : fits) {
    const Change c = change_of(model, fit, a, pool);
    ok = ok && c.of_bound <= 1;
    std::printf("%5zu  %5td  %5.3f  %15.3f  %9.4f  %7.4f  %9.4f  %7.4f\n", fit.layer, fit.terms,
                fit.residual, fit.of_coefficients, c.bound.largest, c.bound.median,
                c.change.largest, c.change.median);
    all["fits"].push_back({{"layer", fit.layer},
                           {"terms", fit.terms},
                           {"weights", fit.mixing.view().weights()},
                           {"decays", fit.mixing.view().decays()},
                           {"residual", fit.residual},
                           {"residual_of_coefficients", fit.of_coefficients},
                           {"bound", {c.bound.largest, c.bound.median}},
                           {"change", {c.change.largest, c.change.median}}});
  }
  if (!ok) std::fprintf(stderr, "FAILED: expected no output to move by more than its bound\n");
  return ok;
}

/// A table of bits per byte by position, and its JSON.
class Table {
 public:
  /// Makes columns of positions [0, context), then of doubled ranges, and of all positions.
  Table(Index context, Index length) {
    ranges_.push_back({0, context});
    while (ranges_.back().end < length) {
      const Index begin = ranges_.back().end;
      ranges_.push_back({begin, std::min(2 * begin, length)});
    }
    std::printf("\n%-38s", "bits a byte at positions up to");
    for (const Range& range : ranges_) std::printf("  %7td", range.end);
    std::printf("  %7s\n", "all");
    ranges_.push_back({0, length});
  }
  void add(const std::string& name, std::span<const double> bits) {
    std::printf("%-38s", name.c_str());
    nlohmann::json row{{"mixing", name}};
    for (const auto& [begin, end] : ranges_) {
      double sum = 0;
      for (Index t = begin; t < end; ++t) sum += bits[static_cast<std::size_t>(t)];
      row["bits"].push_back(sum / static_cast<double>(end - begin));
      std::printf("  %7.4f", row["bits"].back().get<double>());
    }
    std::printf("\n");
    std::fflush(stdout);
    results_.push_back(row);
  }
  /// Results as JSON; the last number of bits is of all positions.
  nlohmann::json results() const { return results_; }

 private:
  struct Range {
    Index begin, end;
  };
  std::vector<Range> ranges_;
  nlohmann::json results_;
};

/// Prints the sizes of streams' states after a sequence of `length` bytes.
/// \returns true if streams give the bits of the causal form
inline bool print_states(const Model<float>& model, const std::vector<Decay>& mixing, Index length,
                         Bytes sequence, nlohmann::json& all) {
  const Settings& s = model.settings();
  const Model<float> reading = longer(model, length);
  const bool same = streams_are_causal(reading, mixing,
                                       sequence.first(static_cast<std::size_t>(length)), s.context);
  Activations<float> a(reading.settings(), 1);
  std::vector<Matrix> matrices;
  for (const Decay& m : mixing) matrices.push_back(decay_matrix(m, length / s.block));
  const std::size_t terms = Reader(reading, mixing, a).state_bytes(),
                    matrix = Reader(reading, matrices, a).state_bytes();
  std::printf(
      "\nstreams of %td terms over %td bytes: attention %s the causal form\n"
      "they keep %zu KiB; with matrices of %td blocks %zu KiB\n",
      std::ssize(mixing.front().view().decays()), length, same ? "has the bits of" : "DIFFERS from",
      terms / 1024, length / s.block, matrix / 1024);
  all["states"] = {{"same_bits", same}, {"bytes", terms}, {"bytes_of_matrices", matrix}};
  if (!same) std::fprintf(stderr, "FAILED: expected the same bits\n");
  return same;
}

}  // namespace extend_text
