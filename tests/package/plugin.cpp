// A plugin: a shared library with functions of C. Compiled by two_versions.py.

#include <algorithm>

#include "mhla/mhla.hpp"

namespace {

constexpr mhla::Index kTokens = 75, kFeatures = 24;

}  // namespace

extern "C" const char* plugin_version() { return mhla::kVersion; }

/// Attention of q, k, v [75,24], row-major, by a pool of two threads. Returns the number of errors
/// that were caught, of one.
extern "C" int plugin_attend(const float* q, const float* k, const float* v, float* o) {
  const auto matrix = [](const float* x) {
    return Eigen::Map<const mhla::Matrix<float>>(x, kTokens, kFeatures);
  };
  mhla::ThreadPool pool(2);
  const mhla::Contiguous blocks(kTokens, 16);
  const mhla::Matrix<float> out =
      mhla::bidirectional(matrix(q), matrix(k), matrix(v), blocks,
                          mhla::locality<float>(blocks.blocks()), {.executor = pool});
  std::copy_n(out.data(), kTokens * kFeatures, o);
  try {
    mhla::Contiguous(-1, 16);
  } catch (const mhla::option_error&) {
    return 1;
  }
  return 0;
}
