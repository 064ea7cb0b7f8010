#include "cuda/model/prediction.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

namespace {

using mhla::cuda::model::predict;
using mhla::cuda::model::Prediction;

/// The first row of the page that begins with `label`, cell by cell, without asterisks.
std::vector<std::string> row_of(const std::string& label) {
  std::ifstream page(MHLA_SOURCE_DIR "/benchmarks/cuda/README.md");
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| " + label + " |")) continue;
    std::vector<std::string> cells(1);
    for (const char c : line.substr(2)) {
      if (c == '|') {
        cells.emplace_back();
      } else if (c != ' ' && c != '*') {
        cells.back() += c;
      }
    }
    return cells;
  }
  ADD_FAILURE() << "benchmarks/cuda/README.md has no row of " << label;
  return std::vector<std::string>(4, "0");
}

std::string microseconds(double seconds) {
  char text[16];
  std::snprintf(text, sizeof(text), seconds < 1e-4 ? "%.1f" : "%.0f", seconds * 1e6);
  return text;
}

// Columns of the page: case, form, predicted, measured.
TEST(Prediction, IsWithin15PercentOf14MeasuredTimesOf17) {
  int cases = 0, close = 0;
  for (const auto& c : mhla::cuda_bench::all_cases()) {
    const std::vector<std::string> row = row_of(c.label());
    const Prediction p = predict(c);
    const double ratio = p.seconds * 1e6 / std::stod(row[3]);
    EXPECT_EQ(row[1], p.family.name) << c.label();
    EXPECT_EQ(row[2], microseconds(p.seconds)) << c.label();
    ++cases;
    close += std::abs(ratio - 1) <= 0.15 ? 1 : 0;
    std::printf("%-18s %-12s predicted %s us, measured %s us\n", c.label().c_str(), row[1].c_str(),
                microseconds(p.seconds).c_str(), row[3].c_str());
  }
  EXPECT_EQ(cases, 17);
  EXPECT_GE(close, 14);
}

// Columns of the page: case, form, predicted.
TEST(Prediction, OfCrossQueryDenominatorsIsThatOfThePage) {
  for (const auto& c : mhla::cuda_bench::all_cases()) {
    if (c.label() != "dit_s_256_b256" && c.label() != "dit_s_256_b64") continue;
    const std::vector<std::string> row = row_of(c.label() + ", cross-query");
    const Prediction p = predict(c, mhla::cuda::Denominator::kCrossQuery);
    EXPECT_EQ(row[1], p.family.name) << c.label();
    EXPECT_EQ(row[2], microseconds(p.seconds)) << c.label();
  }
}

// Columns of the page: case, form, predicted.
TEST(Prediction, OfGradientsIsThatOfThePage) {
  for (const auto& c : mhla::cuda_bench::all_cases()) {
    const bool wide = c.label() == "wan_1300m";
    if (!wide && c.label() != "dit_s_512_b64") continue;
    const std::vector<std::string> row = row_of(c.label() + ", gradients");
    const Prediction p = wide ? mhla::cuda::model::predict_gradients<128>(c)
                              : mhla::cuda::model::predict_gradients<64>(c);
    EXPECT_EQ(row[1], p.family.name) << c.label();
    EXPECT_EQ(row[2], microseconds(p.seconds)) << c.label();
  }
}

}  // namespace
