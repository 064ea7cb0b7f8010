#pragma once

/// \file
/// The picture: the photograph, and the attention of its query patch in each form.

#include <algorithm>
#include <cmath>
#include <mhla/attention/diagnose.hpp>
#include <mhla/policy/grid_partition.hpp>
#include <string>
#include <vector>

#include "tokens.hpp"

namespace attention_map {

constexpr Index kPanel = 512;                       // pixels along the longer side of the picture
constexpr Index kMargin = 40;                       // pixels around panels
constexpr Index kWidth = 4 * kPanel + 5 * kMargin;  // of the drawing

/// A row of the table and a panel of the picture.
struct Form {
  std::string name;
  mhla::GridShape block;             // patches of a block
  mhla::Diagnosis<float> diagnosis;  // of the attention matrix [N,N]
  Eigen::RowVectorXd map;            // [N] its row of the query, in units of 1/N
  std::size_t bytes;                 // of workspace
  double milliseconds;               // median
  double error;                      // the largest, over the largest value
};

/// Draws the photograph and the maps of all forms, with one logarithmic scale of colours.
inline Picture draw(const Picture& picture, Index query, const std::vector<Form>& forms) {
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
            const Index height = form.block[1] * kPatch, width = form.block[2] * kPatch;
            const bool border = (x >= width && x % width < 3) || (y >= height && y % height < 3);
            if (border) return gray;
            return inferno(place(form.map[y / kPatch * columns + x / kPatch]),
                           picture(y, x).cast<double>().sum() / 3500);
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

}  // namespace attention_map
