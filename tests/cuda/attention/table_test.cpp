// Tests that the table of include/mhla/cuda/README.md says what the library takes: each cell is
// asked of the checks and plans of calls.

#include <gtest/gtest.h>

#include <algorithm>
#include <concepts>
#include <exception>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "mhla/cuda/attention/fitting_plan.cuh"
#include "mhla/cuda/attention/gradient_inputs.cuh"
#include "mhla/cuda/attention/rotary_inputs.cuh"
#include "mhla/cuda/attention/streaming_inputs.cuh"
#include "mhla/cuda/kernel/widths.cuh"
#include "mhla/cuda/launch/gradient.cuh"
#include "mhla/cuda/launch/prefill.cuh"
#include "support/cuda/form_arguments.hpp"
#include "support/cuda/own_maps.hpp"
#include "support/cuda/patterned_call.hpp"

namespace table_test {
namespace {

using namespace mhla::cuda;  // NOLINT
using mhla::BatchMask, mhla::bnhd, mhla::TensorView;

constexpr Device kHopper{Arch::kSm90a, 132};
enum Column { kForward, kGradients, kStreams };
using Cells = std::vector<std::string>;  // of a row: forward, gradients, streams

/// Calls with a change to the arguments. A call is taken if its checks and its plan do not throw.
/// Calls and plans of the library make the same checks.
struct Calls : cuda_test::FormArguments {
  using Number = Eigen::bfloat16;
  TokenBlocks key_blocks = blocks;
  bool causal = false, rotary = false;
  std::size_t workspace_bytes = 0;  ///< of the last plan

  /// Returns the error of a call, or "".
  template <AnyOperator O>
  std::string refusal(Column column, const O& of) {
    try {
      if (column == kForward) {
        Problem problem =
            detail::make_problem<64, 64>("f", in, blocks, key_blocks, causal, of, out);
        turn(problem);
        workspace_bytes = detail::fitting("f", mhla::cuda::plan<64, 64>(problem, kHopper), kHopper)
                              .workspace_bytes;
      } else if (column == kGradients) {
        const Gradients<Number> gradients{out, out, out};
        GradientProblem problem = detail::make_gradient<64, 64>(
            "f", in, blocks, key_blocks, causal, of, TensorView<const Number>(out), gradients, {});
        turn(problem.forward);
        workspace_bytes = planned_gradient(problem);
      } else {
        if (rotary) return "no call of a stream has angles";
        detail::expect_stream_operator("f", options_of(of));
        const Problem problem =
            detail::prefill_problem<64, 64>("f", in, contiguous(1600, 16), 0, 3, of, out);
        workspace_bytes = prefill_plan<64, 64>(problem, 0, 16, kHopper).workspace_bytes;
      }
      return "";
    } catch (const std::exception& e) {
      return e.what();
    }
  }
  std::string refusal(Column column) { return refusal(column, op); }
  template <AnyOperator O>
  bool takes(Column column, const O& of) {
    return refusal(column, of).empty();
  }
  bool takes(Column column) { return takes(column, op); }

 private:
  void turn(Problem& problem) const {
    if (rotary)
      detail::add_rotary("f", {{nullptr, 100, 64, 64}, {nullptr, 100, 64, 64}}, 64, problem);
  }
  std::size_t planned_gradient(const GradientProblem& problem) const {
    const auto plan = [&]<bool kRotary>() {
      return causal ? gradient_plan<64, 64, true, kRotary>(problem, kHopper).workspace_bytes
                    : gradient_plan<64, 64, false, kRotary>(problem, kHopper).workspace_bytes;
    };
    return rotary ? plan.template operator()<true>() : plan.template operator()<false>();
  }
};

std::string join(const std::vector<std::string>& names, const std::string& by = ", ") {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : by) + name;
  return all;
}

/// "yes" where all changes are taken in bidirectional and causal calls.
template <class... Change>
Cells yes_or_no(const Change&... change) {
  Cells cells;
  for (const Column column : {kForward, kGradients, kStreams}) {
    const auto taken = [&](const auto& of) {
      Calls calls;
      of(calls);
      const bool bidirectional = calls.takes(column);
      calls.causal = true;
      return bidirectional && calls.takes(column);
    };
    cells.push_back((taken(change) && ...) ? "yes" : "no");
  }
  return cells;
}

/// A stream of floats does not compile.
std::string types(Column column) {
  std::vector<std::string> names;
  if constexpr (DeviceScalar<double>) names.push_back("double");
  if constexpr (DeviceScalar<Eigen::bfloat16>) names.push_back("bfloat16");
  if constexpr (DeviceScalar<Eigen::half>) names.push_back("half");
  return join(names) + (DeviceScalar<float> && column != kStreams ? "; [float32](#float32)" : "");
}

std::string widths() {
  std::vector<std::string> pairs;
  for (const WidthPair& pair : kWidthPairs) {
    pairs.push_back("(" + std::to_string(pair.d) + ", " + std::to_string(pair.e) + ")");
  }
  return join(pairs);
}

std::string feature_maps(Column column) {
  const std::pair<const char*, FeatureMap> maps[] = {{"ReLU + eps", FeatureMap::relu(0.5f)},
                                                     {"ELU + 1", FeatureMap::elu_plus_one()},
                                                     {"identity", FeatureMap::identity()}};
  std::vector<std::string> names;
  for (const auto& [name, map] : maps) {
    Calls calls;
    calls.op.query_map = calls.op.key_map = map;
    if (calls.takes(column)) names.push_back(name);
  }
  Calls own;
  std::string text = join(names);
  if (own.takes(column, MappedOperator(own.op, cuda_test::Softplus{}))) {
    text += "; [elementwise maps of your own](#feature-maps-of-your-own)";
  }
  return text;
}

std::string normalisers(Column column) {
  const std::pair<const char*, Denominator> all[] = {{"none", Denominator::kNone},
                                                     {"key sums", Denominator::kKeySum},
                                                     {"cross-query", Denominator::kCrossQuery}};
  std::vector<std::string> any, bidirectional;
  for (const auto& [name, denominator] : all) {
    Calls calls;
    calls.op.denominator = denominator;
    calls.key_blocks = calls.blocks = contiguous(100, 10);
    if (!calls.takes(column)) continue;
    calls.causal = true;
    calls.takes(column) ? any.push_back(name) : bidirectional.push_back(name);
  }
  return join(any) + (bidirectional.empty() ? "" : "; " + join(bidirectional) + " (not causal)");
}

std::string blocks(Column column) {
  // A stream has a block length in place of blocks.
  if (column == kStreams) return Calls().takes(column) ? "sequences" : "";
  const auto taken = [&](const TokenBlocks& queries, const TokenBlocks& keys) {
    Calls calls;
    calls.blocks = queries, calls.key_blocks = keys;
    return calls.takes(column);
  };
  const std::pair<const char*, TokenBlocks> kinds[] = {{"sequences", contiguous(100, 20)},
                                                       {"images", grid({10, 10}, {5, 2})},
                                                       {"videos", grid({4, 5, 5}, {2, 5, 1})}};
  std::vector<std::string> names, all;
  for (const auto& [name, kind] : kinds) {
    if (taken(kind, kind)) names.push_back(name);
  }
  all.push_back(join(names));
  const TokenBlocks ragged = grid({10, 10}, {3, 4});
  if (taken(ragged, ragged)) all.push_back("short last blocks");
  if (taken(contiguous(100, 20), ragged)) {
    all.push_back("queries and keys may have grids of their own");
  }
  return join(all, "; ");
}

/// Changes to calls.
void add_norm(Calls& calls) {
  static const float gain[64] = {};
  calls.in.gain = gain;
  calls.in.gate = bnhd<const Calls::T>(calls.data, 2, 100, 3, 64);
}
void mask(Calls& calls) {
  static const bool keep[200] = {};
  calls.in.query_mask = calls.in.key_mask = BatchMask(keep, 2, 100, 100);
}
void pack(Calls& calls) {
  static const std::int32_t offsets[3] = {0, 100, 200};
  for (auto* x : {&calls.in.q, &calls.in.k, &calls.in.v}) {
    *x = bnhd<const Calls::T>(calls.data, 1, 200, 3, 64);
  }
  calls.out = bnhd(calls.data, 1, 200, 3, 64);
  calls.in.query_offsets = calls.in.key_offsets = offsets;
}
void add_prefix(Calls& calls) {
  calls.in.query_prefix = calls.in.key_prefix = 20;
  calls.blocks = calls.key_blocks = contiguous(80, 20);
}

/// Masks, packed sequences and prefixes, "by copies" where these take workspace.
std::string selections(Column column) {
  Calls plain;
  bool copies = plain.takes(column);
  for (const auto change : {mask, pack, add_prefix}) {
    Calls calls;
    change(calls);
    if (!calls.takes(column)) return "no";
    copies &= calls.workspace_bytes > plain.workspace_bytes;
  }
  return copies ? "yes, by copies" : "yes";
}

std::string decaying(Column column) {
  const auto taken = [column](std::int32_t terms, bool causal) {
    Calls calls;
    calls.op.decay_terms = terms, calls.causal = causal;
    return calls.takes(column);
  };
  if (!taken(2, true)) return "no";
  std::vector<std::string> texts;
  if (column != kStreams) texts.push_back(taken(2, false) ? "all forms" : "causal forms");
  if (taken(32, true) && !taken(33, true)) texts.push_back("up to 32 terms");
  return join(texts);
}

/// Calls in all forms with the pattern of a matrix.
std::string patterns(Column column) {
  if (column == kStreams) {
    cuda_test::PatternedCall call(contiguous(1600, 16));
    const MixingArray mixing = detail::stream_mixing("f", call.matrices(), call.blocks, call.op);
    return mixing.strips == nullptr ? "read" : "skipped";
  }
  const auto skips = [column](const TokenBlocks& of, Form form) {
    cuda_test::PatternedCall call(of);
    return column == kForward ? call.skips(form, kHopper) : call.gradient_skips(form, kHopper);
  };
  const bool few = skips(contiguous(200, 50), Form::kQuadratic);
  const bool fused = skips(contiguous(1024, 128), Form::kFused);
  const bool staged = skips(contiguous(1600, 16), Form::kThreeStage);
  if (few && fused && staged) return "skipped";
  return staged && !few && !fused ? "skipped in three stages" : "read";
}

/// The rows of the table that the library answers.
std::map<std::string, Cells> asked() {
  const auto each = [](auto ask) { return Cells{ask(kForward), ask(kGradients), ask(kStreams)}; };
  const auto same = [](const std::string& cell) { return Cells{cell, cell, cell}; };
  const auto rotates = [](Calls& calls) {
    calls.rotary = true;
    calls.op.denominator = Denominator::kNone;
  };
  const auto matrices = [](Matrices which) {
    return yes_or_no([which](Calls& calls) { calls.op.matrices = which; });
  };
  return {{"types", each(types)},
          {"widths (D, E)", same(widths())},
          {"feature maps", each(feature_maps)},
          {"normalisers", each(normalisers)},
          {"blocks", each(blocks)},
          {"rotary embedding, gain and gate", yes_or_no(add_norm, rotates)},
          {"masks of tokens, packed sequences, a prefix", each(selections)},
          {"a mixing matrix per head", matrices(Matrices::kPerHead)},
          {"a mixing matrix per batch item and head", matrices(Matrices::kPerItemAndHead)},
          {"[zeros of banded and sparse matrices](#bands-and-lists)", each(patterns)},
          {"[decaying terms](#decaying-terms), any number of blocks", each(decaying)}};
}

/// The cells of the table that begins with the given line, by the names of rows.
std::map<std::string, Cells> cells_of_page(const std::string& first) {
  std::ifstream file(MHLA_SOURCE_DIR "/include/mhla/cuda/README.md");
  std::map<std::string, Cells> rows;
  std::string line;
  while (std::getline(file, line) && line != first) {
  }
  std::getline(file, line);  // |---|
  while (std::getline(file, line) && line.rfind("| ", 0) == 0) {
    Cells cells;
    for (std::size_t at = 2, end; (end = line.find(" |", at)) != std::string::npos; at = end + 3) {
      cells.push_back(line.substr(at, end - at));
    }
    const std::string name = cells[0];
    cells.erase(cells.begin());
    for (std::size_t i = 1; i < cells.size(); ++i) {
      if (cells[i] == "the same") cells[i] = cells[0];
    }
    rows[name] = cells;
  }
  return rows;
}

TEST(TableOfCalls, SaysWhatTheLibraryTakes) {
  std::map<std::string, Cells> page = cells_of_page("| | forward | gradients | streams |");
  for (const auto& [name, cells] : asked()) {
    ASSERT_EQ(page.count(name), 1u) << name;
    EXPECT_EQ(page[name], cells) << name;
    page.erase(name);
  }
  ASSERT_EQ(page.size(), 1u);  // which no call answers
  EXPECT_EQ(page.begin()->first.rfind("tested on", 0), 0u);
}

/// The text of the page in one line.
std::string text_of_page() {
  std::ifstream file(MHLA_SOURCE_DIR "/include/mhla/cuda/README.md");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

TEST(TableOfCalls, GivesTheReasonsOfErrors) {
  const std::string page = text_of_page();
  const auto expect_reason = [&page](const std::string& error) {
    const std::size_t colon = error.rfind(": ");
    ASSERT_NE(colon, std::string::npos) << error;
    EXPECT_NE(page.find(error.substr(colon) + "."), std::string::npos) << error;
  };
  for (const auto change : {add_norm, mask, pack, add_prefix}) {
    Calls calls;
    change(calls);
    const std::string error = calls.refusal(kStreams);
    expect_reason(error);
    try {  // a step takes them no more than a prefill
      detail::expect_stream_inputs("f", calls.in);
      ADD_FAILURE() << error;
    } catch (const std::exception& e) {
      EXPECT_EQ(e.what(), error);
    }
  }
  Calls items, queries, terms;
  items.op.matrices = Matrices::kPerItemAndHead;
  expect_reason(items.refusal(kStreams));
  queries.op.denominator = Denominator::kCrossQuery;
  queries.causal = true;
  terms.op.decay_terms = 2;
  for (const Column column : {kForward, kGradients}) {
    expect_reason(queries.refusal(column));
    expect_reason(terms.refusal(column));
  }
  expect_reason(queries.refusal(kStreams));
}

TEST(TableOfCalls, GivesTheReasonOfWidthsWithoutANorm) {
  Problem problem{};
  problem.batch = problem.heads = 1;
  problem.query_blocks = problem.key_blocks = contiguous(600, 60);
  problem.causal = problem.norm.normed = true;
  try {
    detail::fitting("f", mhla::cuda::plan<256, 256>(problem, kHopper), kHopper);
    ADD_FAILURE();
  } catch (const std::exception& e) {
    const std::string error = e.what();
    EXPECT_NE(text_of_page().find(error.substr(error.rfind(": ")) + "."), std::string::npos);
  }
}

}  // namespace
}  // namespace table_test
