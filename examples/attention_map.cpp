/// \file
/// Attention of one patch of a picture: softmax, linear and MHLA attention side by side.
///
/// The picture, resized to a longer side of 512 pixels, is cut into N <= 1024 patches of 16 x 16.
/// A patch becomes a token x of colours and position; nothing is trained. All forms read the same
/// q = k = v = [x, -x], D = 64; relu then keeps both signs of x:
///
///     softmax   p_tj = exp(q_t.k_j / sqrt(D)) / sum                    the reference, O(N^2)
///     linear    p_tj = phi(q_t).phi(k_j) / sum                         one block, rank <= D
///     MHLA      p_tj = m_{block(t), block(j)} phi(q_t).phi(k_j) / sum  M blocks, M^2 <= N
///
/// The table has time and workspace of the operator, the rank of its attention matrix, and the mean
/// entropy of a row (ln N if flat). The error is the largest difference from the definition in
/// double, over the largest value.
///
/// The picture has the photograph with the query patch outlined, then that patch's row in each
/// matrix. Linear attention is nearly flat, and its N rows span at most 64 dimensions. MHLA costs
/// little more, but is local: m has larger coefficients for near blocks (fine lines are blocks).
/// Its rank is several times as high. Softmax is the sharpest, at many times the cost.
///
/// Run:       build/examples/attention_map [PICTURE] [options], see --help
/// Expected:  (times depend on the machine)
///
///     examples/data/astronaut.png: N = 1024, ln N = 6.93
///     softmax attention    3.33 ms   584 KB  rank  620 <= 1024  entropy 5.73  error 9.5e-07
///     linear attention     0.19 ms   342 KB  rank   60 <=   64  entropy 6.65  error 8.6e-07
///     MHLA, 32 blocks      0.28 ms   847 KB  rank  310 <= 1024  entropy 6.43  error 3.5e-07
///     attention_map.png: ok

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <mhla/mhla.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention_map/drawing.hpp"
#include "support/clock.hpp"
#include "support/command_line.hpp"
#include "support/picture.hpp"

namespace {

using namespace attention_map;

/// Options of the command line.
struct Options {
  std::string picture = "examples/data/astronaut.png", output = "attention_map.png";
  Index width = kWidth;
  std::vector<Index> query;
};

/// \throws CLI::ParseError naming the option.
void parse(CLI::App& app, Options& o, int argc, char** argv) {
  app.add_option("PICTURE", o.picture, "a PNG or JPEG");
  app.add_option("--output", o.output, "the picture that is drawn")
      ->check([](const std::string& name) {
        return name.ends_with(".png") || name.ends_with(".jpg")
                   ? std::string()
                   : name + " is not the name of a .png or a .jpg";
      });
  app.add_option("--width", o.width, "its pixels")->check(CLI::Range(Index{1}, kWidth));
  app.add_option("--query", o.query, "X,Y: a pixel of the query patch, from the upper left")
      ->delimiter(',')
      ->expected(2);
  app.parse(argc, argv);
}

int run(const Options& o) {
  int w = 0, h = 0;
  const Picture picture = load(o.picture, kPanel, kPatch, w, h);
  const Index x = o.query.empty() ? w * 11 / 25 : o.query[0];  // where portraits have their face
  const Index y = o.query.empty() ? h * 6 / 25 : o.query[1];
  if (x < 0 || x >= w || y < 0 || y >= h) {
    throw std::runtime_error(text("--query %td,%td is not a pixel of ", x, y) + o.picture +
                             text(", which has %d x %d pixels", w, h));
  }
  const mhla::GridShape all(picture.rows() / kPatch, picture.cols() / kPatch);
  const auto patch = [&](Index p, int axis) {
    return std::min(p * kPanel / std::max(w, h) / kPatch, all[axis] - 1);
  };
  const Index query = patch(y, 1) * all[2] + patch(x, 2);

  const Matrix<float> tokens = embed(picture);  // [N,64]
  const Index n = tokens.rows();
  const auto in = mhla::inputs(tokens, tokens, tokens);
  std::vector<Form> forms;
  const auto add = [&](const std::string& name, const mhla::GridShape& block, auto&& diagnosis,
                       std::size_t bytes, const Matrix<double>& expected, auto run) {
    Matrix<float> out(n, tokens.cols());
    std::vector<std::byte> workspace(bytes);
    const double seconds = examples::seconds_of(0.1, [&] { run(out, workspace); });
    const double error = (out.cast<double>() - expected).cwiseAbs().maxCoeff() / tokens.maxCoeff();
    const auto map = diagnosis.weights.row(query).template cast<double>() * static_cast<double>(n);
    forms.push_back({name, block, diagnosis, map, bytes, 1000 * seconds, error});
  };

  const Matrix<float> unit = Matrix<float>::Identity(n, n);
  // Attention is linear in v: with the identity as v, the output is the attention matrix.
  const Matrix<float> p = mhla::softmax_bidirectional(mhla::inputs(tokens, tokens, unit));
  const mhla::Diagnosis<float> soft{p, mhla::numerical_rank(p), n, mhla::mean_row_entropy(p), 1};
  const Matrix<double> t = tokens.cast<double>(), e = (t * t.transpose() / 8).array().exp();
  add("softmax attention", all, soft, mhla::softmax_workspace_bytes(in),
      e.rowwise().sum().cwiseInverse().asDiagonal() * e * t, [&](auto& out, auto& memory) {
        mhla::softmax_bidirectional(in, out, {}, {.workspace = memory});
      });
  for (const mhla::GridShape& block : {all, mhla::suggest_grid(all).block}) {
    const mhla::Grid blocks(all, block);
    const auto mixing = mhla::locality<float>(blocks.block_grid());  // [M,M]; [1] of one block
    add(block == all ? "linear attention" : text("MHLA, %td blocks", blocks.blocks()), block,
        mhla::diagnose(in, blocks, mixing, mhla::Operator{}),
        mhla::bidirectional_workspace_bytes(in, blocks), mhla::naive_attention(in, blocks, mixing),
        [&](auto& out, auto& memory) {
          mhla::bidirectional(in, blocks, mixing, out, {.workspace = memory});
        });
  }
  const Picture drawn = draw(picture, query, forms);
  save(resized(drawn.data()->data(), drawn.rows(), drawn.cols(),
               std::max<Index>(1, drawn.rows() * o.width / drawn.cols()), o.width, o.output),
       o.output);

  std::printf("%s: N = %td, ln N = %.2f\n", o.picture.c_str(), n, std::log(static_cast<double>(n)));
  // Numerator and denominator are sums of nonnegative terms, with one rounding of 2^-24 per term.
  // Scores of softmax add D roundings of at most kLargestScore.
  const double bound = 2 * (static_cast<double>(n) + 64 * (1 + kLargestScore)) * 0x1p-24;
  bool ok = forms[2].diagnosis.rank > forms[1].diagnosis.rank || forms[1].diagnosis.rank == n;
  for (const Form& f : forms) {
    std::printf("%-18s %6.2f ms  %4zu KB  rank %4td <= %4td  entropy %.2f  error %.1e\n",
                f.name.c_str(), f.milliseconds, f.bytes / 1024, f.diagnosis.rank,
                f.diagnosis.rank_bound, f.diagnosis.entropy, f.error);
    ok = ok && f.diagnosis.rank <= f.diagnosis.rank_bound && f.error <= bound;
  }
  if (!ok) throw std::runtime_error("FAILED: a rank or an error is not what it should be");
  std::printf("%s: ok\n", o.output.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return examples::with_command_line(
      "attention_map", "What one patch of a picture attends to in three forms of attention.",
      [&](CLI::App& app) {
        Options options;
        parse(app, options, argc, argv);
        return run(options);
      });
}
