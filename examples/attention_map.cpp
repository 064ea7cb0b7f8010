/// \file
/// What one patch of a picture attends to: softmax, linear and MHLA attention side by side.
///
/// The picture, resized to a longer side of 512 pixels, is cut into N <= 1024 patches of 16 x 16.
/// A patch becomes a token x of colours and position; nothing is trained. All forms read the same
/// q = k = v = [x, -x], D = 64, of which relu keeps all of x:
///
///     softmax   p_tj = exp(q_t.k_j / sqrt(D)) / sum                    the reference, O(N^2)
///     linear    p_tj = phi(q_t).phi(k_j) / sum                         one block, rank <= D
///     MHLA      p_tj = m_{block(t), block(j)} phi(q_t).phi(k_j) / sum  M blocks, M^2 <= N
///
/// The table: time and workspace of the operator, rank of its attention matrix and mean entropy of
/// a row (ln N if flat), largest error against the definition in double over the largest value.
///
/// The PNG: the photograph with the query patch outlined, then the row of that patch in each
/// matrix. Linear attention is nearly flat, and its N rows span at most 64 dimensions. MHLA costs
/// little more, but is local, as m weighs near blocks more (fine lines are blocks), and its rank is
/// several times as high. Softmax is the sharpest, at many times the cost.
///
/// Run:       build/examples/attention_map [PICTURE] [--output FILE] [--width W] [--query X,Y]
///            PICTURE is a PNG or JPEG, FILE a .png or .jpg, scaled to W pixels if W is given; X,Y
///            is a pixel of the query patch, from the upper left.
/// Expected:  (times depend on the machine)
///
///     examples/data/astronaut.png: N = 1024, ln N = 6.93
///     softmax attention    3.33 ms   584 KB  rank  620 <= 1024  entropy 5.73  error 9.5e-07
///     linear attention     0.19 ms   342 KB  rank   60 <=   64  entropy 6.65  error 8.6e-07
///     MHLA, 32 blocks      0.28 ms   847 KB  rank  310 <= 1024  entropy 6.43  error 3.5e-07
///     attention_map.png: ok

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <mhla/attention/diagnose.hpp>
#include <mhla/mhla.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/picture.hpp"

namespace {

using namespace picture;
using mhla::Index;
using mhla::Matrix;

constexpr Index kPatch = 16;                        // pixels along a side of a patch
constexpr Index kPanel = 512;                       // pixels along the longer side of the picture
constexpr Index kMargin = 40;                       // pixels around panels
constexpr Index kWidth = 4 * kPanel + 5 * kMargin;  // of what is drawn
constexpr double kLargestScore = 5;  // of the softmax, so that it is neither flat nor one patch
constexpr double kPi = 3.14159265358979323846;

/// Tokens [N,64] of the patches in raster order. x is brightness in 4 x 4 cells, two opponent
/// colours in 2 x 2 cells and 8 waves of position, standardised over the picture and weighted; all
/// x are scaled to one length.
Matrix<float> embed(const Picture& picture) {
  const Index columns = picture.cols() / kPatch, n = picture.size() / (kPatch * kPatch);
  Matrix<double> x = Matrix<double>::Zero(n, 32);
  for (Index i = 0; i < picture.rows(); ++i) {
    for (Index j = 0; j < picture.cols(); ++j) {
      const Index quarter = i / 8 % 2 * 2 + j / 8 % 2;
      const Eigen::Array3d c = picture(i, j).cast<double>() / 255;
      auto token = x.row(i / kPatch * columns + j / kPatch);
      token[i / 4 % 4 * 4 + j / 4 % 4] += c.sum();
      token[16 + quarter] += c[0] - c[1];
      token[20 + quarter] += c[0] + c[1] - 2 * c[2];
    }
  }
  for (Index t = 0; t < n; ++t) {
    Index f = 24;
    for (const Index place : {t / columns, t % columns}) {
      for (const double period : {64., 32.}) {  // in patches
        x(t, f++) = std::cos(static_cast<double>(place) * 2 * kPi / period);
        x(t, f++) = std::sin(static_cast<double>(place) * 2 * kPi / period);
      }
    }
  }
  Eigen::RowVectorXd weights = Eigen::RowVectorXd::Constant(32, 0.5);
  weights.segment(16, 8).setOnes();
  x.rowwise() -= x.colwise().mean().eval();
  const Eigen::ArrayXXd deviation = x.array().square().colwise().mean().sqrt();
  x.array().rowwise() *= weights.array() / (deviation.row(0) + 1e-3);
  x.rowwise().normalize();
  Matrix<double> tokens(n, 64);
  tokens << x, -x;
  return (tokens * std::sqrt(kLargestScore * 4)).cast<float>();  // largest score: |token|^2 / 8
}

/// A row of the table and a panel of the picture.
struct Form {
  std::string name;
  mhla::GridShape block;             // patches of a block
  mhla::Diagnosis<float> diagnosis;  // of the attention matrix [N,N]
  Eigen::RowVectorXd map;            // [N] its row of the query, in units of 1/N
  std::size_t bytes;                 // of workspace
  double milliseconds;               // median of 25 runs
  double error;                      // the largest, over the largest value
};

/// The photograph and the maps of all forms, with one logarithmic scale of colours.
Picture draw(const Picture& picture, Index query, const std::vector<Form>& forms) {
  const Color paper(14, 14, 19), ink(238, 238, 242), gray(170, 170, 184), mark(50, 230, 255);
  const Index columns = picture.cols() / kPatch, n = forms[0].map.size();
  const Index qy = query / columns * kPatch, qx = query % columns * kPatch;
  const Index top = kMargin + 52, below = top + picture.rows() + 20, bar = below + 100;
  Picture canvas = Picture::Constant(bar + 74 + kMargin, kWidth, paper);

  Index left = kMargin;
  const auto panel = [&](const std::string& title, const std::string& notes, auto color) {
    for (Index y = 0; y < picture.rows(); ++y) {
      for (Index x = 0; x < picture.cols(); ++x) {
        const Index away = std::max({qx - x, x - qx - kPatch, qy - y, y - qy - kPatch});
        canvas(top + y, left + x) = away >= -1 && away <= 2 ? mark : color(y, x);
      }
    }
    write(canvas, left, kMargin, 4, ink, title);
    write(canvas, left, below, 3, gray, notes);
    left += kPanel + kMargin;
  };
  panel("photograph", text("N = %td patches\nthe query outlined", n),
        [&](Index y, Index x) { return picture(y, x); });

  double most = 2;  // end of the scale, in units of 1/N; it begins at 1/4
  for (const Form& form : forms) most = std::max(most, form.map.maxCoeff());
  const auto place = [&](double w) { return std::log(4 * w) / std::log(4 * most); };
  for (const Form& form : forms) {
    panel(form.name,
          text("rank %td, entropy %.2f\n%.2f ms, peak %.1f", form.diagnosis.rank,
               form.diagnosis.entropy, form.milliseconds, form.map.maxCoeff()),
          [&](Index y, Index x) {
            const bool edge = (x > 0 && x % (form.block[2] * kPatch) == 0) ||
                              (y > 0 && y % (form.block[1] * kPatch) == 0);
            return inferno(place(form.map[y / kPatch * columns + x / kPatch]),
                           picture(y, x).cast<double>().sum() / 3500 + (edge ? 0.1 : 0));
          });
  }

  write(canvas, kMargin, bar, 3, gray, "weight of a patch\nin units of 1/N");
  left = 2 * kMargin + kPanel;
  const auto length = static_cast<double>(canvas.cols() - kMargin - left);
  for (Index x = left; x < canvas.cols() - kMargin; ++x) {
    canvas.col(x).segment(bar, 24).setConstant(
        inferno(static_cast<double>(x - left) / length, 0.1));
  }
  for (double w = 0.25; place(w) < 0.98; w *= 2) {
    write(canvas, left + static_cast<Index>(place(w) * length), bar + 38, 3, gray,
          w < 1 ? text("1/%g", 1 / w) : text("%g", w));
  }
  return canvas;
}

}  // namespace

int main(int argc, char** argv) try {
  std::map<std::string, std::string> options{{"PICTURE", "examples/data/astronaut.png"},
                                             {"--output", "attention_map.png"},
                                             {"--width", std::to_string(kWidth)},
                                             {"--query", ""}};
  for (int i = 1; i < argc; ++i) {
    const std::string key = argv[i][0] == '-' ? argv[i] : "PICTURE";
    if (!options.contains(key) || (key != "PICTURE" && ++i == argc)) {
      throw std::runtime_error("expected [PICTURE] [--output FILE] [--width W] [--query X,Y]");
    }
    options[key] = argv[i];
  }
  const std::string &path = options["PICTURE"], &pixel = options["--query"];

  const std::string& output = options["--output"];
  if (!output.ends_with(".png") && !output.ends_with(".jpg")) {
    throw std::runtime_error("--output " + output + " is not the name of a .png or a .jpg");
  }

  int w = 0, h = 0, pixels = 0;
  const Picture picture = load(path, kPanel, kPatch, w, h);
  int x = w * 11 / 25, y = h * 6 / 25;  // where portraits have their face
  char rest = 0;
  if (std::sscanf(options["--width"].c_str(), "%9d%c", &pixels, &rest) != 1 || pixels < 1 ||
      pixels > kWidth) {
    throw std::runtime_error("--width " + options["--width"] +
                             text(" is not a number of pixels from 1 to %td", kWidth));
  }
  if (!pixel.empty() && (std::sscanf(pixel.c_str(), "%9d,%9d%c", &x, &y, &rest) != 2 || x < 0 ||
                         x >= w || y < 0 || y >= h)) {
    throw std::runtime_error("--query " + pixel + " is not a pixel X,Y of " + path +
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
    std::vector<std::chrono::duration<double, std::milli>> times(25);
    for (auto& time : times) {
      const auto begin = std::chrono::steady_clock::now();
      run(out, workspace);
      time = std::chrono::steady_clock::now() - begin;
    }
    std::sort(times.begin(), times.end());
    const double error = (out.cast<double>() - expected).cwiseAbs().maxCoeff() / tokens.maxCoeff();
    const auto map = diagnosis.weights.row(query).template cast<double>() * static_cast<double>(n);
    forms.push_back({name, block, diagnosis, map, bytes, times[12].count(), error});
  };

  const Matrix<float> unit = Matrix<float>::Identity(n, n);
  // Attention is linear in v: with v = 1 it is its own matrix.
  const Matrix<float> p = mhla::softmax_bidirectional(mhla::inputs(tokens, tokens, unit));
  const mhla::Diagnosis<float> of_softmax{p, mhla::numerical_rank(p), n, mhla::mean_row_entropy(p),
                                          1};
  const Matrix<double> t = tokens.cast<double>(), e = (t * t.transpose() / 8).array().exp();
  add("softmax attention", all, of_softmax, mhla::softmax_workspace_bytes(in),
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
               std::max<Index>(1, drawn.rows() * pixels / drawn.cols()), pixels, output),
       output);

  std::printf("%s: N = %td, ln N = %.2f\n", path.c_str(), n, std::log(static_cast<double>(n)));
  // Sums of nonnegative terms, one rounding of 2^-24 a term above and below the fraction; scores of
  // the softmax add D roundings of at most kLargestScore.
  const double bound = 2 * (static_cast<double>(n) + 64 * (1 + kLargestScore)) * 0x1p-24;
  bool ok = forms[2].diagnosis.rank > forms[1].diagnosis.rank || forms[1].diagnosis.rank == n;
  for (const Form& f : forms) {
    std::printf("%-18s %6.2f ms  %4zu KB  rank %4td <= %4td  entropy %.2f  error %.1e\n",
                f.name.c_str(), f.milliseconds, f.bytes / 1024, f.diagnosis.rank,
                f.diagnosis.rank_bound, f.diagnosis.entropy, f.error);
    ok = ok && f.diagnosis.rank <= f.diagnosis.rank_bound && f.error <= bound;
  }
  if (!ok) throw std::runtime_error("FAILED: a rank or an error is not what it should be");
  std::printf("%s: ok\n", output.c_str());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "attention_map: %s\n", error.what());
  return 1;
}
